//! What tests of containers share: memory of fixed size, and numbers that follow a seed.

use super::{Memory, Plan};
use crate::error::Result;
use core::ptr::NonNull;
use std::vec;
use std::vec::Vec;

impl<'a> super::Rows<'a> {
    /// [`Rows::new`](super::Rows::new), by the name that a test of kernels has for it.
    #[cfg(feature = "full")]
    pub(crate) fn f16(data: &'a [super::f16], cols: usize) -> Result<Self> {
        super::Rows::new(data, cols)
    }
}

/// Memory of fixed size, for both builds; declared before what lives in it.
pub(crate) struct Region {
    pub(crate) memory: Memory,
    _lines: Vec<Line>,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code)] [u8; 64]);

impl Region {
    /// Of exactly the planned bytes, less `less`.
    pub(crate) fn new(plan: Plan, less: usize) -> Region {
        let mut all = Plan::new();
        Memory::plan(&mut all);
        all.add_plan(&plan, 1);
        let bytes = all.finish().unwrap().bytes - less;
        let mut lines = vec![Line([0xa5; 64]); bytes / 64];
        let base = NonNull::new(lines.as_mut_ptr().cast()).unwrap();
        // SAFETY: the lines are this struct's own and are dropped after its memory; tests drop containers first.
        Region { memory: unsafe { Memory::region(base, bytes) }.unwrap(), _lines: lines }
    }

    pub(crate) fn full(&self) -> bool {
        self.memory.report().used == self.memory.report().reserved
    }
}

pub(crate) fn plan(f: impl Fn(&mut Plan)) -> Plan {
    let mut plan = Plan::new();
    f(&mut plan);
    plan
}

pub(crate) fn room() -> Region {
    Region::new(plan(|p| p.add_bytes(many(16 << 20, 1 << 18))), 0)
}

/// Fits exactly, and not one line less.
pub(crate) fn assert_exact<T>(plan: Plan, make: impl Fn(&Memory) -> Result<T>) {
    let region = Region::new(plan, 0);
    let made = make(&region.memory).unwrap();
    assert!(region.full());
    drop(made);
    if plan.finish().unwrap().bytes > 0 {
        let region = Region::new(plan, 64);
        assert!(make(&region.memory).is_err());
    }
}

pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }
}

/// Unique ids in an order that has nothing to do with the slots.
pub(crate) fn ids(n: usize, seed: u64) -> Vec<u64> {
    (0..n as u64).map(|i| (i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)).collect()
}

/// So many, or few under Miri, which takes a thousand times as long.
pub(crate) const fn many(n: usize, few: usize) -> usize {
    if cfg!(miri) { few } else { n }
}
