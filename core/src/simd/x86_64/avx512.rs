//! 512-bit vectors.

use crate::simd::vector::{Simd, exp2_fraction, methods};
use core::arch::x86_64::*;

type V = __m512;
type I = __m512i;

/// Proof of AVX-512 F, BW, VL, DQ and of what [`super::avx2::Avx2`] needs; with `VNNI`, of that too.
#[derive(Clone, Copy)]
pub(in crate::simd) struct Avx512<const VNNI: bool>(());

impl<const VNNI: bool> Avx512<VNNI> {
    /// # Safety
    /// The machine has AVX-512 F, BW, VL, DQ, AVX2, FMA and F16C, and VNNI if it is named.
    #[inline(always)]
    pub(in crate::simd) unsafe fn new() -> Self {
        Avx512(())
    }
}

/// Mask of the first `n < 16` lanes.
#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

impl<const VNNI: bool> Simd for Avx512<VNNI> {
    type V = V;
    const LANES: usize = 16;
    const WIDE: bool = true;
    type I = I;

    methods! {
        fn splat_i(x: i32) -> I = _mm512_set1_epi32(x);
        fn dot16(acc: I, a: I, b: I) -> I =
            if VNNI { _mm512_dpwssd_epi32(acc, a, b) } else { _mm512_add_epi32(acc, _mm512_madd_epi16(a, b)) };
        fn dot8(acc: I, a: I, b: I) -> I = if VNNI {
            _mm512_dpbusd_epi32(acc, a, b)
        } else {
            let even = _mm512_madd_epi16(
                _mm512_and_si512(a, _mm512_set1_epi16(0xff)),
                _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(b)),
            );
            let odd = _mm512_madd_epi16(_mm512_srli_epi16::<8>(a), _mm512_srai_epi16::<8>(b));
            _mm512_add_epi32(acc, _mm512_add_epi32(even, odd))
        };
        fn to_f32(a: I) -> V = _mm512_cvtepi32_ps(a);
        fn splat(x: f32) -> V = _mm512_set1_ps(x);
        fn add(a: V, b: V) -> V = _mm512_add_ps(a, b);
        fn sub(a: V, b: V) -> V = _mm512_sub_ps(a, b);
        fn mul(a: V, b: V) -> V = _mm512_mul_ps(a, b);
        fn div(a: V, b: V) -> V = _mm512_div_ps(a, b);
        fn fma(a: V, b: V, c: V) -> V = _mm512_fmadd_ps(a, b, c);
        fn max(a: V, b: V) -> V = _mm512_max_ps(a, b);
        fn min(a: V, b: V) -> V = _mm512_min_ps(a, b);
        fn sqrt(a: V) -> V = _mm512_sqrt_ps(a);
        fn abs(a: V) -> V = _mm512_abs_ps(a);
        fn copysign(a: V, sign: V) -> V = _mm512_or_ps(_mm512_abs_ps(a), _mm512_and_ps(_mm512_set1_ps(-0.0), sign));
        fn select_lt(a: V, b: V, yes: V, no: V) -> V =
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes);
        fn lt_bits(a: V, b: V) -> u32 = u32::from(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b));
        fn floor(a: V) -> V = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(a);
        fn ldexp(a: V, n: V) -> V = {
            let e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_mul_ps(a, _mm512_castsi512_ps(_mm512_slli_epi32::<23>(e)))
        };
        fn reduce_add(a: V) -> f32 = {
            let x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        };
        fn reduce_add4(a: [V; 4]) -> [f32; 4] = {
            let [a, b, c, d] = a;
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let x = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xee>(ab, cd));
            let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            core::mem::transmute::<__m128, [f32; 4]>(x)
        };
        fn reduce_max(a: V) -> f32 = {
            let x = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps::<1>(x, x)))
        };
        fn prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T1>(p.cast());
        fn prefetch_near(p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
        /// The fraction and the scaling are one instruction each here, and the scaling takes the floor itself.
        fn exp2(x: V) -> V = {
            let f = _mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(x);
            let normal = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_set1_ps(-126.0));
            _mm512_maskz_scalef_ps(normal, exp2_fraction(Avx512::<VNNI>(()), f), x)
        };
    }

    methods! {
        unsafe fn load_i(p: *const i32) -> I = _mm512_loadu_si512(p.cast());
        unsafe fn load(p: *const f32) -> V = _mm512_loadu_ps(p);
        unsafe fn load_partial(p: *const f32, n: usize) -> V = _mm512_maskz_loadu_ps(mask(n), p);
        unsafe fn store(p: *mut f32, v: V) = _mm512_storeu_ps(p, v);
        unsafe fn store_partial(p: *mut f32, n: usize, v: V) = _mm512_mask_storeu_ps(p, mask(n), v);
        unsafe fn load_f16(p: *const u16) -> V = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        unsafe fn store_f16(p: *mut u16, v: V) =
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        unsafe fn load_bf16(p: *const u16) -> V = {
            let x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x))
        };
        unsafe fn transpose(rows: &[*const f32; 16], k: usize, out: *mut f32) = {
            let mut a = [_mm512_setzero_ps(); 16];
            for j in 0..16 {
                a[j] = _mm512_loadu_ps(rows[j].add(k));
            }
            // Pairs of rows, then fours: each 128-bit part holds four rows of one column.
            let mut b = [_mm512_setzero_ps(); 16];
            for j in 0..8 {
                b[2 * j] = _mm512_unpacklo_ps(a[2 * j], a[2 * j + 1]);
                b[2 * j + 1] = _mm512_unpackhi_ps(a[2 * j], a[2 * j + 1]);
            }
            for g in 0..4 {
                let [lo0, hi0, lo1, hi1] = [b[4 * g], b[4 * g + 1], b[4 * g + 2], b[4 * g + 3]];
                a[4 * g] = _mm512_shuffle_ps::<0x44>(lo0, lo1);
                a[4 * g + 1] = _mm512_shuffle_ps::<0xee>(lo0, lo1);
                a[4 * g + 2] = _mm512_shuffle_ps::<0x44>(hi0, hi1);
                a[4 * g + 3] = _mm512_shuffle_ps::<0xee>(hi0, hi1);
            }
            // Column c lies in part c / 4 of a[4 g + c % 4] for rows 4 g..: a transpose of the parts is left.
            for c in 0..4 {
                let (x, y, z, w) = (a[c], a[4 + c], a[8 + c], a[12 + c]);
                let (xy0, xy1) = (_mm512_shuffle_f32x4::<0x44>(x, y), _mm512_shuffle_f32x4::<0xee>(x, y));
                let (zw0, zw1) = (_mm512_shuffle_f32x4::<0x44>(z, w), _mm512_shuffle_f32x4::<0xee>(z, w));
                _mm512_storeu_ps(out.add(c * 16), _mm512_shuffle_f32x4::<0x88>(xy0, zw0));
                _mm512_storeu_ps(out.add((4 + c) * 16), _mm512_shuffle_f32x4::<0xdd>(xy0, zw0));
                _mm512_storeu_ps(out.add((8 + c) * 16), _mm512_shuffle_f32x4::<0x88>(xy1, zw1));
                _mm512_storeu_ps(out.add((12 + c) * 16), _mm512_shuffle_f32x4::<0xdd>(xy1, zw1));
            }
        };
    }
}
