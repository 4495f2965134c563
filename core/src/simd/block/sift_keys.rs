//! A second look at the rows of all children of a node, along the coordinates of their keys in four bits.

use super::coords::{Bytes, Coded, Many, products};
use super::{BLOCK, check};
use crate::simd::Task;
use crate::simd::vector::Simd;

/// Rows whose passing is written together, where that is a few instructions.
const TOGETHER: usize = 16;

/// Keeps the rows for which a key of a child seems to reach their needle, and those that open it anyway.
pub(crate) struct SiftKeys<'a> {
    pub(crate) keys: Many<'a>,
    pub(crate) q: Bytes<'a>,
    pub(crate) softcap: f32,
    /// The queries of the node, in the order of their places.
    pub(crate) rows: &'a [u16],
    /// Scores of the children's means, `[place][BLOCK]`. In place: what a key of theirs lacks to reach the needle.
    pub(crate) centers: &'a mut [f32],
    /// Bits of the children that pass whatever their keys, by place.
    pub(crate) sure: &'a [u16],
    pub(crate) lists: Listing<'a>,
}

/// Rows by child, as [`ByChild`](super::ByChild) leaves them.
pub(crate) struct Listing<'a> {
    pub(crate) len: &'a mut [usize; BLOCK],
    pub(crate) stride: usize,
    pub(crate) rows: &'a mut [u16],
    pub(crate) places: &'a mut [u16],
}

impl Task for SiftKeys<'_> {
    /// Rows of all lists before.
    type Out = usize;
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> usize {
        self.lower(s);
        let SiftKeys { keys, q, centers, lists, .. } = self;
        let Listing { len, stride, rows, places } = lists;
        let words = keys.each / BLOCK;
        q.check(words);
        let mut before = 0;
        for (lane, len) in len.iter_mut().enumerate().filter(|(_, len)| **len > 0) {
            before += *len;
            let (rows, places) = (&mut rows[lane * stride..][..*len], &mut places[lane * stride..][..*len]);
            check(rows, q.of.len(), 1, 1);
            check(places, centers.len(), BLOCK, BLOCK);
            let mut child = Child { keys: keys.block(lane), q, gaps: &centers[lane..], rows, places };
            // SAFETY: rows, places and words were checked; a lane is below BLOCK.
            *len = unsafe {
                match S::LANES {
                    16 => child.sift::<S, 1, 8>(s, words),
                    8 => child.sift::<S, 2, 4>(s, words),
                    4 => child.sift::<S, 4, 4>(s, words),
                    _ => child.sift::<S, 16, 1>(s, words),
                }
            };
        }
        before
    }
}

impl SiftKeys<'_> {
    /// From scores to what is lacking. The needle comes to the means, and not a softcap to all keys.
    #[inline(always)]
    fn lower<S: Simd>(&mut self, s: S) {
        let Self { rows, centers, sure, q, softcap, .. } = self;
        check(rows, q.of.len(), 1, 1);
        assert!(centers.len() >= rows.len() * BLOCK && sure.len() >= rows.len());
        for ((gaps, &row), &sure) in centers.chunks_exact_mut(BLOCK).zip(*rows).zip(*sure) {
            let mut needle = q.of[row as usize].needle;
            if *softcap > 0.0 {
                needle = uncapped(needle, *softcap);
            }
            for part in gaps.chunks_exact_mut(S::LANES) {
                // SAFETY: a whole vector.
                unsafe { s.store(part.as_mut_ptr(), s.sub(s.load(part.as_ptr()), s.splat(needle))) };
            }
            let mut bits = sure;
            while bits != 0 {
                gaps[bits.trailing_zeros() as usize] = f32::INFINITY;
                bits &= bits - 1;
            }
        }
    }
}

/// What reaches `x` under a softcap.
fn uncapped(x: f32, cap: f32) -> f32 {
    if x.abs() < cap { cap * libm::atanhf(x / cap) } else { f32::INFINITY.copysign(x) }
}

/// One of them.
struct Child<'a> {
    keys: Coded<'a>,
    q: Bytes<'a>,
    /// Of this child, `BLOCK` apart.
    gaps: &'a [f32],
    rows: &'a mut [u16],
    places: &'a mut [u16],
}

impl Child<'_> {
    /// Moves the rows that pass to the front, in their order; returns their number.
    ///
    /// # Safety
    /// Queries have `2 * words` numbers, keys as many words; rows and places are in range; `C * LANES` is the block.
    #[inline(always)]
    unsafe fn sift<S: Simd, const C: usize, const R: usize>(&mut self, s: S, words: usize) -> usize {
        let (n, mut front, mut i) = (self.rows.len(), 0, 0);
        // SAFETY: rows i.. are there; what is written at the front, up to TOGETHER numbers, lies before row i + TOGETHER.
        unsafe {
            while S::PICKS && i + TOGETHER <= n {
                let mut bits = 0;
                for part in (0..TOGETHER).step_by(R) {
                    bits |= self.tile::<S, C, R>(s, words, i + part) << part;
                }
                for list in [self.rows.as_mut_ptr(), self.places.as_mut_ptr()] {
                    s.pick16(list.add(i), bits, list.add(front));
                }
                front += bits.count_ones() as usize;
                i += TOGETHER;
            }
            while i < n {
                let (bits, count) = match n - i {
                    left if left >= R => (self.tile::<S, C, R>(s, words, i), R),
                    left if R > 4 && left >= 4 => (self.tile::<S, C, 4>(s, words, i), 4),
                    left if R > 2 && left >= 2 => (self.tile::<S, C, 2>(s, words, i), 2),
                    _ => (self.tile::<S, C, 1>(s, words, i), 1),
                };
                for r in 0..count {
                    // Written always, kept where it passes: no branch to mispredict.
                    *self.rows.get_unchecked_mut(front) = *self.rows.get_unchecked(i + r);
                    *self.places.get_unchecked_mut(front) = *self.places.get_unchecked(i + r);
                    front += (bits >> r & 1) as usize;
                }
                i += count;
            }
        }
        front
    }

    /// Which of `R` rows from list place `i` on pass, as bits.
    ///
    /// # Safety
    /// As for `sift`; the rows are there.
    #[inline(always)]
    unsafe fn tile<S: Simd, const C: usize, const R: usize>(&self, s: S, words: usize, i: usize) -> u32 {
        let all = if S::LANES == 16 { 0xffff } else { (1 << S::LANES) - 1 };
        let mut q = [self.q.codes.as_ptr(); R];
        for r in 0..R {
            // SAFETY: the query is there.
            q[r] = unsafe { q[r].add(*self.rows.get_unchecked(i + r) as usize * 2 * words) };
        }
        // SAFETY: words of the block, numbers of queries.
        let acc = unsafe { products::<S, C, R>(s, self.keys.words.as_ptr(), words, q) };
        let mut unit = [s.splat(0.0); C];
        for c in 0..C {
            // SAFETY: vector c of the block's steps.
            unit[c] = unsafe { s.load_bf16(self.keys.unit.as_ptr().add(c * S::LANES).cast()) };
        }
        let mut pass = 0;
        for r in 0..R {
            // SAFETY: rows and places were checked.
            unsafe {
                let along = self.q.of.get_unchecked(*self.rows.get_unchecked(i + r) as usize);
                let gap = *self.gaps.get_unchecked(*self.places.get_unchecked(i + r) as usize * BLOCK);
                let mut below = all;
                for c in 0..C {
                    let most = s.fma(s.to_f32(acc[r][c]), s.splat(along.unit), s.splat(along.most));
                    below &= s.lt_bits(s.fma(most, unit[c], s.splat(gap)), s.splat(0.0));
                }
                pass |= u32::from(below != all) << r;
            }
        }
        pass
    }
}
