//! A few rows, as in decoding: by themselves and not in lists.

use super::block::{DEVIATION, RowBlock, Sizes, Work};
use super::walk::{Done, Shared, Watch, children, doubts};
use crate::cells::{BLOCK, Matrix, ROOT};
use crate::mem::{Buf, Maker, Plan};
use crate::simd::block::{AddValues, Choose, Count, Fetch, FewRows, ON_THE_WAY, Room, Slot, Sums, Thresholds, UNIT};

/// Root blocks whose values are asked for ahead: they come in order, but memory would see that too late.
const AHEAD: usize = 3;

/// What is on its way in a descent of few rows; nothing for many.
pub(super) struct Apart {
    /// By root block and query, [`Room`].
    open: Buf<u16>,
    sure: Buf<u16>,
    weights: Buf<f32>,
    slots: Buf<Slot>,
    scores: Buf<f32>,
    below: Buf<f32>,
}

impl Apart {
    /// Nodes listed, and rows that are below nodes.
    fn sizes(s: &Sizes) -> [usize; 2] {
        [s.segments.div_ceil(ROOT) * s.apart(), ON_THE_WAY * UNIT * s.apart()]
    }

    pub(super) fn plan(plan: &mut Plan, s: &Sizes) {
        let [listed, slots] = Apart::sizes(s);
        Buf::<u16>::plan(plan, listed);
        Buf::<u16>::plan(plan, listed);
        Buf::<f32>::plan(plan, listed * BLOCK);
        Buf::<Slot>::plan(plan, slots);
        Buf::<f32>::plan(plan, slots * BLOCK);
        Buf::<f32>::plan(plan, slots * BLOCK);
    }

    pub(super) fn made(m: &mut Maker<'_>, s: &Sizes) -> Self {
        let [listed, slots] = Apart::sizes(s);
        Apart {
            open: m.filled(listed, 0),
            sure: m.filled(listed, 0),
            weights: m.filled(listed * BLOCK, 0.0),
            slots: m.filled(slots, Slot::default()),
            scores: m.filled(slots * BLOCK, 0.0),
            below: m.filled(slots * BLOCK, 0.0),
        }
    }
}

impl RowBlock<'_> {
    /// Whether rows go down by themselves and not in lists.
    pub(super) fn goes_apart(&self, work: &Work) -> bool {
        self.is_few(work) && !work.is_lifted()
    }

    /// All root blocks, for all rows: estimates of the nodes and which of them rows have to look into, what lies below these, and
    /// what the other nodes weigh in with.
    pub(super) fn few_rows(&self, work: &mut Work, doubtful: bool, watch: &mut Option<Watch<'_>>) -> Done {
        let roots = self.cells.segments().div_ceil(ROOT);
        (0..roots).for_each(|at| self.list_nodes(work, at));
        let count = self.go_down(work, doubtful, watch);
        for at in roots.saturating_sub(AHEAD)..roots {
            self.isa.run(Fetch::values(self.cells.root(at).values));
        }
        for at in (0..roots).rev() {
            if at >= AHEAD {
                self.isa.run(Fetch::values(self.cells.root(at - AHEAD).values));
            }
            self.add_nodes(work, at, doubtful);
        }
        Done {
            nodes: count.nodes as u64,
            sifted: count.sifted as u64,
            cells: count.cells as u64,
            keys: count.keys as u64,
            lost: 0,
        }
    }

    /// The nodes of root block `at`: as [`choose`](RowBlock::choose), kept for all root blocks.
    fn list_nodes(&self, work: &mut Work, at: usize) {
        let (n, step) = (self.queries(), work.sizes.queries * BLOCK);
        let bits = work.usable.present(at);
        let Work { roots, every, reference, needle, shares, mass, sigma, apart, .. } = work;
        let (open, sure) = (&mut apart.open[at * n..][..n], &mut apart.sure[at * n..][..n]);
        let weights = &mut apart.weights[at * n * BLOCK..][..n * BLOCK];
        if bits == 0 {
            open.fill(0);
            weights.fill(0.0);
            return;
        }
        let present = core::array::from_fn(|lane| f32::from(bits >> lane & 1));
        let children = children(&self.cells.root(at), 1, &present, bits);
        let shared = Shared { reference, needle, stand_out: shares.stand_out };
        let limits = self.limits(&shared, 1, &mass[1], &sigma[1]);
        let centers = &roots[at * step..][..n * BLOCK];
        self.isa.run(Choose { centers, rows: &every[..n], children, limits, weights, open, sure });
    }

    /// The nodes of root block `at` that still weigh in by themselves, into the sums.
    fn add_nodes(&self, work: &mut Work, at: usize, doubtful: bool) {
        let n = self.queries();
        let Work { every, sigma, estimated, doubt, lean, sums, apart, .. } = work;
        let (block, rows) = (self.cells.root(at), &every[..n]);
        let p = &apart.weights[at * n * BLOCK..][..n * BLOCK];
        if doubtful {
            self.isa.run(doubts(&block, 1, p, rows, &sigma[1], doubt));
        }
        let (total, lean) = (Some(&mut **estimated), Some((block.spread, &mut *lean[1])));
        self.isa.run(AddValues { p, values: block.values, rows, out: sums, total, lean });
    }

    /// What lies below the nodes that rows list.
    fn go_down(&self, work: &mut Work, doubtful: bool, watch: &mut Option<Watch<'_>>) -> Count {
        let Work { sizes, q, codes, along, roots, shares, reference, dense_sum, total, needle, .. } = work;
        let Work { mass: [cells, nodes], sigma, fine, coarse, exact, estimated, light, lost, lean, doubt, .. } = work;
        let Work { sums, opened, bar, apart, .. } = work;
        self.isa.run(FewRows {
            tree: self.cells.tree(),
            keys: &self.head.k,
            values: &self.head.v,
            queries: self.queries(),
            q: Matrix { data: q, stride: sizes.q_stride, cols: sizes.dim_k },
            codes,
            softcap: self.head.softcap * core::f32::consts::LOG2_E,
            tight: DEVIATION * libm::sqrtf(sizes.dim_k as f32),
            centers: roots,
            step: sizes.queries * BLOCK,
            limits: Thresholds {
                shares: *shares,
                reference,
                dense: dense_sum,
                sigma: &sigma[0],
                total,
                opened,
                bar,
                needle,
                mass: [cells, nodes],
                fine,
                coarse,
                along,
            },
            sums: Sums {
                exact,
                estimated,
                light,
                lost,
                lean: &mut lean[0],
                doubt: doubtful.then_some(&mut **doubt),
                out: sums,
                stride: sizes.stride,
            },
            room: Room {
                open: &apart.open,
                sure: &apart.sure,
                weights: &mut apart.weights,
                slots: &mut apart.slots,
                scores: &mut apart.scores,
                below: &mut apart.below,
            },
            seen: match watch {
                Some(watch) => Some(&mut **watch),
                None => None,
            },
        })
    }
}
