//! How far a cell's vectors lie from what is known of them: lengths and widths for bounds.

use super::BLOCK;
use super::coords::{Coded, words};
use crate::simd::vector::Simd;
use crate::simd::{Task, sqrt};

/// Takes decoded coordinates off a cell's residuals, `[dim][BLOCK]`. Returns the longest decoded residual, the longest
/// remainder, and the remainders' width.
pub(crate) struct Remainders<'a> {
    pub(crate) coded: Coded<'a>,
    pub(crate) vectors: &'a mut [f32],
}

impl Task for Remainders<'_> {
    type Out = [f32; 3];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; 3] {
        let Remainders { coded, vectors } = self;
        assert!(vectors.len() % BLOCK == 0 && coded.words.len() == words(vectors.len() / BLOCK) * BLOCK);
        let mut squares = [0.0f32; BLOCK];
        for (k, row) in vectors.chunks_exact_mut(BLOCK).enumerate() {
            for (j, x) in row.iter_mut().enumerate() {
                let decoded = coded.decode(k, j);
                *x -= decoded;
                squares[j] += decoded * decoded;
            }
        }
        let longest_decoded = sqrt(s, squares.iter().fold(0.0, |m, &x| m.max(x)));
        [longest_decoded, longest(s, vectors), Width { vectors }.run(s)]
    }
}

/// `out[i] += sum over j of a[i * steps[0] + j * steps[1]] * from[j]`, rows of [`BLOCK`].
#[inline(always)]
fn add_products<S: Simd>(s: S, a: &[f32], steps: [usize; 2], from: &[f32], out: &mut [f32]) {
    let (m, n) = (out.len() / BLOCK, from.len() / BLOCK);
    assert!(m == 0 || n == 0 || (m - 1) * steps[0] + (n - 1) * steps[1] < a.len());
    let mut i = 0;
    while i < m {
        if i + 4 <= m {
            products::<S, 4>(s, &a[i * steps[0]..], steps, from, &mut out[i * BLOCK..]);
            i += 4;
        } else {
            products::<S, 1>(s, &a[i * steps[0]..], steps, from, &mut out[i * BLOCK..]);
            i += 1;
        }
    }
}

/// `R` rows of [`add_products`].
#[inline(always)]
fn products<S: Simd, const R: usize>(s: S, a: &[f32], steps: [usize; 2], from: &[f32], out: &mut [f32]) {
    let n = from.len() / BLOCK;
    assert!(out.len() >= R * BLOCK && (n == 0 || (R - 1) * steps[0] + (n - 1) * steps[1] < a.len()));
    for c in (0..BLOCK).step_by(S::LANES) {
        let mut acc = [s.splat(0.0); R];
        for j in 0..n {
            // SAFETY: vector c of row j; element (r, j) of the factors, checked.
            unsafe {
                let x = s.load(from.as_ptr().add(j * BLOCK + c));
                for r in 0..R {
                    acc[r] = s.fma(s.splat(*a.as_ptr().add(r * steps[0] + j * steps[1])), x, acc[r]);
                }
            }
        }
        for r in 0..R {
            // SAFETY: vector c of row r.
            unsafe {
                let at = out.as_mut_ptr().add(r * BLOCK + c);
                s.store(at, s.add(acc[r], s.load(at)));
            }
        }
    }
}

/// The longest of vectors `[dim][BLOCK]`.
#[inline(always)]
fn longest<S: Simd>(s: S, vectors: &[f32]) -> f32 {
    let mut squares = [0.0f32; BLOCK];
    for row in vectors.chunks_exact(BLOCK) {
        squares.iter_mut().zip(row).for_each(|(s, x)| *s += x * x);
    }
    sqrt(s, squares.iter().fold(0.0, |m, &x| m.max(x)))
}

/// At least the root mean square of vectors `[dim][BLOCK]` along any direction: the eighth root of the trace of the eighth
/// power of their Gram matrix is at least its largest eigenvalue, and little more.
pub(crate) struct Width<'a> {
    pub(crate) vectors: &'a [f32],
}

impl Task for Width<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut gram = [[0.0f32; BLOCK]; BLOCK];
        add_products(s, self.vectors, [1, BLOCK], self.vectors, gram.as_flattened_mut());
        let trace: f32 = (0..BLOCK).map(|i| gram[i][i]).sum();
        let factor = 1.0 / trace;
        if !factor.is_finite() {
            // All but zero, or beyond f32: the trace itself is a bound.
            return sqrt(s, trace);
        }
        gram.as_flattened_mut().iter_mut().for_each(|x| *x *= factor);
        for _ in 0..2 {
            let mut square = [[0.0f32; BLOCK]; BLOCK];
            add_products(s, gram.as_flattened(), [BLOCK, 1], gram.as_flattened(), square.as_flattened_mut());
            gram = square;
        }
        let eighth: f32 = gram.as_flattened().iter().map(|x| x * x).sum();
        // The root of an eighth root.
        sqrt(s, sqrt(s, sqrt(s, sqrt(s, eighth)))) * sqrt(s, trace / BLOCK as f32)
    }
}
