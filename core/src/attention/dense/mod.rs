//! Exact attention: every visible key of every row.
//!
//! `tunables` every number that was chosen; `head` what is attended; `spans` what rows see of a block of keys; `fixed` scores in 16 bits; `panel` one panel of queries
//! against one block; `work` memory; `blocks` keys and values as tiles read them; `decode` up to twelve rows of heads that share keys;
//! `exact` any rows of a head; `heads` all heads of a problem in parts. Each imports only what stands before it.

mod blocks;
pub(super) mod decode;
pub mod exact;
mod fixed;
mod head;
pub(super) mod heads;
mod panel;
mod spans;
mod tunables;
mod work;

pub(super) use blocks::block_of_keys;
pub(super) use head::{Call, uses_fixed_scores};
pub(super) use panel::{Ahead, Panel, factor};
pub(super) use spans::{clamp, look_at, next_block};
pub(super) use tunables::{FAR, FEW, MOST, PIECE};
pub(super) use work::Sizes;
