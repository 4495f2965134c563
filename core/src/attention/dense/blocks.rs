//! Keys and values of a block as tiles read them: in place, or converted.

use super::head::Head;
use super::tunables::AWKWARD_STRIDE;
use super::work::Sizes;
use crate::mem::{Buf, Dtype, Rows};
use crate::simd::tile::{self, Values};
use crate::simd::{Simd, rows};

/// Whether rows are better copied.
fn awkward(rows: &Rows<'_>) -> bool {
    rows.stride() >= AWKWARD_STRIDE
}

/// View of a converted block.
fn view(data: &[f32], rows: usize, cols: usize, stride: usize) -> Rows<'_> {
    match Rows::strided(data, rows, cols, stride) {
        Ok(rows) => rows,
        Err(_) => unreachable!("blocks fit their buffers"),
    }
}

/// Keys `first..first + n` as f32 rows.
#[inline(always)]
pub(crate) fn block_of_keys<'a, S: Simd>(
    s: S,
    head: &Head<'a>,
    first: usize,
    n: usize,
    sizes: &Sizes,
    buf: &'a mut Buf<f32>,
) -> Rows<'a> {
    let source = if head.shared() { head.q } else { head.k };
    if !head.shared() && source.dtype() == Dtype::F32 && !awkward(&source) {
        return source.slice(first, n);
    }
    let (dim, stride) = (sizes.dim_k, sizes.key_stride);
    buf.fill_up(0.0);
    for j in 0..n {
        let to = &mut buf[j * stride..][..dim];
        rows::widen(s, &source, first + j, to);
        if head.shared() {
            normalise(to);
        }
    }
    view(buf, n, dim, stride)
}

/// Values `first..first + n`, packed into `buf` where tiles cannot read them as they lie.
#[inline(always)]
pub(crate) fn block_of_values<'a, S: Simd>(
    s: S,
    head: &Head<'a>,
    first: usize,
    n: usize,
    buf: &'a mut Buf<f32>,
) -> Values<'a> {
    let rows = head.v.slice(first, n);
    match Values::in_place::<S>(rows) {
        Some(values) if !awkward(&rows) => values,
        _ => {
            buf.fill_up(0.0);
            tile::pack_values(s, &rows, buf);
            Values::Packed { data: buf, count: n, cols: rows.cols() }
        }
    }
}

/// Scales to unit norm; zeros stay zeros.
fn normalise(x: &mut [f32]) {
    // In f64: squares of f32 neither overflow nor vanish there.
    let norm = libm::sqrt(x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>());
    if norm > 0.0 {
        x.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
}
