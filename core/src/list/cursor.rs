//! Positions between entries, and walks from them.

use super::NIL;
use super::arena::{NODE, Pool};
use super::skip::SkipList;

/// A place between two entries of a list, good until the list changes. Walks either way; two-sided walks take two
/// copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    node: u32,
    /// Entries of `node` below the place.
    pos: u32,
}

impl Cursor {
    /// The next entry upwards. O(1), no allocation.
    #[inline]
    pub fn peek_up(&self, pool: &Pool) -> Option<(u64, u32)> {
        let mut copy = *self;
        copy.next_up(pool)
    }

    /// The next entry downwards. O(1), no allocation.
    #[inline]
    pub fn peek_down(&self, pool: &Pool) -> Option<(u64, u32)> {
        let mut copy = *self;
        copy.next_down(pool)
    }

    /// Steps over one entry upwards; stays at the end. O(1), no allocation.
    #[inline]
    pub fn advance_up(&mut self, pool: &Pool) {
        self.next_up(pool);
    }

    /// Steps over one entry downwards; stays at the beginning. O(1), no allocation.
    #[inline]
    pub fn advance_down(&mut self, pool: &Pool) {
        self.next_down(pool);
    }

    /// Steps over one entry upwards and returns it. O(1), no allocation.
    #[inline]
    pub fn next_up(&mut self, pool: &Pool) -> Option<(u64, u32)> {
        if self.node == NIL {
            return None;
        }
        let mut node = pool.node(self.node);
        if self.pos >= node.len {
            if node.next == NIL {
                return None;
            }
            *self = Cursor { node: node.next, pos: 0 };
            node = pool.node(self.node);
        }
        let at = self.pos as usize % NODE;
        self.pos += 1;
        Some((node.keys[at], node.slots[at]))
    }

    /// Steps over one entry downwards and returns it. O(1), no allocation.
    #[inline]
    pub fn next_down(&mut self, pool: &Pool) -> Option<(u64, u32)> {
        if self.node == NIL {
            return None;
        }
        let mut node = pool.node(self.node);
        if self.pos == 0 {
            if node.prev == NIL {
                return None;
            }
            let prev = node.prev;
            node = pool.node(prev);
            *self = Cursor { node: prev, pos: node.len };
        }
        self.pos -= 1;
        let at = self.pos as usize % NODE;
        Some((node.keys[at], node.slots[at]))
    }

    /// The entries above the place that lie together, ascending, without moving: keys and slots. Empty only at the end
    /// of the list. O(1), no allocation.
    pub fn run_up<'a>(&self, pool: &'a Pool) -> (&'a [u64], &'a [u32]) {
        if self.node == NIL {
            return (&[], &[]);
        }
        let node = pool.node(self.node);
        if self.pos < node.len {
            return (&node.keys()[self.pos as usize..], &node.slots()[self.pos as usize..]);
        }
        if node.next == NIL {
            return (&[], &[]);
        }
        let next = pool.node(node.next);
        (next.keys(), next.slots())
    }

    /// The entries below the place that lie together, ascending (the nearest is the last), without moving: keys and
    /// slots. Empty only at the beginning of the list. O(1), no allocation.
    pub fn run_down<'a>(&self, pool: &'a Pool) -> (&'a [u64], &'a [u32]) {
        if self.node == NIL {
            return (&[], &[]);
        }
        let node = pool.node(self.node);
        if self.pos > 0 {
            return (&node.keys()[..self.pos as usize], &node.slots()[..self.pos as usize]);
        }
        if node.prev == NIL {
            return (&[], &[]);
        }
        let prev = pool.node(node.prev);
        (prev.keys(), prev.slots())
    }

    /// Steps over everything [`run_up`](Cursor::run_up) shows. O(1), no allocation.
    pub fn skip_up(&mut self, pool: &Pool) {
        if self.next_up(pool).is_some() {
            self.pos = pool.node(self.node).len;
        }
    }

    /// Steps over everything [`run_down`](Cursor::run_down) shows. O(1), no allocation.
    pub fn skip_down(&mut self, pool: &Pool) {
        if self.next_down(pool).is_some() {
            self.pos = 0;
        }
    }
}

/// Ascending runs `(keys, slots)` of entries that lie together, up to a last key.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    pool: &'a Pool,
    at: Cursor,
    /// Largest key shown.
    end: u64,
}

impl<'a> Iterator for Runs<'a> {
    type Item = (&'a [u64], &'a [u32]);

    fn next(&mut self) -> Option<Self::Item> {
        let (mut keys, mut slots) = self.at.run_up(self.pool);
        if *keys.first()? > self.end {
            return None;
        }
        self.at.skip_up(self.pool);
        if *keys.last()? > self.end {
            let n = keys.partition_point(|&k| k <= self.end);
            (keys, slots) = (&keys[..n], &slots[..n]);
        }
        Some((keys, slots))
    }
}

/// Ascending entries `(key, slot)`, up to a last key.
#[derive(Clone, Debug)]
pub struct CellIter<'a> {
    runs: Runs<'a>,
    keys: &'a [u64],
    slots: &'a [u32],
}

impl Iterator for CellIter<'_> {
    type Item = (u64, u32);

    #[inline]
    fn next(&mut self) -> Option<(u64, u32)> {
        if self.keys.is_empty() {
            (self.keys, self.slots) = self.runs.next()?;
        }
        let ((&key, keys), (&slot, slots)) = (self.keys.split_first()?, self.slots.split_first()?);
        (self.keys, self.slots) = (keys, slots);
        Some((key, slot))
    }
}

impl SkipList {
    /// The place before the first entry whose key is at least `key`. Expected O(log n), no allocation.
    pub fn seek(&self, pool: &Pool, key: u64) -> Cursor {
        let node = self.descend(pool, |_, _| (), |first, _| first < key);
        if node == NIL {
            return self.begin();
        }
        let pos = pool.node(node).keys().partition_point(|&k| k < key) as u32;
        Cursor { node, pos }
    }

    /// The place before the first entry. O(1), no allocation.
    pub fn begin(&self) -> Cursor {
        Cursor { node: self.first, pos: 0 }
    }

    /// The place behind the last entry. O(1), no allocation.
    pub fn end(&self, pool: &Pool) -> Cursor {
        Cursor { node: self.last, pos: if self.last == NIL { 0 } else { pool.node(self.last).len } }
    }

    /// All entries in order. O(1) to make, O(1) a step, no allocation.
    pub fn iter<'a>(&self, pool: &'a Pool) -> CellIter<'a> {
        CellIter { runs: Runs { pool, at: self.begin(), end: u64::MAX }, keys: &[], slots: &[] }
    }

    /// All entries in order, as the runs they are stored in. O(1) to make, O(1) a run, no allocation.
    pub fn runs<'a>(&self, pool: &'a Pool) -> Runs<'a> {
        Runs { pool, at: self.begin(), end: u64::MAX }
    }

    /// All entries of a cell in order. Expected O(log n) to make, O(1) a step, no allocation.
    pub fn iter_cell<'a>(&self, pool: &'a Pool, cell: u32) -> CellIter<'a> {
        CellIter { runs: self.runs_cell(pool, cell), keys: &[], slots: &[] }
    }

    /// All entries of a cell in order, as the runs they are stored in. Expected O(log n) to make, O(1) a run (the last
    /// one O(log [`NODE`])), no allocation.
    pub fn runs_cell<'a>(&self, pool: &'a Pool, cell: u32) -> Runs<'a> {
        let begin = (cell as u64) << 32;
        Runs { pool, at: self.seek(pool, begin), end: begin | u32::MAX as u64 }
    }
}
