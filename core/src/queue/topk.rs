//! The k best of a stream, in a heap whose root is the worst of them.

use crate::error::{Error, Result, Status};
use crate::mem::{Buf, Maker, Memory, Plan};
use core::cmp::Ordering;

/// A scored entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// Higher is better.
    pub score: f32,
    /// Where the entry is.
    pub slot: u32,
    /// Of equal scores the smaller id is better.
    pub id: u64,
}

impl Item {
    /// `Less` = better: higher score, then smaller id. Sorting by it puts the best first. O(1), no allocation.
    #[inline]
    pub fn rank(&self, other: &Item) -> Ordering {
        other.score.total_cmp(&self.score).then(self.id.cmp(&other.id))
    }

    #[inline]
    fn worse(&self, other: &Item) -> bool {
        self.rank(other) == Ordering::Greater
    }
}

/// The best `k` items pushed since [`reset`](TopK::reset). What it holds does not depend on the order of pushes, as long
/// as ids are distinct. Scores are compared as [`f32::total_cmp`] does and must not be NaN.
#[derive(Debug)]
pub struct TopK {
    heap: Buf<Item>,
    k: usize,
    /// Best first, after `into_sorted`; otherwise a heap.
    sorted: bool,
}

impl TopK {
    /// Adds the block of `with_capacity(cap)` to a plan. O(1), no allocation.
    pub fn plan(plan: &mut Plan, cap: usize) {
        plan.count(|m| TopK::made(m, cap));
    }

    /// An empty queue with `k = cap`. O(1); allocates one block, or none for 0.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub fn with_capacity(memory: &Memory, cap: usize) -> Result<TopK> {
        Maker::make(memory, |m| TopK::made(m, cap))
    }

    /// The same as part of a larger object.
    pub(crate) fn made(m: &mut Maker<'_>, cap: usize) -> TopK {
        TopK { heap: m.room(cap), k: cap, sorted: false }
    }

    /// Makes room for `k = cap`. O(cap); may allocate.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`; nothing has changed then.
    pub fn reserve(&mut self, cap: usize) -> Result<()> {
        self.heap.reserve(cap)
    }

    /// Largest `k`. O(1), no allocation.
    pub fn capacity(&self) -> usize {
        self.heap.capacity()
    }

    /// Empties the queue and sets how many items it keeps. O(1), no allocation.
    ///
    /// # Errors
    /// `Capacity` if `k` is more than that; nothing has changed then.
    pub fn reset(&mut self, k: usize) -> Result<()> {
        if k > self.heap.capacity() {
            return Err(Error::new(Status::Capacity, "k", "more than the capacity").need(k, self.heap.capacity()));
        }
        self.heap.clear();
        self.k = k;
        self.sorted = false;
        Ok(())
    }

    /// Offers an item; says whether it is among the best now. O(log k), O(1) when refused; no allocation.
    #[inline]
    pub fn push(&mut self, score: f32, id: u64, slot: u32) -> bool {
        let item = Item { score, slot, id };
        if self.sorted {
            self.reopen();
        }
        if self.heap.len() < self.k {
            let at = self.heap.len();
            return self.heap.push(item).map(|()| sift_up(&mut self.heap, at)).is_ok();
        }
        match self.heap.first() {
            Some(worst) if worst.worse(&item) => {
                sift_down(&mut self.heap, item);
                true
            }
            _ => false,
        }
    }

    /// Best-first backwards is worst-first, and that is a heap.
    #[cold]
    fn reopen(&mut self) {
        self.heap.reverse();
        self.sorted = false;
    }

    /// Score of the worst item kept once there are `k` (and `k > 0`): a lower one need not be pushed. O(1), no
    /// allocation.
    #[inline]
    pub fn worst(&self) -> Option<f32> {
        if self.heap.len() < self.k {
            return None;
        }
        let worst = if self.sorted { self.heap.last() } else { self.heap.first() };
        worst.map(|w| w.score)
    }

    /// Number of items kept. O(1), no allocation.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether there are none. O(1), no allocation.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// The items kept, in no particular order. O(1), no allocation.
    pub fn items(&self) -> &[Item] {
        &self.heap
    }

    /// The items kept, best first. O(k log k), O(1) when repeated; in place, no allocation. More may be pushed after.
    #[allow(clippy::wrong_self_convention)]
    pub fn into_sorted(&mut self) -> &[Item] {
        if !self.sorted {
            for end in (1..self.heap.len()).rev() {
                let item = self.heap[end];
                self.heap[end] = self.heap[0];
                sift_down(&mut self.heap[..end], item);
            }
            self.sorted = true;
        }
        &self.heap
    }
}

/// Moves the item at `at` towards the root while it is worse than its parent.
#[inline]
fn sift_up(heap: &mut [Item], mut at: usize) {
    let item = heap[at];
    while at > 0 {
        let parent = (at - 1) / 2;
        if !item.worse(&heap[parent]) {
            break;
        }
        heap[at] = heap[parent];
        at = parent;
    }
    heap[at] = item;
}

/// Puts `item` in place of the root and restores the heap.
#[inline]
fn sift_down(heap: &mut [Item], item: Item) {
    let mut at = 0;
    loop {
        let mut child = 2 * at + 1;
        if child >= heap.len() {
            break;
        }
        if child + 1 < heap.len() && heap[child + 1].worse(&heap[child]) {
            child += 1;
        }
        if !heap[child].worse(&item) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = item;
}
