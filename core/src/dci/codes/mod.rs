//! Codes: keys gathered with their like and coded in a byte a coordinate, for batches of queries.
//!
//! Coordinates are those along the leading directions of the keys' second moment, turned at random so that none is longer
//! than the others; a key is coded relative to the mean of its cell. What the coordinates leave out of a distance is
//! counted through the keys' norms. A query looks into the cells nearest to it, keeps the best codes, and scores those keys
//! exactly. New keys go to a tail that every query looks into, until a fold gathers everything anew.
//!
//! `build` folds; `basis` directions; `fitted` directions that take sample queries into account; `search` queries; `curve`
//! the `effort` that a recall takes; `order` keys beside their like; here storage.

mod basis;
mod build;
mod curve;
mod effort;
mod fitted;
mod order;
mod search;
#[cfg(all(test, feature = "std"))]
mod tests;

pub(super) use super::tunables::LEAST_ASKED;
use super::tunables::{CELL_KEYS, CELLS_FROM, GATHERED_BY, RANK, SAMPLED_KEYS, TAIL_KEYS};
pub(super) use curve::Curve;
use curve::MEASURED;
pub(super) use effort::{Effort, Found};
pub(super) use fitted::{Asked, Fit};
pub(crate) use order::Arranging;
pub(super) use search::{Probing, Ranked};

use super::lists::Entry;
use super::slots::NO_ID;
use crate::error::Result;
use crate::features::CELLS;
use crate::mem::{Buf, Maker, Memory};
use crate::simd::Isa;
use crate::simd::codes::{BLOCK, SIEVE, round_key};
use crate::simd::tile::{KEYS, PANEL};

/// A slot or position that there is none of.
const NONE: u32 = u32::MAX;

/// The keys of the index, as cells see them.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub keys: &'a [f32],
    pub norm2: &'a [f32],
    pub ids: &'a [u64],
    pub dim: usize,
    pub l2: bool,
    pub isa: Isa,
    pub seed: u64,
}

impl Keys<'_> {
    fn key(&self, slot: u32) -> &[f32] {
        &self.keys[slot as usize * self.dim..][..self.dim]
    }
}

/// Cells for so many keys.
fn cells_for(keys: usize) -> usize {
    let size = (libm::sqrt(keys as f64) * CELL_KEYS.0).max(CELL_KEYS.1);
    (keys as f64 / size) as usize + 1
}

/// Keys that the tail takes behind `keys` folded ones.
fn tail_for(keys: usize) -> usize {
    keys / TAIL_KEYS.0 + TAIL_KEYS.1
}

/// Sizes for an index with room for `capacity` keys of `dim` elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    dim: usize,
    pub rank: usize,
    near: usize,
    pub cells: usize,
    sample: usize,
    positions: usize,
    capacity: usize,
}

impl Shape {
    pub fn new(dim: usize, capacity: usize) -> Shape {
        if !CELLS || capacity < CELLS_FROM {
            return Shape { dim, rank: 0, near: 0, cells: 0, sample: 0, positions: 0, capacity: 0 };
        }
        let rank = dim.min(RANK).next_multiple_of(4);
        let cells = cells_for(capacity);
        Shape {
            dim,
            rank,
            near: rank.min(GATHERED_BY),
            cells,
            sample: capacity.min(SAMPLED_KEYS.max(8 * cells)),
            // Every cell, and the tail, may end in a block that is not full.
            positions: (capacity.div_ceil(BLOCK) + cells + tail_for(capacity).div_ceil(BLOCK) + 2) * BLOCK,
            capacity,
        }
    }

    /// Rows of the largest product with a panel.
    pub fn product(&self) -> usize {
        (self.rank + 1).max(self.cells).max(SIEVE)
    }

    fn fitted(&self) -> usize {
        self.sample.min(SAMPLED_KEYS)
    }
}

/// A struct of arrays without a block, and of what else is in it.
macro_rules! empty {
    ($memory:expr, $name:ident { [$($array:ident),+] $($field:ident: $value:expr),* $(,)? }) => {
        $name { $($array: Buf::new($memory),)+ $($field: $value),* }
    };
}
use empty;

/// Work space of folds.
struct Work {
    /// One panel: of keys, or of columns of the sample.
    panel: Buf<f32>,
    /// Products with a panel.
    product: Buf<f32>,
    /// Coordinates of the sample along the directions, `[rank][fitted]`.
    along: Buf<f32>,
    /// Coordinates of the sample that keys are gathered by, `[panels][near][PANEL]`.
    near: Buf<f32>,
    /// `[cells][near]`, half their squared norms, and the sums of what is near them.
    centers: Buf<f32>,
    half: Buf<f32>,
    sums: Buf<f32>,
    /// Scores by slot.
    dense: Buf<f32>,
    /// Neighbours that a fold measures by, how they are found twice over, and one number of that.
    best: Buf<Entry>,
    found: Buf<Found>,
    codes: Buf<u32>,
    counts: Buf<u32>,
    /// Slots of the sample.
    sample: Buf<u32>,
    /// Slots with a key, and their cells.
    live: Buf<u32>,
    cell: Buf<u32>,
}

/// The structure.
pub(super) struct Codes {
    shape: Shape,
    /// Whether there is a structure: enough keys have come.
    active: bool,
    /// Directions of keys before turning, `[rank][dim]`; the first `near` gather keys.
    basis: Buf<f32>,
    /// Turned directions, `[rank + 1][dim]`; the last row in use is the keys' mean.
    turned: Buf<f32>,
    /// Directions of queries before turning, while a fold fits them.
    room: Buf<f32>,
    /// Coordinates of the keys' mean along both.
    offset: Buf<f32>,
    near_offset: Buf<f32>,
    mean: Buf<f32>,
    mean2: f32,
    turn: Buf<f32>,
    /// Directions in use, a multiple of four.
    rank: usize,
    /// Means of the cells, `[cells][rank]`, and half their squared norms.
    means: Buf<f32>,
    half: Buf<f32>,
    /// How far the keys of a cell reach from its mean along a direction: root mean square.
    reach: Buf<f32>,
    /// Cells in use.
    count: usize,
    /// First block of every cell, and the end.
    start: Buf<u32>,
    /// Codes `[blocks][rank / 4][BLOCK][4]`.
    codes: Buf<u8>,
    unit: Buf<f32>,
    bias: Buf<f32>,
    /// Slot by position and position by slot.
    order: Buf<u32>,
    place: Buf<u32>,
    /// Keys folded last time, in the tail since, and gone since.
    folded: usize,
    tail: usize,
    dead: usize,
    /// What recalls take, as measured on the keys themselves, or on sample queries.
    curve: Curve,
    asked: Asked,
    work: Work,
}

impl Codes {
    /// Without room for keys.
    fn new(memory: &Memory, dim: usize) -> Codes {
        empty!(memory, Codes {
            [basis, turned, room, offset, near_offset, mean, turn, means, half, reach, start, codes, unit, bias, order, place]
            shape: Shape::new(dim, 0),
            active: false,
            mean2: 0.0,
            rank: 0,
            count: 0,
            folded: 0,
            tail: 0,
            dead: 0,
            curve: Curve::default(),
            asked: Asked::new(memory),
            work: empty!(memory, Work {
                [panel, product, along, near, centers, half, sums, dense, best, found, codes, counts, sample, live, cell]
            }),
        })
    }

    /// With room for `capacity` keys, and for sample queries if directions will be fitted to them.
    pub fn made(m: &mut Maker<'_>, dim: usize, capacity: usize, fitting: bool) -> Codes {
        let mut cells = Codes::new(m.memory(), dim);
        cells.grow(m, Shape::new(dim, capacity), fitting);
        cells
    }

    /// All arrays, with room for a shape. Lengths grow with the room: what is beyond the numbers in use means nothing.
    fn grow(&mut self, m: &mut Maker<'_>, s: Shape, fitting: bool) {
        if fitting {
            self.asked.grow(m, &s);
        }
        let (some, padded) = (usize::from(s.rank > 0), s.sample.next_multiple_of(PANEL));
        m.grown(&mut self.basis, s.rank * s.dim, 0.0);
        m.grown(&mut self.turned, (s.rank + some) * s.dim, 0.0);
        m.grown(&mut self.room, s.rank * s.dim, 0.0);
        m.grown(&mut self.offset, s.rank, 0.0);
        m.grown(&mut self.near_offset, s.near, 0.0);
        m.grown(&mut self.mean, s.dim * some, 0.0);
        m.grown(&mut self.turn, s.rank * s.rank, 0.0);
        m.grown(&mut self.means, s.cells * s.rank, 0.0);
        m.grown(&mut self.half, s.cells, 0.0);
        m.grown(&mut self.reach, s.cells, 0.0);
        m.grown(&mut self.unit, s.positions, 0.0);
        m.grown(&mut self.bias, s.positions, 0.0);
        m.grown(&mut self.codes, s.positions * s.rank, 0);
        m.grown(&mut self.start, s.cells + some, NONE);
        m.grown(&mut self.order, s.positions, NONE);
        m.grown(&mut self.place, s.capacity, NONE);
        let (w, measured) = (&mut self.work, some * MEASURED);
        m.grown(&mut w.panel, some * s.dim.max(s.fitted()) * PANEL, 0.0);
        m.grown(&mut w.product, some * (s.product() + KEYS) * PANEL, 0.0);
        m.grown(&mut w.along, s.rank * s.fitted(), 0.0);
        m.grown(&mut w.near, s.near * padded, 0.0);
        m.grown(&mut w.centers, s.cells * s.near, 0.0);
        m.grown(&mut w.half, s.cells, 0.0);
        m.grown(&mut w.sums, s.cells * s.dim.max(s.near), 0.0);
        m.grown(&mut w.dense, s.capacity, 0.0);
        m.grown(&mut w.counts, s.cells, NONE);
        m.grown(&mut w.sample, s.sample, NONE);
        m.grown(&mut w.live, s.capacity, NONE);
        m.grown(&mut w.cell, s.capacity, NONE);
        m.grown(&mut w.codes, measured, NONE);
        m.grown(&mut w.best, measured, Entry::default());
        m.grown(&mut w.found, 2 * measured, Found::default());
        self.shape = s;
    }

    /// Sample queries.
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// Makes room for sample queries.
    pub fn reserve_asked(&mut self) -> Result<()> {
        let memory = self.basis.memory().clone();
        Maker::make(&memory, |m| self.asked.grow(m, &self.shape))
    }

    /// The room made for sample queries, for new ones: what directions were fitted to is forgotten.
    pub fn asked_mut(&mut self) -> &mut Asked {
        &mut self.asked
    }

    /// Makes room for `capacity` keys; on error the structure is as it was.
    pub fn reserve(&mut self, dim: usize, capacity: usize) -> Result<()> {
        let (memory, before) = (self.basis.memory().clone(), self.shape);
        let fitting = self.asked.has_room();
        let grown = Maker::make(&memory, |m| self.grow(m, Shape::new(dim, capacity), fitting));
        if grown.is_err() {
            self.shape = before;
        }
        grown
    }

    /// Whether queries can use this.
    pub fn active(&self) -> bool {
        CELLS && self.active
    }

    /// Number of cells, the tail not counted.
    pub fn count(&self) -> usize {
        self.count
    }

    /// First block of the tail.
    fn tail_block(&self) -> usize {
        self.start[self.count] as usize
    }

    /// Coordinates of a code, in use.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Takes the keys of `slots` that were just stored, `live` keys in all.
    pub fn insert(&mut self, keys: Keys<'_>, live: usize, slots: impl ExactSizeIterator<Item = u32>) {
        if !CELLS || self.shape.rank == 0 || live < CELLS_FROM {
            return;
        }
        if !self.active || self.tail + slots.len() > tail_for(self.folded) {
            self.fold(keys);
        } else {
            slots.for_each(|slot| self.append(keys, slot));
        }
    }

    /// Forgets the key of a slot.
    pub fn remove(&mut self, slot: u32) {
        if !self.active() {
            return;
        }
        let at = core::mem::replace(&mut self.place[slot as usize], NONE);
        if at != NONE {
            self.bias[at as usize] = f32::NEG_INFINITY;
            self.order[at as usize] = NONE;
            self.dead += 1;
        }
    }

    /// After removals: gathers what is left once most has gone.
    pub fn settle(&mut self, keys: Keys<'_>, live: usize) {
        if self.active() && live < CELLS_FROM {
            self.clear();
        } else if self.active() && self.dead > live + 256 {
            self.fold(keys);
        }
    }

    /// Forgets everything but the room and the sample queries.
    pub fn clear(&mut self) {
        self.asked.reconsider();
        self.rest();
    }

    /// Is there no longer, until the next fold.
    pub fn rest(&mut self) {
        self.active = false;
        self.count = 0;
        (self.folded, self.tail, self.dead) = (0, 0, 0);
    }

    /// Codes one key into the tail.
    fn append(&mut self, keys: Keys<'_>, slot: u32) {
        let rank = self.rank;
        let at = self.tail_block() * BLOCK + self.tail;
        let (block, lane) = (at / BLOCK, at % BLOCK);
        if lane == 0 {
            self.order[at..][..BLOCK].fill(NONE);
            self.unit[at..][..BLOCK].fill(0.0);
            self.bias[at..][..BLOCK].fill(f32::NEG_INFINITY);
        }
        let mut x = [0.0; RANK + 1];
        let x = &mut x[..=rank];
        keys.isa.dots(&self.turned[..(rank + 1) * keys.dim], keys.dim, keys.key(slot), x);
        x.iter_mut().zip(&self.offset[..rank]).for_each(|(x, o)| *x -= o);
        self.unit[at] = round_key(&x[..rank], &mut self.codes[block * BLOCK * rank..][..BLOCK * rank], lane);
        self.bias[at] = self.bias_of(keys, slot, x[rank]);
        self.order[at] = slot;
        self.place[slot as usize] = at as u32;
        self.tail += 1;
    }

    /// What is added to a key's product: half its squared distance from the mean.
    fn bias_of(&self, keys: Keys<'_>, slot: u32, along_mean: f32) -> f32 {
        if keys.l2 { (along_mean - 0.5 * self.mean2) - 0.5 * keys.norm2[slot as usize] } else { 0.0 }
    }

    /// Whether a slot holds a key.
    fn holds(keys: &Keys<'_>, slot: usize) -> bool {
        keys.ids[slot] != NO_ID
    }
}
