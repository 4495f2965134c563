//! Changes of the structure: keys enter and leave the lists of every level they reach. Nothing here can fail: `reserve`
//! made the room.

use super::Index;
use super::level::ROOT;
use super::slots::{NO_ID, UNLINKED, sort};
use crate::error::reserved;
use crate::features::LEVELS;
use crate::list::sort_key;
use crate::math::hash;

/// Rounding slack of the triangle inequality between computed distances.
const SLACK: f32 = 1.001;

impl Index {
    /// Levels above 0 that a key of this id reaches: a coin of probability `promotion` per level, tossed by a hash.
    fn height_of(&self, id: u64) -> usize {
        let toss = (hash(self.options.seed ^ 0x6c65_7665_6c73, id) >> 11) as f64 / (1u64 << 53) as f64;
        let mut share = 1.0f64;
        (1..self.options.depth())
            .take_while(|_| {
                share *= f64::from(self.options.promotion);
                toss < share
            })
            .count()
    }

    /// Computes the projections of a stored key.
    pub(super) fn project(&mut self, slot: u32) {
        let (s, dim, lists) = (slot as usize, self.options.dim, self.lists());
        let key = &self.keys[s * dim..][..dim];
        self.projector.key(key, self.norm2[s], &self.lift, &mut self.proj[s * lists..][..lists]);
    }

    /// Nearest key of level `above` to `slot`, and the squared distance; [`ROOT`] if that level is empty.
    fn nearest_parent(&mut self, slot: u32, above: usize) -> (u32, f32) {
        let members = &self.levels[above].members;
        self.dists.clear();
        reserved(self.dists.resize(members.len(), 0.0));
        let dim = self.options.dim;
        let key = &self.keys[slot as usize * dim..][..dim];
        self.isa.sq_dists_at(&self.keys, dim, members, key, &mut self.dists);
        let mut best = (ROOT, f32::INFINITY);
        for (&parent, &d) in members.iter().zip(self.dists.iter()) {
            let closer = d < best.1 || d == best.1 && (best.0 == ROOT || self.id_at(parent) < self.id_at(best.0));
            if closer {
                best = (parent, d);
            }
        }
        best
    }

    pub(super) fn id_at(&self, slot: u32) -> u64 {
        self.ids[slot as usize]
    }

    /// Enters a projected key into one level's lists, in a given cell.
    fn enter(&mut self, level: usize, slot: u32, cell: u32, dist2: f32) {
        let lists = self.lists();
        let s = slot as usize;
        let l = &mut self.levels[level];
        if LEVELS && let Some(c) = l.cell.get_mut(s) {
            *c = cell;
            l.dist2[s] = dist2;
        }
        for (i, list) in l.lists.iter_mut().enumerate() {
            reserved(list.insert(&mut self.pool, &self.ids, sort_key(cell, self.proj[s * lists + i]), slot));
        }
        if LEVELS && cell != ROOT {
            self.levels[level + 1].population[cell as usize] += 1;
        }
    }

    /// Takes a key out of one level's lists.
    fn leave(&mut self, level: usize, slot: u32) {
        let lists = self.lists();
        let s = slot as usize;
        let l = &mut self.levels[level];
        let cell = l.cell_of(slot);
        for (i, list) in l.lists.iter_mut().enumerate() {
            let found = list.remove(&mut self.pool, &self.ids, sort_key(cell, self.proj[s * lists + i]), slot);
            debug_assert!(found, "a linked key is in every list of its level");
        }
        if LEVELS && cell != ROOT {
            self.levels[level + 1].population[cell as usize] -= 1;
        }
    }

    /// Enters a stored, projected key at every level it reaches, top down: its parent must be there first.
    pub(super) fn link(&mut self, slot: u32) {
        let levels = self.options.depth();
        let mut height = self.height_of(self.id_at(slot));
        while height > 0 && self.levels[height].members.len() == self.levels[height].members.capacity() {
            height -= 1;
        }
        self.height[slot as usize] = height as u8;
        for level in (0..=height).rev() {
            let (cell, dist2) =
                if level + 1 < levels { self.nearest_parent(slot, level + 1) } else { (ROOT, f32::INFINITY) };
            if level > 0 {
                self.levels[level].population[slot as usize] = 0;
                self.steal(level, slot);
                reserved(self.levels[level].members.push(slot));
            }
            self.enter(level, slot, cell, dist2);
        }
    }

    /// Moves into the cell of a new parent the keys of the level below that are nearer to it than to their own.
    ///
    /// A key x of parent p can only move to `new` if |x - new| <= |x - p|, hence |p - new| <= 2 |x - p|.
    fn steal(&mut self, level: usize, new: u32) {
        let dim = self.options.dim;
        self.moves.clear();
        if self.levels[level].members.is_empty() {
            // The first parent takes every key below.
            for (_, slot) in self.levels[level - 1].lists[0].iter_cell(&self.pool, ROOT) {
                reserved(self.moves.push((0, slot)));
            }
        } else {
            self.dists.clear();
            let parents = &self.levels[level].members;
            reserved(self.dists.resize(parents.len(), 0.0));
            let key = &self.keys[new as usize * dim..][..dim];
            self.isa.sq_dists_at(&self.keys, dim, parents, key, &mut self.dists);
            let below = &self.levels[level - 1];
            for (&parent, &apart) in parents.iter().zip(self.dists.iter()) {
                for (_, slot) in below.lists[0].iter_cell(&self.pool, parent) {
                    let own = below.dist2[slot as usize];
                    if apart > 4.0 * own * SLACK {
                        continue;
                    }
                    let d = self.isa.sq_dist(self.key_at(slot), key);
                    if d < own || d == own && self.id_at(new) < self.id_at(parent) {
                        reserved(self.moves.push((u64::from(d.to_bits()), slot)));
                    }
                }
            }
        }
        for i in 0..self.moves.len() {
            let (bits, slot) = self.moves[i];
            let was_rootless = self.levels[level - 1].cell_of(slot) == ROOT;
            let d = if was_rootless {
                self.isa.sq_dist(self.key_at(slot), self.key_at(new))
            } else {
                f32::from_bits(bits as u32)
            };
            self.leave(level - 1, slot);
            self.enter(level - 1, slot, new, d);
        }
    }

    /// Takes a key out of every level it reaches, bottom up; its children find new parents.
    pub(super) fn unlink(&mut self, slot: u32) {
        let height = if LEVELS { usize::from(self.height[slot as usize]) } else { 0 };
        for level in 0..=height {
            self.leave(level, slot);
            if level == 0 {
                continue;
            }
            let members = &mut self.levels[level].members;
            if let Some(at) = members.iter().position(|&m| m == slot) {
                let last = members.len() - 1;
                members.swap(at, last);
                members.truncate(last);
            }
            self.moves.clear();
            for (_, child) in self.levels[level - 1].lists[0].iter_cell(&self.pool, slot) {
                reserved(self.moves.push((0, child)));
            }
            for i in 0..self.moves.len() {
                let child = self.moves[i].1;
                self.leave(level - 1, child);
                let (cell, d) = self.nearest_parent(child, level);
                self.enter(level - 1, child, cell, d);
            }
        }
    }

    /// Projects the linked keys anew and sorts them back into their lists, after the lift has grown. Codes stay: they do
    /// not depend on the lift. O(n log n) per list.
    pub(super) fn relift(&mut self) {
        self.clear_lists();
        for slot in 0..self.ids.len() as u32 {
            if self.is_at(slot, 0) {
                self.project(slot);
            }
        }
        for level in 0..self.options.depth() {
            for i in 0..self.lists() {
                self.load_list(level, i);
            }
        }
    }

    fn clear_lists(&mut self) {
        for level in &mut self.levels[..self.options.depth()] {
            for list in level.lists.iter_mut() {
                list.clear(&mut self.pool);
            }
        }
    }

    /// Builds the whole structure anew from the stored keys, for bulk inserts and loads. The result is the one that
    /// single inserts would have given. O(n log n) per list, plus n distances to every parent.
    pub(super) fn rebuild(&mut self) {
        let levels = self.options.depth();
        let slots = self.ids.len() as u32;
        self.clear_lists();
        for level in &mut self.levels[..levels] {
            level.members.clear();
            level.population.iter_mut().for_each(|p| *p = 0);
        }
        for slot in 0..slots {
            if self.id_at(slot) == NO_ID {
                continue;
            }
            self.project(slot);
            let mut height = self.height_of(self.id_at(slot));
            for level in 1..=height {
                // As in `link`: a level without room left ends the climb.
                if self.levels[level].members.push(slot).is_err() {
                    height = level - 1;
                    break;
                }
            }
            self.height[slot as usize] = height as u8;
        }
        for level in (0..levels).rev() {
            for slot in 0..slots {
                if !self.is_at(slot, level) || level + 1 == levels {
                    continue;
                }
                let (cell, d) = self.nearest_parent(slot, level + 1);
                self.levels[level].cell[slot as usize] = cell;
                self.levels[level].dist2[slot as usize] = d;
                if cell != ROOT {
                    self.levels[level + 1].population[cell as usize] += 1;
                }
            }
            for i in 0..self.lists() {
                self.load_list(level, i);
            }
        }
    }

    /// Whether a slot holds a key of this level.
    fn is_at(&self, slot: u32, level: usize) -> bool {
        let height = self.height[slot as usize];
        self.id_at(slot) != NO_ID && height != UNLINKED && usize::from(height) >= level
    }

    /// Sorts the keys of a level along direction `i` and loads them into its empty list.
    fn load_list(&mut self, level: usize, i: usize) {
        let lists = self.lists();
        self.moves.clear();
        for slot in 0..self.ids.len() as u32 {
            if self.is_at(slot, level) {
                let key = sort_key(self.levels[level].cell_of(slot), self.proj[slot as usize * lists + i]);
                reserved(self.moves.push((key, slot)));
            }
        }
        sort(&mut self.moves, &self.ids);
        let run = self.moves.iter().copied();
        reserved(self.levels[level].lists[i].bulk_load(&mut self.pool, run));
    }
}
