//! One lane of plain Rust: the reference, and what runs where nothing else does.

use super::vector::Simd;
use half::{bf16, f16};

/// Always there.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

impl Simd for Scalar {
    type V = f32;
    const LANES: usize = 1;
    const WIDE: bool = false;
    type I = i32;

    #[inline(always)]
    fn splat_i(self, x: i32) -> i32 {
        x
    }
    #[inline(always)]
    fn dot16(self, acc: i32, a: i32, b: i32) -> i32 {
        acc + i32::from(a as i16) * i32::from(b as i16) + (a >> 16) * (b >> 16)
    }
    #[inline(always)]
    fn dot8(self, acc: i32, a: i32, b: i32) -> i32 {
        let (a, b) = (a.to_ne_bytes(), b.to_ne_bytes());
        (0..4).fold(acc, |sum, i| sum + i32::from(a[i]) * i32::from(b[i] as i8))
    }
    #[inline(always)]
    fn to_f32(self, a: i32) -> f32 {
        a as f32
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const i32) -> i32 {
        // SAFETY: passed on.
        unsafe { p.read_unaligned() }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn sub(self, a: f32, b: f32) -> f32 {
        a - b
    }
    #[inline(always)]
    fn mul(self, a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn div(self, a: f32, b: f32) -> f32 {
        a / b
    }
    /// Two roundings: a fused one would be a library call on machines without the instruction.
    #[inline(always)]
    fn fma(self, a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
    #[inline(always)]
    fn max(self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
    #[inline(always)]
    fn min(self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }
    #[inline(always)]
    fn sqrt(self, a: f32) -> f32 {
        libm::sqrtf(a)
    }
    #[inline(always)]
    fn abs(self, a: f32) -> f32 {
        f32::from_bits(a.to_bits() & 0x7fff_ffff)
    }
    #[inline(always)]
    fn copysign(self, a: f32, sign: f32) -> f32 {
        f32::from_bits((a.to_bits() & 0x7fff_ffff) | (sign.to_bits() & 0x8000_0000))
    }
    #[inline(always)]
    fn select_lt(self, a: f32, b: f32, yes: f32, no: f32) -> f32 {
        if a < b { yes } else { no }
    }
    /// For |a| < 2^31 only, which is all that exp needs.
    #[inline(always)]
    fn lt_bits(self, a: f32, b: f32) -> u32 {
        u32::from(a < b)
    }
    #[inline(always)]
    fn floor(self, a: f32) -> f32 {
        let t = a as i32 as f32;
        if t > a { t - 1.0 } else { t }
    }
    #[inline(always)]
    fn ldexp(self, a: f32, n: f32) -> f32 {
        a * f32::from_bits(((n as i32 + 127) as u32) << 23)
    }
    #[inline(always)]
    fn reduce_add(self, a: f32) -> f32 {
        a
    }
    #[inline(always)]
    fn reduce_max(self, a: f32) -> f32 {
        a
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> f32 {
        // SAFETY: passed on.
        unsafe { *p }
    }
    #[inline(always)]
    unsafe fn load_partial(self, _p: *const f32, _n: usize) -> f32 {
        0.0
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: f32) {
        // SAFETY: passed on.
        unsafe { *p = v }
    }
    #[inline(always)]
    unsafe fn store_partial(self, _p: *mut f32, _n: usize, _v: f32) {}
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> f32 {
        // SAFETY: passed on.
        f16::from_bits(unsafe { *p }).to_f32()
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: f32) {
        // SAFETY: passed on.
        unsafe { *p = f16::from_f32(v).to_bits() }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> f32 {
        // SAFETY: passed on.
        bf16::from_bits(unsafe { *p }).to_f32()
    }
}
