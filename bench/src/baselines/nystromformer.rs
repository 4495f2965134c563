//! Nystromformer (Xiong et al., 2021): softmax(Q K~^T) pinv(softmax(Q~ K~^T)) softmax(Q~ K^T) V with means of runs of
//! queries and keys as landmarks, and the pseudo-inverse by the paper's iteration of third order.
//!
//! The paper's model adds a depth-wise convolution of the values, whose weights are trained; a model that was trained
//! without has none, so it is left out.

use super::rows::{BLOCK, softmax_rows};
use super::{Head, Method, Vanilla, segment_means};
use crate::matrix::{product, times};
use iceformer_core::simd::Isa;

/// Steps of the iteration, as published.
const STEPS: usize = 6;

/// Nystrom approximation of the softmax matrix.
pub struct Nystromformer {
    /// Landmarks.
    pub landmarks: usize,
}

impl Method for Nystromformer {
    fn name(&self) -> &'static str {
        "Nystromformer"
    }

    fn settings(&self, _: usize) -> String {
        format!("{} landmarks", self.landmarks)
    }

    fn cannot(&self, causal: bool) -> Option<&'static str> {
        causal.then_some("landmarks mix tokens of before and after")
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        assert!(!head.causal, "landmarks mix tokens of before and after");
        let (isa, n, d, m) = (Isa::best(), head.rows(), head.dim, self.landmarks);
        if m >= n {
            // As published: with as many landmarks as tokens it is attention itself.
            return Vanilla.attend(head, out);
        }
        let (q, k) = (segment_means(head.q, d, m), segment_means(head.k, d, m));
        let mut among = vec![0.0; m * m];
        product(&q, &k, d, &mut among, false);
        softmax_rows(isa, head.scale(), &mut among, m);
        // Landmark rows over all keys, applied to the values.
        let mut sums = vec![0.0; m * d];
        let mut scores = vec![0.0; BLOCK.max(m.min(BLOCK)) * n.max(m)];
        for (q, to) in q.chunks(BLOCK * d).zip(sums.chunks_mut(BLOCK * d)) {
            let scores = &mut scores[..q.len() / d * n];
            product(q, head.k, d, scores, false);
            softmax_rows(isa, head.scale(), scores, n);
            times(scores, head.v, n, to, false);
        }
        let mut mixed = vec![0.0; m * d];
        times(&pseudo_inverse(isa, &among, m), &sums, m, &mut mixed, false);
        for (q, to) in head.q.chunks(BLOCK * d).zip(out.chunks_mut(BLOCK * d)) {
            let scores = &mut scores[..q.len() / d * m];
            product(q, &k, d, scores, false);
            softmax_rows(isa, head.scale(), scores, m);
            times(scores, &mixed, m, to, false);
        }
    }
}

/// Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4 from Z = A^T / (|A|_1 |A|_inf).
fn pseudo_inverse(isa: Isa, a: &[f32], m: usize) -> Vec<f32> {
    let widest = a.chunks(m).map(|row| row.iter().map(|x| x.abs()).sum::<f32>()).fold(0.0, f32::max);
    let tallest = (0..m).map(|j| a.iter().skip(j).step_by(m).map(|x| x.abs()).sum::<f32>()).fold(0.0, f32::max);
    let mut z: Vec<f32> = (0..m * m).map(|i| a[i % m * m + i / m]).collect();
    isa.scale(1.0 / (widest * tallest), &mut z);
    let (mut az, mut inner, mut next) = (vec![0.0; m * m], vec![0.0; m * m], vec![0.0; m * m]);
    // x <- c I - x
    let turn = |c: f32, x: &mut [f32]| {
        isa.scale(-1.0, x);
        x.iter_mut().step_by(m + 1).for_each(|x| *x += c);
    };
    for _ in 0..STEPS {
        times(a, &z, m, &mut az, false);
        inner.copy_from_slice(&az);
        turn(7.0, &mut inner);
        times(&az, &inner, m, &mut next, false);
        turn(15.0, &mut next);
        times(&az, &next, m, &mut inner, false);
        turn(13.0, &mut inner);
        times(&z, &inner, m, &mut next, false);
        isa.scale(0.25, &mut next);
        std::mem::swap(&mut z, &mut next);
    }
    z
}
