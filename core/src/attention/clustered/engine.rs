//! Blocks of rows of all heads that share keys and values.

use super::super::dense::exact::{self, Head};
use super::super::dense::{Call, factor};
use super::super::mask::Masking;
use super::super::stats::AttentionStats;
use super::control::{Control, Opening, Verdict, Why};
use super::estimate::{Estimates, Softmax};
use super::front::Front;
use super::policy::{
    BIAS_COST, BLOCK_QUERIES, BLOCK_ROWS, CELL, CHECKING, CUT, ENTRY_COST, GATHERED_BIAS, HIDING, KNOWING, KNOWN,
    LEAST, LONG, OPENED_COST, PAYS, SEGMENT, SEGMENT_CELLS, STEP_CUT, TOGETHER,
};
use super::rows::{Room, RowSet};
use super::sample::{Heavy, Sampled};
use super::tree::Tree;
use crate::error::reserved;
use crate::mem::{Buf, Dtype, Maker, Rows};
use crate::simd::bias::{Extent, HeadBiases};
use crate::simd::tile::{PANEL, Span};
use core::ops::Range;

/// What was scored exactly for a row.
#[derive(Clone, Copy, Debug)]
pub enum Scored<'a> {
    /// Every key it sees.
    All,
    /// These keys, beside those near the row.
    Keys(&'a [u32]),
}

/// Called with a query head (of a batch of 1), a row, and keys scored exactly for it: for studies.
pub type Watch<'a> = &'a mut dyn FnMut(usize, usize, Scored<'_>);

/// Rows of a block for heads that share `keys` keys in groups of `group`.
pub(crate) fn block_rows(group: usize, keys: usize) -> usize {
    let times = if keys < LONG { 1 } else { 2 };
    (times * BLOCK_QUERIES / group).clamp(PANEL, times * BLOCK_ROWS)
}

/// Queries that go through cells together, at most.
fn rows_together(group: usize, rows: usize, keys: usize) -> usize {
    let block = block_rows(group, keys).min(rows);
    (group * block).min(TOGETHER.max(block))
}

/// Work memory of one part.
pub struct BlockWork {
    exact: exact::Work,
    rows: RowSet,
    sampled: RowSet,
    checks: RowSet,
    room: Room,
    front: Front,
    estimates: Estimates,
    check_estimates: Estimates,
    heavy: Heavy,
    /// Segments that all rows of a block see whole, and runs of keys outside of them.
    segments: Buf<u32>,
    ranges: Buf<Span>,
    /// Segments that biases hide from all rows.
    hidden: usize,
    row: Buf<f32>,
}

impl BlockWork {
    /// What exact attention works in.
    pub(crate) fn exact(&mut self) -> &mut exact::Work {
        &mut self.exact
    }

    /// Keys that were heavy in the sampled rows of the last block, for the steps after them.
    pub(crate) fn heavy(&mut self) -> impl Iterator<Item = u32> {
        self.heavy.keys(STEP_CUT)
    }

    /// Forgets the last block: nothing is heavy.
    pub(super) fn forget(&mut self) {
        self.heavy.clear();
    }

    /// For heads in groups of `group`, calls of `rows` rows and `keys` keys.
    pub(crate) fn made(m: &mut Maker<'_>, dims: [usize; 2], group: usize, rows: usize, keys: usize) -> Self {
        let ([dim_k, dim_v], entries) = (dims, keys / SEGMENT * SEGMENT_CELLS);
        let (block, together) = (block_rows(group, keys).min(rows), rows_together(group, rows, keys));
        let sampled = Sampled::count(group, block) * group;
        let checks = sampled - KNOWING * group;
        BlockWork {
            exact: exact::Work::made(m, dim_k, dim_v, rows.max(PANEL), false),
            rows: RowSet::made(m, dim_k, dim_v, together),
            sampled: RowSet::made(m, dim_k, dim_v, sampled),
            checks: RowSet::made(m, dim_k, dim_v, checks),
            room: Room::made(m, dim_k, dim_v),
            front: Front::made(m, dims, keys, Dtype::F32),
            estimates: Estimates::made(m, dim_k, dim_v, entries, together),
            check_estimates: Estimates::made(m, dim_k, dim_v, entries, checks),
            heavy: Heavy::made(m, sampled),
            segments: m.room(keys / SEGMENT),
            ranges: m.room(keys / SEGMENT + 1),
            hidden: 0,
            row: m.filled(dim_v, 0.0),
        }
    }
}

/// Rows `begin..begin + n` of the heads of one KV head.
pub(super) struct Block<'a> {
    pub(super) call: &'a Call<'a>,
    /// Exact attention takes over where it is cheaper, not only where the tolerance is not kept.
    pub(super) auto: bool,
    pub(super) keys: Rows<'a>,
    pub(super) values: Rows<'a>,
    pub(super) tree: &'a Tree,
    pub(super) batch: usize,
    /// The first query head, and how many there are.
    pub(super) first: usize,
    pub(super) group: usize,
    pub(super) begin: usize,
    pub(super) n: usize,
}

impl Block<'_> {
    /// Biases of the batch, if the mask has some.
    pub(super) fn biases(&self) -> Option<HeadBiases<'_>> {
        self.call.masking.biases().map(|tensor| HeadBiases { tensor, batch: self.batch })
    }

    pub(super) fn head(&self, h: usize) -> Head<'_> {
        self.call.head(self.batch, self.first + h, self.keys, self.values)
    }

    /// How scores become logits.
    pub(super) fn softmax(&self) -> Softmax {
        let (factor, plain) = factor(&self.head(0), self.biases().is_some());
        Softmax { factor, logits: (!plain).then_some((self.call.options.scale, self.call.options.softcap)) }
    }

    /// Attends the block.
    pub(super) fn attend(
        &self,
        control: &mut Control,
        work: &mut BlockWork,
        stats: &mut AttentionStats,
        watch: &mut Option<Watch<'_>>,
    ) {
        let few = self.n <= Sampled::count(self.group, self.n);
        // Before biases are read.
        if let Some(why) = control.skips().filter(|_| !few) {
            return self.exact(why, &mut work.exact, stats, watch);
        }
        if few || self.find_segments(work) < LEAST {
            return self.exact(Why::Short, &mut work.exact, stats, watch);
        }
        let softmax = self.softmax();
        let seed = (self.batch * 65537 + self.first) as u64 * 0x1_0000_0001 + self.begin as u64;
        let sampled = Sampled::new(self.group, self.n, seed);
        self.sample(&sampled, softmax, work);
        let BlockWork { front, heavy, segments, .. } = work;
        front.start(self.call.isa, self.tree, segments.iter().map(|&s| s as usize));
        front.know(self.call.isa, self.tree, &self.keys, &self.values, heavy.keys(CUT), softmax.unit());
        let visible = self.visible_pairs();
        let (squares, opened) = loop {
            let (squares, opened) = self.check(&sampled, softmax, control.opening(), work);
            control.note_length(work.check_estimates.length());
            match control.judge(&squares[..sampled.checks().len()], self.call.options.tolerance) {
                Verdict::Take => break (squares, opened),
                Verdict::Tighten => {}
                // The tolerance is a promise, whoever chose the mode.
                Verdict::Fail => return self.exact(control.give_up(Why::Strict), &mut work.exact, stats, watch),
            }
        };
        let exact = self.pairs_without(work.hidden);
        if self.auto && self.cost(&sampled, opened, work) > PAYS * exact as f32 {
            return self.exact(control.give_up(Why::Costly), &mut work.exact, stats, watch);
        }
        squares[..sampled.checks().len()].iter().for_each(|&[error, output]| stats.measured.note(error, output));
        stats.rows += (self.n * self.group) as u64;
        stats.pairs_dense += visible;
        let together = (TOGETHER / self.n).max(1);
        for h in (0..self.group).step_by(together) {
            let heads = h..(h + together).min(self.group);
            self.approximate(heads, &sampled, softmax, control.opening(), work, stats, watch);
        }
        // Not before: the block is attended by the threshold that was measured.
        control.relax(self.call.options.tolerance);
    }

    /// What the block costs by cells, in pairs of exact attention, where measured rows open so many pairs.
    fn cost(&self, sampled: &Sampled, opened: u64, work: &BlockWork) -> f32 {
        let queries = (self.n * self.group) as f32;
        let elements = (self.keys.cols() + self.values.cols()) as f32;
        let bias = self.biases().map_or(0.0, |_| BIAS_COST / elements);
        let entry = ENTRY_COST + CELL as f32 * bias;
        let each = work.front.entries() as f32 * entry + work.front.known.len() as f32;
        let sampling = (sampled.all().len() * self.group * work.segments.len() * SEGMENT) as f32;
        let checks = sampled.checks().len() as f32;
        let opening = opened as f32 * (OPENED_COST + GATHERED_BIAS * bias) * self.n as f32 / checks;
        let near = self.pairs_without(work.segments.len() + work.hidden) as f32;
        each * queries + near + sampling + opening
    }

    /// Pairs that rows see.
    pub(super) fn visible_pairs(&self) -> u64 {
        let each = (0..self.n)
            .map(|i| self.call.masking.count(self.batch, self.call.masking.visible(self.batch, self.begin + i)) as u64);
        each.sum::<u64>() * self.group as u64
    }

    /// Those of them outside of so many segments.
    fn pairs_without(&self, segments: usize) -> u64 {
        self.visible_pairs() - (segments * SEGMENT * self.n * self.group) as u64
    }

    /// Smallest and largest bias that rows have for the keys of a segment, [`Extent`]; 0 without biases.
    pub(super) fn biases_for(&self, first: usize) -> [f32; 2] {
        let rows = self.begin..self.begin + self.n;
        let of = self.call.masking.biases_of(self.batch, self.first..self.first + self.group);
        let extents = of.map(|biases| self.call.isa.run(Extent { biases, rows: rows.clone(), first }));
        extents.reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])]).unwrap_or_default()
    }

    /// Notes the segments that all rows see whole, and what is between them. Returns how many there are.
    fn find_segments(&self, work: &mut BlockWork) -> usize {
        let (mut first, mut end) = (0, usize::MAX);
        for i in 0..self.n {
            let seen = self.call.masking.visible(self.batch, self.begin + i);
            // Sinks are apart from the range, or reach it.
            first = first.max(if seen.begin <= seen.sinks { 0 } else { seen.begin });
            end = end.min(seen.end);
        }
        let keep = self.call.masking.keep(self.batch);
        work.segments.clear();
        work.ranges.clear();
        work.hidden = 0;
        let (mut at, mut aside) = (0, 0);
        for segment in 0..self.tree.segments() {
            let [low, high] = self.tree.range(segment);
            let ids = self.tree.ids(segment);
            if low < first || high >= end || keep.is_some_and(|keep| ids.iter().any(|&id| keep[id as usize] == 0)) {
                continue;
            }
            let [least, most] = self.biases_for(low);
            if most == f32::NEG_INFINITY {
                work.hidden += 1;
            } else {
                let apart = self.tree.apart_of(segment).filter(|n| most - least < HIDING && aside + n <= KNOWN / 2);
                let Some(apart) = apart else { continue };
                reserved(work.segments.push(segment as u32));
                aside += apart;
            }
            if at < low {
                reserved(work.ranges.push(Span { begin: at, end: low }));
            }
            at = at.max(high + 1);
        }
        if at < self.keys.rows() {
            reserved(work.ranges.push(Span { begin: at, end: self.keys.rows() }));
        }
        work.segments.len()
    }

    /// Attends the sampled rows exactly, of all heads together: outputs into the sums of `sampled`, heavy keys noted.
    fn sample(&self, sampled: &Sampled, softmax: Softmax, work: &mut BlockWork) {
        let BlockWork { sampled: set, room, heavy, .. } = work;
        set.n = 0;
        for h in 0..self.group {
            let q = self.call.q.head(self.batch, self.first + h);
            let seen = |i: usize| self.call.masking.visible(self.batch, i);
            let at = |i: usize| self.begin + sampled.all()[i];
            set.load(self.call.isa, self.first + h, &q, sampled.all().len(), at, seen);
        }
        set.start(self.call.isa);
        heavy.clear();
        let (n, each) = (set.n, sampled.all().len());
        let mut look = |p: usize, first: usize, count: usize, weights: &[f32], max: &[f32], sum: &[f32]| {
            for (lane, (&max, &sum)) in max.iter().zip(sum).enumerate() {
                let r = p * PANEL + lane;
                if r % each < KNOWING && sum > 0.0 {
                    let weights = weights.iter().skip(lane).step_by(PANEL).take(count).copied();
                    heavy.note(r, first, weights, max, sum, softmax.factor);
                }
            }
        };
        let range = Span { begin: 0, end: self.keys.rows() };
        set.attend(self.call.isa, &self.head(0), range, None, self.biases(), room, Some(&mut look));
        for r in 0..n {
            set.finish(self.call.isa, r);
        }
    }

    /// Rows that are loaded attend to all but entries.
    pub(super) fn near(&self, set: &mut RowSet, room: &mut Room, front: &Front, ranges: &[Span]) {
        set.start(self.call.isa);
        let head = self.head(0);
        for &range in ranges {
            set.attend(self.call.isa, &head, range, None, self.biases(), room, None);
        }
        let (k, v) = front.known_rows();
        let masking = Masking::all(1, k.rows());
        if k.rows() > 0 {
            let head = Head { q: head.q, k, v, masking: &masking, batch: 0, head: 0, ..head };
            let range = Span { begin: 0, end: k.rows() };
            set.attend(self.call.isa, &head, range, Some(&front.known), self.biases(), room, None);
        }
    }

    /// Attends the checking rows approximately: squares of what they err by and of what they should be, and the pairs that their
    /// opened cells hold.
    fn check(
        &self,
        sampled: &Sampled,
        softmax: Softmax,
        opening: Opening,
        work: &mut BlockWork,
    ) -> ([[f32; 2]; CHECKING], u64) {
        let BlockWork { checks: set, sampled: exact, room, front, check_estimates, ranges, row, .. } = work;
        let (checks, each) = (sampled.checks(), sampled.all().len());
        set.n = 0;
        for h in 0..self.group {
            let q = self.call.q.head(self.batch, self.first + h);
            let seen = |i: usize| self.call.masking.visible(self.batch, i);
            set.load(self.call.isa, self.first + h, &q, checks.len(), |i| self.begin + checks[i], seen);
        }
        self.near(set, room, front, ranges);
        let biases = self.biases();
        let opened = check_estimates.add(self.call.isa, front, &self.keys, &self.values, biases, softmax, opening, set);
        let mut squares = [[0.0; 2]; CHECKING];
        for r in 0..set.n {
            let (h, i) = (r / checks.len(), r % checks.len());
            let want = &exact.sums[(h * each + KNOWING + i) * exact.stride..][..exact.dim_v];
            row.copy_from_slice(set.finish(self.call.isa, r));
            squares[i][0] += self.call.isa.sq_dist(row, want);
            squares[i][1] += self.call.isa.norm2(want);
        }
        (squares, opened)
    }

    /// All rows of the heads `heads` of the group.
    fn approximate(
        &self,
        heads: Range<usize>,
        sampled: &Sampled,
        softmax: Softmax,
        opening: Opening,
        work: &mut BlockWork,
        stats: &mut AttentionStats,
        watch: &mut Option<Watch<'_>>,
    ) {
        let (segments, hidden) = (work.segments.len(), work.hidden);
        let BlockWork { exact: dense, rows: set, sampled: exact, room, front, estimates, ranges, row, .. } = work;
        set.n = 0;
        let seen = |i: usize| self.call.masking.visible(self.batch, i);
        for h in heads.clone() {
            let q = self.call.q.head(self.batch, self.first + h);
            set.load(self.call.isa, self.first + h, &q, self.n, |i| self.begin + i, seen);
        }
        self.near(set, room, front, ranges);
        let opened =
            estimates.add(self.call.isa, front, &self.keys, &self.values, self.biases(), softmax, opening, set);
        for (nth, h) in heads.clone().enumerate() {
            let rows = nth * self.n..(nth + 1) * self.n;
            let (mut out, mut lse) = self.call.rows(self.batch, self.first + h, self.begin, self.n);
            for (i, r) in rows.clone().enumerate() {
                let log = set.log_sum_exp(r, softmax.unit());
                out.write(i, set.finish(self.call.isa, r));
                if let Some(lse) = &mut lse {
                    lse[i] = log;
                }
            }
            for (i, &at) in sampled.all().iter().enumerate() {
                let r = h * sampled.all().len() + i;
                row.copy_from_slice(&exact.sums[r * exact.stride..][..exact.dim_v]);
                out.write(at, row);
                if let Some(lse) = &mut lse {
                    lse[at] = exact.log_sum_exp(r, softmax.unit());
                }
            }
            for (i, _) in rows.enumerate().filter(|&(i, r)| !set.is_sound(r) && !sampled.all().contains(&i)) {
                self.one_exactly(h, i, dense, stats);
            }
        }
        let (far, known) = ((segments * SEGMENT) as u64, front.known.len() as u64);
        let (n, count, all) = (self.n as u64, heads.len() as u64, sampled.all().len() as u64);
        // Sampled rows score every key: what they opened here is among those.
        let rows = (0..heads.len()).flat_map(|nth| sampled.all().iter().map(move |&i| nth * self.n + i));
        let again: u64 = rows.map(|r| estimates.pairs_opened(front, r)).sum();
        stats.pairs += self.pairs_without(segments + hidden) / self.group as u64 * count;
        stats.pairs += count * (known * (n - all) + far * all) + opened - again;
        stats.cells_opened += opened / CELL as u64;
        stats.known += known * n * count;
        if let Some(watch) = watch {
            for (r, h) in (0..set.n).map(|r| (r, self.first + heads.start + r / self.n)) {
                let i = r % self.n;
                if sampled.all().contains(&i) {
                    watch(h, self.begin + i, Scored::All);
                    continue;
                }
                watch(h, self.begin + i, Scored::Keys(&front.known));
                for e in estimates.opened(front.entries(), r) {
                    watch(h, self.begin + i, Scored::Keys(&front.ids()[e * CELL..][..CELL]));
                }
            }
        }
    }

    /// One row of a head whose weights no estimate came near.
    pub(super) fn one_exactly(&self, h: usize, i: usize, work: &mut exact::Work, stats: &mut AttentionStats) {
        let head = self.head(h);
        let (mut out, lse) = self.call.rows(self.batch, head.head, self.begin + i, 1);
        exact::attend(self.call.isa, &head, self.begin + i, 1, &mut out, lse, work);
        Why::Strict.count(1, &mut stats.exact_rows);
    }

    /// Rows that no cells serve.
    pub(super) fn exact(
        &self,
        why: Why,
        work: &mut exact::Work,
        stats: &mut AttentionStats,
        watch: &mut Option<Watch<'_>>,
    ) {
        for h in 0..self.group {
            let head = self.head(h);
            let (mut out, lse) = self.call.rows(self.batch, head.head, self.begin, self.n);
            let pairs = exact::attend(self.call.isa, &head, self.begin, self.n, &mut out, lse, work);
            stats.add_exact(pairs);
            if let Some(watch) = watch {
                (0..self.n).for_each(|i| watch(head.head, self.begin + i, Scored::All));
            }
        }
        let queries = (self.n * self.group) as u64;
        stats.rows += queries;
        why.count(queries, &mut stats.exact_rows);
    }
}
