//! Where an object's memory comes from, remembered so that temporaries can come from the same place.

use crate::cast;
use crate::types::*;
use iceformer_core::mem::{Hooks, Memory};
use iceformer_core::{Error, Result, Status};

/// Source of an object's blocks.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// The system allocator, where the build has one.
    System,
    /// The caller's hooks.
    Hooks(Hooks),
    /// Memory of the caller that nothing else may be cut from.
    Region,
}

impl Source {
    /// The source an options struct asks for: NULL is the system allocator.
    ///
    /// # Safety
    /// If not NULL, `p` points to an `ice_allocator` whose functions keep their contract.
    pub(crate) unsafe fn from_c(p: *const ice_allocator) -> Result<Source> {
        // SAFETY: passed on.
        let Some(a) = (unsafe { cast::nullable_sized(p, "allocator")? }) else {
            return Ok(Source::System);
        };
        let alloc = a.alloc.ok_or(cast::null("allocator.alloc"))?;
        let free = a.free.ok_or(cast::null("allocator.free"))?;
        Ok(Source::Hooks(Hooks { user: a.user, alloc, free }))
    }

    /// A fresh accounting of this source. An object in caller memory has nothing to give, so temporaries beside it
    /// come from the system allocator.
    pub(crate) fn memory(self, limit: usize) -> Result<Memory> {
        match self {
            // SAFETY: the caller vouched for the hooks when it passed them.
            Source::Hooks(h) => unsafe { Memory::hooks(h, limit) },
            Source::System | Source::Region => system(limit),
        }
    }

    /// Whether [`memory`](Source::memory) has anything to offer in this build.
    pub(crate) fn exists(self) -> bool {
        matches!(self, Source::Hooks(_)) || cfg!(feature = "alloc")
    }
}

/// The system allocator, or an error in builds without one.
#[cfg(feature = "alloc")]
fn system(limit: usize) -> Result<Memory> {
    Memory::system(limit)
}

/// The system allocator, or an error in builds without one.
#[cfg(not(feature = "alloc"))]
fn system(_limit: usize) -> Result<Memory> {
    Err(Error::new(Status::Unsupported, "allocator", "this build has no system allocator: pass hooks or memory"))
}

/// Working memory of one call: the caller's bytes, or the source when there are none.
///
/// # Safety
/// If not NULL, `work..work + bytes` is writable and nobody else's until the result is dropped.
pub(crate) unsafe fn work(work: *mut u8, bytes: usize, need: usize, source: Source) -> Result<Memory> {
    let Some(base) = core::ptr::NonNull::new(work) else {
        if bytes != 0 {
            return Err(Error::new(Status::Null, "work", "is NULL but work_bytes is not 0").value(bytes as u64));
        }
        if !source.exists() {
            return Err(Error::new(Status::Null, "work", "is NULL and this build has no system allocator"));
        }
        return source.memory(0);
    };
    check_place(base.as_ptr(), bytes, need, "work")?;
    // SAFETY: passed on.
    unsafe { Memory::region(base, bytes) }
}

/// Checks caller memory before anything is built in it.
pub(crate) fn check_place(mem: *mut u8, bytes: usize, need: usize, field: &'static str) -> Result<()> {
    if mem.is_null() {
        return Err(cast::null(field));
    }
    if !mem.addr().is_multiple_of(iceformer_core::mem::ALIGN) {
        return Err(Error::new(Status::Alignment, field, "must be aligned to 64 bytes"));
    }
    if bytes < need {
        return Err(Error::new(Status::Buffer, field, "is too small").need(need, bytes));
    }
    if bytes > isize::MAX as usize || mem.addr().checked_add(bytes).is_none() {
        return Err(Error::new(Status::Shape, field, "size overflows").value(bytes as u64));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses are only looked at.
    fn refusal(addr: usize, bytes: usize, need: usize) -> Option<Status> {
        let place = core::ptr::without_provenance_mut(addr);
        check_place(place, bytes, need, "mem").err().map(|e| e.status)
    }

    #[test]
    fn a_place_is_aligned_large_enough_and_within_the_address_space() {
        let most = isize::MAX as usize;
        assert_eq!(refusal(0, 64, 64), Some(Status::Null));
        for off in [1, 4, 32, 63] {
            assert_eq!(refusal(4096 + off, 64, 64), Some(Status::Alignment), "{off}");
        }
        assert_eq!([refusal(64, 64, 64), refusal(64, 65, 64), refusal(64, 63, 64)], [None, None, Some(Status::Buffer)]);
        // No object is larger than half of the address space, and none reaches beyond its end.
        assert_eq!([refusal(64, most, 64), refusal(64, most + 1, 64)], [None, Some(Status::Shape)]);
        let last = usize::MAX - 63;
        assert_eq!([refusal(last, 63, 0), refusal(last, 64, 64)], [None, Some(Status::Shape)]);
        assert_eq!(refusal(last, usize::MAX, 64), Some(Status::Shape));
    }
}
