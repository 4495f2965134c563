//! The shared library is named after the ABI it keeps: libiceformer.so.N, with N = ICE_ABI_VERSION (a test compares).

const ABI: u32 = 1;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    // ELF systems; elsewhere the file keeps the name cargo gives it.
    if matches!(os.as_str(), "linux" | "android" | "freebsd" | "netbsd" | "openbsd") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libiceformer.so.{ABI}");
    }
}
