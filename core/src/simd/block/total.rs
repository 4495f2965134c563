//! Sums of weights, row by row.

use super::choose::center;
use super::{BLOCK, Children, Limits};
use crate::simd::Task;
use crate::simd::vector::Simd;

/// Spread, in powers of two, up to which an estimate is believed where too large a sum would hide what matters.
pub(super) const SURE: f32 = 4.3;

/// Adds the children's estimated weights to running maxima and sums, lane by lane: `max` and `sum` are `[query][BLOCK]`.
pub(crate) struct Total<'a> {
    pub(crate) scores: &'a [f32],
    pub(crate) children: Children<'a>,
    pub(crate) limits: Limits<'a>,
    pub(crate) count: usize,
    pub(crate) max: &'a mut [f32],
    pub(crate) sum: &'a mut [f32],
}

/// Below every logit, and its difference from any is finite.
pub(crate) const LOWEST: f32 = -1e30;

impl Task for Total<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.count;
        assert!(self.scores.len() >= n * BLOCK && self.max.len() >= n * BLOCK && self.sum.len() >= n * BLOCK);
        assert!(self.limits.sigma.len() >= n && self.children.spread.len() >= BLOCK);
        let count = s.splat(self.children.log2_count - 1.0);
        for i in 0..n {
            let root = s.splat(self.limits.sigma[i]);
            let mut c = 0;
            while c < BLOCK {
                // SAFETY: vector c of a row of BLOCK numbers; row i is inside all of them.
                unsafe {
                    let at = i * BLOCK + c;
                    let sigma = s.mul(s.load(self.children.spread.as_ptr().add(c)), root);
                    let (x, sigma) = center(s, s.load(self.scores.as_ptr().add(at)), sigma, self.limits.softcap);
                    let sigma = s.min(sigma, s.splat(SURE));
                    let x = s.add(x, count);
                    let present = s.load(self.children.present.as_ptr().add(c));
                    let high = s.select_lt(s.splat(0.5), present, s.add(x, sigma), s.splat(LOWEST));
                    let low = s.select_lt(s.splat(0.5), present, s.sub(x, sigma), s.splat(LOWEST));
                    let before = s.load(self.max.as_ptr().add(at));
                    let now = s.max(before, high);
                    let sum = s.mul(s.load(self.sum.as_ptr().add(at)), s.exp2(s.sub(before, now)));
                    let new = s.add(s.exp2(s.sub(high, now)), s.exp2(s.sub(low, now)));
                    s.store(self.max.as_mut_ptr().add(at), now);
                    s.store(self.sum.as_mut_ptr().add(at), s.add(sum, new));
                }
                c += S::LANES;
            }
        }
    }
}

/// Largest logit and sum of the weights of each row, from maxima and sums of its lanes and those of its dense part.
pub(crate) struct AddUp<'a> {
    /// `[query][BLOCK]`, as [`Total`] leaves them.
    pub(crate) max: &'a [f32],
    pub(crate) sum: &'a [f32],
    pub(crate) dense_max: &'a [f32],
    /// In place: relative to the row's largest logit.
    pub(crate) dense_sum: &'a mut [f32],
    /// By query: largest logit.
    pub(crate) reference: &'a mut [f32],
    /// By query: sum of all weights relative to it.
    pub(crate) total: &'a mut [f32],
    /// By query: what the dense part's sums are to be multiplied by.
    pub(crate) scale: &'a mut [f32],
}

impl Task for AddUp<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.total.len();
        assert!(self.max.len() >= n * BLOCK && self.sum.len() >= n * BLOCK);
        let rows = self.dense_max[..n].iter().zip(&mut self.dense_sum[..n]).zip(&mut self.scale[..n]);
        for (i, ((&dense_max, dense_sum), scale)) in rows.enumerate() {
            let mut top = s.splat(dense_max.max(LOWEST));
            for c in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: vector c of row i.
                top = s.max(top, unsafe { s.load(self.max.as_ptr().add(i * BLOCK + c)) });
            }
            let reference = s.reduce_max(top);
            let top = s.splat(reference);
            let mut sum = s.splat(0.0);
            for c in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: as above.
                unsafe {
                    let at = i * BLOCK + c;
                    let x = s.exp2(s.sub(s.load(self.max.as_ptr().add(at)), top));
                    sum = s.fma(x, s.load(self.sum.as_ptr().add(at)), sum);
                }
            }
            *scale = libm::exp2f(dense_max - reference);
            *dense_sum *= *scale;
            self.reference[i] = reference;
            self.total[i] = s.reduce_add(sum) + *dense_sum;
        }
    }
}
