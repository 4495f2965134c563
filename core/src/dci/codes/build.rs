//! Folding: all keys gathered into cells and coded anew. Nothing here can fail: `reserve` made the room.

use super::basis::product;
use super::{BLOCK, Codes, Keys, NONE, PANEL, RANK, cells_for};
use crate::dci::tunables::{GATHER_ROUNDS, GATHERED_BY};
use crate::math::hash;
use crate::simd::codes::{Nearest, Pack, round_key};

impl Codes {
    /// Gathers every key of the index. O(n dim rank).
    pub(super) fn fold(&mut self, keys: Keys<'_>) {
        let live = self.list_live(keys);
        let arranged = self.asked.undecided(live) && self.decide(keys, live);
        if !arranged {
            let live = self.list_live(keys);
            self.arrange(keys, live);
        }
        self.active = true;
    }

    /// Notes the slots with a key; returns how many there are.
    pub(super) fn list_live(&mut self, keys: Keys<'_>) -> usize {
        let mut live = 0;
        for slot in (0..keys.ids.len()).filter(|&s| Codes::holds(&keys, s)) {
            self.work.live[live] = slot as u32;
            live += 1;
        }
        live
    }

    /// Gathers the first `live` keys of the list of them, along the directions that were decided for; returns what finding
    /// neighbours costs then, as a share of scoring every key, over the recalls that are usual.
    pub(super) fn arrange(&mut self, keys: Keys<'_>, live: usize) -> f32 {
        let w = &mut self.work;
        let sample = self.shape.sample.min(live);
        for i in 0..sample {
            w.sample[i] = w.live[(hash(keys.seed ^ 0x7361_6d70, i as u64) % live as u64) as usize];
        }
        self.fit_basis(keys, sample);
        let cells = self.find_centers(keys, sample, cells_for(live));
        self.assign(keys, live, cells);
        let count = self.lay_out(keys, live, cells);
        self.encode(keys, count);
        (self.folded, self.tail, self.dead) = (live, 0, 0);
        self.measure_itself(keys, live)
    }

    /// k-means over the sample's leading coordinates; returns the number of centers.
    fn find_centers(&mut self, keys: Keys<'_>, sample: usize, cells: usize) -> usize {
        let (dim, near, isa) = (keys.dim, self.shape.near, keys.isa);
        let w = &mut self.work;
        let cells = cells.min(sample);
        for (p, at) in w.sample[..sample].chunks(PANEL).enumerate() {
            isa.run(Pack { rows: keys.keys, stride: dim, cols: dim, at, out: &mut w.panel });
            product(isa, &w.panel, &self.basis[..near * dim], dim, &mut w.product);
            let out = &mut w.near[p * near * PANEL..][..near * PANEL];
            for (j, out) in out.chunks_exact_mut(PANEL).enumerate() {
                out.iter_mut().zip(&w.product[j * PANEL..]).for_each(|(o, x)| *o = x - self.near_offset[j]);
            }
        }
        let coordinate = |all: &[f32], i: usize, j: usize| all[(i / PANEL * near + j) * PANEL + i % PANEL];
        for c in 0..cells {
            for j in 0..near {
                w.centers[c * near + j] = coordinate(&w.near, c * sample / cells, j);
            }
        }
        for _ in 0..GATHER_ROUNDS {
            halves(&w.centers[..cells * near], near, &mut w.half);
            // Sums of what is nearest lie where the means of whole keys will.
            w.sums[..cells * near].fill(0.0);
            w.counts[..cells].fill(0);
            for p in 0..sample.div_ceil(PANEL) {
                let panel = &w.near[p * near * PANEL..][..near * PANEL];
                product(isa, panel, &w.centers[..cells * near], near, &mut w.product);
                let mut which = [0.0; PANEL];
                isa.run(Nearest { products: &w.product, half: &w.half[..cells], out: &mut which });
                for (lane, &c) in which.iter().enumerate().take(sample - p * PANEL) {
                    let c = c as usize;
                    w.counts[c] += 1;
                    let sum = &mut w.sums[c * near..][..near];
                    sum.iter_mut().enumerate().for_each(|(j, s)| *s += panel[j * PANEL + lane]);
                }
            }
            for c in 0..cells {
                if w.counts[c] > 0 {
                    let factor = 1.0 / w.counts[c] as f32;
                    for j in 0..near {
                        w.centers[c * near + j] = w.sums[c * near + j] * factor;
                    }
                }
            }
        }
        halves(&w.centers[..cells * near], near, &mut w.half);
        cells
    }

    /// The nearest center of every key, and sums of the keys by center.
    fn assign(&mut self, keys: Keys<'_>, live: usize, cells: usize) {
        let (dim, near, isa) = (keys.dim, self.shape.near, keys.isa);
        let w = &mut self.work;
        w.sums[..cells * dim].fill(0.0);
        w.counts[..cells].fill(0);
        let mut coordinates = [0.0; GATHERED_BY * PANEL];
        for (p, at) in w.live[..live].chunks(PANEL).enumerate() {
            isa.run(Pack { rows: keys.keys, stride: dim, cols: dim, at, out: &mut w.panel });
            product(isa, &w.panel, &self.basis[..near * dim], dim, &mut w.product);
            for j in 0..near {
                let out = coordinates[j * PANEL..][..PANEL].iter_mut();
                out.zip(&w.product[j * PANEL..]).for_each(|(o, x)| *o = x - self.near_offset[j]);
            }
            product(isa, &coordinates, &w.centers[..cells * near], near, &mut w.product);
            let mut which = [0.0; PANEL];
            isa.run(Nearest { products: &w.product, half: &w.half[..cells], out: &mut which });
            for (lane, &slot) in at.iter().enumerate() {
                let c = which[lane] as usize;
                w.cell[p * PANEL + lane] = c as u32;
                w.counts[c] += 1;
                isa.axpy(1.0, keys.key(slot), &mut w.sums[c * dim..][..dim]);
            }
        }
    }

    /// Positions of all keys, cell by cell in whole blocks, and the cells' means; empty cells are left out. Returns the
    /// number of cells.
    fn lay_out(&mut self, keys: Keys<'_>, live: usize, cells: usize) -> usize {
        let (dim, rank, isa) = (keys.dim, self.rank, keys.isa);
        let w = &mut self.work;
        let (mut count, mut block) = (0, 0usize);
        self.start.fill(NONE);
        for c in 0..cells {
            let n = w.counts[c] as usize;
            if n == 0 {
                continue;
            }
            isa.scale(1.0 / n as f32, &mut w.sums[c * dim..][..dim]);
            let mean = &mut self.means[count * rank..][..rank];
            isa.dots(&self.turned[..rank * dim], dim, &w.sums[c * dim..][..dim], mean);
            mean.iter_mut().zip(&self.offset[..rank]).for_each(|(m, o)| *m -= o);
            self.half[count] = if self.asked.fitted() {
                // Coordinates are stretched: lengths are to be had from the keys alone.
                0.5 * isa.sq_dist(&w.sums[c * dim..][..dim], &self.mean[..dim])
            } else {
                0.5 * isa.norm2(mean)
            };
            self.start[count] = block as u32;
            // From here on: the next position of the cell.
            w.counts[c] = (block * BLOCK) as u32;
            block += n.div_ceil(BLOCK);
            count += 1;
        }
        self.start[count] = block as u32;
        self.count = count;
        self.order.fill(NONE);
        self.place.fill(NONE);
        for (&slot, &c) in w.live[..live].iter().zip(&w.cell[..live]) {
            let at = &mut w.counts[c as usize];
            self.order[*at as usize] = slot;
            self.place[slot as usize] = *at;
            *at += 1;
        }
        count
    }

    /// Codes of all keys in the order of their positions.
    fn encode(&mut self, keys: Keys<'_>, count: usize) {
        let (dim, rank, isa) = (keys.dim, self.rank, keys.isa);
        let end = self.start[count] as usize * BLOCK;
        let mut cell = 0;
        self.reach[..count].fill(0.0);
        for first in (0..end).step_by(PANEL) {
            let n = PANEL.min(end - first);
            let mut at = [0; PANEL];
            // A position without a key is coded as some other and never offered.
            for (to, &slot) in at.iter_mut().zip(&self.order[first..][..n]) {
                *to = if slot == NONE { self.work.live[0] } else { slot };
            }
            let w = &mut self.work;
            isa.run(Pack { rows: keys.keys, stride: dim, cols: dim, at: &at[..n], out: &mut w.panel });
            product(isa, &w.panel, &self.turned[..(rank + 1) * dim], dim, &mut w.product);
            for lane in 0..n {
                let position = first + lane;
                let (block, slot) = (position / BLOCK, self.order[position]);
                while self.start[cell + 1] as usize <= block {
                    cell += 1;
                }
                let mut x = [0.0; RANK];
                let mean = &self.means[cell * rank..][..rank];
                for j in 0..rank {
                    x[j] = (self.work.product[j * PANEL + lane] - self.offset[j]) - mean[j];
                }
                let codes = &mut self.codes[block * BLOCK * rank..][..BLOCK * rank];
                self.unit[position] = round_key(&x[..rank], codes, position % BLOCK);
                if slot != NONE {
                    self.reach[cell] += isa.norm2(&x[..rank]);
                }
                let along_mean = self.work.product[rank * PANEL + lane];
                self.bias[position] =
                    if slot == NONE { f32::NEG_INFINITY } else { self.bias_of(keys, slot, along_mean) };
            }
        }
        for c in 0..count {
            let (from, to) = (self.start[c] as usize * BLOCK, self.start[c + 1] as usize * BLOCK);
            let n = self.order[from..to].iter().filter(|&&slot| slot != NONE).count();
            self.reach[c] = libm::sqrtf(self.reach[c] / (n * rank) as f32);
        }
    }
}

/// Half the squared norms of rows.
fn halves(rows: &[f32], cols: usize, out: &mut [f32]) {
    for (row, out) in rows.chunks_exact(cols).zip(out) {
        *out = 0.5 * row.iter().map(|x| x * x).sum::<f32>();
    }
}
