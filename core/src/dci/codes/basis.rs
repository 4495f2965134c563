//! Directions: the leading eigenvectors of the second moment of a sample, by subspace iteration.

use super::{Codes, Keys, PANEL};
use crate::dci::tunables::{BASIS_COVER, BASIS_ROUNDS, BASIS_STEP};
use crate::math::hash;
use crate::mem::Rows;
use crate::simd::codes::{Pack, Product};
use crate::simd::{Isa, tile};

/// Uniform in [-1, 1).
pub(super) fn noise(seed: u64, i: u64) -> f32 {
    (hash(seed, i) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Orthonormal rows from `rows` of `dim` elements, by Gram-Schmidt; a row that vanishes is zero.
pub(super) fn orthonormalise(isa: Isa, x: &mut [f32], dim: usize, passes: usize) {
    let mut done = 0;
    while (done + 1) * dim <= x.len() {
        let (before, row) = x.split_at_mut(done * dim);
        let row = &mut row[..dim];
        let first = isa.norm2(row);
        for _ in 0..passes {
            for other in before.chunks_exact(dim) {
                isa.axpy(-isa.dot(other, row), other, row);
            }
        }
        let norm2 = isa.norm2(row);
        let factor = if norm2 > first * 1e-10 && norm2 > f32::MIN_POSITIVE { 1.0 / libm::sqrtf(norm2) } else { 0.0 };
        isa.scale(factor, row);
        done += 1;
    }
}

/// Products of rows with a packed panel.
pub(super) fn product(isa: Isa, panel: &[f32], rows: &[f32], cols: usize, out: &mut [f32]) {
    // The slice is whole rows.
    let Ok(rows) = Rows::new(rows, cols) else { return };
    assert!(out.len() >= (rows.rows() + tile::KEYS) * PANEL);
    isa.run(Product { panel, rows, out });
}

impl Codes {
    /// Mean and directions from the first of `sample` sampled slots, and how many of the directions to use.
    pub(super) fn fit_basis(&mut self, keys: Keys<'_>, sample: usize) {
        let (dim, rank, isa) = (keys.dim, self.shape.rank, keys.isa);
        let fitted = self.shape.fitted().min(sample);
        self.fit_mean(keys, fitted);
        let rows = dim.min(rank);
        let used = rows * dim;
        for (i, x) in self.basis.iter_mut().enumerate() {
            *x = if i < used { noise(keys.seed ^ 0x6469_7265, i as u64) } else { 0.0 };
        }
        let mut spread = 0.0;
        for round in 0..=BASIS_ROUNDS {
            let last = round == BASIS_ROUNDS;
            orthonormalise(isa, &mut self.basis[..used], dim, if last { 2 } else { 1 });
            spread = self.project_sample(keys, rows, fitted);
            if !last {
                self.back_project(keys, rows, fitted);
            }
        }
        let mut covered = 0.0;
        self.rank = rank;
        for j in 0..rows {
            let along = &self.work.along[j * fitted..][..fitted];
            covered += isa.norm2(along);
            if (j + 1) % BASIS_STEP == 0 && covered >= BASIS_COVER * spread {
                self.rank = j + 1;
                break;
            }
        }
        if self.asked.fitted() {
            self.balance(keys, rows, fitted);
        }
        self.turn_basis(keys);
        let near = self.shape.near;
        for j in 0..near {
            self.near_offset[j] = isa.dot(&self.basis[j * dim..][..dim], &self.mean[..dim]);
        }
    }

    fn fit_mean(&mut self, keys: Keys<'_>, fitted: usize) {
        let dim = keys.dim;
        let mean = &mut self.mean[..dim];
        mean.fill(0.0);
        for &slot in &self.work.sample[..fitted] {
            keys.isa.axpy(1.0 / fitted as f32, keys.key(slot), mean);
        }
        self.mean2 = keys.isa.norm2(mean);
    }

    /// `along = basis (sample - mean)`; returns the squared distances of the sample from its mean, summed.
    fn project_sample(&mut self, keys: Keys<'_>, rows: usize, fitted: usize) -> f32 {
        let (dim, isa) = (keys.dim, keys.isa);
        let w = &mut self.work;
        let mut spread = 0.0;
        for (p, at) in w.sample[..fitted].chunks(PANEL).enumerate() {
            isa.run(Pack { rows: keys.keys, stride: dim, cols: dim, at, out: &mut w.panel });
            product(isa, &w.panel, &self.basis[..rows * dim], dim, &mut w.product);
            for j in 0..rows {
                let offset = isa.dot(&self.basis[j * dim..][..dim], &self.mean[..dim]);
                let out = &mut w.along[j * fitted + p * PANEL..][..at.len()];
                out.iter_mut().zip(&w.product[j * PANEL..]).for_each(|(o, x)| *o = x - offset);
            }
            for &slot in at {
                spread += isa.sq_dist(keys.key(slot), &self.mean[..dim]);
            }
        }
        spread
    }

    /// `basis = along (sample - mean)`.
    fn back_project(&mut self, keys: Keys<'_>, rows: usize, fitted: usize) {
        let (dim, isa) = (keys.dim, keys.isa);
        let w = &mut self.work;
        for first in (0..dim).step_by(PANEL) {
            let cols = PANEL.min(dim - first);
            let mean = &self.mean[first..][..cols];
            for (s, &slot) in w.sample[..fitted].iter().enumerate() {
                let out = &mut w.panel[s * PANEL..][..PANEL];
                let key = &keys.key(slot)[first..][..cols];
                out.iter_mut().zip(key.iter().zip(mean)).for_each(|(o, (x, m))| *o = x - m);
                out[cols..].fill(0.0);
            }
            product(isa, &w.panel, &w.along[..rows * fitted], fitted, &mut w.product);
            for j in 0..rows {
                self.basis[j * dim + first..][..cols].copy_from_slice(&w.product[j * PANEL..][..cols]);
            }
        }
    }

    /// Turns the directions in use by a random rotation, so that every coordinate varies alike and one step serves all.
    fn turn_basis(&mut self, keys: Keys<'_>) {
        let (dim, rank, isa) = (keys.dim, self.rank, keys.isa);
        let rows = rank.min(dim);
        let turn = &mut self.turn[..rows * rows];
        turn.iter_mut().enumerate().for_each(|(i, x)| *x = noise(keys.seed ^ 0x7475_726e, i as u64));
        orthonormalise(isa, turn, rows, 2);
        self.turned.fill(0.0);
        for (row, out) in turn.chunks_exact(rows).zip(self.turned.chunks_exact_mut(dim)) {
            for (&t, from) in row.iter().zip(self.basis.chunks_exact(dim)) {
                isa.axpy(t, from, out);
            }
        }
        self.turned[rank * dim..][..dim].copy_from_slice(&self.mean[..dim]);
        for j in 0..rank {
            self.offset[j] = isa.dot(&self.turned[j * dim..][..dim], &self.mean[..dim]);
        }
        if self.asked.fitted() {
            self.asked.turn(isa, &self.turn[..rows * rows], &self.room, &self.mean[..dim], rank);
        }
    }
}
