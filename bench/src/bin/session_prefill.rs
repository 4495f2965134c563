//! Prompts in batches on captured heads: a session that may use cells beside one that attends exactly.

use clap::Parser;
use iceformer_bench::heads;
use iceformer_bench::prefill::{Prefill, prefill};
use iceformer_core::attention::Mode;
use std::path::PathBuf;

/// The rows of captured causal heads in batches: seconds of appending and attending, exact and with cells, and errors.
#[derive(Parser)]
struct Cli {
    /// Captured heads, safetensors [default: the heads bundled with the C examples]
    files: Vec<PathBuf>,
    /// First rows of the files
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    rows: usize,
    /// Rows of a batch
    #[arg(long, default_value_t = 512)]
    batch: usize,
    /// Tolerance
    #[arg(long, default_value_t = 0.05)]
    tolerance: f32,
    /// With cells by name, instead of in auto mode
    #[arg(long)]
    named: bool,
}

fn line(name: &str, rows: usize, of: &Prefill) {
    let ([exact, fast], [mean, worst]) = (of.seconds, of.error());
    let pairs = of.pairs[0] as f64 / of.pairs[1].max(1) as f64;
    println!(
        "{name:<6} {rows:>7} {exact:>9.3} {fast:>9.3} {:>6.2} {mean:>8.4} {worst:>8.4} {pairs:>7.4}",
        exact / fast
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cli = Cli::parse();
    let files = if cli.files.is_empty() { vec![heads::bundled()] } else { cli.files };
    let mode = if cli.named { Mode::Accelerated } else { Mode::Auto };
    println!("seconds, keys and values in f16, batches of {} rows, one thread; errors over all rows", cli.batch);
    println!("layer     rows     exact      fast  ratio    error      p99   pairs");
    for file in files {
        let (mut all, mut rows) = (Prefill::default(), 0);
        for layer in heads::load(&file, cli.rows)?.iter().filter(|layer| layer.causal) {
            let of = prefill(layer, mode, cli.tolerance, cli.batch.max(1))?;
            line(&layer.number.to_string(), layer.rows, &of);
            all.add(&of);
            rows = layer.rows;
        }
        line("all", rows, &all);
    }
    Ok(())
}
