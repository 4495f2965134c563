//! What mean values leave out: a child's keys do not weigh alike for a row, and their values are not alike either.
//!
//! To first order the keys that a row `q` prefers pull a child's mean value by `Cov(v, k) q`, the covariance within the
//! child. Children are too many to keep a matrix each, but how values go with keys is a matter of the head: its moments
//! `M = sum (v - mean) (k - mean)^T` over keys of all cells, scaled by a child's own spread `s^2` over their trace, stand for
//! all of them. For nodes too: with moments of their own they err no less, while cells err twice as much with those of
//! nodes. So a row needs one vector, `M q`, and one number, the sum of its estimated weights times `s^2`.

use super::block::{RowBlock, Work};
use crate::cells::{BLOCK, Matrix};
use crate::simd::block::{AddScaled, Scores};
use core::f32::consts::LN_2;

impl RowBlock<'_> {
    /// Moves the sums of values by what the estimates of both levels leave out. O(queries x dim_k x dim_v). Under a softcap
    /// logits do not follow keys as they do here: nothing moves. For all rows or the sample.
    pub(super) fn lean(&self, work: &mut Work, sample: bool) {
        if self.head.softcap > 0.0 || self.cells.keys() == 0 {
            return;
        }
        let (n, d) = (self.queries(), work.sizes.dim_k);
        let traces = self.cells.traces();
        if traces[0] <= 0.0 {
            return;
        }
        // Standard deviation of a child's logits, in natural units, per unit of a row's `sigma`.
        let spreads = traces.map(|trace| libm::sqrtf(trace / self.cells.keys() as f32) * LN_2);
        let Work { sizes, q, scores, every, sample: few, sums, sigma, lean, .. } = &mut *work;
        let rows = if sample { &**few } else { &every[..n] };
        let [fine, coarse] = lean;
        for i in rows.iter().map(|&i| i as usize) {
            let mut by = 0.0;
            for (level, lanes) in [&fine[i * BLOCK..][..BLOCK], &coarse[i * BLOCK..][..BLOCK]].into_iter().enumerate() {
                // Weights grow with the logit exponentially, not linearly: a child's few best keys take all in the end.
                let x = sigma[level][i] * spreads[level];
                // tanh(x) / x, to 3 % below 4.
                let slope = (15.0 + x * x) / (15.0 + 6.0 * x * x);
                by += lanes.iter().sum::<f32>() * slope * LN_2 / traces[0];
            }
            fine[i * BLOCK] = by;
        }
        let q = Matrix { data: q, stride: sizes.q_stride, cols: d };
        for (b, block) in self.cells.crossed().enumerate() {
            let along = &mut scores[0];
            self.isa.run(Scores { block, q, rows, out: along });
            let (by, x) = (&fine[..], &along[..]);
            self.isa.run(AddScaled { by, x, rows, out: sums, stride: sizes.stride, at: b * BLOCK });
        }
    }
}
