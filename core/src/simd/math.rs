//! exp and tanh over vectors.

use super::vector::Simd;

/// Coefficients of `2^f = 1 + f (c0 + f (c1 + ...))` on [0, 1): minimax in relative error, 1e-7 before rounding. With
/// rounding the error of `2^x` stays below 4e-7 for the `x` given.
pub(crate) const EXP2: [f32; 5] = [0.693_151_3, 0.240_164_44, 0.055_799_913, 0.009_017_031, 0.001_867_13];

#[inline(always)]
pub(crate) fn exp2_fraction<S: Simd>(s: S, f: S::V) -> S::V {
    let mut p = s.splat(EXP2[4]);
    p = s.fma(p, f, s.splat(EXP2[3]));
    p = s.fma(p, f, s.splat(EXP2[2]));
    p = s.fma(p, f, s.splat(EXP2[1]));
    p = s.fma(p, f, s.splat(EXP2[0]));
    s.fma(p, f, s.splat(1.0))
}

/// log2(e) as the sum of two floats.
const LOG2_E: (f32, f32) = (core::f32::consts::LOG2_E, 1.925_963e-8);

/// `e^x` for `x <= 88`: relative error at most 5e-7 on [-87, 88]; 0 below -87.4 and for -inf.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // -87.4 is -126.09 in powers of two: what lies below becomes 0 by the exponent.
    let x = s.max(x, s.splat(-88.0));
    let hi = s.splat(LOG2_E.0);
    let t = s.mul(x, hi);
    // What the product lost: without it the error would grow with |x|.
    let lost = s.fma(x, s.splat(LOG2_E.1), s.fma(x, hi, s.sub(s.splat(0.0), t)));
    let n = s.floor(t);
    let p = exp2_fraction(s, s.add(s.sub(t, n), lost));
    s.ldexp(p, n)
}

/// `tanh(x)`: absolute error at most 4e-7, relative error at most 1e-6; exact at 0 and beyond +-9.1.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let a = s.min(s.abs(x), s.splat(10.0));
    // Near 0 the quotient cancels: odd polynomial there.
    let a2 = s.mul(a, a);
    let mut p = s.splat(-0.005_666_977_3);
    p = s.fma(p, a2, s.splat(0.020_606_177));
    p = s.fma(p, a2, s.splat(-0.053_730_007));
    p = s.fma(p, a2, s.splat(0.133_313_31));
    p = s.fma(p, a2, s.splat(-0.333_332_78));
    let small = s.fma(s.mul(p, a2), a, a);
    let e = exp(s, s.mul(a, s.splat(-2.0)));
    let one = s.splat(1.0);
    let large = s.div(s.sub(one, e), s.add(one, e));
    s.copysign(s.select_lt(a, s.splat(0.625), small, large), x)
}
