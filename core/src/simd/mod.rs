//! Vectors: which instructions there are, and the kernels written once over them.
//!
//! An algorithm is a `Task` generic over the vector type; `Isa::run` picks the instructions once, at its outer loop,
//! and everything below is inlined into a function compiled for them. `kernels` has the small ones that other modules
//! call directly, as functions of [`Isa`]. None of them allocates.

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
#[cfg(all(test, feature = "full"))]
mod decode_tests;
mod detect;
mod element;
pub(crate) mod fixed;
pub(crate) mod gather;
mod kernels;
mod math;
pub(crate) mod online;
pub(crate) mod opened;
pub(crate) mod rows;
#[cfg(all(test, feature = "full"))]
mod rows_tests;
mod scalar;
pub(crate) mod tile;
mod tunables;
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
