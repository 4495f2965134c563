//! What selection rules for accelerated attention give on captured heads: layer error, heavy keys missed, keys opened.
//!
//! `cells_study [FILE] [--rows N] [--samples S]`

use iceformer_bench::cells::{Outcome, Rule, Shape, study};
use iceformer_bench::heads;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (mut path, mut rows, mut samples) = (heads::bundled(), usize::MAX, 24);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--rows" => rows = value()?.parse()?,
            "--samples" => samples = value()?.parse()?,
            _ => path = PathBuf::from(&arg),
        }
    }
    let layers = heads::load(&path, rows)?;
    let shape = Shape { segment: 512, cell: 16, lloyd: 1, sinks: 64, by_position: false };
    let base = Rule { shape, r: 16, random: false, needle: 1e-3, margin: 0.0, mass: 5e-3, estimate: true };
    let off = f64::INFINITY;
    let rules = [
        ("both rules", base),
        ("needles 0.5 %", Rule { needle: 5e-3, ..base }),
        ("margin 1", Rule { margin: 1.0, ..base }),
        ("mass 1 %", Rule { mass: 1e-2, ..base }),
        ("mass 0.2 %", Rule { mass: 2e-3, ..base }),
        ("needles alone", Rule { mass: off, ..base }),
        ("mass alone", Rule { needle: off, ..base }),
        ("nothing opened", Rule { needle: off, mass: off, ..base }),
        ("no estimate", Rule { estimate: false, ..base }),
        ("random directions", Rule { random: true, ..base }),
        ("r = 8", Rule { r: 8, ..base }),
        ("r = 32", Rule { r: 32, ..base }),
        ("cells of 8", Rule { shape: Shape { cell: 8, ..shape }, ..base }),
        ("cells of 32", Rule { shape: Shape { cell: 32, ..shape }, ..base }),
        ("by position", Rule { shape: Shape { by_position: true, ..shape }, ..base }),
        ("no Lloyd step", Rule { shape: Shape { lloyd: 0, ..shape }, ..base }),
        ("four Lloyd steps", Rule { shape: Shape { lloyd: 4, ..shape }, ..base }),
        ("segments of 2048", Rule { shape: Shape { segment: 2048, ..shape }, ..base }),
    ];
    println!("{:<20} {:>8} {:>8} {:>8} {:>8} {:>8}", "rule", "error", "p99", "missed", "opened", "local");
    for (name, rule) in rules {
        let mut all = Outcome::default();
        for layer in &layers {
            all.add(&study(layer, &rule, samples));
        }
        let missed = all.missed as f64 / f64::max(all.heavy as f64, 1.0);
        println!(
            "{name:<20} {:>8.4} {:>8.4} {missed:>8.4} {:>8.4} {:>8.4}",
            all.mean(),
            all.p99(),
            all.opened,
            all.local
        );
    }
    Ok(())
}
