//! What each part of accelerated attention is worth on captured heads: the tree and the rule with one thing changed at a
//! time, in their naive form. Layer error, heavy keys missed, keys opened, vectors scored.

use clap::Parser;
use iceformer_bench::accelerated::report::place;
use iceformer_bench::cells::{Coding, Estimate, LIBRARY, Outcome, Rule, Shape, Sigma, Split, study};
use iceformer_bench::heads;
use std::fmt::Write;
use std::path::PathBuf;

/// Changes one part of accelerated attention at a time, in plain loops in f64 on sampled rows.
#[derive(Parser)]
struct Args {
    /// Captured heads, safetensors [default: the heads bundled with the C examples].
    file: Option<PathBuf>,
    /// First rows of the file.
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    rows: usize,
    /// Rows of each layer that are computed.
    #[arg(long, default_value_t = 24)]
    samples: usize,
    /// Writes the table between the marks <!-- ablations --> of a file.
    #[arg(long)]
    markdown: Option<PathBuf>,
}

/// The library's rule with one thing changed.
fn changes() -> Vec<(&'static str, Rule)> {
    let (base, off) = (LIBRARY, f64::INFINITY);
    let coded = |coding| Rule { coding, ..base };
    let shaped = |shape: Shape| Rule { shape, ..base };
    let shape = base.shape;
    let long = |segment, levels| Rule { levels, ..shaped(Shape { segment, ..shape }) };
    vec![
        ("as in the library", base),
        ("no estimate", Rule { estimate: Estimate::Nothing, ..base }),
        ("mass: exp", Rule { estimate: Estimate::Exp, ..base }),
        ("mass: cosh, keys spread alike in all directions", Rule { sigma: Sigma::Isotropic, ..base }),
        ("mass: cosh, each cell's own spread", Rule { sigma: Sigma::Each, ..base }),
        ("values do not lean", Rule { tilt: false, ..base }),
        ("needles 1 %", Rule { needle: 0.01, ..base }),
        ("thresholds do not rise with cells", Rule { plenty: off, ..base }),
        ("thresholds stay", Rule { found: false, plenty: off, ..base }),
        ("needles alone", Rule { mass: off, ..base }),
        ("mass alone", Rule { needle: off, ..base }),
        ("nothing opened", Rule { needle: off, mass: off, ..base }),
        ("nothing opened, values do not lean", Rule { tilt: false, needle: off, mass: off, ..base }),
        ("8 bits along 32 random directions", coded(Coding::Random(32))),
        ("8 bits along 4 fitted directions", coded(Coding::Fitted(4))),
        ("8 bits along 8 fitted directions", coded(Coding::Fitted(8))),
        ("8 bits along 16 fitted directions", coded(Coding::Fitted(16))),
        ("8 bits along 32 fitted directions", coded(Coding::Fitted(32))),
        ("8 bits along 64 fitted directions", coded(Coding::Fitted(64))),
        ("cells score by their own means", Rule { rounded: false, ..base }),
        ("margin 0", Rule { margin: 0.0, ..base }),
        ("margin 2", Rule { margin: 2.0, ..base }),
        ("cells by position", shaped(Shape { split: Split::Position, ..shape })),
        (
            "parents by hash, no Lloyd step, one level",
            Rule { levels: 1, ..shaped(Shape { split: Split::Parents(0), ..shape }) },
        ),
        (
            "parents by hash, one Lloyd step, one level",
            Rule { levels: 1, ..shaped(Shape { split: Split::Parents(1), ..shape }) },
        ),
        (
            "parents by hash, four Lloyd steps, one level",
            Rule { levels: 1, ..shaped(Shape { split: Split::Parents(4), ..shape }) },
        ),
        ("distances as the queries see them", shaped(Shape { whitened: true, ..shape })),
        ("cells of 8", shaped(Shape { cell: 8, ..shape })),
        ("cells of 32", shaped(Shape { cell: 32, ..shape })),
        ("cells of 64", shaped(Shape { cell: 64, ..shape })),
        ("one level", Rule { levels: 1, ..base }),
        ("segments of 1024", long(1024, 2)),
        ("segments of 4096", long(4096, 2)),
        ("segments of 4096, three levels", long(4096, 3)),
    ]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let path = args.file.unwrap_or_else(heads::bundled);
    let layers = heads::load(&path, args.rows)?;
    let mut table =
        String::from("| changed | error mean | error p99 | heavy keys missed | keys opened | vectors scored |\n");
    table.push_str("|---|---|---|---|---|---|\n");
    println!("{:<48} {:>8} {:>8} {:>8} {:>8} {:>8}", "changed", "error", "p99", "missed", "opened", "scored");
    for (name, rule) in changes() {
        let mut all = Outcome::default();
        for layer in &layers {
            all.add(&study(layer, &rule, args.samples));
        }
        let missed = all.missed as f64 / f64::max(all.heavy as f64, 1.0);
        let shares = [all.mean(), all.p99(), missed, all.opened, all.scored].map(|x| x * 100.0);
        print!("{name:<48}");
        shares.iter().for_each(|x| print!(" {x:>7.2}%"));
        println!();
        let [error, p99, missed, opened, scored] = shares.map(|x| format!("{x:.1} %"));
        writeln!(table, "| {name} | {error} | {p99} | {missed} | {opened} | {scored} |")?;
    }
    if let Some(file) = args.markdown {
        place(&file, "ablations", &table)?;
    }
    Ok(())
}
