//! Attention over raw slices: exact, accelerated and top-k, as one call, over an index of the caller, or over a session.
//!
//! `mode`, `options`, `mask`, `tunables`, `problem` what is asked, `stats`, `measured` what is told; `dense` every key;
//! `clustered` cells of keys, opened where they matter and estimated elsewhere; `retrieve` the keys an index finds, used
//! by `head_topk` (one call) and `over_index`; `index_room` many rows over an index; `certificates` what rounding can do to rows;
//! `softmax` merging; `parts` threads; `call` the one-call form; `session_options`, `cache`,
//! `session`, `session_save` keys and values that stay; `probe` how sparse a head is.

mod cache;
mod call;
mod certificates;
mod clock;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod clustered;
#[cfg(not(feature = "internals"))]
mod clustered;
mod dense;
mod head_topk;
mod index_room;
mod mask;
mod measured;
mod mode;
mod options;
mod over_index;
mod parts;
mod probe;
mod problem;
mod retrieve;
mod session;
mod session_options;
mod session_save;
mod softmax;
mod stats;
mod store;
mod tunables;

pub use cache::HeadCache;
pub use call::{attention, required};
pub use index_room::AttentionRoom;
pub use mask::Mask;
pub use measured::Measured;
pub use mode::Mode;
pub use options::{AttentionOptions, top_k_for};
pub use over_index::{IndexProblem, index_attention};
pub use probe::{sparsity, sparsity_required};
pub use problem::Problem;
pub use session::{Attend, Session};
pub use session_options::SessionOptions;
pub use softmax::merge;
pub use stats::{AttentionStats, ExactRows, Reason};

#[cfg(feature = "internals")]
#[doc(hidden)]
pub use self::{call::attention_watched, dense::exact, mask::Masking, mask::Visible};
#[cfg(not(feature = "internals"))]
pub(crate) use mask::{Masking, Visible};
