//! Sets of keys and queries: from files, and drawn.

use crate::speed::noise;
use iceformer_core::dci::{Engine, Metric, Neighbor, QueryOptions};
use safetensors::{Dtype, SafeTensors};
use std::error::Error;
use std::path::Path;

/// Keys, queries and their true neighbours.
pub struct Set {
    /// What it is called.
    pub name: String,
    /// Metric.
    pub metric: Metric,
    /// Elements of a key.
    pub dim: usize,
    /// Keys, packed.
    pub base: Vec<f32>,
    /// Queries, packed.
    pub queries: Vec<f32>,
    /// True neighbours of each query, best first.
    pub truth: Vec<Neighbor>,
    /// Neighbours of each.
    pub near: usize,
}

/// Reads `base` and `query` (f32) of a safetensors file with metadata `metric` (`l2`, `ip` or `cosine`); true neighbours are
/// computed.
pub fn load(path: &Path, near: usize) -> Result<Set, Box<dyn Error>> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
    let words = metadata.metadata().clone().unwrap_or_default();
    let metric = metric(words.get("metric").map_or("", String::as_str))?;
    let file = SafeTensors::deserialize(&bytes)?;
    let read = |name: &str| -> Result<(Vec<f32>, usize), Box<dyn Error>> {
        let t = file.tensor(name)?;
        let (Dtype::F32, &[_, dim]) = (t.dtype(), t.shape()) else {
            return Err(format!("{name} is no matrix of f32").into());
        };
        Ok((t.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(), dim))
    };
    let ((base, dim), (queries, same)) = (read("base")?, read("query")?);
    if dim != same {
        return Err("keys and queries differ in size".into());
    }
    let name = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
    Set { name, metric, dim, base, queries, truth: Vec::new(), near }.with_truth()
}

/// The metric of this name: `l2`, `ip` or `cosine`.
///
/// # Errors
/// Another name.
pub fn metric(name: &str) -> Result<Metric, Box<dyn Error>> {
    match name {
        "l2" => Ok(Metric::L2),
        "ip" => Ok(Metric::InnerProduct),
        "cosine" => Ok(Metric::Cosine),
        other => Err(format!("unknown metric {other:?}").into()),
    }
}

impl Set {
    /// Computes the true neighbours.
    pub(super) fn with_truth(mut self) -> Result<Set, Box<dyn Error>> {
        let index = super::build(&self, Engine::Walk)?;
        self.truth = super::ask(&index, &self, &QueryOptions::new(self.near), true)?;
        Ok(self)
    }
}

/// Kinds of drawn sets.
pub const DRAWN: [&str; 5] = ["clustered", "uniform", "duplicates", "norms", "gaussian"];

/// A drawn set of `keys` keys and `queries` queries of `dim` elements.
///
/// `clustered`: 200 clusters, a tenth as wide as they lie apart; `uniform`: in a cube; `gaussian`: normal, cosine;
/// `duplicates`: a hundred copies of every key; `norms`: inner product, norms spread over a factor of a hundred.
///
/// # Errors
/// An unknown name.
pub fn drawn(name: &str, keys: usize, queries: usize, dim: usize, near: usize) -> Result<Set, Box<dyn Error>> {
    let draw = |n: usize, seed: u64| noise(n * dim, seed);
    let (mut metric, mut base, mut asked) = (Metric::L2, draw(keys, 1), draw(queries, 2));
    match name {
        "clustered" => {
            let centers = draw(200, 3);
            let pull = |rows: &mut [f32], seed: usize| {
                for (i, row) in rows.chunks_exact_mut(dim).enumerate() {
                    let c = &centers[(i * 7919 + seed) % 200 * dim..][..dim];
                    row.iter_mut().zip(c).for_each(|(x, c)| *x = 0.1 * *x + c);
                }
            };
            pull(&mut base, 0);
            pull(&mut asked, 5);
        }
        "uniform" => {
            // The normal distribution function, nearly: what matters is that no direction stands out.
            let flat = |x: &mut f32| *x = 1.0 / (1.0 + (-1.702 * *x).exp());
            base.iter_mut().for_each(flat);
            asked.iter_mut().for_each(flat);
        }
        "duplicates" => {
            let few = keys.div_ceil(100);
            for i in few..keys {
                base.copy_within(i % few * dim..(i % few + 1) * dim, i * dim);
            }
        }
        "norms" => {
            metric = Metric::InnerProduct;
            for (i, row) in base.chunks_exact_mut(dim).enumerate() {
                let norm = 100f32.powf(((i * 7919) % 1000) as f32 / 1000.0);
                row.iter_mut().for_each(|x| *x *= norm);
            }
        }
        "gaussian" => metric = Metric::Cosine,
        _ => return Err(format!("no set is called {name}: {}", DRAWN.join(", ")).into()),
    }
    Set { name: name.into(), metric, dim, base, queries: asked, truth: Vec::new(), near }.with_truth()
}
