//! Keys of one KV head gathered into cells of similar ones (paper, section 4.2: the levels of multi-level DCI, here two).
//!
//! Every [`SEGMENT`] consecutive keys are split into cells of [`CELL`]. Of a cell the tree keeps mean key, mean value and how far
//! keys lie from their mean; the keys themselves stay where they are. A complete segment never changes, and its cells depend on
//! nothing but its keys and values.

use super::order::{Order, halve};
use super::policy::{CELL, SEGMENT, SEGMENT_CELLS};
use super::split::{Described, Splitter};
use crate::error::reserved;
use crate::mem::{Buf, Maker, Rows};
use crate::simd::Isa;
use crate::simd::gather::BLOCK;

/// Cells over the complete segments of one KV head.
///
/// Allocation class: creation only. A segment costs O(SEGMENT x dim x (dim + log SEGMENT_CELLS)).
pub struct Tree {
    dim_k: usize,
    dim_v: usize,
    /// Elements of a mean value: whole vectors.
    stride: usize,
    capacity: usize,
    segments: usize,
    /// Segments with those that wait for [`publish`](Tree::publish).
    built: usize,
    /// Rows of the keys by cell.
    ids: Buf<u32>,
    /// Where the key of a row stands among `ids`.
    places: Buf<u32>,
    /// Smallest and largest row of every segment.
    ranges: Buf<[u32; 2]>,
    /// Whether a segment has cells.
    has: Buf<bool>,
    /// Keys of each cell that stay out of it.
    apart: Buf<u16>,
    keys: Buf<f32>,
    values: Buf<f32>,
    square: Buf<f32>,
    /// Moments of all segments that are built, and of those that are published.
    moment: [Buf<f32>; 2],
    /// The same of keys and values.
    cross: [Buf<f32>; 2],
    splitter: Splitter,
}

impl Tree {
    /// An empty tree over up to `keys` keys, rows of a matrix of as many, as part of a larger object.
    pub(crate) fn made(m: &mut Maker<'_>, dim_k: usize, dim_v: usize, keys: usize) -> Self {
        let (segments, cells, stride) = (keys / SEGMENT, keys / SEGMENT * SEGMENT_CELLS, dim_v.next_multiple_of(BLOCK));
        let (moment, cross) = (dim_k * dim_k.next_multiple_of(BLOCK), dim_k.saturating_mul(stride));
        Tree {
            dim_k,
            dim_v,
            stride,
            capacity: segments,
            segments: 0,
            built: 0,
            ids: m.filled(cells.saturating_mul(CELL), 0),
            places: m.filled(keys, u32::MAX),
            ranges: m.filled(segments, [0; 2]),
            has: m.filled(segments, false),
            apart: m.filled(cells, 0),
            keys: m.filled(cells.saturating_mul(dim_k), 0.0),
            values: m.filled(cells.saturating_mul(stride), 0.0),
            square: m.filled(cells, 0.0),
            moment: [m.filled(moment, 0.0), m.filled(moment, 0.0)],
            cross: [m.filled(cross, 0.0), m.filled(cross, 0.0)],
            splitter: Splitter::made(m, dim_k, dim_v),
        }
    }

    /// Appends a segment of the rows `ids` ([`SEGMENT`] of them, ascending), unseen until [`publish`](Tree::publish).
    ///
    /// # Panics
    /// If the shapes do not fit or there is no room.
    pub fn push(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>, ids: &[u32]) {
        self.push_within(isa, keys, values, ids, [ids[0], ids[SEGMENT - 1]]);
    }

    /// The same for rows that are used where all from the first to the last of `range` are seen.
    fn push_within(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>, ids: &[u32], range: [u32; 2]) {
        assert!(ids.len() == SEGMENT && self.built < self.capacity);
        assert!(keys.cols() == self.dim_k && values.cols() == self.dim_v);
        let at = self.built;
        self.ranges[at] = range;
        let to = &mut self.ids[at * SEGMENT..][..SEGMENT];
        let mut apart = self.splitter.outlying(isa, keys, values, ids);
        self.has[at] = apart.is_some();
        match &mut apart {
            Some(apart) => self.splitter.split(isa, keys, ids, apart, to),
            None => to.copy_from_slice(ids),
        }
        // Rows are ascending: where one stood before says whether it stays apart.
        let stays =
            |id: u32| ids.binary_search(&id).is_ok_and(|i| apart.is_some_and(|a| a[i / 64] >> (i % 64) & 1 != 0));
        for (apart, ids) in self.apart[at * SEGMENT_CELLS..].iter_mut().zip(to.chunks_exact(CELL)) {
            *apart = ids.iter().enumerate().fold(0, |bits, (j, &id)| bits | u16::from(stays(id)) << j);
        }
        self.describe(isa, keys, values, at);
        self.built += 1;
    }

    /// Whole segments of the rows from those on that are built, as many as there are keys for.
    ///
    /// Segments, by their first key, of which nobody sees some key get no cells: what nobody sees changes nothing.
    pub fn fill(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>, seen: impl Fn(usize) -> bool) {
        while (self.built + 1) * SEGMENT <= keys.rows() && self.built < self.capacity {
            let first = (self.built * SEGMENT) as u32;
            let ids: [u32; SEGMENT] = core::array::from_fn(|i| first + i as u32);
            if !seen(first as usize) {
                let at = self.built;
                self.ids[at * SEGMENT..][..SEGMENT].copy_from_slice(&ids);
                (self.ranges[at], self.has[at]) = ([ids[0], ids[SEGMENT - 1]], false);
                self.built += 1;
                continue;
            }
            self.push(isa, keys, values, &ids);
        }
    }

    /// Whole segments of the keys that are not padding, brought into an order in which neighbours are alike: for rows that all see the
    /// same. Halves all keys, and halves of halves, down to segments, each time across the direction in which a sample of them is
    /// widest. O(keys x dim x log(keys / SEGMENT)) beside what segments cost.
    pub(super) fn fill_in_order(
        &mut self,
        isa: Isa,
        keys: &Rows<'_>,
        values: &Rows<'_>,
        keep: Option<&[u8]>,
        order: &mut Order,
    ) {
        order.ids.clear();
        for row in (0..keys.rows()).filter(|&row| keep.is_none_or(|keep| keep[row] != 0)) {
            reserved(order.ids.push(row as u32));
        }
        let whole = order.ids.len() / SEGMENT * SEGMENT;
        let Some(last) = whole.checked_sub(1) else { return };
        let range = [order.ids[0], order.ids[last]];
        let Order { ids, pairs } = order;
        halve(isa, &mut self.splitter, keys, &mut ids[..whole], &mut pairs[..whole]);
        for ids in ids[..whole].chunks_exact(SEGMENT) {
            self.push_within(isa, keys, values, ids, range);
        }
    }

    fn describe(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>, at: usize) {
        let (d, stride) = (self.dim_k, self.stride);
        let ids = &self.ids[at * SEGMENT..][..SEGMENT];
        for (place, &id) in (at * SEGMENT..).zip(ids) {
            self.places[id as usize] = place as u32;
        }
        if !self.has[at] {
            return;
        }
        let out = Described {
            keys: &mut self.keys[at * SEGMENT_CELLS * d..][..SEGMENT_CELLS * d],
            values: &mut self.values[at * SEGMENT_CELLS * stride..][..SEGMENT_CELLS * stride],
            stride,
            apart: &self.apart[at * SEGMENT_CELLS..][..SEGMENT_CELLS],
            square: &mut self.square[at * SEGMENT_CELLS..][..SEGMENT_CELLS],
            moment: &mut self.moment[0],
            cross: &mut self.cross[0],
        };
        self.splitter.describe(isa, keys, values, ids, out);
    }

    /// Shows the segments that wait.
    pub fn publish(&mut self) {
        if self.segments != self.built {
            for [built, shown] in [&mut self.moment, &mut self.cross] {
                shown.copy_from_slice(built);
            }
            self.segments = self.built;
        }
    }

    /// Forgets the segments that wait, as if they had never been there.
    pub fn roll_back(&mut self) {
        if self.segments != self.built {
            for [built, shown] in [&mut self.moment, &mut self.cross] {
                built.copy_from_slice(shown);
            }
            self.forget(self.segments);
        }
    }

    fn forget(&mut self, segments: usize) {
        for &id in &self.ids[segments * SEGMENT..self.built * SEGMENT] {
            self.places[id as usize] = u32::MAX;
        }
        self.built = segments;
    }

    /// Keeps the first `segments` segments, as if the others had never been there, and publishes them. O(keys kept).
    pub fn truncate(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>, segments: usize) {
        if segments >= self.built {
            return;
        }
        self.forget(segments);
        self.moment[0].fill(0.0);
        self.cross[0].fill(0.0);
        for at in 0..segments {
            self.describe(isa, keys, values, at);
        }
        self.segments = usize::MAX;
        self.publish();
    }

    /// Forgets all segments.
    pub fn clear(&mut self) {
        self.forget(0);
        self.segments = 0;
        self.moment.iter_mut().chain(&mut self.cross).for_each(|m| m.fill(0.0));
    }

    /// Published segments.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Segments with those that wait.
    pub fn built(&self) -> usize {
        self.built
    }

    /// Smallest and largest row of a segment.
    pub(super) fn range(&self, segment: usize) -> [usize; 2] {
        self.ranges[segment].map(|x| x as usize)
    }

    /// Whether a segment has cells, and how many of its keys stay out of them.
    pub(super) fn apart_of(&self, segment: usize) -> Option<usize> {
        let count = |bits: &u16| bits.count_ones() as usize;
        self.has[segment].then(|| self.apart(segment).iter().map(count).sum())
    }

    /// Keys of a segment's cells that stay out of them.
    pub(super) fn apart(&self, segment: usize) -> &[u16] {
        &self.apart[segment * SEGMENT_CELLS..][..SEGMENT_CELLS]
    }

    /// Rows of the keys of a segment, cell by cell.
    pub(super) fn ids(&self, segment: usize) -> &[u32] {
        &self.ids[segment * SEGMENT..][..SEGMENT]
    }

    /// Where the key of a row stands, [`CELL`] places a cell, if it is in a segment.
    pub(super) fn place(&self, row: usize) -> Option<usize> {
        self.places.get(row).filter(|&&p| p != u32::MAX).map(|&p| p as usize)
    }

    /// Mean keys of a segment's cells.
    pub(super) fn keys(&self, segment: usize) -> &[f32] {
        &self.keys[segment * SEGMENT_CELLS * self.dim_k..][..SEGMENT_CELLS * self.dim_k]
    }

    /// Mean values of a segment's cells.
    pub(super) fn values(&self, segment: usize) -> &[f32] {
        &self.values[segment * SEGMENT_CELLS * self.stride..][..SEGMENT_CELLS * self.stride]
    }

    /// Mean square distances of the keys of a segment's cells from their means.
    pub(super) fn square(&self, segment: usize) -> &[f32] {
        &self.square[segment * SEGMENT_CELLS..][..SEGMENT_CELLS]
    }

    /// Sum over keys of `(key - mean) (key - mean)^T`, `[dim_k][dim_k]`.
    pub(super) fn moment(&self, out: &mut [f32]) {
        let (d, step) = (self.dim_k, self.dim_k.next_multiple_of(BLOCK));
        let from = &self.moment[1];
        for i in 0..d {
            for j in 0..d {
                // Below the blocks of the diagonal nothing is summed.
                let (a, b) = if i / BLOCK <= j / BLOCK { (i, j) } else { (j, i) };
                out[i * d + j] = from[a * step + b];
            }
        }
    }

    /// Sum over keys of `(key - mean) (value - mean)^T`, `[dim_k][stride]`.
    pub(super) fn cross(&self) -> &[f32] {
        &self.cross[1]
    }
}
