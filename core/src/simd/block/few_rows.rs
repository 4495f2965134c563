//! A root block for a few rows, from the nodes they list down: the second look along coordinates, estimates, opened cells,
//! values.
//!
//! What lists of rows do child by child ([`Sift`](super::Sift), [`Choose`](super::Choose), [`Opened`](super::Opened) and the others)
//! is done row by row: with one or two rows to a list, bringing rows together costs more than what it saves. Nodes are taken some
//! at a time, each step for all of them, so that what the next step reads has been asked for by then: it lies far apart, and
//! nobody knew of it.

use super::choose::{Asked, judge};
use super::coords::{Along, Bytes, Many, products};
use super::weigh::weigh;
use super::{
    AddKeys, AddValues, BLOCK, Doubt, MOST, Matrix, Prefetch, RAISE, Raise, Stored, Thresholds, Values, capped,
};
use crate::mem::Rows;
use crate::simd::vector::Simd;
use crate::simd::{Task, few};

/// Keys of a cell, in powers of two.
const LOG2_COUNT: f32 = BLOCK.ilog2() as f32;

/// Nodes that go down together.
const TOGETHER: u32 = 4;

/// A row that goes below a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Slot {
    pub(crate) query: u16,
    /// Node of the root block.
    pub(crate) lane: u16,
    /// Cells whose keys are looked at, as bits, and those that are opened whatever these say.
    listed: u16,
    sure: u16,
    /// Cells that are opened, and which of their keys are scored.
    pub(crate) opened: u16,
    pub(crate) picked: [u16; BLOCK],
}

/// What lies below a root block, node by node, as far as there are nodes.
#[derive(Clone, Copy)]
pub(crate) struct Below<'a> {
    /// Coordinates of the cells of every node, and of the keys of every cell.
    pub(crate) nodes: Many<'a>,
    pub(crate) cells: Many<'a>,
    /// Of the cells of every node: how far their keys and values lie from their means.
    pub(crate) spread: &'a [f32],
    pub(crate) reach: &'a [f32],
    pub(crate) value_spread: &'a [f32],
    /// Mean values of cells.
    pub(crate) values: Values<'a>,
    /// Keys by cell.
    pub(crate) ids: &'a [u32],
}

impl Below<'_> {
    /// Asks for what the first step reads of a node.
    #[inline(always)]
    fn ask<S: Simd>(&self, s: S, lane: usize) {
        let ask = |p: *const u8, bytes: usize| (0..bytes).step_by(64).for_each(|at| s.prefetch(p.wrapping_add(at)));
        let node = self.nodes.block(lane);
        ask(node.words.as_ptr().cast(), size_of_val(node.words));
        ask(node.unit.as_ptr().cast(), size_of_val(node.unit));
        for of in [self.spread, self.reach, self.value_spread] {
            ask(of[lane * BLOCK..].as_ptr().cast(), BLOCK * 4);
        }
    }

    /// Asks for the mean values of a node's cells.
    #[inline(always)]
    fn ask_values<S: Simd>(&self, s: S, lane: usize) {
        let (at, len) = (lane * BLOCK * self.values.stride, BLOCK * self.values.stride);
        let (p, bytes): (*const u8, usize) = match self.values.data {
            Stored::F32(x) => (x[at..][..len].as_ptr().cast(), 4 * len),
            Stored::F16(x) => (x[at..][..len].as_ptr().cast(), 2 * len),
        };
        (0..bytes).step_by(64).for_each(|at| s.prefetch(p.wrapping_add(at)));
    }

    /// Asks for the coordinates of a cell's keys.
    #[inline(always)]
    fn ask_cell<S: Simd>(&self, s: S, at: usize) {
        let cell = self.cells.block(at);
        let p: *const u8 = cell.words.as_ptr().cast();
        (0..size_of_val(cell.words)).step_by(64).for_each(|at| s.prefetch(p.wrapping_add(at)));
        s.prefetch(cell.unit.as_ptr().cast());
        s.prefetch(self.ids[at * BLOCK..].as_ptr().cast());
    }

    /// Mean values of the cells of a node.
    #[inline(always)]
    fn values_of(&self, lane: usize) -> Values<'_> {
        let (at, len) = (lane * BLOCK * self.values.stride, BLOCK * self.values.stride);
        let data = match self.values.data {
            Stored::F32(x) => Stored::F32(&x[at..][..len]),
            Stored::F16(x) => Stored::F16(&x[at..][..len]),
        };
        Values { data, ..self.values }
    }
}

/// Sums of rows, by query.
pub(crate) struct Sums<'a> {
    /// Exact and estimated weights, `[query][BLOCK]`.
    pub(crate) exact: &'a mut [f32],
    pub(crate) estimated: &'a mut [f32],
    /// As in [`Weigh`](super::Weigh).
    pub(crate) light: &'a mut [f32],
    pub(crate) lost: &'a mut [bool],
    /// As in [`AddValues`], of cells.
    pub(crate) lean: &'a mut [f32],
    /// As in [`Doubt`], of cells, where errors are to be predicted.
    pub(crate) doubt: Option<&'a mut [f32]>,
    /// Weighted sums of values, rows of `stride`.
    pub(crate) out: &'a mut [f32],
    pub(crate) stride: usize,
}

/// One root block. What a row gets does not depend on the rows it comes with.
pub(crate) struct FewRows<'a> {
    pub(crate) below: Below<'a>,
    pub(crate) keys: &'a Rows<'a>,
    pub(crate) values: &'a Rows<'a>,
    pub(crate) q: Matrix<'a>,
    pub(crate) codes: &'a [i32],
    pub(crate) softcap: f32,
    /// Less spread than so many steps of its coordinates: a cell is scored by one of its keys.
    pub(crate) tight: f32,
    /// Scores of the nodes' means, `[query][BLOCK]`, and what the nodes weigh: nothing where a node's cells weigh in instead.
    pub(crate) centers: &'a [f32],
    pub(crate) nodes: &'a mut [f32],
    /// Nodes that are listed, as bits by query, and those that are listed whatever their cells.
    pub(crate) open: &'a [u16],
    pub(crate) sure: &'a [u16],
    pub(crate) limits: Thresholds<'a>,
    pub(crate) sums: Sums<'a>,
    /// Room, a slot for every node of every query: afterwards who went below which node, `[slot]`; scores and weights of the
    /// cells there, `[slot][BLOCK]`.
    pub(crate) slots: &'a mut [Slot],
    pub(crate) scores: &'a mut [f32],
    pub(crate) weights: &'a mut [f32],
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Count {
    /// Slots in use.
    pub(crate) nodes: usize,
    /// (node, row) and (cell, row) pairs that were looked at by their coordinates.
    pub(crate) sifted: usize,
    /// (cell, row) pairs opened, and (key, row) pairs scored there.
    pub(crate) cells: usize,
    pub(crate) keys: usize,
}

impl Task for FewRows<'_> {
    type Out = Count;
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Count {
        match S::LANES {
            16 => self.all::<S, 1>(s),
            8 => self.all::<S, 2>(s),
            4 => self.all::<S, 4>(s),
            _ => self.all::<S, 16>(s),
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

impl FewRows<'_> {
    /// Everything that loops rely on; returns the nodes that anybody lists.
    #[inline(always)]
    fn check(&self) -> u16 {
        let (queries, b) = (self.open.len(), &self.below);
        let listed = self.open.iter().fold(0, |all, bits| all | bits);
        let nodes = BLOCK - (listed.leading_zeros() as usize).min(BLOCK);
        assert!(b.spread.len() >= nodes * BLOCK && b.reach.len() >= nodes * BLOCK);
        assert!(b.value_spread.len() >= nodes * BLOCK && b.ids.len() >= nodes * BLOCK * BLOCK);
        assert!(b.nodes.unit.len() >= nodes && b.cells.unit.len() >= nodes * BLOCK);
        assert!(b.nodes.each == b.cells.each && b.nodes.each.is_multiple_of(BLOCK));
        assert!(b.nodes.words.len() >= nodes * b.nodes.each && b.cells.words.len() >= nodes * BLOCK * b.cells.each);
        assert!(self.q.cols <= self.q.stride && self.q.data.len() >= queries * self.q.stride);
        assert!(self.q.cols == self.keys.cols());
        assert!(self.centers.len() >= queries * BLOCK && self.nodes.len() >= queries * BLOCK);
        assert!(self.sure.len() >= queries);
        let slots = queries * BLOCK;
        assert!(self.slots.len() >= slots && self.scores.len() >= slots * BLOCK);
        assert!(self.weights.len() >= slots * BLOCK);
        let sums = &self.sums;
        assert!(sums.exact.len() >= queries * BLOCK && sums.light.len() >= queries && sums.lost.len() >= queries);
        self.limits.check(queries);
        Bytes { codes: self.codes, of: &self.limits.along[..queries] }.check(b.nodes.each / BLOCK);
        listed
    }

    #[inline(always)]
    fn all<S: Simd, const C: usize>(mut self, s: S) -> Count {
        let mut left = self.check();
        let mut count = Count::default();
        // Neighbours, whoever lists which: what a row finds when is its own affair.
        let batch = |left: u16| {
            let group = left.trailing_zeros() / TOGETHER * TOGETHER;
            left & (((1 << TOGETHER) - 1) as u16).checked_shl(group).unwrap_or(0)
        };
        let mut ahead = batch(left);
        while let Some(lane) = next(&mut ahead) {
            self.below.ask(s, lane);
        }
        while left != 0 {
            let begin = count.nodes;
            let (mut nodes, mut ahead) = (batch(left), batch(left & !batch(left)));
            left &= !nodes;
            while let Some(lane) = next(&mut ahead) {
                self.below.ask(s, lane);
            }
            // SAFETY: `check` has seen all lengths; lanes are of nodes that somebody lists.
            unsafe {
                while let Some(lane) = next(&mut nodes) {
                    self.sift_node::<S, C>(s, lane, &mut count);
                }
                self.sift_cells::<S, C>(s, begin..count.nodes, &mut count);
            }
            for slot in begin..count.nodes {
                self.open(s, slot, &mut count);
            }
            for slot in begin..count.nodes {
                self.settle(s, slot);
            }
            self.raise(s, begin..count.nodes);
        }
        count
    }

    /// The rows that list a node: those for which one of its cells stands out take a slot, with estimates of the cells.
    ///
    /// # Safety
    /// As `check` has seen; `lane` is a node that somebody lists.
    #[inline(always)]
    unsafe fn sift_node<S: Simd, const C: usize>(&mut self, s: S, lane: usize, count: &mut Count) {
        let coded = self.below.nodes.block(lane);
        let words = coded.words.len() / BLOCK;
        let (spread, reach) = (&self.below.spread[lane * BLOCK..], &self.below.reach[lane * BLOCK..]);
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
        for query in 0..self.open.len() {
            if self.open[query] >> lane & 1 == 0 {
                continue;
            }
            count.sifted += 1;
            let along = self.limits.along[query];
            let center = self.centers[query * BLOCK + lane];
            // SAFETY: the words of a block and the numbers of a query.
            let [codes] = unsafe {
                products::<S, C, 1>(s, coded.words.as_ptr(), words, [self.codes.as_ptr().add(query * 2 * words)])
            };
            let (step, zero) = (s.splat(along.unit), s.splat(along.zero));
            let (slack, far) = (s.splat(along.zero + along.slack), s.splat(along.far));
            let needle = if self.softcap > 0.0 { along.needle } else { along.needle - center };
            let needle = s.splat(needle);
            let scores = self.scores[count.nodes * BLOCK..][..BLOCK].as_mut_ptr();
            let mut below = 0;
            for c in 0..C {
                let codes = s.to_f32(codes[c]);
                // SAFETY: vector c of the node's sixteen numbers and of the slot's.
                unsafe {
                    let x = s.fma(s.fma(codes, step, zero), unit[c], s.splat(center));
                    s.store(scores.add(c * S::LANES), x);
                    let most = s.fma(codes, step, slack);
                    let mut x = s.fma(most, unit[c], s.mul(s.load(reach.as_ptr().add(c * S::LANES)), far));
                    if self.softcap > 0.0 {
                        x = capped(s, s.add(x, s.splat(center)), self.softcap);
                    }
                    below |= s.lt_bits(x, needle) << (c * S::LANES);
                }
            }
            if below as u16 == u16::MAX && self.sure[query] >> lane & 1 == 0 {
                continue;
            }
            if tight != 0 {
                self.score_tight(s, query, lane, tight as u16, count.nodes);
            }
            // SAFETY: passed on; the slot is there, since every node of every query has one.
            let (listed, sure) = unsafe { self.choose(s, query, lane, count.nodes) };
            self.slots[count.nodes] =
                Slot { query: query as u16, lane: lane as u16, listed, sure, opened: 0, picked: [0; BLOCK] };
            count.nodes += 1;
            let mut fresh = listed & !looked;
            looked |= listed;
            while let Some(leaf) = next(&mut fresh) {
                self.below.ask_cell(s, lane * BLOCK + leaf);
            }
        }
    }

    /// The cells whose keys lie closer together than their coordinates tell, by one of their keys.
    #[inline(always)]
    fn score_tight<S: Simd>(&mut self, s: S, query: usize, lane: usize, mut tight: u16, slot: usize) {
        let q = &self.q.data[query * self.q.stride..][..self.q.cols];
        let ids: [u32; BLOCK] = core::array::from_fn(|leaf| self.below.ids[(lane * BLOCK + leaf) * BLOCK]);
        let mut scores = [0.0; BLOCK];
        few::dots_at(s, self.keys, &ids, q, &mut scores);
        while let Some(leaf) = next(&mut tight) {
            self.scores[slot * BLOCK + leaf] = scores[leaf];
        }
    }

    /// Estimates of a node's cells, as [`Choose`](super::Choose) makes them, and which to look at: as bits, with those that are to
    /// be opened whatever their keys.
    ///
    /// # Safety
    /// As `check` has seen; the slot is there.
    #[inline(always)]
    unsafe fn choose<S: Simd>(&mut self, s: S, query: usize, lane: usize, slot: usize) -> (u16, u16) {
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
                let raw = s.load(self.scores.as_ptr().add(slot * BLOCK + at));
                let reach = s.load(self.below.reach.as_ptr().add(lane * BLOCK + at));
                let spread = s.load(self.below.spread.as_ptr().add(lane * BLOCK + at));
                let (w, is_light, is_far_off) = judge(s, raw, reach, spread, asked, self.softcap);
                light |= is_light << at;
                far_off |= is_far_off << at;
                sum = s.add(sum, w);
                s.store(self.weights.as_mut_ptr().add(slot * BLOCK + at), w);
            }
        }
        if s.reduce_add(sum) >= limits.coarse[query] {
            self.below.ask_values(s, lane);
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
    unsafe fn sift_cells<S: Simd, const C: usize>(&mut self, s: S, slots: core::ops::Range<usize>, count: &mut Count) {
        let mut slot = slots.start;
        while slot < slots.end {
            let one = self.slots[slot];
            count.sifted += one.listed.count_ones() as usize;
            let mut alone = one.listed;
            // On one lane a pair saves no loads, only adds code.
            let pair = S::LANES > 1 && slot + 1 < slots.end && self.slots[slot + 1].lane == one.lane;
            if pair {
                let other = self.slots[slot + 1].listed;
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
        let lane = self.slots[slots[0]].lane as usize;
        let words = self.below.cells.each / BLOCK;
        let cell = self.below.cells.block(lane * BLOCK + leaf);
        let mut q = [self.codes.as_ptr(); R];
        for r in 0..R {
            q[r] = q[r].wrapping_add(self.slots[slots[r]].query as usize * 2 * words);
        }
        // SAFETY: the words of a block and the numbers of queries.
        let codes = unsafe { products::<S, C, R>(s, cell.words.as_ptr(), words, q) };
        for r in 0..R {
            let Slot { query, sure, .. } = self.slots[slots[r]];
            let Along { unit: step, zero, slack, needle, .. } = self.limits.along[query as usize];
            let (step, start, most) = (s.splat(step), s.splat(zero), s.splat(zero + slack));
            let center = self.scores[slots[r] * BLOCK + leaf];
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
            let at = slots[r] * BLOCK + leaf;
            let sure = sure >> leaf & 1 != 0;
            // Nothing of a cell where no key stands out; else also what comes with its own value.
            let mut picked = match !(below as u16) {
                _ if sure => u16::MAX,
                0 => 0,
                found => found | !(light as u16),
            };
            if picked == 0 {
                self.weights[at] = s.reduce_add(mass);
                continue;
            }
            self.weights[at] = if sure { 0.0 } else { s.reduce_add(rest) };
            let slot = &mut self.slots[slots[r]];
            slot.opened |= 1 << leaf;
            slot.picked[leaf] = picked;
            let ids = &self.below.ids[(lane * BLOCK + leaf) * BLOCK..][..BLOCK];
            while let Some(key) = next(&mut picked) {
                let ids = &ids[key..][..1];
                Prefetch { from: self.keys, ids }.run(s);
                Prefetch { from: self.values, ids }.run(s);
            }
        }
    }

    /// Exact weights and values of the keys that a slot's cells are opened for, sixteen at a time.
    #[inline(always)]
    fn open<S: Simd>(&mut self, s: S, slot: usize, count: &mut Count) {
        let Slot { lane, mut opened, picked, .. } = self.slots[slot];
        count.cells += opened.count_ones() as usize;
        let (mut ids, mut leaves, mut n) = ([0; BLOCK], [0; BLOCK], 0);
        while let Some(leaf) = next(&mut opened) {
            let mut picked = picked[leaf];
            count.keys += picked.count_ones() as usize;
            while let Some(key) = next(&mut picked) {
                ids[n] = self.below.ids[(lane as usize * BLOCK + leaf) * BLOCK + key];
                leaves[n] = leaf as u8;
                n += 1;
                if n == BLOCK {
                    self.open_keys(s, slot, &ids, &leaves);
                    n = 0;
                }
            }
        }
        if n > 0 {
            let last = ids[n - 1];
            ids[n..].fill(last);
            self.open_keys(s, slot, &ids, &leaves[..n]);
        }
    }

    /// Keys of so many leaves.
    #[inline(always)]
    fn open_keys<S: Simd>(&mut self, s: S, slot: usize, ids: &[u32; BLOCK], leaves: &[u8]) {
        let query = self.slots[slot].query;
        let row = query as usize;
        let q = &self.q.data[row * self.q.stride..][..self.q.cols];
        let Sums { exact, light, lost, out, stride, .. } = &mut self.sums;
        let exact = &mut exact[row * BLOCK..][..BLOCK];
        let mut p = [0.0; BLOCK];
        few::dots_at(s, self.keys, &ids[..leaves.len().next_multiple_of(few::STEP)], q, &mut p);
        let (reference, fine) = (self.limits.reference[row], self.limits.fine[row]);
        // Beyond the last key lie zeros and keys that come twice: what they weigh is left out.
        let first = p[0];
        p[leaves.len()..].fill(first);
        let mut none = [0.0; BLOCK];
        // SAFETY: BLOCK numbers both.
        let (_, bits, fits) = unsafe { weigh(s, p.as_mut_ptr(), none.as_mut_ptr(), reference, fine, self.softcap) };
        lost[row] |= !fits;
        exact.iter_mut().zip(&p[..leaves.len()]).for_each(|(sum, p)| *sum += p);
        let own = bits as u16 & (u16::MAX >> (BLOCK - leaves.len()));
        for (j, &leaf) in leaves.iter().enumerate().filter(|(j, _)| own >> j & 1 == 0) {
            self.weights[slot * BLOCK + leaf as usize] += p[j];
            light[row] += p[j];
        }
        if own != 0 {
            AddKeys { p: &p, rows: &[[query, own]], values: self.values, ids, out, stride: *stride }.run(s);
        }
    }

    /// The estimates of a slot's cells into the sums, by the cells' mean values or, where they weigh little, by the node's.
    #[inline(always)]
    fn settle<S: Simd>(&mut self, s: S, slot: usize) {
        let Slot { query, lane, .. } = self.slots[slot];
        let (row, lane) = (query as usize, lane as usize);
        let (p, rows) = (&self.weights[slot * BLOCK..][..BLOCK], &[query]);
        let spread = &self.below.spread[lane * BLOCK..][..BLOCK];
        if let Some(out) = &mut self.sums.doubt {
            let value_spread = &self.below.value_spread[lane * BLOCK..][..BLOCK];
            let (sigma, count) = (self.limits.sigma, BLOCK as f32);
            Doubt { p, rows, spread, value_spread, sigma, count, out }.run(s);
        }
        let mut sum = s.splat(0.0);
        for part in p.chunks_exact(S::LANES) {
            // SAFETY: a whole vector.
            sum = s.add(sum, unsafe { s.load(part.as_ptr()) });
        }
        let sum = s.reduce_add(sum);
        let small = sum < self.limits.coarse[row];
        self.nodes[row * BLOCK + lane] = if small { sum } else { 0.0 };
        if !small {
            self.sums.estimated[row * BLOCK + lane] += sum;
            let (values, lean) = (self.below.values_of(lane), Some((spread, &mut *self.sums.lean)));
            AddValues { p, values, rows, out: self.sums.out, total: None, lean }.run(s);
        }
    }

    /// Thresholds of rows that have found more than they were estimated to weigh. A row that comes twice is raised once.
    #[inline(always)]
    fn raise<S: Simd>(&mut self, s: S, slots: core::ops::Range<usize>) {
        for Slot { query, .. } in self.slots[slots].iter().filter(|slot| slot.opened != 0) {
            let lists: &[&[u16]] = &[&[*query]];
            let raise = Raise { lists, exact: self.sums.exact, limits: &mut self.limits, factor: RAISE[1] };
            raise.run(s);
        }
    }
}
