//! Coordinates of every key's residual within its cell along directions fitted to the head: what tells, from a few bytes,
//! whether a cell holds a key that stands out towards a query.

use super::BLOCK;
use crate::error::Result;
use crate::mem::{Buf, Memory, Plan};
use crate::project::fitted::{self, RANK};

/// Numbers of a cell.
const CELL: usize = BLOCK * RANK;

/// Directions and coordinates.
pub(crate) struct Coords {
    /// `[RANK / BLOCK][dim][BLOCK]`: blocks, transposed, like the others.
    basis: Buf<f32>,
    room: Buf<f32>,
    /// Shares of the residuals' variance along each direction, and along all others together.
    kept: [f32; RANK],
    left: f32,
    is_fitted: bool,
    /// Of keys within their cells, and of cells' means within their nodes.
    pub(super) leaves: Table,
    pub(super) nodes: Table,
}

/// Coordinates of the vectors of many blocks.
pub(crate) struct Table {
    /// Pairs of coordinates `[block][RANK / 2][BLOCK][2]`, in units of the block.
    data: Buf<i8>,
    unit: Buf<f32>,
    /// Root mean square length of what the directions leave out, by block.
    rest: Buf<f32>,
}

impl Coords {
    pub(super) fn plan(plan: &mut Plan, dim: usize, cells: usize) {
        Buf::<f32>::plan(plan, dim * RANK);
        Buf::<f32>::plan(plan, dim * RANK);
        Table::plan(plan, cells);
        Table::plan(plan, cells / BLOCK);
    }

    pub(super) fn new(memory: &Memory, dim: usize, cells: usize) -> Result<Self> {
        Ok(Coords {
            basis: Buf::filled(memory, dim * RANK, 0.0)?,
            room: Buf::filled(memory, dim * RANK, 0.0)?,
            kept: [0.0; RANK],
            left: 0.0,
            is_fitted: false,
            leaves: Table::new(memory, cells)?,
            nodes: Table::new(memory, cells / BLOCK)?,
        })
    }

    pub(super) fn is_fitted(&self) -> bool {
        self.is_fitted
    }

    pub(super) fn forget(&mut self) {
        self.is_fitted = false;
    }

    /// Fits the directions to the moment of residuals `[dim][dim rounded up to a block]`.
    pub(super) fn fit(&mut self, moment: &[f32], dim: usize) {
        let stride = dim.next_multiple_of(BLOCK);
        self.kept = fitted::fit(moment, stride, &mut self.room, &mut self.basis);
        for (b, block) in self.basis.chunks_exact_mut(dim * BLOCK).enumerate() {
            for (to, from) in block.chunks_exact_mut(BLOCK).zip(self.room.chunks_exact(RANK)) {
                to.copy_from_slice(&from[b * BLOCK..][..BLOCK]);
            }
        }
        let all: f32 = (0..dim).map(|a| moment[a * stride + a]).sum();
        let unit = if all > 0.0 { 1.0 / all } else { 0.0 };
        self.kept.iter_mut().for_each(|k| *k *= unit);
        self.left = (1.0 - self.kept.iter().sum::<f32>()).max(0.0);
        self.is_fitted = true;
    }

    /// The directions, block by block: `[dim][BLOCK]`.
    pub(crate) fn basis(&self) -> impl Iterator<Item = &[f32]> {
        self.basis.chunks_exact(self.basis.len() / (RANK / BLOCK))
    }

    /// The same as they lie, `[RANK / BLOCK][dim][BLOCK]`.
    pub(super) fn directions(&self) -> &[f32] {
        &self.basis
    }

    /// Of the keys of a cell.
    pub(crate) fn cell(&self, cell: usize) -> (&[i8], f32, f32) {
        self.leaves.block(cell)
    }

    /// Of the cells of a node.
    pub(crate) fn node(&self, node: usize) -> (&[i8], f32, f32) {
        self.nodes.block(node)
    }

    /// Standard deviation of `<query, residual>` per unit of the length that the directions leave out: `along` are the
    /// query's coordinates, `form` its quadratic form with the residuals' covariance scaled to trace 1.
    pub(crate) fn rest_of(&self, along: &[f32], form: f32) -> f32 {
        let kept: f32 = along.iter().zip(&self.kept).map(|(x, k)| x * x * k).sum();
        // What is left out cannot be less than a little: directions are not exact.
        let left = (form - kept).max(form * 1e-3);
        if self.left > 0.0 { libm::sqrtf(left / self.left) } else { 0.0 }
    }
}

impl Table {
    fn plan(plan: &mut Plan, blocks: usize) {
        Buf::<i8>::plan(plan, blocks * CELL);
        Buf::<f32>::plan(plan, blocks);
        Buf::<f32>::plan(plan, blocks);
    }

    fn new(memory: &Memory, blocks: usize) -> Result<Self> {
        Ok(Table {
            data: Buf::filled(memory, blocks * CELL, 0)?,
            unit: Buf::filled(memory, blocks, 0.0)?,
            rest: Buf::filled(memory, blocks, 0.0)?,
        })
    }

    /// Sets a block from the coordinates of its vectors, `[BLOCK][RANK]` with any common offset, and their root mean
    /// square distance from their mean. Returns the offset.
    pub(super) fn set(&mut self, at: usize, along: &mut [f32], spread: f32) -> [f32; RANK] {
        let mut offset = [0.0; RANK];
        for key in along.chunks_exact(RANK) {
            offset.iter_mut().zip(key).for_each(|(o, x)| *o += x * (1.0 / BLOCK as f32));
        }
        let (mut largest, mut kept) = ([0.0f32; RANK], [0.0f32; RANK]);
        for key in along.chunks_exact_mut(RANK) {
            for r in 0..RANK {
                key[r] -= offset[r];
                largest[r] = if key[r].abs() > largest[r] { key[r].abs() } else { largest[r] };
                kept[r] += key[r] * key[r];
            }
        }
        let largest = largest.iter().fold(0.0f32, |m, &x| m.max(x));
        let kept: f32 = kept.iter().sum();
        let factor = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let factor = if factor.is_finite() { factor } else { 0.0 };
        self.unit[at] = largest / 127.0;
        self.rest[at] = libm::sqrtf((spread * spread - kept / BLOCK as f32).max(0.0));
        // Adding 1.5 x 2^23 leaves the nearest whole number in the low bits.
        const MAGIC: f32 = 12_582_912.0;
        let data = &mut self.data[at * CELL..][..CELL];
        for (j, key) in along.chunks_exact(RANK).enumerate() {
            for (pair, x) in data.chunks_exact_mut(2 * BLOCK).zip(key.chunks_exact(2)) {
                pair[2 * j] = (x[0] * factor + MAGIC).to_bits() as i8;
                pair[2 * j + 1] = (x[1] * factor + MAGIC).to_bits() as i8;
            }
        }
        offset
    }

    /// `[RANK / 2][BLOCK][2]`, their unit, and the length of what they leave out.
    fn block(&self, at: usize) -> (&[i8], f32, f32) {
        (&self.data[at * CELL..][..CELL], self.unit[at], self.rest[at])
    }
}
