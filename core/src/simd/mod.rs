//! Vectors: which instructions there are, and the kernels written once over them.
//!
//! An algorithm is a `Task` generic over the vector type; `Isa::run` picks the instructions once, at its outer loop,
//! and everything below is inlined into a function compiled for them. The kernels at [`Isa`] are the small ones that
//! other modules call directly. None of them allocates.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub(crate) mod bias;
#[cfg(all(test, feature = "full"))]
mod bias_tests;
pub(crate) mod clustered;
#[cfg(all(test, feature = "full"))]
mod clustered_tests;
pub(crate) mod codes;
#[cfg(test)]
mod codes_tests;
pub(crate) mod decode;
mod detect;
mod element;
/// By the name that accelerated attention knows it by.
pub(crate) use decode as few;
#[cfg(all(test, feature = "full"))]
mod decode_tests;
pub(crate) mod fixed;
pub(crate) mod gather;
mod kernels;
mod math;
pub(crate) mod online;
pub(crate) mod rows;
mod scalar;
pub(crate) mod tile;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub(crate) use kernels::{exp2_sum, logits, max, norm2};
pub(crate) use math::sqrt;
pub(crate) use vector::Simd;

use crate::error::{Error, Result, Status};
use crate::features::PANELS;

/// Instruction sets, from least to most capable per architecture.
///
/// ```
/// use iceformer_core::simd::Isa;
///
/// assert!(Isa::best().available() && Isa::Scalar.available());
/// println!("{}", Isa::best().name());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, one lane.
    Scalar,
    /// 128-bit Arm.
    Neon,
    /// 256-bit x86 with FMA and F16C.
    Avx2,
    /// 512-bit x86 (F, BW, VL, DQ).
    Avx512,
    /// The same with dot products of small integers.
    Avx512Vnni,
}

/// Work written once for every instruction set. `run` must be `#[inline(always)]`, and so must what it calls.
pub(crate) trait Task {
    /// Result.
    type Out;
    /// Whether it uses [`Simd::dot16`] or [`Simd::dot8`]: only such work is compiled once more for VNNI.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const DOT16: bool = false;
    /// Does the work.
    fn run<S: Simd>(self, s: S) -> Self::Out;
}

#[cfg(target_arch = "x86_64")]
/// # Safety
/// The machine has the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<T: Task>(task: T) -> T::Out {
    // SAFETY: the caller vouched for it.
    task.run(unsafe { x86_64::avx2::Avx2::new() })
}

#[cfg(target_arch = "x86_64")]
/// # Safety
/// The machine has the instructions.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn run_avx512<T: Task>(task: T) -> T::Out {
    // SAFETY: the caller vouched for it.
    task.run(unsafe { x86_64::avx512::Avx512::<false>::new() })
}

#[cfg(target_arch = "x86_64")]
/// # Safety
/// The machine has the instructions.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn run_avx512_vnni<T: Task>(task: T) -> T::Out {
    // SAFETY: the caller vouched for it.
    task.run(unsafe { x86_64::avx512::Avx512::<true>::new() })
}

#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
fn run_neon<T: Task>(task: T) -> T::Out {
    // SAFETY: the target has NEON.
    task.run(unsafe { aarch64::neon::Neon::new() })
}

/// Where there are vectors, out of the way of callers, who hardly ever come here.
#[cfg_attr(any(target_arch = "x86_64", all(target_arch = "aarch64", target_feature = "neon")), inline(never))]
#[cfg_attr(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_feature = "neon"))), inline)]
fn run_scalar<T: Task>(task: T) -> T::Out {
    task.run(scalar::Scalar)
}

/// Whether rows are taken one by one, to keep the code small: what a row gets is the same.
const fn one_by_one<S: Simd>() -> bool {
    !PANELS && S::LANES == 1
}

/// One kernel as a task: `dispatch!(isa, |s, a: &'a [f32]| -> f32 { body })`.
macro_rules! dispatch {
    ($isa:expr, |$s:ident, $($arg:ident: $ty:ty),+| -> $out:ty $body:block) => {{
        struct Kernel<'a> {
            $($arg: $ty,)+
            life: core::marker::PhantomData<&'a ()>,
        }
        impl Task for Kernel<'_> {
            type Out = $out;
            #[inline(always)]
            fn run<S: Simd>(self, $s: S) -> $out {
                $(let $arg = self.$arg;)+
                $body
            }
        }
        $isa.run(Kernel { $($arg,)+ life: core::marker::PhantomData })
    }};
}

impl Isa {
    /// All of them.
    pub const ALL: [Isa; 5] = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni];

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512-vnni",
        }
    }

    /// Numbers of f32 in one of its vectors.
    pub fn lanes(self) -> usize {
        match self {
            Isa::Scalar => 1,
            Isa::Neon => 4,
            Isa::Avx2 => 8,
            Isa::Avx512 | Isa::Avx512Vnni => 16,
        }
    }

    /// Whether it multiplies 16-bit integers faster than f32.
    pub fn dot16(self) -> bool {
        self == Isa::Avx512Vnni
    }

    /// Whether this machine has it (asked once, whatever the limit).
    pub fn available(self) -> bool {
        detect::available(self)
    }

    /// The best available one, within the process-wide limit.
    pub fn best() -> Isa {
        let limit = detect::limit().unwrap_or(Isa::Avx512Vnni);
        let mut best = Isa::Scalar;
        for isa in Isa::ALL {
            if isa <= limit && isa.available() {
                best = isa;
            }
        }
        best
    }

    /// Process-wide upper limit for [`Isa::best`], for tests and comparisons; `None` lifts it.
    ///
    /// # Errors
    /// `Unsupported` when this machine does not have it; the limit stays as it was.
    pub fn limit(max: Option<Isa>) -> Result<()> {
        if let Some(isa) = max.filter(|i| !i.available()) {
            return Err(Error::new(Status::Unsupported, "isa", isa.name()));
        }
        detect::set_limit(max);
        Ok(())
    }

    /// Runs a task with these instructions.
    ///
    /// # Panics
    /// If this machine does not have them.
    #[inline]
    pub(crate) fn run<T: Task>(self, task: T) -> T::Out {
        assert!(self.available(), "instruction set is not available");
        match self {
            // SAFETY: available.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni if T::DOT16 => unsafe { run_avx512_vnni(task) },
            // SAFETY: available.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => unsafe { run_avx512(task) },
            // SAFETY: available.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { run_avx2(task) },
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Isa::Neon => run_neon(task),
            _ => run_scalar(task),
        }
    }
}

/// Kernels: not for users.
#[doc(hidden)]
impl Isa {
    /// Inner product.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        dispatch!(self, |s, a: &'a [f32], b: &'a [f32]| -> f32 { kernels::dot(s, a, b) })
    }

    /// Squared Euclidean distance.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn sq_dist(self, a: &[f32], b: &[f32]) -> f32 {
        dispatch!(self, |s, a: &'a [f32], b: &'a [f32]| -> f32 { kernels::sq_dist(s, a, b) })
    }

    /// `out[i] = <rows[i * stride..][..q.len()], q>` for `i < out.len()`.
    ///
    /// # Panics
    /// If a row ends outside `rows`.
    pub fn dots(self, rows: &[f32], stride: usize, q: &[f32], out: &mut [f32]) {
        dispatch!(self, |s, rows: &'a [f32], stride: usize, q: &'a [f32], out: &'a mut [f32]| -> () {
            kernels::dots(s, rows, stride, q, out)
        })
    }

    /// `out[i] = <rows[at[i] * stride..][..q.len()], q>`.
    ///
    /// # Panics
    /// If a row ends outside `rows`, or `at` and `out` differ in length.
    pub fn dots_at(self, rows: &[f32], stride: usize, at: &[u32], q: &[f32], out: &mut [f32]) {
        dispatch!(self, |s, rows: &'a [f32], stride: usize, at: &'a [u32], q: &'a [f32], out: &'a mut [f32]| -> () {
            kernels::dots_at(s, rows, stride, at, q, out)
        })
    }

    /// `out[i] = |rows[at[i] * stride..][..q.len()] - q|^2`.
    ///
    /// # Panics
    /// If a row ends outside `rows`, or `at` and `out` differ in length.
    pub fn sq_dists_at(self, rows: &[f32], stride: usize, at: &[u32], q: &[f32], out: &mut [f32]) {
        dispatch!(self, |s, rows: &'a [f32], stride: usize, at: &'a [u32], q: &'a [f32], out: &'a mut [f32]| -> () {
            kernels::sq_dists_at(s, rows, stride, at, q, out)
        })
    }

    /// `y += a * x`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn axpy(self, a: f32, x: &[f32], y: &mut [f32]) {
        dispatch!(self, |s, a: f32, x: &'a [f32], y: &'a mut [f32]| -> () { kernels::axpy(s, a, x, y) })
    }

    /// `x *= a`.
    pub fn scale(self, a: f32, x: &mut [f32]) {
        dispatch!(self, |s, a: f32, x: &'a mut [f32]| -> () { kernels::scale(s, a, x) })
    }

    /// Largest element, -inf for none. No element may be NaN.
    pub fn max(self, x: &[f32]) -> f32 {
        dispatch!(self, |s, x: &'a [f32]| -> f32 { kernels::max(s, x) })
    }

    /// `x[i] = exp(x[i] - m)`, returning the sum; relative error as [`Isa::exp`]. `x[i] = -inf` gives 0, also where `m` is
    /// -inf too. `x[i] - m` is at most 88.
    pub fn exp_sum(self, x: &mut [f32], m: f32) -> f32 {
        dispatch!(self, |s, x: &'a mut [f32], m: f32| -> f32 { kernels::exp_sum(s, x, m) })
    }

    /// `x[i] = exp(x[i])`: relative error at most 5e-7 on [-87, 88]; 0 below -87.4; above 88 as for 88.
    pub fn exp(self, x: &mut [f32]) {
        dispatch!(self, |s, x: &'a mut [f32]| -> () { kernels::exp(s, x) })
    }

    /// `x[i] = tanh(x[i])`: relative error at most 1e-6.
    pub fn tanh(self, x: &mut [f32]) {
        dispatch!(self, |s, x: &'a mut [f32]| -> () { kernels::tanh(s, x) })
    }

    /// Largest magnitude.
    pub(crate) fn max_abs(self, x: &[f32]) -> f32 {
        dispatch!(self, |s, x: &'a [f32]| -> f32 { kernels::max_abs(s, x) })
    }

    /// Sum of squares.
    pub fn norm2(self, x: &[f32]) -> f32 {
        self.dot(x, x)
    }

    /// IEEE half floats, as bits, to f32.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn convert_f16(self, bits: &[u16], out: &mut [f32]) {
        dispatch!(self, |s, bits: &'a [u16], out: &'a mut [f32]| -> () {
            rows::convert::<element::F16, S>(s, bits, out)
        })
    }

    /// f32 to the nearest IEEE half floats, of two the even one, as bits.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn round_f16(self, x: &[f32], bits: &mut [u16]) {
        dispatch!(self, |s, x: &'a [f32], bits: &'a mut [u16]| -> () { rows::round_f16::<S>(s, x, bits) })
    }

    /// bfloat16, as bits, to f32.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn convert_bf16(self, bits: &[u16], out: &mut [f32]) {
        dispatch!(self, |s, bits: &'a [u16], out: &'a mut [f32]| -> () {
            rows::convert::<element::Bf16, S>(s, bits, out)
        })
    }

    /// Probe of the memory's speed: reads everything in order, but for a tail of less than eight vectors. The result only
    /// keeps the work alive.
    pub fn read_all(self, x: &[f32]) -> f32 {
        dispatch!(self, |s, x: &'a [f32]| -> f32 { kernels::read_all(s, x) })
    }

    /// Probe of the core's peak: `rounds` times 12 independent fused multiply-adds of [`Isa::lanes`] numbers, two
    /// operations each. The result only keeps the work alive.
    pub fn fma_chains(self, rounds: u64) -> f32 {
        dispatch!(self, |s, rounds: u64| -> f32 { kernels::fma_chains(s, rounds) })
    }
}
