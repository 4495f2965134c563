//! A few rows at a time, as in decoding: how they attend by what a session keeps of a head.

use super::super::dense::decode;
use super::super::dense::exact::{self as dense, Head};
use super::super::dense::{FAR, FEW, MOST};
use super::super::stats::AttentionStats;
use super::super::{Mask, Masking};
use super::ablation::{Part, without};
use super::clusters::Clusters;
use super::control::{Verdict, Why};
use super::engine::{Block, Scored, Watch};
use super::estimate::Softmax;
use super::front::Front;
use super::policy::{
    CELL, CHECK_EVERY, CHECK_SOON, ENTRY_COST, GATHERED, HEAVY, HIDING, KNOWN, OPENED_COST, PAYS, SEGMENT,
    SEGMENT_CELLS, SIGMA, STEP_CUT,
};
use crate::mem::{Buf, Maker, Rows, Tensor};
use crate::simd;
use crate::simd::bias::ListBiases;
use crate::simd::clustered::{EstimateEntries, MarkEntries, WeighEntries};
use crate::simd::decode::{Lies, Weights};
use crate::simd::gather::Gather;
use crate::simd::tile::Span;

/// Work memory of few rows.
pub struct FewWork {
    dense: dense::Work,
    /// Scores and weights of entries, `[row][entries and a step more]`.
    scores: Buf<f32>,
    weights: Buf<f32>,
    /// Which entries are opened, and 0 for them, 1 for the others.
    opened: Buf<u8>,
    closed: Buf<f32>,
    /// Keys of opened cells.
    ids: Buf<u32>,
    keys: Buf<f32>,
    values: Buf<f32>,
    /// Biases of known or opened keys, `[row][key]`.
    biases: Buf<f32>,
    row: Buf<f32>,
}

impl FewWork {
    /// For `rows` rows of `group` heads and `keys` keys.
    pub(crate) fn made(m: &mut Maker<'_>, dims: [usize; 2], group: usize, rows: usize, keys: usize) -> Self {
        let ([dim_k, dim_v], entries) = (dims, keys / SEGMENT * SEGMENT_CELLS);
        let all = (rows * group).min(MOST);
        let scores = (entries + CELL.max(dim_k)).max(dim_v) * all;
        FewWork {
            dense: dense::Work::made(m, dim_k, dim_v, rows, false),
            scores: m.filled(scores, 0.0),
            weights: m.filled(scores, 0.0),
            opened: m.filled(entries, 0),
            closed: m.filled(entries, 1.0),
            ids: m.room(GATHERED),
            keys: m.filled(GATHERED * dim_k, 0.0),
            values: m.filled(GATHERED * dim_v, 0.0),
            biases: m.filled(KNOWN.max(GATHERED) * all, 0.0),
            row: m.filled(dim_k.max(dim_v), 0.0),
        }
    }
}

/// Consecutive heads that are attended together: the first, how many, and how their scores become logits.
#[derive(Clone, Copy)]
struct Together {
    first: usize,
    heads: usize,
    softmax: Softmax,
    /// Weight of a key that cells are opened for.
    needle: f32,
}

impl Block<'_> {
    /// Whether few rows may use all entries: each of them sees every complete segment whole, in all heads.
    fn sees_all(&self, clusters: &Clusters) -> bool {
        let end = clusters.shown * SEGMENT;
        let mut seen = (0..self.n).map(|i| self.call.masking.visible(self.batch, self.begin + i));
        self.call.masking.keep(self.batch).is_none()
            && clusters.shown > 0
            && clusters.covers
            && seen.all(|seen| seen.begin <= seen.sinks && seen.end >= end)
            && (0..end).step_by(SEGMENT).map(|first| self.biases_for(first)).all(|[least, most]| most - least < HIDING)
    }

    /// Attends few rows of all heads by what the session keeps, or exactly.
    pub(super) fn attend_few(
        &self,
        clusters: &Clusters,
        work: &mut FewWork,
        stats: &mut AttentionStats,
        watch: &mut Option<Watch<'_>>,
    ) {
        if !self.sees_all(clusters) {
            return self.few_exactly(Why::Short, &mut work.dense, stats, watch.as_mut());
        }
        if let Some(why) = clusters.rests() {
            return self.few_exactly(why, &mut work.dense, stats, watch.as_mut());
        }
        let softmax = self.softmax();
        // A row in so many is attended exactly, too, after a prompt sooner, and all until something was measured.
        let soon = CHECK_SOON.contains(&clusters.since);
        let check = !clusters.measured || soon || (self.keys.rows() + self.first * 37) % CHECK_EVERY < self.n;
        let (visible, queries) = (self.visible_pairs(), (self.n * self.group) as u64);
        let (far, known) = ((clusters.shown * SEGMENT) as u64, clusters.front.known.len() as u64);
        let most = (MOST / self.n).max(1);
        let mut control = clusters.control();
        if check {
            control.relax(self.call.options.tolerance);
        }
        let opened = loop {
            let (mut squares, mut opened) = ([[0.0; 2]; FEW], 0);
            for first in (0..self.group).step_by(most) {
                let of = Together { first, heads: (self.group - first).min(most), softmax, needle: control.needle() };
                opened += self.approximate_few(of, clusters, work, watch.as_mut().filter(|_| !check));
                let state = &work.dense.state[work.dense.sizes.rows..][..of.heads * self.n];
                if state.iter().any(|sum| !sum.is_normal()) {
                    // Rounding has put the mean of some keys above all of them: nothing is left of the weights.
                    return self.few_exactly(Why::Strict, &mut work.dense, stats, None);
                }
                self.write_few(of, check, &mut work.dense);
                if check {
                    self.check_few(of, clusters, work, &mut squares);
                }
            }
            if !check {
                break opened;
            }
            let verdict = control.judge(&squares[..self.n], self.call.options.tolerance);
            if verdict == Verdict::Tighten {
                continue;
            }
            let entries = clusters.front.entries() as u64;
            let cost = ENTRY_COST * (entries * queries) as f32 + OPENED_COST * opened as f32;
            let cost = cost + (known * queries + visible - far * queries) as f32;
            let pays = !self.auto || cost <= PAYS * visible as f32;
            let why = (verdict == Verdict::Fail).then_some(Why::Strict).or((!pays).then_some(Why::Costly));
            clusters.memo.control(&control, why);
            squares[..self.n].iter().for_each(|&[error, output]| stats.measured.note(error, output));
            if let Some(watch) = watch {
                (0..self.n * self.group).for_each(|r| watch(self.first + r / self.n, r % self.n, Scored::All));
            }
            break opened;
        };
        stats.rows += queries;
        stats.pairs_dense += visible;
        stats.known += known * queries;
        stats.cells_opened += opened / CELL as u64;
        stats.pairs += if check { visible } else { visible - (far - known) * queries + opened };
    }

    /// Rows of some heads by near keys, known keys and entries, into the sums of the work memory. Returns the pairs of rows and keys
    /// of opened cells.
    fn approximate_few(
        &self,
        of: Together,
        clusters: &Clusters,
        work: &mut FewWork,
        mut watch: Option<&mut Watch<'_>>,
    ) -> u64 {
        let (isa, head, n, front, memo) = (self.call.isa, self.head(of.first), self.n, &clusters.front, &clusters.memo);
        let rows = of.heads * n;
        let end = clusters.shown * SEGMENT;
        decode::start(isa, &head, of.heads, &self.call.q, n, &mut work.dense);
        if end < self.keys.rows() {
            decode::add(isa, &head, of.heads, n, Span { begin: end, end: self.keys.rows() }, None, &mut work.dense);
        }
        let (k, v) = front.known_rows();
        let known = k.rows();
        if known > 0 {
            let masking = self.mask_of(of, &front.known, &mut work.biases);
            let head = Head { k, v, masking: &masking, batch: 0, head: 0, ..head };
            let mut look = |_: usize, first: usize, weights: &[f32], sum: f32| {
                let heavy = (first..).zip(weights).filter(|(_, weight)| **weight >= STEP_CUT * sum);
                heavy.for_each(|(i, _)| memo.still_heavy(i));
            };
            decode::add(isa, &head, of.heads, n, Span { begin: 0, end: known }, Some(&mut look), &mut work.dense);
        }
        let alpha = self.screen_few(of, clusters, work);
        self.add_means_few(of, front, &alpha, work);
        // Keys of opened cells, for all rows alike.
        let (mut entry, mut opened) = (0, 0);
        while front.list_opened(&work.opened, &mut entry, &mut work.ids) {
            let count = work.ids.len();
            opened += (count * rows) as u64;
            let (dim_k, dim_v) = (self.keys.cols(), self.values.cols());
            isa.run(Gather { from: &self.keys, ids: &work.ids, stride: dim_k, out: &mut work.keys });
            isa.run(Gather { from: &self.values, ids: &work.ids, stride: dim_v, out: &mut work.values });
            let (Ok(k), Ok(v)) =
                (Rows::new(&work.keys[..count * dim_k], dim_k), Rows::new(&work.values[..count * dim_v], dim_v))
            else {
                unreachable!("whole rows")
            };
            let masking = self.mask_of(of, &work.ids, &mut work.biases);
            let head = Head { k, v, masking: &masking, batch: 0, head: 0, ..head };
            let ids = &work.ids;
            let mut look = |_: usize, first: usize, weights: &[f32], sum: f32| {
                for (&key, &weight) in ids[first..].iter().zip(weights).filter(|(_, weight)| **weight >= STEP_CUT * sum)
                {
                    memo.heavy(key, weight / sum);
                }
            };
            decode::add(isa, &head, of.heads, n, Span { begin: 0, end: count }, Some(&mut look), &mut work.dense);
            if let Some(watch) = &mut watch {
                (0..rows).for_each(|r| watch(self.first + of.first + r / n, r % n, Scored::Keys(ids)));
            }
        }
        if let Some(watch) = &mut watch {
            (0..rows).for_each(|r| watch(self.first + of.first + r / n, r % n, Scored::Keys(&front.known)));
        }
        opened
    }

    /// Query head and query of every row.
    fn queries(&self, of: Together) -> [[u32; 2]; MOST] {
        core::array::from_fn(|r| [self.first + of.first + r / self.n, self.begin + r % self.n].map(|x| x as u32))
    }

    /// What rows see of gathered keys: all of them, by their biases.
    fn mask_of<'m>(&self, of: Together, ids: &[u32], room: &'m mut [f32]) -> Masking<'m> {
        let (rows, shape) = (of.heads * self.n, [1, of.heads, self.n, ids.len()]);
        let mask = self.biases().map_or(Mask::None, |biases| {
            let (queries, room) = (self.queries(of), &mut room[..rows * ids.len()]);
            for (r, out) in room.chunks_exact_mut(ids.len()).enumerate() {
                self.call.isa.run(ListBiases { of: biases.of(&queries).row(r), keys: ids, out });
            }
            Tensor::new(room, shape).map_or(Mask::None, Mask::Additive)
        });
        Masking::new(mask, 0, 0, shape, true).unwrap_or_else(|_| unreachable!("of this shape"))
    }

    /// Marks what rows open, and weighs means for the rest. Returns the factors of what was summed before.
    fn screen_few(&self, of: Together, clusters: &Clusters, work: &mut FewWork) -> [f32; MOST] {
        let (isa, front, rows) = (self.call.isa, &clusters.front, of.heads * self.n);
        let (entries, dim) = (front.entries(), self.keys.cols());
        let stride = entries + CELL.max(dim);
        let FewWork { dense, scores, weights, opened, closed, row, .. } = work;
        let dense::Work { q, state, sizes, .. } = dense;
        let (max, sum) = state.split_at_mut(sizes.rows);
        simd::decode::dots(isa, &front.mean_keys(), q, rows, scores, stride, self.lies(front));
        opened.fill(0);
        let (biases, queries) = (self.biases(), self.queries(of));
        let mut alpha = [1.0; MOST];
        let (mut before, mut spreads) = ([0.0; MOST], [0.0; MOST]);
        for r in 0..rows {
            let scores = &mut scores[r * stride..][..stride];
            before[r] = sum[r];
            alpha[r] = isa.run(WeighEntries {
                scores,
                shift: front.shift(),
                logits: of.softmax.logits,
                biases: biases.map(|biases| (front.biases(biases.of(&queries)), r)),
                factor: of.softmax.factor,
                weights: &mut weights[r * stride..][..stride],
                max: &mut max[r],
                sum: &mut sum[r],
            });
            let q = &q[r * dim..][..dim];
            isa.dots(front.covariance_data(), dim, q, &mut row[..dim]);
            let scale = of.softmax.logits.map_or(1.0, |(scale, _)| scale.abs());
            let square = isa.dot(q, &row[..dim]);
            // What leaves the range, or is no number for that, is infinite.
            let spread = if square.abs() < f32::MAX { libm::sqrtf(square.max(0.0)) * scale } else { f32::INFINITY };
            spreads[r] = spread;
            let threshold = max[r] + libm::log2f(sum[r] * of.needle.min(HEAVY)) / of.softmax.factor;
            isa.run(MarkEntries {
                scores,
                radius: front.radius(),
                spread,
                sigma: if without(Part::Spread) { 0.0 } else { SIGMA },
                threshold,
                opened: &mut opened[..entries],
            });
        }
        for (closed, &opened) in closed.iter_mut().zip(opened.iter()) {
            *closed = if without(Part::Means) { 0.0 } else { 1.0 - f32::from(opened) };
        }
        for r in 0..rows {
            let weights = &mut weights[r * stride..][..stride];
            let unit = if without(Part::Widening) { 0.0 } else { of.softmax.unit() };
            let [left, tilt] = isa.run(EstimateEntries {
                weights,
                radius: front.radius(),
                deviation: spreads[r] * unit,
                closed: &closed[..entries],
            });
            sum[r] = before[r] * alpha[r] + left;
            let along = of.softmax.along(tilt, spreads[r]);
            weights[entries..][..dim].iter_mut().zip(&q[r * dim..]).for_each(|(to, q)| *to = q * along);
        }
        alpha
    }

    /// Where entries lie.
    fn lies(&self, front: &Front) -> Lies {
        let bytes = |rows: Rows<'_>| rows.rows() * rows.stride();
        Lies::new(bytes(front.mean_keys()) + bytes(front.mean_values()) >= FAR)
    }

    /// Adds the means of closed cells, by their weights.
    fn add_means_few(&self, of: Together, front: &Front, alpha: &[f32; MOST], work: &mut FewWork) {
        let (rows, entries) = (of.heads * self.n, front.entries());
        let stride = entries + CELL.max(self.keys.cols());
        let dense::Work { sums, sizes, .. } = &mut work.dense;
        for (values, p, alpha, lies) in [
            (front.mean_values(), &work.weights[..], alpha, self.lies(front)),
            (front.cross(), &work.weights[entries..], &[1.0; MOST], Lies::Cached),
        ] {
            let weights = Weights { p, stride, alpha };
            simd::decode::accumulate(self.call.isa, &values, &weights, rows, sums, sizes.value_stride, lies);
        }
    }

    /// Writes outputs and log-sum-exps of some heads, or only finishes them where the exact ones will be written.
    fn write_few(&self, of: Together, check: bool, dense: &mut dense::Work) {
        let head = self.head(of.first);
        for r in 0..of.heads * self.n {
            let log = decode::output(self.call.isa, &head, r, dense);
            if check {
                continue;
            }
            let (h, i) = (self.first + of.first + r / self.n, self.begin + r % self.n);
            self.call.out.rows(self.batch, h, i, 1).write(0, dense.sum(r, self.values.cols()));
            if let Some(lse) = self.call.lse {
                lse.rows(self.batch, h, i, 1).write(0, &[log]);
            }
        }
    }

    /// Attends rows that have been attended approximately exactly, too: those outputs are written, and what the others err by is added.
    fn check_few(&self, of: Together, clusters: &Clusters, work: &mut FewWork, squares: &mut [[f32; 2]]) {
        let (isa, head, n, dim_v) = (self.call.isa, self.head(of.first), self.n, self.values.cols());
        let rows = of.heads * n;
        // Outputs by entries move to where weights were.
        let FewWork { dense, weights, .. } = work;
        let kept = &mut weights[..rows * dim_v];
        for r in 0..rows {
            kept[r * dim_v..][..dim_v].copy_from_slice(dense.sum(r, dim_v));
        }
        decode::start(isa, &head, of.heads, &self.call.q, n, dense);
        let mut look = |_: usize, first: usize, weights: &[f32], sum: f32| {
            for (key, &weight) in (first as u32..).zip(weights) {
                if weight >= STEP_CUT * sum {
                    clusters.memo.heavy(key, weight / sum);
                }
            }
        };
        decode::add(isa, &head, of.heads, n, Span { begin: 0, end: self.keys.rows() }, Some(&mut look), dense);
        self.write_few(of, false, dense);
        for r in 0..rows {
            let (have, want) = (&kept[r * dim_v..][..dim_v], dense.sum(r, dim_v));
            squares[r % n][0] += isa.sq_dist(have, want);
            squares[r % n][1] += isa.norm2(want);
        }
    }

    /// Attends few rows of all heads exactly.
    fn few_exactly(&self, why: Why, work: &mut dense::Work, stats: &mut AttentionStats, watch: Option<&mut Watch<'_>>) {
        // Heads read keys and values together, as many as there is room for.
        let most = (MOST / self.n).max(1);
        for h in (0..self.group).step_by(most) {
            let heads = (self.group - h).min(most);
            let pairs = decode::attend_group(self.call, &self.head(h), heads, work);
            stats.add_exact(pairs);
        }
        let queries = (self.n * self.group) as u64;
        stats.rows += queries;
        why.count(queries, &mut stats.exact_rows);
        if let Some(watch) = watch {
            (0..self.n * self.group).for_each(|r| watch(self.first + r / self.n, r % self.n, Scored::All));
        }
    }
}
