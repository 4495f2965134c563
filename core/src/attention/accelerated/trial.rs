//! A few rows of a block, attended by cells and exactly and then forgotten: what cells would cost all rows, and by how
//! much they would be wrong.

use super::super::exact::{self, Head, Queries};
use super::super::few::{self, FEW};
use super::super::mask::{Mask, Masking};
use super::block::{RowBlock, SAMPLED, Work, exp2};
use super::cost::Cost;
use super::ladder::Rehearsed;
use super::walk::Done;
use crate::cells::ROOT;
use crate::mem::Rows;

/// Rows that are attended exactly one by one cost so many times those of blocks.
const ALONE: f64 = 3.0;

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
            // Tiles would be mostly empty.
            let attend = if n <= FEW { few::attend_ranges } else { exact::attend_ranges };
            attend(self.isa, &head, Queries::Run(begin), n, &work.ranges, &mut work.dense);
            for r in 0..n {
                self.set_truth(work, self.head, begin + r, r);
            }
            begin += n;
        }
    }

    /// Output of the row at `at` in the sample, and what it weighs: row `r` of the dense work memory, with what is dense anyway.
    pub(super) fn set_truth(&self, work: &mut Work, head: &Head<'_>, at: usize, r: usize) {
        let stride = work.sizes.stride;
        let Work { sample, dense, reference, dense_sum, truth, kept, expected, surplus, .. } = work;
        let (max, sum, values) = dense.partial(head, r);
        let i = sample[at] as usize;
        let top = reference[i].max(max);
        let (anyway, cells) = (exp2(reference[i] - top), exp2(max - top));
        let all = dense_sum[i] * anyway + sum * cells;
        surplus[at] = libm::log2f(all) - libm::log2f(expected[at]) + (top - reference[i]);
        let unit = 1.0 / all;
        let truth = &mut truth[at * stride..][..values.len()];
        for ((to, &x), &y) in truth.iter_mut().zip(values).zip(&kept[at * stride..]) {
            *to = (x * cells + y * anyway) * unit;
        }
    }

    /// What attending by cells makes of the rows of the trial, its cost that of all rows; `lean` says whether their sums are to be
    /// moved by [`RowBlock::lean`], `taken` whether offsets are to be taken from outputs, as those of the rule tightened so many `times`.
    pub(super) fn rehearse(&self, work: &mut Work, times: usize, lean: bool, taken: bool) -> Rehearsed {
        work.take_gathered();
        let done = self.descend(work, true, false, &mut None);
        self.rehearsed(work, times, lean, taken, &done)
    }

    /// The same for a descent that did so much.
    pub(super) fn rehearsed(&self, work: &mut Work, times: usize, lean: bool, taken: bool, done: &Done) -> Rehearsed {
        if lean {
            self.lean(work, true);
        }
        let rows = work.sample.len();
        let (wrong, all) = self.find_offsets(work, times, taken);
        self.forget_sample(work);
        let cost = Cost::new(work.sizes.dim_k, work.sizes.dim_v);
        let (nodes, cells) = (done.nodes as f64, done.cells as f64);
        let lifts = cost.lifts(work.take_gathered() as f64, if work.is_lifted() { cells } else { 0.0 });
        let lists = (cost.lists(nodes, cells, done.sifted as f64) + lifts) / rows as f64;
        let exact = self.covered(work) as f64 * ALONE * done.lost as f64 / rows as f64;
        let cost = (lists + cost.row(self.cells.segments().div_ceil(ROOT) as f64)) * self.queries() as f64 + exact;
        Rehearsed { cost, wrong, all }
    }
}

#[cfg(all(test, feature = "full", feature = "alloc"))]
pub(super) mod tests {
    use super::super::Rule;
    use super::super::call::fill;
    use super::*;
    use crate::cells::{Cells, SEGMENT};
    use crate::math::hash;
    use crate::mem::{Dtype, Memory, Tensor};
    use crate::simd::Isa;
    use std::vec::Vec;

    pub(crate) const DIM: usize = 32;
    pub(crate) const KEYS: usize = 8 * SEGMENT;
    pub(crate) const ROWS: usize = 64;

    pub(crate) fn noise(n: usize, seed: u64) -> Vec<f32> {
        (0..n).map(|i| (hash(seed, i as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// A block of [`ROWS`] rows of as many heads as there are queries for, after what a trial attends exactly.
    pub(crate) fn with_trial(
        isa: Isa,
        [q, k, v]: [&[f32]; 3],
        scale: f32,
        rule: &Rule,
        then: impl FnOnce(&RowBlock<'_>, &mut Work),
    ) {
        let (memory, group) = (Memory::system(0).unwrap(), q.len() / (ROWS * DIM));
        let (keys_of, values_of) = (Rows::new(k, DIM).unwrap(), Rows::new(v, DIM).unwrap());
        let queries = Tensor::new(q, [1, group, ROWS, DIM]).unwrap();
        let masking = Masking::new(Mask::None, 0, 0, [1, group, ROWS, KEYS], true).unwrap();
        let head = Head {
            q: queries.head(0, 0),
            k: keys_of,
            v: values_of,
            masking: &masking,
            batch: 0,
            head: 0,
            scale,
            softcap: 0.0,
            shared_qk: false,
        };
        let mut cells = Cells::new_in(&memory, Dtype::F32, DIM, DIM, KEYS).unwrap();
        fill(isa, &mut cells, &keys_of, &values_of, None);
        let mut work = Work::new_in(&memory, DIM, DIM, group, ROWS, KEYS).unwrap();
        let b = RowBlock { isa, rule, q: &queries, head: &head, group, cells: &cells, begin: 0, n: ROWS };
        assert_eq!(b.find_usable(&mut work), KEYS / SEGMENT);
        b.prepare(&mut work);
        b.attend_sample(&mut work);
        then(&b, &mut work);
    }

    /// A trial must not know what the trial before has found: of a head with keys far heavier than means let expect, which raise
    /// what rows are expected to weigh.
    #[test]
    fn trials_begin_afresh() {
        let (q, mut k, v) = (noise(ROWS * DIM, 71), noise(KEYS * DIM, 72), noise(KEYS * DIM, 73));
        for (i, row) in q.chunks(DIM).enumerate() {
            // A needle for each row, and some that weigh less.
            for (at, by) in [(i * 29, 6.0), (i * 29 + 700, 4.5), (i * 29 + 1300, 4.0)] {
                k[at % KEYS * DIM..][..DIM].iter_mut().zip(row).for_each(|(k, q)| *k = q * by);
            }
        }
        let rule = Rule::new(0.05, false);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            with_trial(isa, [&q, &k, &v], 1.0, &rule, |b, work| {
                let expected: Vec<f32> = work.sample.iter().map(|&i| work.total[i as usize]).collect();
                let mut found = Vec::new();
                for times in [0, 4, 8, 0, 4] {
                    b.set_limits(work, &rule.tightened(times), KEYS / SEGMENT, false);
                    found.push(b.rehearse(work, times, true, true));
                    let heavy = work.sample.iter().map(|&i| work.bar[i as usize]).zip(&expected);
                    assert!(heavy.clone().any(|(bar, &first)| bar > 2.0 * first), "{}: nothing was raised", isa.name());
                    b.clear(work);
                }
                assert_eq!((found[0], found[1]), (found[3], found[4]), "{}", isa.name());
                assert!(found[2].cost > found[0].cost, "{}: tighter rules cost more", isa.name());
            });
        }
    }
}
