//! Keys gathered into cells: the levels of multi-level DCI as a tree of contiguous blocks (paper, section 4.2).
//!
//! Every [`SEGMENT`] consecutive keys are split by similarity into [`LEAVES`] cells of exactly 16 keys, and every
//! 16 cells form a node; nodes are searched 16 at a time. Of cells and nodes the tree keeps mean key, mean
//! value, and how far keys lie from their mean; the keys themselves stay where they are. A complete segment never
//! changes, and its cells depend on nothing but its keys and values.

mod alike;
mod beyond;
mod build;
mod coords;
mod means;
mod rest;
mod shown;

use crate::error::Result;
use crate::mem::{Buf, Dtype, Memory, Plan, Rows};
use crate::simd::Isa;
pub(crate) use crate::simd::block::{BLOCK, Beyond, Matrix};
use crate::simd::block::{Means, NodeKeys, Roots, Stored, Tree, Values};
pub(crate) use alike::Alike;
use beyond::Bounds;
use build::Bench;
pub(crate) use coords::Coords;
use means::{MeanKeys, MeanValues};
use rest::Rest;
use shown::Shown;

/// Keys of a segment.
pub const SEGMENT: usize = 256;
/// Cells of a segment.
pub const LEAVES: usize = SEGMENT / BLOCK;
/// Nodes of a segment.
pub const NODES: usize = LEAVES / BLOCK;
/// Segments whose nodes share a block.
pub const ROOT: usize = BLOCK / NODES;

/// Segments that moments are sums over: the first so many, and one in so many beyond. Where segments are runs of keys, a head's
/// moments are of half of them nearly as they are of all.
const COUNTED: (usize, usize) = (4, 2);

/// Elements of a matrix of moments; more than memory holds where that leaves the address space.
fn moment_len(dim_k: usize) -> usize {
    dim_k.saturating_mul(dim_k.next_multiple_of(BLOCK))
}

/// The same with the moments of values and keys: cells and nodes.
fn moments_len(dim_k: usize, stride: usize) -> [usize; 2] {
    let len = moment_len(dim_k);
    [len.saturating_add(dim_k.saturating_mul(stride)), len]
}

/// Vectors with their values and what is known of the keys below.
struct Level {
    values: MeanValues,
    /// Root mean square distance of the keys from their mean, `[block][BLOCK]`.
    spread: Buf<f32>,
    /// Largest distance, `[block][BLOCK]`.
    reach: Buf<f32>,
    /// Mean square distance of the values from their mean, `[block][BLOCK]`.
    value_spread: Buf<f32>,
    /// Sum over keys of `(key - mean) (key - mean)^T`, `[dim_k][dim_k rounded up to a block]`, but for blocks below those of the
    /// diagonal, which nobody reads, and, after it, of cells, of
    /// `(key - mean) (value - mean)^T`, `[value_stride / BLOCK][dim_k][BLOCK]`.
    moment: Buf<f32>,
}

impl Level {
    fn plan(plan: &mut Plan, dtype: Dtype, blocks: usize, stride: usize, moment: usize) {
        MeanValues::plan(plan, dtype, blocks, stride);
        for _ in 0..3 {
            Buf::<f32>::plan(plan, blocks * BLOCK);
        }
        Buf::<f32>::plan(plan, moment);
    }

    fn new(memory: &Memory, dtype: Dtype, blocks: usize, stride: usize, moment: usize) -> Result<Self> {
        Ok(Level {
            values: MeanValues::new(memory, dtype, blocks, stride)?,
            spread: Buf::filled(memory, blocks * BLOCK, 0.0)?,
            reach: Buf::filled(memory, blocks * BLOCK, 0.0)?,
            value_spread: Buf::filled(memory, blocks * BLOCK, 0.0)?,
            moment: Buf::filled(memory, moment, 0.0)?,
        })
    }

    /// Of vector `at`, counted over all blocks.
    fn set(&mut self, at: usize, spread: f32, reach: f32) {
        self.spread[at] = spread;
        self.reach[at] = reach;
    }
}

/// A block of either level, for the kernels.
pub(crate) struct Block<'a> {
    /// `[BLOCK][value_stride]`.
    pub(crate) values: Values<'a>,
    pub(crate) spread: &'a [f32],
    pub(crate) reach: &'a [f32],
    pub(crate) value_spread: &'a [f32],
}

/// Cells over the complete segments of one KV head.
///
/// Allocation class: creation only. A segment costs O(SEGMENT x dim x log LEAVES).
pub struct Cells {
    dim_k: usize,
    dim_v: usize,
    /// Elements of a value, padded to whole vectors.
    stride: usize,
    capacity: usize,
    segments: usize,
    /// Segments with those that wait for [`publish`](Cells::publish).
    built: usize,
    /// Where segments may wait: moments of the levels hold all.
    shown: Option<Shown>,
    /// Traces of the moments that are shown.
    traces: [f32; 2],
    /// Keys by cell: rows of the matrices the segments were built from, `[segment][SEGMENT]`.
    ids: Buf<u32>,
    /// Smallest and largest row of every segment.
    range: Buf<[u32; 2]>,
    /// The first so many segments are the first rows, run by run.
    runs: usize,
    /// Whether moments are sums over all segments.
    differ: bool,
    means: MeanKeys,
    leaves: Level,
    nodes: Level,
    coords: Coords,
    /// For certificates.
    bounds: Option<Bounds>,
    bench: Bench,
    rest: Rest,
}

impl Cells {
    fn stride(dim_v: usize) -> usize {
        dim_v.next_multiple_of(16)
    }

    /// Adds the blocks of cells over up to `keys` keys to a plan.
    pub fn plan(plan: &mut Plan, dtype: Dtype, dim_k: usize, dim_v: usize, keys: usize) {
        let (segments, stride) = (keys / SEGMENT, Cells::stride(dim_v));
        Buf::<u32>::plan(plan, segments * SEGMENT);
        Buf::<[u32; 2]>::plan(plan, segments);
        let [leaves, nodes] = moments_len(dim_k, stride);
        MeanKeys::plan(plan, dtype, dim_k, segments.div_ceil(ROOT));
        Level::plan(plan, dtype, segments * NODES, stride, leaves);
        Level::plan(plan, dtype, segments.div_ceil(ROOT), stride, nodes);
        Coords::plan(plan, dim_k, segments * LEAVES);
        Bench::plan(plan, dim_k, dim_v);
    }

    /// Empty cells for up to `keys` keys that are stored, like the values, as `dtype`.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub fn new_in(memory: &Memory, dtype: Dtype, dim_k: usize, dim_v: usize, keys: usize) -> Result<Self> {
        let (segments, stride) = (keys / SEGMENT, Cells::stride(dim_v));
        let moments = moments_len(dim_k, stride);
        Ok(Cells {
            dim_k,
            dim_v,
            stride,
            capacity: segments,
            segments: 0,
            built: 0,
            shown: None,
            traces: [0.0; 2],
            ids: Buf::filled(memory, segments * SEGMENT, 0)?,
            range: Buf::filled(memory, segments, [0; 2])?,
            runs: 0,
            differ: false,
            means: MeanKeys::new(memory, dtype, dim_k, segments.div_ceil(ROOT))?,
            leaves: Level::new(memory, dtype, segments * NODES, stride, moments[0])?,
            nodes: Level::new(memory, dtype, segments.div_ceil(ROOT), stride, moments[1])?,
            coords: Coords::new(memory, dim_k, segments * LEAVES)?,
            bounds: None,
            bench: Bench::new(memory, dim_k, dim_v)?,
            rest: Rest::default(),
        })
    }

    /// Adds what [`certified`](Cells::certified) takes to a plan.
    pub fn plan_certified(plan: &mut Plan, dim_k: usize, dim_v: usize, keys: usize) {
        MeanKeys::plan_cells(plan, dim_k, keys / SEGMENT * LEAVES);
        Bounds::plan(plan, dim_k, dim_v, keys / SEGMENT);
    }

    /// From now on everything is kept that bounds of the estimates need: a cell's mean key and 20 bytes.
    ///
    /// Means must be in f32: that the residuals of a cell sum to zero bounds its mass from below (Jensen) and takes the mean
    /// weight out of what its values do, and rounded means are off by more than rounding in f32 is allowed for.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    ///
    /// # Panics
    /// If means are rounded.
    pub fn certified(mut self, memory: &Memory) -> Result<Self> {
        assert!(matches!(self.leaves.values, MeanValues::Whole(_)), "bounds take means in f32");
        self.means.keep_cells(memory, self.capacity * LEAVES)?;
        self.bounds = Some(Bounds::new(memory, self.dim_k, self.dim_v, self.capacity)?);
        Ok(self)
    }

    /// Adds what [`staged`](Cells::staged) takes to a plan.
    pub fn plan_staged(plan: &mut Plan, dtype: Dtype, dim_k: usize, dim_v: usize) {
        Shown::plan(plan, dtype, dim_k, Cells::stride(dim_v));
    }

    /// From now on segments are seen only after [`publish`](Cells::publish), so that they can be built ahead. Moments are read in
    /// 16 bits unless keys and values are f32.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub fn staged(mut self, memory: &Memory, dtype: Dtype) -> Result<Self> {
        self.shown = Some(Shown::new(memory, dtype, self.dim_k, self.stride)?);
        Ok(self)
    }

    /// Shows the segments that wait.
    pub fn publish(&mut self) {
        if self.segments == self.built {
            return;
        }
        let moments = [&*self.leaves.moment, &*self.nodes.moment];
        if let Some(shown) = &mut self.shown {
            shown.set(moments);
        }
        self.segments = self.built;
        // Rows of a line each, too far apart to be read for every query.
        let step = self.dim_k.next_multiple_of(BLOCK) + 1;
        self.traces = moments.map(|m| m.iter().step_by(step).take(self.dim_k).sum());
    }

    /// Forgets the segments that wait, as if they had never been there.
    pub fn roll_back(&mut self) {
        if let Some(shown) = self.shown.as_ref().filter(|_| self.segments != self.built) {
            let [leaves, nodes] = shown.whole();
            self.leaves.moment.copy_from_slice(leaves);
            self.nodes.moment.copy_from_slice(nodes);
        }
        self.forget(self.segments);
    }

    /// Forgets all segments but the first.
    fn forget(&mut self, segments: usize) {
        self.built = segments;
        self.runs = self.runs.min(segments);
    }

    /// Segments with those that wait for [`publish`](Cells::publish).
    pub fn built(&self) -> usize {
        self.built
    }

    /// Whether a few rows should ask.
    pub(crate) fn rest(&self) -> &Rest {
        &self.rest
    }

    /// After so many tokens were appended and [published](Cells::publish).
    pub(crate) fn grow(&mut self, tokens: usize) {
        self.rest.grow(tokens);
    }

    /// Complete segments.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Appends a segment of the rows `ids` (ascending, [`SEGMENT`] of them) of `keys [_, dim_k]` and `values [_, dim_v]`.
    ///
    /// # Panics
    /// If the shapes do not fit or there is no room.
    pub fn push(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>, ids: &[u32]) {
        self.push_within(isa, keys, values, ids, [ids[0], ids[SEGMENT - 1]]);
    }

    /// The same for rows that are to be used where all from the first to the last of `range` are seen: it takes part in no
    /// other use of them.
    fn push_within(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>, ids: &[u32], range: [u32; 2]) {
        assert!(ids.len() == SEGMENT && self.built < self.capacity);
        assert!(keys.cols() == self.dim_k && values.cols() == self.dim_v);
        let at = self.built;
        self.range[at] = range;
        let first = (at * SEGMENT) as u32;
        self.runs += usize::from(self.runs == at && range == [first, first + (SEGMENT as u32 - 1)]);
        self.bench.split(isa, keys, ids, &mut self.ids[at * SEGMENT..][..SEGMENT]);
        let counts = self.counts(at);
        self.bench.describe_keys(isa, at, counts, &mut self.means, &mut self.leaves, &mut self.nodes);
        self.built += 1;
        self.bench.coords(isa, at, &mut self.coords);
        if let (Some(bounds), Some(means)) = (&mut self.bounds, self.means.of_cells()) {
            let (rows, order) = self.bench.loaded(self.dim_k);
            bounds.keys(isa, at, rows, order, means, &self.coords);
        }
        self.bench.describe_values(isa, values, at, counts, self.stride, ids, &mut self.leaves, &mut self.nodes);
        if let Some(bounds) = &mut self.bounds {
            let (rows, order) = self.bench.loaded(self.dim_v);
            bounds.values(isa, at, rows, order, &self.leaves, self.stride);
        }
        if self.shown.is_none() {
            self.publish();
        }
    }

    /// Forgets all segments.
    pub fn clear(&mut self) {
        self.forget(0);
        self.leaves.moment.fill(0.0);
        self.nodes.moment.fill(0.0);
        self.show_all();
    }

    /// Of empty cells: whether the segments to come are of keys that lie together because they are alike, and differ from each other:
    /// no few of them stand for all.
    pub(crate) fn differ(&mut self, differ: bool) {
        self.differ = differ;
    }

    /// Whether moments are sums over a segment, too.
    fn counts(&self, segment: usize) -> bool {
        self.differ || segment < COUNTED.0 || segment.is_multiple_of(COUNTED.1)
    }

    /// Publishes, whatever was there before.
    fn show_all(&mut self) {
        self.segments = usize::MAX;
        self.publish();
    }

    /// Keeps the first `segments` segments of cells that were built from rows `0, 1, 2..` of `keys` and `values`, as if the
    /// others had never been there, and publishes them. O(keys kept).
    pub fn truncate(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>, segments: usize) {
        if segments >= self.built {
            return;
        }
        self.forget(segments);
        self.leaves.moment.fill(0.0);
        self.nodes.moment.fill(0.0);
        for at in 0..segments {
            let ids = &self.ids[at * SEGMENT..][..SEGMENT];
            // Means are summed in the order of the cells, as they were when the segment came, so that the bits are the same.
            self.bench.reload(isa, keys, ids);
            let counts = self.counts(at);
            self.bench.describe_keys(isa, at, counts, &mut self.means, &mut self.leaves, &mut self.nodes);
            self.bench.describe_values(isa, values, at, counts, self.stride, ids, &mut self.leaves, &mut self.nodes);
        }
        self.show_all();
    }

    /// First and last row of a segment; of keys that were brought into another order, of all of them.
    pub(crate) fn range(&self, segment: usize) -> [usize; 2] {
        self.range[segment].map(|x| x as usize)
    }

    /// Rows of the keys of a cell.
    pub(crate) fn keys_of(&self, node: usize, lane: usize) -> &[u32] {
        &self.ids[(node * BLOCK + lane) * BLOCK..][..BLOCK]
    }

    /// Rows of the keys of a node, cell by cell.
    pub(crate) fn keys_of_node(&self, node: usize) -> &[u32] {
        &self.ids[node * BLOCK * BLOCK..][..BLOCK * BLOCK]
    }

    /// Rows of the keys of all complete segments, `[segment][SEGMENT]`.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids[..self.segments * SEGMENT]
    }

    /// Whether segment `i` is the rows from `i` times [`SEGMENT`] on, for all of them.
    pub(crate) fn in_order(&self) -> bool {
        self.runs >= self.segments
    }

    /// First and last row of every complete segment, as [`range`](Cells::range).
    pub(crate) fn ranges(&self) -> &[[u32; 2]] {
        &self.range[..self.segments]
    }

    /// Coordinates of the cells' keys.
    pub(crate) fn coords(&self) -> &Coords {
        &self.coords
    }

    /// What bounds of a cell's estimate need, where it is kept.
    pub(crate) fn beyond(&self, cell: usize) -> Option<Beyond> {
        self.bounds.as_ref().map(|b| b.of(cell))
    }

    fn block<'a>(&self, level: &'a Level, at: usize) -> Block<'a> {
        let data = level.values.blocks(at, 1, self.stride);
        Block {
            values: Values { data, stride: self.stride, cols: self.dim_v },
            spread: &level.spread[at * BLOCK..][..BLOCK],
            reach: &level.reach[at * BLOCK..][..BLOCK],
            value_spread: &level.value_spread[at * BLOCK..][..BLOCK],
        }
    }

    /// The cells of a node.
    pub(crate) fn node(&self, node: usize) -> Block<'_> {
        self.block(&self.leaves, node)
    }

    /// The nodes of [`ROOT`] segments.
    pub(crate) fn root(&self, at: usize) -> Block<'_> {
        self.block(&self.nodes, at)
    }

    /// The first so many blocks of a level.
    fn means_of<'a>(&'a self, level: &'a Level, blocks: usize) -> Means<'a> {
        let (data, n) = (level.values.blocks(0, blocks, self.stride), blocks * BLOCK);
        Means {
            values: Values { data, stride: self.stride, cols: self.dim_v },
            spread: &level.spread[..n],
            reach: &level.reach[..n],
            value_spread: &level.value_spread[..n],
        }
    }

    /// All nodes, for a few rows that see these of each root block.
    pub(crate) fn roots<'a>(&'a self, present: &'a [u16]) -> Roots<'a> {
        let n = self.segments.div_ceil(ROOT);
        Roots { keys: self.means.of_roots(0, n), means: self.means_of(&self.nodes, n), present: &present[..n] }
    }

    /// What lies below all nodes, for a few rows.
    pub(crate) fn tree(&self) -> Tree<'_> {
        let nodes = self.segments * NODES;
        Tree {
            cells: self.means_of(&self.leaves, nodes),
            of_cells: self.coords.of_cells(nodes),
            of_keys: self.coords.of_keys(nodes),
            ids: self.ids(),
        }
    }

    /// Mean keys of the nodes of root block `at`.
    pub(crate) fn root_keys(&self, at: usize) -> NodeKeys<'_> {
        self.means.of_roots(at, 1)
    }

    /// What they are set apart from where they are in bytes, `[dim_k]`.
    pub(crate) fn center(&self) -> Option<&[f32]> {
        self.means.center()
    }

    /// Mean keys of the cells of a node, `[dim_k][BLOCK]`, of cells that are certified.
    pub(crate) fn cell_keys(&self, node: usize) -> Option<&[f32]> {
        self.means.of_cells().map(|keys| &keys[node * self.dim_k * BLOCK..][..self.dim_k * BLOCK])
    }

    fn all_moments(&self) -> [Stored<'_>; 2] {
        match &self.shown {
            Some(shown) => shown.stored(),
            None => [&self.leaves, &self.nodes].map(|level| Stored::F32(&level.moment)),
        }
    }

    /// Sums of outer products of residuals within cells and within nodes, `[dim_k][dim_k rounded up to a block]`: what is above
    /// the diagonal and in its blocks.
    pub(crate) fn moments(&self) -> [Stored<'_>; 2] {
        self.all_moments().map(|all| all.part(0, moment_len(self.dim_k)))
    }

    /// Sums of their diagonals.
    pub(crate) fn traces(&self) -> [f32; 2] {
        self.traces
    }

    /// The same of keys with values, within cells, by [`BLOCK`] elements of a value: `[dim_k][BLOCK]` each.
    pub(crate) fn crossed(&self) -> impl Iterator<Item = Stored<'_>> {
        let ([all, _], begin, len) = (self.all_moments(), moment_len(self.dim_k), self.dim_k * BLOCK);
        (0..self.stride / BLOCK).map(move |b| all.part(begin + b * len, len))
    }

    /// Keys that the moments of each level are sums over.
    pub(crate) fn keys(&self) -> usize {
        let ((first, each), n) = (COUNTED, self.segments);
        let counted = if self.differ { n } else { n.min(first) + n.max(first).div_ceil(each) - first.div_ceil(each) };
        counted * SEGMENT
    }
}
