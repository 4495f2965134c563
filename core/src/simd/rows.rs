//! [`Rows`] of any element type: widening and asking for them ahead of time.

use super::element::{Bf16, F16, Stored};
use super::vector::Simd;
use crate::mem::{Dtype, Rows};
use half::f16;

/// Row `i` as f32 into `out[..cols]`.
///
/// # Panics
/// If the row is not there or `out` is shorter than a row.
#[inline(always)]
pub(crate) fn widen<S: Simd>(s: S, rows: &Rows<'_>, i: usize, out: &mut [f32]) {
    widen_part(s, rows, i, 0, &mut out[..rows.cols()]);
}

/// Elements `begin..begin + out.len()` of row `i` as f32.
///
/// # Panics
/// If they are not there.
#[inline(always)]
pub(crate) fn widen_part<S: Simd>(s: S, rows: &Rows<'_>, i: usize, begin: usize, out: &mut [f32]) {
    if let Some(row) = rows.row_f32(i) {
        // Rows are short: a call to copy them costs more than the copy.
        let row = &row[begin..][..out.len()];
        let mut i = 0;
        while i + S::LANES <= row.len() {
            // SAFETY: i + LANES is inside both.
            unsafe { s.store(out.as_mut_ptr().add(i), s.load(row.as_ptr().add(i))) };
            i += S::LANES;
        }
        out[i..].copy_from_slice(&row[i..]);
    } else if let Some(bits) = rows.row_bits(i) {
        let bits = &bits[begin..][..out.len()];
        match rows.dtype() {
            Dtype::F16 => convert::<F16, S>(s, bits, out),
            _ => convert::<Bf16, S>(s, bits, out),
        }
    }
}

/// 16-bit elements to f32.
#[inline(always)]
pub(super) fn convert<E: Stored<T = u16>, S: Simd>(s: S, bits: &[u16], out: &mut [f32]) {
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

/// f32 to half floats.
#[inline(always)]
pub(super) fn round_f16<S: Simd>(s: S, x: &[f32], bits: &mut [u16]) {
    assert_eq!(bits.len(), x.len());
    let n = x.len();
    let mut i = 0;
    while i + S::LANES <= n {
        // SAFETY: i + LANES <= n.
        unsafe { s.store_f16(bits.as_mut_ptr().add(i), s.load(x.as_ptr().add(i))) };
        i += S::LANES;
    }
    for (to, &x) in bits[i..].iter_mut().zip(&x[i..]) {
        *to = f16::from_f32(x).to_bits();
    }
}

/// Asks for parts `from..to` of `of` of the rows to be brought near.
#[inline(always)]
pub(crate) fn prefetch<S: Simd>(s: S, rows: &Rows<'_>, from: usize, to: usize, of: usize) {
    let n = rows.rows();
    for i in n * from / of..n * to / of {
        ask(s, rows, i);
    }
}

/// Asks for row `i` to be brought near.
#[inline(always)]
pub(crate) fn ask<S: Simd>(s: S, rows: &Rows<'_>, i: usize) {
    let (p, bytes) = (rows.as_ptr().wrapping_add(i * rows.stride()), rows.cols() * rows.dtype().size());
    let mut b = 0;
    while b < bytes {
        s.prefetch(p.wrapping_add(b));
        b += 64;
    }
}
