//! A fixed list of objects with destructors, on [`Memory`].

use super::Memory;
use crate::error::{Error, Result, Status};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// Up to a fixed number of objects in one block; dropped with the list. The block never moves, so that parts of a
/// partitioned call may keep pointers to single objects.
pub(crate) struct Objects<T> {
    ptr: NonNull<T>,
    len: usize,
    cap: usize,
    memory: Memory,
}

// SAFETY: the list owns its objects.
unsafe impl<T: Send> Send for Objects<T> {}
// SAFETY: shared access only shares the objects.
unsafe impl<T: Sync> Sync for Objects<T> {}

impl<T> Objects<T> {
    /// A list with room for none, and no block.
    pub(super) fn none(memory: &Memory) -> Self {
        Objects { ptr: NonNull::dangling(), len: 0, cap: 0, memory: memory.clone() }
    }

    /// An empty list with room for `cap` objects, one or more.
    pub(crate) fn with_capacity(memory: &Memory, cap: usize) -> Result<Self> {
        const { assert!(align_of::<T>() <= super::ALIGN) };
        let bytes = cap.checked_mul(size_of::<T>());
        let bytes = bytes.ok_or(Error::new(Status::NoMemory, "allocator", "size overflows"))?;
        Ok(Objects { ptr: memory.take(bytes)?.cast(), len: 0, cap, memory: memory.clone() })
    }

    /// Appends, or says that the list is full (the object is dropped).
    pub(crate) fn push(&mut self, object: T) -> Result<()> {
        if self.len == self.cap {
            return Err(Error::new(Status::Capacity, "capacity", "list is full").value(self.cap as u64));
        }
        // SAFETY: len < cap.
        unsafe { self.ptr.add(self.len).write(object) };
        self.len += 1;
        Ok(())
    }
}

impl<T> Drop for Objects<T> {
    fn drop(&mut self) {
        let all: *mut [T] = &mut **self;
        // SAFETY: the objects are live and dropped once; the block was taken with exactly this size.
        unsafe {
            all.drop_in_place();
            if self.cap > 0 {
                self.memory.give(self.ptr.cast(), self.cap * size_of::<T>());
            }
        }
    }
}

impl<T> Deref for Objects<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` objects are live.
        unsafe { core::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Objects<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` objects are live, and access is exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}
