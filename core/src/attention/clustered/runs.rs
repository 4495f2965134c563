//! All heads of a call or a session, in runs of blocks that parts take turns at.

use super::super::dense::Call;
use super::super::stats::AttentionStats;
use super::clusters::Clusters;
use super::control::Control;
use super::decode::FewWork;
use super::engine::{Block, BlockWork, Watch, block_rows};
use super::policy::RUN;
use super::tree::Tree;
use crate::mem::Rows;

/// Heads whose far keys are in trees.
pub(crate) struct Heads<'a> {
    pub(crate) call: Call<'a>,
    /// Exact attention takes over where it is cheaper, not only where the tolerance is not kept.
    pub(crate) auto: bool,
    pub(crate) heads_kv: usize,
    /// Keys, values and tree of a batch and KV head.
    pub(crate) kv: &'a (dyn Fn(usize, usize) -> (Rows<'a>, Rows<'a>, &'a Tree) + Sync),
    /// What is known of a KV head's thresholds before, and what is known after its last rows, with their heavy keys.
    pub(crate) before: &'a (dyn Fn(usize) -> Control + Sync),
    pub(crate) after: &'a (dyn Fn(usize, &Control, &mut BlockWork) + Sync),
}

/// Runs of blocks that parts may take, for `heads` KV heads of `keys` keys with `group` query heads each.
pub(crate) fn runs_of(heads: usize, group: usize, rows: usize, keys: usize) -> usize {
    heads * rows.div_ceil(block_rows(group, keys) * RUN)
}

impl Heads<'_> {
    /// Part `ith` of `nth`. What is computed for a row does not depend on `nth`.
    pub(crate) fn run(
        &self,
        work: &mut BlockWork,
        ith: usize,
        nth: usize,
        stats: &mut AttentionStats,
        watch: &mut Option<Watch<'_>>,
    ) {
        let [batch, heads_q, rows, _] = self.call.q.shape();
        let group = heads_q / self.heads_kv;
        let keys = (self.kv)(0, 0).0.rows();
        let step = block_rows(group, keys);
        let (blocks, runs) = (rows.div_ceil(step), runs_of(1, group, rows, keys));
        for piece in (ith..batch * self.heads_kv * runs).step_by(nth) {
            // The last runs of a causal head are the longest: hand them out first.
            let (of, run) = (piece / runs, runs - 1 - piece % runs);
            let (batch, head) = (of / self.heads_kv, of % self.heads_kv);
            let mut control = (self.before)(head);
            // What is noted after a run is of its own blocks, whoever took the one before.
            work.forget();
            for block in run * RUN..((run + 1) * RUN).min(blocks) {
                let begin = block * step;
                let block = self.block(batch, head, begin, (rows - begin).min(step));
                block.attend(&mut control, work, stats, watch);
            }
            if run + 1 == runs {
                (self.after)(head, &control, work);
            }
        }
    }
}

impl<'a> Heads<'a> {
    /// `n` rows from `begin` on of all heads of a batch that share KV head `head`.
    fn block(&self, batch: usize, head: usize, begin: usize, n: usize) -> Block<'_> {
        let (keys, values, tree) = (self.kv)(batch, head);
        let group = self.call.q.shape()[1] / self.heads_kv;
        Block { call: &self.call, auto: self.auto, keys, values, tree, batch, first: head * group, group, begin, n }
    }

    /// Part `ith` of `nth` of few rows of a session, by what it keeps of every KV head.
    pub(crate) fn run_few(
        &self,
        clusters: &dyn Fn(usize) -> &'a Clusters,
        work: &mut FewWork,
        ith: usize,
        nth: usize,
        stats: &mut AttentionStats,
        watch: &mut Option<Watch<'_>>,
    ) {
        let rows = self.call.q.shape()[2];
        if rows == 0 {
            return;
        }
        for head in (ith..self.heads_kv).step_by(nth) {
            let block = self.block(0, head, 0, rows);
            block.attend_few(clusters(head), work, stats, watch);
        }
    }
}
