//! What a host process does around the library (`hosted.c`): stacks of the size that the header names, fork, signals, limits on
//! threads; and calls on one session at once (`shared.c`, which `.ci/sanitize threads` watches for races).
#![cfg(target_os = "linux")]

#[path = "common/c.rs"]
mod c;
use c::{STRICT, SYSTEM, folder, found, run, staticlib};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn build(name: &str) -> Option<PathBuf> {
    found("gcc").then(|| {
        let program = folder("hosted").join(name);
        let mut c = Command::new("gcc");
        c.args(["-std=c11", "-O1"]).args(STRICT).arg("-I").arg(Path::new(ROOT).join("../include"));
        c.arg("-o").arg(&program).arg(Path::new(ROOT).join("tests").join(name).with_extension("c")).arg(staticlib());
        run(c.args(SYSTEM));
        program
    })
}

/// The program, if there is a compiler.
fn program() -> Option<&'static PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(|| build("hosted")).as_ref()
}

fn output(what: &str) -> Option<String> {
    let out = run(Command::new(program()?).arg(what));
    Some(String::from_utf8(out.stdout).expect("text"))
}

/// KiB of stack that the header promises to suffice.
fn stated() -> usize {
    let header = std::fs::read_to_string(Path::new(ROOT).join("../include/iceformer.h")).expect("the header is there");
    let text = header.split("Stack: threads of ").nth(1).expect("the header names it");
    text.split(' ').next().and_then(|n| n.parse().ok()).expect("a number")
}

/// A quarter of what is stated stays free for frames of other machines and for what the caller has below its call.
#[test]
fn calls_keep_to_the_stack_of_the_header() {
    let Some(text) = output("stack") else { return };
    let worst = text.lines().find_map(|l| l.strip_prefix("worst ")).expect("a figure");
    let worst: usize = worst.parse().expect("a number");
    assert!(worst <= stated() * 1024 / 4 * 3, "{text}");
    // The measurement sees something: a call is more than a thread.
    assert!(worst > 8192 && text.lines().count() > 12, "{text}");
}

#[test]
fn a_child_has_the_same_bits() {
    output("fork");
}

#[test]
fn signals_change_nothing() {
    output("signals");
}

#[test]
fn without_threads_there_is_a_status_or_the_answer() {
    let Some(text) = output("threads") else { return };
    let numbers: Vec<usize> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(numbers.len() == 2 && numbers.iter().sum::<usize>() == 10, "{text}");
}

#[test]
fn one_session_is_attended_by_many_at_once() {
    if let Some(program) = build("shared") {
        run(&mut Command::new(program));
    }
}
