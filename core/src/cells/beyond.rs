//! What bounds of a cell's estimate need beside the coordinates of its keys: how far the keys lie off their decoded
//! coordinates, and how far the values lie off their mean.

use super::{BLOCK, Coords, LEAVES, Level, SEGMENT};
use crate::error::Result;
use crate::mem::{Buf, Memory, Plan};
use crate::project::fitted::RANK;
use crate::simd::block::Beyond;
use crate::simd::{Isa, Simd, Task};

/// Times a length that was summed in f32 it may be.
const ROUNDING: f32 = 1.0001;

/// Half of the square root of [`RANK`] over the steps of a query coordinate: what rounding a query to 16 bits may change
/// in its product with coordinates of length 1, per unit of the query's length.
const QUERY: f32 = 2.9 / 32767.0;

/// By cell.
pub(super) struct Bounds {
    of: Buf<Beyond>,
    /// A cell's vectors, transposed.
    room: Buf<f32>,
}

impl Bounds {
    pub(super) fn plan(plan: &mut Plan, dim_k: usize, dim_v: usize, segments: usize) {
        Buf::<Beyond>::plan(plan, segments * LEAVES);
        Buf::<f32>::plan(plan, dim_k.max(dim_v) * BLOCK);
    }

    pub(super) fn new(memory: &Memory, dim_k: usize, dim_v: usize, segments: usize) -> Result<Self> {
        Ok(Bounds {
            of: Buf::filled(memory, segments * LEAVES, Beyond::default())?,
            room: Buf::filled(memory, dim_k.max(dim_v) * BLOCK, 0.0)?,
        })
    }

    pub(super) fn of(&self, cell: usize) -> Beyond {
        self.of[cell]
    }

    /// Sets what keys decide of segment `at`: `rows [SEGMENT][dim]` are its keys, `order` says which of them form cells.
    pub(super) fn keys(&mut self, isa: Isa, at: usize, rows: &[f32], order: &[u32], leaves: &Level, coords: &Coords) {
        let dim = rows.len() / SEGMENT;
        let room = &mut self.room[..dim * BLOCK];
        for (i, cell) in order.chunks_exact(BLOCK).enumerate() {
            let leaf = at * LEAVES + i;
            // The mean as it is stored: logits are counted from there.
            let means = &leaves.keys[leaf / BLOCK * dim * BLOCK..][..dim * BLOCK];
            for (k, out) in room.chunks_exact_mut(BLOCK).enumerate() {
                let mean = means[k * BLOCK + leaf % BLOCK];
                out.iter_mut().zip(cell).for_each(|(x, &j)| *x = rows[j as usize * dim + k] - mean);
            }
            let (data, unit, _) = coords.cell(leaf);
            let [inside, decoded, reach, width] = isa.run(Remainders { data, unit, coords, vectors: room });
            let of = &mut self.of[leaf];
            of.inside = (inside + QUERY * decoded) * ROUNDING;
            (of.reach, of.width) = (reach * ROUNDING, width * ROUNDING);
        }
    }

    /// The same of its values.
    pub(super) fn values(&mut self, isa: Isa, at: usize, rows: &[f32], order: &[u32], leaves: &Level, stride: usize) {
        let dim = rows.len() / SEGMENT;
        let room = &mut self.room[..dim * BLOCK];
        for (i, cell) in order.chunks_exact(BLOCK).enumerate() {
            let leaf = at * LEAVES + i;
            let mean = &leaves.values[leaf * stride..][..dim];
            for (k, out) in room.chunks_exact_mut(BLOCK).enumerate() {
                out.iter_mut().zip(cell).for_each(|(x, &j)| *x = rows[j as usize * dim + k] - mean[k]);
            }
            self.of[leaf].value_width = isa.run(Width { vectors: room }) * ROUNDING;
            self.of[leaf].value = libm::sqrtf(isa.norm2(mean)) * ROUNDING;
        }
    }
}

/// Takes decoded coordinates off a cell's residuals, `[dim][BLOCK]`. Returns the longest remainder as seen along the
/// directions, the longest decoded residual, the longest remainder, and the remainders' width.
struct Remainders<'a> {
    data: &'a [i8],
    unit: f32,
    coords: &'a Coords,
    vectors: &'a mut [f32],
}

impl Task for Remainders<'_> {
    type Out = [f32; 4];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; 4] {
        let Remainders { data, unit, coords, vectors } = self;
        let mut decoded = [[0.0f32; BLOCK]; RANK];
        for (pair, from) in decoded.chunks_exact_mut(2).zip(data.chunks_exact(2 * BLOCK)) {
            for j in 0..BLOCK {
                (pair[0][j], pair[1][j]) = (f32::from(from[2 * j]) * unit, f32::from(from[2 * j + 1]) * unit);
            }
        }
        let mut seen = [[0.0f32; BLOCK]; RANK];
        for (b, basis) in coords.basis().enumerate() {
            for (out, basis) in vectors.chunks_exact_mut(BLOCK).zip(basis.chunks_exact(BLOCK)) {
                for (d, &u) in decoded[b * BLOCK..].iter().zip(basis) {
                    out.iter_mut().zip(d).for_each(|(x, d)| *x -= u * d);
                }
            }
        }
        for (b, basis) in coords.basis().enumerate() {
            for (x, basis) in vectors.chunks_exact(BLOCK).zip(basis.chunks_exact(BLOCK)) {
                for (out, &u) in seen[b * BLOCK..].iter_mut().zip(basis) {
                    out.iter_mut().zip(x).for_each(|(o, x)| *o += u * x);
                }
            }
        }
        let reach = longest(vectors);
        [longest(seen.as_flattened()), longest(decoded.as_flattened()), reach, Width { vectors }.run(s)]
    }
}

/// The longest of vectors `[dim][BLOCK]`.
#[inline(always)]
fn longest(vectors: &[f32]) -> f32 {
    let mut squares = [0.0f32; BLOCK];
    for row in vectors.chunks_exact(BLOCK) {
        squares.iter_mut().zip(row).for_each(|(s, x)| *s += x * x);
    }
    libm::sqrtf(squares.iter().fold(0.0, |m, &x| m.max(x)))
}

/// At least the root mean square of vectors `[dim][BLOCK]` along any direction: the eighth root of the trace of the eighth
/// power of their Gram matrix is at least its largest eigenvalue, and little more.
struct Width<'a> {
    vectors: &'a [f32],
}

impl Task for Width<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f32 {
        let mut gram = [[0.0f32; BLOCK]; BLOCK];
        for row in self.vectors.chunks_exact(BLOCK) {
            for (out, &a) in gram.iter_mut().zip(row) {
                out.iter_mut().zip(row).for_each(|(o, b)| *o += a * b);
            }
        }
        let trace: f32 = (0..BLOCK).map(|i| gram[i][i]).sum();
        let factor = 1.0 / trace;
        if !factor.is_finite() {
            // All but zero, or beyond f32: the trace itself is a bound.
            return libm::sqrtf(trace);
        }
        gram.as_flattened_mut().iter_mut().for_each(|x| *x *= factor);
        for _ in 0..2 {
            let mut square = [[0.0f32; BLOCK]; BLOCK];
            for (out, row) in square.iter_mut().zip(&gram) {
                for (&a, other) in row.iter().zip(&gram) {
                    out.iter_mut().zip(other).for_each(|(o, b)| *o += a * b);
                }
            }
            gram = square;
        }
        let eighth: f32 = gram.as_flattened().iter().map(|x| x * x).sum();
        // The root of an eighth root.
        libm::sqrtf(libm::sqrtf(libm::sqrtf(libm::sqrtf(eighth)))) * libm::sqrtf(trace / BLOCK as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::hash;
    use std::vec::Vec;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        (0..n).map(|i| (hash(seed, i as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// Largest root mean square along many directions, the ones of the power method among them.
    fn widest(vectors: &[f32]) -> f64 {
        let dim = vectors.len() / BLOCK;
        let mut best: f64 = 0.0;
        for seed in 0..20 {
            let mut u: Vec<f64> = noise(dim, seed + 5).iter().map(|&x| f64::from(x)).collect();
            for _ in 0..30 {
                let norm = u.iter().map(|x| x * x).sum::<f64>().sqrt();
                u.iter_mut().for_each(|x| *x /= norm);
                let mut along = [0.0; BLOCK];
                for (row, u) in vectors.chunks_exact(BLOCK).zip(&u) {
                    along.iter_mut().zip(row).for_each(|(a, &x)| *a += u * f64::from(x));
                }
                best = best.max((along.iter().map(|a| a * a).sum::<f64>() / BLOCK as f64).sqrt());
                for (row, u) in vectors.chunks_exact(BLOCK).zip(&mut u) {
                    *u = row.iter().zip(&along).map(|(&x, a)| f64::from(x) * a).sum();
                }
            }
        }
        best
    }

    #[test]
    fn widths_are_bounds_and_close() {
        for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
            for (dim, scale) in [(1, 1.0), (3, 1e-12), (24, 1.0), (64, 1e9), (80, 1.0)] {
                let mut x = noise(dim * BLOCK, dim as u64);
                // One direction longer than the others.
                x[..BLOCK].iter_mut().for_each(|x| *x *= 3.0);
                x.iter_mut().for_each(|x| *x *= scale);
                let (have, want) = (f64::from(isa.run(Width { vectors: &x }) * ROUNDING), widest(&x));
                assert!(have >= want && have < 1.2 * want, "{}: {have} and {want}", isa.name());
            }
            assert_eq!(isa.run(Width { vectors: &[0.0; 7 * BLOCK] }), 0.0);
        }
    }
}
