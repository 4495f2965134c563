//! Bounded queues: the best k of a stream, and the frontier of a walk.

mod frontier;
mod heap;
#[cfg(test)]
mod tests;
mod topk;

pub use frontier::Frontier;
pub use topk::TopK;
