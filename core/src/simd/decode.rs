//! Few query rows against keys and values of any element type, widened in registers.
//!
//! A key or value is loaded and widened once for up to four rows. What a row gets does not depend on the rows or keys
//! it shares a tile with: one accumulator per row and key, or per row and column, and sums in a fixed order.

use super::element::{Bf16, F16, F32, Stored};
use super::tunables::{FAR_AHEAD, FOLLOWED, NEAR_AHEAD};
use super::vector::Simd;
use super::{Isa, Task, detect, one_by_one};
use crate::mem::{Dtype, Rows};
use core::marker::PhantomData;

/// Keys of a step: scores of up to `STEP - 1` keys beyond the last are written.
pub(crate) const STEP: usize = 8;

/// Where keys and values lie, which says what is asked for ahead of their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lies {
    /// In some cache: lines are asked for into the nearest, and asking memory would cost more than it brings.
    Cached,
    /// In memory, of a machine that brings lines nearer by itself: only memory is asked.
    Memory,
    /// In memory, of others: both.
    MemoryAndNear,
}

/// The same as constants: what is decided line by line costs up to a fifth of the time.
const CACHED: usize = Lies::Cached as usize;
const MEMORY: usize = Lies::Memory as usize;
const BOTH: usize = Lies::MemoryAndNear as usize;

/// Whether there are vectors that ask for lines.
const ASKS: bool = cfg!(target_arch = "x86_64");

impl Lies {
    /// Of matrices that no cache holds (`far`), or that one may hold.
    pub(crate) fn new(far: bool) -> Lies {
        match (far && ASKS, detect::fetches_near()) {
            (false, _) => Lies::Cached,
            (_, true) => Lies::Memory,
            _ => Lies::MemoryAndNear,
        }
    }

    /// The same for keys.
    fn of_keys(self, keys: &Rows<'_>) -> Lies {
        let followed = keys.cols() * keys.dtype().size() <= FOLLOWED;
        if self == Lies::Memory && !followed { Lies::MemoryAndNear } else { self }
    }
}

/// How far ahead lines are asked for, in elements of a matrix whose rows are `pitch` apart.
#[derive(Clone, Copy)]
struct Ahead<const LIES: usize> {
    near: usize,
    far: usize,
}

impl<const LIES: usize> Ahead<LIES> {
    fn new<T>(cols: usize, pitch: usize) -> Self {
        let rows = |bytes: usize| bytes.div_ceil((cols * size_of::<T>()).max(1));
        let far = FAR_AHEAD[usize::from(ASKS && detect::fetches_near())];
        Self { near: rows(NEAR_AHEAD).saturating_mul(pitch), far: rows(far).saturating_mul(pitch) }
    }

    /// Asks for what comes as much later as `cols` elements at `p` come now.
    #[inline(always)]
    fn ask<T, S: Simd>(self, s: S, p: *const T, cols: usize) {
        let (near, far) = (p.wrapping_add(self.near).cast::<u8>(), p.wrapping_add(self.far).cast::<u8>());
        let mut at = 0;
        while at < cols * size_of::<T>() {
            if LIES != MEMORY {
                s.prefetch_near(near.wrapping_add(at));
            }
            if LIES != CACHED {
                s.prefetch(far.wrapping_add(at));
            }
            at += LINE;
        }
    }
}

/// Bytes of a cache line, or of half of one.
const LINE: usize = 64;

/// `of` for elements `E` that lie at `LIES`. A task for each: side by side in one function they take each other's registers, and what
/// reads a cache took up to 70 % longer.
struct Typed<T, E, const LIES: usize> {
    of: T,
    element: PhantomData<E>,
}

/// Runs `$of` for the type of `$rows`.
macro_rules! by_type {
    ($isa:expr, $rows:expr, $lies:ident, $of:expr) => {
        match $rows.dtype() {
            Dtype::F32 => $isa.run(Typed::<_, F32, $lies> { of: $of, element: PhantomData }),
            Dtype::F16 => $isa.run(Typed::<_, F16, $lies> { of: $of, element: PhantomData }),
            Dtype::Bf16 => $isa.run(Typed::<_, Bf16, $lies> { of: $of, element: PhantomData }),
        }
    };
}

/// The same for where they lie; once is enough where nothing can be asked for.
macro_rules! by_type_and_place {
    ($isa:expr, $rows:expr, $lies:expr, $of:expr) => {
        match $lies {
            Lies::Memory if ASKS => by_type!($isa, $rows, MEMORY, $of),
            Lies::MemoryAndNear if ASKS => by_type!($isa, $rows, BOTH, $of),
            _ => by_type!($isa, $rows, CACHED, $of),
        }
    };
}

/// `out[r * stride + j] = <keys[j], q[r * keys.cols()..]>` for `rows` query rows and all keys.
///
/// # Panics
/// If `q` or `out` is too short: every row of `out` holds [`STEP`]` - 1` numbers more than there are keys.
pub(crate) fn dots(isa: Isa, keys: &Rows<'_>, q: &[f32], rows: usize, out: &mut [f32], stride: usize, lies: Lies) {
    let (n, dim) = (keys.rows(), keys.cols());
    if n == 0 || rows == 0 {
        return;
    }
    assert!(q.len() >= rows * dim && stride >= n + STEP - 1 && out.len() >= (rows - 1) * stride + n + STEP - 1);
    let lies = lies.of_keys(keys);
    by_type_and_place!(isa, keys, lies, Scored { keys, q, rows, out, stride })
}

/// What [`dots`] has checked.
struct Scored<'a> {
    keys: &'a Rows<'a>,
    q: &'a [f32],
    rows: usize,
    out: &'a mut [f32],
    stride: usize,
}

impl<E: Stored, const LIES: usize> Task for Typed<Scored<'_>, E, LIES> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Scored { keys, q, rows, out, stride } = self.of;
        // SAFETY: `dots` checked the lengths and took `E` from the view, whose rows are readable.
        unsafe { dots_of::<E, S, LIES>(s, keys, q.as_ptr(), rows, out.as_mut_ptr(), stride) }
    }
}

/// # Safety
/// As [`dots`] checks; `E` is the type of `keys`, of which there are some.
#[inline(always)]
unsafe fn dots_of<E: Stored, S: Simd, const LIES: usize>(
    s: S,
    keys: &Rows<'_>,
    q: *const f32,
    rows: usize,
    out: *mut f32,
    stride: usize,
) {
    let (n, dim) = (keys.rows(), keys.cols());
    let (p, pitch) = (keys.as_ptr().cast::<E::T>(), keys.stride() / keys.dtype().size());
    let ahead = Ahead::<LIES>::new::<E::T>(dim, pitch);
    let mut j = 0;
    while j < n {
        let mut at = [p; STEP];
        for i in 0..STEP {
            // A step past the end repeats the last key.
            at[i] = p.wrapping_add((j + i).min(n - 1) * pitch);
            ahead.ask(s, at[i], dim);
        }
        let [a, b, c, d, e, f, g, h] = at;
        let mut r = 0;
        // SAFETY: all pointers are at keys of `dim` elements, rows r.. exist, and `out` has room for a whole step.
        unsafe {
            while r < rows {
                let (x, y) = (q.add(r * dim), out.add(r * stride + j));
                let left = if one_by_one::<S>() { 1 } else { rows - r };
                if S::WIDE && left >= 4 {
                    tile::<E, S, 4, 4>(s, [a, b, c, d], x, dim, y, stride);
                    tile::<E, S, 4, 4>(s, [e, f, g, h], x, dim, y.add(4), stride);
                    r += 4;
                } else if left >= 2 {
                    tile::<E, S, 2, 4>(s, [a, b, c, d], x, dim, y, stride);
                    tile::<E, S, 2, 4>(s, [e, f, g, h], x, dim, y.add(4), stride);
                    r += 2;
                } else {
                    tile::<E, S, 1, 8>(s, at, x, dim, y, stride);
                    r += 1;
                }
            }
        }
        j += STEP;
    }
}

/// `out[j] = <keys[ids[j]], q>` for a whole number of steps of keys anywhere in the matrix, `q [keys.cols()]`.
///
/// # Panics
/// If an id is no row, or a slice too short.
#[inline(always)]
pub(crate) fn dots_at<S: Simd>(s: S, keys: &Rows<'_>, ids: &[u32], q: &[f32], out: &mut [f32]) {
    assert!(ids.len().is_multiple_of(STEP) && ids.iter().all(|&id| (id as usize) < keys.rows()));
    assert!(q.len() >= keys.cols() && out.len() >= ids.len());
    // SAFETY: the lengths and ids were checked; a view's rows are readable.
    unsafe {
        match keys.dtype() {
            Dtype::F32 => dots_at_of::<F32, S>(s, keys, ids, q.as_ptr(), out.as_mut_ptr()),
            Dtype::F16 => dots_at_of::<F16, S>(s, keys, ids, q.as_ptr(), out.as_mut_ptr()),
            Dtype::Bf16 => dots_at_of::<Bf16, S>(s, keys, ids, q.as_ptr(), out.as_mut_ptr()),
        }
    }
}

/// # Safety
/// As [`dots_at`] checks; `E` is the type of `keys`.
#[inline(always)]
unsafe fn dots_at_of<E: Stored, S: Simd>(s: S, keys: &Rows<'_>, ids: &[u32], q: *const f32, out: *mut f32) {
    let (p, pitch) = (keys.as_ptr().cast::<E::T>(), keys.stride() / keys.dtype().size());
    for (step, ids) in ids.chunks_exact(STEP).enumerate() {
        let mut at = [p; STEP];
        for (at, &id) in at.iter_mut().zip(ids) {
            *at = p.wrapping_add(id as usize * pitch);
        }
        // SAFETY: all pointers are at keys of as many elements as `q` has; `out` has room for whole steps.
        unsafe { tile::<E, S, 1, STEP>(s, at, q, keys.cols(), out.add(step * STEP), STEP) };
    }
}

/// `R` query rows x `K` keys, `K` a multiple of 4.
///
/// # Safety
/// `dim` elements are readable at every key and at `q + r * dim`; `K` numbers are writable at `out + r * stride`.
#[inline(always)]
unsafe fn tile<E: Stored, S: Simd, const R: usize, const K: usize>(
    s: S,
    keys: [*const E::T; K],
    q: *const f32,
    dim: usize,
    out: *mut f32,
    stride: usize,
) {
    let mut acc = [[s.splat(0.0); K]; R];
    let whole = dim / S::LANES * S::LANES;
    let mut i = 0;
    while i < whole {
        let mut x = [s.splat(0.0); R];
        for r in 0..R {
            // SAFETY: i + LANES <= dim.
            x[r] = unsafe { s.load(q.add(r * dim + i)) };
        }
        for k in 0..K {
            // SAFETY: as above.
            let y = unsafe { E::load(s, keys[k].add(i)) };
            for r in 0..R {
                acc[r][k] = s.fma(y, x[r], acc[r][k]);
            }
        }
        i += S::LANES;
    }
    if i < dim {
        let mut x = [s.splat(0.0); R];
        for r in 0..R {
            // SAFETY: dim - i elements are left, fewer than LANES.
            x[r] = unsafe { s.load_partial(q.add(r * dim + i), dim - i) };
        }
        for k in 0..K {
            // SAFETY: as above.
            let y = unsafe { E::load_partial(s, keys[k].add(i), dim - i) };
            for r in 0..R {
                acc[r][k] = s.fma(y, x[r], acc[r][k]);
            }
        }
    }
    for r in 0..R {
        let mut k = 0;
        while k < K {
            let sums = s.reduce_add4([acc[r][k], acc[r][k + 1], acc[r][k + 2], acc[r][k + 3]]);
            // SAFETY: `out` has room for K numbers in row r.
            unsafe { out.add(r * stride + k).cast::<[f32; 4]>().write_unaligned(sums) };
            k += 4;
        }
    }
}

/// Weights of several rows for the same values.
pub(crate) struct Weights<'a> {
    /// `p[r * stride + j]`.
    pub(crate) p: &'a [f32],
    pub(crate) stride: usize,
    /// Factor of every row for what was summed before.
    pub(crate) alpha: &'a [f32],
}

/// `acc[r] = acc[r] * alpha[r] + sum_j p[r][j] values[j]`; rows of `acc` are `stride` apart.
///
/// # Panics
/// If a slice is too short.
pub(crate) fn accumulate(
    isa: Isa,
    values: &Rows<'_>,
    weights: &Weights<'_>,
    rows: usize,
    acc: &mut [f32],
    stride: usize,
    lies: Lies,
) {
    let (n, cols) = (values.rows(), values.cols());
    if n == 0 || rows == 0 {
        return;
    }
    assert!(weights.stride >= n && weights.p.len() >= (rows - 1) * weights.stride + n && weights.alpha.len() >= rows);
    assert!(stride >= cols && acc.len() >= (rows - 1) * stride + cols);
    by_type_and_place!(isa, values, lies, Weighted { values, weights, rows, acc, stride })
}

/// What [`accumulate`] has checked.
struct Weighted<'a> {
    values: &'a Rows<'a>,
    weights: &'a Weights<'a>,
    rows: usize,
    acc: &'a mut [f32],
    stride: usize,
}

impl<E: Stored, const LIES: usize> Task for Typed<Weighted<'_>, E, LIES> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Weighted { values, weights, rows, acc, stride } = self.of;
        // SAFETY: as above, for `accumulate`.
        unsafe { accumulate_of::<E, S, LIES>(s, values, weights, rows, acc.as_mut_ptr(), stride) }
    }
}

/// # Safety
/// As [`accumulate`] checks; `E` is the type of `values`.
#[inline(always)]
unsafe fn accumulate_of<E: Stored, S: Simd, const LIES: usize>(
    s: S,
    values: &Rows<'_>,
    weights: &Weights<'_>,
    rows: usize,
    acc: *mut f32,
    stride: usize,
) {
    let pitch = values.stride() / values.dtype().size();
    let ahead = Ahead::<LIES>::new::<E::T>(values.cols(), pitch);
    let mut r = 0;
    while r < rows {
        let left = if one_by_one::<S>() { 1 } else { rows - r };
        let part = Columns {
            values: values.as_ptr().cast::<E::T>(),
            pitch,
            // The first rows bring what all use.
            ahead: (r == 0).then_some(ahead),
            n: values.rows(),
            cols: values.cols(),
            p: weights.p.as_ptr().wrapping_add(r * weights.stride),
            p_stride: weights.stride,
            alpha: weights.alpha.as_ptr().wrapping_add(r),
            acc: acc.wrapping_add(r * stride),
            stride,
        };
        // SAFETY: rows r.. exist in all arrays.
        unsafe {
            if left >= 4 {
                if S::WIDE {
                    part.run::<E, S, 4, 4>(s)
                } else {
                    part.run::<E, S, 4, 2>(s)
                }
                r += 4;
            } else if left >= 2 {
                if S::WIDE {
                    part.run::<E, S, 2, 8>(s)
                } else {
                    part.run::<E, S, 2, 4>(s)
                }
                r += 2;
            } else {
                if one_by_one::<S>() {
                    part.run::<E, S, 1, 4>(s);
                } else {
                    part.run::<E, S, 1, 8>(s);
                }
                r += 1;
            }
        }
    }
}

struct Columns<T, const LIES: usize> {
    values: *const T,
    pitch: usize,
    ahead: Option<Ahead<LIES>>,
    n: usize,
    cols: usize,
    p: *const f32,
    p_stride: usize,
    alpha: *const f32,
    acc: *mut f32,
    stride: usize,
}

impl<T: Copy, const LIES: usize> Columns<T, LIES> {
    /// `R` rows, `C` vectors of columns at a time, then single ones.
    ///
    /// # Safety
    /// `R` rows of weights, factors and sums, and the values, are there.
    #[inline(always)]
    unsafe fn run<E: Stored<T = T>, S: Simd, const R: usize, const C: usize>(&self, s: S) {
        let mut i = 0;
        // SAFETY: the columns of each call are left in every row.
        unsafe {
            while i + C * S::LANES <= self.cols {
                self.columns::<E, S, R, C>(s, i);
                i += C * S::LANES;
            }
            // What is left of wide rows in halves: a single accumulator would wait for its own latency.
            if C > 4 && i + 4 * S::LANES <= self.cols {
                self.columns::<E, S, R, 4>(s, i);
                i += 4 * S::LANES;
            }
            if C > 2 && !one_by_one::<S>() && i + 2 * S::LANES <= self.cols {
                self.columns::<E, S, R, 2>(s, i);
                i += 2 * S::LANES;
            }
            while i + S::LANES <= self.cols {
                self.columns::<E, S, R, 1>(s, i);
                i += S::LANES;
            }
            if i < self.cols {
                self.tail::<E, S, R>(s, i);
            }
        }
    }

    /// # Safety
    /// As [`Columns::run`]; `C` vectors are left from column `i` on.
    #[inline(always)]
    unsafe fn columns<E: Stored<T = T>, S: Simd, const R: usize, const C: usize>(&self, s: S, i: usize) {
        let mut sum = [[s.splat(0.0); C]; R];
        let mut v = self.values.wrapping_add(i);
        for j in 0..self.n {
            if let Some(ahead) = self.ahead {
                ahead.ask(s, v, C * S::LANES);
            }
            let mut x = [s.splat(0.0); C];
            for c in 0..C {
                // SAFETY: vector c of row j.
                x[c] = unsafe { E::load(s, v.add(c * S::LANES)) };
            }
            for r in 0..R {
                // SAFETY: j < n.
                let w = s.splat(unsafe { *self.p.add(r * self.p_stride + j) });
                for c in 0..C {
                    sum[r][c] = s.fma(w, x[c], sum[r][c]);
                }
            }
            v = v.wrapping_add(self.pitch);
        }
        for r in 0..R {
            // SAFETY: row r has these columns.
            unsafe {
                let alpha = s.splat(*self.alpha.add(r));
                for c in 0..C {
                    let at = self.acc.add(r * self.stride + i + c * S::LANES);
                    s.store(at, s.fma(s.load(at), alpha, sum[r][c]));
                }
            }
        }
    }

    /// The columns from `i` on, fewer than a vector.
    ///
    /// # Safety
    /// As [`Columns::run`].
    #[inline(always)]
    unsafe fn tail<E: Stored<T = T>, S: Simd, const R: usize>(&self, s: S, i: usize) {
        let left = self.cols - i;
        let mut sum = [s.splat(0.0); R];
        for j in 0..self.n {
            // SAFETY: `left` elements are left in row j.
            let x = unsafe { E::load_partial(s, self.values.add(j * self.pitch + i), left) };
            for r in 0..R {
                // SAFETY: j < n.
                sum[r] = s.fma(s.splat(unsafe { *self.p.add(r * self.p_stride + j) }), x, sum[r]);
            }
        }
        for r in 0..R {
            // SAFETY: row r has these columns.
            unsafe {
                let at = self.acc.add(r * self.stride + i);
                let sum = s.fma(s.load_partial(at, left), s.splat(*self.alpha.add(r)), sum[r]);
                s.store_partial(at, left, sum);
            }
        }
    }
}
