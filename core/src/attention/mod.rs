//! Attention over raw slices: exact and top-k, one call or a session.
pub mod exact;
mod mask;
mod options;
mod panel;
mod problem;
mod session;
pub mod softmax;
pub use mask::{Mask, Masking, Visible};
pub use options::{AttentionOptions, Mode};
pub use problem::{AttentionStats, Problem, Reason, attention, index_attention, merge, required, sparsity, top_k_for};
pub use session::{HeadCache, Session, SessionOptions};
