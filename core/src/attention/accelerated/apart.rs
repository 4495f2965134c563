//! A few rows, as in decoding: by themselves and not in lists.

use super::block::{DEVIATION, RowBlock, Sizes, Work};
use super::walk::{Done, Shared, Watch};
use crate::cells::{BLOCK, Matrix, ROOT};
use crate::mem::{Buf, Maker, Plan};
use crate::simd::block::{
    AddRoots, ChooseRoots, Count, FewRows, ON_THE_WAY, Room, ScoreRoots, Slot, Sums, Thresholds, UNIT, words,
};
use core::ops::Range;

/// What is on its way in a descent of few rows; nothing for many.
pub(super) struct Apart {
    /// By root block: nodes that rows see.
    present: Buf<u16>,
    /// By root block and query, [`Room`].
    open: Buf<u16>,
    sure: Buf<u16>,
    weights: Buf<f32>,
    slots: Buf<Slot>,
    scores: Buf<f32>,
    below: Buf<f32>,
}

impl Apart {
    /// Root blocks, nodes listed, and rows that are below nodes.
    fn sizes(s: &Sizes) -> [usize; 3] {
        let roots = if s.apart() > 0 { s.segments.div_ceil(ROOT) } else { 0 };
        [roots, roots * s.apart(), ON_THE_WAY * UNIT * s.apart()]
    }

    pub(super) fn plan(plan: &mut Plan, s: &Sizes) {
        let [roots, listed, slots] = Apart::sizes(s);
        Buf::<u16>::plan(plan, roots);
        Buf::<u16>::plan(plan, listed);
        Buf::<u16>::plan(plan, listed);
        Buf::<f32>::plan(plan, listed * BLOCK);
        Buf::<Slot>::plan(plan, slots);
        Buf::<f32>::plan(plan, slots * BLOCK);
        Buf::<f32>::plan(plan, slots * BLOCK);
    }

    pub(super) fn made(m: &mut Maker<'_>, s: &Sizes) -> Self {
        let [roots, listed, slots] = Apart::sizes(s);
        Apart {
            present: m.filled(roots, 0),
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

    /// All root blocks, for these queries: estimates of the nodes and which of them rows have to look into, what lies below these, and
    /// what the other nodes weigh in with. Queries are those of the block, or one at a time of many.
    pub(super) fn few_rows(
        &self,
        work: &mut Work,
        of: Range<usize>,
        doubtful: bool,
        watch: &mut Option<Watch<'_>>,
    ) -> Done {
        self.list_nodes(work, of.clone());
        let count = self.go_down(work, of.clone(), doubtful, watch);
        self.add_nodes(work, of, doubtful);
        Done {
            nodes: count.nodes as u64,
            sifted: count.sifted as u64,
            cells: count.cells as u64,
            keys: count.keys as u64,
            lost: 0,
        }
    }

    /// The rows of a trial one after the other, as if each had come alone.
    pub(super) fn sample_apart(&self, work: &mut Work, watch: &mut Option<Watch<'_>>) -> Done {
        self.see_nodes(work);
        let mut all = Done::default();
        for at in 0..work.sample.len() {
            let i = work.sample[at] as usize;
            let done = self.few_rows(work, i..i + 1, false, watch);
            all.nodes += done.nodes;
            all.sifted += done.sifted;
            all.cells += done.cells;
            all.keys += done.keys;
        }
        all
    }

    /// Notes which nodes rows see.
    fn see_nodes(&self, work: &mut Work) {
        let Work { usable, apart, .. } = work;
        apart.present.iter_mut().enumerate().for_each(|(at, bits)| *bits = usable.present(at));
    }

    /// Scores of the nodes, and running maxima and sums of their estimates, as [`total`](RowBlock::total).
    pub(super) fn score_nodes(&self, work: &mut Work) {
        self.see_nodes(work);
        let Work { sizes, q, roots, scores: [_, max, sum], every, .. } = work;
        let Work { reference, needle, shares, mass, sigma, apart, codes, along, base, .. } = work;
        let shared = Shared { reference, needle, stand_out: shares.stand_out };
        self.isa.run(ScoreRoots {
            roots: self.cells.roots(&apart.present),
            asking: self.asking(sizes, q, codes, along, base),
            rows: &every[..self.queries()],
            limits: self.limits(&shared, 1, &mass[1], &sigma[1]),
            scores: roots,
            step: sizes.queries * BLOCK,
            max,
            sum,
        });
    }

    /// Which nodes rows have to look into, and what all of them are estimated to weigh.
    fn list_nodes(&self, work: &mut Work, of: Range<usize>) {
        let Work { sizes, roots, every, reference, needle, shares, mass, sigma, apart, .. } = work;
        let shared = Shared { reference, needle, stand_out: shares.stand_out };
        self.isa.run(ChooseRoots {
            roots: self.cells.roots(&apart.present),
            rows: &every[of.clone()],
            limits: self.limits(&shared, 1, &mass[1], &sigma[1]),
            scores: &roots[of.start * BLOCK..],
            step: sizes.queries * BLOCK,
            weights: &mut apart.weights,
            open: &mut apart.open,
            sure: &mut apart.sure,
        });
    }

    /// The nodes that still weigh in by themselves, into the sums.
    fn add_nodes(&self, work: &mut Work, of: Range<usize>, doubtful: bool) {
        let Work { every, sigma, estimated, doubt, lean, sums, apart, .. } = work;
        self.isa.run(AddRoots {
            roots: self.cells.roots(&apart.present),
            rows: &every[of],
            weights: &apart.weights,
            total: estimated,
            lean: &mut lean[1],
            out: sums,
            sigma: &sigma[1],
            doubt: doubtful.then_some(&mut **doubt),
        });
    }

    /// What lies below the nodes that these queries list.
    fn go_down(&self, work: &mut Work, of: Range<usize>, doubtful: bool, watch: &mut Option<Watch<'_>>) -> Count {
        let Work { sizes, q, codes, along, roots, shares, reference, dense_sum, total, needle, .. } = work;
        let Work { mass: [cells, nodes], sigma, fine, coarse, exact, estimated, light, lost, lean, doubt, .. } = work;
        let Work { sums, opened, bar, apart, .. } = work;
        let (first, watched) = (of.start, watch.is_some());
        let mut seen = |query: u16, ids: &[u32]| {
            if let Some(watch) = watch {
                watch(first as u16 + query, ids);
            }
        };
        self.isa.run(FewRows {
            tree: self.cells.tree(),
            keys: &self.head.k,
            values: &self.head.v,
            queries: of.len(),
            q: Matrix { data: &q[first * sizes.q_stride..], stride: sizes.q_stride, cols: sizes.dim_k },
            codes: &codes[first * 2 * words(sizes.dim_k)..],
            softcap: self.head.softcap * core::f32::consts::LOG2_E,
            tight: DEVIATION * libm::sqrtf(sizes.dim_k as f32),
            centers: &roots[first * BLOCK..],
            step: sizes.queries * BLOCK,
            limits: Thresholds {
                shares: *shares,
                reference: &reference[first..],
                dense: &dense_sum[first..],
                sigma: &sigma[0][first..],
                total: &mut total[first..],
                opened: &mut opened[first..],
                bar: &mut bar[first..],
                needle: &mut needle[first..],
                mass: [&mut cells[first..], &mut nodes[first..]],
                fine: &mut fine[first..],
                coarse: &mut coarse[first..],
                along: &mut along[first..],
            },
            sums: Sums {
                exact: &mut exact[first * BLOCK..],
                estimated: &mut estimated[first * BLOCK..],
                light: &mut light[first..],
                lost: &mut lost[first..],
                lean: &mut lean[0][first * BLOCK..],
                doubt: doubtful.then_some(&mut doubt[first * BLOCK..]),
                out: &mut sums[first * sizes.stride..],
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
            seen: if watched { Some(&mut seen) } else { None },
        })
    }
}
