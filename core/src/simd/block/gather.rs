//! Rows brought together, and sums over scattered rows.

use super::{BLOCK, Matrix, Stored};
use crate::mem::Rows;
use crate::simd::vector::Simd;
use crate::simd::{Task, few, kernels, rows};

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

/// Asks for memory ahead of time.
pub(crate) struct Fetch {
    begin: *const u8,
    bytes: usize,
}

impl Fetch {
    pub(crate) fn of<T>(x: &[T]) -> Fetch {
        Fetch { begin: x.as_ptr().cast(), bytes: size_of_val(x) }
    }

    pub(crate) fn stored(x: Stored<'_>) -> Fetch {
        match x {
            Stored::F32(x) => Fetch::of(x),
            Stored::F16(x) => Fetch::of(x),
        }
    }
}

impl Task for Fetch {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for at in (0..self.bytes).step_by(64) {
            s.prefetch(self.begin.wrapping_add(at));
        }
    }
}

/// Rows `ids` of a matrix, transposed into a block; `room` holds [`BLOCK`] rows.
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

/// [`Scores`](super::Scores) of a block that is still rows `ids` of a matrix: for lists too short to be worth a transposed
/// copy.
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
            few::dots_at(s, from, ids, &q.data[row as usize * q.stride..][..q.cols], out);
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
