//! An index as bytes.

use crate::alloc_hook::Source;
use crate::index::layout;
use crate::memory::put_layout;
use crate::object::{self, Handle, Object, shared};
use crate::types::*;
use crate::{cast, guard};
use core::ffi::c_void;
use core::ptr::NonNull;
use iceformer_core::dci::Index;
use iceformer_core::mem::{Layout, Memory};
use iceformer_core::{Error, Result, Status};

/// What objects of a handle have of their own in being saved and loaded; the functions below do the rest, for all of them.
pub(crate) trait Saved: Handle {
    /// Bytes that `save` and `save_to` write.
    fn save_len(inner: &Self::Inner) -> usize;
    fn save(inner: &Self::Inner, out: &mut [u8]) -> Result<usize>;
    fn save_to(inner: &Self::Inner, write: &mut dyn FnMut(&[u8]) -> bool) -> Result<()>;
    fn load(bytes: &[u8], memory: &Memory) -> Result<Self::Inner>;
    fn load_from(read: &mut dyn FnMut(&mut [u8]) -> usize, memory: &Memory) -> Result<Self::Inner>;
    /// Memory of what would be loaded, the handle included.
    fn layout(bytes: &[u8]) -> Result<Layout>;
    /// Comes when the object is where it stays.
    fn placed(_inner: &mut Self::Inner) {}
}

impl Saved for ice_index {
    fn save_len(inner: &Index) -> usize {
        inner.save_len()
    }
    fn save(inner: &Index, out: &mut [u8]) -> Result<usize> {
        inner.save(out)
    }
    fn save_to(inner: &Index, write: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        inner.save_to(write)
    }
    fn load(bytes: &[u8], memory: &Memory) -> Result<Index> {
        Index::load(bytes, memory)
    }
    fn load_from(read: &mut dyn FnMut(&mut [u8]) -> usize, memory: &Memory) -> Result<Index> {
        Index::load_from(read, memory)
    }
    fn layout(bytes: &[u8]) -> Result<Layout> {
        layout(&Index::peek(bytes)?)
    }
}

/// Writes an object into a buffer of the caller: NULL with `cap` 0 asks for the size.
///
/// # Safety
/// `object` as for [`shared`]. If not NULL, `buf` is writable for `cap` bytes and `needed` for one number.
pub(crate) unsafe fn save<H: Saved>(object: *const H, buf: *mut c_void, cap: usize, needed: *mut usize) -> Result<()> {
    // SAFETY: passed on.
    let inner = unsafe { &shared(object)?.inner };
    let (len, needed) = (H::save_len(inner), cast::nullable_output(needed, "needed")?);
    let mut bytes = len;
    if buf.is_null() && cap == 0 {
        if needed.is_none() {
            return Err(cast::null("needed"));
        }
    } else {
        // SAFETY: passed on.
        let out = unsafe { cast::array_mut(buf.cast::<u8>(), cap, "buf")? };
        if out.len() < len {
            return Err(Error::new(Status::Buffer, "buf", "is too small").need(len, cap));
        }
        bytes = H::save(inner, out)?;
    }
    if let Some(p) = needed {
        // SAFETY: checked above.
        unsafe { p.write(bytes) };
    }
    Ok(())
}

/// What takes saved bytes: returns how many of `bytes` bytes, at most 1024, it took.
pub(crate) type Taker = unsafe extern "C" fn(user: *mut c_void, from: *const c_void, bytes: usize) -> usize;

/// Writes an object through a function of the caller.
///
/// # Safety
/// `object` as for [`shared`]; `write` keeps its contract.
pub(crate) unsafe fn save_to<H: Saved>(object: *const H, write: Option<Taker>, user: *mut c_void) -> Result<()> {
    // SAFETY: passed on.
    let inner = unsafe { &shared(object)?.inner };
    let write = write.ok_or(cast::null("write"))?;
    // SAFETY: passed on; the piece is readable.
    H::save_to(inner, &mut |piece| unsafe { write(user, piece.as_ptr().cast(), piece.len()) } == piece.len())
}

/// Hands an object out.
///
/// # Safety
/// `out` was checked, and nobody else knows the object.
unsafe fn hand_out<H: Saved>(mut object: NonNull<Object<H>>, out: NonNull<*mut H>) {
    // SAFETY: passed on.
    unsafe {
        H::placed(&mut object.as_mut().inner);
        out.write(object.as_ptr().cast());
    }
}

/// Makes an object of the bytes that the options name, in memory or through a function.
///
/// # Safety
/// As [`cast::sized`]; what the options name is valid as the header says.
pub(crate) unsafe fn load_with<H: Saved>(options: *const ice_load_options, out: *mut *mut H) -> Result<()> {
    let out = cast::output(out, "out")?;
    // SAFETY: passed on.
    unsafe {
        let o = cast::sized(options, "options")?;
        cast::reserved(&[o.reserved], "options.reserved")?;
        let source = Source::from_c(o.allocator)?;
        let object = if o.data.is_null() {
            let read = o.read.ok_or(cast::null("options.read"))?;
            let mut pieces = |to: &mut [u8]| read(o.user, to.as_mut_ptr().cast(), to.len()).min(to.len());
            object::create::<H>(source, o.memory_limit, |m| H::load_from(&mut pieces, m))?
        } else {
            let bytes = cast::array(o.data.cast(), o.len, "options.data")?;
            object::create::<H>(source, o.memory_limit, |m| H::load(bytes, m))?
        };
        hand_out(object, out);
    }
    Ok(())
}

/// Makes an object of saved bytes by `make`.
///
/// # Safety
/// Pointers are valid as the header says.
pub(crate) unsafe fn load<'a, H: Saved>(
    (buf, len): (*const c_void, usize),
    allocator: *const ice_allocator,
    out: *mut *mut H,
    make: impl FnOnce(&'a [u8], &Memory) -> Result<H::Inner>,
) -> Result<()> {
    // SAFETY: passed on.
    unsafe {
        let bytes = saved(buf, len)?;
        let source = Source::from_c(allocator)?;
        let out = cast::output(out, "out")?;
        hand_out(object::create::<H>(source, 0, |m| make(bytes, m))?, out);
    }
    Ok(())
}

/// The same inside caller memory, of a layout that the bytes name.
///
/// # Safety
/// Pointers are valid as the header says.
pub(crate) unsafe fn load_in<'a, H: Saved>(
    (mem, bytes): (*mut c_void, usize),
    (buf, len): (*const c_void, usize),
    out: *mut *mut H,
    layout: impl FnOnce(&'a [u8]) -> Result<Layout>,
    make: impl FnOnce(&'a [u8], &Memory) -> Result<H::Inner>,
) -> Result<()> {
    // SAFETY: passed on.
    unsafe {
        let saved = saved(buf, len)?;
        let out = cast::output(out, "out")?;
        let need = layout(saved)?;
        hand_out(object::create_in::<H>(mem.cast(), bytes, need, 0, |m| make(saved, m))?, out);
    }
    Ok(())
}

/// Saved bytes; there are none in an empty buffer, so NULL is always an error.
///
/// # Safety
/// If not NULL, `buf` is readable for `len` bytes during `'a` and nobody writes them.
pub(crate) unsafe fn saved<'a>(buf: *const c_void, len: usize) -> Result<&'a [u8]> {
    cast::pointer(buf.cast::<u8>(), "buf")?;
    // SAFETY: passed on.
    unsafe { cast::array(buf.cast(), len, "buf") }
}

/// Writes the index to a buffer; the same bytes for the same index on every machine.
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
pub unsafe extern "C" fn ice_index_save(
    index: *const ice_index,
    buf: *mut c_void,
    cap: usize,
    needed: *mut usize,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { ice_index_save_err(index, buf, cap, needed, core::ptr::null_mut()) }
}

/// As ice_index_save, with a report.
///
/// Errors: as ice_index_save; the message says what is needed and what there is.
/// Threads: shared. Allocates: never. Cost: as ice_index_save. Since 0.2.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_save_err(
    index: *const ice_index,
    buf: *mut c_void,
    cap: usize,
    needed: *mut usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_index_save_err", err, || save(index, buf, cap, needed)) }
}

/// Writes the index through a function of the caller, so that no second copy of it is needed: the bytes of ice_index_save.
///
/// @param write  takes the next `bytes` bytes, at most 1024, and returns how many it took: fewer end the call, as fwrite. It does not
///               use the index exclusively and returns by itself (no longjmp, no exception).
/// @param user   nullable: passed through to `write`.
/// Errors: ICE_ERR_BUFFER (`write` took fewer bytes).
/// Threads: shared. Allocates: never. Cost: O(bytes). Since 0.2.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_save_to(
    index: *const ice_index,
    write: Option<unsafe extern "C" fn(user: *mut c_void, from: *const c_void, bytes: usize) -> usize>,
    user: *mut c_void,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_index_save_to", err, || save_to(index, write, user)) }
}

/// Prepares load options: size set, everything else 0. NULL does nothing.
///
/// Threads: any. Allocates: never. Since 0.2.
///
/// # Safety
/// `options` is NULL or writable for an ice_load_options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_load_options_init(options: *mut ice_load_options) {
    let value = ice_load_options {
        struct_size: size_of::<ice_load_options>() as u32,
        reserved: 0,
        data: core::ptr::null(),
        len: 0,
        read: None,
        user: core::ptr::null_mut(),
        memory_limit: 0,
        allocator: core::ptr::null(),
    };
    // SAFETY: passed on.
    unsafe { cast::init(options, value) };
}

/// Makes an index from saved bytes in memory or from a function that brings them, within a memory limit.
///
/// Bytes that a function brings are not known to be whole before the last of them: a damaged header asks for memory until then, within
/// the limit.
///
/// @param options  filled by ice_load_options_init before.
/// @param out      receives the index; free it with ice_index_free.
/// Ownership: options and allocator are copied; nothing of the bytes is kept.
/// Errors: ICE_ERR_BUFFER (damaged, foreign or cut), ICE_ERR_BUDGET (more than the limit: nothing was allocated for it),
/// ICE_ERR_UNSUPPORTED (needs what this build lacks), ICE_ERR_NO_MEMORY, ICE_ERR_ALIGNMENT (a block of the allocator),
/// ICE_ERR_ABI.
/// Threads: any. Allocates: may. Cost: O(bytes) plus building. Since 0.2.
///
/// # Safety
/// Pointers are valid as described; allocator and `read` keep their contracts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_load_with(
    options: *const ice_load_options,
    out: *mut *mut ice_index,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_index_load_with", err, || load_with(options, out)) }
}

/// Makes an index from saved bytes.
///
/// @param buf        written by ice_index_save, any alignment.
/// @param len        bytes of `buf`.
/// @param allocator  nullable: the system allocator.
/// @param out        receives the index; free it with ice_index_free.
/// Ownership: nothing of `buf` is kept.
/// Errors: ICE_ERR_BUFFER (damaged, foreign or cut), ICE_ERR_UNSUPPORTED (needs what this build lacks), ICE_ERR_NO_MEMORY,
/// ICE_ERR_ALIGNMENT (a block of the allocator), ICE_ERR_ABI. Bytes of strangers may ask for any capacity: set a limit with
/// ice_index_load_with.
/// Threads: any. Allocates: may. Cost: O(len) plus building. Since 0.1.
///
/// # Safety
/// Pointers are valid as described; the allocator keeps its contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_load(
    buf: *const c_void,
    len: usize,
    allocator: *const ice_allocator,
    out: *mut *mut ice_index,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_index_load", err, || load((buf, len), allocator, out, Index::load)) }
}

/// Memory of an index that looks at its keys, the handle included.
fn view_layout(bytes: &'static [u8]) -> Result<Layout> {
    let options = Index::peek_view(bytes)?;
    object::plan::<ice_index>(|plan| Index::plan_view(&options, plan))
}

/// Makes an index of saved bytes that stay where they are: keys are read from `buf`, which may be a mapped file or read-only
/// memory, and only what finds them is built. It answers as one made by ice_index_load.
///
/// The first insertion copies the keys into memory of the index. Removals and ice_index_clear write nothing to `buf`.
///
/// @param buf        written by ice_index_save, aligned to 4 bytes; stays readable, in place and unchanged until
///                   ice_index_free.
/// @param len        bytes of `buf`.
/// @param allocator  nullable: the system allocator.
/// @param out        receives the index; free it with ice_index_free.
/// Ownership: `buf` stays the caller's.
/// Errors: as ice_index_load, ICE_ERR_ALIGNMENT, ICE_ERR_UNSUPPORTED (a big-endian machine).
/// Threads: any. Allocates: may (all but the keys). Cost: O(len) plus building. Since 0.1.
///
/// # Safety
/// Pointers are valid as described; the allocator keeps its contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_view(
    buf: *const c_void,
    len: usize,
    allocator: *const ice_allocator,
    out: *mut *mut ice_index,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller, who keeps the bytes until the index is freed.
    unsafe { guard::call("ice_index_view", err, || load((buf, len), allocator, out, Index::view)) }
}

/// Bytes and alignment of the memory that ice_index_view_in needs for these saved bytes.
///
/// @param buf, len  as in ice_index_view.
/// @param bytes, align  outputs, in bytes.
/// Errors: ICE_ERR_BUFFER (damaged, foreign or cut), ICE_ERR_ALIGNMENT, ICE_ERR_UNSUPPORTED, ICE_ERR_NO_MEMORY (too large for
/// the address space).
/// Threads: any. Allocates: never. Cost: O(len). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_view_required(
    buf: *const c_void,
    len: usize,
    bytes: *mut usize,
    align: *mut usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller; nothing of the bytes is kept.
    unsafe {
        guard::call("ice_index_view_required", err, || {
            let saved = saved(buf, len)?;
            put_layout(|| view_layout(saved), bytes, align)
        })
    }
}

/// Makes an index as ice_index_view does, wholly inside caller memory. Insertions are refused: ICE_ERR_CAPACITY.
///
/// @param mem    aligned to 64 bytes; stays in place and untouched until ice_index_free.
/// @param bytes  at least what ice_index_view_required says.
/// @param buf, len  as in ice_index_view.
/// Errors: as ice_index_view, ICE_ERR_ALIGNMENT, ICE_ERR_BUFFER (need and have).
/// Threads: any. Allocates: never. Cost: O(len) plus building. Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_view_in(
    mem: *mut c_void,
    bytes: usize,
    buf: *const c_void,
    len: usize,
    out: *mut *mut ice_index,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller, who keeps the bytes until the index is freed.
    unsafe {
        guard::call("ice_index_view_in", err, || load_in((mem, bytes), (buf, len), out, view_layout, Index::view))
    }
}

/// Bytes and alignment of the memory that ice_index_load_in needs for these saved bytes.
///
/// @param bytes, align  outputs, in bytes.
/// Errors: ICE_ERR_BUFFER (damaged, foreign or cut), ICE_ERR_UNSUPPORTED (needs what this build lacks), ICE_ERR_NO_MEMORY (too
/// large for the address space).
/// Threads: any. Allocates: never. Cost: O(len). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_load_required(
    buf: *const c_void,
    len: usize,
    bytes: *mut usize,
    align: *mut usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_index_load_required", err, || {
            let saved = saved(buf, len)?;
            put_layout(|| ice_index::layout(saved), bytes, align)
        })
    }
}

/// Makes an index from saved bytes wholly inside caller memory.
///
/// @param mem    aligned to 64 bytes; stays in place and untouched until ice_index_free.
/// @param bytes  at least what ice_index_load_required says.
/// @param buf, len  as in ice_index_load.
/// Errors: as ice_index_load_required, ICE_ERR_ALIGNMENT, ICE_ERR_BUFFER (need and have).
/// Threads: any. Allocates: never. Cost: O(len) plus building. Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_load_in(
    mem: *mut c_void,
    bytes: usize,
    buf: *const c_void,
    len: usize,
    out: *mut *mut ice_index,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_index_load_in", err, || load_in((mem, bytes), (buf, len), out, ice_index::layout, Index::load))
    }
}
