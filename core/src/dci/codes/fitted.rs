//! Directions that take sample queries into account. Keys and queries get a matrix each, such that products of coordinates
//! are products of vectors and both vary alike along every coordinate: of as many coordinates, these leave the least error
//! in products. Whether that is worth it is measured on queries held back, whenever there is something new to decide.

use super::basis::{noise, orthonormalise, product};
use super::{Codes, Keys, PANEL, RANK, Shape, empty};
use crate::dci::tunables::{
    BASIS_STEP, FITTED_COVER, FITTED_QUERIES, FITTED_ROUNDS, HELD_QUERIES, NO_SPREAD, STALE_TIMES, TRIAL_KEYS,
};
use crate::mem::{Buf, Maker, Memory, Rows};
use crate::simd::Isa;
use crate::simd::codes::Pack;

/// How directions are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::dci) enum Fit {
    /// To be tried.
    #[default]
    Undecided,
    /// By the keys alone.
    Keys,
    /// By keys and sample queries.
    Balanced,
}

/// Sample queries and what came of them.
pub(in crate::dci) struct Asked {
    /// Sample queries, those held back first, and one row of room.
    rows: Buf<f32>,
    count: usize,
    pub(super) way: Fit,
    /// Keys when the way was decided.
    decided: usize,
    /// Directions of queries, turned, `[rank][dim]`, and the coordinates of the keys' mean along them.
    directions: Buf<f32>,
    offset: Buf<f32>,
}

impl Asked {
    /// Most queries that are kept.
    pub const MOST: usize = FITTED_QUERIES + HELD_QUERIES;

    pub fn new(memory: &Memory) -> Asked {
        empty!(memory, Asked { [rows, directions, offset] count: 0, way: Fit::Undecided, decided: 0 })
    }

    /// All arrays, with room for a shape.
    pub fn grow(&mut self, m: &mut Maker<'_>, shape: &Shape) {
        m.grown(&mut self.rows, (Self::MOST + 1) * shape.dim, 0.0);
        m.grown(&mut self.directions, shape.rank * shape.dim, 0.0);
        m.grown(&mut self.offset, shape.rank, 0.0);
    }

    pub fn has_room(&self) -> bool {
        self.rows.capacity() > 0
    }

    /// One row of room, to look at a query before anything is replaced.
    pub fn spare(&mut self, dim: usize) -> &mut [f32] {
        &mut self.rows[Self::MOST * dim..][..dim]
    }

    /// Replaces the queries by some of `rows`, spread evenly, as `finish` leaves them. There must be room and as many as
    /// [`LEAST_ASKED`].
    pub fn take(&mut self, rows: Rows<'_>, finish: impl Fn(&mut [f32])) {
        let (n, dim) = (rows.rows(), rows.cols());
        let kept = n.min(Self::MOST);
        // Steps near the golden section without a common divisor: the first few are spread as evenly as all.
        let mut step = kept * 618 / 1000;
        let apart = |mut a: usize, mut b: usize| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a == 1
        };
        while !apart(kept, step) {
            step += 1;
        }
        for (i, out) in self.rows.chunks_exact_mut(dim).take(kept).enumerate() {
            rows.read((i * step % kept) * n / kept, out);
            finish(out);
        }
        (self.count, self.way, self.decided) = (kept, Fit::Undecided, 0);
    }

    /// Takes queries back as they were saved.
    pub fn restore(&mut self, dim: usize, count: usize, way: Fit, decided: usize, read: impl FnOnce(&mut [f32])) {
        read(&mut self.rows[..count * dim]);
        (self.count, self.way, self.decided) = (count, way, decided);
    }

    /// No queries any more.
    pub fn forget(&mut self) {
        self.count = 0;
        self.reconsider();
    }

    /// What was decided holds no longer.
    pub fn reconsider(&mut self) {
        (self.way, self.decided) = (Fit::Undecided, 0);
    }

    /// All queries, what was decided, and for how many keys.
    pub fn saved(&self, dim: usize) -> (&[f32], Fit, usize) {
        (&self.rows[..self.count * dim], self.way, self.decided)
    }

    pub(super) fn undecided(&self, live: usize) -> bool {
        self.count > 0 && (self.way == Fit::Undecided || live / STALE_TIMES >= self.decided)
    }

    /// Whether keys and queries have directions of their own.
    pub(super) fn fitted(&self) -> bool {
        self.count > 0 && self.way == Fit::Balanced
    }

    /// Queries held back, none if there are no queries.
    pub(super) fn held(&self, dim: usize) -> &[f32] {
        &self.rows[..if self.count > 0 { HELD_QUERIES * dim } else { 0 }]
    }

    /// Turns the queries' directions as the keys' were.
    pub(super) fn turn(&mut self, isa: Isa, turn: &[f32], from: &[f32], mean: &[f32], rank: usize) {
        let (dim, rows) = (mean.len(), rank.min(mean.len()));
        self.directions.fill(0.0);
        for (row, out) in turn.chunks_exact(rows).zip(self.directions.chunks_exact_mut(dim)) {
            for (&t, from) in row.iter().zip(from.chunks_exact(dim)) {
                isa.axpy(t, from, out);
            }
        }
        for (offset, row) in self.offset.iter_mut().zip(self.directions.chunks_exact(dim)).take(rank) {
            *offset = isa.dot(row, mean);
        }
    }
}

impl Codes {
    /// Turned directions of queries, and the coordinates of the keys' mean along them.
    pub(super) fn asking(&self, dim: usize) -> (&[f32], &[f32]) {
        let (directions, offset) = if self.asked.fitted() {
            (&self.asked.directions, &self.asked.offset)
        } else {
            (&self.turned, &self.offset)
        };
        (&directions[..self.rank * dim], &offset[..self.rank])
    }

    /// Gathers all keys anew if they are gathered, after the sample queries have changed.
    pub fn refit(&mut self, keys: Keys<'_>) {
        if self.active {
            self.fold(keys);
        }
    }

    /// Tries both ways of choosing directions and notes the cheaper; returns whether all `live` keys are arranged that way
    /// already. The list of keys must be renewed otherwise.
    pub(super) fn decide(&mut self, keys: Keys<'_>, live: usize) -> bool {
        let trial = live.min(TRIAL_KEYS);
        for i in 0..trial {
            self.work.live[i] = self.work.live[i * live / trial];
        }
        self.asked.way = Fit::Keys;
        let plain = self.arrange(keys, trial);
        self.asked.way = Fit::Balanced;
        let balanced = self.arrange(keys, trial);
        self.asked.decided = live;
        if balanced < plain {
            return trial == live;
        }
        self.asked.way = Fit::Keys;
        false
    }

    /// Balances the first `rows` directions: leaves the keys' in `basis`, the queries' in `room`, the most telling first,
    /// and chooses how many to use.
    ///
    /// With moments K of keys and Q of queries along orthonormal directions V, and K = L L^T: the eigenvectors U of
    /// L^T Q L, with values b^2, make the keys' directions b^(1/2) U^T L^-1 V and the queries' b^(-1/2) U^T L^T V.
    pub(super) fn balance(&mut self, keys: Keys<'_>, rows: usize, fitted: usize) {
        let (dim, isa, used) = (keys.dim, keys.isa, rows * keys.dim);
        self.room.fill(0.0);
        let scale = self.moment(isa, rows, fitted, true);
        let asked = self.project_asked(keys, rows, fitted);
        if !(scale > 0.0 && self.moment(isa, rows, asked, false) > 0.0) {
            // Keys or queries that do not vary: nothing to balance.
            self.room[..used].copy_from_slice(&self.basis[..used]);
            return;
        }
        let lower = &mut self.room[..rows * rows];
        cholesky(isa, lower, rows);
        let (first, rest) = self.work.along.split_at_mut(rows * rows);
        let (both, next) = rest.split_at_mut(rows * rows);
        let next = &mut next[..rows * rows];
        // first = Q L, both = L^T Q L.
        first.fill(0.0);
        both.fill(0.0);
        for (row, out) in self.turn.chunks_exact(rows).zip(first.chunks_exact_mut(rows)) {
            for (k, (&q, l)) in row.iter().zip(lower.chunks_exact(rows)).enumerate() {
                isa.axpy(q, &l[..=k], &mut out[..=k]);
            }
        }
        for (k, (l, from)) in lower.chunks_exact(rows).zip(first.chunks_exact(rows)).enumerate() {
            for (&l, out) in l[..=k].iter().zip(both.chunks_exact_mut(rows)) {
                isa.axpy(l, from, out);
            }
        }
        let u = &mut self.turn[..rows * rows];
        u.iter_mut().enumerate().for_each(|(i, x)| *x = noise(keys.seed ^ 0x6261_6c61, i as u64));
        for round in 0..=FITTED_ROUNDS {
            orthonormalise(isa, u, rows, if round == FITTED_ROUNDS { 2 } else { 1 });
            for (row, out) in u.chunks_exact(rows).zip(next.chunks_exact_mut(rows)) {
                isa.dots(both, rows, row, out);
            }
            if round < FITTED_ROUNDS {
                u.copy_from_slice(next);
            }
        }
        let mut spread = [0.0; RANK];
        for (s, (row, out)) in spread.iter_mut().zip(u.chunks_exact(rows).zip(next.chunks_exact(rows))) {
            *s = isa.dot(row, out).max(0.0);
        }
        let most = spread.iter().fold(0.0f32, |m, &s| m.max(s));
        let all: f32 = spread.iter().sum();
        // No fewer than cover the keys.
        let least = core::mem::replace(&mut self.rank, self.shape.rank);
        let mut covered = 0.0;
        for (j, s) in spread[..rows].iter_mut().enumerate() {
            covered += *s;
            if (j + 1) % BASIS_STEP == 0 && j + 1 >= least && covered >= FITTED_COVER * all {
                self.rank = self.rank.min(j + 1);
            }
            // b^(1/2)
            *s = libm::sqrtf(libm::sqrtf(s.max(most * NO_SPREAD)));
        }
        // Into `turned` L^-1 V, into `directions` L^T V.
        self.asked.directions[..used].fill(0.0);
        for (i, l) in lower.chunks_exact(rows).enumerate() {
            let (before, out) = self.turned[..(i + 1) * dim].split_at_mut(i * dim);
            let from = &self.basis[i * dim..][..dim];
            out.copy_from_slice(from);
            for (&l, w) in l.iter().zip(before.chunks_exact(dim)) {
                isa.axpy(-l, w, out);
            }
            isa.scale(1.0 / l[i], out);
            for (&l, out) in l[..=i].iter().zip(self.asked.directions.chunks_exact_mut(dim)) {
                isa.axpy(l, from, out);
            }
        }
        self.basis[..used].fill(0.0);
        self.room[..used].fill(0.0);
        for (j, (u, s)) in self.turn.chunks_exact(rows).zip(spread).enumerate().take(rows) {
            let (key, query) = (&mut self.basis[j * dim..][..dim], &mut self.room[j * dim..][..dim]);
            for (i, &u) in u.iter().enumerate() {
                isa.axpy(u * s, &self.turned[i * dim..][..dim], key);
                isa.axpy(u / s, &self.asked.directions[i * dim..][..dim], query);
            }
        }
    }

    /// Coordinates `[rows][asked]` of the queries along the directions; returns how many there are.
    fn project_asked(&mut self, keys: Keys<'_>, rows: usize, fitted: usize) -> usize {
        let (dim, isa) = (keys.dim, keys.isa);
        let asked = (self.asked.count - HELD_QUERIES).min(fitted);
        let w = &mut self.work;
        for first in (0..asked).step_by(PANEL) {
            let count = PANEL.min(asked - first);
            let mut at = [0; PANEL];
            at.iter_mut().enumerate().for_each(|(i, at)| *at = (HELD_QUERIES + first + i) as u32);
            isa.run(Pack { rows: &self.asked.rows, stride: dim, cols: dim, at: &at[..count], out: &mut w.panel });
            product(isa, &w.panel, &self.basis[..rows * dim], dim, &mut w.product);
            for j in 0..rows {
                // Distances are products with the query as seen from the keys' mean.
                let offset = if keys.l2 { isa.dot(&self.basis[j * dim..][..dim], &self.mean[..dim]) } else { 0.0 };
                let out = &mut w.along[j * asked + first..][..count];
                out.iter_mut().zip(&w.product[j * PANEL..]).for_each(|(o, x)| *o = x - offset);
            }
        }
        asked
    }

    /// Second moment of the first `n` of `along`, `[rows][n]`, up to a factor: of keys into `room`, of queries into `turn`.
    /// Returns what the largest coordinate was scaled by, 0 if that cannot be.
    fn moment(&mut self, isa: Isa, rows: usize, n: usize, of_keys: bool) -> f32 {
        let w = &mut self.work;
        let along = &mut w.along[..rows * n];
        let scale = 1.0 / along.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        if !(scale.is_normal() && along.iter().all(|x| x.is_finite())) {
            return 0.0;
        }
        isa.scale(scale, along);
        let out = if of_keys { &mut self.room } else { &mut self.turn };
        for first in (0..rows).step_by(PANEL) {
            let count = PANEL.min(rows - first);
            let mut at = [0; PANEL];
            at.iter_mut().enumerate().for_each(|(i, at)| *at = (first + i) as u32);
            isa.run(Pack { rows: along, stride: n, cols: n, at: &at[..count], out: &mut w.panel });
            product(isa, &w.panel, along, n, &mut w.product);
            for (out, from) in out.chunks_exact_mut(rows).zip(w.product.chunks_exact(PANEL)).take(rows) {
                out[first..][..count].copy_from_slice(&from[..count]);
            }
        }
        scale
    }
}

/// The lower triangle L of a symmetric matrix L L^T, in its place; what hardly varies is taken to vary a little.
fn cholesky(isa: Isa, x: &mut [f32], n: usize) {
    let most = (0..n).fold(0.0f32, |m, i| m.max(x[i * n + i]));
    for i in 0..n {
        let (before, row) = x[..(i + 1) * n].split_at_mut(i * n);
        for (j, other) in before.chunks_exact(n).enumerate() {
            row[j] = (row[j] - isa.dot(&row[..j], &other[..j])) / other[j];
        }
        row[i] = libm::sqrtf((row[i] - isa.norm2(&row[..i])).max(most * NO_SPREAD));
    }
}
