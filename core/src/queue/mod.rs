//! Bounded queues: the best k of a stream, and the frontier of a walk.

mod frontier;
mod topk;

pub use frontier::{Front, Frontier};
pub use topk::{Item, TopK};
