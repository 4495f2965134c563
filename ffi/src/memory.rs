//! Memory structs shared by all objects.

use crate::cast;
use crate::types::*;
use iceformer_core::Result;
use iceformer_core::mem::{Layout, MemoryReport};

/// Prepares allocation hooks: size set, everything else empty. NULL does nothing.
///
/// Threads: any. Allocates: never. Since 0.1.
///
/// # Safety
/// `allocator` is NULL or writable for an ice_allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_allocator_init(allocator: *mut ice_allocator) {
    let value = ice_allocator {
        struct_size: size_of::<ice_allocator>() as u32,
        user: core::ptr::null_mut(),
        alloc: None,
        free: None,
    };
    // SAFETY: passed on.
    unsafe { cast::init(allocator, value) };
}

/// Prepares a memory report: size set, everything else 0. NULL does nothing.
///
/// Threads: any. Allocates: never. Since 0.1.
///
/// # Safety
/// `memory` is NULL or writable for an ice_memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_memory_init(memory: *mut ice_memory) {
    // SAFETY: passed on.
    unsafe { cast::init(memory, report(MemoryReport::default())) };
}

/// A report in the header's form.
pub(crate) fn report(r: MemoryReport) -> ice_memory {
    ice_memory {
        struct_size: size_of::<ice_memory>() as u32,
        used: r.used,
        reserved: r.reserved,
        peak: r.peak,
        limit: r.limit,
    }
}

/// Writes a layout to the two outputs of a `_required` function.
///
/// # Safety
/// If not NULL, both are writable.
pub(crate) unsafe fn put_layout(
    layout: impl FnOnce() -> Result<Layout>,
    bytes: *mut usize,
    align: *mut usize,
) -> Result<()> {
    let (bytes, align) = (cast::output(bytes, "bytes")?, cast::output(align, "align")?);
    let l = layout()?;
    // SAFETY: checked above.
    unsafe {
        bytes.write(l.bytes);
        align.write(l.align);
    }
    Ok(())
}
