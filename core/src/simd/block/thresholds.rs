//! What a row of a walk opens, as shares of the sum of its weights.

use super::coords::Along;

/// Sums that grow by less are left as they are.
pub(crate) const RAISE: f32 = 1.125;

/// Thresholds as shares of a row's sum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shares {
    /// A key that weighs so much is to be found.
    pub(crate) needle: f32,
    /// A cell and a node are opened when their estimates may be wrong by so much.
    pub(crate) mass: [f32; 2],
    /// A key of an opened cell comes with its own value from so much on.
    pub(crate) fine: f32,
    /// Cells of an opened node come with their own mean values from so much on, together.
    pub(crate) coarse: f32,
    /// Standard deviations that a cell's and a node's farthest key may stand out; no shares.
    pub(crate) stand_out: [f32; 2],
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
    pub(crate) needle: &'a mut [f32],
    pub(crate) mass: [&'a mut [f32]; 2],
    pub(crate) fine: &'a mut [f32],
    pub(crate) coarse: &'a mut [f32],
    pub(crate) along: &'a mut [Along],
}

impl Thresholds<'_> {
    /// From the sum of query `i`.
    pub(crate) fn set(&mut self, i: usize) {
        let (total, shares) = (self.total[i], &self.shares);
        self.needle[i] = self.reference[i] + libm::log2f(total * shares.needle);
        self.along[i].needle = self.needle[i];
        self.along[i].far = shares.stand_out[0] * self.sigma[i];
        self.mass[0][i] = total * shares.mass[0];
        self.mass[1][i] = total * shares.mass[1];
        self.fine[i] = total * shares.fine;
        self.coarse[i] = total * shares.coarse;
    }

    /// Refuses fewer than so many queries.
    #[inline(always)]
    pub(super) fn check(&self, queries: usize) {
        let Thresholds { reference, dense, sigma, total, needle, mass: [cells, nodes], fine, coarse, along, .. } = self;
        for x in [reference, dense, sigma, &**total, needle, cells, nodes, fine, coarse] {
            assert!(x.len() >= queries);
        }
        assert!(along.len() >= queries);
    }
}
