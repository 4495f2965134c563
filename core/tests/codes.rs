//! Batches against the index: exact ones are brute force bit by bit, cells keep the recall asked for, whatever has come and
//! gone.
#![allow(unsafe_code)]

mod common;

use common::{TAKEN, memory, noise};
use half::f16;
use iceformer_core::Status;
use iceformer_core::dci::{Engine, Index, IndexOptions, Metric, Neighbor, QueryOptions, Scratch};
use iceformer_core::mem::{Memory, Plan, Rows};
use iceformer_core::simd::Isa;
use std::sync::atomic::Ordering::Relaxed;

const METRICS: [Metric; 3] = [Metric::InnerProduct, Metric::L2, Metric::Cosine];

fn index(options: &IndexOptions, keys: &[f32]) -> Index {
    let mut index = Index::new_in(options, &memory(0)).unwrap();
    index.insert(Rows::new(keys, options.dim).unwrap(), None).unwrap();
    index
}

fn ask(index: &Index, queries: &[f32], o: &QueryOptions<'_>, exact: bool) -> (Vec<Neighbor>, Vec<u32>) {
    let mut scratch = Scratch::new_in(index, &memory(0)).unwrap();
    let rows = Rows::new(queries, index.dim()).unwrap();
    let (mut out, mut counts) = (vec![Neighbor::default(); rows.rows() * o.k], vec![0; rows.rows()]);
    if exact {
        index.query_exact(&mut scratch, rows, o, &mut out, Some(&mut counts)).unwrap();
    } else {
        index.query(&mut scratch, rows, o, &mut out, Some(&mut counts)).unwrap();
    }
    (out, counts)
}

fn bits(all: &[Neighbor]) -> Vec<(u64, u32)> {
    all.iter().map(|n| (n.id, n.score.to_bits())).collect()
}

/// Brute force over the keys that an index holds, with the kernel that scores single pairs.
fn naive(index: &Index, query: &[f32], o: &QueryOptions<'_>) -> Vec<Neighbor> {
    let isa = index.isa();
    let end = if o.id_end == 0 { u64::MAX } else { o.id_end };
    let admits = |id: u64| {
        o.filter.is_none_or(|f| f.get(id as usize / 8).is_some_and(|b| b >> (id % 8) & 1 == 1))
            && (o.id_begin..end).contains(&id)
    };
    let l2 = index.options().metric == Metric::L2;
    let mut all: Vec<Neighbor> = index
        .ids()
        .filter(|&id| admits(id))
        .map(|id| {
            let key = index.key(id).unwrap();
            Neighbor { id, score: if l2 { isa.sq_dist(key, query) } else { isa.dot(key, query) } + 0.0 }
        })
        .collect();
    let sign = if l2 { 1.0 } else { -1.0 };
    all.sort_by(|a, b| (sign * a.score).total_cmp(&(sign * b.score)).then(a.id.cmp(&b.id)));
    all.truncate(o.k);
    all
}

fn unit(x: &[f32]) -> Vec<f32> {
    let norm = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    x.iter().map(|x| (f64::from(*x) / norm) as f32).collect()
}

/// Points about centers: what cells are for.
fn clustered(n: usize, dim: usize, centers: usize, seed: u64) -> Vec<f32> {
    let middle = noise(centers * dim, 77, 1.0);
    let mut x = noise(n * dim, seed, 0.4);
    for (i, row) in x.chunks_exact_mut(dim).enumerate() {
        let c = &middle[(i * 31 + seed as usize) % centers * dim..][..dim];
        row.iter_mut().zip(c).for_each(|(x, c)| *x += c);
    }
    x
}

/// Few distinct values: equal keys and scores everywhere.
fn coarse(n: usize, dim: usize, seed: u64) -> Vec<f32> {
    noise(n * dim, seed, 1.5).iter().map(|x| x.round()).collect()
}

#[test]
fn exact_batches_are_brute_force_bit_by_bit() {
    let bitmap: Vec<u8> = (0..60).map(|i| (i * 37) as u8).collect();
    for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
        for metric in METRICS {
            for (n, dim, k, coarsely) in
                [(700, 33, 10, false), (300, 3, 5, true), (900, 8, 40, true), (90, 64, 100, false)]
            {
                let keys = if coarsely { coarse(n, dim, 1) } else { noise(n * dim, 1, 3.0) };
                let options = IndexOptions { metric, isa: Some(isa), engine: Engine::Cells, ..IndexOptions::new(dim) };
                let mut index = index(&options, &keys);
                index.remove_present(&(0..n as u64).step_by(7).collect::<Vec<_>>());
                let mut queries = noise(101 * dim, 2, 3.0);
                if coarsely {
                    queries = coarse(101, dim, 2);
                    queries.iter_mut().step_by(dim).for_each(|x| *x += 4.0);
                }
                let plain = QueryOptions::new(k);
                let range = QueryOptions { id_begin: 40, id_end: 250, ..plain };
                let filtered = QueryOptions { filter: Some(&bitmap), ..plain };
                for o in [plain, range, filtered] {
                    let (out, counts) = ask(&index, &queries, &o, true);
                    for (i, q) in queries.chunks_exact(dim).enumerate() {
                        let one = ask(&index, q, &o, true);
                        let got = &out[i * k..][..counts[i] as usize];
                        assert_eq!(bits(got), bits(&one.0[..one.1[0] as usize]), "batch and single");
                        if metric != Metric::Cosine {
                            assert_eq!(bits(got), bits(&naive(&index, q, &o)), "{isa:?} {metric:?} {n} {dim}");
                        } else {
                            let want = naive(&index, &unit(q), &o);
                            let close = |(a, b): (&Neighbor, &Neighbor)| (a.score - b.score).abs() < 1e-5;
                            assert!(got.len() == want.len() && got.iter().zip(&want).all(close));
                        }
                        assert!(out[i * k..][..k][counts[i] as usize..].iter().all(|n| n.id == u64::MAX));
                    }
                }
            }
        }
    }
}

#[test]
fn half_precision_queries_are_what_they_widen_to() {
    let (keys, queries) = (noise(800 * 12, 1, 1.0), noise(60 * 12, 2, 1.0));
    let halves: Vec<f16> = queries.iter().map(|&x| f16::from_f32(x)).collect();
    let wide: Vec<f32> = halves.iter().map(|x| x.to_f32()).collect();
    let index = index(&IndexOptions { engine: Engine::Cells, ..IndexOptions::new(12) }, &keys);
    let mut scratch = Scratch::new_in(&index, &memory(0)).unwrap();
    for exact in [true, false] {
        let mut out = vec![Neighbor::default(); 60 * 4];
        let (rows, o) = (Rows::new(&halves, 12).unwrap(), QueryOptions::new(4));
        if exact {
            index.query_exact(&mut scratch, rows, &o, &mut out, None).unwrap();
        } else {
            index.query(&mut scratch, rows, &o, &mut out, None).unwrap();
        }
        assert_eq!(bits(&out), bits(&ask(&index, &wide, &o, exact).0));
    }
}

fn recall(index: &Index, queries: &[f32], o: &QueryOptions<'_>) -> f64 {
    let ((found, _), (truth, _)) = (ask(index, queries, o, false), ask(index, queries, o, true));
    let hit = |(f, t): (&[Neighbor], &[Neighbor])| f.iter().filter(|f| t.iter().any(|t| t.id == f.id)).count();
    let hits: usize = found.chunks_exact(o.k).zip(truth.chunks_exact(o.k)).map(hit).sum();
    hits as f64 / truth.len() as f64
}

#[test]
fn the_recall_asked_for_is_reached() {
    for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
        for metric in METRICS {
            for (dim, n) in [(40, 6000), (150, 3000), (3, 2000)] {
                let keys = clustered(n, dim, 30, 1);
                let options = IndexOptions { metric, isa: Some(isa), engine: Engine::Cells, ..IndexOptions::new(dim) };
                let index = index(&options, &keys);
                // A batch that is measured on itself, and one for which the keys must do.
                for rows in [600, 150] {
                    let queries = clustered(rows, dim, 30, 2);
                    for target in [0.8, 0.95, 0.99] {
                        let o = QueryOptions { target_recall: target, ..QueryOptions::new(10) };
                        let r = recall(&index, &queries, &o);
                        let floor = f64::from(target) - if rows == 600 { 0.02 } else { 0.05 };
                        assert!(r >= floor, "{isa:?} {metric:?} {dim} {rows}: {r} of {target}");
                    }
                }
            }
        }
    }
}

#[test]
fn budgets_are_obeyed() {
    let (dim, keys, queries) = (24, clustered(5000, 24, 20, 1), clustered(100, 24, 20, 3));
    for metric in METRICS {
        let index = index(&IndexOptions { metric, engine: Engine::Cells, ..IndexOptions::new(dim) }, &keys);
        let exact = bits(&ask(&index, &queries, &QueryOptions::new(10), true).0);
        // Everything visited and scored is everything.
        assert_eq!(bits(&ask(&index, &queries, &QueryOptions::unlimited(10), false).0), exact);
        let mut last = 0.0;
        for (visit, retrieve) in [(130, 10), (500, 20), (2000, 40), (5000, 200)] {
            let r = recall(&index, &queries, &QueryOptions { visit, retrieve, ..QueryOptions::new(10) });
            assert!(r >= last - 0.01, "{metric:?}: {r} after {last}");
            last = r;
        }
        assert!(last > 0.99, "{metric:?}: {last}");
    }
}

/// Keys come one by one and in batches and go, half of them and more: what is left is found as well as ever.
#[test]
fn churn_keeps_recall() {
    let dim = 32;
    for metric in METRICS {
        let all = clustered(9000, dim, 40, 1);
        let queries = clustered(200, dim, 40, 2);
        let options = IndexOptions { metric, engine: Engine::Cells, seed: 5, ..IndexOptions::new(dim) };
        let mut index = index(&options, &all[..4000 * dim]);
        let o = QueryOptions { target_recall: 0.95, ..QueryOptions::new(10) };
        let mut next = 4000;
        for round in 0..5u64 {
            let gone: Vec<u64> =
                index.ids().filter(|&id| iceformer_core::math::hash(round, id).is_multiple_of(3)).collect();
            index.remove(&gone).unwrap();
            for part in 0..(gone.len() / 7).min(1000 / 7) {
                let n = if part % 2 == 0 { 1 } else { 13 };
                index.insert(Rows::new(&all[next * dim..][..n * dim], dim).unwrap(), None).unwrap();
                next += n;
            }
            let r = recall(&index, &queries, &o);
            assert!(r >= 0.9, "{metric:?} round {round}: {r}");
        }
        assert!(index.len() < 9000 && next > 8000, "{next}");
        // Nothing that went is ever an answer; everything that is there can be.
        let (found, _) = ask(&index, &queries, &o, false);
        assert!(found.iter().all(|n| index.contains(n.id)));
        let rest: Vec<u64> = index.ids().skip(100).collect();
        index.remove(&rest).unwrap();
        assert_eq!(recall(&index, &queries, &o), 1.0, "too few for cells: exact");
        index.clear();
        assert_eq!(ask(&index, &queries, &o, false).1, vec![0; 200]);
        index.insert(Rows::new(&all[..4000 * dim], dim).unwrap(), None).unwrap();
        assert!(recall(&index, &queries, &o) >= 0.9);
    }
}

#[test]
fn ranges_and_bitmaps_hold_for_every_engine() {
    let (dim, keys, queries) = (16, clustered(4000, 16, 25, 1), clustered(40, 16, 25, 2));
    let index = index(&IndexOptions { metric: Metric::L2, ..IndexOptions::new(dim) }, &keys);
    let half: Vec<u8> = vec![0b0101_0101; 500];
    let few: Vec<u8> = (0..500).map(|i| u8::from(i % 13 == 0)).collect();
    for engine in [Engine::Auto, Engine::Walk, Engine::Scan, Engine::Cells] {
        for (filter, id_begin, id_end) in
            [(Some(&half), 0, 0), (Some(&few), 0, 0), (None, 1000, 1400), (Some(&half), 7, 3000)]
        {
            let filter = filter.map(Vec::as_slice);
            let o = QueryOptions { engine, filter, id_begin, id_end, ..QueryOptions::new(10) };
            let (found, counts) = ask(&index, &queries, &o, false);
            for (row, &count) in found.chunks_exact(10).zip(&counts) {
                assert!(count > 0);
                for n in &row[..count as usize] {
                    assert!(n.id >= id_begin && (id_end == 0 || n.id < id_end));
                    assert!(filter.is_none_or(|f| f[n.id as usize / 8] >> (n.id % 8) & 1 == 1));
                }
            }
            let r = recall(&index, &queries, &o);
            assert!(r > 0.8, "{engine:?} {id_begin}: {r}");
        }
        // Bits that are not there refuse.
        let o = QueryOptions { engine, filter: Some(&[]), ..QueryOptions::new(3) };
        assert_eq!(ask(&index, &queries, &o, false).1, vec![0; 40]);
    }
}

#[test]
fn same_seed_same_bits_and_saved_indices_answer_alike() {
    let (keys, queries) = (clustered(3000, 20, 15, 1), clustered(700, 20, 15, 2));
    for metric in METRICS {
        for engine in [Engine::Cells, Engine::Auto] {
            let options = IndexOptions { metric, engine, seed: 11, ..IndexOptions::new(20) };
            let one = index(&options, &keys);
            let o = QueryOptions::new(10);
            let want = bits(&ask(&one, &queries, &o, false).0);
            assert_eq!(bits(&ask(&index(&options, &keys), &queries, &o, false).0), want);
            let mut bytes = vec![0; one.save_len()];
            one.save(&mut bytes).unwrap();
            let loaded = Index::load(&bytes, &memory(0)).unwrap();
            assert_eq!(loaded.options().engine, engine);
            assert_eq!(bits(&ask(&loaded, &queries, &o, false).0), want);
        }
    }
}

#[test]
fn what_an_index_was_not_made_for_is_refused() {
    let keys = noise(600 * 8, 1, 1.0);
    let q = Rows::new(&keys[..8], 8).unwrap();
    for (kept, asked) in [(Engine::Cells, Engine::Walk), (Engine::Cells, Engine::Scan), (Engine::Walk, Engine::Cells)] {
        let index = index(&IndexOptions { engine: kept, ..IndexOptions::new(8) }, &keys);
        let mut scratch = Scratch::new_in(&index, &memory(0)).unwrap();
        let o = QueryOptions { engine: asked, ..QueryOptions::new(1) };
        let e = index.query(&mut scratch, q, &o, &mut [Neighbor::default()], None).unwrap_err();
        assert_eq!(e.status, Status::Unsupported);
    }
}

#[test]
fn planned_bytes_are_enough_and_one_less_is_not() {
    for engine in [Engine::Cells, Engine::Auto, Engine::Walk] {
        for (capacity, dim) in [(0, 5), (511, 5), (512, 5), (3000, 130)] {
            let o = IndexOptions { capacity, engine, metric: Metric::L2, ..IndexOptions::new(dim) };
            let mut plan = Plan::new();
            Memory::plan(&mut plan);
            Index::plan(&o, &mut plan).unwrap();
            let layout = plan.finish().unwrap();
            let mut store = vec![0u8; layout.bytes + 64];
            let start = store.as_ptr().align_offset(64);
            let base = std::ptr::NonNull::new(store[start..].as_mut_ptr()).unwrap();
            // SAFETY: `store` outlives the index and is not touched meanwhile.
            let small = unsafe { Memory::region(base, layout.bytes - 1) };
            assert!(small.is_err() || Index::new_in(&o, &small.unwrap()).is_err());
            // SAFETY: as above; the first memory is gone.
            let region = unsafe { Memory::region(base, layout.bytes) }.unwrap();
            let mut index = Index::new_in(&o, &region).unwrap();
            assert_eq!(region.report().used, layout.bytes, "the plan is exact");
            let keys = noise(capacity * dim, 1, 1.0);
            let mut scratch_plan = Plan::new();
            Memory::plan(&mut scratch_plan);
            Scratch::plan(&index, &mut scratch_plan);
            let source = memory(0);
            let mut scratch = Scratch::new_in(&index, &source).unwrap();
            assert_eq!(source.report().used, scratch_plan.finish().unwrap().bytes);
            let before = TAKEN.load(Relaxed);
            for part in keys.chunks(700 * dim) {
                index.insert(Rows::new(part, dim).unwrap(), None).unwrap();
            }
            let gone: Vec<u64> = (0..capacity as u64 / 2).collect();
            for _ in 0..3 {
                index.remove(&gone).unwrap();
                index.insert(Rows::new(&keys[..gone.len() * dim], dim).unwrap(), Some(&gone)).unwrap();
            }
            if capacity > 0 {
                let mut out = vec![Neighbor::default(); capacity * 2];
                let rows = Rows::new(&keys, dim).unwrap();
                index.query(&mut scratch, rows, &QueryOptions::new(2), &mut out, None).unwrap();
                index.query_exact(&mut scratch, rows, &QueryOptions::new(2), &mut out, None).unwrap();
                assert!(out.chunks(2).enumerate().all(|(i, o)| o[0].id == i as u64 && o[0].score == 0.0));
                assert_eq!(index.insert(rows, None).unwrap_err().status, Status::Capacity);
            }
            assert!(TAKEN.load(Relaxed) >= before);
        }
    }
}

/// Every allocation may fail: the index answers as before.
#[test]
fn a_refused_allocation_changes_nothing() {
    let (dim, keys) = (10, clustered(2000, 10, 8, 1));
    let o = QueryOptions::new(5);
    let queries = &keys[..40 * dim];
    let options = IndexOptions { engine: Engine::Cells, capacity: 1000, ..IndexOptions::new(dim) };
    let mut limit = 0;
    let mut refused = 0;
    loop {
        let source = memory(0);
        let mut index = Index::new_in(&options, &source).unwrap();
        index.insert(Rows::new(&keys[..1000 * dim], dim).unwrap(), None).unwrap();
        let want = bits(&ask(&index, queries, &o, false).0);
        let used = source.report().used;
        drop(index);
        let source = memory(used + limit);
        let mut index = Index::new_in(&options, &source).unwrap();
        index.insert(Rows::new(&keys[..1000 * dim], dim).unwrap(), None).unwrap();
        match index.insert(Rows::new(&keys[1000 * dim..], dim).unwrap(), None) {
            Ok(()) => break,
            Err(e) => assert_eq!(e.status, Status::Budget),
        }
        refused += 1;
        assert_eq!(index.len(), 1000);
        assert_eq!(bits(&ask(&index, queries, &o, false).0), want);
        limit += 40_000;
    }
    assert!(refused > 3);
}

#[test]
fn cosine_ignores_lengths() {
    let (dim, n) = (12, 1500);
    let mut keys = noise(n * dim, 1, 1.0);
    for (i, row) in keys.chunks_exact_mut(dim).enumerate() {
        row.iter_mut().for_each(|x| *x *= 10f32.powi(i as i32 % 9 - 4));
    }
    keys[..dim].fill(0.0);
    let index = index(&IndexOptions { metric: Metric::Cosine, ..IndexOptions::new(dim) }, &keys);
    let mut queries = noise(50 * dim, 2, 1.0);
    let want = ask(&index, &queries, &QueryOptions::new(5), true).0;
    for (q, row) in queries.chunks_exact(dim).zip(want.chunks_exact(5)) {
        for n in row {
            let key = &keys[n.id as usize * dim..][..dim];
            let cosine: f32 = unit(q).iter().zip(unit(key)).map(|(a, b)| a * b).sum();
            assert!((cosine - n.score).abs() < 1e-5 && n.id != 0);
        }
    }
    queries.iter_mut().for_each(|x| *x *= 1024.0);
    assert_eq!(bits(&ask(&index, &queries, &QueryOptions::new(5), true).0), bits(&want));
    assert_eq!(
        bits(&ask(&index, &queries, &QueryOptions { engine: Engine::Walk, ..QueryOptions::unlimited(5) }, false).0),
        bits(&want)
    );
}

/// A filter leaves few answers in sight: as many of them are found as were asked for.
#[test]
fn filters_keep_the_recall() {
    let (n, dim) = (30_000, 16);
    let keys = clustered(n, dim, 300, 3);
    let queries = clustered(64, dim, 300, 4);
    for metric in [Metric::InnerProduct, Metric::L2] {
        let o = IndexOptions { metric, engine: Engine::Cells, capacity: n, ..IndexOptions::new(dim) };
        let index = index(&o, &keys);
        // One key in sixteen.
        let few: Vec<u8> = (0..n / 8).map(|i| if i % 2 == 0 { 0b0001_0000 } else { 0 }).collect();
        let plain = QueryOptions { target_recall: 0.8, ..QueryOptions::new(10) };
        let filtered = QueryOptions { filter: Some(&few), ..plain };
        assert!(recall(&index, &queries, &plain) > 0.75, "{metric:?}");
        let found = recall(&index, &queries, &filtered);
        assert!(found > 0.75, "{metric:?}: {found} with a filter");
    }
}
