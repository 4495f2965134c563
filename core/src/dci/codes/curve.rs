//! How many cells to look into and how many keys to score exactly for a recall: measured, not guessed.

use super::effort::{Effort, Found};
use super::search::Ranked;
use super::{Codes, Keys, NONE, PANEL};
use crate::dci::lists::Entry;
use crate::dci::tunables::{
    COST_CANDIDATE, COST_CELL, COST_CODED_KEY, COST_COORDINATE, COST_EXACT_KEY, COST_MEAN, COST_PLACE, HELD_QUERIES,
    OWN_NEIGHBOURS, OWN_QUESTIONS, PAYS_BELOW, RECALL_MARGIN, RECALLS, USUAL_RECALLS, WANTED,
};
use crate::math::hash;
use crate::simd::Isa;
use crate::simd::codes::{Catch, Pack, Sieve};

/// Most questions: own keys, or sample queries.
const MOST_QUESTIONS: usize = if HELD_QUERIES > OWN_QUESTIONS { HELD_QUERIES } else { OWN_QUESTIONS };
/// Neighbours that are looked for, at most.
pub(super) const MEASURED: usize = MOST_QUESTIONS * OWN_NEIGHBOURS;

/// Efforts by neighbours wanted and recall.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::dci) struct Curve {
    best: [[Effort; RECALLS.len()]; WANTED.len()],
}

impl Curve {
    /// The effort for `k` neighbours at a recall.
    pub fn effort(&self, k: usize, target: f32) -> Effort {
        let Some(t) = RECALLS.iter().position(|&t| t >= target) else { return Effort::EXACT };
        let row = WANTED.iter().position(|&w| w >= k).unwrap_or(WANTED.len() - 1);
        let e = self.best[row][t];
        if e == Effort::EXACT {
            return Effort::EXACT;
        }
        // Beyond what was measured, further neighbours lie as much further down.
        e.times(k.div_ceil(WANTED[row]))
    }
}

/// What things cost, in multiply-adds of f32.
#[derive(Clone, Copy, Debug)]
pub(in crate::dci) struct Cost {
    pub keys: f32,
    pub dim: f32,
    pub rank: f32,
    pub cells: f32,
    pub tail: f32,
    /// Of a coordinate of a code.
    pub coordinate: f32,
}

impl Cost {
    fn exact(&self) -> f32 {
        self.keys * (self.dim + COST_EXACT_KEY)
    }

    /// Of a query that looks into `probe` cells and scores `scored` keys.
    fn of(&self, probe: f32, scored: f32) -> f32 {
        let key = self.rank * self.coordinate + COST_CODED_KEY;
        let find = self.rank * self.dim + self.cells * (self.rank + COST_MEAN);
        let candidate = COST_CANDIDATE.0 * self.dim + COST_CANDIDATE.1;
        find + (probe * self.keys / self.cells + self.tail) * key + probe * COST_CELL + scored * candidate
    }

    /// The cheapest effort that finds a share `target` of the neighbours measured, `near` of every query. `room` is as long as
    /// `found`. O(found log cells).
    pub fn choose(&self, found: &[Found], near: usize, target: f32, room: &mut [u32]) -> Effort {
        self.cheapest(found, near, [target], room)[0].1
    }

    /// The same for several targets, and what each costs as a share of scoring every key.
    fn cheapest<const N: usize>(
        &self,
        found: &[Found],
        near: usize,
        targets: [f32; N],
        room: &mut [u32],
    ) -> [(f32, Effort); N] {
        let want = targets.map(|t| libm::ceilf((t + RECALL_MARGIN * (1.0 - t)) * found.len() as f32) as usize);
        let asked = (found.len() / near.max(1)) as f32;
        let mut best = [(PAYS_BELOW * self.exact(), Effort::EXACT); N];
        let mut probe = 1;
        loop {
            for (found, codes) in found.chunks_exact(near).zip(room.chunks_exact_mut(near)) {
                // Those in cells that are not looked into are never reached.
                let code = |f: &Found| if f.cells < probe { f.codes } else { u32::MAX };
                codes.iter_mut().zip(found).for_each(|(c, f)| *c = code(f));
                codes.sort_unstable();
            }
            let mut reached = 0;
            for patience in (1..12).map(|i| 4u32 << i) {
                let (mut hits, mut scored, mut most) = (0, 0.0, 0);
                for codes in room[..found.len()].chunks_exact(near) {
                    let mut last = near as u32 - 1;
                    for &code in codes.iter().take_while(|&&c| c != u32::MAX) {
                        if code > last.saturating_add(patience) {
                            break;
                        }
                        hits += 1;
                        last = last.max(code);
                    }
                    let end = last.saturating_add(patience).saturating_add(1).min(self.keys as u32);
                    scored += end as f32;
                    most = most.max(end);
                }
                let cost = self.of(probe as f32, scored / asked) + most as f32 * COST_PLACE;
                // Less patience did for the others.
                for (i, (best, &want)) in best.iter_mut().zip(&want).enumerate() {
                    if hits >= want && reached >> i & 1 == 0 {
                        reached |= 1 << i;
                        if cost < best.0 {
                            *best = (cost, Effort { probe, keep: most, patience });
                        }
                    }
                }
                if reached == (1 << N) - 1 {
                    break;
                }
            }
            if probe as f32 >= self.cells {
                break;
            }
            probe = (probe + probe.div_ceil(4)).min(self.cells as u32);
        }
        best.map(|(cost, effort)| (cost / self.exact(), effort))
    }
}

/// What a fold asks its keys for.
#[derive(Clone, Copy)]
enum Questions<'a> {
    /// Keys themselves: the nearest of the others.
    Keys(&'a [u32]),
    /// Packed queries.
    Queries(&'a [f32]),
}

impl<'a> Questions<'a> {
    fn row(self, keys: Keys<'a>, i: usize) -> &'a [f32] {
        match self {
            Questions::Keys(slots) => &keys.keys[slots[i] as usize * keys.dim..][..keys.dim],
            Questions::Queries(rows) => &rows[i * keys.dim..][..keys.dim],
        }
    }

    /// The slot that is no answer to question `i`.
    fn own(self, i: usize) -> Option<u32> {
        match self {
            Questions::Keys(slots) => Some(slots[i]),
            Questions::Queries(_) => None,
        }
    }
}

/// The nearest keys of a few questions.
struct Near<'a> {
    keys: Keys<'a>,
    /// Position by slot: of keys that are not arranged there is none.
    place: &'a [u32],
    questions: Questions<'a>,
    asked: usize,
    limits: [f32; PANEL],
    /// `[asked][OWN_NEIGHBOURS]`.
    best: &'a mut [Entry],
}

impl Catch for Near<'_> {
    fn limits(&self) -> &[f32; PANEL] {
        &self.limits
    }

    fn take(&mut self, key: u32, mut bits: u64) {
        if self.place[key as usize] == NONE {
            return;
        }
        while bits != 0 {
            let lane = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if lane >= self.asked || self.questions.own(lane) == Some(key) {
                continue;
            }
            let product = self.keys.isa.dot(self.questions.row(self.keys, lane), self.keys.key(key));
            let half = if self.keys.l2 { 0.5 * self.keys.norm2[key as usize] } else { 0.0 };
            let score = product - half;
            let best = &mut self.best[lane * OWN_NEIGHBOURS..][..OWN_NEIGHBOURS];
            if score > best[OWN_NEIGHBOURS - 1].score {
                let at = best.partition_point(|e| e.score >= score);
                best[at..].rotate_right(1);
                best[at] = Entry { score, at: key };
                self.limits[lane] = best[OWN_NEIGHBOURS - 1].score;
            }
        }
    }
}

impl Codes {
    /// What scanning costs here.
    pub fn cost(&self, keys: &Keys<'_>, live: usize) -> Cost {
        Cost {
            keys: live as f32,
            dim: keys.dim as f32,
            rank: self.rank as f32,
            cells: self.count as f32,
            tail: self.tail as f32,
            coordinate: if keys.isa == Isa::Avx512Vnni { COST_COORDINATE.0 } else { COST_COORDINATE.1 },
        }
    }

    /// The effort that the last fold found for `k` neighbours at a recall.
    pub fn effort(&self, k: usize, target: f32) -> Effort {
        self.curve.effort(k, target)
    }

    /// Asks some sample queries, or else for some of the keys, themselves excluded, and notes what finding their neighbours
    /// would have taken. Returns what that costs as a share of scoring every key, a product over the usual recalls.
    pub(super) fn measure_itself(&mut self, keys: Keys<'_>, live: usize) -> f32 {
        let dim = keys.dim;
        let mut slots = [0; OWN_QUESTIONS];
        for (i, a) in slots.iter_mut().enumerate() {
            *a = self.work.live[(hash(keys.seed ^ 0x6173_6b65, i as u64) % live as u64) as usize];
        }
        let held = self.asked.held(dim);
        let questions = if held.is_empty() { Questions::Keys(&slots) } else { Questions::Queries(held) };
        let asked = if held.is_empty() { OWN_QUESTIONS } else { held.len() / dim };
        let mut best = self.work.best.take();
        best.fill(Entry { score: f32::NEG_INFINITY, at: 0 });
        let mut near =
            Near { keys, place: &self.place, questions, asked, limits: [f32::INFINITY; PANEL], best: &mut best };
        near.limits[..asked].fill(f32::NEG_INFINITY);
        let w = &mut self.work;
        let mut at = [0; MOST_QUESTIONS];
        at.iter_mut().enumerate().for_each(|(i, a)| *a = questions.own(i.min(asked - 1)).unwrap_or(i as u32));
        let rows = if held.is_empty() { keys.keys } else { held };
        keys.isa.run(Pack { rows, stride: dim, cols: dim, at: &at[..asked], out: &mut w.panel });
        let Ok(rows) = crate::mem::Rows::new(keys.keys, dim) else { return 1.0 };
        keys.isa.run(Sieve {
            panel: &w.panel,
            keys: rows,
            lo: 0,
            hi: keys.ids.len(),
            lanes: asked,
            norm2: keys.norm2,
            half: if keys.l2 { 0.5 } else { 0.0 },
            spread: &[0.0; PANEL],
            room: &mut w.product,
            catch: &mut near,
        });
        let (mut dense, mut ranks, mut found) = (w.dense.take(), w.product.take(), w.found.take());
        let (found_all, pairs) = found.split_at_mut(MEASURED);
        for (i, (best, found)) in
            best.chunks_exact(OWN_NEIGHBOURS).zip(found_all.chunks_exact_mut(OWN_NEIGHBOURS)).enumerate()
        {
            if i < asked {
                let room = Ranked { dense: &mut dense, ranks: &mut ranks };
                let truth = best.iter().map(|e| e.at);
                found.fill(Found::default());
                self.rank_found(keys, questions.row(keys, i), questions.own(i), truth, room, found);
            }
        }
        let cost = self.cost(&keys, live);
        let mut usual = 1.0;
        for (row, &k) in self.curve.best.iter_mut().zip(&WANTED) {
            let mut n = 0;
            for f in found_all.chunks_exact(OWN_NEIGHBOURS).take(asked).flat_map(|f| &f[..k]) {
                pairs[n] = *f;
                n += 1;
            }
            let all = cost.cheapest(&pairs[..n], k, RECALLS, &mut self.work.codes);
            for ((best, (share, effort)), target) in row.iter_mut().zip(all).zip(RECALLS) {
                *best = effort;
                if k == OWN_NEIGHBOURS && USUAL_RECALLS.contains(&target) {
                    usual *= share;
                }
            }
        }
        (self.work.dense, self.work.product, self.work.found, self.work.best) = (dense, ranks, found, best);
        usual
    }
}
