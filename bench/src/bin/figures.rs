//! The table of `README.md`: time of exact and of accelerated attention on captures of a model, error, and perplexity.

use clap::Parser;
use iceformer_bench::heads;
use iceformer_bench::suite::{Outcome, Settings, measure};
use iceformer_core::attention::Mode;
use iceformer_core::simd::Isa;
use std::path::PathBuf;

/// A line per capture, as Markdown. Each capture is as long as its text: one of 8,192 tokens, one of 16,384 and so on.
#[derive(Parser)]
struct Cli {
    /// Captured heads, safetensors
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Perplexity of a text of each length, exact and accelerated, as `model perplexity` says: in the order of the files, - for none
    #[arg(long, value_name = "EXACT/ACCELERATED,..", value_delimiter = ',')]
    perplexity: Vec<String>,
    /// Rows whose error is taken, of each layer
    #[arg(long, default_value_t = 32)]
    samples: usize,
    /// Rounds of turns; medians count
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Relative error that is accepted
    #[arg(long, default_value_t = 0.05)]
    tolerance: f32,
    /// Widest instruction set, such as avx2
    #[arg(long)]
    isa: Option<String>,
    /// Put the table between the marks `<!-- figures -->` and `<!-- /figures -->` of this file
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
}

const HEAD: &str = "| tokens | exact, ms a layer | accelerated, ms a layer | times as fast | error, mean | 99th percentile | perplexity, exact | accelerated |\n\
                    |---|---|---|---|---|---|---|---|\n";
const MARKS: [&str; 2] = ["<!-- figures -->\n", "<!-- /figures -->"];

/// 32768 as 32,768.
fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let parts: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    parts.join(",")
}

fn line(tokens: usize, all: &[Outcome], perplexity: Option<&str>) -> String {
    let n = all.len().max(1) as f64;
    let [exact, fast] = [0, 1].map(|i| all.iter().map(|o| o.seconds[i]).sum::<f64>() / n);
    let error = all.iter().map(Outcome::mean).sum::<f64>() / n;
    let worst = all.iter().map(|o| o.quantile(0.99)).fold(0.0, f64::max);
    let (before, after) = perplexity.and_then(|p| p.split_once('/')).unwrap_or(("-", "-"));
    format!(
        "| {} ({} layers) | {:.0} | {:.0} | {:.1} | {:.1} % | {:.0} % | {before} | {after} |\n",
        thousands(tokens),
        all.len(),
        1e3 * exact,
        1e3 * fast,
        exact / fast,
        100.0 * error,
        100.0 * worst
    )
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cli = Cli::parse();
    if let Some(name) = &cli.isa {
        Isa::limit(Isa::ALL.into_iter().find(|isa| isa.name() == name))?;
    }
    let settings =
        Settings { tolerance: cli.tolerance, mode: Mode::Auto, samples: cli.samples, rounds: cli.rounds, bias: None };
    let mut table = String::from(HEAD);
    for (i, file) in cli.files.iter().enumerate() {
        let layers = heads::load(file, usize::MAX)?;
        let all: Vec<_> = layers.iter().map(|layer| measure(layer, &settings)).collect();
        table += &line(layers[0].rows, &all, cli.perplexity.get(i).map(String::as_str));
        eprintln!("{}: done", file.display());
    }
    print!("{table}");
    if let Some(path) = &cli.into {
        let page = std::fs::read_to_string(path)?;
        let (before, rest) = page.split_once(MARKS[0]).ok_or("the file has no mark of the table")?;
        let (_, after) = rest.split_once(MARKS[1]).ok_or("the file has no mark of the table's end")?;
        std::fs::write(path, format!("{before}{}{table}{}{after}", MARKS[0], MARKS[1]))?;
    }
    Ok(())
}
