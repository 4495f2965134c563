//! Keys in an order in which neighbours are alike: cell by cell, cells by their means. What attention forms its tree from.

use super::{BLOCK, Codes, NONE, RANK, Shape};
use crate::dci::tunables::ORDER_ROUNDS;
use crate::error::reserved;
use crate::math::image_of;
use crate::mem::{Buf, Maker};
use crate::simd::Isa;

/// Room for ordering the cells of an index.
pub(crate) struct Arranging {
    /// A height, and the cell that has it in the low half.
    cells: Buf<u64>,
}

impl Arranging {
    /// For an index with room for `capacity` keys of `dim` elements in cells.
    pub(in crate::dci) fn made(m: &mut Maker<'_>, dim: usize, capacity: usize) -> Arranging {
        Arranging { cells: m.room(Shape::new(dim, capacity).cells) }
    }

    /// Cells there is room for.
    pub(in crate::dci) fn capacity(&self) -> usize {
        self.cells.capacity()
    }
}

impl Codes {
    /// Appends the slots of all keys to `out`: like keys side by side, the tail, of which no cell knows, at the end.
    /// O(keys + cells x rank x log cells).
    pub fn list_slots(&self, isa: Isa, room: &mut Arranging, out: &mut Buf<u32>) {
        let cells = &mut room.cells;
        cells.clear();
        (0..self.count).for_each(|c| reserved(cells.push(c as u64)));
        self.bisect(isa, cells);
        for &c in cells.iter() {
            let c = c as u32 as usize;
            self.append_slots(self.start[c] as usize, self.start[c + 1] as usize, out);
        }
        let tail = self.tail_block();
        self.append_slots(tail, tail + self.tail.div_ceil(BLOCK), out);
    }

    /// Of the keys in blocks `from..to`.
    fn append_slots(&self, from: usize, to: usize, out: &mut Buf<u32>) {
        for &slot in self.order[from * BLOCK..to * BLOCK].iter().filter(|&&slot| slot != NONE) {
            reserved(out.push(slot));
        }
    }

    /// Halves across the direction in which the cells are widest, and halves of halves.
    fn bisect(&self, isa: Isa, cells: &mut [u64]) {
        let n = cells.len();
        if n < 3 {
            return;
        }
        let rank = self.rank;
        let mean_of = |c: u64| &self.means[c as u32 as usize * rank..][..rank];
        let mut mean = [0.0; RANK];
        let mean = &mut mean[..rank];
        cells.iter().for_each(|&c| isa.axpy(1.0 / n as f32, mean_of(c), mean));
        // The cell farthest out gives the first direction; of equals, the first.
        let (mut far, mut most) = (cells[0], 0.0);
        for &c in cells.iter() {
            let dist = isa.sq_dist(mean_of(c), mean);
            if dist > most {
                (far, most) = (c, dist);
            }
        }
        let mut direction = [0.0; RANK];
        let direction = &mut direction[..rank];
        direction.copy_from_slice(mean_of(far));
        isa.axpy(-1.0, mean, direction);
        for _ in 0..ORDER_ROUNDS {
            let cut = isa.dot(direction, mean);
            let (mut sum, mut upper) = ([0.0; RANK], 0);
            for &c in cells.iter().filter(|&&c| isa.dot(direction, mean_of(c)) > cut) {
                isa.axpy(1.0, mean_of(c), &mut sum[..rank]);
                upper += 1;
            }
            if upper == 0 || upper == n {
                break;
            }
            // Mean of the upper side less mean of all points where mean less mean of the lower side points.
            direction.copy_from_slice(&sum[..rank]);
            isa.scale(1.0 / upper as f32, direction);
            isa.axpy(-1.0, mean, direction);
        }
        for c in cells.iter_mut() {
            *c = u64::from(image_of(isa.dot(direction, mean_of(*c)))) << 32 | u64::from(*c as u32);
        }
        cells.sort_unstable();
        let (low, high) = cells.split_at_mut(n / 2);
        self.bisect(isa, low);
        self.bisect(isa, high);
    }
}
