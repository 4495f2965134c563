//! One panel of queries against one block of keys: scores, masks, weights, weighted values.

use super::super::mask::Visible;
use super::head::Head;
use crate::mem::Rows;
use crate::simd::bias::{add_biases, hides_all};
use crate::simd::fixed::{self, Fixed};
use crate::simd::online::{self, Limits, State};
use crate::simd::tile::{self, PANEL, ROWS, Span, Values};
use crate::simd::{self, Simd, rows};

/// Bytes of a cache line.
const LINE: usize = 64;

/// A row's logit for itself under `shared_qk`: below every real one, so that it counts only when it is alone, and above
/// -inf.
pub(crate) const SELF: f32 = -1e30;

/// The factor that turns scores into powers of two, and whether scores are plain inner products (else they are logits
/// already).
pub(crate) fn factor(head: &Head<'_>, bias: bool) -> (f32, bool) {
    // A factor of the plain kind must be positive, or the largest score would not be the largest logit.
    let plain = head.softcap == 0.0 && !bias && head.scale > 0.0;
    (if plain { head.scale * core::f32::consts::LOG2_E } else { core::f32::consts::LOG2_E }, plain)
}

/// Keys and values of the next block, asked for between the tiles of this one: a few lines at a time, since processors stop
/// when many are on their way.
pub(crate) struct Ahead<'a> {
    pub(crate) keys: Rows<'a>,
    pub(crate) values: Rows<'a>,
    /// How many panels share that.
    pub(crate) panels: usize,
}

impl Ahead<'_> {
    /// What goes with keys `from..to` of `count` in panel `panel`.
    #[inline(always)]
    fn ask<S: Simd>(&self, s: S, panel: usize, from: usize, to: usize, count: usize) {
        let (before, all) = (panel * count, self.panels * count);
        for rows in [&self.keys, &self.values] {
            rows::prefetch(s, rows, before + from, before + to, all);
        }
    }
}

/// Asks for the biases of `n` rows, `query` of which each is, where a line of them begins with keys `from..to`, of which key 0
/// is `first`: rows lie far apart, so that no processor sees what comes next.
#[inline(always)]
fn ask_biases<S: Simd>(s: S, bias: &Rows<'_>, query: usize, n: usize, first: usize, from: usize, to: usize) {
    let size = bias.dtype().size();
    if from % (LINE / size) < to - from {
        let at = bias.as_ptr().wrapping_add((first + from) * size);
        for r in 0..n {
            s.prefetch(at.wrapping_add((query + r) * bias.stride()));
        }
    }
}

/// One panel of queries against one block of keys. Key positions are relative to `first` where not said otherwise.
pub(crate) struct Panel<'a> {
    pub(crate) head: &'a Head<'a>,
    pub(crate) q: &'a [f32],
    pub(crate) keys: &'a Rows<'a>,
    /// The same queries and keys in fixed point, if scores are to come from there.
    pub(crate) fixed: Option<Fixed<'a>>,
    /// `count` of them.
    pub(crate) values: Values<'a>,
    pub(crate) count: usize,
    pub(crate) dim_v: usize,
    /// Absolute position of the block's first key.
    pub(crate) first: usize,
    /// The query of the panel's first row.
    pub(crate) query: usize,
    /// Biases by query, and the column of the block's first key.
    pub(crate) bias: Option<(Rows<'a>, usize)>,
    pub(crate) seen: &'a [Visible],
    /// Relative to the block's start, `offset` before `first`.
    pub(crate) spans: &'a [Span],
    pub(crate) offset: usize,
    pub(crate) scores: &'a mut [f32],
    pub(crate) sums: &'a mut [f32],
    pub(crate) stride: usize,
    pub(crate) max: &'a mut [f32],
    pub(crate) sum: &'a mut [f32],
}

impl Panel<'_> {
    /// Keys that rows `a..b` see: their hull.
    #[inline(always)]
    fn hull(&self, a: usize, b: usize) -> Span {
        let mut hull = Span { begin: usize::MAX, end: 0 };
        for span in &self.spans[a..b] {
            let begin = span.begin.saturating_sub(self.offset);
            let end = span.end.saturating_sub(self.offset).min(self.count);
            if begin < end {
                hull.begin = hull.begin.min(begin);
                hull.end = hull.end.max(end);
            }
        }
        if hull.end == 0 { Span::default() } else { hull }
    }

    /// All keys of the block; returns whether some row sees some, so that there are scores.
    #[inline(always)]
    pub(crate) fn run<S: Simd>(&mut self, s: S, ahead: &Ahead<'_>, panel: usize) -> bool {
        let rows = self.seen.len();
        let hull = self.hull(0, rows);
        let (lo, hi) = (hull.begin, hull.end);
        let bias = self.bias;
        if lo == hi {
            return false;
        }
        if let Some((bias, column)) = bias
            && hides_all(s, &bias, self.query..self.query + rows, column + lo, hi - lo)
        {
            return false;
        }
        let vecs = rows.div_ceil(S::LANES);
        let keep = self.head.masking.keep(self.head.batch);
        let (factor, plain) = factor(self.head, bias.is_some());

        // Keys that all rows see need no mask.
        let (mut all_lo, mut all_hi) = (lo, hi);
        for seen in self.seen {
            all_lo = all_lo.max(seen.begin.saturating_sub(self.first));
            all_hi = all_hi.min(seen.end.saturating_sub(self.first));
        }
        if all_lo >= all_hi {
            (all_lo, all_hi) = (hi, hi);
        }
        let whole = all_lo == lo && all_hi == hi;
        // Of those in whole tiles the largest scores are known as they come.
        let tile = tile::keys::<S>();
        let (mut clear_lo, mut clear_hi) = (lo, hi);
        if !whole {
            clear_lo += (all_lo - lo).next_multiple_of(tile);
            clear_hi = clear_lo.max(lo + (all_hi - lo) / tile * tile).min(hi);
            clear_lo = clear_lo.min(clear_hi);
        }

        let mut spans = [Span { begin: lo, end: hi }; PANEL];
        if !whole {
            for (v, span) in spans.iter_mut().enumerate().take(vecs) {
                *span = self.hull(v * S::LANES, ((v + 1) * S::LANES).min(rows));
            }
        }
        let mut max = [f32::NEG_INFINITY; PANEL];
        let spans_of = &spans[..vecs];
        let (query, count) = (self.query, self.count);
        let between = |from, to| {
            ahead.ask(s, panel, from, to, count);
            if let Some((bias, column)) = &bias {
                ask_biases(s, bias, query, rows, *column, from, to);
            }
        };
        for (from, to) in [(lo, clear_lo), (clear_lo, clear_hi), (clear_hi, hi)] {
            let mut seen = [f32::NEG_INFINITY; PANEL];
            let out = &mut self.scores[(from - lo) * PANEL..];
            match &self.fixed {
                Some(f) => fixed::scores(s, f, from, to, spans_of, out, &mut seen, between),
                None => tile::scores(s, self.q, self.keys, from, to, spans_of, out, &mut seen, between),
            }
            if from == clear_lo && to == clear_hi {
                max = seen;
            }
        }
        let n = hi - lo;
        let limits = self.limits(lo, whole);
        let scores = &mut self.scores[..n * PANEL];
        if !plain {
            simd::logits(s, scores, self.head.scale, self.head.softcap);
        }
        if let Some((bias, column)) = &bias {
            add_biases(s, bias, |r| self.query + r, rows, column + lo, scores);
        }
        if !whole {
            online::hide(s, scores, 0, all_lo - lo, vecs, &limits);
            online::hide(s, &mut scores[(all_hi - lo) * PANEL..], all_hi - lo, hi - all_hi, vecs, &limits);
        }
        if let Some(keep) = keep {
            for (x, &k) in scores.chunks_exact_mut(PANEL).zip(&keep[self.first + lo..]) {
                if k == 0 {
                    x.fill(f32::NEG_INFINITY);
                }
            }
        }
        if self.head.shared() {
            for r in 0..rows {
                let at = (self.query + r).wrapping_sub(self.first + lo);
                if at < n && scores[at * PANEL + r] != f32::NEG_INFINITY {
                    scores[at * PANEL + r] = SELF;
                }
            }
        }
        if !plain || keep.is_some() || self.head.shared() {
            max.fill(f32::NEG_INFINITY);
            online::maxima(s, scores, vecs, &mut max);
        } else {
            online::maxima(s, &scores[..(clear_lo - lo) * PANEL], vecs, &mut max);
            online::maxima(s, &scores[(clear_hi - lo) * PANEL..], vecs, &mut max);
        }
        let mut alpha = [1.0; PANEL];
        let mut state = State { max: &mut *self.max, sum: &mut *self.sum, alpha: &mut alpha };
        let grown = online::weights(s, scores, n, vecs, factor, &max, &mut state);

        let mut spans = [Span::default(); PANEL / ROWS];
        for (t, span) in spans.iter_mut().enumerate().take(rows.div_ceil(ROWS)) {
            *span = self.hull(t * ROWS, (t * ROWS + ROWS).min(rows));
        }
        let mut v = 0;
        while v < self.dim_v.div_ceil(S::LANES) {
            for (t, span) in spans.iter().enumerate().take(rows.div_ceil(ROWS)) {
                // A last value row of ROWS weights needs that many numbers after it: panels end at a multiple of ROWS.
                if span.begin < span.end {
                    let r = t * ROWS;
                    let p = &self.scores[(span.begin - lo) * PANEL + r..];
                    let sums = &mut self.sums[r * self.stride..];
                    let keys = span.end - span.begin;
                    let alpha = grown.then_some(&alpha[r..]);
                    tile::accumulate(s, p, self.values, v, span.begin, keys, alpha, sums, self.stride);
                }
            }
            v += tile::group::<S>(self.dim_v, v);
        }
        true
    }

    /// Limits of every lane, relative to key `lo`; only looked at where there are some.
    fn limits(&self, lo: usize, whole: bool) -> Limits {
        let base = self.first + lo;
        // Blocks are small, so that what lies beyond them need not be exact.
        let at = |j: usize| j.saturating_sub(base).min(1 << 20) as f32;
        let mut limits = Limits { sinks: [0.0; PANEL], begin: [0.0; PANEL], end: [f32::MAX; PANEL] };
        if whole {
            return limits;
        }
        for (r, seen) in self.seen.iter().enumerate() {
            limits.sinks[r] = at(seen.sinks);
            limits.begin[r] = at(seen.begin);
            limits.end[r] = at(seen.end);
        }
        limits
    }
}
