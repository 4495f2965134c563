//! The index against a model: brute force over a plain map of keys.
#![allow(unsafe_code)]

mod common;

use common::memory;
use iceformer_core::Status;
use iceformer_core::dci::{Engine, Index, IndexOptions, Metric, Neighbor, QueryOptions, Scratch};
use iceformer_core::features::{LEVELS, MESSAGES};
use iceformer_core::mem::{Memory, Plan, Rows};
use iceformer_core::simd::Isa;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Model = BTreeMap<u64, Vec<f32>>;

/// Of as many levels as the build has.
fn options(dim: usize, metric: Metric, levels: usize) -> IndexOptions {
    let levels = if LEVELS { levels } else { 1 };
    IndexOptions { metric, levels, num_simple: 3, num_composite: 2, promotion: 0.3, seed: 7, ..IndexOptions::new(dim) }
}

fn scratch(index: &Index) -> Scratch {
    Scratch::new_in(index, &memory(0)).unwrap()
}

/// Small integers: sums are exact in f32, so that scores and ties are the same however they are added up.
fn model_answer(model: &Model, metric: Metric, q: &[f32], k: usize, ids: std::ops::Range<u64>) -> Vec<Neighbor> {
    let mut all: Vec<Neighbor> = model
        .iter()
        .filter(|(id, _)| ids.contains(id))
        .map(|(&id, key)| {
            let score: f32 = match metric {
                Metric::InnerProduct => key.iter().zip(q).map(|(a, b)| a * b).sum(),
                Metric::L2 => key.iter().zip(q).map(|(a, b)| (a - b) * (a - b)).sum(),
                Metric::Cosine => unreachable!("norms are not exact in f32"),
            };
            // One zero, as the index has it: -0.0 and 0.0 tie.
            Neighbor { id, score: score + 0.0 }
        })
        .collect();
    let sign = if metric == Metric::L2 { 1.0 } else { -1.0 };
    all.sort_by(|a, b| (sign * a.score).total_cmp(&(sign * b.score)).then(a.id.cmp(&b.id)));
    all.truncate(k);
    all
}

fn ask(index: &Index, q: &[f32], o: &QueryOptions) -> Vec<Neighbor> {
    let (mut out, mut counts) = (vec![Neighbor::default(); o.k], [0]);
    index.query(&mut scratch(index), Rows::new(q, q.len()).unwrap(), o, &mut out, Some(&mut counts)).unwrap();
    out.truncate(counts[0] as usize);
    out
}

fn ask_exact(index: &Index, q: &[f32], o: &QueryOptions) -> Vec<Neighbor> {
    let (mut out, mut counts) = (vec![Neighbor::default(); o.k], [0]);
    index.query_exact(&mut scratch(index), Rows::new(q, q.len()).unwrap(), o, &mut out, Some(&mut counts)).unwrap();
    out.truncate(counts[0] as usize);
    out
}

#[derive(Clone, Debug)]
enum Op {
    Insert(Vec<(u64, Vec<i8>)>),
    Append(Vec<Vec<i8>>),
    Remove(Vec<u64>),
    Reserve(usize),
    Clear,
}

const DIM: usize = 5;

fn key() -> impl Strategy<Value = Vec<i8>> {
    // Few values: many equal keys, norms, projections and scores.
    prop::collection::vec(-2i8..3, DIM)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => prop::collection::vec((0u64..200, key()), 1..60).prop_map(Op::Insert),
        3 => prop::collection::vec(key(), 1..20).prop_map(Op::Append),
        4 => prop::collection::vec(0u64..260, 1..40).prop_map(Op::Remove),
        1 => (0usize..300).prop_map(Op::Reserve),
        1 => Just(Op::Clear),
    ]
}

fn floats(key: &[i8]) -> Vec<f32> {
    key.iter().map(|&x| f32::from(x)).collect()
}

/// Runs a program on index and model; refused calls must leave both as they were.
fn run(index: &mut Index, model: &mut Model, ops: &[Op]) {
    let mut next = 0;
    for op in ops {
        match op {
            Op::Insert(rows) => {
                let ids: Vec<u64> = rows.iter().map(|r| r.0).collect();
                let keys: Vec<f32> = rows.iter().flat_map(|r| floats(&r.1)).collect();
                let mut unique = ids.clone();
                unique.sort_unstable();
                unique.dedup();
                let fresh = unique.len() == ids.len() && ids.iter().all(|id| !model.contains_key(id));
                let result = index.insert(Rows::new(&keys, DIM).unwrap(), Some(&ids));
                assert_eq!(result.map_err(|e| e.status), if fresh { Ok(()) } else { Err(Status::Duplicate) });
                if fresh {
                    next = ids.iter().fold(next, |n, id| n.max(id + 1));
                    model.extend(rows.iter().map(|(id, k)| (*id, floats(k))));
                }
            }
            Op::Append(rows) => {
                let keys: Vec<f32> = rows.iter().flat_map(|r| floats(r)).collect();
                index.insert(Rows::new(&keys, DIM).unwrap(), None).unwrap();
                for row in rows {
                    model.insert(next, floats(row));
                    next += 1;
                }
            }
            Op::Remove(ids) => {
                let present = ids.iter().all(|id| model.contains_key(id));
                if !present {
                    let before = index.len();
                    assert_eq!(index.remove(ids).unwrap_err().status, Status::NotFound);
                    assert_eq!(index.len(), before);
                }
                let mut gone = 0;
                for id in ids {
                    gone += usize::from(model.remove(id).is_some());
                }
                assert_eq!(index.remove_present(ids), gone);
            }
            Op::Reserve(n) => index.reserve(*n).unwrap(),
            Op::Clear => {
                index.clear();
                model.clear();
                next = 0;
            }
        }
        assert_eq!(index.len(), model.len());
        assert_eq!(index.next_id(), next);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

    /// After any program: unlimited visits give brute force, by either engine, at any number of levels.
    #[test]
    fn unlimited_is_brute_force(
        ops in prop::collection::vec(op(), 1..12),
        q in key().prop_filter("a query needs a direction", |q| q.iter().any(|&x| x != 0)),
        k in 1usize..40, levels in 1usize..5, l2: bool,
        range in (0u64..120, 120u64..300),
    ) {
        let metric = if l2 { Metric::L2 } else { Metric::InnerProduct };
        let (mut index, mut model) = (Index::new_in(&options(DIM, metric, levels), &memory(0)).unwrap(), Model::new());
        run(&mut index, &mut model, &ops);
        let q = floats(&q);
        for engine in [Engine::Auto, Engine::Walk, Engine::Scan] {
            for ids in [0..u64::MAX, range.0..range.1] {
                let o = QueryOptions { engine, id_begin: ids.start, id_end: ids.end, ..QueryOptions::unlimited(k) };
                let want = model_answer(&model, metric, &q, k, ids);
                prop_assert_eq!(&ask(&index, &q, &o), &want);
                prop_assert_eq!(&ask_exact(&index, &q, &o), &want);
            }
        }
        for (id, key) in &model {
            prop_assert_eq!(index.key(*id), Some(&key[..]));
        }
    }

    /// The order of insertion, the batching and keys that came and went do not change an answer's bits, whatever the
    /// budget and the number of levels.
    #[test]
    fn order_does_not_matter(
        keys in prop::collection::vec(prop::collection::vec(-4.0f32..4.0, DIM), 2..150),
        shuffle in any::<u64>(), chunk in 1usize..50, levels in 1usize..5, l2: bool,
    ) {
        let metric = if l2 { Metric::L2 } else { Metric::InnerProduct };
        let mut one = Index::new_in(&options(DIM, metric, levels), &memory(0)).unwrap();
        for (id, key) in keys.iter().enumerate() {
            one.insert(Rows::new(key, DIM).unwrap(), Some(&[id as u64])).unwrap();
        }
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|&i| (i as u64 ^ shuffle).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut other = Index::new_in(&options(DIM, metric, levels), &memory(0)).unwrap();
        // Passers-by of no larger norm: the norm bound keeps what it has seen.
        let passers: Vec<f32> = keys.iter().take(20).flat_map(|k| k.iter().map(|x| x * 0.5)).collect();
        let passer_ids: Vec<u64> = (0..(passers.len() / DIM) as u64).map(|i| 1000 + i).collect();
        other.insert(Rows::new(&passers, DIM).unwrap(), Some(&passer_ids)).unwrap();
        for part in order.chunks(chunk) {
            let rows: Vec<f32> = part.iter().flat_map(|&i| keys[i].clone()).collect();
            let ids: Vec<u64> = part.iter().map(|&i| i as u64).collect();
            other.insert(Rows::new(&rows, DIM).unwrap(), Some(&ids)).unwrap();
        }
        other.remove(&passer_ids).unwrap();
        let bits = |n: Vec<Neighbor>| n.into_iter().map(|n| (n.id, n.score.to_bits())).collect::<Vec<_>>();
        let loaded = {
            let mut bytes = vec![0; one.save_len()];
            one.save(&mut bytes).unwrap();
            Index::load(&bytes, &memory(0)).unwrap()
        };
        for q in keys.iter().filter(|q| q.iter().any(|&x| x != 0.0)).take(10) {
            for (retrieve, field_of_view) in [(1, 1), (5, 2), (40, 4)] {
                for engine in [Engine::Auto, Engine::Walk, Engine::Scan] {
                    let o = QueryOptions { retrieve, field_of_view, engine, ..QueryOptions::new(8) };
                    let want = bits(ask(&one, q, &o));
                    prop_assert_eq!(&bits(ask(&other, q, &o)), &want);
                    prop_assert_eq!(&bits(ask(&loaded, q, &o)), &want);
                }
            }
        }
    }
}

/// Deterministic floats in [-1, 1).
fn noise(n: usize, seed: u64) -> Vec<f32> {
    (0..n).map(|i| (iceformer_core::math::hash(seed, i as u64) >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

#[test]
fn every_instruction_set_finds_the_same_neighbours() {
    let keys = noise(400 * 24, 1);
    let q = noise(24, 2);
    let mut answers = Vec::new();
    for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
        let o = IndexOptions { isa: Some(isa), levels: 1 + usize::from(LEVELS), ..IndexOptions::new(24) };
        let mut index = Index::new_in(&o, &memory(0)).unwrap();
        index.insert(Rows::new(&keys, 24).unwrap(), None).unwrap();
        let found = ask(&index, &q, &QueryOptions::unlimited(20));
        answers.push(found.iter().map(|n| n.id).collect::<Vec<_>>());
    }
    assert!(answers.len() > 1 || !cfg!(target_arch = "x86_64"), "this machine should have a vector set");
    assert!(answers.windows(2).all(|w| w[0] == w[1]));
}

#[test]
fn region_of_the_planned_size_holds_an_index_and_one_byte_less_does_not() {
    for levels in 1..4 {
        for capacity in [0, 1, 7, 100, 1000] {
            let o = IndexOptions { capacity, ..options(9, Metric::InnerProduct, levels) };
            let mut plan = Plan::new();
            Memory::plan(&mut plan);
            Index::plan(&o, &mut plan).unwrap();
            let layout = plan.finish().unwrap();
            let mut store = vec![0xa5u8; layout.bytes + 64];
            let start = store.as_ptr().align_offset(64);
            let base = std::ptr::NonNull::new(store[start..].as_mut_ptr()).unwrap();
            // SAFETY: `store` outlives the index and is not touched meanwhile.
            let memory = unsafe { Memory::region(base, layout.bytes - 1) };
            assert!(memory.is_err() || Index::new_in(&o, &memory.unwrap()).is_err());
            // SAFETY: as above; the first memory is gone.
            let memory = unsafe { Memory::region(base, layout.bytes) }.unwrap();
            let mut index = Index::new_in(&o, &memory).unwrap();
            assert_eq!(memory.report().used, layout.bytes, "the plan is exact");
            // Churn at full capacity: nothing may allocate.
            let keys = noise(capacity * 9, 3);
            for round in 0..3 {
                for (i, key) in keys.chunks(9).enumerate() {
                    let id = (round * 10_000 + i) as u64;
                    index.insert(Rows::new(key, 9).unwrap(), Some(&[id])).unwrap();
                }
                let full = index.insert(Rows::new(&[0.5; 9], 9).unwrap(), Some(&[77_777])).unwrap_err();
                assert_eq!(full.status, Status::Capacity);
                let ids: Vec<u64> = (0..capacity).map(|i| (round * 10_000 + i) as u64).collect();
                index.remove(&ids).unwrap();
            }
            index.insert(Rows::new(&keys, 9).unwrap(), None).unwrap();
            assert_eq!(index.len(), capacity);
        }
    }
}

#[test]
fn refused_inserts_leave_everything_as_it_was() {
    let mut index = Index::new_in(&options(3, Metric::InnerProduct, 2), &memory(0)).unwrap();
    index.insert(Rows::new(&noise(30, 4), 3).unwrap(), None).unwrap();
    index.remove(&[2, 5]).unwrap();
    let before = ask(&index, &[1.0, 2.0, 3.0], &QueryOptions::new(10));
    let mut check = |keys: &[f32], ids: Option<&[u64]>, status: Status| {
        let e = index.insert(Rows::new(keys, 3).unwrap(), ids).unwrap_err();
        assert_eq!(e.status, status, "{e}");
        assert_eq!((index.len(), index.next_id()), (8, 10));
        assert_eq!(ask(&index, &[1.0, 2.0, 3.0], &QueryOptions::new(10)), before);
    };
    let huge = [0.0, 0.0, 0.0, 1e19, 0.0, 0.0];
    check(&huge, None, Status::NotFinite);
    check(&huge, Some(&[70, 71]), Status::NotFinite);
    check(&[1.0, f32::NAN, 0.0], None, Status::NotFinite);
    check(&[1.0; 6], Some(&[50, 50]), Status::Duplicate);
    check(&[1.0; 12], Some(&[50, 51, 52, 50]), Status::Duplicate);
    check(&[1.0; 3], Some(&[3]), Status::Duplicate);
    check(&[1.0; 3], Some(&[u64::MAX]), Status::Argument);
    check(&[1.0; 3], Some(&[1, 2]), Status::Shape);
    assert_eq!(index.remove(&[1, 1]).unwrap_err().status, Status::Duplicate);
    assert_eq!(index.remove(&[1, 2]).unwrap_err().status, Status::NotFound);
    assert_eq!(index.len(), 8);
    index.insert(Rows::new(&[0.5; 9], 3).unwrap(), None).unwrap();
    assert_eq!((index.len(), index.next_id()), (11, 13));
}

#[test]
fn damaged_and_foreign_bytes_are_refused() {
    let mut index = Index::new_in(&options(3, Metric::L2, 2), &memory(0)).unwrap();
    index.insert(Rows::new(&noise(60, 5), 3).unwrap(), None).unwrap();
    let mut bytes = vec![0; index.save_len()];
    assert_eq!(index.save(&mut vec![0; bytes.len() - 1]).unwrap_err().status, Status::Buffer);
    assert_eq!(index.save(&mut bytes).unwrap(), bytes.len());
    assert_eq!(Index::load(&bytes, &memory(0)).unwrap().len(), 20);
    // Miri takes a thousand times as long.
    for at in (0..bytes.len()).step_by(if cfg!(miri) { 197 } else { 1 }) {
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        assert_eq!(Index::load(&bad, &memory(0)).err().map(|e| e.status), Some(Status::Buffer), "byte {at}");
        assert_eq!(Index::load(&bytes[..at], &memory(0)).err().map(|e| e.status), Some(Status::Buffer), "cut at {at}");
    }
    bytes.push(0);
    assert!(Index::load(&bytes, &memory(0)).is_err());
}

#[test]
fn larger_norms_grow_the_bound_and_keep_answers() {
    let (mut index, mut model) =
        (Index::new_in(&options(4, Metric::InnerProduct, 1), &memory(0)).unwrap(), Model::new());
    for i in 0..if cfg!(miri) { 40 } else { 200 } {
        let key: Vec<f32> = (0..4).map(|j| ((i * 7 + j * 3) % 11) as f32 * (1.0 + (i / 20) as f32)).collect();
        index.insert(Rows::new(&key, 4).unwrap(), None).unwrap();
        model.insert(i, key);
        if i % 20 == 19 {
            let q = [3.0, -1.0, 2.0, 1.0];
            let want = model_answer(&model, Metric::InnerProduct, &q, 15, 0..u64::MAX);
            for engine in [Engine::Walk, Engine::Scan] {
                assert_eq!(ask(&index, &q, &QueryOptions { engine, ..QueryOptions::unlimited(15) }), want);
            }
        }
    }
}

#[test]
fn a_query_says_what_is_wrong_and_writes_nothing() {
    let mut index = Index::new_in(&options(3, Metric::InnerProduct, 1), &memory(0)).unwrap();
    let mut early = scratch(&index);
    index.insert(Rows::new(&noise(300, 6), 3).unwrap(), None).unwrap();
    let mut s = scratch(&index);
    let mark = Neighbor { id: 42, score: 42.0 };
    let ask = |s: &mut Scratch, q: &[f32], o: QueryOptions, room: usize| {
        let mut out = vec![mark; room];
        let mut counts = [9u32; 2];
        let e = index.query(s, Rows::new(q, q.len().min(3)).unwrap(), &o, &mut out, Some(&mut counts)).unwrap_err();
        assert!(out.iter().all(|n| *n == mark) && counts == [9; 2]);
        e
    };
    let ok = [1.0, 2.0, 3.0];
    let two = |bad: [f32; 3]| [ok, bad].concat();
    assert_eq!(ask(&mut early, &ok, QueryOptions::new(1), 1).status, Status::Capacity);
    assert_eq!(ask(&mut s, &[1.0, 2.0], QueryOptions::new(1), 1).status, Status::Shape);
    assert_eq!(ask(&mut s, &ok, QueryOptions::new(2), 1).status, Status::Buffer);
    assert_eq!(ask(&mut s, &ok, QueryOptions::new(0), 1).status, Status::Argument);
    let e = ask(&mut s, &two([1.0, f32::INFINITY, 0.0]), QueryOptions::new(1), 2);
    assert_eq!((e.status, e.to_string().contains("row 1")), (Status::NotFinite, MESSAGES));
    let e = ask(&mut s, &two([0.0; 3]), QueryOptions::new(1), 2);
    assert_eq!((e.status, e.to_string().contains("row 1")), (Status::Argument, MESSAGES));
    let bad = QueryOptions { id_begin: 5, id_end: 4, ..QueryOptions::new(1) };
    assert_eq!(ask(&mut s, &ok, bad, 1).status, Status::Argument);
    let bad = QueryOptions { target_recall: f32::NAN, ..QueryOptions::new(1) };
    assert_eq!(ask(&mut s, &ok, bad, 1).status, Status::Argument);
}

/// Many keys are the query: all distances along all lists are zero, and both ways visit them in the same order.
#[test]
fn ties_are_visited_in_one_order() {
    let (dim, n) = (4, 120);
    let mut keys = noise(n * dim, 5);
    let q = noise(dim, 6);
    keys.chunks_mut(dim).step_by(2).for_each(|row| row.copy_from_slice(&q));
    for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
        let mut index = Index::new_in(&options(dim, metric, 1), &memory(0)).unwrap();
        index.insert(Rows::new(&keys, dim).unwrap(), None).unwrap();
        for visit in 1..150 {
            for retrieve in [3, 20, 200] {
                let o = |engine| QueryOptions { engine, visit, retrieve, ..QueryOptions::new(30) };
                assert_eq!(ask(&index, &q, &o(Engine::Walk)), ask(&index, &q, &o(Engine::Scan)), "{visit} {retrieve}");
            }
        }
    }
}
