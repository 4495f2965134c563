//! Vector kernels over slices: inner products, distances, maxima, exponentials.
//!
//! Lengths are checked once per call; inner products of one row give the same bits whether the row is taken alone, in a
//! run of rows or gathered.

use super::element::{Element, F32};
use super::math;
use super::one_by_one;
use super::vector::Simd;

/// Accumulators per row: enough to hide the latency of a fused multiply-add for a row taken alone.
const ACC: usize = 4;

/// One step of an inner product or, with `DIST`, of a squared distance.
#[inline(always)]
fn step<S: Simd, const DIST: bool>(s: S, a: S::V, b: S::V, acc: S::V) -> S::V {
    if DIST {
        let d = s.sub(a, b);
        s.fma(d, d, acc)
    } else {
        s.fma(a, b, acc)
    }
}

/// `R` rows against one vector.
///
/// # Safety
/// `dim` elements are readable at every row and at `q`.
#[inline(always)]
pub(super) unsafe fn rows_with<E: Element, S: Simd, const R: usize, const DIST: bool>(
    s: S,
    rows: [*const E::T; R],
    q: *const f32,
    dim: usize,
) -> [f32; R] {
    let mut acc = [[s.splat(0.0); ACC]; R];
    let mut i = 0;
    while i + ACC * S::LANES <= dim {
        for a in 0..ACC {
            let at = i + a * S::LANES;
            // SAFETY: at + LANES <= dim.
            let x = unsafe { s.load(q.add(at)) };
            for r in 0..R {
                // SAFETY: as above.
                let y = unsafe { E::load(s, rows[r].add(at)) };
                acc[r][a] = step::<S, DIST>(s, y, x, acc[r][a]);
            }
        }
        i += ACC * S::LANES;
    }
    for a in 0..ACC {
        if i + S::LANES <= dim {
            // SAFETY: i + LANES <= dim.
            let x = unsafe { s.load(q.add(i)) };
            for r in 0..R {
                // SAFETY: as above.
                let y = unsafe { E::load(s, rows[r].add(i)) };
                acc[r][a] = step::<S, DIST>(s, y, x, acc[r][a]);
            }
            i += S::LANES;
        }
    }
    if i < dim {
        // SAFETY: dim - i elements are left, fewer than LANES.
        let x = unsafe { s.load_partial(q.add(i), dim - i) };
        for r in 0..R {
            // SAFETY: as above.
            let y = unsafe { E::load_partial(s, rows[r].add(i), dim - i) };
            acc[r][ACC - 1] = step::<S, DIST>(s, y, x, acc[r][ACC - 1]);
        }
    }
    let mut out = [0.0; R];
    for r in 0..R {
        out[r] = s.reduce_add(s.add(s.add(acc[r][0], acc[r][1]), s.add(acc[r][2], acc[r][3])));
    }
    out
}

#[inline(always)]
fn pair<S: Simd, const DIST: bool>(s: S, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    // SAFETY: both have a.len() elements.
    unsafe { rows_with::<F32, S, 1, DIST>(s, [a.as_ptr()], b.as_ptr(), a.len())[0] }
}

#[inline(always)]
pub(super) fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    pair::<S, false>(s, a, b)
}

#[inline(always)]
pub(super) fn sq_dist<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    pair::<S, true>(s, a, b)
}

/// `n` rows, `stride` elements apart, against `q`.
///
/// # Safety
/// `dim` elements are readable at `p + i * stride` for `i < out.len()`, and at `q`.
#[inline(always)]
pub(super) unsafe fn strided<E: Element, S: Simd>(
    s: S,
    p: *const E::T,
    stride: usize,
    q: *const f32,
    dim: usize,
    out: &mut [f32],
) {
    let mut i = 0;
    if S::WIDE {
        while i + 4 <= out.len() {
            // SAFETY: i + 3 < out.len().
            let x = unsafe {
                let p = p.add(i * stride);
                let rows = [p, p.add(stride), p.add(2 * stride), p.add(3 * stride)];
                rows_with::<E, S, 4, false>(s, rows, q, dim)
            };
            out[i..i + 4].copy_from_slice(&x);
            i += 4;
        }
    }
    while !one_by_one::<S>() && i + 2 <= out.len() {
        // SAFETY: i + 1 < out.len().
        let x = unsafe {
            let p = p.add(i * stride);
            rows_with::<E, S, 2, false>(s, [p, p.add(stride)], q, dim)
        };
        out[i..i + 2].copy_from_slice(&x);
        i += 2;
    }
    while i < out.len() {
        // SAFETY: i < out.len().
        out[i] = unsafe { rows_with::<E, S, 1, false>(s, [p.add(i * stride)], q, dim)[0] };
        i += 1;
    }
}

#[inline(always)]
pub(super) fn dots<S: Simd>(s: S, rows: &[f32], stride: usize, q: &[f32], out: &mut [f32]) {
    let Some(last) = out.len().checked_sub(1) else { return };
    let end = last.checked_mul(stride).and_then(|n| n.checked_add(q.len()));
    assert!(end.is_some_and(|end| end <= rows.len()));
    // SAFETY: the last row ends inside the slice.
    unsafe { strided::<F32, S>(s, rows.as_ptr(), stride, q.as_ptr(), q.len(), out) }
}

#[inline(always)]
fn gathered<S: Simd, const DIST: bool>(s: S, rows: &[f32], stride: usize, at: &[u32], q: &[f32], out: &mut [f32]) {
    assert_eq!(at.len(), out.len());
    let mut top = 0;
    for &i in at {
        top = if i > top { i } else { top };
    }
    if at.is_empty() {
        return;
    }
    let end = (top as usize).checked_mul(stride).and_then(|n| n.checked_add(q.len()));
    assert!(end.is_some_and(|end| end <= rows.len()));
    let (p, x, dim) = (rows.as_ptr(), q.as_ptr(), q.len());
    let mut i = 0;
    if S::WIDE {
        while i + 4 <= at.len() {
            // SAFETY: the row of the largest index ends inside the slice.
            let x = unsafe {
                let rows = [
                    p.add(at[i] as usize * stride),
                    p.add(at[i + 1] as usize * stride),
                    p.add(at[i + 2] as usize * stride),
                    p.add(at[i + 3] as usize * stride),
                ];
                rows_with::<F32, S, 4, DIST>(s, rows, x, dim)
            };
            out[i..i + 4].copy_from_slice(&x);
            i += 4;
        }
    }
    while !one_by_one::<S>() && i + 2 <= at.len() {
        // SAFETY: as above.
        let x = unsafe {
            let rows = [p.add(at[i] as usize * stride), p.add(at[i + 1] as usize * stride)];
            rows_with::<F32, S, 2, DIST>(s, rows, x, dim)
        };
        out[i..i + 2].copy_from_slice(&x);
        i += 2;
    }
    while i < at.len() {
        // SAFETY: as above.
        out[i] = unsafe { rows_with::<F32, S, 1, DIST>(s, [p.add(at[i] as usize * stride)], x, dim)[0] };
        i += 1;
    }
}

#[inline(always)]
pub(super) fn dots_at<S: Simd>(s: S, rows: &[f32], stride: usize, at: &[u32], q: &[f32], out: &mut [f32]) {
    gathered::<S, false>(s, rows, stride, at, q, out);
}

#[inline(always)]
pub(super) fn sq_dists_at<S: Simd>(s: S, rows: &[f32], stride: usize, at: &[u32], q: &[f32], out: &mut [f32]) {
    gathered::<S, true>(s, rows, stride, at, q, out);
}

#[inline(always)]
pub(super) fn axpy<S: Simd>(s: S, a: f32, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len());
    let (n, a, x, y) = (x.len(), s.splat(a), x.as_ptr(), y.as_mut_ptr());
    let mut i = 0;
    while i + S::LANES <= n {
        // SAFETY: i + LANES <= n.
        unsafe { s.store(y.add(i), s.fma(a, s.load(x.add(i)), s.load(y.add(i)))) };
        i += S::LANES;
    }
    if i < n {
        let m = n - i;
        // SAFETY: m elements are left.
        unsafe { s.store_partial(y.add(i), m, s.fma(a, s.load_partial(x.add(i), m), s.load_partial(y.add(i), m))) };
    }
}

/// Applies `$f` to every vector of `$x` in place; the tail goes through the same arithmetic.
macro_rules! map {
    ($s:ident, $x:ident, |$v:ident| $f:expr) => {{
        let (n, p) = ($x.len(), $x.as_mut_ptr());
        let mut i = 0;
        while i + S::LANES <= n {
            // SAFETY: i + LANES <= n.
            let $v = unsafe { $s.load(p.add(i)) };
            let y = $f;
            // SAFETY: as above.
            unsafe { $s.store(p.add(i), y) };
            i += S::LANES;
        }
        if i < n {
            // SAFETY: n - i elements are left.
            let $v = unsafe { $s.load_partial(p.add(i), n - i) };
            let y = $f;
            // SAFETY: as above.
            unsafe { $s.store_partial(p.add(i), n - i, y) };
        }
    }};
}

#[inline(always)]
pub(super) fn scale<S: Simd>(s: S, a: f32, x: &mut [f32]) {
    let a = s.splat(a);
    map!(s, x, |v| s.mul(a, v));
}

#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: &mut [f32]) {
    let top = s.splat(88.0);
    map!(s, x, |v| math::exp(s, s.min(v, top)));
}

#[inline(always)]
pub(super) fn tanh<S: Simd>(s: S, x: &mut [f32]) {
    map!(s, x, |v| math::tanh(s, v));
}

/// `x = cap * tanh(x * scale / cap)`, or `x *= scale` for `cap = 0`.
#[inline(always)]
pub(crate) fn logits<S: Simd>(s: S, x: &mut [f32], factor: f32, cap: f32) {
    if cap > 0.0 {
        let (a, c) = (s.splat(factor / cap), s.splat(cap));
        map!(s, x, |v| s.mul(c, math::tanh(s, s.mul(a, v))));
    } else {
        scale(s, factor, x);
    }
}

#[inline(always)]
pub(crate) fn max<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (n, p) = (x.len(), x.as_ptr());
    let mut m = [s.splat(f32::NEG_INFINITY); 2];
    let mut i = 0;
    while i + 2 * S::LANES <= n {
        // SAFETY: i + 2 LANES <= n.
        unsafe {
            m[0] = s.max(m[0], s.load(p.add(i)));
            m[1] = s.max(m[1], s.load(p.add(i + S::LANES)));
        }
        i += 2 * S::LANES;
    }
    let mut out = s.reduce_max(s.max(m[0], m[1]));
    while i < n {
        out = if x[i] > out { x[i] } else { out };
        i += 1;
    }
    out
}

#[inline(always)]
pub(super) fn exp_sum<S: Simd>(s: S, x: &mut [f32], m: f32) -> f32 {
    if m == f32::NEG_INFINITY {
        x.fill(0.0);
        return 0.0;
    }
    let (n, p) = (x.len(), x.as_mut_ptr());
    let m = s.splat(m);
    let mut sum = s.splat(0.0);
    let mut i = 0;
    while i + S::LANES <= n {
        // SAFETY: i + LANES <= n.
        unsafe {
            let e = math::exp(s, s.sub(s.load(p.add(i)), m));
            s.store(p.add(i), e);
            sum = s.add(sum, e);
        }
        i += S::LANES;
    }
    let mut out = s.reduce_add(sum);
    if i < n {
        // SAFETY: n - i elements are left.
        unsafe { s.store_partial(p.add(i), n - i, math::exp(s, s.sub(s.load_partial(p.add(i), n - i), m))) };
        for &e in &x[i..] {
            out += e;
        }
    }
    out
}

/// `x = 2^((x - m) c)`, returning the sum. `m` is finite, `c > 0`; `x = -inf` gives 0.
#[inline(always)]
pub(crate) fn exp2_sum<S: Simd>(s: S, x: &mut [f32], c: f32, m: f32) -> f32 {
    let (n, p) = (x.len(), x.as_mut_ptr());
    let (c, m) = (s.splat(c), s.splat(m));
    let mut sum = s.splat(0.0);
    let mut i = 0;
    while i + S::LANES <= n {
        // SAFETY: i + LANES <= n.
        unsafe {
            let e = s.exp2_scaled(s.sub(s.load(p.add(i)), m), c);
            s.store(p.add(i), e);
            sum = s.add(sum, e);
        }
        i += S::LANES;
    }
    let mut out = s.reduce_add(sum);
    if i < n {
        // SAFETY: n - i elements are left.
        unsafe { s.store_partial(p.add(i), n - i, s.exp2_scaled(s.sub(s.load_partial(p.add(i), n - i), m), c)) };
        for &e in &x[i..] {
            out += e;
        }
    }
    out
}

/// Sum of everything, eight vectors at a time: as fast as memory can be read. The tail is left out.
#[inline(always)]
pub(super) fn read_all<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut acc = [s.splat(0.0); 8];
    let mut i = 0;
    while i + 8 * S::LANES <= x.len() {
        for (a, acc) in acc.iter_mut().enumerate() {
            // SAFETY: i + 8 LANES <= len.
            *acc = s.add(*acc, unsafe { s.load(x.as_ptr().add(i + a * S::LANES)) });
        }
        i += 8 * S::LANES;
    }
    let mut sum = acc[0];
    for a in 1..8 {
        sum = s.add(sum, acc[a]);
    }
    s.reduce_add(sum)
}

/// Twelve independent chains of fused multiply-adds, `rounds` long: the peak rate of the core.
#[inline(always)]
pub(super) fn fma_chains<S: Simd>(s: S, rounds: u64) -> f32 {
    let mut acc = [s.splat(1.0); 12];
    // Hidden from the optimiser so that nothing folds.
    let a = s.splat(core::hint::black_box(0.999_999));
    let b = s.splat(core::hint::black_box(1e-6));
    for _ in 0..rounds {
        for x in &mut acc {
            *x = s.fma(*x, a, b);
        }
    }
    let mut sum = acc[0];
    for i in 1..12 {
        sum = s.add(sum, acc[i]);
    }
    s.reduce_add(sum)
}

/// Sum of squares.
#[inline(always)]
pub(crate) fn norm2<S: Simd>(s: S, x: &[f32]) -> f32 {
    dot(s, x, x)
}

/// Largest magnitude; 0 for none.
#[inline(always)]
pub(crate) fn max_abs<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (n, p) = (x.len(), x.as_ptr());
    let mut most = s.splat(0.0);
    let mut i = 0;
    while i + S::LANES <= n {
        // SAFETY: i + LANES <= n.
        most = unsafe { s.max(most, s.abs(s.load(p.add(i)))) };
        i += S::LANES;
    }
    x[i..].iter().fold(s.reduce_max(most), |most, x| most.max(x.abs()))
}
