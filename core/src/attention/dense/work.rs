//! Work memory of exact attention, and how a row begins and ends in it.

use super::super::mask::Visible;
use super::fixed::FixedWork;
use super::head::Head;
use super::panel::{SELF, factor};
use super::tunables::{BLOCK_ELEMENTS, BLOCK_KEYS, FEW, FEW_BLOCK, MOST, ROW_BLOCK};
use crate::error::Result;
use crate::features::{PANELS, Part, SHARED_QK};
use crate::mem::{Buf, Maker, Memory, Plan};
use crate::simd::bias::add_bias;
use crate::simd::tile::{KEYS, PANEL, Span};
use crate::simd::{self, Simd};

/// Vectors start at multiples of this in a block of scores, whatever the instruction set.
pub(crate) const ALIGN: usize = 16;

/// Keys of a block of few rows.
pub(crate) fn few_block(sizes: &Sizes) -> usize {
    (sizes.block & !(ALIGN - 1)).min(FEW_BLOCK)
}

/// Scores of one of few rows for a block.
pub(crate) fn few_stride(sizes: &Sizes) -> usize {
    few_block(sizes) + ALIGN
}

/// Sizes of the work memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Query rows there is room for.
    pub(crate) rows: usize,
    /// Keys of a block.
    pub(crate) block: usize,
    /// Elements from key to key in the converted block.
    pub(crate) key_stride: usize,
    /// Elements of a packed value, and from row to row of the sums.
    pub(crate) value_stride: usize,
    /// Key dimension.
    pub(crate) dim_k: usize,
}

impl Sizes {
    pub(crate) fn new(dim_k: usize, dim_v: usize, rows: usize) -> Sizes {
        let [least, most] = BLOCK_KEYS;
        let block = (BLOCK_ELEMENTS / (dim_k + dim_v).max(1)).clamp(least, most) & !(KEYS - 1);
        // Rows a multiple of a page apart would fall on the same few cache lines.
        let pad = |n: usize| if n.is_multiple_of(1024) { n + 16 } else { n };
        // Whole panels of a row block, so that a short call neither takes nor touches what a long one needs.
        let rows = if PANELS && rows > FEW { rows.min(ROW_BLOCK).next_multiple_of(PANEL) } else { MOST };
        Sizes { rows, block, key_stride: pad(dim_k), value_stride: pad(dim_v.next_multiple_of(16)), dim_k }
    }

    /// Whether there is room for tiles: rows of a few are no whole panel.
    fn has_tiles(&self) -> bool {
        const { assert!(!MOST.is_multiple_of(PANEL)) };
        PANELS && self.rows != MOST
    }

    /// Elements of `q, k, v, scores, sums, state, row`.
    fn lens(&self) -> [usize; 7] {
        let (keys, values, scores) = match self.has_tiles() {
            true => (self.block, self.block, (self.block + KEYS) * PANEL),
            false => (few_block(self), 0, MOST * few_stride(self)),
        };
        [
            self.rows * self.dim_k,
            keys * self.key_stride,
            values * self.value_stride,
            scores,
            self.rows * self.value_stride,
            2 * self.rows,
            self.key_stride.max(self.value_stride),
        ]
    }
}

/// Adds the work memory of one part to a plan: exactly what [`Work::new_in`] takes.
pub fn plan(plan: &mut Plan, dim_k: usize, dim_v: usize, rows: usize) {
    plan.count(|m| Work::made(m, dim_k, dim_v, rows, false));
}

/// Work memory of one part: one per thread, used for any number of heads of the same dimensions.
#[derive(Debug)]
pub struct Work {
    pub(crate) sizes: Sizes,
    /// Queries `[panel][dim_k][PANEL]`. Of a few rows it holds, like scores and sums, only what these take.
    pub(crate) q: Buf<f32>,
    /// Empty until keys must be converted.
    pub(crate) k: Buf<f32>,
    /// Empty until values must be packed.
    pub(crate) v: Buf<f32>,
    pub(crate) scores: Buf<f32>,
    pub(crate) sums: Buf<f32>,
    /// Maxima, then sums of the weights.
    pub(crate) state: Buf<f32>,
    row: Buf<f32>,
    pub(crate) fixed: Option<Part<FixedWork, { PANELS as usize }>>,
    pub(crate) seen: Buf<Visible>,
    pub(crate) spans: Buf<Span>,
}

impl Work {
    /// Allocates everything that [`attend`](super::exact::attend) uses for these dimensions and up to `rows` rows a call: much less for twelve or
    /// fewer, and as much for [`ROW_BLOCK`] as for more.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub fn new_in(memory: &Memory, dim_k: usize, dim_v: usize, rows: usize) -> Result<Work> {
        Maker::make(memory, |m| Work::made(m, dim_k, dim_v, rows, false))
    }

    /// The same for calls whose rows, if they are more than twelve, multiply queries and keys in 16-bit fixed point.
    ///
    /// # Errors
    /// As [`Work::new_in`].
    #[cfg(feature = "internals")]
    pub fn new_fixed(memory: &Memory, dim_k: usize, dim_v: usize, rows: usize) -> Result<Work> {
        Maker::make(memory, |m| Work::made(m, dim_k, dim_v, rows, true))
    }

    /// Either, as part of a larger object.
    pub(crate) fn made(m: &mut Maker<'_>, dim_k: usize, dim_v: usize, rows: usize, fixed: bool) -> Work {
        let sizes = Sizes::new(dim_k, dim_v, rows);
        let [q, k, v, scores, sums, state, row] = sizes.lens();
        let tiles = sizes.has_tiles();
        Work {
            sizes,
            q: m.filled_if(tiles, q, 0.0),
            k: m.room(k),
            v: m.room(v),
            scores: m.filled_if(tiles, scores, 0.0),
            sums: m.filled_if(tiles, sums, 0.0),
            state: m.filled(state, 0.0),
            row: m.filled(row, 0.0),
            fixed: fixed.then(|| Part::of(|| FixedWork::made(m, dim_k, ROW_BLOCK, sizes.block))),
            seen: m.filled(sizes.rows, Visible { sinks: 0, begin: 0, end: 0 }),
            spans: m.filled(sizes.rows, Span::default()),
        }
    }

    /// Largest standard error of an inner product of a query and a key that came from fixed point; 0 without it.
    pub fn score_error(&self) -> f32 {
        self.fixed.as_ref().filter(|_| PANELS).map_or(0.0, |fixed| fixed.error())
    }

    /// Refuses a head whose parts do not fit together or whose dimensions this memory is not for.
    pub(crate) fn check(&self, head: &Head<'_>, rows: usize) {
        assert!(SHARED_QK || !head.shared_qk, "this build has no shared query-key mode");
        let keys = if head.shared() { head.q } else { head.k };
        assert!(keys.cols() == head.q.cols() && keys.rows() == head.v.rows());
        let most = if self.sizes.has_tiles() { self.sizes.rows } else { FEW };
        let sizes = Sizes::new(head.q.cols(), head.v.cols(), most);
        assert!(sizes.lens() == self.sizes.lens() && sizes.block == self.sizes.block);
        assert!(rows <= most);
    }

    /// Resets the state and the sums of `rows` rows, before their queries come: of a few, there is room for these then.
    pub(crate) fn clear(&mut self, rows: usize) {
        let s = &self.sizes;
        if !s.has_tiles() {
            let lens = [s.dim_k, few_stride(s), s.value_stride];
            for (buf, each) in [&mut self.q, &mut self.scores, &mut self.sums].into_iter().zip(lens) {
                buf.grow(rows * each, 0.0);
            }
        }
        self.state[..rows].fill(f32::NEG_INFINITY);
        self.state[s.rows..][..rows].fill(0.0);
        self.sums[..rows * s.value_stride].fill(0.0);
    }

    /// What was summed for a row.
    pub(crate) fn sum(&self, r: usize, dim_v: usize) -> &[f32] {
        &self.sums[r * self.sizes.value_stride..][..dim_v]
    }
}

/// Divides the sums of row `r` of the work memory, query `i` of the head, by its weights. Returns the log-sum-exp if
/// somebody wants it.
#[inline(always)]
pub(crate) fn finish_row<S: Simd>(s: S, head: &Head<'_>, i: usize, r: usize, work: &mut Work, lse: bool) -> f32 {
    let (max, sum) = (work.state[r], work.state[work.sizes.rows + r]);
    let y = &mut work.sums[r * work.sizes.value_stride..][..head.v.cols()];
    if sum > 0.0 {
        simd::logits(s, y, 1.0 / sum, 0.0);
    } else {
        y.fill(0.0);
    }
    if !lse {
        return 0.0;
    }
    if head.shared() && max == SELF {
        return own_logit(s, head, i, &mut work.row) as f32;
    }
    if sum > 0.0 {
        let (_, plain) = factor(head, head.masking.bias(head.batch, head.head).is_some());
        let unit = if plain { f64::from(head.scale) } else { 1.0 };
        (f64::from(max) * unit + libm::log(f64::from(sum))) as f32
    } else {
        f32::NEG_INFINITY
    }
}

/// Notes what the rows see; returns the number of pairs.
pub(crate) fn note_seen(head: &Head<'_>, query: usize, rows: usize, work: &mut Work) -> u64 {
    let keep = head.masking.keep(head.batch);
    let count = |keep: &[u8]| keep.iter().filter(|&&k| k != 0).count();
    let mut pairs = 0;
    let mut last: Option<(Visible, usize)> = None;
    for r in 0..rows {
        let seen = head.masking.visible(head.batch, query + r);
        work.seen[r] = seen;
        let n = match (keep, last) {
            (None, _) => seen.len(),
            (_, Some((before, n))) if before == seen => n,
            (Some(keep), _) => count(&keep[..seen.sinks]) + count(&keep[seen.begin..seen.end]),
        };
        last = Some((seen, n));
        pairs += n as u64;
    }
    pairs
}

/// Logit of a row for its own normalised key.
#[inline(always)]
fn own_logit<S: Simd>(s: S, head: &Head<'_>, i: usize, row: &mut [f32]) -> f64 {
    head.q.read(i, row);
    let norm = libm::sqrt(row[..head.q.cols()].iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>());
    let mut x = [norm as f32];
    simd::logits(s, &mut x, head.scale, head.softcap);
    let mut b = [0.0];
    if let Some(bias) = head.masking.bias(head.batch, head.head) {
        add_bias(s, &bias, i, i, &mut b, 1);
    }
    f64::from(x[0]) + f64::from(b[0])
}
