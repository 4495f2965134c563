//! Rows against entries: which cells a row opens, and estimates for the rest.

use super::ablation::{Part, without};
use super::control::Opening;
use super::front::Front;
use super::policy::SIGMA;
use super::rows::RowSet;
use crate::mem::{Buf, Maker};
use crate::simd::Isa;
use crate::simd::bias::HeadBiases;
use crate::simd::clustered::{AddMeans, CELL, ScoreEntries, Screen, Spread};
use crate::simd::online::State;
use crate::simd::opened::{OpenCells, OpenRoom};
use crate::simd::tile::{KEYS, PANEL};

use crate::mem::Rows;

/// How scores become logits.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    /// Turns a score into a power of two.
    pub(super) factor: f32,
    /// Scale and softcap where a score is not a plain product.
    pub(super) logits: Option<(f32, f32)>,
}

impl Softmax {
    /// Logit of a unit of a score.
    pub(super) fn unit(&self) -> f32 {
        self.factor * core::f32::consts::LN_2
    }

    /// What a query is multiplied by, and then by the covariance of keys and values: keys that score above their cell's mean weigh more,
    /// by `tilt` deviations of all scores, of which `spread` is one, and so do their values.
    pub(super) fn along(&self, tilt: f32, spread: f32) -> f32 {
        let scale = self.logits.map_or(1.0, |(scale, _)| scale);
        let along = tilt * scale / spread;
        if along.is_finite() && !without(Part::CrossCovariance) { along } else { 0.0 }
    }
}

/// Work memory of the estimates of a set of rows.
pub(super) struct Estimates {
    scores: Buf<f32>,
    weights: Buf<f32>,
    /// `[panel][entries]`.
    opened: Buf<u64>,
    square: Buf<f32>,
    room: OpenRoom,
    /// Mean length of the rows' outputs, roughly.
    length: f32,
}

impl Estimates {
    /// For up to `entries` entries and `rows` rows, as part of a larger object.
    pub(super) fn made(m: &mut Maker<'_>, dim_k: usize, dim_v: usize, entries: usize, rows: usize) -> Self {
        let all = entries.saturating_add(KEYS.max(dim_k)).saturating_mul(PANEL);
        let panels = rows.div_ceil(PANEL);
        Estimates {
            scores: m.filled(all, 0.0),
            weights: m.filled(all, 0.0),
            opened: m.filled(entries.saturating_mul(panels), 0),
            square: m.filled((dim_k + KEYS) * PANEL, 0.0),
            room: OpenRoom {
                keys: m.filled(CELL * dim_k, 0.0),
                transposed: m.filled(CELL * dim_k, 0.0),
                values: m.filled(CELL * dim_v.next_multiple_of(16), 0.0),
                rows: m.filled(panels * PANEL, 0),
            },
            length: 0.0,
        }
    }

    /// Mean length of the outputs of the rows of the last [`add`](Estimates::add), roughly.
    pub(super) fn length(&self) -> f32 {
        self.length
    }

    /// Adds what all entries hold to rows that have attended to everything else: opened cells exactly, the others by their means.
    /// Cells open where a key may weigh what `opening` says. Returns the pairs scored exactly.
    pub(super) fn add(
        &mut self,
        isa: Isa,
        front: &Front,
        keys: &Rows<'_>,
        values: &Rows<'_>,
        biases: Option<HeadBiases<'_>>,
        softmax: Softmax,
        opening: Opening,
        set: &mut RowSet,
    ) -> u64 {
        let n = front.entries();
        self.length = 0.0;
        for p in 0..set.n.div_ceil(PANEL) {
            self.panel(isa, front, biases, softmax, opening, set, p);
        }
        self.length /= set.n.max(1) as f32;
        let opened = &self.opened[..n * set.n.div_ceil(PANEL)];
        isa.run(OpenCells {
            ids: front.ids(),
            known: front.known_of(),
            opened,
            keys,
            values,
            q: &set.q,
            logits: softmax.logits,
            biases: biases.map(|biases| biases.of(&set.of)),
            factor: softmax.factor,
            max: &mut set.max,
            sum: &mut set.sum,
            sums: &mut set.sums,
            stride: set.stride,
            room: &mut self.room,
        })
    }

    fn panel(
        &mut self,
        isa: Isa,
        front: &Front,
        biases: Option<HeadBiases<'_>>,
        softmax: Softmax,
        opening: Opening,
        set: &mut RowSet,
        p: usize,
    ) {
        let (n, lanes, at) = (front.entries(), set.lanes(p), p * PANEL);
        let (mut spread, mut threshold, mut alpha) = ([0.0; PANEL], [f32::INFINITY; PANEL], [1.0; PANEL]);
        let q = &set.panels[p * set.dim_k * PANEL..][..set.dim_k * PANEL];
        isa.run(Spread { q, covariance: front.covariance(), lanes, room: &mut self.square, out: &mut spread });
        if let Some((scale, _)) = softmax.logits {
            isa.scale(scale.abs(), &mut spread);
        }
        let (mut before, mut tilt) = ([0.0; PANEL], [0.0; PANEL]);
        before.copy_from_slice(&set.sum[at..at + PANEL]);
        isa.run(ScoreEntries {
            q,
            lanes,
            keys: front.mean_keys(),
            shift: front.shift(),
            logits: softmax.logits,
            biases: biases.map(|biases| front.biases(biases.of(&set.of[at..]))),
            factor: softmax.factor,
            scores: &mut self.scores,
            weights: &mut self.weights,
            state: State { max: &mut set.max[at..at + PANEL], sum: &mut set.sum[at..at + PANEL], alpha: &mut alpha },
        });
        for lane in 0..lanes {
            let (max, sum) = (set.max[at + lane], set.sum[at + lane]);
            before[lane] *= alpha[lane];
            let share = alpha[lane] / sum;
            let near = isa.norm2(&set.sums[(at + lane) * set.stride..][..set.dim_v]) * share * share;
            let length = front.output_length(near, 1.0 - before[lane] / sum);
            let weight = opening.weight(length);
            self.length += length;
            threshold[lane] = max + libm::log2f(sum * weight) / softmax.factor;
        }
        let opened = &mut self.opened[p * n..][..n];
        let seen = before;
        isa.run(Screen {
            lanes,
            scores: &self.scores,
            weights: &mut self.weights,
            radius: front.radius(),
            spread: &spread,
            sigma: if without(Part::Spread) { 0.0 } else { SIGMA },
            unit: if without(Part::Widening) { 0.0 } else { softmax.unit() },
            threshold: &threshold,
            opened,
            sum: &mut before,
            tilt: &mut tilt,
        });
        if without(Part::Means) {
            self.weights[..n * PANEL].fill(0.0);
            (before, tilt) = (seen, [0.0; PANEL]);
        }
        set.sum[at..at + lanes].copy_from_slice(&before[..lanes]);
        let along: [f32; PANEL] = core::array::from_fn(|lane| softmax.along(tilt[lane], spread[lane]));
        for (to, q) in self.weights[n * PANEL..].chunks_exact_mut(PANEL).zip(q.chunks_exact(PANEL)) {
            to.iter_mut().zip(q).zip(&along).for_each(|((to, q), along)| *to = q * along);
        }
        let sums = &mut set.sums[at * set.stride..][..PANEL * set.stride];
        for (values, weights, alpha) in [
            (front.mean_values(), &self.weights[..], &alpha),
            (front.cross(), &self.weights[n * PANEL..], &[1.0; PANEL]),
        ] {
            isa.run(AddMeans { lanes, weights, values, alpha, sums, stride: set.stride });
        }
    }

    /// Entries that row `r` opened, after [`add`](Estimates::add).
    pub(super) fn opened(&self, entries: usize, r: usize) -> impl Iterator<Item = usize> {
        let (panel, lane) = (r / PANEL, r % PANEL);
        let bits = &self.opened[panel * entries..][..entries];
        bits.iter().enumerate().filter(move |(_, bits)| **bits >> lane & 1 != 0).map(|(e, _)| e)
    }

    /// Keys of those that are not known.
    pub(super) fn pairs_opened(&self, front: &Front, r: usize) -> u64 {
        self.opened(front.entries(), r).map(|e| u64::from((!front.known_of()[e]).count_ones())).sum()
    }
}
