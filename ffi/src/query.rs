//! Questions to an index: neighbours, and attention of one head over it.

use crate::cast::{self, choice};
use crate::index::packed_rows;
use crate::object::{Object, exclusive, shared};
use crate::overlap::{self, Place};
use crate::scratch::QueryState;
use crate::types::*;
use crate::view::names;
use crate::{guard, view};
use iceformer_core::attention::{IndexProblem, Mask, Mode, index_attention};
use iceformer_core::dci::{Engine, Neighbor, QueryOptions};
use iceformer_core::mem::{Memory, RowsMut};
use iceformer_core::{Error, Result, Status};

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
        filter: core::ptr::null(),
        filter_len: 0,
    };
    // SAFETY: passed on.
    unsafe { cast::init(options, value) };
}

/// # Safety
/// If not NULL, `filter` is readable for `filter_len` bytes during `'a` and nobody writes them.
unsafe fn query_options<'a>(o: &ice_query_options) -> Result<QueryOptions<'a>> {
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
        engine: choice(o.engine, "engine", &[Engine::Auto, Engine::Walk, Engine::Scan, Engine::Cells])?,
        filter: if o.filter.is_null() && o.filter_len == 0 {
            None
        } else {
            // SAFETY: passed on.
            Some(unsafe { cast::array(o.filter, o.filter_len, "filter")? })
        },
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
unsafe fn with_scratch<T>(
    index: &Object<ice_index>,
    scratch: *mut ice_scratch,
    make: impl FnOnce(&Memory) -> Result<QueryState>,
    body: impl FnOnce(&mut QueryState) -> Result<T>,
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
    body(&mut make(&memory)?)
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
        with_scratch(
            index,
            q.scratch,
            |m| QueryState::plain(index, m),
            |s| {
                let s = &mut s.scratch;
                if exact {
                    index.inner.query_exact(s, queries, &options, out, counts)
                } else {
                    index.inner.query(s, queries, &options, out, counts)
                }
            },
        )
    }
}

/// Finds the neighbours of each query by Prioritized DCI or by cells, best first, equal scores by smaller id.
///
/// Shapes: queries [n_queries, dim] packed f32; out [n_queries, k]; counts [n_queries].
/// @param scratch  nullable: a temporary one is made per call.
/// @param queries  finite; NULL only when n_queries is 0.
/// @param counts   nullable: answers per query; entries of `out` behind them have the id UINT64_MAX.
/// Errors: ICE_ERR_NOT_FINITE (row), ICE_ERR_ARGUMENT (field and value; a query of norm zero unless the metric is L2),
/// ICE_ERR_SHAPE, ICE_ERR_ABI. ICE_ERR_UNSUPPORTED: an engine that the index was not made for. ICE_ERR_CAPACITY: scratch made
/// before the index grew. Without scratch also ICE_ERR_NO_MEMORY, ICE_ERR_NULL (no system allocator).
/// Threads: shared, one scratch per thread. Allocates: never with a scratch. Cost: O(visit m L log(m)) per query by lists;
/// by cells O(dim rank + visit rank / 4 + retrieve dim), rank at most 128.
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
        let values = view::tensor(&values, [1, 1, ids, a.dim_v], names!("values"))?;
        let options = match cast::nullable_sized(a.options, "options")? {
            Some(o) => view::attention_options(&o)?,
            None => Default::default(),
        };
        let mask = match cast::nullable_sized(a.mask, "mask")? {
            Some(m) => view::mask(&m, a.n, ids)?,
            None => Mask::None,
        };
        let queries_place = Place::array(a.queries, a.n * index.inner.dim());
        let inputs = [queries_place, Place::of(&values), Place::of_mask(&mask, 1, 1)];
        let out = Place::array(a.out, cast::product(a.n, a.dim_v, "out")?);
        overlap::refuse(&[(out, "out"), (Place::array(a.lse, a.n), "lse")], &inputs)?;
        let out = cast::array_mut(a.out, cast::product(a.n, a.dim_v, "out")?, "out")?;
        let lse = if a.lse.is_null() { None } else { Some(cast::array_mut(a.lse, a.n, "lse")?) };
        let mut out = RowsMut::new(out, a.dim_v)?;
        // Retrieved keys are attended row by row.
        let make = |m: &_| match options.mode {
            Mode::TopK => QueryState::plain(index, m),
            _ => QueryState::roomy(index, a.dim_v, m),
        };
        with_scratch(index, a.scratch, make, |s| {
            let (scratch, room, stats) = s.parts();
            let done = index_attention(
                &IndexProblem::new(&index.inner, queries, values.head(0, 0)).mask(mask).options(options),
                scratch,
                room,
                &mut out,
                lse,
            )?;
            *stats = Some(done);
            Ok(())
        })
    }
}

/// One head over an index: each query row attends to the keys that the index retrieves for it (ICE_MODE_TOP_K: the
/// paper's Algorithm 1), to all of them (ICE_MODE_EXACT), or to all of them in the sense of ICE_MODE_ACCELERATED: keys that
/// matter one by one, the others by means, with an output error of about `tolerance`. ICE_MODE_AUTO takes that where it is
/// cheaper and keeps the tolerance. Several heads that share keys and values may be rows of one call.
///
/// With a scratch for attention (ice_scratch_new_attention), or none, rows are taken by blocks. Keys are brought into the
/// order in which an index with cells has gathered them, like beside like, and means are taken of them and of the values, in
/// every call anew: O(len (dim + dim_v)), as much as some hundred rows of exact attention, so bring many rows at a time. For
/// that all rows must see the same keys; where a mask or window lets them see different ones, keys are taken in the order of
/// ids instead. Under a bias exact attention goes row by row, unless ids are 0, 1, 2.. in the order of insertion and none was
/// removed: then rows are taken as in ice_attention. With another scratch exact attention goes row by row, and accelerated
/// attention is refused.
///
/// Shapes: queries [n_queries, dim] packed f32; values [id range, dim_v]; out [n_queries, dim_v] packed; lse
/// [n_queries]. The id range goes from 0 to the largest id in the index, that included; row `id` of `values` belongs to
/// the key with that id. Mask positions are ids: rows_kv of the mask is the id range.
/// @param scratch  nullable: a temporary one is made per call.
/// @param values   the tensor's head and batch strides are not used.
/// @param mask     nullable: every key is visible.
/// @param options  nullable: all defaults.
/// @param lse      nullable: log-sum-exp of each row's logits.
/// Errors: ICE_ERR_NOT_FINITE (row), ICE_ERR_ARGUMENT (also an output that overlaps what is read), ICE_ERR_SHAPE (also a
/// scratch made for another dim_v), ICE_ERR_STRIDE, ICE_ERR_ABI. ICE_ERR_UNSUPPORTED: an L2 index, num_threads above 1,
/// ICE_ATTENTION_SHARED_QK. ICE_ERR_CAPACITY: scratch made before the index grew, or not for attention in
/// ICE_MODE_ACCELERATED. Without scratch also ICE_ERR_NO_MEMORY.
/// Threads: shared, one scratch per thread. Allocates: never with a scratch. Cost: O(n_queries) queries of top_k keys,
/// or O(n_queries len (dim + dim_v)); in accelerated mode what ice_scratch_stats says, pairs of pairs_dense.
/// Since 0.1.
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
