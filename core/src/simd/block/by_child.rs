//! Rows by child.

use super::BLOCK;
use crate::simd::Task;
use crate::simd::vector::Simd;

/// Rows that are looked at together.
pub(crate) const TOGETHER: usize = 16;

/// Rows from which on it is worth going through them once for every child.
const MANY: usize = 6;

/// Rows by child, from the bits of every row of a list: child `c` gets the queries `rows[i]` and the places `i` of its rows from
/// `c * stride` on, and their number.
pub(crate) struct ByChild<'a> {
    pub(crate) rows: &'a [u16],
    pub(crate) open: &'a [u16],
    /// 0, 1, 2 and so on, at least as many as there are rows.
    pub(crate) count: &'a [u16],
    pub(crate) stride: usize,
    /// `[BLOCK][stride]`, and [`TOGETHER`] more that are written to; what lies behind a child's rows is lost.
    pub(crate) queries: &'a mut [u16],
    pub(crate) places: &'a mut [u16],
}

impl Task for ByChild<'_> {
    type Out = [usize; BLOCK];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [usize; BLOCK] {
        let Self { rows, open, count, stride, ref queries, ref places } = self;
        assert!(rows.len() == open.len() && rows.len() <= stride && rows.len() <= count.len());
        assert!(queries.len() >= BLOCK * stride + TOGETHER && places.len() >= BLOCK * stride + TOGETHER);
        // SAFETY: checked.
        unsafe { if S::PICKS && rows.len() >= MANY { self.by_vectors(s) } else { self.by_rows() } }
    }
}

impl ByChild<'_> {
    /// Row by row.
    ///
    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn by_rows(self) -> [usize; BLOCK] {
        let mut len = [0; BLOCK];
        for (place, (&row, &bits)) in self.rows.iter().zip(self.open).enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let child = bits.trailing_zeros() as usize & (BLOCK - 1);
                bits &= bits - 1;
                let at = child * self.stride + len[child];
                // SAFETY: a child has at most as many rows as there are, so `at` is below BLOCK * stride.
                unsafe {
                    *self.queries.get_unchecked_mut(at) = row;
                    *self.places.get_unchecked_mut(at) = place as u16;
                }
                len[child] += 1;
            }
        }
        len
    }

    /// Child by child.
    ///
    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn by_vectors<S: Simd>(self, s: S) -> [usize; BLOCK] {
        let whole = self.rows.len() / TOGETHER * TOGETHER;
        // Those left over, with rows that open nothing.
        let (mut rows, mut open, mut count) = ([0; TOGETHER], [0; TOGETHER], [0; TOGETHER]);
        for i in 0..self.rows.len() - whole {
            (rows[i], open[i], count[i]) = (self.rows[whole + i], self.open[whole + i], self.count[whole + i]);
        }
        let mut len = [0; BLOCK];
        for (child, len) in len.iter_mut().enumerate() {
            // What is written behind the rows of a child lies in the next one's, which come later, or behind the last's.
            // SAFETY: a child has at most `stride` rows, and TOGETHER numbers are writable behind those of the last.
            unsafe {
                let queries = self.queries.as_mut_ptr().add(child * self.stride);
                let places = self.places.as_mut_ptr().add(child * self.stride);
                let mut n = 0;
                let mut take = |rows: *const u16, open: *const u16, count: *const u16| {
                    let bits = s.test16(open, 1 << child);
                    s.pick16(rows, bits, queries.add(n));
                    s.pick16(count, bits, places.add(n));
                    n += bits.count_ones() as usize;
                };
                let mut i = 0;
                while i < whole {
                    take(self.rows.as_ptr().add(i), self.open.as_ptr().add(i), self.count.as_ptr().add(i));
                    i += TOGETHER;
                }
                if whole < self.rows.len() {
                    take(rows.as_ptr(), open.as_ptr(), count.as_ptr());
                }
                *len = n;
            }
        }
        len
    }
}
