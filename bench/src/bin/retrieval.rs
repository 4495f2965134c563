//! Recall of the true top k and time per head for multi-level Prioritized DCI, on captured heads.

use clap::Parser;
use iceformer_bench::{heads, retrieval};
use std::path::PathBuf;

/// Multi-level Prioritized DCI with the parameters of the reference implementation: recall of the true top k, their share of
/// the softmax mass, and seconds, head by head.
#[derive(Parser)]
struct Cli {
    /// Captured heads, safetensors [default: the heads bundled with the C examples]
    file: Option<PathBuf>,
    /// First rows of the file
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    rows: usize,
    /// Keys to find for a query
    #[arg(long, default_value_t = 30)]
    top_k: usize,
    /// Levels of the index
    #[arg(long, default_value_t = 3)]
    levels: usize,
    /// Field of view: points kept of each level but the last
    #[arg(long, default_value_t = 30)]
    fov: usize,
    /// Share of the points of a level that may be visited
    #[arg(long, default_value_t = 0.8)]
    fraction: f32,
    /// One query in so many is looked at
    #[arg(long, default_value_t = 16)]
    sample: usize,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cli = Cli::parse();
    let layers = heads::load(&cli.file.unwrap_or_else(heads::bundled), cli.rows)?;
    println!(
        "{:>5} {:>4} {:>6} {:>8} {:>8} {:>9} {:>9}",
        "layer", "head", "rows", "recall", "mass", "best mass", "seconds"
    );
    let mut all = Vec::new();
    for layer in &layers {
        for head in 0..layer.heads_q {
            let index = retrieval::reference_options(layer.dim, layer.rows, cli.levels);
            let mut query = retrieval::reference_query(cli.top_k);
            (query.field_of_view, query.retrieve_fraction) = (cli.fov, cli.fraction);
            let q = retrieval::measure(layer, head, &index, &query, cli.sample);
            println!(
                "{:>5} {:>4} {:>6} {:>8.4} {:>8.4} {:>9.4} {:>9.3}",
                layer.number, head, layer.rows, q.recall, q.mass, q.best_mass, q.seconds
            );
            all.push(q);
        }
    }
    let mean = |f: fn(&retrieval::Quality) -> f64| all.iter().map(f).sum::<f64>() / all.len() as f64;
    let worst = all.iter().map(|q| q.seconds).fold(0.0, f64::max);
    println!(
        "mean recall {:.4}, mean mass {:.4} of {:.4}, mean {:.3} s per head, slowest {worst:.3} s",
        mean(|q| q.recall),
        mean(|q| q.mass),
        mean(|q| q.best_mass),
        mean(|q| q.seconds)
    );
    Ok(())
}
