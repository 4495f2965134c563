//! All heads of a call, cut into independent pieces.

use super::super::exact::Head;
use super::super::mask::Masking;
use super::super::problem::AttentionStats;
use super::block::{RowBlock, Sizes, Work};
use super::rule::Rule;
use super::walk::Watch;
use crate::cells::{BLOCK, Cells, SEGMENT};
use crate::mem::{Rows, Tensor, TensorMut};
use crate::simd::Isa;

/// All heads of a problem; `kv` gives keys, values and cells of a (batch, KV head).
pub(crate) struct Accelerated<'a, F> {
    pub(crate) q: Tensor<'a>,
    pub(crate) kv: F,
    pub(crate) heads_kv: usize,
    /// Keys that the work memory is for.
    pub(crate) keys: usize,
    pub(crate) out: &'a TensorMut<'a>,
    pub(crate) lse: Option<&'a TensorMut<'a>>,
    pub(crate) masking: &'a Masking<'a>,
    pub(crate) scale: f32,
    pub(crate) softcap: f32,
    pub(crate) rule: Rule,
    pub(crate) isa: Isa,
}

/// Rows of a head that are attended together.
fn rows_of(dims: [usize; 2], group: usize, rows: usize, keys: usize) -> usize {
    Sizes::new(dims[0], dims[1], group, rows, keys).0
}

/// The most pieces worth handing to different parts.
pub(crate) fn most_pieces(shape: [usize; 4], heads_kv: usize, dim_v: usize, keys: usize) -> usize {
    let [batch, heads, rows, dim_k] = shape;
    batch * heads_kv * rows.div_ceil(rows_of([dim_k, dim_v], heads / heads_kv, rows, keys))
}

impl<'a, F: Fn(usize, usize) -> (Rows<'a>, Rows<'a>, &'a Cells)> Accelerated<'a, F> {
    /// Part `ith` of `nth`, added to the statistics. What is computed for a row does not depend on `nth`.
    pub(crate) fn run(
        &self,
        work: &mut Work,
        ith: usize,
        nth: usize,
        stats: &mut AttentionStats,
        watch: &mut Option<super::Watch<'_>>,
    ) {
        let [_, heads, rows, dim_k] = self.q.shape();
        let group = heads / self.heads_kv;
        let (dim_v, keys) = (self.out.shape()[3], self.keys);
        let step = rows_of([dim_k, dim_v], group, rows, keys);
        let blocks = rows.div_ceil(step);
        for piece in (ith..most_pieces(self.q.shape(), self.heads_kv, dim_v, keys)).step_by(nth) {
            // The last blocks of a causal head are the longest: hand them out first.
            let begin = (blocks - 1 - piece % blocks) * step;
            let (batch, head_kv) = (piece / blocks / self.heads_kv, piece / blocks % self.heads_kv);
            let (k, v, cells) = (self.kv)(batch, head_kv);
            let head = Head {
                q: self.q.head(batch, head_kv * group),
                k,
                v,
                masking: self.masking,
                batch,
                head: head_kv * group,
                scale: self.scale,
                softcap: self.softcap,
                shared_qk: false,
            };
            let n = (rows - begin).min(step);
            let (isa, rule) = (self.isa, &self.rule);
            let block = RowBlock { isa, rule, q: &self.q, head: &head, group, cells, begin, n };
            match watch {
                Some(watch) => {
                    let mut each = |r: u16, ids: &[u32]| {
                        let (h, i) = (r as usize / n, r as usize % n);
                        watch(head.head + h, begin + i, ids);
                    };
                    self.block(&block, work, stats, &mut Some(&mut each));
                }
                None => self.block(&block, work, stats, &mut None),
            }
        }
    }

    fn block(&self, b: &RowBlock<'_>, work: &mut Work, stats: &mut AttentionStats, watch: &mut Option<Watch<'_>>) {
        let queries = b.queries();
        let usable = b.find_usable(work);
        let ranges = core::mem::replace(&mut work.ranges, crate::mem::Buf::new(work.q.memory()));
        b.attend_dense(work, &ranges, true);
        let mut seen = 0;
        for i in 0..b.n {
            seen += b.head.masking.count(b.head.batch, b.head.masking.visible(b.head.batch, b.begin + i)) as u64;
        }
        let seen = seen * b.group as u64;
        let inside = (usable * SEGMENT * queries) as u64;
        stats.pairs_dense += seen;
        stats.pairs += seen - inside;
        work.ranges = ranges;
        if usable == 0 {
            work.exact[..queries * BLOCK].fill(0.0);
            work.estimated[..queries * BLOCK].fill(0.0);
            work.light[..queries].fill(0.0);
            work.lost[..queries].fill(false);
            work.reference[..queries].copy_from_slice(&work.dense_max[..queries]);
        } else {
            b.load(work);
            b.total(work);
            b.set_limits(work, usable * SEGMENT);
            let done = b.walk(work, watch);
            stats.cells_opened += done.cells;
            stats.pairs += done.cells * BLOCK as u64;
        }
        let mass = self.finish(b, work);
        let rows = queries as u64;
        stats.add(&AttentionStats { rows, estimated_mass: mass / queries as f32, ..AttentionStats::new(stats.mode, stats.reason) });
    }

    /// Divides by the sums of the weights; returns the sum of the rows' estimated shares.
    fn finish(&self, b: &RowBlock<'_>, work: &mut Work) -> f32 {
        let mut share = 0.0;
        let (stride, dim_v) = (work.sizes.stride, work.sizes.dim_v);
        for h in 0..b.group {
            let mut out = self.out.rows(b.head.batch, b.head.head + h, b.begin, b.n);
            let mut lse = self.lse.map(|t| t.rows(b.head.batch, b.head.head + h, b.begin, b.n));
            let mut lse = lse.as_mut().and_then(|r| r.as_slice());
            for i in 0..b.n {
                let r = h * b.n + i;
                let of = |x: &[f32]| x[r * BLOCK..][..BLOCK].iter().sum::<f32>();
                let estimated = of(&work.estimated) - work.light[r];
                let total = work.dense_sum[r] + of(&work.exact) + estimated;
                let row = &mut work.sums[r * stride..][..dim_v];
                if total > 0.0 {
                    b.isa.scale(1.0 / total, row);
                    share += estimated / total;
                } else {
                    row.fill(0.0);
                }
                out.write(i, row);
                if let Some(lse) = &mut lse {
                    let log2 = f64::from(work.reference[r]) + libm::log2(f64::from(total));
                    lse[i] = if total > 0.0 { (log2 * core::f64::consts::LN_2) as f32 } else { f32::NEG_INFINITY };
                }
            }
        }
        share
    }
}
