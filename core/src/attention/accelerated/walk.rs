//! From the nodes down: which children a list of rows opens, what the others are estimated to weigh, and the keys of
//! cells that are open.

use super::bias::Lifted;
use super::block::{DEVIATION, Listed, RowBlock, Work};
use super::usable::Run;
use crate::cells::{BLOCK, Block, ROOT};
use crate::simd::block::{
    AddValues, Bytes, Children, Choose, ChooseBiased, Coded, Doubt, Fetch, FetchSome, LOWEST, Limits, Many, Matrix,
    Opened, ScoreNodes, ScoresAt, Settle, Sift, SiftKeys, Total,
};

/// Keys of a cell and of a node, in powers of two.
const LOG2_COUNT: [f32; 2] = [4.0, 8.0];

/// Called with a query of the block (row `i` of head `h` is `h * n + i`) and the keys that are scored exactly for it,
/// beside those of the dense part: for studies of what was found.
pub(super) type Watch<'a> = &'a mut dyn FnMut(u16, &[u32]);

/// What a walk did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    /// (node, row) pairs opened.
    pub(super) nodes: u64,
    /// (cell, row) pairs whose keys were looked at by their coordinates.
    pub(super) sifted: u64,
    /// (cell, row) pairs opened.
    pub(super) cells: u64,
    /// (key, row) pairs scored in them.
    pub(super) keys: u64,
    /// Rows given up for [biases](RowBlock::give_up_overestimated), to be attended exactly.
    pub(super) lost: u64,
}

/// Cells err together more often than a prediction that takes them one by one allows for: by so much on trained heads.
const TOGETHER: f64 = 2.0;
/// The same where values do not lean.
const TOGETHER_UPRIGHT: f64 = 3.5;

/// The part of the limits that is the same at both levels.
pub(super) struct Shared<'a> {
    pub(super) reference: &'a [f32],
    pub(super) needle: &'a [f32],
    /// By level.
    pub(super) stand_out: [f32; 2],
}

impl RowBlock<'_> {
    pub(super) fn limits<'a>(
        &self,
        shared: &Shared<'a>,
        level: usize,
        mass: &'a [f32],
        sigma: &'a [f32],
    ) -> Limits<'a> {
        Limits {
            reference: shared.reference,
            needle: shared.needle,
            mass,
            sigma,
            stand_out: shared.stand_out[level],
            softcap: self.head.softcap * core::f32::consts::LOG2_E,
        }
    }

    /// Scores of the nodes, and running maxima and sums of their estimates, for [`RowBlock::prepare`].
    pub(super) fn total(&self, work: &mut Work) {
        let (n, lifted, step) = (self.queries(), work.is_lifted(), work.sizes.queries * BLOCK);
        work.scores[1][..n * BLOCK].fill(LOWEST);
        work.scores[2][..n * BLOCK].fill(0.0);
        if self.goes_apart(work) {
            return self.score_nodes(work);
        }
        for at in 0..self.cells.segments().div_ceil(ROOT) {
            if work.usable.present(at) == 0 {
                continue;
            }
            let block = self.cells.root(at);
            let Work { sizes, q, codes, along, base, roots, every, .. } = &mut *work;
            let (asking, out) = (self.asking(sizes, q, codes, along, base), &mut roots[at * step..][..step]);
            self.isa.run(ScoreNodes { keys: self.cells.root_keys(at), asking, rows: &every[..n], out });
            let mut next = 0;
            while next < n {
                let run = self.run_from(&work.usable, at, &work.every[..n], next);
                next = run.end;
                if lifted {
                    // All rows use the same.
                    self.total_lifted(work, at, &run.present, run.bits);
                    continue;
                }
                let shared =
                    Shared { reference: &work.reference, needle: &work.needle, stand_out: work.shares.stand_out };
                let (of, from) = (run.begin * BLOCK..run.end * BLOCK, at * step);
                let [_, max, sum] = &mut work.scores;
                self.isa.run(Total {
                    scores: &work.roots[from..][of.clone()],
                    children: children(&block, 1, &run.present, run.bits),
                    limits: self.limits(&shared, 1, &work.mass[1], &work.sigma[1][run.begin..run.end]),
                    count: run.end - run.begin,
                    max: &mut max[of.clone()],
                    sum: &mut sum[of],
                });
            }
        }
    }

    /// All weights of a query after a walk, exact and estimated.
    pub(super) fn weight(&self, work: &Work, i: usize) -> f32 {
        let of = |x: &[f32]| x[i * BLOCK..][..BLOCK].iter().sum::<f32>();
        work.dense_sum[i] + of(&work.exact) + of(&work.estimated) - work.light[i]
    }

    /// Relative error of the outputs, from the doubt about what was estimated; `leaning` says that values will lean.
    pub(super) fn predicted_error(&self, work: &Work, leaning: bool) -> f64 {
        let stride = work.sizes.stride;
        let (mut wrong, mut all) = (0.0, 0.0);
        for i in 0..self.queries() {
            let unit = f64::from(1.0 / self.weight(work, i));
            wrong += f64::from(work.doubt[i * BLOCK..][..BLOCK].iter().sum::<f32>()) * unit * unit;
            let sums = &work.sums[i * stride..][..work.sizes.dim_v];
            all += sums.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() * unit * unit;
        }
        let together = if leaning { TOGETHER } else { TOGETHER_UPRIGHT };
        together * libm::sqrt(wrong / all.max(f64::MIN_POSITIVE))
    }

    /// All root blocks, for all rows; `doubtful` says that errors are to be predicted.
    pub(super) fn walk(&self, work: &mut Work, doubtful: bool, watch: &mut Option<Watch<'_>>) -> Done {
        if doubtful {
            work.doubt[..self.queries() * BLOCK].fill(0.0);
        }
        self.descend(work, false, doubtful, watch)
    }

    /// The same for all rows or the sample.
    pub(super) fn descend(&self, work: &mut Work, sample: bool, doubtful: bool, watch: &mut Option<Watch<'_>>) -> Done {
        let n = self.queries();
        if self.goes_apart(work) && !sample {
            return self.few_rows(work, 0..n, doubtful, watch);
        }
        let mut done = Done::default();
        for at in (0..self.cells.segments().div_ceil(ROOT)).rev() {
            if work.usable.present(at) == 0 {
                continue;
            }
            let block = self.cells.root(at);
            let listed = if sample { Listed::Sample } else { Listed::All };
            let whole = self.choose(work, &block, at, listed);
            self.nodes(work, at, whole, doubtful, &mut done, watch);
            if doubtful && work.is_lifted() {
                self.doubt_lifted(work, &block, at, listed);
            }
            let Work { scores, sums, every, sample: few, estimated, doubt, sigma, lean, .. } = work;
            let (rows, total) = (if sample { &**few } else { &every[..n] }, Some(&mut **estimated));
            if doubtful {
                self.isa.run(doubts(&block, 1, &scores[1], rows, &sigma[1], doubt));
            }
            let lean = Some((block.spread, &mut *lean[1]));
            self.isa.run(AddValues { p: &scores[1], values: block.values, rows, out: sums, total, lean });
        }
        if work.is_lifted() {
            done.lost = self.give_up_overestimated(work, sample) as u64;
        }
        done
    }

    /// The nodes of root block `at`, one after the other, for the rows that list them; `whole` as `choose` returned it.
    fn nodes(
        &self,
        work: &mut Work,
        at: usize,
        whole: Option<usize>,
        doubtful: bool,
        done: &mut Done,
        watch: &mut Option<Watch<'_>>,
    ) {
        if self.is_few(work) {
            self.ahead(self.cells.coords().nodes_of(at), &work.lists[1].len);
        }
        for lane in 0..BLOCK {
            if work.lists[1].len[lane] > 0 {
                done.sifted += work.lists[1].len[lane] as u64;
                let node = at * BLOCK + lane;
                let reach = self.cells.node(node).reach;
                let n = self.sift(work, lane, self.cells.coords().node(node), reach, whole);
                work.lists[1].len[lane] = n;
                done.nodes += n as u64;
                if n > 0 {
                    self.node(work, node, lane, doubtful, done, watch);
                }
            }
        }
    }

    /// Root block `at` itself, where a list takes its scores from `roots` as they lie. Where biases are added, and for the
    /// sample, whose scores lie apart there, they are copied.
    fn whole_root(&self, work: &mut Work, at: usize, listed: Listed) -> Option<usize> {
        let step = work.sizes.queries * BLOCK;
        let lifted = work.is_lifted();
        let Work { roots, centers: [_, own], sample, .. } = work;
        let root = &roots[at * step..][..step];
        match listed {
            Listed::Sample => {
                for (to, &row) in own.chunks_exact_mut(BLOCK).zip(&**sample) {
                    to.copy_from_slice(&root[row as usize * BLOCK..][..BLOCK]);
                }
                None
            }
            _ if lifted => {
                own.copy_from_slice(root);
                None
            }
            _ => Some(at),
        }
    }

    /// From the scores of a block's vectors, those of the nodes or what the sift left of a node's cells: lists what rows may have
    /// to open, and leaves estimates of all in the level's scores. `number` is that of the root block or of the node. Returns the
    /// root block whose scores the sift is to take from `roots`; others are in the level's `centers`.
    pub(super) fn choose(&self, work: &mut Work, block: &Block<'_>, number: usize, listed: Listed) -> Option<usize> {
        let step = work.sizes.queries * BLOCK;
        let whole = match listed {
            Listed::Child(lane) => {
                if work.is_lifted() {
                    self.lift_cells(work, number, lane);
                }
                None
            }
            _ => self.whole_root(work, number, listed),
        };
        let Work {
            roots,
            scores,
            every,
            sample,
            reference,
            needle,
            shares,
            mass,
            sigma,
            centers,
            sure,
            open,
            lists,
            lifted,
            usable,
            ..
        } = work;
        let lifts = lifted.as_ref().filter(|l| l.on()).map(|l| l.of(listed, number, step));
        let [cells, nodes] = lists;
        let (level, rows, below) = match listed {
            Listed::Child(lane) => (0, nodes.of(lane).0, cells),
            Listed::All => (1, &every[..self.queries()], nodes),
            Listed::Sample => (1, &**sample, nodes),
        };
        let shared = Shared { reference, needle, stand_out: shares.stand_out };
        let (weights, sure) = (&mut scores[level], &mut sure[level]);
        let centers = &mut centers[level];
        let mut next = 0;
        while next < rows.len() {
            let run = match listed {
                Listed::Child(_) => Run { begin: 0, end: rows.len(), present: [1.0; BLOCK], bits: u16::MAX },
                _ => self.run_from(usable, number, rows, next),
            };
            next = run.end;
            let (places, numbers) = (run.begin..run.end, run.begin * BLOCK..run.end * BLOCK);
            let children = children(block, level, &run.present, run.bits);
            let limits = self.limits(&shared, level, &mass[level], &sigma[level]);
            let (weights, rows) = (&mut weights[numbers.clone()], &rows[places.clone()]);
            let (open, sure) = (&mut open[places.clone()], &mut sure[places]);
            match &lifts {
                None => {
                    let centers = &whole.map_or(&**centers, |at| &roots[at * step..])[numbers];
                    self.isa.run(Choose { centers, rows, children, limits, weights, open, sure });
                }
                // All rows use the same: one run.
                &Some((lifts, by_query)) => {
                    let centers = &mut centers[numbers];
                    self.isa.run(ChooseBiased {
                        centers,
                        rows,
                        children,
                        limits,
                        lifts,
                        by_query,
                        weights,
                        open,
                        sure,
                    });
                }
            }
        }
        below.fill(self.isa, rows, &open[..rows.len()], every);
        whole
    }

    /// One node for the rows that opened it.
    fn node(
        &self,
        work: &mut Work,
        node: usize,
        lane: usize,
        doubtful: bool,
        done: &mut Done,
        watch: &mut Option<Watch<'_>>,
    ) {
        let block = self.cells.node(node);
        self.score_below(work, node, &block, lane);
        self.choose(work, &block, node, Listed::Child(lane));
        if self.is_few(work) {
            self.isa.run(Fetch::values(block.values));
        }
        done.sifted += self.sift_below(work, node, lane) as u64;
        self.opened(work, node, done, watch);
        self.raise_limits(work);
        if doubtful && work.is_lifted() {
            self.doubt_lifted(work, &block, node, Listed::Child(lane));
        }
        let Work { scores, sums, lists, estimated, coarse, settled, sigma, doubt, lean, .. } = work;
        let [cells, nodes, _] = scores;
        let (rows, places) = lists[1].of(lane);
        if doubtful {
            self.isa.run(doubts(&block, 0, cells, rows, &sigma[0], doubt));
        }
        let front = self.isa.run(Settle {
            p: cells,
            rows,
            places,
            fine: coarse,
            lane,
            mass: nodes,
            total: estimated,
            full: settled,
        });
        let rows = &settled[..front];
        let lean = Some((block.spread, &mut *lean[0]));
        self.isa.run(AddValues { p: cells, values: block.values, rows, out: sums, total: None, lean });
    }

    /// What the sift left of the scores of a node's cells, for the rows that opened it: without the bias that it looked for needles
    /// with. Cells whose keys lie closer together than four bits leave a cell's mean to where it is, such as those of equal keys,
    /// are scored by one of their keys instead.
    fn score_below(&self, work: &mut Work, node: usize, block: &Block<'_>, lane: usize) {
        if work.is_lifted() {
            self.lower(work, node, lane);
        }
        let Work { sizes, q, centers: [scores, _], scores: [.., keys], lists, .. } = work;
        let off = DEVIATION * libm::sqrtf(sizes.dim_k as f32);
        let unit = self.cells.coords().node(node).unit;
        let tight: [bool; BLOCK] = core::array::from_fn(|leaf| block.spread[leaf] < off * unit[leaf].to_f32());
        if tight == [false; BLOCK] {
            return;
        }
        let rows = lists[1].of(lane).0;
        let q = Matrix { data: q, stride: sizes.q_stride, cols: sizes.dim_k };
        let ids: [u32; BLOCK] = core::array::from_fn(|leaf| self.cells.keys_of(node, leaf)[0]);
        self.isa.run(ScoresAt { from: &self.head.k, ids: &ids, q, rows, out: keys });
        for (to, from) in scores.chunks_exact_mut(BLOCK).zip(keys.chunks_exact(BLOCK)).take(rows.len()) {
            for leaf in (0..BLOCK).filter(|&leaf| tight[leaf]) {
                to[leaf] = from[leaf];
            }
        }
    }

    /// Of the rows that may have to open node `lane` of a root block, those for which something in it stands out by the
    /// coordinates of its cells: they come to the front of the list. Returns their number. `whole` is the root block, if scores are
    /// taken from `roots`.
    fn sift(&self, work: &mut Work, lane: usize, keys: Coded<'_>, reach: &[f32], whole: Option<usize>) -> usize {
        let step = work.sizes.queries * BLOCK;
        let Work { codes, along, centers: [below, nodes], roots, sure, lists, .. } = work;
        let (rows, places) = lists[1].of_mut(lane);
        self.isa.run(Sift {
            keys,
            reach,
            scores: below,
            q: Bytes { codes, of: along },
            softcap: self.head.softcap * core::f32::consts::LOG2_E,
            centers: whole.map_or(&**nodes, |at| &roots[at * step..]),
            sure: &sure[1],
            lane,
            rows,
            places,
        })
    }

    /// The same for the cells of a node, by the coordinates of their keys. Returns how many rows there were before.
    fn sift_below(&self, work: &mut Work, node: usize, lane: usize) -> usize {
        let keys = self.cells.coords().cells_of(node);
        if self.is_few(work) {
            self.ahead(keys, &work.lists[0].len);
        }
        let Work { codes, along, centers: [centers, _], sure: [sure, _], lists: [cells, nodes], .. } = work;
        let q = Bytes { codes, of: along };
        let softcap = self.head.softcap * core::f32::consts::LOG2_E;
        let (rows, lists) = (nodes.of(lane).0, cells.listing());
        self.isa.run(SiftKeys { keys, q, softcap, rows, centers, sure, lists })
    }

    /// For a few rows, asks for the coordinates of the children that a level lists, all at once.
    fn ahead(&self, of: Many<'_>, len: &[usize; BLOCK]) {
        self.isa.run(FetchSome { parts: of.words, each: of.each, len });
        self.isa.run(FetchSome { parts: of.unit, each: 1, len });
    }

    /// The opened cells of a node, for the rows of their lists.
    pub(super) fn opened(&self, work: &mut Work, node: usize, done: &mut Done, watch: &mut Option<Watch<'_>>) {
        if let Some(watch) = watch {
            for leaf in 0..BLOCK {
                work.lists[0].of(leaf).0.iter().for_each(|&r| watch(r, self.cells.keys_of(node, leaf)));
            }
        }
        let few = self.is_few(work);
        let Work { sizes, q, scores: [mass, _, scores], lists: [cells, _], reference, fine, exact, .. } = work;
        let Work { light, lost, sums, full, keys, room, lifted, .. } = work;
        keys.fill_up(0.0);
        room.fill_up(0.0);
        let lifts = lifted.as_ref().filter(|l| l.on()).map(Lifted::cells);
        let biases = self.biases().zip(lifts);
        let cells = self.isa.run(Opened {
            keys: &self.head.k,
            values: &self.head.v,
            ids: self.cells.keys_of_node(node),
            q: Matrix { data: q, stride: sizes.q_stride, cols: sizes.dim_k },
            lists: cells.listing(),
            few,
            softcap: self.head.softcap * core::f32::consts::LOG2_E,
            biases: biases.as_ref(),
            reference,
            fine,
            sum: exact,
            mass,
            light,
            lost,
            out: sums,
            stride: sizes.stride,
            scores,
            full,
            block: keys,
            room,
        }) as u64;
        done.cells += cells;
        done.keys += cells * BLOCK as u64;
    }
}

/// The doubt about what a block's children weigh in for `rows`.
pub(super) fn doubts<'a>(
    block: &Block<'a>,
    level: usize,
    p: &'a [f32],
    rows: &'a [u16],
    sigma: &'a [f32],
    out: &'a mut [f32],
) -> Doubt<'a> {
    let count = libm::exp2f(LOG2_COUNT[level]);
    Doubt { p, rows, spread: block.spread, value_spread: block.value_spread, sigma, count, out }
}

pub(super) fn children<'a>(block: &Block<'a>, level: usize, present: &'a [f32; BLOCK], bits: u16) -> Children<'a> {
    Children { spread: block.spread, reach: block.reach, present, bits, log2_count: LOG2_COUNT[level] }
}
