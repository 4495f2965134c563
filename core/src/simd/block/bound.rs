//! Bounds of what estimating a cell may do to a row's output, from the coordinates of its keys.
//!
//! Of key j of a cell the logit is `s + x_j + z_j`: `s` of the mean key, `x_j` from the coordinates, and `z_j`, unknown,
//! from what these leave out. In natural units `|z_j| <= rho` and the root mean square of the `z_j` is at most `sigma`:
//! remainders are `t_j = r_j - U d_j` for residuals `r_j`, decoded coordinates `d_j` and directions `U`, so that
//!
//! ```text
//! z_j = <U^T q, U^T t_j> + <q - U U^T q, t_j>
//! rho   = |U^T q| max |U^T t_j| + |q - U U^T q| max |t_j|
//! sigma = |U^T q| max |U^T t_j| + |q - U U^T q| width,    width^2 >= largest eigenvalue of mean t_j t_j^T
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

use super::{Along, BLOCK, MOST, RANK, capped, check};
use crate::simd::Task;
use crate::simd::vector::Simd;
use core::f32::consts::{LN_2, LOG2_E};

/// What bounds of a cell are made from beside its coordinates: see the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beyond {
    /// Longest remainder, seen along the directions, with what rounding a query to 16 bits costs.
    pub(crate) inside: f32,
    /// Longest remainder.
    pub(crate) reach: f32,
    /// Root mean square of the remainders along any direction, at most.
    pub(crate) width: f32,
    /// The same of the values about their mean.
    pub(crate) value_width: f32,
    /// Length of the mean value.
    pub(crate) value: f32,
}

/// A row under proof.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Proof {
    /// Lengths of the query along the directions and off them.
    pub(crate) inside: f32,
    pub(crate) outside: f32,
    /// Logit that weights are relative to.
    pub(crate) reference: f32,
    /// A cell is opened that may be wrong by so many times its even share of what is left of the budget.
    pub(crate) share: f32,
    /// Cells that have not been looked at, this one included.
    pub(crate) left: f32,
    /// A cell is opened too when all that are not would be wrong by more together.
    pub(crate) budget: f32,
    /// What all cells that are not opened may be wrong by, roughly: for `budget`.
    pub(crate) spent: f32,
    /// Sum of the bounds of what their values do.
    pub(crate) value: f32,
    /// Sum of their masses' radii times the square length of their mean values.
    pub(crate) square: f32,
    /// What their masses may be less than estimated.
    pub(crate) excess: f32,
}

/// Children of one cell list: all rows of a node's list, in order.
pub(crate) struct Bound<'a> {
    /// `[RANK / 2][BLOCK][2]` in units of `unit`.
    pub(crate) keys: &'a [i8],
    pub(crate) unit: f32,
    /// Length of what the coordinates leave out, as in [`super::Sift`].
    pub(crate) rest: f32,
    pub(crate) beyond: Beyond,
    pub(crate) softcap: f32,
    pub(crate) q: &'a [Along],
    pub(crate) rows: &'a [u16],
    /// Scores of the node's cells `[place][BLOCK]`, of which this is `lane`.
    pub(crate) centers: &'a [f32],
    pub(crate) lane: usize,
    /// Bits of the cells that a rule may open and of those that it opens whatever their keys, by place; `None` leaves it
    /// to the bounds.
    pub(crate) rule: Option<[&'a [u16]; 2]>,
    pub(crate) proof: &'a mut [Proof],
    /// Estimated masses and their radii, `[place][BLOCK]`.
    pub(crate) mass: &'a mut [f32],
    pub(crate) radius: &'a mut [f32],
    /// Rows that open the cell, and their places.
    pub(crate) opened: &'a mut [u16],
    pub(crate) places: &'a mut [u16],
}

/// Logits, in powers of two, from their cell's mean beyond which nothing is bounded: squares stay in range.
const FAR: f32 = 60.0;

/// What is known of up to [`BLOCK`] rows.
#[repr(align(64))]
struct Lanes([f32; BLOCK]);

impl Lanes {
    const fn new() -> Lanes {
        Lanes([0.0; BLOCK])
    }
}

impl Task for Bound<'_> {
    /// Rows that open the cell.
    type Out = usize;
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> usize {
        let n = self.rows.len();
        check(self.rows, self.q.len().min(self.proof.len()), 1, 1);
        assert!(n <= 1 << 16 && self.lane < BLOCK && self.keys.len() == BLOCK * RANK);
        assert!(self.centers.len() >= n * BLOCK && self.mass.len() >= n * BLOCK && self.radius.len() >= n * BLOCK);
        assert!(self.opened.len() >= n && self.places.len() >= n);
        assert!(self.rule.is_none_or(|bits| bits.iter().all(|b| b.len() >= n)));
        let mut wide = [0i16; BLOCK * RANK];
        for (to, &x) in wide.iter_mut().zip(self.keys) {
            *to = i16::from(x);
        }
        let mut front = 0;
        for begin in (0..n).step_by(BLOCK) {
            let rows = (n - begin).min(BLOCK);
            // SAFETY: checked.
            front = unsafe {
                match S::LANES {
                    16 => self.some::<S, 1, 8>(s, &wide, begin, rows, front),
                    8 => self.some::<S, 2, 4>(s, &wide, begin, rows, front),
                    4 => self.some::<S, 4, 4>(s, &wide, begin, rows, front),
                    _ => self.some::<S, 16, 1>(s, &wide, begin, rows, front),
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
        keys: &[i16; BLOCK * RANK],
        begin: usize,
        n: usize,
        mut front: usize,
    ) -> usize {
        // Center, sum and square sum of the E, largest x; lengths inside and outside; reference.
        let mut known = [const { Lanes::new() }; 4];
        let mut i = 0;
        // SAFETY: rows begin + i are there.
        unsafe {
            while i + R <= n {
                self.tile::<S, C, R>(s, keys, begin, i, &mut known);
                i += R;
            }
            while i < n {
                self.tile::<S, C, 1>(s, keys, begin, i, &mut known);
                i += 1;
            }
        }
        let mut of = [const { Lanes::new() }; 3];
        for k in 0..n {
            let p = &self.proof[self.rows[begin + k] as usize];
            (of[0].0[k], of[1].0[k], of[2].0[k]) = (p.inside, p.outside, p.reference);
        }
        // Mass, radius, bound of the values, excess; whether anything is bounded.
        let mut done = [const { Lanes::new() }; 4];
        let mut far = 0u32;
        for c in (0..BLOCK).step_by(S::LANES) {
            // SAFETY: vector c of BLOCK numbers.
            let load = |x: &Lanes| unsafe { s.load(x.0.as_ptr().add(c)) };
            let of = [load(&of[0]), load(&of[1]), load(&of[2])];
            let (out, bits) = self.bound(s, [0, 1, 2, 3].map(|k| load(&known[k])), of);
            for (to, x) in done.iter_mut().zip(out) {
                // SAFETY: as above.
                unsafe { s.store(to.0.as_mut_ptr().add(c), x) };
            }
            far |= bits << c;
        }
        let [mass, radius, value, excess] = done;
        for k in 0..n {
            let (place, row) = (begin + k, self.rows[begin + k]);
            let p = &mut self.proof[row as usize];
            let far = far >> k & 1 != 0;
            let term = if far { f32::INFINITY } else { radius.0[k] * self.beyond.value + value.0[k] };
            let passes = match self.rule {
                Some([open, sure]) => {
                    let q = &self.q[row as usize];
                    let best = known[0].0[k] + known[3].0[k] + self.rest * q.rest;
                    let best = if self.softcap > 0.0 { scalar_cap(best, self.softcap) } else { best };
                    (sure[place] | if best >= q.needle { open[place] } else { 0 }) >> self.lane & 1 != 0
                }
                // NaN opens too.
                None => !(term * p.left < p.share * (p.budget - p.spent) && p.spent + term <= p.budget),
            };
            p.left -= 1.0;
            let at = place * BLOCK + self.lane;
            (self.mass[at], self.radius[at]) = (0.0, 0.0);
            if passes {
                (self.opened[front], self.places[front]) = (row, place as u16);
                front += 1;
                continue;
            }
            self.mass[at] = mass.0[k];
            if far {
                p.value = f32::INFINITY;
                continue;
            }
            self.radius[at] = radius.0[k];
            p.spent += term;
            p.value += value.0[k];
            p.square += radius.0[k] * (self.beyond.value * self.beyond.value);
            p.excess += excess.0[k];
        }
        front
    }

    /// Sums of `R` rows from place `begin + i` on into lanes `i..` of `known`.
    ///
    /// # Safety
    /// They are there; `C * LANES` is the block.
    #[inline(always)]
    unsafe fn tile<S: Simd, const C: usize, const R: usize>(
        &self,
        s: S,
        keys: &[i16; BLOCK * RANK],
        begin: usize,
        i: usize,
        known: &mut [Lanes; 4],
    ) {
        let keys: *const i32 = keys.as_ptr().cast();
        // A loop that the compiler knows the length of is unrolled into more numbers than there are registers.
        let pairs = core::hint::black_box(RANK / 2).min(RANK / 2);
        let mut acc = [[s.splat_i(0); C]; R];
        let mut q = [self.q.as_ptr(); R];
        for r in 0..R {
            // SAFETY: the query is there.
            q[r] = unsafe { q[r].add(self.rows[begin + i + r] as usize) };
        }
        for k in 0..pairs {
            let mut key = [s.splat_i(0); C];
            for c in 0..C {
                // SAFETY: pair k of the keys, vector c.
                key[c] = unsafe { s.load_i(keys.add(k * BLOCK + c * S::LANES)) };
            }
            for r in 0..R {
                // SAFETY: pair k of a query.
                let q = s.splat_i(unsafe { (*q[r]).pairs.as_ptr().add(k).cast::<i32>().read_unaligned() });
                for c in 0..C {
                    acc[r][c] = s.dot16(acc[r][c], q, key[c]);
                }
            }
        }
        for r in 0..R {
            let center = self.centers[(begin + i + r) * BLOCK + self.lane];
            // SAFETY: as above.
            let unit = s.splat(self.unit * unsafe { (*q[r]).unit });
            let (mut sum, mut squares, mut top) = (s.splat(0.0), s.splat(0.0), s.splat(-1e30));
            for c in 0..C {
                let mut x = s.mul(s.to_f32(acc[r][c]), unit);
                top = s.max(top, x);
                if self.softcap > 0.0 {
                    let at = s.splat(center);
                    x = s.sub(capped(s, s.add(at, x), self.softcap), capped(s, at, self.softcap));
                }
                let e = s.exp2(s.min(x, s.splat(FAR)));
                sum = s.add(sum, e);
                squares = s.fma(e, e, squares);
            }
            known[0].0[i + r] = center;
            known[1].0[i + r] = s.reduce_add(sum);
            known[2].0[i + r] = s.reduce_add(squares);
            known[3].0[i + r] = s.reduce_max(top);
        }
    }

    /// Mass, its radius, bound of the values and excess of every lane, and bits of those where there is no bound.
    #[inline(always)]
    fn bound<S: Simd>(&self, s: S, known: [S::V; 4], of: [S::V; 3]) -> ([S::V; 4], u32) {
        let [raw, sum, squares, top] = known;
        let [inside, outside, reference] = of;
        let b = &self.beyond;
        let natural = |a: f32, x: f32| s.mul(s.fma(inside, s.splat(a), s.mul(outside, s.splat(x))), s.splat(LN_2));
        let (rho, sigma) = (natural(b.inside, b.reach), natural(b.inside, b.width));
        let center = capped(s, raw, self.softcap);
        let best = s.sub(capped(s, s.add(raw, top), self.softcap), center);
        let weight = s.sub(center, reference);
        let all = if S::LANES == 16 { 0xffff } else { (1 << S::LANES) - 1 };
        let mut near = s.lt_bits(top, s.splat(FAR)) & s.lt_bits(weight, s.splat(MOST));
        near &= s.lt_bits(rho, s.splat(FAR * LN_2));
        let rho_near = s.min(rho, s.splat(FAR * LN_2));
        // In powers of two, below 160.
        let grow = s.mul(s.fma(rho_near, s.splat(1.0 / 12.0), s.splat(1.0)), s.mul(rho_near, s.splat(0.5 * LOG2_E)));
        near &= s.lt_bits(grow, s.splat(MOST));
        let f = s.exp2(s.min(grow, s.splat(MOST)));
        let share = s.splat(1.0 / BLOCK as f32);
        let (mean, square) = (s.mul(sum, share), s.mul(squares, share));
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
        let count = s.mul(s.exp2(s.min(weight, s.splat(MOST))), s.splat(BLOCK as f32));
        let out = [mass, radius, s.mul(value, s.splat(b.value_width)), excess].map(|x| s.mul(x, count));
        (out, all & !near)
    }
}

fn scalar_cap(x: f32, cap: f32) -> f32 {
    cap * libm::tanhf(x / cap)
}
