//! Rows brought together, and sums over scattered rows.

use super::tunables::ROWS_AHEAD;
use super::vector::Simd;
use super::{Task, decode, kernels, rows};
use crate::mem::Rows;

/// Columns of a block.
pub(crate) const BLOCK: usize = 16;

/// Rows of f32, `stride` apart, of which `cols` count.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) cols: usize,
}

/// Rows `ids` of a matrix as they lie into `[ids][stride]`.
pub(crate) struct Gather<'a> {
    pub(crate) from: &'a Rows<'a>,
    pub(crate) ids: &'a [u32],
    pub(crate) stride: usize,
    pub(crate) out: &'a mut [f32],
}

impl Task for Gather<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let cols = self.from.cols();
        for (j, &id) in self.ids.iter().enumerate() {
            if let Some(&id) = self.ids.get(j + ROWS_AHEAD) {
                rows::ask(s, self.from, id as usize);
            }
            rows::widen(s, self.from, id as usize, &mut self.out[j * self.stride..][..cols]);
        }
    }
}

/// Inner products of rows `ids` of a matrix with rows of another.
pub(crate) struct ScoresAt<'a> {
    pub(crate) from: &'a Rows<'a>,
    pub(crate) ids: &'a [u32],
    pub(crate) q: Matrix<'a>,
    pub(crate) rows: &'a [u16],
    pub(crate) out: &'a mut [f32],
}

impl Task for ScoresAt<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ScoresAt { from, ids, q, rows, out } = self;
        assert!(ids.len() == BLOCK && q.cols == from.cols());
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(BLOCK)) {
            decode::dots_at(s, from, ids, &q.data[row as usize * q.stride..][..q.cols], out);
        }
    }
}

/// `acc[c] += sum of rows[at[i] * stride + c]`.
pub(crate) struct SumRows<'a> {
    pub(crate) rows: Matrix<'a>,
    pub(crate) at: &'a [u32],
    pub(crate) acc: &'a mut [f32],
}

impl Task for SumRows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let SumRows { rows: Matrix { data, stride, cols }, at, acc } = self;
        assert!(acc.len() >= cols && at.iter().all(|&i| i as usize * stride + cols <= data.len()));
        let mut v = 0;
        // SAFETY: so many vectors are inside of every row and of the sum.
        unsafe {
            while v + 4 * S::LANES <= cols {
                sum_of_rows::<S, 4>(s, data, stride, at, v, acc);
                v += 4 * S::LANES;
            }
            while v + S::LANES <= cols {
                sum_of_rows::<S, 1>(s, data, stride, at, v, acc);
                v += S::LANES;
            }
        }
        for &i in at {
            kernels::axpy(s, 1.0, &data[i as usize * stride..][v..cols], &mut acc[v..cols]);
        }
    }
}

/// `C` vectors from element `v` on of [`SumRows`], in registers.
///
/// # Safety
/// They are inside of the rows and of `acc`.
#[inline(always)]
unsafe fn sum_of_rows<S: Simd, const C: usize>(
    s: S,
    data: &[f32],
    stride: usize,
    at: &[u32],
    v: usize,
    acc: &mut [f32],
) {
    let to = acc.as_mut_ptr().wrapping_add(v);
    let mut sum = [s.splat(0.0); C];
    for c in 0..C {
        // SAFETY: inside, as the caller has seen.
        sum[c] = unsafe { s.load(to.add(c * S::LANES)) };
    }
    for &i in at {
        for c in 0..C {
            // SAFETY: inside, as the caller has seen.
            sum[c] = s.add(sum[c], unsafe { s.load(data.as_ptr().add(i as usize * stride + v + c * S::LANES)) });
        }
    }
    for c in 0..C {
        // SAFETY: inside, as the caller has seen.
        unsafe { s.store(to.add(c * S::LANES), sum[c]) };
    }
}

/// Rows `at` of a matrix less `mean`, into rows of `stride`, padded with zeros.
pub(crate) struct Less<'a> {
    pub(crate) rows: Matrix<'a>,
    pub(crate) mean: &'a [f32],
    pub(crate) at: &'a [u32],
    pub(crate) out: &'a mut [f32],
    pub(crate) stride: usize,
}

impl Task for Less<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Less { rows: Matrix { data, stride, cols }, mean, at, out, stride: step } = self;
        // Plain loops: they become vectors.
        for (&i, out) in at.iter().zip(out.chunks_exact_mut(step)) {
            let (out, rest) = out.split_at_mut(cols);
            for ((out, x), mean) in out.iter_mut().zip(&data[i as usize * stride..][..cols]).zip(&mean[..cols]) {
                *out = x - mean;
            }
            rest.fill(0.0);
        }
    }
}

/// `out[a * out_stride + b] += sum over rows i of x_i[a] * y_i[b]` for the columns of one block, or of two: those of the second
/// go to where `out[out_step]` is in place of `out[0]`.
pub(crate) struct Gram<'a> {
    pub(crate) x: Matrix<'a>,
    /// Rows of `y_stride`, from the first column on.
    pub(crate) y: &'a [f32],
    pub(crate) y_stride: usize,
    pub(crate) rows: usize,
    /// Rows of `out_stride`.
    pub(crate) out: &'a mut [f32],
    pub(crate) out_stride: usize,
    pub(crate) out_step: usize,
    /// 1 or 2.
    pub(crate) blocks: usize,
}

impl Task for Gram<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (n, more) = (self.rows, self.blocks - 1);
        if n == 0 || self.x.cols == 0 {
            return;
        }
        assert!(more <= 1);
        assert!(self.x.cols <= self.x.stride && self.x.data.len() >= (n - 1) * self.x.stride + self.x.cols);
        assert!(self.y.len() >= (n - 1) * self.y_stride + (1 + more) * BLOCK);
        let end = more * self.out_step + (self.x.cols - 1) * self.out_stride + BLOCK;
        assert!(self.out_stride >= BLOCK && self.out.len() >= end);
        // SAFETY: checked.
        unsafe {
            match (S::LANES, more) {
                (16, 0) => self.tiles::<S, 1, 1, 8>(s),
                // As many sums as two products at a time need, and fewer loads than products.
                (16, _) => self.tiles::<S, 1, 2, 8>(s),
                (8, 0) => self.tiles::<S, 2, 1, 4>(s),
                (8, _) => self.tiles::<S, 2, 2, 2>(s),
                (4, 0) => self.tiles::<S, 4, 1, 4>(s),
                (4, _) => self.tiles::<S, 4, 2, 2>(s),
                (_, 0) => self.tiles::<S, 16, 1, 1>(s),
                _ => self.tiles::<S, 16, 2, 1>(s),
            }
        }
    }
}

impl Gram<'_> {
    /// # Safety
    /// As checked in `run`; `C * LANES` is the block, `B` the number of blocks.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const C: usize, const B: usize, const R: usize>(&mut self, s: S) {
        let mut a = 0;
        // SAFETY: columns a.. of x are there.
        unsafe {
            while a + R <= self.x.cols {
                self.tile::<S, C, B, R>(s, a);
                a += R;
            }
            while a < self.x.cols {
                self.tile::<S, C, B, 1>(s, a);
                a += 1;
            }
        }
    }

    /// `R` columns of `x` from `a` on.
    ///
    /// # Safety
    /// As checked in `run`; they are there.
    #[inline(always)]
    unsafe fn tile<S: Simd, const C: usize, const B: usize, const R: usize>(&mut self, s: S, a: usize) {
        let mut acc = [[[s.splat(0.0); C]; B]; R];
        let (mut x, mut y) = (self.x.data.as_ptr().wrapping_add(a), self.y.as_ptr());
        for _ in 0..self.rows {
            let mut v = [[s.splat(0.0); C]; B];
            for b in 0..B {
                for c in 0..C {
                    // SAFETY: `B` blocks of every row of y.
                    v[b][c] = unsafe { s.load(y.add(b * BLOCK + c * S::LANES)) };
                }
            }
            for r in 0..R {
                // SAFETY: column a + r of every row of x.
                let w = s.splat(unsafe { *x.add(r) });
                for b in 0..B {
                    for c in 0..C {
                        acc[r][b][c] = s.fma(w, v[b][c], acc[r][b][c]);
                    }
                }
            }
            (x, y) = (x.wrapping_add(self.x.stride), y.wrapping_add(self.y_stride));
        }
        for r in 0..R {
            for b in 0..B {
                let at = (a + r) * self.out_stride + b * self.out_step;
                for c in 0..C {
                    // SAFETY: a block of row a + r of out.
                    unsafe {
                        let to = self.out.as_mut_ptr().add(at + c * S::LANES);
                        s.store(to, s.add(s.load(to), acc[r][b][c]));
                    }
                }
            }
        }
    }
}
