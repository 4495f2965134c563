//! What a trial of a few rows found, for the rows that come with the next appends.
//!
//! A prompt in batches would otherwise pay for a trial in every one of them. As with [rests](crate::cells), what is noted
//! counts only once the head has grown, and of several notes the most careful numbers do: what a row gets depends on what was
//! attended before the last append, never on when or on which thread. At the append the trials of all heads are there, so that they
//! are judged as the layer that they are, which the parts of a call, that do not wait for each other, cannot do.

use super::all::stretch;
use super::ladder::{LADDER, Layer, Rehearsed, Trial, judge};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Appended tokens for which a trial speaks, of short contexts.
const TOKENS: usize = 2048;

/// The largest of the numbers that were noted: of whole ones, or of the bits of f32 that are not negative, which are in the
/// order of what they stand for, and NaN above all.
#[derive(Debug, Default)]
struct Largest(AtomicU32);

impl Largest {
    fn note(&self, x: u32) {
        #[cfg(target_has_atomic = "32")]
        self.0.fetch_max(x, Relaxed);
        // Such machines have one core; a note that an interrupt takes away is made again.
        #[cfg(not(target_has_atomic = "32"))]
        self.0.store(self.0.load(Relaxed).max(x), Relaxed);
    }

    fn note_f(&self, x: f64) {
        self.note((x as f32).to_bits());
    }

    fn take(&mut self) -> u32 {
        core::mem::take(self.0.get_mut())
    }

    fn take_f(&mut self) -> f64 {
        f64::from(f32::from_bits(self.take()))
    }
}

/// Of one head.
#[derive(Debug, Default)]
pub(crate) struct Lead {
    /// By rule: cost, wrong and all of what was rehearsed since the last append.
    rules: [[Largest; 3]; LADDER],
    /// Rows of these trials, and pairs that they stand for.
    of: [Largest; 2],
    /// Twice the rules tried, and one more where none of them keeps the tolerance.
    reach: Largest,
    /// What was noted before the last append, or before that.
    trial: Trial,
    left: usize,
}

impl Lead {
    /// Notes a trial, if there was something to try.
    pub(super) fn note(&self, trial: &Trial) {
        if trial.rows == 0 {
            return;
        }
        let rules = trial.rules();
        self.reach.note(2 * rules.len() as u32 + u32::from(!trial.keeps));
        for (to, rule) in self.rules.iter().zip(rules) {
            [rule.cost, rule.wrong, rule.all].into_iter().zip(to).for_each(|(x, to)| to.note_f(x));
        }
        self.of[0].note(trial.rows as u32);
        self.of[1].note_f(trial.pairs);
    }

    /// After an append of so many tokens, which makes `keys`. Returns whether a trial has been noted before: heads are to be
    /// [settled](settle) then.
    pub(crate) fn grow(&mut self, tokens: usize, keys: usize) -> bool {
        self.left = self.left.saturating_sub(tokens);
        let reach = self.reach.take() as usize;
        if reach == 0 {
            return false;
        }
        self.left = TOKENS * stretch(keys);
        self.trial = Trial::new(self.of[0].take() as usize, self.of[1].take_f());
        self.trial.keeps = reach.is_multiple_of(2);
        for (times, rule) in self.rules.iter_mut().enumerate() {
            let [cost, wrong, all] = rule.each_mut().map(Largest::take_f);
            if times < reach / 2 {
                self.trial.push(times, Rehearsed { cost, wrong, all });
            }
        }
        true
    }

    /// The rules that rows may take without a trial of their own. That exact attention is better is not passed on: contexts grow.
    pub(super) fn way(&self) -> Option<usize> {
        self.trial.way().filter(|_| self.left > 0)
    }

    /// Of what a new trial chooses for the head alone and what was last chosen for the layer the looser one, if the trial bears that: a
    /// layer that keeps the tolerance has no need of heads that do.
    pub(super) fn or_as_before(&self, trial: &Trial, tolerance: f64) -> Option<usize> {
        let before = self.trial.way().filter(|&times| trial.bears(times, tolerance));
        match (trial.alone(tolerance), before) {
            (Some(now), Some(before)) => Some(now.min(before)),
            (now, before) => now.or(before),
        }
    }
}

/// Heads of a session.
pub(crate) trait Led {
    fn lead(&self) -> &Lead;
    fn lead_mut(&mut self) -> &mut Lead;
}

/// After [`Lead::grow`] of all heads of a layer: what their rows take. O(heads^2 x rules^2).
pub(crate) fn settle<H: Led>(heads: &mut [H], tolerance: f32) {
    judge(&mut Heads(heads), f64::from(tolerance));
}

struct Heads<'a, H>(&'a mut [H]);

impl<H: Led> Layer for Heads<'_, H> {
    fn groups(&self) -> usize {
        self.0.len()
    }

    fn trial(&self, group: usize) -> &Trial {
        &self.0[group].lead().trial
    }

    fn trial_mut(&mut self, group: usize) -> &mut Trial {
        &mut self.0[group].lead_mut().trial
    }
}

#[cfg(all(test, feature = "full"))]
mod tests {
    use super::*;

    const TOLERANCE: f32 = 0.05;
    const ROWS: usize = 11;

    impl Led for Lead {
        fn lead(&self) -> &Lead {
            self
        }

        fn lead_mut(&mut self) -> &mut Lead {
            self
        }
    }

    /// A trial of outputs whose squares add up to `all`, with the square errors of its rules.
    fn trial(all: f64, wrong: &[f64]) -> Trial {
        let mut trial = Trial::new(ROWS, 1000.0);
        for (times, &wrong) in wrong.iter().enumerate() {
            trial.add(times, Rehearsed { cost: 10.0 * (times + 1) as f64, wrong, all }, f64::from(TOLERANCE));
        }
        trial
    }

    /// Square errors per square output of rules that keep the tolerance, and of ones that do not.
    const KEEPS: f64 = 0.001;
    const FAILS: f64 = 0.005;

    fn grown(lead: &mut Lead, tokens: usize) -> Option<usize> {
        if lead.grow(tokens, 4096) {
            settle(core::slice::from_mut(lead), TOLERANCE);
        }
        lead.way()
    }

    #[test]
    fn a_trial_speaks_for_what_is_appended_next_and_no_longer() {
        let mut lead = Lead::default();
        assert_eq!(grown(&mut lead, 512), None);
        lead.note(&trial(1.0, &[FAILS, KEEPS]));
        lead.note(&trial(1.0, &[FAILS, FAILS, FAILS, KEEPS]));
        lead.note(&trial(1.0, &[KEEPS]));
        lead.note(&Trial::idle());
        assert_eq!(lead.way(), None, "nothing changes between appends");
        assert_eq!(grown(&mut lead, 512), Some(3), "the most careful one");
        assert_eq!(grown(&mut lead, TOKENS - 512), Some(3));
        assert_eq!(grown(&mut lead, 512), None);
        // A new trial is tightened no further than before, unless it shows that this is far too loose, or too dear.
        let again = |wrong: &[f64]| lead.or_as_before(&trial(1.0, wrong), f64::from(TOLERANCE));
        assert_eq!(again(&[FAILS, KEEPS]), Some(1));
        assert_eq!(again(&[FAILS, FAILS, FAILS, FAILS, FAILS, KEEPS]), Some(3));
        assert_eq!(again(&[FAILS, FAILS, FAILS, FAILS]), Some(3));
        assert_eq!(again(&[FAILS, FAILS, FAILS]), None, "the fourth rule costs more than exact attention");
        assert_eq!(again(&[0.1, 0.1, 0.1, 0.1, FAILS, KEEPS]), Some(5));
        lead.note(&trial(1.0, &[KEEPS]));
        assert_eq!(grown(&mut lead, 100_000), Some(0));
        lead.note(&trial(1.0, &[FAILS, FAILS]));
        assert_eq!(grown(&mut lead, 1), None, "exact attention is not passed on");
        assert_eq!(lead.or_as_before(&trial(1.0, &[FAILS, FAILS, KEEPS]), f64::from(TOLERANCE)), Some(2));
        lead.note(&trial(1.0, &[f64::NAN]));
        assert_eq!(grown(&mut lead, 1), None);
    }

    #[test]
    fn against_many_keys_a_trial_speaks_for_more() {
        let mut lead = Lead::default();
        lead.note(&trial(1.0, &[KEEPS]));
        assert!(lead.grow(1, 65_536));
        lead.grow(4 * TOKENS - 1, 65_536);
        assert!(lead.way().is_some());
        lead.grow(1, 65_536);
        assert_eq!(lead.way(), None);
    }

    #[test]
    fn heads_are_judged_as_a_layer() {
        let mut heads = [Lead::default(), Lead::default(), Lead::default()];
        heads[0].note(&trial(100.0, &[100.0 * KEEPS]));
        heads[1].note(&trial(1.0, &[FAILS, FAILS, KEEPS]));
        assert_eq!(trial(1.0, &[FAILS, FAILS, KEEPS]).alone(f64::from(TOLERANCE)), Some(2));
        let noted: [bool; 3] = core::array::from_fn(|i| heads[i].grow(512, 4096));
        assert_eq!(noted, [true, true, false]);
        settle(&mut heads, TOLERANCE);
        assert_eq!(heads.each_ref().map(Lead::way), [Some(0), Some(0), None]);
        // What was found before still counts beside what a head finds later.
        heads[1].note(&trial(200.0, &[200.0 * FAILS, 200.0 * KEEPS]));
        let noted: [bool; 3] = core::array::from_fn(|i| heads[i].grow(512, 4096));
        assert_eq!(noted, [false, true, false]);
        settle(&mut heads, TOLERANCE);
        assert_eq!(heads.each_ref().map(Lead::way), [Some(0), Some(1), None]);
    }

    #[test]
    fn notes_of_any_order_are_the_same() {
        let trials = [trial(2.0, &[0.1, 0.01]), trial(3.0, &[0.2, 0.003]), trial(1.0, &[0.3, 0.2, 0.02, 0.001])];
        let find = |order: [usize; 3]| {
            let mut lead = Lead::default();
            order.iter().for_each(|&i| lead.note(&trials[i]));
            lead.grow(1, 4096);
            lead.trial.rules().collect::<std::vec::Vec<_>>()
        };
        let first = find([0, 1, 2]);
        assert_eq!(first.len(), 4);
        assert_eq!((first[0].all, first[3].all), (3.0, 1.0));
        assert!([[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]].into_iter().all(|order| find(order) == first));
    }
}
