//! Retrieval quality of a head: how many of the true top keys the index finds, and how much softmax mass they hold,
//! with keys inserted in row order where the head is causal.

use crate::heads::Layer;
use iceformer_core::dci::{Index, IndexOptions, Neighbor, QueryOptions, Scratch};
use iceformer_core::mem::{Memory, Rows};
use std::time::Instant;

/// What one head gave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quality {
    /// Mean share of the true top k found, over rows that see more than k keys.
    pub recall: f64,
    /// Mean softmax mass of the keys found.
    pub mass: f64,
    /// Mean softmax mass of the true top k.
    pub best_mass: f64,
    /// Seconds of inserting and querying.
    pub seconds: f64,
}

/// The reference implementation's parameters: 2 composite x 4 simple, 3 levels, 80 % retrieved, field of view 30.
pub fn reference_options(dim: usize, rows: usize, levels: usize) -> IndexOptions {
    IndexOptions { num_simple: 4, num_composite: 2, levels, capacity: rows, fixed: true, ..IndexOptions::new(dim) }
}

/// Budgets that go with [`reference_options`].
pub fn reference_query(k: usize) -> QueryOptions<'static> {
    QueryOptions { retrieve_fraction: 0.8, field_of_view: 30, ..QueryOptions::new(k) }
}

/// Runs one head. Every `sample`-th row is compared with the truth; all rows are timed.
pub fn measure(layer: &Layer, head: usize, index: &IndexOptions, query: &QueryOptions, sample: usize) -> Quality {
    let (n, d, k) = (layer.rows, layer.dim, query.k);
    let (queries, keys) = (layer.queries(head), layer.keys(head));
    let memory = Memory::system(0).expect("memory");
    let mut answers = vec![Neighbor::default(); n * k];
    let mut counts = vec![0u32; n];
    let start = Instant::now();
    let mut ix = Index::new_in(index, &memory).expect("index options are valid");
    let mut scratch = Scratch::new_in(&ix, &memory).expect("memory");
    let ask =
        |ix: &Index, scratch: &mut Scratch, rows: std::ops::Range<usize>, out: &mut [Neighbor], counts: &mut [u32]| {
            let q = Rows::new(&queries[rows.start * d..rows.end * d], d).expect("rows");
            ix.query(scratch, q, query, out, Some(counts)).expect("captured queries are valid");
        };
    if layer.causal {
        for i in 0..n {
            ix.insert(Rows::new(&keys[i * d..][..d], d).expect("row"), None).expect("room for every key");
            ask(&ix, &mut scratch, i..i + 1, &mut answers[i * k..][..k], &mut counts[i..=i]);
        }
    } else {
        ix.insert(Rows::new(keys, d).expect("rows"), None).expect("room for every key");
        ask(&ix, &mut scratch, 0..n, &mut answers, &mut counts);
    }
    let mut quality = Quality { seconds: start.elapsed().as_secs_f64(), ..Quality::default() };
    let scale = 1.0 / (d as f64).sqrt();
    let mut rows = 0.0;
    for i in (k..n).filter(|i| i % sample.max(1) == 0) {
        let seen = if layer.causal { i + 1 } else { n };
        let q = &queries[i * d..][..d];
        let mut logits: Vec<(f64, u64)> = (0..seen)
            .map(|j| {
                let dot: f64 = q.iter().zip(&keys[j * d..][..d]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                (dot * scale, j as u64)
            })
            .collect();
        logits.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let max = logits[0].0;
        let weight = |x: f64| (x - max).exp();
        let total: f64 = logits.iter().map(|l| weight(l.0)).sum();
        let found = &answers[i * k..][..counts[i] as usize];
        let hit = logits[..k].iter().filter(|l| found.iter().any(|f| f.id == l.1)).count();
        quality.recall += hit as f64 / k as f64;
        quality.best_mass += logits[..k].iter().map(|l| weight(l.0)).sum::<f64>() / total;
        quality.mass += found.iter().map(|f| weight(f64::from(f.score) * scale)).sum::<f64>() / total;
        rows += 1.0;
    }
    for x in [&mut quality.recall, &mut quality.mass, &mut quality.best_mass] {
        *x /= f64::max(rows, 1.0);
    }
    quality
}
