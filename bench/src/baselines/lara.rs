//! LARA (Zheng, Wang and Kong, 2022): self-normalised multiple importance sampling of randomised attention. Each landmark
//! c, the mean query plus the mean key of a run of tokens, is the mean of a proposal N(mu_c, I); one sample of each
//! proposal serves all queries, weighted by the balance heuristic plus a term of the query's own. The authors' models
//! sample in training only: inference takes the proposals' means for samples.

use super::rows::{BLOCK, softmax, softmax_rows};
use super::{Head, Method, normals, segment_means};
use crate::matrix::{product, times};
use iceformer_core::simd::Isa;

/// Least weight of a proposal, as in the authors' implementation: the query's own term may bring it below 0.
const LEAST: f32 = 1e-8;

/// Linear randomised attention.
pub struct Lara {
    /// Landmarks: proposals, one sample of each.
    pub landmarks: usize,
    /// Of the samples; `None` = the proposals' means, as in inference.
    pub seed: Option<u64>,
}

impl Method for Lara {
    fn name(&self) -> &'static str {
        "LARA"
    }

    fn settings(&self, _: usize) -> String {
        format!("{} landmarks", self.landmarks)
    }

    fn cannot(&self, causal: bool) -> Option<&'static str> {
        causal.then_some("landmarks mix tokens of before and after")
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        assert!(!head.causal, "landmarks mix tokens of before and after");
        let (isa, n, d) = (Isa::best(), head.rows(), head.dim);
        let m = self.landmarks.min(n);
        // Queries and keys take half of the scale each: xi(x, w) = exp(w x - |x|^2 / 2) then has the softmax kernel as its
        // mean over w ~ N(0, I).
        let half = head.scale().sqrt();
        let scaled = |x: &[f32]| x.iter().map(|x| x * half).collect::<Vec<f32>>();
        let (q, k) = (scaled(head.q), scaled(head.k));
        let means = segment_means(&q, d, m);
        let centres: Vec<f32> = segment_means(&k, d, m).iter().zip(&means).map(|(k, q)| k + q).collect();
        let noise = self.seed.map_or_else(|| vec![0.0; m * d], |seed| normals(m * d, seed));
        let samples: Vec<f32> = centres.iter().zip(&noise).map(|(c, e)| c + e).collect();

        // h_c: values averaged by xi(k, w_c); mass_c: log of the sum of xi(k, w_c).
        let mut h = vec![0.0; m * d];
        let mut mass = vec![0.0; m];
        let lengths: Vec<f32> = k.chunks(d).map(|k| isa.norm2(k) / 2.0).collect();
        let mut scores = vec![0.0; BLOCK * n.max(m)];
        for begin in (0..m).step_by(BLOCK) {
            let rows = BLOCK.min(m - begin);
            let scores = &mut scores[..rows * n];
            product(&samples[begin * d..][..rows * d], &k, d, scores, false);
            for (row, mass) in scores.chunks_mut(n).zip(&mut mass[begin..]) {
                row.iter_mut().zip(&lengths).for_each(|(s, l)| *s -= l);
                let max = isa.max(row);
                let sum = isa.exp_sum(row, max);
                isa.scale(1.0 / sum, row);
                *mass = max + sum.ln();
            }
            times(scores, head.v, n, &mut h[begin * d..][..rows * d], false);
        }

        // Balance heuristic q_c(w_c) / sum_c' q_c'(w_c), and log N(w_c; 0, I) / q_c(w_c).
        let mut balance = vec![0.0; m * m];
        product(&samples, &centres, d, &mut balance, false);
        let centre_lengths: Vec<f32> = centres.chunks(d).map(|c| isa.norm2(c) / 2.0).collect();
        for row in balance.chunks_mut(m) {
            row.iter_mut().zip(&centre_lengths).for_each(|(s, l)| *s -= l);
            softmax(isa, row);
        }
        let balance: Vec<f32> = balance.iter().step_by(m + 1).copied().collect();
        for ((mass, w), e) in mass.iter_mut().zip(samples.chunks(d)).zip(noise.chunks(d)) {
            *mass += (isa.norm2(e) - isa.norm2(w)) / 2.0;
        }

        let mut own = vec![0.0; BLOCK * m];
        for (q, to) in q.chunks(BLOCK * d).zip(out.chunks_mut(BLOCK * d)) {
            let rows = q.len() / d;
            let (weights, own) = (&mut scores[..rows * m], &mut own[..rows * m]);
            product(q, &samples, d, weights, false);
            product(q, &means, d, own, false);
            softmax_rows(isa, 1.0, own, m);
            for (row, own) in weights.chunks_mut(m).zip(own.chunks(m)) {
                row.iter_mut().zip(&mass).for_each(|(s, l)| *s += l);
                let max = isa.max(row);
                isa.exp_sum(row, max);
                for ((w, r), b) in row.iter_mut().zip(own).zip(&balance) {
                    *w *= (b + r - 1.0 / m as f32).max(LEAST);
                }
                let sum: f32 = row.iter().sum();
                isa.scale(1.0 / sum, row);
            }
            times(weights, &h, m, to, false);
        }
    }
}
