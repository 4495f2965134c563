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
    /// `[dim][RANK]`: a block, transposed, like the others.
    basis: Buf<f32>,
    room: Buf<f32>,
    /// Shares of the residuals' variance along each direction, and along all others together.
    kept: [f32; RANK],
    left: f32,
    is_fitted: bool,
    /// Pairs of coordinates `[cell][RANK / 2][BLOCK][2]`, in units of the cell.
    data: Buf<i8>,
    unit: Buf<f32>,
    /// Root mean square length of what the directions leave out, by cell.
    rest: Buf<f32>,
}

impl Coords {
    pub(super) fn plan(plan: &mut Plan, dim: usize, cells: usize) {
        Buf::<f32>::plan(plan, dim * RANK);
        Buf::<f32>::plan(plan, dim * RANK);
        Buf::<i8>::plan(plan, cells * CELL);
        Buf::<f32>::plan(plan, cells);
        Buf::<f32>::plan(plan, cells);
    }

    pub(super) fn new(memory: &Memory, dim: usize, cells: usize) -> Result<Self> {
        Ok(Coords {
            basis: Buf::filled(memory, dim * RANK, 0.0)?,
            room: Buf::filled(memory, dim * RANK, 0.0)?,
            kept: [0.0; RANK],
            left: 0.0,
            is_fitted: false,
            data: Buf::filled(memory, cells * CELL, 0)?,
            unit: Buf::filled(memory, cells, 0.0)?,
            rest: Buf::filled(memory, cells, 0.0)?,
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
        self.kept = fitted::fit(moment, stride, &mut self.basis, &mut self.room);
        let all: f32 = (0..dim).map(|a| moment[a * stride + a]).sum();
        let unit = if all > 0.0 { 1.0 / all } else { 0.0 };
        self.kept.iter_mut().for_each(|k| *k *= unit);
        self.left = (1.0 - self.kept.iter().sum::<f32>()).max(0.0);
        self.is_fitted = true;
    }

    /// Sets a cell from the coordinates of its keys, `[BLOCK][RANK]` with any common offset, and its keys' root mean
    /// square distance from their mean.
    pub(super) fn set(&mut self, cell: usize, along: &mut [f32], spread: f32) {
        let (mut largest, mut kept) = (0.0f32, 0.0f32);
        for r in 0..RANK {
            let mean = along.iter().skip(r).step_by(RANK).sum::<f32>() / BLOCK as f32;
            for x in along.iter_mut().skip(r).step_by(RANK) {
                *x -= mean;
                largest = largest.max(x.abs());
                kept += *x * *x;
            }
        }
        let factor = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        self.unit[cell] = largest / 127.0;
        self.rest[cell] = libm::sqrtf((spread * spread - kept / BLOCK as f32).max(0.0));
        let data = &mut self.data[cell * CELL..][..CELL];
        for (j, key) in along.chunks_exact(RANK).enumerate() {
            for (r, x) in key.iter().enumerate() {
                // To nearest; a product slightly above 127 saturates.
                data[(r / 2 * BLOCK + j) * 2 + r % 2] = libm::roundf(x * factor) as i8;
            }
        }
    }

    /// `[dim][RANK]`.
    pub(crate) fn basis(&self) -> &[f32] {
        &self.basis
    }

    /// `[RANK / 2][BLOCK][2]`, their unit, and the length of what they leave out.
    pub(crate) fn cell(&self, cell: usize) -> (&[i8], f32, f32) {
        (&self.data[cell * CELL..][..CELL], self.unit[cell], self.rest[cell])
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
