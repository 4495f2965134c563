//! Queries x keys in fixed point: rows scaled to 16-bit integers, products summed in 32 bits.
//!
//! Half the work of the product in f32 where [`Isa::dot16`](super::Isa::dot16) holds. Integers are as large as the sum over a row allows, so
//! rounding errs by at most half a step of `largest / limit` per element.

use super::math::nearest;
use super::tile::{KEYS, PANEL, Span, meeting};
use super::vector::Simd;

/// Largest magnitude of an integer for rows of `dim` elements: `dim * limit^2` stays inside i32.
pub(crate) fn limit(dim: usize) -> i32 {
    // Rows are padded to pairs.
    let sum = f64::from(i32::MAX) / dim.next_multiple_of(2).max(2) as f64;
    (libm::sqrt(sum) as i32).min(32767)
}

/// Elements of a row of `dim` in fixed point: padded to pairs.
pub(crate) fn padded(dim: usize) -> usize {
    dim.next_multiple_of(2)
}

/// Rounds a row to integers of at most `limit`; returns the size of one unit (0 for a row of zeros). `out` holds
/// [`padded`] elements.
#[inline(always)]
pub(crate) fn round_row(x: &[f32], limit: i32, out: &mut [i16]) -> f32 {
    // The order of magnitudes is the order of their bits.
    let largest = f32::from_bits(x.iter().fold(0, |m, x| m.max(x.to_bits() & 0x7fff_ffff)));
    // A row of the smallest numbers would need a factor beyond f32; it rounds to zeros.
    let factor = limit as f32 / largest;
    if !factor.is_finite() {
        out.fill(0);
        return 0.0;
    }
    let (whole, rest) = out.split_at_mut(x.len());
    for (o, &x) in whole.iter_mut().zip(x) {
        *o = nearest(x * factor) as i16;
    }
    rest.fill(0);
    largest / limit as f32
}

/// A panel of queries and a block of keys in fixed point.
#[derive(Clone, Copy)]
pub(crate) struct Fixed<'a> {
    /// Queries `[pairs][PANEL]`, two elements each.
    pub(crate) q: &'a [[i16; 2]],
    /// Unit of every query.
    pub(crate) q_unit: &'a [f32],
    /// Keys `[keys][pairs]`.
    pub(crate) keys: &'a [[i16; 2]],
    /// Unit of every key.
    pub(crate) key_unit: &'a [f32],
    /// Pairs of a row.
    pub(crate) pairs: usize,
}

/// As [`super::tile::scores`], from fixed point.
#[inline(always)]
pub(crate) fn scores<S: Simd>(
    s: S,
    fixed: &Fixed<'_>,
    lo: usize,
    hi: usize,
    spans: &[Span],
    out: &mut [f32],
    max: &mut [f32; PANEL],
    mut between: impl FnMut(usize, usize),
) {
    assert!(lo <= hi && hi * fixed.pairs <= fixed.keys.len() && hi <= fixed.key_unit.len());
    assert!(fixed.q.len() >= fixed.pairs * PANEL && fixed.q_unit.len() >= PANEL && spans.len() * S::LANES <= PANEL);
    assert!(out.len() >= (hi - lo).next_multiple_of(KEYS) * PANEL);
    max.fill(f32::NEG_INFINITY);
    let mut j = lo;
    while j < hi {
        let end = j + if S::WIDE { KEYS } else { KEYS / 2 };
        between(j, end.min(hi));
        let (mut first, last) = meeting(spans, j, end);
        while first < last {
            let lane = first * S::LANES;
            let n = (last - first).min(if S::WIDE { 3 } else { 2 });
            let out = &mut out[(j - lo) * PANEL + lane..];
            // SAFETY: rows j.. exist up to `hi` (later ones are clamped), the panel has `pairs` rows, `out` has room for a
            // whole tile, and lanes lane..lane + n * LANES are inside a panel.
            unsafe {
                match (S::WIDE, n) {
                    (true, 3) => tile::<S, 8, 3>(s, fixed, j, hi - 1, lane, out, max),
                    (true, 2) => tile::<S, 8, 2>(s, fixed, j, hi - 1, lane, out, max),
                    (true, _) => tile::<S, 8, 1>(s, fixed, j, hi - 1, lane, out, max),
                    (false, 2) => tile::<S, 4, 2>(s, fixed, j, hi - 1, lane, out, max),
                    (false, _) => tile::<S, 4, 1>(s, fixed, j, hi - 1, lane, out, max),
                }
            }
            first += n;
        }
        j = end;
    }
}

/// `R` keys x `C` vectors of queries from lane `lane` on.
///
/// # Safety
/// Keys `first..=last` are there; `lane + C * LANES <= PANEL`; `out` has room for `R` rows of a panel from that lane on.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const C: usize>(
    s: S,
    fixed: &Fixed<'_>,
    first: usize,
    last: usize,
    lane: usize,
    out: &mut [f32],
    max: &mut [f32; PANEL],
) {
    let mut at = [0; R];
    let mut rows = [fixed.keys.as_ptr(); R];
    for r in 0..R {
        // A tile past the end repeats the last key; nobody looks at those scores.
        at[r] = (first + r).min(last);
        // SAFETY: that key is there.
        rows[r] = unsafe { fixed.keys.as_ptr().add(at[r] * fixed.pairs) };
    }
    let mut acc = [[s.splat_i(0); C]; R];
    // SAFETY: the lane is inside the panel.
    let mut q = unsafe { fixed.q.as_ptr().add(lane) };
    for k in 0..fixed.pairs {
        let mut b = [s.splat_i(0); C];
        for c in 0..C {
            // SAFETY: panel row k.
            b[c] = unsafe { s.load_i(q.add(c * S::LANES).cast()) };
        }
        for r in 0..R {
            // SAFETY: k < pairs. Both sides read two i16 as they lie, so the byte order does not matter.
            let a = s.splat_i(unsafe { rows[r].add(k).cast::<i32>().read_unaligned() });
            for c in 0..C {
                acc[r][c] = s.dot16(acc[r][c], a, b[c]);
            }
        }
        q = q.wrapping_add(PANEL);
    }
    for c in 0..C {
        let lanes = lane + c * S::LANES;
        // SAFETY: the lanes are inside a panel, `out` has room for the tile.
        unsafe {
            let unit = s.load(fixed.q_unit.as_ptr().add(lanes));
            let mut m = s.load(max.as_ptr().add(lanes));
            for r in 0..R {
                let x = s.mul(s.to_f32(acc[r][c]), s.mul(unit, s.splat(fixed.key_unit[at[r]])));
                m = s.max(m, x);
                s.store(out.as_mut_ptr().add(r * PANEL + c * S::LANES), x);
            }
            s.store(max.as_mut_ptr().add(lanes), m);
        }
    }
}
