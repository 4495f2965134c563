//! Biases added to scores.

use super::element::F16;
use super::rows;
use super::tile::PANEL;
use super::tunables::NARROW;
use super::vector::Simd;
use super::{Task, kernels};
use crate::mem::{Rows, Tensor};
use core::ops::Range;

/// Keys whose bias is widened at a time.
const BIAS: usize = 64;

/// Adds bias row `i`, keys `first..`, to scores that are `stride` apart; stops at the end of `x`.
#[inline(always)]
pub(crate) fn add_bias<S: Simd>(s: S, bias: &Rows<'_>, i: usize, first: usize, x: &mut [f32], stride: usize) {
    let mut wide = [0.0; BIAS];
    for (part, x) in x.chunks_mut(BIAS * stride).enumerate() {
        let b = &mut wide[..x.len().div_ceil(stride)];
        rows::widen_part(s, bias, i, first + part * BIAS, b);
        // Two loops, so that the first is over neighbours.
        if stride == 1 {
            x.iter_mut().zip(&*b).for_each(|(x, b)| *x += b);
        } else {
            x.iter_mut().step_by(stride).zip(&*b).for_each(|(x, b)| *x += b);
        }
    }
}

/// Vectors and rows of a square that is transposed at once.
const SQUARE: usize = 16;

/// Adds to scores `[keys][PANEL]` the biases of keys `first..` for `n` rows, `query` of which each is. The same sums as
/// [`add_bias`] makes, squares of them at a time.
#[inline(always)]
pub(crate) fn add_biases<S: Simd>(
    s: S,
    bias: &Rows<'_>,
    query: impl Fn(usize) -> usize,
    n: usize,
    first: usize,
    scores: &mut [f32],
) {
    let (keys, squares) = (scores.len() / PANEL, scores.len() / PANEL / SQUARE);
    let zeros = [0.0; SQUARE];
    let (mut wide, mut square) = ([[0.0f32; SQUARE]; SQUARE], [0.0f32; SQUARE * SQUARE]);
    for begin in (0..n).step_by(SQUARE) {
        let rows = (n - begin).min(SQUARE);
        for j in (0..squares * SQUARE).step_by(SQUARE) {
            let mut from = [zeros.as_ptr(); SQUARE];
            for (r, (from, wide)) in from.iter_mut().zip(&mut wide).enumerate().take(rows) {
                let i = query(begin + r);
                *from = match bias.row_f32(i) {
                    Some(row) => row[first + j..][..SQUARE].as_ptr(),
                    None => {
                        rows::widen_part(s, bias, i, first + j, wide);
                        wide.as_ptr()
                    }
                };
            }
            // SAFETY: so many numbers are there in every row, and room for all of them.
            unsafe { s.transpose(&from, 0, square.as_mut_ptr()) };
            for (to, from) in scores[j * PANEL..].chunks_exact_mut(PANEL).zip(square.chunks_exact(SQUARE)) {
                let to = &mut to[begin..][..SQUARE];
                for c in (0..SQUARE).step_by(S::LANES) {
                    // SAFETY: vector c of SQUARE numbers.
                    unsafe {
                        let at = to.as_mut_ptr().add(c);
                        s.store(at, s.add(s.load(at), s.load(from.as_ptr().add(c))));
                    }
                }
            }
        }
        for r in begin..begin + rows {
            if squares * SQUARE < keys {
                let x = &mut scores[squares * SQUARE * PANEL + r..];
                add_bias(s, bias, query(r), first + squares * SQUARE, x, PANEL);
            }
        }
    }
}

/// Whether biases hide keys `first..first + n` from all of these rows.
#[inline(always)]
pub(crate) fn hides_all<S: Simd>(s: S, bias: &Rows<'_>, of: Range<usize>, first: usize, n: usize) -> bool {
    let mut wide = [0.0; BIAS];
    // Loops: a closure would lose the instruction set. Of causal rows the last sees most, and the first keys: that is soon found.
    for row in of.rev() {
        for j in (0..n).step_by(BIAS) {
            let wide = &mut wide[..(n - j).min(BIAS)];
            rows::widen_part(s, bias, row, first + j, wide);
            if kernels::max(s, wide) > f32::NEG_INFINITY {
                return false;
            }
        }
    }
    true
}

/// Biases of the heads of a batch.
#[derive(Clone, Copy)]
pub(crate) struct HeadBiases<'a> {
    /// `[batches][heads][rows][keys]`, batches and heads of 1 for all.
    pub(crate) tensor: Tensor<'a>,
    pub(crate) batch: usize,
}

impl<'a> HeadBiases<'a> {
    /// Those of these query heads and queries.
    pub(crate) fn of(self, queries: &'a [[u32; 2]]) -> Biases<'a> {
        Biases { heads: self, queries }
    }
}

/// Biases of rows, each a query of a head.
#[derive(Clone, Copy)]
pub(crate) struct Biases<'a> {
    heads: HeadBiases<'a>,
    queries: &'a [[u32; 2]],
}

impl<'a> Biases<'a> {
    /// Those of row `r`.
    #[inline(always)]
    pub(crate) fn row(&self, r: usize) -> RowBias<'a> {
        let ([head, row], tensor) = (self.queries[r].map(|x| x as usize), &self.heads.tensor);
        let [batches, heads, ..] = tensor.shape();
        let biases = tensor.head(if batches == 1 { 0 } else { self.heads.batch }, if heads == 1 { 0 } else { head });
        RowBias { biases, row }
    }

    /// Those of a panel's rows for a run of keys, `[rows][keys]`, as many keys as `out` has room for.
    #[inline(always)]
    pub(crate) fn copy<'b, S: Simd>(&self, s: S, keys: BiasKeys<'_>, out: &'b mut [f32]) -> Rows<'b> {
        let count = out.len() / PANEL;
        for (r, out) in out.chunks_exact_mut(count).enumerate().take(self.queries.len()) {
            self.row(r).read(s, keys, out);
        }
        Rows::new(out, count).unwrap_or_else(|_| unreachable!("whole rows"))
    }
}

/// Biases of one query, one for every key.
#[derive(Clone, Copy)]
pub(crate) struct RowBias<'a> {
    biases: Rows<'a>,
    row: usize,
}

impl RowBias<'_> {
    /// Keys there are.
    pub(crate) fn keys(&self) -> usize {
        self.biases.cols()
    }

    /// Biases of keys into all of `out`.
    #[inline(always)]
    pub(crate) fn read<S: Simd>(&self, s: S, keys: BiasKeys<'_>, out: &mut [f32]) {
        match (keys, self.biases.row_f32(self.row), self.biases.row_bits(self.row)) {
            (BiasKeys::Run(begin), ..) => rows::widen_part(s, &self.biases, self.row, begin, out),
            (BiasKeys::List(keys), Some(row), _) => {
                out.iter_mut().zip(keys).for_each(|(to, &j)| *to = row[j as usize]);
            }
            (BiasKeys::List(keys), _, Some(bits)) => {
                // Masks have no other type of 16 bits.
                for (out, keys) in out.chunks_mut(SQUARE).zip(keys.chunks(SQUARE)) {
                    let mut short = [0; SQUARE];
                    short.iter_mut().zip(keys).for_each(|(to, &j)| *to = bits[j as usize]);
                    rows::convert::<F16, S>(s, &short[..out.len()], out);
                }
            }
            _ => unreachable!("rows have elements of 32 or 16 bits"),
        }
    }
}

/// Biases of one query for these keys into all of `out`.
pub(crate) struct ListBiases<'a> {
    pub(crate) of: RowBias<'a>,
    pub(crate) keys: &'a [u32],
    pub(crate) out: &'a mut [f32],
}

impl Task for ListBiases<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.of.read(s, BiasKeys::List(self.keys), self.out);
    }
}

/// Keys whose biases are wanted.
#[derive(Clone, Copy)]
pub(crate) enum BiasKeys<'a> {
    /// Consecutive ones from here on.
    Run(usize),
    /// These.
    List(&'a [u32]),
}

impl BiasKeys<'_> {
    /// From key `n` on.
    pub(crate) fn skip(&self, n: usize) -> Self {
        match self {
            BiasKeys::Run(begin) => BiasKeys::Run(begin + n),
            BiasKeys::List(keys) => BiasKeys::List(&keys[n..]),
        }
    }
}

/// Keys of a cell, and cells of a segment.
const CELL: usize = SQUARE;

/// Biases of a segment's keys: those that cells are cut from.
pub(crate) const SEGMENT: usize = CELL * CELL;

/// Logarithm of the number of keys of a cell.
const LOG_CELL: f32 = 4.0 * core::f32::consts::LN_2;

/// Smallest and largest bias of a segment's keys.
#[inline(always)]
fn extent<S: Simd>(s: S, biases: &[f32; SEGMENT]) -> [f32; 2] {
    let (mut low, mut high) = (s.splat(f32::INFINITY), s.splat(f32::NEG_INFINITY));
    for i in (0..SEGMENT).step_by(S::LANES) {
        // SAFETY: a vector from element i on is inside.
        let x = unsafe { s.load(biases.as_ptr().add(i)) };
        (low, high) = (s.min(low, x), s.max(high, x));
    }
    [-s.reduce_max(s.sub(s.splat(0.0), low)), s.reduce_max(high)]
}

/// Smallest and largest bias that these rows have for the keys of a segment. Whether a key is hidden and another seen is certain, which
/// is all that anybody asks then.
pub(crate) struct Extent<'a> {
    pub(crate) biases: Rows<'a>,
    pub(crate) rows: Range<usize>,
    pub(crate) first: usize,
}

impl Task for Extent<'_> {
    type Out = [f32; 2];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; 2] {
        let ([mut low, mut high], mut wide) = ([f32::INFINITY, f32::NEG_INFINITY], [0.0; SEGMENT]);
        for row in self.rows {
            rows::widen_part(s, &self.biases, row, self.first, &mut wide);
            let of_row = extent(s, &wide);
            (low, high) = (low.min(of_row[0]), high.max(of_row[1]));
            if low == f32::NEG_INFINITY && high > low {
                break;
            }
        }
        [low, high]
    }
}

/// Largest bias that some row has for each key of a segment, on top of `most`: until none is hidden, which it returns.
pub(crate) struct Largest<'a, 'b> {
    pub(crate) biases: Rows<'a>,
    pub(crate) first: usize,
    pub(crate) most: &'b mut [f32; SEGMENT],
}

impl Task for Largest<'_, '_> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        let mut wide = [0.0; SEGMENT];
        // Of causal rows the last sees most.
        for row in (0..self.biases.rows()).rev() {
            rows::widen_part(s, &self.biases, row, self.first, &mut wide);
            for (most, x) in self.most.iter_mut().zip(&wide) {
                *most = most.max(*x);
            }
            if extent(s, self.most)[0] > f32::NEG_INFINITY {
                return true;
            }
        }
        false
    }
}

/// Of the cells of a segment the largest bias of a key that is not known, and the logarithm of the sum of `exp(bias - largest)` over them;
/// -inf and 0 where all are known. No key is hidden.
pub(crate) struct CellBiases {
    pub(crate) most: [f32; CELL],
    pub(crate) more: [f32; CELL],
}

impl CellBiases {
    /// From the biases of the segment's keys in their order, the keys by cell, and which of these are known.
    #[inline(always)]
    pub(crate) fn new<S: Simd>(s: S, biases: &[f32; SEGMENT], ids: &[u32], known: &[u16]) -> CellBiases {
        let mut cells = CellBiases { most: [0.0; CELL], more: [0.0; CELL] };
        let [low, high] = extent(s, biases);
        if high == low {
            cells.most = [high; CELL];
            for (more, known) in cells.more.iter_mut().zip(known) {
                *more = if *known == 0 { LOG_CELL } else { libm::logf(known.count_zeros() as f32) };
            }
            return cells;
        }
        // `[key of the cell][cell]`: a cell in a lane.
        let mut by_key = [0.0; SEGMENT];
        for (cell, ids) in ids.chunks_exact(CELL).enumerate() {
            for (j, &id) in ids.iter().enumerate() {
                by_key[j * CELL + cell] = biases[id as usize % SEGMENT];
            }
        }
        let mut wide = [0.0; CELL];
        for c in (0..CELL).step_by(S::LANES) {
            let (mut most, mut least) = (s.splat(f32::NEG_INFINITY), s.splat(f32::INFINITY));
            let (mut sum, mut squares) = (s.splat(0.0), s.splat(0.0));
            for j in 0..CELL {
                // SAFETY: vector c of the cells of key j.
                let x = unsafe { s.load(by_key.as_ptr().add(j * CELL + c)) };
                (most, least) = (s.max(most, x), s.min(least, x));
                // Near 0 where the mean counts, so that squares keep their digits.
                let x = s.sub(x, s.splat(high));
                (sum, squares) = (s.add(sum, x), s.fma(x, x, squares));
            }
            let mean = s.mul(sum, s.splat(1.0 / CELL as f32));
            let variance = s.sub(s.mul(squares, s.splat(1.0 / CELL as f32)), s.mul(mean, mean));
            let log = s.fma(variance, s.splat(0.5), s.add(mean, s.splat(LOG_CELL)));
            // SAFETY: vector c of all three.
            unsafe {
                s.store(cells.most.as_mut_ptr().add(c), most);
                s.store(cells.more.as_mut_ptr().add(c), s.sub(log, s.sub(most, s.splat(high))));
                s.store(wide.as_mut_ptr().add(c), s.sub(most, least));
            }
        }
        for cell in (0..CELL).filter(|&cell| known[cell] != 0 || wide[cell] > NARROW) {
            let mut biases = [f32::NEG_INFINITY; CELL];
            for (j, bias) in biases.iter_mut().enumerate().filter(|(j, _)| known[cell] >> j & 1 == 0) {
                *bias = by_key[j * CELL + cell];
            }
            let most = kernels::max(s, &biases);
            let finite = most > f32::NEG_INFINITY;
            let sum = if finite { kernels::exp2_sum(s, &mut biases, core::f32::consts::LOG2_E, most) } else { 1.0 };
            (cells.most[cell], cells.more[cell]) = (most, libm::logf(sum));
        }
        cells
    }
}
