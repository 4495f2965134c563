//! Mutation testing in one build. `.ci/mutants` says how it is called.
//!
//! `iceformer-mutants FOLDER COMMAND`: FOLDER holds `list.json`, the list of cargo-mutants, `files`, the names of the repository's files,
//! and in `tree` a copy of them with every mutant behind a switch.

mod campaign;
mod list;
mod suite;
mod switch;
mod tree;

use std::path::Path;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |x: &str| x.parse().unwrap_or_else(|_| panic!("{x} is no number"));
    match words[..] {
        [folder, "switch", repository] => campaign::switch(Path::new(folder), Path::new(repository)),
        [folder, "sample", n, seed] => campaign::sample(Path::new(folder), number(n) as usize, number(seed)),
        [folder, "again"] => campaign::again(Path::new(folder)),
        [folder, "report", accepted] => campaign::report(Path::new(folder), Path::new(accepted)),
        _ => {
            eprintln!("failed: FOLDER switch REPOSITORY, sample N SEED, again, or report ACCEPTED");
            std::process::exit(2);
        }
    }
}
