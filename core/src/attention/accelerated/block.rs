//! Rows of a block, their state, and the work memory they live in.

use super::super::exact::{self, Head, Queries, ROW_BLOCK};
use super::super::few::{self, FEW, MOST};
use super::APART;
use super::all::tried;
use super::apart::Apart;
use super::bias::Lifted;
use super::offset::Offsets;
use super::proof::Evidence;
use super::rule::Rule;
use super::usable::{PARTS, Usable};
use crate::cells::{BLOCK, Cells, Matrix, ROOT, SEGMENT};
use crate::error::Result;
use crate::mem::{Buf, Maker, Memory, Plan, Tensor};
use crate::simd::Isa;
use crate::simd::block::{
    AddUp, Along, Asking, ByChild, Bytes, Forms, Listing, RAISE, Raise, RoundQuery, Shares, TOGETHER, Thresholds, words,
};
use crate::simd::tile::{PANEL, Span};

/// Most queries of a block, and most rows of a head.
const QUERIES: usize = 1024;
const ROWS: usize = PARTS * SEGMENT;
/// Queries that a list can name.
pub(super) const NUMBERED: usize = 1 << 16;
/// Elements of queries and sums that the second-level cache holds beside everything else.
const CACHED: usize = 3 << 16;

/// One query of those tried in so many is looked at to predict what all of them cost.
pub(super) const SAMPLED: usize = 12;

/// Sizes of a block's work memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sizes {
    pub(super) queries: usize,
    pub(super) dim_k: usize,
    pub(super) dim_v: usize,
    /// Elements from query to query.
    pub(super) q_stride: usize,
    /// Elements from value to value and from sum to sum.
    pub(super) stride: usize,
    pub(super) segments: usize,
    /// Queries of a trial that are looked at.
    samples: usize,
    few: bool,
}

impl Sizes {
    /// Rows of each of `group` heads that are attended together, and the memory that takes.
    pub(super) fn new(dim_k: usize, dim_v: usize, group: usize, rows: usize, keys: usize) -> (usize, Sizes) {
        let most = (CACHED / (dim_k + dim_v)).clamp(1, QUERIES);
        // A part's own rows and what lies between them and the last segment before are dense: least where blocks begin with
        // segments. Shorter ones are whole panels of the dense kernels.
        let short = (rows / if group == 1 { 4 } else { 8 }).max(SEGMENT);
        let block = match (most / group).clamp(1, ROWS.min(short)) {
            rows @ SEGMENT.. => rows / SEGMENT * SEGMENT,
            rows @ PANEL.. => rows / PANEL * PANEL,
            rows => rows,
        };
        let few = rows <= APART;
        let stride = dim_v.next_multiple_of(16);
        (
            block,
            Sizes {
                queries: group * block.min(rows.max(1)),
                dim_k,
                dim_v,
                q_stride: dim_k.next_multiple_of(BLOCK),
                stride,
                segments: keys / SEGMENT,
                samples: (group * tried(block, group).min(rows.max(1))).div_ceil(SAMPLED),
                few,
            },
        )
    }

    /// Rows of opened cells that are kept together: of a few, those of all cells of a node.
    fn opened(&self) -> usize {
        if self.few { BLOCK * self.queries } else { self.queries }
    }

    /// Queries that go down the tree together by themselves: all where they are few, one at a time of a trial.
    pub(super) fn apart(&self) -> usize {
        if self.few { self.queries } else { self.samples.min(1) }
    }

    /// Scores of all nodes.
    pub(super) fn roots(&self) -> usize {
        self.segments.div_ceil(ROOT) * self.queries * BLOCK
    }
}

/// Rows that the dense kernels are to have memory for: those that do not go down by themselves are summed in tiles, however few.
fn dense(rows: usize) -> usize {
    if rows <= APART { rows } else { rows.max(FEW + 1) }
}

/// Lists of rows by child.
pub(super) struct Lists {
    /// Queries, `[BLOCK][queries]`.
    pub(super) rows: Buf<u16>,
    /// Places in the parent's list.
    pub(super) places: Buf<u16>,
    pub(super) len: [usize; BLOCK],
}

impl Lists {
    fn plan(plan: &mut Plan, queries: usize) {
        Buf::<u16>::plan(plan, queries * BLOCK + TOGETHER);
        Buf::<u16>::plan(plan, queries * BLOCK + TOGETHER);
    }

    fn made(m: &mut Maker<'_>, queries: usize) -> Self {
        let n = queries * BLOCK + TOGETHER;
        Lists { rows: m.filled(n, 0), places: m.filled(n, 0), len: [0; BLOCK] }
    }

    /// From the bits of every row of a list.
    pub(super) fn fill(&mut self, isa: Isa, rows: &[u16], open: &[u16], count: &[u16]) {
        let stride = self.stride();
        let (queries, places) = (&mut *self.rows, &mut *self.places);
        self.len = isa.run(ByChild { rows, open, count, stride, queries, places });
    }

    /// Rows of a child, at most.
    fn stride(&self) -> usize {
        (self.rows.len() - TOGETHER) / BLOCK
    }

    /// All of them.
    pub(super) fn listing(&mut self) -> Listing<'_> {
        let stride = self.stride();
        Listing { len: &mut self.len, stride, rows: &mut self.rows, places: &mut self.places }
    }

    /// Queries and places of the rows that open a child.
    pub(super) fn of_mut(&mut self, child: usize) -> (&mut [u16], &mut [u16]) {
        let (stride, n) = (self.stride(), self.len[child]);
        (&mut self.rows[child * stride..][..n], &mut self.places[child * stride..][..n])
    }

    /// Queries and places of the rows that open a child.
    pub(super) fn of(&self, child: usize) -> (&[u16], &[u16]) {
        let (stride, n) = (self.stride(), self.len[child]);
        (&self.rows[child * stride..][..n], &self.places[child * stride..][..n])
    }
}

/// Work memory of one part.
pub(crate) struct Work {
    pub(super) sizes: Sizes,
    pub(super) dense: exact::Work,
    /// Queries times scale and log2(e), `[queries][q_stride]`.
    pub(super) q: Buf<f32>,
    /// Weighted sums of values, `[queries][stride]`.
    pub(super) sums: Buf<f32>,
    /// By query: logit that weights are relative to.
    pub(super) reference: Buf<f32>,
    pub(super) needle: Buf<f32>,
    pub(super) shares: Shares,
    /// Estimated sum of all weights, or what of them was found, where that is more.
    pub(super) total: Buf<f32>,
    /// Cells opened so far, and the sum times what that makes of it: what a key's weight is compared with.
    pub(super) opened: Buf<f32>,
    pub(super) bar: Buf<f32>,
    /// By level (cells, nodes) and query.
    pub(super) mass: [Buf<f32>; 2],
    pub(super) sigma: [Buf<f32>; 2],
    pub(super) fine: Buf<f32>,
    /// Weight of a node's cells from which on their own mean values are used.
    pub(super) coarse: Buf<f32>,
    /// Largest logit and sum of the weights of the dense part.
    pub(super) dense_max: Buf<f32>,
    pub(super) dense_sum: Buf<f32>,
    /// Sums of exact and of estimated weights, `[queries][BLOCK]`.
    pub(super) exact: Buf<f32>,
    pub(super) estimated: Buf<f32>,
    /// By level: sums of estimated weights times the squared spread of their keys, `[queries][BLOCK]`.
    pub(super) lean: [Buf<f32>; 2],
    /// Scores of all nodes, `[root][queries][BLOCK]`.
    pub(super) roots: Buf<f32>,
    /// Weights of cells and of nodes, scores or weights of keys, `[queries][BLOCK]`; of a few queries those of all cells of a node.
    pub(super) scores: [Buf<f32>; 3],
    /// Scores of a node's cells and, where they are not those of `roots`, of nodes, `[queries][BLOCK]`.
    pub(super) centers: [Buf<f32>; 2],
    /// Bits of the children that are opened for their mass.
    pub(super) sure: [Buf<u16>; 2],
    /// Queries in bytes, `[queries][2 * words(dim_k)]`.
    pub(super) codes: Buf<i32>,
    pub(super) along: Buf<Along>,
    pub(super) base: Buf<f32>,
    /// What of `exact` is in `estimated` too.
    pub(super) light: Buf<f32>,
    pub(super) open: Buf<u16>,
    pub(super) lists: [Lists; 2],
    /// Of a few queries.
    pub(super) apart: Apart,
    /// Queries with keys of their own value, and which.
    pub(super) full: Buf<[u16; 2]>,
    pub(super) every: Buf<u16>,
    /// Queries of a trial, and by their place there: sums before it and their weight, by which power of two that is exceeded, queries
    /// as they came, `[..][dim_k]`, exact outputs, logits of heavy keys.
    pub(super) sample: Buf<u16>,
    pub(super) kept: Buf<f32>,
    pub(super) expected: Buf<f32>,
    pub(super) surplus: Buf<f32>,
    pub(super) asked: Buf<f32>,
    pub(super) truth: Buf<f32>,
    pub(super) heavy: Buf<f32>,
    /// Expected square errors, `[query][BLOCK]`.
    pub(super) doubt: Buf<f32>,
    /// Queries that use the mean values of a node's cells.
    pub(super) settled: Buf<u16>,
    pub(super) lost: Buf<bool>,
    pub(super) offsets: Offsets,
    /// Keys of a cell, transposed, or one value; and keys as they lie. Empty until somebody fills them up.
    pub(super) keys: Buf<f32>,
    pub(super) room: Buf<f32>,
    pub(super) usable: Usable,
    /// Dense ranges of a part.
    pub(super) ranges: Buf<Span>,
    /// For certificates.
    pub(super) evidence: Option<Evidence>,
    /// For biases.
    pub(super) lifted: Option<Lifted>,
}

impl Work {
    /// Adds the work memory for `rows` rows of `group` heads against up to `keys` keys to a plan.
    pub(crate) fn plan(plan: &mut Plan, dim_k: usize, dim_v: usize, group: usize, rows: usize, keys: usize) {
        let (_, s) = Sizes::new(dim_k, dim_v, group, rows, keys);
        let n = s.queries;
        exact::plan(plan, dim_k, dim_v, dense(rows));
        for len in
            [(n * s.q_stride).max(2 * s.dim_k), n * s.stride, n, n, n, n, n, n, n, n, n, n, n, n * BLOCK, n * BLOCK]
        {
            Buf::<f32>::plan(plan, len);
        }
        // Cells opened, and what keys are compared with.
        for _ in 0..2 {
            Buf::<f32>::plan(plan, n);
        }
        Buf::<f32>::plan(plan, s.roots());
        for _ in 0..7 {
            Buf::<f32>::plan(plan, n * BLOCK);
        }
        Buf::<f32>::plan(plan, s.opened() * BLOCK);
        for len in [s.stride, 1, 1, s.dim_k, s.stride, 1] {
            Buf::<f32>::plan(plan, s.samples * len);
        }
        Buf::<u16>::plan(plan, n);
        Buf::<u16>::plan(plan, n);
        Buf::<i32>::plan(plan, n * 2 * words(s.dim_k));
        Buf::<Along>::plan(plan, n);
        Buf::<f32>::plan(plan, n);
        Buf::<f32>::plan(plan, n);
        Buf::<u16>::plan(plan, n);
        Lists::plan(plan, n);
        Lists::plan(plan, n);
        Apart::plan(plan, &s);
        Buf::<[u16; 2]>::plan(plan, s.opened());
        Buf::<u16>::plan(plan, n);
        Buf::<u16>::plan(plan, n);
        Buf::<u16>::plan(plan, s.samples);
        Buf::<bool>::plan(plan, n);
        Offsets::plan(plan, s.few, group, dim_v);
        for len in [(s.dim_k * BLOCK).max(s.dim_v), s.dim_k * BLOCK] {
            Buf::<f32>::plan(plan, len);
        }
        Usable::plan(plan, s.segments);
        Buf::<Span>::plan(plan, s.segments + 1);
    }

    /// Work memory as planned.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub(crate) fn new_in(
        memory: &Memory,
        dim_k: usize,
        dim_v: usize,
        group: usize,
        rows: usize,
        keys: usize,
    ) -> Result<Work> {
        let (_, s) = Sizes::new(dim_k, dim_v, group, rows, keys);
        let n = s.queries;
        let dense = exact::Work::new_in(memory, dim_k, dim_v, dense(rows))?;
        let mut m = Maker::new(memory);
        let mut work = Work {
            sizes: s,
            dense,
            q: m.filled((n * s.q_stride).max(2 * s.dim_k), 0.0),
            sums: m.filled(n * s.stride, 0.0),
            reference: m.filled(n, 0.0),
            needle: m.filled(n, 0.0),
            shares: Shares::default(),
            total: m.filled(n, 0.0),
            opened: m.filled(n, 0.0),
            bar: m.filled(n, 0.0),
            mass: [m.filled(n, 0.0), m.filled(n, 0.0)],
            sigma: [m.filled(n, 0.0), m.filled(n, 0.0)],
            fine: m.filled(n, 0.0),
            coarse: m.filled(n, 0.0),
            dense_max: m.filled(n, 0.0),
            dense_sum: m.filled(n, 0.0),
            exact: m.filled(n * BLOCK, 0.0),
            estimated: m.filled(n * BLOCK, 0.0),
            lean: [m.filled(n * BLOCK, 0.0), m.filled(n * BLOCK, 0.0)],
            roots: m.filled(s.roots(), 0.0),
            scores: [m.filled(n * BLOCK, 0.0), m.filled(n * BLOCK, 0.0), m.filled(s.opened() * BLOCK, 0.0)],
            centers: [m.filled(n * BLOCK, 0.0), m.filled(n * BLOCK, 0.0)],
            sure: [m.filled(n, 0), m.filled(n, 0)],
            codes: m.filled(n * 2 * words(s.dim_k), 0),
            along: m.filled(n, Along::default()),
            base: m.filled(n, 0.0),
            light: m.filled(n, 0.0),
            open: m.filled(n, 0),
            lists: [Lists::made(&mut m, n), Lists::made(&mut m, n)],
            apart: Apart::made(&mut m, &s),
            full: m.filled(s.opened(), [0; 2]),
            every: m.filled(n, 0),
            sample: m.room(s.samples),
            kept: m.filled(s.samples * s.stride, 0.0),
            expected: m.filled(s.samples, 0.0),
            surplus: m.filled(s.samples, 0.0),
            asked: m.filled(s.samples * s.dim_k, 0.0),
            truth: m.filled(s.samples * s.stride, 0.0),
            heavy: m.filled(s.samples, 0.0),
            doubt: m.filled(n * BLOCK, 0.0),
            settled: m.filled(n, 0),
            lost: m.filled(n, false),
            offsets: Offsets::made(&mut m, s.few, group, dim_v),
            keys: m.room((s.dim_k * BLOCK).max(s.dim_v)),
            room: m.room(s.dim_k * BLOCK),
            usable: Usable::made(&mut m, s.segments),
            ranges: m.room(s.segments + 1),
            evidence: None,
            lifted: None,
        };
        work.every.iter_mut().enumerate().for_each(|(i, x)| *x = i as u16);
        m.finish().map(|()| work)
    }
}

/// `n` consecutive rows of each of `group` heads that share keys and values.
pub(super) struct RowBlock<'a> {
    pub(super) isa: Isa,
    pub(super) rule: &'a Rule,
    pub(super) q: &'a Tensor<'a>,
    /// The first head of the group.
    pub(super) head: &'a Head<'a>,
    pub(super) group: usize,
    pub(super) cells: &'a Cells,
    pub(super) begin: usize,
    pub(super) n: usize,
}

impl RowBlock<'_> {
    /// Queries of the block: row `i` of head `h` is query `h * n + i`.
    pub(super) fn queries(&self) -> usize {
        self.group * self.n
    }

    /// Head `h` of the group.
    pub(super) fn each(&self, h: usize) -> Head<'_> {
        Head { head: self.head.head + h, q: self.q.head(self.head.batch, self.head.head + h), ..*self.head }
    }

    /// Whether the rows are so few that the dense kernels take them another way.
    pub(super) fn is_few(&self, work: &Work) -> bool {
        self.n <= APART && work.sizes.few
    }

    /// Everything before the walk but the limits: exact sums over what is not in usable segments, queries, estimates.
    pub(super) fn prepare(&self, work: &mut Work) {
        for part in 0..self.parts() {
            self.leave_ranges(work, part);
            let ranges = core::mem::replace(&mut work.ranges, Buf::new(work.q.memory()));
            self.attend_dense(work, part, &ranges);
            work.ranges = ranges;
        }
        self.clear(work);
        self.load(work);
        self.total(work);
        self.add_up(work);
    }

    /// Nothing summed yet, beside the dense part.
    pub(super) fn clear(&self, work: &mut Work) {
        let n = self.queries();
        work.light[..n].fill(0.0);
        work.lost[..n].fill(false);
        work.opened[..n].fill(0.0);
        work.exact[..n * BLOCK].fill(0.0);
        work.estimated[..n * BLOCK].fill(0.0);
        work.lean.iter_mut().for_each(|lean| lean[..n * BLOCK].fill(0.0));
    }

    /// Exact sums over `ranges` as what is dense of the rows of a part.
    fn attend_dense(&self, work: &mut Work, part: usize, ranges: &[Span]) {
        if self.is_few(work) {
            let most = (MOST / self.n).max(1);
            for h in (0..self.group).step_by(most) {
                let heads = (self.group - h).min(most);
                let run = Queries::Run(self.begin);
                let head = self.each(h);
                few::attend_group_ranges(self.isa, &head, heads, self.q, run, self.n, ranges, &mut work.dense);
                for r in 0..heads * self.n {
                    self.take(work, &head, h * self.n + r, r);
                }
            }
            return;
        }
        let end = self.n.min((part + 1) * SEGMENT);
        for h in 0..self.group {
            let head = self.each(h);
            for begin in (part * SEGMENT..end).step_by(ROW_BLOCK) {
                let n = (end - begin).min(ROW_BLOCK);
                let run = Queries::Run(self.begin + begin);
                exact::attend_ranges(self.isa, &head, run, n, ranges, &mut work.dense);
                for r in 0..n {
                    self.take(work, &head, h * self.n + begin + r, r);
                }
            }
        }
    }

    /// Takes row `r` of the dense work memory as query `i`.
    fn take(&self, work: &mut Work, head: &Head<'_>, i: usize, r: usize) {
        let Work { sizes, dense, sums, dense_max, dense_sum, .. } = work;
        let (max, sum, values) = dense.partial(head, r);
        sums[i * sizes.stride..][..sizes.dim_v].copy_from_slice(values);
        (dense_max[i], dense_sum[i]) = (max, sum);
    }

    /// Queries in the units of the walk.
    fn load(&self, work: &mut Work) {
        let (d, stride) = (work.sizes.dim_k, work.sizes.q_stride);
        let unit = self.head.scale * core::f32::consts::LOG2_E;
        for h in 0..self.group {
            let q = self.q.head(self.head.batch, self.head.head + h);
            for i in 0..self.n {
                let to = &mut work.q[(h * self.n + i) * stride..][..d];
                q.read(self.begin + i, to);
                self.isa.scale(unit, to);
            }
        }
        let n = self.queries();
        let moments = self.cells.moments().into_iter().zip(self.cells.traces());
        for ((moment, trace), sigma) in moments.zip(&mut work.sigma) {
            let factor = if trace > 0.0 { 1.0 / trace } else { 0.0 };
            let q = Matrix { data: &work.q, stride, cols: d };
            self.isa.run(Forms { q, moment, factor, out: &mut sigma[..n] });
        }
        self.load_coords(work);
    }

    /// Queries that score nodes.
    pub(super) fn asking<'a>(
        &self,
        sizes: &Sizes,
        q: &'a [f32],
        codes: &'a [i32],
        along: &'a [Along],
        base: &'a [f32],
    ) -> Asking<'a> {
        let q = Matrix { data: q, stride: sizes.q_stride, cols: sizes.dim_k };
        Asking { q, bytes: Bytes { codes, of: along }, base }
    }

    /// Queries in bytes, and what they score by what mean keys in bytes have in common.
    fn load_coords(&self, work: &mut Work) {
        let Work { sizes, q, codes, along, base, .. } = work;
        let len = 2 * words(sizes.dim_k);
        for i in 0..self.queries() {
            let x = &q[i * sizes.q_stride..][..sizes.dim_k];
            let (unit, sum, lost) = self.isa.run(RoundQuery { x, out: &mut codes[i * len..][..len] });
            let slack = self.rule.margin * DEVIATION * libm::sqrtf(self.isa.norm2(x));
            along[i] = Along::new(unit, sum, lost).allowing(slack);
            base[i] = self.cells.center().map_or(0.0, |center| self.isa.dot(x, center));
        }
    }

    /// Reference and estimated sum of every row from the dense part and the nodes' running maxima (`scores[1]`) and sums
    /// (`scores[2]`).
    fn add_up(&self, work: &mut Work) {
        let n = self.queries();
        let Work { sizes, scores, sums, dense_max, dense_sum, reference, total, needle, sigma, lost, .. } = work;
        let [_, max, sum] = &*scores;
        self.isa.run(AddUp {
            max,
            sum,
            dense_max,
            dense_sum,
            reference,
            total: &mut total[..n],
            // Set later.
            scale: needle,
        });
        // From here on the dense part is relative to the same logit as everything else.
        for i in 0..n {
            let spread = sigma[0][i] + sigma[1][i];
            lost[i] |= !(reference[i].abs() <= LARGEST && spread.is_finite());
            self.isa.scale(needle[i], &mut sums[i * sizes.stride..][..sizes.dim_v]);
        }
    }

    /// Thresholds of every row under a rule, for `usable` segments; `few` says that they are those of a few rows.
    pub(super) fn set_limits(&self, work: &mut Work, rule: &Rule, usable: usize, few: bool) {
        let needle = rule.needle_among(usable * SEGMENT, few);
        // A few rows go by their predicted error instead.
        let (each, most) = if few { (0.0, 1.0) } else { (1.0 / rule.plenty, rule.most * rule.needle / needle) };
        let &Rule { cell, node, fine, coarse, .. } = rule;
        let stand_out = rule.stand_out_for(needle, few);
        work.shares = Shares { needle, each, most, mass: [cell, node], fine, coarse, stand_out };
        let mut limits = work.limits();
        (0..self.queries()).for_each(|i| limits.set(i));
    }

    /// After the opened cells of a node: thresholds of their rows that found more in all than they were estimated to weigh, or have
    /// opened many. What was opened for them before would not be opened now; what comes after will not be.
    pub(super) fn raise_limits(&self, work: &mut Work) {
        let (mut limits, exact, [cells, _]) = work.limits_beside();
        let lists: [&[u16]; BLOCK] = core::array::from_fn(|leaf| cells.of(leaf).0);
        self.isa.run(Raise { lists: &lists, exact, limits: &mut limits, factor: RAISE[0] });
    }
}

/// Rows of a list.
#[derive(Clone, Copy)]
pub(super) enum Listed {
    /// All of the block.
    All,
    /// The sample.
    Sample,
    /// Those that opened this child of the root block.
    Child(usize),
}

/// Standard deviation of what rounding to whole numbers takes away.
pub(super) const DEVIATION: f32 = 0.288_675_13;

/// Logits beyond, whose squares leave f32, are not estimated.
const LARGEST: f32 = 1e18;

impl Work {
    /// Work memory of the dense kernels.
    pub(crate) fn dense(&mut self) -> &mut exact::Work {
        &mut self.dense
    }

    /// Thresholds by query.
    pub(super) fn limits(&mut self) -> Thresholds<'_> {
        self.limits_beside().0
    }

    /// The same, with exact weights and lists.
    fn limits_beside(&mut self) -> (Thresholds<'_>, &[f32], &[Lists; 2]) {
        let [cells, nodes] = &mut self.mass;
        let limits = Thresholds {
            shares: self.shares,
            reference: &self.reference,
            dense: &self.dense_sum,
            sigma: &self.sigma[0],
            total: &mut self.total,
            opened: &mut self.opened,
            bar: &mut self.bar,
            needle: &mut self.needle,
            mass: [cells, nodes],
            fine: &mut self.fine,
            coarse: &mut self.coarse,
            along: &mut self.along,
        };
        (limits, &self.exact, &self.lists)
    }
}

/// `2^x` for `x <= 0`, also for -inf.
pub(super) fn exp2(x: f32) -> f32 {
    libm::exp2f(x)
}
