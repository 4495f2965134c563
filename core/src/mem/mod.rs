//! Memory: where every byte of every object comes from.
//!
//! A [`Memory`] is a source (the system allocator, hooks of the caller, or one region of the caller) with a limit and
//! accounting. Objects hold a handle to it and put all their arrays into it, so nothing is ever allocated behind
//! the caller's back, a refused allocation is an [`Error`], and a [`Plan`] can add up the exact size beforehand.

mod buf;
mod held;
mod maker;
mod objects;
mod plan;
mod rows;
mod tensor;
#[cfg(test)]
pub(crate) mod tests;

#[cfg(feature = "internals")]
#[doc(hidden)]
pub use self::{buf::Buf, held::Held, held::f32s};
#[cfg(not(feature = "internals"))]
pub(crate) use self::{buf::Buf, held::Held, held::f32s};
pub use half::{bf16, f16};
pub(crate) use maker::Maker;
pub(crate) use objects::Objects;
pub use plan::{Layout, Plan};
pub use rows::{Dtype, Element, Rows, RowsMut};
pub use tensor::{Tensor, TensorMut};

use crate::error::{Error, Result, Status};
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Alignment of every block, in bytes: a cache line and the widest vector. Block sizes are multiples of it too, so that
/// a plan does not depend on the order of allocations.
pub const ALIGN: usize = 64;

/// Allocation hooks of the caller (C contract: `ice_allocator`). `alloc` returns NULL when it has nothing.
///
/// ```
/// use core::ffi::c_void;
/// use iceformer_core::Status;
/// use iceformer_core::mem::{Hooks, Memory};
///
/// unsafe extern "C" fn nothing(_: *mut c_void, _: usize, _: usize) -> *mut c_void {
///     core::ptr::null_mut()
/// }
/// unsafe extern "C" fn back(_: *mut c_void, _: *mut c_void, _: usize, _: usize) {}
///
/// let hooks = Hooks { user: core::ptr::null_mut(), alloc: nothing, free: back };
/// // SAFETY: memory that is never given need not be valid.
/// let refused = unsafe { Memory::hooks(hooks, 0) };
/// assert_eq!(refused.unwrap_err().status, Status::NoMemory);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// Passed through to both functions.
    pub user: *mut c_void,
    /// Returns `size` bytes aligned to `align` (a power of two), or NULL.
    pub alloc: unsafe extern "C" fn(user: *mut c_void, size: usize, align: usize) -> *mut c_void,
    /// Takes back a block with the size and alignment it was asked for.
    pub free: unsafe extern "C" fn(user: *mut c_void, ptr: *mut c_void, size: usize, align: usize),
}

/// Byte counts of one object.
///
/// ```
/// # #[cfg(feature = "std")] {
/// let memory = iceformer_core::mem::Memory::system(1000)?;
/// let report = memory.report();
/// assert!(report.used <= report.peak && report.peak <= report.limit && report.limit == 1000);
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Bytes in blocks handed out now.
    pub used: usize,
    /// Bytes taken from the source: equal to `used`, or the whole region.
    pub reserved: usize,
    /// Highest `used` so far.
    pub peak: usize,
    /// Limit on `used`; 0 = none.
    pub limit: usize,
}

enum Source {
    #[cfg(feature = "alloc")]
    System,
    Hooks(Hooks),
    Region {
        base: NonNull<u8>,
        len: usize,
    },
}

struct State {
    source: Source,
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
    /// First free byte of a region.
    cursor: AtomicUsize,
    refs: AtomicUsize,
}

/// Handle to a source of memory with its accounting; cheap to clone. The last handle gives the accounting block back.
///
/// Thread class: handles may be cloned and dropped anywhere; allocation happens only inside exclusive calls.
///
/// ```
/// # #[cfg(feature = "std")] {
/// use iceformer_core::Status;
/// use iceformer_core::dci::{Index, IndexOptions};
/// use iceformer_core::mem::Memory;
///
/// // A limit in bytes, for everything that lives in this memory.
/// let memory = Memory::system(100_000)?;
/// let index = Index::new_in(&IndexOptions::new(64), &memory)?;
/// assert!(index.memory().used < 100_000);
/// let large = IndexOptions { capacity: 100_000, ..IndexOptions::new(64) };
/// assert_eq!(Index::new_in(&large, &memory).err().map(|e| e.status), Some(Status::Budget));
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
pub struct Memory(NonNull<State>);

// SAFETY: the state is reached through atomics only; the hooks are documented as callable from any thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

const fn round_up(n: usize) -> Option<usize> {
    match n.checked_add(ALIGN - 1) {
        Some(m) => Some(m & !(ALIGN - 1)),
        None => None,
    }
}

/// A size that no address space holds.
#[cold]
fn too_big() -> Error {
    Error::new(Status::NoMemory, "allocator", "size overflows")
}

/// Blocks of the system allocator from this size on start on a huge page.
#[cfg(feature = "alloc")]
const LARGE: usize = 4 << 20;

/// Alignment of a block of the system allocator.
#[cfg(feature = "alloc")]
const fn system_align(bytes: usize) -> usize {
    if bytes >= LARGE { 2 << 20 } else { ALIGN }
}

/// Large blocks are read from end to end: on huge pages that is up to a third faster. Only a hint; a refusal changes
/// nothing.
#[cfg(feature = "alloc")]
fn ask_for_huge_pages(block: NonNull<u8>, bytes: usize) {
    #[cfg(all(feature = "std", target_os = "linux", not(miri)))]
    if bytes >= LARGE {
        unsafe extern "C" {
            fn madvise(address: *mut c_void, length: usize, advice: i32) -> i32;
        }
        const HUGE_PAGES: i32 = 14;
        // SAFETY: the block is ours and starts on a page; the advice does not change its contents.
        unsafe { madvise(block.as_ptr().cast(), bytes, HUGE_PAGES) };
    }
    let _ = (block, bytes);
}

impl Source {
    /// # Safety
    /// `bytes` is a non-zero multiple of [`ALIGN`]; for hooks, they follow their contract.
    unsafe fn take(&self, bytes: usize, cursor: usize) -> Option<NonNull<u8>> {
        match self {
            #[cfg(feature = "alloc")]
            Source::System => {
                let layout = core::alloc::Layout::from_size_align(bytes, system_align(bytes)).ok()?;
                // SAFETY: the size is not zero.
                let block = NonNull::new(unsafe { alloc::alloc::alloc(layout) })?;
                ask_for_huge_pages(block, bytes);
                Some(block)
            }
            // SAFETY: the caller vouched for the hooks.
            Source::Hooks(h) => NonNull::new(unsafe { (h.alloc)(h.user, bytes, ALIGN) }.cast()),
            Source::Region { base, len } => {
                if bytes > len - cursor {
                    return None;
                }
                // SAFETY: cursor + bytes <= len, inside the caller's region.
                Some(unsafe { base.add(cursor) })
            }
        }
    }

    /// # Safety
    /// `ptr` came from `take` of this source with the same `bytes`.
    unsafe fn give(&self, ptr: NonNull<u8>, bytes: usize) {
        match self {
            #[cfg(feature = "alloc")]
            Source::System => {
                // SAFETY: the same size and alignment as in `take`, which accepted them.
                unsafe {
                    let layout = core::alloc::Layout::from_size_align_unchecked(bytes, system_align(bytes));
                    alloc::alloc::dealloc(ptr.as_ptr(), layout);
                }
            }
            // SAFETY: the block came from the same hooks.
            Source::Hooks(h) => unsafe { (h.free)(h.user, ptr.as_ptr().cast(), bytes, ALIGN) },
            Source::Region { .. } => {}
        }
    }
}

impl Memory {
    const STATE_BYTES: usize = match round_up(size_of::<State>()) {
        Some(n) => n,
        None => unreachable!(),
    };

    /// Adds the accounting block of one `Memory` to a plan.
    pub fn plan(plan: &mut Plan) {
        plan.add::<State>(1);
    }

    /// The system allocator. `limit` in bytes, 0 = none. Allocates one small block.
    #[cfg(feature = "alloc")]
    pub fn system(limit: usize) -> Result<Memory> {
        // SAFETY: the system allocator has no contract to break.
        unsafe { Memory::with_source(Source::System, limit) }
    }

    /// Hooks of the caller. `limit` in bytes, 0 = none. Allocates one small block through them.
    ///
    /// # Safety
    /// `hooks.alloc` returns NULL or `size` bytes aligned to `align` that stay valid until `hooks.free`; both may be
    /// called from any thread that uses an object of this memory.
    pub unsafe fn hooks(hooks: Hooks, limit: usize) -> Result<Memory> {
        // SAFETY: passed on.
        unsafe { Memory::with_source(Source::Hooks(hooks), limit) }
    }

    /// One region of the caller; blocks are cut from it front to back.
    ///
    /// # Errors
    /// `Alignment` unless `base` is a multiple of [`ALIGN`]; `Buffer` when not even the accounting fits.
    ///
    /// # Safety
    /// `base..base + len` is valid for reads and writes, and used by nobody else, until the last handle is gone.
    pub unsafe fn region(base: NonNull<u8>, len: usize) -> Result<Memory> {
        if !base.addr().get().is_multiple_of(ALIGN) {
            return Err(Error::new(Status::Alignment, "mem", "must be aligned to 64 bytes"));
        }
        // SAFETY: passed on.
        unsafe { Memory::with_source(Source::Region { base, len }, 0) }
            .map_err(|_| Error::new(Status::Buffer, "mem", "too small").need(Self::STATE_BYTES, len))
    }

    /// # Safety
    /// The source keeps its contract.
    unsafe fn with_source(source: Source, limit: usize) -> Result<Memory> {
        let bytes = Self::STATE_BYTES;
        if limit != 0 && bytes > limit {
            return Err(Error::new(Status::Budget, "memory_limit", "smaller than the smallest object"));
        }
        // SAFETY: `bytes` is a non-zero multiple of ALIGN.
        let Some(block) = (unsafe { source.take(bytes, 0) }) else {
            return Err(Error::new(Status::NoMemory, "allocator", "returned no memory").value(bytes as u64));
        };
        let state = State {
            source,
            limit,
            used: AtomicUsize::new(bytes),
            peak: AtomicUsize::new(bytes),
            cursor: AtomicUsize::new(bytes),
            refs: AtomicUsize::new(1),
        };
        let place = block.cast::<State>();
        // SAFETY: the block is large enough, aligned, and ours.
        unsafe { place.write(state) };
        Ok(Memory(place))
    }

    /// Calls `f` with a memory that has nothing: for what is counted and not made. No handle may outlive the call.
    pub(crate) fn nowhere(f: impl FnOnce(&Memory)) {
        let state = State {
            source: Source::Region { base: NonNull::dangling(), len: 0 },
            limit: 0,
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            cursor: AtomicUsize::new(0),
            // One more than there are: the last handle gives nothing back.
            refs: AtomicUsize::new(2),
        };
        {
            let memory = Memory(NonNull::from(&state));
            f(&memory);
        }
        assert!(state.refs.load(Relaxed) == 1, "a handle outlives its memory");
    }

    fn state(&self) -> &State {
        // SAFETY: the state lives as long as any handle.
        unsafe { self.0.as_ref() }
    }

    /// Whether blocks come from a region of fixed size, so that nothing can grow.
    pub fn is_region(&self) -> bool {
        matches!(self.state().source, Source::Region { .. })
    }

    /// Byte counts of everything allocated through this handle and its clones.
    pub fn report(&self) -> MemoryReport {
        let s = self.state();
        let used = s.used.load(Relaxed);
        let reserved = match s.source {
            Source::Region { len, .. } => len,
            _ => used,
        };
        MemoryReport { used, reserved, peak: s.peak.load(Relaxed), limit: s.limit }
    }

    /// Whether all of a plan fits the limit: to refuse an object before any of it is taken.
    ///
    /// # Errors
    /// `Budget` where it does not; as [`Plan::finish`].
    pub(crate) fn admit(&self, plan: Plan) -> Result<()> {
        let (bytes, s) = (plan.finish()?.bytes, self.state());
        let need = s.used.load(Relaxed).saturating_add(bytes);
        if s.limit != 0 && need > s.limit {
            return Err(Error::new(Status::Budget, "memory_limit", "would be exceeded").need(need, s.limit));
        }
        Ok(())
    }

    /// A block of at least `bytes` bytes, aligned to [`ALIGN`]. Zero bytes are rounded up to one block.
    ///
    /// # Errors
    /// `Budget` over the limit, `NoMemory` when the source has nothing. Nothing changes then.
    pub(crate) fn take(&self, bytes: usize) -> Result<NonNull<u8>> {
        let s = self.state();
        let Some(bytes) = round_up(bytes.max(1)) else { return Err(too_big()) };
        let Some(used) = s.used.load(Relaxed).checked_add(bytes) else { return Err(too_big()) };
        if s.limit != 0 && used > s.limit {
            return Err(Error::new(Status::Budget, "memory_limit", "would be exceeded").need(used, s.limit));
        }
        let cursor = s.cursor.load(Relaxed);
        // SAFETY: `bytes` is a non-zero multiple of ALIGN, the source's contract was accepted at creation.
        let Some(block) = (unsafe { s.source.take(bytes, cursor) }) else {
            return Err(Error::new(Status::NoMemory, "allocator", "returned no memory").value(bytes as u64));
        };
        if !block.addr().get().is_multiple_of(ALIGN) {
            // SAFETY: just taken, with this size, and not used.
            unsafe { s.source.give(block, bytes) };
            return Err(Error::new(
                Status::Alignment,
                "allocator",
                "returned a block of a smaller alignment than asked for",
            ));
        }
        s.used.store(used, Relaxed);
        s.peak.store(s.peak.load(Relaxed).max(used), Relaxed);
        if self.is_region() {
            s.cursor.store(cursor + bytes, Relaxed);
        }
        Ok(block)
    }

    /// Gives a block back.
    ///
    /// # Safety
    /// `ptr` came from [`Memory::take`] of the same state with the same `bytes` and is not used any more.
    pub(crate) unsafe fn give(&self, ptr: NonNull<u8>, bytes: usize) {
        let bytes = round_up(bytes.max(1)).unwrap_or(bytes);
        let s = self.state();
        s.used.store(s.used.load(Relaxed) - bytes, Relaxed);
        if let Source::Region { base, .. } = s.source {
            // Only the block cut last can be cut again.
            let start = ptr.addr().get() - base.addr().get();
            if start + bytes == s.cursor.load(Relaxed) {
                s.cursor.store(start, Relaxed);
            }
        }
        // SAFETY: passed on.
        unsafe { s.source.give(ptr, bytes) };
    }

    /// Moves a value into this memory (C handles live there).
    pub fn place<T>(&self, value: T) -> Result<NonNull<T>> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let p = self.take(size_of::<T>())?.cast::<T>();
        // SAFETY: large enough, aligned, ours.
        unsafe { p.write(value) };
        Ok(p)
    }

    /// Drops a placed value and gives its block back.
    ///
    /// # Safety
    /// `p` came from [`Memory::place`] of this memory and is not used again.
    pub unsafe fn unplace<T>(&self, p: NonNull<T>) {
        // SAFETY: a live value, dropped once.
        unsafe {
            p.drop_in_place();
            self.give(p.cast(), size_of::<T>());
        }
    }
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        let refs = &self.state().refs;
        #[cfg(target_has_atomic = "ptr")]
        refs.fetch_add(1, Relaxed);
        // Targets without compare-and-swap have one core, and objects are made outside interrupts.
        #[cfg(not(target_has_atomic = "ptr"))]
        refs.store(refs.load(Relaxed) + 1, Relaxed);
        Memory(self.0)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let refs = &self.state().refs;
        #[cfg(target_has_atomic = "ptr")]
        let before = refs.fetch_sub(1, core::sync::atomic::Ordering::AcqRel);
        #[cfg(not(target_has_atomic = "ptr"))]
        let before = {
            let n = refs.load(Relaxed);
            refs.store(n - 1, Relaxed);
            n
        };
        if before == 1 {
            // SAFETY: the last handle: nobody reads the state any more; it is moved out before its block goes.
            unsafe {
                let state = self.0.read();
                state.source.give(self.0.cast(), Self::STATE_BYTES);
            }
        }
    }
}

impl core::fmt::Debug for Memory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.report().fmt(f)
    }
}

#[cfg(feature = "alloc")]
// SAFETY: blocks stay valid until given back, handles share one state, and zero-sized requests never reach the source.
unsafe impl allocator_api2::alloc::Allocator for Memory {
    fn allocate(
        &self,
        layout: core::alloc::Layout,
    ) -> core::result::Result<NonNull<[u8]>, allocator_api2::alloc::AllocError> {
        if layout.align() > ALIGN {
            return Err(allocator_api2::alloc::AllocError);
        }
        let p = self.take(layout.size()).map_err(|_| allocator_api2::alloc::AllocError)?;
        Ok(NonNull::slice_from_raw_parts(p, layout.size()))
    }

    unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: core::alloc::Layout) {
        // SAFETY: passed on by the caller.
        unsafe { self.give(ptr, layout.size()) };
    }
}
