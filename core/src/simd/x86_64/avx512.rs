//! 512-bit vectors.

use crate::simd::vector::{Simd, exp2_fraction};
use core::arch::x86_64::*;

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

/// Instructions without memory operands: safe because the token exists.
macro_rules! op {
    ($e:expr) => {{
        // SAFETY: the token proves the instruction set.
        unsafe { $e }
    }};
}

/// Mask of the first `n < 16` lanes.
#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

impl<const VNNI: bool> Simd for Avx512<VNNI> {
    type V = __m512;
    const LANES: usize = 16;
    const WIDE: bool = true;
    type I = __m512i;

    #[inline(always)]
    fn splat_i(self, x: i32) -> __m512i {
        op!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn dot16(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        op!(if VNNI { _mm512_dpwssd_epi32(acc, a, b) } else { _mm512_add_epi32(acc, _mm512_madd_epi16(a, b)) })
    }
    #[inline(always)]
    fn dot8(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        op!(if VNNI {
            _mm512_dpbusd_epi32(acc, a, b)
        } else {
            let even = _mm512_madd_epi16(
                _mm512_and_si512(a, _mm512_set1_epi16(0xff)),
                _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(b)),
            );
            let odd = _mm512_madd_epi16(_mm512_srli_epi16::<8>(a), _mm512_srai_epi16::<8>(b));
            _mm512_add_epi32(acc, _mm512_add_epi32(even, odd))
        })
    }
    #[inline(always)]
    fn to_f32(self, a: __m512i) -> __m512 {
        op!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const i32) -> __m512i {
        // SAFETY: passed on.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        op!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        op!(_mm512_sqrt_ps(a))
    }
    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        op!(_mm512_abs_ps(a))
    }
    #[inline(always)]
    fn copysign(self, a: __m512, sign: __m512) -> __m512 {
        op!(_mm512_or_ps(_mm512_abs_ps(a), _mm512_and_ps(_mm512_set1_ps(-0.0), sign)))
    }
    #[inline(always)]
    fn select_lt(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        op!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes))
    }
    #[inline(always)]
    fn lt_bits(self, a: __m512, b: __m512) -> u32 {
        op!(u32::from(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b)))
    }
    #[inline(always)]
    fn floor(self, a: __m512) -> __m512 {
        op!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn ldexp(self, a: __m512, n: __m512) -> __m512 {
        op!({
            let e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_mul_ps(a, _mm512_castsi512_ps(_mm512_slli_epi32::<23>(e)))
        })
    }
    #[inline(always)]
    fn reduce_add(self, a: __m512) -> f32 {
        op!({
            let x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        })
    }
    #[inline(always)]
    fn reduce_add4(self, a: [__m512; 4]) -> [f32; 4] {
        op!({
            let [a, b, c, d] = a;
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let x = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xee>(ab, cd));
            let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            core::mem::transmute::<__m128, [f32; 4]>(x)
        })
    }
    #[inline(always)]
    fn reduce_max(self, a: __m512) -> f32 {
        op!({
            let x = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps::<1>(x, x)))
        })
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T1>(p.cast()))
    }
    #[inline(always)]
    fn prefetch_near(self, p: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        // SAFETY: passed on.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> __m512 {
        // SAFETY: lanes outside the mask are not accessed.
        unsafe { _mm512_maskz_loadu_ps(mask(n), p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        // SAFETY: passed on.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, n: usize, v: __m512) {
        // SAFETY: lanes outside the mask are not accessed.
        unsafe { _mm512_mask_storeu_ps(p, mask(n), v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        // SAFETY: passed on.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: __m512) {
        // SAFETY: passed on.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        // SAFETY: passed on.
        unsafe {
            let x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x))
        }
    }

    #[inline(always)]
    unsafe fn transpose(self, rows: &[*const f32; 16], k: usize, out: *mut f32) {
        // SAFETY: passed on.
        unsafe {
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
        }
    }

    /// The fraction and the scaling are one instruction each here, and the scaling takes the floor itself.
    #[inline(always)]
    fn exp2(self, x: __m512) -> __m512 {
        op!({
            let f = _mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(x);
            let normal = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_set1_ps(-126.0));
            _mm512_maskz_scalef_ps(normal, exp2_fraction(self, f), x)
        })
    }
}
