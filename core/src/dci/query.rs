//! Queries: levels from the top down, candidates scored by their true inner product or distance.

use super::Index;
use super::codes::{Effort, Ranked};
use super::index::unit;
use super::level::ROOT;
use super::lists::{Allowed, Entry, by_place};
use super::params::{Engine, MAX_NORM, Metric, Neighbor, QueryOptions};
use super::scratch::{Budget, Many, Scratch};
use super::search::Place;
use super::slots::NO_ID;
use super::tunables::{BATCH_FROM, CANDIDATES_A_TURN, MEASURE_FROM, MEASURED_NEIGHBOURS, MEASURED_QUERIES};
use crate::error::{Error, Result, Status, reserved};
use crate::features::{CELLS, LEVELS};
use crate::mem::Rows;
use crate::project::Lift;
use crate::queue::TopK;

/// How queries are answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Walk,
    Exact,
    Codes,
}

impl Index {
    /// The `k` best keys found for each query row (paper, Algorithm 3, at every level): `out` is `rows x k`, best first;
    /// row i has `counts[i]` answers, the rest of it is filled with id 2^64 - 1. Equal scores: smaller id first.
    ///
    /// Thread class: shared index, exclusive scratch. Never allocates.
    ///
    /// # Errors
    /// `Shape` (columns), `Buffer` (`out`, `counts` too small), `NotFinite` and the row, `Argument` (options; a query of
    /// zero norm under the inner product has no direction), `Capacity`/`Shape` for a scratch that does not fit. Nothing is
    /// written then.
    pub fn query(
        &self,
        scratch: &mut Scratch,
        queries: Rows<'_>,
        options: &QueryOptions<'_>,
        out: &mut [Neighbor],
        counts: Option<&mut [u32]>,
    ) -> Result<()> {
        self.run(scratch, queries, options, out, counts, false)
    }

    /// Brute force over all keys: the oracle, with the contract of [`query`](Index::query). Budgets are ignored.
    ///
    /// # Errors
    /// As [`query`](Index::query).
    pub fn query_exact(
        &self,
        scratch: &mut Scratch,
        queries: Rows<'_>,
        options: &QueryOptions<'_>,
        out: &mut [Neighbor],
        counts: Option<&mut [u32]>,
    ) -> Result<()> {
        self.run(scratch, queries, options, out, counts, true)
    }

    fn run(
        &self,
        scratch: &mut Scratch,
        queries: Rows<'_>,
        options: &QueryOptions<'_>,
        out: &mut [Neighbor],
        counts: Option<&mut [u32]>,
        exact: bool,
    ) -> Result<()> {
        let o = options.resolve()?;
        scratch.check(self)?;
        let n = queries.rows();
        self.check_rows(&queries, "queries")?;
        if n.checked_mul(o.k).is_none_or(|need| need > out.len()) {
            return Err(
                Error::new(Status::Buffer, "out", "too small for queries x k").need(n.saturating_mul(o.k), out.len())
            );
        }
        if let Some(counts) = &counts
            && counts.len() < n
        {
            return Err(Error::new(Status::Buffer, "counts", "too small").need(n, counts.len()));
        }
        let way = if exact { Way::Exact } else { self.way(options)? };
        for row in 0..n {
            queries.read(row, &mut scratch.query);
            Self::check_query(self.options.metric, &scratch.query, "queries").map_err(|e| e.row(row))?;
        }
        if way != Way::Walk {
            self.run_batch(scratch, queries, options, way, out, counts);
            return Ok(());
        }
        self.run_each(scratch, queries, o.k, out, counts, |scratch| self.search(scratch, &o));
        Ok(())
    }

    /// Queries one by one: `search` leaves the answers for `scratch.query` in `scratch.top`.
    fn run_each(
        &self,
        scratch: &mut Scratch,
        queries: Rows<'_>,
        k: usize,
        out: &mut [Neighbor],
        mut counts: Option<&mut [u32]>,
        search: impl Fn(&mut Scratch),
    ) {
        for row in 0..queries.rows() {
            self.read_query(queries, row, &mut scratch.query);
            search(scratch);
            let count = self.take_top(&mut scratch.top, &mut out[row * k..][..k]);
            if let Some(counts) = counts.as_deref_mut() {
                counts[row] = count;
            }
        }
    }

    /// How a query with these (unresolved) options is answered.
    fn way(&self, options: &QueryOptions<'_>) -> Result<Way> {
        let kept = self.options.engine;
        match options.engine {
            Engine::Walk | Engine::Scan if kept.lists() => Ok(Way::Walk),
            Engine::Walk | Engine::Scan => {
                Err(Error::new(Status::Unsupported, "engine", "the index was made for cells alone: it has no lists"))
            }
            Engine::Cells if !kept.cells() => {
                Err(Error::new(Status::Unsupported, "engine", "the index was made without cells"))
            }
            Engine::Cells => Ok(Way::Codes),
            Engine::Auto if !kept.lists() => Ok(Way::Codes),
            Engine::Auto if CELLS && self.codes.active() && !options.budgeted() => Ok(Way::Codes),
            Engine::Auto => Ok(Way::Walk),
        }
    }

    /// Row `row` of the queries as it is compared with keys.
    fn read_query(&self, queries: Rows<'_>, row: usize, out: &mut [f32]) {
        queries.read(row, out);
        if self.options.metric == Metric::Cosine {
            unit(out);
        }
    }

    /// What an answer that there is none of looks like.
    pub(super) fn nothing(&self) -> Neighbor {
        let score = if self.options.metric == Metric::L2 { f32::INFINITY } else { f32::NEG_INFINITY };
        Neighbor { id: NO_ID, score }
    }

    /// Writes the answers in `top`; returns how many.
    pub(super) fn take_top(&self, top: &mut TopK, out: &mut [Neighbor]) -> u32 {
        let sign = if self.options.metric == Metric::L2 { -1.0 } else { 1.0 };
        out.fill(self.nothing());
        let sorted = top.into_sorted();
        for (a, item) in out.iter_mut().zip(sorted) {
            *a = Neighbor { id: item.id, score: sign * item.score };
        }
        sorted.len() as u32
    }

    /// Many queries, exactly or by cells.
    fn run_batch(
        &self,
        scratch: &mut Scratch,
        queries: Rows<'_>,
        options: &QueryOptions<'_>,
        way: Way,
        out: &mut [Neighbor],
        mut counts: Option<&mut [u32]>,
    ) {
        let Ok(o) = options.resolve() else { return };
        let (n, k, dim, live) = (queries.rows(), o.k, self.dim(), self.len());
        let allowed = o.allowed();
        let admitted = if allowed.all() { live } else { self.ids().filter(|&id| allowed.admits(id)).count() };
        let mut effort = Effort::EXACT;
        if CELLS && way == Way::Codes && self.codes.active() && admitted > 0 {
            effort = self.effort(scratch, queries, options, &o);
            // Few answers in sight: the cells that hold them are as many times farther.
            let times = live as f32 / admitted as f32;
            effort.probe = (effort.probe as f32 * times).min(u32::MAX as f32) as u32;
            if effort.keep as usize >= admitted / 4 {
                effort = Effort::EXACT;
            }
        }
        // A few queries, or few keys in sight, are faster one by one: tiles would be empty.
        if !CELLS || effort == Effort::EXACT && (n < BATCH_FROM || admitted < live / 4) {
            return self.run_each(scratch, queries, k, out, counts, |scratch| self.search_exact(scratch, &o));
        }
        let keep = if effort == Effort::EXACT { k.min(live) } else { effort.keep as usize };
        let room = scratch.many.batch.room(keep, live);
        let chunk = scratch.many.batch.queries(room);
        for first in (0..n).step_by(chunk) {
            let rows = chunk.min(n - first);
            for i in 0..rows {
                self.read_query(queries, first + i, &mut scratch.many.batch.rows[i * dim..][..dim]);
            }
            let out = &mut out[first * k..][..rows * k];
            let mut counts = counts.as_deref_mut().map(|c| &mut c[first..][..rows]);
            let Scratch { many, top, .. } = scratch;
            let Many { batch, probing, .. } = &mut **many;
            if effort == Effort::EXACT {
                self.exact_chunk(batch, rows, k, allowed, out, counts);
                continue;
            }
            self.codes.probe(self.keys_view(), batch, probing, rows, effort, room, allowed);
            for i in 0..rows {
                let list = &mut batch.entries[i * room..][..batch.len[i] as usize];
                self.score_in_turn(&batch.rows[i * dim..][..dim], list, k, effort.patience as usize, top);
                let count = self.take_top(top, &mut out[i * k..][..k]);
                if let Some(counts) = counts.as_deref_mut() {
                    counts[i] = count;
                }
            }
        }
    }

    /// Scores candidates from the best code on, until `patience` in a row are none of the best `k`; leaves those in `top`.
    pub(super) fn score_in_turn(&self, query: &[f32], list: &mut [Entry], k: usize, patience: usize, top: &mut TopK) {
        reserved(top.reset(k.min(self.len())));
        if patience < list.len() {
            list.sort_unstable_by(by_place);
        }
        let mut last = k;
        for (step, part) in list.chunks_mut(CANDIDATES_A_TURN).enumerate() {
            let first = step * CANDIDATES_A_TURN;
            if first > last.saturating_add(patience) {
                break;
            }
            self.score_entries(query, part);
            for (i, e) in part.iter().enumerate() {
                if top.push(e.score, self.ids[e.at as usize], e.at) {
                    last = last.max(first + i);
                }
            }
        }
    }

    /// How much of the cells to look into.
    fn effort(
        &self,
        scratch: &mut Scratch,
        queries: Rows<'_>,
        options: &QueryOptions<'_>,
        o: &QueryOptions<'_>,
    ) -> Effort {
        let (live, k) = (self.len(), o.k);
        if k >= live / 8 {
            return Effort::EXACT;
        }
        if options.budgeted() {
            return self.budget(options, k);
        }
        if queries.rows() >= MEASURE_FROM {
            return self.measure(scratch, queries, k, o.target_recall);
        }
        self.codes.effort(k, o.target_recall)
    }

    /// The effort that budgets name: `visit` keys whose codes are compared, `retrieve` keys that are scored exactly.
    fn budget(&self, options: &QueryOptions<'_>, k: usize) -> Effort {
        let live = self.len() as f32;
        let of = |n: usize, fraction: f32| (n as f32).max(fraction * live);
        let visit = of(options.visit, options.visit_fraction);
        let retrieve = of(options.retrieve, options.retrieve_fraction);
        let keep = if retrieve > 0.0 { retrieve } else { 4.0 * k as f32 };
        let cells = self.codes.count() as f32;
        let probe = if visit > 0.0 { libm::ceilf(visit * cells / live) } else { cells };
        Effort { probe: probe.clamp(1.0, cells) as u32, keep: keep.clamp(k as f32, live) as u32, patience: u32::MAX }
    }

    /// Answers some of the queries exactly and chooses what finds a share `target` of that for least.
    fn measure(&self, scratch: &mut Scratch, queries: Rows<'_>, k: usize, target: f32) -> Effort {
        let (n, dim) = (queries.rows(), self.dim());
        let near = k.min(MEASURED_NEIGHBOURS);
        // A small batch is not worth many exact answers.
        let asked =
            (n / 16).min(MEASURED_QUERIES).min(scratch.many.batch.queries(scratch.many.batch.room(near, self.len())));
        for i in 0..asked {
            self.read_query(queries, i * n / asked, &mut scratch.many.batch.rows[i * dim..][..dim]);
        }
        let everything = Allowed { begin: 0, end: NO_ID, bits: None };
        let Scratch { many, scores, .. } = scratch;
        let Many { batch, sample, probing } = &mut **many;
        // k is far below the number of keys: every query has so many answers.
        self.exact_chunk(batch, asked, near, everything, &mut sample.truth[..asked * near], None);
        scores.clear();
        reserved(scores.resize(self.ids.len(), 0.0));
        for i in 0..asked {
            let truth = sample.truth[i * near..][..near].iter().filter_map(|t| self.slot(t.id));
            let room = Ranked { dense: scores, ranks: probing.ranks() };
            let query = &batch.rows[i * dim..][..dim];
            let found = &mut sample.found[i * near..][..near];
            self.codes.rank_found(self.keys_view(), query, None, truth, room, found);
        }
        let cost = self.codes.cost(&self.keys_view(), self.len());
        let e = cost.choose(&sample.found[..asked * near], near, target, &mut sample.codes);
        e.times(k.div_ceil(near))
    }

    pub(super) fn check_query(metric: Metric, query: &[f32], field: &'static str) -> Result<()> {
        let norm2 = Lift::norm2(query);
        if norm2 >= MAX_NORM * MAX_NORM {
            return Err(Error::new(Status::NotFinite, field, "norm is 1e18 or more"));
        }
        if norm2 == 0.0 && metric.lifted() && query.iter().all(|&x| x == 0.0) {
            return Err(Error::new(Status::Argument, field, "zero norm: it has no direction"));
        }
        Ok(())
    }

    /// Most parents any level has now.
    pub(super) fn parents_len(&self) -> usize {
        self.levels.get(1).map_or(0, |level| level.members.len())
    }

    /// Level by level: the entries kept at one level are the cells searched at the next. Leaves the answers for
    /// `scratch.query` in `scratch.top`.
    pub(crate) fn search(&self, scratch: &mut Scratch, o: &QueryOptions<'_>) {
        let Scratch { query, proj, .. } = scratch;
        self.projector.query(query, &self.lift, proj);
        for level in (0..self.options.depth()).rev() {
            let leaf = level == 0;
            self.look_down(scratch, level);
            let points = self.points_in_view(scratch, level);
            let keep = if leaf { o.k } else { o.field_of_view }.min(points);
            let everything = Allowed { begin: 0, end: NO_ID, bits: None };
            let ids = if leaf { o.allowed() } else { everything };
            let budget = Budget::new(o, points, self.options.num_simple, keep);
            scratch.found.clear();
            scratch.picked.begin();
            for composite in 0..self.options.num_composite {
                self.collect(scratch, Place { level, composite, ids: &ids }, &budget);
                if scratch.found.len() == points {
                    break;
                }
            }
            self.score(scratch, keep);
        }
    }

    /// Sets the cells in view of `level`: the entries kept above, or the root cell where there are no parents.
    pub(super) fn look_down(&self, scratch: &mut Scratch, level: usize) {
        let parents = if level + 1 < self.options.depth() { self.levels[level + 1].members.len() } else { 0 };
        scratch.view.clear();
        if parents == 0 {
            reserved(scratch.view.push(ROOT));
            return;
        }
        for item in scratch.top.into_sorted() {
            reserved(scratch.view.push(item.slot));
        }
    }

    pub(super) fn points_in_view(&self, scratch: &Scratch, level: usize) -> usize {
        let l = &self.levels[level];
        match scratch.view[..] {
            [ROOT] => l.lists[0].len(),
            _ if !LEVELS => 0,
            _ => scratch.view.iter().map(|&cell| self.levels[level + 1].population[cell as usize] as usize).sum(),
        }
    }

    /// Scores the candidates and keeps the best `keep`.
    fn score(&self, scratch: &mut Scratch, keep: usize) {
        let Scratch { query, found, scores, top, .. } = scratch;
        scores.clear();
        reserved(scores.resize(found.len(), 0.0));
        match self.options.metric {
            Metric::L2 => self.isa.sq_dists_at(&self.keys, self.dim(), found, query, scores),
            _ => self.isa.dots_at(&self.keys, self.dim(), found, query, scores),
        }
        let sign = if self.options.metric == Metric::L2 { -1.0 } else { 1.0 };
        reserved(top.reset(keep));
        if keep > 0 {
            for (&slot, &score) in found.iter().zip(scores.iter()) {
                // +0.0: one zero only, so that ties are ties.
                top.push(sign * score + 0.0, self.id_at(slot), slot);
            }
        }
    }

    /// Brute force for `scratch.query`; leaves the answers in `scratch.top`.
    pub(crate) fn search_exact(&self, scratch: &mut Scratch, o: &QueryOptions<'_>) {
        let allowed = o.allowed();
        scratch.found.clear();
        for (slot, id) in self.ids.iter().enumerate() {
            if *id != NO_ID && allowed.admits(*id) {
                reserved(scratch.found.push(slot as u32));
            }
        }
        self.score(scratch, o.k.min(self.len()));
    }
}
