//! The opened cells of a node: scores of their keys, weights, values.

use super::{
    AddBiases, AddKeys, BLOCK, Biases, Lifts, Listing, Matrix, Prefetch, Scores, ScoresAt, Stored, Transpose, Weigh,
};
use crate::mem::Rows;
use crate::simd::Task;
use crate::simd::vector::Simd;

/// Rows that are not worth a transposed copy of a cell's keys.
const SHORT: usize = 2;

/// [`Scores`], [`Weigh`] and [`AddKeys`] of one cell after the other, with [`AddBiases`] in between: one task, since a few rows
/// would wait longer for the calls than for the work.
pub(crate) struct Opened<'a> {
    pub(crate) keys: &'a Rows<'a>,
    pub(crate) values: &'a Rows<'a>,
    /// Keys by cell.
    pub(crate) ids: &'a [u32],
    pub(crate) q: Matrix<'a>,
    /// Who opens which cell.
    pub(crate) lists: Listing<'a>,
    /// Whether the keys of all cells are asked for at once; else those of the next while one is worked on, which for a few rows
    /// is too short.
    pub(crate) few: bool,
    pub(crate) softcap: f32,
    /// Biases, and what those of the cells come to, by place. Where they lie: what is not there is not even copied, and nothing
    /// hangs on bytes that nobody wrote.
    pub(crate) biases: Option<&'a (Biases<'a>, Lifts<'a>)>,
    /// By query.
    pub(crate) reference: &'a [f32],
    pub(crate) fine: &'a [f32],
    /// As in [`Weigh`].
    pub(crate) sum: &'a mut [f32],
    pub(crate) mass: &'a mut [f32],
    pub(crate) light: &'a mut [f32],
    pub(crate) lost: &'a mut [bool],
    /// Weighted sums of values, rows of `stride`.
    pub(crate) out: &'a mut [f32],
    pub(crate) stride: usize,
    /// Room for the scores of a list and for its rows at the front, for a few rows of all lists, and for a cell's keys,
    /// transposed and as they lie.
    pub(crate) scores: &'a mut [f32],
    pub(crate) full: &'a mut [[u16; 2]],
    pub(crate) block: &'a mut [f32],
    pub(crate) room: &'a mut [f32],
}

impl Task for Opened<'_> {
    /// Pairs of a row and a cell.
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let Opened { keys, values, ids, q, few, softcap, biases, reference, fine, .. } = self;
        let Opened { sum, mass, light, lost, out, stride, scores, full, block, room, .. } = self;
        let Listing { len, stride: step, rows, places } = self.lists;
        assert!(ids.len() == BLOCK * BLOCK);
        let of = |lane: usize| &ids[lane * BLOCK..][..BLOCK];
        let next = |from: usize| (from..BLOCK).find(|&lane| len[lane] > 0).unwrap_or(BLOCK);
        if few {
            for lane in (0..BLOCK).filter(|&lane| len[lane] > 0) {
                Prefetch { from: keys, ids: of(lane) }.run(s);
            }
        }
        // Values of a few rows arrive while the next cells are weighed.
        let apart = if few { step } else { 0 };
        let mut fronts = [0; BLOCK];
        let (mut pairs, mut lane) = (0, next(0));
        while lane < BLOCK {
            let after = next(lane + 1);
            if after < BLOCK && !few {
                Prefetch { from: keys, ids: of(after) }.run(s);
            }
            let (ids, n) = (of(lane), len[lane]);
            let (scores, full) = (&mut scores[lane * apart * BLOCK..], &mut full[lane * apart..]);
            let (rows, places) = (&rows[lane * step..][..n], &places[lane * step..][..n]);
            if n <= SHORT {
                ScoresAt { from: keys, ids, q, rows, out: scores }.run(s);
            } else {
                Transpose { from: keys, ids, room, out: block }.run(s);
                Scores { block: Stored::F32(block), q, rows, out: scores }.run(s);
            }
            let mut cap = softcap;
            if let Some(&(biases, cells)) = biases {
                AddBiases { biases, scores, rows, ids, places, cells, lane, softcap }.run(s);
                cap = 0.0;
            }
            let weigh =
                Weigh { scores, rows, places, lane, reference, fine, softcap: cap, sum, mass, light, full, lost };
            let front = weigh.run(s);
            AddKeys::ask(s, &full[..front], values, ids);
            if few {
                fronts[lane] = front;
            } else {
                AddKeys { p: scores, rows: &full[..front], values, ids, out, stride }.run(s);
            }
            pairs += n;
            lane = after;
        }
        for lane in (0..BLOCK).filter(|&lane| fronts[lane] > 0) {
            let (p, rows) = (&scores[lane * step * BLOCK..], &full[lane * step..][..fronts[lane]]);
            AddKeys { p, rows, values, ids: of(lane), out, stride }.run(s);
        }
        pairs
    }
}
