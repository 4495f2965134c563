//! Keys that all rows see, brought into an order in which neighbours are alike before segments are cut from it.

use super::{BLOCK, Cells, SEGMENT};
use crate::error::{Result, reserved};
use crate::math::{hash, image_of};
use crate::mem::{Buf, Memory, Plan, Rows};
use crate::simd::Isa;
use crate::simd::block::{Matrix, ScoresAt};

/// For the keys that stand for all.
const SEED: u64 = 0xa1_14e;

/// Room for the order of so many keys.
///
/// Allocation class: creation only.
pub(crate) struct Alike {
    ids: Buf<u32>,
    /// A key's height along a direction, and its number in the low half.
    pairs: Buf<u64>,
}

impl Alike {
    /// Adds the room to a plan.
    pub(crate) fn plan(plan: &mut Plan, keys: usize) {
        Buf::<u32>::plan(plan, keys);
        Buf::<u64>::plan(plan, keys);
    }

    /// Room as planned.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub(crate) fn new_in(memory: &Memory, keys: usize) -> Result<Self> {
        Ok(Alike { ids: Buf::with_capacity(memory, keys)?, pairs: Buf::filled(memory, keys, 0)? })
    }

    /// Cells over all keys that are not padding but the last few, which make no segment. Halves all keys, and halves of
    /// halves, down to segments, each time across the direction in which a sample of them is widest; how often does not
    /// depend on how alike they are. O(keys x dim x log(keys / SEGMENT)) beside what segments cost.
    pub(crate) fn fill(
        &mut self,
        isa: Isa,
        cells: &mut Cells,
        keys: &Rows<'_>,
        values: &Rows<'_>,
        keep: Option<&[u8]>,
    ) {
        self.ids.clear();
        for j in (0..keys.rows()).filter(|&j| keep.is_none_or(|keep| keep[j] != 0)) {
            reserved(self.ids.push(j as u32));
        }
        let whole = self.ids.len() / SEGMENT * SEGMENT;
        let Some(last) = whole.checked_sub(1) else { return };
        let range = [self.ids[0], self.ids[last]];
        halve(isa, cells, keys, &mut self.ids[..whole], &mut self.pairs[..whole]);
        cells.differ(true);
        for ids in self.ids[..whole].chunks_exact(SEGMENT) {
            cells.push_within(isa, keys, values, ids, range);
        }
    }
}

/// Whole segments of keys, ascending, into two of them, ascending, until there is one.
fn halve(isa: Isa, cells: &mut Cells, keys: &Rows<'_>, ids: &mut [u32], pairs: &mut [u64]) {
    let n = ids.len();
    if n <= SEGMENT {
        return;
    }
    // Anywhere in its part: text repeats itself at round numbers.
    let part = n / SEGMENT;
    let sample: [u32; SEGMENT] =
        core::array::from_fn(|i| ids[i * part + (hash(SEED, i as u64) % part as u64) as usize]);
    let direction = cells.bench.aim_at(isa, keys, &sample);
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
    halve(isa, cells, keys, low, low_room);
    halve(isa, cells, keys, high, high_room);
}
