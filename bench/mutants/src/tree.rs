//! A copy of the repository with its mutants behind a switch: what does not compile so is left out, until the rest does.

use crate::list::Mutant;
use crate::switch::{Place, switch};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

const RUNTIME: &str = include_str!("runtime.rs");
/// Compilers stop after several passes; each shows the errors of one.
const ROUNDS: usize = 40;

/// What became of a mutant.
#[derive(Clone, Copy, PartialEq)]
pub enum Fate {
    Switched,
    /// The compiler refuses it.
    Unviable,
    /// Not behind a switch: computed by the compiler.
    Left,
    /// Not behind a switch: of types that it does not know.
    Refused,
}

/// Makes `tree` a copy of the repository, the mutants behind the switch but those that were `left` out before, and says what became of
/// each. What is the same already is not written: the compiler goes by the time of files.
pub fn rewrite(
    repository: &Path,
    files: &[&str],
    tree: &Path,
    list: &[Mutant],
    mut left: BTreeSet<usize>,
) -> Vec<Fate> {
    let mutated: BTreeSet<&str> = list.iter().map(|m| m.file.as_str()).collect();
    for file in files.iter().filter(|file| !mutated.contains(**file)) {
        let mut content = fs::read(repository.join(file)).expect(file);
        if *file == "core/src/lib.rs" {
            content = with_runtime(&String::from_utf8(content).expect("text")).into_bytes();
        }
        put(&tree.join(file), &content);
    }
    let runtime = format!("{RUNTIME}\nconst COUNT: usize = {};\n", list.len());
    put(&tree.join("core/src/mutants.rs"), runtime.as_bytes());
    let sources: BTreeMap<&str, String> =
        mutated.iter().map(|&file| (file, fs::read_to_string(repository.join(file)).expect(file))).collect();
    for round in 1..=ROUNDS {
        let places: BTreeMap<&str, Vec<Place>> = sources
            .iter()
            .map(|(&file, source)| {
                let switched = switch(source, file, list, &|i| left.contains(&i));
                put(&tree.join(file), switched.text.as_bytes());
                (file, switched.places)
            })
            .collect();
        let wrong = check(tree, &places);
        eprintln!("round {round}: {} mutants do not compile", wrong.len());
        if wrong.is_empty() {
            let switched: BTreeSet<usize> =
                places.values().flatten().flat_map(|p| p.first..p.first + p.count).collect();
            let fate = |i: usize| match () {
                () if switched.contains(&i) => Fate::Switched,
                () if left.contains(&i) && list[i].genre == "FnValue" => Fate::Unviable,
                () if left.contains(&i) => Fate::Refused,
                () => Fate::Left,
            };
            return (0..list.len()).map(fate).collect();
        }
        left.extend(wrong);
    }
    panic!("does not compile after {ROUNDS} rounds");
}

fn put(path: &Path, content: &[u8]) {
    if fs::read(path).is_ok_and(|old| old == content) {
        return;
    }
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, content).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// The root of the core with the module of the switch.
fn with_runtime(lib: &str) -> String {
    let std = "#[cfg(any(feature = \"std\", test))]\nextern crate std;";
    assert!(lib.contains(std), "the core has no line for std");
    lib.replace("#![deny(unsafe_code)]", "").replace(std, "extern crate std;") + "\n#[doc(hidden)]\npub mod mutants;\n"
}

/// Mutants that errors of the compiler stand at.
fn check(tree: &Path, places: &BTreeMap<&str, Vec<Place>>) -> BTreeSet<usize> {
    let output = Command::new("cargo")
        .args([
            "check",
            "-q",
            "-p",
            "iceformer-core",
            "-p",
            "iceformer-ffi",
            "--lib",
            "--test",
            "small",
            "--message-format=json",
            "--keep-going",
        ])
        .current_dir(tree)
        .output()
        .expect("cargo");
    let mut wrong = BTreeSet::new();
    let mut unknown = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let message = &message["message"];
        if message["level"] != "error" {
            continue;
        }
        let mut spans: Vec<&Value> = message["spans"].as_array().map(|s| s.iter().collect()).unwrap_or_default();
        spans.retain(|s| s["is_primary"] == true);
        let found: Vec<usize> = spans.iter().filter_map(|span| at(span, places)).flatten().collect();
        if found.is_empty() && !spans.is_empty() {
            unknown.push(message["rendered"].to_string());
        }
        wrong.extend(found);
    }
    if wrong.is_empty() && !output.status.success() {
        panic!("{}\n{}", unknown.join("\n"), String::from_utf8_lossy(&output.stderr));
    }
    wrong
}

/// Mutants at a span, or at where the macro was called in which it lies.
fn at(span: &Value, places: &BTreeMap<&str, Vec<Place>>) -> Option<Vec<usize>> {
    let file = span["file_name"].as_str()?;
    let (begin, end) = (span["byte_start"].as_u64()? as usize, span["byte_end"].as_u64()? as usize);
    let own = |p: &&Place| p.own.iter().any(|r| r.start < end && begin < r.end && r.start <= begin);
    let around = |p: &&Place| p.whole.start <= begin && end <= p.whole.end;
    let found = places.get(file).and_then(|places| {
        let inner = places.iter().filter(own).min_by_key(|p| p.whole.len());
        inner.or_else(|| places.iter().filter(around).min_by_key(|p| p.whole.len()))
    });
    match found {
        Some(p) => Some((p.first..p.first + p.count).collect()),
        None if span["expansion"].is_null() => None,
        None => at(&span["expansion"]["span"], places),
    }
}
