//! Nearest-neighbour search as a whole: an index built and a batch of queries answered, once.

pub mod data;
pub mod heads;
pub mod plot;
pub mod report;

use data::Set;
use iceformer_core::Result;
use iceformer_core::dci::{Engine, Index, IndexOptions, Neighbor, QueryOptions, Scratch};
use iceformer_core::mem::{Memory, Rows};
use std::collections::HashSet;

pub use crate::clock::now as seconds;

/// What one run took and found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Who, with what.
    pub name: String,
    /// Recall aimed at; 1 = exact.
    pub target: f32,
    /// Seconds from keys to an index.
    pub build: f64,
    /// Seconds for all queries.
    pub query: f64,
    /// Share of the true neighbours found.
    pub recall: f64,
}

impl Outcome {
    /// Seconds in all.
    pub fn total(&self) -> f64 {
        self.build + self.query
    }
}

/// An index of all keys of a set.
///
/// # Errors
/// As [`Index::insert`].
pub fn build(set: &Set, engine: Engine) -> Result<Index> {
    let keys = set.base.len() / set.dim;
    let options = IndexOptions { metric: set.metric, engine, capacity: keys, ..IndexOptions::new(set.dim) };
    let mut index = Index::new(&options)?;
    index.insert(Rows::new(&set.base, set.dim)?, None)?;
    Ok(index)
}

/// Answers of all queries of a set, `k` each.
///
/// # Errors
/// As [`Index::query`].
pub fn ask(index: &Index, set: &Set, options: &QueryOptions<'_>, exact: bool) -> Result<Vec<Neighbor>> {
    let mut scratch = Scratch::new_in(index, &Memory::system(0)?)?;
    let queries = Rows::new(&set.queries, set.dim)?;
    let mut out = vec![Neighbor::default(); queries.rows() * options.k];
    if exact {
        index.query_exact(&mut scratch, queries, options, &mut out, None)?;
    } else {
        index.query(&mut scratch, queries, options, &mut out, None)?;
    }
    Ok(out)
}

/// Builds an index and asks everything, at a recall; at 1, exactly.
///
/// # Errors
/// As [`build`] and [`ask`].
pub fn run(set: &Set, k: usize, target: f32) -> Result<Outcome> {
    let exact = target >= 1.0;
    let start = seconds();
    // Exact answers need no structure.
    let index = build(set, if exact { Engine::Walk } else { Engine::Cells })?;
    let built = seconds() - start;
    let options = QueryOptions { target_recall: target, ..QueryOptions::new(k) };
    let found = ask(&index, set, &options, exact)?;
    let total = seconds() - start;
    let name = if exact { "iceformer exact" } else { "iceformer" };
    let recall = recall(set, k, &found);
    Ok(Outcome { name: name.into(), target, build: built, query: total - built, recall })
}

/// What keys that come and go one by one cost, and what is found then.
#[derive(Clone, Copy, Debug)]
pub struct Churn {
    /// Seconds of one insertion, on the way from nothing to all keys, gathering included.
    pub insert: f64,
    /// Seconds of one removal.
    pub remove: f64,
    /// Recall at a target of 0.95 after half of the keys have gone and come back, one by one.
    pub recall: f64,
}

/// Inserts all keys one by one, then removes every other one and inserts it again.
///
/// # Errors
/// As [`Index::insert`] and [`ask`].
pub fn churn(set: &Set, k: usize) -> Result<Churn> {
    let keys = set.base.len() / set.dim;
    let options =
        IndexOptions { metric: set.metric, engine: Engine::Cells, capacity: keys, ..IndexOptions::new(set.dim) };
    let mut index = Index::new(&options)?;
    let start = seconds();
    for row in set.base.chunks_exact(set.dim) {
        index.insert(Rows::new(row, set.dim)?, None)?;
    }
    let insert = (seconds() - start) / keys as f64;
    let half: Vec<u64> = (0..keys as u64).step_by(2).collect();
    let start = seconds();
    for &id in &half {
        index.remove(&[id])?;
    }
    let remove = (seconds() - start) / half.len() as f64;
    for &id in &half {
        index.insert(Rows::new(&set.base[id as usize * set.dim..][..set.dim], set.dim)?, Some(&[id]))?;
    }
    let found = ask(&index, set, &QueryOptions { target_recall: 0.95, ..QueryOptions::new(k) }, false)?;
    Ok(Churn { insert, remove, recall: recall(set, k, &found) })
}

/// Share of the true neighbours among the answers. Answers as near as the last true neighbour count too: which of equals
/// is listed is chance.
pub fn recall(set: &Set, k: usize, found: &[Neighbor]) -> f64 {
    let mut hits = 0;
    for (truth, found) in set.truth.chunks_exact(set.near).zip(found.chunks_exact(k)) {
        let truth = &truth[..k];
        let ids: HashSet<u64> = truth.iter().map(|n| n.id).collect();
        let last = f64::from(truth[k - 1].score);
        let close = |score: f32| (f64::from(score) - last).abs() <= 1e-6 * last.abs();
        hits += found.iter().filter(|n| ids.contains(&n.id) || close(n.score)).count().min(k);
    }
    hits as f64 / (set.truth.len() / set.near * k) as f64
}
