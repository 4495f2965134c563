//! The softmax between the two products: masks, maxima and exponentials over scores `[keys][PANEL]`.

use super::tile::PANEL;
use super::vector::Simd;

/// Raises `max` to the largest score of every lane in the first `vecs` vectors.
#[inline(always)]
pub(crate) fn maxima<S: Simd>(s: S, scores: &[f32], vecs: usize, max: &mut [f32; PANEL]) {
    assert!(vecs * S::LANES <= PANEL);
    for v in 0..vecs {
        // SAFETY: vector v is inside.
        let mut m = unsafe { s.load(max.as_ptr().add(v * S::LANES)) };
        for j in 0..scores.len() / PANEL {
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
    /// References: no score so far is larger; -inf where there was none.
    pub(crate) max: &'a mut [f32],
    /// Sum of the weights so far, relative to the reference.
    pub(crate) sum: &'a mut [f32],
    /// Out: factor for what was summed before.
    pub(crate) alpha: &'a mut [f32; PANEL],
}

/// How far above the largest score the reference of a row starts, in powers of two: it is moved, and what was summed
/// before scaled, only when a score exceeds it. Being above, not below, it keeps every weight at most 1.
const SLACK: f32 = 8.0;

/// Turns the scores into weights `2^((score - reference) c)`, updating the state with the block's maxima; `c > 0`. Returns
/// whether a reference moved; else all factors are 1.
#[inline(always)]
pub(crate) fn weights<S: Simd>(
    s: S,
    scores: &mut [f32],
    keys: usize,
    vecs: usize,
    c: f32,
    block_max: &[f32; PANEL],
    state: &mut State<'_>,
) -> bool {
    let grown = references(s, vecs, c, block_max, state);
    let mut v = 0;
    while v < vecs {
        let n = (vecs - v).min(3);
        match n {
            3 => weights_of::<S, 3>(s, scores, keys, v, c, state),
            2 => weights_of::<S, 2>(s, scores, keys, v, c, state),
            _ => weights_of::<S, 1>(s, scores, keys, v, c, state),
        }
        v += n;
    }
    grown
}

/// What scores of a lane with this reference are compared with: a lane that has seen nothing yet with 0, so that -inf
/// minus -inf never happens.
#[inline(always)]
fn base<S: Simd>(s: S, reference: S::V) -> S::V {
    s.select_lt(reference, s.splat(f32::MIN), s.splat(0.0), reference)
}

/// Moves the references that the block's maxima exceed, lane by lane: a lane's does not depend on the others.
#[inline(always)]
fn references<S: Simd>(s: S, vecs: usize, c: f32, block_max: &[f32; PANEL], state: &mut State<'_>) -> bool {
    assert!(vecs * S::LANES <= PANEL && state.max.len() >= vecs * S::LANES);
    let mut more = s.splat(0.0);
    for v in 0..vecs {
        let at = v * S::LANES;
        // SAFETY: vector v is inside all arrays.
        unsafe {
            let (before, top) = (s.load(state.max.as_ptr().add(at)), s.load(block_max.as_ptr().add(at)));
            more = s.select_lt(before, top, s.splat(1.0), more);
        }
    }
    if s.reduce_max(more) == 0.0 {
        return false;
    }
    let factor = s.splat(c);
    // Not so much that the sum with a score could overflow.
    let slack = s.splat((SLACK / c).min(1e20));
    for v in 0..vecs {
        let at = v * S::LANES;
        // SAFETY: vector v is inside all arrays.
        unsafe {
            let (before, top) = (s.load(state.max.as_ptr().add(at)), s.load(block_max.as_ptr().add(at)));
            let now = s.select_lt(before, top, s.add(top, slack), before);
            s.store(state.max.as_mut_ptr().add(at), now);
            let alpha = s.exp2_scaled(s.sub(before, base(s, now)), factor);
            s.store(state.alpha.as_mut_ptr().add(at), alpha);
            let sum = state.sum.as_mut_ptr().add(at);
            s.store(sum, s.mul(s.load(sum), alpha));
        }
    }
    true
}

/// `C` vectors from vector `v` on, interleaved so that the chains of one hide in the others.
#[inline(always)]
fn weights_of<S: Simd, const C: usize>(s: S, scores: &mut [f32], keys: usize, v: usize, c: f32, state: &mut State<'_>) {
    let lane = v * S::LANES;
    let end = lane + C * S::LANES;
    assert!(scores.len() >= keys * PANEL && end <= PANEL && state.max.len() >= end && state.sum.len() >= end);
    let factor = s.splat(c);
    let mut to = [s.splat(0.0); C];
    let mut sum = [s.splat(0.0); C];
    for i in 0..C {
        // SAFETY: the lanes are inside.
        to[i] = base(s, unsafe { s.load(state.max.as_ptr().add(lane + i * S::LANES)) });
    }
    let mut p = scores.as_mut_ptr().wrapping_add(lane);
    for _ in 0..keys {
        for i in 0..C {
            // SAFETY: the key's row of scores is inside.
            unsafe {
                let at = p.add(i * S::LANES);
                // The difference first: it is exact where it matters, however large the scores are.
                let e = s.exp2_scaled(s.sub(s.load(at), to[i]), factor);
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
            s.store(at, s.add(s.load(at), sum[i]));
        }
    }
}
