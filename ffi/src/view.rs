//! From descriptors of the header to the core's views and options.

use crate::cast::{self, choice, count, flags, reserved};
use crate::types::*;
use iceformer_core::attention::{AttentionOptions, AttentionStats, Mask, Mode, Reason};
use iceformer_core::mem::{Dtype, Tensor, TensorMut};
use iceformer_core::{Error, Result, Status};

/// Field names of a tensor argument.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    pub(crate) whole: &'static str,
    pub(crate) data: &'static str,
    pub(crate) dtype: &'static str,
}

macro_rules! names {
    ($n:literal) => {
        crate::view::Names { whole: $n, data: concat!($n, ".data"), dtype: concat!($n, ".dtype") }
    };
}
pub(crate) use names;

/// Stands for the data of a tensor that is described but not touched; aligned for every type.
pub(crate) const UNTOUCHED: *mut u8 = core::ptr::without_provenance_mut(iceformer_core::mem::ALIGN);

pub(crate) fn dtype(value: ice_dtype, field: &'static str) -> Result<Dtype> {
    choice(value, field, &[Dtype::F32, Dtype::F16, Dtype::Bf16])
}

fn present(data: *const u8, shape: [usize; 4], field: &'static str) -> Result<()> {
    if data.is_null() && !shape.contains(&0) {
        return Err(cast::null(field));
    }
    Ok(())
}

/// A read-only view of `[batch, heads, rows, cols]`.
///
/// # Safety
/// The described rows are readable for `'a` and nobody writes them.
pub(crate) unsafe fn tensor<'a>(t: &ice_tensor, shape: [usize; 4], names: Names) -> Result<Tensor<'a>> {
    let dtype = dtype(t.dtype, names.dtype)?;
    present(t.data.cast(), shape, names.data)?;
    let strides = [t.row_stride, t.head_stride, t.batch_stride];
    // SAFETY: passed on.
    unsafe { Tensor::from_raw(t.data.cast(), dtype, shape, strides, names.whole) }
}

/// A writable view of `[batch, heads, rows, cols]`, whose rows may not overlap.
///
/// # Safety
/// The described rows are writable for `'a` and nobody else touches them.
pub(crate) unsafe fn tensor_mut<'a>(t: &ice_tensor_mut, shape: [usize; 4], names: Names) -> Result<TensorMut<'a>> {
    let dtype = dtype(t.dtype, names.dtype)?;
    present(t.data.cast(), shape, names.data)?;
    let strides = [t.row_stride, t.head_stride, t.batch_stride];
    // SAFETY: passed on; overlap is checked right below, before anything is written.
    let view = unsafe { TensorMut::from_raw(t.data.cast(), dtype, shape, strides, names.whole)? };
    if !view.rows_are_apart() {
        return Err(Error::new(Status::Stride, names.whole, "rows overlap"));
    }
    Ok(view)
}

/// An output of one number a row: packed f32 `[batch, heads, rows]`.
///
/// # Safety
/// If not NULL, `p` is writable for that many elements and nobody else touches them.
pub(crate) unsafe fn by_row<'a>(
    p: *mut f32,
    batch: usize,
    heads: usize,
    rows: usize,
    field: &'static str,
) -> Result<Option<TensorMut<'a>>> {
    if p.is_null() {
        return Ok(None);
    }
    let shape = [batch, heads, rows, 1];
    // SAFETY: passed on; packed rows do not overlap.
    unsafe { TensorMut::from_raw(p.cast(), Dtype::F32, shape, [0; 3], field) }.map(Some)
}

/// The mask of a call over `[.., rows_q, rows_kv]`.
///
/// # Safety
/// The arrays its kind names are readable for `'a` and nobody writes them.
pub(crate) unsafe fn mask<'a>(m: &ice_mask, rows_q: usize, rows_kv: usize) -> Result<Mask<'a>> {
    reserved(&m.reserved, "mask.reserved")?;
    let or_one = |n: u32| n.max(1) as usize;
    // SAFETY: passed on.
    unsafe {
        Ok(match m.kind {
            ICE_MASK_NONE => Mask::None,
            ICE_MASK_CAUSAL => Mask::Causal { q_pos0: position(m.q_pos0, rows_q, rows_kv) },
            ICE_MASK_CAUSAL_KEYS => Mask::CausalKeys {
                q_pos0: position(m.q_pos0, rows_q, rows_kv),
                keep: cast::array(m.keys, m.keys_len, "mask.keys")?,
            },
            ICE_MASK_PREFIX => Mask::Prefix(cast::array(m.prefix, m.prefix_len, "mask.prefix")?),
            ICE_MASK_KEYS => Mask::Keys(cast::array(m.keys, m.keys_len, "mask.keys")?),
            ICE_MASK_ADDITIVE => {
                let shape = [or_one(m.bias_batch), or_one(m.bias_heads), rows_q, rows_kv];
                Mask::Additive(tensor(&m.bias, shape, names!("mask.bias"))?)
            }
            kind => {
                let e = Error::new(Status::Argument, "mask.kind", "unknown enumerator");
                return Err(cast::shown(e, kind.into()));
            }
        })
    }
}

/// Position of query row 0.
fn position(q_pos0: u64, rows_q: usize, rows_kv: usize) -> u64 {
    if q_pos0 == ICE_POSITION_LAST { rows_kv.saturating_sub(rows_q) as u64 } else { q_pos0 }
}

/// Attention options, sizes already checked.
pub(crate) fn attention_options(o: &ice_attention_options) -> Result<AttentionOptions> {
    let known = ICE_ATTENTION_CERTIFICATE
        | ICE_ATTENTION_VERIFIED
        | ICE_ATTENTION_SHARED_QK
        | ICE_ATTENTION_TRUSTED_INPUT
        | ICE_ATTENTION_FIXED_SCORES;
    flags(o.flags, known, "flags")?;
    reserved(&o.reserved, "reserved")?;
    let has = |flag: u32| o.flags & flag != 0;
    Ok(AttentionOptions {
        mode: choice(o.mode, "mode", &[Mode::Auto, Mode::Exact, Mode::Accelerated, Mode::TopK])?,
        tolerance: o.tolerance,
        top_k: o.top_k as usize,
        scale: o.scale,
        softcap: o.softcap,
        window: count(o.window),
        sinks: count(o.sinks),
        num_threads: o.num_threads as usize,
        seed: o.seed,
        levels: o.levels as usize,
        num_simple: o.num_simple as usize,
        num_composite: o.num_composite as usize,
        field_of_view: o.field_of_view as usize,
        retrieve_fraction: o.retrieve_fraction,
        shared_qk: has(ICE_ATTENTION_SHARED_QK),
        fixed_scores: has(ICE_ATTENTION_FIXED_SCORES),
        certificate: has(ICE_ATTENTION_CERTIFICATE),
        verified: has(ICE_ATTENTION_VERIFIED),
        trusted: has(ICE_ATTENTION_TRUSTED_INPUT),
        isa: None,
    })
}

/// Statistics in the header's form.
pub(crate) fn stats(s: &AttentionStats) -> ice_attention_stats {
    ice_attention_stats {
        struct_size: size_of::<ice_attention_stats>() as u32,
        mode: match s.mode {
            Mode::Auto => ICE_MODE_AUTO,
            Mode::Exact => ICE_MODE_EXACT,
            Mode::Accelerated => ICE_MODE_ACCELERATED,
            Mode::TopK => ICE_MODE_TOP_K,
        },
        reason: match s.reason {
            Reason::Requested => ICE_REASON_REQUESTED,
            Reason::OnlyWay => ICE_REASON_ONLY_WAY,
            Reason::Short => ICE_REASON_SHORT,
            Reason::Cheaper => ICE_REASON_CHEAPER,
            Reason::Diffuse => ICE_REASON_DIFFUSE,
        },
        estimated_mass: 0.0,
        certified_error: s.certified_error,
        score_error: s.score_error,
        pairs: s.pairs,
        pairs_dense: s.pairs_dense,
        cells_opened: s.cells_opened,
        build_seconds: s.build_seconds,
        attend_seconds: s.attend_seconds,
        rows: s.rows,
        certified_mean: s.certified_mean,
        certificates: s.certificates,
        certified: s.certified,
        rows_measured: s.measured.rows(),
        rows_exact: s.exact_rows.all(),
        rows_short: s.exact_rows.short,
        rows_strict: s.exact_rows.strict,
        rows_costly: s.exact_rows.costly,
        known_pairs: s.known,
        measured_error: s.measured.mean(),
        measured_p95: s.measured.p95(),
        measured_worst: s.measured.worst(),
    }
}
