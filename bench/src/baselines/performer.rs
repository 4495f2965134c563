//! Performer (Choromanski et al., 2020): softmax attention as an inner product of positive random features (FAVOR+) with
//! orthogonal directions; causal by prefix sums.

use super::{Head, Method, orthogonal};
use crate::matrix::{gram, product, times};
use iceformer_core::simd::Isa;

/// Added to every feature against divisions by nothing, as in the authors' implementation.
const EPSILON: f32 = 1e-4;
/// Rows between which prefix sums are kept.
const CHUNK: usize = 128;

/// FAVOR+.
pub struct Performer {
    /// Random features.
    pub features: usize,
    /// Of the directions.
    pub seed: u64,
    /// `[features, dim]`.
    directions: Vec<f32>,
}

impl Performer {
    /// With so many random features.
    pub fn new(features: usize, seed: u64) -> Performer {
        Performer { features, seed, directions: Vec::new() }
    }

    /// `[features, dim]`, once prepared.
    pub fn directions(&self) -> &[f32] {
        &self.directions
    }

    /// exp(w x - |x|^2 / 2 - max) + epsilon over sqrt(features), with x scaled by dim^-1/4. `max` is that of each row for
    /// queries and of all rows for keys: what must not differ between keys is the same for all of them.
    fn map(&self, isa: Isa, x: &[f32], d: usize, max: &mut dyn FnMut(&[f32]) -> f32) -> Vec<f32> {
        let m = self.features;
        let scale = (d as f32).powf(-0.25);
        let mut out = vec![0.0; x.len() / d * m];
        product(x, &self.directions, d, &mut out, false);
        isa.scale(scale, &mut out);
        let ratio = 1.0 / (m as f32).sqrt();
        for (x, to) in x.chunks(d).zip(out.chunks_mut(m)) {
            let shift = max(to) + scale * scale * isa.norm2(x) / 2.0;
            to.iter_mut().for_each(|t| *t -= shift);
            isa.exp(to);
            to.iter_mut().for_each(|t| *t = (*t + EPSILON) * ratio);
        }
        out
    }
}

impl Method for Performer {
    fn name(&self) -> &'static str {
        "Performer"
    }

    fn settings(&self, _: usize) -> String {
        format!("{} features", self.features)
    }

    fn cannot(&self, _: bool) -> Option<&'static str> {
        None
    }

    fn prepare(&mut self, _: usize, dim: usize) {
        if self.directions.len() != self.features * dim {
            self.directions = orthogonal(self.features, dim, self.seed);
        }
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        let (isa, n, d, m) = (Isa::best(), head.rows(), head.dim, self.features);
        assert_eq!(self.directions.len(), m * d, "prepared for this size");
        // The maximum over all keys, one block of features at a time: features of all keys are never kept together.
        let scale = (d as f32).powf(-0.25);
        let mut top = f32::NEG_INFINITY;
        let mut block = vec![0.0; CHUNK * m];
        for k in head.k.chunks(CHUNK * d) {
            let block = &mut block[..k.len() / d * m];
            product(k, &self.directions, d, block, false);
            top = top.max(isa.max(block) * scale);
        }
        // Sums over keys of features times (values, 1): `[features, dim]` and `[features]`.
        let (mut sums, mut counts) = (vec![0.0; m * d], vec![0.0; m]);
        let key_features = |k: &[f32]| self.map(isa, k, d, &mut |_| top);
        let add = |features: &[f32], v: &[f32], sums: &mut [f32], counts: &mut [f32]| {
            gram(features, v, v.len() / d, sums, true);
            features.chunks(m).for_each(|f| isa.axpy(1.0, f, counts));
        };
        if !head.causal {
            for (k, v) in head.k.chunks(CHUNK * d).zip(head.v.chunks(CHUNK * d)) {
                add(&key_features(k), v, &mut sums, &mut counts);
            }
        }
        for begin in (0..n).step_by(CHUNK) {
            let rows = CHUNK.min(n - begin);
            let part = begin * d..(begin + rows) * d;
            let q = self.map(isa, &head.q[part.clone()], d, &mut |x| isa.max(x));
            let to = &mut out[part.clone()];
            times(&q, &sums, m, to, false);
            let mut total: Vec<f32> = q.chunks(m).map(|q| isa.dot(q, &counts)).collect();
            if head.causal {
                let k = key_features(&head.k[part.clone()]);
                let mut own = vec![0.0; rows * rows];
                product(&q, &k, m, &mut own, false);
                for (i, row) in own.chunks_mut(rows).enumerate() {
                    row[i + 1..].fill(0.0);
                    total[i] += row.iter().sum::<f32>();
                }
                times(&own, &head.v[part.clone()], rows, to, true);
                add(&k, &head.v[part], &mut sums, &mut counts);
            }
            to.chunks_mut(d).zip(total).for_each(|(to, total)| isa.scale(1.0 / total, to));
        }
    }
}
