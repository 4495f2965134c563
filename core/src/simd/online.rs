//! The softmax between the two products: masks, maxima and exponentials over scores `[keys][PANEL]`.

use super::tile::PANEL;
use super::vector::Simd;

/// Largest score of every lane in the first `vecs` vectors.
#[inline(always)]
pub(crate) fn maxima<S: Simd>(s: S, scores: &[f32], keys: usize, vecs: usize, max: &mut [f32; PANEL]) {
    assert!(scores.len() >= keys * PANEL && vecs * S::LANES <= PANEL);
    for v in 0..vecs {
        let mut m = s.splat(f32::NEG_INFINITY);
        for j in 0..keys {
            // SAFETY: key j and vector v are inside.
            m = s.max(m, unsafe { s.load(scores.as_ptr().add(j * PANEL + v * S::LANES)) });
        }
        // SAFETY: vector v is inside.
        unsafe { s.store(max.as_mut_ptr().add(v * S::LANES), m) };
    }
}

/// Key limits per lane, relative to the block: visible are `j < sinks` and `begin <= j < end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) sinks: [f32; PANEL],
    pub(crate) begin: [f32; PANEL],
    pub(crate) end: [f32; PANEL],
}

/// Sets scores that are not visible to -inf; row 0 of `scores` is key `first` of the block.
#[inline(always)]
pub(crate) fn hide<S: Simd>(s: S, scores: &mut [f32], first: usize, keys: usize, vecs: usize, limits: &Limits) {
    assert!(scores.len() >= keys * PANEL && vecs * S::LANES <= PANEL);
    let none = s.splat(f32::NEG_INFINITY);
    for v in 0..vecs {
        let lane = v * S::LANES;
        // SAFETY: vector v is inside a panel.
        let (sinks, begin, end) = unsafe {
            (
                s.load(limits.sinks.as_ptr().add(lane)),
                s.load(limits.begin.as_ptr().add(lane)),
                s.load(limits.end.as_ptr().add(lane)),
            )
        };
        for j in 0..keys {
            let at = s.splat((first + j) as f32);
            // SAFETY: key j and vector v are inside.
            unsafe {
                let p = scores.as_mut_ptr().add(j * PANEL + lane);
                let x = s.load(p);
                let main = s.select_lt(at, begin, none, s.select_lt(at, end, x, none));
                s.store(p, s.select_lt(at, sinks, x, main));
            }
        }
    }
}

/// Running state of a panel's queries.
pub(crate) struct State<'a> {
    /// Largest score so far.
    pub(crate) max: &'a mut [f32],
    /// Sum of the weights so far, relative to the largest.
    pub(crate) sum: &'a mut [f32],
    /// Out: factor for what was summed before.
    pub(crate) alpha: &'a mut [f32; PANEL],
}

/// Turns the scores into weights `2^((score - max) c)`, updating the state with the block's maxima; `c > 0`.
#[inline(always)]
pub(crate) fn weights<S: Simd>(
    s: S,
    scores: &mut [f32],
    keys: usize,
    vecs: usize,
    c: f32,
    block_max: &[f32; PANEL],
    state: &mut State<'_>,
) {
    let mut v = 0;
    while v < vecs {
        let n = (vecs - v).min(3);
        match n {
            3 => weights_of::<S, 3>(s, scores, keys, v, c, block_max, state),
            2 => weights_of::<S, 2>(s, scores, keys, v, c, block_max, state),
            _ => weights_of::<S, 1>(s, scores, keys, v, c, block_max, state),
        }
        v += n;
    }
}

/// `C` vectors from vector `v` on, interleaved so that the chains of one hide in the others.
#[inline(always)]
fn weights_of<S: Simd, const C: usize>(
    s: S,
    scores: &mut [f32],
    keys: usize,
    v: usize,
    c: f32,
    block_max: &[f32; PANEL],
    state: &mut State<'_>,
) {
    let lane = v * S::LANES;
    let end = lane + C * S::LANES;
    assert!(scores.len() >= keys * PANEL && end <= PANEL && state.max.len() >= end && state.sum.len() >= end);
    let factor = s.splat(c);
    let zero = s.splat(0.0);
    let mut base = [zero; C];
    let mut sum = [zero; C];
    let mut alpha = [zero; C];
    for i in 0..C {
        let at = lane + i * S::LANES;
        // SAFETY: the lanes are inside all arrays.
        unsafe {
            let before = s.load(state.max.as_ptr().add(at));
            let now = s.max(before, s.load(block_max.as_ptr().add(at)));
            s.store(state.max.as_mut_ptr().add(at), now);
            // A lane that has seen nothing yet is compared with 0, so that -inf minus -inf never happens.
            base[i] = s.select_lt(now, s.splat(f32::MIN), zero, now);
            alpha[i] = s.exp2_scaled(s.sub(before, base[i]), factor);
            s.store(state.alpha.as_mut_ptr().add(at), alpha[i]);
        }
    }
    let mut p = scores.as_mut_ptr().wrapping_add(lane);
    for _ in 0..keys {
        for i in 0..C {
            // SAFETY: the key's row of scores is inside.
            unsafe {
                let at = p.add(i * S::LANES);
                // The difference first: it is exact where it matters, however large the scores are.
                let e = s.exp2_scaled(s.sub(s.load(at), base[i]), factor);
                s.store(at, e);
                sum[i] = s.add(sum[i], e);
            }
        }
        p = p.wrapping_add(PANEL);
    }
    for i in 0..C {
        // SAFETY: the lanes are inside.
        unsafe {
            let at = state.sum.as_mut_ptr().add(lane + i * S::LANES);
            s.store(at, s.fma(s.load(at), alpha[i], sum[i]));
        }
    }
}
