//! One segment: its keys split into cells of similar ones, and described.

use super::ablation::{Part, without};
use super::policy::{ALONE, APART, CELL, LONGEST, OUTLYING, ROUNDS, SEGMENT};
use crate::mem::{Buf, Maker, Rows};
use crate::simd::Isa;
use crate::simd::gather::{BLOCK, Gather, Gram, Less, Matrix, SumRows};

/// What is known of a segment's cells, in their order.
pub(super) struct Described<'a> {
    /// Mean keys, `[SEGMENT / CELL][dim_k]`.
    pub(super) keys: &'a mut [f32],
    /// Mean values, `[SEGMENT / CELL][stride]`.
    pub(super) values: &'a mut [f32],
    /// Elements from one mean value to the next.
    pub(super) stride: usize,
    /// Keys of each cell that stay out of it.
    pub(super) apart: &'a [u16],
    /// Mean square distance of the keys from their mean.
    pub(super) square: &'a mut [f32],
    /// Sum over keys of `(key - mean) (key - mean)^T`, `[dim_k][dim_k rounded up to a block]`, from the diagonal's blocks on.
    pub(super) moment: &'a mut [f32],
    /// Sum over keys of `(key - mean) (value - mean)^T`, `[dim_k][stride]`.
    pub(super) cross: &'a mut [f32],
}

/// Work memory of one segment.
pub(super) struct Splitter {
    dim_k: usize,
    dim_v: usize,
    /// Keys, later values, `[SEGMENT][dim]`.
    rows: Buf<f32>,
    /// Keys less the mean of their cell, `[SEGMENT][dim_k rounded up to a block]`.
    rest: Buf<f32>,
    /// The same of the values.
    rest_values: Buf<f32>,
    /// Places of the keys in the segment, by cell.
    order: Buf<u32>,
    /// Places on the upper side of a cut.
    upper: Buf<u32>,
    height: Buf<f32>,
    mean: Buf<f32>,
    sum: Buf<f32>,
    direction: Buf<f32>,
}

impl Splitter {
    /// As part of a larger object.
    pub(super) fn made(m: &mut Maker<'_>, dim_k: usize, dim_v: usize) -> Self {
        let dim = dim_k.max(dim_v);
        Splitter {
            dim_k,
            dim_v,
            rows: m.filled(SEGMENT * dim, 0.0),
            rest: m.filled(SEGMENT * dim_k.next_multiple_of(BLOCK), 0.0),
            rest_values: m.filled(SEGMENT * dim_v.next_multiple_of(BLOCK), 0.0),
            order: m.filled(SEGMENT, 0),
            upper: m.filled(SEGMENT, 0),
            height: m.filled(SEGMENT, 0.0),
            mean: m.filled(dim, 0.0),
            sum: m.filled(dim, 0.0),
            direction: m.filled(dim, 0.0),
        }
    }

    /// Which keys of a segment are to stay out of its cells, in bits of 64 each, for much longer keys or values than the others';
    /// none where there are too many of them, or where the others are too long to be squared.
    pub(super) fn outlying(
        &mut self,
        isa: Isa,
        keys: &Rows<'_>,
        values: &Rows<'_>,
        ids: &[u32],
    ) -> Option<[u64; SEGMENT / 64]> {
        let mut apart = [0u64; SEGMENT / 64];
        for rows in [keys, values] {
            self.load(isa, rows, ids);
            let d = rows.cols();
            let mut sorted = [0.0f32; SEGMENT];
            for (i, (height, sorted)) in self.height.iter_mut().zip(&mut sorted).enumerate() {
                *height = isa.max_abs(&self.rows[i * d..][..d]);
                *sorted = *height;
            }
            let (_, &mut median, _) = sorted.select_nth_unstable_by(SEGMENT / 2, f32::total_cmp);
            if median > LONGEST {
                return None;
            }
            let most = (OUTLYING * median).min(LONGEST);
            for (i, &height) in self.height.iter().enumerate() {
                if height > most && !without(Part::Outliers) {
                    apart[i / 64] |= 1 << (i % 64);
                }
            }
        }
        let count: u32 = apart.iter().map(|bits| bits.count_ones()).sum();
        (count as usize <= APART).then_some(apart)
    }

    /// Orders a segment's keys by cell: halves again and again, each across the direction in which it is widest. Keys that stay
    /// apart count as zeros; more are added to them.
    pub(super) fn split(
        &mut self,
        isa: Isa,
        keys: &Rows<'_>,
        ids: &[u32],
        apart: &mut [u64; SEGMENT / 64],
        out: &mut [u32],
    ) {
        self.load(isa, keys, ids);
        for i in (0..SEGMENT).filter(|i| apart[i / 64] >> (i % 64) & 1 != 0) {
            self.rows[i * self.dim_k..][..self.dim_k].fill(0.0);
        }
        let mut size = SEGMENT;
        while size > CELL {
            for begin in (0..SEGMENT).step_by(size) {
                self.halve(isa, begin, size);
            }
            size /= 2;
        }
        for (out, &at) in out.iter_mut().zip(&*self.order) {
            *out = ids[at as usize];
        }
        self.set_apart(isa, apart);
    }

    /// Keys that lie far from all others of their cell stay out of it, too: neither mean nor radius of the cell would show them.
    fn set_apart(&mut self, isa: Isa, apart: &mut [u64; SEGMENT / 64]) {
        let count: u32 = apart.iter().map(|bits| bits.count_ones()).sum();
        let mut room = APART - count as usize;
        for c in 0..SEGMENT / CELL {
            self.mean_of(isa, c * CELL, CELL, self.dim_k);
            let at = &self.order[c * CELL..][..CELL];
            // Those that are out already were zeros.
            if without(Part::Outliers) || at.iter().any(|&i| apart[i as usize / 64] >> (i % 64) & 1 != 0) {
                continue;
            }
            let squares = &mut self.height[..CELL];
            isa.sq_dists_at(&self.rows, self.dim_k, at, &self.mean[..self.dim_k], squares);
            let most = ALONE * squares.iter().sum::<f32>();
            for (&i, _) in at.iter().zip(&*squares).filter(|(_, square)| **square > most).take(room) {
                apart[i as usize / 64] |= 1 << (i % 64);
                room -= 1;
            }
        }
    }

    /// Means, distances and moments of a segment whose keys by cell are `ids`; moments are added.
    pub(super) fn describe(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>, ids: &[u32], out: Described<'_>) {
        let (d, step) = (self.dim_k, self.dim_k.next_multiple_of(BLOCK));
        self.load(isa, keys, ids);
        for (c, (to, square)) in out.keys.chunks_exact_mut(d).zip(out.square.iter_mut()).enumerate() {
            let count = self.mean_without(isa, c, out.apart[c], d);
            to.copy_from_slice(&self.mean[..d]);
            // What stays apart lies at the mean: it adds nothing.
            for j in (0..CELL).filter(|j| out.apart[c] >> j & 1 != 0) {
                self.rows[(c * CELL + j) * d..][..d].copy_from_slice(&self.mean[..d]);
            }
            let at = &self.order[c * CELL..][..CELL];
            isa.sq_dists_at(&self.rows, d, at, &self.mean[..d], &mut self.height[..CELL]);
            *square = self.height[..CELL].iter().sum::<f32>() / count.max(1) as f32;
            let rows = Matrix { data: &self.rows, stride: d, cols: d };
            isa.run(Less { rows, mean: &self.mean[..d], at, out: &mut self.rest[c * CELL * step..], stride: step });
        }
        // Only from the blocks of the diagonal on: it is symmetric.
        self.gram(isa, &self.rest, step, |last| d.min(last), out.moment);
        self.load(isa, values, ids);
        let (dim_v, step) = (self.dim_v, out.stride);
        for (c, to) in out.values.chunks_exact_mut(step).enumerate() {
            self.mean_without(isa, c, out.apart[c], dim_v);
            to[..dim_v].copy_from_slice(&self.mean[..dim_v]);
            // Keys that stay apart lie at the mean: nothing of their values is added.
            let (rows, at) = (Matrix { data: &self.rows, stride: dim_v, cols: dim_v }, &self.order[c * CELL..][..CELL]);
            let rest = &mut self.rest_values[c * CELL * step..];
            isa.run(Less { rows, mean: &self.mean[..dim_v], at, out: rest, stride: step });
        }
        self.gram(isa, &self.rest_values, step, |_| d, out.cross);
    }

    /// Adds what keys less their means and the rows `y` have in common to `out`, both in rows of `step`; of the blocks up to column
    /// `last` for the first `cols(last)` columns of the keys.
    fn gram(&self, isa: Isa, y: &[f32], step: usize, cols: impl Fn(usize) -> usize, out: &mut [f32]) {
        let stride = self.dim_k.next_multiple_of(BLOCK);
        for first in (0..step / BLOCK).step_by(2) {
            let blocks = (step / BLOCK - first).min(2);
            isa.run(Gram {
                x: Matrix { data: &self.rest, stride, cols: cols((first + blocks) * BLOCK) },
                y: &y[first * BLOCK..],
                y_stride: step,
                rows: SEGMENT,
                out: &mut out[first * BLOCK..],
                out_stride: step,
                out_step: BLOCK,
                blocks,
            });
        }
    }

    /// The direction in which the keys `ids` are widest, roughly.
    pub(super) fn widest(&mut self, isa: Isa, keys: &Rows<'_>, ids: &[u32; SEGMENT]) -> &[f32] {
        self.load(isa, keys, ids);
        self.aim(isa, 0, SEGMENT);
        &self.direction[..self.dim_k]
    }

    fn load(&mut self, isa: Isa, from: &Rows<'_>, ids: &[u32]) {
        isa.run(Gather { from, ids, stride: from.cols(), out: &mut self.rows });
        self.order.iter_mut().zip(0..).for_each(|(at, i)| *at = i);
    }

    /// Mean of rows `begin..begin + n` of the order.
    fn mean_of(&mut self, isa: Isa, begin: usize, n: usize, cols: usize) {
        let mean = &mut self.mean[..cols];
        mean.fill(0.0);
        let rows = Matrix { data: &self.rows, stride: cols, cols };
        isa.run(SumRows { rows, at: &self.order[begin..][..n], acc: mean });
        isa.scale(1.0 / n as f32, mean);
    }

    /// Mean of the loaded rows of cell `c` but for those that stay apart; returns how many there are.
    fn mean_without(&mut self, isa: Isa, c: usize, apart: u16, cols: usize) -> usize {
        if apart == 0 {
            self.mean_of(isa, c * CELL, CELL, cols);
            return CELL;
        }
        let mean = &mut self.mean[..cols];
        mean.fill(0.0);
        let count = (!apart).count_ones() as usize;
        for j in (0..CELL).filter(|j| apart >> j & 1 == 0) {
            isa.axpy(1.0 / count as f32, &self.rows[(c * CELL + j) * cols..][..cols], mean);
        }
        count
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
        let Splitter { order, height, direction, .. } = self;
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
}
