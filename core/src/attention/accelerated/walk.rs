//! From the nodes down: which children a list of rows opens, what the others are estimated to weigh, and the keys of
//! cells that are open.

use super::block::{RowBlock, Work};
use crate::cells::{BLOCK, Block, NODES, ROOT};
use crate::simd::block::{AddKeys, AddValues, Children, Choose, LOWEST, Limits, Matrix, Prefetch, Scores, Settle, Sift, Total, Transpose, Weigh};

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
    /// (cell, row) pairs whose keys were looked at along the fitted directions.
    pub(super) sifted: u64,
    /// (cell, row) pairs opened.
    pub(super) cells: u64,
}

/// The part of the limits that is the same at both levels.
struct Shared<'a> {
    reference: &'a [f32],
    needle: &'a [f32],
}

impl RowBlock<'_> {
    fn limits<'a>(&self, shared: &Shared<'a>, level: usize, mass: &'a [f32], sigma: &'a [f32]) -> Limits<'a> {
        Limits {
            reference: shared.reference,
            needle: shared.needle,
            mass,
            sigma,
            stand_out: if level == 0 { self.rule.stand_out } else { self.rule.stand_out_node },
            softcap: self.head.softcap * core::f32::consts::LOG2_E,
        }
    }

    /// Which nodes of root block `at` belong to usable segments.
    fn present(&self, work: &Work, at: usize) -> ([f32; BLOCK], u16) {
        let (mut present, mut bits) = ([0.0; BLOCK], 0);
        for (lane, x) in present.iter_mut().enumerate() {
            if work.usable.get(at * ROOT + lane / NODES) == Some(&1) {
                *x = 1.0;
                bits |= 1 << lane;
            }
        }
        (present, bits)
    }

    /// Running maxima and sums of the nodes' estimates, for [`RowBlock::set_limits`].
    pub(super) fn total(&self, work: &mut Work) {
        let n = self.queries();
        work.scores[1][..n * BLOCK].fill(LOWEST);
        work.scores[2][..n * BLOCK].fill(0.0);
        for at in 0..self.cells.segments().div_ceil(ROOT) {
            let (present, bits) = self.present(work, at);
            if bits == 0 {
                continue;
            }
            let block = self.cells.root(at);
            let q = Matrix { data: &work.q, stride: work.sizes.q_stride, cols: work.sizes.dim_k };
            let [scores, max, sum] = &mut work.scores;
            self.isa.run(Scores { block: block.keys, q, rows: &work.every[..n], out: scores });
            let shared = Shared { reference: &work.reference, needle: &work.needle };
            self.isa.run(Total {
                scores,
                children: children(&block, 1, &present, bits),
                limits: self.limits(&shared, 1, &work.mass[1], &work.sigma[1]),
                count: n,
                max,
                sum,
            });
        }
    }

    /// All root blocks, for all rows.
    pub(super) fn walk(&self, work: &mut Work, watch: &mut Option<Watch<'_>>) -> Done {
        let n = self.queries();
        let mut done = Done::default();
        for at in 0..self.cells.segments().div_ceil(ROOT) {
            let (present, bits) = self.present(work, at);
            if bits == 0 {
                continue;
            }
            let block = self.cells.root(at);
            self.choose(work, &block, None, &present, bits);
            for lane in 0..BLOCK {
                if work.lists[1].len[lane] == 0 {
                    continue;
                }
                let node = at * BLOCK + lane;
                if let Some(coords) = self.cells.coords() {
                    let n = self.sift(work, 1, lane, coords.node(node), self.cells.node(node).reach);
                    work.lists[1].len[lane] = n;
                }
                if work.lists[1].len[lane] > 0 {
                    done.nodes += work.lists[1].len[lane] as u64;
                    self.node(work, node, lane, &mut done, watch);
                }
            }
            let Work { scores, sums, every, estimated, .. } = work;
            let (rows, total) = (&every[..n], Some(&mut **estimated));
            self.isa.run(AddValues { p: &scores[1], values: block.values, rows, out: sums, total });
        }
        done
    }

    /// Scores a block's vectors for the rows that opened it (all at the root, else those of child `lane` of the root
    /// block), lists what they open, and leaves the estimates of the rest in the level's scores.
    fn choose(&self, work: &mut Work, block: &Block<'_>, lane: Option<usize>, present: &[f32; BLOCK], bits: u16) {
        let Work { sizes, q, scores, every, reference, needle, mass, sigma, centers, sure, open, lists, .. } = work;
        let q = Matrix { data: q, stride: sizes.q_stride, cols: sizes.dim_k };
        let [cells, nodes] = lists;
        let (level, rows, below) = match lane {
            Some(lane) => (0, nodes.of(lane).0, cells),
            None => (1, &every[..self.queries()], nodes),
        };
        let scores = &mut scores[level];
        self.isa.run(Scores { block: block.keys, q, rows, out: scores });
        self.isa.run(Choose {
            scores,
            rows,
            children: children(block, level, present, bits),
            limits: self.limits(&Shared { reference, needle }, level, &mass[level], &sigma[level]),
            centers: &mut centers[level],
            open,
            sure: &mut sure[level],
        });
        below.fill(rows, &open[..rows.len()]);
    }

    /// One node for the rows that opened it.
    fn node(&self, work: &mut Work, node: usize, lane: usize, done: &mut Done, watch: &mut Option<Watch<'_>>) {
        let block = self.cells.node(node);
        self.choose(work, &block, Some(lane), &[1.0; BLOCK], 0xffff);
        let mut rows = [0; BLOCK];
        for (leaf, n) in rows.iter_mut().enumerate() {
            *n = work.lists[0].len[leaf];
            done.sifted += *n as u64;
            if let Some(coords) = self.cells.coords().filter(|_| *n > 0) {
                *n = self.sift(work, 0, leaf, coords.cell(node * BLOCK + leaf), &[0.0; BLOCK]);
            }
            done.cells += *n as u64;
        }
        let mut leaf = 0;
        while leaf < BLOCK {
            let next = (leaf + 1..BLOCK).find(|&l| rows[l] > 0).unwrap_or(BLOCK);
            if next < BLOCK {
                // Keys of a cell lie far apart: asked for while the cell before is worked on.
                self.isa.run(Prefetch { from: &self.head.k, ids: self.cells.keys_of(node, next) });
            }
            if rows[leaf] > 0 {
                self.cell(work, node, leaf, rows[leaf], watch);
            }
            leaf = next;
        }
        let Work { scores, sums, lists, estimated, coarse, settled, .. } = work;
        let [cells, nodes, _] = scores;
        let front = self.isa.run(Settle {
            p: cells,
            rows: lists[1].of(lane).0,
            fine: coarse,
            lane,
            mass: nodes,
            total: estimated,
            full: settled,
        });
        let rows = &settled[..front];
        self.isa.run(AddValues { p: cells, values: block.values, rows, out: sums, total: None });
    }

    /// Of the rows that may have to open child `lane` of a level, those for which something in it stands out along the
    /// fitted directions: they come to the front of the list. Returns their number.
    fn sift(&self, work: &mut Work, level: usize, lane: usize, coords: (&[i8], f32, f32), reach: &[f32]) -> usize {
        let (keys, unit, rest) = coords;
        let Work { along, centers, sure, lists, .. } = work;
        let (rows, places) = lists[level].of_mut(lane);
        self.isa.run(Sift {
            keys,
            unit,
            rest,
            reach,
            q: along,
            softcap: self.head.softcap * core::f32::consts::LOG2_E,
            centers: &centers[level],
            sure: &sure[level],
            lane,
            rows,
            places,
        })
    }

    /// The keys of one cell for the first `n` rows of its list.
    fn cell(&self, work: &mut Work, node: usize, leaf: usize, n: usize, watch: &mut Option<Watch<'_>>) {
        let Work { sizes, q, scores, reference, fine, exact, light, lists, full, lost, keys, room, sums, .. } = work;
        let [weights, _, cell] = scores;
        let (rows, places) = lists[0].of(leaf);
        let (rows, places) = (&rows[..n], &places[..n]);
        let ids = self.cells.keys_of(node, leaf);
        if let Some(watch) = watch {
            rows.iter().for_each(|&r| watch(r, ids));
        }
        self.isa.run(Transpose { from: &self.head.k, ids, room, out: keys });
        let q = Matrix { data: q, stride: sizes.q_stride, cols: sizes.dim_k };
        self.isa.run(Scores { block: keys, q, rows, out: cell });
        let front = self.isa.run(Weigh {
            scores: cell,
            rows,
            places,
            lane: leaf,
            reference,
            fine,
            softcap: self.head.softcap * core::f32::consts::LOG2_E,
            sum: exact,
            mass: weights,
            light,
            full,
            lost,
        });
        let (rows, stride) = (&full[..front], sizes.stride);
        self.isa.run(AddKeys { p: cell, rows, values: &self.head.v, ids, out: sums, stride });
    }
}

fn children<'a>(block: &Block<'a>, level: usize, present: &'a [f32; BLOCK], bits: u16) -> Children<'a> {
    Children { spread: block.spread, reach: block.reach, present, bits, log2_count: LOG2_COUNT[level] }
}
