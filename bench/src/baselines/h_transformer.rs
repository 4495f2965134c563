//! H-Transformer-1D (Zhu and Soricut, 2021): scores as a hierarchical matrix. Blocks on and next to the diagonal are
//! exact; farther blocks are scored between means of 2, 4, 8, .. tokens, each level with blocks of the same number of
//! (coarse) tokens, next to the diagonal and without the quarter that the finer level has.
//!
//! Causal: blocks of the future are left out. Coarse queries still are means that reach up to the end of their group, as in
//! the paper: rows are influenced by queries (not keys or values) of a few tokens to come.

use super::rows::{BLOCK, Partial};
use super::{Head, Method};
use crate::matrix::{product, times};
use iceformer_core::simd::Isa;
use std::ops::Range;

/// Hierarchical attention.
pub struct HTransformer1d {
    /// (Coarse) tokens of a block, even: the paper's numerical rank.
    pub block_size: usize,
}

/// Means of queries and keys, sums of values, over groups of tokens; and what its rows have gathered.
struct Level {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    counts: Vec<f32>,
    tops: Vec<f32>,
    sums: Vec<f32>,
    out: Vec<f32>,
}

impl Level {
    fn new(q: Vec<f32>, k: Vec<f32>, v: Vec<f32>, counts: Vec<f32>) -> Level {
        let (n, size) = (counts.len(), v.len());
        Level { q, k, v, counts, tops: vec![f32::NEG_INFINITY; n], sums: vec![0.0; n], out: vec![0.0; size] }
    }

    fn rows(&self) -> usize {
        self.counts.len()
    }

    /// Groups of twice as many tokens; the last may be smaller.
    fn coarser(&self, d: usize) -> Level {
        let mean = |x: &[f32]| {
            let pair = |(x, c): (&[f32], &[f32])| {
                let total: f32 = c.iter().sum();
                (0..d).map(|e| x.iter().skip(e).step_by(d).zip(c).map(|(x, c)| x * c).sum::<f32>() / total).collect()
            };
            x.chunks(2 * d).zip(self.counts.chunks(2)).flat_map::<Vec<f32>, _>(pair).collect::<Vec<f32>>()
        };
        let sum = |x: &[f32]| (0..d).map(|e| x.iter().skip(e).step_by(d).sum()).collect::<Vec<f32>>();
        let v = self.v.chunks(2 * d).flat_map(sum).collect();
        Level::new(mean(&self.q), mean(&self.k), v, self.counts.chunks(2).map(|c| c.iter().sum()).collect())
    }

    /// Rows gather from keys, each row `i` from those below `end(i)`.
    fn gather(&mut self, isa: Isa, d: usize, rows: Range<usize>, keys: Range<usize>, end: impl Fn(usize) -> usize) {
        let scale = 1.0 / (d as f32).sqrt();
        let (rows, keys) = (rows.start..rows.end.min(self.rows()), keys.start..keys.end.min(self.rows()));
        if rows.is_empty() || keys.is_empty() {
            return;
        }
        let width = keys.len();
        let counts = &self.counts[keys.clone()];
        let mut scores = vec![0.0; BLOCK * width];
        for begin in rows.clone().step_by(BLOCK) {
            let part = begin..rows.end.min(begin + BLOCK);
            let scores = &mut scores[..part.len() * width];
            let span = |r: &Range<usize>| r.start * d..r.end * d;
            product(&self.q[span(&part)], &self.k[span(&keys)], d, scores, false);
            isa.scale(scale, scores);
            for (i, logits) in part.clone().zip(scores.chunks_mut(width)) {
                logits[end(i).clamp(keys.start, keys.end) - keys.start..].fill(f32::NEG_INFINITY);
                let mut row = Partial { max: self.tops[i], sum: self.sums[i], out: &mut self.out[i * d..][..d] };
                let max = row.raise(isa, isa.max(logits));
                isa.exp_sum(logits, max);
                row.sum += isa.dot(logits, counts);
                (self.tops[i], self.sums[i]) = (row.max, row.sum);
            }
            times(scores, &self.v[span(&keys)], width, &mut self.out[span(&part)], true);
        }
    }
}

impl Method for HTransformer1d {
    fn name(&self) -> &'static str {
        "H-Transformer-1D"
    }

    fn settings(&self, _: usize) -> String {
        format!("block {}", self.block_size)
    }

    fn cannot(&self, _: bool) -> Option<&'static str> {
        None
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        let (isa, n, d, b) = (Isa::best(), head.rows(), head.dim, self.block_size);
        assert!(b > 0 && b.is_multiple_of(2), "a block has two halves");
        let mut levels = vec![Level::new(head.q.to_vec(), head.k.to_vec(), head.v.to_vec(), vec![1.0; n])];
        while levels[levels.len() - 1].rows() > 2 * b {
            levels.push(levels[levels.len() - 1].coarser(d));
        }
        for (l, level) in levels.iter_mut().enumerate() {
            let all = level.rows();
            for begin in (0..all).step_by(b) {
                let (middle, end) = (begin + b / 2, begin + b);
                let left = begin.saturating_sub(b);
                if l == 0 {
                    let right = if head.causal { end } else { end + b };
                    level.gather(isa, d, begin..end, left..right, |i| if head.causal { i + 1 } else { all });
                    continue;
                }
                if begin > 0 {
                    level.gather(isa, d, begin..middle, left..left + b / 2, |_| all);
                    level.gather(isa, d, middle..end, left..begin, |_| all);
                }
                if !head.causal {
                    level.gather(isa, d, begin..middle, end..end + b, |_| all);
                    level.gather(isa, d, middle..end, end + b / 2..end + b, |_| all);
                }
            }
        }
        for (i, out) in out.chunks_mut(d).enumerate() {
            let mut row = Partial::new(out);
            for (l, level) in levels.iter().enumerate() {
                let at = i >> l;
                if level.sums[at] > 0.0 {
                    let max = row.raise(isa, level.tops[at]);
                    let share = (level.tops[at] - max).exp();
                    row.sum += share * level.sums[at];
                    isa.axpy(share, &level.out[at * d..][..d], row.out);
                }
            }
            row.finish(isa);
        }
    }
}
