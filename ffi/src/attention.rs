//! Attention in one call, and the small rules around it.

use crate::alloc_hook::{Source, work as work_memory};
use crate::cast::{self, product};
use crate::memory::put_layout;
use crate::overlap::{self, Place};
use crate::types::*;
use crate::view::{self, Names, UNTOUCHED, names};
use crate::{guard, view::tensor, view::tensor_mut};
use core::ffi::c_void;
use core::ptr::{null, null_mut};
use iceformer_core::attention::{self, Problem};
use iceformer_core::features::SHARED_QK;
use iceformer_core::mem::{Tensor, TensorMut};
use iceformer_core::{Error, Result, Status};

const NO_TENSOR: ice_tensor =
    ice_tensor { data: null(), dtype: ICE_F32, row_stride: 0, head_stride: 0, batch_stride: 0 };
const NO_TENSOR_MUT: ice_tensor_mut =
    ice_tensor_mut { data: null_mut(), dtype: ICE_F32, row_stride: 0, head_stride: 0, batch_stride: 0 };
const NO_MASK: ice_mask = ice_mask {
    struct_size: size_of::<ice_mask>() as u32,
    kind: ICE_MASK_NONE,
    q_pos0: ICE_POSITION_LAST,
    prefix: null(),
    prefix_len: 0,
    keys: null(),
    keys_len: 0,
    bias: NO_TENSOR,
    bias_heads: 0,
    bias_batch: 0,
    reserved: [0; 8],
};
pub(crate) const DEFAULT_OPTIONS: ice_attention_options = ice_attention_options {
    struct_size: size_of::<ice_attention_options>() as u32,
    mode: ICE_MODE_AUTO,
    tolerance: 0.0,
    top_k: 0,
    scale: 0.0,
    softcap: 0.0,
    window: 0,
    sinks: 0,
    seed: 0,
    num_threads: 0,
    levels: 0,
    num_simple: 0,
    num_composite: 0,
    field_of_view: 0,
    retrieve_fraction: 0.0,
    flags: 0,
    reserved: [0; 9],
};

/// Prepares a mask of kind ICE_MASK_NONE, with q_pos0 ICE_POSITION_LAST. NULL does nothing.
///
/// Threads: any. Allocates: never. Since 0.1.
///
/// # Safety
/// `mask` is NULL or writable for an ice_mask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_mask_init(mask: *mut ice_mask) {
    // SAFETY: passed on.
    unsafe { cast::init(mask, NO_MASK) };
}

/// Prepares attention options with all defaults. NULL does nothing.
///
/// Threads: any. Allocates: never. Since 0.1.
///
/// # Safety
/// `options` is NULL or writable for an ice_attention_options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_attention_options_init(options: *mut ice_attention_options) {
    // SAFETY: passed on.
    unsafe { cast::init(options, DEFAULT_OPTIONS) };
}

/// Prepares a description: its mask and options initialised, everything else 0. NULL does nothing.
///
/// Threads: any. Allocates: never. Since 0.1.
///
/// # Safety
/// `desc` is NULL or writable for an ice_attention_desc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_attention_desc_init(desc: *mut ice_attention_desc) {
    let value = ice_attention_desc {
        struct_size: size_of::<ice_attention_desc>() as u32,
        batch: 0,
        heads_q: 0,
        heads_kv: 0,
        dim_k: 0,
        dim_v: 0,
        rows_q: 0,
        rows_kv: 0,
        q: NO_TENSOR,
        k: NO_TENSOR,
        v: NO_TENSOR,
        out: NO_TENSOR_MUT,
        lse: null_mut(),
        mask: NO_MASK,
        options: DEFAULT_OPTIONS,
        bounds: null_mut(),
    };
    // SAFETY: passed on.
    unsafe { cast::init(desc, value) };
}

const NO_STATS: ice_attention_stats = ice_attention_stats {
    struct_size: 0,
    mode: ICE_MODE_AUTO,
    reason: ICE_REASON_REQUESTED,
    estimated_mass: 0.0,
    certified_error: 0.0,
    score_error: 0.0,
    pairs: 0,
    pairs_dense: 0,
    cells_opened: 0,
    build_seconds: 0.0,
    attend_seconds: 0.0,
    rows: 0,
    certified_mean: 0.0,
    certificates: 0,
    certified: 0,
    rows_measured: 0,
    rows_exact: 0,
    rows_short: 0,
    rows_strict: 0,
    rows_costly: 0,
    known_pairs: 0,
    measured_error: 0.0,
    measured_p95: 0.0,
    measured_worst: 0.0,
};

/// Prepares statistics: size set, everything else 0. NULL does nothing. In C and C++ a macro of this name, at the end of the
/// header, prepares the whole struct that the program was built with. The function itself prepares the struct of version 0.1,
/// up to `certified`, for programs built then.
///
/// Threads: any. Allocates: never. Since 0.1.
///
/// # Safety
/// `stats` is NULL or writable for an ice_attention_stats of version 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_attention_stats_init(stats: *mut ice_attention_stats) {
    // SAFETY: passed on.
    unsafe { cast::init_sized(stats, <ice_attention_stats as cast::SizedStruct>::MIN, NO_STATS) };
}

/// Prepares statistics of a given size: size set, everything else 0. NULL does nothing.
///
/// @param struct_size  bytes of `stats`: sizeof (ice_attention_stats). The size set is what the library knows of them: less
///                     where the program was built with a newer header. 0 where it is less than in any version.
/// Threads: any. Allocates: never. Since 0.2.
///
/// # Safety
/// `stats` is NULL or writable for `struct_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_attention_stats_init_sized(stats: *mut ice_attention_stats, struct_size: usize) {
    // SAFETY: passed on.
    unsafe { cast::init_sized(stats, struct_size, NO_STATS) };
}

/// Which tensors of a description a function touches; the others may be NULL.
#[derive(Clone, Copy, PartialEq)]
enum Touched {
    /// None: only sizes are asked for.
    Nothing,
    /// Queries and keys.
    QueriesAndKeys,
    /// Everything.
    All,
}

/// Checks a description and makes the core's problem of it.
///
/// # Safety
/// The tensors that `touched` names, and the mask's arrays, are valid as the header says.
unsafe fn problem<'a>(desc: *const ice_attention_desc, touched: Touched) -> Result<Problem<'a>> {
    // SAFETY: passed on.
    let d = unsafe { cast::sized(desc, "desc")? };
    cast::embedded::<ice_mask>(d.mask.struct_size, "desc.mask")?;
    cast::embedded::<ice_attention_options>(d.options.struct_size, "desc.options")?;
    let or = |x: u32, d: usize| if x == 0 { d } else { x as usize };
    let (batch, heads_q, dim_k) = (or(d.batch, 1), or(d.heads_q, 1), d.dim_k as usize);
    let (heads_kv, dim_v) = (or(d.heads_kv, heads_q), or(d.dim_v, dim_k));
    if dim_k == 0 {
        return Err(Error::new(Status::Shape, "dim_k", "must be at least 1").value(0));
    }
    if !heads_q.is_multiple_of(heads_kv) {
        return Err(Error::new(Status::Shape, "heads_kv", "does not divide heads_q").value(heads_kv as u64));
    }
    let mut options = view::attention_options(&d.options)?;
    options.built()?;
    let shared = SHARED_QK && options.shared_qk;
    if shared && d.rows_q != d.rows_kv {
        let e = Error::new(Status::Shape, "rows_kv", "must equal rows_q when queries and keys are shared");
        return Err(e.value(d.rows_kv as u64));
    }
    // Every count of rows must fit the address space, or the core's arithmetic would not.
    product(product(batch, heads_q, "heads_q")?, d.rows_q, "rows_q")?;
    product(product(batch, heads_kv, "heads_kv")?, d.rows_kv, "rows_kv")?;
    let read = |t: ice_tensor, shape, names: Names, touched: bool| {
        let t = if touched { t } else { ice_tensor { data: UNTOUCHED.cast(), ..t } };
        // SAFETY: passed on, or not touched.
        unsafe { tensor(&t, shape, names) }
    };
    let (inputs, all) = (touched != Touched::Nothing, touched == Touched::All);
    // Nothing is read then, so there is nothing to check for NaN.
    options.trusted |= !inputs;
    let q = read(d.q, [batch, heads_q, d.rows_q, dim_k], names!("q"), inputs)?;
    let k: Tensor<'a> = if shared { q } else { read(d.k, [batch, heads_kv, d.rows_kv, dim_k], names!("k"), inputs)? };
    let v = if touched == Touched::QueriesAndKeys {
        k
    } else {
        read(d.v, [batch, heads_kv, d.rows_kv, dim_v], names!("v"), all)?
    };
    let out_shape = [batch, heads_q, d.rows_q, if touched == Touched::QueriesAndKeys { dim_k } else { dim_v }];
    let out: TensorMut<'a> = match touched {
        // SAFETY: passed on.
        Touched::All => unsafe { tensor_mut(&d.out, out_shape, names!("out"))? },
        _ => {
            let place = if touched == Touched::Nothing { d.out } else { NO_TENSOR_MUT };
            // SAFETY: not touched.
            unsafe { tensor_mut(&ice_tensor_mut { data: UNTOUCHED.cast(), ..place }, out_shape, names!("out"))? }
        }
    };
    let [lse, bounds] = match touched {
        Touched::QueriesAndKeys => [null_mut(); 2],
        _ => [d.lse, d.bounds],
    };
    // SAFETY: passed on.
    let (lse, bounds, mask) = unsafe {
        (
            view::by_row(lse, batch, heads_q, d.rows_q, "lse")?,
            view::by_row(bounds, batch, heads_q, d.rows_q, "bounds")?,
            view::mask(&d.mask, d.rows_q, d.rows_kv)?,
        )
    };
    if all {
        let inputs = [Place::of(&q), Place::of(&k), Place::of(&v), Place::of_mask(&mask, batch, heads_q)];
        let by_row = |p: *mut f32| Place::array(p, batch * heads_q * d.rows_q);
        let outputs = [(Place::of_mut(&out), "out"), (by_row(d.lse), "lse"), (by_row(d.bounds), "bounds")];
        overlap::refuse(&outputs, &inputs)?;
    }
    Ok(Problem { q, k, v, out, lse, bounds, mask, options })
}

/// Computes attention for all heads of a description.
///
/// Shapes: in ice_attention_desc; query head h uses key-value head h * heads_kv / heads_q.
/// @param work        nullable: memory is then allocated for the call. Else aligned to 64 bytes.
/// @param work_bytes  bytes of `work`, at least what ice_attention_required says; 0 when `work` is NULL.
/// @param stats       nullable; filled by ice_attention_stats_init before.
/// Rows that see no key get zeros, and lse -inf. Outputs share no byte with inputs or each other.
/// Errors: ICE_ERR_NULL, ICE_ERR_SHAPE, ICE_ERR_STRIDE, ICE_ERR_ALIGNMENT (field), ICE_ERR_NOT_FINITE (row),
/// ICE_ERR_ARGUMENT (field and value; an output that overlaps), ICE_ERR_UNSUPPORTED, ICE_ERR_BUFFER (work too small),
/// ICE_ERR_NO_MEMORY, ICE_ERR_ABI.
/// Threads: any, with its own work and outputs; options.num_threads are used inside. Allocates: never with work.
/// Cost: O(batch heads_q rows_q rows_kv (dim_k + dim_v)) exact; top_k instead of rows_kv, and the index, in top-k mode;
/// in accelerated mode what stats->pairs of stats->pairs_dense says, and the gathering of the keys into cells.
/// Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_attention(
    desc: *const ice_attention_desc,
    work: *mut c_void,
    work_bytes: usize,
    stats: *mut ice_attention_stats,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_attention", err, || {
            let stats = stats_output(stats)?;
            let mut problem = problem(desc, Touched::All)?;
            let mut need = 0;
            if !work.is_null() {
                // Inputs are checked once, by the call itself.
                let trusted = core::mem::replace(&mut problem.options.trusted, true);
                need = attention::required(&problem)?.bytes;
                problem.options.trusted = trusted;
            }
            let memory = work_memory(work.cast(), work_bytes, need, Source::System)?;
            let done = attention::attention(&problem, &memory)?;
            if let Some(out) = stats {
                out.write(view::stats(&done));
            }
            Ok(())
        })
    }
}

/// Checks where statistics go, if anywhere.
///
/// # Safety
/// As [`cast::SizedOutput::new`].
pub(crate) unsafe fn stats_output(
    p: *mut ice_attention_stats,
) -> Result<Option<cast::SizedOutput<ice_attention_stats>>> {
    // SAFETY: passed on.
    if p.is_null() { Ok(None) } else { unsafe { cast::SizedOutput::new(p, "stats") }.map(Some) }
}

/// Bytes and alignment of the work memory that ice_attention needs for this description. The data of q, k, v and out
/// is not touched and may be NULL.
///
/// @param bytes, align  outputs, in bytes.
/// Errors: as ice_attention.
/// Threads: any. Allocates: never. Cost: O(1), or the size of the mask. Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_attention_required(
    desc: *const ice_attention_desc,
    bytes: *mut usize,
    align: *mut usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_attention_required", err, || {
            put_layout(|| attention::required(&problem(desc, Touched::Nothing)?), bytes, align)
        })
    }
}

/// Merges attention over two disjoint sets of keys: out_a and lse_a become those of the union.
///
/// Shapes: out_a, out_b [rows, dim_v] packed; lse_a, lse_b [rows].
/// Errors: ICE_ERR_NULL, ICE_ERR_ALIGNMENT, ICE_ERR_SHAPE (dim_v 0, or a size overflows), ICE_ERR_ARGUMENT (an output overlaps).
/// Threads: any, exclusive in out_a and lse_a. Allocates: never. Cost: O(rows dim_v). Since 0.1.
///
/// # Safety
/// Pointers are valid as described; the outputs do not overlap the inputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_attention_merge(
    out_a: *mut f32,
    lse_a: *mut f32,
    out_b: *const f32,
    lse_b: *const f32,
    rows: usize,
    dim_v: u32,
) -> ice_status {
    // SAFETY: passed on by the caller.
    guard::plain(|| unsafe {
        let dim_v = dim_v as usize;
        if dim_v == 0 {
            return Err(Error::new(Status::Shape, "dim_v", "must be at least 1").value(0));
        }
        let n = product(rows, dim_v, "rows")?;
        cast::array(out_a.cast_const(), n, "out_a")?;
        cast::array(lse_a.cast_const(), rows, "lse_a")?;
        let outputs = [(Place::array(out_a, n), "out_a"), (Place::array(lse_a, rows), "lse_a")];
        overlap::refuse(&outputs, &[Place::array(out_b, n), Place::array(lse_b, rows)])?;
        let out_a = cast::array_mut(out_a, n, "out_a")?;
        let lse_a = cast::array_mut(lse_a, rows, "lse_a")?;
        let out_b = cast::array(out_b, n, "out_b")?;
        let lse_b = cast::array(lse_b, rows, "lse_b")?;
        attention::merge(out_a, lse_a, out_b, lse_b, dim_v)
    })
}

/// The paper's rule for k among `n` keys: max(min(floor(n alpha), 50), 30).
///
/// Threads: any. Allocates: never. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ice_top_k_for(n: usize, alpha: f32) -> u32 {
    guard::value(30, || Ok(u32::try_from(attention::top_k_for(n, alpha)).unwrap_or(u32::MAX)))
}

/// Share of the softmax mass on the `k` heaviest keys of each head: says which layers are worth accelerating.
///
/// Shapes: mass [batch, heads_q]. Only q, k, mask and options of the description are used.
/// @param k            at least 1.
/// @param sample_rows  query rows looked at per head, evenly spaced; 0 = 64.
/// Errors: as ice_attention.
/// Threads: any. Allocates: may (system allocator). Cost: O(batch heads_q sample_rows rows_kv dim_k). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_attention_sparsity(
    desc: *const ice_attention_desc,
    k: u32,
    sample_rows: usize,
    mass: *mut f32,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_attention_sparsity", err, || {
            let problem = problem(desc, Touched::QueriesAndKeys)?;
            if k == 0 {
                return Err(Error::new(Status::Argument, "k", "must be at least 1").value(0));
            }
            let [batch, heads, ..] = problem.q.shape();
            let mass = cast::array_mut(mass, product(batch, heads, "heads_q")?, "mass")?;
            let memory = Source::System.memory(0)?;
            attention::sparsity(&problem, k as usize, sample_rows, mass, &memory)
        })
    }
}
