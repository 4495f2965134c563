//! The threshold of heads that share keys: the loosest that sampled rows bear.

use super::super::stats::ExactRows;
use super::ablation::{Part, without};
use super::policy::{HEAVY, KEEP, LIGHTEST, LOOSEST, MEMORY, RELAX, SKIPPED, START, THRESHOLDS, WORST};

/// What sampled rows have said so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    level: usize,
    /// The loosest level that may be tried: looser ones have failed.
    loosest: usize,
    /// Sum over sampled rows of squared relative errors, and how many there were, at the present level, the older the less.
    error: f32,
    rows: f32,
    /// Mean length of the outputs of the sampled rows of the last look, roughly; 0 before.
    usual: f32,
    /// Blocks to be attended exactly without a look, and why.
    skipped: Option<(usize, Why)>,
}

/// For which keys rows open cells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    /// The weight of such a key in a row whose output is as long as usual.
    pub(super) needle: f32,
    /// How long outputs usually are, or 0 where nobody knows.
    pub(super) usual: f32,
}

impl Opening {
    /// The weight of such a key in a row whose output has about this length: what a key adds counts for more beside little.
    pub(super) fn weight(&self, length: f32) -> f32 {
        let weight = self.needle * length / self.usual;
        // Not where nobody knows the usual length, or where lengths leave the range of f32.
        if without(Part::OutputLength) || !weight.is_finite() {
            self.needle.min(HEAVY)
        } else {
            weight.clamp(LIGHTEST, HEAVY)
        }
    }
}

/// Why rows are attended exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Why {
    /// There are too few of them, or too few whole segments.
    Short,
    /// No threshold keeps the tolerance.
    Strict,
    /// Cells cost about as much.
    Costly,
}

impl Why {
    /// Counts rows.
    pub(super) fn count(self, rows: u64, to: &mut ExactRows) {
        match self {
            Why::Short => to.short += rows,
            Why::Strict => to.strict += rows,
            Why::Costly => to.costly += rows,
        }
    }
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
        Control { level: START, loosest: 0, error: 0.0, rows: 0.0, usual: 0.0, skipped: None }
    }
}

impl Control {
    /// At a level whose mean squared relative error was this.
    pub(super) fn at(level: usize, error: f32) -> Self {
        Control { level, error, rows: 1.0, ..Control::default() }
    }

    /// The level.
    pub(super) fn level(&self) -> usize {
        self.level
    }

    /// Whether any row was measured.
    pub(super) fn is_measured(&self) -> bool {
        self.rows > 0.0
    }

    /// Mean squared relative error, as far as measured.
    pub(super) fn error(&self) -> f32 {
        if self.rows > 0.0 { self.error / self.rows } else { 0.0 }
    }

    /// Weight of a key that cells are opened for.
    pub(super) fn needle(&self) -> f32 {
        LOOSEST * libm::exp2f(-0.5 * self.level as f32)
    }

    /// The same, and how long outputs usually are.
    pub(super) fn opening(&self) -> Opening {
        Opening { needle: self.needle(), usual: self.usual }
    }

    /// Cells did not serve a block: the next ones are attended exactly, too.
    pub(super) fn give_up(&mut self, why: Why) -> Why {
        self.skipped = Some((SKIPPED, why));
        why
    }

    /// Why the block that comes is to be attended exactly without a look, if it is.
    pub(super) fn skips(&mut self) -> Option<Why> {
        let (blocks, why) = self.skipped?;
        self.skipped = (blocks > 1).then_some((blocks - 1, why));
        Some(why)
    }

    /// Outputs of sampled rows were so long, on average and roughly.
    pub(super) fn note_length(&mut self, length: f32) {
        self.usual = if length.is_finite() { length } else { 0.0 };
    }

    /// After sampled rows erred so, squared, where their outputs have such squares: both their mean and the worst have to be small.
    pub(super) fn judge(&mut self, rows: &[[f32; 2]], tolerance: f32) -> Verdict {
        // Rows count alike, whatever the length of their outputs.
        let shares = rows.iter().filter(|[_, output]| *output > 0.0).map(|[error, output]| error / output);
        let (error, count) = (self.error + shares.clone().sum::<f32>(), self.rows + shares.clone().count() as f32);
        let worst = if without(Part::WorstRow) { 0.0 } else { shares.fold(0.0, f32::max) };
        let square = |x: f32| x * x * tolerance * tolerance;
        let excess = (error / (square(KEEP) * count.max(f32::MIN_POSITIVE))).max(worst / square(WORST));
        let memory = if without(Part::Memory) { 0.0 } else { MEMORY };
        if excess <= 1.0 || without(Part::Control) {
            (self.error, self.rows) = (memory * error, memory * count);
            return Verdict::Take;
        }
        if self.level + 1 == THRESHOLDS {
            (self.error, self.rows) = (memory * self.error, memory * self.rows);
            return Verdict::Fail;
        }
        // A step takes about that much of the squared error; half of the steps that seem to be needed, as more cost more than looks.
        let steps = (libm::log2f(excess) as usize).clamp(1, THRESHOLDS - 1 - self.level);
        self.level += steps;
        self.loosest = self.level;
        // What was measured by looser thresholds, as it would have been.
        self.error *= libm::exp2f(-0.5 * steps as f32);
        Verdict::Tighten
    }

    /// A looser threshold to be tried next where there is room, and where it has not failed: half of the steps that there seems to be room
    /// for. What is attended by it has to be judged first.
    pub(super) fn relax(&mut self, tolerance: f32) {
        let most = RELAX * KEEP * tolerance;
        if !without(Part::Control)
            && self.level > self.loosest
            && self.rows > 0.0
            && self.error <= most * most * self.rows
        {
            let room = most * most * self.rows / self.error.max(f32::MIN_POSITIVE);
            let steps = (libm::log2f(room) as usize).clamp(1, self.level - self.loosest);
            self.level -= steps;
            self.error *= libm::exp2f(0.5 * steps as f32);
        }
    }
}
