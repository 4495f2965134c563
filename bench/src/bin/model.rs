//! What a small model makes of attention on long texts: perplexity, and captures of its queries, keys and values.

use clap::{Parser, Subcommand};
use iceformer_bench::model::cli::{Common, Progress};
use iceformer_bench::model::{capture, modes, perplexity, text};
use iceformer_core::attention::{AttentionOptions, Mode};
use std::path::PathBuf;

/// What a small model makes of attention on long texts.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The texts of a measurement.
#[derive(clap::Args)]
struct Texts {
    /// Files, one after another; FILE=TOKENS takes at most that many tokens of a file, and a .jsonl file gives its
    /// prompts with their answers
    #[arg(long, value_name = "FILE[=TOKENS]", num_args = 1.., required = true)]
    text: Vec<String>,
    /// Tokens
    #[arg(short, value_name = "N")]
    n: usize,
}

#[derive(Subcommand)]
enum Command {
    /// Perplexity of a text with exact attention and with accelerated attention of each tolerance, in one context
    Perplexity {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        texts: Texts,
        /// Tolerances of accelerated attention
        #[arg(long, value_name = "X,..", value_delimiter = ',')]
        tolerance: Vec<f32>,
    },
    /// Writes queries, keys and values in f16 as they come: layer{l}.q [heads, n, d], layer{l}.k and .v [KV heads, n, d]
    Capture {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        texts: Texts,
        /// Layers, all of them without it; those after the last are not computed
        #[arg(long, value_name = "L,..", value_delimiter = ',')]
        layers: Vec<usize>,
        /// The safetensors file to write
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match Cli::parse().command {
        Command::Perplexity { common, texts, tolerance } => {
            let Some(model) = common.load()? else { return Ok(()) };
            let tokens = text::document(&model.tokenizer, &texts.text, texts.n)?;
            let choices = modes::choices(&model.weights, &common.kind(), &tolerance)?;
            let mut progress = Progress::new(tokens.len());
            let all = perplexity::measure(&model, &choices, &tokens, |done| progress.at(done))?;
            println!(
                "{} tokens; attention and total in seconds; opened: share of the pairs computed exactly;",
                tokens.len()
            );
            println!("KL (nats) and same (likeliest token) against exact\n");
            println!(
                "{:<16} {:>10} {:>11} {:>9} {:>7} {:>10} {:>8} {:>7}",
                "", "perplexity", "second half", "KL", "same", "attention", "total", "opened"
            );
            for (c, o) in choices.iter().zip(&all) {
                println!(
                    "{:<16} {:>10.4} {:>11.4} {:>9.2e} {:>7.4} {:>10.2} {:>8.2} {:>7.4}",
                    c.name,
                    o.all(),
                    o.second_half(),
                    o.divergence(),
                    o.same(),
                    o.tally.attention,
                    o.tally.total,
                    o.tally.opened()
                );
            }
        }
        Command::Capture { common, texts, layers, out } => {
            let Some(model) = common.load()? else { return Ok(()) };
            let tokens = text::document(&model.tokenizer, &texts.text, texts.n)?;
            let mut kind = common.kind();
            kind.attention = AttentionOptions { mode: Mode::Exact, ..kind.attention };
            let source: Vec<_> = texts.text.iter().map(|t| t.rsplit('/').next().unwrap_or(t)).collect();
            let layers = if layers.is_empty() { (0..model.weights.shape.layers).collect() } else { layers };
            let mut progress = Progress::new(tokens.len());
            let what = capture::What { layers: &layers, source: &source.join(", ") };
            capture::capture(&model, &tokens, &kind, &what, &out, |done| progress.at(done))?;
            println!("{}: {} bytes", out.display(), std::fs::metadata(&out)?.len());
        }
    }
    Ok(())
}
