//! Kernels over [`Rows`] of any element type, widened in registers: what few query rows need.

use super::element::{Bf16, Element, F16, F32};
use super::kernels;
use super::vector::Simd;
use crate::mem::{Dtype, Rows};

/// `out[i] = <rows[begin + i], q>` for `i < out.len()`.
///
/// # Panics
/// If the rows are not all there or `q` is not one row long.
#[inline(always)]
pub(crate) fn dots<S: Simd>(s: S, rows: &Rows<'_>, begin: usize, q: &[f32], out: &mut [f32]) {
    let rows = rows.slice(begin, out.len());
    assert_eq!(q.len(), rows.cols());
    let (p, q, dim) = (rows.as_ptr(), q.as_ptr(), q.len());
    let stride = rows.stride() / rows.dtype().size();
    // SAFETY: `rows` has out.len() rows of dim elements of this type, stride elements apart.
    unsafe {
        match rows.dtype() {
            Dtype::F32 => kernels::strided::<F32, S>(s, p.cast(), stride, q, dim, out),
            Dtype::F16 => kernels::strided::<F16, S>(s, p.cast(), stride, q, dim, out),
            Dtype::Bf16 => kernels::strided::<Bf16, S>(s, p.cast(), stride, q, dim, out),
        }
    }
}

/// `acc = acc * alpha + sum_j p[j] rows[begin + j]`.
///
/// # Panics
/// If the rows are not all there or `acc` is not one row long.
#[inline(always)]
pub(crate) fn accumulate<S: Simd>(s: S, rows: &Rows<'_>, begin: usize, p: &[f32], alpha: f32, acc: &mut [f32]) {
    let rows = rows.slice(begin, p.len());
    assert_eq!(acc.len(), rows.cols());
    let v = rows.as_ptr();
    let stride = rows.stride() / rows.dtype().size();
    // SAFETY: `rows` has p.len() rows of acc.len() elements of this type, stride elements apart.
    unsafe {
        match rows.dtype() {
            Dtype::F32 => weighted::<F32, S>(s, v.cast(), stride, p, alpha, acc),
            Dtype::F16 => weighted::<F16, S>(s, v.cast(), stride, p, alpha, acc),
            Dtype::Bf16 => weighted::<Bf16, S>(s, v.cast(), stride, p, alpha, acc),
        }
    }
}

/// # Safety
/// `acc.len()` elements are readable at `v + j * stride` for `j < p.len()`.
#[inline(always)]
unsafe fn weighted<E: Element, S: Simd>(s: S, v: *const E::T, stride: usize, p: &[f32], alpha: f32, acc: &mut [f32]) {
    let mut i = 0;
    while i + 8 * S::LANES <= acc.len() {
        // SAFETY: eight vectors are left in every row.
        unsafe { columns::<E, S, 8>(s, v.add(i), stride, p, alpha, &mut acc[i..]) };
        i += 8 * S::LANES;
    }
    while i + 2 * S::LANES <= acc.len() {
        // SAFETY: two vectors are left.
        unsafe { columns::<E, S, 2>(s, v.add(i), stride, p, alpha, &mut acc[i..]) };
        i += 2 * S::LANES;
    }
    while i + S::LANES <= acc.len() {
        // SAFETY: one vector is left.
        unsafe { columns::<E, S, 1>(s, v.add(i), stride, p, alpha, &mut acc[i..]) };
        i += S::LANES;
    }
    let n = acc.len() - i;
    if n > 0 {
        let mut sum = s.splat(0.0);
        for j in 0..p.len() {
            // SAFETY: n elements are left in row j.
            sum = s.fma(s.splat(p[j]), unsafe { E::load_partial(s, v.add(i + j * stride), n) }, sum);
        }
        // SAFETY: n elements are left.
        unsafe {
            let at = acc.as_mut_ptr().add(i);
            s.store_partial(at, n, s.fma(s.load_partial(at, n), s.splat(alpha), sum));
        }
    }
}

/// # Safety
/// `C` vectors are readable at `v + j * stride` for `j < p.len()`, and `acc` holds as many.
#[inline(always)]
unsafe fn columns<E: Element, S: Simd, const C: usize>(
    s: S,
    v: *const E::T,
    stride: usize,
    p: &[f32],
    alpha: f32,
    acc: &mut [f32],
) {
    assert!(acc.len() >= C * S::LANES);
    let mut sum = [s.splat(0.0); C];
    for j in 0..p.len() {
        let w = s.splat(p[j]);
        for c in 0..C {
            // SAFETY: vector c of row j.
            sum[c] = s.fma(w, unsafe { E::load(s, v.add(j * stride + c * S::LANES)) }, sum[c]);
        }
    }
    let alpha = s.splat(alpha);
    for c in 0..C {
        // SAFETY: acc holds C vectors.
        unsafe {
            let at = acc.as_mut_ptr().add(c * S::LANES);
            s.store(at, s.fma(s.load(at), alpha, sum[c]));
        }
    }
}

/// Row `i` as f32 into `out[..cols]`.
///
/// # Panics
/// If the row is not there or `out` is shorter than a row.
#[inline(always)]
pub(crate) fn widen<S: Simd>(s: S, rows: &Rows<'_>, i: usize, out: &mut [f32]) {
    let out = &mut out[..rows.cols()];
    if let Some(row) = rows.row_f32(i) {
        out.copy_from_slice(row);
    } else if let Some(bits) = rows.row_bits(i) {
        match rows.dtype() {
            Dtype::F16 => convert::<F16, S>(s, bits, out),
            _ => convert::<Bf16, S>(s, bits, out),
        }
    }
}

/// 16-bit elements to f32.
#[inline(always)]
pub(super) fn convert<E: Element<T = u16>, S: Simd>(s: S, bits: &[u16], out: &mut [f32]) {
    assert_eq!(bits.len(), out.len());
    let (n, x, y) = (bits.len(), bits.as_ptr(), out.as_mut_ptr());
    let mut i = 0;
    while i + S::LANES <= n {
        // SAFETY: i + LANES <= n.
        unsafe { s.store(y.add(i), E::load(s, x.add(i))) };
        i += S::LANES;
    }
    if i < n {
        // SAFETY: n - i elements are left.
        unsafe { s.store_partial(y.add(i), n - i, E::load_partial(s, x.add(i), n - i)) };
    }
}

/// Asks for part `at` of `of` of the rows to be brought near.
#[inline(always)]
pub(crate) fn prefetch<S: Simd>(s: S, rows: &Rows<'_>, at: usize, of: usize) {
    let (n, bytes) = (rows.rows(), rows.cols() * rows.dtype().size());
    for i in n * at / of..n * (at + 1) / of {
        let p = rows.as_ptr().wrapping_add(i * rows.stride());
        let mut b = 0;
        while b < bytes {
            s.prefetch(p.wrapping_add(b));
            b += 64;
        }
    }
}
