//! A session as bytes.

use crate::guard;
use crate::memory::put_layout;
use crate::saved::{Saved, load, load_in, load_with, save, save_to, saved};
use crate::session::{Parts, layout};
use crate::types::*;
use core::ffi::c_void;
use iceformer_core::Result;
use iceformer_core::attention::Session;
use iceformer_core::mem::{Layout, Memory};

impl Saved for ice_session {
    fn save_len(inner: &Parts) -> usize {
        inner.session.save_len()
    }
    fn save(inner: &Parts, out: &mut [u8]) -> Result<usize> {
        inner.session.save(out)
    }
    fn save_to(inner: &Parts, write: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        inner.session.save_to(write)
    }
    fn load(bytes: &[u8], memory: &Memory) -> Result<Parts> {
        Session::load(bytes, memory).map(Parts::new)
    }
    fn load_from(read: &mut dyn FnMut(&mut [u8]) -> usize, memory: &Memory) -> Result<Parts> {
        Session::load_from(read, memory).map(Parts::new)
    }
    fn layout(bytes: &[u8]) -> Result<Layout> {
        layout(&Session::peek(bytes)?)
    }
    fn placed(inner: &mut Parts) {
        inner.capture();
    }
}

/// Writes the session to a buffer, a prompt cache: options, keys and values. Cells and indices
/// are made again when it is loaded.
///
/// @param buf     NULL with cap 0: only asks for the size.
/// @param cap     bytes of `buf`.
/// @param needed  bytes written, or needed when `buf` is NULL; nullable when `buf` is given.
/// Errors: ICE_ERR_BUFFER (too small).
/// Threads: shared. Allocates: never. Cost: O(bytes). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_save(
    session: *const ice_session,
    buf: *mut c_void,
    cap: usize,
    needed: *mut usize,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { ice_session_save_err(session, buf, cap, needed, core::ptr::null_mut()) }
}

/// As ice_session_save, with a report.
///
/// Errors: as ice_session_save.
/// Threads: shared. Allocates: never. Cost: O(bytes). Since 0.2.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_save_err(
    session: *const ice_session,
    buf: *mut c_void,
    cap: usize,
    needed: *mut usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_session_save_err", err, || save(session, buf, cap, needed)) }
}

/// Writes the session through a function of the caller, so that no second copy of it is needed: the bytes of ice_session_save.
///
/// @param write  takes the next `bytes` bytes, at most 1024, and returns how many it took: fewer end the call, as fwrite. It does not
///               use the session exclusively and returns by itself (no longjmp, no exception).
/// @param user   nullable: passed through to `write`.
/// Errors: ICE_ERR_BUFFER (`write` took fewer bytes).
/// Threads: shared. Allocates: never. Cost: O(bytes). Since 0.2.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_save_to(
    session: *const ice_session,
    write: Option<unsafe extern "C" fn(user: *mut c_void, from: *const c_void, bytes: usize) -> usize>,
    user: *mut c_void,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_session_save_to", err, || save_to(session, write, user)) }
}

/// Makes a session from saved bytes in memory or from a function that brings them, within a memory limit.
///
/// Bytes that a function brings are not known to be whole before the last of them: a damaged header asks for memory until then, within
/// the limit. `read` is asked for the bytes of one session; some saved by version 0.1 are read to the end of all bytes.
///
/// @param options  filled by ice_load_options_init before.
/// @param out      receives the session; free it with ice_session_free.
/// Ownership: options and allocator are copied; nothing of the bytes is kept.
/// Errors: ICE_ERR_BUFFER (damaged, foreign or cut), ICE_ERR_BUDGET (more than the limit: nothing was allocated for it),
/// ICE_ERR_UNSUPPORTED (needs what this build lacks), ICE_ERR_NO_MEMORY, ICE_ERR_ALIGNMENT (a block of the allocator),
/// ICE_ERR_ABI.
/// Threads: any. Allocates: may. Cost: O(bytes) plus building. Since 0.2.
///
/// # Safety
/// Pointers are valid as described; allocator and `read` keep their contracts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_load_with(
    options: *const ice_load_options,
    out: *mut *mut ice_session,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_session_load_with", err, || load_with(options, out)) }
}

/// Makes a session from saved bytes.
///
/// @param buf        written by ice_session_save, any alignment.
/// @param len        bytes of `buf`.
/// @param allocator  nullable: the system allocator.
/// @param out        receives the session; free it with ice_session_free.
/// Ownership: nothing of `buf` is kept.
/// Errors: ICE_ERR_BUFFER (damaged, foreign or cut), ICE_ERR_UNSUPPORTED (needs what this build lacks), ICE_ERR_NO_MEMORY,
/// ICE_ERR_ALIGNMENT (a block of the allocator), ICE_ERR_ABI. Bytes of strangers may ask for any capacity: set a limit with
/// ice_session_load_with.
/// Threads: any. Allocates: may. Cost: O(len) plus building. Since 0.1.
///
/// # Safety
/// Pointers are valid as described; the allocator keeps its contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_load(
    buf: *const c_void,
    len: usize,
    allocator: *const ice_allocator,
    out: *mut *mut ice_session,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_session_load", err, || load((buf, len), allocator, out, ice_session::load)) }
}

/// Bytes and alignment of the memory that ice_session_load_in needs for these saved bytes.
///
/// @param bytes, align  outputs, in bytes.
/// Errors: ICE_ERR_BUFFER (damaged, foreign or cut), ICE_ERR_UNSUPPORTED (needs what this build lacks), ICE_ERR_NO_MEMORY (too
/// large for the address space).
/// Threads: any. Allocates: never. Cost: O(len). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_load_required(
    buf: *const c_void,
    len: usize,
    bytes: *mut usize,
    align: *mut usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_session_load_required", err, || {
            let saved = saved(buf, len)?;
            put_layout(|| ice_session::layout(saved), bytes, align)
        })
    }
}

/// Makes a session from saved bytes wholly inside caller memory.
///
/// @param mem    aligned to 64 bytes; stays in place and untouched until ice_session_free.
/// @param bytes  at least what ice_session_load_required says.
/// @param buf, len  as in ice_session_load.
/// Errors: as ice_session_load_required, ICE_ERR_ALIGNMENT, ICE_ERR_BUFFER (need and have).
/// Threads: any. Allocates: never. Cost: O(len) plus building. Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_load_in(
    mem: *mut c_void,
    bytes: usize,
    buf: *const c_void,
    len: usize,
    out: *mut *mut ice_session,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_session_load_in", err, || {
            load_in((mem, bytes), (buf, len), out, ice_session::layout, ice_session::load)
        })
    }
}
