//! A second look at the rows of a node, along the coordinates of its cells in four bits.

use super::coords::{Bytes, Coded, products};
use super::{BLOCK, capped, check};
use crate::simd::Task;
use crate::simd::vector::Simd;

/// Coordinates of a node's cells, and of queries.
pub(crate) struct Sift<'a> {
    pub(crate) keys: Coded<'a>,
    pub(crate) q: Bytes<'a>,
    pub(crate) softcap: f32,
    /// How far the keys of each cell reach from its mean.
    pub(crate) reach: &'a [f32],
    /// Gets the scores of the cells' means, `[place][BLOCK]` by the new places of the rows that pass.
    pub(crate) scores: &'a mut [f32],
    /// Scores of the parent's children, `[place][BLOCK]`, of which this is child `lane`.
    pub(crate) centers: &'a [f32],
    /// Bits of the children that pass whatever their keys, by place.
    pub(crate) sure: &'a [u16],
    pub(crate) lane: usize,
    /// Queries, and their places in the parent's list.
    pub(crate) rows: &'a mut [u16],
    pub(crate) places: &'a mut [u16],
}

impl Task for Sift<'_> {
    /// Rows for which a key seems to reach `needle`, moved to the front in their order.
    type Out = usize;
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> usize {
        check(self.rows, self.q.of.len(), 1, 1);
        check(self.places, self.centers.len().min(self.sure.len() * BLOCK), BLOCK, BLOCK);
        assert!(self.places.len() == self.rows.len() && self.lane < BLOCK);
        assert!(self.reach.len() >= BLOCK && self.scores.len() >= self.rows.len() * BLOCK);
        let words = self.keys.words.len() / BLOCK;
        self.q.check(words);
        // Loops of their own: one that knows of softcaps is too long to be unrolled.
        // SAFETY: checked.
        unsafe { if self.softcap > 0.0 { self.some::<S, true>(s, words) } else { self.some::<S, false>(s, words) } }
    }
}

impl Sift<'_> {
    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn some<S: Simd, const CAPPED: bool>(&mut self, s: S, words: usize) -> usize {
        // SAFETY: passed on.
        unsafe {
            match S::LANES {
                16 => self.tiles::<S, 1, 8, CAPPED>(s, words),
                8 => self.tiles::<S, 2, 4, CAPPED>(s, words),
                4 => self.tiles::<S, 4, 4, CAPPED>(s, words),
                _ => self.tiles::<S, 16, 1, CAPPED>(s, words),
            }
        }
    }

    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const C: usize, const R: usize, const CAPPED: bool>(
        &mut self,
        s: S,
        words: usize,
    ) -> usize {
        let (n, mut front, mut i) = (self.rows.len(), 0, 0);
        // SAFETY: rows i.. are there; those at the front have been read.
        unsafe {
            while i + R <= n {
                front = self.tile::<S, C, R, CAPPED>(s, words, i, front);
                i += R;
            }
            if R > 4 && i + 4 <= n {
                front = self.tile::<S, C, 4, CAPPED>(s, words, i, front);
                i += 4;
            }
            while R > 2 && i + 2 <= n {
                front = self.tile::<S, C, 2, CAPPED>(s, words, i, front);
                i += 2;
            }
            while i < n {
                front = self.tile::<S, C, 1, CAPPED>(s, words, i, front);
                i += 1;
            }
        }
        front
    }

    /// `R` rows from list place `i` on; those that pass go to `front` on, whose end is returned.
    ///
    /// # Safety
    /// They are there; `C * LANES` is the block.
    #[inline(always)]
    unsafe fn tile<S: Simd, const C: usize, const R: usize, const CAPPED: bool>(
        &mut self,
        s: S,
        words: usize,
        i: usize,
        mut front: usize,
    ) -> usize {
        let all = if S::LANES == 16 { 0xffff } else { (1 << S::LANES) - 1 };
        let mut q = [self.q.codes.as_ptr(); R];
        for r in 0..R {
            // SAFETY: the query is there.
            q[r] = unsafe { q[r].add(self.rows[i + r] as usize * 2 * words) };
        }
        // SAFETY: words of the block, numbers of queries.
        let acc = unsafe { products::<S, C, R>(s, self.keys.words.as_ptr(), words, q) };
        let mut unit = [s.splat(0.0); C];
        for c in 0..C {
            // SAFETY: vector c of the block's steps.
            unit[c] = unsafe { s.load_bf16(self.keys.unit.as_ptr().add(c * S::LANES).cast()) };
        }
        let (reach, kept) = (self.reach.as_ptr(), self.scores.as_mut_ptr());
        let mut pass = [false; R];
        let mut scores = [[s.splat(0.0); C]; R];
        for r in 0..R {
            // SAFETY: rows and places were checked.
            unsafe {
                let along = &*self.q.of.as_ptr().add(*self.rows.as_ptr().add(i + r) as usize);
                let place = *self.places.as_ptr().add(i + r) as usize;
                let center = *self.centers.as_ptr().add(place * BLOCK + self.lane);
                // Without a softcap the needle comes to the keys, one number, and not the keys to the needle.
                let needle = if CAPPED { along.needle } else { along.needle - center };
                let (step, zero) = (s.splat(along.unit), s.splat(along.zero));
                let slack = s.splat(along.most);
                let (needle, far) = (s.splat(needle), s.splat(along.far));
                let mut below = all;
                for c in 0..C {
                    let codes = s.to_f32(acc[r][c]);
                    let most = s.fma(codes, step, slack);
                    scores[r][c] = s.fma(s.fma(codes, step, zero), unit[c], s.splat(center));
                    let mut x = s.fma(most, unit[c], s.mul(s.load(reach.add(c * S::LANES)), far));
                    if CAPPED {
                        x = capped(s, s.add(x, s.splat(center)), self.softcap);
                    }
                    below &= s.lt_bits(x, needle);
                }
                let sure = *self.sure.as_ptr().add(place) >> self.lane & 1 != 0;
                pass[r] = sure | (below != all);
            }
        }
        let (rows, places) = (self.rows.as_mut_ptr(), self.places.as_mut_ptr());
        for r in 0..R {
            // Written always, kept where it passes: no branch to mispredict.
            // SAFETY: `front` is at most `i + r`.
            unsafe {
                *rows.add(front) = *rows.add(i + r);
                *places.add(front) = *places.add(i + r);
                for c in 0..C {
                    s.store(kept.add(front * BLOCK + c * S::LANES), scores[r][c]);
                }
            }
            front += usize::from(pass[r]);
        }
        front
    }
}
