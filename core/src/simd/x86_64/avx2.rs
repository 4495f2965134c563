//! 256-bit vectors with FMA and F16C.

use crate::simd::math;
use crate::simd::vector::{Simd, methods};
use core::arch::x86_64::*;

type V = __m256;
type I = __m256i;

/// Proof of AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(in crate::simd) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The machine has AVX2, FMA and F16C.
    #[inline(always)]
    pub(in crate::simd) unsafe fn new() -> Self {
        Avx2(())
    }
}

/// A window into this at `8 - n` is a mask of the first `n` lanes.
static MASK: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// Eighths of powers of two.
static EIGHTHS: [u32; 8] = math::roots();

/// Mask of the first `n` lanes.
#[inline(always)]
fn mask(n: usize) -> I {
    let n = n.min(8);
    // SAFETY: eight numbers from 8 - n on are inside the table; AVX2 is there wherever this is called.
    unsafe { _mm256_loadu_si256(MASK.as_ptr().add(8 - n).cast()) }
}

impl Simd for Avx2 {
    type V = V;
    const LANES: usize = 8;
    const WIDE: bool = false;
    type I = I;

    methods! {
        fn splat_i(x: i32) -> I = _mm256_set1_epi32(x);
        fn dot16(acc: I, a: I, b: I) -> I = _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
        fn dot8(acc: I, a: I, b: I) -> I = {
            let even = _mm256_madd_epi16(
                _mm256_and_si256(a, _mm256_set1_epi16(0xff)),
                _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(b)),
            );
            let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(a), _mm256_srai_epi16::<8>(b));
            _mm256_add_epi32(acc, _mm256_add_epi32(even, odd))
        };
        fn to_f32(a: I) -> V = _mm256_cvtepi32_ps(a);
        fn splat(x: f32) -> V = _mm256_set1_ps(x);
        fn add(a: V, b: V) -> V = _mm256_add_ps(a, b);
        fn sub(a: V, b: V) -> V = _mm256_sub_ps(a, b);
        fn mul(a: V, b: V) -> V = _mm256_mul_ps(a, b);
        fn div(a: V, b: V) -> V = _mm256_div_ps(a, b);
        fn fma(a: V, b: V, c: V) -> V = _mm256_fmadd_ps(a, b, c);
        fn max(a: V, b: V) -> V = _mm256_max_ps(a, b);
        fn min(a: V, b: V) -> V = _mm256_min_ps(a, b);
        fn sqrt(a: V) -> V = _mm256_sqrt_ps(a);
        fn abs(a: V) -> V = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
        fn copysign(a: V, sign: V) -> V = {
            let bit = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(bit, a), _mm256_and_ps(bit, sign))
        };
        fn select_lt(a: V, b: V, yes: V, no: V) -> V = _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
        fn lt_bits(a: V, b: V) -> u32 = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) as u32;
        fn floor(a: V) -> V = _mm256_floor_ps(a);
        fn ldexp(a: V, n: V) -> V = {
            let e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(e)))
        };
        fn reduce_add(a: V) -> f32 = {
            let x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        };
        fn reduce_add4(a: [V; 4]) -> [f32; 4] = {
            let [a, b, c, d] = a;
            let ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let x = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            core::mem::transmute::<__m128, [f32; 4]>(x)
        };
        fn reduce_max(a: V) -> f32 = {
            let x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps::<1>(x, x)))
        };
        fn prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T1>(p.cast());
        fn prefetch_near(p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
        /// Rounding to eighths by adding a large number leaves the exponent and, below it, the number of eighths in the low bits
        /// of the sum: a shift finds the one, a table in a register the other.
        fn exp2_scaled(x: V, c: V) -> V = {
            let large = _mm256_set1_ps(math::round_to(8) + 127.0);
            let t = _mm256_fmadd_ps(x, c, large);
            let f = _mm256_fmsub_ps(x, c, _mm256_sub_ps(t, large));
            let bits = _mm256_castps_si256(t);
            let root = _mm256_permutevar8x32_epi32(_mm256_loadu_si256(EIGHTHS.as_ptr().cast()), bits);
            let power = _mm256_castsi256_ps(_mm256_add_epi32(root, _mm256_slli_epi32::<20>(bits)));
            let [a, b, d] = math::EXP2_EIGHTH.map(|k| _mm256_set1_ps(k));
            let p = _mm256_fmadd_ps(_mm256_fmadd_ps(d, f, b), f, a);
            let p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0));
            // Below -126 the bits are no exponent; -inf has left NaN elsewhere.
            let least = _mm256_set1_epi32(((math::round_to(8) + 1.0).to_bits() - 1) as i32);
            let normal = _mm256_castsi256_ps(_mm256_cmpgt_epi32(bits, least));
            _mm256_and_ps(normal, _mm256_mul_ps(p, power))
        };
    }

    methods! {
        unsafe fn load_i(p: *const i32) -> I = _mm256_loadu_si256(p.cast());
        unsafe fn load(p: *const f32) -> V = _mm256_loadu_ps(p);
        unsafe fn load_partial(p: *const f32, n: usize) -> V = _mm256_maskload_ps(p, mask(n));
        unsafe fn store(p: *mut f32, v: V) = _mm256_storeu_ps(p, v);
        unsafe fn store_partial(p: *mut f32, n: usize, v: V) = _mm256_maskstore_ps(p, mask(n), v);
        unsafe fn load_f16(p: *const u16) -> V = _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
        unsafe fn store_f16(p: *mut u16, v: V) =
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        unsafe fn load_bf16(p: *const u16) -> V = {
            let x = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(x))
        };
    }
}
