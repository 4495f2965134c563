//! The one vector type every kernel is written over.

/// Methods of [`Simd`], each the expression that it is: in numbers alone, or with `unsafe` through pointers.
macro_rules! methods {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)? = $e:expr;)+) => {$(
        $(#[$doc])*
        #[inline(always)]
        #[allow(unused_unsafe)] // Plain Rust needs none.
        fn $name(self, $($arg: $ty),*) $(-> $out)? {
            // SAFETY: that the token exists proves the instruction set.
            unsafe { $e }
        }
    )+};
    ($($(#[$doc:meta])* unsafe fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)? = $e:expr;)+) => {$(
        $(#[$doc])*
        #[inline(always)]
        #[allow(unused_unsafe)]
        unsafe fn $name(self, $($arg: $ty),*) $(-> $out)? {
            // SAFETY: the trait says what the caller vouches for; a local array has room for a vector.
            unsafe { $e }
        }
    )+};
}
pub(in crate::simd) use methods;

/// A set of vector instructions. The token has no size; that it exists proves that the machine has the instructions, so
/// the methods without pointers are safe.
pub(crate) trait Simd: Copy {
    /// `LANES` numbers of f32.
    type V: Copy;
    /// Numbers in a vector.
    const LANES: usize;
    /// Whether there are 32 vector registers (else 16): decides the shape of register tiles.
    const WIDE: bool;

    /// `LANES` numbers of i32, or twice as many of i16.
    type I: Copy;

    /// `x` in every lane.
    fn splat_i(self, x: i32) -> Self::I;
    /// `acc + a0 b0 + a1 b1` in every lane, for pairs of i16; the caller keeps the sums inside i32.
    fn dot16(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// `acc + sum of a_i b_i` in every lane, for four unsigned bytes `a` and four signed bytes `b`; sums stay inside i32.
    fn dot8(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Integers to the nearest f32.
    fn to_f32(self, a: Self::I) -> Self::V;
    /// `LANES` integers.
    ///
    /// # Safety
    /// They are readable at `p` (any alignment an i32 may have).
    unsafe fn load_i(self, p: *const i32) -> Self::I;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the machine can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Larger of each pair; no NaN may be given.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Smaller of each pair; no NaN may be given.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Square root; no negative number may be given.
    fn sqrt(self, a: Self::V) -> Self::V;
    /// Magnitude.
    fn abs(self, a: Self::V) -> Self::V;
    /// Magnitude of the first, sign of the second.
    fn copysign(self, a: Self::V, sign: Self::V) -> Self::V;
    /// `a < b ? yes : no`, lane by lane.
    fn select_lt(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// Bit i is set where `a < b` in lane i.
    fn lt_bits(self, a: Self::V, b: Self::V) -> u32;
    /// Largest whole number not above.
    fn floor(self, a: Self::V) -> Self::V;
    /// `a * 2^n` for whole `n` in -127..=127; `n = -127` gives 0.
    fn ldexp(self, a: Self::V, n: Self::V) -> Self::V;
    /// Sum of the lanes, in a fixed order.
    fn reduce_add(self, a: Self::V) -> f32;
    /// Sums of the lanes of four vectors, each in the same fixed order.
    #[inline(always)]
    fn reduce_add4(self, a: [Self::V; 4]) -> [f32; 4] {
        a.map(|a| self.reduce_add(a))
    }
    /// Largest lane.
    fn reduce_max(self, a: Self::V) -> f32;

    /// `LANES` numbers.
    ///
    /// # Safety
    /// They are readable at `p` (any alignment a f32 may have).
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// The first `n < LANES` numbers, zeros after them.
    ///
    /// # Safety
    /// `n` numbers are readable at `p`.
    unsafe fn load_partial(self, p: *const f32, n: usize) -> Self::V;
    /// Stores all lanes.
    ///
    /// # Safety
    /// `LANES` numbers are writable at `p`.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// Stores the first `n < LANES` lanes.
    ///
    /// # Safety
    /// `n` numbers are writable at `p`.
    unsafe fn store_partial(self, p: *mut f32, n: usize, v: Self::V);
    /// `LANES` IEEE half floats, widened.
    ///
    /// # Safety
    /// They are readable at `p`.
    unsafe fn load_f16(self, p: *const u16) -> Self::V;
    /// Rounds to the nearest half floats, of two the even one, and stores their bits.
    ///
    /// # Safety
    /// `LANES` numbers are writable at `p`.
    unsafe fn store_f16(self, p: *mut u16, v: Self::V);
    /// `LANES` bfloat16, widened.
    ///
    /// # Safety
    /// They are readable at `p`.
    unsafe fn load_bf16(self, p: *const u16) -> Self::V;

    /// Columns `k..k + 16` of sixteen rows, as sixteen rows of sixteen.
    ///
    /// # Safety
    /// Those columns are readable in every row, 256 numbers are writable at `out`.
    #[inline(always)]
    unsafe fn transpose(self, rows: &[*const f32; 16], k: usize, out: *mut f32) {
        for (j, row) in rows.iter().enumerate() {
            for i in 0..16 {
                // SAFETY: passed on.
                unsafe { *out.add(i * 16 + j) = *row.add(k + i) };
            }
        }
    }

    /// Asks for a cache line, at any address; nothing where the machine has no such hint.
    #[inline(always)]
    fn prefetch(self, _p: *const u8) {}

    /// The same into the nearest cache.
    #[inline(always)]
    fn prefetch_near(self, _p: *const u8) {}

    /// `2^(x c)` for `x <= 0`, `c > 0`; below -126.5 the result is 0. Relative error at most 4e-7 for the
    /// `x c` that is meant, plus what rounding `x c` costs.
    #[inline(always)]
    fn exp2_scaled(self, x: Self::V, c: Self::V) -> Self::V {
        self.exp2(self.mul(x, c))
    }

    /// `2^x` for `x <= 127`; below -126 the result is 0. Relative error as stated at [`EXP2`].
    #[inline(always)]
    fn exp2(self, x: Self::V) -> Self::V {
        let x = self.max(x, self.splat(-127.0));
        let n = self.floor(x);
        let p = exp2_fraction(self, self.sub(x, n));
        self.ldexp(p, n)
    }
}

/// Coefficients of `2^f = 1 + f (c0 + f (c1 + ...))` on [0, 1): minimax in relative error, 1e-7 before rounding. With
/// rounding the error of `2^x` stays below 4e-7 for the `x` given.
pub(crate) const EXP2: [f32; 5] = [0.693_151_3, 0.240_164_44, 0.055_799_913, 0.009_017_031, 0.001_867_13];

/// `2^f` for `f` in [0, 1).
#[inline(always)]
pub(crate) fn exp2_fraction<S: Simd>(s: S, f: S::V) -> S::V {
    let mut p = s.splat(EXP2[4]);
    p = s.fma(p, f, s.splat(EXP2[3]));
    p = s.fma(p, f, s.splat(EXP2[2]));
    p = s.fma(p, f, s.splat(EXP2[1]));
    p = s.fma(p, f, s.splat(EXP2[0]));
    s.fma(p, f, s.splat(1.0))
}
