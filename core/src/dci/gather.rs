//! Keys by slot, and in an order in which neighbours are alike, for what attends to all of them.

use super::Index;
use super::codes::Arranging;
use super::slots::NO_ID;
use crate::error::reserved;
use crate::mem::{Buf, Maker, Rows};

impl Index {
    /// Room for ordering the keys of this index at its present capacity.
    pub(crate) fn arranging(&self, m: &mut Maker<'_>) -> Arranging {
        Arranging::made(m, self.dim(), Self::celled(&self.options, self.capacity()))
    }

    /// Whether room made before is enough for the index as it is.
    pub(crate) fn fits_arranging(&self, room: &Arranging) -> bool {
        !self.codes.active() || self.codes.count() <= room.capacity()
    }

    /// Slots in use, a key or not.
    pub(crate) fn slots(&self) -> usize {
        self.ids.len()
    }

    /// The id of the key in a slot, if there is one.
    pub(crate) fn held_at(&self, slot: u32) -> Option<u64> {
        Some(self.ids[slot as usize]).filter(|&id| id != NO_ID)
    }

    /// Keys by slot; a slot without a key holds anything.
    pub(crate) fn keys_by_slot(&self) -> Rows<'_> {
        let Ok(rows) = Rows::new(&self.keys[..self.slots() * self.dim()], self.dim()) else {
            unreachable!("whole rows")
        };
        rows
    }

    /// Appends the slots of all keys to `out`, in the order of slots.
    pub(crate) fn list_slots(&self, out: &mut Buf<u32>) {
        (0..self.slots() as u32).filter(|&slot| self.held_at(slot).is_some()).for_each(|slot| reserved(out.push(slot)));
    }

    /// The same, like keys side by side where the index has gathered them; new ones, which it has not, at the end.
    pub(crate) fn list_by_cells(&self, room: &mut Arranging, out: &mut Buf<u32>) {
        if self.codes.active() {
            self.codes.list_slots(self.isa(), room, out);
        } else {
            self.list_slots(out);
        }
    }
}
