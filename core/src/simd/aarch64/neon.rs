//! 128-bit vectors of AArch64, where they are always there.

use crate::simd::vector::{Simd, methods};
use core::arch::aarch64::*;
use half::f16;

type V = float32x4_t;
type I = int32x4_t;

/// Proof of NEON.
#[derive(Clone, Copy)]
pub(in crate::simd) struct Neon(());

impl Neon {
    /// # Safety
    /// The machine has NEON.
    #[inline(always)]
    pub(in crate::simd) unsafe fn new() -> Self {
        Neon(())
    }
}

impl Simd for Neon {
    type V = V;
    const LANES: usize = 4;
    const WIDE: bool = true;
    type I = I;

    methods! {
        fn splat_i(x: i32) -> I = vdupq_n_s32(x);
        fn dot16(acc: I, a: I, b: I) -> I = {
            let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
            let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
            vaddq_s32(acc, vpaddq_s32(low, vmull_high_s16(a, b)))
        };
        fn dot8(acc: I, a: I, b: I) -> I = {
            let (a, b) = (vreinterpretq_u8_s32(a), vreinterpretq_s8_s32(b));
            let (a0, a1) = (vmovl_u8(vget_low_u8(a)), vmovl_high_u8(a));
            let (a0, a1) = (vreinterpretq_s16_u16(a0), vreinterpretq_s16_u16(a1));
            let (b0, b1) = (vmovl_s8(vget_low_s8(b)), vmovl_high_s8(b));
            let low = vpaddq_s32(vmull_s16(vget_low_s16(a0), vget_low_s16(b0)), vmull_high_s16(a0, b0));
            let high = vpaddq_s32(vmull_s16(vget_low_s16(a1), vget_low_s16(b1)), vmull_high_s16(a1, b1));
            vaddq_s32(acc, vpaddq_s32(low, high))
        };
        fn to_f32(a: I) -> V = vcvtq_f32_s32(a);
        fn splat(x: f32) -> V = vdupq_n_f32(x);
        fn add(a: V, b: V) -> V = vaddq_f32(a, b);
        fn sub(a: V, b: V) -> V = vsubq_f32(a, b);
        fn mul(a: V, b: V) -> V = vmulq_f32(a, b);
        fn div(a: V, b: V) -> V = vdivq_f32(a, b);
        fn fma(a: V, b: V, c: V) -> V = vfmaq_f32(c, a, b);
        fn max(a: V, b: V) -> V = vmaxq_f32(a, b);
        fn min(a: V, b: V) -> V = vminq_f32(a, b);
        fn sqrt(a: V) -> V = vsqrtq_f32(a);
        fn abs(a: V) -> V = vabsq_f32(a);
        fn copysign(a: V, sign: V) -> V = vbslq_f32(vdupq_n_u32(0x8000_0000), sign, a);
        fn select_lt(a: V, b: V, yes: V, no: V) -> V = vbslq_f32(vcltq_f32(a, b), yes, no);
        fn lt_bits(a: V, b: V) -> u32 = vaddvq_u32(vandq_u32(vcltq_f32(a, b), vld1q_u32([1, 2, 4, 8].as_ptr())));
        fn floor(a: V) -> V = vrndmq_f32(a);
        fn ldexp(a: V, n: V) -> V = {
            let e = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
            vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32::<23>(e)))
        };
        fn reduce_add(a: V) -> f32 = vaddvq_f32(a);
        fn reduce_max(a: V) -> f32 = vmaxvq_f32(a);
    }

    methods! {
        unsafe fn load_i(p: *const i32) -> I = vld1q_s32(p);
        unsafe fn load(p: *const f32) -> V = vld1q_f32(p);
        unsafe fn load_partial(p: *const f32, n: usize) -> V = {
            let mut x = [0.0f32; 4];
            x.iter_mut().enumerate().take(n).for_each(|(i, x)| *x = *p.add(i));
            vld1q_f32(x.as_ptr())
        };
        unsafe fn store(p: *mut f32, v: V) = vst1q_f32(p, v);
        unsafe fn store_partial(p: *mut f32, n: usize, v: V) = {
            let mut x = [0.0f32; 4];
            vst1q_f32(x.as_mut_ptr(), v);
            x.iter().enumerate().take(n).for_each(|(i, x)| *p.add(i) = *x);
        };
        /// Half floats convert one by one: the vector conversion is not in the stable part of the standard library's types.
        unsafe fn load_f16(p: *const u16) -> V = {
            let mut x = [0.0f32; 4];
            x.iter_mut().enumerate().for_each(|(i, x)| *x = f16::from_bits(*p.add(i)).to_f32());
            vld1q_f32(x.as_ptr())
        };
        unsafe fn store_f16(p: *mut u16, v: V) = {
            let mut x = [0.0f32; 4];
            vst1q_f32(x.as_mut_ptr(), v);
            x.iter().enumerate().for_each(|(i, x)| *p.add(i) = f16::from_f32(*x).to_bits());
        };
        unsafe fn load_bf16(p: *const u16) -> V = vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p)));
    }
}
