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
    /// Of segments that padding leaves out or hides.
    Padded,
    /// Under an additive mask.
    Biased,
    /// Several query heads of one KV head.
    Grouped,
    /// Two root blocks and more.
    Deep,
    /// Over an index.
    OverIndex,
    /// Of a session.
    Session,
}

static RUNS: [[AtomicU64; 3]; KINDS.len()] = [const { [const { AtomicU64::new(0) }; 3] }; KINDS.len()];

/// Notes a call.
pub(crate) fn note(kind: Kind, stats: &AttentionStats) {
    let [all, open, left] = &RUNS[kind as usize];
    all.fetch_add(1, Relaxed);
    open.fetch_add(u64::from(stats.cells_opened > 0), Relaxed);
    left.fetch_add(u64::from(stats.pairs < stats.pairs_dense), Relaxed);
}

/// Calls of a kind, those that opened cells and those that left some closed.
pub fn of(kind: Kind) -> [u64; 3] {
    RUNS[kind as usize].each_ref().map(|x| x.load(Relaxed))
}
