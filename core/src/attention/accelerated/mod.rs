//! Accelerated attention: cells opened where they matter, estimated elsewhere.
//!
//! Query rows of a block (all heads that share keys and values) go through the tree of cells together, node by node, so
//! that every block of means or keys is read once for all rows that want it:
//!
//! 1. keys outside complete segments exactly, with the dense kernels;
//! 2. means of nodes against all rows: an estimate of each row's softmax sum, which fixes what "much" means for it;
//! 3. from the top: a child is *opened* for a row when its farthest key may be a needle, or when the estimate of its
//!    weight may be wrong by much; a child that is not opened counts as one token with its mean key, its mean value and
//!    the mass `count * exp(s mu.q) * cosh(sigma)`; what may hold a needle is looked at once more by coarse coordinates of
//!    its keys before it is opened; the more cells a row has opened, the heavier are the keys it looks for;
//! 4. of an opened cell every key is scored exactly, so that the mass is right; its values are read one by one only where
//!    a key weighs enough, else the mean value stands for them.
//!
//! Mean values lean: a row prefers some keys of a child to others, and values go with keys, in the same way throughout a
//! head. See `lean`.
//!
//! What is still left out is much the same for all rows of a head: rows of a trial say what. See `offset`.
//!
//! The standard deviation `sigma` of a child's logits is its keys' distance from their mean times
//! `sqrt(q^T C q / tr C)`, C the mean covariance within cells of this head.
//!
//! Finite biases come along: see `bias`.
//!
//! Unless a study asks otherwise, 64 rows in 2,048 (in 4,096 where there are 32,768 keys, and so on) attend a few of them by
//! cells and exactly, to know cost and error: thresholds tighten, or exact attention takes the blocks, where that is what the tolerance or the time asks
//! for. See `trial`. A call makes the trials of all its heads first and judges them by layer (`ladder`); a session, whose parts
//! do not wait for each other, judges heads that share keys and values by themselves, and in auto mode by layer for the rows of its
//! next appends, which go by what was found (`lead`). What rows of trials err by in common is carried on to these, too, and to single rows
//! as in decoding, with what rows of a head weigh more than means let expect (`carried`, `surplus`) and how far their thresholds ease
//! (`ease`).
//!
//! A few rows, as in decoding, go down by themselves and not in lists (`few_rows` of the kernels), and what is looked at by
//! coordinates weighs what these say: of an opened cell only the keys that stand out are scored exactly. Their error is predicted after they have walked, and they walk again; in auto mode a head
//! whose cells do not serve them is left alone for a while (`rest` of the cells).

/// Up to so many rows of a head go down by themselves, as in decoding.
pub(super) const APART: usize = 4;

mod all;
mod apart;
mod bias;
mod block;
mod call;
mod carried;
mod cost;
mod ease;
mod hope;
mod ladder;
mod lead;
mod lean;
mod offset;
mod proof;
mod rule;
mod surplus;
mod trial;
mod usable;
mod walk;

pub(super) use all::Accelerated;
pub(super) use block::Work;
pub use call::Watch;
pub(super) use call::{MOST_KEYS, call, fill, plan_call};
pub(super) use carried::Carried;
pub(super) use hope::{ALIKE, hopeless};
pub(super) use lead::{Lead, Led, settle};
pub(super) use proof::Proving;
pub use rule::Rule;
