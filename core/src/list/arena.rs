//! Storage of all lists of one index: nodes and tower elements, linked by index, with free lists.

use super::NIL;
use crate::error::{Error, Result, Status};
use crate::mem::{Buf, Maker, Plan};

/// Entries in a full node.
pub(super) const NODE: usize = 32;

/// Two neighbours that together hold no more than this are merged.
pub(super) const MERGE: usize = NODE / 4 * 3;

/// Up to [`NODE`] sorted entries, and the links of their list. Keys and slots are apart so that a scan reads one kind.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub(super) keys: [u64; NODE],
    pub(super) slots: [u32; NODE],
    pub(super) len: u32,
    pub(super) prev: u32,
    /// Next node of the list, or of the free list.
    pub(super) next: u32,
    /// Highest tower element of this node.
    pub(super) tower: u32,
}

impl Node {
    pub(super) const EMPTY: Node = Node { keys: [0; NODE], slots: [0; NODE], len: 0, prev: NIL, next: NIL, tower: NIL };

    #[inline]
    pub(super) fn keys(&self) -> &[u64] {
        &self.keys[..self.len as usize]
    }

    #[inline]
    pub(super) fn slots(&self) -> &[u32] {
        &self.slots[..self.len as usize]
    }

    /// Where `(key, id)` is, or would go.
    pub(super) fn lower_bound(&self, ids: &[u64], key: u64, id: u64) -> usize {
        let (keys, slots) = (self.keys(), self.slots());
        let mut at = keys.partition_point(|&k| k < key);
        while at < keys.len() && keys[at] == key && ids[slots[at] as usize] < id {
            at += 1;
        }
        at
    }

    /// Inserts into a node that is not full.
    pub(super) fn insert(&mut self, at: usize, key: u64, slot: u32) {
        let len = self.len as usize;
        self.keys.copy_within(at..len, at + 1);
        self.slots.copy_within(at..len, at + 1);
        self.keys[at] = key;
        self.slots[at] = slot;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, at: usize) {
        let len = self.len as usize;
        self.keys.copy_within(at + 1..len, at);
        self.slots.copy_within(at + 1..len, at);
        self.len -= 1;
    }

    /// Appends `other[from..]`; there is room.
    pub(super) fn append(&mut self, other: &Node, from: usize) {
        let (len, end) = (self.len as usize, other.len as usize);
        let new = len + end - from;
        self.keys[len..new].copy_from_slice(&other.keys[from..end]);
        self.slots[len..new].copy_from_slice(&other.slots[from..end]);
        self.len = new as u32;
    }
}

/// One level of a node's tower. `key` repeats the first key of the node, so that a search stays inside this array.
#[derive(Clone, Copy)]
pub(super) struct Elem {
    pub(super) key: u64,
    pub(super) node: u32,
    /// Next element of the level, or of the free list.
    pub(super) right: u32,
    pub(super) down: u32,
}

/// Arena of the nodes of many lists.
///
/// Never fails within its capacity. Neighbours in a list hold more than `MERGE` = 24 entries together, so a list of `n`
/// entries has `m` nodes with `25 * floor(m / 2) <= n`, that is `m <= 2 * floor(n / 25) + 1`, and none if it is empty.
/// Over all lists: at most `2 * floor(entries / 25) + min(lists, entries)` nodes. An insertion may take one node before
/// a merge gives one back: one more.
pub struct Pool {
    pub(super) nodes: Buf<Node>,
    pub(super) elems: Buf<Elem>,
    pub(super) free_node: u32,
    pub(super) free_elem: u32,
    pub(super) entries: usize,
    filled: usize,
    pub(super) max_entries: usize,
    max_lists: usize,
}

/// Nodes that always suffice, or `None` when they cannot be numbered.
fn node_bound(entries: usize, lists: usize) -> Option<usize> {
    if entries == 0 || lists == 0 {
        return Some(0);
    }
    let n = (entries / (MERGE + 1)).checked_mul(2)?.checked_add(lists.min(entries))?.checked_add(1)?;
    (n < NIL as usize).then_some(n)
}

/// Tower elements: a third of the nodes on average; the rest is slack. Running out costs speed only.
fn elem_bound(nodes: usize) -> usize {
    if nodes == 0 { 0 } else { nodes / 2 + 8 }
}

const TOO_LARGE: Error = Error::new(Status::NoMemory, "capacity", "more list nodes than can be numbered");

impl Pool {
    /// Adds the blocks of a pool to a plan. O(1), no allocation.
    pub fn plan(plan: &mut Plan, entries: usize, lists: usize) {
        match node_bound(entries, lists) {
            Some(nodes) => {
                Buf::<Elem>::plan(plan, elem_bound(nodes));
                Buf::<Node>::plan(plan, nodes);
            }
            None => plan.add_bytes(usize::MAX),
        }
    }

    /// An empty pool for `entries` entries over all of at most `lists` lists. O(1); two blocks, or none when either is 0.
    pub(crate) fn made(m: &mut Maker<'_>, entries: usize, lists: usize) -> Pool {
        let mut pool = Pool {
            nodes: Buf::new(m.memory()),
            elems: Buf::new(m.memory()),
            free_node: NIL,
            free_elem: NIL,
            entries: 0,
            filled: 0,
            max_entries: 0,
            max_lists: 0,
        };
        m.other(|plan| Pool::plan(plan, entries, lists), || pool.reserve(entries, lists));
        pool
    }

    /// Raises the capacity; never lowers it. O(nodes); may allocate.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`; nothing has changed then.
    pub fn reserve(&mut self, entries: usize, lists: usize) -> Result<()> {
        let (entries, lists) = (entries.max(self.max_entries), lists.max(self.max_lists));
        let nodes = node_bound(entries, lists).ok_or(TOO_LARGE)?;
        let elems = elem_bound(nodes);
        let grown = if elems > self.elems.capacity() {
            let mut grown = Buf::with_capacity(self.elems.memory(), elems)?;
            grown.extend_from_slice(&self.elems)?;
            Some(grown)
        } else {
            None
        };
        // Last, because it cannot be undone; on error the new block of elements goes back.
        self.nodes.reserve(nodes)?;
        if let Some(grown) = grown {
            self.elems = grown;
        }
        self.max_entries = entries;
        self.max_lists = lists;
        Ok(())
    }

    /// Whether `n` more entries fit into a list, which is empty now or not.
    pub(super) fn admit(&self, n: usize, list_is_empty: bool) -> Result<()> {
        if n > self.max_entries - self.entries {
            return Err(Error::new(Status::Capacity, "capacity", "list pool is full").value(self.max_entries as u64));
        }
        if list_is_empty && n > 0 && self.filled == self.max_lists {
            return Err(Error::new(Status::Capacity, "capacity", "more lists than planned").value(self.filled as u64));
        }
        Ok(())
    }

    /// Counts entries in (`before < after`) or out of one list.
    pub(super) fn account(&mut self, before: usize, after: usize) {
        self.entries = self.entries + after - before;
        self.filled = self.filled + usize::from(after > 0) - usize::from(before > 0);
    }

    #[inline]
    pub(super) fn node(&self, i: u32) -> &Node {
        &self.nodes[i as usize]
    }

    #[inline]
    pub(super) fn node_mut(&mut self, i: u32) -> &mut Node {
        &mut self.nodes[i as usize]
    }

    #[inline]
    pub(super) fn elem(&self, i: u32) -> &Elem {
        &self.elems[i as usize]
    }

    #[inline]
    pub(super) fn elem_mut(&mut self, i: u32) -> &mut Elem {
        &mut self.elems[i as usize]
    }

    /// An empty unlinked node. By the bound above it is there for every admitted entry.
    pub(super) fn take_node(&mut self) -> Result<u32> {
        let i = self.free_node;
        if i != NIL {
            self.free_node = self.node(i).next;
            let node = self.node_mut(i);
            (node.len, node.prev, node.next, node.tower) = (0, NIL, NIL, NIL);
            return Ok(i);
        }
        let i = self.nodes.len() as u32;
        let lost = Error::new(Status::Internal, "capacity", "list nodes ran out within the capacity");
        self.nodes.push(Node::EMPTY).map_err(|_| lost).map(|()| i)
    }

    /// Takes back a chain of nodes linked by `next`.
    pub(super) fn give_nodes(&mut self, first: u32, last: u32) {
        self.node_mut(last).next = self.free_node;
        self.free_node = first;
    }

    pub(super) fn take_elem(&mut self, elem: Elem) -> Option<u32> {
        let i = self.free_elem;
        if i != NIL {
            self.free_elem = self.elem(i).right;
            *self.elem_mut(i) = elem;
            return Some(i);
        }
        let i = self.elems.len() as u32;
        self.elems.push(elem).ok().map(|()| i)
    }

    pub(super) fn give_elem(&mut self, i: u32) {
        self.elem_mut(i).right = self.free_elem;
        self.free_elem = i;
    }
}
