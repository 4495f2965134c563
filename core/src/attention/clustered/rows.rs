//! Query rows on their way through a block: what they look for, what they have seen, and sums so far.

use super::super::dense::exact::Head;
use super::super::dense::{Ahead, Panel, Sizes, block_of_keys, clamp, look_at, next_block};
use super::super::mask::Visible;
use crate::mem::{Buf, Maker, Rows};
use crate::simd::bias::{BiasKeys, HeadBiases};
use crate::simd::tile::{self, KEYS, PANEL, Span, Values};
use crate::simd::{Isa, Simd, Task, rows};

/// Rows with a softmax in progress each.
pub(super) struct RowSet {
    pub(super) dim_k: usize,
    pub(super) dim_v: usize,
    /// Elements from one row of sums to the next: whole vectors.
    pub(super) stride: usize,
    /// Rows there are.
    pub(super) n: usize,
    /// Queries `[rows][dim_k]`.
    pub(super) q: Buf<f32>,
    /// The same as panels `[panel][dim_k][PANEL]`.
    pub(super) panels: Buf<f32>,
    /// References of the weights, sums of the weights, sums of the weighted values.
    pub(super) max: Buf<f32>,
    pub(super) sum: Buf<f32>,
    pub(super) sums: Buf<f32>,
    /// What each row sees.
    pub(super) seen: Buf<Visible>,
    /// Query head and query of each row.
    pub(super) of: Buf<[u32; 2]>,
    clamped: Buf<Visible>,
    spans: Buf<Span>,
}

/// What passes over keys work in; shared by all sets.
pub(super) struct Room {
    sizes: Sizes,
    scores: Buf<f32>,
    keys: Buf<f32>,
    values: Buf<f32>,
    /// `[PANEL][keys of a block]`.
    biases: Buf<f32>,
}

impl Room {
    /// As part of a larger object.
    pub(super) fn made(m: &mut Maker<'_>, dim_k: usize, dim_v: usize) -> Self {
        let sizes = Sizes::new(dim_k, dim_v, PANEL);
        let scores = (sizes.block + KEYS) * PANEL;
        Room {
            sizes,
            scores: m.filled(scores, 0.0),
            keys: m.filled(sizes.block * sizes.key_stride, 0.0),
            values: m.filled(sizes.block * sizes.value_stride, 0.0),
            biases: m.filled(scores, 0.0),
        }
    }
}

/// A look at the weights of a run of keys for a panel: panel, first key, keys, weights `[key][PANEL]`, references and sums so far of
/// the panel's rows.
pub(super) type Look<'a> = &'a mut dyn FnMut(usize, usize, usize, &[f32], &[f32], &[f32]);

impl RowSet {
    /// For up to `rows` rows, as part of a larger object.
    pub(super) fn made(m: &mut Maker<'_>, dim_k: usize, dim_v: usize, rows: usize) -> Self {
        let (n, stride) = (rows.next_multiple_of(PANEL), dim_v.next_multiple_of(16));
        let (q, none) = (n.saturating_mul(dim_k), Visible { sinks: 0, begin: 0, end: 0 });
        RowSet {
            dim_k,
            dim_v,
            stride,
            n: 0,
            q: m.filled(q, 0.0),
            panels: m.filled(q, 0.0),
            max: m.filled(n, 0.0),
            sum: m.filled(n, 0.0),
            sums: m.filled(n.saturating_mul(stride), 0.0),
            seen: m.filled(n, none),
            of: m.filled(n, [0; 2]),
            clamped: m.filled(n, none),
            spans: m.filled(n, Span::default()),
        }
    }

    /// Takes in `n` rows, row `at(i)` of query head `head`, whose queries are `q`, each, after those that are there.
    pub(super) fn load(
        &mut self,
        isa: Isa,
        head: usize,
        q: &Rows<'_>,
        n: usize,
        at: impl Fn(usize) -> usize,
        seen: impl Fn(usize) -> Visible,
    ) {
        for i in 0..n {
            let r = self.n + i;
            isa.run(Widen { from: q, row: at(i), out: &mut self.q[r * self.dim_k..][..self.dim_k] });
            self.seen[r] = seen(at(i));
            self.of[r] = [head as u32, at(i) as u32];
        }
        self.n += n;
    }

    /// Starts the softmax of all rows.
    pub(super) fn start(&mut self, isa: Isa) {
        let rows = self.n.next_multiple_of(PANEL);
        self.max[..rows].fill(f32::NEG_INFINITY);
        self.sum[..rows].fill(0.0);
        self.sums[..rows * self.stride].fill(0.0);
        isa.run(Pack { set: self });
    }

    /// All rows attend to keys `range` of the head, each to what it sees of them. All attend to all of `listed` keys, gathered as the
    /// head's, where there are some; their biases are those of these keys in `biases`.
    pub(super) fn attend(
        &mut self,
        isa: Isa,
        head: &Head<'_>,
        range: Span,
        listed: Option<&[u32]>,
        biases: Option<HeadBiases<'_>>,
        room: &mut Room,
        look: Option<Look<'_>>,
    ) {
        let n = self.n;
        if listed.is_some() {
            self.clamped[..n].fill(Visible { sinks: 0, begin: range.begin, end: range.end });
        } else {
            self.clamped[..n].copy_from_slice(&self.seen[..n]);
            clamp(&mut self.clamped[..n], range);
        }
        let keys = listed.map_or(BiasKeys::Run(0), BiasKeys::List);
        isa.run(Attend { set: self, head, range, keys, biases, room, look });
    }

    /// Rows of a panel.
    pub(super) fn lanes(&self, p: usize) -> usize {
        (self.n - p * PANEL).min(PANEL)
    }

    /// Whether row `r` has any weight. Means of keys that are far out round to logits beyond those of the keys themselves.
    pub(super) fn is_sound(&self, r: usize) -> bool {
        self.sum[r] > 0.0 && self.sum[r] < f32::INFINITY
    }

    /// Divides the sums of row `r` by its weights: its output.
    pub(super) fn finish(&mut self, isa: Isa, r: usize) -> &[f32] {
        let row = &mut self.sums[r * self.stride..][..self.dim_v];
        match self.sum[r] {
            sum if sum > 0.0 => isa.scale(1.0 / sum, row),
            _ => row.fill(0.0),
        }
        row
    }

    /// Log-sum-exp of a row's logits, given the logit of a unit of a score.
    pub(super) fn log_sum_exp(&self, r: usize, unit: f32) -> f32 {
        match self.sum[r] {
            sum if sum > 0.0 => (f64::from(self.max[r]) * f64::from(unit) + libm::log(f64::from(sum))) as f32,
            _ => f32::NEG_INFINITY,
        }
    }
}

/// One row as f32.
struct Widen<'a> {
    from: &'a Rows<'a>,
    row: usize,
    out: &'a mut [f32],
}

impl Task for Widen<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        rows::widen(s, self.from, self.row, self.out);
    }
}

/// Queries into panels.
struct Pack<'a> {
    set: &'a mut RowSet,
}

impl Task for Pack<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RowSet { q, panels, n, dim_k, .. } = self.set;
        let Ok(q) = Rows::new(&q[..*n * *dim_k], *dim_k) else { unreachable!("whole rows") };
        tile::pack_queries(s, &q, |r| r, *n, panels);
    }
}

struct Attend<'a, 'b> {
    set: &'a mut RowSet,
    head: &'a Head<'a>,
    range: Span,
    keys: BiasKeys<'a>,
    biases: Option<HeadBiases<'a>>,
    room: &'a mut Room,
    look: Option<Look<'b>>,
}

impl Task for Attend<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let head = self.head;
        let RowSet { n, dim_k, dim_v, stride, panels, max, sum, sums, clamped, spans, of, .. } = self.set;
        let (rows, total) = (*n, self.range.end);
        let Room { sizes, scores, keys: keys_room, values: values_room, biases: biases_room } = self.room;
        let mut begin = self.range.begin / sizes.block * sizes.block;
        while begin < total {
            let end = (begin + sizes.block).min(total);
            let Some(hull) = look_at(&clamped[..rows], begin, end, &mut spans[..rows]) else {
                begin = next_block(&clamped[..rows], begin, sizes.block, total);
                continue;
            };
            let (first, count) = (begin + hull.begin, hull.end - hull.begin);
            let keys = block_of_keys(s, head, first, count, sizes, keys_room);
            let source = head.v.slice(first, count);
            let values = match Values::in_place::<S>(source) {
                Some(values) if source.stride() < 4096 => values,
                _ => {
                    tile::pack_values(s, &source, values_room);
                    Values::Packed { data: values_room, count, cols: source.cols() }
                }
            };
            let ahead = if end < total { sizes.block.min(total - end) } else { 0 };
            let ahead = Ahead {
                keys: head.k.slice(end, ahead),
                values: head.v.slice(end, ahead),
                panels: rows.div_ceil(PANEL),
            };
            for (p, seen) in clamped[..rows].chunks(PANEL).enumerate() {
                let (row, m) = (p * PANEL, seen.len());
                let to = &mut biases_room[..count * PANEL];
                let bias = self.biases.map(|b| b.of(&of[row..row + m]).copy(s, self.keys.skip(first), to));
                let mut part = Panel {
                    head,
                    q: &panels[p * *dim_k * PANEL..][..*dim_k * PANEL],
                    keys: &keys,
                    fixed: None,
                    values,
                    count,
                    dim_v: *dim_v,
                    first,
                    query: 0,
                    bias: bias.map(|bias| (bias, 0)),
                    seen,
                    spans: &spans[row..row + m],
                    offset: hull.begin,
                    scores,
                    sums: &mut sums[row * *stride..][..PANEL * *stride],
                    stride: *stride,
                    max: &mut max[row..row + PANEL],
                    sum: &mut sum[row..row + PANEL],
                };
                let scored = part.run(s, &ahead, p);
                if let Some(look) = self.look.as_mut().filter(|_| scored) {
                    // Keys that the panel sees: its scores begin with the first of them.
                    if let Some(of) = hull_of(&spans[row..row + m]) {
                        look(p, begin + of.begin, of.end - of.begin, scores, &max[row..row + m], &sum[row..row + m]);
                    }
                }
            }
            begin = end;
        }
    }
}

/// Keys that some row of a panel sees.
fn hull_of(spans: &[Span]) -> Option<Span> {
    let seen = spans.iter().filter(|span| span.begin < span.end);
    seen.copied().reduce(|a, b| Span { begin: a.begin.min(b.begin), end: a.end.max(b.end) })
}
