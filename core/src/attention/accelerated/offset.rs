//! What the outputs of a head are off by in common.
//!
//! The queries of a head resemble each other, and so does what they prefer within cells: means that stand for keys leave much the same
//! out of all of a run's outputs. Rows of a trial, which are attended exactly too, tell what that is: a vector `b` for every head, such
//! that a row whose weights are estimated to a share `s` errs by about `s b`, by least squares. What it takes from the error is
//! judged on rows that it was not made from, one left out at a time, and it is shortened, down to nothing, as that asks for. Of rows
//! whose weights are hardly estimated, `b` would be their rounding errors, divided by next to nothing: a small share more counts
//! for every row, as if it had no error, so that rows to come of which more is estimated are not moved by that.

use super::block::{RowBlock, Work};
use super::ladder::LADDER;
use super::rule::Ease;
use crate::cells::BLOCK;
use crate::mem::{Buf, Maker, Plan};
use core::ops::Range;

/// Offsets by rule and head, and which rule's are taken from outputs.
pub(super) struct Offsets {
    /// `[LADDER][each]`, and twice more for [a few rows](FEW); of these only the first. See [`each`].
    of: Buf<f32>,
    each: usize,
    group: usize,
    rule: Option<usize>,
    /// How far the thresholds of a few rows are eased for it.
    eased: Ease,
}

/// The share that counts for every row beside its own, squared.
const FLOOR: f32 = 1.0 / (64.0 * 64.0);

/// Where those are found that a few rows of the rows to come may take, by one rule or another: after all of the ladder.
pub(super) const FEW: [usize; 2] = [LADDER, LADDER + 1];

/// Rules that there is room for.
fn rules(few: bool) -> usize {
    if few { 1 } else { LADDER + FEW.len() }
}

/// Numbers of the offset of a head.
pub(super) fn row(dim_v: usize) -> usize {
    dim_v.next_multiple_of(BLOCK)
}

/// Numbers of one rule: a row for each head of a group, and then what their rows [weigh more](super::surplus), `[group]`.
pub(super) fn each(group: usize, dim_v: usize) -> usize {
    group * (row(dim_v) + 1)
}

impl Offsets {
    /// For a few rows, which try nothing, or many.
    pub(super) fn plan(plan: &mut Plan, few: bool, group: usize, dim_v: usize) {
        Buf::<f32>::plan(plan, rules(few) * each(group, dim_v));
    }

    pub(super) fn made(m: &mut Maker<'_>, few: bool, group: usize, dim_v: usize) -> Self {
        let each = each(group, dim_v);
        Offsets { of: m.filled(rules(few) * each, 0.0), each, group, rule: None, eased: Ease::default() }
    }

    /// None that were found before.
    pub(super) fn clear(&mut self) {
        self.of.fill(0.0);
        self.take(None);
    }

    /// Those of all rules.
    pub(super) fn of_rules(&self) -> &[f32] {
        &self.of[..LADDER * self.each]
    }

    /// Those of a rule, or of [a few rows](FEW).
    pub(super) fn of(&self, times: usize) -> &[f32] {
        &self.of[times * self.each..][..self.each]
    }

    /// Half way between those of the rules beside it, for a rule that was not tried.
    pub(super) fn fill_between(&mut self, times: usize) {
        let (before, from) = self.of.split_at_mut(times * self.each);
        let (here, after) = from.split_at_mut(self.each);
        for ((to, a), b) in here.iter_mut().zip(&before[before.len() - self.each..]).zip(&*after) {
            *to = 0.5 * (a + b);
        }
    }

    /// From now on those of a rule are taken from outputs, or nothing.
    pub(super) fn take(&mut self, times: Option<usize>) {
        self.rule = times;
        self.eased = Ease::default();
    }

    /// The same for offsets of a rule that were kept elsewhere.
    pub(super) fn take_kept(&mut self, kept: &[f32]) {
        self.of[..self.each].copy_from_slice(kept);
        self.take(Some(0));
    }

    /// The same for what lies between two of them, at a share of the way.
    pub(super) fn take_between(&mut self, loose: &[f32], tight: &[f32], share: f32) {
        for ((to, loose), tight) in self.of.iter_mut().zip(loose).zip(tight) {
            *to = loose + share * (tight - loose);
        }
        self.take(Some(0));
    }

    /// How far thresholds of a few rows are eased, now that these are taken from their outputs.
    pub(super) fn ease(&mut self, by: Ease) {
        self.eased = by;
    }

    /// Whether any are taken from outputs.
    pub(super) fn taken(&self) -> bool {
        self.rule.is_some()
    }

    pub(super) fn eased(&self) -> Ease {
        self.eased
    }

    /// The rule whose offsets are taken.
    pub(super) fn rule(&self) -> Option<usize> {
        self.rule
    }

    /// As a power of two, what rows of head `h` weigh more than expected, of a rule or of [a few rows](FEW).
    pub(super) fn surplus(&self, times: usize, h: usize) -> f32 {
        self.of[(times + 1) * self.each - self.group + h]
    }

    pub(super) fn set_surplus(&mut self, times: usize, h: usize, surplus: f32) {
        self.of[(times + 1) * self.each - self.group + h] = surplus;
    }

    /// Leaves such a share of what rows weigh more than expected, of the rule that is taken.
    pub(super) fn fade(&mut self, share: f32) {
        if let Some(times) = self.rule {
            let end = (times + 1) * self.each;
            self.of[end - self.group..end].iter_mut().for_each(|x| *x *= share);
        }
    }

    /// Moves an output row of head `h` of the group, whose weights are estimated to such a share.
    pub(super) fn apply(&self, h: usize, stride: usize, share: f32, row: &mut [f32]) {
        if let Some(times) = self.rule {
            let by = &self.of[times * self.each + h * stride..][..row.len()];
            row.iter_mut().zip(by).for_each(|(x, by)| *x -= share * by);
        }
    }
}

impl RowBlock<'_> {
    /// After the sample was attended by cells: offsets of the rule that was tightened `times` times, which are zeros unless they are to
    /// be `taken`, and sums of the square errors that are left, and of the outputs' squares. Errors take the place of the sample's
    /// sums. O(rows of the sample x dim).
    pub(super) fn find_offsets(&self, work: &mut Work, times: usize, taken: bool) -> (f64, f64) {
        let (mut wrong, mut all) = (0.0, 0.0);
        let mut begin = 0;
        for h in 0..self.group {
            let of = work.sample[begin..].iter().take_while(|&&i| i as usize / self.n == h);
            let end = begin + of.count();
            let (left, outputs) = self.find_offset(work, times * work.offsets.each, h, begin..end, taken);
            wrong += left;
            all += outputs;
            begin = end;
        }
        (wrong, all)
    }

    /// The same for head `h` of the group, whose rows are these of the sample; offsets of the rule begin `at` some place.
    fn find_offset(&self, work: &mut Work, at: usize, h: usize, rows: Range<usize>, taken: bool) -> (f64, f64) {
        let (stride, dim) = (work.sizes.stride, work.sizes.dim_v);
        let (mut shares, mut raw, mut all) = (0.0, 0.0, 0.0);
        let at = at + h * stride;
        work.offsets.of[at..][..stride].fill(0.0);
        for place in rows.clone() {
            let i = work.sample[place] as usize;
            work.scores[0][place] = 0.0;
            // Attended exactly in the end.
            if work.lost[i] {
                continue;
            }
            let unit = 1.0 / self.weight(work, i);
            let share = work.estimated_weight(i) * unit;
            let Work { sums, truth, offsets, scores, .. } = &mut *work;
            let error = &mut sums[i * stride..][..dim];
            for (x, &y) in error.iter_mut().zip(&truth[place * stride..]) {
                *x = *x * unit - y;
                raw += f64::from(*x) * f64::from(*x);
                all += f64::from(y) * f64::from(y);
            }
            if taken {
                self.isa.axpy(share, error, &mut offsets.of[at..][..dim]);
                scores[0][place] = share;
                shares += share * share + FLOOR;
            }
        }
        if shares == 0.0 {
            return (raw, all);
        }
        // Of each row, its error times what the others would take from it, and the square of that.
        let (mut across, mut square) = (0.0, 0.0);
        let length = self.isa.norm2(&work.offsets.of[at..][..dim]);
        for place in rows {
            let (i, share) = (work.sample[place] as usize, work.scores[0][place]);
            let left = shares - share * share - FLOOR;
            if share == 0.0 || left < FLOOR {
                continue;
            }
            let (error, sum) = (&work.sums[i * stride..][..dim], &work.offsets.of[at..][..dim]);
            let (along, own) = (self.isa.dot(error, sum), self.isa.norm2(error));
            let by = share / left;
            across += by * (along - share * own);
            square += by * by * (length - share * (2.0 * along - share * own)).max(0.0);
        }
        let part = (across / square).clamp(0.0, 1.0);
        // Nor where squares leave the range of f32, which is no number here.
        let part = if part > 0.0 { part } else { 0.0 };
        self.isa.scale(part / shares, &mut work.offsets.of[at..][..dim]);
        let taken = part * (2.0 * across - part * square);
        (if taken > 0.0 { raw - f64::from(taken) } else { raw }, all)
    }
}

impl Work {
    /// What of a query's weights is estimated.
    pub(super) fn estimated_weight(&self, i: usize) -> f32 {
        self.estimated[i * BLOCK..][..BLOCK].iter().sum::<f32>() - self.light[i]
    }
}

#[cfg(all(test, feature = "full", feature = "alloc"))]
mod tests {
    use super::super::Rule;
    use super::super::trial::tests::{DIM, KEYS, ROWS, noise, with_trial};
    use super::*;
    use crate::cells::SEGMENT;
    use crate::mem::Memory;
    use crate::simd::Isa;
    use std::vec::Vec;

    const GROUP: usize = 2;

    /// Two heads whose queries resemble each other within a head, and their keys.
    fn queries_and_keys() -> (Vec<f32>, Vec<f32>) {
        let (mut q, k, common) = (noise(GROUP * ROWS * DIM, 1), noise(KEYS * DIM, 2), noise(GROUP * DIM, 3));
        for (i, x) in q.iter_mut().enumerate() {
            *x = 0.2 * *x + common[i / (ROWS * DIM) * DIM + i % DIM];
        }
        (q, k)
    }

    /// A trial of them with limits under which nothing is opened.
    fn with_block(isa: Isa, values: &[f32], then: impl FnOnce(&RowBlock<'_>, &mut Work)) {
        let (q, k) = queries_and_keys();
        let rule = Rule::new(5.0, false);
        with_trial(isa, [&q, &k, values], 0.5, &rule, |b, work| {
            b.set_limits(work, &rule, KEYS / SEGMENT, false);
            then(b, work);
        });
    }

    fn isas() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.available())
    }

    /// Values that are no linear function of the keys.
    fn bent(k: &[f32]) -> Vec<f32> {
        let of = |key: &[f32], i: usize| key[i] * key[(i + 1) % DIM] + key[(i + 2) % DIM].abs();
        k.chunks(DIM).flat_map(|key| (0..DIM).map(move |i| of(key, i))).collect()
    }

    #[test]
    fn what_rows_err_by_in_common_is_taken() {
        let values = bent(&queries_and_keys().1);
        for isa in isas() {
            with_block(isa, &values, |b, work| {
                let without = b.rehearse(work, 0, true, false);
                assert!(work.offsets.of_rules()[..work.offsets.each].iter().all(|&x| x == 0.0));
                b.clear(work);
                let with = b.rehearse(work, 1, true, true);
                assert_eq!((with.cost, with.all), (without.cost, without.all), "{}", isa.name());
                assert!(with.wrong < 0.6 * without.wrong, "{}: {} of {}", isa.name(), with.wrong, without.wrong);
            });
        }
    }

    /// Values that have nothing to do with keys: what is in common is too little to be told from the rest.
    #[test]
    fn nothing_in_common_costs_nothing() {
        for isa in isas() {
            with_block(isa, &noise(KEYS * DIM, 4), |b, work| {
                let without = b.rehearse(work, 0, true, false);
                b.clear(work);
                let with = b.rehearse(work, 1, true, true);
                assert!(with.wrong <= without.wrong, "{}: {} of {}", isa.name(), with.wrong, without.wrong);
            });
        }
    }

    /// Rows of which next to nothing is estimated err by rounding alone, which says nothing of rows of which much is.
    #[test]
    fn what_is_hardly_estimated_says_little() {
        let (q, mut k) = queries_and_keys();
        // A needle for every row: all of them are opened, and take the weights.
        for (i, row) in q.chunks(DIM).enumerate() {
            k[i * 15 % KEYS * DIM..][..DIM].iter_mut().zip(row).for_each(|(k, q)| *k = 6.0 * q);
        }
        let values = noise(KEYS * DIM, 4);
        let rule = Rule::new(0.3, false);
        for isa in isas() {
            with_trial(isa, [&q, &k, &values], 1.0, &rule, |b, work| {
                b.set_limits(work, &rule, KEYS / SEGMENT, false);
                b.rehearse(work, 0, true, true);
                let most = work.scores[0][..work.sample.len()].iter().fold(0.0, |m: f32, x| m.max(*x));
                assert!(most > 0.0 && most < 1e-6, "{}: {most} is estimated", isa.name());
                let found = work.offsets.of_rules()[..work.offsets.each].iter().fold(0.0, |m: f32, x| m.max(x.abs()));
                assert!(found < 1e-3, "{}: {found}", isa.name());
            });
        }
    }

    /// Beside the definition in f64, one row left out at a time.
    #[test]
    fn offsets_are_those_of_least_squares() {
        let values = bent(&queries_and_keys().1);
        for isa in isas() {
            with_block(isa, &values, |b, work| {
                b.descend(work, true, false, &mut None);
                b.lean(work, true);
                let stride = work.sizes.stride;
                let mut rows: Vec<(usize, f64, Vec<f64>)> = Vec::new();
                for (place, &i) in work.sample.iter().enumerate() {
                    let i = i as usize;
                    let weight = f64::from(b.weight(work, i));
                    let share = f64::from(work.estimated_weight(i)) / weight;
                    let truth = &work.truth[place * stride..][..DIM];
                    let error = work.sums[i * stride..][..DIM].iter().zip(truth);
                    rows.push((i / ROWS, share, error.map(|(&x, &y)| f64::from(x) / weight - f64::from(y)).collect()));
                }
                let fit = |head: usize, without: Option<usize>| -> Vec<f64> {
                    let (mut sum, mut square) = (std::vec![0.0; DIM], 0.0);
                    let of = rows.iter().enumerate().filter(|(at, row)| row.0 == head && Some(*at) != without);
                    for (_, (_, share, error)) in of {
                        sum.iter_mut().zip(error).for_each(|(sum, x)| *sum += share * x);
                        square += share * share + f64::from(FLOOR);
                    }
                    sum.iter().map(|x| x / square).collect()
                };
                let (wrong, _) = b.find_offsets(work, 3, true);
                let mut left = 0.0;
                for head in 0..GROUP {
                    let (mut across, mut square, mut raw) = (0.0, 0.0, 0.0);
                    for (at, (_, share, error)) in rows.iter().enumerate().filter(|(_, row)| row.0 == head) {
                        for (x, b) in error.iter().zip(fit(head, Some(at))) {
                            across += x * share * b;
                            square += (share * b) * (share * b);
                            raw += x * x;
                        }
                    }
                    let part = (across / square).clamp(0.0, 1.0);
                    assert!(part > 0.1, "nothing to be taken");
                    left += raw - 2.0 * part * across + part * part * square;
                    let have = &work.offsets.of_rules()[3 * work.offsets.each + head * stride..][..DIM];
                    let want = fit(head, None);
                    let size = want.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
                    for (have, want) in have.iter().zip(want) {
                        assert!((f64::from(*have) - part * want).abs() < 1e-3 * size, "{}", isa.name());
                    }
                }
                assert!((wrong - left).abs() < 1e-3 * left, "{}: {wrong} beside {left}", isa.name());
            });
        }
    }

    #[test]
    fn offsets_move_rows_by_their_share() {
        let memory = Memory::system(0).unwrap();
        let mut m = Maker::new(&memory);
        let mut offsets = Offsets::made(&mut m, false, GROUP, DIM);
        m.finish().unwrap();
        let stride = row(DIM);
        let rules = [(2, 1.0), (4, 3.0)];
        for (times, x) in rules {
            offsets.of[times * offsets.each + stride..][..DIM].fill(x);
        }
        let row = [10.0f32; DIM];
        let moved = |offsets: &Offsets, h: usize, share: f32| {
            let mut row = row;
            offsets.apply(h, stride, share, &mut row);
            row
        };
        assert_eq!(moved(&offsets, 1, 0.5), row, "nothing is taken unless asked for");
        offsets.fill_between(3);
        for (times, by) in [(2, 0.5), (3, 1.0), (4, 1.5)] {
            offsets.take(Some(times));
            assert_eq!(moved(&offsets, 1, 0.5), [10.0 - by; DIM]);
            assert_eq!((moved(&offsets, 0, 0.5), moved(&offsets, 1, 0.0)), (row, row));
        }
        assert_eq!([0, 1].map(|h| offsets.surplus(0, h)), [0.0; 2]);
        let mut kept = std::vec![2.0; offsets.each];
        kept[GROUP * stride..].copy_from_slice(&[0.5, 1.5]);
        offsets.take_kept(&kept);
        assert_eq!(moved(&offsets, 0, 0.5), [9.0; DIM]);
        assert_eq!([0, 1].map(|h| offsets.surplus(0, h)), [0.5, 1.5]);
        offsets.take(None);
        assert_eq!(moved(&offsets, 0, 0.5), row);
    }
}
