//! The index: keys with ids, nearest neighbours, attention of one head over it.

use crate::alloc_hook::Source;
use crate::cast::{self, choice};
use crate::object::{self, Object, exclusive, shared};
use crate::types::*;
use crate::view::names;
use crate::{guard, memory, view};
use core::ffi::c_void;
use iceformer_core::attention::{Mask, index_attention};
use iceformer_core::dci::{Directions, Engine, Index, IndexOptions, Metric, Neighbor, QueryOptions, Scratch};
use iceformer_core::mem::{Dtype, Layout, Rows, RowsMut};
use iceformer_core::{Error, Result, Status};

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
    let options = IndexOptions {
        dim: o.dim as usize,
        metric: choice(o.metric, "metric", &[Metric::InnerProduct, Metric::L2])?,
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
    };
    options.resolve()?;
    Ok((options, o.memory_limit, o.allocator))
}

fn layout(options: &IndexOptions) -> Result<Layout> {
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
    guard::plain(|| unsafe { exclusive(index)?.reserve(capacity) })
}

/// Inserts `n` keys, all or none.
///
/// Shapes: keys [n, dim] packed f32; ids [n].
/// @param keys  finite; NULL only when n is 0.
/// @param ids   nullable: the next unused ids are taken, from 0 in a new index.
/// Ownership: everything is copied.
/// Errors: ICE_ERR_NOT_FINITE (row), ICE_ERR_DUPLICATE (id), ICE_ERR_CAPACITY, ICE_ERR_NO_MEMORY, ICE_ERR_BUDGET,
/// ICE_ERR_SHAPE (size overflows), ICE_ERR_ARGUMENT (the id UINT64_MAX); the index is as before then.
/// Threads: exclusive. Allocates: within reserve. Cost: O(n m L log len). Since 0.1.
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
unsafe fn packed_rows<'a>(data: *const f32, n: usize, dim: usize, field: &'static str) -> Result<Rows<'a>> {
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
    guard::plain(|| unsafe {
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

/// Removes every key and keeps the memory; automatic ids start at 0 again.
///
/// Threads: exclusive. Allocates: never. Cost: O(capacity). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_clear(index: *mut ice_index) -> ice_status {
    // SAFETY: passed on by the caller.
    guard::plain(|| unsafe {
        exclusive(index)?.clear();
        Ok(())
    })
}

/// Fits the directions to the keys and to sample queries. This version answers ICE_ERR_UNSUPPORTED.
///
/// Shapes: sample_queries [n, dim] packed f32, finite.
/// @param sample_queries  NULL only when n is 0: the keys alone.
/// Errors: ICE_ERR_UNSUPPORTED, ICE_ERR_NOT_FINITE, ICE_ERR_NO_MEMORY, ICE_ERR_BUDGET.
/// Threads: exclusive. Allocates: may. Cost: O((len + n) dim^2). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_fit(index: *mut ice_index, sample_queries: *const f32, n: usize) -> ice_status {
    // SAFETY: passed on by the caller.
    guard::plain(|| unsafe {
        let mut index = exclusive(index)?;
        let sample = packed_rows(sample_queries, n, index.dim(), "sample_queries")?;
        index.fit((n > 0).then_some(sample))
    })
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

/// Prepares query options for `k` neighbours: everything else default. NULL does nothing.
///
/// Threads: any. Allocates: never. Since 0.1.
///
/// # Safety
/// `options` is NULL or writable for an ice_query_options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_query_options_init(options: *mut ice_query_options, k: u32) {
    let value = ice_query_options {
        struct_size: size_of::<ice_query_options>() as u32,
        k,
        visit: 0,
        retrieve: 0,
        visit_fraction: 0.0,
        retrieve_fraction: 0.0,
        field_of_view: 0,
        target_recall: 0.0,
        id_begin: 0,
        id_end: 0,
        engine: ICE_ENGINE_AUTO,
        flags: 0,
    };
    // SAFETY: passed on.
    unsafe { cast::init(options, value) };
}

fn query_options(o: &ice_query_options) -> Result<QueryOptions> {
    cast::flags(o.flags, 0, "flags")?;
    let options = QueryOptions {
        k: o.k as usize,
        visit: o.visit as usize,
        retrieve: o.retrieve as usize,
        visit_fraction: o.visit_fraction,
        retrieve_fraction: o.retrieve_fraction,
        field_of_view: o.field_of_view as usize,
        target_recall: o.target_recall,
        id_begin: o.id_begin,
        id_end: o.id_end,
        engine: choice(o.engine, "engine", &[Engine::Auto, Engine::Walk, Engine::Scan])?,
    };
    options.resolve()?;
    Ok(options)
}

// Answers are written by the core straight into the caller's array.
const _: () = assert!(
    size_of::<ice_neighbor>() == size_of::<Neighbor>()
        && align_of::<ice_neighbor>() == align_of::<Neighbor>()
        && core::mem::offset_of!(ice_neighbor, id) == core::mem::offset_of!(Neighbor, id)
        && core::mem::offset_of!(ice_neighbor, score) == core::mem::offset_of!(Neighbor, score)
);

/// Runs `body` with the caller's scratch, or with a temporary one from where the index has its memory.
///
/// # Safety
/// `scratch` is NULL or a handle used by nobody else meanwhile.
pub(crate) unsafe fn with_scratch<T>(
    index: &Object<ice_index>,
    scratch: *mut ice_scratch,
    body: impl FnOnce(&mut Scratch) -> Result<T>,
) -> Result<T> {
    if !scratch.is_null() {
        // SAFETY: passed on.
        return body(&mut *unsafe { exclusive(scratch)? });
    }
    if !index.source.exists() {
        return Err(Error::new(Status::Null, "scratch", "is NULL and this build has no system allocator"));
    }
    // An accounting of its own: that of the index may not change in a shared call.
    let memory = index.source.memory(0)?;
    body(&mut Scratch::new_in(&index.inner, &memory)?)
}

struct Query {
    scratch: *mut ice_scratch,
    queries: *const f32,
    n: usize,
    options: *const ice_query_options,
    out: *mut ice_neighbor,
    counts: *mut u32,
}

/// The two query functions, which differ in one call.
///
/// # Safety
/// Pointers are valid as the header says.
unsafe fn query(index: *const ice_index, q: Query, exact: bool) -> Result<()> {
    // SAFETY: passed on.
    unsafe {
        let index = shared(index)?;
        let options = query_options(&cast::sized(q.options, "options")?)?;
        let queries = packed_rows(q.queries, q.n, index.inner.dim(), "queries")?;
        let out = cast::array_mut(q.out.cast::<Neighbor>(), cast::product(q.n, options.k, "out")?, "out")?;
        let counts = if q.counts.is_null() { None } else { Some(cast::array_mut(q.counts, q.n, "counts")?) };
        with_scratch(index, q.scratch, |s| {
            if exact {
                index.inner.query_exact(s, queries, &options, out, counts)
            } else {
                index.inner.query(s, queries, &options, out, counts)
            }
        })
    }
}

/// Finds the neighbours of each query by Prioritized DCI, best first, equal scores by smaller id.
///
/// Shapes: queries [n_queries, dim] packed f32; out [n_queries, k]; counts [n_queries].
/// @param scratch  nullable: a temporary one is made per call.
/// @param queries  finite; NULL only when n_queries is 0.
/// @param counts   nullable: answers per query; entries of `out` behind them have the id UINT64_MAX.
/// Errors: ICE_ERR_NOT_FINITE (row), ICE_ERR_ARGUMENT (field and value; a query of norm zero under the inner product),
/// ICE_ERR_SHAPE, ICE_ERR_CAPACITY (scratch made before the index grew), ICE_ERR_ABI; without scratch also
/// ICE_ERR_NO_MEMORY, ICE_ERR_NULL (no system allocator).
/// Threads: shared, one scratch per thread. Allocates: never with a scratch. Cost: O(visit m L log(m)) per query.
/// Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_query(
    index: *const ice_index,
    scratch: *mut ice_scratch,
    queries: *const f32,
    n_queries: usize,
    options: *const ice_query_options,
    out: *mut ice_neighbor,
    counts: *mut u32,
    err: *mut ice_error,
) -> ice_status {
    let q = Query { scratch, queries, n: n_queries, options, out, counts };
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_index_query", err, || query(index, q, false)) }
}

/// Finds the neighbours of each query by brute force: the oracle of ice_index_query, same contract.
///
/// Shapes: queries [n_queries, dim] packed f32; out [n_queries, k]; counts [n_queries].
/// @param scratch, queries, options, counts  as in ice_index_query; budgets are checked and not used.
/// Errors: as ice_index_query.
/// Threads: shared, one scratch per thread. Allocates: never with a scratch. Cost: O(len dim) per query. Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_query_exact(
    index: *const ice_index,
    scratch: *mut ice_scratch,
    queries: *const f32,
    n_queries: usize,
    options: *const ice_query_options,
    out: *mut ice_neighbor,
    counts: *mut u32,
    err: *mut ice_error,
) -> ice_status {
    let q = Query { scratch, queries, n: n_queries, options, out, counts };
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_index_query_exact", err, || query(index, q, true)) }
}

struct Attention {
    scratch: *mut ice_scratch,
    queries: *const f32,
    n: usize,
    values: *const ice_tensor,
    dim_v: usize,
    mask: *const ice_mask,
    options: *const ice_attention_options,
    out: *mut f32,
    lse: *mut f32,
}

/// One head over an index.
///
/// # Safety
/// Pointers are valid as the header says.
unsafe fn attend(index: *const ice_index, a: Attention) -> Result<()> {
    // SAFETY: passed on.
    unsafe {
        let index = shared(index)?;
        let queries = packed_rows(a.queries, a.n, index.inner.dim(), "queries")?;
        let values = *cast::pointer(a.values, "values")?.as_ref();
        if a.dim_v == 0 {
            return Err(Error::new(Status::Shape, "dim_v", "must be at least 1").value(0));
        }
        let ids = cast::count(index.inner.ids().max().map_or(0, |id| id + 1));
        let values = view::tensor(&values, [1, 1, ids, a.dim_v], names!("values"))?.head(0, 0);
        let options = match cast::nullable_sized(a.options, "options")? {
            Some(o) => view::attention_options(&o)?,
            None => Default::default(),
        };
        let mask = match cast::nullable_sized(a.mask, "mask")? {
            Some(m) => view::mask(&m, a.n, ids)?,
            None => Mask::None,
        };
        let out = cast::array_mut(a.out, cast::product(a.n, a.dim_v, "out")?, "out")?;
        let lse = if a.lse.is_null() { None } else { Some(cast::array_mut(a.lse, a.n, "lse")?) };
        let mut out = RowsMut::new(out, a.dim_v)?;
        with_scratch(index, a.scratch, |s| {
            index_attention(&index.inner, s, queries, values, mask, &options, &mut out, lse).map(drop)
        })
    }
}

/// One head over an index: each query row attends to the keys that the index retrieves for it (ICE_MODE_TOP_K: the
/// paper's Algorithm 1) or to all of them (ICE_MODE_EXACT).
///
/// Shapes: queries [n_queries, dim] packed f32; values [id range, dim_v]; out [n_queries, dim_v] packed; lse
/// [n_queries]. The id range goes from 0 to the largest id in the index, that included; row `id` of `values` belongs to
/// the key with that id. Mask positions are ids: rows_kv of the mask is the id range.
/// @param scratch  nullable: a temporary one is made per call.
/// @param values   the tensor's head and batch strides are not used.
/// @param mask     nullable: every key is visible.
/// @param options  nullable: all defaults.
/// @param lse      nullable: log-sum-exp of each row's logits.
/// Errors: ICE_ERR_NOT_FINITE (row), ICE_ERR_ARGUMENT, ICE_ERR_SHAPE, ICE_ERR_STRIDE, ICE_ERR_UNSUPPORTED (an L2 index,
/// num_threads above 1, ICE_ATTENTION_SHARED_QK), ICE_ERR_CAPACITY (scratch made before the index grew), ICE_ERR_ABI;
/// without scratch also ICE_ERR_NO_MEMORY.
/// Threads: shared, one scratch per thread. Allocates: never with a scratch. Cost: O(n_queries) queries of top_k keys,
/// or O(n_queries len (dim + dim_v)). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_index_attention(
    index: *const ice_index,
    scratch: *mut ice_scratch,
    queries: *const f32,
    n_queries: usize,
    values: *const ice_tensor,
    dim_v: u32,
    mask: *const ice_mask,
    options: *const ice_attention_options,
    out: *mut f32,
    lse: *mut f32,
    err: *mut ice_error,
) -> ice_status {
    let dim_v = dim_v as usize;
    let a = Attention { scratch, queries, n: n_queries, values, dim_v, mask, options, out, lse };
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_index_attention", err, || attend(index, a)) }
}

/// How an object is written into a buffer of the caller: NULL with `cap` 0 asks for the size.
///
/// # Safety
/// If not NULL, `buf` is writable for `cap` bytes and `needed` for one number.
pub(crate) unsafe fn save(
    buf: *mut c_void,
    cap: usize,
    needed: *mut usize,
    len: usize,
    write: impl FnOnce(&mut [u8]) -> Result<usize>,
) -> Result<()> {
    let needed = cast::nullable_output(needed, "needed")?;
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
        bytes = write(out)?;
    }
    if let Some(p) = needed {
        // SAFETY: checked above.
        unsafe { p.write(bytes) };
    }
    Ok(())
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
    guard::plain(|| unsafe {
        let index = &shared(index)?.inner;
        save(buf, cap, needed, index.save_len(), |out| index.save(out))
    })
}

/// Makes an index from saved bytes.
///
/// @param buf        written by ice_index_save, any alignment.
/// @param len        bytes of `buf`.
/// @param allocator  nullable: the system allocator.
/// @param out        receives the index; free it with ice_index_free.
/// Ownership: nothing of `buf` is kept.
/// Errors: ICE_ERR_BUFFER (damaged, foreign or cut), ICE_ERR_ABI, ICE_ERR_NO_MEMORY.
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
    unsafe {
        guard::call("ice_index_load", err, || {
            let bytes = saved(buf, len)?;
            let source = Source::from_c(allocator)?;
            let out = cast::output(out, "out")?;
            let object = object::create::<ice_index>(source, 0, |m| Index::load(bytes, m))?;
            out.write(object.as_ptr().cast());
            Ok(())
        })
    }
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

/// Bytes and alignment of the memory that ice_index_load_in needs for these saved bytes.
///
/// @param bytes, align  outputs, in bytes.
/// Errors: ICE_ERR_BUFFER (damaged, foreign or cut), ICE_ERR_ABI.
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
            let options = Index::peek(saved(buf, len)?)?;
            put_layout(|| layout(&options), bytes, align)
        })
    }
}

/// Makes an index from saved bytes wholly inside caller memory.
///
/// @param mem    aligned to 64 bytes; stays in place and untouched until ice_index_free.
/// @param bytes  at least what ice_index_load_required says.
/// @param buf, len  as in ice_index_load.
/// Errors: as ice_index_load, ICE_ERR_ALIGNMENT, ICE_ERR_BUFFER (need and have).
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
        guard::call("ice_index_load_in", err, || {
            let saved = saved(buf, len)?;
            let out = cast::output(out, "out")?;
            let need = layout(&Index::peek(saved)?)?;
            let object = object::create_in::<ice_index>(mem.cast(), bytes, need, 0, |m| Index::load(saved, m))?;
            out.write(object.as_ptr().cast());
            Ok(())
        })
    }
}
