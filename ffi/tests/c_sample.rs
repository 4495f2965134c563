//! The C sample of the README compiles as C99 and C++ without a warning, links the static library by the line that the README
//! gives, and does what it is there for: most pairs are left out, at a small error. The Python sample runs, too.

#[path = "common/c.rs"]
mod c;
use c::{STRICT, SYSTEM, folder, found, run, staticlib};
use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
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
    assert_eq!(block_of(&readme, "c"), SAMPLE, "README.md and ffi/tests/sample.c differ");
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
fn sample_does_what_it_is_there_for() {
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
        let out = String::from_utf8_lossy(&out.stdout).into_owned();
        let numbers: Vec<f64> = out.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert!(matches!(numbers[..], [scored, error] if scored < 50.0 && error < 0.05), "{out}");
    }
}

/// The block of the README after a fence.
fn block_of<'a>(readme: &'a str, language: &str) -> &'a str {
    let block = readme.split(&format!("```{language}\n")).nth(1).and_then(|b| b.split("```").next());
    block.unwrap_or_else(|| panic!("README.md has no {language} block"))
}

/// The first minute: a page to read at once, and samples that fit into it.
#[test]
fn readme_is_short() {
    let Ok(readme) = std::fs::read_to_string(Path::new(ROOT).join("../README.md")) else {
        println!("SKIPPED: packaged without README.md");
        return;
    };
    assert!(readme.lines().count() <= 200);
    for (language, most) in [("c", 12), ("rust", 8), ("python", 6)] {
        let lines = block_of(&readme, language).lines().count();
        assert!(lines <= most, "the {language} sample has {lines} lines");
    }
}

#[test]
fn python_sample_runs() {
    let root = Path::new(ROOT).join("..");
    let Ok(readme) = std::fs::read_to_string(root.join("README.md")) else {
        println!("SKIPPED: packaged without README.md");
        return;
    };
    let numpy = Command::new("python3").args(["-c", "import numpy"]).output().is_ok_and(|o| o.status.success());
    if !numpy {
        println!("SKIPPED: no python3 with NumPy on this machine");
        return;
    }
    let library = staticlib().with_file_name(format!("{DLL_PREFIX}iceformer{DLL_SUFFIX}"));
    let mut c = Command::new("python3");
    c.arg("-B").arg("-c").arg(block_of(&readme, "python")).env("ICEFORMER_LIBRARY", library);
    let out = run(c.env("PYTHONPATH", root.join("examples-python")));
    let out = String::from_utf8_lossy(&out.stdout).into_owned();
    let numbers: Vec<f64> = out.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(matches!(numbers[..], [scored, error] if scored < 0.5 && error < 0.05), "{out}");
}
