//! What certificates say on captured heads, and what verified attention costs.

use clap::Parser;
use iceformer_bench::accelerated::report;
use iceformer_bench::heads::{self, Layer};
use iceformer_core::attention::{AttentionOptions, AttentionStats, Mask, Mode, Problem, attention};
use iceformer_core::mem::{Memory, Tensor, TensorMut};
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

/// Relative errors that shares of rows are given for.
const AT: [f32; 4] = [0.05, 0.1, 0.2, 0.5];

/// Certificates of captured heads: the share of rows (of all heads) whose certified error is at most 5, 10, 20 and 50 %, and
/// the time of plain, certified and verified accelerated attention over that of exact attention, taken in turns. One
/// thread: pin it.
#[derive(Parser)]
struct Cli {
    /// Captured heads, safetensors [default: the heads bundled with the C examples]
    files: Vec<PathBuf>,
    /// First rows of each file
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    rows: usize,
    /// Rounds of turns; medians count
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Tolerances
    #[arg(long, value_name = "X,..", value_delimiter = ',', default_value = "0.05,0.1,0.2,0.5")]
    tolerance: Vec<f32>,
    /// Write the table between the marks <!-- certificate --> of a file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// A way of attending.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Exact,
    Plain,
    Certified,
    Verified,
}

/// Ways in the order of a round.
const WAYS: [Way; 4] = [Way::Exact, Way::Plain, Way::Certified, Way::Verified];

/// One call: bounds, statistics and seconds.
fn attend(layer: &Layer, way: Way, tolerance: f32) -> (Vec<f32>, AttentionStats, f64) {
    let (n, d, heads) = (layer.rows, layer.dim, layer.heads_q);
    let (mut out, mut bounds) = (vec![0.0; heads * n * d], vec![f32::NAN; heads * n]);
    let tensor = |x, heads| Tensor::new(x, [1, heads, n, d]).expect("a layer's tensor");
    let certifies = matches!(way, Way::Certified | Way::Verified);
    let room = TensorMut::new(&mut bounds, [1, heads, n, 1]).expect("a row of bounds");
    let problem = Problem {
        q: tensor(&layer.q, heads),
        k: tensor(&layer.k, layer.heads_kv),
        v: tensor(&layer.v, layer.heads_kv),
        out: TensorMut::new(&mut out, [1, heads, n, d]).expect("room for the output"),
        lse: None,
        bounds: certifies.then_some(room),
        mask: if layer.causal { Mask::Causal { q_pos0: 0 } } else { Mask::None },
        options: AttentionOptions {
            mode: if way == Way::Exact { Mode::Exact } else { Mode::Accelerated },
            tolerance,
            verified: way == Way::Verified,
            trusted: true,
            ..AttentionOptions::default()
        },
    };
    let memory = Memory::system(0).expect("memory without a limit");
    let start = Instant::now();
    let stats = attention(&problem, &memory).expect("attention of a layer");
    let seconds = start.elapsed().as_secs_f64();
    (bounds, stats, seconds)
}

/// All layers of a file at one tolerance.
#[derive(Default)]
struct Sums {
    seconds: [f64; WAYS.len()],
    rows: u64,
    /// Of certified attention, at [`AT`].
    within: [u64; AT.len()],
    worst: f32,
    pairs: [u64; WAYS.len()],
    dense: u64,
    /// Verified rows whose bound exceeds the tolerance.
    beyond: u64,
}

fn measure(layer: &Layer, tolerance: f32, rounds: usize, sums: &mut Sums) {
    let mut seconds = [const { Vec::new() }; WAYS.len()];
    for round in 0..rounds.max(1) {
        for (i, &way) in WAYS.iter().enumerate() {
            let (bounds, stats, time) = attend(layer, way, tolerance);
            seconds[i].push(time);
            if round > 0 {
                continue;
            }
            sums.pairs[i] += stats.pairs;
            match way {
                Way::Exact => sums.dense += stats.pairs_dense,
                Way::Plain => {}
                Way::Certified => {
                    sums.rows += bounds.len() as u64;
                    for (within, at) in sums.within.iter_mut().zip(AT) {
                        *within += bounds.iter().filter(|&&b| b <= at).count() as u64;
                    }
                }
                Way::Verified => {
                    sums.worst = sums.worst.max(stats.certified_error);
                    sums.beyond += stats.certificates - stats.certified;
                }
            }
        }
    }
    for (sum, mut all) in sums.seconds.iter_mut().zip(seconds) {
        all.sort_by(f64::total_cmp);
        *sum += all[all.len() / 2];
    }
}

fn percent(part: u64, all: u64) -> String {
    format!("{:.1}%", 100.0 * part as f64 / all.max(1) as f64)
}

fn line(data: &str, tolerance: f32, s: &Sums) -> String {
    let mut cells = vec![data.to_string(), format!("{tolerance:.2}")];
    cells.extend(s.within.iter().map(|&n| percent(n, s.rows)));
    cells.push(format!("{:.0}", s.seconds[0] * 1e3));
    cells.extend(s.seconds[1..].iter().map(|x| format!("{:.2}", x / s.seconds[0])));
    cells.extend([1, 2, 3].map(|i| percent(s.pairs[i], s.dense)));
    cells.push(format!("{:.1}%", 100.0 * s.worst));
    format!("| {} |", cells.join(" | "))
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let bundled = [heads::bundled()];
    let files = if cli.files.is_empty() { &bundled[..] } else { &cli.files };
    let names: Vec<String> =
        files.iter().map(|f| f.file_name().unwrap_or(f.as_os_str()).to_string_lossy().into_owned()).collect();
    let tolerances: Vec<String> = cli.tolerance.iter().map(f32::to_string).collect();
    let mut lines = vec![
        format!(
            "Made by `cargo run --release -p iceformer-bench --bin certificate -- {} --tolerance {} --rounds {}`.",
            names.join(" "),
            tolerances.join(","),
            cli.rounds
        ),
        String::new(),
        "| data | tolerance | certified <= 5% | <= 10% | <= 20% | <= 50% | exact ms | plain / exact | certified / exact \
         | verified / exact | pairs, plain | certified | verified | worst, verified |"
            .into(),
        format!("|{}", "---|".repeat(14)),
    ];
    lines.iter().for_each(|l| println!("{l}"));
    for (file, name) in files.iter().zip(&names) {
        let layers = heads::load(file, cli.rows)?;
        for &tolerance in &cli.tolerance {
            let mut sums = Sums::default();
            layers.iter().for_each(|layer| measure(layer, tolerance, cli.rounds, &mut sums));
            let text = line(name.trim_end_matches(".safetensors"), tolerance, &sums);
            println!("{text}");
            lines.push(text);
        }
    }
    if let Some(path) = &cli.markdown {
        report::place(path, "certificate", &lines.join("\n"))?;
    }
    Ok(())
}
