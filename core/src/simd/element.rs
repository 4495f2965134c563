//! Elements of rows, widened to f32 as they are loaded.

use super::vector::Simd;

/// How a row's elements are stored.
pub(crate) trait Stored {
    /// Storage type.
    type T: Copy;

    /// `LANES` elements.
    ///
    /// # Safety
    /// They are readable at `p`.
    unsafe fn load<S: Simd>(s: S, p: *const Self::T) -> S::V;

    /// The first `n < LANES` elements, zeros after them.
    ///
    /// # Safety
    /// `n` elements are readable at `p`.
    unsafe fn load_partial<S: Simd>(s: S, p: *const Self::T, n: usize) -> S::V;
}

/// f32.
pub(crate) struct F32;
/// IEEE half.
pub(crate) struct F16;
/// bfloat16.
pub(crate) struct Bf16;

impl Stored for F32 {
    type T = f32;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const f32) -> S::V {
        // SAFETY: passed on.
        unsafe { s.load(p) }
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(s: S, p: *const f32, n: usize) -> S::V {
        // SAFETY: passed on.
        unsafe { s.load_partial(p, n) }
    }
}

/// The widest vector of any instruction set.
const MAX_LANES: usize = 16;

/// Copies `n` elements into a whole vector's worth: 16-bit loads have no masks everywhere.
///
/// # Safety
/// `n` elements are readable at `p`.
#[inline(always)]
unsafe fn padded(p: *const u16, n: usize) -> [u16; MAX_LANES] {
    let mut x = [0; MAX_LANES];
    for i in 0..n.min(MAX_LANES) {
        // SAFETY: i < n.
        x[i] = unsafe { *p.add(i) };
    }
    x
}

/// Elements of 16 bits that `$load` widens.
macro_rules! of_16_bits {
    ($($of:ident $load:ident)*) => {$(
        impl Stored for $of {
            type T = u16;
            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, p: *const u16) -> S::V {
                // SAFETY: passed on.
                unsafe { s.$load(p) }
            }
            #[inline(always)]
            unsafe fn load_partial<S: Simd>(s: S, p: *const u16, n: usize) -> S::V {
                // SAFETY: n elements are readable; the copy holds a whole vector.
                unsafe { s.$load(padded(p, n).as_ptr()) }
            }
        }
    )*};
}

of_16_bits! { F16 load_f16 Bf16 load_bf16 }
