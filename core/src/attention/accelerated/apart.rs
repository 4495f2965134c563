//! A few rows, as in decoding: by themselves and not in lists.

use super::block::{DEVIATION, RowBlock, Sizes, Work};
use super::walk::{Done, Watch};
use crate::cells::{BLOCK, Matrix, ROOT};
use crate::error::Result;
use crate::mem::{Buf, Memory, Plan};
use crate::simd::block::{FewRows, ON_THE_WAY, Room, Slot, Sums, Thresholds, UNIT};

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

    pub(super) fn new(memory: &Memory, s: &Sizes) -> Result<Self> {
        let [listed, slots] = Apart::sizes(s);
        Ok(Apart {
            open: Buf::filled(memory, listed, 0)?,
            sure: Buf::filled(memory, listed, 0)?,
            weights: Buf::filled(memory, listed * BLOCK, 0.0)?,
            slots: Buf::filled(memory, slots, Slot::default())?,
            scores: Buf::filled(memory, slots * BLOCK, 0.0)?,
            below: Buf::filled(memory, slots * BLOCK, 0.0)?,
        })
    }
}

impl RowBlock<'_> {
    /// Whether rows go down by themselves and not in lists.
    pub(super) fn goes_apart(&self, work: &Work) -> bool {
        self.is_few(work) && !work.is_lifted()
    }

    /// All root blocks, for all rows.
    pub(super) fn few_rows(&self, work: &mut Work, doubtful: bool, watch: &mut Option<Watch<'_>>) -> Done {
        let n = self.queries();
        let Work { sizes, q, every, codes, along, roots, shares, reference, dense_sum, total, needle, .. } = work;
        let Work { mass: [cells, nodes], sigma, fine, coarse, exact, estimated, light, lost, lean, doubt, .. } = work;
        let Work { sums, opened, bar, usable, apart, .. } = work;
        let [of_cells, of_nodes] = lean;
        for (at, open) in apart.open.chunks_exact_mut(n).take(self.cells.segments().div_ceil(ROOT)).enumerate() {
            open.fill(usable.present(at));
        }
        let count = self.isa.run(FewRows {
            tree: self.cells.tree(),
            keys: &self.head.k,
            values: &self.head.v,
            rows: &every[..n],
            q: Matrix { data: q, stride: sizes.q_stride, cols: sizes.dim_k },
            codes,
            softcap: self.head.softcap * core::f32::consts::LOG2_E,
            tight: DEVIATION * libm::sqrtf(sizes.dim_k as f32),
            centers: roots,
            step: sizes.queries * BLOCK,
            sigma: &sigma[1],
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
                lean: [of_cells, of_nodes],
                doubt: doubtful.then_some(&mut **doubt),
                out: sums,
                stride: sizes.stride,
            },
            room: Room {
                open: &mut apart.open,
                sure: &mut apart.sure,
                weights: &mut apart.weights,
                slots: &mut apart.slots,
                scores: &mut apart.scores,
                below: &mut apart.below,
            },
            seen: match watch {
                Some(watch) => Some(&mut **watch),
                None => None,
            },
        });
        Done {
            nodes: count.nodes as u64,
            sifted: count.sifted as u64,
            cells: count.cells as u64,
            keys: count.keys as u64,
        }
    }
}
