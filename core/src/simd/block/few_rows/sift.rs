//! The looks along coordinates: at the cells of a node, and at the keys of cells.

use super::super::choose::{Asked, judge};
use super::super::coords::{Along, products};
use super::super::{BLOCK, Elements, MOST, Prefetch, capped};
use super::{Count, FewRows, Slot, ask, next};
use crate::simd::vector::Simd;
use crate::simd::{Task, few};
use core::ops::Range;

/// Keys of a cell, in powers of two.
const LOG2_COUNT: f32 = BLOCK.ilog2() as f32;

impl FewRows<'_, '_> {
    /// The rows that list a node: those for which one of its cells stands out take a slot, with estimates of the cells.
    ///
    /// # Safety
    /// As `check` has seen; `lane` of root block `root` is a node that somebody lists, and there is a slot for every query from
    /// `end` on, which moves.
    #[inline(always)]
    pub(super) unsafe fn sift_node<S: Simd, const C: usize>(
        &mut self,
        s: S,
        root: usize,
        lane: usize,
        end: &mut usize,
        count: &mut Count,
    ) {
        let (node, queries) = (root * BLOCK + lane, self.queries);
        let coded = self.tree.of_cells.block(node);
        let words = coded.words.len() / BLOCK;
        let (spread, reach) = (&self.tree.cells.spread[node * BLOCK..], &self.tree.cells.reach[node * BLOCK..]);
        let mut unit = [s.splat(0.0); C];
        let mut tight = 0;
        let mut looked = 0;
        for c in 0..C {
            // SAFETY: vector c of the node's sixteen numbers.
            unsafe {
                unit[c] = s.load_bf16(coded.unit.as_ptr().add(c * S::LANES).cast());
                tight |= s.lt_bits(s.load(spread.as_ptr().add(c * S::LANES)), s.mul(unit[c], s.splat(self.tight)))
                    << (c * S::LANES);
            }
        }
        for query in 0..queries {
            if self.room.open[root * queries + query] >> lane & 1 == 0 {
                continue;
            }
            count.sifted += 1;
            let along = self.limits.along[query];
            let center = self.centers[root * self.step + query * BLOCK + lane];
            // SAFETY: the words of a block and the numbers of a query.
            let [codes] = unsafe {
                products::<S, C, 1>(s, coded.words.as_ptr(), words, [self.codes.as_ptr().add(query * 2 * words)])
            };
            let (step, zero) = (s.splat(along.unit), s.splat(along.zero));
            let (most, far) = (s.splat(along.most), s.splat(along.far));
            let needle = if self.softcap > 0.0 { along.needle } else { along.needle - center };
            let needle = s.splat(needle);
            let scores = self.room.scores[*end * BLOCK..][..BLOCK].as_mut_ptr();
            let mut below = 0;
            for c in 0..C {
                let codes = s.to_f32(codes[c]);
                // SAFETY: vector c of the node's sixteen numbers and of the slot's.
                unsafe {
                    let x = s.fma(s.fma(codes, step, zero), unit[c], s.splat(center));
                    s.store(scores.add(c * S::LANES), x);
                    let key = s.fma(codes, step, most);
                    let mut x = s.fma(key, unit[c], s.mul(s.load(reach.as_ptr().add(c * S::LANES)), far));
                    if self.softcap > 0.0 {
                        x = capped(s, s.add(x, s.splat(center)), self.softcap);
                    }
                    below |= s.lt_bits(x, needle) << (c * S::LANES);
                }
            }
            if below as u16 == u16::MAX && self.room.sure[root * queries + query] >> lane & 1 == 0 {
                continue;
            }
            if tight != 0 {
                self.score_tight(s, query, node, tight as u16, *end);
            }
            // SAFETY: passed on; the slot is there, since every node of every query has one.
            let (listed, sure) = unsafe { self.choose(s, query, node, *end) };
            self.room.slots[*end] =
                Slot { node: node as u32, query: query as u16, listed, sure, opened: 0, picked: [0; BLOCK] };
            *end += 1;
            let mut fresh = listed & !looked;
            looked |= listed;
            while let Some(leaf) = next(&mut fresh) {
                self.ask_cell(s, node * BLOCK + leaf);
            }
        }
    }

    /// The cells whose keys lie closer together than their coordinates tell, by one of their keys.
    #[inline(always)]
    fn score_tight<S: Simd>(&mut self, s: S, query: usize, node: usize, mut tight: u16, slot: usize) {
        let q = &self.q.data[query * self.q.stride..][..self.q.cols];
        let ids: [u32; BLOCK] = core::array::from_fn(|leaf| self.tree.ids[(node * BLOCK + leaf) * BLOCK]);
        let mut scores = [0.0; BLOCK];
        few::dots_at(s, self.keys, &ids, q, &mut scores);
        while let Some(leaf) = next(&mut tight) {
            self.room.scores[slot * BLOCK + leaf] = scores[leaf];
        }
    }

    /// Estimates of a node's cells, as [`Choose`](super::super::Choose) makes them, and which to look at: as bits, with those that are to
    /// be opened whatever their keys.
    ///
    /// # Safety
    /// As `check` has seen; the slot is there.
    #[inline(always)]
    unsafe fn choose<S: Simd>(&mut self, s: S, query: usize, node: usize, slot: usize) -> (u16, u16) {
        let limits = &self.limits;
        let asked = Asked {
            root: s.splat(limits.sigma[query]),
            far: s.splat(limits.along[query].far),
            shift: s.splat(LOG2_COUNT - 1.0 - limits.reference[query]),
            needle: s.splat(limits.needle[query]),
            mass: s.splat(limits.mass[0][query]),
        };
        let (mut light, mut far_off, mut sum) = (0, 0, s.splat(0.0));
        for at in (0..BLOCK).step_by(S::LANES) {
            // SAFETY: a vector of the node's sixteen numbers and of the slot's.
            unsafe {
                let raw = s.load(self.room.scores.as_ptr().add(slot * BLOCK + at));
                let reach = s.load(self.tree.cells.reach.as_ptr().add(node * BLOCK + at));
                let spread = s.load(self.tree.cells.spread.as_ptr().add(node * BLOCK + at));
                let (w, is_light, is_far_off) = judge(s, raw, reach, spread, asked, self.softcap);
                light |= is_light << at;
                far_off |= is_far_off << at;
                sum = s.add(sum, w);
                s.store(self.room.below.as_mut_ptr().add(slot * BLOCK + at), w);
            }
        }
        if s.reduce_add(sum) >= limits.coarse[query] {
            self.ask_values(s, node);
        }
        let sure = !(light as u16);
        (!(far_off as u16) | sure, sure)
    }

    /// Of the cells that slots list, those with a key that stands out, and those that are opened anyway: slots of one node two
    /// at a time.
    ///
    /// # Safety
    /// As `check` has seen; the slots are in use.
    #[inline(always)]
    pub(super) unsafe fn sift_cells<S: Simd, const C: usize>(&mut self, s: S, slots: Range<usize>, count: &mut Count) {
        let mut slot = slots.start;
        while slot < slots.end {
            let one = self.room.slots[slot];
            count.sifted += one.listed.count_ones() as usize;
            let mut alone = one.listed;
            // On one lane a pair saves no loads, only adds code.
            let pair = S::LANES > 1 && slot + 1 < slots.end && self.room.slots[slot + 1].node == one.node;
            if pair {
                let other = self.room.slots[slot + 1].listed;
                count.sifted += other.count_ones() as usize;
                let (mut both, mut others) = (alone & other, other & !alone);
                alone &= !other;
                // SAFETY: passed on.
                unsafe {
                    while let Some(leaf) = next(&mut both) {
                        self.sift_cell::<S, C, 2>(s, [slot, slot + 1], leaf);
                    }
                    while let Some(leaf) = next(&mut others) {
                        self.sift_cell::<S, C, 1>(s, [slot + 1], leaf);
                    }
                }
            }
            while let Some(leaf) = next(&mut alone) {
                // SAFETY: passed on.
                unsafe { self.sift_cell::<S, C, 1>(s, [slot], leaf) };
            }
            slot += 1 + usize::from(pair);
        }
    }

    /// One cell for slots of its node: what its keys weigh by their coordinates, and whether it is opened.
    ///
    /// # Safety
    /// As `check` has seen; the slots are in use.
    #[inline(always)]
    unsafe fn sift_cell<S: Simd, const C: usize, const R: usize>(&mut self, s: S, slots: [usize; R], leaf: usize) {
        let at = self.room.slots[slots[0]].node as usize * BLOCK + leaf;
        let words = self.tree.of_keys.each / BLOCK;
        let cell = self.tree.of_keys.block(at);
        let mut q = [self.codes.as_ptr(); R];
        for r in 0..R {
            q[r] = q[r].wrapping_add(self.room.slots[slots[r]].query as usize * 2 * words);
        }
        // SAFETY: the words of a block and the numbers of queries.
        let codes = unsafe { products::<S, C, R>(s, cell.words.as_ptr(), words, q) };
        for r in 0..R {
            let Slot { query, sure, .. } = self.room.slots[slots[r]];
            let Along { unit: step, zero, most, needle, .. } = self.limits.along[query as usize];
            let (step, start, most) = (s.splat(step), s.splat(zero), s.splat(most));
            let center = self.room.scores[slots[r] * BLOCK + leaf];
            let needle = s.splat(if self.softcap > 0.0 { needle } else { needle - center });
            let (center, reference) = (s.splat(center), s.splat(self.limits.reference[query as usize]));
            let fine = s.splat(self.limits.fine[query as usize]);
            let (mut below, mut light, mut mass, mut rest) = (0, 0, s.splat(0.0), s.splat(0.0));
            for c in 0..C {
                // SAFETY: vector c of the cell's steps.
                let unit = unsafe { s.load_bf16(cell.unit.as_ptr().add(c * S::LANES).cast()) };
                let raw = s.to_f32(codes[r][c]);
                let x = capped(s, s.fma(s.fma(raw, step, start), unit, center), self.softcap);
                let w = s.exp2(s.min(s.sub(x, reference), s.splat(MOST)));
                mass = s.add(mass, w);
                let mut x = s.mul(s.fma(raw, step, most), unit);
                if self.softcap > 0.0 {
                    x = capped(s, s.add(x, center), self.softcap);
                }
                below |= s.lt_bits(x, needle) << (c * S::LANES);
                light |= s.lt_bits(w, fine) << (c * S::LANES);
                let left = s.select_lt(w, fine, w, s.splat(0.0));
                rest = s.add(rest, s.select_lt(x, needle, left, s.splat(0.0)));
            }
            let to = slots[r] * BLOCK + leaf;
            let sure = sure >> leaf & 1 != 0;
            // Nothing of a cell where no key stands out; else also what comes with its own value.
            let mut picked = match !(below as u16) {
                _ if sure => u16::MAX,
                0 => 0,
                found => found | !(light as u16),
            };
            if picked == 0 {
                self.room.below[to] = s.reduce_add(mass);
                continue;
            }
            self.room.below[to] = if sure { 0.0 } else { s.reduce_add(rest) };
            let slot = &mut self.room.slots[slots[r]];
            slot.opened |= 1 << leaf;
            slot.picked[leaf] = picked;
            let ids = &self.tree.ids[at * BLOCK..][..BLOCK];
            while let Some(key) = next(&mut picked) {
                let ids = &ids[key..][..1];
                Prefetch { from: self.keys, ids }.run(s);
                Prefetch { from: self.values, ids }.run(s);
            }
        }
    }

    /// Asks for the mean values of a node's cells.
    #[inline(always)]
    fn ask_values<S: Simd>(&self, s: S, node: usize) {
        // Nobody listens there.
        if S::LANES == 1 {
            return;
        }
        match self.tree.cells.values.block(node).data {
            Elements::F32(x) => ask(s, x),
            Elements::Bytes(x) => {
                ask(s, x.words);
                ask(s, x.unit);
            }
        }
    }

    /// Asks for the coordinates of a cell's keys.
    #[inline(always)]
    fn ask_cell<S: Simd>(&self, s: S, at: usize) {
        // Nobody listens there.
        if S::LANES == 1 {
            return;
        }
        let cell = self.tree.of_keys.block(at);
        ask(s, cell.words);
        ask(s, cell.unit);
        ask(s, &self.tree.ids[at * BLOCK..][..BLOCK]);
    }
}
