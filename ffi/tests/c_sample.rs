//! The sample of the README compiles as C99 and C++ without a warning, links the static library, and prints what it
//! says.

#[path = "common/c.rs"]
mod c;
use c::{STRICT, SYSTEM, folder, found, run, staticlib};
use std::path::Path;
use std::process::Command;

const SAMPLE: &str = include_str!("sample.c");
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

const LANGUAGES: [(&str, &str, &str); 3] =
    [("gcc", "-std=c99", "c"), ("g++", "-std=c++11", "c++"), ("g++", "-std=c++17", "c++")];

#[test]
fn sample_is_the_one_in_the_readme() {
    let path = Path::new(ROOT).join("../README.md");
    let Ok(readme) = std::fs::read_to_string(path) else {
        println!("SKIPPED: packaged without README.md");
        return;
    };
    // The first C block of the README is the sample.
    let block = readme.split("```c\n").nth(1).and_then(|b| b.split("```").next());
    assert_eq!(block, Some(SAMPLE), "README.md and ffi/tests/sample.c differ");
}

#[test]
fn header_compiles_twice_in_every_language() {
    let dir = folder("header");
    let include = Path::new(ROOT).join("../include");
    let source = "#include <iceformer.h>\n#include <iceformer.h>\n\
                  int main(void) { ice_status s = ICE_OK; ice_attention_desc d; ice_attention_desc_init(&d);\n\
                  return (int)s - ICE_ERR_INTERNAL - (int)ICE_VERSION_NUMBER + (int)(sizeof ICE_VERSION_STRING); }\n";
    for (compiler, std, language) in LANGUAGES.into_iter().chain([("clang", "-std=c11", "c")]) {
        if found(compiler) {
            let file = dir.join(format!("twice{std}.{}", if language == "c" { "c" } else { "cpp" }));
            std::fs::write(&file, source).expect("writable");
            let mut c = Command::new(compiler);
            run(c.args([std, "-x", language]).args(STRICT).arg("-I").arg(&include).arg("-fsyntax-only").arg(&file));
        }
    }
}

#[test]
fn sample_prints_what_it_says() {
    if !found("gcc") {
        return;
    }
    let library = staticlib();
    let dir = folder("sample");
    let file = dir.join("sample.c");
    std::fs::write(&file, SAMPLE).expect("writable");
    let include = Path::new(ROOT).join("../include");
    for (compiler, std, language) in LANGUAGES {
        if !found(compiler) {
            continue;
        }
        let program = dir.join(format!("sample{std}"));
        let mut c = Command::new(compiler);
        c.args([std, "-x", language]).args(STRICT).arg("-I").arg(&include).arg("-o").arg(&program).arg(&file);
        c.args(["-x", "none"]).arg(&library).args(SYSTEM);
        run(&mut c);
        let out = run(&mut Command::new(&program));
        assert_eq!(String::from_utf8_lossy(&out.stdout), "2 3.0\n3 2.0\n");
    }
}
