//! A few rows from the nodes that they list down: the second look along coordinates, estimates, opened cells, values.
//!
//! What lists of rows do child by child ([`Sift`](super::Sift), [`Choose`](super::Choose), [`Opened`](super::Opened) and the others)
//! is done row by row: with one or two rows to a list, bringing rows together costs more than what it saves. What a step reads
//! lies far apart, and nobody knew of it before the step above: so some nodes take a step together, and what the next step
//! reads of them is asked for while others are worked on.
//!
//! `sift` the looks along coordinates, `open` exact weights and sums.

mod open;
mod sift;
#[cfg(all(test, feature = "full"))]
mod tests;

use super::coords::{Bytes, Many};
use super::{BLOCK, Matrix, Thresholds, Values};
use crate::mem::Rows;
use crate::simd::Task;
use crate::simd::vector::Simd;
use core::ops::Range;

/// Nodes that take a step together, neighbours in a root block, whoever lists which: what a row finds when is its own affair.
pub(crate) const TOGETHER: usize = 4;

/// Units by which nodes are asked for ahead.
const AHEAD: usize = 8;

/// Units on their way: one whose nodes are looked into, and the one before, whose cells are.
pub(crate) const ON_THE_WAY: usize = 2;

/// A row that goes below a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Slot {
    node: u32,
    query: u16,
    /// Cells whose keys are looked at, as bits, and those that are opened whatever these say.
    listed: u16,
    sure: u16,
    /// Cells that are opened, and which of their keys are scored.
    opened: u16,
    picked: [u16; BLOCK],
}

/// Mean values of a level, and how far keys and values lie from their means.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    pub(crate) values: Values<'a>,
    pub(crate) spread: &'a [f32],
    pub(crate) reach: &'a [f32],
    pub(crate) value_spread: &'a [f32],
}

impl<'a> Means<'a> {
    /// Those of one block.
    #[inline(always)]
    pub(super) fn block(&self, at: usize) -> Means<'a> {
        let of = |x: &'a [f32]| &x[at * BLOCK..][..BLOCK];
        Means {
            values: self.values.block(at),
            spread: of(self.spread),
            reach: of(self.reach),
            value_spread: of(self.value_spread),
        }
    }
}

/// What lies below all nodes, of which [`BLOCK`] are a root block.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'a> {
    /// Of the cells of every node.
    pub(crate) cells: Means<'a>,
    /// Coordinates of the cells of every node, and of the keys of every cell.
    pub(crate) of_cells: Many<'a>,
    pub(crate) of_keys: Many<'a>,
    /// Keys by cell.
    pub(crate) ids: &'a [u32],
}

/// Sums of rows, by query.
pub(crate) struct Sums<'a> {
    /// Exact and estimated weights, `[query][BLOCK]`.
    pub(crate) exact: &'a mut [f32],
    pub(crate) estimated: &'a mut [f32],
    /// As in [`Weigh`](super::Weigh).
    pub(crate) light: &'a mut [f32],
    pub(crate) lost: &'a mut [bool],
    /// As in [`AddValues`](super::AddValues), of cells.
    pub(crate) lean: &'a mut [f32],
    /// As in [`Doubt`](super::Doubt), of cells, where errors are to be predicted.
    pub(crate) doubt: Option<&'a mut [f32]>,
    /// Weighted sums of values, rows of `stride`.
    pub(crate) out: &'a mut [f32],
    pub(crate) stride: usize,
}

/// Which nodes rows go below, and where a descent notes what is on its way.
pub(crate) struct Room<'a> {
    /// Nodes that are listed, as bits, and those that are listed whatever their cells, `[root block][query]`.
    pub(crate) open: &'a [u16],
    pub(crate) sure: &'a [u16],
    /// What nodes weigh, `[root block][query][BLOCK]`: nothing, afterwards, where a node's cells weigh in instead.
    pub(crate) weights: &'a mut [f32],
    /// Who goes below which node, [`ON_THE_WAY`] x [`TOGETHER`] for every query; scores and weights of the cells there,
    /// `[slot][BLOCK]`.
    pub(crate) slots: &'a mut [Slot],
    pub(crate) scores: &'a mut [f32],
    pub(crate) below: &'a mut [f32],
}

/// Called with a query and keys that are scored exactly for it.
pub(crate) type Seen<'a> = &'a mut dyn FnMut(u16, &[u32]);

/// All nodes for a few rows. What a row gets does not depend on the rows it comes with.
pub(crate) struct FewRows<'a, 'b> {
    pub(crate) tree: Tree<'a>,
    pub(crate) keys: &'a Rows<'a>,
    pub(crate) values: &'a Rows<'a>,
    pub(crate) queries: usize,
    pub(crate) q: Matrix<'a>,
    pub(crate) codes: &'a [i32],
    pub(crate) softcap: f32,
    /// Less spread than so many steps of its coordinates: a cell is scored by one of its keys.
    pub(crate) tight: f32,
    /// Scores of the nodes' means, `[query][BLOCK]` for every root block, which are `step` numbers apart.
    pub(crate) centers: &'a [f32],
    pub(crate) step: usize,
    pub(crate) limits: Thresholds<'a>,
    pub(crate) sums: Sums<'a>,
    pub(crate) room: Room<'a>,
    pub(crate) seen: Option<Seen<'b>>,
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Count {
    /// (node, row) pairs that went down.
    pub(crate) nodes: usize,
    /// (node, row) and (cell, row) pairs that were looked at by their coordinates.
    pub(crate) sifted: usize,
    /// (cell, row) pairs opened, and (key, row) pairs scored there.
    pub(crate) cells: usize,
    pub(crate) keys: usize,
}

impl Task for FewRows<'_, '_> {
    type Out = Count;
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> Count {
        self.check();
        match S::LANES {
            16 => self.descend::<S, 1>(s),
            8 => self.descend::<S, 2>(s),
            4 => self.descend::<S, 4>(s),
            _ => self.descend::<S, 16>(s),
        }
    }
}

/// The lowest set bit, taken out.
#[inline(always)]
fn next(bits: &mut u16) -> Option<usize> {
    if *bits == 0 {
        return None;
    }
    let bit = bits.trailing_zeros() as usize;
    *bits &= *bits - 1;
    Some(bit & (BLOCK - 1))
}

/// Asks for memory ahead of time.
#[inline(always)]
fn ask<S: Simd, T>(s: S, x: &[T]) {
    let p: *const u8 = x.as_ptr().cast();
    (0..size_of_val(x)).step_by(64).for_each(|at| s.prefetch(p.wrapping_add(at)));
}

impl FewRows<'_, '_> {
    /// Everything that loops rely on.
    #[inline(always)]
    fn check(&self) {
        let (queries, t, room) = (self.queries, &self.tree, &self.room);
        let nodes = t.of_cells.unit.len();
        let roots = nodes.div_ceil(BLOCK);
        assert!(t.cells.spread.len() >= nodes * BLOCK && t.cells.reach.len() >= nodes * BLOCK);
        assert!(t.cells.value_spread.len() >= nodes * BLOCK);
        assert!(t.of_keys.unit.len() >= nodes * BLOCK && t.ids.len() >= nodes * BLOCK * BLOCK);
        assert!(t.of_cells.each == t.of_keys.each && t.of_cells.each.is_multiple_of(BLOCK));
        assert!(t.of_cells.words.len() >= nodes * t.of_cells.each);
        assert!(t.of_keys.words.len() >= nodes * BLOCK * t.of_keys.each);
        assert!(self.q.cols <= self.q.stride && self.q.data.len() >= queries * self.q.stride);
        assert!(self.q.cols == self.keys.cols());
        assert!(self.step >= queries * BLOCK && self.centers.len() + self.step >= roots * self.step + queries * BLOCK);
        assert!(room.open.len() >= roots * queries && room.sure.len() >= roots * queries);
        assert!(room.weights.len() >= roots * queries * BLOCK);
        let slots = ON_THE_WAY * TOGETHER * queries;
        assert!(room.slots.len() >= slots && room.scores.len() >= slots * BLOCK && room.below.len() >= slots * BLOCK);
        let sums = &self.sums;
        assert!(sums.exact.len() >= queries * BLOCK && sums.light.len() >= queries && sums.lost.len() >= queries);
        self.limits.check(queries);
        Bytes { codes: self.codes, of: &self.limits.along[..queries] }.check(t.of_cells.each / BLOCK);
    }

    /// Root blocks.
    #[inline(always)]
    fn roots(&self) -> usize {
        self.tree.of_cells.unit.len().div_ceil(BLOCK)
    }

    /// The nodes of a unit that anybody lists, as bits of their root block, and that block: the last comes first.
    #[inline(always)]
    fn unit(&self, unit: usize) -> (u16, usize) {
        const EACH: usize = BLOCK / TOGETHER;
        let (root, queries) = (self.roots() - 1 - unit / EACH, self.queries);
        let listed = self.room.open[root * queries..][..queries].iter().fold(0, |all, bits| all | bits);
        (listed & ((1u32 << TOGETHER) - 1).wrapping_shl((unit % EACH * TOGETHER) as u32) as u16, root)
    }

    /// All units, the nodes of one before the cells of the one before: thresholds that a unit raises count from the second after it
    /// on, whether those between are listed or not.
    #[inline(always)]
    fn descend<S: Simd, const C: usize>(&mut self, s: S) -> Count {
        let units = self.roots() * (BLOCK / TOGETHER);
        let (mut count, mut before) = (Count::default(), 0..0);
        for step in 0..units + AHEAD + 1 {
            if step < units {
                self.ask_unit(s, step);
            }
            let Some(unit) = step.checked_sub(AHEAD) else { continue };
            let mut slots = 0..0;
            if unit < units {
                // SAFETY: `check` has seen all lengths.
                slots = unsafe { self.sift_unit::<S, C>(s, unit, &mut count) };
            }
            // SAFETY: as above; the slots are in use.
            unsafe { self.sift_cells::<S, C>(s, before.clone(), &mut count) };
            for slot in before.clone() {
                self.open(s, slot, &mut count);
            }
            self.settle(s, before.clone());
            self.raise(s, before);
            before = slots;
        }
        count
    }

    /// Asks for what is read first of the nodes of a unit.
    #[inline(always)]
    fn ask_unit<S: Simd>(&self, s: S, unit: usize) {
        // Nobody listens there.
        if S::LANES == 1 {
            return;
        }
        let (mut listed, root) = self.unit(unit);
        while let Some(lane) = next(&mut listed) {
            let node = root * BLOCK + lane;
            let (coded, cells) = (self.tree.of_cells.block(node), &self.tree.cells);
            ask(s, coded.words);
            ask(s, coded.unit);
            for of in [cells.spread, cells.reach, cells.value_spread] {
                ask(s, &of[node * BLOCK..][..BLOCK]);
            }
        }
    }

    /// The rows that list the nodes of a unit: slots of those that go down.
    ///
    /// # Safety
    /// As `check` has seen.
    #[inline(always)]
    unsafe fn sift_unit<S: Simd, const C: usize>(&mut self, s: S, unit: usize, count: &mut Count) -> Range<usize> {
        let (mut listed, root) = self.unit(unit);
        let begin = unit % ON_THE_WAY * TOGETHER * self.queries;
        let mut end = begin;
        while let Some(lane) = next(&mut listed) {
            // SAFETY: passed on; somebody lists the node, and every row has a slot for it.
            unsafe { self.sift_node::<S, C>(s, root, lane, &mut end, count) };
        }
        count.nodes += end - begin;
        begin..end
    }
}
