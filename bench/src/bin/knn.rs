//! Nearest-neighbour search: construction and all queries, ours at several recalls.

use clap::Parser;
use iceformer_bench::knn::{self, Outcome, data, heads, plot, report};
use std::error::Error;
use std::path::PathBuf;

/// Builds an index and answers a batch of queries once, at several recalls: seconds for both and the recall reached. Pin it
/// to one core: everything runs on one thread.
#[derive(Parser)]
struct Cli {
    /// Keys and queries, safetensors (`base`, `query`, metadata `metric`)
    files: Vec<PathBuf>,
    /// Drawn sets: clustered, uniform, duplicates, norms, gaussian
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    drawn: Vec<String>,
    /// Keys of drawn sets
    #[arg(long, default_value_t = 60_000)]
    keys: usize,
    /// Queries of drawn sets
    #[arg(long, default_value_t = 10_000)]
    queries: usize,
    /// Elements of drawn keys
    #[arg(long, default_value_t = 128)]
    dim: usize,
    /// Neighbours per query
    #[arg(short, default_value_t = 10)]
    k: usize,
    /// Recalls to aim at; 1 = exact
    #[arg(long, value_name = "X,..", value_delimiter = ',', default_value = "0.9,0.95,0.99,1")]
    target: Vec<f32>,
    /// Rounds of turns; medians count
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Figures of others, as written by peers/knn.py, to be listed and drawn with ours
    #[arg(long, value_name = "FILE")]
    peers: Vec<PathBuf>,
    /// Write every figure
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write tables between the marks <!-- knn --> of a file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Draw recall against seconds, as SVG, of the first set
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Insert keys one by one, remove half of them and insert those again, instead
    #[arg(long)]
    churn: bool,
    /// Directions fitted to sample queries against the keys' own, on the heads of these captures (`layerN.q`, `layerN.k`),
    /// instead
    #[arg(long, value_name = "FILE,..", value_delimiter = ',')]
    heads: Vec<PathBuf>,
    /// Tokens of the captures, at most
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    tokens: usize,
    /// Metric for captures: ip, l2, cosine
    #[arg(long, default_value = "ip")]
    metric: String,
    /// Queries a call, for captures; 0 = all at once
    #[arg(long, default_value_t = 0)]
    batch: usize,
    /// Only list and draw the figures of --peers files
    #[arg(long)]
    again: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    if !cli.heads.is_empty() {
        let metric = data::metric(&cli.metric)?;
        println!("{}", heads::COLUMNS);
        for path in &cli.heads {
            let heads = heads::heads(&iceformer_bench::heads::load(path, cli.tokens)?, metric, cli.k)?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let targets: Vec<f32> = cli.target.iter().copied().filter(|&t| t < 1.0).collect();
            let batch = if cli.batch == 0 { usize::MAX >> 32 } else { cli.batch };
            print!("{}", heads::compare(&name, &heads, &targets, batch, cli.rounds)?);
        }
        return Ok(());
    }
    let mut all = Vec::new();
    if !cli.again {
        let files = cli.files.iter().map(|f| data::load(f, cli.k));
        let drawn = cli.drawn.iter().map(|name| data::drawn(name, cli.keys, cli.queries, cli.dim, cli.k));
        for set in files.chain(drawn) {
            let set = set?;
            if cli.churn {
                let c = knn::churn(&set, cli.k)?;
                let (insert, remove) = (c.insert * 1e6, c.remove * 1e6);
                println!(
                    "{}: {insert:.2} us an insertion, {remove:.2} us a removal, recall {:.4} after",
                    set.name, c.recall
                );
                continue;
            }
            let mut runs: Vec<Vec<Outcome>> = vec![Vec::new(); cli.target.len()];
            for _ in 0..cli.rounds.max(1) {
                for (runs, &target) in runs.iter_mut().zip(&cli.target) {
                    runs.push(knn::run(&set, cli.k, target)?);
                }
            }
            let keys = set.base.len() / set.dim;
            println!("{}: {keys} x {}, {} queries, k = {}", set.name, set.dim, set.queries.len() / set.dim, cli.k);
            for mut runs in runs {
                runs.sort_by(|a, b| a.total().total_cmp(&b.total()));
                let median = runs.swap_remove(runs.len() / 2);
                println!("{}", report::line(&median));
                all.push(report::Point::new(&set.name, cli.k, median));
            }
        }
    }
    if let Some(path) = &cli.json {
        std::fs::write(path, report::json(&all)?)?;
    }
    for path in &cli.peers {
        all.extend(report::read(path)?);
    }
    if let Some(path) = &cli.markdown {
        report::write_tables(path, &all)?;
    }
    if let Some(path) = &cli.plot {
        std::fs::write(path, plot::svg(&all)?)?;
    }
    Ok(())
}
