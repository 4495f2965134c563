//! One lane of plain Rust: the reference, and what runs where nothing else does.

use super::vector::{Simd, methods};
use half::{bf16, f16};

/// Always there.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

impl Simd for Scalar {
    type V = f32;
    const LANES: usize = 1;
    const WIDE: bool = false;
    type I = i32;

    methods! {
        fn splat_i(x: i32) -> i32 = x;
        fn dot16(acc: i32, a: i32, b: i32) -> i32 =
            acc + i32::from(a as i16) * i32::from(b as i16) + (a >> 16) * (b >> 16);
        fn dot8(acc: i32, a: i32, b: i32) -> i32 = {
            let (a, b) = (a.to_ne_bytes(), b.to_ne_bytes());
            (0..4).fold(acc, |sum, i| sum + i32::from(a[i]) * i32::from(b[i] as i8))
        };
        fn to_f32(a: i32) -> f32 = a as f32;
        fn splat(x: f32) -> f32 = x;
        fn add(a: f32, b: f32) -> f32 = a + b;
        fn sub(a: f32, b: f32) -> f32 = a - b;
        fn mul(a: f32, b: f32) -> f32 = a * b;
        fn div(a: f32, b: f32) -> f32 = a / b;
        /// Two roundings: a fused one would be a library call on machines without the instruction.
        fn fma(a: f32, b: f32, c: f32) -> f32 = a * b + c;
        fn max(a: f32, b: f32) -> f32 = if a > b { a } else { b };
        fn min(a: f32, b: f32) -> f32 = if a < b { a } else { b };
        fn sqrt(a: f32) -> f32 = libm::sqrtf(a);
        fn abs(a: f32) -> f32 = f32::from_bits(a.to_bits() & 0x7fff_ffff);
        fn copysign(a: f32, sign: f32) -> f32 =
            f32::from_bits((a.to_bits() & 0x7fff_ffff) | (sign.to_bits() & 0x8000_0000));
        fn select_lt(a: f32, b: f32, yes: f32, no: f32) -> f32 = if a < b { yes } else { no };
        fn lt_bits(a: f32, b: f32) -> u32 = u32::from(a < b);
        /// For |a| < 2^31 only, which is all that exp needs.
        fn floor(a: f32) -> f32 = {
            let t = a as i32 as f32;
            if t > a { t - 1.0 } else { t }
        };
        fn ldexp(a: f32, n: f32) -> f32 = a * f32::from_bits(((n as i32 + 127) as u32) << 23);
        fn reduce_add(a: f32) -> f32 = a;
        fn reduce_max(a: f32) -> f32 = a;
    }

    methods! {
        unsafe fn load_i(p: *const i32) -> i32 = p.read_unaligned();
        unsafe fn load(p: *const f32) -> f32 = *p;
        unsafe fn load_partial(_p: *const f32, _n: usize) -> f32 = 0.0;
        unsafe fn store(p: *mut f32, v: f32) = *p = v;
        unsafe fn store_partial(_p: *mut f32, _n: usize, _v: f32) = ();
        unsafe fn load_f16(p: *const u16) -> f32 = f16::from_bits(*p).to_f32();
        unsafe fn store_f16(p: *mut u16, v: f32) = *p = f16::from_f32(v).to_bits();
        unsafe fn load_bf16(p: *const u16) -> f32 = bf16::from_bits(*p).to_f32();
    }
}
