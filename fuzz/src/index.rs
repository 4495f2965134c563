//! Programs of index operations against a map of keys: every metric, engine, filter, single queries and batches. Keys are
//! small integers: scores are exact, ties are many. Cosines are not exact; they are held against f64.

use crate::Budget;
use arbitrary::{Result, Unstructured};
use iceformer_core::Status;
use iceformer_core::dci::{Engine, Index, IndexOptions, Metric, Neighbor, QueryOptions, Scratch};
use iceformer_core::math::hash;
use iceformer_core::mem::Rows;
use std::collections::{BTreeMap, BTreeSet};

type Model = BTreeMap<u64, Vec<f32>>;

struct Run<'a> {
    index: Index,
    model: Model,
    next: u64,
    o: IndexOptions,
    budget: &'a Budget,
}

pub fn run(data: &[u8]) {
    let budget = Budget::new(64 << 20);
    // Bytes that end too soon end the program.
    let _ = program(&mut Unstructured::new(data), &budget);
    assert_eq!(budget.live.get(), 0, "leaked");
}

fn program(u: &mut Unstructured<'_>, budget: &Budget) -> Result<()> {
    let o = IndexOptions {
        metric: *u.choose(&[Metric::L2, Metric::InnerProduct, Metric::Cosine])?,
        engine: *u.choose(&[Engine::Auto, Engine::Auto, Engine::Walk, Engine::Scan, Engine::Cells])?,
        num_simple: u.int_in_range(0..=5)?,
        num_composite: u.int_in_range(0..=3)?,
        levels: u.int_in_range(0..=4)?,
        promotion: f32::from(u.int_in_range(0u8..=9)?) / 10.0,
        seed: u64::from(u.arbitrary::<u8>()?),
        capacity: u.int_in_range(0..=64)?,
        fixed: u.ratio(1, 8)?,
        max_norm: f32::from(u.int_in_range(0u8..=3)?),
        ..IndexOptions::new(u.int_in_range(1..=9)?)
    };
    let Some(memory) = budget.memory() else { return Ok(()) };
    let index = Index::new_in(&o, &memory).expect("valid options and enough memory");
    let mut run = Run { index, model: Model::new(), next: 0, o, budget };
    // Enough for everything; programs without end only take time.
    for _ in 0..60 {
        if u.is_empty() {
            break;
        }
        run.step(u)?;
        assert_eq!((run.index.len(), run.index.next_id()), (run.model.len(), run.next));
    }
    Ok(())
}

impl Run<'_> {
    fn vector(&self, u: &mut Unstructured<'_>) -> Result<Vec<f32>> {
        (0..self.o.dim).map(|_| Ok(f32::from(u.int_in_range(-2i8..=2)?))).collect()
    }

    fn step(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=9)? {
            0..=2 => self.insert(u)?,
            3 => self.remove(u)?,
            4 => {
                let n = u.int_in_range(0..=800)?;
                match self.index.reserve(n) {
                    Ok(()) => assert!(self.index.capacity() >= n),
                    Err(e) => assert!(self.o.fixed && e.status == Status::Capacity, "{e}"),
                }
            }
            5 if u.ratio(1, 4)? => {
                self.index.clear();
                self.model.clear();
                self.next = 0;
            }
            6 => self.saved(),
            7 => self.starved(u)?,
            _ => self.ask(u)?,
        }
        Ok(())
    }

    fn rows(&self, u: &mut Unstructured<'_>) -> Result<(Vec<f32>, Option<Vec<u64>>)> {
        // Sometimes as many as cells take to come to be, from one byte.
        let many = self.model.len() < 700 && u.ratio(1, 8)?;
        let (n, seed) =
            if many { (u.int_in_range(200..=700)?, u.arbitrary::<u8>()?) } else { (u.int_in_range(0..=40)?, 0) };
        let mut keys = Vec::new();
        for i in 0..n {
            if n <= 40 {
                keys.extend(self.vector(u)?);
            } else {
                let coordinate = |j| (hash(u64::from(seed), (i * self.o.dim + j) as u64) >> 40) as i64 % 5 - 2;
                keys.extend((0..self.o.dim).map(|j| coordinate(j) as f32));
            }
        }
        let ids = if n <= 40 && u.arbitrary()? {
            Some((0..n).map(|_| Ok(u64::from(u.arbitrary::<u8>()?))).collect::<Result<_>>()?)
        } else {
            None
        };
        Ok((keys, ids))
    }

    /// What an insertion must answer when memory suffices.
    fn verdict(&self, n: usize, ids: Option<&[u64]>) -> Option<Status> {
        if self.o.fixed && self.model.len() + n > self.index.capacity() {
            return Some(Status::Capacity);
        }
        let ids = ids?;
        let unique: BTreeSet<_> = ids.iter().collect();
        (unique.len() != n || ids.iter().any(|id| self.model.contains_key(id))).then_some(Status::Duplicate)
    }

    fn inserted(&mut self, keys: &[f32], ids: Option<&[u64]>) {
        for (i, key) in keys.chunks(self.o.dim).enumerate() {
            let id = ids.map_or(self.next, |ids| ids[i]);
            self.next = self.next.max(id + 1);
            self.model.insert(id, key.to_vec());
        }
    }

    fn insert(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (keys, ids) = self.rows(u)?;
        let n = keys.len() / self.o.dim;
        let want = self.verdict(n, ids.as_deref());
        let rows = Rows::new(&keys, self.o.dim).expect("whole rows");
        match (self.index.insert(rows, ids.as_deref()), want) {
            (Ok(()), None) => self.inserted(&keys, ids.as_deref()),
            // Several things may be wrong at once; which is named first is not promised.
            (Err(e), Some(_)) => assert!(matches!(e.status, Status::Capacity | Status::Duplicate), "{e}"),
            (have, want) => panic!("insert of {n}: {have:?} instead of {want:?}"),
        }
        Ok(())
    }

    fn remove(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let n = u.int_in_range(0..=30)?;
        let ids: Vec<u64> = (0..n).map(|_| Ok(u64::from(u.arbitrary::<u8>()?))).collect::<Result<_>>()?;
        let unique: BTreeSet<_> = ids.iter().copied().collect();
        if u.arbitrary()? {
            let fine = unique.len() == n && ids.iter().all(|id| self.model.contains_key(id));
            match self.index.remove(&ids) {
                Ok(()) if fine => self.model.retain(|id, _| !unique.contains(id)),
                Err(e) if !fine => assert!(matches!(e.status, Status::NotFound | Status::Duplicate), "{e}"),
                have => panic!("remove {ids:?}: {have:?}"),
            }
        } else {
            let before = self.model.len();
            self.model.retain(|id, _| !unique.contains(id));
            assert_eq!(self.index.remove_present(&ids), before - self.model.len());
        }
        Ok(())
    }

    /// An insertion whose memory runs out after some blocks: done or refused, never half.
    fn starved(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (keys, ids) = self.rows(u)?;
        let n = keys.len() / self.o.dim;
        self.budget.blocks.set(u.int_in_range(0..=12)?);
        let rows = Rows::new(&keys, self.o.dim).expect("whole rows");
        let have = self.index.insert(rows, ids.as_deref());
        self.budget.blocks.set(usize::MAX);
        match (have, self.verdict(n, ids.as_deref())) {
            (Ok(()), None) => self.inserted(&keys, ids.as_deref()),
            (Err(e), want) => assert!(e.status == Status::NoMemory || want.is_some(), "{e}"),
            (have, want) => panic!("starved insert of {n}: {have:?} instead of {want:?}"),
        }
        Ok(())
    }

    fn score(&self, key: &[f32], q: &[f32]) -> f64 {
        let pairs = || key.iter().zip(q).map(|(a, b)| (f64::from(*a), f64::from(*b)));
        // A sum of nothing but -0.0 is -0.0, which counts as 0.0.
        let dot = pairs().map(|(a, b)| a * b).sum::<f64>() + 0.0;
        match self.o.metric {
            Metric::L2 => pairs().map(|(a, b)| (a - b) * (a - b)).sum(),
            Metric::InnerProduct => dot,
            Metric::Cosine => {
                let norms: f64 = pairs().map(|(a, _)| a * a).sum::<f64>() * pairs().map(|(_, b)| b * b).sum::<f64>();
                if norms > 0.0 { dot / norms.sqrt() } else { 0.0 }
            }
        }
    }

    /// All keys that `o` admits, best first, equal scores by id.
    fn truth(&self, q: &[f32], o: &QueryOptions<'_>) -> Vec<(u64, f64)> {
        let inside = |id: u64| {
            let range = id >= o.id_begin && (o.id_end == 0 || id < o.id_end);
            range && o.filter.is_none_or(|f| f.get((id / 8) as usize).is_some_and(|b| b >> (id % 8) & 1 == 1))
        };
        let found = self.model.iter().filter(|(id, _)| inside(**id));
        let mut all: Vec<_> = found.map(|(&id, key)| (id, self.score(key, q))).collect();
        let sign = if self.o.metric == Metric::L2 { 1.0 } else { -1.0 };
        all.sort_by(|a, b| (sign * a.1).total_cmp(&(sign * b.1)).then(a.0.cmp(&b.0)));
        all
    }

    fn ask(&self, u: &mut Unstructured<'_>) -> Result<()> {
        // Single queries, some, and more than a panel of tiles.
        let n = *u.choose(&[1, 1, 1, 3, 3, 5, 5, 60])?;
        let mut q = Vec::new();
        for _ in 0..n.min(5) {
            q.extend(self.vector(u)?);
        }
        q = q.iter().copied().cycle().take(n * self.o.dim).collect();
        let k = u.int_in_range(1..=50)?;
        let begin = if u.arbitrary()? { u64::from(u.arbitrary::<u8>()?) } else { 0 };
        let end = if u.arbitrary()? { begin + u64::from(u.arbitrary::<u8>()?) } else { 0 };
        let bits: Option<Vec<u8>> = if u.ratio(1, 3)? {
            let bytes = u.int_in_range(0..=90)?;
            Some((0..bytes).map(|_| u.arbitrary()).collect::<Result<_>>()?)
        } else {
            None
        };
        let free = QueryOptions { id_begin: begin, id_end: end, filter: bits.as_deref(), ..QueryOptions::unlimited(k) };
        let tight = QueryOptions {
            visit: u.int_in_range(0..=20)?,
            retrieve: u.int_in_range(0..=20)?,
            field_of_view: u.int_in_range(0..=5)?,
            ..QueryOptions { retrieve_fraction: 0.0, visit_fraction: 0.0, ..free }
        };
        let truth: Vec<_> = q.chunks(self.o.dim).map(|q| self.truth(q, &free)).collect();
        let zero = self.o.metric != Metric::L2 && q.chunks(self.o.dim).any(|q| q.iter().all(|&x| x == 0.0));
        let want = if zero { Err(Status::Argument) } else { Ok(()) };
        let memory = self.budget.memory().expect("enough");
        let mut scratch = Scratch::new_in(&self.index, &memory).expect("enough");
        let Some(exact) = self.answers(&mut scratch, &q, &free, true, want) else { return Ok(()) };
        self.hold(&exact, &truth, k, true);
        for engine in [Engine::Auto, Engine::Walk, Engine::Scan, Engine::Cells] {
            let (lists, cells) =
                (self.o.engine != Engine::Cells, matches!(self.o.engine, Engine::Auto | Engine::Cells));
            let there = if engine == Engine::Cells { cells } else { lists || engine == Engine::Auto };
            let want = if there { want } else { Err(Status::Unsupported) };
            let Some(got) = self.answers(&mut scratch, &q, &QueryOptions { engine, ..free }, false, want) else {
                continue;
            };
            assert_eq!(got, exact, "{engine:?}");
            // Under a budget: true keys with true scores, in order, no key twice.
            if let Some(got) = self.answers(&mut scratch, &q, &QueryOptions { engine, ..tight }, false, want) {
                self.hold(&got, &truth, k, false);
            }
        }
        Ok(())
    }

    /// Answers of every query, each against all keys in order of merit; `all` if none may be missing.
    fn hold(&self, got: &[Vec<Neighbor>], truth: &[Vec<(u64, f64)>], k: usize, all: bool) {
        let off = if self.o.metric == Metric::Cosine { 1e-5 } else { 0.0 };
        for (got, truth) in got.iter().zip(truth) {
            assert!(!all || got.len() == truth.len().min(k), "{got:?} instead of {truth:?}");
            let scores: BTreeMap<u64, f64> = truth.iter().copied().collect();
            let ids: BTreeSet<u64> = got.iter().map(|n| n.id).collect();
            assert_eq!(ids.len(), got.len(), "twice: {got:?}");
            for (n, best) in got.iter().zip(truth) {
                let score = *scores.get(&n.id).unwrap_or_else(|| panic!("{n:?} is no answer"));
                assert!((f64::from(n.score) - score).abs() <= off, "{n:?} instead of {score}");
                assert!(!all || (score - best.1).abs() <= 2.0 * off, "{got:?} instead of {truth:?}");
                assert!(!all || off > 0.0 || n.id == best.0, "{got:?} instead of {truth:?}");
            }
            let sign = if self.o.metric == Metric::L2 { 1.0 } else { -1.0 };
            assert!(got.is_sorted_by(|a, b| (sign * a.score, a.id) < (sign * b.score, b.id)), "order of {got:?}");
        }
    }

    fn answers(
        &self,
        scratch: &mut Scratch,
        q: &[f32],
        o: &QueryOptions<'_>,
        exact: bool,
        want: std::result::Result<(), Status>,
    ) -> Option<Vec<Vec<Neighbor>>> {
        let rows = Rows::new(q, self.o.dim).expect("whole rows");
        let untouched = Neighbor { id: 1 << 40, score: 0.5 };
        let (mut out, mut counts) = (vec![untouched; rows.rows() * o.k], vec![u32::MAX; rows.rows()]);
        let done = if exact {
            self.index.query_exact(scratch, rows, o, &mut out, Some(&mut counts))
        } else {
            self.index.query(scratch, rows, o, &mut out, Some(&mut counts))
        };
        match (done, want) {
            (Ok(()), Ok(())) => Some(out.chunks(o.k).zip(counts).map(|(out, n)| out[..n as usize].to_vec()).collect()),
            // Several things may be wrong at once.
            (Err(e), Err(_)) if matches!(e.status, Status::Argument | Status::Unsupported) => {
                assert!(out.iter().all(|n| *n == untouched) && counts.iter().all(|&c| c == u32::MAX));
                None
            }
            (have, want) => panic!("query: {have:?} instead of {want:?}"),
        }
    }

    /// Saved and loaded, the index is another one with the same answers.
    fn saved(&mut self) {
        let mut bytes = vec![0; self.index.save_len()];
        assert_eq!(self.index.save(&mut bytes), Ok(bytes.len()));
        let memory = self.budget.memory().expect("enough");
        self.index = Index::load(&bytes, &memory).expect("what was saved loads");
        let mut again = vec![0; self.index.save_len()];
        assert_eq!(self.index.save(&mut again), Ok(again.len()));
        assert_eq!(bytes, again, "saved again, other bytes");
    }
}
