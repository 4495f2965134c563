//! What rows of a block meet in place of far keys: known keys, exactly, and entries, the cells less the known keys.
//!
//! Blocks keep both in f32, as their kernels read them. Sessions keep them in the type of their cache: reading is what few rows take time for.

use super::super::store::Store;
use super::policy::{CELL, KNOWN, SEGMENT, SEGMENT_CELLS};
use super::tree::Tree;
use crate::error::reserved;
use crate::mem::{Buf, Dtype, Maker, Rows};
use crate::simd::Isa;
use crate::simd::bias::Biases;
use crate::simd::clustered::EntryBiases;
use crate::simd::gather::Gather;
use core::ops::Range;

/// Known keys and entries of a block.
pub(super) struct Front {
    dim_k: usize,
    dim_v: usize,
    stride: usize,
    /// First entry of a segment, or `u32::MAX` where its cells are not used.
    first: Buf<u32>,
    /// Mean keys, mean values in rows of `stride`, counts, mean square distances, rows of the keys, and which of them are known, by
    /// entry.
    keys: Store,
    values: Store,
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
    /// Mean over keys of `(key - mean) (value - mean)^T`, a row of `stride` for every dimension of a key.
    cross: Buf<f32>,
    /// Rows of the known keys with their keys and values: those of `ascending`, and before and after them some in any order.
    pub(super) known: Buf<u32>,
    ascending: Range<usize>,
    known_keys: Store,
    known_values: Store,
    /// Single rows.
    rows: [Buf<f32>; 3],
    /// Keys or values of a cell.
    cell: Buf<f32>,
    /// Squared length of the mean of all mean values.
    common: f32,
}

impl Front {
    /// For up to `keys` keys, which are of type `dtype` unless that is f32, as part of a larger object.
    pub(super) fn made(m: &mut Maker<'_>, [dim_k, dim_v]: [usize; 2], keys: usize, dtype: Dtype) -> Self {
        let (n, known) = (keys / SEGMENT * SEGMENT_CELLS, KNOWN.min(keys));
        let stride = dim_v.next_multiple_of(16);
        Front {
            dim_k,
            dim_v,
            stride,
            first: m.filled(keys / SEGMENT, u32::MAX),
            keys: Store::made(m, dtype, n.saturating_mul(dim_k)),
            values: Store::made(m, dtype, n.saturating_mul(stride)),
            counts: m.room(n),
            square: m.room(n),
            ids: m.room(n * CELL),
            known_of: m.room(n),
            radius: m.room(n),
            shift: m.room(n),
            covariance: m.filled(dim_k * dim_k, 0.0),
            cross: m.filled(dim_k.saturating_mul(stride), 0.0),
            known: m.room(known),
            ascending: 0..0,
            known_keys: Store::made(m, dtype, known * dim_k),
            known_values: Store::made(m, dtype, known * dim_v),
            rows: [0; 3].map(|_| m.filled(dim_k.max(stride), 0.0)),
            cell: m.filled(CELL * dim_k.max(dim_v), 0.0),
            common: 0.0,
        }
    }

    /// No cells, nothing known.
    pub(super) fn clear(&mut self) {
        self.first.fill(u32::MAX);
        self.keys.truncate(0);
        self.values.truncate(0);
        for buf in [&mut self.square, &mut self.counts, &mut self.radius, &mut self.shift] {
            buf.clear();
        }
        self.ids.clear();
        self.known_of.clear();
        self.known.clear();
        self.ascending = 0..0;
    }

    /// The cells of some segments, nothing known.
    pub(super) fn start(&mut self, isa: Isa, tree: &Tree, segments: impl Iterator<Item = usize>) {
        self.clear();
        for segment in segments {
            self.first[segment] = self.square.len() as u32;
            // Means of numbers that fit the type do.
            self.keys.push_row(isa, tree.keys(segment));
            self.values.push_row(isa, tree.values(segment));
            reserved(self.square.extend_from_slice(tree.square(segment)));
            reserved(self.ids.extend_from_slice(tree.ids(segment)));
            reserved(self.known_of.extend_from_slice(tree.apart(segment)));
        }
        let n = self.square.len();
        for buf in [&mut self.counts, &mut self.radius, &mut self.shift] {
            reserved(buf.resize(n, 0.0));
        }
        self.counts.iter_mut().zip(&*self.known_of).for_each(|(n, known)| *n = (!known).count_ones() as f32);
        tree.moment(&mut self.covariance);
        self.cross.copy_from_slice(tree.cross());
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

    /// Where a row stands among the known keys, if it is known. O(log known) for most.
    pub(super) fn known_at(&self, tree: &Tree, row: u32) -> Option<usize> {
        let place = self.place(tree, row as usize)?;
        if self.known_of[place / CELL] >> (place % CELL) & 1 == 0 {
            return None;
        }
        let Range { start, end } = self.ascending;
        let found = self.known[start..end].binary_search(&row).ok().map(|i| start + i);
        found.or_else(|| (0..start).chain(end..self.known.len()).find(|&i| self.known[i] == row))
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
        self.ascending = apart..self.known.len();
        self.known_keys.gather(isa, keys, &self.known);
        self.known_values.gather(isa, values, &self.known);
        let (dim_k, dim_v, n) = (self.dim_k, self.dim_v, self.entries());
        // What is known leaves the covariances.
        let known = [self.known_keys.rows(self.known.len(), dim_k), self.known_values.rows(self.known.len(), dim_v)];
        let means = [self.keys.rows(n, dim_k), self.values.rows(n, self.stride)];
        for (i, &row) in self.known.iter().enumerate().skip(apart) {
            let Some(place) = self.place(tree, row as usize) else { continue };
            let [key, value, mean] = &mut self.rows;
            for ((known, means), rest) in known.iter().zip(&means).zip([&mut *key, &mut *value]) {
                known.read(i, &mut rest[..known.cols()]);
                means.read(place / CELL, &mut mean[..means.cols()]);
                isa.axpy(-1.0, &mean[..known.cols()], &mut rest[..known.cols()]);
            }
            let (key, value) = (&key[..dim_k], &value[..dim_v]);
            let (of_keys, of_values) =
                (self.covariance.chunks_exact_mut(dim_k), self.cross.chunks_exact_mut(self.stride));
            for ((x, of_keys), of_values) in key.iter().zip(of_keys).zip(of_values) {
                isa.axpy(-x, key, of_keys);
                isa.axpy(-x, value, &mut of_values[..dim_v]);
            }
        }
        let scale = 1.0 / (tree.segments() * SEGMENT).max(1) as f32;
        self.covariance.iter_mut().chain(&mut *self.cross).for_each(|x| *x *= scale);
        for entry in 0..n {
            if self.known_of[entry] != 0 {
                self.describe(isa, keys, values, entry);
            }
        }
        let (means, [mean, row, _]) = (self.values.rows(n, self.stride), &mut self.rows);
        mean.fill(0.0);
        for entry in 0..n {
            means.read(entry, &mut row[..self.stride]);
            isa.axpy(1.0 / n as f32, &row[..dim_v], &mut mean[..dim_v]);
        }
        self.common = isa.norm2(&mean[..dim_v]);
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
        let place = self.place(tree, row as usize).filter(|_| self.known.len() < self.known.capacity());
        let Some(place) = place else { return false };
        let (entry, bit) = (place / CELL, 1 << (place % CELL));
        if self.known_of[entry] & bit != 0 {
            return false;
        }
        self.known_of[entry] |= bit;
        reserved(self.known.push(row));
        let same = [self.known_keys.push_same(keys, row as usize), self.known_values.push_same(values, row as usize)];
        debug_assert!(same == [true; 2], "a session's keys and values are of its type");
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
        let left = || (0..CELL).filter(|j| known >> j & 1 == 0);
        let [key, value, _] = &mut self.rows;
        for (from, to) in [(values, &mut *value), (keys, &mut *key)] {
            let cols = from.cols();
            isa.run(Gather { from, ids, stride: cols, out: &mut self.cell });
            to.fill(0.0);
            left().for_each(|j| isa.axpy(1.0 / count as f32, &self.cell[j * cols..][..cols], &mut to[..cols]));
        }
        let key = &key[..self.dim_k];
        let square: f32 = left().map(|j| isa.sq_dist(&self.cell[j * self.dim_k..][..self.dim_k], key)).sum();
        self.keys.set_row(isa, entry, key);
        self.values.set_row(isa, entry, &value[..self.stride]);
        self.square[entry] = if count > 0 { square / count as f32 } else { 0.0 };
    }

    pub(super) fn mean_keys(&self) -> Rows<'_> {
        self.keys.rows(self.entries(), self.dim_k)
    }

    /// Whole vectors, padded.
    pub(super) fn mean_values(&self) -> Rows<'_> {
        self.values.rows(self.entries(), self.stride)
    }

    /// Covariance of keys and values, a row for every dimension of a key. Padded, too.
    pub(super) fn cross(&self) -> Rows<'_> {
        rows(&self.cross, self.stride)
    }

    pub(super) fn covariance(&self) -> Rows<'_> {
        rows(&self.covariance, self.dim_k)
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

    /// Lists the next keys of entries that are `opened`, from entry `from` on, as many as there is room for: those that are not known. Returns
    /// whether there are some.
    pub(super) fn list_opened(&self, opened: &[u8], from: &mut usize, ids: &mut Buf<u32>) -> bool {
        ids.clear();
        while *from < self.entries() && ids.len() + CELL <= ids.capacity() {
            let (known, all) = (self.known_of[*from], &self.ids[*from * CELL..][..CELL]);
            if opened[*from] != 0 {
                for (_, &id) in all.iter().enumerate().filter(|(j, _)| known >> j & 1 == 0) {
                    reserved(ids.push(id));
                }
            }
            *from += 1;
        }
        !ids.is_empty()
    }

    /// Keys and values of the known.
    pub(super) fn known_rows(&self) -> (Rows<'_>, Rows<'_>) {
        let n = self.known.len();
        (self.known_keys.rows(n, self.dim_k), self.known_values.rows(n, self.dim_v))
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

#[cfg(all(test, feature = "alloc"))]
mod tests {
    use super::*;
    use crate::math::hash;
    use crate::mem::Memory;
    use std::vec::Vec;

    #[test]
    fn known_keys_are_found() {
        let (n, dim, isa) = (4 * SEGMENT, 8, Isa::best());
        let noise = |seed| (0..n * dim).map(|i| (hash(seed, i as u64) >> 40) as f32 / (1 << 24) as f32).collect();
        let (k, v): (Vec<f32>, Vec<f32>) = (noise(1), noise(2));
        let [keys, values] = [&k, &v].map(|x| Rows::new(x, dim).unwrap());
        let memory = Memory::system(0).unwrap();
        let mut tree = Maker::make(&memory, |m| Tree::made(m, dim, dim, n)).unwrap();
        tree.fill(isa, &keys, &values, |_| true);
        tree.publish();
        let mut front = Maker::make(&memory, |m| Front::made(m, [dim, dim], n, Dtype::F32)).unwrap();
        // Not of the last segment.
        front.start(isa, &tree, 0..3);
        let heavy = (0..60).map(|i| hash(3, i) as u32 % n as u32);
        front.know(isa, &tree, &keys, &values, heavy, 1.0);
        // Those that come later stand behind the others.
        for row in [500, 3, 200, 900] {
            let there = front.known.contains(&row);
            let learnt = front.learn(isa, &tree, &keys, &values, row, 1.0);
            assert_eq!(learnt, !there && (row as usize) < 3 * SEGMENT, "{row}");
        }
        assert!(front.known.len() > 30);
        // An entry whose keys are all known weighs nothing, whatever the sign of the scale.
        let ids: [u32; CELL] = front.ids()[..CELL].try_into().unwrap();
        for row in ids {
            front.learn(isa, &tree, &keys, &values, row, -1.0);
        }
        assert_eq!((front.counts[0], front.shift()[0]), (0.0, f32::NEG_INFINITY));
        for row in 0..n as u32 {
            let place = front.known.iter().position(|&known| known == row);
            assert_eq!(front.known_at(&tree, row), place, "{row}");
            assert!(
                !front.learn(isa, &tree, &keys, &values, row, 1.0) || place.is_none() && (row as usize) < 3 * SEGMENT
            );
        }
    }
}
