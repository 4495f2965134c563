//! Unit directions of the simple indices and the projections of keys and queries onto them.

use super::Lift;
use crate::math::hash;
use crate::mem::{Buf, Maker};
use crate::simd::Isa;
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// `lists` random unit vectors u (paper, Algorithm 2) of `dim` elements, plus one for the lifted coordinate when there is
/// a lift. Direction i depends on the seed and i alone.
pub struct Projector {
    dim: usize,
    lifted: bool,
    /// `lists x dim`, row-major.
    rows: Buf<f32>,
    /// The lifted coordinate of each direction; empty without a lift.
    last: Buf<f32>,
    isa: Isa,
}

/// Cosine and sine of `v` turns, `v` in [0, 1), by their series within an eighth of a turn. Own code for its size: general
/// argument reduction takes more room than all the rest of this file.
fn circle(v: f64) -> [f64; 2] {
    let quarters = (4.0 * v + 0.5) as u32;
    // Exact: both are multiples of the same power of two.
    let x = core::f64::consts::TAU * (v - f64::from(quarters) * 0.25);
    let series = |first: u32| {
        (0..9).rev().fold(1.0, |sum, k| {
            let n = f64::from(first + 2 * k);
            1.0 - sum * (x * x) / (n * (n + 1.0))
        })
    };
    let (cos, sin) = (series(1), x * series(2));
    match quarters % 4 {
        0 => [cos, sin],
        1 => [-sin, cos],
        2 => [-cos, -sin],
        _ => [sin, -cos],
    }
}

/// Two independent standard normal numbers (Box-Muller).
fn gaussians(rng: &mut Xoshiro256PlusPlus) -> [f64; 2] {
    const STEP: f64 = 1.0 / (1u64 << 53) as f64;
    // (0, 1], so that the logarithm is finite.
    let u = ((rng.next_u64() >> 11) + 1) as f64 * STEP;
    let v = (rng.next_u64() >> 11) as f64 * STEP;
    let r = libm::sqrt(-2.0 * libm::log(u));
    let [cos, sin] = circle(v);
    [r * cos, r * sin]
}

impl Projector {
    /// Room for `lists` directions: [`draw`](Projector::draw) draws them.
    pub(crate) fn made(m: &mut Maker<'_>, lists: usize, dim: usize, lifted: bool, isa: Isa) -> Self {
        let rows = m.filled(lists.saturating_mul(dim), 0.0);
        Projector { dim, lifted, rows, last: m.filled(if lifted { lists } else { 0 }, 0.0), isa }
    }

    /// Draws the directions. O(lists x dim).
    pub(crate) fn draw(&mut self, seed: u64) {
        let Projector { dim, lifted, rows, last, .. } = self;
        let (dim, lifted, lists) = (*dim, *lifted, rows.len() / *dim);
        for i in 0..lists {
            let row = &mut rows[i * dim..][..dim];
            // A zero vector has probability zero, but a loop costs nothing.
            for attempt in 0u64.. {
                let mut rng = Xoshiro256PlusPlus::seed_from_u64(hash(seed, (attempt << 32) | i as u64));
                let mut norm2 = 0.0f64;
                let mut pair = [0.0; 2];
                let mut next = |j: usize| {
                    if j.is_multiple_of(2) {
                        pair = gaussians(&mut rng);
                    }
                    norm2 += pair[j % 2] * pair[j % 2];
                    pair[j % 2] as f32
                };
                row.iter_mut().enumerate().for_each(|(j, x)| *x = next(j));
                let top = if lifted { next(dim) } else { 0.0 };
                if norm2 > 0.0 {
                    let inverse = (1.0 / libm::sqrt(norm2)) as f32;
                    row.iter_mut().for_each(|x| *x *= inverse);
                    if let Some(last) = last.get_mut(i) {
                        *last = top * inverse;
                    }
                    break;
                }
            }
        }
    }

    /// Projections of a key, unscaled: `<k, u> + u_last sqrt(c^2 - |k|^2)`, that is c times the paper's `<T_K(k), u>`.
    /// `norm2` is the key's [`Lift::norm2`]. O(lists x dim), never allocates.
    pub fn key(&self, key: &[f32], norm2: f32, lift: &Lift, out: &mut [f32]) {
        self.isa.dots(&self.rows, self.dim, key, out);
        if self.lifted {
            let height = lift.height(norm2);
            out.iter_mut().zip(self.last.iter()).for_each(|(p, &u)| *p += u * height);
        }
        // One zero only, so that equal projections have equal bits.
        out.iter_mut().for_each(|p| *p += 0.0);
    }

    /// Projections of a query on the same scale: `c <q / |q|, u>` with a lift (c times the paper's `<T_Q(q), u>`; a zero
    /// query projects to 0), `<q, u>` without. O(lists x dim), never allocates.
    pub fn query(&self, query: &[f32], lift: &Lift, out: &mut [f32]) {
        self.isa.dots(&self.rows, self.dim, query, out);
        if self.lifted {
            let norm = libm::sqrtf(Lift::norm2(query));
            let factor = if norm > 0.0 { lift.bound() / norm } else { 0.0 };
            out.iter_mut().for_each(|p| *p *= factor);
        }
        out.iter_mut().for_each(|p| *p += 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::circle;

    #[test]
    fn circle_is_cosine_and_sine() {
        for i in 0..10_000u32 {
            let v = f64::from(i) / 10_000.0;
            let angle = core::f64::consts::TAU * v;
            let [cos, sin] = circle(v);
            assert!((cos - libm::cos(angle)).abs() < 2e-15 && (sin - libm::sin(angle)).abs() < 2e-15, "{v}");
        }
        assert_eq!([0.0, 0.25, 0.5, 0.75].map(circle), [[1.0, 0.0], [-0.0, 1.0], [-1.0, -0.0], [0.0, -1.0]]);
    }
}
