//! C and C++ compilers of the machine, and the static library to link their programs with.

// Each test uses its part of this.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs a command that must succeed.
pub fn run(c: &mut Command) -> Output {
    let out = c.output().unwrap_or_else(|e| panic!("{c:?}: {e}"));
    assert!(out.status.success(), "{c:?}\n{}", String::from_utf8_lossy(&out.stderr));
    out
}

/// Whether there is such a compiler; says so if not.
pub fn found(compiler: &str) -> bool {
    let there = Command::new(compiler).arg("--version").output().is_ok_and(|o| o.status.success());
    if !there {
        println!("SKIPPED: no {compiler} on this machine");
    }
    there
}

/// A folder of this test under the target directory.
pub fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).expect("the target directory is writable");
    dir
}

/// Builds the static library, and the shared one beside it, as users get them: in the folder where `cargo build --release` leaves them.
pub fn staticlib() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the folder is inside the target directory");
    let mut c = Command::new(env!("CARGO"));
    c.args(["build", "--offline", "--release", "-p", "iceformer-ffi", "--target-dir"]).arg(target);
    run(c.current_dir(env!("CARGO_MANIFEST_DIR")));
    target.join("release/libiceformer.a")
}

/// No warning of any kind.
pub const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// What the static library needs from the system.
pub const SYSTEM: [&str; 5] = ["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lc"];
