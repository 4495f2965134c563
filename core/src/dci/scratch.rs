//! What a query writes: one per thread, so that the index itself stays shared and unchanged.

use super::Index;
use super::chunk::{Chunk, ChunkShape};
use super::codes::{Found, Probing, Shape};
use super::level::room;
use super::params::{Engine, IndexOptions, Neighbor, QueryOptions};
use super::tunables::{MEASURED_NEIGHBOURS, MEASURED_QUERIES};
use crate::error::{Error, Result, Status};
use crate::features::{CELLS, Part};
use crate::list::Cursor;
use crate::mem::{Buf, Maker, Memory, Plan};
use crate::queue::{Frontier, TopK};
use crate::seen::Seen;

/// One list entry in the order of the walk: `cursor` is (rank of the cell, simple index, side), see
/// [`Index::candidates`](super::Index::candidates).
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    pub delta: f32,
    pub cursor: u32,
    pub slot: u32,
}

/// Query state of one thread, sized for one index at its capacity when this was made. Queries allocate nothing.
///
/// Thread class: exclusive to one call at a time. Memory: O(capacity x num_simple).
///
/// ```
/// # #[cfg(feature = "std")] {
/// use iceformer_core::dci::{Index, IndexOptions, Scratch};
/// use iceformer_core::mem::{Memory, Plan};
///
/// let index = Index::new(&IndexOptions { capacity: 100, ..IndexOptions::new(8) })?;
/// let mut plan = Plan::new();
/// Memory::plan(&mut plan);
/// Scratch::plan(&index, &mut plan);
/// // One for each thread that asks.
/// assert!(Scratch::new_in(&index, &Memory::system(plan.finish()?.bytes)?).is_ok());
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
pub struct Scratch {
    pub(super) slots: usize,
    pub(super) lists: usize,
    /// The query, converted to f32.
    pub(crate) query: Buf<f32>,
    /// Its projections.
    pub(super) proj: Buf<f32>,
    /// Cells searched at this level, best first.
    pub(super) view: Buf<u32>,
    pub(super) frontier: Frontier,
    pub(super) cursors: Buf<Cursor>,
    /// Lists that have visited a slot, within one composite.
    pub(super) hits: Seen,
    /// Slots already among the candidates of this level.
    pub(super) picked: Seen,
    pub(super) entries: Buf<Stop>,
    /// Candidates and their scores.
    pub(super) found: Buf<u32>,
    pub(crate) scores: Buf<f32>,
    pub(crate) top: TopK,
    /// Keys a row attends to, of all ranges it sees.
    pub(crate) chosen: Buf<Neighbor>,
    pub(super) many: Part<Many, { CELLS as usize }>,
}

/// What batches need beside.
pub(super) struct Many {
    pub batch: Chunk,
    pub probing: Probing,
    pub sample: Sample,
}

/// Some queries of a batch, what they find, and what finding it took.
pub(super) struct Sample {
    pub truth: Buf<Neighbor>,
    pub found: Buf<Found>,
    pub codes: Buf<u32>,
}

impl Scratch {
    /// Adds the blocks of a scratch for `index` to a plan (without the `Memory` block and the struct itself).
    pub fn plan(index: &Index, plan: &mut Plan) {
        plan.count(|m| Scratch::made(m, index.options(), index.capacity()));
    }

    /// For an index of resolved options with room for `slots` keys.
    pub(crate) fn made(m: &mut Maker<'_>, o: &IndexOptions, slots: usize) -> Scratch {
        // Cells of parents that can be in view at once.
        let cells = if o.depth() > 1 { room(slots, o.promotion, 1).max(1) } else { 1 };
        let (cursors, entries) = match o.engine.lists() {
            true => (cells.saturating_mul(2 * o.num_simple), slots.saturating_mul(o.num_simple)),
            false => (0, 0),
        };
        let codes = Shape::new(o.dim, Index::celled(o, slots));
        let batch = ChunkShape::new(o.dim, slots, codes.product());
        let sample = if codes.rank > 0 { MEASURED_QUERIES * MEASURED_NEIGHBOURS } else { 0 };
        let lists = Index::lists_of(o);
        Scratch {
            slots,
            lists,
            query: m.filled(o.dim, 0.0),
            proj: m.filled(lists, 0.0),
            view: m.room(cells),
            frontier: Frontier::made(m, cursors),
            cursors: m.room(cursors),
            hits: Seen::made(m, slots),
            picked: Seen::made(m, slots),
            entries: m.room(entries),
            found: m.room(slots),
            scores: m.room(slots),
            top: TopK::made(m, slots),
            chosen: m.room(slots),
            many: Part::of(|| Many {
                batch: batch.make(m),
                probing: Probing::new(m, &codes, batch.chunk),
                sample: Sample {
                    truth: m.filled(sample, Neighbor::default()),
                    found: m.filled(sample, Found::default()),
                    codes: m.filled(sample, 0),
                },
            }),
        }
    }

    /// A scratch for `index`.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub fn new_in(index: &Index, memory: &Memory) -> Result<Scratch> {
        Maker::make(memory, |m| Scratch::made(m, index.options(), index.capacity()))
    }

    /// Whether this scratch fits the index as it is now.
    ///
    /// # Errors
    /// `Shape` for another kind of index, `Capacity` when the index has outgrown it.
    pub(crate) fn check(&self, index: &Index) -> Result<()> {
        if self.lists != index.lists() || self.query.len() != index.dim() {
            return Err(Error::new(Status::Shape, "scratch", "was made for an index of another shape"));
        }
        let roomy = self.view.capacity() >= index.parents_len() && (!CELLS || self.many.probing.fits(&index.codes));
        if self.slots < index.ids.len() || !roomy {
            let e = Error::new(Status::Capacity, "scratch", "was made before the index grew");
            return Err(e.need(index.ids.len(), self.slots));
        }
        Ok(())
    }
}

/// Budgets of one composite index at one level, in entries and points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// The paper's k0: points to retrieve.
    pub retrieve: usize,
    /// The paper's k1: entries to visit.
    pub visit: usize,
    /// Points in view, before id limits.
    pub points: usize,
    /// Entries of those points: a visit budget of this many is none.
    pub entries: usize,
    pub engine: Engine,
}

impl Budget {
    /// Budgets for `points` points in view, of which `keep` will be kept.
    pub fn new(o: &QueryOptions<'_>, points: usize, simple: usize, keep: usize) -> Budget {
        let share = |fraction: f32, of: usize| libm::ceil(f64::from(fraction) * of as f64) as usize;
        let entries = points.saturating_mul(simple);
        Budget {
            retrieve: o.retrieve.max(share(o.retrieve_fraction, points)).max(keep).min(points),
            visit: o.visit.max(share(o.visit_fraction, entries)).min(entries),
            points,
            entries,
            engine: o.engine,
        }
    }
}
