//! What a row of a walk opens, as shares of the sum of its weights.

use super::coords::Along;
use super::{BLOCK, check};
use crate::simd::Task;
use crate::simd::vector::Simd;

/// Sums of rows in lists, and of rows by themselves, that grow by less are left as they are.
pub(crate) const RAISE: [f32; 2] = [1.2, 1.125];

/// Thresholds as shares of a row's sum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shares {
    /// A key that weighs so much is to be found by a row that has opened few cells.
    pub(crate) needle: f32,
    /// A row that has opened more cells looks for so many times `needle` a cell, up to `most` times.
    pub(crate) each: f32,
    pub(crate) most: f32,
    /// A cell and a node are opened when their estimates may be wrong by so much.
    pub(crate) mass: [f32; 2],
    /// A key of an opened cell comes with its own value from so much on.
    pub(crate) fine: f32,
    /// Cells of an opened node come with their own mean values from so much on, together.
    pub(crate) coarse: f32,
    /// Standard deviations that a cell's and a node's farthest key may stand out; no shares.
    pub(crate) stand_out: [f32; 2],
}

impl Shares {
    /// Times `needle` that a row looks for after so many cells.
    pub(crate) fn ease(&self, opened: f32) -> f32 {
        (opened * self.each).clamp(1.0, self.most.max(1.0))
    }
}

/// The same by query, for sums as they are known by now.
pub(crate) struct Thresholds<'a> {
    pub(crate) shares: Shares,
    /// Logit that weights are relative to.
    pub(crate) reference: &'a [f32],
    /// Weights of the dense part.
    pub(crate) dense: &'a [f32],
    /// Standard deviation of a logit per unit of a cell's spread.
    pub(crate) sigma: &'a [f32],
    /// Estimated sum of all weights, or what of them was found, where that is more.
    pub(crate) total: &'a mut [f32],
    /// Cells opened.
    pub(crate) opened: &'a mut [f32],
    /// What a key's weight is a share of: the sum, times [`Shares::ease`].
    pub(crate) bar: &'a mut [f32],
    pub(crate) needle: &'a mut [f32],
    pub(crate) mass: [&'a mut [f32]; 2],
    pub(crate) fine: &'a mut [f32],
    pub(crate) coarse: &'a mut [f32],
    pub(crate) along: &'a mut [Along],
}

impl Thresholds<'_> {
    /// From the sum of query `i` and the cells that it has opened.
    pub(crate) fn set(&mut self, i: usize) {
        let (total, shares) = (self.total[i], &self.shares);
        self.along[i].far = shares.stand_out[0] * self.sigma[i];
        self.mass[0][i] = total * shares.mass[0];
        self.mass[1][i] = total * shares.mass[1];
        self.fine[i] = total * shares.fine;
        self.coarse[i] = total * shares.coarse;
        self.set_needle(i);
    }

    /// What the cells that it has opened change.
    pub(crate) fn set_needle(&mut self, i: usize) {
        self.bar[i] = self.total[i] * self.shares.ease(self.opened[i]);
        self.needle[i] = self.reference[i] + libm::log2f(self.bar[i] * self.shares.needle);
        self.along[i].needle = self.needle[i];
    }

    /// Refuses fewer than so many queries.
    #[inline(always)]
    pub(super) fn check(&self, queries: usize) {
        let Thresholds { reference, dense, sigma, total, opened, bar, needle, .. } = self;
        let Thresholds { mass: [cells, nodes], fine, coarse, along, .. } = self;
        for x in [reference, dense, sigma, &**total, opened, bar, needle, cells, nodes, fine, coarse] {
            assert!(x.len() >= queries);
        }
        assert!(along.len() >= queries);
    }
}

/// Raises the thresholds of listed rows: to the exact weights they have found, which may be many times what was estimated, a
/// needle; and by the cells they have opened.
pub(crate) struct Raise<'a, 'b> {
    /// The rows of every cell that has been opened. A row may be in several: it is raised once.
    pub(crate) lists: &'a [&'a [u16]],
    /// Exact weights, `[query][BLOCK]`.
    pub(crate) exact: &'a [f32],
    pub(crate) limits: &'a mut Thresholds<'b>,
    /// What grows by less stays.
    pub(crate) factor: f32,
}

impl Task for Raise<'_, '_> {
    /// How many rows have been raised.
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> usize {
        for &row in self.lists.iter().copied().flatten() {
            self.limits.opened[row as usize] += 1.0;
        }
        let mut count = 0;
        for rows in self.lists {
            check(rows, self.exact.len(), BLOCK, BLOCK);
            for rows in rows.chunks(4) {
                count += self.some(s, rows);
            }
        }
        count
    }
}

impl Raise<'_, '_> {
    /// Up to four rows; how many of them have been raised.
    #[inline(always)]
    fn some<S: Simd>(&mut self, s: S, rows: &[u16]) -> usize {
        let mut sums = [s.splat(0.0); 4];
        for (sum, &row) in sums.iter_mut().zip(rows) {
            for c in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: vector c of a row that is there.
                *sum = s.add(*sum, unsafe { s.load(self.exact.as_ptr().add(row as usize * BLOCK + c)) });
            }
        }
        let (sums, limits, mut count) = (s.reduce_add4(sums), &mut *self.limits, 0);
        for (&row, sum) in rows.iter().zip(sums) {
            let i = row as usize;
            let all = limits.total[i].max(sum + limits.dense[i]);
            if all * limits.shares.ease(limits.opened[i]) > self.factor * limits.bar[i] {
                if all > limits.total[i] {
                    limits.total[i] = all;
                    limits.set(i);
                } else {
                    limits.set_needle(i);
                }
                count += 1;
            }
        }
        count
    }
}
