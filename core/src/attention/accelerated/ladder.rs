//! Which of the tightened rules heads take, from what trials of them found: alone, or as the layer that they are.
//!
//! A layer's error is that of its heads' outputs side by side. Heads whose outputs are short may err by more than the tolerance
//! without the layer doing so, and to bring them down to it takes most of the time: rules are tightened where that takes
//! most from the layer's error for its cost, until the layer keeps the tolerance.

use crate::error::Result;
use crate::mem::{Buf, Memory, Plan};

/// Rules that are tried, each tighter than the one before.
pub(super) const LADDER: usize = 13;

/// Times what it may be that a predicted error is where the next rule but one is tried: one takes a tenth of it away.
const STEEP: f64 = 1.2;

/// How much more all rows may err than a sample of one, as a share; of n rows, over their root.
const SAMPLE_OFF: f64 = 0.6;

/// Times the tolerance that heads may err whose layer keeps it.
const ALONE: f64 = 3.0;

/// What a rule makes of the rows of a trial: its cost in pairs of exact attention, and squares of the lengths of what is wrong with
/// the outputs, and of these.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rehearsed {
    pub(super) cost: f64,
    pub(super) wrong: f64,
    pub(super) all: f64,
}

impl Rehearsed {
    /// What a rule half way to a tighter one would make of them, both being a factor from it: it was not tried.
    fn between(&self, tighter: &Rehearsed) -> Rehearsed {
        let mean = |a: f64, b: f64| libm::sqrt(a * b);
        let wrong = mean(self.wrong, tighter.wrong);
        Rehearsed { cost: mean(self.cost, tighter.cost), wrong, all: tighter.all }
    }
}

/// A rule, by how often it is tightened, and what it makes of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Step {
    times: usize,
    of: Rehearsed,
}

/// A trial of heads that share keys and values.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trial {
    steps: [Step; LADDER],
    len: usize,
    /// Rows tried, and what they stand for exactly, in pairs.
    pub(super) rows: usize,
    pub(super) pairs: f64,
    /// Whether the last step keeps the tolerance: exact attention comes after one that does not.
    pub(super) keeps: bool,
    /// The step chosen; `len` is exact attention.
    chosen: usize,
}

/// Relative error of all rows, as far as so many of them tell.
pub(super) fn error(wrong: f64, all: f64, rows: usize) -> f64 {
    let off = 1.0 + SAMPLE_OFF / libm::sqrt(rows.max(1) as f64);
    libm::sqrt(wrong / all.max(f64::MIN_POSITIVE)) * off
}

impl Trial {
    /// Of so many rows.
    pub(super) fn new(rows: usize, pairs: f64) -> Trial {
        Trial { rows, pairs, ..Trial::default() }
    }

    /// Where nothing is in cells, so that no rule errs.
    pub(super) fn idle() -> Trial {
        Trial { len: 1, keeps: true, ..Trial::default() }
    }

    /// Adds what the rule tightened `times` times made of it; says which one is to be tried next, if any.
    pub(super) fn add(&mut self, times: usize, of: Rehearsed, tolerance: f64) -> Option<usize> {
        if let Some(last) = self.steps[..self.len].last().filter(|last| last.times + 1 < times) {
            self.push(times - 1, last.of.between(&of));
        }
        self.push(times, of);
        let off = error(of.wrong, of.all, self.rows) / tolerance;
        self.keeps = off <= 1.0;
        let next = times + if off > STEEP { 2 } else { 1 };
        (!self.keeps && next < LADDER).then_some(next)
    }

    /// What the rules made of it, one after the other, from the one that is not tightened on.
    pub(super) fn rules(&self) -> impl ExactSizeIterator<Item = Rehearsed> {
        self.steps[..self.len].iter().map(|step| step.of)
    }

    /// The rule tightened `times` times made `of` of it; those before are there.
    pub(super) fn push(&mut self, times: usize, of: Rehearsed) {
        self.steps[self.len] = Step { times, of };
        self.len += 1;
    }

    /// Chooses for these heads alone: the loosest rule that keeps the tolerance.
    pub(super) fn alone(mut self, tolerance: f64) -> Option<usize> {
        self.chosen = self.first_within(tolerance);
        self.way()
    }

    /// Whether a rule was tried that heads may take whose layer keeps the tolerance.
    pub(super) fn bears(&self, times: usize, tolerance: f64) -> bool {
        (self.first_within(ALONE * tolerance)..self.len).contains(&times)
    }

    /// The first step that errs no more; exact attention where none does.
    fn first_within(&self, most: f64) -> usize {
        let fits = |step: &Step| error(step.of.wrong, step.of.all, self.rows) <= most;
        self.steps[..self.len].iter().position(fits).unwrap_or(self.len)
    }

    /// Times to tighten the rule; none stands for exact attention.
    pub(super) fn way(&self) -> Option<usize> {
        self.steps[..self.len].get(self.chosen).map(|step| step.times)
    }

    /// What step `at` makes of it. O(1).
    fn at(&self, at: usize) -> Rehearsed {
        match self.steps[..self.len].get(at) {
            Some(step) => step.of,
            // Of rows that are exact whatever is chosen nothing is known.
            None => Rehearsed { cost: self.pairs, wrong: 0.0, all: self.at_last().all },
        }
    }

    fn at_last(&self) -> Rehearsed {
        self.steps[..self.len].last().map_or(Rehearsed::default(), |step| step.of)
    }

    /// Steps that can be chosen, exact attention included.
    fn choices(&self) -> usize {
        if self.keeps { self.len } else { self.len + 1 }
    }

    /// The step beyond the chosen one that takes most from the error for its cost, with how much that is.
    fn next(&self) -> Option<(usize, f64)> {
        let now = self.at(self.chosen);
        let mut best: Option<(usize, f64)> = None;
        for to in self.chosen + 1..self.choices() {
            let then = self.at(to);
            // Costs of two rules may be the same, or the tighter one's less, by what few rows of a trial happen to open.
            let worth = (now.wrong - then.wrong) / (then.cost - now.cost).max(1e-6 * self.pairs);
            if best.is_none_or(|(_, most)| worth > most) {
                best = Some((to, worth));
            }
        }
        best
    }
}

/// Trials of the groups of heads of one layer.
pub(super) trait Layer {
    fn groups(&self) -> usize;
    fn trial(&self, group: usize) -> &Trial;
    fn trial_mut(&mut self, group: usize) -> &mut Trial;
}

/// What is wrong with a layer as it is chosen, all of it, and rows that say so.
fn whole(layer: &dyn Layer) -> (f64, f64, usize) {
    let mut of = (0.0, 0.0, 0);
    for trial in (0..layer.groups()).map(|group| layer.trial(group)) {
        let at = trial.at(trial.chosen);
        of = (of.0 + at.wrong, of.1 + at.all, of.2 + trial.rows);
    }
    of
}

/// Chooses for the groups of heads of one layer: tightens their rules until the layer keeps the tolerance, and none of them errs
/// far more; then loosens again what need not be as tight for that. O(groups^2 x rules^2).
pub(super) fn judge(layer: &mut dyn Layer, tolerance: f64) {
    let groups = layer.groups();
    for group in 0..groups {
        let trial = layer.trial_mut(group);
        trial.chosen = trial.first_within(ALONE * tolerance);
    }
    loop {
        let (wrong, all, rows) = whole(layer);
        if error(wrong, all, rows) <= tolerance {
            break;
        }
        let mut best: Option<(usize, usize, f64)> = None;
        for group in 0..groups {
            let next = layer.trial(group).next();
            if let Some((to, worth)) = next.filter(|next| best.is_none_or(|best| next.1 > best.2)) {
                best = Some((group, to, worth));
            }
        }
        let Some((group, to, _)) = best else { return };
        layer.trial_mut(group).chosen = to;
    }
    loop {
        let (wrong, all, rows) = whole(layer);
        let mut best: Option<(usize, usize, f64)> = None;
        for group in 0..groups {
            let trial = layer.trial(group);
            let now = trial.at(trial.chosen);
            for to in trial.first_within(ALONE * tolerance)..trial.chosen {
                let then = trial.at(to);
                let (spared, wrong, all) =
                    (now.cost - then.cost, wrong - now.wrong + then.wrong, all - now.all + then.all);
                if spared > best.map_or(0.0, |best| best.2) && error(wrong, all, rows) <= tolerance {
                    best = Some((group, to, spared));
                }
            }
        }
        let Some((group, to, _)) = best else { return };
        layer.trial_mut(group).chosen = to;
    }
}

/// How trials are handed to parts: of `runs` runs of rows of `heads` groups of heads, in all sequences.
#[derive(Clone, Copy)]
pub(super) struct Deal {
    heads: usize,
    runs: usize,
    parts: usize,
}

impl Deal {
    pub(super) fn new(heads: usize, runs: usize, parts: usize) -> Deal {
        Deal { heads, runs, parts }
    }

    /// Trials of a part, at most.
    fn of_part(self) -> usize {
        (self.heads * self.runs).div_ceil(self.parts)
    }

    /// Run of rows and group of heads of trial `j` of part `ith`: the heads of a run follow each other, so that all parts get some
    /// of each length.
    pub(super) fn named(self, ith: usize, j: usize) -> Option<(usize, usize)> {
        let trial = j * self.parts + ith;
        (trial < self.heads * self.runs).then_some((trial / self.heads, trial % self.heads))
    }

    /// Where the trial of a run and a group is kept: parts' trials one after the other.
    fn place(self, run: usize, head: usize) -> usize {
        let trial = run * self.heads + head;
        trial % self.parts * self.of_part() + trial / self.parts
    }
}

/// Trials of all heads of a call, made in parts.
pub(crate) struct Trials {
    list: Buf<Trial>,
    /// [Offsets](super::offset) of every trial, `each` numbers of every rule.
    offsets: Buf<f32>,
    each: usize,
    deal: Deal,
}

impl Trials {
    /// `each` numbers are the offsets of a rule.
    pub(super) fn plan(plan: &mut Plan, deal: Deal, each: usize) {
        Buf::<Trial>::plan(plan, deal.of_part() * deal.parts);
        Buf::<f32>::plan(plan, deal.of_part() * deal.parts * LADDER * each);
    }

    /// Trials as planned.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub(super) fn new_in(memory: &Memory, deal: Deal, each: usize) -> Result<Trials> {
        let trials = deal.of_part() * deal.parts;
        let list = Buf::filled(memory, trials, Trial::idle())?;
        Ok(Trials { list, offsets: Buf::filled(memory, trials * LADDER * each, 0.0)?, each, deal })
    }

    /// Room for the trials of every part, and for the offsets of their rules.
    pub(super) fn of_parts(&mut self) -> impl Iterator<Item = (&mut [Trial], &mut [f32])> {
        let of_part = self.deal.of_part();
        self.list.chunks_mut(of_part).zip(self.offsets.chunks_mut(of_part * LADDER * self.each))
    }

    /// After all trials: chooses, layer by layer, each of so many groups of heads.
    pub(super) fn judge(&mut self, layer: usize, tolerance: f64) {
        let deal = self.deal;
        for run in 0..deal.runs {
            for first in (0..deal.heads).step_by(layer) {
                judge(&mut Dealt { list: &mut self.list, deal, run, first, groups: layer }, tolerance);
            }
        }
    }

    /// Times to tighten the rule for a run of rows and a group of heads; none stands for exact attention.
    pub(super) fn way(&self, run: usize, head: usize) -> Option<usize> {
        self.list[self.deal.place(run, head)].way()
    }

    /// What is taken from the outputs of that run and group under a rule.
    pub(super) fn offsets(&self, run: usize, head: usize, times: usize) -> &[f32] {
        &self.offsets[(self.deal.place(run, head) * LADDER + times) * self.each..][..self.each]
    }
}

/// Trials of a layer among those of all parts: `groups` groups of heads from the `first` on, of one run of rows.
struct Dealt<'a> {
    list: &'a mut [Trial],
    deal: Deal,
    run: usize,
    first: usize,
    groups: usize,
}

impl Layer for Dealt<'_> {
    fn groups(&self) -> usize {
        self.groups
    }

    fn trial(&self, group: usize) -> &Trial {
        &self.list[self.deal.place(self.run, self.first + group)]
    }

    fn trial_mut(&mut self, group: usize) -> &mut Trial {
        &mut self.list[self.deal.place(self.run, self.first + group)]
    }
}

#[cfg(all(test, feature = "alloc"))]
mod tests {
    use super::*;
    use crate::math::hash;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    const TOLERANCE: f64 = 0.05;
    const ROWS: usize = 11;
    const PAIRS: f64 = 1000.0;

    /// A trial whose rule number `t` errs by `errors(t)`, as predicted, of outputs whose squares add up to `all`.
    fn trial(all: f64, cost: f64, errors: impl Fn(usize) -> f64) -> Trial {
        let mut trial = Trial::new(ROWS, PAIRS);
        let mut next = Some(0);
        while let Some(times) = next {
            let off = 1.0 + SAMPLE_OFF / libm::sqrt(ROWS as f64);
            let wrong = libm::pow(errors(times) / off, 2.0) * all;
            let cost = cost * libm::pow(1.2, times as f64);
            next = trial.add(times, Rehearsed { cost, wrong, all }, TOLERANCE);
        }
        trial
    }

    /// One group after the other.
    impl Layer for &mut [Trial] {
        fn groups(&self) -> usize {
            self.len()
        }

        fn trial(&self, group: usize) -> &Trial {
            &self[group]
        }

        fn trial_mut(&mut self, group: usize) -> &mut Trial {
            &mut self[group]
        }
    }

    fn judged<const N: usize>(mut trials: [Trial; N]) -> Vec<Option<usize>> {
        judge(&mut trials.as_mut_slice(), TOLERANCE);
        trials.iter().map(Trial::way).collect()
    }

    /// What is left of a layer's error, and what it costs.
    fn of(trials: &[Trial], chosen: &[usize]) -> (f64, f64) {
        let sum = |f: fn(Rehearsed) -> f64| trials.iter().zip(chosen).map(|(t, &c)| f(t.at(c))).sum::<f64>();
        (error(sum(|r| r.wrong), sum(|r| r.all), ROWS * trials.len()), sum(|r| r.cost))
    }

    #[test]
    fn alone_the_loosest_rule_that_keeps_the_tolerance_is_taken() {
        assert_eq!(trial(1.0, 10.0, |_| 0.049).alone(TOLERANCE), Some(0));
        assert_eq!(trial(1.0, 10.0, |t| 0.055 - 0.006 * t as f64).alone(TOLERANCE), Some(1));
        // Of two rules, the first of which is passed over, that one is taken if it should do.
        let steep = |at: [f64; 2]| trial(1.0, 10.0, |t| at[t.min(2) / 2]).alone(TOLERANCE);
        assert_eq!((steep([0.07, 0.03]), steep([0.07, 0.045])), (Some(1), Some(2)));
        assert_eq!(trial(1.0, 10.0, |_| 0.07).alone(TOLERANCE), None, "exact attention");
        assert_eq!(trial(1.0, 10.0, |_| f64::NAN).alone(TOLERANCE), None);
        assert_eq!(Trial::idle().alone(TOLERANCE), Some(0));
    }

    #[test]
    fn heads_with_short_outputs_may_err_where_the_layer_does_not() {
        let good = trial(100.0, 10.0, |_| 0.02);
        let short = |error: f64| trial(4.0, 10.0, move |t| error * libm::pow(0.9, t as f64));
        assert!(short(0.12).alone(TOLERANCE).unwrap() > 5);
        assert_eq!(judged([good, short(0.12)]), [Some(0); 2]);
        // But not by any amount.
        let way = judged([good, short(0.4)])[1].unwrap();
        assert!(way > 5 && 0.4 * libm::pow(0.9, way as f64) <= ALONE * TOLERANCE, "{way}");
        assert_eq!(judged([good, trial(4.0, 10.0, |_| 0.2)]), [Some(0), None], "exact attention");
        assert_eq!(judged([good, trial(4.0, 10.0, |_| f64::NAN)]), [Some(0), None]);
        assert_eq!(judged([Trial::idle(), short(0.05)]), [Some(0); 2]);
    }

    #[test]
    fn what_takes_most_for_its_cost_is_tightened() {
        let of = |cost: f64| trial(10.0, cost, |t| 0.057 * libm::pow(0.8, t as f64));
        let ways = judged([of(50.0), of(1.0)]);
        assert!(ways[1] > ways[0], "{ways:?}");
        assert_eq!(judged([of(1.0), of(50.0)]), [ways[1], ways[0]]);
    }

    /// Beside all combinations of rules.
    #[test]
    fn layers_keep_the_tolerance_for_little_more_than_the_least_cost() {
        let mut most = 0.0f64;
        for case in 0..400 {
            let draw = |i: u64| (hash(case, i) >> 40) as f64 / (1 << 24) as f64;
            let trials: Vec<Trial> = (0..3)
                .map(|g| {
                    let [size, cost, first, fall] = [0, 1, 2, 3].map(|i| draw(4 * g + i));
                    trial(1.0 + 9.0 * size, 1.0 + 30.0 * cost, |t| {
                        0.01 + 0.2 * first * libm::pow(0.75 + 0.3 * fall, t as f64)
                    })
                })
                .collect();
            let mut chosen = trials.clone();
            judge(&mut chosen.as_mut_slice(), TOLERANCE);
            let at: Vec<usize> = chosen.iter().map(|t| t.chosen).collect();
            let (left, cost) = of(&trials, &at);
            assert!(left <= TOLERANCE, "{left}");
            let mut least = f64::INFINITY;
            let [a, b, c] = [0, 1, 2].map(|g| trials[g].first_within(ALONE * TOLERANCE)..trials[g].choices());
            for (i, j) in a.flat_map(|i| b.clone().map(move |j| (i, j))) {
                for k in c.clone() {
                    let (left, cost) = of(&trials, &[i, j, k]);
                    least = if left <= TOLERANCE { least.min(cost) } else { least };
                }
            }
            most = most.max(cost / least);
        }
        assert!(most < 1.7, "{most}");
    }

    #[test]
    fn every_trial_is_one_part_s() {
        let memory = Memory::system(0).unwrap();
        for (heads, layer, runs, parts) in [(1, 1, 1, 1), (6, 2, 5, 4), (4, 4, 3, 5), (1, 1, 7, 2), (8, 2, 1, 3)] {
            let deal = Deal::new(heads, runs, parts);
            let mut trials = Trials::new_in(&memory, deal, 3).unwrap();
            let mut seen = BTreeSet::new();
            for (ith, (part, offsets)) in trials.of_parts().enumerate() {
                for (j, (trial, offsets)) in part.iter_mut().zip(offsets.chunks_exact_mut(3 * LADDER)).enumerate() {
                    let Some((run, head)) = deal.named(ith, j) else { continue };
                    assert!(seen.insert((run, head)));
                    trial.steps[0].times = run * heads + head;
                    offsets[3..6].fill((run * heads + head) as f32);
                }
            }
            assert_eq!(seen.len(), heads * runs);
            trials.judge(layer, TOLERANCE);
            for (run, head) in seen {
                assert_eq!(trials.way(run, head), Some(run * heads + head));
                assert_eq!(trials.offsets(run, head, 1), [(run * heads + head) as f32; 3]);
            }
        }
    }
}
