//! AUTO at its default tolerance on heads made to be hard: the error of the layer stays near the tolerance, whatever ran.
//!
//! `ICE_FAMILIES_ROWS` takes other numbers of rows than 4,096, for which other heads may miss their aim.

use iceformer_bench::families::{FAMILIES, Heads, Shape};
use iceformer_core::attention::Mode;
use std::time::Instant;

/// Of the options, where they say nothing.
const TOLERANCE: f64 = 0.05;

const DIMS: [usize; 3] = [64, 128, 256];
const GROUPS: [usize; 3] = [1, 4, 8];

fn rows() -> usize {
    match std::env::var("ICE_FAMILIES_ROWS") {
        Ok(text) => text.parse().expect("ICE_FAMILIES_ROWS: a number of rows"),
        Err(_) => 4096,
    }
}

/// Two shapes for every family, of different dimensions and groups; nine families in a row meet all.
fn shapes(family: usize) -> [Shape; 2] {
    [family, family + 4].map(|at| {
        let (dim, group) = (DIMS[at % 3], GROUPS[at / 3 % 3]);
        // Small heads come in twos.
        let heads_kv = if dim == 64 && group == 1 { 2 } else { 1 };
        Shape { rows: rows(), dim, heads_q: group * heads_kv, heads_kv }
    })
}

#[test]
fn shapes_meet_all_dimensions_and_groups() {
    for family in 0..FAMILIES.len() {
        let [a, b] = shapes(family);
        assert!(a.dim != b.dim && a.heads_q / a.heads_kv != b.heads_q / b.heads_kv);
    }
    let all: std::collections::HashSet<_> = (0..9).map(|f| shapes(f)[0]).map(|s| (s.dim, s.heads_q)).collect();
    assert_eq!(all.len(), 9);
}

#[test]
fn a_seed_gives_the_same_heads() {
    let shape = Shape { rows: 2200, dim: 32, heads_q: 2, heads_kv: 1 };
    for family in &FAMILIES {
        let [one, again, other] = [3, 3, 4].map(|seed| family.heads(shape, seed));
        assert!(one == again && one != other, "{}", family.name);
        assert!([&one.q, &one.k, &one.v].iter().all(|x| x.iter().all(|x| x.is_finite())), "{}", family.name);
    }
}

/// Exact attention in f32 beside f64, on a few rows: what the others are held to.
fn hold_exact(name: &str, heads: &Heads, out: &[f32]) {
    let Shape { rows, dim, heads_q, .. } = heads.shape;
    for (head, row) in [(0, rows / 4 + 5), (heads_q / 2, rows / 2 + 1), (heads_q - 1, rows - 1)] {
        let want = heads.exact(head, row);
        let have = &out[(head * rows + row) * dim..][..dim];
        let wrong: f64 = have.iter().zip(&want).map(|(&x, y)| (f64::from(x) - y).powi(2)).sum();
        let all: f64 = want.iter().map(|y| y * y).sum();
        // Logits of 1,000 are rounded at 1e-4.
        assert!(wrong.sqrt() <= 2e-3 * all.sqrt(), "{name}: exact row {row} off by {}", (wrong / all).sqrt());
    }
}

/// Heads whose easy rows bear loose thresholds, under which the hard ones between them err by all: none may be used that was not measured.
#[test]
fn blocks_are_attended_by_the_threshold_that_was_measured() {
    for (name, rows, dim) in [("late needles", 8192, 64), ("needle pairs", 4096, 128)] {
        let family = FAMILIES.iter().find(|family| family.name == name).expect("a family of that name");
        let heads = family.heads(Shape { rows, dim, heads_q: 8, heads_kv: 1 }, 4);
        let (want, ..) = heads.attend(Mode::Exact, 0.0).expect("finite heads");
        let (have, _, stats) = heads.attend(Mode::Auto, 0.0).expect("finite heads");
        let errors = heads.errors(&have, &want, 1024);
        let n = errors.len() as f64;
        let mean = errors.iter().sum::<f64>() / n;
        let beyond = errors.iter().filter(|&&e| e.is_nan() || e > 3.0 * TOLERANCE).count() as f64 / n;
        assert!(stats.mode == Mode::Accelerated, "{stats:?}");
        // Of pairs of needles more rows find none at a threshold that would open fewer cells.
        assert!(name == "needle pairs" || stats.pairs < stats.pairs_dense / 2, "{stats:?}");
        assert!(
            mean <= TOLERANCE && beyond <= 0.02,
            "{name}: mean {mean:.4}, {:.2} % of the rows beyond",
            100.0 * beyond
        );
    }
}

/// Heads of which, on one instruction set or another, more than 2 % of the rows, but less than 7 %, err by more than three times the
/// tolerance: rare rows of whose kind too few are measured (bench/notes/2026-11-25-worst-rows.md). All others keep it, and these keep
/// the mean.
const OPEN: [(&str, usize); 10] = [
    ("topics", 256),
    ("huge values", 256),
    ("outlier signs", 256),
    ("sink", 256),
    ("sink of no value", 64),
    ("first key of 1,000", 256),
    ("heavy-tailed values", 256),
    ("heavy-tailed rows", 128),
    ("shift", 128),
    ("shift", 256),
];

/// One shape of every family; both where `ICE_FAMILIES` is `all`.
#[test]
fn auto_keeps_the_tolerance_on_every_family() {
    let mut failed = Vec::new();
    println!(
        "{:<20} {:>4} {:>5} {:>5} {:<11} {:>6} {:>8} {:>7} {:>7} {:>9} {:>7} {:>6}",
        "family", "d", "heads", "KV", "ran", "mean", "measured", "p99", "worst", "beyond", "pairs", "s"
    );
    let all = std::env::var("ICE_FAMILIES").is_ok_and(|which| which == "all");
    for (at, family) in FAMILIES.iter().enumerate() {
        for shape in shapes(at).into_iter().take(if all { 2 } else { 1 }) {
            let start = Instant::now();
            let heads = family.heads(shape, 1 + at as u64);
            let (want, ..) = heads.attend(Mode::Exact, 0.0).expect("finite heads");
            let (have, _, stats) = heads.attend(Mode::Auto, 0.0).expect("finite heads");
            hold_exact(family.name, &heads, &want);
            // Rows that see few keys have nothing to leave out: they would only thin the others' errors.
            let mut errors = heads.errors(&have, &want, shape.rows / 4);
            let mean = errors.iter().sum::<f64>() / errors.len() as f64;
            let beyond = errors.iter().filter(|&&e| e.is_nan() || e > 3.0 * TOLERANCE).count() as f64;
            let beyond = beyond / errors.len() as f64;
            errors.sort_by(f64::total_cmp);
            let (p99, worst) = (errors[errors.len() * 99 / 100], errors[errors.len() - 1]);
            let pairs = stats.pairs as f64 / stats.pairs_dense as f64;
            println!(
                "{:<20} {:>4} {:>5} {:>5} {:<11} {mean:>6.4} {:>8.4} {p99:>7.4} {worst:>7.3} {:>7.2} % {:>5.1} % {:>4.1}",
                family.name,
                shape.dim,
                shape.heads_q,
                shape.heads_kv,
                format!("{:?}", stats.mode),
                stats.measured.mean(),
                100.0 * beyond,
                100.0 * pairs,
                start.elapsed().as_secs_f64()
            );
            // NaN is not at most anything.
            let most = if OPEN.contains(&(family.name, shape.dim)) { 0.07 } else { 0.02 };
            let kept = mean <= 1.5 * TOLERANCE && beyond <= most;
            if !kept {
                failed.push(format!(
                    "{}, d = {}, {} heads: mean {mean:.4}, {:.2} % of the rows beyond three times the tolerance",
                    family.name,
                    shape.dim,
                    shape.heads_q,
                    100.0 * beyond
                ));
            }
        }
    }
    assert!(failed.is_empty(), "{}:\n{}", failed.len(), failed.join("\n"));
}

/// Heads on the keys of topics, each looked at by itself, for which twice the share of rows may be far off. No row may err by more than
/// `most`.
fn hold_single_heads(most: f64) {
    let topics = FAMILIES.iter().find(|family| family.name == "topics").expect("a family of that name");
    let mut failed = Vec::new();
    let mut count = 0;
    for (heads_q, seeds) in [(1, 1..7), (2, 7..13), (4, 13..16), (8, 16..18)] {
        for seed in seeds {
            let shape = Shape { rows: 4096, dim: 64, heads_q, heads_kv: 1 };
            let heads = topics.heads(shape, seed);
            let (want, ..) = heads.attend(Mode::Exact, 0.0).expect("finite heads");
            let (have, _, stats) = heads.attend(Mode::Auto, 0.0).expect("finite heads");
            let one = Heads { shape: Shape { heads_q: 1, ..shape }, q: vec![], k: vec![], v: vec![] };
            let head = shape.rows * shape.dim;
            for (nth, (have, want)) in have.chunks(head).zip(want.chunks(head)).enumerate() {
                let errors = one.errors(have, want, shape.rows / 2);
                let n = errors.len() as f64;
                let mean = errors.iter().sum::<f64>() / n;
                let beyond = errors.iter().filter(|&&e| e.is_nan() || e > 3.0 * TOLERANCE).count() as f64 / n;
                let worst = errors.iter().copied().fold(0.0, f64::max);
                let what = format!(
                    "seed {seed}, head {nth} of {heads_q}, {:?}: mean {mean:.4}, {:.2} % of the rows beyond, worst {worst:.2}",
                    stats.mode,
                    100.0 * beyond
                );
                println!("{what}");
                count += 1;
                let kept = mean <= 1.5 * TOLERANCE && beyond <= 0.04 && worst <= most;
                if !kept {
                    failed.push(what);
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} of {count}:\n{}", failed.len(), failed.join("\n"));
}

/// What sampled rows have in common moves no head by a wrong vector. A row that misses the one key it looks for has another output of
/// about the same length: it errs by 1 to 1.4. A row that is moved errs by more.
#[test]
fn no_head_of_a_group_is_moved() {
    hold_single_heads(1.42);
}

/// No row misses the one key that it looks for.
#[test]
#[ignore = "not reached yet: one row each of 12 of 46 heads, bench/notes/2026-11-25-worst-rows.md"]
fn no_row_misses_its_key() {
    hold_single_heads(1.0);
}
