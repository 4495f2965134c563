//! A few rows of a block, attended by cells and exactly and then forgotten: what cells would cost all rows, and by how
//! much they would be wrong.

use super::super::exact::{self, Head, Queries};
use super::super::mask::{Mask, Masking};
use super::block::{RowBlock, SAMPLED, Work, exp2};
use super::cost::Cost;
use crate::cells::ROOT;
use crate::mem::Rows;

impl RowBlock<'_> {
    /// Picks the rows of the trial, and keeps their sums and what they are expected to weigh.
    pub(super) fn keep_sample(&self, work: &mut Work) {
        let stride = work.sizes.stride;
        work.sample.clear();
        for (at, i) in (0..self.queries()).step_by(SAMPLED).enumerate() {
            // Room for one query in SAMPLED, rounded up.
            crate::error::reserved(work.sample.push(i as u16));
            work.kept[at * stride..][..stride].copy_from_slice(&work.sums[i * stride..][..stride]);
            work.expected[at] = work.total[i];
        }
    }

    /// Rows of a trial.
    pub(super) fn sampled(&self) -> usize {
        self.queries().div_ceil(SAMPLED)
    }

    /// Their sums, and what they are expected to weigh, as they were.
    pub(super) fn forget_sample(&self, work: &mut Work) {
        let stride = work.sizes.stride;
        for at in 0..work.sample.len() {
            let i = work.sample[at] as usize;
            work.sums[i * stride..][..stride].copy_from_slice(&work.kept[at * stride..][..stride]);
            work.total[i] = work.expected[at];
        }
    }

    /// After [`RowBlock::prepare`]: exact outputs of the rows of the trial, for [`RowBlock::rehearse`]. Ranges of the dense
    /// part are lost. O(rows of the trial x keys x dim).
    pub(super) fn attend_sample(&self, work: &mut Work) {
        self.keep_sample(work);
        let d = work.sizes.dim_k;
        for (at, &i) in work.sample.iter().enumerate() {
            let (h, i) = (i as usize / self.n, i as usize % self.n);
            self.q.head(self.head.batch, self.head.head + h).read(self.begin + i, &mut work.asked[at * d..][..d]);
        }
        if self.head.masking.biases().is_some() {
            // All parts use the same.
            self.take_ranges(work, 0);
            return self.attend_sample_lifted(work);
        }
        // Every row sees all of a segment that its part uses, but for padding that lies in between.
        let (rows, shape) = (work.sample.len(), [1, 1, work.sample.len(), self.head.v.rows()]);
        let mask = self.head.masking.keep(self.head.batch).map_or(Mask::None, Mask::Keys);
        let Ok(masking) = Masking::new(mask, 0, 0, shape, true) else {
            unreachable!("one byte a key, as the mask of the call has")
        };
        let mut begin = 0;
        while begin < rows {
            let part = self.part_of(work.sample[begin] as usize);
            let of = work.sample[begin..].iter().take_while(|&&i| self.part_of(i as usize) == part);
            let n = of.count();
            self.take_ranges(work, part);
            let Ok(q) = Rows::strided(&work.asked, rows, d, d) else { unreachable!("rows fit their memory") };
            let head = Head { q, masking: &masking, batch: 0, head: 0, ..*self.head };
            exact::attend_ranges(self.isa, &head, Queries::Run(begin), n, &work.ranges, &mut work.dense);
            for r in 0..n {
                self.set_truth(work, self.head, begin + r, r);
            }
            begin += n;
        }
    }

    /// Output of the row at `at` in the sample: row `r` of the dense work memory, with what is dense anyway.
    pub(super) fn set_truth(&self, work: &mut Work, head: &Head<'_>, at: usize, r: usize) {
        let stride = work.sizes.stride;
        let Work { sample, dense, reference, dense_sum, truth, kept, .. } = work;
        let (max, sum, values) = dense.partial(head, r);
        let i = sample[at] as usize;
        let top = reference[i].max(max);
        let (anyway, cells) = (exp2(reference[i] - top), exp2(max - top));
        let unit = 1.0 / (dense_sum[i] * anyway + sum * cells);
        let truth = &mut truth[at * stride..][..values.len()];
        for ((to, &x), &y) in truth.iter_mut().zip(values).zip(&kept[at * stride..]) {
            *to = (x * cells + y * anyway) * unit;
        }
    }

    /// What attending by cells costs, in query-key pairs of the dense kernels, and the relative error of the outputs it
    /// leaves, from the rows of the trial; `lean` says whether their sums are to be moved by [`RowBlock::lean`].
    pub(super) fn rehearse(&self, work: &mut Work, lean: bool) -> (f64, f64) {
        work.take_gathered();
        let done = self.descend(work, true, false, &mut None);
        if lean {
            self.lean(work, true);
        }
        let rows = work.sample.len();
        let error = self.error_of_sample(work);
        self.forget_sample(work);
        let cost = Cost::new(work.sizes.dim_k, work.sizes.dim_v);
        let (nodes, cells) = (done.nodes as f64, done.cells as f64);
        let lifts = cost.lifts(work.take_gathered() as f64, if work.is_lifted() { cells } else { 0.0 });
        let lists = (cost.lists(nodes, cells, done.sifted as f64) + lifts) / rows as f64;
        let pairs = (lists + cost.row(self.cells.segments().div_ceil(ROOT) as f64)) * self.queries() as f64;
        (pairs, error)
    }

    /// Root of the sum of the square errors of the sample's outputs, over that of the outputs.
    fn error_of_sample(&self, work: &Work) -> f64 {
        let stride = work.sizes.stride;
        let (mut wrong, mut all) = (0.0, 0.0);
        for (at, &i) in work.sample.iter().enumerate() {
            let i = i as usize;
            // Attended exactly in the end.
            if work.lost[i] {
                continue;
            }
            let unit = 1.0 / self.weight(work, i);
            let truth = &work.truth[at * stride..][..work.sizes.dim_v];
            for (&x, &y) in work.sums[i * stride..].iter().zip(truth) {
                let d = f64::from(x * unit - y);
                wrong += d * d;
                all += f64::from(y) * f64::from(y);
            }
        }
        libm::sqrt(wrong / all.max(f64::MIN_POSITIVE))
    }
}
