//! Rows by child, and a second look at them along a few coordinates.

use super::{BLOCK, capped, check};
use crate::simd::Task;
use crate::simd::vector::Simd;

/// Rows by child, from the bits of every row of a list: child `c` gets the queries `rows[i]` and the places `i` of its
/// rows from `c * stride` on, and their number.
pub(crate) fn by_child(
    rows: &[u16],
    open: &[u16],
    stride: usize,
    queries: &mut [u16],
    places: &mut [u16],
) -> [usize; BLOCK] {
    assert!(rows.len() == open.len() && rows.len() <= stride && rows.len() <= 1 << 16);
    assert!(queries.len() >= BLOCK * stride && places.len() >= BLOCK * stride);
    let mut len = [0; BLOCK];
    for (place, (&row, &bits)) in rows.iter().zip(open).enumerate() {
        let mut bits = bits;
        while bits != 0 {
            let child = bits.trailing_zeros() as usize & (BLOCK - 1);
            bits &= bits - 1;
            let at = child * stride + len[child];
            // SAFETY: a child has at most as many rows as there are, so `at` is below BLOCK * stride.
            unsafe {
                *queries.get_unchecked_mut(at) = row;
                *places.get_unchecked_mut(at) = place as u16;
            }
            len[child] += 1;
        }
    }
    len
}

/// Coordinates of a node's cells or a cell's keys, and of queries.
pub(crate) struct Sift<'a> {
    /// `[RANK / 2][BLOCK][2]` in units of `unit`.
    pub(crate) keys: &'a [i8],
    pub(crate) unit: f32,
    /// Length of what the coordinates leave out.
    pub(crate) rest: f32,
    pub(crate) q: &'a [Along],
    pub(crate) softcap: f32,
    /// How far the keys of each cell reach from its mean; zeros for keys.
    pub(crate) reach: &'a [f32],
    /// Scores of the parent's children, `[place][BLOCK]`, of which this is child `lane`.
    pub(crate) centers: &'a [f32],
    /// Bits of the children that pass whatever their keys, by place.
    pub(crate) sure: &'a [u16],
    pub(crate) lane: usize,
    /// Queries, and their places in the parent's list.
    pub(crate) rows: &'a mut [u16],
    pub(crate) places: &'a mut [u16],
}

/// Coordinates of a key: whole blocks.
pub(crate) const RANK: usize = 32;

/// A query along the fitted directions: all that [`Sift`] reads of it, on neighbouring cache lines.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Along {
    /// Coordinates in units of `unit`.
    pub(crate) pairs: [[i16; 2]; RANK / 2],
    pub(crate) unit: f32,
    /// What a key may stand out per unit of `rest`.
    pub(crate) rest: f32,
    /// What a key may stand out per unit of its cell's reach.
    pub(crate) far: f32,
    /// Logit to reach.
    pub(crate) needle: f32,
}

impl Task for Sift<'_> {
    /// Rows for which a key seems to reach `needle`, moved to the front in their order.
    type Out = usize;
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> usize {
        check(self.rows, self.q.len(), 1, 1);
        check(self.places, self.centers.len().min(self.sure.len() * BLOCK), BLOCK, BLOCK);
        assert!(
            self.reach.len() >= BLOCK
                && self.places.len() == self.rows.len()
                && self.lane < BLOCK
                && self.keys.len() == BLOCK * RANK
        );
        // SAFETY: checked.
        unsafe {
            match S::LANES {
                16 => self.tiles::<S, 1, 8>(s),
                8 => self.tiles::<S, 2, 4>(s),
                4 => self.tiles::<S, 4, 4>(s),
                _ => self.tiles::<S, 16, 1>(s),
            }
        }
    }
}

impl Sift<'_> {
    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const C: usize, const R: usize>(&mut self, s: S) -> usize {
        let mut wide = [0i16; BLOCK * RANK];
        for (to, &x) in wide.iter_mut().zip(self.keys) {
            *to = i16::from(x);
        }
        let (n, mut front, mut i) = (self.rows.len(), 0, 0);
        // A loop that the compiler knows the length of is unrolled into more numbers than there are registers.
        let pairs = core::hint::black_box(RANK / 2).min(RANK / 2);
        // SAFETY: rows i.. are there; those at the front have been read.
        unsafe {
            while i + R <= n {
                front = self.tile::<S, C, R>(s, &wide, pairs, i, front);
                i += R;
            }
            while i < n {
                front = self.tile::<S, C, 1>(s, &wide, pairs, i, front);
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
    unsafe fn tile<S: Simd, const C: usize, const R: usize>(
        &mut self,
        s: S,
        keys: &[i16; BLOCK * RANK],
        pairs: usize,
        i: usize,
        mut front: usize,
    ) -> usize {
        let keys: *const i32 = keys.as_ptr().cast();
        let all = if S::LANES == 16 { 0xffff } else { (1 << S::LANES) - 1 };
        let mut acc = [[s.splat_i(0); C]; R];
        let mut q = [self.q.as_ptr(); R];
        for r in 0..R {
            // SAFETY: the query is there.
            q[r] = unsafe { q[r].add(self.rows[i + r] as usize) };
        }
        for k in 0..pairs {
            let mut key = [s.splat_i(0); C];
            for c in 0..C {
                // SAFETY: pair k of the keys, vector c.
                key[c] = unsafe { s.load_i(keys.add(k * BLOCK + c * S::LANES)) };
            }
            for r in 0..R {
                // Both sides read two i16 as they lie, so the byte order does not matter.
                // SAFETY: pair k of a query.
                let q = s.splat_i(unsafe { (*q[r]).pairs.as_ptr().add(k).cast::<i32>().read_unaligned() });
                for c in 0..C {
                    acc[r][c] = s.dot16(acc[r][c], q, key[c]);
                }
            }
        }
        let (rows, places) = (self.rows.as_mut_ptr(), self.places.as_mut_ptr());
        for r in 0..R {
            // SAFETY: rows and places were checked; `front` is at most `i + r`.
            unsafe {
                let (row, place) = (*rows.add(i + r), *places.add(i + r));
                let along = &*q[r];
                let center = *self.centers.as_ptr().add(place as usize * BLOCK + self.lane) + self.rest * along.rest;
                // Without a softcap the needle comes to the keys, one number, and not the keys to the needle.
                let (center, needle) =
                    if self.softcap > 0.0 { (center, along.needle) } else { (0.0, along.needle - center) };
                let (unit, far) = (s.splat(self.unit * along.unit), s.splat(along.far));
                let (center, needle) = (s.splat(center), s.splat(needle));
                let mut below = all;
                for c in 0..C {
                    let reach = s.load(self.reach.as_ptr().add(c * S::LANES));
                    let mut x = s.fma(reach, far, s.mul(s.to_f32(acc[r][c]), unit));
                    if self.softcap > 0.0 {
                        x = capped(s, s.add(x, center), self.softcap);
                    }
                    below &= s.lt_bits(x, needle);
                }
                let sure = *self.sure.as_ptr().add(place as usize) >> self.lane & 1 != 0;
                // Written always, kept where it passes: no branch to mispredict.
                *rows.add(front) = row;
                *places.add(front) = place;
                front += usize::from(sure | (below != all));
            }
        }
        front
    }
}
