//! Attention over raw slices: exact, accelerated and top-k, as one call, over an index of the caller, or over a session.
//!
//! `options`, `mask`, `problem` what is asked; `dense` every key, all heads: `exact`, `panel` many rows, `few` a few;
//! `clustered` cells of keys, opened where they matter and estimated elsewhere; `retrieve` the keys an index finds, used
//! by `head_topk` (one call) and `over_index`; `index_room` many rows over an index; `certificate` what rows are known to be off by;
//! `softmax` merging; `call` the one-call form; `cache`, `session` keys and
//! values that stay; `probe` how sparse a head is.

mod cache;
mod call;
mod certificate;
mod clock;
pub mod clustered;
mod dense;
pub mod exact;
mod few;
mod fixed;
mod head_topk;
mod index_room;
mod mask;
mod measured;
mod options;
mod over_index;
mod panel;
mod probe;
mod problem;
mod retrieve;
mod session;
mod session_save;
mod softmax;

pub use cache::HeadCache;
pub use call::{attention, attention_watched, required};
pub use index_room::AttentionRoom;
pub use mask::{Mask, Masking, Visible};
pub use measured::Measured;
pub use options::{AttentionOptions, Mode};
pub use over_index::{index_attention, index_attention_watched};
pub use probe::{sparsity, sparsity_required};
pub use problem::{AttentionStats, Problem, Reason, top_k_for};
pub use session::{Session, SessionOptions};
pub use softmax::merge;
