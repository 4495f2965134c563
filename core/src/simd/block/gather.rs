//! Rows brought together, and sums over scattered rows.

use super::{BLOCK, Matrix};
use crate::mem::Rows;
use crate::simd::vector::Simd;
use crate::simd::{Task, kernels, rows};

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
            rows::widen(s, self.from, id as usize, &mut self.out[j * self.stride..][..cols]);
        }
    }
}

/// Asks for rows `ids` ahead of time.
pub(crate) struct Prefetch<'a> {
    pub(crate) from: &'a Rows<'a>,
    pub(crate) ids: &'a [u32],
}

impl Task for Prefetch<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let bytes = self.from.cols() * self.from.dtype().size();
        for &id in self.ids {
            let row = self.from.as_ptr().wrapping_add(id as usize * self.from.stride());
            for at in (0..bytes).step_by(64) {
                s.prefetch(row.wrapping_add(at));
            }
        }
    }
}

/// The same, transposed into a block; `room` holds [`BLOCK`] rows.
pub(crate) struct Transpose<'a> {
    pub(crate) from: &'a Rows<'a>,
    pub(crate) ids: &'a [u32],
    pub(crate) room: &'a mut [f32],
    pub(crate) out: &'a mut [f32],
}

impl Task for Transpose<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Transpose { from, ids, room, out } = self;
        let cols = from.cols();
        assert!(ids.len() == BLOCK && room.len() >= BLOCK * cols && out.len() >= BLOCK * cols);
        let mut at = [room.as_ptr(); BLOCK];
        for (j, &id) in ids.iter().enumerate() {
            at[j] = match from.row_f32(id as usize) {
                Some(row) => row.as_ptr(),
                None => {
                    let row = &mut room[j * cols..][..cols];
                    rows::widen(s, from, id as usize, row);
                    row.as_ptr()
                }
            };
        }
        let whole = cols / BLOCK * BLOCK;
        for k in (0..whole).step_by(BLOCK) {
            // SAFETY: every row has `cols` elements, and so many rows of the block are writable.
            unsafe { s.transpose(&at, k, out.as_mut_ptr().add(k * BLOCK)) };
        }
        for k in whole..cols {
            for j in 0..BLOCK {
                // SAFETY: k < cols.
                out[k * BLOCK + j] = unsafe { *at[j].add(k) };
            }
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
        for &i in self.at {
            let row = &self.rows.data[i as usize * self.rows.stride..][..self.rows.cols];
            kernels::axpy(s, 1.0, row, self.acc);
        }
    }
}

/// `moment[a * stride + b] += x[a] * x[b]`.
pub(crate) struct Outer<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) moment: &'a mut [f32],
}

impl Task for Outer<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (row, &a) in self.moment.chunks_exact_mut(self.stride).zip(self.x) {
            kernels::axpy(s, a, self.x, &mut row[..self.x.len()]);
        }
    }
}
