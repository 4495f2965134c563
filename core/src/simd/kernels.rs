//! Vector kernels over slices: inner products, distances, maxima, exponentials.
//!
//! Lengths are checked once per call; inner products of one row give the same bits whether the row is taken alone, in a
//! run of rows or gathered.

use super::vector::Simd;
use super::{Isa, Task, math, one_by_one, rows};

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
unsafe fn rows_with<S: Simd, const R: usize, const DIST: bool>(
    s: S,
    rows: [*const f32; R],
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
                let y = unsafe { s.load(rows[r].add(at)) };
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
                let y = unsafe { s.load(rows[r].add(i)) };
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
            let y = unsafe { s.load_partial(rows[r].add(i), dim - i) };
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
    unsafe { rows_with::<S, 1, DIST>(s, [a.as_ptr()], b.as_ptr(), a.len())[0] }
}

#[inline(always)]
pub(super) fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    pair::<S, false>(s, a, b)
}

#[inline(always)]
pub(super) fn sq_dist<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    pair::<S, true>(s, a, b)
}

/// Rows against `q`, up to four at a time; row `i` begins at `row(i)`.
///
/// # Safety
/// `q.len()` elements are readable at every `row(i)` for `i < out.len()`.
#[inline(always)]
unsafe fn each_row<S: Simd, const DIST: bool>(s: S, row: impl Fn(usize) -> *const f32, q: &[f32], out: &mut [f32]) {
    let (n, dim, q) = (out.len(), q.len(), q.as_ptr());
    let mut i = 0;
    // SAFETY: rows i.. of each step are there.
    unsafe {
        while S::WIDE && i + 4 <= n {
            let rows = [row(i), row(i + 1), row(i + 2), row(i + 3)];
            out[i..i + 4].copy_from_slice(&rows_with::<S, 4, DIST>(s, rows, q, dim));
            i += 4;
        }
        while !one_by_one::<S>() && i + 2 <= n {
            out[i..i + 2].copy_from_slice(&rows_with::<S, 2, DIST>(s, [row(i), row(i + 1)], q, dim));
            i += 2;
        }
        while i < n {
            out[i] = rows_with::<S, 1, DIST>(s, [row(i)], q, dim)[0];
            i += 1;
        }
    }
}

#[inline(always)]
pub(super) fn dots<S: Simd>(s: S, rows: &[f32], stride: usize, q: &[f32], out: &mut [f32]) {
    let Some(last) = out.len().checked_sub(1) else { return };
    let end = last.checked_mul(stride).and_then(|n| n.checked_add(q.len()));
    assert!(end.is_some_and(|end| end <= rows.len()));
    // SAFETY: the last row ends inside the slice.
    unsafe { each_row::<S, false>(s, |i| rows.as_ptr().wrapping_add(i * stride), q, out) }
}

#[inline(always)]
fn gathered<S: Simd, const DIST: bool>(s: S, rows: &[f32], stride: usize, at: &[u32], q: &[f32], out: &mut [f32]) {
    assert_eq!(at.len(), out.len());
    if at.is_empty() {
        return;
    }
    let top = at.iter().fold(0, |top, &i| if i > top { i } else { top });
    let end = (top as usize).checked_mul(stride).and_then(|n| n.checked_add(q.len()));
    assert!(end.is_some_and(|end| end <= rows.len()));
    // SAFETY: the row of the largest index ends inside the slice.
    unsafe { each_row::<S, DIST>(s, |i| rows.as_ptr().wrapping_add(at[i] as usize * stride), q, out) }
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

/// Applies `$f` to every vector of `$x` in place and shows `$see` the whole ones; the tail goes through the same arithmetic.
macro_rules! map {
    ($s:ident, $x:ident, |$v:ident| $f:expr) => {
        map!($s, $x, |$v| $f, |_y| ())
    };
    ($s:ident, $x:ident, |$v:ident| $f:expr, |$y:ident| $see:expr) => {{
        let (n, p) = ($x.len(), $x.as_mut_ptr());
        let mut i = 0;
        while i + S::LANES <= n {
            // SAFETY: i + LANES <= n.
            let $v = unsafe { $s.load(p.add(i)) };
            let $y = $f;
            // SAFETY: as above.
            unsafe { $s.store(p.add(i), $y) };
            $see;
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
    let (m, mut sum) = (s.splat(m), s.splat(0.0));
    map!(s, x, |v| math::exp(s, s.sub(v, m)), |y| sum = s.add(sum, y));
    total(s, sum, x)
}

/// `x = 2^((x - m) c)`, returning the sum. `m` is finite, `c > 0`; `x = -inf` gives 0.
#[inline(always)]
pub(crate) fn exp2_sum<S: Simd>(s: S, x: &mut [f32], c: f32, m: f32) -> f32 {
    let (c, m, mut sum) = (s.splat(c), s.splat(m), s.splat(0.0));
    map!(s, x, |v| s.exp2_scaled(s.sub(v, m), c), |y| sum = s.add(sum, y));
    total(s, sum, x)
}

/// The sum of all numbers, that of the whole vectors being known.
#[inline(always)]
fn total<S: Simd>(s: S, whole: S::V, x: &[f32]) -> f32 {
    x[x.len() / S::LANES * S::LANES..].iter().fold(s.reduce_add(whole), |sum, x| sum + x)
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

/// Kernels as calls: a line of the table is a function of [`Isa`] and the kernel that it runs as a task. Not for users: public to
/// benchmarks and tests only.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),+) $(-> $out:ty)? = $kernel:expr;)+) => {
        #[allow(clippy::extra_unused_lifetimes)] // Of what takes no slice.
        impl Isa {$(
            $(#[$doc])*
            #[cfg(feature = "internals")]
            #[doc(hidden)]
            pub fn $name<'a>(self, $($arg: $ty),+) $(-> $out)? {
                calls!(self, ($($arg: $ty),+) $(-> $out)? = $kernel)
            }

            #[cfg(not(feature = "internals"))]
            pub(crate) fn $name<'a>(self, $($arg: $ty),+) $(-> $out)? {
                calls!(self, ($($arg: $ty),+) $(-> $out)? = $kernel)
            }
        )+}
    };
    ($isa:expr, ($($arg:ident: $ty:ty),+) = $kernel:expr) => { calls!($isa, ($($arg: $ty),+) -> () = $kernel) };
    ($isa:expr, ($($arg:ident: $ty:ty),+) -> $out:ty = $kernel:expr) => {{
        struct Kernel<'a>($($ty,)+ core::marker::PhantomData<&'a ()>);
        impl Task for Kernel<'_> {
            type Out = $out;
            #[inline(always)]
            fn run<S: Simd>(self, s: S) -> $out {
                let Kernel($($arg,)+ _) = self;
                $kernel(s, $($arg),+)
            }
        }
        $isa.run(Kernel($($arg,)+ core::marker::PhantomData))
    }};
}

calls! {
    /// Inner product.
    ///
    /// # Panics
    /// If the lengths differ.
    fn dot(a: &'a [f32], b: &'a [f32]) -> f32 = dot;

    /// Squared Euclidean distance.
    ///
    /// # Panics
    /// If the lengths differ.
    fn sq_dist(a: &'a [f32], b: &'a [f32]) -> f32 = sq_dist;

    /// `out[i] = <rows[i * stride..][..q.len()], q>` for `i < out.len()`.
    ///
    /// # Panics
    /// If a row ends outside `rows`.
    fn dots(rows: &'a [f32], stride: usize, q: &'a [f32], out: &'a mut [f32]) = dots;

    /// `out[i] = <rows[at[i] * stride..][..q.len()], q>`.
    ///
    /// # Panics
    /// If a row ends outside `rows`, or `at` and `out` differ in length.
    fn dots_at(rows: &'a [f32], stride: usize, at: &'a [u32], q: &'a [f32], out: &'a mut [f32]) = dots_at;

    /// `out[i] = |rows[at[i] * stride..][..q.len()] - q|^2`.
    ///
    /// # Panics
    /// As [`Isa::dots_at`].
    fn sq_dists_at(rows: &'a [f32], stride: usize, at: &'a [u32], q: &'a [f32], out: &'a mut [f32]) = sq_dists_at;

    /// `y += a * x`.
    ///
    /// # Panics
    /// If the lengths differ.
    fn axpy(a: f32, x: &'a [f32], y: &'a mut [f32]) = axpy;

    /// `x *= a`.
    fn scale(a: f32, x: &'a mut [f32]) = scale;

    /// Largest element, -inf for none. No element may be NaN.
    fn max(x: &'a [f32]) -> f32 = max;

    /// Largest magnitude, 0 for none.
    fn max_abs(x: &'a [f32]) -> f32 = max_abs;

    /// Sum of squares.
    fn norm2(x: &'a [f32]) -> f32 = norm2;

    /// `x[i] = exp(x[i] - m)`, returning the sum; relative error as [`Isa::exp`]. `x[i] = -inf` gives 0, also where `m` is
    /// -inf too. `x[i] - m` is at most 88.
    fn exp_sum(x: &'a mut [f32], m: f32) -> f32 = exp_sum;

    /// `x[i] = exp(x[i])`: relative error at most 5e-7 on [-87, 88]; 0 below -87.4; above 88 as for 88.
    fn exp(x: &'a mut [f32]) = exp;

    /// `x[i] = tanh(x[i])`: relative error at most 1e-6.
    fn tanh(x: &'a mut [f32]) = tanh;

    /// f32 to the nearest IEEE half floats, of two the even one, as bits.
    ///
    /// # Panics
    /// If the lengths differ.
    fn round_f16(x: &'a [f32], bits: &'a mut [u16]) = rows::round_f16;

    /// Probe of the core's peak: `rounds` times 12 independent fused multiply-adds of [`Isa::lanes`] numbers, two
    /// operations each. The result only keeps the work alive.
    fn fma_chains(rounds: u64) -> f32 = fma_chains;
}
