//! Line retrieval with a small model: exact-match accuracy and seconds with exact and accelerated attention.

use clap::Parser;
use iceformer_bench::model::cli::Common;
use iceformer_bench::model::needles::measure;
use iceformer_bench::model::{modes, shared, text};
use std::path::PathBuf;

/// Runs line-retrieval prompts through a small model whose attention is sessions, and reports how often the number it
/// writes is the right one, with exact attention and with accelerated attention of each tolerance, taking turns.
///
/// Attention of a prompt costs its length squared, and modes cannot share a prefix, so without --prompts or --all long
/// prompts are fewer (50 of up to 4k tokens, about 24 of 8k and 12 of 16k, evenly spread over the file): about three
/// minutes per mode on one core. --all runs 50 of each, about nine minutes. Few prompts judge modes by agreement and
/// digits; accuracy itself needs all of them where the model is often wrong (16k: 28 of 50).
#[derive(Parser)]
struct Cli {
    /// Files with one {"prompt", "answer"} a line, or folders of lines-*.jsonl [default: longeval beside the checkout]
    files: Vec<PathBuf>,
    #[command(flatten)]
    common: Common,
    /// Tolerances of accelerated attention
    #[arg(long, value_name = "X,..", value_delimiter = ',')]
    tolerance: Vec<f32>,
    /// Prompts of each file
    #[arg(long, value_name = "N", conflicts_with = "all")]
    prompts: Option<usize>,
    /// All prompts of each file
    #[arg(long)]
    all: bool,
    /// Show what was written where it is not the answer
    #[arg(long)]
    wrong: bool,
}

/// Prompts times their tokens squared, of a file in the default form.
const PAIRS: usize = 1_600_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cli = Cli::parse();
    let Some(model) = cli.common.load()? else { return Ok(()) };
    let files = text::prompt_files(if cli.files.is_empty() { vec![shared("data/longeval")] } else { cli.files })?;
    if files.is_empty() {
        println!("skipped: no prompts beside the checkout (name files of prompts)");
        return Ok(());
    }
    let choices = modes::choices(&model.weights, &cli.common.kind(), &cli.tolerance)?;
    println!("agrees: prompts on which the same was written as with exact attention; attention and total: seconds a");
    println!("prompt; opened: share of the pairs computed exactly; digits: share right\n");
    println!(
        "{:<18} {:<16} {:>9} {:>8} {:>7} {:>7} {:>10} {:>8} {:>7}",
        "prompts", "", "right", "accuracy", "digits", "agrees", "attention", "total", "opened"
    );
    for file in &files {
        let all = text::prompts(file)?;
        let tokens = all.iter().map(|p| p.tokens).max().unwrap_or(0).max(1);
        let most = if cli.all { all.len() } else { cli.prompts.unwrap_or((PAIRS / tokens.pow(2)).clamp(12, 50)) };
        let prompts = text::spread(&all, most);
        let outcomes = measure(&model, &choices, &prompts, |_| ())?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let n = prompts.len();
        for (c, o) in choices.iter().zip(&outcomes) {
            println!(
                "{name:<18} {:<16} {:>9} {:>8.3} {:>7.3} {:>7} {:>10.3} {:>8.3} {:>7.4}",
                c.name,
                format!("{} / {n}", o.right),
                o.right as f64 / n.max(1) as f64,
                o.digits / n.max(1) as f64,
                o.agreement(&outcomes[0]),
                o.tally.attention / n.max(1) as f64,
                o.tally.total / n.max(1) as f64,
                o.tally.opened()
            );
            for (p, w) in prompts.iter().zip(&o.written).filter(|(p, w)| cli.wrong && p.answer != **w) {
                println!("    {} was {w:?}", p.answer);
            }
        }
    }
    Ok(())
}
