//! Exact attention: tiles of queries x keys, online softmax, tiles of weights x values.
//!
//! Queries of a row block are transposed once. Keys are read in place wherever they are f32 with a benign stride, else
//! converted block by block; so are values if they are aligned, too, else packed for the tiles to stream over. Blocks of
//! keys start at multiples of a size that depends on the dimensions only, so a row's bits depend neither on its
//! neighbours nor on threads.

use super::few::{self, FEW, MOST};
use super::fixed::FixedWork;
use super::mask::{Masking, Visible};
use super::panel::{Ahead, Panel, SELF, factor};
use crate::error::Result;
use crate::features::{PANELS, Part, SHARED_QK};
use crate::mem::{Buf, Dtype, Maker, Memory, Plan, Rows, RowsMut};
use crate::simd::bias::add_bias;
use crate::simd::tile::{self, KEYS, PANEL, Span, Values};
use crate::simd::{self, Isa, Simd, Task, rows};

/// Query rows worth handing to one [`attend`] call: what keys and values in the second-level cache are reused for. Cut
/// problems at multiples of it.
pub const ROW_BLOCK: usize = 8 * PANEL;

/// One (batch, query head) of an exact attention problem.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Queries `[rows_q, dim_k]`.
    pub q: Rows<'a>,
    /// Keys `[rows_kv, dim_k]`; not read under `shared_qk`.
    pub k: Rows<'a>,
    /// Values `[rows_kv, dim_v]`.
    pub v: Rows<'a>,
    /// Mask, window, sinks.
    pub masking: &'a Masking<'a>,
    /// Batch, for the mask.
    pub batch: usize,
    /// Query head, for the mask.
    pub head: usize,
    /// Softmax scale.
    pub scale: f32,
    /// Logits become `softcap * tanh(logit / softcap)`; 0 = off.
    pub softcap: f32,
    /// Keys are the queries scaled to unit norm; a row sees itself only when it sees nothing else.
    pub shared_qk: bool,
}

impl Head<'_> {
    /// Whether keys are the queries.
    #[inline(always)]
    pub(super) fn shared(&self) -> bool {
        SHARED_QK && self.shared_qk
    }
}

/// Sizes of the work memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Query rows there is room for.
    pub(super) rows: usize,
    /// Keys of a block.
    pub(super) block: usize,
    /// Elements from key to key in the converted block.
    pub(super) key_stride: usize,
    /// Elements of a packed value, and from row to row of the sums.
    pub(super) value_stride: usize,
    /// Key dimension.
    pub(super) dim_k: usize,
}

impl Sizes {
    pub(super) fn new(dim_k: usize, dim_v: usize, rows: usize) -> Sizes {
        // Keys and values of a block take 256 KiB where the dimensions allow it.
        let block = (65536 / (dim_k + dim_v).max(1)).clamp(32, 512) & !(KEYS - 1);
        // Rows a multiple of a page apart would fall on the same few cache lines.
        let pad = |n: usize| if n.is_multiple_of(1024) { n + 16 } else { n };
        // Whole panels of a row block, so that a short call neither takes nor touches what a long one needs.
        let rows = if PANELS && rows > FEW { rows.min(ROW_BLOCK).next_multiple_of(PANEL) } else { MOST };
        Sizes { rows, block, key_stride: pad(dim_k), value_stride: pad(dim_v.next_multiple_of(16)), dim_k }
    }

    /// Whether there is room for tiles: rows of a few are no whole panel.
    fn has_tiles(&self) -> bool {
        const { assert!(!MOST.is_multiple_of(PANEL)) };
        PANELS && self.rows != MOST
    }

    /// Elements of `q, k, v, scores, sums, state, row`.
    fn lens(&self) -> [usize; 7] {
        let (keys, values, scores) = match self.has_tiles() {
            true => (self.block, self.block, (self.block + KEYS) * PANEL),
            false => (few::block(self), 0, MOST * few::stride(self)),
        };
        [
            self.rows * self.dim_k,
            keys * self.key_stride,
            values * self.value_stride,
            scores,
            self.rows * self.value_stride,
            2 * self.rows,
            self.key_stride.max(self.value_stride),
        ]
    }
}

/// Adds the work memory of one part to a plan: exactly what [`Work::new_in`] takes.
pub fn plan(plan: &mut Plan, dim_k: usize, dim_v: usize, rows: usize) {
    let sizes = Sizes::new(dim_k, dim_v, rows);
    for n in sizes.lens() {
        Buf::<f32>::plan(plan, n);
    }
    Buf::<Visible>::plan(plan, sizes.rows);
    Buf::<Span>::plan(plan, sizes.rows);
}

/// Adds what [`Work::with_fixed_scores`] takes to a plan.
pub fn plan_fixed_scores(plan: &mut Plan, dim_k: usize, dim_v: usize) {
    FixedWork::plan(plan, dim_k, ROW_BLOCK, Sizes::new(dim_k, dim_v, ROW_BLOCK).block);
}

/// Work memory of one part: one per thread, used for any number of heads of the same dimensions.
#[derive(Debug)]
pub struct Work {
    pub(super) sizes: Sizes,
    /// Queries `[panel][dim_k][PANEL]`. Of a few rows it holds, like scores and sums, only what these take.
    pub(super) q: Buf<f32>,
    /// Empty until keys must be converted.
    pub(super) k: Buf<f32>,
    /// Empty until values must be packed.
    v: Buf<f32>,
    pub(super) scores: Buf<f32>,
    pub(super) sums: Buf<f32>,
    /// Maxima, then sums of the weights.
    pub(super) state: Buf<f32>,
    row: Buf<f32>,
    fixed: Option<Part<FixedWork, { PANELS as usize }>>,
    pub(super) seen: Buf<Visible>,
    pub(super) spans: Buf<Span>,
}

impl Work {
    /// Allocates everything that [`attend`] uses for these dimensions and up to `rows` rows a call: much less for twelve or
    /// fewer, and as much for [`ROW_BLOCK`] as for more.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub fn new_in(memory: &Memory, dim_k: usize, dim_v: usize, rows: usize) -> Result<Work> {
        let sizes = Sizes::new(dim_k, dim_v, rows);
        let [q, k, v, scores, sums, state, row] = sizes.lens();
        let mut m = Maker::new(memory);
        let tiles = sizes.has_tiles();
        let work = Work {
            sizes,
            q: m.filled_if(tiles, q, 0.0),
            k: m.room(k),
            v: m.room(v),
            scores: m.filled_if(tiles, scores, 0.0),
            sums: m.filled_if(tiles, sums, 0.0),
            state: m.filled(state, 0.0),
            row: m.filled(row, 0.0),
            fixed: None,
            seen: m.filled(sizes.rows, Visible { sinks: 0, begin: 0, end: 0 }),
            spans: m.filled(sizes.rows, Span::default()),
        };
        m.finish().map(|()| work)
    }

    /// Makes calls of more than twelve rows multiply queries and keys in 16-bit fixed point.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub fn with_fixed_scores(mut self, memory: &Memory) -> Result<Work> {
        let sizes = self.sizes;
        self.fixed = Some(Part::make(|| FixedWork::new_in(memory, sizes.dim_k, ROW_BLOCK, sizes.block))?);
        Ok(self)
    }

    /// Largest standard error of an inner product of a query and a key that came from fixed point; 0 without it.
    pub fn score_error(&self) -> f32 {
        self.fixed.as_ref().filter(|_| PANELS).map_or(0.0, |fixed| fixed.error())
    }

    /// Refuses a head whose parts do not fit together or whose dimensions this memory is not for.
    pub(super) fn check(&self, head: &Head<'_>, rows: usize) {
        assert!(SHARED_QK || !head.shared_qk, "this build has no shared query-key mode");
        let keys = if head.shared() { head.q } else { head.k };
        assert!(keys.cols() == head.q.cols() && keys.rows() == head.v.rows());
        let most = if self.sizes.has_tiles() { self.sizes.rows } else { FEW };
        let sizes = Sizes::new(head.q.cols(), head.v.cols(), most);
        assert!(sizes.lens() == self.sizes.lens() && sizes.block == self.sizes.block);
        assert!(rows <= most);
    }

    /// Resets the state and the sums of `rows` rows, before their queries come: of a few, there is room for these then.
    pub(super) fn clear(&mut self, rows: usize) {
        let s = &self.sizes;
        if !s.has_tiles() {
            let lens = [s.dim_k, few::stride(s), s.value_stride];
            for (buf, each) in [&mut self.q, &mut self.scores, &mut self.sums].into_iter().zip(lens) {
                buf.grow(rows * each, 0.0);
            }
        }
        self.state[..rows].fill(f32::NEG_INFINITY);
        self.state[s.rows..][..rows].fill(0.0);
        self.sums[..rows * s.value_stride].fill(0.0);
    }

    /// What was summed for a row.
    pub(super) fn sum(&self, r: usize, dim_v: usize) -> &[f32] {
        &self.sums[r * self.sizes.value_stride..][..dim_v]
    }
}

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
    lse: Option<&mut [f32]>,
    work: &mut Work,
) -> u64 {
    assert!(begin <= head.q.rows() && n <= head.q.rows() - begin);
    attend_queries(isa, head, Queries::Run(begin), n, out, lse, work)
}

/// The same for scattered rows: query `rows[i]` of the head into row `i` of `out` and `lse`. A row's bits are those that
/// [`attend`] gives it. Rows may be in any order and repeat.
///
/// # Panics
/// As [`attend`], or if a row is not there.
pub fn attend_rows(
    isa: Isa,
    head: &Head<'_>,
    rows: &[u32],
    out: &mut RowsMut<'_>,
    lse: Option<&mut [f32]>,
    work: &mut Work,
) -> u64 {
    assert!(rows.iter().all(|&i| (i as usize) < head.q.rows()));
    attend_queries(isa, head, Queries::List(rows), rows.len(), out, lse, work)
}

/// Which queries of a head the rows of a call are.
#[derive(Clone, Copy)]
pub(super) enum Queries<'a> {
    /// Consecutive ones from here on.
    Run(usize),
    /// These.
    List(&'a [u32]),
}

impl Queries<'_> {
    /// Query of row `i`.
    #[inline(always)]
    pub(super) fn at(&self, i: usize) -> usize {
        match self {
            Queries::Run(begin) => begin + i,
            Queries::List(rows) => rows[i] as usize,
        }
    }

    /// From row `n` on.
    #[inline(always)]
    pub(super) fn skip(&self, n: usize) -> Self {
        match self {
            Queries::Run(begin) => Queries::Run(begin + n),
            Queries::List(rows) => Queries::List(&rows[n..]),
        }
    }
}

fn attend_queries(
    isa: Isa,
    head: &Head<'_>,
    queries: Queries<'_>,
    n: usize,
    out: &mut RowsMut<'_>,
    mut lse: Option<&mut [f32]>,
    work: &mut Work,
) -> u64 {
    assert!(n <= out.rows() && out.cols() == head.v.cols());
    let most = if PANELS { ROW_BLOCK } else { FEW };
    work.check(head, n.min(most));
    let mut pairs = 0;
    let mut done = 0;
    while done < n {
        let rows = (n - done).min(most);
        let queries = queries.skip(done);
        pairs += look(head, queries, rows, work);
        if PANELS && rows > FEW {
            work.clear(rows.next_multiple_of(PANEL));
            isa.run(Many { head, queries, rows, out, at: done, lse: lse.as_deref_mut(), work });
        } else {
            few::attend(isa, head, queries, rows, out, done, lse.as_deref_mut(), work);
        }
        done += rows;
    }
    pairs
}

/// Cuts what rows see to a range.
pub(super) fn clamp(seen: &mut [Visible], range: Span) {
    for seen in seen {
        seen.sinks = if range.begin == 0 { seen.sinks.min(range.end) } else { 0 };
        seen.end = seen.end.min(range.end).max(seen.sinks);
        seen.begin = seen.begin.max(range.begin).min(seen.end);
    }
}

/// `rows` rows into rows `at..` of the outputs, by panels of transposed queries.
struct Many<'a, 'b> {
    head: &'a Head<'a>,
    queries: Queries<'a>,
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
        let Many { head, queries, rows, .. } = *self;
        // Queries are laid out once, in the form that scores come from.
        match &mut self.work.fixed {
            Some(fixed) => fixed.load_queries(s, &head.q, queries, rows),
            None => tile::pack_queries(s, &head.q, |r| queries.at(r), rows, &mut self.work.q),
        }
        let Work { sizes, q, k, v, scores, sums, state, seen, spans, fixed, .. } = &mut *self.work;
        let (maxima, weights) = state.split_at_mut(sizes.rows);
        let total = head.v.rows();
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
                    queries: queries.skip(row),
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
            let x = finish_row(s, self.head, self.queries.at(r), r, self.work, self.lse.is_some());
            self.out.write(self.at + r, self.work.sum(r, dim_v));
            if let Some(lse) = &mut self.lse {
                lse[self.at + r] = x;
            }
        }
    }
}

/// Divides the sums of row `r` of the work memory, query `i` of the head, by its weights. Returns the log-sum-exp if
/// somebody wants it.
#[inline(always)]
pub(super) fn finish_row<S: Simd>(s: S, head: &Head<'_>, i: usize, r: usize, work: &mut Work, lse: bool) -> f32 {
    let (max, sum) = (work.state[r], work.state[work.sizes.rows + r]);
    let y = &mut work.sums[r * work.sizes.value_stride..][..head.v.cols()];
    if sum > 0.0 {
        simd::logits(s, y, 1.0 / sum, 0.0);
    } else {
        y.fill(0.0);
    }
    if !lse {
        return 0.0;
    }
    if head.shared() && max == SELF {
        return own_logit(s, head, i, &mut work.row) as f32;
    }
    if sum > 0.0 {
        let (_, plain) = factor(head, head.masking.bias(head.batch, head.head).is_some());
        let unit = if plain { f64::from(head.scale) } else { 1.0 };
        (f64::from(max) * unit + libm::log(f64::from(sum))) as f32
    } else {
        f32::NEG_INFINITY
    }
}

/// Notes what the rows see; returns the number of pairs.
pub(super) fn look(head: &Head<'_>, queries: Queries<'_>, rows: usize, work: &mut Work) -> u64 {
    let keep = head.masking.keep(head.batch);
    let count = |keep: &[u8]| keep.iter().filter(|&&k| k != 0).count();
    let mut pairs = 0;
    let mut last: Option<(Visible, usize)> = None;
    for r in 0..rows {
        let seen = head.masking.visible(head.batch, queries.at(r));
        work.seen[r] = seen;
        let n = match (keep, last) {
            (None, _) => seen.len(),
            (_, Some((before, n))) if before == seen => n,
            (Some(keep), _) => count(&keep[..seen.sinks]) + count(&keep[seen.begin..seen.end]),
        };
        last = Some((seen, n));
        pairs += n as u64;
    }
    pairs
}

/// Logit of a row for its own normalised key.
#[inline(always)]
fn own_logit<S: Simd>(s: S, head: &Head<'_>, i: usize, row: &mut [f32]) -> f64 {
    head.q.read(i, row);
    let norm = libm::sqrt(row[..head.q.cols()].iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>());
    let mut x = [norm as f32];
    simd::logits(s, &mut x, head.scale, head.softcap);
    let mut b = [0.0];
    if let Some(bias) = head.masking.bias(head.batch, head.head) {
        add_bias(s, &bias, i, i, &mut b, 1);
    }
    f64::from(x[0]) + f64::from(b[0])
}

/// Sets `spans[r]` to the keys of block `begin..end` that row r sees (their hull, relative to `begin`); returns the hull
/// of all, if any row sees anything.
pub(super) fn look_at(seen: &[Visible], begin: usize, end: usize, spans: &mut [Span]) -> Option<Span> {
    let (mut lo, mut hi) = (end, begin);
    for (seen, span) in seen.iter().zip(spans) {
        let (mut a, mut b) = (seen.begin.max(begin), seen.end.min(end));
        if a >= b {
            (a, b) = (end, begin);
        }
        if seen.sinks > begin {
            a = begin;
            b = b.max(seen.sinks.min(end));
        }
        *span = if a < b { Span { begin: a - begin, end: b - begin } } else { Span::default() };
        (lo, hi) = (lo.min(a), hi.max(b));
    }
    (lo < hi).then(|| Span { begin: lo - begin, end: hi - begin })
}

/// First block after an unseen one that a row may see.
pub(super) fn next_block(seen: &[Visible], begin: usize, block: usize, total: usize) -> usize {
    let next = begin + block;
    let main = seen.iter().filter(|s| s.end > s.begin && s.end > next).map(|s| s.begin).min().unwrap_or(total);
    let sinks = seen.iter().any(|s| s.sinks > next);
    if sinks { next } else { next.max(main / block * block) }
}

/// Whether rows of this stride fall on few cache lines or many pages: copying them is cheaper then.
fn awkward(rows: &Rows<'_>) -> bool {
    rows.stride() >= 4096
}

/// View of a converted block.
fn view(data: &[f32], rows: usize, cols: usize, stride: usize) -> Rows<'_> {
    match Rows::strided(data, rows, cols, stride) {
        Ok(rows) => rows,
        Err(_) => unreachable!("blocks fit their buffers"),
    }
}

/// Keys `first..first + n` as f32 rows.
#[inline(always)]
pub(super) fn block_of_keys<'a, S: Simd>(
    s: S,
    head: &Head<'a>,
    first: usize,
    n: usize,
    sizes: &Sizes,
    buf: &'a mut Buf<f32>,
) -> Rows<'a> {
    let source = if head.shared() { head.q } else { head.k };
    if !head.shared() && source.dtype() == Dtype::F32 && !awkward(&source) {
        return source.slice(first, n);
    }
    let (dim, stride) = (sizes.dim_k, sizes.key_stride);
    buf.fill_up(0.0);
    for j in 0..n {
        let to = &mut buf[j * stride..][..dim];
        rows::widen(s, &source, first + j, to);
        if head.shared() {
            normalise(to);
        }
    }
    view(buf, n, dim, stride)
}

/// Values `first..first + n`, packed into `buf` where tiles cannot read them as they lie.
#[inline(always)]
fn block_of_values<'a, S: Simd>(s: S, head: &Head<'a>, first: usize, n: usize, buf: &'a mut Buf<f32>) -> Values<'a> {
    let rows = head.v.slice(first, n);
    match Values::in_place::<S>(rows) {
        Some(values) if !awkward(&rows) => values,
        _ => {
            buf.fill_up(0.0);
            tile::pack_values(s, &rows, buf);
            Values::Packed { data: buf, count: n, cols: rows.cols() }
        }
    }
}

/// Scales to unit norm; zeros stay zeros.
fn normalise(x: &mut [f32]) {
    // In f64: squares of f32 neither overflow nor vanish there.
    let norm = libm::sqrt(x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>());
    if norm > 0.0 {
        x.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
}
