//! Exact attention: tiles of queries x keys, online softmax, tiles of weights x values.
//!
//! Queries of a row block are transposed once. Keys are read in place wherever they are f32 with a benign stride, else
//! converted block by block; so are values if they are aligned, too, else packed for the tiles to stream over. Blocks of
//! keys start at multiples of a size that depends on the dimensions only, so a row's bits depend neither on its
//! neighbours nor on threads.

use super::blocks::{block_of_keys, block_of_values};
use super::decode;
use super::panel::{Ahead, Panel};
use super::spans::{look_at, next_block};
use super::tunables::FEW;
use super::work::{finish_row, note_seen};
use crate::features::PANELS;
use crate::mem::RowsMut;
use crate::simd::tile::{self, PANEL};
use crate::simd::{Isa, Simd, Task};

pub use super::head::Head;
pub use super::tunables::ROW_BLOCK;
pub use super::work::{Work, plan};

/// Attends rows `begin..begin + n` of the head's queries: outputs into rows `0..n` of `out`, natural log-sum-exps of the
/// logits into `lse[..n]`. A row that sees nothing gives zeros and -inf. Returns the number of query-key pairs visible by
/// position and padding. Never allocates.
///
/// A row's bits do not depend on the rows it is attended with, as long as there are more than twelve: fewer are attended
/// another way, made for decoding.
///
/// # Panics
/// If the shapes of head, output and work memory do not fit together, the work memory is for fewer rows, or the head is of a
/// mode that this build does not have.
pub fn attend(
    isa: Isa,
    head: &Head<'_>,
    begin: usize,
    n: usize,
    out: &mut RowsMut<'_>,
    mut lse: Option<&mut [f32]>,
    work: &mut Work,
) -> u64 {
    assert!(begin <= head.q.rows() && n <= head.q.rows() - begin && n <= out.rows() && out.cols() == head.v.cols());
    let most = if PANELS { ROW_BLOCK } else { FEW };
    work.check(head, n.min(most));
    let mut pairs = 0;
    for done in (0..n).step_by(most) {
        let rows = (n - done).min(most);
        let query = begin + done;
        pairs += note_seen(head, query, rows, work);
        if PANELS && rows > FEW {
            work.clear(rows.next_multiple_of(PANEL));
            isa.run(Many { head, query, rows, out, at: done, lse: lse.as_deref_mut(), work });
        } else {
            decode::attend(isa, head, query, rows, out, done, lse.as_deref_mut(), work);
        }
    }
    pairs
}

/// `rows` rows into rows `at..` of the outputs, by panels of transposed queries.
struct Many<'a, 'b> {
    head: &'a Head<'a>,
    query: usize,
    rows: usize,
    out: &'a mut RowsMut<'b>,
    at: usize,
    lse: Option<&'a mut [f32]>,
    work: &'a mut Work,
}

impl Task for Many<'_, '_> {
    type Out = ();
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.sum(s);
        self.finish(s);
    }
}

impl Many<'_, '_> {
    /// Sums, maxima and weights of the rows into the work memory.
    #[inline(always)]
    fn sum<S: Simd>(&mut self, s: S) {
        let Many { head, query, rows, .. } = *self;
        // Queries are laid out once, in the form that scores come from.
        match &mut self.work.fixed {
            Some(fixed) => fixed.load_queries(s, &head.q, query, rows),
            None => tile::pack_queries(s, &head.q, |r| query + r, rows, &mut self.work.q),
        }
        let Work { sizes, q, k, v, scores, sums, state, seen, spans, fixed, .. } = &mut *self.work;
        let (maxima, weights) = state.split_at_mut(sizes.rows);
        let (total, bias) = (head.v.rows(), head.masking.bias(head.batch, head.head));
        let mut begin = 0;
        while begin < total {
            let end = (begin + sizes.block).min(total);
            let Some(hull) = look_at(&seen[..rows], begin, end, &mut spans[..rows]) else {
                begin = next_block(&seen[..rows], begin, sizes.block, total);
                continue;
            };
            // Keys of the block that somebody sees; all positions below are relative to `first`.
            let (first, n) = (begin + hull.begin, hull.end - hull.begin);
            let keys = block_of_keys(s, head, first, n, sizes, k);
            if let Some(fixed) = fixed {
                fixed.load_keys(s, &keys);
            }
            let values = block_of_values(s, head, first, n, v);
            // What the next block needs comes in between this one's tiles, if somebody sees anything of it.
            let goes_on = seen[..rows].iter().any(|seen| seen.end > end || seen.sinks > end);
            let ahead = if goes_on { sizes.block.min(total - end) } else { 0 };
            let ahead = Ahead {
                keys: if head.shared() { head.q.slice(end, ahead) } else { head.k.slice(end, ahead) },
                values: head.v.slice(end, ahead),
                panels: rows.div_ceil(PANEL),
            };
            let mut row = 0;
            while row < rows {
                let m = (rows - row).min(PANEL);
                let at = row..row + m;
                let mut part = Panel {
                    head,
                    q: &q[row / PANEL * sizes.dim_k * PANEL..][..sizes.dim_k * PANEL],
                    keys: &keys,
                    fixed: fixed.as_ref().map(|f| f.panel(row / PANEL)),
                    values,
                    count: n,
                    dim_v: head.v.cols(),
                    first,
                    query: query + row,
                    bias: bias.map(|bias| (bias, first)),
                    seen: &seen[at.clone()],
                    spans: &spans[at],
                    offset: hull.begin,
                    scores,
                    sums: &mut sums[row * sizes.value_stride..][..PANEL * sizes.value_stride],
                    stride: sizes.value_stride,
                    max: &mut maxima[row..row + PANEL],
                    sum: &mut weights[row..row + PANEL],
                };
                part.run(s, &ahead, row / PANEL);
                row += m;
            }
            begin = end;
        }
    }

    /// Divides by the sums of the weights and stores the rows.
    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S) {
        let dim_v = self.head.v.cols();
        for r in 0..self.rows {
            let x = finish_row(s, self.head, self.query + r, r, self.work, self.lse.is_some());
            self.out.write(self.at + r, self.work.sum(r, dim_v));
            if let Some(lse) = &mut self.lse {
                lse[self.at + r] = x;
            }
        }
    }
}
