//! Biases added to scores.

use super::kernels;
use super::rows;
use super::tile::PANEL;
use super::vector::Simd;
use crate::mem::{Dtype, Rows, Tensor};
use half::f16;

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

/// Biases of the heads of a batch.
#[derive(Clone, Copy)]
pub(crate) struct HeadBiases<'a> {
    /// `[batches][heads][rows][keys]`, batches and heads of 1 for all.
    pub(crate) tensor: Tensor<'a>,
    pub(crate) batch: usize,
}

impl<'a> HeadBiases<'a> {
    /// Those of these query heads and queries.
    pub(crate) fn of(self, queries: &'a [[u32; 2]]) -> Biases<'a> {
        Biases { heads: self, queries }
    }
}

/// Biases of rows, each a query of a head.
#[derive(Clone, Copy)]
pub(crate) struct Biases<'a> {
    heads: HeadBiases<'a>,
    queries: &'a [[u32; 2]],
}

impl<'a> Biases<'a> {
    /// Those of row `r`.
    #[inline(always)]
    pub(crate) fn row(&self, r: usize) -> RowBias<'a> {
        let ([head, row], tensor) = (self.queries[r].map(|x| x as usize), &self.heads.tensor);
        let [batches, heads, ..] = tensor.shape();
        let biases = tensor.head(if batches == 1 { 0 } else { self.heads.batch }, if heads == 1 { 0 } else { head });
        RowBias { biases, row }
    }

    /// Those of a panel's rows for a run of keys, `[rows][keys]`, as many keys as `out` has room for.
    #[inline(always)]
    pub(crate) fn copy<'b, S: Simd>(&self, s: S, keys: BiasKeys<'_>, out: &'b mut [f32]) -> Rows<'b> {
        let count = out.len() / PANEL;
        for (r, out) in out.chunks_exact_mut(count).enumerate().take(self.queries.len()) {
            self.row(r).read(s, keys, out);
        }
        Rows::new(out, count).unwrap_or_else(|_| unreachable!("whole rows"))
    }
}

/// Biases of one query, one for every key.
#[derive(Clone, Copy)]
pub(crate) struct RowBias<'a> {
    biases: Rows<'a>,
    row: usize,
}

impl RowBias<'_> {
    /// Keys there are.
    pub(crate) fn keys(&self) -> usize {
        self.biases.cols()
    }

    /// The bias of key `j`.
    #[inline(always)]
    pub(crate) fn at(&self, j: usize) -> f32 {
        match (self.biases.row_f32(self.row), self.biases.row_bits(self.row)) {
            (Some(row), _) => row[j],
            (_, Some(bits)) if self.biases.dtype() == Dtype::F16 => f16::from_bits(bits[j]).to_f32(),
            _ => unreachable!("biases are f32 or f16"),
        }
    }

    /// Biases of keys into all of `out`.
    #[inline(always)]
    pub(crate) fn read<S: Simd>(&self, s: S, keys: BiasKeys<'_>, out: &mut [f32]) {
        match keys {
            BiasKeys::Run(begin) => rows::widen_part(s, &self.biases, self.row, begin, out),
            BiasKeys::List(keys) => self.list(keys, out),
        }
    }

    /// Biases of these keys.
    pub(crate) fn list(&self, keys: &[u32], out: &mut [f32]) {
        out.iter_mut().zip(keys).for_each(|(to, &j)| *to = self.at(j as usize));
    }
}

/// Keys whose biases are wanted.
#[derive(Clone, Copy)]
pub(crate) enum BiasKeys<'a> {
    /// Consecutive ones from here on.
    Run(usize),
    /// These.
    List(&'a [u32]),
}

impl BiasKeys<'_> {
    /// From key `n` on.
    pub(crate) fn skip(&self, n: usize) -> Self {
        match self {
            BiasKeys::Run(begin) => BiasKeys::Run(begin + n),
            BiasKeys::List(keys) => BiasKeys::List(&keys[n..]),
        }
    }
}

/// Largest bias of some keys, and the logarithm of the sum of `exp(bias - largest)`; -inf and 0 where a row sees none of them.
#[inline(always)]
pub(crate) fn summary<S: Simd>(s: S, biases: &mut [f32]) -> [f32; 2] {
    let most = kernels::max(s, biases);
    if most == f32::NEG_INFINITY {
        return [most, 0.0];
    }
    [most, libm::logf(kernels::exp2_sum(s, biases, core::f32::consts::LOG2_E, most))]
}
