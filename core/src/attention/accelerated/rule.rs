//! From the one knob to the thresholds.

/// Thresholds, as shares of a row's softmax sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// A key that may weigh so much is to be found; among many keys, one that may weigh `outstanding` times the mean.
    pub needle: f32,
    /// See `needle`. Times 0.6 where nothing is taken from outputs that rows of a trial err by in common: errors are larger there.
    pub outstanding: f32,
    /// The same for a few rows, which know no `plenty`; see also `Rule::eased`.
    pub outstanding_few: f32,
    /// Of many rows, those that have opened more cells than this look for heavier keys in proportion, up to `most` times `needle`:
    /// the more cells, the less one more takes from the error.
    pub plenty: f32,
    /// See `plenty`.
    pub most: f32,
    /// Standard deviations that a cell's farthest key may stand out towards a query; of a few rows fewer where `needle` gives way to
    /// `outstanding_few`.
    pub stand_out: f32,
    /// The same for a node's farthest key: more, since one that is passed over loses sixteen cells.
    pub stand_out_node: f32,
    /// Standard deviations of what rounding took from a key's coordinates that are allowed for.
    pub margin: f32,
    /// A cell is opened when its estimate may be wrong by so much.
    pub cell: f32,
    /// A node is opened when its estimate may be wrong by so much.
    pub node: f32,
    /// A key of an opened cell is weighed with its own value from so much on.
    pub fine: f32,
    /// Cells of an opened node weigh in with their own mean values from so much on, together.
    pub coarse: f32,
    /// Exact attention takes over where the predicted relative output error exceeds this.
    pub error: f32,
    /// Exact attention takes over where this many times the predicted cost exceeds its own; 0 = never.
    pub caution: f32,
}

/// How far the thresholds of a few rows are eased; see [`Rule::eased`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ease {
    /// How often those for keys are, up to twice.
    pub(super) keys: usize,
    /// How often those for what is estimated are doubled.
    pub(super) estimates: usize,
}

/// Times `outstanding_few` for a few rows from whose outputs offsets are taken, and times their `stand_out_node`.
const EASED: f32 = 3.0;
const EASED_NODE: f32 = 6.0 / 7.0;

/// Beside these, times `needle`, `outstanding_few` and `stand_out` for those that are eased twice.
const TWICE: f32 = 1.35;
const TWICE_OUTSTANDING: f32 = 2.0;
const TWICE_CELL: f32 = 0.8;

/// Times `outstanding` where offsets are not taken from outputs: see `offset`.
const LESS: f32 = 85.0 / 140.0;

/// Deviations fewer for a needle lower by a factor of e, and what they do not fall below.
const FEWER: f32 = 0.45;
const FEWEST: f32 = 2.3;

impl Rule {
    /// The rule for a tolerance (relative output error), with dense fallback or without.
    pub fn new(tolerance: f32, fall_back: bool) -> Rule {
        let t = tolerance / 0.05;
        Rule {
            needle: 0.0037 * t,
            outstanding: 140.0 * t,
            outstanding_few: 110.0 * t,
            plenty: 6.0,
            most: 1.4,
            stand_out: 2.62,
            stand_out_node: 3.5,
            margin: 1.1,
            cell: 0.02 * t,
            node: 0.02 * t,
            fine: 0.001 * t,
            coarse: 0.004 * t,
            error: tolerance,
            caution: if fall_back { 1.6 } else { 0.0 },
        }
    }

    /// [`Rule::stand_out`] and [`Rule::stand_out_node`] where keys are looked for that weigh `needle`. A few rows, which weigh all keys
    /// that they look at by their coordinates, make do with fewer deviations of cells: heavy keys are farther above a lower
    /// threshold. Many rows lose some of them by that, and nodes are like nothing else where texts follow one another.
    pub(super) fn stand_out_for(&self, needle: f32, few: bool) -> [f32; 2] {
        let lower = if few && needle < self.needle { libm::logf(self.needle / needle) } else { 0.0 };
        let cells = (self.stand_out - FEWER * lower).max(FEWEST.min(self.stand_out));
        [cells, self.stand_out_node]
    }

    /// The same with every threshold lower by the root of two, `times` times.
    pub(super) fn tightened(&self, times: usize) -> Rule {
        let f = libm::exp2f(-0.5 * times as f32);
        Rule {
            needle: self.needle * f,
            outstanding: self.outstanding * f,
            outstanding_few: self.outstanding_few * f,
            cell: self.cell * f,
            node: self.node * f,
            fine: self.fine * f,
            coarse: self.coarse * f,
            ..*self
        }
    }

    /// The rule for a few rows of heads that keep the tolerance with it since what such rows err by in common is taken from their
    /// outputs. For keys once: they have to be heavier among many to be found, and nodes to stand out less. Twice: heavier still, and
    /// cells to stand out less. For estimates: they may be wrong by more before somebody looks below, and weigh more before they count
    /// with values of their own.
    // One copy: that keeps the code small.
    #[inline(never)]
    pub(super) fn eased(&self, ease: Ease) -> Rule {
        let mut rule = *self;
        let more = (1u32 << ease.estimates) as f32;
        for share in [&mut rule.cell, &mut rule.node, &mut rule.fine, &mut rule.coarse] {
            *share *= more;
        }
        if ease.keys > 0 {
            rule.outstanding_few *= EASED;
            rule.stand_out_node *= EASED_NODE;
        }
        if ease.keys > 1 {
            rule.needle *= TWICE;
            rule.outstanding_few *= TWICE_OUTSTANDING;
            rule.stand_out *= TWICE_CELL;
        }
        rule
    }

    /// The same for outputs that no offsets are taken from.
    pub(super) fn without_offsets(&self) -> Rule {
        Rule { outstanding: self.outstanding * LESS, ..*self }
    }

    /// The same with nothing of what is opened stood for by means: what bounds know nothing of.
    pub(super) fn whole(&self) -> Rule {
        Rule { fine: 0.0, coarse: 0.0, ..*self }
    }

    /// What a key is to weigh among so many, for a few rows or for many.
    pub(super) fn needle_among(&self, keys: usize, few: bool) -> f32 {
        let outstanding = if few { self.outstanding_few } else { self.outstanding };
        self.needle.min(outstanding / keys.max(1) as f32)
    }

    /// Whether it takes cells whatever they cost and err.
    pub(super) fn never_dense(&self) -> bool {
        self.caution == 0.0 && self.error == f32::INFINITY
    }
}
