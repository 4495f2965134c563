//! Inner products of blocks with lists of rows, and quadratic forms of rows.

use super::{BLOCK, Matrix, Stored, check};
use crate::simd::Task;
use crate::simd::element::{Bf16, Element, F32};
use crate::simd::vector::Simd;

/// `out[i * BLOCK + j] = <q[rows[i]], vector j>`; `block` is `[cols][BLOCK]`.
pub(crate) struct Scores<'a> {
    pub(crate) block: Stored<'a>,
    pub(crate) q: Matrix<'a>,
    pub(crate) rows: &'a [u16],
    pub(crate) out: &'a mut [f32],
}

impl Task for Scores<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        check(self.rows, self.q.data.len(), self.q.stride, self.q.cols);
        assert!(self.block.len() >= self.q.cols * BLOCK && self.out.len() >= self.rows.len() * BLOCK);
        // SAFETY: rows are inside the matrix, the block has `cols` rows, `out` a row for every query.
        unsafe {
            match self.block {
                Stored::F32(block) => self.of::<F32, S>(s, block.as_ptr()),
                Stored::Bf16(block) => self.of::<Bf16, S>(s, block.as_ptr().cast()),
            }
        }
    }
}

impl Scores<'_> {
    /// # Safety
    /// As checked in `run`; `block` holds elements of type `E`.
    #[inline(always)]
    unsafe fn of<E: Element, S: Simd>(self, s: S, block: *const E::T) {
        // SAFETY: passed on.
        unsafe {
            match S::LANES {
                16 => self.tiles::<E, S, 1, 8>(s, block),
                8 => self.tiles::<E, S, 2, 4>(s, block),
                4 => self.tiles::<E, S, 4, 4>(s, block),
                _ => self.tiles::<E, S, 16, 1>(s, block),
            }
        }
    }

    /// # Safety
    /// As checked in `run`; `C * LANES` is the block.
    #[inline(always)]
    unsafe fn tiles<E: Element, S: Simd, const C: usize, const R: usize>(mut self, s: S, block: *const E::T) {
        let mut i = 0;
        // SAFETY: rows i.. are there.
        unsafe {
            while i + R <= self.rows.len() {
                self.tile::<E, S, C, R>(s, block, i);
                i += R;
            }
            // Fewer rows would wait for their own sums: two chains each.
            if R > 4 && i + 4 <= self.rows.len() {
                self.pair::<E, S, C, 4>(s, block, i);
                i += 4;
            }
            while i + 2 <= self.rows.len() {
                self.pair::<E, S, C, 2>(s, block, i);
                i += 2;
            }
            if i < self.rows.len() {
                self.pair::<E, S, C, 1>(s, block, i);
            }
        }
    }

    /// As [`Scores::tile`], even and odd elements summed apart.
    ///
    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn pair<E: Element, S: Simd, const C: usize, const R: usize>(&mut self, s: S, block: *const E::T, i: usize) {
        let mut q = [self.q.data.as_ptr(); R];
        for r in 0..R {
            // SAFETY: the row is inside.
            q[r] = unsafe { q[r].add(self.rows[i + r] as usize * self.q.stride) };
        }
        let mut acc = [[[s.splat(0.0); C]; R]; 2];
        let mut k = 0;
        while k < self.q.cols {
            for half in 0..2 {
                if k + half < self.q.cols {
                    for c in 0..C {
                        // SAFETY: row k + half of the block.
                        let b = unsafe { E::load(s, block.add((k + half) * BLOCK + c * S::LANES)) };
                        for r in 0..R {
                            // SAFETY: k + half < cols.
                            let a = s.splat(unsafe { *q[r].add(k + half) });
                            acc[half][r][c] = s.fma(a, b, acc[half][r][c]);
                        }
                    }
                }
            }
            k += 2;
        }
        for r in 0..R {
            for c in 0..C {
                let sum = s.add(acc[0][r][c], acc[1][r][c]);
                // SAFETY: `out` has a row for every query.
                unsafe { s.store(self.out.as_mut_ptr().add((i + r) * BLOCK + c * S::LANES), sum) };
            }
        }
    }

    /// `R` rows from list place `i` on.
    ///
    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn tile<E: Element, S: Simd, const C: usize, const R: usize>(
        &mut self,
        s: S,
        mut block: *const E::T,
        i: usize,
    ) {
        let mut q = [self.q.data.as_ptr(); R];
        for r in 0..R {
            // SAFETY: the row is inside.
            q[r] = unsafe { q[r].add(self.rows[i + r] as usize * self.q.stride) };
        }
        let mut acc = [[s.splat(0.0); C]; R];
        for k in 0..self.q.cols {
            let mut b = [s.splat(0.0); C];
            for c in 0..C {
                // SAFETY: row k of the block.
                b[c] = unsafe { E::load(s, block.add(c * S::LANES)) };
            }
            for r in 0..R {
                // SAFETY: k < cols.
                let a = s.splat(unsafe { *q[r].add(k) });
                for c in 0..C {
                    acc[r][c] = s.fma(a, b[c], acc[r][c]);
                }
            }
            block = block.wrapping_add(BLOCK);
        }
        for r in 0..R {
            for c in 0..C {
                // SAFETY: `out` has a row for every query.
                unsafe { s.store(self.out.as_mut_ptr().add((i + r) * BLOCK + c * S::LANES), acc[r][c]) };
            }
        }
    }
}

/// `out[i] = sqrt(max(q_i^T moment q_i, 0) * factor)` for the first `out.len()` rows; `moment` is `[cols][stride]`, symmetric, padded
/// with zeros to whole blocks like the rows of `q`.
pub(crate) struct Forms<'a> {
    pub(crate) q: Matrix<'a>,
    pub(crate) moment: Stored<'a>,
    pub(crate) factor: f32,
    pub(crate) out: &'a mut [f32],
}

impl Task for Forms<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Matrix { data, stride, cols } = self.q;
        assert!(stride.is_multiple_of(BLOCK) && cols <= stride && self.moment.len() >= cols * stride);
        assert!(data.len() >= self.out.len() * stride);
        // SAFETY: the rows and the moment are inside.
        unsafe {
            match self.moment {
                Stored::F32(x) => self.squares::<F32, S>(s, x.as_ptr()),
                Stored::Bf16(x) => self.squares::<Bf16, S>(s, x.as_ptr().cast()),
            }
        }
        let mut parts = self.out.chunks_exact_mut(S::LANES);
        for part in &mut parts {
            // SAFETY: a whole vector.
            unsafe { s.store(part.as_mut_ptr(), s.sqrt(s.load(part.as_ptr()))) };
        }
        let rest = parts.into_remainder();
        if !rest.is_empty() {
            // SAFETY: as many numbers as there are.
            unsafe {
                s.store_partial(rest.as_mut_ptr(), rest.len(), s.sqrt(s.load_partial(rest.as_ptr(), rest.len())))
            };
        }
    }
}

impl Forms<'_> {
    /// Squares of all results.
    ///
    /// # Safety
    /// As checked in `run`; the moment holds elements of type `E`.
    #[inline(always)]
    unsafe fn squares<E: Element, S: Simd>(&mut self, s: S, moment: *const E::T) {
        let mut i = 0;
        while i < self.out.len() {
            // SAFETY: the rows are inside.
            unsafe {
                if i + 8 <= self.out.len() {
                    self.tile::<E, S, 8>(s, moment, i);
                    i += 8;
                } else if S::LANES > 1 && i + 2 <= self.out.len() {
                    self.tile::<E, S, 2>(s, moment, i);
                    i += 2;
                } else {
                    self.tile::<E, S, 1>(s, moment, i);
                    i += 1;
                }
            }
        }
    }

    /// Squares of the results of `R` rows from row `i` on.
    ///
    /// # Safety
    /// They are inside, as checked in `run`.
    #[inline(always)]
    unsafe fn tile<E: Element, S: Simd, const R: usize>(&mut self, s: S, moment: *const E::T, i: usize) {
        let Matrix { data, stride, cols } = self.q;
        let q: [*const f32; R] = core::array::from_fn(|r| data.as_ptr().wrapping_add((i + r) * stride));
        let mut total = [s.splat(0.0); R];
        let mut c = 0;
        while c < stride {
            let mut acc = [s.splat(0.0); R];
            // What is right of the block of the diagonal stands for what is left of it, too.
            for (from, to) in [(0, c.min(cols)), (c.min(cols), (c + S::LANES).min(cols))] {
                for r in 0..R {
                    acc[r] = s.add(acc[r], acc[r]);
                }
                let mut k = from;
                // Several at a time, so that addresses are not made for each.
                while k + 4 <= to {
                    for at in k..k + 4 {
                        // SAFETY: vector c of row k of the moment; k < cols.
                        unsafe { row::<E, S, R>(s, moment.add(at * stride + c), &q, at, &mut acc) };
                    }
                    k += 4;
                }
                for k in k..to {
                    // SAFETY: as above.
                    unsafe { row::<E, S, R>(s, moment.add(k * stride + c), &q, k, &mut acc) };
                }
            }
            for r in 0..R {
                // SAFETY: vector c of a row.
                total[r] = s.fma(acc[r], unsafe { s.load(q[r].add(c)) }, total[r]);
            }
            c += S::LANES;
        }
        for r in 0..R {
            self.out[i + r] = (s.reduce_add(total[r]) * self.factor).max(0.0);
        }
    }
}

/// `acc[r] += q[r][k] * moment`, a vector of its row k. No closure: those are compiled without the instructions of the set unless they
/// are inlined.
///
/// # Safety
/// The vector and element k of all queries are readable.
#[inline(always)]
unsafe fn row<E: Element, S: Simd, const R: usize>(
    s: S,
    moment: *const E::T,
    q: &[*const f32; R],
    k: usize,
    acc: &mut [S::V; R],
) {
    // SAFETY: passed on.
    unsafe {
        let m = E::load(s, moment);
        for r in 0..R {
            acc[r] = s.fma(s.splat(*q[r].add(k)), m, acc[r]);
        }
    }
}
