//! Weighted sums of values, into the rows of a list.

use super::{BLOCK, Elements, Values, check};
use crate::mem::{Dtype, Rows};
use crate::simd::Task;
use crate::simd::element::{Bf16, Element, F16, F32};
use crate::simd::vector::Simd;

/// `out[rows[i]] += sum_j p[i * BLOCK + j] * values[j]`; `values` is `[BLOCK][stride]`, padded like the rows of `out` to
/// whole vectors.
pub(crate) struct AddValues<'a> {
    pub(crate) p: &'a [f32],
    pub(crate) values: Values<'a>,
    pub(crate) rows: &'a [u16],
    pub(crate) out: &'a mut [f32],
    /// Where the weights are to be added up too, `[query][BLOCK]`.
    pub(crate) total: Option<&'a mut [f32]>,
    /// How far the keys behind the values spread, and where the weights times their squares are to be added up,
    /// `[query][BLOCK]`.
    pub(crate) lean: Option<(&'a [f32], &'a mut [f32])>,
}

impl Task for AddValues<'_> {
    type Out = ();
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Values { data, stride, cols } = self.values;
        check(self.rows, self.out.len(), stride, cols.next_multiple_of(S::LANES));
        assert!(self.p.len() >= self.rows.len() * BLOCK);
        if let Some(total) = &mut self.total {
            check(self.rows, total.len(), BLOCK, BLOCK);
            for (i, &row) in self.rows.iter().enumerate() {
                for c in (0..BLOCK).step_by(S::LANES) {
                    // SAFETY: vector c of rows of BLOCK numbers, checked.
                    unsafe {
                        let at = total.as_mut_ptr().add(row as usize * BLOCK + c);
                        s.store(at, s.add(s.load(at), s.load(self.p.as_ptr().add(i * BLOCK + c))));
                    }
                }
            }
        }
        if let Some((spread, lean)) = &mut self.lean {
            check(self.rows, lean.len(), BLOCK, BLOCK);
            assert!(spread.len() >= BLOCK);
            for (i, &row) in self.rows.iter().enumerate() {
                for c in (0..BLOCK).step_by(S::LANES) {
                    // SAFETY: vector c of the block and of rows of BLOCK numbers, checked.
                    unsafe {
                        let (at, x) = (lean.as_mut_ptr().add(row as usize * BLOCK + c), s.load(spread.as_ptr().add(c)));
                        let weight = s.load(self.p.as_ptr().add(i * BLOCK + c));
                        s.store(at, s.fma(s.mul(x, x), weight, s.load(at)));
                    }
                }
            }
        }
        match data {
            Elements::F32(x) => {
                assert!(x.len() >= BLOCK * stride);
                // SAFETY: rows and vectors are inside, as checked.
                unsafe { self.add(s, x.as_ptr()) }
            }
            Elements::Bytes(x) => self.add_bytes(s, x),
        }
    }
}

impl AddValues<'_> {
    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn add<S: Simd>(mut self, s: S, values: *const f32) {
        let vecs = self.values.cols.div_ceil(S::LANES);
        let mut i = 0;
        while i < self.rows.len() {
            let r = match self.rows.len() - i {
                4.. => 4,
                // On one lane that would only be more code.
                2.. if S::LANES > 1 => 2,
                _ => 1,
            };
            let mut v = 0;
            while v < vecs {
                let c = if S::WIDE && v + 4 <= vecs {
                    4
                } else if v + 2 <= vecs {
                    2
                } else {
                    1
                };
                // SAFETY: rows and vectors are inside, as checked.
                unsafe {
                    match (r, c) {
                        (4, 4) => self.tile::<S, 4, 4>(s, values, i, v),
                        (4, 2) => self.tile::<S, 4, 2>(s, values, i, v),
                        (4, _) => self.tile::<S, 4, 1>(s, values, i, v),
                        (2, 4) => self.tile::<S, 2, 4>(s, values, i, v),
                        (2, 2) => self.tile::<S, 2, 2>(s, values, i, v),
                        (2, _) => self.tile::<S, 2, 1>(s, values, i, v),
                        (_, 4) => self.tile::<S, 1, 4>(s, values, i, v),
                        (_, 2) => self.tile::<S, 1, 2>(s, values, i, v),
                        _ => self.tile::<S, 1, 1>(s, values, i, v),
                    }
                }
                v += c;
            }
            i += r;
        }
    }

    /// `R` rows from list place `i`, `C` vectors from `v`. Rows of a tile must differ.
    ///
    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const C: usize>(&mut self, s: S, values: *const f32, i: usize, v: usize) {
        let stride = self.values.stride;
        let mut acc = [[s.splat(0.0); C]; R];
        let mut out = [self.out.as_mut_ptr(); R];
        for r in 0..R {
            // SAFETY: the row is inside.
            unsafe {
                out[r] = out[r].add(self.rows[i + r] as usize * stride + v * S::LANES);
            }
        }
        for j in 0..BLOCK {
            let mut b = [s.splat(0.0); C];
            for c in 0..C {
                // SAFETY: value j, vector v + c.
                b[c] = unsafe { s.load(values.add(j * stride + (v + c) * S::LANES)) };
            }
            for r in 0..R {
                // SAFETY: weight j of row i + r.
                let a = s.splat(unsafe { *self.p.as_ptr().add((i + r) * BLOCK + j) });
                for c in 0..C {
                    acc[r][c] = s.fma(a, b[c], acc[r][c]);
                }
            }
        }
        // A block is summed by itself first: one rounding a block in a long sum.
        for r in 0..R {
            for c in 0..C {
                // SAFETY: as above.
                unsafe {
                    let to = out[r].add(c * S::LANES);
                    s.store(to, s.add(s.load(to), acc[r][c]));
                }
            }
        }
    }
}

/// `out[r * stride + at + b] += by[r * BLOCK] * x[i * BLOCK + b]`, `r` the `i`-th of `rows`.
pub(crate) struct AddScaled<'a> {
    pub(crate) by: &'a [f32],
    pub(crate) x: &'a [f32],
    pub(crate) rows: &'a [u16],
    pub(crate) out: &'a mut [f32],
    pub(crate) stride: usize,
    pub(crate) at: usize,
}

impl Task for AddScaled<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        check(self.rows, self.out.len(), self.stride, self.stride);
        check(self.rows, self.by.len(), BLOCK, BLOCK);
        assert!(self.at + BLOCK <= self.stride && self.x.len() >= self.rows.len() * BLOCK);
        for (i, &row) in self.rows.iter().enumerate() {
            let row = row as usize;
            let by = s.splat(self.by[row * BLOCK]);
            for c in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: vector c of row i, whose rows are there.
                unsafe {
                    let to = self.out.as_mut_ptr().add(row * self.stride + self.at + c);
                    s.store(to, s.fma(by, s.load(self.x.as_ptr().add(i * BLOCK + c)), s.load(to)));
                }
            }
        }
    }
}

/// Adds up the weights of a node's cells by row, into `total` too. Rows whose sum is below `fine` need no more than the
/// node's mean value: the sum goes to `mass[places[i] * BLOCK + lane]`. The others move to the front, with their queries.
pub(crate) struct Settle<'a> {
    pub(crate) p: &'a mut [f32],
    pub(crate) rows: &'a [u16],
    pub(crate) places: &'a [u16],
    pub(crate) fine: &'a [f32],
    pub(crate) lane: usize,
    pub(crate) mass: &'a mut [f32],
    /// `[query][BLOCK]`.
    pub(crate) total: &'a mut [f32],
    pub(crate) full: &'a mut [u16],
}

impl Task for Settle<'_> {
    /// Rows at the front.
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let Settle { p, rows, places, fine, lane, mass, total, full } = self;
        let n = rows.len();
        check(rows, total.len(), BLOCK, BLOCK);
        check(places, mass.len(), BLOCK, BLOCK);
        assert!(p.len() >= n * BLOCK && full.len() >= n && places.len() == n && lane < BLOCK);
        let mut front = 0;
        for begin in (0..n).step_by(4) {
            let count = (n - begin).min(4);
            let mut sums = [s.splat(0.0); 4];
            for (i, sum) in (begin..begin + count).zip(&mut sums) {
                for c in (0..BLOCK).step_by(S::LANES) {
                    // SAFETY: vector c of rows of BLOCK numbers.
                    *sum = s.add(*sum, unsafe { s.load(p.as_ptr().add(i * BLOCK + c)) });
                }
            }
            let sums = s.reduce_add4(sums);
            for (i, sum) in (begin..begin + count).zip(sums) {
                let q = rows[i] as usize;
                // Written always, kept where it is large: no branch to mispredict.
                for c in (0..BLOCK).step_by(S::LANES) {
                    // SAFETY: vector c of rows of BLOCK numbers; front <= i.
                    unsafe {
                        let x = s.load(p.as_ptr().add(i * BLOCK + c));
                        s.store(p.as_mut_ptr().add(front * BLOCK + c), x);
                    }
                }
                full[front] = rows[i];
                let small = sum < fine[q];
                // With the node's mean value it is added up there.
                mass[places[i] as usize * BLOCK + lane] = if small { sum } else { 0.0 };
                total[q * BLOCK + lane] += if small { 0.0 } else { sum };
                front += usize::from(!small);
            }
        }
        front
    }
}

/// `out[row] += sum over bits j of p[i * BLOCK + j] * values[ids[j]]` for `rows[i] = [row, bits]`.
pub(crate) struct AddKeys<'a> {
    pub(crate) p: &'a [f32],
    pub(crate) rows: &'a [[u16; 2]],
    pub(crate) values: &'a Rows<'a>,
    pub(crate) ids: &'a [u32],
    pub(crate) out: &'a mut [f32],
    pub(crate) stride: usize,
}

impl Task for AddKeys<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.values.dtype() {
            Dtype::F32 => self.add::<F32, S>(s),
            Dtype::F16 => self.add::<F16, S>(s),
            Dtype::Bf16 => self.add::<Bf16, S>(s),
        }
    }
}

impl AddKeys<'_> {
    /// Asks for the values that are to be added: they lie far apart, and nobody knew of them.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(s: S, rows: &[[u16; 2]], values: &Rows<'_>, ids: &[u32]) {
        let (bytes, stride) = (values.cols() * values.dtype().size(), values.stride());
        let mut bits = rows.iter().fold(0, |all, row| all | row[1]);
        while bits != 0 {
            let j = bits.trailing_zeros() as usize & (BLOCK - 1);
            bits &= bits - 1;
            let row = values.as_ptr().wrapping_add(ids[j] as usize * stride);
            for at in (0..bytes).step_by(64) {
                s.prefetch(row.wrapping_add(at));
            }
        }
    }

    #[inline(always)]
    fn add<E: Element, S: Simd>(self, s: S) {
        let cols = self.values.cols();
        assert!(self.ids.len() == BLOCK && self.ids.iter().all(|&id| (id as usize) < self.values.rows()));
        assert!(self.p.len() >= self.rows.len() * BLOCK && cols <= self.stride);
        let step = self.values.stride() / self.values.dtype().size();
        let mut from = [self.values.as_ptr().cast::<E::T>(); BLOCK];
        for (from, &id) in from.iter_mut().zip(self.ids) {
            *from = from.wrapping_add(id as usize * step);
        }
        for (p, &[row, bits]) in self.p.chunks_exact(BLOCK).zip(self.rows) {
            let out = &mut self.out[row as usize * self.stride..][..cols];
            let mut v = 0;
            // SAFETY: rows of `cols` elements of this type, vectors inside them.
            unsafe {
                while v + 4 * S::LANES <= cols {
                    keys::<E, S, 4>(s, &from, bits, p, v, out);
                    v += 4 * S::LANES;
                }
                while v + S::LANES <= cols {
                    keys::<E, S, 1>(s, &from, bits, p, v, out);
                    v += S::LANES;
                }
            }
            if v < cols {
                let (mut acc, mut bits, left) = (s.splat(0.0), bits, cols - v);
                // SAFETY: what is left of the rows.
                unsafe {
                    while bits != 0 {
                        let j = bits.trailing_zeros() as usize & (BLOCK - 1);
                        bits &= bits - 1;
                        acc = s.fma(s.splat(p[j]), E::load_partial(s, from[j].add(v), left), acc);
                    }
                    let to = out.as_mut_ptr().add(v);
                    s.store_partial(to, left, s.add(s.load_partial(to, left), acc));
                }
            }
        }
    }
}

/// `C` vectors from element `v` on of one row of [`AddKeys`].
///
/// # Safety
/// They are inside the values and the row.
#[inline(always)]
unsafe fn keys<E: Element, S: Simd, const C: usize>(
    s: S,
    from: &[*const E::T; BLOCK],
    mut bits: u16,
    p: &[f32],
    v: usize,
    out: &mut [f32],
) {
    let mut acc = [s.splat(0.0); C];
    while bits != 0 {
        let j = bits.trailing_zeros() as usize & (BLOCK - 1);
        bits &= bits - 1;
        let w = s.splat(p[j]);
        for c in 0..C {
            // SAFETY: inside value j.
            acc[c] = s.fma(w, unsafe { E::load(s, from[j].add(v + c * S::LANES)) }, acc[c]);
        }
    }
    // A cell is summed by itself first, as in `AddValues`.
    for c in 0..C {
        // SAFETY: inside the row.
        unsafe {
            let to = out.as_mut_ptr().add(v + c * S::LANES);
            s.store(to, s.add(s.load(to), acc[c]));
        }
    }
}
