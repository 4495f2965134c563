//! The arrays of an object, written once: made, or only counted.

use super::buf::Block;
use super::{Buf, Memory, Objects, Plan};
use crate::error::Result;

/// Makes the arrays of an object in a memory, or adds up what they would take: an object's arrays are written once, in a function
/// that is given this, and its plan and its constructor call that.
///
/// After a refusal the rest stay empty, and [`make`](Maker::make) says so: one check for all, instead of one with its own way back
/// after each, and calls instead of copies. Work memory is made anew by every call, and between the steps of a model nothing of the
/// code stays in caches. While counting, all arrays are empty. So nothing may be written into them before `make` is through.
pub(crate) struct Maker<'a> {
    memory: &'a Memory,
    /// Counts, instead of making.
    plan: Option<&'a mut Plan>,
    result: Result<()>,
}

impl<'a> Maker<'a> {
    pub(crate) fn new(memory: &'a Memory) -> Self {
        Maker { memory, plan: None, result: Ok(()) }
    }

    /// The object that `of` makes, or the first refusal.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub(crate) fn make<T>(memory: &'a Memory, of: impl FnOnce(&mut Self) -> T) -> Result<T> {
        let mut m = Maker::new(memory);
        let made = of(&mut m);
        m.finish().map(|()| made)
    }

    /// Where the arrays lie.
    pub(crate) fn memory(&self) -> &'a Memory {
        self.memory
    }

    /// As [`Buf::with_capacity`].
    pub(crate) fn room<T: Copy>(&mut self, cap: usize) -> Buf<T> {
        // SAFETY: the block was taken for so many elements of this size.
        unsafe { Buf::of_block(self.block(cap, size_of::<T>())) }
    }

    /// A block for `cap` elements of `size` bytes: a copy of this for every type of element would be most of the code.
    #[inline(never)]
    fn block(&mut self, cap: usize, size: usize) -> Block {
        let mut block = Block::none(self.memory);
        if cap > 0 {
            self.other(|plan| plan.add_array(cap, size), || block.take(cap, size));
        }
        block
    }

    /// As [`Buf::filled`].
    #[inline(never)]
    pub(crate) fn filled<T: Copy>(&mut self, n: usize, value: T) -> Buf<T> {
        let mut b = self.room(n);
        if self.result.is_ok() && self.plan.is_none() {
            self.result = b.resize(n, value);
        }
        b
    }

    /// As [`Buf::filled`] or, unless `now`, [`Buf::with_capacity`].
    pub(crate) fn filled_if<T: Copy>(&mut self, now: bool, n: usize, value: T) -> Buf<T> {
        if now { self.filled(n, value) } else { self.room(n) }
    }

    /// Makes an array at least so long, new elements being `value`.
    #[inline(never)]
    pub(crate) fn grown<T: Copy>(&mut self, b: &mut Buf<T>, n: usize, value: T) {
        let make = || b.reserve(n).and_then(|()| b.resize(n.max(b.len()), value));
        self.other(|plan| Buf::<T>::plan(plan, n), make);
    }

    /// `n` objects that take as much each, in a block of their own.
    pub(crate) fn objects<T>(&mut self, n: usize, of: impl Fn(&mut Maker<'_>) -> T) -> Objects<T> {
        let (memory, mut objects) = (self.memory, Objects::none(self.memory));
        let count = |plan: &mut Plan| {
            let mut one = Plan::new();
            one.count(&of);
            plan.add::<T>(n);
            plan.add_plan(&one, n);
        };
        let make = || {
            objects = Objects::with_capacity(memory, n)?;
            (0..n).try_for_each(|_| objects.push(Maker::make(memory, &of)?))
        };
        if n > 0 {
            self.other(count, make);
        }
        objects
    }

    /// What is counted and made by other means than arrays.
    pub(crate) fn other(&mut self, count: impl FnOnce(&mut Plan), make: impl FnOnce() -> Result<()>) {
        match &mut self.plan {
            Some(plan) => count(plan),
            None if self.result.is_ok() => self.result = make(),
            None => {}
        }
    }

    /// The first refusal, if there was one: the object must then be dropped.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub(crate) fn finish(self) -> Result<()> {
        self.result
    }
}

impl Plan {
    /// Adds what the arrays of an object take. Never allocates.
    pub(crate) fn count<T>(&mut self, of: impl FnOnce(&mut Maker<'_>) -> T) {
        Memory::nowhere(|memory| drop(of(&mut Maker { memory, plan: Some(self), result: Ok(()) })));
    }
}
