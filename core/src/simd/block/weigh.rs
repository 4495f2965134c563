//! Exact weights of the keys of a cell.

use super::{BLOCK, MOST, capped, check};
use crate::simd::Task;
use crate::simd::vector::Simd;

/// Exact weights of a cell's keys. A row's keys below `fine` share the mean value of the cell: their weight goes to
/// `mass[places[i] * BLOCK + lane]`. The others come with their own values: the rows that have some go to the front,
/// weights in place of scores, with their queries and bits in `full`.
pub(crate) struct Weigh<'a> {
    pub(crate) scores: &'a mut [f32],
    /// Queries.
    pub(crate) rows: &'a [u16],
    /// Places of the rows in the parent's list.
    pub(crate) places: &'a [u16],
    /// Which child of its parent the cell is.
    pub(crate) lane: usize,
    pub(crate) reference: &'a [f32],
    pub(crate) fine: &'a [f32],
    pub(crate) softcap: f32,
    /// `[query][BLOCK]`.
    pub(crate) sum: &'a mut [f32],
    pub(crate) mass: &'a mut [f32],
    /// What of `sum` is in `mass` too, by query.
    pub(crate) light: &'a mut [f32],
    pub(crate) full: &'a mut [[u16; 2]],
    /// Set where a key's weight leaves the range of f32, by query.
    pub(crate) lost: &'a mut [bool],
}

impl Task for Weigh<'_> {
    /// Rows at the front.
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let Weigh { scores, rows, places, lane, reference, fine, softcap, sum, mass, light, full, lost } = self;
        let n = rows.len();
        check(rows, sum.len(), BLOCK, BLOCK);
        check(places, mass.len(), BLOCK, BLOCK);
        assert!(scores.len() >= n * BLOCK && full.len() >= n && places.len() == n && lane < BLOCK);
        let mut front = 0;
        let mut i = 0;
        while i < n {
            let group = if i + 4 <= n { 4 } else { 1 };
            let mut total = [s.splat(0.0); 4];
            let mut bits = [0u32; 4];
            for r in 0..group {
                // SAFETY: rows of BLOCK numbers, as checked.
                unsafe {
                    let q = rows[i + r] as usize;
                    let at = scores.as_mut_ptr().add((i + r) * BLOCK);
                    let to = sum.as_mut_ptr().add(q * BLOCK);
                    let fits;
                    (total[r], bits[r], fits) = weigh(s, at, to, reference[q], fine[q], softcap);
                    if !fits {
                        lost[q] = true;
                    }
                }
            }
            let sums = s.reduce_add4(total);
            for r in 0..group {
                let row = rows[i + r];
                mass[places[i + r] as usize * BLOCK + lane] = sums[r];
                light[row as usize] += sums[r];
                // Written always, kept where there are such keys: no branch to mispredict.
                full[front] = [row, bits[r] as u16];
                for c in (0..BLOCK).step_by(S::LANES) {
                    // SAFETY: rows front <= i + r of BLOCK numbers.
                    unsafe {
                        let x = s.load(scores.as_ptr().add((i + r) * BLOCK + c));
                        s.store(scores.as_mut_ptr().add(front * BLOCK + c), x);
                    }
                }
                front += usize::from(bits[r] != 0);
            }
            i += group;
        }
        front
    }
}

/// One row of [`Weigh`]: the lanes' sums of the weights below `limit`, bits of the others, and whether all are in range.
///
/// # Safety
/// `BLOCK` numbers at both addresses.
#[inline(always)]
pub(super) unsafe fn weigh<S: Simd>(
    s: S,
    at: *mut f32,
    to: *mut f32,
    shift: f32,
    limit: f32,
    cap: f32,
) -> (S::V, u32, bool) {
    let all = if S::LANES == 16 { 0xffff } else { (1 << S::LANES) - 1 };
    let (shift, limit) = (s.splat(shift), s.splat(limit));
    let mut total = s.splat(0.0);
    let (mut bits, mut fits, mut c) = (0, all, 0);
    while c < BLOCK {
        // SAFETY: vector c of the row.
        unsafe {
            let x = s.sub(capped(s, s.load(at.add(c)), cap), shift);
            fits &= s.lt_bits(x, s.splat(MOST));
            let w = s.exp2(s.min(x, s.splat(MOST)));
            bits |= (all & !s.lt_bits(w, limit)) << c;
            total = s.add(total, s.select_lt(w, limit, w, s.splat(0.0)));
            s.store(to.add(c), s.add(s.load(to.add(c)), w));
            s.store(at.add(c), w);
        }
        c += S::LANES;
    }
    (total, bits, fits == all)
}
