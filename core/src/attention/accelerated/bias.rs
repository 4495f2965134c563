//! Biases of keys in cells.
//!
//! A key's own bias is added where its score is exact. A child that stays closed counts as heavier or lighter by the mean
//! weight of its keys' biases, which is exact where they are the same, and may hold a needle when its keys would with the
//! largest of them. Keys that a row does not see are never part of an estimate: such segments are dense for the block.

use super::super::exact::{self, Queries};
use super::super::mask::Masking;
use super::block::{Listed, RowBlock, Sizes, Work};
use super::walk::{Shared, children};
use crate::cells::{BLOCK, Block, NODES, ROOT};
use crate::error::Result;
use crate::mem::{Buf, Memory, Plan};
use crate::simd::block::{Biases, CellLifts, DoubtBiased, FAR, Lifts, LiftsMut, Survey, TotalBiased, found};
use crate::simd::tile::Span;

const _: () = assert!(NODES == 1 && ROOT == BLOCK, "a segment is a node, and lifts of nodes lie like their scores");

/// Keys that are looked at together where ranges end.
const CHUNK: usize = 64;

/// Rows of a trial that are attended at once.
const AT_ONCE: usize = 32;

/// A bias that low for all rows makes a key padding, if others are far above: masks are made from large negative numbers too.
const HIDDEN: f32 = -5000.0;

/// Rows whose weights come to so many times less than estimated are attended exactly: thresholds were shares of the estimate.
const OVER: f32 = 16.0;

/// What the biases of a block come to.
pub(super) struct Lifted {
    /// By segment: see [`found`].
    found: Buf<u8>,
    /// Largest biases of the nodes, and means of the weights relative to them, `[root][queries][BLOCK]`.
    nodes: [Buf<f32>; 2],
    /// The same of a node's cells, by place.
    cells: [Buf<f32>; 2],
    /// By query: the largest bias in segments.
    best: Buf<f32>,
    /// Pairs of a row and a node whose biases were brought together.
    gathered: usize,
    /// Whether some bias in a usable segment is not 0.
    on: bool,
}

impl Lifted {
    /// Whether some bias steers the walk.
    pub(super) fn on(&self) -> bool {
        self.on
    }

    pub(super) fn cells(&self) -> Lifts<'_> {
        Lifts { top: &self.cells[0], share: &self.cells[1] }
    }

    /// Of root block `at`.
    fn nodes(&self, at: usize, step: usize) -> Lifts<'_> {
        let [top, share] = &self.nodes;
        Lifts { top: &top[at * step..][..step], share: &share[at * step..][..step] }
    }

    /// Of a list: by query at the root, by place below.
    pub(super) fn of(&self, rows: Listed, root: usize, step: usize) -> (Lifts<'_>, bool) {
        match rows {
            Listed::Child(_) => (self.cells(), false),
            _ => (self.nodes(root, step), true),
        }
    }
}

/// How much of a segment a bias hides.
pub(super) enum Seen {
    All,
    Part,
    /// No row of the block sees any of it, or anything that weighs.
    Nothing,
}

impl Work {
    fn lengths(s: &Sizes) -> [usize; 2] {
        [s.roots(), s.queries * BLOCK]
    }

    /// Adds what [`Work::lifted`] takes to a plan.
    pub(crate) fn plan_lifted(plan: &mut Plan, dim_k: usize, dim_v: usize, group: usize, rows: usize, keys: usize) {
        let (_, s) = Sizes::new(dim_k, dim_v, group, rows, keys);
        Buf::<u8>::plan(plan, s.segments);
        for len in Work::lengths(&s) {
            Buf::<f32>::plan(plan, len);
            Buf::<f32>::plan(plan, len);
        }
        Buf::<f32>::plan(plan, s.queries);
    }

    /// With room for biases: without it, keys under them are attended exactly.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub(crate) fn lifted(mut self, memory: &Memory) -> Result<Work> {
        let [nodes, cells] = Work::lengths(&self.sizes);
        let f = |len: usize| Buf::filled(memory, len, 0.0f32);
        let found = Buf::filled(memory, self.sizes.segments, 0)?;
        let (nodes, cells, best) = ([f(nodes)?, f(nodes)?], [f(cells)?, f(cells)?], f(self.sizes.queries)?);
        self.lifted = Some(Lifted { found, nodes, cells, best, gathered: 0, on: false });
        Ok(self)
    }

    /// Pairs of a row and a node whose biases were brought together since the last time.
    pub(super) fn take_gathered(&mut self) -> usize {
        self.lifted.as_mut().map_or(0, |l| core::mem::take(&mut l.gathered))
    }

    /// Whether biases steer the walk.
    pub(super) fn is_lifted(&self) -> bool {
        self.lifted.as_ref().is_some_and(|l| l.on)
    }
}

impl RowBlock<'_> {
    pub(super) fn biases(&self) -> Option<Biases<'_>> {
        let of = self.head.masking.biases()?;
        Some(Biases { of, batch: self.head.batch, head: self.head.head, begin: self.begin, n: self.n })
    }

    /// Reads the biases of all segments that lie inside `first..end`. O(rows x keys): the one pass over all of them.
    pub(super) fn survey(&self, work: &mut Work, first: usize, end: usize) {
        let proven = work.evidence.is_some();
        let step = work.sizes.queries * BLOCK;
        let (Some(biases), Some(lifted)) = (self.biases(), &mut work.lifted) else { return };
        let Lifted { found, nodes: [top, share], best, on, .. } = lifted;
        let (ranges, ids) = (self.cells.ranges(), self.cells.ids());
        let found = &mut found[..ranges.len()];
        for (found, &[low, high]) in found.iter_mut().zip(ranges) {
            let inside = low as usize >= first && (high as usize) < end;
            *found = if inside { 0 } else { found::PART };
        }
        for i in 0..self.queries() {
            if biases.shared() && i >= self.n {
                // Other heads have the same.
                best[i] = best[i % self.n];
                for at in (0..top.len()).step_by(step) {
                    let from = at + i % self.n * BLOCK;
                    top.copy_within(from..from + BLOCK, at + i * BLOCK);
                    share.copy_within(from..from + BLOCK, at + i * BLOCK);
                }
                continue;
            }
            best[i] = self.isa.run(Survey {
                biases,
                query: i as u16,
                ranges,
                ids,
                found,
                lifts: LiftsMut { top: &mut top[i * BLOCK..], share: &mut share[i * BLOCK..] },
                step,
            });
        }
        // Bounds know nothing of biases.
        found.iter_mut().filter(|bits| proven && **bits & found::BIASED != 0).for_each(|bits| *bits |= found::PART);
        *on = found.iter().any(|&bits| bits & (found::BIASED | found::NOTHING) != 0 && bits & found::PART == 0);
    }

    /// What the survey found in a segment.
    pub(super) fn seen(&self, work: &Work, segment: usize) -> Seen {
        let Some(lifted) = work.lifted.as_ref().filter(|_| self.biases().is_some()) else { return Seen::Part };
        let bits = lifted.found[segment];
        let [all, none, nothing, part] =
            [found::ALL, found::NONE, found::NOTHING, found::PART].map(|bit| bits & bit != 0);
        match () {
            _ if part || none && (all || nothing) => Seen::Part,
            _ if all => Seen::All,
            _ => Seen::Nothing,
        }
    }

    /// Takes the ends of the dense ranges off where no row of the block sees anything, or anything that weighs beside what it
    /// sees in segments: keys that come into no cell may lie there.
    pub(super) fn trim(&self, work: &mut Work) {
        let Work { ranges, lifted: Some(lifted), .. } = work else { return };
        let Some(biases) = self.biases() else { return };
        let heads = if biases.shared() { 1 } else { self.group };
        let unseen = |begin: usize, end: usize| {
            let mut part = [0.0; CHUNK];
            (0..heads * self.n).all(|i| {
                let part = &mut part[..end - begin];
                biases.rows_of(i / self.n).read_part(self.begin + i % self.n, begin, part);
                let least = lifted.best[i] - FAR;
                part.iter().all(|&x| x == f32::NEG_INFINITY || x < least)
            })
        };
        let mut n = 0;
        for i in 0..ranges.len() {
            let Span { mut begin, mut end } = ranges[i];
            while begin < end && unseen(begin, (begin + CHUNK).min(end)) {
                begin = (begin + CHUNK).min(end);
            }
            while begin < end && unseen(end.saturating_sub(CHUNK).max(begin), end) {
                end = end.saturating_sub(CHUNK).max(begin);
            }
            if begin < end {
                ranges[n] = Span { begin, end };
                n += 1;
            }
        }
        ranges.truncate(n);
    }

    /// [`RowBlock::total`] of one root block, whose scores are there.
    pub(super) fn total_lifted(&self, work: &mut Work, at: usize, present: &[f32; BLOCK], bits: u16) {
        let (n, step) = (self.queries(), work.sizes.queries * BLOCK);
        let Work { roots, scores: [_, max, sum], reference, needle, shares, mass, sigma, lifted: Some(lifted), .. } =
            work
        else {
            return;
        };
        let block = self.cells.root(at);
        let shared = Shared { reference, needle, stand_out: shares.stand_out };
        self.isa.run(TotalBiased {
            scores: &roots[at * step..][..step],
            children: children(&block, 1, present, bits),
            limits: self.limits(&shared, 1, &mass[1], &sigma[1]),
            lifts: lifted.nodes(at, step),
            count: n,
            max,
            sum,
        });
    }

    /// What the biases of a node's cells come to, for the rows that opened it.
    pub(super) fn lift_cells(&self, work: &mut Work, node: usize, lane: usize) {
        let step = work.sizes.queries * BLOCK;
        let Work { lists, lifted: Some(lifted), .. } = work else { return };
        let Some(biases) = self.biases() else { return };
        let Lifted { nodes, cells: [top, share], gathered, .. } = lifted;
        let [node_top, node_share] = nodes.each_ref().map(|x| &x[node / BLOCK * step..][..step]);
        *gathered += self.isa.run(CellLifts {
            biases,
            rows: lists[1].of(lane).0,
            ids: self.cells.keys_of_node(node),
            node: Lifts { top: node_top, share: node_share },
            lane,
            out: LiftsMut { top, share },
        });
    }

    /// Takes the largest bias of a node out of the scores that the sift left of its cells.
    pub(super) fn lower(&self, work: &mut Work, node: usize, lane: usize) {
        let step = work.sizes.queries * BLOCK;
        let Work { centers: [cells, _], lists, lifted: Some(lifted), .. } = work else { return };
        let top = lifted.nodes(node / BLOCK, step).top;
        for (scores, &row) in cells.chunks_exact_mut(BLOCK).zip(lists[1].of(lane).0) {
            let top = top[row as usize * BLOCK + lane];
            scores.iter_mut().for_each(|x| *x -= top);
        }
    }

    /// What biases add to the doubt about a block's children; `number` as for [`RowBlock::choose`].
    pub(super) fn doubt_lifted(&self, work: &mut Work, block: &Block<'_>, number: usize, rows: Listed) {
        let step = work.sizes.queries * BLOCK;
        let Work { scores, every, sample, lists, doubt, lifted: Some(lifted), .. } = work else { return };
        let (lifts, by_query) = lifted.of(rows, number, step);
        let (level, rows) = match rows {
            Listed::Child(lane) => (0, lists[1].of(lane).0),
            Listed::All => (1, &every[..self.queries()]),
            Listed::Sample => (1, &**sample),
        };
        let count = if level == 0 { BLOCK } else { BLOCK * BLOCK } as f32;
        let (p, value_spread) = (&scores[level], block.value_spread);
        self.isa.run(DoubtBiased { p, rows, lifts, by_query, value_spread, count, out: doubt });
    }

    /// After a walk: gives up `rows` that weigh far less than was estimated. Means weigh less than their keys without biases; with
    /// them a child may take the bias of one key and the logit of others, and all that is left would count as light beside it.
    /// Returns their number.
    pub(super) fn give_up_overestimated(&self, work: &mut Work, sample: bool) -> usize {
        let mut count = 0;
        for at in 0..if sample { work.sample.len() } else { self.queries() } {
            let i = if sample { work.sample[at] as usize } else { at };
            let over = self.weight(work, i) * OVER < work.total[i];
            work.lost[i] |= over;
            count += usize::from(over);
        }
        count
    }

    /// [`RowBlock::attend_sample`] under a bias: heads one after the other, each row with its own, over `work.ranges`.
    pub(super) fn attend_sample_lifted(&self, work: &mut Work) {
        let mut begin = 0;
        while begin < work.sample.len() {
            let h = work.sample[begin] as usize / self.n;
            let of = work.sample[begin..].iter().take(AT_ONCE).take_while(|&&i| i as usize / self.n == h);
            let (mut rows, mut n) = ([0; AT_ONCE], 0);
            for (row, &i) in rows.iter_mut().zip(of) {
                *row = (self.begin + i as usize % self.n) as u32;
                n += 1;
            }
            let head = self.each(h);
            exact::attend_ranges(self.isa, &head, Queries::List(&rows[..n]), n, &work.ranges, &mut work.dense);
            for r in 0..n {
                self.set_truth(work, &head, begin + r, r);
            }
            begin += n;
        }
    }
}

/// Sets `keep[j]` to 0 where key `j` is hidden from all rows of `heads` heads from `head` on, to 1 elsewhere; cells are then
/// made without them. O(rows x keys hidden).
pub(crate) fn padding(masking: &Masking<'_>, batch: usize, head: usize, heads: usize, rows: usize, keep: &mut [u8]) {
    keep.fill(u8::from(rows == 0));
    // Rows far from each other first: under a causal mask or a window they leave nothing to look for.
    let ends = [rows.wrapping_sub(1), 0].into_iter().filter(|&i| i < rows);
    let halves = (0..usize::BITS).rev().map(|b| 1 << b).filter(|&half| half < rows);
    let between = halves.flat_map(|half| (half..rows).step_by(2 * half));
    let (mut low, mut high, mut part) = (0, keep.len(), [0.0; 64]);
    for row in ends.chain(between) {
        for bias in (0..heads).filter_map(|h| masking.bias(batch, head + h)) {
            for begin in (low..high).step_by(part.len()) {
                let part = &mut part[..(high - begin).min(64)];
                bias.read_part(row, begin, part);
                keep[begin..].iter_mut().zip(part).for_each(|(keep, x)| *keep |= u8::from(*x >= HIDDEN));
            }
            low += keep[low..high].iter().take_while(|&&keep| keep != 0).count();
            high -= keep[low..high].iter().rev().take_while(|&&keep| keep != 0).count();
        }
        if low >= high {
            return;
        }
    }
}
