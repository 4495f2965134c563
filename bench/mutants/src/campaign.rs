//! Which mutants are run, what of them is known, and what that says of all.

use crate::list::{self, Mutant, STRATA};
use crate::suite::{self, Test};
use crate::tree::{self, Fate};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::Write;
use std::path::Path;

/// The share of mutants that tests must catch.
const SHARE: f64 = 0.9;

/// Puts the mutants behind the switch, in `tree`; `mutants.tsv` says what became of each.
pub fn switch(folder: &Path, repository: &Path) {
    let list = read(folder);
    let files = fs::read_to_string(folder.join("files")).expect("files");
    let files: Vec<&str> = files.lines().collect();
    // What did not compile the last time will not now.
    let before = fs::read_to_string(folder.join("mutants.tsv")).unwrap_or_default();
    let before: BTreeSet<&str> = before
        .lines()
        .filter_map(|l| l.split_once("\tunviable\t").or(l.split_once("\trefused\t")))
        .map(|(_, name)| name)
        .collect();
    let left = (0..list.len()).filter(|&i| before.contains(list[i].name.as_str())).collect();
    let fates = tree::rewrite(repository, &files, &folder.join("tree"), &list, left);
    let lines = list.iter().zip(&fates).enumerate().map(|(i, (m, fate))| {
        let fate = match fate {
            Fate::Switched => "switched",
            Fate::Unviable => "unviable",
            Fate::Left => "left",
            Fate::Refused => "refused",
        };
        format!("{i}\t{fate}\t{}\n", m.name)
    });
    fs::write(folder.join("mutants.tsv"), lines.collect::<String>()).expect("mutants.tsv");
    for (s, (name, _)) in STRATA.iter().enumerate() {
        let count = |what| list.iter().zip(&fates).filter(|(m, f)| m.stratum == s && **f == what).count();
        let (switched, unviable) = (count(Fate::Switched), count(Fate::Unviable));
        let left = count(Fate::Left) + count(Fate::Refused);
        println!("{name}: {switched} behind the switch, {unviable} do not compile, {left} left out");
    }
}

fn read(folder: &Path) -> Vec<Mutant> {
    list::read(&fs::read_to_string(folder.join("list.json")).expect("list.json"))
}

fn switched(folder: &Path) -> Vec<bool> {
    let table = fs::read_to_string(folder.join("mutants.tsv")).expect("mutants.tsv");
    table.lines().map(|l| l.split('\t').nth(1) == Some("switched")).collect()
}

/// By name: the test that caught it, or none. The latest line counts.
fn results(folder: &Path) -> HashMap<String, Option<String>> {
    let lines = fs::read_to_string(folder.join("results.tsv")).unwrap_or_default();
    let parts = lines.lines().filter_map(|l| l.split_once('\t'));
    parts.map(|(name, test)| (name.to_string(), (test != "missed").then(|| test.to_string()))).collect()
}

/// Runs N mutants of each stratum, in an order that the seed draws: a larger sample goes on where a smaller one ended.
pub fn sample(folder: &Path, n: usize, seed: u64) {
    let list = read(folder);
    let switched = switched(folder);
    let mut chosen: Vec<Vec<usize>> = (0..STRATA.len())
        .map(|s| {
            let mut of: Vec<usize> = (0..list.len()).filter(|&i| list[i].stratum == s && switched[i]).collect();
            of.sort_by_key(|&i| hash(seed, &list[i].name));
            of.truncate(n);
            of
        })
        .collect();
    // Strata by turns, so that a run that is ended early has some of each.
    let most = chosen.iter().map(Vec::len).max().unwrap_or(0);
    let order: Vec<usize> =
        (0..most).flat_map(|at| chosen.iter().filter_map(move |c| c.get(at).copied()).collect::<Vec<_>>()).collect();
    chosen.clear();
    let known = results(folder);
    run(folder, &list, order.into_iter().filter(|&i| !known.contains_key(&list[i].name)));
}

/// Runs those again that were missed.
pub fn again(folder: &Path) {
    let list = read(folder);
    let switched = switched(folder);
    let known = results(folder);
    let missed = |i: &usize| switched[*i] && known.get(&list[*i].name).is_some_and(Option::is_none);
    let order: Vec<usize> = (0..list.len()).filter(missed).collect();
    run(folder, &list, order.into_iter());
}

fn run(folder: &Path, list: &[Mutant], order: impl Iterator<Item = usize>) {
    let tests = suite::measured(&folder.join("tree"), &folder.join("notes"));
    // A place is noted by the first of its mutants.
    let mut first: BTreeMap<usize, usize> = BTreeMap::new();
    for (i, m) in list.iter().enumerate() {
        let same = i > 0 && m.genre == "BinaryOperator" && same_place(&list[i - 1], m);
        first.insert(i, if same { first[&(i - 1)] } else { i });
    }
    let mut caught = vec![[0u32; 2]; tests.len()];
    let path = folder.join("results.tsv");
    let mut out = fs::File::options().append(true).create(true).open(path).expect("results.tsv");
    for i in order {
        let mut reaching: Vec<usize> = (0..tests.len()).filter(|&t| tests[t].reached.contains(&first[&i])).collect();
        // Those first that catch much in little time; those that hold bits, last.
        let worth =
            |t: usize| (f64::from(caught[t][1]) + 1.0) / (f64::from(caught[t][0]) + 2.0) / (tests[t].seconds + 0.01);
        let late = |t: &Test| t.of_bits();
        reaching.sort_by(|&a, &b| late(&tests[a]).cmp(&late(&tests[b])).then(worth(b).total_cmp(&worth(a))));
        let by = reaching.into_iter().find(|&t| {
            let kills = tests[t].kills(i);
            caught[t][0] += 1;
            caught[t][1] += u32::from(kills);
            kills
        });
        let by = by.map_or("missed", |t| &tests[t].name);
        writeln!(out, "{}\t{by}", list[i].name).expect("results.tsv");
    }
}

fn same_place(a: &Mutant, b: &Mutant) -> bool {
    (&a.file, a.line, a.column, &a.genre) == (&b.file, b.line, b.column, &b.genre)
}

/// What was caught, by stratum, with an interval for all of it; and what was missed.
pub fn report(folder: &Path, accepted: &Path) {
    let list = read(folder);
    let switched = switched(folder);
    let known = results(folder);
    let accepted = fs::read_to_string(accepted).expect("accepted");
    let accepted: Vec<&str> =
        accepted.lines().map(|l| l.split('#').next().unwrap().trim()).filter(|l| !l.is_empty()).collect();
    let (mut share, mut below, mut above, mut all) = (0.0, 0.0, 0.0, 0.0);
    let mut missed = Vec::new();
    println!(
        "| stratum | mutants | run | caught | by bits alone | cannot be caught | missed | share | 95 % interval |\n|---|---|---|---|---|---|---|---|---|"
    );
    for (s, (name, _)) in STRATA.iter().enumerate() {
        let of: Vec<usize> = (0..list.len()).filter(|&i| list[i].stratum == s && switched[i]).collect();
        let (mut run, mut caught, mut bits, mut equal) = (0u32, 0u32, 0u32, 0u32);
        for &i in &of {
            let Some(by) = known.get(&list[i].name) else { continue };
            run += 1;
            match by {
                Some(by) => {
                    caught += 1;
                    bits += u32::from(suite::OF_BITS.contains(&by.split(' ').next().unwrap()));
                }
                None if accepted.contains(&list[i].name.as_str()) => equal += 1,
                None => missed.push(&list[i].name),
            }
        }
        let n = f64::from(run - equal);
        if n == 0.0 {
            continue;
        }
        let p = f64::from(caught) / n;
        let [low, high] = wilson(p, n);
        println!(
            "| {name} | {} | {run} | {caught} | {bits} | {equal} | {} | {:.1} % | {:.1} to {:.1} % |",
            of.len(),
            n - f64::from(caught),
            100.0 * p,
            100.0 * low,
            100.0 * high
        );
        let size = of.len() as f64;
        share += size * p;
        below += (size * (p - low)).powi(2);
        above += (size * (high - p)).powi(2);
        all += size;
    }
    // Bounds of sums of shares from those of each (MOVER): they stay between 0 and 1.
    let (share, below, above) = (share / all, below.sqrt() / all, above.sqrt() / all);
    println!(
        "\nof all, each stratum by its size: {:.1} %, {:.1} to {:.1} %",
        100.0 * share,
        100.0 * (share - below),
        100.0 * (share + above)
    );
    missed.iter().for_each(|name| println!("missed: {name}"));
    if share < SHARE {
        std::process::exit(1);
    }
}

/// Wilson's interval of 95 % for a share seen among n.
fn wilson(p: f64, n: f64) -> [f64; 2] {
    let z = 1.959_964;
    let middle = (p + z * z / (2.0 * n)) / (1.0 + z * z / n);
    let half = z / (1.0 + z * z / n) * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    [middle - half, middle + half]
}

/// FNV-1a with a finish of SplitMix64.
fn hash(seed: u64, text: &str) -> u64 {
    let h = text.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let h = (h ^ h >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let h = (h ^ h >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ h >> 31
}
