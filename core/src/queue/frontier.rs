//! The frontier of the prioritised walk: one candidate per cursor, nearest first.

use super::heap::{sift_down, sift_up};
use crate::error::Result;
use crate::math::{float_of, image_of};
use crate::mem::{Buf, Maker};

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
pub(super) struct Candidate {
    key: u64,
    payload: u32,
}

impl Candidate {
    #[inline]
    fn new(delta: f32, rank: u32, payload: u32) -> Candidate {
        Candidate { key: (image_of(delta) as u64) << 32 | rank as u64, payload }
    }

    #[inline]
    fn before(&self, other: &Candidate) -> bool {
        self.key < other.key
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
    pub(super) heap: Buf<Candidate>,
}

impl Frontier {
    /// An empty queue for `cap` candidates. O(1); allocates one block, or none for 0.
    pub(crate) fn made(m: &mut Maker<'_>, cap: usize) -> Frontier {
        Frontier { heap: m.room(cap) }
    }

    /// Empties the queue. O(1), no allocation.
    pub fn clear(&mut self) {
        self.heap.clear();
    }

    /// Adds a candidate. O(log n), no allocation.
    ///
    /// # Errors
    /// `Capacity` when full; nothing has changed then.
    #[inline]
    pub fn push(&mut self, delta: f32, rank: u32, payload: u32) -> Result<()> {
        let candidate = Candidate::new(delta, rank, payload);
        self.heap.push(candidate)?;
        sift_up(&mut self.heap, Candidate::before);
        Ok(())
    }

    /// The first candidate. O(1), no allocation.
    #[inline]
    pub fn peek(&self) -> Option<Front> {
        self.heap.first().map(Candidate::front)
    }

    /// Removes and returns the first candidate. O(log n), no allocation.
    #[inline]
    pub fn pop_min(&mut self) -> Option<Front> {
        let last = self.heap.pop()?;
        let first = self.heap.first().copied();
        if first.is_some() {
            sift_down(&mut self.heap, last, Candidate::before);
        }
        Some(first.unwrap_or(last).front())
    }

    /// Removes and returns the first candidate and adds another, in one pass: the step of a cursor. Does nothing when
    /// empty. O(log n), O(1) if the new one stays first; no allocation.
    #[inline]
    pub fn replace_min(&mut self, delta: f32, rank: u32, payload: u32) -> Option<Front> {
        let first = self.peek()?;
        sift_down(&mut self.heap, Candidate::new(delta, rank, payload), Candidate::before);
        Some(first)
    }
}
