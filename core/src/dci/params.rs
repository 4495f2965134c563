//! Options of an index and of a query, their defaults and their checks.

use crate::error::{Error, Result, Status};
use crate::features::{self, CELLS, LEVELS};
use crate::simd::Isa;

/// What "near" means.
///
/// ```
/// # #[cfg(feature = "std")] {
/// use iceformer_core::dci::{Index, IndexOptions, Metric, Neighbor, QueryOptions, Scratch};
/// use iceformer_core::mem::{Memory, Rows};
///
/// // The long key has the largest product, the short one the smallest distance, the one that points there the largest cosine.
/// let (keys, query) = (Rows::new(&[9.0, 9.0, 0.9, 0.2, 2.0, 0.0], 2)?, Rows::new(&[1.0, 0.0], 2)?);
/// for (metric, nearest) in [(Metric::InnerProduct, 0), (Metric::L2, 1), (Metric::Cosine, 2)] {
///     let mut index = Index::new(&IndexOptions { metric, ..IndexOptions::new(2) })?;
///     index.insert(keys, None)?;
///     let (mut scratch, mut found) = (Scratch::new_in(&index, &Memory::system(0)?)?, [Neighbor::default()]);
///     index.query(&mut scratch, query, &QueryOptions::unlimited(1), &mut found, None)?;
///     assert_eq!(found[0].id, nearest);
/// }
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metric {
    /// Largest inner product first; keys and queries go through the paper's lift T_K, T_Q (section 3).
    #[default]
    InnerProduct,
    /// Smallest squared Euclidean distance first; no lift.
    L2,
    /// Largest cosine first. Keys are scaled to unit norm as they come in (a zero key stays zero) and queries as they are
    /// read; beyond that as the inner product.
    Cosine,
}

/// Where directions come from. Those of sorted lists are random unit vectors from the seed (the paper), always.
///
/// ```
/// use iceformer_core::Status;
/// use iceformer_core::dci::{Directions, Engine, IndexOptions};
///
/// // Lists alone have nothing to fit.
/// let options = IndexOptions { directions: Directions::Fitted, engine: Engine::Walk, ..IndexOptions::new(8) };
/// assert_eq!(options.resolve().unwrap_err().status, Status::Unsupported);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Directions {
    /// Those of cells come from the keys; no room is kept for sample queries.
    #[default]
    Random,
    /// Those of cells come from keys and sample queries, once [`fit`](super::Index::fit) was called; room for 1,072 queries
    /// is kept.
    Fitted,
}

impl Metric {
    /// Whether keys and queries go through the lift.
    pub(super) fn lifted(self) -> bool {
        self != Metric::L2
    }
}

/// How candidates are found; of an index: what it keeps for that. Walk and scan give the same candidates in the same order.
///
/// ```
/// use iceformer_core::dci::{Engine, IndexOptions, QueryOptions};
///
/// // An index that keeps sorted lists alone, and a query that compares projections block by block.
/// let (kept, asked) = (IndexOptions { engine: Engine::Walk, ..IndexOptions::new(8) }, Engine::Scan);
/// assert!(kept.resolve().is_ok() && QueryOptions { engine: asked, ..QueryOptions::new(5) }.resolve().is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Of a query: cells where the index has them and no budget is given, else walk or scan. Of an index: both.
    #[default]
    Auto,
    /// Two cursors per sorted list and a priority queue (the paper's Algorithm 3): sublinear.
    Walk,
    /// Projections compared block by block: linear with a small constant.
    Scan,
    /// Cells of similar keys, coded in a byte a coordinate, and exact scores of the best codes: made for batches. An index
    /// kept for this alone has no lists: keys enter it in a few microseconds.
    Cells,
}

impl Engine {
    /// Whether an index made for this keeps sorted lists.
    pub(super) fn lists(self) -> bool {
        self != Engine::Cells
    }

    /// Whether an index made for this keeps cells.
    pub(super) fn cells(self) -> bool {
        CELLS && matches!(self, Engine::Auto | Engine::Cells)
    }
}

/// Shape of an index. In each field but `dim` 0 means its default.
///
/// ```
/// use iceformer_core::dci::{Engine, IndexOptions, Metric};
///
/// let options = IndexOptions { metric: Metric::L2, engine: Engine::Walk, ..IndexOptions::new(64) };
/// assert_eq!(options.resolve()?.num_simple, 4);
/// # Ok::<(), iceformer_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct IndexOptions {
    /// Elements of a key, 1 to 65535.
    pub dim: usize,
    /// Metric.
    pub metric: Metric,
    /// Simple indices per composite index (the paper's m), 1 to 255; 0 = 4.
    pub num_simple: usize,
    /// Composite indices (the paper's L), 1 to 255; 0 = 2.
    pub num_composite: usize,
    /// Levels of the multi-level form, 1 to 8; 0 = 1, plain Prioritized DCI.
    pub levels: usize,
    /// Share of a level's keys promoted to parents of the level above, in (0, 1); 0 = `capacity^(-1/levels)`, or 1/16
    /// when no capacity is given. Unused with one level.
    pub promotion: f32,
    /// Seed of everything random.
    pub seed: u64,
    /// Directions.
    pub directions: Directions,
    /// Keys to make room for at creation.
    pub capacity: usize,
    /// Refuse keys beyond `capacity` instead of growing. Always so in a region.
    pub fixed: bool,
    /// Expected largest key norm (paper's c); 0 = learn it from the keys. Larger keys are accepted at any time: the
    /// bound grows and the keys are lifted again.
    pub max_norm: f32,
    /// Keys and queries are known to be finite: skip the check.
    pub trusted: bool,
    /// Instruction set; `None` = the best of this machine.
    pub isa: Option<Isa>,
    /// What queries are made ready for: [`Engine::Walk`] and [`Engine::Scan`] keep sorted lists, [`Engine::Cells`] cells,
    /// [`Engine::Auto`] both.
    pub engine: Engine,
}

/// Sizes of an index: field, what to say, least and most.
static RANGES: [(&str, &str, [usize; 2]); 5] = [
    ("dim", "must be 1 to 65535", [1, 65535]),
    ("num_simple", "must be at most 255", [0, 255]),
    ("num_composite", "must be at most 255", [0, 255]),
    ("levels", "must be at most 8", [0, 8]),
    ("capacity", "must be at most 2^31 - 16", [0, MAX_KEYS]),
];

impl IndexOptions {
    /// Options with all defaults for keys of `dim` elements.
    pub fn new(dim: usize) -> Self {
        IndexOptions { dim, ..Default::default() }
    }

    /// Checks the ranges and replaces every 0 by its default.
    ///
    /// # Errors
    /// `Argument` naming the field and value; `Unsupported` for fitted directions without cells.
    pub fn resolve(mut self) -> Result<Self> {
        let numbers = [self.dim, self.num_simple, self.num_composite, self.levels, self.capacity];
        for (&(field, reason, range), n) in RANGES.iter().zip(numbers) {
            if n < range[0] || n > range[1] {
                return Err(Error::new(Status::Argument, field, reason).value(n as u64));
            }
        }
        features::need(LEVELS || self.levels <= 1, "levels", "this build has one level")?;
        if !(self.promotion >= 0.0 && self.promotion < 1.0) {
            return Err(Error::new(Status::Argument, "promotion", "must be in [0, 1)").number(self.promotion));
        }
        if !(self.max_norm >= 0.0 && self.max_norm < MAX_NORM) {
            return Err(Error::new(Status::Argument, "max_norm", "must be finite, not negative and below 1e18")
                .number(self.max_norm));
        }
        if self.directions == Directions::Fitted && !self.engine.cells() {
            return Err(Error::new(
                Status::Unsupported,
                "directions",
                "fitted ones are of cells: lists alone are kept",
            ));
        }
        features::need(CELLS || self.engine != Engine::Cells, "engine", "this build keeps no cells")?;
        if let Some(isa) = self.isa.filter(|i| !i.available()) {
            return Err(Error::new(Status::Unsupported, "isa", isa.name()));
        }
        let or = |x: usize, d: usize| if x == 0 { d } else { x };
        self.num_simple = or(self.num_simple, 4);
        self.num_composite = or(self.num_composite, 2);
        self.levels = if self.engine.lists() { or(self.levels, 1) } else { 1 };
        if LEVELS && self.promotion == 0.0 {
            self.promotion = match self.capacity {
                0 => 1.0 / 16.0,
                n => inverse_root(n as f64, self.levels).clamp(1e-6, 0.5),
            };
        }
        Ok(self)
    }

    /// Levels, of resolved options: one where the build has no more.
    pub(super) fn depth(&self) -> usize {
        if LEVELS { self.levels } else { 1 }
    }
}

/// `x` to the power of `-1 / n`, for `x >= 1`: Newton's method from above, where it cannot overshoot.
fn inverse_root(x: f64, n: usize) -> f32 {
    let power = |y: f64| (1..n).fold(1.0, |p, _| p * y);
    let mut y = x;
    loop {
        let p = power(y);
        let next = y - (y * p - x) / (n as f64 * p);
        if next >= y {
            return (1.0 / y) as f32;
        }
        y = next;
    }
}

/// Most keys one index holds; slots are 32-bit and the topmost numbers mean "none".
pub const MAX_KEYS: usize = (1 << 31) - 16;

/// Keys of this norm and above are refused: their squared norm would overflow.
pub const MAX_NORM: f32 = 1e18;

/// Budgets and limits of a query. All 0 = the defaults.
///
/// ```
/// use iceformer_core::dci::QueryOptions;
///
/// let ten = QueryOptions { target_recall: 0.8, id_end: 5000, ..QueryOptions::new(10) };
/// assert!(ten.resolve().is_ok() && QueryOptions::new(0).resolve().is_err());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct QueryOptions<'a> {
    /// Neighbours wanted per query, at least 1.
    pub k: usize,
    /// Most list entries visited per composite index and level (the paper's k1); 0 = see `visit_fraction`.
    pub visit: usize,
    /// Most points retrieved per composite index and level (the paper's k0); 0 = see `retrieve_fraction`.
    pub retrieve: usize,
    /// `visit` as a share of all entries (num_simple x points) searched at a level, in [0, 1]; 0 = all.
    pub visit_fraction: f32,
    /// `retrieve` as a share of the points searched at a level, in [0, 1]; 0 = `target_recall`. The larger of this and
    /// `retrieve` holds when both are given; never less than `k` (leaf level) or `field_of_view` (above).
    pub retrieve_fraction: f32,
    /// Parents kept per level above the leaves; 0 = max(30, k). Unused with one level.
    pub field_of_view: usize,
    /// Aimed share of true neighbours found, in [0, 1]; 0 = 0.9. Sets what is left at 0 above.
    pub target_recall: f32,
    /// Only ids in `id_begin..id_end` are answers (a causal prefix is `0..row + 1`); both 0 = all.
    pub id_begin: u64,
    /// See `id_begin`. 0 with a non-zero `id_begin` means no upper limit.
    pub id_end: u64,
    /// Engine.
    pub engine: Engine,
    /// If there: only ids whose bit is set are answers, bit `id % 8` of byte `id / 8`; ids beyond it are not.
    pub filter: Option<&'a [u8]>,
}

impl Default for QueryOptions<'_> {
    fn default() -> Self {
        QueryOptions {
            k: 1,
            visit: 0,
            retrieve: 0,
            visit_fraction: 0.0,
            retrieve_fraction: 0.0,
            field_of_view: 0,
            target_recall: 0.0,
            id_begin: 0,
            id_end: 0,
            engine: Engine::Auto,
            filter: None,
        }
    }
}

impl QueryOptions<'_> {
    /// Default budgets for `k` neighbours.
    pub fn new(k: usize) -> Self {
        QueryOptions { k, ..Default::default() }
    }

    /// No budget at all: every point is visited, the answer is the brute-force answer.
    pub fn unlimited(k: usize) -> Self {
        QueryOptions { k, retrieve_fraction: 1.0, visit_fraction: 1.0, field_of_view: usize::MAX, ..Default::default() }
    }

    /// Whether any budget is given: then cells are not chosen by themselves.
    pub(super) fn budgeted(&self) -> bool {
        let fractions = self.visit_fraction > 0.0 || self.retrieve_fraction > 0.0;
        self.visit > 0 || self.retrieve > 0 || self.field_of_view > 0 || fractions
    }

    /// Which ids may be answers, of resolved options.
    pub(super) fn allowed(&self) -> super::lists::Allowed<'_> {
        super::lists::Allowed { begin: self.id_begin, end: self.id_end, bits: self.filter }
    }

    /// Checks the ranges and replaces every 0 that has a fixed default.
    ///
    /// # Errors
    /// `Argument` naming the field and value.
    pub fn resolve(mut self) -> Result<Self> {
        if self.k == 0 {
            return Err(Error::new(Status::Argument, "k", "must be at least 1").value(0));
        }
        for (field, x) in [
            ("visit_fraction", self.visit_fraction),
            ("retrieve_fraction", self.retrieve_fraction),
            ("target_recall", self.target_recall),
        ] {
            if !(0.0..=1.0).contains(&x) {
                return Err(Error::new(Status::Argument, field, "must be in [0, 1]").number(x));
            }
        }
        if self.id_end == 0 {
            self.id_end = u64::MAX;
        }
        if self.id_begin > self.id_end {
            return Err(Error::new(Status::Argument, "id_begin", "must not exceed id_end").value(self.id_begin));
        }
        if self.target_recall == 0.0 {
            self.target_recall = 0.9;
        }
        if self.retrieve == 0 && self.retrieve_fraction == 0.0 {
            self.retrieve_fraction = self.target_recall;
        }
        if self.visit == 0 && self.visit_fraction == 0.0 {
            self.visit_fraction = 1.0;
        }
        if self.field_of_view == 0 {
            self.field_of_view = self.k.max(30);
        }
        Ok(self)
    }
}

/// One answer of a query.
///
/// ```
/// use iceformer_core::dci::Neighbor;
///
/// // What answers are written into.
/// let found = [Neighbor::default(); 10];
/// assert_eq!(found[0], Neighbor { id: 0, score: 0.0 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Neighbor {
    /// The key's id.
    pub id: u64,
    /// Inner product with the query, its cosine, or the squared distance to it, as the metric is.
    pub score: f32,
}

#[cfg(test)]
mod tests {
    use super::inverse_root;

    #[test]
    fn roots_are_inverse() {
        for n in 1..=5 {
            for x in [1.0, 1.5, 2.0, 16.0, 1000.0, 123_456.0, 1e6, f64::from(u32::MAX)] {
                let (have, want) = (f64::from(inverse_root(x, n)), x.powf(-1.0 / n as f64));
                assert!((have / want - 1.0).abs() < 1e-6, "{x}, {n}: {have} for {want}");
            }
        }
    }
}
