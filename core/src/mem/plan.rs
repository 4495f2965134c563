//! Sizes before creation: the same arithmetic that the allocations follow.

use super::ALIGN;
use crate::error::{Error, Result, Status};

/// Bytes and alignment that an object needs.
///
/// ```
/// use iceformer_core::mem::{Memory, Plan};
///
/// let mut plan = Plan::new();
/// Memory::plan(&mut plan);
/// let layout = plan.finish()?;
/// assert!(layout.bytes > 0 && layout.bytes.is_multiple_of(layout.align));
/// # Ok::<(), iceformer_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes, a multiple of the alignment.
    pub bytes: usize,
    /// Alignment in bytes.
    pub align: usize,
}

/// Adds up the blocks of an object. Every container has a `plan` function beside its constructor; tests hold that an
/// object fits exactly the bytes planned for it and not one less.
///
/// ```
/// # #[cfg(feature = "std")] {
/// use iceformer_core::dci::{Index, IndexOptions};
/// use iceformer_core::mem::{Memory, Plan};
///
/// let options = IndexOptions { capacity: 1000, ..IndexOptions::new(64) };
/// let mut plan = Plan::new();
/// Memory::plan(&mut plan);
/// Index::plan(&options, &mut plan)?;
/// let bytes = plan.finish()?.bytes;
/// // Exactly so many are taken.
/// assert_eq!(Index::new_in(&options, &Memory::system(bytes)?)?.memory().used, bytes);
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    bytes: usize,
    overflow: bool,
}

impl Plan {
    /// An empty plan.
    pub const fn new() -> Self {
        Plan { bytes: 0, overflow: false }
    }

    /// One block of `n` elements of `T`.
    pub fn add<T>(&mut self, n: usize) {
        match n.checked_mul(size_of::<T>()) {
            Some(bytes) => self.add_bytes(bytes),
            None => self.overflow = true,
        }
    }

    /// One block of `bytes` bytes.
    pub fn add_bytes(&mut self, bytes: usize) {
        let sum = bytes
            .max(1)
            .checked_add(ALIGN - 1)
            .map(|b| b & !(ALIGN - 1))
            .and_then(|b| b.checked_add(self.bytes))
            .filter(|&b| b <= isize::MAX as usize);
        match sum {
            Some(b) => self.bytes = b,
            None => self.overflow = true,
        }
    }

    /// Another plan, `times` times.
    pub fn add_plan(&mut self, other: &Plan, times: usize) {
        let sum = other
            .bytes
            .checked_mul(times)
            .and_then(|b| b.checked_add(self.bytes))
            .filter(|&b| b <= isize::MAX as usize);
        match sum {
            Some(b) if !other.overflow => self.bytes = b,
            _ => self.overflow = true,
        }
    }

    /// The larger of two plans, for memory that serves either.
    pub fn or(self, other: Plan) -> Plan {
        Plan { bytes: self.bytes.max(other.bytes), overflow: self.overflow || other.overflow }
    }

    /// The total.
    ///
    /// # Errors
    /// `NoMemory` when it does not fit the address space.
    pub fn finish(self) -> Result<Layout> {
        if self.overflow {
            return Err(Error::new(Status::NoMemory, "capacity", "the object would not fit the address space"));
        }
        Ok(Layout { bytes: self.bytes, align: ALIGN })
    }
}
