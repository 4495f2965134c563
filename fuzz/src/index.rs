//! Programs of index operations against a map of keys. Keys are small integers: scores are exact, ties are many.

use crate::Budget;
use arbitrary::{Result, Unstructured};
use iceformer_core::Status;
use iceformer_core::dci::{Engine, Index, IndexOptions, Metric, Neighbor, QueryOptions, Scratch};
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
        metric: if u.arbitrary()? { Metric::L2 } else { Metric::InnerProduct },
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
    while !u.is_empty() {
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
                let n = u.int_in_range(0..=300)?;
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
        let n = u.int_in_range(0..=40)?;
        let mut keys = Vec::new();
        for _ in 0..n {
            keys.extend(self.vector(u)?);
        }
        let ids = if u.arbitrary()? {
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

    fn truth(&self, q: &[f32], range: (u64, u64)) -> Vec<Neighbor> {
        let inside = |id: u64| id >= range.0 && (range.1 == 0 || id < range.1);
        let l2 = self.o.metric == Metric::L2;
        let score = |key: &[f32]| -> f32 {
            let terms = key.iter().zip(q);
            0.0 + if l2 { terms.map(|(a, b)| (a - b) * (a - b)).sum::<f32>() } else { terms.map(|(a, b)| a * b).sum() }
        };
        let found = self.model.iter().filter(|(id, _)| inside(**id));
        let mut all: Vec<_> = found.map(|(&id, key)| Neighbor { id, score: score(key) }).collect();
        let sign = if l2 { 1.0 } else { -1.0 };
        all.sort_by(|a, b| (sign * a.score).total_cmp(&(sign * b.score)).then(a.id.cmp(&b.id)));
        all
    }

    fn ask(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let q = self.vector(u)?;
        let k = u.int_in_range(1..=50)?;
        let begin = if u.arbitrary()? { u64::from(u.arbitrary::<u8>()?) } else { 0 };
        let end = if u.arbitrary()? { begin + u64::from(u.arbitrary::<u8>()?) } else { 0 };
        let free = QueryOptions { id_begin: begin, id_end: end, ..QueryOptions::unlimited(k) };
        let mut truth = self.truth(&q, if begin == 0 && end == 0 { (0, 0) } else { (begin, end) });
        let all: BTreeMap<u64, f32> = truth.iter().map(|n| (n.id, n.score)).collect();
        truth.truncate(k);
        let tight = QueryOptions {
            visit: u.int_in_range(0..=20)?,
            retrieve: u.int_in_range(0..=20)?,
            field_of_view: u.int_in_range(0..=5)?,
            ..QueryOptions { retrieve_fraction: 0.0, visit_fraction: 0.0, ..free }
        };
        let zero = self.o.metric == Metric::InnerProduct && q.iter().all(|&x| x == 0.0);
        for engine in [Engine::Auto, Engine::Walk, Engine::Scan] {
            let got = self.answers(&q, &QueryOptions { engine, ..free }, false, zero);
            assert!(zero || got == truth, "{engine:?}: {got:?} instead of {truth:?}");
            // Under a budget: true keys with true scores, in order, no key twice.
            let got = self.answers(&q, &QueryOptions { engine, ..tight }, false, zero);
            let place: Vec<_> = got.iter().map(|n| truth_place(&all, n, self.o.metric)).collect();
            assert!(place.is_sorted_by(|a, b| a < b), "{engine:?}: {got:?}");
        }
        let got = self.answers(&q, &free, true, zero);
        assert!(zero || got == truth, "exact: {got:?} instead of {truth:?}");
        Ok(())
    }

    fn answers(&self, q: &[f32], o: &QueryOptions, exact: bool, zero: bool) -> Vec<Neighbor> {
        let memory = self.budget.memory().expect("enough");
        let mut scratch = Scratch::new_in(&self.index, &memory).expect("enough");
        let (mut out, mut counts) = (vec![Neighbor::default(); o.k], [0]);
        let rows = Rows::new(q, q.len()).expect("a row");
        let done = if exact {
            self.index.query_exact(&mut scratch, rows, o, &mut out, Some(&mut counts))
        } else {
            self.index.query(&mut scratch, rows, o, &mut out, Some(&mut counts))
        };
        match done {
            Err(e) if zero => assert_eq!(e.status, Status::Argument, "{e}"),
            Err(e) => panic!("query: {e}"),
            Ok(()) => out.truncate(counts[0] as usize),
        }
        if done.is_err() {
            out.clear();
        }
        out
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

/// Where an answer stands in the order of answers.
fn truth_place(all: &BTreeMap<u64, f32>, n: &Neighbor, metric: Metric) -> (i64, u64) {
    assert_eq!(all.get(&n.id), Some(&n.score), "{n:?} is no answer");
    let sign = if metric == Metric::L2 { 1.0 } else { -1.0 };
    ((sign * n.score) as i64, n.id)
}
