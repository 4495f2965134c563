//! Coordinates of every key's residual within its cell, four bits each: what tells, from half a byte an element, whether a
//! cell holds a key that stands out towards a query.

use super::BLOCK;
use crate::error::Result;
use crate::mem::{Buf, Memory, Plan};
use crate::simd::Isa;
use crate::simd::block::{Coded, Encode, Many, words};
use half::bf16;

/// Coordinates of keys within their cells, and of cells' means within their nodes.
pub(crate) struct Coords {
    pub(super) leaves: Table,
    pub(super) nodes: Table,
}

/// Coordinates of the vectors of many blocks.
pub(crate) struct Table {
    dim: usize,
    /// `[block][words][BLOCK]`.
    words: Buf<u32>,
    unit: Buf<[bf16; BLOCK]>,
}

impl Coords {
    pub(super) fn plan(plan: &mut Plan, dim: usize, cells: usize) {
        Table::plan(plan, dim, cells);
        Table::plan(plan, dim, cells / BLOCK);
    }

    pub(super) fn new(memory: &Memory, dim: usize, cells: usize) -> Result<Self> {
        Ok(Coords { leaves: Table::new(memory, dim, cells)?, nodes: Table::new(memory, dim, cells / BLOCK)? })
    }

    /// Of the keys of a cell.
    pub(crate) fn cell(&self, cell: usize) -> Coded<'_> {
        self.leaves.block(cell)
    }

    /// Of the keys of all cells of a node, one after the other.
    pub(crate) fn cells_of(&self, node: usize) -> Many<'_> {
        self.leaves.blocks(node * BLOCK, BLOCK)
    }

    /// Of the cells of the first nodes, and of the keys of all cells of these.
    pub(crate) fn of_cells(&self, nodes: usize) -> Many<'_> {
        self.nodes.blocks(0, nodes)
    }

    pub(crate) fn of_keys(&self, nodes: usize) -> Many<'_> {
        self.leaves.blocks(0, nodes * BLOCK)
    }

    /// Of the cells of all nodes of a root block.
    pub(crate) fn nodes_of(&self, root: usize) -> Many<'_> {
        self.nodes.blocks(root * BLOCK, BLOCK)
    }

    /// Of the cells of a node.
    pub(crate) fn node(&self, node: usize) -> Coded<'_> {
        self.nodes.block(node)
    }
}

impl Table {
    fn len(dim: usize) -> usize {
        words(dim) * BLOCK
    }

    fn plan(plan: &mut Plan, dim: usize, blocks: usize) {
        Buf::<u32>::plan(plan, blocks.saturating_mul(Table::len(dim)));
        Buf::<[bf16; BLOCK]>::plan(plan, blocks);
    }

    fn new(memory: &Memory, dim: usize, blocks: usize) -> Result<Self> {
        Ok(Table {
            dim,
            words: Buf::filled(memory, blocks.saturating_mul(Table::len(dim)), 0)?,
            unit: Buf::filled(memory, blocks, [bf16::ZERO; BLOCK])?,
        })
    }

    /// Sets a block from its vectors, rows `stride` apart.
    pub(super) fn set(&mut self, isa: Isa, at: usize, rows: &[f32], stride: usize) {
        let (dim, len) = (self.dim, Table::len(self.dim));
        let (words, unit) = (&mut self.words[at * len..][..len], &mut self.unit[at]);
        isa.run(Encode { rows, stride, dim, words, unit });
    }

    /// So many blocks, or as many as there are.
    fn blocks(&self, at: usize, n: usize) -> Many<'_> {
        let (each, end) = (Table::len(self.dim), (at + n).min(self.unit.len()));
        Many { words: &self.words[at * each..end * each], each, unit: &self.unit[at..end] }
    }

    fn block(&self, at: usize) -> Coded<'_> {
        let len = Table::len(self.dim);
        Coded { words: &self.words[at * len..][..len], unit: &self.unit[at] }
    }
}
