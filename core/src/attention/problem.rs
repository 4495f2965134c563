//! STUB
use super::*;
use crate::dci::{Index, Scratch};
use crate::error::{Error, Result, Status};
use crate::mem::{Layout, Memory, Rows, RowsMut, Tensor, TensorMut};
const TODO: Error = Error::new(Status::Internal, "attention", "stub");
/// One attention call: `q [batch, heads_q, rows_q, dim_k]`, `k [batch, heads_kv, rows_kv, dim_k]`, `v [batch, heads_kv, rows_kv, dim_v]`,
/// `out [batch, heads_q, rows_q, dim_v]`, `lse [batch, heads_q, rows_q, 1]` (f32). With `shared_qk`, `k` is ignored (pass `q`).
pub struct Problem<'a> {
    /// Queries.
    pub q: Tensor<'a>,
    /// Keys.
    pub k: Tensor<'a>,
    /// Values.
    pub v: Tensor<'a>,
    /// Output.
    pub out: TensorMut<'a>,
    /// Log-sum-exp per row.
    pub lse: Option<TensorMut<'a>>,
    /// Mask.
    pub mask: Mask<'a>,
    /// Options.
    pub options: AttentionOptions,
}
/// Why the mode in the statistics was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// The caller asked for it.
    #[default]
    Requested,
    /// AUTO: this version has no faster way that keeps a tolerance.
    OnlyWay,
    /// Fewer keys than `dense_below`, or top_k covers all of them.
    Short,
}
/// What a call did.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionStats {
    /// Mode that ran.
    pub mode: Mode,
    /// Why.
    pub reason: Reason,
    /// Query-key pairs scored exactly.
    pub pairs: u64,
    /// Pairs exact attention would score.
    pub pairs_dense: u64,
    /// Cells opened (0 in this version).
    pub cells_opened: u64,
    /// Mean share of the softmax mass that was estimated (0 in this version).
    pub estimated_mass: f32,
    /// Worst certified error (NaN: none was asked for).
    pub certified_error: f32,
    /// Seconds spent building the index (0 without `std`).
    pub build_seconds: f64,
    /// Seconds spent attending (0 without `std`).
    pub attend_seconds: f64,
}
/// Bytes of work memory that `attention` needs (including the `Memory` block).
pub fn required(_problem: &Problem<'_>) -> Result<Layout> {
    Err(TODO)
}
/// Runs the call with work memory from `work`.
pub fn attention(_problem: &Problem<'_>, _work: &Memory) -> Result<AttentionStats> {
    Err(TODO)
}
/// One head over an index: row `id` of `values` belongs to the key with that id.
pub fn index_attention(
    _index: &Index,
    _scratch: &mut Scratch,
    _queries: Rows<'_>,
    _values: Rows<'_>,
    _mask: Mask<'_>,
    _options: &AttentionOptions,
    _out: &mut RowsMut<'_>,
    _lse: Option<&mut [f32]>,
) -> Result<AttentionStats> {
    Err(TODO)
}
/// Merges attention over two disjoint key sets into `out_a`, `lse_a` (`rows` = `lse_a.len()`, `dim_v` columns).
pub fn merge(_out_a: &mut [f32], _lse_a: &mut [f32], _out_b: &[f32], _lse_b: &[f32], _dim_v: usize) -> Result<()> {
    Err(TODO)
}
/// Share of the softmax mass on the `k` heaviest keys per (batch, query head), mean over `sample_rows` evenly spaced rows; `mass.len() == batch * heads_q`.
pub fn sparsity(
    _problem: &Problem<'_>,
    _k: usize,
    _sample_rows: usize,
    _mass: &mut [f32],
    _work: &Memory,
) -> Result<()> {
    Err(TODO)
}
/// The paper's rule: max(min(floor(n alpha), 50), 30).
pub fn top_k_for(n: usize, alpha: f32) -> usize {
    (libm::floorf(n as f32 * alpha) as usize).clamp(30, 50)
}
