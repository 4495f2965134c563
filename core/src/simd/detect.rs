//! What this machine has, asked once and without an operating system.

use super::Isa;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Bit `1 << isa` per instruction set, one for what else is known, bit 7 when asked. Two threads asking at once store the same answer,
/// so plain loads and stores do.
static FOUND: AtomicU8 = AtomicU8::new(0);
/// Limit as `isa + 1`, 0 for none.
static LIMIT: AtomicU8 = AtomicU8::new(0);

const ASKED: u8 = 1 << 7;
/// Beside the instruction sets: [`fetches_near`].
const FETCHES_NEAR: u8 = 1 << 6;

/// Whether this machine has it.
#[inline]
pub(super) fn available(isa: Isa) -> bool {
    found() & (1 << isa as u8) != 0
}

/// Whether this machine brings lines that are read in order from its second cache to the nearest by itself, so that asking for them
/// there costs more than it brings: AMD's.
pub(super) fn fetches_near() -> bool {
    found() & FETCHES_NEAR != 0
}

#[inline]
fn found() -> u8 {
    let mut found = FOUND.load(Relaxed);
    if found == 0 {
        found = ASKED | 1 << Isa::Scalar as u8 | ask();
        FOUND.store(found, Relaxed);
    }
    found
}

/// The process-wide limit.
pub(super) fn limit() -> Option<Isa> {
    let at = LIMIT.load(Relaxed);
    Isa::ALL.into_iter().find(|&i| i as u8 + 1 == at)
}

/// Sets the process-wide limit.
pub(super) fn set_limit(max: Option<Isa>) {
    LIMIT.store(max.map_or(0, |i| i as u8 + 1), Relaxed);
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn ask() -> u8 {
    use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    /// Reads which register state the operating system saves.
    ///
    /// # Safety
    /// The OSXSAVE bit is set.
    #[target_feature(enable = "xsave")]
    unsafe fn saved() -> u64 {
        // SAFETY: register 0 exists wherever OSXSAVE is set.
        unsafe { _xgetbv(0) }
    }

    let bit = |word: u32, n: u32| word >> n & 1 == 1;
    let zero = __cpuid(0);
    if zero.eax < 7 {
        return 0;
    }
    let one = __cpuid(1);
    let (fma, osxsave, avx, f16c) = (bit(one.ecx, 12), bit(one.ecx, 27), bit(one.ecx, 28), bit(one.ecx, 29));
    if !osxsave {
        return 0;
    }
    // SAFETY: OSXSAVE is set.
    let saved = unsafe { saved() };
    let leaf = __cpuid_count(7, 0);
    let (seven, vnni) = (leaf.ebx, bit(leaf.ecx, 11));
    // XMM and YMM; then opmask and both halves of ZMM.
    let avx2 = saved & 0x6 == 0x6 && avx && fma && f16c && bit(seven, 5);
    let avx512 = saved & 0xe6 == 0xe6 && [16, 17, 30, 31].into_iter().all(|n| bit(seven, n));
    let name = [zero.ebx, zero.edx, zero.ecx].map(u32::to_le_bytes);
    let mut found = if name.as_flattened() == b"AuthenticAMD" { FETCHES_NEAR } else { 0 };
    if avx2 {
        found |= 1 << Isa::Avx2 as u8;
        if avx512 {
            found |= 1 << Isa::Avx512 as u8;
            if vnni {
                found |= 1 << Isa::Avx512Vnni as u8;
            }
        }
    }
    found
}

#[cfg(all(target_arch = "aarch64", target_feature = "neon", not(miri)))]
fn ask() -> u8 {
    1 << Isa::Neon as u8
}

#[cfg(any(miri, not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_feature = "neon")))))]
fn ask() -> u8 {
    0
}
