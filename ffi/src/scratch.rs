//! Query state: one per thread.

use crate::memory::put_layout;
use crate::object::{self, Handle, Object, shared};
use crate::types::*;
use crate::{cast, guard, view};
use core::ffi::c_void;
use iceformer_core::attention::{AttentionRoom, AttentionStats};
use iceformer_core::dci::Scratch;
use iceformer_core::mem::{Layout, Memory};
use iceformer_core::{Error, Result, Status};

impl Handle for ice_scratch {
    type Inner = QueryState;
    const MAGIC: u32 = object::SCRATCH;
    const NAME: &'static str = "scratch";
}

/// What is behind a scratch.
pub struct QueryState {
    pub(crate) scratch: Scratch,
    /// For values of one size, where it was made for attention. Builds without accelerated attention have no such room,
    /// nor code that would drop it: they attend row by row.
    #[cfg(feature = "accelerated")]
    room: Option<AttentionRoom>,
    /// Of the last attention with this scratch.
    pub(crate) stats: Option<AttentionStats>,
}

impl QueryState {
    /// For queries, and attention to what they find. Apart from the other, so that programs that only search hold no code
    /// of attention.
    pub(crate) fn plain(index: &Object<ice_index>, memory: &Memory) -> Result<QueryState> {
        Ok(QueryState {
            scratch: Scratch::new_in(&index.inner, memory)?,
            #[cfg(feature = "accelerated")]
            room: None,
            stats: None,
        })
    }

    /// For attention of many rows to values of `dim_v` elements too.
    pub(crate) fn roomy(index: &Object<ice_index>, dim_v: usize, memory: &Memory) -> Result<QueryState> {
        let plain = QueryState::plain(index, memory)?;
        #[cfg(feature = "accelerated")]
        let plain = QueryState { room: Some(AttentionRoom::new_in(&index.inner, dim_v, memory)?), ..plain };
        let _ = dim_v;
        Ok(plain)
    }

    /// Scratch and room for a call.
    pub(crate) fn parts(&mut self) -> (&mut Scratch, Option<&mut AttentionRoom>, &mut Option<AttentionStats>) {
        #[cfg(feature = "accelerated")]
        let room = self.room.as_mut();
        #[cfg(not(feature = "accelerated"))]
        let room = None;
        (&mut self.scratch, room, &mut self.stats)
    }
}

fn layout(index: &Object<ice_index>) -> Result<Layout> {
    object::plan::<ice_scratch>(|plan| {
        Scratch::plan(&index.inner, plan);
        Ok(())
    })
}

fn roomy_layout(index: &Object<ice_index>, dim_v: u32) -> Result<Layout> {
    let dim_v = of_values(dim_v)?;
    object::plan::<ice_scratch>(|plan| {
        Scratch::plan(&index.inner, plan);
        if cfg!(feature = "accelerated") {
            AttentionRoom::plan(&index.inner, dim_v, plan);
        }
        Ok(())
    })
}

/// The size of a value, which must be one.
fn of_values(dim_v: u32) -> Result<usize> {
    match dim_v {
        0 => Err(Error::new(Status::Shape, "dim_v", "must be at least 1").value(0)),
        n => Ok(n as usize),
    }
}

unsafe fn make(
    index: *const ice_index,
    out: *mut *mut ice_scratch,
    make: impl FnOnce(&Object<ice_index>, &Memory) -> Result<QueryState>,
) -> Result<()> {
    // SAFETY: passed on by the caller.
    unsafe {
        let index = shared(index)?;
        let out = cast::output(out, "out")?;
        let object = object::create::<ice_scratch>(index.source, 0, |m| make(index, m))?;
        out.write(object.as_ptr().cast());
        Ok(())
    }
}

unsafe fn make_in(
    (mem, bytes): (*mut c_void, usize),
    index: *const ice_index,
    out: *mut *mut ice_scratch,
    need: impl FnOnce(&Object<ice_index>) -> Result<Layout>,
    make: impl FnOnce(&Object<ice_index>, &Memory) -> Result<QueryState>,
) -> Result<()> {
    // SAFETY: passed on by the caller.
    unsafe {
        let index = shared(index)?;
        let out = cast::output(out, "out")?;
        let need = need(index)?;
        let object = object::create_in::<ice_scratch>(mem.cast(), bytes, need, 0, |m| make(index, m))?;
        out.write(object.as_ptr().cast());
        Ok(())
    }
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
    unsafe { guard::call("ice_scratch_new", err, || make(index, out, QueryState::plain)) }
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
    unsafe { guard::call("ice_scratch_new_in", err, || make_in((mem, bytes), index, out, layout, QueryState::plain)) }
}

/// Bytes and alignment of the memory that ice_scratch_new_attention_in needs for this index at its present capacity.
///
/// @param dim_v         elements of a value, at least 1.
/// @param bytes, align  outputs, in bytes.
/// Errors: ICE_ERR_SHAPE (dim_v).
/// Threads: shared. Allocates: never. Cost: O(1). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_scratch_required_attention(
    index: *const ice_index,
    dim_v: u32,
    bytes: *mut usize,
    align: *mut usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_scratch_required_attention", err, || {
            let index = shared(index)?;
            put_layout(|| roomy_layout(index, dim_v), bytes, align)
        })
    }
}

/// Makes query state that ice_index_attention takes many rows with, exactly by blocks and in accelerated mode: beside what
/// ice_scratch_new makes, room for keys and values in f32 in the order in which attention takes them, for the cells over them,
/// and work memory. ice_scratch_required_attention says how many bytes.
///
/// @param dim_v  elements of a value, at least 1: of every later ice_index_attention with this scratch.
/// @param out    receives the scratch; free it with ice_scratch_free.
/// Ownership: as ice_scratch_new.
/// Errors: ICE_ERR_SHAPE (dim_v), ICE_ERR_NO_MEMORY, ICE_ERR_UNSUPPORTED (no system allocator).
/// Threads: shared. Allocates: may. Cost: O(capacity (dim + dim_v)). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_scratch_new_attention(
    index: *const ice_index,
    dim_v: u32,
    out: *mut *mut ice_scratch,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_scratch_new_attention", err, || {
            let dim_v = of_values(dim_v)?;
            make(index, out, |index, m| QueryState::roomy(index, dim_v, m))
        })
    }
}

/// Makes query state for attention wholly inside caller memory.
///
/// @param mem    aligned to 64 bytes; stays in place and untouched until ice_scratch_free.
/// @param bytes  at least what ice_scratch_required_attention says.
/// @param dim_v  as in ice_scratch_new_attention.
/// Ownership: `mem` stays the caller's and is not freed by ice_scratch_free.
/// Errors: ICE_ERR_SHAPE (dim_v), ICE_ERR_ALIGNMENT, ICE_ERR_BUFFER (need and have).
/// Threads: shared. Allocates: never. Cost: O(capacity (dim + dim_v)). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_scratch_new_attention_in(
    mem: *mut c_void,
    bytes: usize,
    index: *const ice_index,
    dim_v: u32,
    out: *mut *mut ice_scratch,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_scratch_new_attention_in", err, || {
            let size = of_values(dim_v)?;
            let roomy = |index: &_, m: &_| QueryState::roomy(index, size, m);
            make_in((mem, bytes), index, out, |index| roomy_layout(index, dim_v), roomy)
        })
    }
}

/// What the last ice_index_attention with this scratch did.
///
/// @param stats  filled by ice_attention_stats_init before.
/// Errors: ICE_ERR_STATE (there was none), ICE_ERR_ABI.
/// Threads: shared. Allocates: never. Cost: O(1). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_scratch_stats(
    scratch: *const ice_scratch,
    stats: *mut ice_attention_stats,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_scratch_stats", err, || {
            let scratch = shared(scratch)?;
            let out = cast::SizedOutput::new(cast::pointer(stats, "stats")?.as_ptr(), "stats")?;
            let none = Error::new(Status::State, "scratch", "has attended nothing yet");
            out.write(view::stats(&scratch.inner.stats.ok_or(none)?));
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
