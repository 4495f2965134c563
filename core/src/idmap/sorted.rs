//! Slots sorted by their ids.

use super::{FULL, TAKEN};
use crate::error::Result;
use crate::mem::{Buf, Maker};

/// Lookup from id to slot: slots sorted by their ids.
#[derive(Debug)]
pub struct IdMap {
    slots: Buf<u32>,
}

impl IdMap {
    /// An empty map for `cap` ids. O(1); allocates one block, or none for 0.
    pub(crate) fn made(m: &mut Maker<'_>, cap: usize) -> IdMap {
        IdMap { slots: m.room(cap) }
    }

    /// Makes room for `cap` ids in all. O(cap); may allocate.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`; nothing has changed then.
    pub fn reserve(&mut self, cap: usize, _ids: &[u64]) -> Result<()> {
        self.slots.reserve(cap)
    }

    fn place(&self, id: u64, ids: &[u64]) -> Result<usize, usize> {
        self.slots.binary_search_by_key(&id, |&s| ids[s as usize])
    }

    /// The slot of an id. O(log n), no allocation.
    ///
    /// # Panics
    /// If a slot in the map is outside `ids`.
    #[inline]
    pub fn find(&self, id: u64, ids: &[u64]) -> Option<u32> {
        self.place(id, ids).ok().map(|at| self.slots[at])
    }

    /// Adds the id `ids[slot]`. O(n), O(log n) if it is the largest; no allocation. The ids of all slots in the map
    /// must be what they were when added.
    ///
    /// # Errors
    /// `Capacity` when full, `Duplicate` if the id is there; nothing has changed then.
    ///
    /// # Panics
    /// If a slot in the map, or this one, is outside `ids`.
    pub fn insert(&mut self, slot: u32, ids: &[u64]) -> Result<()> {
        let id = ids[slot as usize];
        match self.place(id, ids) {
            Ok(_) => Err(TAKEN.id(id)),
            Err(at) => self.slots.insert(at, slot).map_err(|_| FULL.value(self.slots.capacity() as u64)),
        }
    }

    /// Removes an id and returns its slot, whose id is still in place. O(n), no allocation.
    ///
    /// # Panics
    /// If a slot in the map is outside `ids`.
    pub fn remove(&mut self, id: u64, ids: &[u64]) -> Option<u32> {
        self.place(id, ids).ok().map(|at| self.slots.remove(at))
    }

    /// Removes everything. O(1), no allocation.
    pub fn clear(&mut self) {
        self.slots.clear();
    }
}
