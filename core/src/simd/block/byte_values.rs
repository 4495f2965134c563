//! Values in bytes, sixteen to a block, and their weighted sums.
//!
//! Means of values stand for what a row does not look into, where the means' own error is a hundred times what rounding them
//! to a byte adds. Weights are rounded too, so that a sum is integers: four products of bytes are one instruction where the
//! machine has it.

use super::coords::{MAGIC, numbers, step_of};
use super::values::AddValues;
use super::{BLOCK, check};
use crate::simd::vector::Simd;
use half::bf16;

/// Largest code of an element, either way, and of a weight.
const LARGEST: f32 = 127.0;

/// Values that share a word, a byte each.
const WORD: usize = 4;

/// The values of blocks, `stride` elements each.
#[derive(Clone, Copy)]
pub(crate) struct ByteValues<'a> {
    /// `[block][stride / BLOCK][BLOCK / WORD][BLOCK]`: byte b of word (v, g, i) is element `v * BLOCK + i` of value
    /// `g * WORD + b`, in units of that value.
    pub(crate) words: &'a [u32],
    pub(crate) unit: &'a [[bf16; BLOCK]],
}

impl<'a> ByteValues<'a> {
    /// Words that a block takes, of values of `stride` elements.
    pub(crate) fn words(stride: usize) -> usize {
        BLOCK / WORD * stride
    }

    /// Those of one block.
    #[inline(always)]
    pub(super) fn block(&self, at: usize, stride: usize) -> ByteValues<'a> {
        let len = ByteValues::words(stride);
        ByteValues { words: &self.words[at * len..][..len], unit: &self.unit[at..][..1] }
    }
}

/// Rounds value `j` of a block into its words and units.
pub(crate) fn round_value(x: &[f32], j: usize, words: &mut [u32], unit: &mut [bf16; BLOCK]) {
    let (j, shift) = (j / WORD % (BLOCK / WORD), j % WORD * 8);
    // The order of magnitudes is the order of their bits.
    let largest = f32::from_bits(x.iter().fold(0, |m, x| m.max(x.to_bits() & 0x7fff_ffff)));
    let (step, factor) = step_of(largest / LARGEST);
    unit[j * WORD + shift / 8] = step;
    for (x, words) in x.chunks(BLOCK).zip(words.chunks_exact_mut(BLOCK / WORD * BLOCK)) {
        for (x, word) in x.iter().zip(&mut words[j * BLOCK..][..BLOCK]) {
            let code = (x * factor + MAGIC).to_bits() & 0xff;
            *word = *word & !(0xff << shift) | code << shift;
        }
    }
}

/// Weights of a block's values in bytes: four to a number, and what a step of a sum stands for.
#[derive(Clone, Copy)]
struct Weights {
    codes: [i32; BLOCK / WORD],
    step: f32,
}

impl Weights {
    /// None of them weighs anything.
    const NONE: Weights = Weights { codes: [0; BLOCK / WORD], step: 0.0 };

    /// From weights and the values' units. None is negative.
    #[inline(always)]
    fn new<S: Simd>(s: S, p: &[f32; BLOCK], unit: &[bf16; BLOCK]) -> Weights {
        let (mut w, mut largest) = ([0.0; BLOCK], s.splat(0.0));
        for c in (0..BLOCK).step_by(S::LANES) {
            // SAFETY: vector c of arrays of BLOCK numbers.
            unsafe {
                let x = s.mul(s.load(p.as_ptr().add(c)), s.load_bf16(unit.as_ptr().add(c).cast()));
                largest = s.max(largest, x);
                s.store(w.as_mut_ptr().add(c), x);
            }
        }
        let largest = s.reduce_max(largest);
        let factor = LARGEST / largest;
        if !factor.is_finite() {
            return Weights::NONE;
        }
        // A plain loop over a block: it becomes vectors.
        let mut bytes = [0; BLOCK];
        for (byte, w) in bytes.iter_mut().zip(w) {
            *byte = (w * factor + MAGIC).to_bits() as u8;
        }
        Weights { codes: numbers(bytes), step: largest * (1.0 / LARGEST) }
    }
}

impl AddValues<'_> {
    /// Of values in bytes.
    #[inline(always)]
    pub(super) fn add_bytes<S: Simd>(mut self, s: S, values: ByteValues<'_>) {
        let (stride, [unit, ..]) = (self.values.stride, values.unit) else { return };
        assert!(
            stride.is_multiple_of(BLOCK)
                && self.values.cols <= stride
                && values.words.len() >= ByteValues::words(stride)
        );
        check(self.rows, self.out.len(), stride, stride);
        let mut i = 0;
        while i < self.rows.len() {
            // SAFETY: the block's words and the rows are there.
            i += unsafe {
                match self.rows.len() - i {
                    4.. if S::LANES > 1 => self.add_rounded::<S, 4>(s, values.words, unit, i),
                    2.. if S::LANES > 1 => self.add_rounded::<S, 2>(s, values.words, unit, i),
                    _ => self.add_rounded::<S, 1>(s, values.words, unit, i),
                }
            };
        }
    }

    /// `R` rows from list place `i` on; returns how many. Rows must differ.
    ///
    /// # Safety
    /// They are there, and so are the words of a block.
    #[inline(always)]
    unsafe fn add_rounded<S: Simd, const R: usize>(
        &mut self,
        s: S,
        words: &[u32],
        unit: &[bf16; BLOCK],
        i: usize,
    ) -> usize {
        let stride = self.values.stride;
        let (p, _) = self.p.as_chunks::<BLOCK>();
        let (mut weights, mut out) = ([Weights::NONE; R], [self.out.as_mut_ptr(); R]);
        for r in 0..R {
            weights[r] = Weights::new(s, &p[i + r], unit);
            out[r] = out[r].wrapping_add(self.rows[i + r] as usize * stride);
        }
        for v in (0..self.values.cols).step_by(S::LANES) {
            let from = words.as_ptr().wrapping_add(v / BLOCK * (BLOCK / WORD) * BLOCK + v % BLOCK);
            let mut acc = [s.splat_i(0); R];
            for g in 0..BLOCK / WORD {
                // SAFETY: a vector of words g of the block, which is as long as `stride` says.
                let values = unsafe { s.load_i(from.add(g * BLOCK).cast()) };
                for r in 0..R {
                    acc[r] = s.dot7(acc[r], s.splat_i(weights[r].codes[g]), values);
                }
            }
            for r in 0..R {
                // SAFETY: vector v of a row.
                unsafe {
                    let to = out[r].add(v);
                    s.store(to, s.fma(s.to_f32(acc[r]), s.splat(weights[r].step), s.load(to)));
                }
            }
        }
        R
    }
}
