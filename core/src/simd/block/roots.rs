//! All nodes for a few rows, root block after root block: what [`ScoreNodes`], [`Total`], [`Choose`], [`Doubt`] and [`AddValues`] do
//! with one. For a row or two a task of its own costs a block nearly as much again.

use super::few_rows::Means;
use super::{AddValues, Asking, BLOCK, Children, Choose, Doubt, Fetch, Limits, NodeKeys, ScoreNodes, Total};
use crate::simd::vector::Simd;
use crate::simd::{Task, part};

/// Keys of a node, in powers of two.
const LOG2_COUNT: f32 = (2 * BLOCK.ilog2()) as f32;

/// Root blocks whose means are asked for ahead: rows are done before memory sees that they come in order.
const AHEAD: usize = 3;

/// Whether anybody listens who is asked for memory.
const fn asks<S: Simd>() -> bool {
    S::LANES > 1
}

/// Root blocks.
#[derive(Clone, Copy)]
pub(crate) struct Roots<'a> {
    /// Mean keys of the nodes.
    pub(crate) keys: NodeKeys<'a>,
    pub(crate) means: Means<'a>,
    /// By root block: nodes that rows see, as bits.
    pub(crate) present: &'a [u16],
}

impl<'a> Roots<'a> {
    /// Mean keys of a root block.
    #[inline(always)]
    fn keys(&self, at: usize, dim: usize) -> NodeKeys<'a> {
        self.keys.blocks(at, 1, dim)
    }

    /// Which nodes of a root block are seen, as numbers; none where that is none.
    #[inline(always)]
    fn seen(&self, at: usize) -> Option<[f32; BLOCK]> {
        let bits = self.present[at];
        (bits != 0).then(|| core::array::from_fn(|lane| f32::from(bits >> lane & 1)))
    }

    /// What is known of the nodes of a root block.
    #[inline(always)]
    fn children<'b>(&self, at: usize, present: &'b [f32; BLOCK]) -> Children<'b>
    where
        'a: 'b,
    {
        let Means { spread, reach, .. } = self.means.block(at);
        Children { spread, reach, present, bits: self.present[at], log2_count: LOG2_COUNT }
    }
}

/// Scores of all nodes, and of what is seen of them running maxima and sums of estimates, as [`Total`] makes them.
pub(crate) struct ScoreRoots<'a> {
    pub(crate) roots: Roots<'a>,
    pub(crate) asking: Asking<'a>,
    pub(crate) rows: &'a [u16],
    pub(crate) limits: Limits<'a>,
    /// `[query][BLOCK]` for every root block, which are `step` numbers apart.
    pub(crate) scores: &'a mut [f32],
    pub(crate) step: usize,
    /// `[query][BLOCK]`.
    pub(crate) max: &'a mut [f32],
    pub(crate) sum: &'a mut [f32],
}

impl Task for ScoreRoots<'_> {
    type Out = ();
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ScoreRoots { roots, asking, rows, limits, scores, step, max, sum } = self;
        let dim = asking.q.cols;
        for at in 0..roots.present.len() {
            if asks::<S>() && at + AHEAD < roots.present.len() {
                part(s, roots.keys(at + AHEAD, dim).fetch());
            }
            let Some(present) = roots.seen(at) else { continue };
            let scores = &mut scores[at * step..][..rows.len() * BLOCK];
            part(s, ScoreNodes { keys: roots.keys(at, dim), asking, rows, out: scores });
            let children = roots.children(at, &present);
            part(s, Total { scores, children, limits, count: rows.len(), max: &mut *max, sum: &mut *sum });
        }
    }
}

/// Of all nodes, by their scores: which of them rows may have to open, and estimates, as [`Choose`] makes them.
pub(crate) struct ChooseRoots<'a> {
    pub(crate) roots: Roots<'a>,
    pub(crate) rows: &'a [u16],
    pub(crate) limits: Limits<'a>,
    /// As in [`ScoreRoots`].
    pub(crate) scores: &'a [f32],
    pub(crate) step: usize,
    /// `[root block][query][BLOCK]`.
    pub(crate) weights: &'a mut [f32],
    /// `[root block][query]`.
    pub(crate) open: &'a mut [u16],
    pub(crate) sure: &'a mut [u16],
}

impl Task for ChooseRoots<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ChooseRoots { roots, rows, limits, scores, step, weights, open, sure } = self;
        let n = rows.len();
        for at in 0..roots.present.len() {
            let (open, sure) = (&mut open[at * n..][..n], &mut sure[at * n..][..n]);
            let weights = &mut weights[at * n * BLOCK..][..n * BLOCK];
            let Some(present) = roots.seen(at) else {
                open.fill(0);
                weights.fill(0.0);
                continue;
            };
            let (children, centers) = (roots.children(at, &present), &scores[at * step..][..n * BLOCK]);
            part(s, Choose { centers, rows, children, limits, weights, open, sure });
        }
    }
}

/// What all nodes weigh in with, into the sums of rows: from the last root block to the first.
pub(crate) struct AddRoots<'a> {
    pub(crate) roots: Roots<'a>,
    pub(crate) rows: &'a [u16],
    /// `[root block][query][BLOCK]`.
    pub(crate) weights: &'a [f32],
    /// As in [`AddValues`].
    pub(crate) total: &'a mut [f32],
    pub(crate) lean: &'a mut [f32],
    pub(crate) out: &'a mut [f32],
    /// By query, as in [`Doubt`], where errors are to be predicted.
    pub(crate) sigma: &'a [f32],
    pub(crate) doubt: Option<&'a mut [f32]>,
}

impl Task for AddRoots<'_> {
    type Out = ();
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let AddRoots { roots, rows, weights, total, lean, out, sigma, mut doubt } = self;
        let n = roots.present.len();
        for at in if asks::<S>() { n.saturating_sub(AHEAD)..n } else { 0..0 } {
            part(s, Fetch::values(roots.means.block(at).values));
        }
        for at in (0..n).rev() {
            if asks::<S>() && at >= AHEAD {
                part(s, Fetch::values(roots.means.block(at - AHEAD).values));
            }
            let Means { values, spread, value_spread, .. } = roots.means.block(at);
            let p = &weights[at * rows.len() * BLOCK..][..rows.len() * BLOCK];
            if let Some(out) = &mut doubt {
                let count = libm::exp2f(LOG2_COUNT);
                part(s, Doubt { p, rows, spread, value_spread, sigma, count, out });
            }
            let (total, lean) = (Some(&mut *total), Some((spread, &mut *lean)));
            part(s, AddValues { p, values, rows, out: &mut *out, total, lean });
        }
    }
}
