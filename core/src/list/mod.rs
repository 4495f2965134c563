//! Sorted lists over one pool: unrolled skip lists, and cursors that walk them both ways.
//!
//! An entry is `(key, slot)`. The key packs a cell and a projection so that one integer comparison orders both; equal
//! keys are ordered by the id of the slot, which the caller passes in as `ids` (id = `ids[slot]`). Ids are unique and
//! do not change while their slot is in a list. Order, and so every walk, depends on the entries alone, never on the
//! order in which they came.

mod arena;
mod cursor;
mod key;
mod skip;
#[cfg(test)]
pub(crate) mod tests;

pub use arena::Pool;
pub use cursor::Cursor;
pub use key::{cell_of, proj_of, sort_key};
pub use skip::SkipList;

/// No node, no element.
pub(crate) const NIL: u32 = u32::MAX;
