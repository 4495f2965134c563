//! What rows of a block meet in place of far keys: known keys, exactly, and entries, the cells less the known keys.

use super::policy::{CELL, CELLS, KNOWN, SEGMENT};
use super::tree::Tree;
use crate::error::reserved;
use crate::mem::{Buf, Maker, Rows};
use crate::simd::Isa;
use crate::simd::bias::Biases;
use crate::simd::clustered::EntryBiases;
use crate::simd::gather::Gather;

/// Known keys and entries of a block.
pub(super) struct Front {
    dim_k: usize,
    dim_v: usize,
    stride: usize,
    /// First entry of a segment, or `u32::MAX` where its cells are not used.
    first: Buf<u32>,
    /// Mean keys, mean values, counts, mean square distances, rows of the keys, and which of them are known, by entry. After the
    /// mean values the mean over keys of `(key - mean) (value - mean)^T`.
    keys: Buf<f32>,
    values: Buf<f32>,
    counts: Buf<f32>,
    square: Buf<f32>,
    ids: Buf<u32>,
    known_of: Buf<u16>,
    /// Distance of keys from their mean, relative to that of all.
    radius: Buf<f32>,
    /// Logarithm of the counts in units of a score.
    shift: Buf<f32>,
    /// Mean over keys of `(key - mean) (key - mean)^T`.
    covariance: Buf<f32>,
    /// Rows of the known keys, ascending, with their keys and values.
    pub(super) known: Buf<u32>,
    known_keys: Buf<f32>,
    known_values: Buf<f32>,
    row: Buf<f32>,
    /// Squared length of the mean of all mean values.
    common: f32,
}

impl Front {
    /// For up to `keys` keys, as part of a larger object.
    pub(super) fn made(m: &mut Maker<'_>, dim_k: usize, dim_v: usize, keys: usize) -> Self {
        let (n, known) = (keys / SEGMENT * CELLS, KNOWN.min(keys));
        let stride = dim_v.next_multiple_of(16);
        Front {
            dim_k,
            dim_v,
            stride,
            first: m.filled(keys / SEGMENT, u32::MAX),
            keys: m.room(n.saturating_mul(dim_k)),
            values: m.room(n.saturating_add(dim_k).saturating_mul(stride)),
            counts: m.room(n),
            square: m.room(n),
            ids: m.room(n * CELL),
            known_of: m.room(n),
            radius: m.room(n),
            shift: m.room(n),
            covariance: m.filled(dim_k * dim_k, 0.0),
            known: m.room(known),
            known_keys: m.filled(known * dim_k, 0.0),
            known_values: m.filled(known * dim_v, 0.0),
            row: m.filled(dim_k.max(dim_v), 0.0),
            common: 0.0,
        }
    }

    /// The cells of some segments, nothing known.
    pub(super) fn start(&mut self, tree: &Tree, segments: impl Iterator<Item = usize>) {
        self.first.fill(u32::MAX);
        self.keys.clear();
        self.values.clear();
        self.square.clear();
        self.ids.clear();
        self.known_of.clear();
        for segment in segments {
            self.first[segment] = self.square.len() as u32;
            reserved(self.keys.extend_from_slice(tree.keys(segment)));
            reserved(self.values.extend_from_slice(tree.values(segment)));
            reserved(self.square.extend_from_slice(tree.square(segment)));
            reserved(self.ids.extend_from_slice(tree.ids(segment)));
            reserved(self.known_of.extend_from_slice(tree.apart(segment)));
        }
        let n = self.square.len();
        for buf in [&mut self.counts, &mut self.radius, &mut self.shift] {
            buf.clear();
            reserved(buf.resize(n, 0.0));
        }
        self.counts.iter_mut().zip(&*self.known_of).for_each(|(n, known)| *n = (!known).count_ones() as f32);
        tree.moment(&mut self.covariance);
        reserved(self.values.extend_from_slice(tree.cross()));
        self.known.clear();
    }

    /// Entries there are.
    pub(super) fn entries(&self) -> usize {
        self.square.len()
    }

    /// Where a row stands among the entries' keys, if it is there.
    pub(super) fn place(&self, tree: &Tree, row: usize) -> Option<usize> {
        let place = tree.place(row)?;
        let first = self.first.get(place / SEGMENT).filter(|&&first| first != u32::MAX)?;
        Some(*first as usize * CELL + place % SEGMENT)
    }

    /// Makes keys `heavy`, rows in any order, known: entries stand for the others. Heavy keys beyond what
    /// there is room for are left out, later ones first.
    pub(super) fn know(
        &mut self,
        isa: Isa,
        tree: &Tree,
        keys: &Rows<'_>,
        values: &Rows<'_>,
        heavy: impl Iterator<Item = u32>,
        unit: f32,
    ) {
        // What stays out of the cells first: there is room for it.
        for (ids, &apart) in self.ids.chunks_exact(CELL).zip(&*self.known_of).filter(|(_, apart)| **apart != 0) {
            for (_, &id) in ids.iter().enumerate().filter(|(j, _)| apart >> j & 1 != 0) {
                reserved(self.known.push(id));
            }
        }
        let apart = self.known.len();
        for row in heavy {
            let Some(place) = self.place(tree, row as usize) else { continue };
            let (entry, bit) = (place / CELL, 1 << (place % CELL));
            if self.known_of[entry] & bit == 0 && self.known.len() < self.known.capacity() {
                self.known_of[entry] |= bit;
                reserved(self.known.push(row));
            }
        }
        self.known[apart..].sort_unstable();
        let (dim_k, dim_v) = (self.dim_k, self.dim_v);
        isa.run(Gather { from: keys, ids: &self.known, stride: dim_k, out: &mut self.known_keys });
        isa.run(Gather { from: values, ids: &self.known, stride: dim_v, out: &mut self.known_values });
        // What is known leaves the covariances.
        let cross = self.entries() * self.stride;
        for (i, &row) in self.known.iter().enumerate().skip(apart) {
            let Some(place) = self.place(tree, row as usize) else { continue };
            let mean = &self.keys[place / CELL * dim_k..][..dim_k];
            let rest = &mut self.row[..dim_k];
            rest.copy_from_slice(&self.known_keys[i * dim_k..][..dim_k]);
            isa.axpy(-1.0, mean, rest);
            for (x, to) in self.row[..dim_k].iter().zip(self.covariance.chunks_exact_mut(dim_k)) {
                isa.axpy(-x, &self.row[..dim_k], to);
            }
            let (means, cross) = self.values.split_at_mut(cross);
            let (value, mean) =
                (&self.known_values[i * dim_v..][..dim_v], &means[place / CELL * self.stride..][..dim_v]);
            for (x, to) in self.row[..dim_k].iter().zip(cross.chunks_exact_mut(self.stride)) {
                isa.axpy(-x, value, &mut to[..dim_v]);
                isa.axpy(*x, mean, &mut to[..dim_v]);
            }
        }
        let scale = 1.0 / (tree.segments() * SEGMENT).max(1) as f32;
        self.covariance.iter_mut().chain(&mut self.values[cross..]).for_each(|x| *x *= scale);
        for entry in 0..self.entries() {
            if self.known_of[entry] != 0 {
                self.describe(isa, keys, values, entry);
            }
        }
        let mean = &mut self.row[..self.dim_v];
        mean.fill(0.0);
        let share = 1.0 / self.counts.len().max(1) as f32;
        self.values[..cross].chunks_exact(self.stride).for_each(|value| isa.axpy(share, &value[..self.dim_v], mean));
        self.common = isa.norm2(mean);
        let trace: f32 = (0..dim_k).map(|i| self.covariance[i * dim_k + i]).sum();
        for e in 0..self.entries() {
            self.radius[e] = if trace > 0.0 { ratio(self.square[e], trace) } else { 0.0 };
            let count = self.counts[e];
            self.shift[e] = if count > 0.0 { libm::logf(count) / unit } else { f32::NEG_INFINITY };
        }
    }

    /// About how long a row's output is: near keys make up so much of it, squared, and entries, which hold the share `far` of the weight,
    /// as much as values have in common.
    pub(super) fn output_length(&self, near: f32, far: f32) -> f32 {
        libm::sqrtf(near + far * far * self.common)
    }

    /// Makes one more key known, if it is in an entry and there is room; returns whether it is now.
    pub(super) fn learn(
        &mut self,
        isa: Isa,
        tree: &Tree,
        keys: &Rows<'_>,
        values: &Rows<'_>,
        row: u32,
        unit: f32,
    ) -> bool {
        let n = self.known.len();
        let place = self.place(tree, row as usize).filter(|_| n < self.known.capacity());
        let Some(place) = place else { return false };
        let (entry, bit) = (place / CELL, 1 << (place % CELL));
        if self.known_of[entry] & bit != 0 {
            return false;
        }
        self.known_of[entry] |= bit;
        reserved(self.known.push(row));
        keys.read(row as usize, &mut self.known_keys[n * self.dim_k..][..self.dim_k]);
        values.read(row as usize, &mut self.known_values[n * self.dim_v..][..self.dim_v]);
        let before = self.square[entry];
        self.describe(isa, keys, values, entry);
        self.radius[entry] *= if before > 0.0 { ratio(self.square[entry], before) } else { 0.0 };
        let count = self.counts[entry];
        self.shift[entry] = if count > 0.0 { libm::logf(count) / unit } else { f32::NEG_INFINITY };
        true
    }

    /// Means of an entry without its known keys.
    fn describe(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>, entry: usize) {
        let known = self.known_of[entry];
        let count = (!known).count_ones();
        self.counts[entry] = count as f32;
        let ids = &self.ids[entry * CELL..][..CELL];
        let left = || ids.iter().zip(0..).filter(|(_, j)| known >> j & 1 == 0).map(|(&id, _)| id as usize);
        let (to_key, to_value) =
            (&mut self.keys[entry * self.dim_k..][..self.dim_k], &mut self.values[entry * self.stride..][..self.dim_v]);
        for (from, to) in [(keys, &mut *to_key), (values, to_value)] {
            to.fill(0.0);
            for id in left() {
                let row = &mut self.row[..from.cols()];
                from.read(id, row);
                isa.axpy(1.0 / count as f32, row, to);
            }
        }
        let mut square = 0.0;
        for id in left() {
            let row = &mut self.row[..self.dim_k];
            keys.read(id, row);
            square += isa.sq_dist(row, to_key);
        }
        self.square[entry] = if count > 0 { square / count as f32 } else { 0.0 };
    }

    pub(super) fn mean_keys(&self) -> Rows<'_> {
        rows(&self.keys, self.dim_k)
    }

    /// Mean values, then the covariance of keys and values, a row for every dimension of a key. Padding included.
    pub(super) fn means_and_cross(&self) -> Rows<'_> {
        rows(&self.values, self.stride)
    }

    pub(super) fn covariance(&self) -> Rows<'_> {
        rows(&self.covariance, self.dim_k)
    }

    pub(super) fn means_and_cross_data(&self) -> &[f32] {
        &self.values
    }

    pub(super) fn covariance_data(&self) -> &[f32] {
        &self.covariance
    }

    pub(super) fn radius(&self) -> &[f32] {
        &self.radius
    }

    pub(super) fn shift(&self) -> &[f32] {
        &self.shift
    }

    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Biases that rows have for the keys behind entries.
    pub(super) fn biases<'a>(&'a self, of: Biases<'a>) -> EntryBiases<'a> {
        EntryBiases { of, ids: &self.ids, known: &self.known_of }
    }

    pub(super) fn known_of(&self) -> &[u16] {
        &self.known_of
    }

    /// Keys and values of the known.
    pub(super) fn known_rows(&self) -> (Rows<'_>, Rows<'_>) {
        let n = self.known.len();
        (rows(&self.known_keys[..n * self.dim_k], self.dim_k), rows(&self.known_values[..n * self.dim_v], self.dim_v))
    }
}

/// Of lengths whose squares these are, more than 0: an infinite spread opens every cell. 1 where squares leave the range of f32.
fn ratio(square: f32, all: f32) -> f32 {
    let share = square / all;
    if share.is_finite() { libm::sqrtf(share).max(f32::MIN_POSITIVE) } else { 1.0 }
}

fn rows(data: &[f32], cols: usize) -> Rows<'_> {
    Rows::new(data, cols).unwrap_or_else(|_| unreachable!("whole rows"))
}
