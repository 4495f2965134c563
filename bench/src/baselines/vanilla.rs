//! Attention as it is written: scores, softmax, weighted sum, by blocks of rows so that no matrix of rows x keys is kept.

use super::rows::{BLOCK, softmax};
use super::{Head, Method};
use crate::matrix::{product, times};
use iceformer_core::simd::Isa;

/// Exact attention by two matrix products and a softmax.
pub struct Vanilla;

impl Method for Vanilla {
    fn name(&self) -> &'static str {
        "Vanilla"
    }

    fn settings(&self, _: usize) -> String {
        String::new()
    }

    fn cannot(&self, _: bool) -> Option<&'static str> {
        None
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        let (isa, d) = (Isa::best(), head.dim);
        by_blocks(isa, head, |begin, keys, scores| {
            let rows = scores.len() / keys;
            for (i, row) in scores.chunks_mut(keys).enumerate() {
                let seen = head.seen(begin + i);
                softmax(isa, &mut row[..seen]);
                row[seen..].fill(0.0);
            }
            times(scores, &head.v[..keys * d], keys, &mut out[begin * d..][..rows * d], false);
        });
    }
}

/// Calls `each(first row, keys, logits)` with scaled logits `[rows, keys]` of blocks of rows; a causal block has the keys
/// that its last row sees.
pub(super) fn by_blocks(isa: Isa, head: &Head<'_>, mut each: impl FnMut(usize, usize, &mut [f32])) {
    let (n, d) = (head.rows(), head.dim);
    let mut scores = vec![0.0; BLOCK.min(n) * n];
    for begin in (0..n).step_by(BLOCK) {
        let rows = BLOCK.min(n - begin);
        let keys = head.seen(begin + rows - 1);
        let scores = &mut scores[..rows * keys];
        product(&head.q[begin * d..][..rows * d], &head.k[..keys * d], d, scores, false);
        isa.scale(head.scale(), scores);
        each(begin, keys, scores);
    }
}
