//! Candidates of one composite index: the walk of the paper's Algorithm 3 and its linear twin.
//!
//! Both work on the cells in view, as if their lists were one: entry (x, j) has priority -|p_j(x) - p_j(q)|, ties going
//! to the earlier cell, then the earlier simple index, then the upper side, then list order. A point is complete when
//! all its m entries were visited, that is at the greatest of them, so points complete in ascending order of
//! max_j |p_j(x) - p_j(q)| and after priority -tau exactly those with max_j <= tau are complete: the scan computes that
//! maximum directly.

use super::Index;
use super::level::ROOT;
use super::lists::Allowed;
use super::params::Engine;
use super::scratch::{Budget, Scratch, Stop};
use crate::error::reserved;
use crate::list::{Cursor, cell_of, proj_of, sort_key};
use core::cmp::Ordering;

/// Where candidates are looked for: composite index `composite` of level `level`, in the scratch's cells in view, among
/// keys with these ids.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub level: usize,
    pub composite: usize,
    pub ids: &'a Allowed<'a>,
}

impl Index {
    fn eligible(&self, place: Place<'_>, slot: u32) -> bool {
        place.ids.admits(self.id_at(slot))
    }

    /// Adds the candidates of one composite index to `scratch.found`, skipping those already picked at this level.
    pub(super) fn collect(&self, scratch: &mut Scratch, place: Place<'_>, budget: &Budget) {
        let simple = self.options.num_simple;
        let everything = budget.retrieve >= budget.points && budget.visit >= budget.entries;
        match budget.engine {
            // Nobody asks the lists of an index of cells.
            Engine::Cells => {}
            Engine::Walk => self.walk(scratch, place, budget),
            Engine::Scan => self.scan(scratch, place, budget),
            Engine::Auto if everything => self.take_all(scratch, place),
            // The walk pays a queue operation per entry, the scan a few instructions per point.
            Engine::Auto if budget.visit.min(budget.retrieve * simple * 2).saturating_mul(8) < budget.points => {
                self.walk(scratch, place, budget);
            }
            Engine::Auto => self.scan(scratch, place, budget),
        }
    }

    fn pick(scratch: &mut Scratch, slot: u32) {
        if scratch.picked.hit(slot) == 1 {
            reserved(scratch.found.push(slot));
        }
    }

    fn take_all(&self, scratch: &mut Scratch, place: Place<'_>) {
        let list = &self.levels[place.level].lists[0];
        for rank in 0..scratch.view.len() {
            for (_, slot) in list.iter_cell(&self.pool, scratch.view[rank]) {
                if self.eligible(place, slot) {
                    Self::pick(scratch, slot);
                }
            }
        }
    }

    /// The next eligible entry of a cursor, within its cell, which the cursor then stands before.
    fn next_entry(&self, place: Place<'_>, cursor: &mut Cursor, up: bool, cell: u32) -> Option<(f32, u32)> {
        loop {
            let mut next = *cursor;
            let (key, slot) = next.next(&self.pool, up)?;
            if cell_of(key) != cell {
                return None;
            }
            if self.eligible(place, slot) {
                return Some((proj_of(key), slot));
            }
            *cursor = next;
        }
    }

    /// The paper's Algorithm 3 for one composite index.
    fn walk(&self, scratch: &mut Scratch, place: Place<'_>, budget: &Budget) {
        let m = self.options.num_simple;
        let lists = &self.levels[place.level].lists[place.composite * m..][..m];
        scratch.hits.begin();
        scratch.frontier.clear();
        scratch.cursors.clear();
        for rank in 0..scratch.view.len() {
            let cell = scratch.view[rank];
            for (j, list) in lists.iter().enumerate() {
                let q = scratch.proj[place.composite * m + j];
                let start = list.seek(&self.pool, sort_key(cell, q));
                for up in [true, false] {
                    let mut cursor = start;
                    let next = self.next_entry(place, &mut cursor, up, cell);
                    let id = scratch.cursors.len() as u32;
                    reserved(scratch.cursors.push(cursor));
                    if let Some((p, _)) = next {
                        reserved(scratch.frontier.push((p - q).abs(), id, id));
                    }
                }
            }
        }
        let mut retrieved = 0;
        for _ in 0..budget.visit {
            if retrieved == budget.retrieve {
                break;
            }
            let Some(next) = scratch.frontier.peek() else { break };
            let id = next.payload as usize;
            let (cell, j, up) = (scratch.view[id / (2 * m)], id / 2 % m, id.is_multiple_of(2));
            let q = scratch.proj[place.composite * m + j];
            let mut cursor = scratch.cursors[id];
            let Some((_, slot)) = self.next_entry(place, &mut cursor, up, cell) else { break };
            cursor.next(&self.pool, up);
            match self.next_entry(place, &mut cursor, up, cell) {
                Some((p, _)) => scratch.frontier.replace_min((p - q).abs(), id as u32, id as u32),
                None => scratch.frontier.pop_min(),
            };
            scratch.cursors[id] = cursor;
            if usize::from(scratch.hits.hit(slot)) == m {
                retrieved += 1;
                Self::pick(scratch, slot);
            }
        }
    }

    /// The order in which the walk visits entries.
    fn visit_order(&self, composite: usize, a: &Stop, b: &Stop) -> Ordering {
        let m = self.options.num_simple;
        a.delta.total_cmp(&b.delta).then(a.cursor.cmp(&b.cursor)).then_with(|| {
            // The same cursor at the same distance: the order of its list.
            let list = composite * m + a.cursor as usize / 2 % m;
            let of = |e: &Stop| (sort_key(0, self.proj_at(e.slot)[list]), self.id_at(e.slot));
            if a.cursor.is_multiple_of(2) { of(a).cmp(&of(b)) } else { of(b).cmp(&of(a)) }
        })
    }

    /// Brings the entry that is visited at place `n` there, earlier ones before it.
    fn select(&self, composite: usize, entries: &mut [Stop], n: usize) -> Stop {
        *entries.select_nth_unstable_by(n, |a, b| self.visit_order(composite, a, b)).1
    }

    /// The twin of [`walk`](Index::walk) without lists: the same candidates in the same order.
    fn scan(&self, scratch: &mut Scratch, place: Place<'_>, budget: &Budget) {
        let m = self.options.num_simple;
        if budget.retrieve == 0 || budget.visit == 0 {
            return;
        }
        // The entry at which a visit budget ends, if it can end before everything is visited.
        scratch.entries.clear();
        let mut last = None;
        if budget.visit < budget.entries {
            self.each_point(scratch, place, |entries, row, q, rank, slot| {
                for (j, (p, q)) in row.iter().zip(q).enumerate() {
                    let cursor = ((rank * m + j) * 2) as u32 + u32::from(p < q);
                    reserved(entries.push(Stop { delta: (p - q).abs(), cursor, slot }));
                }
            });
            if budget.visit < scratch.entries.len() {
                last = Some(self.select(place.composite, &mut scratch.entries, budget.visit - 1));
            }
            scratch.entries.clear();
        }
        // The entry at which each point completes.
        self.each_point(scratch, place, |entries, row, q, rank, slot| {
            let mut worst = Stop { delta: -1.0, cursor: 0, slot };
            for (j, (p, q)) in row.iter().zip(q).enumerate() {
                let delta = (p - q).abs();
                if delta >= worst.delta {
                    worst.delta = delta;
                    worst.cursor = ((rank * m + j) * 2) as u32 + u32::from(p < q);
                }
            }
            if last.is_none_or(|last| self.visit_order(place.composite, &worst, &last) != Ordering::Greater) {
                reserved(entries.push(worst));
            }
        });
        let keep = budget.retrieve.min(scratch.entries.len());
        if keep < scratch.entries.len() {
            self.select(place.composite, &mut scratch.entries, keep);
            scratch.entries.truncate(keep);
        }
        if budget.engine == Engine::Scan {
            // Asked for by name: also the order of the walk.
            scratch.entries.sort_unstable_by(|a, b| self.visit_order(place.composite, a, b));
        }
        for i in 0..scratch.entries.len() {
            let slot = scratch.entries[i].slot;
            Self::pick(scratch, slot);
        }
    }

    /// Calls `f(entries, projections, query's projections, rank of the cell, slot)` for every eligible point in view.
    fn each_point(
        &self,
        scratch: &mut Scratch,
        place: Place<'_>,
        mut f: impl FnMut(&mut crate::mem::Buf<Stop>, &[f32], &[f32], usize, u32),
    ) {
        let m = self.options.num_simple;
        let first = place.composite * m;
        let Scratch { entries, proj, view, .. } = scratch;
        let q = &proj[first..][..m];
        if view[..] == [ROOT] && place.level == 0 {
            // Every key, in storage order.
            for slot in 0..self.ids.len() as u32 {
                if self.id_at(slot) != super::slots::NO_ID && self.eligible(place, slot) {
                    f(entries, &self.proj_at(slot)[first..][..m], q, 0, slot);
                }
            }
            return;
        }
        for (rank, &cell) in view.iter().enumerate() {
            for (_, slot) in self.levels[place.level].lists[first].iter_cell(&self.pool, cell) {
                if self.eligible(place, slot) {
                    f(entries, &self.proj_at(slot)[first..][..m], q, rank, slot);
                }
            }
        }
    }
}
