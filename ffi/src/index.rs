//! The index: keys with ids.

use crate::alloc_hook::Source;
use crate::cast::{self, choice};
use crate::memory::put_layout;
use crate::object::{self, Handle, exclusive, shared};
use crate::types::*;
use crate::{guard, memory};
use core::ffi::c_void;
use iceformer_core::Result;
use iceformer_core::dci::{Directions, Engine, Index, IndexOptions, Metric};
use iceformer_core::mem::{Dtype, Layout, Rows};

impl Handle for ice_index {
    type Inner = iceformer_core::dci::Index;
    const MAGIC: u32 = object::INDEX;
    const NAME: &'static str = "index";
}

/// Prepares index options for keys of `dim` elements: everything else default. NULL does nothing.
///
/// Threads: any. Allocates: never. Since 0.1.
///
/// # Safety
/// `options` is NULL or writable for an ice_index_options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_options_init(options: *mut ice_index_options, dim: u32) {
    let value = ice_index_options {
        struct_size: size_of::<ice_index_options>() as u32,
        dim,
        metric: ICE_METRIC_INNER_PRODUCT,
        num_simple: 0,
        num_composite: 0,
        levels: 0,
        promotion: 0.0,
        directions: ICE_DIRECTIONS_RANDOM,
        seed: 0,
        capacity: 0,
        memory_limit: 0,
        max_norm: 0.0,
        flags: 0,
        allocator: core::ptr::null(),
        engine: ICE_ENGINE_AUTO,
        reserved: 0,
    };
    // SAFETY: passed on.
    unsafe { cast::init(options, value) };
}

/// Options, memory limit, and the allocator as given.
///
/// # Safety
/// As [`cast::sized`].
unsafe fn index_options(p: *const ice_index_options) -> Result<(IndexOptions, usize, *const ice_allocator)> {
    // SAFETY: passed on.
    let o = unsafe { cast::sized(p, "options")? };
    cast::flags(o.flags, ICE_INDEX_FIXED_CAPACITY | ICE_INDEX_TRUSTED_INPUT, "flags")?;
    cast::reserved(&[o.reserved], "reserved")?;
    let options = IndexOptions {
        dim: o.dim as usize,
        metric: choice(o.metric, "metric", &[Metric::InnerProduct, Metric::L2, Metric::Cosine])?,
        num_simple: o.num_simple as usize,
        num_composite: o.num_composite as usize,
        levels: o.levels as usize,
        promotion: o.promotion,
        seed: o.seed,
        directions: choice(o.directions, "directions", &[Directions::Random, Directions::Fitted])?,
        capacity: o.capacity,
        fixed: o.flags & ICE_INDEX_FIXED_CAPACITY != 0,
        max_norm: o.max_norm,
        trusted: o.flags & ICE_INDEX_TRUSTED_INPUT != 0,
        isa: None,
        engine: choice(o.engine, "engine", &[Engine::Auto, Engine::Walk, Engine::Scan, Engine::Cells])?,
    };
    options.resolve()?;
    Ok((options, o.memory_limit, o.allocator))
}

/// Memory of an index with these options, the handle included.
pub(crate) fn layout(options: &IndexOptions) -> Result<Layout> {
    object::plan::<ice_index>(|plan| Index::plan(options, plan))
}

/// Bytes and alignment of the memory that ice_index_new_in needs for these options.
///
/// @param bytes, align  outputs, in bytes.
/// Errors: ICE_ERR_ARGUMENT (field and value), ICE_ERR_UNSUPPORTED, ICE_ERR_ABI, ICE_ERR_NO_MEMORY (too large for the
/// address space).
/// Threads: any. Allocates: never. Cost: O(1). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_required(
    options: *const ice_index_options,
    bytes: *mut usize,
    align: *mut usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_index_required", err, || {
            let (options, ..) = index_options(options)?;
            put_layout(|| layout(&options), bytes, align)
        })
    }
}

/// Makes an empty index.
///
/// @param out  receives the index; free it with ice_index_free.
/// Ownership: options and allocator are copied; what the allocator points to must outlive the index.
/// Errors: ICE_ERR_ARGUMENT (field and value), ICE_ERR_UNSUPPORTED, ICE_ERR_NO_MEMORY, ICE_ERR_BUDGET, ICE_ERR_ABI.
/// Threads: any. Allocates: may (room for `capacity` keys). Cost: O(capacity). Since 0.1.
///
/// # Safety
/// Pointers are valid as described; the allocator keeps its contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_new(
    options: *const ice_index_options,
    out: *mut *mut ice_index,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_index_new", err, || {
            let (options, limit, allocator) = index_options(options)?;
            let out = cast::output(out, "out")?;
            let source = Source::from_c(allocator)?;
            let object = object::create::<ice_index>(source, limit, |m| Index::new_in(&options, m))?;
            out.write(object.as_ptr().cast());
            Ok(())
        })
    }
}

/// Makes an empty index wholly inside caller memory, with fixed capacity.
///
/// @param mem    aligned to 64 bytes; stays in place and untouched until ice_index_free.
/// @param bytes  at least what ice_index_required says.
/// Ownership: `mem` stays the caller's and is not freed by ice_index_free.
/// Errors: as ice_index_new, ICE_ERR_ALIGNMENT, ICE_ERR_BUFFER (need and have).
/// Threads: any. Allocates: never. Cost: O(capacity). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_new_in(
    mem: *mut c_void,
    bytes: usize,
    options: *const ice_index_options,
    out: *mut *mut ice_index,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_index_new_in", err, || {
            let (options, limit, _) = index_options(options)?;
            let out = cast::output(out, "out")?;
            let need = layout(&options)?;
            let object =
                object::create_in::<ice_index>(mem.cast(), bytes, need, limit, |m| Index::new_in(&options, m))?;
            out.write(object.as_ptr().cast());
            Ok(())
        })
    }
}

/// Frees an index; caller memory it was made in is the caller's again. NULL does nothing.
///
/// Threads: exclusive. Allocates: never. Since 0.1.
///
/// # Safety
/// `index` is NULL or came from this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_free(index: *mut ice_index) {
    // SAFETY: passed on by the caller.
    guard::plain(|| unsafe {
        object::free(index);
        Ok(())
    });
}

/// Makes room for `capacity` keys in all; less than there is room for changes nothing.
///
/// Errors: ICE_ERR_NO_MEMORY, ICE_ERR_BUDGET, ICE_ERR_CAPACITY (fixed capacity); the index is as before then.
/// Threads: exclusive. Allocates: may. Cost: O(capacity). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_reserve(index: *mut ice_index, capacity: usize) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { ice_index_reserve_err(index, capacity, core::ptr::null_mut()) }
}

/// As ice_index_reserve, with a report.
///
/// Errors: as ice_index_reserve; the message says what is needed and what there is.
/// Threads: exclusive. Allocates: may. Cost: as ice_index_reserve. Since 0.2.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_reserve_err(
    index: *mut ice_index,
    capacity: usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_index_reserve_err", err, || exclusive(index)?.reserve(capacity)) }
}

/// Inserts `n` keys, all or none.
///
/// Shapes: keys [n, dim] packed f32; ids [n].
/// @param keys  finite; NULL only when n is 0.
/// @param ids   nullable: the next unused ids are taken, from 0 in a new index.
/// Ownership: everything is copied.
/// Errors: ICE_ERR_NOT_FINITE (row), ICE_ERR_DUPLICATE (id), ICE_ERR_CAPACITY, ICE_ERR_NO_MEMORY, ICE_ERR_BUDGET,
/// ICE_ERR_SHAPE (size overflows), ICE_ERR_ARGUMENT (the id UINT64_MAX); the index is as before then.
/// Threads: exclusive. Allocates: within reserve. Cost: O(n m L log len) with lists; with cells O(n dim) each, and all keys
/// are gathered anew each time they have grown by a quarter (O(len dim), amortised a few microseconds a key). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_insert(
    index: *mut ice_index,
    keys: *const f32,
    n: usize,
    ids: *const u64,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_index_insert", err, || {
            let mut index = exclusive(index)?;
            let keys = packed_rows(keys, n, index.dim(), "keys")?;
            let ids = if ids.is_null() { None } else { Some(cast::array(ids, n, "ids")?) };
            index.insert(keys, ids)
        })
    }
}

/// Packed f32 rows.
///
/// # Safety
/// If not NULL, `data` is readable for `n * dim` elements during `'a` and nobody writes them.
pub(crate) unsafe fn packed_rows<'a>(data: *const f32, n: usize, dim: usize, field: &'static str) -> Result<Rows<'a>> {
    // SAFETY: passed on.
    let all: &'a [f32] = unsafe { cast::array(data, cast::product(n, dim, field)?, field)? };
    // SAFETY: exactly the elements of the slice.
    unsafe { Rows::from_raw(all.as_ptr().cast(), Dtype::F32, n, dim, dim * size_of::<f32>(), field) }
}

/// Removes keys by id.
///
/// Shapes: ids [n].
/// @param ids      NULL only when n is 0.
/// @param removed  nullable. NULL: every id must be there, or nothing is removed. Else: ids that are not there are
///                 skipped, and the count of removed keys is written.
/// Errors: ICE_ERR_NOT_FOUND, ICE_ERR_DUPLICATE (an id twice); the index is as before then.
/// Threads: exclusive. Allocates: never. Cost: O(n m L log len). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_remove(
    index: *mut ice_index,
    ids: *const u64,
    n: usize,
    removed: *mut usize,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { ice_index_remove_err(index, ids, n, removed, core::ptr::null_mut()) }
}

/// As ice_index_remove, with a report.
///
/// Errors: as ice_index_remove; the message names the id.
/// Threads: exclusive. Allocates: never. Cost: as ice_index_remove. Since 0.2.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_remove_err(
    index: *mut ice_index,
    ids: *const u64,
    n: usize,
    removed: *mut usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_index_remove_err", err, || {
            let mut index = exclusive(index)?;
            let ids = cast::array(ids, n, "ids")?;
            match cast::nullable_output(removed, "removed")? {
                None => index.remove(ids),
                Some(out) => {
                    out.write(index.remove_present(ids));
                    Ok(())
                }
            }
        })
    }
}

/// Removes every key and keeps the memory; automatic ids start at 0 again.
///
/// Threads: exclusive. Allocates: never. Cost: O(capacity). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_clear(index: *mut ice_index) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { ice_index_clear_err(index, core::ptr::null_mut()) }
}

/// As ice_index_clear, with a report.
///
/// Errors: none but of the handle: ICE_ERR_NULL, ICE_ERR_STATE (freed or broken).
/// Threads: exclusive. Allocates: never. Cost: as ice_index_clear. Since 0.2.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_clear_err(index: *mut ice_index, err: *mut ice_error) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_index_clear_err", err, || {
            exclusive(index)?.clear();
            Ok(())
        })
    }
}

/// Fits the directions of the cells to the keys and to sample queries, and measures on these queries, from now on, what
/// small batches take to reach a recall. Sorted lists keep their random directions.
///
/// Cells that there are are gathered anew at once; otherwise the fit takes effect when keys are first gathered. Directions
/// that take the queries into account are used only where they are measured to find for less. At most 1072 queries are
/// kept, spread evenly over the rows; they stay when keys come and go, even all, and are saved with the index. Another call
/// replaces them, n = 0 forgets them.
///
/// Shapes: sample_queries [n, dim] packed f32, finite, n at least 128 (or 0).
/// @param sample_queries  NULL only when n is 0: the keys alone.
/// Ownership: copied.
/// Errors: ICE_ERR_UNSUPPORTED (an index without cells), ICE_ERR_ARGUMENT (too few; a query of zero norm where it has no
/// direction), ICE_ERR_NOT_FINITE, ICE_ERR_SHAPE (size overflows), ICE_ERR_NO_MEMORY, ICE_ERR_BUDGET; the index is as before
/// then.
/// Threads: exclusive. Allocates: may, not if the index was made with ICE_DIRECTIONS_FITTED. Cost: O(n dim), and up to three
/// times gathering all keys. Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_fit(index: *mut ice_index, sample_queries: *const f32, n: usize) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { ice_index_fit_err(index, sample_queries, n, core::ptr::null_mut()) }
}

/// As ice_index_fit, with a report.
///
/// Errors: as ice_index_fit; the message names the row.
/// Threads: exclusive. Allocates: as ice_index_fit. Cost: as ice_index_fit. Since 0.2.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_fit_err(
    index: *mut ice_index,
    sample_queries: *const f32,
    n: usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_index_fit_err", err, || {
            let mut index = exclusive(index)?;
            let sample = packed_rows(sample_queries, n, index.dim(), "sample_queries")?;
            index.fit((n > 0).then_some(sample))
        })
    }
}

/// Keys in the index; 0 for NULL.
///
/// Threads: shared. Allocates: never. Cost: O(1). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_len(index: *const ice_index) -> usize {
    // SAFETY: passed on by the caller.
    guard::value(0, || unsafe { Ok(shared(index)?.inner.len()) })
}

/// Keys there is room for; 0 for NULL.
///
/// Threads: shared. Allocates: never. Cost: O(1). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_capacity(index: *const ice_index) -> usize {
    // SAFETY: passed on by the caller.
    guard::value(0, || unsafe { Ok(shared(index)?.inner.capacity()) })
}

/// Elements of a key; 0 for NULL.
///
/// Threads: shared. Allocates: never. Cost: O(1). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_dim(index: *const ice_index) -> usize {
    // SAFETY: passed on by the caller.
    guard::value(0, || unsafe { Ok(shared(index)?.inner.dim()) })
}

/// Byte counts of the index.
///
/// @param out  filled by ice_memory_init before.
/// Errors: ICE_ERR_ABI (struct_size).
/// Threads: shared. Allocates: never. Cost: O(1). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_memory(index: *const ice_index, out: *mut ice_memory) -> ice_status {
    // SAFETY: passed on by the caller.
    guard::plain(|| unsafe {
        let index = shared(index)?;
        cast::SizedOutput::new(out, "out")?.write(memory::report(index.inner.memory()));
        Ok(())
    })
}
