//! Keys and values of one KV head, in token order, with their index in top-k mode and their cells in accelerated mode.

use super::certificates::length;
use super::clustered::Clusters;
use super::session_options::SessionOptions;
use super::store::Store;
use crate::dci::{Index, IndexOptions};
use crate::error::{Error, Result, Status, reserved, same};
use crate::features::{ACCELERATED, CERTIFICATES, Part, TOP_K};
use crate::mem::{Buf, Maker, Rows};
use crate::simd::Isa;

/// Keys and values of one KV head; disjoint heads of a session may be appended to by different threads.
///
/// ```
/// # #[cfg(feature = "std")] {
/// use iceformer_core::attention::{Session, SessionOptions};
/// use iceformer_core::mem::Rows;
///
/// let mut session = Session::new(&SessionOptions::new([2, 2], 4, 8))?;
/// // Each head may be filled by a thread of its own.
/// for head in session.heads_mut() {
///     let rows = Rows::new(&[1.0; 3 * 4], 4)?;
///     head.append(rows, rows)?;
/// }
/// session.commit()?;
/// assert_eq!(session.len(), 3);
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
pub struct HeadCache {
    dim_k: usize,
    dim_v: usize,
    capacity: usize,
    trusted: bool,
    keys: Store,
    values: Store,
    /// Token t has id t.
    index: Option<Part<Index, { TOP_K as usize }>>,
    /// Segments of tokens 0, SEGMENT, 2 SEGMENT.. however they were appended.
    clusters: Option<Part<Clusters, { ACCELERATED as usize }>>,
    /// Logit of a unit of a score.
    unit: f32,
    isa: Isa,
    published: usize,
    pending: usize,
    failed: Option<Error>,
    /// Largest magnitudes of a key and a value so far, kept when tokens go.
    largest: [f32; 2],
    /// Lengths of the longest ones, where certificates ask for them.
    longest: Option<[f32; 2]>,
    /// One row in f32.
    row: Buf<f32>,
}

impl HeadCache {
    /// For resolved options, and those of the index if there is to be one; [`begin`](HeadCache::begin) must follow.
    pub(super) fn made(m: &mut Maker<'_>, o: &SessionOptions, index: Option<&IndexOptions>) -> Self {
        HeadCache {
            dim_k: o.dim_k,
            dim_v: o.dim_v,
            capacity: o.capacity,
            trusted: o.attention.trusted,
            keys: Store::made(m, o.kv_dtype, o.capacity.saturating_mul(o.dim_k)),
            values: Store::made(m, o.kv_dtype, o.capacity.saturating_mul(o.dim_v)),
            index: index.map(|o| Part::of(|| Index::made(m, o, None))),
            clusters: o.has_cells().then(|| Part::of(|| Clusters::made(m, [o.dim_k, o.dim_v], o.capacity, o.kv_dtype))),
            unit: if o.attention.softcap == 0.0 && o.attention.scale > 0.0 { o.attention.scale } else { 1.0 },
            isa: o.isa(),
            published: 0,
            pending: 0,
            failed: None,
            largest: [0.0; 2],
            longest: o.attention.certificate.then_some([0.0; 2]),
            row: m.filled(o.dim_k.max(o.dim_v), 0.0),
        }
    }

    pub(super) fn begin(&mut self) {
        if TOP_K && let Some(index) = &mut self.index {
            index.begin();
        }
    }

    /// Appends `n` rows `k [n, dim_k]`, `v [n, dim_v]` of any element type, unpublished until
    /// [`Session::commit`](super::Session::commit). All or nothing; a failure is remembered, so that the commit takes back
    /// the other heads too. Never allocates.
    ///
    /// # Errors
    /// `Shape`, `NotFinite` with the row (also for numbers beyond the storage type's range), `Capacity`.
    pub fn append(&mut self, k: Rows<'_>, v: Rows<'_>) -> Result<()> {
        let result = self.try_append(k, v);
        if let Err(e) = result {
            self.fail(e);
        }
        result
    }

    /// Remembers a failure met before [`append`](HeadCache::append) could be called, so that the commit takes back the other
    /// heads too.
    pub fn fail(&mut self, e: Error) {
        self.failed.get_or_insert(e);
    }

    fn try_append(&mut self, k: Rows<'_>, v: Rows<'_>) -> Result<()> {
        same("k", "row size is not dim_k", self.dim_k, k.cols())?;
        same("v", "row size is not dim_v", self.dim_v, v.cols())?;
        same("v", "rows differ from k's", k.rows(), v.rows())?;
        let (n, from) = (k.rows(), self.published + self.pending);
        if n > self.capacity - from {
            return Err(Error::new(Status::Capacity, "capacity", "the session is full").need(from + n, self.capacity));
        }
        if !self.trusted {
            k.check_finite("k")?;
            v.check_finite("v")?;
        }
        let result = self.store(k, v, from);
        match result {
            Ok(()) => {
                self.pending += n;
                self.build();
            }
            Err(_) => self.cut(from),
        }
        result
    }

    fn store(&mut self, k: Rows<'_>, v: Rows<'_>, from: usize) -> Result<()> {
        for i in 0..k.rows() {
            let row = |e: Error| e.row(i);
            if !self.keys.push_same(&k, i) {
                k.read(i, &mut self.row[..self.dim_k]);
                self.push_read(false).map_err(row)?;
            }
            if !self.values.push_same(&v, i) {
                v.read(i, &mut self.row[..self.dim_v]);
                self.push_read(true).map_err(row)?;
            }
            self.note(from + i).map_err(row)?;
        }
        Ok(())
    }

    /// Builds the cells of the segments that have become complete.
    fn build(&mut self) {
        let HeadCache { clusters, keys, values, dim_k, dim_v, isa, .. } = self;
        let Some(clusters) = clusters.as_mut().filter(|_| ACCELERATED) else { return };
        let n = self.published + self.pending;
        clusters.build(*isa, &keys.rows(n, *dim_k), &values.rows(n, *dim_v));
    }

    /// Shows what cells have become complete, and what rows have noted, after `tokens` more.
    fn show(&mut self, tokens: usize) {
        let HeadCache { clusters, keys, values, dim_k, dim_v, isa, published, unit, .. } = self;
        if let Some(clusters) = clusters.as_mut().filter(|_| ACCELERATED) {
            clusters.publish(*isa, &keys.rows(*published, *dim_k), &values.rows(*published, *dim_v), tokens, *unit);
        }
    }

    /// Appends the key or the value that was read into `row`.
    fn push_read(&mut self, value: bool) -> Result<()> {
        let (to, dim, field) =
            if value { (&mut self.values, self.dim_v, "v") } else { (&mut self.keys, self.dim_k, "k") };
        if to.push_row(self.isa, &self.row[..dim]) {
            return Ok(());
        }
        Err(Error::new(Status::NotFinite, field, "a number does not fit the storage type"))
    }

    /// After the key and the value of token `at` were stored: the index, and what is known of all of them.
    fn note(&mut self, at: usize) -> Result<()> {
        if TOP_K && let Some(index) = &mut self.index {
            // The stored key, rounded, so that both ways of attending see the same numbers.
            let stored = self.keys.rows(at + 1, self.dim_k).slice(at, 1);
            index.insert(stored, Some(&[at as u64])).map_err(|e| e.of("k"))?;
        }
        for (most, rows) in
            self.largest.iter_mut().zip([self.keys.rows(at + 1, self.dim_k), self.values.rows(at + 1, self.dim_v)])
        {
            *most = most.max(rows.largest(at));
        }
        if CERTIFICATES && let Some(longest) = &mut self.longest {
            let rows = [self.keys.rows(at + 1, self.dim_k), self.values.rows(at + 1, self.dim_v)];
            for (most, rows) in longest.iter_mut().zip(rows) {
                *most = most.max(length(&rows, at) as f32 * (1.0 + f32::EPSILON));
            }
        }
        Ok(())
    }

    /// Stores `n` tokens of a saved head, all keys and then all values, unpublished; `restore_index` must follow.
    pub(super) fn restore(&mut self, n: usize, mut read: impl FnMut(&mut [f32]) -> Result<()>) -> Result<()> {
        for (value, dim) in [(false, self.dim_k), (true, self.dim_v)] {
            for _ in 0..n {
                read(&mut self.row[..dim])?;
                self.push_read(value)?;
            }
        }
        self.pending = n;
        Ok(())
    }

    /// Indexes restored tokens, or gathers them into cells.
    pub(super) fn restore_index(&mut self) -> Result<()> {
        (0..self.pending).try_for_each(|at| self.note(at))?;
        self.build();
        Ok(())
    }

    /// Drops everything from token `len` on; cells are the caller's to cut.
    fn cut(&mut self, len: usize) {
        self.keys.truncate(len * self.dim_k);
        self.values.truncate(len * self.dim_v);
        if TOP_K && let Some(index) = &mut self.index {
            let end = index.next_id();
            let gone = (len as u64..end).fold(0, |gone, id| gone + index.remove_present(&[id]));
            if gone > 0 {
                index.tighten();
            }
        }
    }

    /// Rows appended since the last commit.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Takes back what was not published; returns the failure, if there was one.
    pub(super) fn roll_back(&mut self) -> Option<Error> {
        self.cut(self.published);
        if ACCELERATED && let Some(clusters) = &mut self.clusters {
            clusters.roll_back();
        }
        self.pending = 0;
        self.failed.take()
    }

    pub(super) fn failed(&self) -> Option<Error> {
        self.failed
    }

    /// Shows what was appended.
    pub(super) fn publish(&mut self) {
        let pending = core::mem::take(&mut self.pending);
        self.published += pending;
        self.show(pending);
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.cut_cells(len);
        self.cut(len);
        self.published = len;
    }

    /// Drops the segments that are not whole below token `len`.
    fn cut_cells(&mut self, len: usize) {
        let HeadCache { clusters, keys, values, dim_k, dim_v, isa, published, unit, .. } = self;
        if let Some(clusters) = clusters.as_mut().filter(|_| ACCELERATED) {
            clusters.truncate(*isa, &keys.rows(*published, *dim_k), &values.rows(*published, *dim_v), len, *unit);
        }
    }

    /// Removes tokens `begin..end`; later ones move down and are indexed under their new numbers. Segments from `begin`
    /// on are built anew.
    pub(super) fn remove_range(&mut self, begin: usize, end: usize) {
        if begin == end {
            return;
        }
        self.cut_cells(begin);
        self.keys.drain(begin * self.dim_k, end * self.dim_k);
        self.values.drain(begin * self.dim_v, end * self.dim_v);
        let left = self.published - (end - begin);
        if TOP_K && let Some(index) = &mut self.index {
            for id in begin as u64..self.published as u64 {
                index.remove_present(&[id]);
            }
            let keys = self.keys.rows(left, self.dim_k);
            for id in begin..left {
                reserved(index.insert(keys.slice(id, 1), Some(&[id as u64])));
            }
            index.tighten();
        }
        self.published = left;
        self.build();
        self.show(0);
    }

    pub(super) fn reset(&mut self) {
        self.keys.truncate(0);
        self.values.truncate(0);
        self.published = 0;
        self.pending = 0;
        self.failed = None;
        self.largest = [0.0; 2];
        self.longest = self.longest.map(|_| [0.0; 2]);
        if TOP_K && let Some(index) = &mut self.index {
            index.clear();
        }
        if ACCELERATED && let Some(clusters) = &mut self.clusters {
            clusters.clear();
        }
    }

    pub(super) fn keys(&self) -> Rows<'_> {
        self.keys.rows(self.published, self.dim_k)
    }

    pub(super) fn values(&self) -> Rows<'_> {
        self.values.rows(self.published, self.dim_v)
    }

    /// Largest magnitudes of a key and a value since the last reset.
    pub(super) fn largest(&self) -> [f32; 2] {
        self.largest
    }

    /// Lengths of the longest key and value since the last reset; zeros where nobody certifies.
    pub(super) fn longest(&self) -> [f32; 2] {
        self.longest.unwrap_or_default()
    }

    pub(super) fn clusters(&self) -> Option<&Clusters> {
        self.clusters.as_deref()
    }

    pub(super) fn index(&self) -> Option<&Index> {
        self.index.as_deref()
    }
}
