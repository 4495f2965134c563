//! One sorted list: a chain of unrolled nodes under towers of express links.

use super::NIL;
use super::arena::{Elem, MERGE, NODE, Node, Pool};
use crate::error::{Error, Result, Status};
use crate::math::mix;

/// Most levels of a tower. Each level links a quarter of the one below, so twelve serve 4^12 nodes.
pub(super) const HEIGHT: usize = 12;

/// Entries per node after a bulk load: room for a few insertions before a split, and above `MERGE` by itself.
const FILL: usize = NODE / 8 * 7;

/// Last element before some place, on every level; NIL stands for the head.
type Path = [u32; HEIGHT];

/// A sorted list of `(key, slot)`, ordered by key and then by the id of the slot. Holds links only: the entries are in
/// the [`Pool`], always the same one for a list. Copying the struct does not copy the list; use one copy.
///
/// Tower heights come from a hash of the seed and the id a node starts with, so that equal histories give equal pools;
/// they influence speed, never results.
#[derive(Clone, Copy, Debug)]
pub struct SkipList {
    pub(super) heads: [u32; HEIGHT],
    pub(super) first: u32,
    pub(super) last: u32,
    /// Levels in use; `heads` is NIL from there on.
    pub(super) levels: u32,
    pub(super) nodes: u32,
    pub(super) len: usize,
    seed: u64,
}

impl SkipList {
    /// An empty list. O(1), no allocation.
    pub const fn new(seed: u64) -> Self {
        SkipList { heads: [NIL; HEIGHT], first: NIL, last: NIL, levels: 0, nodes: 0, len: 0, seed }
    }

    /// Number of entries. O(1), no allocation.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Inserts an entry whose slot is not in this list. Expected O(log n + [`NODE`]), no allocation; cannot fail within
    /// the capacity of the pool.
    ///
    /// # Errors
    /// `Capacity` beyond it, `Duplicate` if the entry is there; nothing has changed then.
    ///
    /// # Panics
    /// If a slot of the list, or this one, is outside `ids`.
    pub fn insert(&mut self, pool: &mut Pool, ids: &[u64], key: u64, slot: u32) -> Result<()> {
        pool.admit(1, self.len == 0)?;
        let id = ids[slot as usize];
        let mut path = [NIL; HEIGHT];
        let at = self.descend(pool, |level, e| path[level] = e, |k, node| at_most(pool, ids, k, node, key, id));
        if at == NIL {
            if self.first != NIL && (pool.node(self.first).len as usize) < NODE {
                pool.node_mut(self.first).insert(0, key, slot);
                rename(pool, self.first);
            } else {
                // A new first node beside a full one (or none): 1 + NODE > MERGE.
                self.add_node(pool, NIL, &Node::of(key, slot), id, &mut path)?;
            }
        } else {
            let node = pool.node(at);
            let pos = node.lower_bound(ids, key, id);
            if node.keys().get(pos) == Some(&key) && node.slots()[pos] == slot {
                return Err(Error::new(Status::Duplicate, "id", "is already in the list").id(id));
            }
            if (node.len as usize) < NODE {
                pool.node_mut(at).insert(pos, key, slot);
            } else {
                self.split(pool, ids, at, pos, key, slot, &mut path)?;
            }
        }
        pool.account(self.len, self.len + 1);
        self.len += 1;
        Ok(())
    }

    /// Removes an entry; says whether it was there. Expected O(log n + [`NODE`]), no allocation.
    ///
    /// # Panics
    /// If a slot of the list, or this one, is outside `ids`.
    pub fn remove(&mut self, pool: &mut Pool, ids: &[u64], key: u64, slot: u32) -> bool {
        let id = ids[slot as usize];
        let at = self.descend(pool, |_, _| (), |k, node| at_most(pool, ids, k, node, key, id));
        if at == NIL {
            return false;
        }
        let node = pool.node(at);
        let pos = node.lower_bound(ids, key, id);
        if node.keys().get(pos) != Some(&key) || node.slots()[pos] != slot {
            return false;
        }
        if node.len == 1 {
            self.drop_node(pool, ids, at);
        } else {
            pool.node_mut(at).remove(pos);
            if pos == 0 {
                rename(pool, at);
            }
            // One merge is enough: what it leaves holds more than either part did beside the same neighbours.
            if !self.merge_with_next(pool, ids, pool.node(at).prev) {
                self.merge_with_next(pool, ids, at);
            }
        }
        pool.account(self.len, self.len - 1);
        self.len -= 1;
        true
    }

    /// Removes everything. O(nodes), no allocation.
    pub fn clear(&mut self, pool: &mut Pool) {
        for head in &self.heads {
            let mut e = *head;
            while e != NIL {
                let right = pool.elem(e).right;
                pool.give_elem(e);
                e = right;
            }
        }
        if self.first != NIL {
            pool.give_nodes(self.first, self.last);
        }
        pool.account(self.len, 0);
        *self = SkipList::new(self.seed);
    }

    /// Fills an empty list from entries in list order. O(n), no allocation. Nodes are filled to 7/8, towers are those of
    /// a perfect skip list.
    ///
    /// # Errors
    /// `State` if the list is not empty, `Capacity` if the pool is too small; nothing has changed then.
    pub fn bulk_load(&mut self, pool: &mut Pool, sorted: impl ExactSizeIterator<Item = (u64, u32)>) -> Result<()> {
        if self.len > 0 {
            return Err(Error::new(Status::State, "list", "is not empty"));
        }
        pool.admit(sorted.len(), true)?;
        let admitted = sorted.len();
        let mut sorted = sorted.take(admitted);
        // The last element of every level so far.
        let mut path = [NIL; HEIGHT];
        while let Some((key, slot)) = sorted.next() {
            let mut node = Node::of(key, slot);
            for (key, slot) in sorted.by_ref().take(FILL - 1) {
                node.insert(node.len as usize, key, slot);
            }
            let at = match self.link(pool, self.last, &node) {
                Ok(at) => at,
                Err(e) => {
                    self.clear(pool);
                    return Err(e);
                }
            };
            // Every 4th node reaches level 1, every 16th level 2, ...
            let height = (self.nodes.trailing_zeros() as usize / 2).min(HEIGHT);
            self.raise(pool, at, height, &mut path);
            pool.account(self.len, self.len + node.len as usize);
            self.len += node.len as usize;
        }
        Ok(())
    }

    /// Last node for which `before(first key, node)` holds (it holds for a prefix of the list), or NIL. Tells `note` the
    /// last such element of each level.
    #[inline]
    pub(super) fn descend(
        &self,
        pool: &Pool,
        mut note: impl FnMut(usize, u32),
        before: impl Fn(u64, u32) -> bool,
    ) -> u32 {
        let mut at = NIL;
        for level in (0..self.levels as usize).rev() {
            if at != NIL {
                at = pool.elem(at).down;
            }
            loop {
                let right = self.right(pool, level, at);
                if right == NIL {
                    break;
                }
                let e = pool.elem(right);
                if !before(e.key, e.node) {
                    break;
                }
                at = right;
            }
            note(level, at);
        }
        let mut node = if at == NIL { NIL } else { pool.elem(at).node };
        loop {
            let next = if node == NIL { self.first } else { pool.node(node).next };
            if next == NIL || !before(pool.node(next).keys[0], next) {
                return node;
            }
            node = next;
        }
    }

    #[inline]
    fn right(&self, pool: &Pool, level: usize, e: u32) -> u32 {
        if e == NIL { self.heads[level] } else { pool.elem(e).right }
    }

    fn set_right(&mut self, pool: &mut Pool, level: usize, e: u32, right: u32) {
        if e == NIL {
            self.heads[level] = right;
        } else {
            pool.elem_mut(e).right = right;
        }
    }

    /// Inserts at `pos` into the full node `at`; `path` leads to `at`, and so to its new right neighbour.
    fn split(
        &mut self,
        pool: &mut Pool,
        ids: &[u64],
        at: u32,
        pos: usize,
        key: u64,
        slot: u32,
        path: &mut Path,
    ) -> Result<()> {
        let mut left = *pool.node(at);
        let keep = match pos {
            // Behind everything: the full node stays, so that ascending runs leave full nodes.
            NODE => NODE,
            _ if pos > NODE / 2 => NODE / 2 + 1,
            _ => NODE / 2,
        };
        let mut right = Node::of(key, slot);
        right.len = 0;
        right.append(&left, keep);
        left.len = keep as u32;
        if keep <= NODE / 2 {
            left.insert(pos, key, slot);
        } else {
            right.insert(pos - keep, key, slot);
        }
        let id = ids[right.slots[0] as usize];
        let new = self.add_node(pool, at, &right, id, path)?;
        let node = pool.node_mut(at);
        (node.keys, node.slots, node.len) = (left.keys, left.slots, left.len);
        if pos == 0 {
            rename(pool, at);
        }
        self.merge_with_next(pool, ids, new);
        self.merge_with_next(pool, ids, pool.node(at).prev);
        Ok(())
    }

    /// Links a node with the entries of `node` behind `prev` (NIL = in front) and gives it a tower.
    fn add_node(&mut self, pool: &mut Pool, prev: u32, node: &Node, id: u64, path: &mut Path) -> Result<u32> {
        let at = self.link(pool, prev, node)?;
        let height = (mix(self.seed ^ mix(id)).trailing_zeros() as usize / 2).min(HEIGHT);
        self.raise(pool, at, height, path);
        Ok(at)
    }

    fn link(&mut self, pool: &mut Pool, prev: u32, node: &Node) -> Result<u32> {
        let at = pool.take_node()?;
        let next = if prev == NIL { self.first } else { pool.node(prev).next };
        *pool.node_mut(at) = Node { prev, next, tower: NIL, ..*node };
        if prev == NIL {
            self.first = at
        } else {
            pool.node_mut(prev).next = at
        }
        if next == NIL {
            self.last = at
        } else {
            pool.node_mut(next).prev = at
        }
        self.nodes += 1;
        Ok(at)
    }

    /// Builds the tower of `at` behind `path`, which then leads to it; shorter if elements run out.
    fn raise(&mut self, pool: &mut Pool, at: u32, height: usize, path: &mut Path) {
        let key = pool.node(at).keys[0];
        let mut down = NIL;
        for level in 0..height {
            let right = self.right(pool, level, path[level]);
            let Some(e) = pool.take_elem(Elem { key, node: at, right, down }) else { break };
            self.set_right(pool, level, path[level], e);
            self.levels = self.levels.max(level as u32 + 1);
            path[level] = e;
            down = e;
        }
        pool.node_mut(at).tower = down;
    }

    /// Takes the tower of `at` down; its first entry is still the one that the tower names.
    fn lower(&mut self, pool: &mut Pool, ids: &[u64], at: u32) {
        if pool.node(at).tower == NIL {
            return;
        }
        let (key, id) = (pool.node(at).keys[0], ids[pool.node(at).slots[0] as usize]);
        let mut path = [NIL; HEIGHT];
        self.descend(pool, |level, e| path[level] = e, |k, node| node != at && at_most(pool, ids, k, node, key, id));
        for level in 0..self.levels as usize {
            let e = self.right(pool, level, path[level]);
            if e == NIL || pool.elem(e).node != at {
                break;
            }
            self.set_right(pool, level, path[level], pool.elem(e).right);
            pool.give_elem(e);
        }
        pool.node_mut(at).tower = NIL;
        while self.levels > 0 && self.heads[self.levels as usize - 1] == NIL {
            self.levels -= 1;
        }
    }

    /// Takes a node out of the list.
    fn drop_node(&mut self, pool: &mut Pool, ids: &[u64], at: u32) {
        self.lower(pool, ids, at);
        let Node { prev, next, .. } = *pool.node(at);
        if prev == NIL {
            self.first = next
        } else {
            pool.node_mut(prev).next = next
        }
        if next == NIL {
            self.last = prev
        } else {
            pool.node_mut(next).prev = prev
        }
        pool.give_nodes(at, at);
        self.nodes -= 1;
    }

    /// Moves the entries of the next node into `at` if both are thin; says whether it did.
    fn merge_with_next(&mut self, pool: &mut Pool, ids: &[u64], at: u32) -> bool {
        if at == NIL || pool.node(at).next == NIL {
            return false;
        }
        let next = pool.node(at).next;
        let other = *pool.node(next);
        if (pool.node(at).len + other.len) as usize > MERGE {
            return false;
        }
        self.drop_node(pool, ids, next);
        pool.node_mut(at).append(&other, 0);
        true
    }
}

impl Node {
    /// An unlinked node of one entry.
    fn of(key: u64, slot: u32) -> Node {
        let mut node = Node::EMPTY;
        node.insert(0, key, slot);
        node
    }
}

/// Whether a node whose first key is `first` begins at or before `(key, id)`.
#[inline]
fn at_most(pool: &Pool, ids: &[u64], first: u64, node: u32, key: u64, id: u64) -> bool {
    first < key || first == key && ids[pool.node(node).slots[0] as usize] <= id
}

/// Tells a tower that the first entry of its node has changed.
fn rename(pool: &mut Pool, at: u32) {
    let Node { keys: [key, ..], tower: mut e, .. } = *pool.node(at);
    while e != NIL {
        let elem = pool.elem_mut(e);
        elem.key = key;
        e = elem.down;
    }
}
