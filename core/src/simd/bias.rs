//! Biases added to scores.

use super::rows;
use super::tile::PANEL;
use super::vector::Simd;
use crate::mem::Rows;

/// Keys whose bias is widened at a time.
const BIAS: usize = 64;

/// Adds bias row `i`, keys `first..`, to scores that are `stride` apart; stops at the end of `x`.
#[inline(always)]
pub(crate) fn add_bias<S: Simd>(s: S, bias: &Rows<'_>, i: usize, first: usize, x: &mut [f32], stride: usize) {
    let mut wide = [0.0; BIAS];
    for (part, x) in x.chunks_mut(BIAS * stride).enumerate() {
        let b = &mut wide[..x.len().div_ceil(stride)];
        rows::widen_part(s, bias, i, first + part * BIAS, b);
        // Two loops, so that the first is over neighbours.
        if stride == 1 {
            x.iter_mut().zip(&*b).for_each(|(x, b)| *x += b);
        } else {
            x.iter_mut().step_by(stride).zip(&*b).for_each(|(x, b)| *x += b);
        }
    }
}

/// Vectors and rows of a square that is transposed at once.
const SQUARE: usize = 16;

/// Adds to scores `[keys][PANEL]` the biases of keys `first..` for `n` rows, `query` of which each is. The same sums as
/// [`add_bias`] makes, squares of them at a time.
#[inline(always)]
pub(crate) fn add_biases<S: Simd>(
    s: S,
    bias: &Rows<'_>,
    query: impl Fn(usize) -> usize,
    n: usize,
    first: usize,
    scores: &mut [f32],
) {
    let (keys, squares) = (scores.len() / PANEL, scores.len() / PANEL / SQUARE);
    let zeros = [0.0; SQUARE];
    let (mut wide, mut square) = ([[0.0f32; SQUARE]; SQUARE], [0.0f32; SQUARE * SQUARE]);
    for begin in (0..n).step_by(SQUARE) {
        let rows = (n - begin).min(SQUARE);
        for j in (0..squares * SQUARE).step_by(SQUARE) {
            let mut from = [zeros.as_ptr(); SQUARE];
            for (r, (from, wide)) in from.iter_mut().zip(&mut wide).enumerate().take(rows) {
                let i = query(begin + r);
                *from = match bias.row_f32(i) {
                    Some(row) => row[first + j..][..SQUARE].as_ptr(),
                    None => {
                        rows::widen_part(s, bias, i, first + j, wide);
                        wide.as_ptr()
                    }
                };
            }
            // SAFETY: so many numbers are there in every row, and room for all of them.
            unsafe { s.transpose(&from, 0, square.as_mut_ptr()) };
            for (to, from) in scores[j * PANEL..].chunks_exact_mut(PANEL).zip(square.chunks_exact(SQUARE)) {
                let to = &mut to[begin..][..SQUARE];
                for c in (0..SQUARE).step_by(S::LANES) {
                    // SAFETY: vector c of SQUARE numbers.
                    unsafe {
                        let at = to.as_mut_ptr().add(c);
                        s.store(at, s.add(s.load(at), s.load(from.as_ptr().add(c))));
                    }
                }
            }
        }
        for r in begin..begin + rows {
            if squares * SQUARE < keys {
                let x = &mut scores[squares * SQUARE * PANEL + r..];
                add_bias(s, bias, query(r), first + squares * SQUARE, x, PANEL);
            }
        }
    }
}
