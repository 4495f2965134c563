//! The list of mutants, as cargo-mutants prints it, by stratum.

use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// What is sampled by itself: name, and the beginnings of its files; the first that fits.
pub const STRATA: [(&str, &[&str]); 4] = [
    ("clustered", &["core/src/attention/clustered/"]),
    ("attention", &["core/src/attention/"]),
    ("dci", &["core/src/dci/", "core/src/bytes.rs"]),
    ("ffi", &["ffi/src/"]),
];

pub struct Mutant {
    pub file: String,
    pub line: usize,
    pub column: usize,
    pub genre: String,
    pub replacement: String,
    /// Without its line, so that it outlasts changes elsewhere: file, what it does, which of those alike.
    pub name: String,
    pub stratum: usize,
}

/// Mutants of the library, each once; not those of its tests.
pub fn read(json: &str) -> Vec<Mutant> {
    let all: Value = serde_json::from_str(json).expect("the list of cargo-mutants");
    let (mut seen, mut alike) = (HashSet::new(), HashMap::<String, usize>::new());
    let mut list = Vec::new();
    for m in all.as_array().expect("an array") {
        let text = |x: &Value| x.as_str().expect("text").to_string();
        let (file, full) = (text(&m["file"]), text(&m["name"]));
        let function = m["function"]["function_name"].as_str().unwrap_or("");
        if file.ends_with("tests.rs") || function.starts_with("tests::") || !seen.insert(full.clone()) {
            continue;
        }
        let number = |x: &Value| x.as_u64().expect("a number") as usize;
        let (line, column) = (number(&m["span"]["start"]["line"]), number(&m["span"]["start"]["column"]));
        let does = full.split_once(&format!("{file}:{line}:{column}: ")).expect("a place").1;
        let same = format!("{file}: {does}");
        let nth = alike.entry(same.clone()).or_default();
        *nth += 1;
        let name = if *nth == 1 { same } else { format!("{same} ({nth})") };
        let stratum = STRATA.iter().position(|(_, begin)| begin.iter().any(|b| file.starts_with(b)));
        let stratum = stratum.unwrap_or_else(|| panic!("{file} is in no stratum"));
        list.push(Mutant {
            file,
            line,
            column,
            genre: text(&m["genre"]),
            replacement: text(&m["replacement"]),
            name,
            stratum,
        });
    }
    // Those of one operator side by side; the sort keeps their order.
    list.sort_by_cached_key(|m| (m.file.clone(), m.line, m.column, m.genre.clone()));
    list
}
