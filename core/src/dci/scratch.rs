//! STUB
use super::Index;
use crate::{
    error::Result,
    mem::{Memory, Plan},
};
/// Query state of one thread, sized for one index at its present capacity.
pub struct Scratch {}
impl Scratch {
    /// Adds the blocks of a scratch for `index` to a plan (without the `Memory` block and the struct itself).
    pub fn plan(_index: &Index, _plan: &mut Plan) {}
    /// A scratch for `index`.
    pub fn new_in(_index: &Index, _memory: &Memory) -> Result<Scratch> {
        Ok(Scratch {})
    }
}
