//! A typed array on [`Memory`] that never grows by itself.

use super::{ALIGN, Memory, Plan};
use crate::error::{Error, Result, Status};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// Array of plain values with a length and a fixed capacity. `push` into a full one is an error; only
/// [`reserve`](Buf::reserve) allocates, and a refused reservation leaves the array as it was.
pub struct Buf<T: Copy> {
    ptr: NonNull<T>,
    len: usize,
    cap: usize,
    memory: Memory,
}

// SAFETY: a Buf owns its elements.
unsafe impl<T: Copy + Send> Send for Buf<T> {}
// SAFETY: shared access only reads elements.
unsafe impl<T: Copy + Sync> Sync for Buf<T> {}

impl<T: Copy> Buf<T> {
    /// An empty array without a block.
    pub fn new(memory: &Memory) -> Self {
        const { assert!(align_of::<T>() <= ALIGN && size_of::<T>() > 0) };
        Buf { ptr: NonNull::dangling(), len: 0, cap: 0, memory: memory.clone() }
    }

    /// An empty array with room for `cap` elements: one block, or none for 0.
    pub fn with_capacity(memory: &Memory, cap: usize) -> Result<Self> {
        let mut b = Buf::new(memory);
        b.reserve(cap)?;
        Ok(b)
    }

    /// An array of `n` copies of `value`.
    pub fn filled(memory: &Memory, n: usize, value: T) -> Result<Self> {
        let mut b = Buf::with_capacity(memory, n)?;
        b.resize(n, value)?;
        Ok(b)
    }

    /// Adds the block of `with_capacity(cap)` to a plan.
    pub fn plan(plan: &mut Plan, cap: usize) {
        if cap > 0 {
            plan.add::<T>(cap);
        }
    }

    /// Capacity in elements.
    pub fn capacity(&self) -> usize {
        self.cap
    }

    /// Makes room for `cap` elements in all. May allocate; on error nothing has changed.
    pub fn reserve(&mut self, cap: usize) -> Result<()> {
        if cap <= self.cap {
            return Ok(());
        }
        let new = room(&self.memory, cap, size_of::<T>())?.cast::<T>();
        // SAFETY: both blocks hold at least `len` elements and are distinct.
        unsafe { new.copy_from_nonoverlapping(self.ptr, self.len) };
        self.release();
        self.ptr = new;
        self.cap = cap;
        Ok(())
    }

    fn release(&mut self) {
        if self.cap > 0 {
            // SAFETY: the block was taken with exactly this size and is not used after this.
            unsafe { self.memory.give(self.ptr.cast(), self.cap * size_of::<T>()) };
        }
    }

    /// Appends, or says that the array is full.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<()> {
        if self.len == self.cap {
            return Err(Error::new(Status::Capacity, "capacity", "array is full").value(self.cap as u64));
        }
        // SAFETY: len < cap.
        unsafe { self.ptr.add(self.len).write(value) };
        self.len += 1;
        Ok(())
    }

    /// Removes and returns the last element.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the element was initialised.
        Some(unsafe { self.ptr.add(self.len).read() })
    }

    /// Inserts at `at`, moving what follows.
    ///
    /// # Panics
    /// If `at > len`.
    pub fn insert(&mut self, at: usize, value: T) -> Result<()> {
        assert!(at <= self.len);
        let len = self.len;
        self.push(value)?;
        self.copy_within(at..len, at + 1);
        self[at] = value;
        Ok(())
    }

    /// Removes and returns element `at`, moving what follows.
    ///
    /// # Panics
    /// If `at >= len`.
    pub fn remove(&mut self, at: usize) -> T {
        let value = self[at];
        self.copy_within(at + 1.., at);
        self.len -= 1;
        value
    }

    /// Appends a slice, or changes nothing.
    pub fn extend_from_slice(&mut self, src: &[T]) -> Result<()> {
        if src.len() > self.cap - self.len {
            return Err(Error::new(Status::Capacity, "capacity", "array is full").need(self.len + src.len(), self.cap));
        }
        // SAFETY: there is room, and `src` cannot overlap a block we own mutably.
        unsafe { self.ptr.add(self.len).copy_from_nonoverlapping(NonNull::from(src).cast(), src.len()) };
        self.len += src.len();
        Ok(())
    }

    /// Sets the length to the capacity, filling new elements with `value`.
    pub fn fill_up(&mut self, value: T) {
        for i in self.len..self.cap {
            // SAFETY: i < cap.
            unsafe { self.ptr.add(i).write(value) };
        }
        self.len = self.cap;
    }

    /// Sets the length, filling new elements with `value`; an error if that exceeds the capacity.
    pub fn resize(&mut self, len: usize, value: T) -> Result<()> {
        if len > self.cap {
            return Err(Error::new(Status::Capacity, "capacity", "array is full").need(len, self.cap));
        }
        for i in self.len..len {
            // SAFETY: i < cap.
            unsafe { self.ptr.add(i).write(value) };
        }
        self.len = len;
        Ok(())
    }

    /// Makes it at least so long, within its capacity, filling new elements with `value`.
    pub fn grow(&mut self, len: usize, value: T) {
        if self.len < len {
            crate::error::reserved(self.resize(len, value));
        }
    }

    /// Shortens to `len` elements; longer is left as it is.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Moves the array out; an empty one without a block stays.
    pub(crate) fn take(&mut self) -> Self {
        let empty = Buf::new(&self.memory);
        core::mem::replace(self, empty)
    }

    /// Empties the array, keeping its block.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// The memory this array lives in.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// A block for `cap` elements of `size` bytes: one copy for all types.
fn room(memory: &Memory, cap: usize, size: usize) -> Result<NonNull<u8>> {
    match cap.checked_mul(size) {
        Some(bytes) => memory.take(bytes),
        None => Err(super::too_big()),
    }
}

impl<T: Copy> Drop for Buf<T> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<T: Copy> Deref for Buf<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements are initialised; a dangling pointer is fine for none.
        unsafe { core::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for Buf<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and access is exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Copy + core::fmt::Debug> core::fmt::Debug for Buf<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        (**self).fmt(f)
    }
}
