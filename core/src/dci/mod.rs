//! Prioritized DCI, single- and multi-level: the index.
mod index;
mod params;
mod scratch;
pub use index::Index;
pub use params::{Directions, Engine, IndexOptions, MAX_KEYS, MAX_NORM, Metric, Neighbor, QueryOptions};
pub use scratch::Scratch;
