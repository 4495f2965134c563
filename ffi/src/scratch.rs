//! Query state: one per thread.

use crate::memory::put_layout;
use crate::object::{self, Object, shared};
use crate::types::*;
use crate::{cast, guard};
use core::ffi::c_void;
use iceformer_core::Result;
use iceformer_core::dci::Scratch;
use iceformer_core::mem::Layout;

fn layout(index: &Object<ice_index>) -> Result<Layout> {
    object::plan::<ice_scratch>(|plan| {
        Scratch::plan(&index.inner, plan);
        Ok(())
    })
}

/// Bytes and alignment of the memory that ice_scratch_new_in needs for this index at its present capacity.
///
/// @param bytes, align  outputs, in bytes.
/// Threads: shared. Allocates: never. Cost: O(1). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_scratch_required(
    index: *const ice_index,
    bytes: *mut usize,
    align: *mut usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_scratch_required", err, || {
            let index = shared(index)?;
            put_layout(|| layout(index), bytes, align)
        })
    }
}

/// Makes query state for one thread and this index at its present capacity.
///
/// @param out  receives the scratch; free it with ice_scratch_free.
/// Ownership: memory comes from the allocator of the index, from the system allocator if that lives in caller memory.
/// The scratch may outlive the index, but fits only it.
/// Errors: ICE_ERR_NO_MEMORY, ICE_ERR_UNSUPPORTED (no system allocator).
/// Threads: shared. Allocates: may. Cost: O(capacity). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_scratch_new(
    index: *const ice_index,
    out: *mut *mut ice_scratch,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_scratch_new", err, || {
            let index = shared(index)?;
            let out = cast::output(out, "out")?;
            let object = object::create::<ice_scratch>(index.source, 0, |m| Scratch::new_in(&index.inner, m))?;
            out.write(object.as_ptr().cast());
            Ok(())
        })
    }
}

/// Makes query state wholly inside caller memory.
///
/// @param mem    aligned to 64 bytes; stays in place and untouched until ice_scratch_free.
/// @param bytes  at least what ice_scratch_required says.
/// Ownership: `mem` stays the caller's and is not freed by ice_scratch_free.
/// Errors: ICE_ERR_ALIGNMENT, ICE_ERR_BUFFER (need and have).
/// Threads: shared. Allocates: never. Cost: O(capacity). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_scratch_new_in(
    mem: *mut c_void,
    bytes: usize,
    index: *const ice_index,
    out: *mut *mut ice_scratch,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_scratch_new_in", err, || {
            let index = shared(index)?;
            let out = cast::output(out, "out")?;
            let need = layout(index)?;
            let make = |m: &_| Scratch::new_in(&index.inner, m);
            let object = object::create_in::<ice_scratch>(mem.cast(), bytes, need, 0, make)?;
            out.write(object.as_ptr().cast());
            Ok(())
        })
    }
}

/// Frees query state; caller memory it was made in is the caller's again. NULL does nothing.
///
/// Threads: exclusive. Allocates: never. Since 0.1.
///
/// # Safety
/// `scratch` is NULL or came from this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_scratch_free(scratch: *mut ice_scratch) {
    // SAFETY: passed on by the caller.
    guard::plain(|| unsafe {
        object::free(scratch);
        Ok(())
    });
}
