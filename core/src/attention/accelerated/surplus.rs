//! What the rows of a head weigh beyond what means let expect.
//!
//! Thresholds are shares of a row's sum, which is estimated from means and spreads of nodes before the row goes down. Where a few keys
//! of many nodes stand out together, far beyond their spread, that is a fraction of what the row weighs in the end: it lists nodes, and
//! looks for keys, that matter to a sum several times smaller, and learns better too late. Rows of a trial, whose sums are known,
//! tell how many times: what nearly all rows of a head reach, by the mean and the deviation of its logarithm. Heads whose rows do not
//! agree, such as those that look for single keys, get little or nothing.

use super::block::{RowBlock, Work, exp2};
use core::ops::Range;

/// Standard deviations below the mean of a trial's rows, few as they are.
const BELOW: f32 = 2.5;

/// As a power of two, the most that is expected.
pub(super) const MOST: f32 = 3.0;

/// Rows that a head's surplus is told from at least.
const ROWS: usize = 3;

/// From powers of two by which rows exceeded what was expected; what is no number says nothing.
fn surplus(rows: &[f32]) -> f32 {
    let numbers = || rows.iter().filter(|x| x.is_finite());
    let n = numbers().count();
    if n < ROWS {
        return 0.0;
    }
    let mean = numbers().sum::<f32>() / n as f32;
    let square = numbers().map(|x| (x - mean) * (x - mean)).sum::<f32>() / (n - 1) as f32;
    let least = numbers().fold(f32::INFINITY, |m, x| m.min(*x));
    let nearly_all = (mean - BELOW * libm::sqrtf(square)).min(least);
    if nearly_all > 0.0 { nearly_all.min(MOST) } else { 0.0 }
}

impl RowBlock<'_> {
    /// After [`RowBlock::attend_sample`]: the surplus of every head of the group, with the offsets of the rule that was tightened
    /// `times` times. O(rows of the sample).
    pub(super) fn find_surplus(&self, work: &mut Work, times: usize) {
        for h in 0..self.group {
            let Range { start, end } = self.sample_of(work, h);
            let found = surplus(&work.surplus[start..end]);
            work.offsets.set_surplus(times, h, found);
        }
    }

    /// Rows of the sample that are those of head `h`.
    fn sample_of(&self, work: &Work, h: usize) -> Range<usize> {
        let before = |h: usize| work.sample.partition_point(|&i| (i as usize) < h * self.n);
        before(h)..before(h + 1)
    }

    /// Raises what the rows of the sample are expected to weigh, before limits are set and until it is forgotten.
    pub(super) fn expect_of_sample(&self, work: &mut Work, times: usize) {
        for at in 0..work.sample.len() {
            let i = work.sample[at] as usize;
            work.total[i] = work.expected[at] * exp2(work.offsets.surplus(times, i / self.n));
        }
    }

    /// The same for all rows after [`RowBlock::prepare`], where offsets are taken that come with it.
    pub(super) fn expect(&self, work: &mut Work) {
        if let Some(times) = work.offsets.rule() {
            for i in 0..self.queries() {
                work.total[i] *= exp2(work.offsets.surplus(times, i / self.n));
            }
        }
    }
}

#[cfg(all(test, feature = "full", feature = "alloc"))]
mod tests {
    use super::super::Rule;
    use super::super::trial::tests::{DIM, KEYS, ROWS as OF_HEAD, noise, with_trial};
    use super::*;
    use crate::cells::SEGMENT;
    use crate::simd::Isa;
    use std::vec::Vec;

    #[test]
    fn rows_that_agree_tell_what_nearly_all_reach() {
        for (rows, want) in [
            (&[2.0, 2.0, 2.0, 2.0][..], 2.0),
            (&[2.0, 2.2, 1.8, 2.1, 1.9], 2.0 - 2.5 * 0.158_114),
            // Below the least, and above the most.
            (&[0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6], 0.49),
            (&[5.0, 5.0, 5.5], MOST),
            // One finds what the others do not.
            (&[0.0, 0.1, 0.0, 9.0], 0.0),
            (&[-1.0, -1.0, -1.0], 0.0),
            // Too few, and no numbers.
            (&[2.0, 2.0], 0.0),
            (&[2.0, f32::NAN, 2.0, f32::INFINITY], 0.0),
            (&[2.0, f32::NAN, 2.0, 2.0, f32::NEG_INFINITY], 2.0),
            (&[], 0.0),
        ] {
            let have = surplus(rows);
            assert!((have - want).abs() < 0.03, "{rows:?}: {have}, not {want}");
        }
    }

    /// Two heads: rows of the first find a key that stands out in every other node, those of the second none.
    #[test]
    fn what_rows_find_everywhere_is_expected() {
        let (common, mut q) = (noise(DIM, 5), noise(2 * OF_HEAD * DIM, 6));
        let mut k = noise(KEYS * DIM, 7);
        for (i, x) in q[..OF_HEAD * DIM].iter_mut().enumerate() {
            *x = 0.1 * *x + common[i % DIM];
        }
        for key in (0..KEYS).step_by(2 * SEGMENT) {
            k[key * DIM..][..DIM].iter_mut().zip(&common).for_each(|(k, x)| *k = 4.0 * x);
        }
        let values = noise(KEYS * DIM, 8);
        let rule = Rule::new(0.05, false);
        let scale = 0.25;
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            with_trial(isa, [&q, &k, &values], scale, &rule, |b, work| {
                b.find_surplus(work, 0);
                let mut rows: [Vec<f32>; 2] = Default::default();
                for (at, &i) in work.sample.iter().enumerate() {
                    let q = &q[i as usize * DIM..][..DIM];
                    let logit = |k: &[f32]| q.iter().zip(k).map(|(q, k)| f64::from(q * k)).sum::<f64>();
                    let unit = f64::from(scale) * core::f64::consts::LOG2_E;
                    let relative = |k: &[f32]| (logit(k) * unit - f64::from(work.reference[i as usize])).exp2();
                    let sum = k.chunks(DIM).map(relative).sum::<f64>();
                    rows[i as usize / OF_HEAD].push((sum / f64::from(work.expected[at])).log2() as f32);
                }
                for (h, rows) in rows.iter().enumerate() {
                    let (have, want) = (work.offsets.surplus(0, h), surplus(rows));
                    assert!((have - want).abs() < 1e-3, "{}: {have}, not {want} of {rows:?}", isa.name());
                    assert_eq!(have > 1.0, h == 0, "{}: {have} of {rows:?}", isa.name());
                }
                // Less is looked at by whoever knows.
                let mut cost = |known: bool| {
                    if known {
                        b.expect_of_sample(work, 0);
                    }
                    b.set_limits(work, &rule, KEYS / SEGMENT, true);
                    let of = b.rehearse(work, 1, true, true).cost;
                    b.clear(work);
                    of
                };
                let [before, known, after] = [cost(false), cost(true), cost(false)];
                assert!(known < before && after == before, "{}: {known} of {before}, {after}", isa.name());
            });
        }
    }
}
