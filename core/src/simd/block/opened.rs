//! The opened cells of a node: scores of their keys, weights, values.

use super::{
    AddBiases, AddKeys, BLOCK, Biases, Lifts, Listing, Matrix, Prefetch, Scores, ScoresAt, Stored, Transpose, Weigh,
};
use crate::mem::Rows;
use crate::simd::Task;
use crate::simd::vector::Simd;

/// Rows that are not worth a transposed copy of a cell's keys.
const SHORT: usize = 2;

/// Cells that are weighed while the values of one are on their way.
const AHEAD: usize = 1;

/// A cell whose values are on their way: `rows` of them from `begin` on come with keys of their own.
#[derive(Clone, Copy, Default)]
struct Waiting {
    lane: usize,
    begin: usize,
    rows: usize,
}

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
    /// Room for the scores of at least one list and for as many rows, and for a cell's keys, transposed and as they lie.
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
        // Values arrive while the next cells are weighed.
        let ahead = if few { BLOCK } else { AHEAD };
        let (mut waiting, mut first, mut last) = ([Waiting::default(); BLOCK], 0, 0);
        let room_for = full.len().min(scores.len() / BLOCK);
        let mut used = 0;
        let mut add = Add { values, ids, out, stride };
        let (mut pairs, mut lane) = (0, next(0));
        while lane < BLOCK {
            let after = next(lane + 1);
            if after < BLOCK && !few {
                Prefetch { from: keys, ids: of(after) }.run(s);
            }
            let (ids, n) = (of(lane), len[lane]);
            if used + n > room_for {
                for cell in &waiting[first..last] {
                    add.run(s, scores, full, cell);
                }
                (first, used) = (last, 0);
            }
            let begin = used;
            let (here, kept) = (&mut scores[begin * BLOCK..], &mut full[begin..]);
            let (rows, places) = (&rows[lane * step..][..n], &places[lane * step..][..n]);
            if n <= SHORT {
                ScoresAt { from: keys, ids, q, rows, out: here }.run(s);
            } else {
                Transpose { from: keys, ids, room, out: block }.run(s);
                Scores { block: Stored::F32(block), q, rows, out: here }.run(s);
            }
            let mut cap = softcap;
            if let Some(&(biases, cells)) = biases {
                AddBiases { biases, scores: here, rows, ids, places, cells, lane, softcap }.run(s);
                cap = 0.0;
            }
            let weigh = Weigh {
                scores: here,
                rows,
                places,
                lane,
                reference,
                fine,
                softcap: cap,
                sum,
                mass,
                light,
                full: kept,
                lost,
            };
            let front = weigh.run(s);
            AddKeys::ask(s, &kept[..front], values, ids);
            used += front;
            waiting[last] = Waiting { lane, begin, rows: front };
            last += 1;
            if last - first > ahead {
                add.run(s, scores, full, &waiting[first]);
                first += 1;
            }
            pairs += n;
            lane = after;
        }
        for cell in &waiting[first..last] {
            add.run(s, scores, full, cell);
        }
        pairs
    }
}

/// [`AddKeys`] of the cells of a node.
struct Add<'a> {
    values: &'a Rows<'a>,
    ids: &'a [u32],
    out: &'a mut [f32],
    stride: usize,
}

impl Add<'_> {
    #[inline(always)]
    fn run<S: Simd>(&mut self, s: S, scores: &[f32], full: &[[u16; 2]], cell: &Waiting) {
        let Self { values, ids, out, stride } = self;
        let (p, rows) = (&scores[cell.begin * BLOCK..], &full[cell.begin..][..cell.rows]);
        AddKeys { p, rows, values, ids: &ids[cell.lane * BLOCK..][..BLOCK], out, stride: *stride }.run(s);
    }
}
