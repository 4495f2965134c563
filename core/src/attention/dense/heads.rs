//! Exact attention over all heads, cut into independent pieces for any number of parts.

use super::super::stats::AttentionStats;
use super::decode;
use super::exact::{self, Head, Work};
use super::head::Call;
use super::tunables::{BLOCKS_A_PART, FEW, MOST, PIECE, ROW_BLOCK};
use crate::mem::Rows;

/// Keys and values of a (batch, KV head).
type KeysAndValues<'a> = dyn Fn(usize, usize) -> (Rows<'a>, Rows<'a>) + 'a;

/// Comes after rows of a (batch, head): from which on, and how many.
type Done<'a> = dyn Fn([usize; 2], usize, usize, &mut AttentionStats) + 'a;

/// All heads of a problem. One copy of the code for calls and sessions.
pub(crate) struct Dense<'a> {
    pub(crate) call: Call<'a>,
    pub(crate) kv: &'a KeysAndValues<'a>,
    pub(crate) heads_kv: usize,
}

/// The most pieces that rows of this shape (of the queries) are worth cutting into: [`PIECE`] rows of a head each.
pub(crate) fn most_pieces(shape: [usize; 4]) -> usize {
    let [batch, heads, rows, _] = shape;
    batch * heads * rows.div_ceil(PIECE)
}

/// Rows of a piece: a row block, or a smaller piece where parts would get too few of them to end at about the same time.
fn piece_rows(heads: usize, rows: usize, nth: usize) -> usize {
    let few = nth > 1 && heads * rows.div_ceil(ROW_BLOCK) < BLOCKS_A_PART * nth;
    if few { PIECE } else { ROW_BLOCK }
}

/// Rows `begin..begin + n` of piece `block` of a head whose pieces have up to `most`: nothing, and with it more for the piece before,
/// where a row block would be cut so that so few rows are left as are attended another way. Bits would depend on the cut.
fn rows_of(block: usize, most: usize, rows: usize) -> (usize, usize) {
    let begin = block * most;
    let n = (rows - begin).min(most);
    let left = rows - begin - n;
    let inside = |at: usize| !at.is_multiple_of(ROW_BLOCK);
    if inside(begin) && n <= FEW {
        return (begin, 0);
    }
    (begin, if inside(begin + n) && left <= FEW { n + left } else { n })
}

impl Dense<'_> {
    /// Part `ith` of `nth`, added to the statistics. What is computed for a row does not depend on `nth`.
    pub(crate) fn run(&self, work: &mut Work, ith: usize, nth: usize, stats: &mut AttentionStats, done: &Done<'_>) {
        let [batch, heads, rows, _] = self.call.q.shape();
        if rows <= FEW && !self.call.options.shared() {
            return self.run_groups(work, ith, nth, stats, done);
        }
        let most = piece_rows(batch * heads, rows, nth);
        let blocks = rows.div_ceil(most);
        // Every nth piece, so that causal problems balance.
        for piece in (ith..batch * heads * blocks).step_by(nth) {
            // The last blocks of a causal head are the longest: hand them out first.
            let block = blocks - 1 - piece % blocks;
            let (batch, head) = (piece / blocks / heads, piece / blocks % heads);
            let (begin, n) = rows_of(block, most, rows);
            if n == 0 {
                continue;
            }
            let (mut out, lse) = self.call.rows(batch, head, begin, n);
            let pairs = exact::attend(self.call.isa, &self.head(batch, head), begin, n, &mut out, lse, work);
            stats.add_exact(pairs);
            done([batch, head], begin, n, stats);
        }
    }

    /// Few rows: heads of a KV head together, in as few pieces as keep all parts busy.
    fn run_groups(&self, work: &mut Work, ith: usize, nth: usize, stats: &mut AttentionStats, done: &Done<'_>) {
        let [batch, heads, rows, _] = self.call.q.shape();
        let group = heads / self.heads_kv;
        let most = (MOST / rows.max(1)).min(group);
        let pieces = group.div_ceil(most).max(nth.div_ceil(batch * self.heads_kv)).min(group);
        for piece in (ith..batch * self.heads_kv * pieces).step_by(nth) {
            let (kv, part) = (piece / pieces, piece % pieces);
            let (begin, end) = (group * part / pieces, group * (part + 1) / pieces);
            let head = self.head(kv / self.heads_kv, kv % self.heads_kv * group + begin);
            let pairs = decode::attend_group(&self.call, &head, end - begin, work);
            stats.add_exact(pairs);
            (0..end - begin).for_each(|h| done([head.batch, head.head + h], 0, rows, stats));
        }
    }

    fn head(&self, batch: usize, head: usize) -> Head<'_> {
        let (k, v) = (self.kv)(batch, head / (self.call.q.shape()[1] / self.heads_kv));
        self.call.head(batch, head, k, v)
    }
}

#[cfg(test)]
mod tests {
    use super::{FEW, PIECE, ROW_BLOCK, rows_of};

    /// However a head is cut, every row is in one piece, and in one of so few rows only where it is so in whole row blocks.
    #[test]
    fn pieces_of_any_size_hold_every_row_once() {
        for rows in 1..=3 * ROW_BLOCK + FEW + 1 {
            for most in [PIECE, ROW_BLOCK] {
                let mut next = 0;
                for block in 0..rows.div_ceil(most) {
                    let (begin, n) = rows_of(block, most, rows);
                    if n == 0 {
                        continue;
                    }
                    assert_eq!(begin, next, "{rows} rows, {most} a piece");
                    next = begin + n;
                    assert!(n > FEW || begin.is_multiple_of(ROW_BLOCK), "{rows} rows, {most} a piece");
                }
                assert_eq!(next, rows);
            }
        }
    }
}
