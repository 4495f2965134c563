//! Few query rows, of one head or of all heads that share keys and values: one pass over both, at the speed of memory.
//!
//! Blocks of keys start at multiples of a size that depends on the dimensions only, and what a row gets does not depend
//! on the rows it is attended with. So heads may be grouped in any way.

use super::super::mask::Visible;
use super::blocks::block_of_keys;
use super::head::{Call, Head};
use super::panel::{SELF, factor};
use super::spans::{clamp, look_at, next_block};
use super::tunables::{FAR, FEW, MOST};
use super::work::{ALIGN, Work, few_block, few_stride, finish_row, note_seen};
use crate::features::ACCELERATED;
use crate::mem::{Rows, RowsMut, Tensor};
use crate::simd::bias::add_bias;
use crate::simd::decode::{self, Lies, Weights};
use crate::simd::tile::Span;
use crate::simd::{self, Isa, Simd, Task, rows};

/// `n` rows of each of `heads` consecutive query heads, the first of which is `head`.
struct Few<'a> {
    head: &'a Head<'a>,
    heads: usize,
    query: usize,
    n: usize,
}

/// Sums, maxima and weights of all rows into the work memory, row `i` of head `h` at `h * n + i`. The queries, what every
/// row sees and the initial state are there already. A task of its own, compiled once for all callers.
struct Sum<'a, 'b> {
    isa: Isa,
    few: Few<'a>,
    work: &'a mut Work,
    look: Option<Look<'b>>,
}

/// A look at the weights of some keys for a row: the row, the first key, the weights, and the sum of all so far.
pub(crate) type Look<'a> = &'a mut dyn FnMut(usize, usize, &[f32], f32);

impl Task for Sum<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.few.run(s, self.isa, self.work, self.look);
    }
}

/// `n` rows of a head as f32 into the work memory, from row `at` on.
struct Load<'a> {
    q: &'a Rows<'a>,
    query: usize,
    n: usize,
    at: usize,
    work: &'a mut Work,
}

impl Task for Load<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for i in 0..self.n {
            rows::widen(s, self.q, self.query + i, &mut self.work.q[(self.at + i) * self.work.sizes.dim_k..]);
        }
    }
}

/// Divides the sums of row `r` of the work memory, query `i` of the head; the log-sum-exp if somebody wants it.
struct Finish<'a> {
    head: &'a Head<'a>,
    i: usize,
    r: usize,
    work: &'a mut Work,
    lse: bool,
}

impl Task for Finish<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        finish_row(s, self.head, self.i, self.r, self.work, self.lse)
    }
}

impl Few<'_> {
    #[inline(always)]
    fn run<S: Simd>(&self, s: S, isa: Isa, work: &mut Work, mut look: Option<Look<'_>>) {
        let (head, n, rows) = (self.head, self.n, self.heads * self.n);
        assert!(rows <= MOST && n > 0);
        let keep = head.masking.keep(head.batch);
        let has_bias = head.masking.bias(head.batch, head.head).is_some();
        let (factor, plain) = factor(head, has_bias);
        let Work { sizes, q, k, scores, sums, state, seen, spans, .. } = work;
        let block = few_block(sizes);
        let stride = few_stride(sizes);
        let (maxima, weights) = state.split_at_mut(sizes.rows);
        let source = if head.shared() { head.q } else { head.k };
        let total = head.v.rows();
        let most = seen[..n].iter().map(|of| of.sinks + of.end.saturating_sub(of.begin)).max().unwrap_or(0);
        let bytes = |r: &Rows<'_>| most.saturating_mul(r.cols() * r.dtype().size());
        let lies = Lies::new(bytes(&source).saturating_add(bytes(&head.v)) >= FAR);
        let mut begin = 0;
        while begin < total {
            let end = (begin + block).min(total);
            let Some(hull) = look_at(&seen[..n], begin, end, &mut spans[..n]) else {
                begin = next_block(&seen[..n], begin, block, total);
                continue;
            };
            let (lo, hi) = (hull.begin, hull.end);
            let (first, m) = (begin + lo, hi - lo);
            let keys = if head.shared() { block_of_keys(s, head, first, m, sizes, k) } else { source.slice(first, m) };
            let values = head.v.slice(first, m);
            decode::dots(isa, &keys, q, rows, &mut scores[lo..], stride, lies);
            let mut alpha = [1.0; MOST];
            // Whole vectors, counted from the block's start.
            let (a, b) = (lo & !(ALIGN - 1), hi.next_multiple_of(ALIGN));
            for r in 0..rows {
                let x = &mut scores[r * stride..][..stride];
                x[a..lo].fill(f32::NEG_INFINITY);
                x[hi..b].fill(f32::NEG_INFINITY);
                let part = &mut x[lo..hi];
                let i = r % n;
                if !plain {
                    simd::logits(s, part, head.scale, head.softcap);
                }
                if has_bias && let Some(bias) = head.masking.bias(head.batch, head.head + r / n) {
                    add_bias(s, &bias, self.query + i, first, part, 1);
                }
                hide(part, seen[i], first, keep);
                if head.shared()
                    && let Some(x) = part.get_mut((self.query + i).wrapping_sub(first))
                    && *x != f32::NEG_INFINITY
                {
                    *x = SELF;
                }
                let x = &mut x[a..b];
                let top = simd::max(s, x);
                if top == f32::NEG_INFINITY {
                    x.fill(0.0);
                    continue;
                }
                let before = maxima[r];
                if top > before {
                    alpha[r] = s.reduce_max(s.exp2_scaled(s.splat(before - top), s.splat(factor)));
                    maxima[r] = top;
                }
                weights[r] = weights[r] * alpha[r] + simd::exp2_sum(s, x, factor, maxima[r]);
                if ACCELERATED && let Some(look) = &mut look {
                    look(r, first, &scores[r * stride..][lo..hi], weights[r]);
                }
            }
            let w = Weights { p: &scores[lo..], stride, alpha: &alpha };
            decode::accumulate(isa, &values, &w, rows, sums, sizes.value_stride, lies);
            begin = end;
        }
    }
}

/// Sets scores of keys `first..` that a row does not see to -inf.
fn hide(x: &mut [f32], seen: Visible, first: usize, keep: Option<&[u8]>) {
    let n = x.len();
    let at = |j: usize| j.saturating_sub(first).min(n);
    let (sinks, begin, end) = (at(seen.sinks), at(seen.begin), at(seen.end));
    if sinks < begin {
        x[sinks..begin].fill(f32::NEG_INFINITY);
    }
    x[end.max(sinks)..].fill(f32::NEG_INFINITY);
    if let Some(keep) = keep {
        for (x, _) in x.iter_mut().zip(&keep[first..]).filter(|(_, k)| **k == 0) {
            *x = f32::NEG_INFINITY;
        }
    }
}

/// Attends all rows of `heads` consecutive query heads that share a KV head, the first of which is `head.head`: at most
/// [`FEW`] rows a head, [`MOST`] in all. Outputs and log-sum-exps go to the same heads of `out` and `lse`. The result's
/// bits are those of [`super::exact::attend`] for every head alone. Returns the number of visible pairs.
pub(crate) fn attend_group(call: &Call<'_>, head: &Head<'_>, heads: usize, work: &mut Work) -> u64 {
    let isa = call.isa;
    assert!(!head.shared() && head.q.rows() <= FEW && heads * head.q.rows() <= MOST);
    work.check(head, head.q.rows());
    let n = head.q.rows();
    if n == 0 {
        return 0;
    }
    let query = 0;
    let pairs = note_seen(head, query, n, work) * heads as u64;
    let each = |h: usize| Head { head: head.head + h, q: call.q.head(head.batch, head.head + h), ..*head };
    work.clear(heads * n);
    for h in 0..heads {
        isa.run(Load { q: &each(h).q, query, n, at: h * n, work });
    }
    isa.run(Sum { isa, few: Few { head, heads, query, n }, work, look: None });
    for h in 0..heads {
        let each = each(h);
        let (mut to, lse) = call.rows(head.batch, each.head, 0, n);
        finish(isa, &each, query, n, h * n, &mut to, 0, lse, work);
    }
    pairs
}

/// Starts rows `0..n` of `heads` consecutive heads, row `i` of head `h` at `h * n + i` of the work memory.
pub(crate) fn start(isa: Isa, head: &Head<'_>, heads: usize, q: &Tensor<'_>, n: usize, work: &mut Work) {
    assert!(!head.shared() && n <= FEW && heads * n <= MOST);
    work.check(head, n);
    work.clear(heads * n);
    for h in 0..heads {
        let q = q.head(head.batch, head.head + h);
        isa.run(Load { q: &q, query: 0, n, at: h * n, work });
    }
}

/// Rows that were started attend to what they see of a range of keys.
pub(crate) fn add(
    isa: Isa,
    head: &Head<'_>,
    heads: usize,
    n: usize,
    range: Span,
    look: Option<Look<'_>>,
    work: &mut Work,
) {
    let query = 0;
    note_seen(head, query, n, work);
    clamp(&mut work.seen[..n], range);
    isa.run(Sum { isa, few: Few { head, heads, query, n }, work, look });
}

/// The output of row `r`, divided in the work memory, and its log-sum-exp.
pub(crate) fn output(isa: Isa, head: &Head<'_>, r: usize, work: &mut Work) -> f32 {
    isa.run(Finish { head, i: 0, r, work, lse: true })
}

/// `n` rows of one head, at most [`FEW`], into rows `at..` of `out` and `lse`; what they see is noted in the
/// work memory already.
pub(crate) fn attend(
    isa: Isa,
    head: &Head<'_>,
    query: usize,
    n: usize,
    out: &mut RowsMut<'_>,
    at: usize,
    lse: Option<&mut [f32]>,
    work: &mut Work,
) {
    work.clear(n);
    isa.run(Load { q: &head.q, query, n, at: 0, work });
    isa.run(Sum { isa, few: Few { head, heads: 1, query, n }, work, look: None });
    finish(isa, head, query, n, 0, out, at, lse, work);
}

/// Stores `n` rows: row `r + i` of the work memory, row `at + i` of the outputs.
fn finish(
    isa: Isa,
    head: &Head<'_>,
    query: usize,
    n: usize,
    r: usize,
    out: &mut RowsMut<'_>,
    at: usize,
    mut lse: Option<&mut [f32]>,
    work: &mut Work,
) {
    for i in 0..n {
        let x = isa.run(Finish { head, i: query + i, r: r + i, work, lse: lse.is_some() });
        out.write(at + i, work.sum(r + i, head.v.cols()));
        if let Some(lse) = &mut lse {
            lse[at + i] = x;
        }
    }
}
