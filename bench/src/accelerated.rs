//! Accelerated attention beside exact: time, output error, heavy keys missed.

use crate::heads::Layer;
use iceformer_core::attention::accelerated::Rule;
use iceformer_core::attention::{AttentionOptions, AttentionStats, Mask, Mode, Problem, attention, attention_by_rule};
use iceformer_core::mem::{Memory, Tensor, TensorMut};
use std::time::Instant;

/// What a rule gave on one or more layers.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Seconds of exact attention.
    pub exact: f64,
    /// Seconds of accelerated attention, cells included.
    pub accelerated: f64,
    /// Of these, building cells.
    pub build: f64,
    /// Relative L2 errors of output rows, all heads of a layer side by side.
    pub errors: Vec<f64>,
    /// Row-key pairs with a true weight of 1 % and more outside what is attended densely anyway, and those of them
    /// whose weight was not computed exactly.
    pub heavy: usize,
    /// See `heavy`.
    pub missed: usize,
    /// Pairs computed exactly, and visible pairs.
    pub pairs: u64,
    /// See `pairs`.
    pub pairs_dense: u64,
    /// (cell, row) pairs opened.
    pub cells: u64,
    /// Sum over rows of the estimated share of the mass.
    pub estimated: f64,
    /// Rows.
    pub rows: u64,
}

impl Outcome {
    /// Adds another layer's.
    pub fn add(&mut self, other: &Outcome) {
        self.exact += other.exact;
        self.accelerated += other.accelerated;
        self.build += other.build;
        self.errors.extend_from_slice(&other.errors);
        self.heavy += other.heavy;
        self.missed += other.missed;
        self.pairs += other.pairs;
        self.pairs_dense += other.pairs_dense;
        self.cells += other.cells;
        self.estimated += other.estimated;
        self.rows += other.rows;
    }

    /// Mean error.
    pub fn mean(&self) -> f64 {
        self.errors.iter().sum::<f64>() / self.errors.len().max(1) as f64
    }

    /// 99th percentile of the errors.
    pub fn p99(&self) -> f64 {
        let mut sorted = self.errors.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(0.0)
    }
}

/// Output of one layer `[heads_q, rows, dim]`.
fn attend(layer: &Layer, options: AttentionOptions, rule: Option<&Rule>) -> (Vec<f32>, AttentionStats, f64) {
    let mut out = vec![0.0; layer.q.len()];
    let stats;
    let start = Instant::now();
    {
        let p = problem(layer, options, &mut out);
        let memory = Memory::system(0).unwrap();
        stats = match rule {
            Some(rule) => attention_by_rule(&p, rule, None, &memory),
            None => attention(&p, &memory),
        }
        .unwrap();
    }
    (out, stats, start.elapsed().as_secs_f64())
}

fn problem<'a>(layer: &'a Layer, options: AttentionOptions, out: &'a mut [f32]) -> Problem<'a> {
    let (n, d) = (layer.rows, layer.dim);
    let q = Tensor::new(&layer.q, [1, layer.heads_q, n, d]).unwrap();
    let k = Tensor::new(&layer.k, [1, layer.heads_kv, n, d]).unwrap();
    let v = Tensor::new(&layer.v, [1, layer.heads_kv, n, d]).unwrap();
    let out = TensorMut::new(out, [1, layer.heads_q, n, d]).unwrap();
    let mask = if layer.causal { Mask::Causal { q_pos0: 0 } } else { Mask::None };
    Problem { q, k, v, out, lse: None, mask, options }
}

/// One layer under a rule (`None`: AUTO at the tolerance), timed `rounds` times beside exact attention; errors and
/// misses of `samples` rows of the second half.
pub fn study(layer: &Layer, tolerance: f32, rule: Option<&Rule>, samples: usize, rounds: usize) -> Outcome {
    let base = AttentionOptions { tolerance, trusted: true, ..AttentionOptions::default() };
    let mode = if rule.is_some() { Mode::Accelerated } else { Mode::Auto };
    let (mut exact, mut fast, mut build) = (Vec::new(), Vec::new(), Vec::new());
    let (mut outcome, mut out) = (Outcome::default(), Vec::new());
    for _ in 0..rounds {
        let m = layer.rows.min(4096);
        let short = Layer {
            rows: m,
            q: layer.q.chunks(layer.rows * layer.dim).flat_map(|h| h[..m * layer.dim].to_vec()).collect(),
            k: layer.k.chunks(layer.rows * layer.dim).flat_map(|h| h[..m * layer.dim].to_vec()).collect(),
            v: layer.v.chunks(layer.rows * layer.dim).flat_map(|h| h[..m * layer.dim].to_vec()).collect(),
            ..*layer
        };
        let only = std::env::var_os("ONLY").is_some();
        let cal = || {
            if std::env::var("ONLY").is_ok_and(|x| x == "2") {
                0.0
            } else {
                (0..3)
                    .map(|_| attend(&short, AttentionOptions { mode: Mode::Exact, ..base }, None).2)
                    .fold(f64::MAX, f64::min)
            }
        };
        let t = if only { cal() } else { attend(layer, AttentionOptions { mode: Mode::Exact, ..base }, None).2 };
        exact.push(t);
        let (o, stats, t) = attend(layer, AttentionOptions { mode, ..base }, rule);
        fast.push(t);
        if only {
            let e = exact.pop().unwrap();
            let f = (layer.rows as f64 / 4096.0).powi(2);
            exact.push((e + cal()) / 2.0 * f);
        }
        build.push(stats.build_seconds);
        (outcome.pairs, outcome.pairs_dense, outcome.cells) = (stats.pairs, stats.pairs_dense, stats.cells_opened);
        outcome.estimated = f64::from(stats.estimated_mass) * stats.rows as f64;
        outcome.rows = stats.rows;
        out = o;
    }
    let median = |x: &mut Vec<f64>| {
        x.sort_by(f64::total_cmp);
        x[x.len() / 2]
    };
    (outcome.exact, outcome.accelerated, outcome.build) = (median(&mut exact), median(&mut fast), median(&mut build));
    let (n, d) = (layer.rows, layer.dim);
    let rows: Vec<usize> = (0..samples).map(|i| n / 2 + (2 * i + 1) * (n - n / 2) / (2 * samples)).collect();
    // What was scored exactly for the sampled rows.
    let mut seen = vec![vec![false; 0]; layer.heads_q * samples];
    if let Some(rule) = rule {
        let at: std::collections::HashMap<usize, usize> = rows.iter().enumerate().map(|(i, &r)| (r, i)).collect();
        seen = vec![vec![false; n]; layer.heads_q * samples];
        let mut scratch = vec![0.0; layer.q.len()];
        let p = problem(layer, AttentionOptions { mode, ..base }, &mut scratch);
        let mut watch = |head: usize, row: usize, ids: &[u32]| {
            if let Some(&i) = at.get(&row) {
                ids.iter().for_each(|&j| seen[head * samples + i][j as usize] = true);
            }
        };
        attention_by_rule(&p, rule, Some(&mut watch), &Memory::system(0).unwrap()).unwrap();
    }
    let scale = 1.0 / (d as f64).sqrt();
    for (i, &row) in rows.iter().enumerate() {
        let (mut wrong, mut norm) = (0.0, 0.0);
        for head in 0..layer.heads_q {
            let (k, v) = (layer.keys(head), layer.values(head));
            let q = &layer.queries(head)[row * d..][..d];
            let visible = if layer.causal { row + 1 } else { n };
            let logits: Vec<f64> = k
                .chunks(d)
                .take(visible)
                .map(|k| scale * q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>())
                .collect();
            let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = logits.iter().map(|x| (x - top).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut want = vec![0.0; d];
            for (w, v) in weights.iter().zip(v.chunks(d)) {
                want.iter_mut().zip(v).for_each(|(o, v)| *o += w / sum * f64::from(*v));
            }
            let have = &out[(head * n + row) * d..][..d];
            wrong += want.iter().zip(have).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum::<f64>();
            norm += want.iter().map(|a| a * a).sum::<f64>();
            // Complete segments before the row's own are what cells cover.
            let celled = if layer.causal { row / 512 * 512 } else { n / 512 * 512 };
            let seen = &seen[head * samples + i];
            if !seen.is_empty() {
                for (j, w) in weights.iter().enumerate().take(celled) {
                    if *w >= 0.01 * sum {
                        outcome.heavy += 1;
                        outcome.missed += usize::from(!seen[j]);
                    }
                }
            }
        }
        outcome.errors.push((wrong / norm.max(1e-300)).sqrt());
    }
    outcome
}
