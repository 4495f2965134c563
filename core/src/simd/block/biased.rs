//! Biases of a block's keys: what those of a child come to for a row, and estimates and exact scores with them.
//!
//! Of a child's biases for a row two numbers are kept: `top`, the largest, in powers of two, and `share`, the mean of
//! `2^(bias - top)`. The child's mass is that of its keys without biases times `2^top * share`: right if a key's bias and its
//! product with the query have nothing to do with each other, whatever the bias where it is the same for all.

use super::choose::{center, twice_cosh};
use super::total::SURE;
use super::{BLOCK, Children, LOWEST, Limits, MOST, SPREAD, capped, check};
use crate::mem::{Dtype, Rows, Tensor};
use crate::simd::Task;
use crate::simd::element::{Element, F16, F32};
use crate::simd::vector::Simd;
use core::f32::consts::{LN_2, LOG2_E};
use half::f16;

/// Biases so far below a row's largest, in natural units, stand for nothing: masks are made from large negative numbers too.
pub(crate) const FAR: f32 = 1000.0;

/// Biases beyond, in powers of two, leave no room for logits.
const LARGEST: f32 = 1e6;

/// Spread of the biases of a child, in natural units, for every part that their largest outdoes their mean by: a few keys
/// that spread evenly about it have about so much.
const SPREAD_OF: f32 = 0.58;

/// Bytes by which reading all biases is ahead of itself.
const STREAM: usize = 4096;

/// Rows that are asked for ahead.
const AHEAD: usize = 2;

/// What the rows of a block find in a segment, as bits.
pub(crate) mod found {
    /// Some row sees all keys.
    pub(crate) const ALL: u8 = 1;
    /// Some row sees none.
    pub(crate) const NONE: u8 = 2;
    /// Some row sees none that weighs anything.
    pub(crate) const NOTHING: u8 = 4;
    /// Some row sees a part of the keys, or biases that cells cannot take.
    pub(crate) const PART: u8 = 8;
    /// Some bias is not 0.
    pub(crate) const BIASED: u8 = 16;
}

/// Largest biases of children, in powers of two, and means of the weights relative to them: `[row][BLOCK]` each.
#[derive(Clone, Copy)]
pub(crate) struct Lifts<'a> {
    pub(crate) top: &'a [f32],
    pub(crate) share: &'a [f32],
}

/// The same, to be written.
pub(crate) struct LiftsMut<'a> {
    pub(crate) top: &'a mut [f32],
    pub(crate) share: &'a mut [f32],
}

/// Biases of a block's queries: query `h * n + i` has row `begin + i` of head `head + h`, or of the only head.
#[derive(Clone, Copy)]
pub(crate) struct Biases<'a> {
    pub(crate) of: Tensor<'a>,
    pub(crate) batch: usize,
    pub(crate) head: usize,
    pub(crate) begin: usize,
    pub(crate) n: usize,
}

/// Elements as they are stored, and rows of them.
trait Bias: Element {
    const ZERO: Self::T;
    fn row<'a>(rows: &Rows<'a>, i: usize) -> &'a [Self::T];
    fn wide(x: Self::T) -> f32;
}

impl Bias for F32 {
    const ZERO: f32 = 0.0;
    #[inline(always)]
    fn row<'a>(rows: &Rows<'a>, i: usize) -> &'a [f32] {
        rows.row_f32(i).unwrap_or_default()
    }
    #[inline(always)]
    fn wide(x: f32) -> f32 {
        x
    }
}

impl Bias for F16 {
    const ZERO: u16 = 0;
    #[inline(always)]
    fn row<'a>(rows: &Rows<'a>, i: usize) -> &'a [u16] {
        rows.row_bits(i).unwrap_or_default()
    }
    #[inline(always)]
    fn wide(x: u16) -> f32 {
        f16::from_bits(x).to_f32()
    }
}

impl<'a> Biases<'a> {
    /// Whether all heads have the same.
    pub(crate) fn shared(&self) -> bool {
        self.of.shape()[1] == 1
    }

    /// Rows of head `h` of the block.
    pub(crate) fn rows_of(&self, h: usize) -> Rows<'a> {
        let batch = if self.of.shape()[0] == 1 { 0 } else { self.batch };
        self.of.head(batch, if self.shared() { 0 } else { self.head + h })
    }

    /// Reads one query after the other: those of a head mostly follow each other.
    fn reader<E: Bias>(self) -> Reader<'a, E> {
        Reader { of: self, head: 0, rows: self.rows_of(0), element: core::marker::PhantomData }
    }
}

struct Reader<'a, E> {
    of: Biases<'a>,
    head: usize,
    rows: Rows<'a>,
    element: core::marker::PhantomData<E>,
}

impl<'a, E: Bias> Reader<'a, E> {
    #[inline(always)]
    fn row(&mut self, query: u16) -> &'a [E::T] {
        let (h, i) = (u32::from(query) / self.of.n as u32, u32::from(query) % self.of.n as u32);
        if h as usize != self.head {
            self.head = h as usize;
            self.rows = self.of.rows_of(self.head);
        }
        E::row(&self.rows, self.of.begin + i as usize)
    }
}

/// Largest and smallest of numbers that are at least a vector.
#[inline(always)]
fn extremes<E: Element, S: Simd>(s: S, x: &[E::T]) -> [f32; 2] {
    assert!(x.len() >= S::LANES);
    let load = |at: usize| {
        assert!(at <= x.len() - S::LANES);
        // SAFETY: a vector from there on is inside.
        unsafe { E::load(s, x.as_ptr().add(at)) }
    };
    let first = load(0);
    let (mut high, mut low) = ([first; 2], [first; 2]);
    let mut at = 0;
    while at + 2 * S::LANES <= x.len() {
        // Nothing else is done while biases come from memory.
        for line in (0..2 * S::LANES * size_of::<E::T>()).step_by(64) {
            s.prefetch(x.as_ptr().wrapping_add(at).cast::<u8>().wrapping_add(STREAM + line));
        }
        for (k, (high, low)) in high.iter_mut().zip(&mut low).enumerate() {
            let v = load(at + k * S::LANES);
            *high = s.max(*high, v);
            *low = s.min(*low, v);
        }
        at += 2 * S::LANES;
    }
    for at in [at, x.len() - S::LANES].into_iter().filter(|&last| at < x.len() && last + S::LANES <= x.len()) {
        // The last vector may overlap the one before.
        let v = load(at);
        (high[0], low[0]) = (s.max(high[0], v), s.min(low[0], v));
    }
    let (high, low) = (s.max(high[0], high[1]), s.min(low[0], low[1]));
    [s.reduce_max(high), -s.reduce_max(s.sub(s.splat(0.0), low))]
}

/// Sum of `e^(x - top)`, and how many numbers are not far below `top`.
#[inline(always)]
fn weights<E: Bias, S: Simd>(s: S, x: &[E::T], top: f32) -> (f32, usize) {
    let (from, mut sum, mut near) = (s.splat(top), s.splat(0.0), 0);
    let mut at = 0;
    while at + S::LANES <= x.len() {
        // SAFETY: a vector from `at` on is inside.
        let d = s.sub(unsafe { E::load(s, x.as_ptr().add(at)) }, from);
        sum = s.add(sum, s.exp2(s.mul(d, s.splat(LOG2_E))));
        near += s.lt_bits(s.splat(-FAR), d).count_ones();
        at += S::LANES;
    }
    let mut sum = s.reduce_add(sum);
    for &x in &x[at..] {
        let d = E::wide(x) - top;
        sum += libm::expf(d);
        near += u32::from(d > -FAR);
    }
    (sum, near as usize)
}

/// What one row finds in every segment.
pub(crate) struct Survey<'a> {
    pub(crate) biases: Biases<'a>,
    pub(crate) query: u16,
    /// First and last key of every segment, and all of its keys, `[segment][segment's keys]`.
    pub(crate) ranges: &'a [[u32; 2]],
    pub(crate) ids: &'a [u32],
    /// Bits are added; segments with part of their keys visible are passed over.
    pub(crate) found: &'a mut [u8],
    /// `[block of segments][BLOCK]`, blocks so many numbers apart.
    pub(crate) lifts: LiftsMut<'a>,
    pub(crate) step: usize,
}

impl Task for Survey<'_> {
    /// The largest bias in these segments.
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        match self.biases.of.dtype() {
            Dtype::F16 => self.read::<F16, S>(s),
            _ => self.read::<F32, S>(s),
        }
    }
}

impl Survey<'_> {
    #[inline(always)]
    fn read<E: Bias, S: Simd>(self, s: S) -> f32 {
        let Survey { biases, query, ranges, ids, found, lifts, step } = self;
        let row = biases.reader::<E>().row(query);
        let keys = ids.len() / ranges.len().max(1);
        let place = |segment: usize| segment / BLOCK * step + segment % BLOCK;
        let part = |segment: usize| {
            let [low, high] = ranges[segment].map(|x| x as usize);
            &row[low..=high]
        };
        let mut best = f32::NEG_INFINITY;
        for segment in (0..ranges.len()).filter(|&i| found[i] & found::PART == 0) {
            let [top, low] = extremes::<E, S>(s, part(segment));
            best = best.max(top);
            (lifts.top[place(segment)], lifts.share[place(segment)]) = (top, low);
        }
        for (segment, bits) in found.iter_mut().enumerate().filter(|(_, bits)| **bits & found::PART == 0) {
            let at = place(segment);
            let (top, low) = (lifts.top[at], lifts.share[at]);
            let part = part(segment);
            // What a row sees nothing of counts for nothing, in one way or the other.
            (lifts.top[at], lifts.share[at]) = (LOWEST, 1.0);
            if top == f32::NEG_INFINITY {
                *bits |= found::NONE;
                continue;
            }
            if top < best - FAR {
                *bits |= found::NOTHING;
                continue;
            }
            let share = if part.len() == keys && top == low {
                Some(1.0)
            } else {
                let (sum, near) = weights::<E, S>(s, part, top);
                // Where other keys lie in between, it must be those that are seen.
                let seen = near == keys && (part.len() == keys || sees::<E>(row, &ids[segment * keys..][..keys], top));
                seen.then_some(sum / keys as f32)
            };
            match share.filter(|_| (top * LOG2_E).abs() < LARGEST) {
                Some(share) => {
                    *bits |= found::ALL | if top == 0.0 && share == 1.0 { 0 } else { found::BIASED };
                    (lifts.top[at], lifts.share[at]) = (top * LOG2_E, share);
                }
                None => *bits |= found::PART,
            }
        }
        best
    }
}

/// Whether a row sees all of these keys, one by one.
#[inline(always)]
fn sees<E: Bias>(row: &[E::T], ids: &[u32], top: f32) -> bool {
    ids.iter().all(|&id| E::wide(row[id as usize]) - top > -FAR)
}

/// Largest biases and shares of a node's cells for the rows of a list, by place.
pub(crate) struct CellLifts<'a> {
    pub(crate) biases: Biases<'a>,
    pub(crate) rows: &'a [u16],
    /// Keys by cell.
    pub(crate) ids: &'a [u32],
    /// Of the nodes of a block by query, of which this is `lane`.
    pub(crate) node: Lifts<'a>,
    pub(crate) lane: usize,
    pub(crate) out: LiftsMut<'a>,
}

impl Task for CellLifts<'_> {
    /// Rows whose biases were not all the same, and had to be brought together.
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        match self.biases.of.dtype() {
            Dtype::F16 => self.gather::<F16, S>(s),
            _ => self.gather::<F32, S>(s),
        }
    }
}

impl CellLifts<'_> {
    #[inline(always)]
    fn gather<E: Bias, S: Simd>(self, s: S) -> usize {
        let CellLifts { biases, rows, ids, node, lane, out } = self;
        check(rows, node.top.len().min(node.share.len()), BLOCK, BLOCK);
        assert!(ids.len() == BLOCK * BLOCK && lane < BLOCK);
        // The keys of all cells side by side: lanes are cells, as they are of scores.
        let mut order = [0u32; BLOCK * BLOCK];
        for (i, &id) in ids.iter().enumerate() {
            order[i % BLOCK * BLOCK + i / BLOCK] = id;
        }
        let (low, high) = ids.iter().fold((u32::MAX, 0), |(a, b), &id| (a.min(id), b.max(id)));
        let bytes = ((high - low) as usize + 1).min(2 * ids.len()) * size_of::<E::T>();
        let (mut reader, mut ahead) = (biases.reader::<E>(), biases.reader::<E>());
        let (mut x, mut gathered) = ([E::ZERO; BLOCK * BLOCK], 0);
        let outs = out.top.chunks_exact_mut(BLOCK).zip(out.share.chunks_exact_mut(BLOCK));
        for (i, (&query, (top, share))) in rows.iter().zip(outs).enumerate() {
            if let Some(&next) = rows.get(i + AHEAD) {
                let from = ahead.row(next)[low as usize..].as_ptr().cast::<u8>();
                (0..bytes).step_by(64).for_each(|at| s.prefetch(from.wrapping_add(at)));
            }
            let at = query as usize * BLOCK + lane;
            if node.share[at] == 1.0 {
                top.fill(node.top[at]);
                share.fill(1.0);
                continue;
            }
            gathered += 1;
            let row = reader.row(query);
            assert!((high as usize) < row.len());
            for (x, &id) in x.iter_mut().zip(&order) {
                // SAFETY: no id is beyond the largest.
                *x = unsafe { *row.get_unchecked(id as usize) };
            }
            for c in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: vector c of each of BLOCK rows of BLOCK numbers.
                unsafe {
                    let load = |j: usize| E::load(s, x.as_ptr().add(j * BLOCK + c));
                    let mut most = load(0);
                    for j in 1..BLOCK {
                        most = s.max(most, load(j));
                    }
                    let mut sum = s.splat(0.0);
                    for j in 0..BLOCK {
                        sum = s.add(sum, s.exp2(s.mul(s.sub(load(j), most), s.splat(LOG2_E))));
                    }
                    s.store(top.as_mut_ptr().add(c), s.mul(most, s.splat(LOG2_E)));
                    s.store(share.as_mut_ptr().add(c), s.mul(sum, s.splat(1.0 / BLOCK as f32)));
                }
            }
        }
        gathered
    }
}

/// Logits with their biases in place of the scores of a cell's keys.
pub(crate) struct AddBiases<'a> {
    pub(crate) biases: Biases<'a>,
    pub(crate) scores: &'a mut [f32],
    pub(crate) rows: &'a [u16],
    pub(crate) ids: &'a [u32],
    /// Places of the rows in the parent's list, and what the biases of its cells come to, of which this is `lane`.
    pub(crate) places: &'a [u16],
    pub(crate) cells: Lifts<'a>,
    pub(crate) lane: usize,
    pub(crate) softcap: f32,
}

impl Task for AddBiases<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.biases.of.dtype() {
            Dtype::F16 => self.add::<F16, S>(s),
            _ => self.add::<F32, S>(s),
        }
    }
}

impl AddBiases<'_> {
    #[inline(always)]
    fn add<E: Bias, S: Simd>(self, s: S) {
        let AddBiases { biases, scores, rows, ids, places, cells, lane, softcap } = self;
        check(places, cells.top.len().min(cells.share.len()), BLOCK, BLOCK);
        assert!(ids.len() == BLOCK && places.len() == rows.len() && lane < BLOCK);
        let mut reader = biases.reader::<E>();
        for ((&query, &place), x) in rows.iter().zip(places).zip(scores.chunks_exact_mut(BLOCK)) {
            let at = place as usize * BLOCK + lane;
            let same = cells.share[at] == 1.0;
            let mut bias = [E::ZERO; BLOCK];
            if !same {
                let row = reader.row(query);
                bias.iter_mut().zip(ids).for_each(|(bias, &id)| *bias = row[id as usize]);
            }
            for c in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: vector c of BLOCK numbers.
                unsafe {
                    let at_x = x.as_mut_ptr().add(c);
                    let bias = if same {
                        s.splat(cells.top[at])
                    } else {
                        s.mul(E::load(s, bias.as_ptr().add(c)), s.splat(LOG2_E))
                    };
                    s.store(at_x, s.add(capped(s, s.load(at_x), softcap), bias));
                }
            }
        }
    }
}

/// [`Total`](super::Total) with biases.
pub(crate) struct TotalBiased<'a> {
    pub(crate) scores: &'a [f32],
    pub(crate) children: Children<'a>,
    pub(crate) limits: Limits<'a>,
    pub(crate) lifts: Lifts<'a>,
    pub(crate) count: usize,
    pub(crate) max: &'a mut [f32],
    pub(crate) sum: &'a mut [f32],
}

impl Task for TotalBiased<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let TotalBiased { scores, children, limits, lifts, count: n, max, sum } = self;
        assert!(scores.len() >= n * BLOCK && max.len() >= n * BLOCK && sum.len() >= n * BLOCK);
        assert!(lifts.top.len() >= n * BLOCK && lifts.share.len() >= n * BLOCK);
        assert!(limits.sigma.len() >= n && children.spread.len() >= BLOCK);
        let count = s.splat(children.log2_count - 1.0);
        for i in 0..n {
            let root = s.splat(limits.sigma[i]);
            for c in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: vector c of a row of BLOCK numbers; row i is inside all of them.
                unsafe {
                    let at = i * BLOCK + c;
                    let sigma = s.mul(s.load(children.spread.as_ptr().add(c)), root);
                    let (x, sigma) = center(s, s.load(scores.as_ptr().add(at)), sigma, limits.softcap);
                    let sigma = s.min(sigma, s.splat(SURE));
                    let x = s.add(s.add(x, s.load(lifts.top.as_ptr().add(at))), count);
                    let present = s.load(children.present.as_ptr().add(c));
                    let high = s.select_lt(s.splat(0.5), present, s.add(x, sigma), s.splat(LOWEST));
                    let low = s.select_lt(s.splat(0.5), present, s.sub(x, sigma), s.splat(LOWEST));
                    let before = s.load(max.as_ptr().add(at));
                    let now = s.max(before, high);
                    let old = s.mul(s.load(sum.as_ptr().add(at)), s.exp2(s.sub(before, now)));
                    let new = s.add(s.exp2(s.sub(high, now)), s.exp2(s.sub(low, now)));
                    s.store(max.as_mut_ptr().add(at), now);
                    s.store(sum.as_mut_ptr().add(at), s.fma(new, s.load(lifts.share.as_ptr().add(at)), old));
                }
            }
        }
    }
}

/// [`Choose`](super::Choose) with biases. Under a softcap what is opened for its keys is opened for certain: a second look
/// knows no bias that comes after it.
pub(crate) struct ChooseBiased<'a> {
    /// In place: with the largest biases.
    pub(crate) centers: &'a mut [f32],
    pub(crate) rows: &'a [u16],
    pub(crate) children: Children<'a>,
    pub(crate) limits: Limits<'a>,
    pub(crate) lifts: Lifts<'a>,
    /// By query instead of by place.
    pub(crate) by_query: bool,
    pub(crate) weights: &'a mut [f32],
    pub(crate) open: &'a mut [u16],
    pub(crate) sure: &'a mut [u16],
}

impl Task for ChooseBiased<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ChooseBiased { centers, rows, children, limits, lifts, by_query, weights, open, sure } = self;
        let n = rows.len();
        let queries = limits.sigma.len().min(limits.reference.len()).min(limits.needle.len()).min(limits.mass.len());
        check(rows, queries, 1, 1);
        let lifted = lifts.top.len().min(lifts.share.len());
        if by_query {
            check(rows, lifted, BLOCK, BLOCK);
        }
        assert!(lifted >= n * BLOCK && centers.len() >= n * BLOCK);
        assert!(weights.len() >= n * BLOCK && open.len() >= n && sure.len() >= n);
        assert!(children.spread.len() >= BLOCK && children.reach.len() >= BLOCK);
        let count = children.log2_count - 1.0;
        let cap = limits.softcap;
        for i in 0..n {
            let q = rows[i] as usize;
            let lift = if by_query { q } else { i } * BLOCK;
            let root = s.splat(limits.sigma[q]);
            let far = s.splat(limits.sigma[q] * limits.stand_out);
            let shift = s.splat(count - limits.reference[q]);
            let (needle, mass) = (s.splat(limits.needle[q]), s.splat(limits.mass[q]));
            let (mut light, mut far_off) = (0, 0);
            for c in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: vector c of rows of BLOCK numbers that are inside.
                unsafe {
                    let from = centers.as_mut_ptr().add(i * BLOCK + c);
                    let raw = s.load(from);
                    let top = s.load(lifts.top.as_ptr().add(lift + c));
                    let share = s.load(lifts.share.as_ptr().add(lift + c));
                    let best = capped(s, s.fma(s.load(children.reach.as_ptr().add(c)), far, raw), cap);
                    let sigma = s.mul(s.load(children.spread.as_ptr().add(c)), root);
                    let (x, sigma) = center(s, raw, sigma, cap);
                    let sigma = s.min(sigma, s.splat(SPREAD));
                    let x = s.add(s.add(x, top), shift);
                    let w = s.mul(s.exp2(s.min(x, s.splat(MOST))), s.mul(share, twice_cosh(s, sigma)));
                    // Both spreads in natural units, as a share of the weight that may be wrong.
                    let (a, b) = (s.mul(sigma, s.splat(LN_2)), spread(s, share));
                    let wrong = s.mul(w, s.min(s.sqrt(s.fma(a, a, s.mul(b, b))), s.splat(1.0)));
                    light |= s.lt_bits(wrong, mass) << c;
                    far_off |= s.lt_bits(s.add(best, top), needle) << c;
                    s.store(from, s.add(raw, top));
                    let at = weights.as_mut_ptr().add(i * BLOCK + c);
                    s.store(at, s.mul(w, s.load(children.present.as_ptr().add(c))));
                }
            }
            sure[i] = !(light as u16) & children.bits;
            open[i] = !(far_off as u16) & children.bits | sure[i];
            if cap > 0.0 {
                sure[i] = open[i];
            }
        }
    }
}

/// Spread of biases in natural units, from their share: see [`SPREAD_OF`].
#[inline(always)]
fn spread<S: Simd>(s: S, share: S::V) -> S::V {
    s.mul(s.sub(s.div(s.splat(1.0), share), s.splat(1.0)), s.splat(SPREAD_OF))
}

/// What biases add to [`Doubt`](super::Doubt): the children's keys weigh the less alike.
pub(crate) struct DoubtBiased<'a> {
    pub(crate) p: &'a [f32],
    pub(crate) rows: &'a [u16],
    pub(crate) lifts: Lifts<'a>,
    pub(crate) by_query: bool,
    pub(crate) value_spread: &'a [f32],
    pub(crate) count: f32,
    pub(crate) out: &'a mut [f32],
}

impl Task for DoubtBiased<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let DoubtBiased { p, rows, lifts, by_query, value_spread, count, out } = self;
        check(rows, out.len(), BLOCK, BLOCK);
        if by_query {
            check(rows, lifts.share.len(), BLOCK, BLOCK);
        }
        assert!(p.len() >= rows.len() * BLOCK && value_spread.len() >= BLOCK);
        assert!(lifts.share.len() >= rows.len() * BLOCK);
        for (i, &row) in rows.iter().enumerate() {
            let lift = if by_query { row as usize } else { i } * BLOCK;
            for c in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: vector c of rows of BLOCK numbers.
                unsafe {
                    let b = spread(s, s.load(lifts.share.as_ptr().add(lift + c)));
                    let v = s.min(s.mul(b, b), s.splat(4.0));
                    let e = s.fma(v, s.fma(v, s.splat(1.0 / 6.0), s.splat(0.5)), s.splat(1.0));
                    let p = s.load(p.as_ptr().add(i * BLOCK + c));
                    let of = s.mul(s.mul(p, p), s.mul(s.mul(v, e), s.load(value_spread.as_ptr().add(c))));
                    let at = out.as_mut_ptr().add(row as usize * BLOCK + c);
                    s.store(at, s.fma(of, s.splat(1.0 / count), s.load(at)));
                }
            }
        }
    }
}
