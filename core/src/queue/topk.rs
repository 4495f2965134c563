//! The k best of a stream, in a heap whose root is the worst of them.

use super::heap::{sift_down, sift_up};
use crate::error::{Error, Result, Status};
use crate::mem::{Buf, Maker};
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
    /// Best first, after `into_sorted`; otherwise a heap whose root is the worst.
    sorted: bool,
}

impl TopK {
    /// An empty queue with `k = cap`. O(1); allocates one block, or none for 0.
    pub(crate) fn made(m: &mut Maker<'_>, cap: usize) -> TopK {
        TopK { heap: m.room(cap), k: cap, sorted: false }
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
        debug_assert!(!self.sorted, "reset comes first");
        let item = Item { score, slot, id };
        if self.heap.len() < self.k {
            return self.heap.push(item).map(|()| sift_up(&mut self.heap, Item::worse)).is_ok();
        }
        let better = self.heap.first().is_some_and(|worst| worst.worse(&item));
        if better {
            sift_down(&mut self.heap, item, Item::worse);
        }
        better
    }

    /// The items kept, best first. O(k log k), O(1) when repeated; in place, no allocation. No more may be pushed then before a
    /// [`reset`](TopK::reset).
    #[allow(clippy::wrong_self_convention)]
    pub fn into_sorted(&mut self) -> &[Item] {
        if !self.sorted {
            for end in (1..self.heap.len()).rev() {
                let item = self.heap[end];
                self.heap[end] = self.heap[0];
                sift_down(&mut self.heap[..end], item, Item::worse);
            }
            self.sorted = true;
        }
        &self.heap
    }
}
