//! Keys of opened cells, one a lane, meet the rows that opened them.

use super::bias::{BiasKeys, Biases};
use super::clustered::CELL;
use super::tile::PANEL;
use super::vector::Simd;
use super::{Task, kernels, rows};
use crate::mem::Rows;

/// Keys of opened cells, scored one by one for the rows that opened them.
pub(crate) struct OpenCells<'a> {
    /// Rows of the cells' keys, [`CELL`] an entry.
    pub(crate) ids: &'a [u32],
    /// Keys of an entry that are not to be looked at: they are known.
    pub(crate) known: &'a [u16],
    /// Which lanes open an entry, `[panel][entries]`.
    pub(crate) opened: &'a [u64],
    pub(crate) keys: &'a Rows<'a>,
    pub(crate) values: &'a Rows<'a>,
    /// `[rows][dim]`.
    pub(crate) q: &'a [f32],
    pub(crate) logits: Option<(f32, f32)>,
    /// Biases of the rows.
    pub(crate) biases: Option<Biases<'a>>,
    pub(crate) factor: f32,
    /// References, sums of weights and of weighted values by row.
    pub(crate) max: &'a mut [f32],
    pub(crate) sum: &'a mut [f32],
    pub(crate) sums: &'a mut [f32],
    pub(crate) stride: usize,
    pub(crate) room: &'a mut OpenRoom,
}

/// What [`OpenCells`] works in.
#[derive(Debug)]
pub(crate) struct OpenRoom {
    /// Keys of a cell, `[CELL][dim]`, and transposed.
    pub(crate) keys: crate::mem::Buf<f32>,
    pub(crate) transposed: crate::mem::Buf<f32>,
    /// Values, `[CELL][stride]`.
    pub(crate) values: crate::mem::Buf<f32>,
    /// Rows that open a cell.
    pub(crate) rows: crate::mem::Buf<u32>,
}

impl Task for OpenCells<'_> {
    type Out = u64;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> u64 {
        let mut pairs = 0;
        let mut next = self.next(0);
        while let Some(e) = next {
            next = self.next(e + 1);
            if let Some(e) = next {
                self.ask(s, e);
            }
            let count = self.list(e);
            self.load(s, e);
            pairs += count as u64 * u64::from((!self.known[e]).count_ones());
            match S::LANES {
                16 => self.rows::<S, 1, 8>(s, e, count),
                8 => self.rows::<S, 2, 4>(s, e, count),
                4 => self.rows::<S, 4, 4>(s, e, count),
                _ => self.rows::<S, 16, 1>(s, e, count),
            }
        }
        pairs
    }
}

impl OpenCells<'_> {
    /// The first entry from `e` on that a row opens.
    fn next(&self, e: usize) -> Option<usize> {
        let n = self.known.len();
        (e..n).find(|&e| self.opened[e..].iter().step_by(n).any(|&bits| bits != 0))
    }

    /// Lists the rows that open entry `e`.
    fn list(&mut self, e: usize) -> usize {
        let mut count = 0;
        for (p, &bits) in self.opened[e..].iter().step_by(self.known.len()).enumerate() {
            let mut bits = bits;
            while bits != 0 {
                self.room.rows[count] = (p * PANEL) as u32 + bits.trailing_zeros();
                count += 1;
                bits &= bits - 1;
            }
        }
        count
    }

    /// Asks for keys and values of entry `e`, which lie anywhere.
    #[inline(always)]
    fn ask<S: Simd>(&self, s: S, e: usize) {
        for &id in &self.ids[e * CELL..][..CELL] {
            rows::ask(s, self.keys, id as usize);
            rows::ask(s, self.values, id as usize);
        }
    }

    /// Keys, transposed, and values of entry `e`.
    #[inline(always)]
    fn load<S: Simd>(&mut self, s: S, e: usize) {
        let (dim, ids) = (self.keys.cols(), &self.ids[e * CELL..][..CELL]);
        let room = &mut *self.room;
        assert!(room.keys.len() >= CELL * dim && room.transposed.len() >= CELL * dim);
        let mut at = [core::ptr::null(); CELL];
        for ((at, &id), row) in at.iter_mut().zip(ids).zip(room.keys.chunks_exact_mut(dim)) {
            *at = match self.keys.row_f32(id as usize) {
                Some(row) => row.as_ptr(),
                None => {
                    rows::widen(s, self.keys, id as usize, row);
                    row.as_ptr()
                }
            };
        }
        let whole = dim / CELL * CELL;
        for k in (0..whole).step_by(CELL) {
            // SAFETY: every row has `dim` elements, and so many rows of the block are writable.
            unsafe { s.transpose(&at, k, room.transposed.as_mut_ptr().add(k * CELL)) };
        }
        for k in whole..dim {
            for j in 0..CELL {
                // SAFETY: k < dim.
                room.transposed[k * CELL + j] = unsafe { *at[j].add(k) };
            }
        }
        for (&id, row) in ids.iter().zip(room.values.chunks_exact_mut(self.stride)) {
            rows::widen(s, self.values, id as usize, &mut row[..self.values.cols()]);
        }
    }

    /// All rows of the list, `B` at a time.
    #[inline(always)]
    fn rows<S: Simd, const C: usize, const B: usize>(&mut self, s: S, e: usize, count: usize) {
        let mut done = 0;
        while done + B <= count {
            let list: [usize; B] = core::array::from_fn(|b| self.room.rows[done + b] as usize);
            self.some::<S, C, B>(s, e, list);
            done += B;
        }
        for i in done..count {
            self.some::<S, C, 1>(s, e, [self.room.rows[i] as usize]);
        }
    }

    #[inline(always)]
    fn some<S: Simd, const C: usize, const B: usize>(&mut self, s: S, e: usize, list: [usize; B]) {
        let (dim, stride) = (self.keys.cols(), self.stride);
        assert!(C * S::LANES == CELL && self.room.transposed.len() >= CELL * dim);
        let mut q = [core::ptr::null(); B];
        for b in 0..B {
            assert!((list[b] + 1) * stride <= self.sums.len() && list[b] < self.max.len().min(self.sum.len()));
            q[b] = self.q[list[b] * dim..][..dim].as_ptr();
        }
        let mut acc = [[s.splat(0.0); C]; B];
        for d in 0..dim {
            let mut k = [s.splat(0.0); C];
            for c in 0..C {
                // SAFETY: dimension d is inside.
                k[c] = unsafe { s.load(self.room.transposed.as_ptr().add(d * CELL + c * S::LANES)) };
            }
            for b in 0..B {
                // SAFETY: d < dim.
                let x = s.splat(unsafe { *q[b].add(d) });
                for c in 0..C {
                    acc[b][c] = s.fma(x, k[c], acc[b][c]);
                }
            }
        }
        let mut p = [[0.0f32; CELL]; B];
        let (known, factor) = (self.known[e], s.splat(self.factor));
        for b in 0..B {
            for c in 0..C {
                // SAFETY: C vectors fill the row.
                unsafe { s.store(p[b].as_mut_ptr().add(c * S::LANES), acc[b][c]) };
            }
            if let Some((scale, cap)) = self.logits {
                kernels::logits(s, &mut p[b], scale, cap);
            }
            if let Some(biases) = &self.biases {
                let mut more = [0.0; CELL];
                biases.row(list[b]).read(s, BiasKeys::List(&self.ids[e * CELL..][..CELL]), &mut more);
                p[b].iter_mut().zip(more).for_each(|(p, more)| *p += more);
            }
            if known != 0 {
                for (j, p) in p[b].iter_mut().enumerate() {
                    if known >> j & 1 != 0 {
                        *p = f32::NEG_INFINITY;
                    }
                }
            }
            let top = kernels::max(s, &p[b]);
            let row = list[b];
            let before = self.max[row];
            if top > before {
                // Beyond all that the row has seen, so that nothing overflows.
                let alpha = s.reduce_max(s.exp2_scaled(s.splat(before - top), factor));
                kernels::scale(s, alpha, &mut self.sums[row * stride..][..stride]);
                self.sum[row] *= alpha;
                self.max[row] = top;
            }
            if top > f32::NEG_INFINITY {
                self.sum[row] += kernels::exp2_sum(s, &mut p[b], self.factor, self.max[row]);
            } else {
                p[b] = [0.0; CELL];
            }
        }
        // Two vectors of values at a time for all rows.
        let mut v = 0;
        while v < stride {
            if v + 2 * S::LANES <= stride {
                // SAFETY: two vectors from v on are inside of every row of values and of sums, as asserted above.
                unsafe { self.add::<S, B, 2>(s, &p, &list, v) };
                v += 2 * S::LANES;
            } else {
                // SAFETY: as above: rows are whole vectors.
                unsafe { self.add::<S, B, 1>(s, &p, &list, v) };
                v += S::LANES;
            }
        }
    }

    /// # Safety
    /// `W` vectors from element `v` on are inside of the values' rows and of the listed rows of the sums.
    #[inline(always)]
    unsafe fn add<S: Simd, const B: usize, const W: usize>(
        &mut self,
        s: S,
        p: &[[f32; CELL]; B],
        list: &[usize; B],
        v: usize,
    ) {
        let stride = self.stride;
        let mut acc = [[s.splat(0.0); W]; B];
        let sums = self.sums.as_mut_ptr();
        // SAFETY: passed on.
        unsafe {
            for b in 0..B {
                for w in 0..W {
                    acc[b][w] = s.load(sums.add(list[b] * stride + v + w * S::LANES));
                }
            }
            for j in 0..CELL {
                let mut x = [s.splat(0.0); W];
                for w in 0..W {
                    x[w] = s.load(self.room.values.as_ptr().add(j * stride + v + w * S::LANES));
                }
                for b in 0..B {
                    let weight = s.splat(p[b][j]);
                    for w in 0..W {
                        acc[b][w] = s.fma(weight, x[w], acc[b][w]);
                    }
                }
            }
            for b in 0..B {
                for w in 0..W {
                    s.store(sums.add(list[b] * stride + v + w * S::LANES), acc[b][w]);
                }
            }
        }
    }
}
