//! The threshold of heads that share keys: the loosest that sampled rows bear.

use super::ablation::{Part, without};
use super::policy::{KEEP, MEMORY, NEEDLES, RELAX};

/// What sampled rows have said so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    level: usize,
    /// The loosest level that may be tried: looser ones have failed.
    loosest: usize,
    /// Sums over sampled rows of squared errors and of squared outputs, at the present level, the older the less.
    error: f32,
    output: f32,
}

/// What to do after a look at a block's sampled rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// Attend the block by these thresholds.
    Take,
    /// Look again by tighter ones.
    Tighten,
    /// No threshold keeps the tolerance.
    Fail,
}

impl Default for Control {
    fn default() -> Self {
        Control { level: 1, loosest: 0, error: 0.0, output: 0.0 }
    }
}

impl Control {
    /// At a level that has erred so, squared, per squared output.
    pub(super) fn at(level: usize, share: f32) -> Self {
        Control { level, loosest: 0, error: share, output: 1.0 }
    }

    /// The level.
    pub(super) fn level(&self) -> usize {
        self.level
    }

    /// Whether any row was measured.
    pub(super) fn is_measured(&self) -> bool {
        self.output > 0.0
    }

    /// Squared error per squared output, as far as measured.
    pub(super) fn share(&self) -> f32 {
        if self.output > 0.0 { self.error / self.output } else { 0.0 }
    }

    /// Weight of a key that cells are opened for.
    pub(super) fn needle(&self) -> f32 {
        NEEDLES[self.level]
    }

    /// After sampled rows erred so, squared, where their outputs have such squares.
    pub(super) fn judge(&mut self, rows: &[[f32; 2]], tolerance: f32) -> Verdict {
        // Rows count alike, whatever the length of their outputs.
        let shares = rows.iter().filter(|[_, output]| *output > 0.0).map(|[error, output]| error / output);
        let (error, output) = (shares.clone().sum::<f32>(), shares.count() as f32);
        let (e, o) = (self.error + error, self.output + output);
        let most = KEEP * tolerance;
        let memory = if without(Part::Memory) { 0.0 } else { MEMORY };
        if e <= most * most * o || without(Part::Control) {
            (self.error, self.output) = (memory * e, memory * o);
            return Verdict::Take;
        }
        if self.level + 1 == NEEDLES.len() {
            (self.error, self.output) = (memory * self.error, memory * self.output);
            return Verdict::Fail;
        }
        self.level += 1;
        self.loosest = self.level;
        // What was measured by looser thresholds, as it would have been.
        self.error *= 0.5;
        Verdict::Tighten
    }

    /// Looser thresholds to be tried next where there is room, and where they have not failed. What is attended by them has to be
    /// judged first.
    pub(super) fn relax(&mut self, tolerance: f32) {
        let most = RELAX * KEEP * tolerance;
        if !without(Part::Control)
            && self.level > self.loosest
            && self.output > 0.0
            && self.error <= most * most * self.output
        {
            self.level -= 1;
            self.error *= 2.0;
        }
    }
}
