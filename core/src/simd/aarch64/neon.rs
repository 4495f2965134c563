//! 128-bit vectors of AArch64, where they are always there.

use crate::simd::vector::Simd;
use core::arch::aarch64::*;
use half::f16;

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

/// Instructions without memory operands: safe because the token exists.
macro_rules! op {
    ($e:expr) => {{
        // SAFETY: the token proves the instruction set.
        unsafe { $e }
    }};
}

impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const WIDE: bool = true;
    type I = int32x4_t;

    #[inline(always)]
    fn splat_i(self, x: i32) -> int32x4_t {
        op!(vdupq_n_s32(x))
    }
    #[inline(always)]
    fn dot16(self, acc: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        op!({
            let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
            let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
            vaddq_s32(acc, vpaddq_s32(low, vmull_high_s16(a, b)))
        })
    }
    #[inline(always)]
    fn dot8(self, acc: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        op!({
            let (a, b) = (vreinterpretq_u8_s32(a), vreinterpretq_s8_s32(b));
            let (a0, a1) = (vmovl_u8(vget_low_u8(a)), vmovl_high_u8(a));
            let (a0, a1) = (vreinterpretq_s16_u16(a0), vreinterpretq_s16_u16(a1));
            let (b0, b1) = (vmovl_s8(vget_low_s8(b)), vmovl_high_s8(b));
            let low = vpaddq_s32(vmull_s16(vget_low_s16(a0), vget_low_s16(b0)), vmull_high_s16(a0, b0));
            let high = vpaddq_s32(vmull_s16(vget_low_s16(a1), vget_low_s16(b1)), vmull_high_s16(a1, b1));
            vaddq_s32(acc, vpaddq_s32(low, high))
        })
    }
    #[inline(always)]
    fn to_f32(self, a: int32x4_t) -> float32x4_t {
        op!(vcvtq_f32_s32(a))
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const i32) -> int32x4_t {
        // SAFETY: passed on.
        unsafe { vld1q_s32(p) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        op!(vdupq_n_f32(x))
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        op!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vmaxq_f32(a, b))
    }
    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vminq_f32(a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: float32x4_t) -> float32x4_t {
        op!(vsqrtq_f32(a))
    }
    #[inline(always)]
    fn abs(self, a: float32x4_t) -> float32x4_t {
        op!(vabsq_f32(a))
    }
    #[inline(always)]
    fn copysign(self, a: float32x4_t, sign: float32x4_t) -> float32x4_t {
        op!(vbslq_f32(vdupq_n_u32(0x8000_0000), sign, a))
    }
    #[inline(always)]
    fn select_lt(self, a: float32x4_t, b: float32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t {
        op!(vbslq_f32(vcltq_f32(a, b), yes, no))
    }
    #[inline(always)]
    fn lt_bits(self, a: float32x4_t, b: float32x4_t) -> u32 {
        const PLACES: [u32; 4] = [1, 2, 4, 8];
        // SAFETY: NEON is there, four numbers are readable.
        unsafe { vaddvq_u32(vandq_u32(vcltq_f32(a, b), vld1q_u32(PLACES.as_ptr()))) }
    }
    #[inline(always)]
    fn floor(self, a: float32x4_t) -> float32x4_t {
        op!(vrndmq_f32(a))
    }
    #[inline(always)]
    fn ldexp(self, a: float32x4_t, n: float32x4_t) -> float32x4_t {
        op!({
            let e = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
            vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32::<23>(e)))
        })
    }
    #[inline(always)]
    fn reduce_add(self, a: float32x4_t) -> f32 {
        op!(vaddvq_f32(a))
    }
    #[inline(always)]
    fn reduce_max(self, a: float32x4_t) -> f32 {
        op!(vmaxvq_f32(a))
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> float32x4_t {
        // SAFETY: passed on.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> float32x4_t {
        let mut x = [0.0f32; 4];
        for i in 0..n.min(4) {
            // SAFETY: `n` numbers are readable.
            x[i] = unsafe { *p.add(i) };
        }
        // SAFETY: four numbers on the stack.
        unsafe { vld1q_f32(x.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: float32x4_t) {
        // SAFETY: passed on.
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, n: usize, v: float32x4_t) {
        let mut x = [0.0f32; 4];
        // SAFETY: four numbers on the stack.
        unsafe { vst1q_f32(x.as_mut_ptr(), v) };
        for i in 0..n.min(4) {
            // SAFETY: `n` numbers are writable.
            unsafe { *p.add(i) = x[i] };
        }
    }
    /// Half floats convert one by one: the vector conversion is not in the stable part of the standard library's types.
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> float32x4_t {
        let mut x = [0.0f32; 4];
        for i in 0..4 {
            // SAFETY: four numbers are readable.
            x[i] = f16::from_bits(unsafe { *p.add(i) }).to_f32();
        }
        // SAFETY: four numbers on the stack.
        unsafe { vld1q_f32(x.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: float32x4_t) {
        let mut x = [0.0f32; 4];
        // SAFETY: four numbers on the stack, four writable at `p`.
        unsafe {
            vst1q_f32(x.as_mut_ptr(), v);
            for i in 0..4 {
                *p.add(i) = f16::from_f32(x[i]).to_bits();
            }
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> float32x4_t {
        // SAFETY: passed on.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p))) }
    }
}
