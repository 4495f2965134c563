//! A hash table of slots.

use super::{FULL, TAKEN};
use crate::error::{Error, Result, Status};
use crate::math::mix;
use crate::mem::{Maker, Memory, Plan};
use hashbrown::{HashTable, TryReserveError};

/// Control bytes that the table reads at once; as many follow the last bucket. Per target, as hashbrown has it.
const GROUP: usize = if cfg!(all(target_feature = "sse2", any(target_arch = "x86", target_arch = "x86_64"), not(miri)))
{
    16
} else if cfg!(any(
    target_pointer_width = "64",
    target_arch = "aarch64",
    target_arch = "x86_64",
    target_arch = "wasm32"
)) {
    8
} else {
    4
};

/// Lookup from id to slot: a hash table of slots.
///
/// A table cleans up after removals in place only while it is at most half full, and grows otherwise. It is therefore
/// made for twice the capacity, and never grows by itself.
#[derive(Debug)]
pub struct IdMap {
    table: HashTable<u32, Memory>,
    cap: usize,
}

/// Buckets of a table for `cap` ids. `None` on overflow.
fn buckets(cap: usize) -> Option<usize> {
    Some(match cap.checked_mul(2)? {
        0 => 0,
        1..4 => 4,
        4..8 => 8,
        8..15 => 16,
        n => (n.checked_mul(8)? / 7).next_power_of_two(),
    })
}

/// Bytes of the block of a table: slots, padded to a group, then control bytes.
fn bytes(buckets: usize) -> Option<usize> {
    let slots = buckets.checked_mul(size_of::<u32>())?.checked_next_multiple_of(GROUP)?;
    slots.checked_add(buckets)?.checked_add(GROUP)
}

/// Entries that a table of so many buckets takes before it grows or cleans up.
fn room(buckets: usize) -> usize {
    if buckets < 8 { buckets.saturating_sub(1) } else { buckets / 8 * 7 }
}

impl IdMap {
    /// Adds the block of a map to a plan. O(1), no allocation.
    pub fn plan(plan: &mut Plan, cap: usize) {
        if cap > 0 {
            plan.add_bytes(buckets(cap).and_then(bytes).unwrap_or(usize::MAX));
        }
    }

    /// An empty map for `cap` ids. O(cap); allocates one block, or none for 0.
    pub(crate) fn made(m: &mut Maker<'_>, cap: usize) -> IdMap {
        let mut map = IdMap { table: HashTable::new_in(m.memory().clone()), cap: 0 };
        m.other(|plan| IdMap::plan(plan, cap), || map.reserve(cap, &[]));
        map
    }

    /// Makes room for `cap` ids in all. O(cap); may allocate.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`; nothing has changed then.
    ///
    /// # Panics
    /// If a slot in the map is outside `ids`.
    pub fn reserve(&mut self, cap: usize, ids: &[u64]) -> Result<()> {
        if cap <= self.cap {
            return Ok(());
        }
        let twice = cap.checked_mul(2).ok_or(Error::new(Status::NoMemory, "allocator", "size overflows"))?;
        // Not `capacity()`: that counts what removals have left behind as used.
        if twice > room(self.table.num_buckets()) {
            let more = twice - self.table.len();
            self.table.try_reserve(more, |&s| mix(ids[s as usize])).map_err(|e| refused(e, self.table.allocator()))?;
        }
        self.cap = cap;
        Ok(())
    }

    /// The slot of an id. Expected O(1), no allocation.
    ///
    /// # Panics
    /// If a slot in the map is outside `ids`.
    #[inline]
    pub fn find(&self, id: u64, ids: &[u64]) -> Option<u32> {
        self.table.find(mix(id), |&s| ids[s as usize] == id).copied()
    }

    /// Adds the id `ids[slot]`. Expected O(1) amortised, O(capacity) at times; no allocation. The ids of all slots in
    /// the map must be what they were when added.
    ///
    /// # Errors
    /// `Capacity` when full, `Duplicate` if the id is there; nothing has changed then.
    ///
    /// # Panics
    /// If a slot in the map, or this one, is outside `ids`.
    pub fn insert(&mut self, slot: u32, ids: &[u64]) -> Result<()> {
        let id = ids[slot as usize];
        if self.find(id, ids).is_some() {
            return Err(TAKEN.id(id));
        }
        if self.table.len() == self.cap {
            return Err(FULL.value(self.cap as u64));
        }
        self.table.insert_unique(mix(id), slot, |&s| mix(ids[s as usize]));
        Ok(())
    }

    /// Removes an id and returns its slot, whose id is still in place. Expected O(1), no allocation.
    ///
    /// # Panics
    /// If a slot in the map is outside `ids`.
    pub fn remove(&mut self, id: u64, ids: &[u64]) -> Option<u32> {
        self.table.find_entry(mix(id), |&s| ids[s as usize] == id).ok().map(|e| e.remove().0)
    }

    /// Removes everything. O(capacity), no allocation.
    pub fn clear(&mut self) {
        self.table.clear();
    }
}

fn refused(error: TryReserveError, memory: &Memory) -> Error {
    let none = Error::new(Status::NoMemory, "allocator", "returned no memory");
    let TryReserveError::AllocError { layout } = error else { return none };
    let report = memory.report();
    let mut block = Plan::new();
    block.add_bytes(layout.size());
    let used = block.finish().map_or(usize::MAX, |l| report.used.saturating_add(l.bytes));
    if report.limit != 0 && used > report.limit {
        return Error::new(Status::Budget, "memory_limit", "would be exceeded").need(used, report.limit);
    }
    none.value(layout.size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formula_is_that_of_the_table() {
        let memory = Memory::system(0).unwrap();
        for cap in (0..300).chain((300..70_000).step_by(997)).chain((2..17).flat_map(|s| [7 << s, (7 << s) + 1])) {
            let map = Maker::make(&memory, |m| IdMap::made(m, cap)).unwrap();
            let buckets = buckets(cap).unwrap();
            assert!(map.table.num_buckets() == buckets.max(1) || cap == 0, "{cap}");
            assert!(room(buckets) >= 2 * cap, "{cap}");
            assert_eq!(map.table.allocation_size(), if cap == 0 { 0 } else { bytes(buckets).unwrap() }, "{cap}");
        }
    }
}
