//! Register tiles of dense attention.
//!
//! Queries lie along the lanes: a panel is [`PANEL`] queries, stored transposed, and scores come out as one row of
//! `PANEL` numbers a key. So keys are read in place as broadcasts, weights are contiguous
//! broadcasts for the second product, and the softmax never crosses lanes.

use super::element::{Bf16, F16, F32, Stored};
use super::rows;
use super::vector::Simd;
use crate::mem::{Dtype, Rows};

/// Queries of a panel: a multiple of every vector length and of [`ROWS`].
pub(crate) const PANEL: usize = 48;
/// Query rows of one tile of weights x values.
pub(crate) const ROWS: usize = 6;
/// Keys of the largest tile of queries x keys: score buffers have room for so many beyond those asked for.
pub(crate) const KEYS: usize = 8;

/// Keys of a tile of queries x keys.
pub(crate) const fn keys<S: Simd>() -> usize {
    if S::WIDE { KEYS } else { 6 }
}

/// Keys that the queries of one vector see, `begin..end` in the block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Span {
    pub(crate) begin: usize,
    pub(crate) end: usize,
}

/// First of the vectors whose spans meet keys `from..to`, and the one after the last.
#[inline(always)]
pub(crate) fn meeting(spans: &[Span], from: usize, to: usize) -> (usize, usize) {
    let (mut first, mut last) = (0, spans.len());
    while first < last && (spans[first].end <= from || spans[first].begin >= to) {
        first += 1;
    }
    while first < last && (spans[last - 1].end <= from || spans[last - 1].begin >= to) {
        last -= 1;
    }
    (first, last)
}

/// Rows and columns that are transposed at once.
const SQUARE: usize = 16;

/// Queries as panels `[cols][PANEL]`: row `query(r)` of `rows` becomes lane `r % PANEL` of panel `r / PANEL`, for `n` of them. What is
/// left of the last panel is zero.
///
/// # Panics
/// If rows are not there or `out` is too short.
#[inline(always)]
pub(crate) fn pack_queries<S: Simd>(s: S, rows: &Rows<'_>, query: impl Fn(usize) -> usize, n: usize, out: &mut [f32]) {
    let dim = rows.cols();
    let zeros = [0.0; SQUARE];
    let (mut wide, mut square) = ([[0.0f32; SQUARE]; SQUARE], [0.0f32; SQUARE * SQUARE]);
    for begin in (0..n.next_multiple_of(PANEL)).step_by(SQUARE) {
        let panel = &mut out[begin / PANEL * dim * PANEL..][..dim * PANEL];
        for k in (0..dim).step_by(SQUARE) {
            let cols = (dim - k).min(SQUARE);
            let mut from = [zeros.as_ptr(); SQUARE];
            for (r, (from, wide)) in from.iter_mut().zip(&mut wide).enumerate().take(n.saturating_sub(begin)) {
                let i = query(begin + r);
                *from = match rows.row_f32(i) {
                    Some(row) if cols == SQUARE => row[k..][..SQUARE].as_ptr(),
                    _ => {
                        rows::widen_part(s, rows, i, k, &mut wide[..cols]);
                        wide.as_ptr()
                    }
                };
            }
            // SAFETY: so many numbers are there in every row, and room for all of them.
            unsafe { s.transpose(&from, 0, square.as_mut_ptr()) };
            let to = panel[k * PANEL..].chunks_exact_mut(PANEL);
            for (to, from) in to.zip(square.chunks_exact(SQUARE)).take(cols) {
                to[begin % PANEL..][..SQUARE].copy_from_slice(from);
            }
        }
    }
}

/// Inner products of keys `lo..hi` with a panel: `out[(j - lo) * PANEL + lane]`. Only vectors whose span meets the tile
/// are computed; the rest of `out` stays as it is. `max` becomes the largest product of every lane computed.
///
/// `q` is `[cols][PANEL]`, `spans` has one entry per vector in use, `out` has [`KEYS`] rows more than `hi - lo`. `between` comes
/// before each tile, with its keys.
#[inline(always)]
pub(crate) fn scores<S: Simd>(
    s: S,
    q: &[f32],
    keys: &Rows<'_>,
    lo: usize,
    hi: usize,
    spans: &[Span],
    out: &mut [f32],
    max: &mut [f32; PANEL],
    mut between: impl FnMut(usize, usize),
) {
    let dim = keys.cols();
    assert!(lo <= hi && hi <= keys.rows() && keys.dtype() == Dtype::F32);
    assert!(q.len() >= dim * PANEL && spans.len() * S::LANES <= PANEL);
    assert!(out.len() >= (hi - lo + KEYS) * PANEL);
    max.fill(f32::NEG_INFINITY);
    let mut j = lo;
    while j < hi {
        let end = j + self::keys::<S>();
        between(j, end.min(hi));
        let (mut first, last) = meeting(spans, j, end);
        while first < last {
            let lane = first * S::LANES;
            let n = (last - first).min(if S::WIDE { 3 } else { 2 });
            // SAFETY: rows j.. exist up to `hi` (later ones are clamped), the panel has `dim` rows, `out` has room for a
            // whole tile from row j - lo on, and lanes lane..lane + n * LANES are inside a panel.
            unsafe {
                let tile = Tile {
                    q: q.as_ptr().add(lane),
                    keys: keys.as_ptr().cast(),
                    stride: keys.stride() / 4,
                    first: j,
                    last: hi - 1,
                    dim,
                    out: out.as_mut_ptr().add((j - lo) * PANEL + lane),
                    max: max.as_mut_ptr().add(lane),
                };
                match (S::WIDE, n) {
                    (true, 3) => tile.run::<S, 8, 3>(s),
                    (true, 2) => tile.run::<S, 8, 2>(s),
                    (true, _) => tile.run::<S, 8, 1>(s),
                    (false, 2) => tile.run::<S, 6, 2>(s),
                    (false, _) => tile.run::<S, 6, 1>(s),
                }
            }
            first += n;
        }
        j = end;
    }
}

struct Tile {
    q: *const f32,
    keys: *const f32,
    stride: usize,
    first: usize,
    last: usize,
    dim: usize,
    out: *mut f32,
    max: *mut f32,
}

impl Tile {
    /// `R` keys x `C` vectors of queries.
    ///
    /// # Safety
    /// Key rows `first..=last` are readable; `q` has `dim` panel rows; `out` and `max` have room.
    #[inline(always)]
    unsafe fn run<S: Simd, const R: usize, const C: usize>(self, s: S) {
        let mut rows = [self.keys; R];
        for r in 0..R {
            // A tile past the end repeats the last key; nobody looks at those scores.
            let j = if self.first + r < self.last { self.first + r } else { self.last };
            // SAFETY: j <= last.
            rows[r] = unsafe { self.keys.add(j * self.stride) };
        }
        let mut acc = [[s.splat(0.0); C]; R];
        let mut q = self.q;
        for k in 0..self.dim {
            let mut b = [s.splat(0.0); C];
            for c in 0..C {
                // SAFETY: panel row k.
                b[c] = unsafe { s.load(q.add(c * S::LANES)) };
            }
            for r in 0..R {
                // SAFETY: k < dim.
                let a = s.splat(unsafe { *rows[r].add(k) });
                for c in 0..C {
                    acc[r][c] = s.fma(a, b[c], acc[r][c]);
                }
            }
            q = q.wrapping_add(PANEL);
        }
        for c in 0..C {
            // SAFETY: `max` has room for C vectors.
            let mut m = unsafe { s.load(self.max.add(c * S::LANES)) };
            for r in 0..R {
                m = s.max(m, acc[r][c]);
                // SAFETY: `out` has room for the tile.
                unsafe { s.store(self.out.add(r * PANEL + c * S::LANES), acc[r][c]) };
            }
            // SAFETY: as above.
            unsafe { s.store(self.max.add(c * S::LANES), m) };
        }
    }
}

/// Vectors of the groups that `cols` columns are cut into: as many as a tile takes, nearly equal, because a last group of
/// a single vector would wait for its own latency. Returns the vectors of the group that starts at vector `v`.
#[inline(always)]
pub(crate) fn group<S: Simd>(cols: usize, v: usize) -> usize {
    let most = if S::WIDE { 4 } else { 2 };
    let left = cols.div_ceil(S::LANES) - v;
    left.div_ceil(left.div_ceil(most))
}

/// Values as [`accumulate`] reads them.
#[derive(Clone, Copy)]
pub(crate) enum Values<'a> {
    /// What [`pack_values`] wrote: groups of columns one after the other, in each the rows of all `count` values, contiguous.
    Packed { data: &'a [f32], count: usize, cols: usize },
    /// Where they lie: f32, of whole vectors that begin where vectors of memory do.
    InPlace(Rows<'a>),
}

impl<'a> Values<'a> {
    /// Rows that tiles can read where they lie, if these are. Vectors across the borders of cache lines would cost a tile more
    /// than packing does.
    #[inline(always)]
    pub(crate) fn in_place<S: Simd>(rows: Rows<'a>) -> Option<Self> {
        let vector = S::LANES * 4;
        let aligned = (rows.as_ptr() as usize).is_multiple_of(vector) && rows.stride().is_multiple_of(vector);
        (rows.dtype() == Dtype::F32 && rows.cols().is_multiple_of(S::LANES) && aligned).then_some(Values::InPlace(rows))
    }

    /// Columns of a value.
    #[inline(always)]
    fn cols(&self) -> usize {
        match self {
            Values::Packed { cols, .. } => *cols,
            Values::InPlace(rows) => rows.cols(),
        }
    }

    /// Where the group of `c` vectors from vector `v` on of values `lo..lo + n` begins, and how far it is from one value to the
    /// next, in elements.
    ///
    /// # Panics
    /// If they are not all there.
    #[inline(always)]
    fn group<S: Simd>(&self, v: usize, c: usize, lo: usize, n: usize) -> (*const f32, usize) {
        let wide = self.cols().next_multiple_of(S::LANES);
        assert!((v + c) * S::LANES <= wide);
        match *self {
            Values::Packed { data, count, .. } => {
                assert!(lo <= count && n <= count - lo && data.len() >= count * wide);
                (data.as_ptr().wrapping_add((count * v + lo * c) * S::LANES), c * S::LANES)
            }
            Values::InPlace(rows) => {
                assert!(
                    lo <= rows.rows() && n <= rows.rows() - lo && rows.dtype() == Dtype::F32 && wide == rows.cols()
                );
                let stride = rows.stride() / 4;
                (rows.as_ptr().cast::<f32>().wrapping_add(lo * stride + v * S::LANES), stride)
            }
        }
    }
}

/// Packs rows of any element type; `out` holds `rows` times the columns rounded up to the vector length.
#[inline(always)]
pub(crate) fn pack_values<S: Simd>(s: S, values: &Rows<'_>, out: &mut [f32]) {
    let (n, cols) = (values.rows(), values.cols());
    assert!(out.len() >= n * cols.next_multiple_of(S::LANES));
    let p = values.as_ptr();
    let stride = values.stride() / values.dtype().size();
    // SAFETY: the view has n rows of cols elements of this type, stride elements apart; `out` has room for all vectors.
    unsafe {
        match values.dtype() {
            Dtype::F32 => pack_values_of::<F32, S>(s, p.cast(), stride, n, cols, out.as_mut_ptr()),
            Dtype::F16 => pack_values_of::<F16, S>(s, p.cast(), stride, n, cols, out.as_mut_ptr()),
            Dtype::Bf16 => pack_values_of::<Bf16, S>(s, p.cast(), stride, n, cols, out.as_mut_ptr()),
        }
    }
}

/// # Safety
/// `n` rows of `cols` elements, `stride` apart, are readable at `p`; `n` times as many vectors as cover `cols` are
/// writable at `out`.
#[inline(always)]
unsafe fn pack_values_of<E: Stored, S: Simd>(
    s: S,
    p: *const E::T,
    stride: usize,
    n: usize,
    cols: usize,
    out: *mut f32,
) {
    let vecs = cols.div_ceil(S::LANES);
    let mut v = 0;
    while v < vecs {
        let c = group::<S>(cols, v);
        let at = v * S::LANES;
        // SAFETY: group v has c vectors, the last of which may be partial, and starts n * v vectors in.
        unsafe {
            let (from, to) = (p.add(at), out.add(n * at));
            if at + c * S::LANES > cols {
                pack_partial::<E, S>(s, from, stride, n, cols - at, to);
            } else {
                match (S::WIDE, c) {
                    (true, 4) => pack_group::<E, S, 4>(s, from, stride, n, to),
                    (true, 3) => pack_group::<E, S, 3>(s, from, stride, n, to),
                    (_, 2) => pack_group::<E, S, 2>(s, from, stride, n, to),
                    _ => pack_group::<E, S, 1>(s, from, stride, n, to),
                }
            }
        }
        v += c;
    }
}

/// `C` whole vectors of every row.
///
/// # Safety
/// They are readable at `p + j * stride` for `j < n`, and writable at `out`.
#[inline(always)]
unsafe fn pack_group<E: Stored, S: Simd, const C: usize>(
    s: S,
    mut p: *const E::T,
    stride: usize,
    n: usize,
    mut out: *mut f32,
) {
    for _ in 0..n {
        for c in 0..C {
            // SAFETY: vector c of a row.
            unsafe { s.store(out.add(c * S::LANES), E::load(s, p.add(c * S::LANES))) };
        }
        p = p.wrapping_add(stride);
        out = out.wrapping_add(C * S::LANES);
    }
}

/// `cols` elements of every row and zeros up to a whole vector.
///
/// # Safety
/// They are readable at `p + j * stride` for `j < n`; as many whole vectors are writable at `out`.
#[inline(always)]
unsafe fn pack_partial<E: Stored, S: Simd>(
    s: S,
    mut p: *const E::T,
    stride: usize,
    n: usize,
    cols: usize,
    mut out: *mut f32,
) {
    for _ in 0..n {
        let mut at = 0;
        while at < cols {
            // SAFETY: a whole vector or what is left of the row.
            unsafe {
                let whole = at + S::LANES <= cols;
                let x = if whole { E::load(s, p.add(at)) } else { E::load_partial(s, p.add(at), cols - at) };
                s.store(out.add(at), x);
            }
            at += S::LANES;
        }
        p = p.wrapping_add(stride);
        out = out.wrapping_add(at);
    }
}

/// One group of columns of `out[r] = out[r] * alpha[r] + sum_j p[j * PANEL + r] * values[lo + j]` for [`ROWS`] query rows
/// and `n` values; without factors, all are 1. The group is the one that starts at vector `v`.
///
/// `out` rows are `stride` apart and begin at column 0; whole vectors are written. Rows that nobody asked for are computed
/// from whatever their weights hold: one shape of tile keeps the code small.
#[inline(always)]
pub(crate) fn accumulate<S: Simd>(
    s: S,
    p: &[f32],
    values: Values<'_>,
    v: usize,
    lo: usize,
    n: usize,
    alpha: Option<&[f32]>,
    out: &mut [f32],
    stride: usize,
) {
    let wide = values.cols().next_multiple_of(S::LANES);
    assert!(wide <= stride && v * S::LANES < wide);
    if n == 0 {
        return;
    }
    assert!(p.len() >= (n - 1) * PANEL + ROWS && out.len() >= (ROWS - 1) * stride + wide);
    assert!(alpha.is_none_or(|a| a.len() >= ROWS));
    let c = group::<S>(values.cols(), v);
    let (from, step) = values.group::<S>(v, c, lo, n);
    // SAFETY: n values of c vectors were found there; the other lengths were checked above.
    unsafe {
        let w = Weighted {
            p: p.as_ptr(),
            values: from,
            step,
            n,
            alpha: alpha.map_or(core::ptr::null(), <[f32]>::as_ptr),
            out: out.as_mut_ptr().add(v * S::LANES),
            stride,
        };
        match (S::WIDE, c) {
            (true, 4) => w.run::<S, ROWS, 4>(s),
            (true, 3) => w.run::<S, ROWS, 3>(s),
            (_, 2) => w.run::<S, ROWS, 2>(s),
            _ => w.run::<S, ROWS, 1>(s),
        }
    }
}

struct Weighted {
    p: *const f32,
    values: *const f32,
    /// Elements from one value to the next.
    step: usize,
    n: usize,
    /// Null for factors of 1.
    alpha: *const f32,
    out: *mut f32,
    stride: usize,
}

impl Weighted {
    /// `R` rows x `C` vectors of values.
    ///
    /// # Safety
    /// `n` value rows of `C` vectors, `step` apart, `n` weight rows of `R` numbers, `R` factors and `R` output rows are there.
    #[inline(always)]
    unsafe fn run<S: Simd, const R: usize, const C: usize>(self, s: S) {
        let mut acc = [[s.splat(0.0); C]; R];
        let (mut p, mut v) = (self.p, self.values);
        for _ in 0..self.n {
            let mut b = [s.splat(0.0); C];
            for c in 0..C {
                // SAFETY: a value row of C vectors.
                b[c] = unsafe { s.load(v.add(c * S::LANES)) };
            }
            for r in 0..R {
                // SAFETY: a weight row of R numbers.
                let a = s.splat(unsafe { *p.add(r) });
                for c in 0..C {
                    acc[r][c] = s.fma(a, b[c], acc[r][c]);
                }
            }
            p = p.wrapping_add(PANEL);
            v = v.wrapping_add(self.step);
        }
        for r in 0..R {
            // SAFETY: R factors or none, and R rows of C vectors.
            unsafe {
                let row = self.out.add(r * self.stride);
                if self.alpha.is_null() {
                    for c in 0..C {
                        let at = row.add(c * S::LANES);
                        s.store(at, s.add(s.load(at), acc[r][c]));
                    }
                } else {
                    let alpha = s.splat(*self.alpha.add(r));
                    for c in 0..C {
                        let at = row.add(c * S::LANES);
                        s.store(at, s.fma(s.load(at), alpha, acc[r][c]));
                    }
                }
            }
        }
    }
}

#[cfg(all(test, feature = "full"))]
mod tests {
    use super::*;
    use crate::simd::{Isa, Task};
    use half::f16;
    use std::vec::Vec;

    struct Pack<'a>(Rows<'a>, &'a [usize], &'a mut [f32]);

    impl Task for Pack<'_> {
        type Out = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            pack_queries(s, &self.0, |r| self.1[r], self.1.len(), self.2);
        }
    }

    /// Rows in any order, of whole squares and not, in two types; what is left of a panel becomes zero.
    #[test]
    fn queries_become_panels() {
        for dim in [1, 16, 40] {
            let x: Vec<f32> = (0..60 * dim).map(|i| i as f32 / 4.0).collect();
            let halves: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
            for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
                for n in [1, 16, 50, 60] {
                    let order: Vec<usize> = (0..n).map(|r| r * 7 % 60).collect();
                    for rows in [Rows::new(&x, dim).unwrap(), Rows::new(&halves, dim).unwrap()] {
                        let mut out: Vec<f32> = std::vec![f32::NAN; n.next_multiple_of(PANEL) * dim];
                        isa.run(Pack(rows, &order, &mut out));
                        let mut row = std::vec![0.0; dim];
                        for r in 0..n.next_multiple_of(PANEL) {
                            row.fill(0.0);
                            if r < n {
                                rows.read(order[r], &mut row);
                            }
                            for (k, &want) in row.iter().enumerate() {
                                let at = (r / PANEL * dim + k) * PANEL + r % PANEL;
                                assert_eq!(out[at], want, "{}: dim {dim}, row {r}", isa.name());
                            }
                        }
                    }
                }
            }
        }
    }
}
