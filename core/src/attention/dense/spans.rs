//! What rows see of a block of keys.

use super::super::mask::Visible;
use crate::simd::tile::Span;

/// Cuts what rows see to a range.
pub(crate) fn clamp(seen: &mut [Visible], range: Span) {
    for seen in seen {
        seen.sinks = if range.begin == 0 { seen.sinks.min(range.end) } else { 0 };
        seen.end = seen.end.min(range.end).max(seen.sinks);
        seen.begin = seen.begin.max(range.begin).min(seen.end);
    }
}

/// Sets `spans[r]` to the keys of block `begin..end` that row r sees (their hull, relative to `begin`); returns the hull
/// of all, if any row sees anything.
pub(crate) fn look_at(seen: &[Visible], begin: usize, end: usize, spans: &mut [Span]) -> Option<Span> {
    let (mut lo, mut hi) = (end, begin);
    for (seen, span) in seen.iter().zip(spans) {
        let (mut a, mut b) = (seen.begin.max(begin), seen.end.min(end));
        if a >= b {
            (a, b) = (end, begin);
        }
        if seen.sinks > begin {
            a = begin;
            b = b.max(seen.sinks.min(end));
        }
        *span = if a < b { Span { begin: a - begin, end: b - begin } } else { Span::default() };
        (lo, hi) = (lo.min(a), hi.max(b));
    }
    (lo < hi).then(|| Span { begin: lo - begin, end: hi - begin })
}

/// First block after an unseen one that a row may see.
pub(crate) fn next_block(seen: &[Visible], begin: usize, block: usize, total: usize) -> usize {
    let next = begin + block;
    let main = seen.iter().filter(|s| s.end > s.begin && s.end > next).map(|s| s.begin).min().unwrap_or(total);
    let sinks = seen.iter().any(|s| s.sinks > next);
    if sinks { next } else { next.max(main / block * block) }
}
