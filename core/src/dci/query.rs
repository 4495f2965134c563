//! Queries: levels from the top down, candidates scored by their true inner product or distance.

use super::Index;
use super::index::NO_ID;
use super::level::ROOT;
use super::params::{Engine, MAX_NORM, Metric, Neighbor, QueryOptions};
use super::scratch::{Budget, Scratch};
use super::search::Place;
use crate::error::{Error, Result, Status, reserved};
use crate::mem::Rows;
use crate::project::Lift;
use core::ops::Range;

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
        options: &QueryOptions,
        out: &mut [Neighbor],
        counts: Option<&mut [u32]>,
    ) -> Result<()> {
        self.run(scratch, queries, options, out, counts, Index::search)
    }

    /// Brute force over all keys: the oracle, with the contract of [`query`](Index::query). Budgets are ignored.
    ///
    /// # Errors
    /// As [`query`](Index::query).
    pub fn query_exact(
        &self,
        scratch: &mut Scratch,
        queries: Rows<'_>,
        options: &QueryOptions,
        out: &mut [Neighbor],
        counts: Option<&mut [u32]>,
    ) -> Result<()> {
        self.run(scratch, queries, options, out, counts, Index::search_exact)
    }

    fn run(
        &self,
        scratch: &mut Scratch,
        queries: Rows<'_>,
        options: &QueryOptions,
        out: &mut [Neighbor],
        mut counts: Option<&mut [u32]>,
        search: fn(&Index, &mut Scratch, &QueryOptions),
    ) -> Result<()> {
        let o = options.resolve()?;
        scratch.check(self)?;
        let n = queries.rows();
        if queries.cols() != self.dim() {
            return Err(Error::new(Status::Shape, "queries", "row size is not the index's dim")
                .need(self.dim(), queries.cols()));
        }
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
        if !self.options.trusted
            && let Some(row) = queries.first_not_finite()
        {
            return Err(Error::new(Status::NotFinite, "queries", "holds NaN or infinity").row(row));
        }
        for row in 0..n {
            queries.read(row, &mut scratch.query);
            self.check_query(&scratch.query).map_err(|e| e.row(row))?;
        }
        let nothing = Neighbor {
            id: NO_ID,
            score: if self.options.metric == Metric::L2 { f32::INFINITY } else { f32::NEG_INFINITY },
        };
        for row in 0..n {
            queries.read(row, &mut scratch.query);
            search(self, scratch, &o);
            let answers = &mut out[row * o.k..][..o.k];
            answers.fill(nothing);
            let sorted = scratch.top.into_sorted();
            for (a, item) in answers.iter_mut().zip(sorted) {
                *a = Neighbor {
                    id: item.id,
                    score: if self.options.metric == Metric::L2 { -item.score } else { item.score },
                };
            }
            if let Some(counts) = counts.as_deref_mut() {
                counts[row] = sorted.len() as u32;
            }
        }
        Ok(())
    }

    fn check_query(&self, query: &[f32]) -> Result<()> {
        let norm2 = Lift::norm2(query);
        if norm2 >= MAX_NORM * MAX_NORM {
            return Err(Error::new(Status::NotFinite, "queries", "norm is 1e18 or more"));
        }
        if norm2 == 0.0 && self.options.metric == Metric::InnerProduct && query.iter().all(|&x| x == 0.0) {
            return Err(Error::new(Status::Argument, "queries", "zero norm: no direction under the inner product"));
        }
        Ok(())
    }

    /// Most parents any level has now.
    pub(super) fn parents_len(&self) -> usize {
        self.levels[1].members.len()
    }

    /// Level by level: the entries kept at one level are the cells searched at the next. Leaves the answers for
    /// `scratch.query` in `scratch.top`.
    pub(crate) fn search(&self, scratch: &mut Scratch, o: &QueryOptions) {
        let Scratch { query, proj, .. } = scratch;
        self.projector.query(query, &self.lift, proj);
        for level in (0..self.options.levels).rev() {
            let leaf = level == 0;
            self.look_down(scratch, level);
            let points = self.points_in_view(scratch, level);
            let keep = if leaf { o.k } else { o.field_of_view }.min(points);
            let ids = if leaf { o.id_begin..o.id_end } else { 0..NO_ID };
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
    fn look_down(&self, scratch: &mut Scratch, level: usize) {
        let parents = if level + 1 < self.options.levels { self.levels[level + 1].members.len() } else { 0 };
        scratch.view.clear();
        if parents == 0 {
            reserved(scratch.view.push(ROOT));
            return;
        }
        for item in scratch.top.into_sorted() {
            reserved(scratch.view.push(item.slot));
        }
    }

    fn points_in_view(&self, scratch: &Scratch, level: usize) -> usize {
        let l = &self.levels[level];
        match scratch.view[..] {
            [ROOT] => l.lists[0].len(),
            _ => scratch.view.iter().map(|&cell| self.levels[level + 1].population[cell as usize] as usize).sum(),
        }
    }

    /// Scores the candidates and keeps the best `keep`.
    fn score(&self, scratch: &mut Scratch, keep: usize) {
        let Scratch { query, found, scores, top, .. } = scratch;
        scores.clear();
        reserved(scores.resize(found.len(), 0.0));
        match self.options.metric {
            Metric::InnerProduct => self.isa.dots_at(&self.keys, self.dim(), found, query, scores),
            Metric::L2 => self.isa.sq_dists_at(&self.keys, self.dim(), found, query, scores),
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
    pub(crate) fn search_exact(&self, scratch: &mut Scratch, o: &QueryOptions) {
        scratch.found.clear();
        for (slot, id) in self.ids.iter().enumerate() {
            if *id != NO_ID && (o.id_begin..o.id_end).contains(id) {
                reserved(scratch.found.push(slot as u32));
            }
        }
        self.score(scratch, o.k.min(self.len()));
    }

    /// Candidates that one composite index gives for one query at one level of a plain (one-level) index, in the order
    /// in which the engine finds them, as ids written to `out`; returns how many. For tests and measurements of the
    /// retrieval itself.
    ///
    /// # Errors
    /// As [`query`](Index::query); `Unsupported` with more than one level; `Argument` for an unknown composite or an
    /// automatic engine; `Buffer` when `out` is too small.
    pub fn candidates(
        &self,
        scratch: &mut Scratch,
        query: &[f32],
        composite: usize,
        options: &QueryOptions,
        out: &mut [u64],
    ) -> Result<usize> {
        let o = options.resolve()?;
        scratch.check(self)?;
        if self.options.levels != 1 {
            return Err(Error::new(Status::Unsupported, "levels", "candidates are defined for one level"));
        }
        if o.engine == Engine::Auto || composite >= self.options.num_composite {
            return Err(Error::new(Status::Argument, "engine", "name an engine and an existing composite index"));
        }
        if query.len() != self.dim() {
            return Err(
                Error::new(Status::Shape, "query", "length is not the index's dim").need(self.dim(), query.len())
            );
        }
        self.check_query(query)?;
        scratch.query.copy_from_slice(query);
        let Scratch { query, proj, .. } = scratch;
        self.projector.query(query, &self.lift, proj);
        self.look_down(scratch, 0);
        let points = self.points_in_view(scratch, 0);
        let budget = Budget::new(&o, points, self.options.num_simple, 0);
        let ids: Range<u64> = o.id_begin..o.id_end;
        scratch.found.clear();
        scratch.picked.begin();
        self.collect(scratch, Place { level: 0, composite, ids: &ids }, &budget);
        let n = scratch.found.len();
        let need = Error::new(Status::Buffer, "out", "too small").need(n, out.len());
        let out = out.get_mut(..n).ok_or(need)?;
        out.iter_mut().zip(scratch.found.iter()).for_each(|(o, &slot)| *o = self.id_at(slot));
        Ok(n)
    }
}
