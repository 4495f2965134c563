//! Blocks of sixteen vectors (the keys of a cell, the means of a node's cells) against lists of query rows.
//!
//! A block lies transposed, so that its vectors fill the lanes; queries are read as they lie, as broadcasts. Whatever a
//! list holds costs the same per row: lists are what is left when most rows do not want a block.
//!
//! `scores` products, `byte_keys` those with keys in bytes; `total` sums of weights; `choose` estimates and what is opened for them; `by_child` who opens a child;
//! `sift` and `sift_keys` a second look along the coordinates of `coords`; `weigh` exact weights; `opened` all of it for the opened cells of a node; `thresholds` what rows open, and how that rises; `few_rows` all of it for a few rows, `roots` what comes before and after; `biased` the same with biases; `bound` what an estimate may be wrong by, `width` what that is made from; `values` weighted sums, `byte_values` of values in bytes; `gather` bringing rows together.

mod biased;
#[cfg(all(test, feature = "full"))]
mod biased_tests;
mod bound;
mod by_child;
mod byte_keys;
#[cfg(all(test, feature = "full"))]
mod byte_keys_tests;
mod byte_values;
#[cfg(all(test, feature = "full"))]
mod byte_values_tests;
mod choose;
mod coords;
#[cfg(all(test, feature = "full"))]
mod coords_tests;
mod few_rows;
mod gather;
mod opened;
#[cfg(all(test, feature = "full"))]
mod opened_tests;
mod roots;
#[cfg(all(test, feature = "full"))]
mod roots_tests;
mod scores;
mod sift;
mod sift_keys;
#[cfg(all(test, feature = "full"))]
mod tests;
mod thresholds;
#[cfg(all(test, feature = "full"))]
mod thresholds_tests;
mod total;
mod values;
mod weigh;
mod width;

pub(crate) use biased::{
    AddBiases, Biases, CellLifts, ChooseBiased, DoubtBiased, FAR, Lifts, LiftsMut, Survey, TotalBiased, found,
};
pub(crate) use bound::{Beyond, Bound, Opening, Proofs};
pub(crate) use by_child::{ByChild, TOGETHER};
pub(crate) use byte_keys::{Asking, ByteKeys, NodeKeys, ScoreNodes, round_key};
pub(crate) use byte_values::{ByteValues, round_value};
pub(crate) use choose::{Children, Choose, Doubt, Limits};
pub(crate) use coords::{Along, Bytes, Coded, Encode, Many, RoundQuery, words};
pub(crate) use few_rows::{Count, FewRows, Means, ON_THE_WAY, Room, Slot, Sums, TOGETHER as UNIT, Tree};
pub(crate) use gather::{Fetch, FetchSome, Gather, Gram, Less, Prefetch, ScoresAt, SumRows, Transpose};
pub(crate) use opened::Opened;
pub(crate) use roots::{AddRoots, ChooseRoots, Roots, ScoreRoots};
pub(crate) use scores::{Forms, Scores};
pub(crate) use sift::Sift;
pub(crate) use sift_keys::{Listing, SiftKeys};
pub(crate) use thresholds::{RAISE, Raise, Shares, Thresholds};
pub(crate) use total::{AddUp, LOWEST, Total};
pub(crate) use values::{AddKeys, AddScaled, AddValues, Settle};
pub(crate) use weigh::Weigh;
pub(crate) use width::{Remainders, Width};

use super::math;
use super::vector::Simd;
use choose::SPREAD;
use half::bf16;

/// Vectors of a block.
pub(crate) const BLOCK: usize = 16;

/// Rows of f32, `stride` apart, of which `cols` count.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) cols: usize,
}

/// Numbers of a block as they are stored.
#[derive(Clone, Copy)]
pub(crate) enum Stored<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

impl<'a> Stored<'a> {
    fn len(&self) -> usize {
        match self {
            Stored::F32(x) => x.len(),
            Stored::Bf16(x) => x.len(),
        }
    }

    /// `n` of them from number `at` on.
    pub(crate) fn part(self, at: usize, n: usize) -> Stored<'a> {
        match self {
            Stored::F32(x) => Stored::F32(&x[at..][..n]),
            Stored::Bf16(x) => Stored::Bf16(&x[at..][..n]),
        }
    }
}

/// Values of blocks: [`BLOCK`] rows each, of `stride` elements, whole vectors, of which `cols` count.
#[derive(Clone, Copy)]
pub(crate) struct Values<'a> {
    pub(crate) data: Elements<'a>,
    pub(crate) stride: usize,
    pub(crate) cols: usize,
}

/// Elements of values as they are stored.
#[derive(Clone, Copy)]
pub(crate) enum Elements<'a> {
    /// Rows, `stride` apart.
    F32(&'a [f32]),
    Bytes(ByteValues<'a>),
}

impl<'a> Values<'a> {
    /// Those of one block.
    #[inline(always)]
    pub(super) fn block(&self, at: usize) -> Values<'a> {
        let len = BLOCK * self.stride;
        let data = match self.data {
            Elements::F32(x) => Elements::F32(&x[at * len..][..len]),
            Elements::Bytes(x) => Elements::Bytes(x.block(at, self.stride)),
        };
        Values { data, ..*self }
    }
}

/// Refuses a list that leaves `len` numbers in rows of `stride`.
#[inline(always)]
fn check(rows: &[u16], len: usize, stride: usize, cols: usize) {
    assert!(cols <= stride && stride > 0);
    let count = len / stride;
    assert!(rows.iter().fold(true, |ok, &r| ok & ((r as usize) < count)));
}

/// Larger than any difference that a weight may come from: 2^100 is finite and so are sums of many.
const MOST: f32 = 100.0;

/// Logits under a softcap; 0 = none.
#[inline(always)]
fn capped<S: Simd>(s: S, x: S::V, cap: f32) -> S::V {
    if cap > 0.0 { s.mul(math::tanh(s, s.mul(x, s.splat(1.0 / cap))), s.splat(cap)) } else { x }
}
