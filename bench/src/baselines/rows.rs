//! Softmax rows and their sums.

use iceformer_core::simd::Isa;

/// Rows handled together: their scores against all keys stay in the cache of a core up to a few thousand keys.
pub(super) const BLOCK: usize = 64;

/// Logits become weights that sum to 1, in place; -inf becomes 0. Rows without any finite logit become 0.
pub(super) fn softmax(isa: Isa, x: &mut [f32]) {
    let max = isa.max(x);
    let sum = if max == f32::NEG_INFINITY { 0.0 } else { isa.exp_sum(x, max) };
    if sum > 0.0 {
        isa.scale(1.0 / sum, x);
    } else {
        x.fill(0.0);
    }
}

/// Softmax of every row of `cols` logits, scaled first.
pub(super) fn softmax_rows(isa: Isa, scale: f32, x: &mut [f32], cols: usize) {
    for row in x.chunks_mut(cols) {
        isa.scale(scale, row);
        softmax(isa, row);
    }
}

/// A row of partial softmax results: weights relative to a running maximum.
pub(super) struct Partial<'a> {
    pub max: f32,
    pub sum: f32,
    pub out: &'a mut [f32],
}

impl<'a> Partial<'a> {
    pub(super) fn new(out: &'a mut [f32]) -> Self {
        out.fill(0.0);
        Partial { max: f32::NEG_INFINITY, sum: 0.0, out }
    }

    /// Raises the maximum to `max` where that is higher, and gives the one that counts.
    pub(super) fn raise(&mut self, isa: Isa, max: f32) -> f32 {
        if max > self.max {
            if self.sum > 0.0 {
                let shrink = (self.max - max).exp();
                self.sum *= shrink;
                isa.scale(shrink, self.out);
            }
            self.max = max;
        }
        self.max
    }

    /// Divides by the sum; rows of nothing stay 0.
    pub(super) fn finish(self, isa: Isa) {
        if self.sum > 0.0 {
            isa.scale(1.0 / self.sum, self.out);
        }
    }
}
