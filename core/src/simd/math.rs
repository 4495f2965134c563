//! exp and tanh over vectors.

use super::vector::{Simd, exp2_fraction};

/// Square root of one number. In the vectors' own instruction: on some processors the plain one waits a hundred cycles
/// where vectors are in use.
#[inline(always)]
pub(crate) fn sqrt<S: Simd>(s: S, x: f32) -> f32 {
    s.reduce_max(s.sqrt(s.splat(x)))
}

/// As [`EXP2`](super::vector::EXP2), on [-1/16, 1/16]: for what is left of eighths. 2.7e-8 before rounding.
#[cfg(target_arch = "x86_64")]
#[allow(clippy::approx_constant)] // Fitted: near ln 2, not ln 2.
pub(crate) const EXP2_EIGHTH: [f32; 3] = [0.693_147_24, 0.240_257_64, 0.055_496_223];

/// 1.5 x 2^23: its sum with a number below 2^22 is rounded to an integer, which stands in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Nearest integer of a number below 2^22.
#[inline(always)]
pub(crate) fn nearest(x: f32) -> i32 {
    ((x + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32)
}

/// A number whose sum with a small one is rounded to one part in `n`, a power of two.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn round_to(n: u32) -> f32 {
    ROUND / n as f32
}

/// Bits of `2^(i / N)`, less those of 1 and less `i` in the place where the exponent's lowest bit would come after `N` of
/// them: what is missing from the bits of `2^(n + i / N)` when `(n + 127) N + i` is shifted to the exponent.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn roots<const N: usize>() -> [u32; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        let x = i as f64 / N as f64 * core::f64::consts::LN_2;
        let (mut term, mut sum, mut k) = (1.0, 1.0, 1);
        while k < 20 {
            term *= x / k as f64;
            sum += term;
            k += 1;
        }
        let one = 1.0f32.to_bits();
        out[i] = ((sum as f32).to_bits() - one).wrapping_sub((i as u32) << (23 - N.trailing_zeros()));
        i += 1;
    }
    out
}

/// ln 2 in two parts; whole numbers up to 2^14 times the first are exact.
const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);

/// `e^x` for `x <= 88`: relative error at most 5e-7 on [-87, 88]; 0 below -87.4 and for -inf.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // -87.4 is -126.09 in powers of two: what lies below becomes 0 by the exponent.
    let x = s.max(x, s.splat(-88.0));
    let log2_e = s.splat(core::f32::consts::LOG2_E);
    let n = s.floor(s.mul(x, log2_e));
    // The remainder in two steps, without error, so that the result's error does not grow with |x|.
    let r = s.sub(s.sub(x, s.mul(n, s.splat(LN_2.0))), s.mul(n, s.splat(LN_2.1)));
    let p = exp2_fraction(s, s.mul(r, log2_e));
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

#[cfg(test)]
mod tests {
    use crate::simd::{Isa, Simd, Task};

    struct Scaled<'a>(&'a mut [f32], f32);

    impl Task for Scaled<'_> {
        type Out = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for x in self.0 {
                *x = s.reduce_max(s.exp2_scaled(s.splat(*x), s.splat(self.1)));
            }
        }
    }

    #[test]
    fn powers_of_two_keep_their_bounds() {
        let steps: i32 = if cfg!(miri) { 300 } else { 300_000 };
        for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
            for c in [1.0, 0.18, core::f32::consts::LOG2_E, 40.0] {
                for i in 0..=steps {
                    let x = i as f32 * -126.0 / (steps as f32 * c);
                    let mut y = [x];
                    isa.run(Scaled(&mut y, c));
                    let exponent = f64::from(x) * f64::from(c);
                    // Half an ulp of the exponent beside the polynomial.
                    let bound = 4e-7 + exponent.abs() * 6e-8;
                    let want = libm::exp2(exponent);
                    let error = (f64::from(y[0]) - want).abs() / want;
                    assert!(exponent < -125.9 || error <= bound, "{}: 2^{exponent}: {error:e}", isa.name());
                }
                let mut edge = [0.0, -126.6 / c, -127.0 / c, -1e4 / c, -1e30, f32::MIN, f32::NEG_INFINITY];
                isa.run(Scaled(&mut edge, c));
                assert_eq!(edge, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], "{}", isa.name());
            }
        }
    }
}
