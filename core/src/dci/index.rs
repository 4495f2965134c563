//! STUB
use super::*;
use crate::error::{Error, Result, Status};
use crate::mem::{Memory, MemoryReport, Plan, Rows};
const TODO: Error = Error::new(Status::Internal, "index", "stub");
/// The index.
pub struct Index {
    memory: Memory,
}
impl Index {
    /// Adds every block of an index with these options to a plan (without the `Memory` block and the struct itself).
    pub fn plan(_options: &IndexOptions, _plan: &mut Plan) -> Result<()> {
        Ok(())
    }
    /// On the system allocator.
    #[cfg(feature = "alloc")]
    pub fn new(options: &IndexOptions) -> Result<Index> {
        Index::new_in(options, &Memory::system(0)?)
    }
    /// In the given memory.
    pub fn new_in(_options: &IndexOptions, memory: &Memory) -> Result<Index> {
        Ok(Index { memory: memory.clone() })
    }
    /// Resolved options.
    pub fn options(&self) -> &IndexOptions {
        unimplemented!()
    }
    /// Makes room for `capacity` keys in all.
    pub fn reserve(&mut self, _capacity: usize) -> Result<()> {
        Err(TODO)
    }
    /// Inserts rows; `ids` one per row, or the next unused ids. All or nothing.
    pub fn insert(&mut self, _keys: Rows<'_>, _ids: Option<&[u64]>) -> Result<()> {
        Err(TODO)
    }
    /// Removes ids; all must be there, or nothing is removed.
    pub fn remove(&mut self, _ids: &[u64]) -> Result<()> {
        Err(TODO)
    }
    /// Removes those of `ids` that are there; returns how many.
    pub fn remove_present(&mut self, _ids: &[u64]) -> Result<usize> {
        Err(TODO)
    }
    /// Removes everything, keeps the memory.
    pub fn clear(&mut self) {}
    /// Keys.
    pub fn len(&self) -> usize {
        0
    }
    /// No keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Keys there is room for.
    pub fn capacity(&self) -> usize {
        0
    }
    /// Elements of a key.
    pub fn dim(&self) -> usize {
        0
    }
    /// Byte counts.
    pub fn memory(&self) -> MemoryReport {
        self.memory.report()
    }
    /// Whether the id is in use.
    pub fn contains(&self, _id: u64) -> bool {
        false
    }
    /// The stored key.
    pub fn key(&self, _id: u64) -> Option<&[f32]> {
        None
    }
    /// Fitted directions (Unsupported in this version).
    pub fn fit(&mut self, _sample: Option<Rows<'_>>) -> Result<()> {
        Err(TODO)
    }
    /// Neighbours of each row: `out` is rows x k, best first; `counts[i]` of row i are valid.
    pub fn query(
        &self,
        _s: &mut Scratch,
        _q: Rows<'_>,
        _o: &QueryOptions,
        _out: &mut [Neighbor],
        _counts: Option<&mut [u32]>,
    ) -> Result<()> {
        Err(TODO)
    }
    /// Brute force, same contract.
    pub fn query_exact(
        &self,
        _s: &mut Scratch,
        _q: Rows<'_>,
        _o: &QueryOptions,
        _out: &mut [Neighbor],
        _counts: Option<&mut [u32]>,
    ) -> Result<()> {
        Err(TODO)
    }
    /// Bytes that `save` writes.
    pub fn save_len(&self) -> usize {
        0
    }
    /// Writes the index; returns the bytes written. `Buffer` if too small.
    pub fn save(&self, _out: &mut [u8]) -> Result<usize> {
        Err(TODO)
    }
    /// Options stored in saved bytes, checked; lets the caller plan and set capacity before loading.
    pub fn peek(_bytes: &[u8]) -> Result<IndexOptions> {
        Err(TODO)
    }
    /// Rebuilds a saved index in `memory`. `Buffer` for damaged or foreign bytes.
    pub fn load(_bytes: &[u8], _memory: &Memory) -> Result<Index> {
        Err(TODO)
    }
}
