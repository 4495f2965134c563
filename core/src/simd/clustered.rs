//! Kernels of accelerated attention. Panels of queries (one a lane), or single rows, meet entries, the mean keys that stand for many:
//! scored, screened, weighed. What is opened is for [`opened`](super::opened).

use super::bias::{BiasKeys, Biases, CellBiases, SEGMENT};
use super::online::{self, State};
use super::tile::{self, PANEL, ROWS, Span, Values};
use super::tunables::{CHUNK, WIDEST};
use super::vector::Simd;
use super::{Task, kernels};
use crate::mem::Rows;

/// Keys of a cell.
pub(crate) const CELL: usize = 16;

/// `out[lane] = sqrt(q^T C q)` for the first `lanes` queries of a panel; infinite where that leaves the range of f32.
pub(crate) struct Spread<'a> {
    /// `[dim][PANEL]`.
    pub(crate) q: &'a [f32],
    /// `[dim][dim]`, symmetric.
    pub(crate) covariance: Rows<'a>,
    pub(crate) lanes: usize,
    /// `[dim + KEYS][PANEL]`.
    pub(crate) room: &'a mut [f32],
    pub(crate) out: &'a mut [f32; PANEL],
}

impl Task for Spread<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (dim, vecs) = (self.covariance.rows(), self.lanes.div_ceil(S::LANES));
        let spans = [Span { begin: 0, end: dim }; PANEL];
        let mut max = [0.0; PANEL];
        tile::scores(s, self.q, &self.covariance, 0, dim, &spans[..vecs], self.room, &mut max, |_, _| {});
        assert!(self.q.len() >= dim * PANEL && self.room.len() >= dim * PANEL);
        for v in 0..vecs {
            let mut sum = s.splat(0.0);
            for d in 0..dim {
                let at = d * PANEL + v * S::LANES;
                // SAFETY: dimension d and vector v are inside both.
                sum = unsafe { s.fma(s.load(self.q.as_ptr().add(at)), s.load(self.room.as_ptr().add(at)), sum) };
            }
            // What leaves the range, or is no number for that, is infinite.
            let root = s.sqrt(s.max(sum, s.splat(0.0)));
            let root = s.select_lt(s.abs(sum), s.splat(f32::MAX), root, s.splat(f32::INFINITY));
            // SAFETY: vector v is inside.
            unsafe { s.store(self.out.as_mut_ptr().add(v * S::LANES), root) };
        }
    }
}

/// Logits of all entries' mean keys, and weights `count * exp(logit)`: what the keys behind an entry weigh at least.
pub(crate) struct ScoreEntries<'a, 'b> {
    /// `[dim][PANEL]`.
    pub(crate) q: &'a [f32],
    pub(crate) lanes: usize,
    /// Mean keys.
    pub(crate) keys: Rows<'a>,
    /// Logarithm of the count of an entry, in units of a score; -inf for one that stands for nothing.
    pub(crate) shift: &'a [f32],
    /// Scale and softcap where scores are not plain products.
    pub(crate) logits: Option<(f32, f32)>,
    /// Biases of the keys, if there are some: they count in place of `shift`.
    pub(crate) biases: Option<EntryBiases<'a>>,
    /// Turns scores into powers of two.
    pub(crate) factor: f32,
    /// Out: `[entries + KEYS][PANEL]`.
    pub(crate) scores: &'a mut [f32],
    /// Out: the same.
    pub(crate) weights: &'a mut [f32],
    pub(crate) state: State<'b>,
}

impl Task for ScoreEntries<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (n, vecs) = (self.keys.rows(), self.lanes.div_ceil(S::LANES));
        let spans = [Span { begin: 0, end: n }; PANEL];
        let mut max = [f32::NEG_INFINITY; PANEL];
        tile::scores(s, self.q, &self.keys, 0, n, &spans[..vecs], self.scores, &mut max, |_, _| {});
        if let Some((scale, cap)) = self.logits {
            kernels::logits(s, &mut self.scores[..n * PANEL], scale, cap);
        }
        assert!(self.shift.len() >= n && self.weights.len() >= n * PANEL && self.scores.len() >= n * PANEL);
        if let Some(biases) = &self.biases {
            for lane in 0..self.lanes {
                biases.each(s, lane, |first, cells| {
                    for (i, (most, more)) in cells.most.iter().zip(cells.more).enumerate() {
                        let at = (first + i) * PANEL + lane;
                        self.scores[at] += most;
                        self.weights[at] = more;
                    }
                });
            }
        }
        let mut top = [s.splat(f32::NEG_INFINITY); PANEL];
        for e in 0..n {
            let (shift, gone) = (s.splat(self.shift[e]), self.shift[e] == f32::NEG_INFINITY);
            for (v, top) in top.iter_mut().enumerate().take(vecs) {
                let at = e * PANEL + v * S::LANES;
                // SAFETY: entry e and vector v are inside both.
                unsafe {
                    let from = self.scores.as_mut_ptr().add(at);
                    if gone {
                        s.store(from, s.splat(f32::NEG_INFINITY));
                    }
                    let x = s.load(from);
                    *top = s.max(*top, x);
                    let to = self.weights.as_mut_ptr().add(at);
                    let shift = if self.biases.is_some() { s.load(to) } else { shift };
                    s.store(to, s.add(x, shift));
                }
            }
        }
        for (v, top) in top.iter().enumerate().take(vecs) {
            // SAFETY: vector v is inside.
            unsafe { s.store(max.as_mut_ptr().add(v * S::LANES), *top) };
        }
        online::weights(s, self.weights, n, vecs, self.factor, &max, &mut self.state);
    }
}

/// Biases of the keys behind entries.
#[derive(Clone, Copy)]
pub(crate) struct EntryBiases<'a> {
    /// Those of the rows.
    pub(crate) of: Biases<'a>,
    /// Rows of the keys, and which of them are known, as in [`OpenCells`](super::opened::OpenCells).
    pub(crate) ids: &'a [u32],
    pub(crate) known: &'a [u16],
}

impl EntryBiases<'_> {
    /// What the biases of row `r` come to, for every segment of entries: the first of them, and its cells.
    #[inline(always)]
    fn each<S: Simd>(&self, s: S, r: usize, mut with: impl FnMut(usize, &CellBiases)) {
        let (row, mut biases) = (self.of.row(r), [0.0; SEGMENT]);
        for (nth, (ids, known)) in self.ids.chunks_exact(SEGMENT).zip(self.known.chunks_exact(CELL)).enumerate() {
            // Keys of a segment are consecutive where there are biases.
            let begin = ids[0] as usize / SEGMENT * SEGMENT;
            let end = (begin + SEGMENT).min(row.keys());
            row.read(s, BiasKeys::Run(begin), &mut biases[..end - begin]);
            with(nth * CELL, &CellBiases::new(s, &biases, ids, known));
        }
    }
}

/// Which cells a row opens: those whose mean logit and `sigma` deviations of it reach the row's threshold. The weights of the others
/// become estimates of their mass, `count * exp(logit) * cosh(deviation)`, as if half of a cell's keys lay a deviation above its mean and
/// half below; those of the opened become 0.
pub(crate) struct Screen<'a> {
    pub(crate) lanes: usize,
    /// `[entries][PANEL]`, as [`ScoreEntries`] left them.
    pub(crate) scores: &'a [f32],
    pub(crate) weights: &'a mut [f32],
    /// Root mean square distance of an entry's keys from their mean, relative to that of all.
    pub(crate) radius: &'a [f32],
    /// Deviation of a row's scores of keys from those of their means, on average.
    pub(crate) spread: &'a [f32; PANEL],
    pub(crate) sigma: f32,
    /// Logit per unit of a score.
    pub(crate) unit: f32,
    /// In units of a score.
    pub(crate) threshold: &'a [f32; PANEL],
    /// Out: which lanes open an entry.
    pub(crate) opened: &'a mut [u64],
    /// Adds the weights that are left.
    pub(crate) sum: &'a mut [f32; PANEL],
    /// Adds, in deviations of a row's scores, how much more the upper halves weigh than the lower: `count * exp(logit) * radius *
    /// sinh(deviation)`.
    pub(crate) tilt: &'a mut [f32; PANEL],
}

impl Task for Screen<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (n, vecs) = (self.opened.len(), self.lanes.div_ceil(S::LANES));
        assert!(vecs * S::LANES <= PANEL && self.radius.len() >= n);
        assert!(self.scores.len() >= n * PANEL && self.weights.len() >= n * PANEL);
        let live = if self.lanes == 64 { u64::MAX } else { (1 << self.lanes) - 1 };
        self.opened.fill(0);
        for v in 0..vecs {
            let lane = v * S::LANES;
            // SAFETY: vector v is inside a panel, entry e inside both arrays.
            unsafe {
                let spread = s.load(self.spread.as_ptr().add(lane));
                let threshold = s.load(self.threshold.as_ptr().add(lane));
                let mut sum = s.load(self.sum.as_ptr().add(lane));
                let mut tilt = s.load(self.tilt.as_ptr().add(lane));
                for e in 0..n {
                    let at = e * PANEL + lane;
                    let radius = s.splat(self.radius[e]);
                    let deviation = s.mul(spread, radius);
                    let reach = s.fma(deviation, s.splat(self.sigma), s.load(self.scores.as_ptr().add(at)));
                    let x = s.min(s.mul(deviation, s.splat(self.unit)), s.splat(WIDEST));
                    let to = self.weights.as_mut_ptr().add(at);
                    let closed = s.select_lt(threshold, reach, s.splat(0.0), s.load(to));
                    let weight = s.mul(closed, cosh(s, x));
                    s.store(to, weight);
                    sum = s.add(sum, weight);
                    tilt = s.fma(s.mul(closed, radius), sinh(s, x), tilt);
                    self.opened[e] |= (u64::from(s.lt_bits(threshold, reach)) << lane) & live;
                }
                s.store(self.sum.as_mut_ptr().add(lane), sum);
                s.store(self.tilt.as_mut_ptr().add(lane), tilt);
            }
        }
    }
}

/// Adds weighted mean values to the sums of a panel's rows.
pub(crate) struct AddMeans<'a> {
    pub(crate) lanes: usize,
    /// `[entries][PANEL]`.
    pub(crate) weights: &'a [f32],
    /// Whole vectors.
    pub(crate) values: Rows<'a>,
    /// Factors of what was summed before.
    pub(crate) alpha: &'a [f32; PANEL],
    pub(crate) sums: &'a mut [f32],
    pub(crate) stride: usize,
}

impl Task for AddMeans<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (n, cols) = (self.values.rows(), self.values.cols());
        let Some(values) = Values::in_place::<S>(self.values) else { unreachable!("mean values are whole vectors") };
        for lo in (0..n).step_by(CHUNK) {
            let count = (n - lo).min(CHUNK);
            let mut v = 0;
            while v < cols.div_ceil(S::LANES) {
                for r in (0..self.lanes).step_by(ROWS) {
                    let alpha = (lo == 0).then(|| &self.alpha[r..]);
                    let (p, sums) = (&self.weights[lo * PANEL + r..], &mut self.sums[r * self.stride..]);
                    tile::accumulate(s, p, values, v, lo, count, alpha, sums, self.stride);
                }
                v += tile::group::<S>(cols, v);
            }
        }
    }
}

/// Scores of one row for all entries, one a lane: what [`ScoreEntries`] does for a panel after its products.
pub(crate) struct WeighEntries<'a> {
    /// Inner products with mean keys; out: logits.
    pub(crate) scores: &'a mut [f32],
    pub(crate) shift: &'a [f32],
    pub(crate) logits: Option<(f32, f32)>,
    /// Biases, and the row that they are for.
    pub(crate) biases: Option<(EntryBiases<'a>, usize)>,
    pub(crate) factor: f32,
    /// Out: `count * exp(logit)`.
    pub(crate) weights: &'a mut [f32],
    pub(crate) max: &'a mut f32,
    pub(crate) sum: &'a mut f32,
}

impl Task for WeighEntries<'_> {
    /// Factor of what was summed before.
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let n = self.shift.len();
        assert!(n.is_multiple_of(CELL) && self.scores.len() >= n && self.weights.len() >= n);
        if let Some((scale, cap)) = self.logits {
            kernels::logits(s, &mut self.scores[..n], scale, cap);
        }
        if let Some((biases, r)) = &self.biases {
            biases.each(s, *r, |first, cells| {
                self.scores[first..].iter_mut().zip(&cells.most).for_each(|(to, most)| *to += most);
                self.weights[first..][..CELL].copy_from_slice(&cells.more);
            });
        }
        let none = s.splat(f32::NEG_INFINITY);
        let mut top = none;
        for e in (0..n).step_by(S::LANES) {
            // SAFETY: a vector from entry e on is inside all: they are whole cells of entries.
            unsafe {
                let (at, shift) = (self.scores.as_mut_ptr().add(e), s.load(self.shift.as_ptr().add(e)));
                let x = s.select_lt(shift, s.splat(f32::MIN), none, s.load(at));
                s.store(at, x);
                top = s.max(top, x);
                let to = self.weights.as_mut_ptr().add(e);
                let shift = if self.biases.is_some() { s.load(to) } else { shift };
                s.store(to, s.add(x, shift));
            }
        }
        let (top, before) = (s.reduce_max(top), *self.max);
        let mut alpha = 1.0;
        if top > before {
            alpha = s.reduce_max(s.exp2_scaled(s.splat(before - top), s.splat(self.factor)));
            *self.max = top;
        }
        let max = if *self.max > f32::NEG_INFINITY { *self.max } else { 0.0 };
        *self.sum = *self.sum * alpha + kernels::exp2_sum(s, &mut self.weights[..n], self.factor, max);
        alpha
    }
}

/// Marks the entries that one row opens, as [`Screen`] does for a panel.
pub(crate) struct MarkEntries<'a> {
    pub(crate) scores: &'a [f32],
    pub(crate) radius: &'a [f32],
    pub(crate) spread: f32,
    pub(crate) sigma: f32,
    pub(crate) threshold: f32,
    /// Set where an entry is opened.
    pub(crate) opened: &'a mut [u8],
}

impl Task for MarkEntries<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.opened.len();
        assert!(n.is_multiple_of(CELL) && self.scores.len() >= n && self.radius.len() >= n);
        let (reach, threshold) = (s.splat(self.spread * self.sigma), s.splat(self.threshold));
        for e in (0..n).step_by(S::LANES) {
            // SAFETY: a vector from entry e on is inside both.
            let x = unsafe { s.fma(s.load(self.radius.as_ptr().add(e)), reach, s.load(self.scores.as_ptr().add(e))) };
            let mut bits = s.lt_bits(threshold, x);
            while bits != 0 {
                self.opened[e + bits.trailing_zeros() as usize] = 1;
                bits &= bits - 1;
            }
        }
    }
}

/// Turns the weights of the entries that nobody opened into estimates, and those of the others into 0; returns the sum and the tilt
/// of [`Screen`].
pub(crate) struct EstimateEntries<'a> {
    pub(crate) weights: &'a mut [f32],
    pub(crate) radius: &'a [f32],
    /// Deviation of a logit for an entry of radius 1.
    pub(crate) deviation: f32,
    /// 0 where an entry is opened, else 1.
    pub(crate) closed: &'a [f32],
}

impl Task for EstimateEntries<'_> {
    type Out = [f32; 2];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; 2] {
        let n = self.closed.len();
        assert!(n.is_multiple_of(CELL) && self.weights.len() >= n && self.radius.len() >= n);
        let (deviation, mut sum, mut tilt) = (s.splat(self.deviation), s.splat(0.0), s.splat(0.0));
        for e in (0..n).step_by(S::LANES) {
            // SAFETY: a vector from entry e on is inside all.
            unsafe {
                let radius = s.load(self.radius.as_ptr().add(e));
                let x = s.min(s.mul(radius, deviation), s.splat(WIDEST));
                let at = self.weights.as_mut_ptr().add(e);
                let closed = s.mul(s.load(at), s.load(self.closed.as_ptr().add(e)));
                let weight = s.mul(closed, cosh(s, x));
                s.store(at, weight);
                sum = s.add(sum, weight);
                tilt = s.fma(s.mul(closed, radius), sinh(s, x), tilt);
            }
        }
        [s.reduce_add(sum), s.reduce_add(tilt)]
    }
}

/// Hyperbolic cosine by its series: within 7 % at the widest.
#[inline(always)]
fn cosh<S: Simd>(s: S, x: S::V) -> S::V {
    let y = s.mul(x, x);
    let mut cosh = s.fma(y, s.splat(1.0 / 720.0), s.splat(1.0 / 24.0));
    cosh = s.fma(y, cosh, s.splat(0.5));
    s.fma(y, cosh, s.splat(1.0))
}

/// Hyperbolic sine by its series: never above [`cosh`], within 15 % at the widest.
#[inline(always)]
fn sinh<S: Simd>(s: S, x: S::V) -> S::V {
    let y = s.mul(x, x);
    let sinh = s.fma(y, s.splat(1.0 / 120.0), s.splat(1.0 / 6.0));
    s.mul(x, s.fma(y, sinh, s.splat(1.0)))
}
