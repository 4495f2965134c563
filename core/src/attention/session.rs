//! STUB
use super::*;
use crate::error::{Error, Result, Status};
use crate::mem::{Dtype, Memory, MemoryReport, Plan, Rows, Tensor, TensorMut};
const TODO: Error = Error::new(Status::Internal, "session", "stub");
/// Shape of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Query heads.
    pub heads_q: usize,
    /// KV heads; divides `heads_q`.
    pub heads_kv: usize,
    /// Key dimension.
    pub dim_k: usize,
    /// Value dimension.
    pub dim_v: usize,
    /// Tokens there is room for; all memory is taken at creation.
    pub capacity: usize,
    /// Storage type of keys and values.
    pub kv_dtype: Dtype,
    /// Attention options.
    pub attention: AttentionOptions,
    /// Below this many tokens attention is exact whatever the mode.
    pub dense_below: usize,
}
/// Keys and values of one KV head; disjoint heads may be appended to by different threads.
pub struct HeadCache {}
impl HeadCache {
    /// Appends rows, unpublished until `Session::commit`.
    pub fn append(&mut self, _k: Rows<'_>, _v: Rows<'_>) -> Result<()> {
        Err(TODO)
    }
}
/// KV cache with its index.
pub struct Session {
    memory: Memory,
}
impl Session {
    /// Adds all blocks to a plan (without the `Memory` block and the struct itself).
    pub fn plan(_options: &SessionOptions, _plan: &mut Plan) -> Result<()> {
        Ok(())
    }
    /// In the given memory.
    pub fn new_in(_options: &SessionOptions, memory: &Memory) -> Result<Session> {
        Ok(Session { memory: memory.clone() })
    }
    /// Resolved options.
    pub fn options(&self) -> &SessionOptions {
        unimplemented!()
    }
    /// All heads at once: `k [1, heads_kv, n, dim_k]`, `v [1, heads_kv, n, dim_v]`; published by `commit`.
    pub fn append(&mut self, _k: Tensor<'_>, _v: Tensor<'_>) -> Result<()> {
        Err(TODO)
    }
    /// The KV heads, for partitioned appends.
    pub fn heads_mut(&mut self) -> &mut [HeadCache] {
        &mut []
    }
    /// Publishes what every head appended; if one head failed or differs, rolls all back.
    pub fn commit(&mut self) -> Result<()> {
        Err(TODO)
    }
    /// Adds the work memory of one part (one `ith`) attending `rows` rows to a plan, including its `Memory` block.
    pub fn work_plan(&self, _rows: usize, _plan: &mut Plan) -> Result<()> {
        Ok(())
    }
    /// Part `ith` of `nth`: `q [1, heads_q, rows, dim_k]`; mask `None` = causal at the end. Parts write disjoint rows.
    pub fn attend(
        &self,
        _q: Tensor<'_>,
        _mask: Option<Mask<'_>>,
        _out: &TensorMut<'_>,
        _lse: Option<&TensorMut<'_>>,
        _work: &Memory,
        _ith: usize,
        _nth: usize,
    ) -> Result<AttentionStats> {
        Err(TODO)
    }
    /// Keeps the first `len` tokens.
    pub fn truncate(&mut self, _len: usize) -> Result<()> {
        Err(TODO)
    }
    /// Removes tokens `begin..end`; later tokens move down.
    pub fn remove_range(&mut self, _begin: usize, _end: usize) -> Result<()> {
        Err(TODO)
    }
    /// Removes all tokens.
    pub fn reset(&mut self) {}
    /// Published tokens.
    pub fn len(&self) -> usize {
        0
    }
    /// None yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Byte counts.
    pub fn memory(&self) -> MemoryReport {
        self.memory.report()
    }
    /// Bytes that `save` writes.
    pub fn save_len(&self) -> usize {
        0
    }
    /// Writes the session; returns the bytes written.
    pub fn save(&self, _out: &mut [u8]) -> Result<usize> {
        Err(TODO)
    }
    /// Options stored in saved bytes, checked.
    pub fn peek(_bytes: &[u8]) -> Result<SessionOptions> {
        Err(TODO)
    }
    /// Rebuilds a saved session in `memory`.
    pub fn load(_bytes: &[u8], _memory: &Memory) -> Result<Session> {
        Err(TODO)
    }
}
