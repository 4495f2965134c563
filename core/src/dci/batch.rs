//! Exact answers to many queries at once: keys against panels of queries in register tiles. The tiles only sift; what
//! passes is scored by the kernel that single queries use, so that answers and ties are those of brute force, bit by bit.

use super::chunk::Chunk;
use super::lists::{Allowed, Entry};
use super::params::Metric;
use super::slots::NO_ID;
use super::tunables::{ENTRIES_A_STEP, KEYS_A_BLOCK};
use super::{Index, Neighbor};
use crate::mem::Rows;
use crate::project::Lift;
use crate::simd::codes::{Catch, Rerank, Sieve};
use crate::simd::tile::PANEL;

/// Keys caught for the queries of one panel.
struct Nets<'a> {
    index: &'a Index,
    allowed: Allowed<'a>,
    rows: &'a [f32],
    entries: &'a mut [Entry],
    len: &'a mut [u32],
    limit: &'a mut [f32; PANEL],
    room: usize,
    keep: usize,
    /// Relative rounding error that the limits leave room for.
    slack: f32,
}

impl Catch for Nets<'_> {
    fn limits(&self) -> &[f32; PANEL] {
        self.limit
    }

    fn take(&mut self, key: u32, mut bits: u64) {
        let id = self.index.ids[key as usize];
        if id == NO_ID || !self.allowed.admits(id) {
            return;
        }
        while bits != 0 {
            let lane = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            let list = &mut self.entries[lane * self.room..][..self.room];
            // Not a number: to be scored.
            list[self.len[lane] as usize] = Entry { score: f32::NAN, at: key };
            self.len[lane] += 1;
            if self.len[lane] as usize == self.room {
                self.settle(lane);
            }
        }
    }
}

impl Nets<'_> {
    /// Scores what a list has caught since and leaves the best `keep`, equal scores by id.
    fn settle(&mut self, lane: usize) {
        let index = self.index;
        let query = &self.rows[lane * index.dim()..][..index.dim()];
        let list = &mut self.entries[lane * self.room..][..self.len[lane] as usize];
        // Entries scored before come first.
        let fresh = list.iter().position(|e| e.score.is_nan()).unwrap_or(list.len());
        index.score_entries(query, &mut list[fresh..]);
        if list.len() < self.keep || self.keep == 0 {
            return;
        }
        let (_, worst, _) = list.select_nth_unstable_by(self.keep - 1, |a, b| index.by_id(a, b));
        let worst = worst.score;
        self.len[lane] = self.keep as u32;
        let norm2 = Lift::norm2(query);
        let limit = match index.options.metric {
            Metric::L2 => (norm2 + worst) / 2.0 - self.slack * norm2,
            _ => worst,
        };
        self.limit[lane] = limit - limit.abs() * 1e-6 - f32::MIN_POSITIVE;
    }
}

impl Index {
    /// Better first, equal scores by smaller id.
    pub(super) fn by_id(&self, a: &Entry, b: &Entry) -> core::cmp::Ordering {
        b.score.total_cmp(&a.score).then_with(|| self.ids[a.at as usize].cmp(&self.ids[b.at as usize]))
    }

    /// Exact scores of the keys in slots `at`, higher is better.
    pub(super) fn score_entries(&self, query: &[f32], entries: &mut [Entry]) {
        let l2 = self.options.metric == Metric::L2;
        let sign = if l2 { -1.0 } else { 1.0 };
        for part in entries.chunks_mut(ENTRIES_A_STEP) {
            let (mut at, mut scores) = ([0; ENTRIES_A_STEP], [0.0; ENTRIES_A_STEP]);
            at.iter_mut().zip(part.iter()).for_each(|(at, e)| *at = e.at);
            let (at, out) = (&at[..part.len()], &mut scores[..part.len()]);
            self.isa.run(Rerank { rows: &self.keys, dim: self.dim(), at, query, l2, out });
            // +0.0: one zero only, so that ties are ties.
            part.iter_mut().zip(out).for_each(|(e, x)| e.score = sign * *x + 0.0);
        }
    }

    /// Answers of one query from scored entries; the rest of `out` is filled.
    pub(super) fn answer(&self, list: &mut [Entry], out: &mut [Neighbor]) -> u32 {
        let l2 = self.options.metric == Metric::L2;
        list.sort_unstable_by(|a, b| self.by_id(a, b));
        out.fill(self.nothing());
        let n = list.len().min(out.len());
        for (o, e) in out.iter_mut().zip(list.iter()) {
            *o = Neighbor { id: self.ids[e.at as usize], score: if l2 { -e.score } else { e.score } };
        }
        n as u32
    }

    /// The `k` best keys of queries `0..n` of `batch.rows`, into `out` (`n x k`). O(n len dim), never allocates.
    pub(super) fn exact_chunk(
        &self,
        batch: &mut Chunk,
        n: usize,
        k: usize,
        allowed: Allowed<'_>,
        out: &mut [Neighbor],
        mut counts: Option<&mut [u32]>,
    ) {
        let dim = self.dim();
        let l2 = self.options.metric == Metric::L2;
        let keep = k.min(self.len());
        let room = batch.room(keep, self.len());
        batch.pack(self.isa, dim, n);
        batch.len[..n].fill(0);
        // Lanes without a query catch nothing.
        batch.limit.fill(f32::INFINITY);
        batch.limit[..n].fill(f32::NEG_INFINITY);
        let slots = self.ids.len();
        // Of both ways of adding up, with room for the norms.
        let slack = (dim + 16) as f32 * f32::EPSILON;
        let panels = n.div_ceil(PANEL);
        let mut spread = [0.0; PANEL];
        for lo in (0..if keep > 0 { slots } else { 0 }).step_by(KEYS_A_BLOCK) {
            for p in 0..panels {
                let count = (n - p * PANEL).min(PANEL);
                let rows = &batch.rows[p * PANEL * dim..][..count * dim];
                for (s, row) in spread.iter_mut().zip(rows.chunks_exact(dim)) {
                    *s = libm::sqrtf(Lift::norm2(row)) * slack;
                }
                let Some(limit) = batch.limit[p * PANEL..].first_chunk_mut() else { continue };
                let mut nets = Nets {
                    index: self,
                    allowed,
                    rows,
                    entries: &mut batch.entries[p * PANEL * room..][..count * room],
                    len: &mut batch.len[p * PANEL..][..count],
                    limit,
                    room,
                    keep,
                    slack,
                };
                let Ok(keys) = Rows::new(&self.keys, dim) else { continue };
                self.isa.run(Sieve {
                    panel: &batch.panels[p * dim * PANEL..][..dim * PANEL],
                    keys,
                    lo,
                    hi: (lo + KEYS_A_BLOCK).min(slots),
                    lanes: count,
                    norm2: &self.norm2,
                    half: if l2 { 0.5 - slack } else { 0.0 },
                    spread: &spread,
                    room: &mut batch.product,
                    catch: &mut nets,
                });
                if lo + KEYS_A_BLOCK >= slots {
                    (0..count).for_each(|lane| nets.settle(lane));
                }
            }
        }
        for row in 0..n {
            let list = &mut batch.entries[row * room..][..batch.len[row] as usize];
            let count = self.answer(list, &mut out[row * k..][..k]);
            if let Some(counts) = counts.as_deref_mut() {
                counts[row] = count;
            }
        }
    }
}
