//! Hit counters per slot that are all reset by one addition.

use crate::error::Result;
use crate::mem::{Buf, Maker, Memory, Plan};

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
    /// Adds the block of `with_capacity(slots)` to a plan. O(1), no allocation.
    pub fn plan(plan: &mut Plan, slots: usize) {
        plan.count(|m| Seen::made(m, slots));
    }

    /// Counters at zero for slots `0..slots`. O(slots); allocates one block, or none for 0.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub fn with_capacity(memory: &Memory, slots: usize) -> Result<Seen> {
        Maker::make(memory, |m| Seen::made(m, slots))
    }

    /// The same as part of a larger object.
    pub(crate) fn made(m: &mut Maker<'_>, slots: usize) -> Seen {
        Seen { stamps: m.filled(slots, 0), epoch: 1 }
    }

    /// Covers slots `0..slots` at least; counts stay. O(slots); may allocate.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`; nothing has changed then.
    pub fn reserve(&mut self, slots: usize) -> Result<()> {
        if slots <= self.stamps.len() {
            return Ok(());
        }
        self.stamps.reserve(slots)?;
        self.stamps.resize(slots, 0)
    }

    /// Number of slots covered. O(1), no allocation.
    pub fn slots(&self) -> usize {
        self.stamps.len()
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

    /// Hits of a slot, at most 255. O(1), no allocation.
    ///
    /// # Panics
    /// If the slot is not covered.
    #[inline]
    pub fn count(&self, slot: u32) -> u8 {
        let stamp = self.stamps[slot as usize];
        if stamp & !0xff == self.epoch << 8 { stamp as u8 } else { 0 }
    }
}

#[cfg(all(test, feature = "alloc"))]
mod tests {
    use super::*;

    #[test]
    fn epochs_wrap_without_ghosts() {
        let mut seen = Seen::with_capacity(&Memory::system(0).unwrap(), 4).unwrap();
        // A stamp of epoch 1, and of the last epoch: neither may come back after the wrap.
        assert_eq!(seen.hit(0), 1);
        seen.epoch = EPOCHS - 2;
        seen.begin();
        assert_eq!((seen.hit(1), seen.hit(1), seen.count(0)), (1, 2, 0));
        seen.begin();
        assert_eq!(seen.epoch, 1);
        assert_eq!((seen.count(0), seen.count(1)), (0, 0));
        assert_eq!((seen.hit(0), seen.hit(1)), (1, 1));
    }
}
