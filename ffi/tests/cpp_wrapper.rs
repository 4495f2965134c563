//! `iceformer.hpp`: compiles without a warning with and without exceptions, and does what `wrapper.cpp` checks.

#[path = "common/c.rs"]
mod c;
use c::{STRICT, SYSTEM, folder, found, run, staticlib};
use std::path::Path;
use std::process::Command;

#[test]
fn wrapper_does_what_it_says() {
    let compilers: Vec<&str> = ["g++", "clang++"].into_iter().filter(|c| found(c)).collect();
    if compilers.is_empty() {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (library, dir) = (staticlib(), folder("wrapper"));
    for compiler in compilers {
        for flags in [&["-std=c++17"][..], &["-std=c++17", "-fno-exceptions"], &["-std=c++20"]] {
            let program = dir.join(format!("wrapper-{compiler}{}", flags.concat()));
            let mut c = Command::new(compiler);
            c.args(flags).args(STRICT).arg("-Wshadow").arg("-I").arg(root.join("../include")).arg("-o").arg(&program);
            run(c.arg(root.join("tests/wrapper.cpp")).arg(&library).args(SYSTEM));
            assert_eq!(run(&mut Command::new(&program)).stdout, b"wrapper: ok\n", "{compiler} {flags:?}");
        }
    }
}
