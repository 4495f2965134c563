//! Prioritized DCI, single- and multi-level (paper, Algorithms 2 and 3): the index.
//!
//! `tunables` every number that was chosen; `params` options; `slots` marks of stored keys; `index` storage and sizes; `change` keys that come and go; `level` and `structure` the levels and how keys enter and leave them;
//! `search` the candidates of one composite index; `codes` keys gathered and coded for batches; `chunk`, `batch` and `lists` exact
//! answers to batches; `query` whole queries; `gather` all keys, like beside like, for attention; `scratch` what a query writes; `save` bytes.

mod batch;
mod change;
mod chunk;
mod codes;
mod gather;
mod index;
mod level;
mod lists;
mod params;
mod query;
mod save;
mod scratch;
mod search;
mod slots;
mod structure;
#[cfg(all(test, feature = "std"))]
mod tests;
mod tunables;

pub(crate) use codes::Arranging;
pub use index::Index;
pub use params::{Directions, Engine, IndexOptions, MAX_KEYS, MAX_NORM, Metric, Neighbor, QueryOptions};
pub use scratch::Scratch;
