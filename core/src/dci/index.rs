//! The index: storage, sizes, and the calls that are not queries.

use super::codes::{Codes, Keys, LEAST_ASKED};
use super::level::{Level, MAX_LEVELS, room};
use super::params::{Directions, IndexOptions, MAX_KEYS, Metric};
use super::slots::NO_ID;
use crate::error::{Error, Result, Status, reserved, same};
use crate::features::{CELLS, Part};
use crate::idmap::IdMap;
use crate::list::{Pool, SkipList};
use crate::math::hash;
use crate::mem::{Buf, Held, Maker, Memory, MemoryReport, Plan, Rows};
use crate::project::{Lift, Projector};
use crate::simd::Isa;

/// Prioritized DCI over keys of one dimension (paper, Algorithms 2 and 3), with one or more levels, incremental.
///
/// Answers depend on the options, the seed and the set of keys and ids, never on the order of calls that led there.
///
/// Thread class: `&self` calls may run at once, each with its own [`Scratch`](super::Scratch). Allocation class: queries
/// never; inserts only when they exceed [`capacity`](Index::capacity).
///
/// ```
/// # #[cfg(feature = "std")] {
/// use iceformer_core::dci::{Index, IndexOptions, Neighbor, QueryOptions, Scratch};
/// use iceformer_core::mem::{Memory, Rows};
///
/// let mut index = Index::new(&IndexOptions::new(2))?;
/// index.insert(Rows::new(&[1.0, 0.0, 0.0, 1.0, 2.0, 1.0], 2)?, None)?; // ids 0, 1, 2
/// index.remove(&[1])?;
/// let mut scratch = Scratch::new_in(&index, &Memory::system(0)?)?;
/// let mut found = [Neighbor::default(); 2];
/// index.query(&mut scratch, Rows::new(&[1.0, 1.0], 2)?, &QueryOptions::new(2), &mut found, None)?;
/// assert_eq!(found, [Neighbor { id: 2, score: 3.0 }, Neighbor { id: 0, score: 1.0 }]);
///
/// let mut bytes = vec![0; index.save_len()];
/// index.save(&mut bytes)?;
/// assert!(Index::load(&bytes, &Memory::system(0)?)?.contains(2));
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
pub struct Index {
    pub(super) options: IndexOptions,
    pub(super) isa: Isa,
    pub(super) projector: Projector,
    pub(super) lift: Lift,
    /// Id by slot, [`NO_ID`] where free.
    pub(super) ids: Buf<u64>,
    /// `slots x dim`; maybe in the bytes that the index was loaded from.
    pub(super) keys: Held<f32>,
    /// Squared norm by slot.
    pub(super) norm2: Buf<f32>,
    /// Projections, `slots x lists`.
    pub(super) proj: Buf<f32>,
    /// Highest level by slot.
    pub(super) height: Buf<u8>,
    pub(super) free: Buf<u32>,
    pub(super) map: IdMap,
    pub(super) next_id: u64,
    pub(super) pool: Pool,
    pub(super) levels: [Level; MAX_LEVELS],
    /// Work space of structural changes: (sort key or distance bits, slot).
    pub(super) moves: Buf<(u64, u32)>,
    /// Work space: distances to the parents of a level.
    pub(super) dists: Buf<f32>,
    /// Empty where the options ask for lists alone.
    pub(super) codes: Part<Codes, { CELLS as usize }>,
    capacity: usize,
    memory: Memory,
}

/// The keys as cells see them, borrowed from single fields.
macro_rules! keys_of {
    ($index:expr) => {
        Keys {
            keys: &$index.keys,
            norm2: &$index.norm2,
            ids: &$index.ids,
            dim: $index.options.dim,
            l2: $index.options.metric == Metric::L2,
            isa: $index.isa,
            seed: $index.options.seed,
        }
    };
}
pub(super) use keys_of;

/// Scales to unit norm; zeros stay.
pub(super) fn unit(x: &mut [f32]) {
    // Scaled by the largest first: no square overflows or vanishes.
    let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    if largest > 0.0 && largest.is_finite() {
        x.iter_mut().for_each(|x| *x /= largest);
        let factor = 1.0 / libm::sqrtf(Lift::norm2(x));
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

impl Index {
    /// Lists per level: composite x simple.
    pub(super) fn lists_of(options: &IndexOptions) -> usize {
        if options.engine.lists() { options.num_simple * options.num_composite } else { 0 }
    }

    fn entries(options: &IndexOptions, capacity: usize) -> usize {
        let keys: usize =
            (0..options.depth()).map(|l| room(capacity, options.promotion, l)).fold(0, usize::saturating_add);
        keys.saturating_mul(Self::lists_of(options))
    }

    /// Keys that cells need room for.
    pub(super) fn celled(options: &IndexOptions, capacity: usize) -> usize {
        if options.engine.cells() { capacity } else { 0 }
    }

    fn parents_room(options: &IndexOptions, capacity: usize) -> usize {
        if options.depth() > 1 { room(capacity, options.promotion, 1) } else { 0 }
    }

    /// Adds every block of an index with these options to a plan; the `Memory` block and the struct itself are the
    /// caller's. Never allocates.
    ///
    /// # Errors
    /// As [`IndexOptions::resolve`].
    pub fn plan(options: &IndexOptions, plan: &mut Plan) -> Result<()> {
        Self::plan_with(options, plan, true)
    }

    /// The same for an index that holds its keys itself, or only looks at them.
    pub(super) fn plan_with(options: &IndexOptions, plan: &mut Plan, keys: bool) -> Result<()> {
        let o = options.resolve()?;
        plan.count(|m| Self::made(m, &o, if keys { None } else { Some(&[]) }));
        Ok(())
    }

    /// All arrays, for resolved options; `keys` are those of an index that only looks at them. [`begin`](Index::begin) must follow.
    pub(crate) fn made(m: &mut Maker<'_>, o: &IndexOptions, keys: Option<&'static [f32]>) -> Index {
        let isa = o.isa.unwrap_or_else(Isa::best);
        let (lists, n) = (Self::lists_of(o), o.capacity);
        Index {
            isa,
            projector: Projector::made(m, lists, o.dim, o.metric.lifted(), isa),
            lift: Lift::new(o.max_norm),
            ids: m.room(n),
            keys: match keys {
                None => Held::Own(m.room(n.saturating_mul(o.dim))),
                Some(keys) => Held::View(keys),
            },
            norm2: m.room(n),
            proj: m.room(n.saturating_mul(lists)),
            height: m.room(n),
            free: m.room(n),
            map: IdMap::made(m, n),
            next_id: 0,
            pool: Pool::made(m, Self::entries(o, n), lists * o.depth()),
            levels: core::array::from_fn(|level| Level::made(m, lists, level, o.depth(), n, o.promotion)),
            moves: m.room(n),
            dists: m.room(Self::parents_room(o, n)),
            codes: Part::of(|| Codes::made(m, o.dim, Self::celled(o, n), o.directions == Directions::Fitted)),
            capacity: n,
            memory: m.memory().clone(),
            options: *o,
        }
    }

    /// An index on the system allocator, without a limit.
    ///
    /// # Errors
    /// As [`Index::new_in`].
    #[cfg(feature = "alloc")]
    pub fn new(options: &IndexOptions) -> Result<Index> {
        Index::new_in(options, &Memory::system(0)?)
    }

    /// An index in the given memory, with room for `options.capacity` keys.
    ///
    /// # Errors
    /// `Argument`/`Unsupported` naming the option; `NoMemory`, `Budget`.
    pub fn new_in(options: &IndexOptions, memory: &Memory) -> Result<Index> {
        Self::new_with(options, memory, None)
    }

    /// The same for an index that looks at `keys`, which `restore` gives their slots.
    pub(super) fn new_with(options: &IndexOptions, memory: &Memory, keys: Option<&'static [f32]>) -> Result<Index> {
        let mut o = options.resolve()?;
        o.fixed |= memory.is_region();
        let mut index = Maker::make(memory, |m| Self::made(m, &o, keys))?;
        index.begin();
        Ok(index)
    }

    /// Draws the directions and makes the lists, all of them empty, of an index that was just made.
    pub(crate) fn begin(&mut self) {
        let o = &self.options;
        self.projector.draw(o.seed);
        for level in 0..o.depth() {
            for i in 0..Self::lists_of(o) {
                let seed = hash(o.seed, (level as u64) << 32 | i as u64);
                reserved(self.levels[level].lists.push(SkipList::new(seed)));
            }
        }
    }

    /// The options, with every default filled in.
    pub fn options(&self) -> &IndexOptions {
        &self.options
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Keys held.
    pub fn len(&self) -> usize {
        self.ids.len() - self.free.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys there is room for without allocating.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Elements of a key.
    pub fn dim(&self) -> usize {
        self.options.dim
    }

    /// Byte counts of this index.
    pub fn memory(&self) -> MemoryReport {
        self.memory.report()
    }

    /// One more than the largest id ever given out or used (saturating): where automatic ids go on.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Whether a key has this id. O(1) with `alloc`, O(log n) without.
    pub fn contains(&self, id: u64) -> bool {
        self.slot(id).is_some()
    }

    /// The ids in use, in no particular order.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.ids.iter().copied().filter(|&id| id != NO_ID)
    }

    /// The key with this id.
    pub fn key(&self, id: u64) -> Option<&[f32]> {
        self.slot(id).map(|s| self.key_at(s))
    }

    pub(super) fn slot(&self, id: u64) -> Option<u32> {
        if id == NO_ID { None } else { self.map.find(id, &self.ids) }
    }

    pub(super) fn keys_view(&self) -> Keys<'_> {
        keys_of!(self)
    }

    /// Gathers all keys into cells anew, after loading.
    pub(super) fn fold(&mut self) {
        let live = self.len();
        let slots = 0..self.ids.len() as u32;
        if let Some(codes) = self.codes.get_mut() {
            codes.rest();
            codes.insert(keys_of!(self), live, slots);
        }
    }

    pub(super) fn key_at(&self, slot: u32) -> &[f32] {
        &self.keys[slot as usize * self.options.dim..][..self.options.dim]
    }

    pub(super) fn lists(&self) -> usize {
        Self::lists_of(&self.options)
    }

    pub(super) fn proj_at(&self, slot: u32) -> &[f32] {
        let lists = self.lists();
        &self.proj[slot as usize * lists..][..lists]
    }

    /// Refuses rows of another size than keys have and, unless they are known to be finite, NaN and infinity.
    pub(super) fn check_rows(&self, rows: &Rows<'_>, field: &'static str) -> Result<()> {
        same(field, "row size is not the index's dim", self.dim(), rows.cols())?;
        if self.options.trusted { Ok(()) } else { rows.check_finite(field) }
    }

    /// Makes room for `capacity` keys in all. O(n) when it allocates.
    ///
    /// # Errors
    /// `Capacity` beyond a fixed capacity or 2^31 - 16; `NoMemory`, `Budget`: nothing has changed for the caller.
    pub fn reserve(&mut self, capacity: usize) -> Result<()> {
        if capacity <= self.capacity {
            return Ok(());
        }
        if self.options.fixed || capacity > MAX_KEYS {
            let most = if self.options.fixed { self.capacity } else { MAX_KEYS };
            return Err(Error::new(Status::Capacity, "capacity", "the index is full").need(capacity, most));
        }
        let (o, lists) = (self.options, self.lists());
        let overflow = Error::new(Status::NoMemory, "capacity", "size overflows");
        self.ids.reserve(capacity)?;
        self.keys.reserve(&self.memory, capacity.checked_mul(o.dim).ok_or(overflow)?)?;
        self.norm2.reserve(capacity)?;
        self.proj.reserve(capacity.checked_mul(lists).ok_or(overflow)?)?;
        self.height.reserve(capacity)?;
        self.free.reserve(capacity)?;
        self.map.reserve(capacity, &self.ids)?;
        self.pool.reserve(Self::entries(&o, capacity), lists * o.depth())?;
        for level in 0..o.depth() {
            self.levels[level].reserve(level, o.depth(), capacity, o.promotion)?;
        }
        self.moves.reserve(capacity)?;
        self.dists.reserve(Self::parents_room(&o, capacity))?;
        if let Some(codes) = self.codes.get_mut() {
            codes.reserve(o.dim, Self::celled(&o, capacity))?;
        }
        self.capacity = capacity;
        Ok(())
    }

    /// Room for `more` keys, growing geometrically.
    pub(super) fn make_room(&mut self, more: usize) -> Result<()> {
        let full = Error::new(Status::Capacity, "capacity", "the index is full");
        let need = self.len().checked_add(more).ok_or(full)?;
        if need <= self.capacity {
            return Ok(());
        }
        if self.options.fixed {
            return Err(full.need(need, self.capacity));
        }
        let roomy = need.max(self.capacity.saturating_mul(2)).clamp(64, MAX_KEYS);
        // Where twice the room is refused, exactly enough may still do.
        self.reserve(roomy).or_else(|_| self.reserve(need))
    }

    /// Makes the keys the index's own, before one is written.
    pub(super) fn own_keys(&mut self) -> Result<()> {
        if !self.keys.is_view() {
            return Ok(());
        }
        if self.memory.is_region() {
            let reason = "lie in the bytes that the index looks at: none can be added in caller memory";
            return Err(Error::new(Status::Capacity, "keys", reason));
        }
        self.keys.reserve(&self.memory, self.capacity.saturating_mul(self.options.dim))
    }

    /// Fits the directions of the cells to the keys and to sample queries, and measures on these queries from now on what
    /// small batches take. `None`, or no rows: the keys alone, as if never called.
    ///
    /// Cells that there are are gathered anew, at once; else that happens when there are keys enough. Whether directions
    /// that queries were taken into account for find for less is measured then, and again when there are four times the
    /// keys: if not, the keys' own are kept. At most 1,072 queries are kept, spread evenly over the rows. They stay when
    /// keys come and go, and are saved. O(n dim) beside gathering up to three times.
    ///
    /// # Errors
    /// `Unsupported` for an index without cells; `Shape` (columns); `Argument` for fewer than 128 queries and for one of
    /// zero norm where it has no direction; `NotFinite` and the row; `NoMemory`, `Budget` unless the index was made with
    /// [`Directions::Fitted`]. Everything is as before then.
    pub fn fit(&mut self, sample: Option<Rows<'_>>) -> Result<()> {
        if !self.options.engine.cells() {
            let reason = "the index was made without cells: lists keep their random directions";
            return Err(Error::new(Status::Unsupported, "directions", reason));
        }
        let Some(rows) = sample.filter(|rows| rows.rows() > 0) else {
            self.codes.asked_mut().forget();
            self.codes.refit(keys_of!(self));
            return Ok(());
        };
        let (n, dim) = (rows.rows(), self.dim());
        self.check_rows(&rows, "sample_queries")?;
        if n < LEAST_ASKED {
            return Err(Error::new(Status::Argument, "sample_queries", "too few").need(LEAST_ASKED, n));
        }
        self.codes.reserve_asked()?;
        for row in 0..n {
            let query = self.codes.asked_mut().spare(dim);
            rows.read(row, query);
            Self::check_query(self.options.metric, query, "sample_queries").map_err(|e| e.row(row))?;
        }
        self.options.directions = Directions::Fitted;
        let cosine = self.options.metric == Metric::Cosine;
        self.codes.asked_mut().take(rows, |query| {
            if cosine {
                unit(query);
            }
        });
        self.codes.refit(keys_of!(self));
        Ok(())
    }
}
