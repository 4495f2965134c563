//! Hit counters per slot that are all reset by one addition.

use crate::mem::{Buf, Maker};

/// Epochs fit the upper 24 bits of a stamp; the lower 8 count. Epoch 0 is that of slots never hit.
const EPOCHS: u32 = 1 << 24;

/// How often each slot was hit since [`begin`](Seen::begin). A stamp of an older epoch counts as zero, so that a new
/// round costs nothing.
#[derive(Debug)]
pub struct Seen {
    stamps: Buf<u32>,
    epoch: u32,
}

impl Seen {
    /// Counters at zero for slots `0..slots`. O(slots); allocates one block, or none for 0.
    pub(crate) fn made(m: &mut Maker<'_>, slots: usize) -> Seen {
        Seen { stamps: m.filled(slots, 0), epoch: 1 }
    }

    /// Sets all counters to zero. O(1), but O(slots) once in 2^24 calls; no allocation.
    #[inline]
    pub fn begin(&mut self) {
        self.epoch += 1;
        if self.epoch == EPOCHS {
            self.wrap();
        }
    }

    #[cold]
    fn wrap(&mut self) {
        self.stamps.fill(0);
        self.epoch = 1;
    }

    /// Counts a hit and returns the count with it, at most 255. O(1), no allocation.
    ///
    /// # Panics
    /// If the slot is not covered.
    #[inline]
    pub fn hit(&mut self, slot: u32) -> u8 {
        let stamp = &mut self.stamps[slot as usize];
        let now = self.epoch << 8;
        let count = if *stamp & !0xff == now { (*stamp as u8).saturating_add(1) } else { 1 };
        *stamp = now | count as u32;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::tests::{Rng, many, room};
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn epochs_wrap_without_ghosts() {
        let region = room();
        let mut seen = Maker::make(&region.memory, |m| Seen::made(m, 4)).unwrap();
        // A stamp of epoch 1, and of the last epoch: neither may come back after the wrap.
        assert_eq!(seen.hit(0), 1);
        seen.epoch = EPOCHS - 2;
        seen.begin();
        assert_eq!((seen.hit(1), seen.hit(1), seen.hit(2)), (1, 2, 1));
        seen.begin();
        assert_eq!(seen.epoch, 1);
        assert_eq!((seen.hit(0), seen.hit(1), seen.hit(1)), (1, 1, 2));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: many(192, 2) as u32, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn seen_counts(seed in any::<u64>(), slots in 1usize..50) {
            let region = room();
            let mut rng = Rng(seed | 1);
            let mut seen = Maker::make(&region.memory, |m| Seen::made(m, slots)).unwrap();
            let mut model: HashMap<u32, u32> = HashMap::new();
            for _ in 0..many(3000, 600) {
                if rng.below(2000) == 0 {
                    seen.begin();
                    model.clear();
                }
                let slot = (rng.below(slots) / (1 + rng.below(9))) as u32;
                let n = model.entry(slot).or_default();
                *n += 1;
                prop_assert_eq!(seen.hit(slot) as u32, (*n).min(255));
            }
        }
    }
}
