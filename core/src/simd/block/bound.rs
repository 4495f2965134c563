//! Bounds of what estimating a cell may do to a row's output, from the coordinates of its keys.
//!
//! Of key j of a cell the logit is `s + x_j + z_j`: `s` of the mean key, `x_j` from the coordinates, and `z_j`, unknown,
//! from what rounding takes away. In natural units `|z_j| <= rho` and the root mean square of the `z_j` is at most `sigma`:
//! remainders are `t_j = r_j - d_j` for residuals `r_j` and decoded coordinates `d_j`, the query in bytes is `q - p`, so that
//!
//! ```text
//! z_j = <p, d_j> + <q, t_j>
//! rho   = |p| max |d_j| + |q| max |t_j|
//! sigma = |p| max |d_j| + |q| width,    width^2 >= largest eigenvalue of mean t_j t_j^T
//! ```
//!
//! With `E_j = e^x_j`, averages over the keys, `|e^z - 1| <= f |z|`, `f = (e^rho - 1) / rho <= e^(rho / 2 + rho^2 / 24)`:
//!
//! 1. mass over `count e^s`: within `f min(E2 sigma, mean E rho)` of `mean E`, `E2` the root mean square, and at least 1
//!    (Jensen: the logits' mean is `s`);
//! 2. values: `|sum (e^l_j - a) (v_j - mean v)| <= |e^l - a| |V|` for any `a`; with `a = e^s mean E` over `count e^s` at most
//!    `(deviation of E + f min(E2 rho, max E sigma)) value_width`, `value_width^2 >= ` largest eigenvalue of the
//!    covariance of the values.
//!
//! A softcap c replaces `l` by `c tanh(l / c)`: differences only shrink, but the mean moves, so that there is no Jensen.

use super::coords::{Bytes, Coded, products};
use super::{BLOCK, MOST, capped, check};
use crate::simd::Task;
use crate::simd::vector::Simd;
use core::f32::consts::{LN_2, LOG2_E};

/// What bounds of a cell are made from beside its coordinates: see the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beyond {
    /// Longest decoded residual.
    pub(crate) decoded: f32,
    /// Longest remainder.
    pub(crate) reach: f32,
    /// Root mean square of the remainders along any direction, at most.
    pub(crate) width: f32,
    /// The same of the values about their mean.
    pub(crate) value_width: f32,
    /// Length of the mean value.
    pub(crate) value: f32,
}

/// Rows under proof, in the order of the list; all padded to whole blocks.
pub(crate) struct Proofs<'a> {
    /// Lengths of what rounding the query takes away, and of the query.
    pub(crate) lost: &'a [f32],
    pub(crate) length: &'a [f32],
    /// Logit that weights are relative to.
    pub(crate) reference: &'a [f32],
    /// A cell is opened when all that are not would be wrong by more together.
    pub(crate) budget: &'a [f32],
    /// What all cells that are not opened may be wrong by, roughly: for `budget`.
    pub(crate) spent: &'a mut [f32],
    /// Sum of the bounds of what their values do.
    pub(crate) value: &'a mut [f32],
    /// Sum of their masses' radii times the square length of their mean values.
    pub(crate) square: &'a mut [f32],
    /// What their masses may be less than estimated.
    pub(crate) excess: &'a mut [f32],
}

/// What opens a cell for a row.
#[derive(Clone, Copy)]
pub(crate) enum Opening<'a> {
    /// Bits of the cells that may be opened for their keys, and of those that are whatever their keys, by place.
    Rule(&'a [u16], &'a [u16]),
    /// That it may be wrong by `share` times its part of what is left of the row's budget, `left` cells to share it.
    Budget { share: f32, left: f32 },
}

/// One cell for all rows of its node's list.
pub(crate) struct Bound<'a> {
    pub(crate) keys: Coded<'a>,
    pub(crate) beyond: Beyond,
    pub(crate) softcap: f32,
    pub(crate) q: Bytes<'a>,
    pub(crate) rows: &'a [u16],
    /// Scores of the node's cells `[place][BLOCK]`, of which this is `lane`.
    pub(crate) centers: &'a [f32],
    pub(crate) lane: usize,
    pub(crate) opening: Opening<'a>,
    pub(crate) proofs: Proofs<'a>,
    /// Estimated masses and their radii, `[place][BLOCK]`.
    pub(crate) mass: &'a mut [f32],
    pub(crate) radius: &'a mut [f32],
    /// Rows that open the cell, and their places.
    pub(crate) opened: &'a mut [u16],
    pub(crate) places: &'a mut [u16],
}

/// Logits, in powers of two, from their cell's mean beyond which nothing is bounded: squares stay in range.
const FAR: f32 = 60.0;

/// Numbers of up to [`BLOCK`] rows.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Lanes([f32; BLOCK]);

impl Lanes {
    #[inline(always)]
    fn load<S: Simd>(&self, s: S, c: usize) -> S::V {
        assert!(c + S::LANES <= BLOCK);
        // SAFETY: checked.
        unsafe { s.load(self.0.as_ptr().add(c)) }
    }

    #[inline(always)]
    fn store<S: Simd>(&mut self, s: S, c: usize, x: S::V) {
        assert!(c + S::LANES <= BLOCK);
        // SAFETY: checked.
        unsafe { s.store(self.0.as_mut_ptr().add(c), x) }
    }
}

const ZERO: Lanes = Lanes([0.0; BLOCK]);

/// What is known of the rows of a vector.
struct Known<V> {
    center: V,
    /// Largest x, sum of the E, sum of their squares.
    top: V,
    sum: V,
    squares: V,
}

/// Mass, its radius, bound of the values and excess; bits of the lanes where they hold.
struct Bounded<V> {
    mass: V,
    radius: V,
    value: V,
    excess: V,
    near: u32,
}

impl Task for Bound<'_> {
    /// Rows that open the cell.
    type Out = usize;
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> usize {
        let n = self.rows.len();
        let padded = n.next_multiple_of(BLOCK);
        check(self.rows, self.q.of.len(), 1, 1);
        let words = self.keys.words.len() / BLOCK;
        self.q.check(words);
        assert!(n <= 1 << 16 && self.lane < BLOCK);
        assert!(self.centers.len() >= n * BLOCK && self.mass.len() >= n * BLOCK && self.radius.len() >= n * BLOCK);
        assert!(self.opened.len() >= n && self.places.len() >= n);
        let p = &self.proofs;
        for x in [p.lost, p.length, p.reference, p.budget, p.spent, p.value, p.square, p.excess] {
            assert!(x.len() >= padded);
        }
        if let Opening::Rule(open, sure) = self.opening {
            assert!(open.len() >= n && sure.len() >= n);
        }
        let coarsest = self.keys.coarsest();
        let mut front = 0;
        for begin in (0..n).step_by(BLOCK) {
            let rows = (n - begin).min(BLOCK);
            // SAFETY: checked.
            front = unsafe {
                match S::LANES {
                    16 => self.some::<S, 1, 8>(s, coarsest, begin, rows, front),
                    8 => self.some::<S, 2, 4>(s, coarsest, begin, rows, front),
                    4 => self.some::<S, 4, 4>(s, coarsest, begin, rows, front),
                    _ => self.some::<S, 16, 1>(s, coarsest, begin, rows, front),
                }
            };
        }
        front
    }
}

impl Bound<'_> {
    /// `n <= BLOCK` rows from place `begin` on; those that open the cell go to `front` on, whose end is returned.
    ///
    /// # Safety
    /// As checked in `run`; `C * LANES` is the block.
    #[inline(always)]
    unsafe fn some<S: Simd, const C: usize, const R: usize>(
        &mut self,
        s: S,
        coarsest: f32,
        begin: usize,
        n: usize,
        front: usize,
    ) -> usize {
        // By row, then by key: sums over keys are then sums of vectors.
        let (mut by_row, mut by_key) = ([ZERO; BLOCK], [ZERO; BLOCK]);
        let mut i = 0;
        // SAFETY: rows begin + i are there.
        unsafe {
            while i + R <= n {
                self.tile::<S, C, R>(s, begin + i, &mut by_row[i..]);
                i += R;
            }
            while i < n {
                self.tile::<S, C, 1>(s, begin + i, &mut by_row[i..]);
                i += 1;
            }
            let rows = core::array::from_fn(|i| by_row[i].0.as_ptr());
            s.transpose(&rows, 0, by_key.as_mut_ptr().cast());
        }
        let (mut center, mut top) = (ZERO, ZERO);
        for k in 0..n {
            center.0[k] = self.centers[(begin + k) * BLOCK + self.lane];
        }
        let [mut mass, mut radius, mut value, mut excess] = [ZERO; 4];
        let (mut near, mut keep) = (0, 0);
        for c in (0..BLOCK).step_by(S::LANES) {
            let known = self.sum(s, &by_key, c, center.load(s, c));
            let b = self.bound(s, begin + c, &known);
            top.store(s, c, known.top);
            mass.store(s, c, b.mass);
            radius.store(s, c, b.radius);
            value.store(s, c, b.value);
            excess.store(s, c, b.excess);
            near |= b.near << c;
            if let Opening::Budget { share, left } = self.opening {
                let term = s.fma(b.radius, s.splat(self.beyond.value), b.value);
                // SAFETY: vector of padded rows.
                let [budget, spent] = [self.proofs.budget.as_ptr(), self.proofs.spent.as_ptr()]
                    .map(|x| unsafe { s.load(x.add(begin + c)) });
                let part = s.mul(s.sub(budget, spent), s.splat(share));
                // What is not a number is opened.
                let small = s.lt_bits(s.mul(term, s.splat(left)), part) & s.lt_bits(s.add(spent, term), budget);
                keep |= (b.near & small) << c;
            }
        }
        if let Opening::Rule(open, sure) = self.opening {
            for k in 0..n {
                let q = &self.q.of[self.rows[begin + k] as usize];
                let best = center.0[k] + top.0[k] + coarsest * q.slack;
                let best = if self.softcap > 0.0 { self.softcap * libm::tanhf(best / self.softcap) } else { best };
                let bits = sure[begin + k] | if best >= q.needle { open[begin + k] } else { 0 };
                keep |= u32::from(bits >> self.lane & 1 == 0) << k;
            }
        }
        // SAFETY: rows begin.. are padded to a block.
        unsafe { self.add(s, begin, keep & near, [&radius, &value, &excess]) };
        let mut front = front;
        for k in 0..n {
            let (kept, place) = (keep >> k & 1 != 0, begin + k);
            let at = place * BLOCK + self.lane;
            self.mass[at] = if kept { mass.0[k] } else { 0.0 };
            self.radius[at] = if kept && near >> k & 1 != 0 { radius.0[k] } else { 0.0 };
            if kept && near >> k & 1 == 0 {
                self.proofs.value[place] = f32::INFINITY;
            }
            // Written always, kept where it is opened: no branch to mispredict.
            // front <= place: inside.
            (self.opened[front], self.places[front]) = (self.rows[place], place as u16);
            front += usize::from(!kept);
        }
        front
    }

    /// Coordinates' parts of the logits of `R` rows from place `i` on, by row.
    ///
    /// # Safety
    /// They are there; `C * LANES` is the block.
    #[inline(always)]
    unsafe fn tile<S: Simd, const C: usize, const R: usize>(&self, s: S, i: usize, out: &mut [Lanes]) {
        let words = self.keys.words.len() / BLOCK;
        let mut q = [self.q.codes.as_ptr(); R];
        for r in 0..R {
            // SAFETY: the query is there.
            q[r] = unsafe { q[r].add(self.rows[i + r] as usize * 2 * words) };
        }
        // SAFETY: words of the block, numbers of queries.
        let acc = unsafe { products::<S, C, R>(s, self.keys.words.as_ptr(), words, q) };
        for r in 0..R {
            let along = &self.q.of[self.rows[i + r] as usize];
            for c in 0..C {
                // SAFETY: vector c of the block's steps.
                let unit = unsafe { s.load_bf16(self.keys.unit.as_ptr().add(c * S::LANES).cast()) };
                let x = s.fma(s.to_f32(acc[r][c]), s.splat(along.unit), s.splat(along.zero));
                out[r].store(s, c * S::LANES, s.mul(x, unit));
            }
        }
    }

    /// Sums over the keys of the rows in lanes `c..`.
    #[inline(always)]
    fn sum<S: Simd>(&self, s: S, by_key: &[Lanes; BLOCK], c: usize, center: S::V) -> Known<S::V> {
        let (mut sum, mut squares, mut top) = (s.splat(0.0), s.splat(0.0), s.splat(-1e30));
        let from = capped(s, center, self.softcap);
        for x in by_key {
            let mut x = x.load(s, c);
            top = s.max(top, x);
            if self.softcap > 0.0 {
                x = s.sub(capped(s, s.add(center, x), self.softcap), from);
            }
            let e = s.exp2(s.min(x, s.splat(FAR)));
            sum = s.add(sum, e);
            squares = s.fma(e, e, squares);
        }
        Known { center, top, sum, squares }
    }

    /// Bounds of the rows in lanes `at..` of the list.
    #[inline(always)]
    fn bound<S: Simd>(&self, s: S, at: usize, known: &Known<S::V>) -> Bounded<S::V> {
        let (b, p) = (&self.beyond, &self.proofs);
        // SAFETY: vector of padded rows, checked in `run`.
        let [lost, length, reference] = [p.lost, p.length, p.reference].map(|x| unsafe { s.load(x.as_ptr().add(at)) });
        let off = s.mul(lost, s.splat(b.decoded));
        let natural = |x: f32| s.mul(s.fma(length, s.splat(x), off), s.splat(LN_2));
        let (rho, sigma) = (natural(b.reach), natural(b.width));
        let center = capped(s, known.center, self.softcap);
        let best = s.sub(capped(s, s.add(known.center, known.top), self.softcap), center);
        let weight = s.sub(center, reference);
        let mut near = s.lt_bits(known.top, s.splat(FAR)) & s.lt_bits(weight, s.splat(MOST));
        // f, in powers of two.
        let rho_near = s.min(rho, s.splat(FAR * LN_2));
        let grow = s.mul(s.fma(rho_near, s.splat(1.0 / 12.0), s.splat(1.0)), s.mul(rho_near, s.splat(0.5 * LOG2_E)));
        near &= s.lt_bits(rho, s.splat(FAR * LN_2)) & s.lt_bits(grow, s.splat(MOST));
        let f = s.exp2(s.min(grow, s.splat(MOST)));
        let share = s.splat(1.0 / BLOCK as f32);
        let (mean, square) = (s.mul(known.sum, share), s.mul(known.squares, share));
        let root = s.sqrt(square);
        // Four roundings of the square stay, whatever the difference leaves.
        let rounding = s.mul(square, s.splat(4.0 * f32::EPSILON));
        let deviation = s.sqrt(s.add(s.max(s.sub(square, s.mul(mean, mean)), s.splat(0.0)), rounding));
        let largest = s.exp2(s.min(best, s.splat(FAR)));
        let wrong = s.mul(f, s.min(s.mul(root, sigma), s.mul(mean, rho)));
        let least = s.splat(if self.softcap > 0.0 { 0.0 } else { 1.0 });
        let low = s.max(s.sub(mean, wrong), least);
        let mass = s.max(mean, low);
        let high = s.max(s.add(mean, wrong), mass);
        let excess = s.sub(mass, low);
        let radius = s.max(s.sub(high, mass), excess);
        let value = s.fma(f, s.min(s.mul(root, rho), s.mul(largest, sigma)), deviation);
        let value = s.mul(value, s.splat(b.value_width));
        let count = s.mul(s.exp2(s.min(weight, s.splat(MOST))), s.splat(BLOCK as f32));
        let [mass, radius, value, excess] = [mass, radius, value, excess].map(|x| s.mul(x, count));
        Bounded { mass, radius, value, excess, near }
    }

    /// Adds what the rows whose bits are set keep closed to their sums, from row `begin` of the list on.
    ///
    /// # Safety
    /// There are rows for a whole block.
    #[inline(always)]
    unsafe fn add<S: Simd>(&mut self, s: S, begin: usize, keep: u32, of: [&Lanes; 3]) {
        let mut kept = ZERO;
        for (k, x) in kept.0.iter_mut().enumerate() {
            *x = (keep >> k & 1) as f32;
        }
        let [radius, value, excess] = of;
        let length = self.beyond.value;
        for c in (0..BLOCK).step_by(S::LANES) {
            let kept = kept.load(s, c);
            let part = |x: S::V| s.select_lt(s.splat(0.5), kept, x, s.splat(0.0));
            let (radius, value, excess) = (part(radius.load(s, c)), part(value.load(s, c)), part(excess.load(s, c)));
            let add = |to: &mut [f32], x: S::V| {
                // SAFETY: vector c of the block.
                unsafe {
                    let at = to.as_mut_ptr().add(begin + c);
                    s.store(at, s.add(s.load(at), x));
                }
            };
            add(self.proofs.spent, s.fma(radius, s.splat(length), value));
            add(self.proofs.value, value);
            add(self.proofs.square, s.mul(radius, s.splat(length * length)));
            add(self.proofs.excess, excess);
        }
    }
}
