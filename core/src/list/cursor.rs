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
    /// Steps over one entry, upwards or downwards, and returns it; stays at the ends. O(1), no allocation.
    #[inline]
    pub fn next(&mut self, pool: &Pool, up: bool) -> Option<(u64, u32)> {
        if up { self.next_up(pool) } else { self.next_down(pool) }
    }

    #[inline]
    fn next_up(&mut self, pool: &Pool) -> Option<(u64, u32)> {
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

    #[inline]
    fn next_down(&mut self, pool: &Pool) -> Option<(u64, u32)> {
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
    fn run_up<'a>(&self, pool: &'a Pool) -> (&'a [u64], &'a [u32]) {
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

    /// Steps over everything [`run_up`](Cursor::run_up) shows. O(1), no allocation.
    fn skip_up(&mut self, pool: &Pool) {
        if self.next_up(pool).is_some() {
            self.pos = pool.node(self.node).len;
        }
    }
}

/// Ascending runs `(keys, slots)` of entries that lie together, up to a last key.
struct Runs<'a> {
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

    /// All entries of a cell in order. Expected O(log n) to make, O(1) a step, no allocation.
    pub fn iter_cell<'a>(&self, pool: &'a Pool, cell: u32) -> impl Iterator<Item = (u64, u32)> + use<'a> {
        let begin = u64::from(cell) << 32;
        let runs = Runs { pool, at: self.seek(pool, begin), end: begin | u64::from(u32::MAX) };
        runs.flat_map(|(keys, slots)| keys.iter().copied().zip(slots.iter().copied()))
    }
}
