//! Top-k attention of one KV head and the query heads that share it: keys enter the index in row order as the mask
//! uncovers them, and every row asks the index (paper, Algorithm 1 with the causal construction of section 3).

use super::problem::{Checked, Problem};
use super::retrieve::Retrieval;
use super::stats::AttentionStats;
use super::{Masking, clock};
use crate::dci::{Engine, Index, IndexOptions, Scratch};
use crate::error::Result;
use crate::mem::{Buf, Maker, Rows};
use crate::project::Lift;

/// Options of the index of a head of `dim` with room for `capacity` keys, resolved.
///
/// # Errors
/// As [`IndexOptions::resolve`].
pub(super) fn index_options(o: &super::AttentionOptions, dim: usize, capacity: usize) -> Result<IndexOptions> {
    let options = IndexOptions {
        num_simple: o.num_simple,
        num_composite: o.num_composite,
        levels: o.levels,
        seed: o.seed,
        capacity,
        fixed: true,
        trusted: true,
        isa: o.isa,
        engine: Engine::Walk,
        ..IndexOptions::new(dim)
    };
    options.resolve()
}

/// Index, scratch and a row buffer, reused for the heads one part works on.
pub(super) struct TopKWork {
    index: Index,
    scratch: Scratch,
    row: Buf<f32>,
}

impl TopKWork {
    /// For an index of these options; [`begin`](TopKWork::begin) must follow.
    pub(super) fn made(m: &mut Maker<'_>, o: &IndexOptions) -> Self {
        TopKWork { index: Index::made(m, o, None), scratch: Scratch::made(m, o, o.capacity), row: m.filled(o.dim, 0.0) }
    }

    pub(super) fn begin(&mut self) {
        self.index.begin();
    }

    /// Inserts keys `from..to` that are not padding; with `shared`, scaled to unit norm.
    fn insert(&mut self, keys: &Rows<'_>, keep: Option<&[u8]>, shared: bool, from: usize, to: usize) -> Result<()> {
        if !shared && keep.is_none() && from == 0 && to == keys.rows() {
            return self.index.insert(*keys, None);
        }
        for j in (from..to).filter(|&j| keep.is_none_or(|keep| keep[j] != 0)) {
            keys.read(j, &mut self.row);
            if shared {
                let norm = libm::sqrtf(Lift::norm2(&self.row));
                if norm > 0.0 {
                    self.row.iter_mut().for_each(|x| *x /= norm);
                }
            }
            self.index.insert(Rows::new(&self.row, self.row.len())?, Some(&[j as u64]))?;
        }
        Ok(())
    }

    /// All rows of KV head `head_kv` of batch `batch`, for each of its query heads.
    pub(super) fn run(
        &mut self,
        problem: &Problem<'_>,
        checked: &Checked<'_>,
        batch: usize,
        head_kv: usize,
        stats: &mut AttentionStats,
    ) -> Result<()> {
        let (o, call) = (&checked.options, checked.call(problem));
        let group = checked.heads_q / checked.heads_kv;
        let masking: &Masking<'_> = &checked.masking;
        let (keys, values) = checked.kv(problem, batch, head_kv);
        let keep = masking.keep(batch);
        self.index.clear();
        let mut inserted = 0;
        for row in 0..checked.rows_q {
            let visible = masking.visible(batch, row);
            // Keys enter as rows come to see them; a mask that shows all has them inserted at once. Rows that see fewer
            // than are inserted (prefixes that shrink, windows) are held to their range by the query.
            if visible.end > inserted {
                let start = clock::now();
                self.insert(&keys, keep, o.shared(), inserted, visible.end)?;
                inserted = visible.end;
                stats.build_seconds += clock::since(start);
            }
            let start = clock::now();
            for head in head_kv * group..(head_kv + 1) * group {
                let retrieval = Retrieval::new(&self.index, values, masking, [batch, head], o, o.top_k);
                let (q, (mut out, lse)) = (call.q.head(batch, head), call.rows(batch, head, row, 1));
                stats.pairs += retrieval.attend(&mut self.scratch, &q, row, &mut out, lse, 0);
                stats.pairs_dense += masking.count(batch, visible) as u64;
            }
            stats.attend_seconds += clock::since(start);
        }
        Ok(())
    }
}
