//! Recall of the true top k and time per head for multi-level Prioritized DCI with the reference implementation's
//! parameters, on captured heads.
//!
//! `retrieval [FILE] [--rows N] [--top-k K] [--levels L] [--fov F] [--fraction X] [--sample S]`

use iceformer_bench::{heads, retrieval};
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (mut path, mut rows, mut k, mut levels, mut fov, mut fraction, mut sample) =
        (heads::bundled(), usize::MAX, 30, 3, 30, 0.8, 16);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--rows" => rows = value()?.parse()?,
            "--top-k" => k = value()?.parse()?,
            "--levels" => levels = value()?.parse()?,
            "--fov" => fov = value()?.parse()?,
            "--fraction" => fraction = value()?.parse()?,
            "--sample" => sample = value()?.parse()?,
            _ => path = PathBuf::from(&arg),
        }
    }
    let layers = heads::load(&path, rows)?;
    println!(
        "{:>5} {:>4} {:>6} {:>8} {:>8} {:>9} {:>9}",
        "layer", "head", "rows", "recall", "mass", "best mass", "seconds"
    );
    let mut all = Vec::new();
    for layer in &layers {
        for head in 0..layer.heads_q {
            let index = retrieval::reference_options(layer.dim, layer.rows, levels);
            let mut query = retrieval::reference_query(k);
            (query.field_of_view, query.retrieve_fraction) = (fov, fraction);
            let q = retrieval::measure(layer, head, &index, &query, sample);
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
