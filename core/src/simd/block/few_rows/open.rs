//! What is opened: exact weights and values of keys, and the estimates of the cells beside them.

use super::super::weigh::weigh;
use super::super::{AddKeys, AddValues, BLOCK, Doubt, RAISE, Raise};
use super::{Count, FewRows, Means, Slot, Sums, next};
use crate::simd::vector::Simd;
use crate::simd::{few, part};
use core::ops::Range;

impl FewRows<'_, '_> {
    /// Exact weights and values of the keys that a slot's cells are opened for, sixteen at a time.
    #[inline(always)]
    pub(super) fn open<S: Simd>(&mut self, s: S, slot: usize, count: &mut Count) {
        let Slot { node, query, mut opened, picked, .. } = self.room.slots[slot];
        count.cells += opened.count_ones() as usize;
        let (mut ids, mut leaves, mut n) = ([0; BLOCK], [0; BLOCK], 0);
        while let Some(leaf) = next(&mut opened) {
            let mut picked = picked[leaf];
            count.keys += picked.count_ones() as usize;
            while let Some(key) = next(&mut picked) {
                ids[n] = self.tree.ids[(node as usize * BLOCK + leaf) * BLOCK + key];
                if let Some(seen) = &mut self.seen {
                    seen(query, &ids[n..][..1]);
                }
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
        let query = self.room.slots[slot].query;
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
            self.room.below[slot * BLOCK + leaf as usize] += p[j];
            light[row] += p[j];
        }
        if own != 0 {
            part(s, AddKeys { p: &p, rows: &[[query, own]], values: self.values, ids, out, stride: *stride });
        }
    }

    /// The estimates of the cells of slots into the sums, by the cells' mean values or, where they weigh little, by the node's.
    #[inline(always)]
    pub(super) fn settle<S: Simd>(&mut self, s: S, slots: Range<usize>) {
        let mut slot = slots.start;
        while slot < slots.end {
            // Two rows of a node read its values once; on one lane that would only be more code.
            let node = self.room.slots[slot].node;
            let n = 1 + usize::from(S::LANES > 1 && slot + 1 < slots.end && self.room.slots[slot + 1].node == node);
            let mut rows = [0; 2];
            for (row, slot) in rows.iter_mut().zip(&self.room.slots[slot..][..n]) {
                *row = slot.query;
            }
            self.settle_node(s, node as usize, slot, &rows[..n]);
            slot += n;
        }
    }

    /// Slots of these rows, from `slot` on, below a node.
    #[inline(always)]
    fn settle_node<S: Simd>(&mut self, s: S, node: usize, slot: usize, rows: &[u16]) {
        let (root, lane) = (node / BLOCK, node % BLOCK);
        let p = &self.room.below[slot * BLOCK..][..rows.len() * BLOCK];
        let Means { values, spread, value_spread, .. } = self.tree.cells.block(node);
        if let Some(out) = &mut self.sums.doubt {
            let (sigma, count) = (self.limits.sigma, BLOCK as f32);
            part(s, Doubt { p, rows, spread, value_spread, sigma, count, out });
        }
        let (mut large, mut last) = (0, 0);
        for (i, (p, &query)) in p.chunks_exact(BLOCK).zip(rows).enumerate() {
            let (row, mut sum) = (query as usize, s.splat(0.0));
            for part in p.chunks_exact(S::LANES) {
                // SAFETY: a whole vector.
                sum = s.add(sum, unsafe { s.load(part.as_ptr()) });
            }
            let sum = s.reduce_add(sum);
            let small = sum < self.limits.coarse[row];
            self.room.weights[(root * self.queries + row) * BLOCK + lane] = if small { sum } else { 0.0 };
            if !small {
                self.sums.estimated[row * BLOCK + lane] += sum;
                (large, last) = (large + 1, i);
            }
        }
        if large > 0 {
            let of = if large == rows.len() { 0..large } else { last..last + 1 };
            let (p, rows) = (&p[of.start * BLOCK..of.end * BLOCK], &rows[of]);
            let lean = Some((spread, &mut *self.sums.lean));
            part(s, AddValues { p, values, rows, out: self.sums.out, total: None, lean });
        }
    }

    /// Thresholds of rows that have found more than they were estimated to weigh. A row that comes twice is raised once.
    #[inline(always)]
    pub(super) fn raise<S: Simd>(&mut self, s: S, slots: Range<usize>) {
        for Slot { query, .. } in self.room.slots[slots].iter().filter(|slot| slot.opened != 0) {
            let lists: &[&[u16]] = &[&[*query]];
            let raise = Raise { lists, exact: self.sums.exact, limits: &mut self.limits, factor: RAISE[1] };
            part(s, raise);
        }
    }
}
