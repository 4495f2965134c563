//! What the programs of this process have come to, so that a target that never reaches what it is for is seen.

use iceformer_core::attention::AttentionStats;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Kinds of attention by cells.
        #[derive(Clone, Copy, Debug)]
        pub enum Kind {
            $($(#[$doc])* $name),*
        }

        /// All of them.
        pub const KINDS: &[Kind] = &[$(Kind::$name),*];
    };
}

counters! {
    /// One call under no mask, a causal one or a prefix.
    Call,
    /// Under finite biases.
    Biased,
    /// Of segments that padding leaves out or hides.
    Padded,
    /// Several query heads of one KV head.
    Grouped,
    /// Four rows at most, as in decoding.
    FewRows,
    /// Two root blocks and more.
    Deep,
    /// With bounds.
    Certified,
    /// With bounds that keep the tolerance.
    Verified,
    /// Over an index.
    OverIndex,
    /// Over an index, under a bias.
    OverIndexBiased,
    /// Of a session.
    Session,
    /// Of a session, under finite biases.
    SessionBiased,
    /// Of a session, with bounds.
    SessionCertified,
    /// Through the C border.
    Border,
}

static RUNS: [[AtomicU64; 3]; KINDS.len()] = [const { [const { AtomicU64::new(0) }; 3] }; KINDS.len()];

/// Notes a call.
pub(crate) fn note(kind: Kind, stats: &AttentionStats) {
    add(kind, stats.cells_opened, stats.estimated_mass);
}

/// The same of cells opened and the mean share of the mass that was estimated.
pub(crate) fn add(kind: Kind, opened: u64, estimated: f32) {
    let [all, open, left] = &RUNS[kind as usize];
    all.fetch_add(1, Relaxed);
    open.fetch_add(u64::from(opened > 0), Relaxed);
    left.fetch_add(u64::from(estimated > 0.0), Relaxed);
}

/// Calls of a kind, those that opened cells and those that left some closed.
pub fn of(kind: Kind) -> [u64; 3] {
    RUNS[kind as usize].each_ref().map(|x| x.load(Relaxed))
}
