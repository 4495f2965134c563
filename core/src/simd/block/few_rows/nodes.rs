//! Before and after the descent: which nodes rows list, and what the others weigh in with.

use super::super::{AddValues, BLOCK, Children, Choose, Doubt, Limits, Stored};
use super::{FewRows, ask};
use crate::simd::Task;
use crate::simd::vector::Simd;

/// Keys of a node, in powers of two.
const LOG2_COUNT: f32 = (BLOCK * BLOCK).ilog2() as f32;

/// Root blocks whose values are asked for ahead.
const AHEAD: usize = 3;

impl FewRows<'_, '_> {
    /// Estimates of all nodes, and which of them rows have to look into.
    #[inline(always)]
    pub(super) fn list<S: Simd>(&mut self, s: S) {
        let (rows, queries, roots, room) = (self.rows, self.rows.len(), self.roots(), &mut self.room);
        for root in 0..roots {
            let (open, sure) =
                (&mut room.open[root * queries..][..queries], &mut room.sure[root * queries..][..queries]);
            let weights = &mut room.weights[root * queries * BLOCK..][..queries * BLOCK];
            let bits = open[0];
            if bits == 0 {
                weights.fill(0.0);
                continue;
            }
            let present = &core::array::from_fn(|lane| f32::from(bits >> lane & 1));
            let means = self.tree.nodes.block(root);
            let children = Children { spread: means.spread, reach: means.reach, present, bits, log2_count: LOG2_COUNT };
            let limits = Limits {
                reference: self.limits.reference,
                needle: self.limits.needle,
                mass: self.limits.mass[1],
                sigma: self.sigma,
                stand_out: self.limits.shares.stand_out[1],
                softcap: self.softcap,
            };
            let centers = &self.centers[root * self.step..][..queries * BLOCK];
            Choose { centers, rows, children, limits, weights, open, sure }.run(s);
        }
    }

    /// The nodes that still weigh in by themselves, into the sums.
    #[inline(always)]
    pub(super) fn add_nodes<S: Simd>(&mut self, s: S) {
        let (rows, n) = (self.rows, self.rows.len() * BLOCK);
        let ahead = |roots: core::ops::Range<usize>| {
            for root in roots {
                match self.tree.nodes.block(root).values.data {
                    Stored::F32(x) => ask(s, x),
                    Stored::F16(x) => ask(s, x),
                }
            }
        };
        let roots = self.roots();
        ahead(roots.saturating_sub(AHEAD)..roots);
        for root in (0..roots).rev() {
            if root >= AHEAD {
                ahead(root - AHEAD..root - AHEAD + 1);
            }
            let p = &self.room.weights[root * n..][..n];
            let means = self.tree.nodes.block(root);
            if let Some(out) = &mut self.sums.doubt {
                let (spread, value_spread, count) = (means.spread, means.value_spread, (BLOCK * BLOCK) as f32);
                Doubt { p, rows, spread, value_spread, sigma: self.sigma, count, out }.run(s);
            }
            let (total, lean) = (Some(&mut *self.sums.estimated), Some((means.spread, &mut *self.sums.lean[1])));
            AddValues { p, values: means.values, rows, out: self.sums.out, total, lean }.run(s);
        }
    }
}
