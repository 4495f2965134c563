//! Coordinates in four bits, and their products with queries in bytes.
//!
//! A vector is rounded coordinate by coordinate, each to one of sixteen steps of the vector's own unit; a query to signed
//! bytes. Four products of a nibble and a byte are one instruction where the machine has it. Four bits of every coordinate
//! tell the keys of a cell apart better than eight bits along half as many directions, even fitted ones: the `cells_study` of
//! the benchmarks has both.

use super::BLOCK;
use crate::simd::vector::Simd;
use crate::simd::{Task, sqrt};
use half::bf16;

/// Coordinates in a word.
const WORD: usize = 8;

/// A code stands for so much less, in units.
pub(super) const MIDDLE: f32 = 7.5;

/// Words that the coordinates of a vector of `dim` elements take.
pub(crate) fn words(dim: usize) -> usize {
    dim.div_ceil(WORD)
}

/// The vectors of a block.
#[derive(Clone, Copy)]
pub(crate) struct Coded<'a> {
    /// `[words(dim)][BLOCK]`: byte b of a word holds coordinate b in its lower half and coordinate b + 4 in its upper half.
    pub(crate) words: &'a [u32],
    /// Step of every vector; coordinates are `(code - 7.5) * unit`.
    pub(crate) unit: &'a [bf16; BLOCK],
}

/// The vectors of several blocks.
#[derive(Clone, Copy)]
pub(crate) struct Many<'a> {
    /// `[block][words(dim)][BLOCK]`.
    pub(crate) words: &'a [u32],
    /// Words of a block.
    pub(crate) each: usize,
    pub(crate) unit: &'a [[bf16; BLOCK]],
}

impl<'a> Many<'a> {
    /// Those of one block.
    #[inline(always)]
    pub(super) fn block(&self, at: usize) -> Coded<'a> {
        Coded { words: &self.words[at * self.each..][..self.each], unit: &self.unit[at] }
    }
}

impl Coded<'_> {
    /// Coordinate `k` of vector `j`.
    pub(super) fn decode(&self, k: usize, j: usize) -> f32 {
        let code = self.words[k / WORD * BLOCK + j] >> (k % 4 * 8 + k % WORD / 4 * 4) & 15;
        (code as f32 - MIDDLE) * self.unit[j].to_f32()
    }

    /// The largest step.
    pub(super) fn coarsest(&self) -> f32 {
        self.unit.iter().fold(0.0, |m, u| u.to_f32().max(m))
    }
}

/// Rounds [`BLOCK`] vectors of `dim` elements, rows `stride` apart.
pub(crate) struct Encode<'a> {
    pub(crate) rows: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) dim: usize,
    pub(crate) words: &'a mut [u32],
    pub(crate) unit: &'a mut [bf16; BLOCK],
}

/// Adding 1.5 x 2^23 leaves the nearest whole number in the low bits.
pub(super) const MAGIC: f32 = 12_582_912.0;

impl Task for Encode<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Encode { rows, stride, dim, words: out, unit } = self;
        assert!(dim <= stride && rows.len() >= BLOCK * stride && out.len() == words(dim) * BLOCK);
        let (mut at, mut factor) = ([core::ptr::null(); BLOCK], [0.0; BLOCK]);
        for (j, row) in rows.chunks_exact(stride.max(1)).take(BLOCK).enumerate() {
            // The order of magnitudes is the order of their bits.
            let largest = f32::from_bits(row[..dim].iter().fold(0, |m, x| m.max(x.to_bits() & 0x7fff_ffff)));
            (unit[j], factor[j]) = step_of(largest / MIDDLE);
            at[j] = row.as_ptr();
        }
        // Sixteen coordinates of all vectors, side by side: plain loops over vectors become instructions on them.
        let mut part = [0.0; BLOCK * BLOCK];
        for (k, words) in (0..dim).step_by(BLOCK).zip(out.chunks_mut(BLOCK / WORD * BLOCK)) {
            if k + BLOCK <= dim {
                // SAFETY: every row has that many elements; a block of blocks is writable.
                unsafe { s.transpose(&at, k, part.as_mut_ptr()) };
            } else {
                part.fill(0.0);
                for (i, x) in part.iter_mut().enumerate().take((dim - k) * BLOCK) {
                    *x = rows[i % BLOCK * stride + k + i / BLOCK];
                }
            }
            for (word, part) in words.chunks_exact_mut(BLOCK).zip(part.chunks_exact(WORD * BLOCK)) {
                let mut sum = [0; BLOCK];
                for (b, x) in part.chunks_exact(BLOCK).enumerate() {
                    let shift = b % 4 * 8 + b / 4 * 4;
                    for j in 0..BLOCK {
                        let code = (x[j] * factor[j] + MIDDLE + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits());
                        sum[j] |= code.min(15) << shift;
                    }
                }
                word.copy_from_slice(&sum);
            }
        }
    }
}

/// `step`, or the next number above that bf16 holds, so that what is the most steps long keeps a code, and one over it; zeros for steps
/// too small for a factor in f32.
#[inline(always)]
pub(super) fn step_of(step: f32) -> (bf16, f32) {
    let step = bf16::from_bits((step.to_bits().wrapping_add(0xffff) >> 16) as u16);
    let factor = 1.0 / step.to_f32();
    if factor.is_finite() && factor > 0.0 { (step, factor) } else { (bf16::ZERO, 0.0) }
}

/// A query, beside its bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
pub(crate) struct Along {
    /// Step of its bytes.
    pub(crate) unit: f32,
    /// What its product with a vector is, in units of the vector, beyond that of the codes: they start at -7.5.
    pub(crate) zero: f32,
    /// Length of what rounding takes away from the query.
    pub(crate) lost: f32,
    /// What is allowed for rounding, in units of the vector.
    pub(crate) slack: f32,
    /// `zero` with it.
    pub(crate) most: f32,
    /// What a key may stand out per unit of its cell's reach.
    pub(crate) far: f32,
    /// Logit to reach.
    pub(crate) needle: f32,
}

/// Queries in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a> {
    /// `[query][2 * words(dim)]`, four to a number, the first in its lowest byte.
    pub(crate) codes: &'a [i32],
    pub(crate) of: &'a [Along],
}

impl Bytes<'_> {
    /// Refuses queries that are too short for blocks of so many words.
    #[inline(always)]
    pub(super) fn check(&self, words: usize) {
        assert!(self.codes.len() >= self.of.len() * 2 * words);
    }
}

/// Rounds a query to bytes, `out` of `2 * words(dim)` numbers. Returns their step, their sum, and the length of what rounding
/// takes away.
pub(crate) struct RoundQuery<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) out: &'a mut [i32],
}

impl Task for RoundQuery<'_> {
    type Out = (f32, f32, f32);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (f32, f32, f32) {
        let RoundQuery { x, out } = self;
        assert!(out.len() == 2 * words(x.len()));
        let largest = f32::from_bits(x.iter().fold(0, |m, x| m.max(x.to_bits() & 0x7fff_ffff)));
        let factor = 127.0 / largest;
        if !factor.is_finite() {
            out.fill(0);
            return (0.0, 0.0, largest * sqrt(s, x.len() as f32));
        }
        let unit = largest / 127.0;
        let (mut sums, mut lost) = ([0; BLOCK], [0.0; BLOCK]);
        // Plain loops over whole blocks: they become vectors.
        let mut round = |part: &[f32; BLOCK]| {
            let mut bytes = [0; BLOCK];
            for i in 0..BLOCK {
                let scaled = part[i] * factor;
                let bits = (scaled + MAGIC).to_bits();
                let code = (bits as i32).wrapping_sub(MAGIC.to_bits() as i32);
                // In steps: their squares do not vanish.
                let off = scaled - code as f32;
                sums[i] += code;
                lost[i] += off * off;
                bytes[i] = bits as u8;
            }
            bytes
        };
        let (parts, rest) = x.as_chunks::<BLOCK>();
        let (whole, left) = out.split_at_mut(parts.len() * (BLOCK / 4));
        for (part, to) in parts.iter().zip(whole.as_chunks_mut::<{ BLOCK / 4 }>().0) {
            *to = numbers(round(part));
        }
        if !rest.is_empty() {
            let mut part = [0.0; BLOCK];
            part[..rest.len()].copy_from_slice(rest);
            left.copy_from_slice(&numbers(round(&part))[..left.len()]);
        }
        let lost: [f32; 8] = core::array::from_fn(|i| lost[i] + lost[i + 8]);
        let lost: [f32; 4] = core::array::from_fn(|i| lost[i] + lost[i + 4]);
        let (sum, lost) = (sums.iter().sum::<i32>(), (lost[0] + lost[2]) + (lost[1] + lost[3]));
        (unit, sum as f32, unit * sqrt(s, lost))
    }
}

/// Bytes four to a number, the first in its lowest byte.
#[inline(always)]
pub(super) fn numbers(bytes: [u8; BLOCK]) -> [i32; BLOCK / 4] {
    let (parts, _) = bytes.as_chunks::<4>();
    core::array::from_fn(|i| i32::from_le_bytes(parts[i]))
}

impl Along {
    /// Of a query whose bytes have this step and sum; nothing is allowed for rounding and nothing to be reached.
    pub(crate) fn new(unit: f32, sum: f32, lost: f32) -> Along {
        let zero = -MIDDLE * unit * sum;
        Along { unit, zero, lost, slack: 0.0, most: zero, far: 0.0, needle: 0.0 }
    }

    /// The same with so much allowed for rounding.
    pub(crate) fn allowing(self, slack: f32) -> Along {
        Along { slack, most: self.zero + slack, ..self }
    }
}

/// Sums of the products of a block's codes, `[words][BLOCK]`, with the bytes of `R` queries.
///
/// # Safety
/// `words * BLOCK` words and `2 * words` numbers of every query are readable; `C * LANES` is the block.
#[inline(always)]
pub(super) unsafe fn products<S: Simd, const C: usize, const R: usize>(
    s: S,
    block: *const u32,
    words: usize,
    q: [*const i32; R],
) -> [[S::I; C]; R] {
    // A few rows would wait for their own sums: two chains each.
    let chains = if C * R < 8 { 2 } else { 1 };
    let mut acc = [[[s.splat_i(0); C]; R]; 2];
    for k in 0..words {
        let mut parts = [[s.splat_i(0); 2]; C];
        for c in 0..C {
            // SAFETY: word k of the block, vector c.
            parts[c] = s.nibbles(unsafe { s.load_i(block.add(k * BLOCK + c * S::LANES).cast()) });
        }
        for half in 0..2 {
            for r in 0..R {
                // SAFETY: number 2 k + half of a query.
                let q = s.splat_i(unsafe { *q[r].add(2 * k + half) });
                for c in 0..C {
                    let to = &mut acc[half % chains][r][c];
                    *to = s.dot7(*to, parts[c][half], q);
                }
            }
        }
    }
    let [mut sum, more] = acc;
    if chains > 1 {
        for r in 0..R {
            for c in 0..C {
                sum[r][c] = s.add_i(sum[r][c], more[r][c]);
            }
        }
    }
    sum
}
