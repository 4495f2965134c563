//! Keys come and go: their slots, norms and ids. Insertions are all or nothing.

use super::Index;
use super::codes::Keys;
use super::index::{keys_of, unit};
use super::params::{MAX_NORM, Metric};
use super::slots::{NO_ID, UNLINKED, sort};
use crate::error::{Error, Result, Status, reserved, same};
use crate::mem::Rows;
use crate::project::Lift;

/// Where the keys of one insert go.
struct Batch {
    /// Keys that take free slots.
    reused: usize,
    slots_before: usize,
}

impl Index {
    /// Inserts rows of f32, f16 or bf16 under `ids`, or under the next unused ids. All or nothing.
    ///
    /// O(m L log n) per key with one level; with more, plus one distance to every parent.
    ///
    /// # Errors
    /// `Shape` (columns, number of ids), `NotFinite` and the row, `Duplicate` and the id, `Argument` for the reserved id
    /// 2^64 - 1, `Capacity`, `NoMemory`, `Budget`. On error nothing has changed.
    pub fn insert(&mut self, keys: Rows<'_>, ids: Option<&[u64]>) -> Result<()> {
        let n = keys.rows();
        self.check_rows(&keys, "keys")?;
        if let Some(ids) = ids {
            same("ids", "one id per key is needed", n, ids.len())?;
            if let Some(row) = ids.iter().position(|&id| id == NO_ID) {
                return Err(Error::new(Status::Argument, "ids", "2^64 - 1 is reserved").row(row));
            }
            if let Some(&id) = ids.iter().find(|&&id| self.contains(id)) {
                return Err(Error::new(Status::Duplicate, "ids", "already in the index").id(id));
            }
        } else if self.next_id.checked_add(n as u64).is_none_or(|end| end == NO_ID) {
            return Err(Error::new(Status::Capacity, "ids", "automatic ids are used up").id(self.next_id));
        }
        self.make_room(n)?;
        if n > 0 {
            self.own_keys()?;
        }
        let batch = Batch { reused: n.min(self.free.len()), slots_before: self.ids.len() };
        // Store first: a duplicate within the batch or an overflowing norm still takes everything back.
        for row in 0..n {
            let id = ids.map_or(self.next_id + row as u64, |ids| ids[row]);
            if let Err(e) = self.store(&batch, keys, row, id) {
                self.unstore(&batch, row);
                return Err(e);
            }
        }
        let mut lift = self.lift;
        for i in 0..n {
            let slot = self.slot_of(&batch, i) as usize;
            if self.options.metric.lifted() {
                lift = lift.grown(self.norm2[slot]);
            }
            self.next_id = self.next_id.max(self.ids[slot].saturating_add(1));
        }
        let relift = lift != self.lift;
        self.lift = lift;
        if n > 32 && n >= self.len() / 4 {
            self.rebuild();
        } else {
            if relift {
                self.relift();
            }
            for i in 0..n {
                let slot = self.slot_of(&batch, i);
                self.project(slot);
                self.link(slot);
            }
        }
        let live = self.len() + batch.reused;
        let slots = (0..n).map(|i| Self::slot_in(&self.free, &batch, i));
        if let Some(codes) = self.codes.get_mut() {
            codes.insert(keys_of!(self), live, slots);
        }
        self.free.truncate(self.free.len() - batch.reused);
        Ok(())
    }

    /// Slot of the `i`-th key of a batch: free slots from the top of their stack, then new ones.
    fn slot_of(&self, batch: &Batch, i: usize) -> u32 {
        Self::slot_in(&self.free, batch, i)
    }

    fn slot_in(free: &[u32], batch: &Batch, i: usize) -> u32 {
        if i < batch.reused { free[free.len() - 1 - i] } else { (batch.slots_before + i - batch.reused) as u32 }
    }

    /// Puts row `row` into its slot and the id map, without projections or lists.
    fn store(&mut self, batch: &Batch, keys: Rows<'_>, row: usize, id: u64) -> Result<()> {
        if self.slot(id).is_some() {
            return Err(Error::new(Status::Duplicate, "ids", "given twice in one call").id(id));
        }
        let slot = self.slot_of(batch, row);
        self.open_slot(slot)?;
        keys.read(row, self.key_mut(slot));
        if self.options.metric == Metric::Cosine {
            unit(self.key_mut(slot));
        }
        self.name_slot(slot, id)?;
        // Refused with the key stored and named, so that one path takes everything back.
        self.weigh(slot).map_err(|e| e.row(row))
    }

    /// Gives an id of a saved index the next new slot; `restore_key` must follow.
    pub(super) fn restore_id(&mut self, id: u64) -> Result<()> {
        if id == NO_ID {
            return Err(Error::new(Status::Buffer, "index bytes", "an id is out of range").id(id));
        }
        if self.slot(id).is_some() {
            return Err(Error::new(Status::Buffer, "index bytes", "an id is there twice").id(id));
        }
        let slot = self.ids.len() as u32;
        self.open_slot(slot)?;
        self.next_id = self.next_id.max(id.saturating_add(1));
        self.name_slot(slot, id)
    }

    /// Stores the key of a restored id, or finds it there; `rebuild` must follow.
    pub(super) fn restore_key(&mut self, slot: u32, read: impl FnOnce(&mut [f32]) -> Result<()>) -> Result<()> {
        if !self.keys.is_view() {
            read(self.key_mut(slot))?;
        }
        let id = self.ids[slot as usize];
        if self.key_at(slot).iter().any(|x| !x.is_finite()) {
            return Err(Error::new(Status::Buffer, "index bytes", "a key is not finite").id(id));
        }
        self.weigh(slot).map_err(|_| Error::new(Status::Buffer, "index bytes", "a key is too long").id(id))
    }

    fn key_mut(&mut self, slot: u32) -> &mut [f32] {
        let dim = self.options.dim;
        &mut self.keys.own()[slot as usize * dim..][..dim]
    }

    /// Extends the arrays by slot if `slot` is the next new one.
    fn open_slot(&mut self, slot: u32) -> Result<()> {
        let (dim, lists, s) = (self.options.dim, self.lists(), slot as usize);
        if s < self.ids.len() {
            return Ok(());
        }
        self.ids.push(NO_ID)?;
        self.norm2.push(0.0)?;
        self.height.push(UNLINKED)?;
        self.keys.extend((s + 1) * dim, 0.0)?;
        self.proj.resize((s + 1) * lists, 0.0)?;
        self.levels[..self.options.depth()].iter_mut().try_for_each(|level| level.grow_slots(s + 1))
    }

    fn name_slot(&mut self, slot: u32, id: u64) -> Result<()> {
        self.ids[slot as usize] = id;
        self.height[slot as usize] = UNLINKED;
        self.map.insert(slot, &self.ids)
    }

    /// Notes the norm of the key written into `slot`.
    fn weigh(&mut self, slot: u32) -> Result<()> {
        let norm2 = Lift::norm2(self.key_at(slot));
        self.norm2[slot as usize] = norm2;
        // A NaN norm is refused too.
        if norm2 < MAX_NORM * MAX_NORM {
            Ok(())
        } else {
            Err(Error::new(Status::NotFinite, "keys", "norm is 1e18 or more"))
        }
    }

    /// Takes back what `store` did for rows `0..=row`; the last of them may have got no slot.
    fn unstore(&mut self, batch: &Batch, row: usize) {
        for i in 0..=row {
            let slot = self.slot_of(batch, i) as usize;
            let id = self.ids.get(slot).copied().unwrap_or(NO_ID);
            if id != NO_ID {
                self.map.remove(id, &self.ids);
                self.ids[slot] = NO_ID;
            }
        }
        self.shrink_slots(batch.slots_before);
    }

    fn shrink_slots(&mut self, slots: usize) {
        let (dim, lists) = (self.options.dim, self.lists());
        self.ids.truncate(slots);
        self.norm2.truncate(slots);
        self.height.truncate(slots);
        self.keys.truncate(slots * dim);
        self.proj.truncate(slots * lists);
        for level in &mut self.levels {
            level.cell.truncate(slots);
            level.dist2.truncate(slots);
            level.population.truncate(slots);
        }
    }

    /// Removes keys; all must be there, or nothing is removed.
    ///
    /// # Errors
    /// `NotFound` or (given twice) `Duplicate`, and the id.
    pub fn remove(&mut self, ids: &[u64]) -> Result<()> {
        if let Some(&id) = ids.iter().find(|&&id| !self.contains(id)) {
            return Err(Error::new(Status::NotFound, "ids", "not in the index").id(id));
        }
        // A second mention would be missing by the time it is reached: sort the slots and look for neighbours.
        self.moves.clear();
        for &id in ids {
            if let Some(slot) = self.slot(id)
                && self.moves.push((id, slot)).is_err()
            {
                // More ids than the index ever held: some id is there twice.
                return Err(Error::new(Status::Duplicate, "ids", "given twice in one call").id(id));
            }
        }
        sort(&mut self.moves, &self.ids);
        if let Some(pair) = self.moves.windows(2).find(|w| w[0].0 == w[1].0) {
            return Err(Error::new(Status::Duplicate, "ids", "given twice in one call").id(pair[0].0));
        }
        self.remove_present(ids);
        Ok(())
    }

    /// Removes those of `ids` that are there; returns how many. O(m L log n) each; a parent's children find new parents.
    pub fn remove_present(&mut self, ids: &[u64]) -> usize {
        let mut removed = 0;
        for &id in ids {
            let Some(slot) = self.slot(id) else { continue };
            self.unlink(slot);
            if let Some(codes) = self.codes.get_mut() {
                codes.remove(slot);
            }
            self.map.remove(id, &self.ids);
            self.ids[slot as usize] = NO_ID;
            reserved(self.free.push(slot));
            removed += 1;
        }
        let live = self.len();
        if let Some(codes) = self.codes.get_mut() {
            codes.settle(keys_of!(self), live);
        }
        removed
    }

    /// Lowers the norm bound to what the keys need that are there, as if there had never been others. O(n), and O(n log n) per list
    /// where it changes.
    pub(crate) fn tighten(&mut self) {
        let live = self.ids.iter().zip(self.norm2.iter()).filter(|(id, _)| **id != NO_ID);
        let longest = live.fold(0.0f32, |most, (_, &norm2)| most.max(norm2));
        let start = Lift::new(self.options.max_norm);
        let lift = if self.options.metric.lifted() { start.grown(longest) } else { start };
        if lift != self.lift {
            self.lift = lift;
            self.relift();
        }
    }

    /// Removes everything; memory, directions, the norm bound's start and the seed stay. Automatic ids start at 0 again.
    pub fn clear(&mut self) {
        for level in &mut self.levels[..self.options.depth()] {
            level.clear(&mut self.pool);
        }
        if let Some(codes) = self.codes.get_mut() {
            codes.clear();
        }
        self.map.clear();
        self.free.clear();
        self.moves.clear();
        self.shrink_slots(0);
        self.next_id = 0;
        self.lift = Lift::new(self.options.max_norm);
    }
}
