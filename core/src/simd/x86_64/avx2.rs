//! 256-bit vectors with FMA and F16C.

use crate::simd::{math, vector::Simd};
use core::arch::x86_64::*;

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
fn mask(n: usize) -> __m256i {
    let n = n.min(8);
    // SAFETY: eight numbers from 8 - n on are inside the table; AVX2 is there wherever this is called.
    unsafe { _mm256_loadu_si256(MASK.as_ptr().add(8 - n).cast()) }
}

/// Instructions without memory operands: safe because the token exists.
macro_rules! op {
    ($e:expr) => {{
        // SAFETY: the token proves the instruction set.
        unsafe { $e }
    }};
}

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const WIDE: bool = false;
    type I = __m256i;

    #[inline(always)]
    fn splat_i(self, x: i32) -> __m256i {
        op!(_mm256_set1_epi32(x))
    }
    #[inline(always)]
    fn dot16(self, acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_add_epi32(acc, _mm256_madd_epi16(a, b)))
    }
    #[inline(always)]
    fn dot8(self, acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        op!({
            let even = _mm256_madd_epi16(
                _mm256_and_si256(a, _mm256_set1_epi16(0xff)),
                _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(b)),
            );
            let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(a), _mm256_srai_epi16::<8>(b));
            _mm256_add_epi32(acc, _mm256_add_epi32(even, odd))
        })
    }
    #[inline(always)]
    fn to_f32(self, a: __m256i) -> __m256 {
        op!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const i32) -> __m256i {
        // SAFETY: passed on.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        op!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        op!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: __m256) -> __m256 {
        op!(_mm256_sqrt_ps(a))
    }
    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        op!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), a))
    }
    #[inline(always)]
    fn copysign(self, a: __m256, sign: __m256) -> __m256 {
        op!(_mm256_or_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0), a), _mm256_and_ps(_mm256_set1_ps(-0.0), sign)))
    }
    #[inline(always)]
    fn select_lt(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
        op!(_mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)))
    }
    #[inline(always)]
    fn lt_bits(self, a: __m256, b: __m256) -> u32 {
        op!(_mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) as u32)
    }
    #[inline(always)]
    fn floor(self, a: __m256) -> __m256 {
        op!(_mm256_floor_ps(a))
    }
    #[inline(always)]
    fn ldexp(self, a: __m256, n: __m256) -> __m256 {
        op!({
            let e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(e)))
        })
    }
    #[inline(always)]
    fn reduce_add(self, a: __m256) -> f32 {
        op!({
            let x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        })
    }
    #[inline(always)]
    fn reduce_add4(self, a: [__m256; 4]) -> [f32; 4] {
        op!({
            let [a, b, c, d] = a;
            let ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let x = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            core::mem::transmute::<__m128, [f32; 4]>(x)
        })
    }
    #[inline(always)]
    fn reduce_max(self, a: __m256) -> f32 {
        op!({
            let x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
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
    /// Rounding to eighths by adding a large number leaves the exponent and, below it, the number of eighths in the low bits
    /// of the sum: a shift finds the one, a table in a register the other.
    #[inline(always)]
    fn exp2_scaled(self, x: __m256, c: __m256) -> __m256 {
        op!({
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
        })
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        // SAFETY: passed on.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> __m256 {
        // SAFETY: lanes outside the mask are not accessed.
        unsafe { _mm256_maskload_ps(p, mask(n)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        // SAFETY: passed on.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, n: usize, v: __m256) {
        // SAFETY: lanes outside the mask are not accessed.
        unsafe { _mm256_maskstore_ps(p, mask(n), v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m256 {
        // SAFETY: passed on.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: __m256) {
        // SAFETY: passed on.
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m256 {
        // SAFETY: passed on.
        unsafe {
            let x = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(x))
        }
    }
}
