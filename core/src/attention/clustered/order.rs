//! An order of keys in which neighbours are alike.

use super::policy::SEGMENT;
use super::split::Splitter;
use crate::math::{hash, image_of};
use crate::mem::{Buf, Maker, Rows};
use crate::simd::Isa;
use crate::simd::gather::{BLOCK, Matrix, ScoresAt};

/// For the keys that stand for all.
const SEED: u64 = 0xa1_14e;

/// Room for the order of so many keys.
///
/// Allocation class: creation only.
pub(super) struct Order {
    pub(super) ids: Buf<u32>,
    /// A key's height along a direction, and its row in the low half.
    pub(super) pairs: Buf<u64>,
}

impl Order {
    /// Room, as part of a larger object.
    pub(super) fn made(m: &mut Maker<'_>, keys: usize) -> Self {
        Order { ids: m.room(keys), pairs: m.filled(keys, 0) }
    }
}

/// Whole segments of keys, ascending, into two of them, ascending, until there is one.
pub(super) fn halve(isa: Isa, splitter: &mut Splitter, keys: &Rows<'_>, ids: &mut [u32], pairs: &mut [u64]) {
    let n = ids.len();
    if n <= SEGMENT {
        return;
    }
    // Anywhere in its part: text repeats itself at round numbers.
    let part = n / SEGMENT;
    let sample: [u32; SEGMENT] =
        core::array::from_fn(|i| ids[i * part + (hash(SEED, i as u64) % part as u64) as usize]);
    let direction = splitter.widest(isa, keys, &sample);
    let q = Matrix { data: direction, stride: keys.cols(), cols: keys.cols() };
    for (ids, pairs) in ids.chunks_exact(BLOCK).zip(pairs.chunks_exact_mut(BLOCK)) {
        let mut heights = [0.0; BLOCK];
        isa.run(ScoresAt { from: keys, ids, q, rows: &[0], out: &mut heights });
        for ((pair, &id), &height) in pairs.iter_mut().zip(ids).zip(&heights) {
            *pair = u64::from(image_of(height)) << 32 | u64::from(id);
        }
    }
    let half = n / SEGMENT / 2 * SEGMENT;
    pairs.select_nth_unstable(half);
    let (low_room, high_room) = pairs.split_at_mut(half);
    let (low, high) = ids.split_at_mut(half);
    for (ids, pairs) in [(&mut *low, &mut *low_room), (&mut *high, &mut *high_room)] {
        // So that nothing depends on how the selection went.
        pairs.sort_unstable_by_key(|&pair| pair as u32);
        ids.iter_mut().zip(&*pairs).for_each(|(id, &pair)| *id = pair as u32);
    }
    halve(isa, splitter, keys, low, low_room);
    halve(isa, splitter, keys, high, high_room);
}
