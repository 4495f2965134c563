//! Linformer (Wang et al., 2020): keys and values projected along the sequence to a fixed number of rows. The projection
//! is trained in the paper's models; here it is random, as the IceFormer paper does, with the variance 1/k of the paper's
//! proof, and shared by keys, values and heads (the paper's layer-wise sharing).

use super::rows::{BLOCK, softmax_rows};
use super::{Head, Method, normals};
use crate::matrix::{product, times};
use iceformer_core::simd::Isa;

/// Attention over projected keys and values.
pub struct Linformer {
    /// Rows that remain.
    pub projected: usize,
    /// Of the projection.
    pub seed: u64,
    /// `[projected, rows]`.
    projection: Vec<f32>,
}

impl Linformer {
    /// With so many rows left.
    pub fn new(projected: usize, seed: u64) -> Linformer {
        Linformer { projected, seed, projection: Vec::new() }
    }

    /// `[projected, rows]`, once prepared.
    pub fn projection(&self) -> &[f32] {
        &self.projection
    }
}

impl Method for Linformer {
    fn name(&self) -> &'static str {
        "Linformer"
    }

    fn settings(&self, _: usize) -> String {
        format!("{} rows", self.projected)
    }

    fn cannot(&self, causal: bool) -> Option<&'static str> {
        causal.then_some("every projected key mixes all tokens")
    }

    fn prepare(&mut self, rows: usize, _: usize) {
        if self.projection.len() != self.projected * rows {
            self.projection = normals(self.projected * rows, self.seed);
            let scale = 1.0 / (self.projected as f32).sqrt();
            self.projection.iter_mut().for_each(|x| *x *= scale);
        }
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        assert!(!head.causal, "every projected key mixes all tokens");
        let (isa, n, d, m) = (Isa::best(), head.rows(), head.dim, self.projected);
        assert_eq!(self.projection.len(), m * n, "prepared for this size");
        let (mut k, mut v) = (vec![0.0; m * d], vec![0.0; m * d]);
        times(&self.projection, head.k, n, &mut k, false);
        times(&self.projection, head.v, n, &mut v, false);
        let mut scores = vec![0.0; BLOCK * m];
        for (q, to) in head.q.chunks(BLOCK * d).zip(out.chunks_mut(BLOCK * d)) {
            let scores = &mut scores[..q.len() / d * m];
            product(q, &k, d, scores, false);
            softmax_rows(isa, head.scale(), scores, m);
            times(scores, &v, m, to, false);
        }
    }
}
