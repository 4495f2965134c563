//! Blocks of sixteen vectors (the keys of a cell, the means of a node's cells) against lists of query rows.
//!
//! A block lies transposed, so that its vectors fill the lanes; queries are read as they lie, as broadcasts. Whatever a
//! list holds costs the same per row: lists are what is left when most rows do not want a block.

use super::element::{Bf16, Element, F16, F32};
use super::math;
use super::rows;
use super::vector::Simd;
use super::{Task, kernels};
use crate::mem::{Dtype, Rows};

/// Vectors of a block.
pub(crate) const BLOCK: usize = 16;

/// Rows of f32, `stride` apart, of which `cols` count.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) cols: usize,
}

/// Refuses a list that leaves `len` numbers in rows of `stride`.
#[inline(always)]
fn check(rows: &[u16], len: usize, stride: usize, cols: usize) {
    assert!(cols <= stride && stride > 0);
    let count = len / stride;
    assert!(rows.iter().fold(true, |ok, &r| ok & ((r as usize) < count)));
}

/// `out[i * BLOCK + j] = <q[rows[i]], vector j>`; `block` is `[cols][BLOCK]`.
pub(crate) struct Scores<'a> {
    pub(crate) block: &'a [f32],
    pub(crate) q: Matrix<'a>,
    pub(crate) rows: &'a [u16],
    pub(crate) out: &'a mut [f32],
}

impl Task for Scores<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        check(self.rows, self.q.data.len(), self.q.stride, self.q.cols);
        assert!(self.block.len() >= self.q.cols * BLOCK && self.out.len() >= self.rows.len() * BLOCK);
        // SAFETY: rows are inside the matrix, the block has `cols` rows, `out` a row for every query.
        unsafe {
            match S::LANES {
                16 => self.tiles::<S, 1, 8>(s),
                8 => self.tiles::<S, 2, 4>(s),
                4 => self.tiles::<S, 4, 4>(s),
                _ => self.tiles::<S, 16, 1>(s),
            }
        }
    }
}

impl Scores<'_> {
    /// # Safety
    /// As checked in `run`; `C * LANES` is the block.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const C: usize, const R: usize>(mut self, s: S) {
        let mut i = 0;
        // SAFETY: rows i.. are there.
        unsafe {
            while i + R <= self.rows.len() {
                self.tile::<S, C, R>(s, i);
                i += R;
            }
            if R > 4 && i + 4 <= self.rows.len() {
                self.tile::<S, C, 4>(s, i);
                i += 4;
            }
            // One or two rows would wait for their own sums: two chains each.
            while i + 2 <= self.rows.len() {
                self.pair::<S, C, 2>(s, i);
                i += 2;
            }
            if i < self.rows.len() {
                self.pair::<S, C, 1>(s, i);
            }
        }
    }

    /// As [`Scores::tile`], even and odd elements summed apart.
    ///
    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn pair<S: Simd, const C: usize, const R: usize>(&mut self, s: S, i: usize) {
        let mut q = [self.q.data.as_ptr(); R];
        for r in 0..R {
            // SAFETY: the row is inside.
            q[r] = unsafe { q[r].add(self.rows[i + r] as usize * self.q.stride) };
        }
        let mut acc = [[[s.splat(0.0); C]; R]; 2];
        let mut k = 0;
        while k < self.q.cols {
            for half in 0..2 {
                if k + half < self.q.cols {
                    for c in 0..C {
                        // SAFETY: row k + half of the block.
                        let b = unsafe { s.load(self.block.as_ptr().add((k + half) * BLOCK + c * S::LANES)) };
                        for r in 0..R {
                            // SAFETY: k + half < cols.
                            let a = s.splat(unsafe { *q[r].add(k + half) });
                            acc[half][r][c] = s.fma(a, b, acc[half][r][c]);
                        }
                    }
                }
            }
            k += 2;
        }
        for r in 0..R {
            for c in 0..C {
                let sum = s.add(acc[0][r][c], acc[1][r][c]);
                // SAFETY: `out` has a row for every query.
                unsafe { s.store(self.out.as_mut_ptr().add((i + r) * BLOCK + c * S::LANES), sum) };
            }
        }
    }

    /// `R` rows from list place `i` on.
    ///
    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn tile<S: Simd, const C: usize, const R: usize>(&mut self, s: S, i: usize) {
        let mut q = [self.q.data.as_ptr(); R];
        for r in 0..R {
            // SAFETY: the row is inside.
            q[r] = unsafe { q[r].add(self.rows[i + r] as usize * self.q.stride) };
        }
        let mut acc = [[s.splat(0.0); C]; R];
        let mut block = self.block.as_ptr();
        for k in 0..self.q.cols {
            let mut b = [s.splat(0.0); C];
            for c in 0..C {
                // SAFETY: row k of the block.
                b[c] = unsafe { s.load(block.add(c * S::LANES)) };
            }
            for r in 0..R {
                // SAFETY: k < cols.
                let a = s.splat(unsafe { *q[r].add(k) });
                for c in 0..C {
                    acc[r][c] = s.fma(a, b[c], acc[r][c]);
                }
            }
            block = block.wrapping_add(BLOCK);
        }
        for r in 0..R {
            for c in 0..C {
                // SAFETY: `out` has a row for every query.
                unsafe { s.store(self.out.as_mut_ptr().add((i + r) * BLOCK + c * S::LANES), acc[r][c]) };
            }
        }
    }
}

/// `out[rows[i]] += sum_j p[i * BLOCK + j] * values[j]`; `values` is `[BLOCK][stride]`, padded like the rows of `out` to
/// whole vectors.
pub(crate) struct AddValues<'a> {
    pub(crate) p: &'a [f32],
    pub(crate) values: Matrix<'a>,
    pub(crate) rows: &'a [u16],
    pub(crate) out: &'a mut [f32],
    /// Where the weights are to be added up too, `[query][BLOCK]`.
    pub(crate) total: Option<&'a mut [f32]>,
}

impl Task for AddValues<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Matrix { data, stride, cols } = self.values;
        check(self.rows, self.out.len(), stride, cols.next_multiple_of(S::LANES));
        assert!(data.len() >= BLOCK * stride && self.p.len() >= self.rows.len() * BLOCK);
        if let Some(total) = &mut self.total {
            check(self.rows, total.len(), BLOCK, BLOCK);
            for (i, &row) in self.rows.iter().enumerate() {
                for c in (0..BLOCK).step_by(S::LANES) {
                    // SAFETY: vector c of rows of BLOCK numbers, checked.
                    unsafe {
                        let at = total.as_mut_ptr().add(row as usize * BLOCK + c);
                        s.store(at, s.add(s.load(at), s.load(self.p.as_ptr().add(i * BLOCK + c))));
                    }
                }
            }
        }
        let vecs = cols.div_ceil(S::LANES);
        let mut i = 0;
        while i < self.rows.len() {
            let r = if i + 4 <= self.rows.len() { 4 } else { 1 };
            let mut v = 0;
            while v < vecs {
                let c = if S::WIDE && v + 4 <= vecs {
                    4
                } else if v + 2 <= vecs {
                    2
                } else {
                    1
                };
                // SAFETY: rows and vectors are inside, as checked.
                unsafe {
                    match (r, c) {
                        (4, 4) => self.tile::<S, 4, 4>(s, i, v),
                        (4, 2) => self.tile::<S, 4, 2>(s, i, v),
                        (4, _) => self.tile::<S, 4, 1>(s, i, v),
                        (_, 4) => self.tile::<S, 1, 4>(s, i, v),
                        (_, 2) => self.tile::<S, 1, 2>(s, i, v),
                        _ => self.tile::<S, 1, 1>(s, i, v),
                    }
                }
                v += c;
            }
            i += r;
        }
    }
}

impl AddValues<'_> {
    /// `R` rows from list place `i`, `C` vectors from `v`. Rows of a tile must differ.
    ///
    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const C: usize>(&mut self, s: S, i: usize, v: usize) {
        let stride = self.values.stride;
        let mut acc = [[s.splat(0.0); C]; R];
        let mut out = [self.out.as_mut_ptr(); R];
        for r in 0..R {
            // SAFETY: the row is inside.
            unsafe {
                out[r] = out[r].add(self.rows[i + r] as usize * stride + v * S::LANES);
                for c in 0..C {
                    acc[r][c] = s.load(out[r].add(c * S::LANES));
                }
            }
        }
        for j in 0..BLOCK {
            let mut b = [s.splat(0.0); C];
            for c in 0..C {
                // SAFETY: value j, vector v + c.
                b[c] = unsafe { s.load(self.values.data.as_ptr().add(j * stride + (v + c) * S::LANES)) };
            }
            for r in 0..R {
                // SAFETY: weight j of row i + r.
                let a = s.splat(unsafe { *self.p.as_ptr().add((i + r) * BLOCK + j) });
                for c in 0..C {
                    acc[r][c] = s.fma(a, b[c], acc[r][c]);
                }
            }
        }
        for r in 0..R {
            for c in 0..C {
                // SAFETY: as above.
                unsafe { s.store(out[r].add(c * S::LANES), acc[r][c]) };
            }
        }
    }
}

/// What is known of every query of a block, in powers of two: logits are `score * scale * log2(e)`, which the queries
/// carry already.
pub(crate) struct Limits<'a> {
    /// Weights are relative to this logit.
    pub(crate) reference: &'a [f32],
    /// Logit that a key must seem to reach to be worth finding.
    pub(crate) needle: &'a [f32],
    /// Weight times spread that a child must reach.
    pub(crate) mass: &'a [f32],
    /// Standard deviation of a logit per unit of a child's spread.
    pub(crate) sigma: &'a [f32],
    /// Standard deviations that the farthest vector of a child may stand out.
    pub(crate) stand_out: f32,
    /// Logits are `softcap * tanh(logit / softcap)`; 0 = off.
    pub(crate) softcap: f32,
}

/// Children of a node.
pub(crate) struct Children<'a> {
    /// Root mean square distance of a child's keys from its mean.
    pub(crate) spread: &'a [f32],
    /// Largest distance of a child's key from its mean.
    pub(crate) reach: &'a [f32],
    /// 1 for children that are to be looked at, 0 for others.
    pub(crate) present: &'a [f32; BLOCK],
    /// The same as bits.
    pub(crate) bits: u16,
    /// log2 of a child's keys.
    pub(crate) log2_count: f32,
}

/// Larger than any difference that a weight may come from: 2^100 is finite and so are sums of many.
const MOST: f32 = 100.0;
/// Spread, in powers of two, beyond which a mean says nothing.
const SPREAD: f32 = 17.3;

/// `2 cosh(sigma)` of a spread in powers of two, by its series up to the sixth power: 2 % short at 3 natural units, and an
/// estimate is worth little beyond.
#[inline(always)]
fn twice_cosh<S: Simd>(s: S, sigma: S::V) -> S::V {
    const V: f32 = core::f32::consts::LN_2 * core::f32::consts::LN_2;
    let v = s.mul(sigma, sigma);
    let p = s.fma(v, s.splat(V * V * V / 360.0), s.splat(V * V / 12.0));
    s.fma(v, s.fma(v, p, s.splat(V)), s.splat(2.0))
}

/// Logit of a child's mean and one standard deviation of its keys, with what `softcap` makes of them.
#[inline(always)]
fn center<S: Simd>(s: S, x: S::V, sigma: S::V, cap: f32) -> (S::V, S::V) {
    if cap > 0.0 {
        let t = math::tanh(s, s.mul(x, s.splat(1.0 / cap)));
        let slope = s.sub(s.splat(1.0), s.mul(t, t));
        return (s.mul(t, s.splat(cap)), s.mul(sigma, slope));
    }
    (x, sigma)
}

#[inline(always)]
fn capped<S: Simd>(s: S, x: S::V, cap: f32) -> S::V {
    if cap > 0.0 { s.mul(math::tanh(s, s.mul(x, s.splat(1.0 / cap))), s.splat(cap)) } else { x }
}

/// Adds the children's estimated weights to running maxima and sums, lane by lane: `max` and `sum` are `[query][BLOCK]`.
pub(crate) struct Total<'a> {
    pub(crate) scores: &'a [f32],
    pub(crate) children: Children<'a>,
    pub(crate) limits: Limits<'a>,
    pub(crate) count: usize,
    pub(crate) max: &'a mut [f32],
    pub(crate) sum: &'a mut [f32],
}

/// Below every logit, and its difference from any is finite.
pub(crate) const LOWEST: f32 = -1e30;

impl Task for Total<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.count;
        assert!(self.scores.len() >= n * BLOCK && self.max.len() >= n * BLOCK && self.sum.len() >= n * BLOCK);
        assert!(self.limits.sigma.len() >= n && self.children.spread.len() >= BLOCK);
        let count = s.splat(self.children.log2_count - 1.0);
        for i in 0..n {
            let root = s.splat(self.limits.sigma[i]);
            let mut c = 0;
            while c < BLOCK {
                // SAFETY: vector c of a row of BLOCK numbers; row i is inside all of them.
                unsafe {
                    let at = i * BLOCK + c;
                    let sigma = s.mul(s.load(self.children.spread.as_ptr().add(c)), root);
                    let (x, sigma) = center(s, s.load(self.scores.as_ptr().add(at)), sigma, self.limits.softcap);
                    let sigma = s.min(sigma, s.splat(SPREAD));
                    let x = s.add(x, count);
                    let present = s.load(self.children.present.as_ptr().add(c));
                    let high = s.select_lt(s.splat(0.5), present, s.add(x, sigma), s.splat(LOWEST));
                    let low = s.select_lt(s.splat(0.5), present, s.sub(x, sigma), s.splat(LOWEST));
                    let before = s.load(self.max.as_ptr().add(at));
                    let now = s.max(before, high);
                    let sum = s.mul(s.load(self.sum.as_ptr().add(at)), s.exp2(s.sub(before, now)));
                    let new = s.add(s.exp2(s.sub(high, now)), s.exp2(s.sub(low, now)));
                    s.store(self.max.as_mut_ptr().add(at), now);
                    s.store(self.sum.as_mut_ptr().add(at), s.add(sum, new));
                }
                c += S::LANES;
            }
        }
    }
}

/// Which children each row of a list may have to open, as bits, and which of them for their mass; estimated weights of all
/// in place of their scores, which go to `centers`.
pub(crate) struct Choose<'a> {
    pub(crate) scores: &'a mut [f32],
    pub(crate) rows: &'a [u16],
    pub(crate) children: Children<'a>,
    pub(crate) limits: Limits<'a>,
    pub(crate) centers: &'a mut [f32],
    pub(crate) open: &'a mut [u16],
    /// Opened for the mass: see [`Sift`].
    pub(crate) sure: &'a mut [u16],
}

impl Task for Choose<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Choose { scores, rows, children, limits, centers, open, sure } = self;
        let n = rows.len();
        let queries = limits.sigma.len().min(limits.reference.len()).min(limits.needle.len()).min(limits.mass.len());
        check(rows, queries, 1, 1);
        assert!(centers.len() >= n * BLOCK);
        assert!(scores.len() >= n * BLOCK && open.len() >= n && sure.len() >= n);
        assert!(children.spread.len() >= BLOCK && children.reach.len() >= BLOCK);
        let count = children.log2_count - 1.0;
        let cap = limits.softcap;
        for i in 0..n {
            let q = rows[i] as usize;
            let root = s.splat(limits.sigma[q]);
            let far = s.splat(limits.sigma[q] * limits.stand_out);
            let shift = s.splat(count - limits.reference[q]);
            let (needle, mass) = (s.splat(limits.needle[q]), s.splat(limits.mass[q]));
            let (mut light, mut far_off, mut c) = (0, 0, 0);
            while c < BLOCK {
                // SAFETY: vector c of rows of BLOCK numbers that are inside.
                unsafe {
                    let at = scores.as_mut_ptr().add(i * BLOCK + c);
                    let raw = s.load(at);
                    let best = capped(s, s.fma(s.load(children.reach.as_ptr().add(c)), far, raw), cap);
                    let sigma = s.mul(s.load(children.spread.as_ptr().add(c)), root);
                    let (x, sigma) = center(s, raw, sigma, cap);
                    let sigma = s.min(sigma, s.splat(SPREAD));
                    let x = s.add(x, shift);
                    let most = s.splat(MOST);
                    let w = s.mul(s.exp2(s.min(x, most)), twice_cosh(s, sigma));
                    // The spread in natural units, as a share of the weight that may be wrong.
                    let wrong = s.mul(w, s.min(s.mul(sigma, s.splat(core::f32::consts::LN_2)), s.splat(1.0)));
                    light |= s.lt_bits(wrong, mass) << c;
                    far_off |= s.lt_bits(best, needle) << c;
                    s.store(centers.as_mut_ptr().add(i * BLOCK + c), raw);
                    s.store(at, s.mul(w, s.load(children.present.as_ptr().add(c))));
                }
                c += S::LANES;
            }
            sure[i] = !(light as u16) & children.bits;
            open[i] = !(far_off as u16) & children.bits | sure[i];
        }
    }
}

/// Adds up the weights of a node's cells by row, into `total` too. Rows whose sum is below `fine` need no more than the
/// node's mean value: the sum goes to `mass[places[i] * BLOCK + lane]`. The others move to the front, with their queries.
pub(crate) struct Settle<'a> {
    pub(crate) p: &'a mut [f32],
    pub(crate) rows: &'a [u16],
    pub(crate) places: &'a [u16],
    pub(crate) fine: &'a [f32],
    pub(crate) lane: usize,
    pub(crate) mass: &'a mut [f32],
    /// `[query][BLOCK]`.
    pub(crate) total: &'a mut [f32],
    pub(crate) full: &'a mut [u16],
}

impl Task for Settle<'_> {
    /// Rows at the front.
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let Settle { p, rows, places, fine, lane, mass, total, full } = self;
        let n = rows.len();
        check(rows, total.len(), BLOCK, BLOCK);
        check(places, mass.len(), BLOCK, BLOCK);
        assert!(p.len() >= n * BLOCK && full.len() >= n && places.len() == n && lane < BLOCK);
        let mut front = 0;
        for i in 0..n {
            let q = rows[i] as usize;
            let mut sum = s.splat(0.0);
            for c in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: vector c of rows of BLOCK numbers; front <= i.
                unsafe {
                    let x = s.load(p.as_ptr().add(i * BLOCK + c));
                    s.store(p.as_mut_ptr().add(front * BLOCK + c), x);
                    sum = s.add(sum, x);
                }
            }
            let sum = s.reduce_add(sum);
            full[front] = rows[i];
            let small = sum < fine[q];
            // With the node's mean value it is added up there.
            mass[places[i] as usize * BLOCK + lane] = if small { sum } else { 0.0 };
            if !small {
                total[q * BLOCK + lane] += sum;
                front += 1;
            }
        }
        front
    }
}

/// Adds to `out`, `[query][BLOCK]`, the expected square error of a weighted sum of values in which children count as one:
/// `p^2 (e^v - 1) / count` times the spread of their values, `v` the variance of their logits.
pub(crate) struct Doubt<'a> {
    pub(crate) p: &'a [f32],
    pub(crate) rows: &'a [u16],
    pub(crate) spread: &'a [f32],
    pub(crate) value_spread: &'a [f32],
    pub(crate) sigma: &'a [f32],
    pub(crate) count: f32,
    pub(crate) out: &'a mut [f32],
}

impl Task for Doubt<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Doubt { p, rows, spread, value_spread, sigma, count, out } = self;
        check(rows, out.len(), BLOCK, BLOCK);
        assert!(p.len() >= rows.len() * BLOCK && spread.len() >= BLOCK && value_spread.len() >= BLOCK);
        for (i, &row) in rows.iter().enumerate() {
            let root = s.splat(sigma[row as usize] * core::f32::consts::LN_2);
            for c in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: vector c of rows of BLOCK numbers.
                unsafe {
                    let d = s.mul(s.load(spread.as_ptr().add(c)), root);
                    // Beyond a variance of 4 the estimate is wrong by its own size anyway.
                    let v = s.min(s.mul(d, d), s.splat(4.0));
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

/// Exact weights of a cell's keys. A row's keys below `fine` share the mean value of the cell: their weight goes to
/// `mass[places[i] * BLOCK + lane]`. The others come with their own values: the rows that have some go to the front,
/// weights in place of scores, with their queries and bits in `full`.
pub(crate) struct Weigh<'a> {
    pub(crate) scores: &'a mut [f32],
    /// Queries.
    pub(crate) rows: &'a [u16],
    /// Places of the rows in the parent's list.
    pub(crate) places: &'a [u16],
    /// Which child of its parent the cell is.
    pub(crate) lane: usize,
    pub(crate) reference: &'a [f32],
    pub(crate) fine: &'a [f32],
    pub(crate) softcap: f32,
    /// `[query][BLOCK]`.
    pub(crate) sum: &'a mut [f32],
    pub(crate) mass: &'a mut [f32],
    /// What of `sum` is in `mass` too, by query.
    pub(crate) light: &'a mut [f32],
    pub(crate) full: &'a mut [[u16; 2]],
    /// Set where a key's weight leaves the range of f32, by query.
    pub(crate) lost: &'a mut [bool],
}

impl Task for Weigh<'_> {
    /// Rows at the front.
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let Weigh { scores, rows, places, lane, reference, fine, softcap, sum, mass, light, full, lost } = self;
        let n = rows.len();
        check(rows, sum.len(), BLOCK, BLOCK);
        check(places, mass.len(), BLOCK, BLOCK);
        assert!(scores.len() >= n * BLOCK && full.len() >= n && places.len() == n && lane < BLOCK);
        let mut front = 0;
        let mut i = 0;
        while i < n {
            let group = if i + 4 <= n { 4 } else { 1 };
            let mut total = [s.splat(0.0); 4];
            let mut bits = [0u32; 4];
            for r in 0..group {
                // SAFETY: rows of BLOCK numbers, as checked.
                unsafe {
                    let q = rows[i + r] as usize;
                    let at = scores.as_mut_ptr().add((i + r) * BLOCK);
                    let to = sum.as_mut_ptr().add(q * BLOCK);
                    let fits;
                    (total[r], bits[r], fits) = weigh(s, at, to, reference[q], fine[q], softcap);
                    if !fits {
                        lost[q] = true;
                    }
                }
            }
            let sums = s.reduce_add4(total);
            for r in 0..group {
                let row = rows[i + r];
                mass[places[i + r] as usize * BLOCK + lane] = sums[r];
                light[row as usize] += sums[r];
                if bits[r] != 0 {
                    full[front] = [row, bits[r] as u16];
                    for c in (0..BLOCK).step_by(S::LANES) {
                        // SAFETY: rows front <= i + r of BLOCK numbers.
                        unsafe {
                            let x = s.load(scores.as_ptr().add((i + r) * BLOCK + c));
                            s.store(scores.as_mut_ptr().add(front * BLOCK + c), x);
                        }
                    }
                    front += 1;
                }
            }
            i += group;
        }
        front
    }
}

/// One row of [`Weigh`]: the lanes' sums of the weights below `limit`, bits of the others, and whether all are in range.
///
/// # Safety
/// `BLOCK` numbers at both addresses.
#[inline(always)]
unsafe fn weigh<S: Simd>(s: S, at: *mut f32, to: *mut f32, shift: f32, limit: f32, cap: f32) -> (S::V, u32, bool) {
    let all = if S::LANES == 16 { 0xffff } else { (1 << S::LANES) - 1 };
    let (shift, limit) = (s.splat(shift), s.splat(limit));
    let mut total = s.splat(0.0);
    let (mut bits, mut fits, mut c) = (0, all, 0);
    while c < BLOCK {
        // SAFETY: vector c of the row.
        unsafe {
            let x = s.sub(capped(s, s.load(at.add(c)), cap), shift);
            fits &= s.lt_bits(x, s.splat(MOST));
            let w = s.exp2(s.min(x, s.splat(MOST)));
            bits |= (all & !s.lt_bits(w, limit)) << c;
            total = s.add(total, s.select_lt(w, limit, w, s.splat(0.0)));
            s.store(to.add(c), s.add(s.load(to.add(c)), w));
            s.store(at.add(c), w);
        }
        c += S::LANES;
    }
    (total, bits, fits == all)
}

/// `out[row] += sum over bits j of p[i * BLOCK + j] * values[ids[j]]` for `rows[i] = [row, bits]`.
pub(crate) struct AddKeys<'a> {
    pub(crate) p: &'a [f32],
    pub(crate) rows: &'a [[u16; 2]],
    pub(crate) values: &'a Rows<'a>,
    pub(crate) ids: &'a [u32],
    pub(crate) out: &'a mut [f32],
    pub(crate) stride: usize,
}

impl Task for AddKeys<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.values.dtype() {
            Dtype::F32 => self.add::<F32, S>(s),
            Dtype::F16 => self.add::<F16, S>(s),
            Dtype::Bf16 => self.add::<Bf16, S>(s),
        }
    }
}

impl AddKeys<'_> {
    #[inline(always)]
    fn add<E: Element, S: Simd>(self, s: S) {
        let cols = self.values.cols();
        assert!(self.ids.len() == BLOCK && self.ids.iter().all(|&id| (id as usize) < self.values.rows()));
        assert!(self.p.len() >= self.rows.len() * BLOCK && cols <= self.stride);
        let step = self.values.stride() / self.values.dtype().size();
        let mut from = [self.values.as_ptr().cast::<E::T>(); BLOCK];
        for (from, &id) in from.iter_mut().zip(self.ids) {
            *from = from.wrapping_add(id as usize * step);
        }
        // Values lie far apart and nobody has asked for them yet.
        let mut bits = self.rows.iter().fold(0, |all, row| all | row[1]);
        while bits != 0 {
            let j = bits.trailing_zeros() as usize & (BLOCK - 1);
            bits &= bits - 1;
            for at in (0..cols * size_of::<E::T>()).step_by(64) {
                s.prefetch(from[j].cast::<u8>().wrapping_add(at));
            }
        }
        for (p, &[row, bits]) in self.p.chunks_exact(BLOCK).zip(self.rows) {
            let out = &mut self.out[row as usize * self.stride..][..cols];
            let mut v = 0;
            // SAFETY: rows of `cols` elements of this type, vectors inside them.
            unsafe {
                while v + 4 * S::LANES <= cols {
                    keys::<E, S, 4>(s, &from, bits, p, v, out);
                    v += 4 * S::LANES;
                }
                while v + S::LANES <= cols {
                    keys::<E, S, 1>(s, &from, bits, p, v, out);
                    v += S::LANES;
                }
            }
            if v < cols {
                let (mut acc, mut bits, left) = (s.splat(0.0), bits, cols - v);
                // SAFETY: what is left of the rows.
                unsafe {
                    while bits != 0 {
                        let j = bits.trailing_zeros() as usize & (BLOCK - 1);
                        bits &= bits - 1;
                        acc = s.fma(s.splat(p[j]), E::load_partial(s, from[j].add(v), left), acc);
                    }
                    let to = out.as_mut_ptr().add(v);
                    s.store_partial(to, left, s.add(s.load_partial(to, left), acc));
                }
            }
        }
    }
}

/// `C` vectors from element `v` on of one row of [`AddKeys`].
///
/// # Safety
/// They are inside the values and the row.
#[inline(always)]
unsafe fn keys<E: Element, S: Simd, const C: usize>(
    s: S,
    from: &[*const E::T; BLOCK],
    mut bits: u16,
    p: &[f32],
    v: usize,
    out: &mut [f32],
) {
    let mut acc = [s.splat(0.0); C];
    let to = out.as_mut_ptr().wrapping_add(v);
    for c in 0..C {
        // SAFETY: inside the row.
        acc[c] = unsafe { s.load(to.add(c * S::LANES)) };
    }
    while bits != 0 {
        let j = bits.trailing_zeros() as usize & (BLOCK - 1);
        bits &= bits - 1;
        let w = s.splat(p[j]);
        for c in 0..C {
            // SAFETY: inside value j.
            acc[c] = s.fma(w, unsafe { E::load(s, from[j].add(v + c * S::LANES)) }, acc[c]);
        }
    }
    for c in 0..C {
        // SAFETY: inside the row.
        unsafe { s.store(to.add(c * S::LANES), acc[c]) };
    }
}

/// Rows by child, from the bits of every row of a list: child `c` gets the queries `rows[i]` and the places `i` of its
/// rows from `c * stride` on, and their number.
pub(crate) fn by_child(
    rows: &[u16],
    open: &[u16],
    stride: usize,
    queries: &mut [u16],
    places: &mut [u16],
) -> [usize; BLOCK] {
    assert!(rows.len() == open.len() && rows.len() <= stride && rows.len() <= 1 << 16);
    assert!(queries.len() >= BLOCK * stride && places.len() >= BLOCK * stride);
    let mut len = [0; BLOCK];
    for (place, (&row, &bits)) in rows.iter().zip(open).enumerate() {
        let mut bits = bits;
        while bits != 0 {
            let child = bits.trailing_zeros() as usize & (BLOCK - 1);
            bits &= bits - 1;
            let at = child * stride + len[child];
            // SAFETY: a child has at most as many rows as there are, so `at` is below BLOCK * stride.
            unsafe {
                *queries.get_unchecked_mut(at) = row;
                *places.get_unchecked_mut(at) = place as u16;
            }
            len[child] += 1;
        }
    }
    len
}

/// Coordinates of a node's cells or a cell's keys, and of queries.
pub(crate) struct Sift<'a> {
    /// `[RANK / 2][BLOCK][2]` in units of `unit`.
    pub(crate) keys: &'a [i8],
    pub(crate) unit: f32,
    /// Length of what the coordinates leave out.
    pub(crate) rest: f32,
    pub(crate) q: &'a [Along],
    pub(crate) softcap: f32,
    /// How far the keys of each cell reach from its mean; zeros for keys.
    pub(crate) reach: &'a [f32],
    /// Scores of the parent's children, `[place][BLOCK]`, of which this is child `lane`.
    pub(crate) centers: &'a [f32],
    /// Bits of the children that pass whatever their keys, by place.
    pub(crate) sure: &'a [u16],
    pub(crate) lane: usize,
    /// Queries, and their places in the parent's list.
    pub(crate) rows: &'a mut [u16],
    pub(crate) places: &'a mut [u16],
}

/// Coordinates of a key: whole blocks.
pub(crate) const RANK: usize = 32;

/// A query along the fitted directions: all that [`Sift`] reads of it, on neighbouring cache lines.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Along {
    /// Coordinates in units of `unit`.
    pub(crate) pairs: [[i16; 2]; RANK / 2],
    pub(crate) unit: f32,
    /// What a key may stand out per unit of `rest`.
    pub(crate) rest: f32,
    /// What a key may stand out per unit of its cell's reach.
    pub(crate) far: f32,
    /// Logit to reach.
    pub(crate) needle: f32,
}

impl Task for Sift<'_> {
    /// Rows for which a key seems to reach `needle`, moved to the front in their order.
    type Out = usize;
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> usize {
        check(self.rows, self.q.len(), 1, 1);
        check(self.places, self.centers.len().min(self.sure.len() * BLOCK), BLOCK, BLOCK);
        assert!(
            self.reach.len() >= BLOCK
                && self.places.len() == self.rows.len()
                && self.lane < BLOCK
                && self.keys.len() == BLOCK * RANK
        );
        // SAFETY: checked.
        unsafe {
            match S::LANES {
                16 => self.tiles::<S, 1, 8>(s),
                8 => self.tiles::<S, 2, 4>(s),
                4 => self.tiles::<S, 4, 4>(s),
                _ => self.tiles::<S, 16, 1>(s),
            }
        }
    }
}

impl Sift<'_> {
    /// # Safety
    /// As checked in `run`.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const C: usize, const R: usize>(&mut self, s: S) -> usize {
        let mut wide = [0i16; BLOCK * RANK];
        for (to, &x) in wide.iter_mut().zip(self.keys) {
            *to = i16::from(x);
        }
        let (n, mut front, mut i) = (self.rows.len(), 0, 0);
        // A loop that the compiler knows the length of is unrolled into more numbers than there are registers.
        let pairs = core::hint::black_box(RANK / 2).min(RANK / 2);
        // SAFETY: rows i.. are there; those at the front have been read.
        unsafe {
            while i + R <= n {
                front = self.tile::<S, C, R>(s, &wide, pairs, i, front);
                i += R;
            }
            while i < n {
                front = self.tile::<S, C, 1>(s, &wide, pairs, i, front);
                i += 1;
            }
        }
        front
    }

    /// `R` rows from list place `i` on; those that pass go to `front` on, whose end is returned.
    ///
    /// # Safety
    /// They are there; `C * LANES` is the block.
    #[inline(always)]
    unsafe fn tile<S: Simd, const C: usize, const R: usize>(
        &mut self,
        s: S,
        keys: &[i16; BLOCK * RANK],
        pairs: usize,
        i: usize,
        mut front: usize,
    ) -> usize {
        let keys: *const i32 = keys.as_ptr().cast();
        let all = if S::LANES == 16 { 0xffff } else { (1 << S::LANES) - 1 };
        let mut acc = [[s.splat_i(0); C]; R];
        let mut q = [self.q.as_ptr(); R];
        for r in 0..R {
            // SAFETY: the query is there.
            q[r] = unsafe { q[r].add(self.rows[i + r] as usize) };
        }
        for k in 0..pairs {
            let mut key = [s.splat_i(0); C];
            for c in 0..C {
                // SAFETY: pair k of the keys, vector c.
                key[c] = unsafe { s.load_i(keys.add(k * BLOCK + c * S::LANES)) };
            }
            for r in 0..R {
                // Both sides read two i16 as they lie, so the byte order does not matter.
                // SAFETY: pair k of a query.
                let q = s.splat_i(unsafe { (*q[r]).pairs.as_ptr().add(k).cast::<i32>().read_unaligned() });
                for c in 0..C {
                    acc[r][c] = s.dot16(acc[r][c], q, key[c]);
                }
            }
        }
        for r in 0..R {
            let (row, place) = (self.rows[i + r], self.places[i + r]);
            // SAFETY: as above.
            let Along { unit, rest, far, needle, .. } = unsafe { *q[r] };
            let unit = s.splat(self.unit * unit);
            let center = s.splat(self.centers[place as usize * BLOCK + self.lane] + self.rest * rest);
            let needle = s.splat(needle);
            let mut passes = self.sure[place as usize] >> self.lane & 1 != 0;
            let far = s.splat(far);
            for c in 0..C {
                // SAFETY: vector c of the block.
                let reach = unsafe { s.load(self.reach.as_ptr().add(c * S::LANES)) };
                let x = s.fma(reach, far, s.fma(s.to_f32(acc[r][c]), unit, center));
                let x = capped(s, x, self.softcap);
                passes |= s.lt_bits(x, needle) != all;
            }
            // Written always, kept where it passes: no branch to mispredict.
            self.rows[front] = row;
            self.places[front] = place;
            front += usize::from(passes);
        }
        front
    }
}

/// Rows `ids` of a matrix as they lie into `[ids][stride]`.
pub(crate) struct Gather<'a> {
    pub(crate) from: &'a Rows<'a>,
    pub(crate) ids: &'a [u32],
    pub(crate) stride: usize,
    pub(crate) out: &'a mut [f32],
}

impl Task for Gather<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let cols = self.from.cols();
        for (j, &id) in self.ids.iter().enumerate() {
            rows::widen(s, self.from, id as usize, &mut self.out[j * self.stride..][..cols]);
        }
    }
}

/// Asks for rows `ids` ahead of time.
pub(crate) struct Prefetch<'a> {
    pub(crate) from: &'a Rows<'a>,
    pub(crate) ids: &'a [u32],
}

impl Task for Prefetch<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let bytes = self.from.cols() * self.from.dtype().size();
        for &id in self.ids {
            let row = self.from.as_ptr().wrapping_add(id as usize * self.from.stride());
            for at in (0..bytes).step_by(64) {
                s.prefetch(row.wrapping_add(at));
            }
        }
    }
}

/// The same, transposed into a block; `room` holds [`BLOCK`] rows.
pub(crate) struct Transpose<'a> {
    pub(crate) from: &'a Rows<'a>,
    pub(crate) ids: &'a [u32],
    pub(crate) room: &'a mut [f32],
    pub(crate) out: &'a mut [f32],
}

impl Task for Transpose<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Transpose { from, ids, room, out } = self;
        let cols = from.cols();
        assert!(ids.len() == BLOCK && room.len() >= BLOCK * cols && out.len() >= BLOCK * cols);
        let mut at = [room.as_ptr(); BLOCK];
        for (j, &id) in ids.iter().enumerate() {
            at[j] = match from.row_f32(id as usize) {
                Some(row) => row.as_ptr(),
                None => {
                    let row = &mut room[j * cols..][..cols];
                    rows::widen(s, from, id as usize, row);
                    row.as_ptr()
                }
            };
        }
        let whole = cols / BLOCK * BLOCK;
        for k in (0..whole).step_by(BLOCK) {
            // SAFETY: every row has `cols` elements, and so many rows of the block are writable.
            unsafe { s.transpose(&at, k, out.as_mut_ptr().add(k * BLOCK)) };
        }
        for k in whole..cols {
            for j in 0..BLOCK {
                // SAFETY: k < cols.
                out[k * BLOCK + j] = unsafe { *at[j].add(k) };
            }
        }
    }
}

/// `acc[c] += sum of rows[at[i] * stride + c]`.
pub(crate) struct SumRows<'a> {
    pub(crate) rows: Matrix<'a>,
    pub(crate) at: &'a [u32],
    pub(crate) acc: &'a mut [f32],
}

impl Task for SumRows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for &i in self.at {
            let row = &self.rows.data[i as usize * self.rows.stride..][..self.rows.cols];
            kernels::axpy(s, 1.0, row, self.acc);
        }
    }
}

/// `moment[a * stride + b] += x[a] * x[b]`.
pub(crate) struct Outer<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) moment: &'a mut [f32],
}

impl Task for Outer<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (row, &a) in self.moment.chunks_exact_mut(self.stride).zip(self.x) {
            kernels::axpy(s, a, self.x, &mut row[..self.x.len()]);
        }
    }
}

/// `out[i] = sqrt(max(q_i^T moment q_i, 0) * factor)` for the first `out.len()` rows; `moment` is `[cols][stride]`, padded
/// with zeros to whole blocks like the rows of `q`.
pub(crate) struct Forms<'a> {
    pub(crate) q: Matrix<'a>,
    pub(crate) moment: &'a [f32],
    pub(crate) factor: f32,
    pub(crate) out: &'a mut [f32],
}

impl Task for Forms<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Matrix { data, stride, cols } = self.q;
        assert!(stride.is_multiple_of(BLOCK) && cols <= stride && self.moment.len() >= cols * stride);
        assert!(data.len() >= self.out.len() * stride);
        let mut i = 0;
        while i < self.out.len() {
            // SAFETY: the rows are inside.
            unsafe {
                if i + 8 <= self.out.len() {
                    self.tile::<S, 8>(s, i);
                    i += 8;
                } else {
                    self.tile::<S, 1>(s, i);
                    i += 1;
                }
            }
        }
    }
}

impl Forms<'_> {
    /// `R` rows from row `i` on.
    ///
    /// # Safety
    /// They are inside, as checked in `run`.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize>(&mut self, s: S, i: usize) {
        let Matrix { data, stride, cols } = self.q;
        let q = data.as_ptr().wrapping_add(i * stride);
        let mut total = [s.splat(0.0); R];
        let mut c = 0;
        while c < stride {
            let mut acc = [s.splat(0.0); R];
            for k in 0..cols {
                // SAFETY: row k of the moment, vector c; k < cols.
                unsafe {
                    let m = s.load(self.moment.as_ptr().add(k * stride + c));
                    for r in 0..R {
                        acc[r] = s.fma(s.splat(*q.add(r * stride + k)), m, acc[r]);
                    }
                }
            }
            for r in 0..R {
                // SAFETY: vector c of a row.
                total[r] = s.fma(acc[r], unsafe { s.load(q.add(r * stride + c)) }, total[r]);
            }
            c += S::LANES;
        }
        for r in 0..R {
            self.out[i + r] = libm::sqrtf((s.reduce_add(total[r]) * self.factor).max(0.0));
        }
    }
}
