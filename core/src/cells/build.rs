//! One segment: split by similarity, then described.

use super::{BLOCK, Coords, LEAVES, Level, MeanKeys, NODES, SEGMENT};
use crate::error::Result;
use crate::mem::{Buf, Memory, Plan, Rows};
use crate::simd::Isa;
use crate::simd::block::{Gather, Gram, Less, Matrix, SumRows};

/// Rounds of two means that a cut's direction comes from.
const ROUNDS: usize = 2;

/// The rows of a block.
const EACH: [u32; BLOCK] = {
    let (mut each, mut i) = ([0; BLOCK], 0);
    while i < BLOCK {
        each[i] = i as u32;
        i += 1;
    }
    each
};

/// Work memory of one segment.
pub(super) struct Bench {
    dim_k: usize,
    dim_v: usize,
    /// Keys `[SEGMENT][dim_k]`, values `[SEGMENT][dim_v]` in their place later.
    rows: Buf<f32>,
    /// Keys less their node's mean, by cell, `[SEGMENT][dim_k rounded up to a block]`.
    keys: Buf<f32>,
    /// Keys or values less a mean, alike.
    rest: Buf<f32>,
    /// Means of a node's cells less its own, `[BLOCK][dim_k rounded up to a block]`.
    means: Buf<f32>,
    /// Places of the keys in the segment, by cell.
    order: Buf<u32>,
    /// Places on the upper side of a cut.
    upper: Buf<u32>,
    height: Buf<f32>,
    /// Directions and means, and the two sums of a cut.
    mean: Buf<f32>,
    sum: Buf<f32>,
    direction: Buf<f32>,
}

/// `n` rows of the order from place `at` on less `mean`, into rows padded with zeros to whole blocks.
fn less(isa: Isa, rows: &[f32], mean: &[f32], order: &[u32], at: usize, n: usize, out: &mut [f32]) {
    let (d, stride) = (mean.len(), mean.len().next_multiple_of(BLOCK));
    let (rows, at, out) = (Matrix { data: rows, stride: d, cols: d }, &order[at..][..n], &mut out[at * stride..]);
    isa.run(Less { rows, mean, at, out, stride });
}

impl Bench {
    pub(super) fn plan(plan: &mut Plan, dim_k: usize, dim_v: usize) {
        let dim = dim_k.max(dim_v);
        Buf::<f32>::plan(plan, SEGMENT * dim);
        Buf::<f32>::plan(plan, SEGMENT * dim_k.next_multiple_of(BLOCK));
        Buf::<f32>::plan(plan, SEGMENT * dim.next_multiple_of(BLOCK));
        Buf::<f32>::plan(plan, BLOCK * dim_k.next_multiple_of(BLOCK));
        Buf::<u32>::plan(plan, SEGMENT);
        Buf::<u32>::plan(plan, SEGMENT);
        Buf::<f32>::plan(plan, SEGMENT);
        for _ in 0..3 {
            Buf::<f32>::plan(plan, dim);
        }
    }

    pub(super) fn new(memory: &Memory, dim_k: usize, dim_v: usize) -> Result<Self> {
        let dim = dim_k.max(dim_v);
        Ok(Bench {
            dim_k,
            dim_v,
            rows: Buf::filled(memory, SEGMENT * dim, 0.0)?,
            keys: Buf::filled(memory, SEGMENT * dim_k.next_multiple_of(BLOCK), 0.0)?,
            rest: Buf::filled(memory, SEGMENT * dim.next_multiple_of(BLOCK), 0.0)?,
            means: Buf::filled(memory, BLOCK * dim_k.next_multiple_of(BLOCK), 0.0)?,
            order: Buf::filled(memory, SEGMENT, 0)?,
            upper: Buf::filled(memory, SEGMENT, 0)?,
            height: Buf::filled(memory, SEGMENT, 0.0)?,
            mean: Buf::filled(memory, dim, 0.0)?,
            sum: Buf::filled(memory, dim, 0.0)?,
            direction: Buf::filled(memory, dim, 0.0)?,
        })
    }

    /// Orders a segment's keys by cell: halves again and again, each across the direction in which it is widest.
    pub(super) fn split(&mut self, isa: Isa, keys: &Rows<'_>, ids: &[u32], out: &mut [u32]) {
        self.load(isa, keys, ids);
        for (i, at) in self.order.iter_mut().enumerate() {
            *at = i as u32;
        }
        let mut size = SEGMENT;
        while size > BLOCK {
            for begin in (0..SEGMENT).step_by(size) {
                self.halve(isa, begin, size);
            }
            size /= 2;
        }
        for (out, &at) in out.iter_mut().zip(&*self.order) {
            *out = ids[at as usize];
        }
    }

    fn load(&mut self, isa: Isa, from: &Rows<'_>, ids: &[u32]) {
        let stride = from.cols();
        isa.run(Gather { from, ids, stride, out: &mut self.rows });
    }

    /// Mean of the keys at `at` of the order into `mean`.
    fn mean_of(&mut self, isa: Isa, begin: usize, n: usize, cols: usize) {
        let mean = &mut self.mean[..cols];
        mean.fill(0.0);
        let rows = Matrix { data: &self.rows, stride: cols, cols };
        isa.run(SumRows { rows, at: &self.order[begin..][..n], acc: mean });
        isa.scale(1.0 / n as f32, mean);
    }

    /// The direction in which the keys `ids` are widest, roughly.
    pub(super) fn aim_at(&mut self, isa: Isa, keys: &Rows<'_>, ids: &[u32; SEGMENT]) -> &[f32] {
        self.reload(isa, keys, ids);
        self.aim(isa, 0, SEGMENT);
        &self.direction[..self.dim_k]
    }

    /// Points the direction from one of two means of keys `begin..begin + n` of the order to the other.
    fn aim(&mut self, isa: Isa, begin: usize, n: usize) {
        let d = self.dim_k;
        self.mean_of(isa, begin, n, d);
        let at = &mut self.order[begin..][..n];
        let height = &mut self.height[..n];
        isa.sq_dists_at(&self.rows, d, at, &self.mean[..d], height);
        // The key farthest out gives the first direction; of equals, the first.
        let most = isa.max(height);
        let far = height.iter().position(|&h| h == most).unwrap_or(0);
        let direction = &mut self.direction[..d];
        direction.copy_from_slice(&self.rows[at[far] as usize * d..][..d]);
        isa.axpy(-1.0, &self.mean[..d], direction);
        for _ in 0..ROUNDS {
            isa.dots_at(&self.rows, d, at, direction, height);
            let cut = isa.dot(direction, &self.mean[..d]);
            // Written always, kept where it is above: no branch to mispredict.
            let mut m = 0;
            for (&i, &h) in at.iter().zip(&*height) {
                self.upper[m] = i;
                m += usize::from(h > cut);
            }
            if m == 0 || m == n {
                break;
            }
            // Mean of the upper side less mean of all points where mean less mean of the lower side points.
            let sum = &mut self.sum[..d];
            sum.fill(0.0);
            isa.run(SumRows { rows: Matrix { data: &self.rows, stride: d, cols: d }, at: &self.upper[..m], acc: sum });
            isa.scale(1.0 / m as f32, sum);
            isa.axpy(-1.0, &self.mean[..d], sum);
            direction.copy_from_slice(sum);
        }
    }

    /// Cuts keys `begin..begin + n` of the order at their median along the difference of two means.
    fn halve(&mut self, isa: Isa, begin: usize, n: usize) {
        let d = self.dim_k;
        self.aim(isa, begin, n);
        let Bench { order, height, direction, .. } = self;
        let (at, height, direction) = (&mut order[begin..][..n], &mut height[..n], &direction[..d]);
        isa.dots_at(&self.rows, d, at, direction, height);
        // Keys by height; of equals, by place, so that the cells are well defined. A 64-bit number holds both.
        let pair = |i: u32, h: f32| u64::from(crate::math::image_of(h)) << 32 | u64::from(i);
        let mut pairs = [0u64; SEGMENT];
        for ((to, &i), &h) in pairs.iter_mut().zip(&*at).zip(&*height) {
            *to = pair(i, h);
        }
        let (_, &mut median, _) = pairs[..n].select_nth_unstable(n / 2);
        // Both sides in the order of places, which is that of `at`: the next sums do not depend on how the selection went.
        let (mut below, mut above, mut upper) = (0, 0, [0; SEGMENT]);
        for (k, &h) in height.iter().enumerate() {
            let i = at[k];
            let low = pair(i, h) < median;
            // Written always, kept on one side: no branch to mispredict.
            (at[below], upper[above]) = (i, i);
            below += usize::from(low);
            above += usize::from(!low);
        }
        at[below..].copy_from_slice(&upper[..above]);
    }

    /// Writes mean values of segment `at` after [`describe_keys`](Bench::describe_keys), and adds to the moments if it
    /// `counts` for them.
    pub(super) fn describe_values(
        &mut self,
        isa: Isa,
        values: &Rows<'_>,
        at: usize,
        counts: bool,
        stride: usize,
        ids: &[u32],
        leaves: &mut Level,
        nodes: &mut Level,
    ) {
        self.load(isa, values, ids);
        let d = self.dim_v;
        for (level, size, first) in [(&mut *leaves, BLOCK, at * LEAVES), (nodes, BLOCK * BLOCK, at * NODES)] {
            for i in 0..SEGMENT / size {
                self.mean_of(isa, i * size, size, d);
                level.values.set(first + i, stride, &self.mean[..d]);
                let height = &mut self.height[..size];
                isa.sq_dists_at(&self.rows, d, &self.order[i * size..][..size], &self.mean[..d], height);
                level.value_spread[first + i] = height.iter().sum::<f32>() / size as f32;
                if size == BLOCK {
                    less(isa, &self.rows, &self.mean[..d], &self.order, i * size, size, &mut self.rest);
                }
            }
        }
        // Values less their mean sum up to nothing, so that keys need not be taken less the mean of the same set.
        if counts {
            let crossed = &mut leaves.moment[super::moment_len(self.dim_k)..];
            self.gram(isa, &self.rest, stride, crossed, BLOCK);
        }
    }

    /// Adds the products of all keys' elements with all elements of `y`'s rows to blocks of `out`, each `[dim_k][out_stride]`. Where
    /// they lie side by side the products are symmetric: what is below the blocks of the diagonal is left as it is.
    fn gram(&self, isa: Isa, y: &[f32], y_stride: usize, out: &mut [f32], out_stride: usize) {
        let stride = self.dim_k.next_multiple_of(BLOCK);
        let (out_step, all) = if out_stride == BLOCK { (self.dim_k * BLOCK, true) } else { (BLOCK, false) };
        for first in (0..y_stride / BLOCK).step_by(2) {
            let blocks = (y_stride / BLOCK - first).min(2);
            let cols = if all { self.dim_k } else { self.dim_k.min((first + blocks) * BLOCK) };
            let x = Matrix { data: &self.keys, stride, cols };
            let (y, out) = (&y[first * BLOCK..], &mut out[first * out_step..]);
            isa.run(Gram { x, y, y_stride, rows: SEGMENT, out, out_stride, out_step, blocks });
        }
    }

    /// Writes mean keys, spreads and reaches of segment `at` after [`split`](Bench::split), and adds to the
    /// moments if it `counts` for them.
    pub(super) fn describe_keys(
        &mut self,
        isa: Isa,
        at: usize,
        counts: bool,
        means: &mut MeanKeys,
        leaves: &mut Level,
        nodes: &mut Level,
    ) {
        let (d, stride) = (self.dim_k, self.dim_k.next_multiple_of(BLOCK));
        for (level, size, first) in [(&mut *nodes, BLOCK * BLOCK, at * NODES), (&mut *leaves, BLOCK, at * LEAVES)] {
            for i in 0..SEGMENT / size {
                self.mean_of(isa, i * size, size, d);
                let keys = &self.order[i * size..][..size];
                let height = &mut self.height[..size];
                isa.sq_dists_at(&self.rows, d, keys, &self.mean[..d], height);
                let spread = libm::sqrtf(height.iter().sum::<f32>() / size as f32);
                let reach = libm::sqrtf(isa.max(height));
                level.set(first + i, spread, reach);
                let rest = if size == BLOCK {
                    means.set_cell(first + i, &self.mean[..d]);
                    &mut self.rest
                } else {
                    means.set_node(first + i, &self.mean[..d]);
                    &mut self.keys
                };
                less(isa, &self.rows, &self.mean[..d], &self.order, i * size, size, rest);
            }
        }
        if counts {
            let len = super::moment_len(d);
            self.gram(isa, &self.keys, stride, &mut nodes.moment[..len], stride);
            // Keys less the mean of their cell sum up to nothing, as values do below.
            self.gram(isa, &self.rest, stride, &mut leaves.moment[..len], stride);
        }
    }

    /// Loads a segment whose keys by cell are `ids`.
    pub(super) fn reload(&mut self, isa: Isa, keys: &Rows<'_>, ids: &[u32]) {
        self.load(isa, keys, ids);
        for (i, at) in self.order.iter_mut().enumerate() {
            *at = i as u32;
        }
    }

    /// The segment's keys or values, rows of `dim` elements, and which of them form cells.
    pub(super) fn loaded(&self, dim: usize) -> (&[f32], &[u32]) {
        (&self.rows[..SEGMENT * dim], &self.order)
    }

    /// Coordinates of segment `at` after [`describe_keys`](Bench::describe_keys).
    pub(super) fn coords(&mut self, isa: Isa, at: usize, coords: &mut Coords) {
        let stride = self.dim_k.next_multiple_of(BLOCK);
        for i in 0..LEAVES {
            let (leaf, begin, len) = (at * LEAVES + i, i * BLOCK * stride, BLOCK * stride);
            coords.leaves.set(isa, leaf, &self.rest[begin..][..len], stride);
            // A cell's mean from that of its node.
            let mean = &mut self.means[i % BLOCK * stride..][..stride];
            mean.fill(0.0);
            let rows = Matrix { data: &self.keys[begin..][..len], stride, cols: stride };
            isa.run(SumRows { rows, at: &EACH, acc: mean });
            isa.scale(1.0 / BLOCK as f32, mean);
            if i % BLOCK == BLOCK - 1 {
                coords.nodes.set(isa, leaf / BLOCK, &self.means, stride);
            }
        }
    }
}
