//! From scores of means to estimates, and to what has to be opened.

use super::{BLOCK, MOST, capped, check};
use crate::simd::Task;
use crate::simd::math;
use crate::simd::vector::Simd;

/// What is known of every query of a block, in powers of two: logits are `score * scale * log2(e)`, which the queries
/// carry already.
#[derive(Clone, Copy)]
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

/// Spread, in powers of two, beyond which a mean says nothing.
pub(super) const SPREAD: f32 = 17.3;

/// `2 cosh(sigma)` of a spread in powers of two, by its series up to the sixth power: 2 % short at 3 natural units, and an
/// estimate is worth little beyond.
#[inline(always)]
pub(super) fn twice_cosh<S: Simd>(s: S, sigma: S::V) -> S::V {
    const V: f32 = core::f32::consts::LN_2 * core::f32::consts::LN_2;
    let v = s.mul(sigma, sigma);
    let p = s.fma(v, s.splat(V * V * V / 360.0), s.splat(V * V / 12.0));
    s.fma(v, s.fma(v, p, s.splat(V)), s.splat(2.0))
}

/// Logit of a child's mean and one standard deviation of its keys, with what `softcap` makes of them.
#[inline(always)]
pub(super) fn center<S: Simd>(s: S, x: S::V, sigma: S::V, cap: f32) -> (S::V, S::V) {
    if cap > 0.0 {
        let t = math::tanh(s, s.mul(x, s.splat(1.0 / cap)));
        let slope = s.sub(s.splat(1.0), s.mul(t, t));
        return (s.mul(t, s.splat(cap)), s.mul(sigma, slope));
    }
    (x, sigma)
}

/// What one query asks of children, in every lane.
#[derive(Clone, Copy)]
pub(super) struct Asked<V> {
    /// Standard deviation of a logit per unit of spread, and what the farthest key may stand out per unit of reach.
    pub(super) root: V,
    pub(super) far: V,
    /// Added to a mean's logit: half of the keys, relative to the query's reference.
    pub(super) shift: V,
    pub(super) needle: V,
    pub(super) mass: V,
}

/// Estimated weights of a vector of children, from the scores of their means, with bits of those that are too light to be opened
/// for their mass, and of those whose farthest key is no needle.
#[inline(always)]
pub(super) fn judge<S: Simd>(
    s: S,
    raw: S::V,
    reach: S::V,
    spread: S::V,
    of: Asked<S::V>,
    cap: f32,
) -> (S::V, u32, u32) {
    let best = capped(s, s.fma(reach, of.far, raw), cap);
    let (x, sigma) = center(s, raw, s.mul(spread, of.root), cap);
    let sigma = s.min(sigma, s.splat(SPREAD));
    let w = s.mul(s.exp2(s.min(s.add(x, of.shift), s.splat(MOST))), twice_cosh(s, sigma));
    // The spread in natural units, as a share of the weight that may be wrong.
    let wrong = s.mul(w, s.min(s.mul(sigma, s.splat(core::f32::consts::LN_2)), s.splat(1.0)));
    (w, s.lt_bits(wrong, of.mass), s.lt_bits(best, of.needle))
}

/// Which children each row of a list may have to open, as bits, and which of them for their mass; estimated weights of all.
pub(crate) struct Choose<'a> {
    /// Scores of the children's means, `[place][BLOCK]`.
    pub(crate) centers: &'a [f32],
    pub(crate) rows: &'a [u16],
    pub(crate) children: Children<'a>,
    pub(crate) limits: Limits<'a>,
    pub(crate) weights: &'a mut [f32],
    pub(crate) open: &'a mut [u16],
    /// Opened for the mass: see [`Sift`].
    pub(crate) sure: &'a mut [u16],
}

impl Task for Choose<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Choose { centers, rows, children, limits, weights, open, sure } = self;
        let n = rows.len();
        let queries = limits.sigma.len().min(limits.reference.len()).min(limits.needle.len()).min(limits.mass.len());
        check(rows, queries, 1, 1);
        assert!(centers.len() >= n * BLOCK);
        assert!(weights.len() >= n * BLOCK && open.len() >= n && sure.len() >= n);
        assert!(children.spread.len() >= BLOCK && children.reach.len() >= BLOCK);
        let count = children.log2_count - 1.0;
        let cap = limits.softcap;
        for i in 0..n {
            let q = rows[i] as usize;
            let asked = Asked {
                root: s.splat(limits.sigma[q]),
                far: s.splat(limits.sigma[q] * limits.stand_out),
                shift: s.splat(count - limits.reference[q]),
                needle: s.splat(limits.needle[q]),
                mass: s.splat(limits.mass[q]),
            };
            let (mut light, mut far_off, mut c) = (0, 0, 0);
            while c < BLOCK {
                // SAFETY: vector c of rows of BLOCK numbers that are inside.
                unsafe {
                    let raw = s.load(centers.as_ptr().add(i * BLOCK + c));
                    let reach = s.load(children.reach.as_ptr().add(c));
                    let spread = s.load(children.spread.as_ptr().add(c));
                    let (w, is_light, is_far_off) = judge(s, raw, reach, spread, asked, cap);
                    light |= is_light << c;
                    far_off |= is_far_off << c;
                    let at = weights.as_mut_ptr().add(i * BLOCK + c);
                    s.store(at, s.mul(w, s.load(children.present.as_ptr().add(c))));
                }
                c += S::LANES;
            }
            sure[i] = !(light as u16) & children.bits;
            open[i] = !(far_off as u16) & children.bits | sure[i];
        }
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
