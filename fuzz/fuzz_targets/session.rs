#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| iceformer_fuzz::session::run(data));
