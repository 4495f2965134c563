//! The frontier of the prioritised walk: one candidate per cursor, nearest first.

use crate::error::Result;
use crate::math::{float_of, image_of};
use crate::mem::{Buf, Maker, Memory, Plan};

/// A candidate of the frontier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Front {
    /// Distance along the projection: smaller comes first. -0.0 comes back as +0.0.
    pub delta: f32,
    /// Order among equal distances: smaller comes first.
    pub rank: u32,
    /// Whatever the caller wants back.
    pub payload: u32,
}

/// One integer comparison orders distance and rank.
#[derive(Clone, Copy, Debug)]
struct Cell {
    key: u64,
    payload: u32,
}

impl Cell {
    #[inline]
    fn new(delta: f32, rank: u32, payload: u32) -> Cell {
        Cell { key: (image_of(delta) as u64) << 32 | rank as u64, payload }
    }

    #[inline]
    fn front(&self) -> Front {
        Front { delta: float_of((self.key >> 32) as u32), rank: self.key as u32, payload: self.payload }
    }
}

/// Min-queue of fixed capacity, ordered by `(delta, rank)`. With distinct ranks the order of pops does not depend on the
/// order of pushes.
#[derive(Debug)]
pub struct Frontier {
    heap: Buf<Cell>,
}

impl Frontier {
    /// Adds the block of `with_capacity(cap)` to a plan. O(1), no allocation.
    pub fn plan(plan: &mut Plan, cap: usize) {
        plan.count(|m| Frontier::made(m, cap));
    }

    /// An empty queue. O(1); allocates one block, or none for 0.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub fn with_capacity(memory: &Memory, cap: usize) -> Result<Frontier> {
        Maker::make(memory, |m| Frontier::made(m, cap))
    }

    /// The same as part of a larger object.
    pub(crate) fn made(m: &mut Maker<'_>, cap: usize) -> Frontier {
        Frontier { heap: m.room(cap) }
    }

    /// Makes room for `cap` candidates. O(cap); may allocate.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`; nothing has changed then.
    pub fn reserve(&mut self, cap: usize) -> Result<()> {
        self.heap.reserve(cap)
    }

    /// Empties the queue. O(1), no allocation.
    pub fn clear(&mut self) {
        self.heap.clear();
    }

    /// Number of candidates. O(1), no allocation.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether there are none. O(1), no allocation.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Adds a candidate. O(log n), no allocation.
    ///
    /// # Errors
    /// `Capacity` when full; nothing has changed then.
    #[inline]
    pub fn push(&mut self, delta: f32, rank: u32, payload: u32) -> Result<()> {
        let cell = Cell::new(delta, rank, payload);
        let mut at = self.heap.len();
        self.heap.push(cell)?;
        let heap = &mut self.heap[..];
        while at > 0 {
            let parent = (at - 1) / 2;
            if heap[parent].key <= cell.key {
                break;
            }
            heap[at] = heap[parent];
            at = parent;
        }
        heap[at] = cell;
        Ok(())
    }

    /// The first candidate. O(1), no allocation.
    #[inline]
    pub fn peek(&self) -> Option<Front> {
        self.heap.first().map(Cell::front)
    }

    /// Removes and returns the first candidate. O(log n), no allocation.
    #[inline]
    pub fn pop_min(&mut self) -> Option<Front> {
        let last = self.heap.pop()?;
        let first = self.heap.first().copied();
        if first.is_some() {
            sift_down(&mut self.heap, last);
        }
        Some(first.unwrap_or(last).front())
    }

    /// Removes and returns the first candidate and adds another, in one pass: the step of a cursor. Does nothing when
    /// empty. O(log n), O(1) if the new one stays first; no allocation.
    #[inline]
    pub fn replace_min(&mut self, delta: f32, rank: u32, payload: u32) -> Option<Front> {
        let first = self.peek()?;
        sift_down(&mut self.heap, Cell::new(delta, rank, payload));
        Some(first)
    }
}

/// Puts `cell` in place of the root and restores the heap.
#[inline]
fn sift_down(heap: &mut [Cell], cell: Cell) {
    let mut at = 0;
    loop {
        let mut child = 2 * at + 1;
        if child >= heap.len() {
            break;
        }
        if child + 1 < heap.len() && heap[child + 1].key < heap[child].key {
            child += 1;
        }
        if heap[child].key >= cell.key {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = cell;
}
