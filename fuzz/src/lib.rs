//! What the fuzz targets do with their bytes: one module a target, each a program run on the library and on a model of it.
//! Panics are findings.

pub mod attention;
pub mod border;
mod cells;
pub mod index;
pub mod load;
mod over_index;
pub mod session;
mod stored;
pub mod tally;
mod truth;

/// The twins and fixtures of the core's own tests.
#[path = "../../core/tests/common/mod.rs"]
pub(crate) mod twin;

use iceformer_core::mem::{Hooks, Memory};
use std::alloc::Layout;
use std::cell::Cell;
use std::ffi::c_void;

/// An allocator with a budget of bytes and of blocks, so that hostile sizes cost nothing and failures can be had.
pub(crate) struct Budget {
    pub bytes: Cell<usize>,
    pub blocks: Cell<usize>,
    pub live: Cell<usize>,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Budget {
        Budget { bytes: Cell::new(bytes), blocks: Cell::new(usize::MAX), live: Cell::new(0) }
    }

    pub(crate) fn user(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    pub(crate) fn memory(&self) -> Option<Memory> {
        // SAFETY: the hooks keep their contract, and every object of a run dies before its budget.
        unsafe { Memory::hooks(Hooks { user: self.user(), alloc: take, free: give }, 0) }.ok()
    }
}

pub(crate) extern "C" fn take(user: *mut c_void, size: usize, align: usize) -> *mut c_void {
    // SAFETY: `user` is the budget, alive and on this thread.
    let b = unsafe { &*user.cast::<Budget>() };
    if size > b.bytes.get() || b.blocks.get() == 0 {
        return std::ptr::null_mut();
    }
    b.bytes.set(b.bytes.get() - size);
    b.blocks.set(b.blocks.get() - 1);
    b.live.set(b.live.get() + 1);
    // SAFETY: the library asks for valid, non-zero layouts.
    unsafe { std::alloc::alloc(Layout::from_size_align(size, align).unwrap()).cast() }
}

pub(crate) extern "C" fn give(user: *mut c_void, ptr: *mut c_void, size: usize, align: usize) {
    // SAFETY: as in `take`.
    let b = unsafe { &*user.cast::<Budget>() };
    b.bytes.set(b.bytes.get() + size);
    b.live.set(b.live.get() - 1);
    // SAFETY: the block came from `take` with this layout.
    unsafe { std::alloc::dealloc(ptr.cast(), Layout::from_size_align(size, align).unwrap()) }
}
