//! What a program links beside the static library is said once, in `system-libs.txt`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "common/c.rs"]
mod c;
use c::{folder, found, run, staticlib};

const LIST: &str = include_str!("../system-libs.txt");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Libraries of a system.
fn libraries(system: &str) -> BTreeSet<String> {
    let line = LIST.lines().find_map(|l| l.strip_prefix(&format!("{system} ")));
    line.unwrap_or_else(|| panic!("{system} is not in system-libs.txt")).split(' ').map(String::from).collect()
}

/// The `-l` arguments of a line.
fn named(line: &str) -> Vec<String> {
    line.split([' ', '`']).filter_map(|w| w.strip_prefix("-l")).map(String::from).collect()
}

/// What rustc says that an archive for a target needs; `None` where its standard library is not installed.
fn native(target: &str) -> Option<BTreeSet<String>> {
    let dir = folder("link_lines");
    let source = dir.join("empty.rs");
    std::fs::write(&source, "pub fn nothing() {}\n").expect("writable");
    let rustc = std::env::var("RUSTC").unwrap_or("rustc".into());
    let mut c = Command::new(rustc);
    c.args(["--crate-type", "staticlib", "--print", "native-static-libs", "--target", target, "-o"]);
    let out = c.arg(dir.join(format!("{target}.a"))).arg(&source).output().expect("rustc runs");
    let text = String::from_utf8_lossy(&out.stderr);
    let line = text.lines().find(|l| l.contains("native-static-libs:"));
    if line.is_none() {
        println!("SKIPPED: {target} is not installed");
    }
    line.map(|l| named(l).into_iter().collect())
}

#[test]
fn the_list_is_what_rustc_names() {
    let mut seen = 0;
    for (target, system) in [
        ("x86_64-unknown-linux-gnu", "linux"),
        ("aarch64-unknown-linux-gnu", "linux"),
        ("x86_64-pc-windows-gnu", "windows"),
        ("x86_64-apple-darwin", "macos"),
        ("aarch64-apple-darwin", "macos"),
    ] {
        if let Some(native) = native(target) {
            assert_eq!(libraries(system), native, "{target}");
            seen += 1;
        }
    }
    assert!(seen > 0 || cfg!(not(any(target_os = "linux", target_os = "macos"))), "not even the host's");
    // rustc names LLVM's unwinder there; with GCC it is libgcc_eh.
    if let Some(native) = native("x86_64-unknown-linux-musl") {
        let ours = libraries("musl").into_iter().map(|l| if l == "gcc_eh" { "unwind".into() } else { l });
        assert_eq!(ours.collect::<BTreeSet<_>>(), native);
    }
}

#[test]
fn builds_read_the_list() {
    for file in ["CMakeLists.txt", "examples-c/common/library.mk", ".ci/sanitize"] {
        let text = read(file);
        assert!(text.contains("ffi/system-libs.txt"), "{file} does not read the list");
        for library in ["gcc_s", "util", "ntdll", "userenv"] {
            assert!(!text.contains(&format!("-l{library}")), "{file} names {library} itself");
        }
    }
    for file in ["examples-c/Makefile", "examples-c/onnxruntime/Makefile"] {
        let text = read(file);
        assert!(text.contains("common/library.mk") && !text.contains("-lgcc_s"), "{file} has a list of its own");
    }
    assert!(read("cmake/iceformer.pc.in").contains("Libs.private: @pc_private@"));
}

/// Lines of the documentation that link the static library: each names libraries of the list alone, and links a program.
#[test]
#[cfg(target_os = "linux")]
fn lines_in_the_documentation_link() {
    let mut lines = Vec::new();
    for file in ["README.md", "docs/embedding.md"] {
        lines.extend(read(file).lines().filter(|l| l.contains("libiceformer.a -l")).map(|l| (file, named(l))));
    }
    assert!(!lines.is_empty(), "no line links libiceformer.a: the pages changed");
    let list = libraries("linux");
    for (file, line) in &lines {
        let strange: Vec<_> = line.iter().filter(|l| !list.contains(*l)).collect();
        assert!(strange.is_empty(), "{file}: {strange:?} are not in system-libs.txt");
    }
    if !found("gcc") {
        return;
    }
    let library = staticlib();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sample.c");
    for (i, (_, line)) in lines.iter().enumerate() {
        let mut c = Command::new("gcc");
        c.arg("-I").arg(root().join("include")).arg("-o").arg(folder("link_lines").join(format!("program{i}")));
        c.arg(&source).arg(&library).args(line.iter().map(|l| format!("-l{l}")));
        run(&mut c);
    }
}
