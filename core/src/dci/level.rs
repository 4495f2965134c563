//! One level of the multi-level form: which keys it holds, which cell each is in, and one sorted list per direction.
//!
//! Level 0 holds every key, level 1 the promoted ones, and so on; how high a key reaches is a hash of (seed, id). Each
//! key of a level lies in the cell of its nearest key (L2, ties to the smaller id) of the level above, or in the one
//! [`ROOT`] cell where the level above is empty or there is none. So the structure depends on the set of keys alone,
//! not on the order in which they came.

use crate::error::Result;
use crate::features::LEVELS;
use crate::list::{Pool, SkipList};
use crate::mem::{Buf, Maker};

/// Most levels.
pub(super) const MAX_LEVELS: usize = if LEVELS { 8 } else { 1 };

/// The cell of keys without a parent.
pub(super) const ROOT: u32 = u32::MAX - 1;

/// Keys to make room for at level `level` when the index has room for `capacity`: the mean of the promotion and eight
/// standard deviations. Keys beyond that are not promoted as high.
pub(super) fn room(capacity: usize, promotion: f32, level: usize) -> usize {
    if !LEVELS || level == 0 {
        return capacity;
    }
    let mean = (0..level).fold(capacity as f64, |n, _| n * f64::from(promotion));
    let most = mean + 8.0 * libm::sqrt(mean) + 16.0;
    capacity.min(most as usize)
}

pub(super) struct Level {
    /// One list per direction, over all cells: entries are sorted by (cell, projection, id).
    pub lists: Buf<SkipList>,
    /// Slots of this level, in no particular order; empty at level 0, which holds every key.
    pub members: Buf<u32>,
    /// Cell (slot of the parent, or [`ROOT`]) by slot; no block at the top level.
    pub cell: Buf<u32>,
    /// Squared distance to the parent, by slot; no block at the top level.
    pub dist2: Buf<f32>,
    /// Keys of the level below in the cell of this slot, by slot; no block at level 0.
    pub population: Buf<u32>,
}

impl Level {
    /// Level `level` of `levels`, without its lists.
    pub fn made(
        m: &mut Maker<'_>,
        lists: usize,
        level: usize,
        levels: usize,
        capacity: usize,
        promotion: f32,
    ) -> Level {
        let below_top = if level + 1 < levels { capacity } else { 0 };
        let above_leaves = if level > 0 && level < levels { capacity } else { 0 };
        Level {
            lists: m.room(if level < levels { lists } else { 0 }),
            members: m.room(if above_leaves > 0 { room(capacity, promotion, level) } else { 0 }),
            cell: m.room(below_top),
            dist2: m.room(below_top),
            population: m.room(above_leaves),
        }
    }

    pub fn reserve(&mut self, level: usize, levels: usize, capacity: usize, promotion: f32) -> Result<()> {
        if level > 0 {
            self.members.reserve(room(capacity, promotion, level))?;
            self.population.reserve(capacity)?;
        }
        if level + 1 < levels {
            self.cell.reserve(capacity)?;
            self.dist2.reserve(capacity)?;
        }
        Ok(())
    }

    /// Extends the arrays by slot that this level has.
    pub fn grow_slots(&mut self, slots: usize) -> Result<()> {
        if !LEVELS {
            return Ok(());
        }
        if self.cell.capacity() > 0 {
            self.cell.resize(slots, ROOT)?;
            self.dist2.resize(slots, f32::INFINITY)?;
        }
        if self.population.capacity() > 0 {
            self.population.resize(slots, 0)?;
        }
        Ok(())
    }

    /// Cell of a slot of this level.
    pub fn cell_of(&self, slot: u32) -> u32 {
        self.cell.get(slot as usize).copied().filter(|_| LEVELS).unwrap_or(ROOT)
    }

    pub fn clear(&mut self, pool: &mut Pool) {
        for list in self.lists.iter_mut() {
            list.clear(pool);
        }
        self.members.clear();
        self.cell.clear();
        self.dist2.clear();
        self.population.clear();
    }
}
