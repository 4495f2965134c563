#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| iceformer_fuzz::attention::run(data));
