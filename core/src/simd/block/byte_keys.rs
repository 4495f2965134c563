//! Mean keys of nodes in bytes, by what sets them apart from one key of the head, and their scores.
//!
//! Every row scores all nodes, so that their mean keys are read from end to end: in bytes that is half of what f16 takes, and four
//! products are one instruction where the machine has it. What all keys of a head have in common, often most of their length, is
//! taken off before rounding, and scored once a row.

use super::coords::{Along, Bytes, MAGIC, MIDDLE, step_of, words};
use super::{BLOCK, Fetch, Matrix, Scores, Stored};
use crate::simd::vector::Simd;
use crate::simd::{Task, part};
use half::bf16;

/// Coordinates in a word.
const WORD: usize = 4;

/// Code of nothing, and the largest step from it, either way: what is less than 128 is quicker to multiply.
const ZERO: f32 = 64.0;
const LARGEST: f32 = 63.0;

/// Mean keys of root blocks.
#[derive(Clone, Copy)]
pub(crate) struct ByteKeys<'a> {
    /// `[root block][ByteKeys::quads(dim)][BLOCK]`: byte b of word (g, j) is coordinate `g * WORD + b` of node j, in steps of that node.
    pub(crate) words: &'a [u32],
    pub(crate) unit: &'a [[bf16; BLOCK]],
}

impl<'a> ByteKeys<'a> {
    /// Words of a node: two for each of the coordinates in four bits.
    pub(crate) fn quads(dim: usize) -> usize {
        2 * words(dim)
    }

    /// `n` root blocks from block `at` on.
    fn blocks(self, at: usize, n: usize, dim: usize) -> ByteKeys<'a> {
        let each = ByteKeys::quads(dim) * BLOCK;
        ByteKeys { words: &self.words[at * each..][..n * each], unit: &self.unit[at..][..n] }
    }
}

/// Rounds what sets a key apart from `center` into the words and the unit of node `j` of a root block.
pub(crate) fn round_key(key: &[f32], center: &[f32], j: usize, words: &mut [u32], unit: &mut [bf16; BLOCK]) {
    let apart = || key.iter().zip(center).map(|(x, center)| x - center);
    let (step, factor) = step_of(apart().fold(0.0, |m: f32, x| m.max(x.abs())) / LARGEST);
    unit[j] = step;
    for (k, x) in apart().enumerate() {
        let (word, shift) = (&mut words[k / WORD * BLOCK + j], k % WORD * 8);
        let code = (x * factor + ZERO + MAGIC).to_bits() & 0x7f;
        *word = *word & !(0xff << shift) | code << shift;
    }
}

/// Mean keys of nodes as they are stored, of one root block or of many.
#[derive(Clone, Copy)]
pub(crate) enum NodeKeys<'a> {
    /// `[root block][dim][BLOCK]`.
    Whole(Stored<'a>),
    Bytes(ByteKeys<'a>),
}

impl<'a> NodeKeys<'a> {
    /// Of `n` root blocks from block `at` on.
    #[inline(always)]
    pub(crate) fn blocks(self, at: usize, n: usize, dim: usize) -> NodeKeys<'a> {
        match self {
            NodeKeys::Whole(x) => NodeKeys::Whole(x.part(at * dim * BLOCK, n * dim * BLOCK)),
            NodeKeys::Bytes(x) => NodeKeys::Bytes(x.blocks(at, n, dim)),
        }
    }

    /// To be asked for.
    pub(super) fn fetch(self) -> Fetch {
        match self {
            NodeKeys::Whole(x) => Fetch::stored(x),
            NodeKeys::Bytes(x) => Fetch::of(x.words),
        }
    }
}

/// Queries that score nodes, however these are stored.
#[derive(Clone, Copy)]
pub(crate) struct Asking<'a> {
    pub(crate) q: Matrix<'a>,
    /// The same in bytes, and by query its product with the key that keys in bytes are set apart from.
    pub(crate) bytes: Bytes<'a>,
    pub(crate) base: &'a [f32],
}

/// `out[i * BLOCK + j]` is the product of query `rows[i]` with the mean key of node j of a root block.
pub(crate) struct ScoreNodes<'a> {
    pub(crate) keys: NodeKeys<'a>,
    pub(crate) asking: Asking<'a>,
    pub(crate) rows: &'a [u16],
    pub(crate) out: &'a mut [f32],
}

impl Task for ScoreNodes<'_> {
    type Out = ();
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let keys = match self.keys {
            NodeKeys::Whole(block) => {
                return part(s, Scores { block, q: self.asking.q, rows: self.rows, out: self.out });
            }
            NodeKeys::Bytes(keys) => keys,
        };
        let ([unit, ..], quads) = (keys.unit, ByteKeys::quads(self.asking.q.cols)) else { return };
        let Asking { bytes, base, .. } = self.asking;
        bytes.check(quads / 2);
        let queries = bytes.of.len().min(base.len());
        assert!(self.rows.iter().fold(true, |ok, &row| ok & ((row as usize) < queries)));
        assert!(keys.words.len() >= quads * BLOCK && self.out.len() >= self.rows.len() * BLOCK);
        // SAFETY: the block's words, its units, the queries of the rows and what they write are there.
        unsafe {
            match S::LANES {
                16 => self.tiles::<S, 1, 8>(s, keys.words, unit, quads),
                8 => self.tiles::<S, 2, 4>(s, keys.words, unit, quads),
                4 => self.tiles::<S, 4, 4>(s, keys.words, unit, quads),
                _ => self.tiles::<S, 16, 1>(s, keys.words, unit, quads),
            }
        }
    }
}

impl ScoreNodes<'_> {
    /// All rows, `R` at a time.
    ///
    /// # Safety
    /// As checked in `run`; `C * LANES` is the block.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const C: usize, const R: usize>(
        &mut self,
        s: S,
        words: &[u32],
        unit: &[bf16; BLOCK],
        quads: usize,
    ) {
        let mut i = 0;
        // SAFETY: rows i.. are there.
        unsafe {
            while i + R <= self.rows.len() {
                self.tile::<S, C, R>(s, words, unit, quads, i);
                i += R;
            }
            while R > 2 && i + 2 <= self.rows.len() {
                self.tile::<S, C, 2>(s, words, unit, quads, i);
                i += 2;
            }
            while i < self.rows.len() {
                self.tile::<S, C, 1>(s, words, unit, quads, i);
                i += 1;
            }
        }
    }

    /// `R` rows from list place `i` on.
    ///
    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn tile<S: Simd, const C: usize, const R: usize>(
        &mut self,
        s: S,
        words: &[u32],
        unit: &[bf16; BLOCK],
        quads: usize,
        i: usize,
    ) {
        let Asking { bytes, base, .. } = self.asking;
        let mut q = [bytes.codes.as_ptr(); R];
        for r in 0..R {
            q[r] = q[r].wrapping_add(self.rows[i + r] as usize * quads);
        }
        // A few rows would wait for their own sums: two chains each.
        let chains = if C * R < 8 { 2 } else { 1 };
        let mut acc = [[[s.splat_i(0); C]; R]; 2];
        for k in 0..quads {
            for c in 0..C {
                // SAFETY: word k of the block, vector c.
                let x = unsafe { s.load_i(words.as_ptr().add(k * BLOCK + c * S::LANES).cast()) };
                for r in 0..R {
                    // SAFETY: number k of a query.
                    let q = s.splat_i(unsafe { *q[r].add(k) });
                    let to = &mut acc[k % chains][r][c];
                    *to = s.dot7(*to, x, q);
                }
            }
        }
        for r in 0..R {
            let row = self.rows[i + r] as usize;
            let Along { unit: step, zero, .. } = bytes.of[row];
            let (step, zero, base) = (s.splat(step), s.splat(zero * (ZERO / MIDDLE)), s.splat(base[row]));
            for c in 0..C {
                let sum = if chains > 1 { s.add_i(acc[0][r][c], acc[1][r][c]) } else { acc[0][r][c] };
                // SAFETY: vector c of the block's sixteen units; `out` has a row for every query.
                unsafe {
                    let unit = s.load_bf16(unit.as_ptr().add(c * S::LANES).cast());
                    let x = s.fma(s.fma(s.to_f32(sum), step, zero), unit, base);
                    s.store(self.out.as_mut_ptr().add((i + r) * BLOCK + c * S::LANES), x);
                }
            }
        }
    }
}
