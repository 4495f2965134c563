//! Attention over retrieved keys (paper, Algorithm 1): choose keys by the index, softmax over those, drop the rest.

use super::{AttentionOptions, Masking, Visible};
use crate::dci::{Index, Neighbor, QueryOptions, Scratch};
use crate::error::reserved;
use crate::mem::{Rows, RowsMut};

/// Everything about one head that does not change from row to row.
#[derive(Clone, Copy)]
pub(super) struct Retrieval<'a> {
    index: &'a Index,
    /// Row `id` belongs to the key with that id.
    values: Rows<'a>,
    masking: &'a Masking<'a>,
    batch: usize,
    /// Padding bytes by id, 0 = never seen.
    keep: Option<&'a [u8]>,
    /// Bias rows by query row.
    bias: Option<Rows<'a>>,
    scale: f32,
    softcap: f32,
    /// Keys per row; `usize::MAX` = every visible key, found by brute force.
    k: usize,
    query: QueryOptions<'static>,
    /// A row does not see the key of its own id unless it sees nothing else.
    skip_self: bool,
}

impl<'a> Retrieval<'a> {
    /// Of query head `head` of batch `batch`, `k` keys a row; `options` are resolved.
    pub(super) fn new(
        index: &'a Index,
        values: Rows<'a>,
        masking: &'a Masking<'a>,
        [batch, head]: [usize; 2],
        options: &AttentionOptions,
        k: usize,
    ) -> Self {
        Retrieval {
            index,
            values,
            masking,
            batch,
            keep: masking.keep(batch),
            bias: masking.bias(batch, head),
            scale: options.scale,
            softcap: options.softcap,
            k,
            query: QueryOptions {
                retrieve_fraction: options.retrieve_fraction,
                visit_fraction: 1.0,
                field_of_view: options.field_of_view,
                ..QueryOptions::new(options.top_k)
            },
            skip_self: options.shared(),
        }
    }

    /// Attends query `row` of `queries`: row `to` of `out`, and of the log-sum-exps if somebody wants them. Returns the number of keys
    /// used. O(retrieval).
    pub(super) fn attend(
        &self,
        scratch: &mut Scratch,
        queries: &Rows<'_>,
        row: usize,
        out: &mut RowsMut<'_>,
        lse: Option<&mut [f32]>,
        to: usize,
    ) -> u64 {
        queries.read(row, &mut scratch.query);
        let (x, used) = self.sum(scratch, row, self.masking.visible(self.batch, row), out, to);
        if let Some(lse) = lse {
            lse[to] = x;
        }
        used as u64
    }

    fn bias_at(&self, row: usize, id: u64) -> f32 {
        let mut bias = [0.0];
        if let Some(rows) = &self.bias {
            rows.read_part(row, id as usize, &mut bias);
        }
        bias[0]
    }

    /// Whether a key found by position may be used by this row.
    fn admits(&self, row: usize, id: u64) -> bool {
        !(self.skip_self && id == row as u64)
            && self.keep.is_none_or(|keep| keep[id as usize] != 0)
            && self.bias_at(row, id) != f32::NEG_INFINITY
    }

    /// Whether a row that sees `visible` sees this key, bias aside.
    pub(super) fn sees(&self, visible: Visible, id: u64) -> bool {
        visible.contains(id as usize) && self.keep.is_none_or(|keep| keep[id as usize] != 0)
    }

    /// Fills `scratch.chosen` with the best keys the index finds for `scratch.query` among the visible ones, scores being
    /// inner products. Where found keys are masked out, looks for more until enough are left or all were seen.
    fn choose(&self, scratch: &mut Scratch, row: usize, visible: Visible) {
        scratch.chosen.clear();
        for (begin, end) in [(visible.begin, visible.end), (0, visible.sinks)] {
            if begin < end {
                self.choose_in(scratch, row, begin as u64, end as u64);
            }
        }
        let chosen = &mut scratch.chosen;
        chosen.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
        chosen.truncate(self.k);
        let own = row as u64;
        if chosen.is_empty()
            && self.skip_self
            && visible.contains(row)
            && let Some(key) = self.index.key(own)
        {
            let score = self.index.isa().dot(key, &scratch.query);
            reserved(chosen.push(Neighbor { id: own, score }));
        }
    }

    /// Adds the best admissible keys with ids `begin..end` to `scratch.chosen`, `k` of them if there are so many.
    fn choose_in(&self, scratch: &mut Scratch, row: usize, begin: u64, end: u64) {
        let (len, before) = (self.index.len(), scratch.chosen.len());
        let mut want = self.k.saturating_add(usize::from(self.skip_self)).min(len);
        while want > 0 {
            scratch.chosen.truncate(before);
            let o = QueryOptions { k: want, id_begin: begin, id_end: end, ..self.query };
            if self.k >= len {
                self.index.search_exact(scratch, &o);
            } else {
                self.index.search(scratch, &o);
            }
            let Scratch { top, chosen, .. } = &mut *scratch;
            let found = top.into_sorted();
            for item in found.iter().filter(|item| self.admits(row, item.id)) {
                // The two ranges are disjoint: together never more than there are keys.
                reserved(chosen.push(Neighbor { id: item.id, score: item.score }));
            }
            let admitted = chosen.len() - before;
            if admitted == found.len() || admitted >= self.k || want == len {
                break;
            }
            want = want.saturating_mul(4).min(len);
        }
    }

    /// One output row for the query in `scratch.query`: writes row `out_row` of `out`, returns (log-sum-exp, keys used).
    fn sum(
        &self,
        scratch: &mut Scratch,
        row: usize,
        visible: Visible,
        out: &mut RowsMut<'_>,
        out_row: usize,
    ) -> (f32, usize) {
        self.choose(scratch, row, visible);
        let isa = self.index.isa();
        let Scratch { chosen, scores, .. } = scratch;
        scores.clear();
        for c in chosen.iter() {
            let mut logit = self.scale * c.score;
            if self.softcap > 0.0 {
                logit = self.softcap * libm::tanhf(logit / self.softcap);
            }
            reserved(scores.push(logit + self.bias_at(row, c.id)));
        }
        let max = isa.max(scores);
        let sum = if scores.is_empty() { 0.0 } else { isa.exp_sum(scores, max) };
        // Nothing weighs anything where a bias hides the row's own key, too.
        let inverse = if sum > 0.0 { 1.0 / sum } else { 0.0 };
        isa.scale(inverse, scores);
        let cols = out.cols();
        let (mut acc, mut part) = ([0.0f32; 64], [0.0f32; 64]);
        for begin in (0..cols).step_by(64) {
            let n = (cols - begin).min(64);
            acc.fill(0.0);
            for (c, &weight) in chosen.iter().zip(scores.iter()) {
                let v = match self.values.row_f32(c.id as usize) {
                    Some(v) => &v[begin..][..n],
                    None => {
                        self.values.read_part(c.id as usize, begin, &mut part[..n]);
                        &part[..n]
                    }
                };
                isa.axpy(weight, v, &mut acc[..n]);
            }
            out.write_part(out_row, begin, &acc[..n]);
        }
        (max + libm::logf(sum), chosen.len())
    }
}
