//! Directions fitted to sample queries: the recall asked for, also by single queries that are unlike keys; less work where
//! keys vary most along what queries do not ask for; and nothing lost by whatever comes in between.
#![allow(unsafe_code)]

mod common;

use common::{memory, noise};
use iceformer_core::Status;
use iceformer_core::dci::{Directions, Engine, Index, IndexOptions, Metric, Neighbor, QueryOptions, Scratch};
use iceformer_core::mem::{Memory, Plan, Rows};
use iceformer_core::simd::Isa;

const METRICS: [Metric; 3] = [Metric::InnerProduct, Metric::L2, Metric::Cosine];
const DIM: usize = 48;

fn options(metric: Metric) -> IndexOptions {
    IndexOptions { metric, engine: Engine::Cells, seed: 3, ..IndexOptions::new(DIM) }
}

fn index(options: &IndexOptions, keys: &[f32]) -> Index {
    let mut index = Index::new_in(options, &memory(0)).unwrap();
    index.insert(Rows::new(keys, options.dim).unwrap(), None).unwrap();
    index
}

fn fit(index: &mut Index, sample: &[f32]) {
    index.fit(Some(Rows::new(sample, index.dim()).unwrap())).unwrap();
}

/// Keys that vary most in their first half, queries that ask for the second.
fn keys(n: usize, seed: u64) -> Vec<f32> {
    let centers = noise(40 * DIM, 70, 1.0);
    let mut x = noise(n * DIM, seed, 0.3);
    for (i, row) in x.chunks_exact_mut(DIM).enumerate() {
        let c = &centers[(i * 7 + i / 11) % 40 * DIM..][..DIM];
        for (j, (x, c)) in row.iter_mut().zip(c).enumerate() {
            *x = if j < DIM / 2 { 6.0 * (*x + 0.2 * c) } else { *x + c };
        }
    }
    x
}

fn queries(n: usize, seed: u64) -> Vec<f32> {
    let mut x = noise(n * DIM, seed, 3.0);
    x.chunks_exact_mut(DIM).for_each(|row| row[..DIM / 2].iter_mut().for_each(|x| *x *= 0.02));
    x
}

/// Answers of calls with `batch` queries each.
fn ask(index: &Index, queries: &[f32], o: &QueryOptions<'_>, batch: usize, exact: bool) -> Vec<Neighbor> {
    let mut scratch = Scratch::new_in(index, &memory(0)).unwrap();
    let dim = index.dim();
    let mut out = vec![Neighbor::default(); queries.len() / dim * o.k];
    for (rows, out) in queries.chunks(batch * dim).zip(out.chunks_mut(batch * o.k)) {
        let rows = Rows::new(rows, dim).unwrap();
        if exact {
            index.query_exact(&mut scratch, rows, o, out, None).unwrap();
        } else {
            index.query(&mut scratch, rows, o, out, None).unwrap();
        }
    }
    out
}

fn recall(index: &Index, queries: &[f32], o: &QueryOptions<'_>, batch: usize) -> f64 {
    let (found, truth) = (ask(index, queries, o, batch, false), ask(index, queries, o, 1 << 20, true));
    let hit = |(f, t): (&[Neighbor], &[Neighbor])| f.iter().filter(|f| t.iter().any(|t| t.id == f.id)).count();
    found.chunks_exact(o.k).zip(truth.chunks_exact(o.k)).map(hit).sum::<usize>() as f64 / truth.len() as f64
}

fn bits(all: &[Neighbor]) -> Vec<(u64, u32)> {
    all.iter().map(|n| (n.id, n.score.to_bits())).collect()
}

fn answers(index: &Index) -> Vec<(u64, u32)> {
    bits(&ask(index, &queries(60, 9), &QueryOptions::new(7), 20, false))
}

#[test]
fn single_queries_unlike_keys_reach_the_recall_asked_for() {
    for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
        for metric in METRICS {
            let o = IndexOptions { isa: Some(isa), ..options(metric) };
            let mut index = index(&o, &keys(5000, 1));
            fit(&mut index, &queries(600, 2));
            let asked = queries(200, 3);
            for (k, batch) in [(1, 1), (10, 1), (10, 100), (30, 7), (60, 50)] {
                for target in [0.8, 0.95, 0.99] {
                    let o = QueryOptions { target_recall: target, ..QueryOptions::new(k) };
                    let r = recall(&index, &asked, &o, batch);
                    assert!(r >= f64::from(target) - 0.04, "{isa:?} {metric:?} k {k} batch {batch}: {r} of {target}");
                }
            }
            // Large batches measure themselves.
            let o = QueryOptions { target_recall: 0.95, ..QueryOptions::new(10) };
            assert!(recall(&index, &queries(700, 4), &o, 700) >= 0.93);
        }
    }
}

#[test]
fn equal_work_finds_more_where_keys_vary_along_what_nobody_asks_for() {
    for metric in [Metric::InnerProduct, Metric::Cosine] {
        let keys = keys(6000, 1);
        let plain = index(&options(metric), &keys);
        let mut fitted = index(&options(metric), &keys);
        fit(&mut fitted, &queries(1200, 2));
        let asked = queries(150, 3);
        for (visit, retrieve) in [(600, 30), (1200, 60)] {
            let o = QueryOptions { visit, retrieve, ..QueryOptions::new(10) };
            let (p, f) = (recall(&plain, &asked, &o, 150), recall(&fitted, &asked, &o, 150));
            assert!(f > p + 0.05, "{metric:?} {visit}: {f} after {p}");
        }
    }
}

#[test]
fn queries_like_keys_lose_nothing() {
    for metric in METRICS {
        let (all, asked) = (keys(4000, 1), keys(300, 2));
        let plain = index(&options(metric), &all);
        let mut fitted = index(&options(metric), &all);
        fit(&mut fitted, &keys(500, 3));
        for (visit, retrieve) in [(500, 20), (1500, 80)] {
            let o = QueryOptions { visit, retrieve, ..QueryOptions::new(10) };
            let (p, f) = (recall(&plain, &asked, &o, 300), recall(&fitted, &asked, &o, 300));
            assert!(f > p - 0.03, "{metric:?} {visit}: {f} after {p}");
        }
    }
}

#[test]
fn the_order_of_calls_and_the_kind_of_memory_make_no_difference() {
    for metric in METRICS {
        for engine in [Engine::Cells, Engine::Auto] {
            let o = IndexOptions { engine, ..options(metric) };
            let (all, sample) = (keys(3000, 1), queries(400, 2));
            let plain = index(&o, &all);
            let mut after = index(&o, &all);
            fit(&mut after, &sample);
            let want = answers(&after);
            let mut before = Index::new_in(&IndexOptions { directions: Directions::Fitted, ..o }, &memory(0)).unwrap();
            fit(&mut before, &sample);
            before.insert(Rows::new(&all, DIM).unwrap(), None).unwrap();
            assert_eq!(answers(&before), want, "{metric:?}: fitted before and after");
            // Again, and by way of others.
            fit(&mut after, &queries(200, 8));
            fit(&mut after, &sample);
            assert_eq!(answers(&after), want);
            let mut bytes = vec![0; after.save_len()];
            after.save(&mut bytes).unwrap();
            let loaded = Index::load(&bytes, &memory(0)).unwrap();
            assert_eq!((answers(&loaded), loaded.options().directions), (want.clone(), Directions::Fitted));
            let mut again = vec![0; loaded.save_len()];
            loaded.save(&mut again).unwrap();
            assert_eq!(again, bytes);
            // Sample queries stay when all keys go.
            after.clear();
            after.insert(Rows::new(&all, DIM).unwrap(), None).unwrap();
            assert_eq!(answers(&after), want);
            after.fit(None).unwrap();
            assert_eq!(answers(&after), answers(&plain), "{metric:?}: as if never fitted");
            // Exact answers know nothing of it.
            let exact = |index| bits(&ask(index, &queries(20, 5), &QueryOptions::new(5), 20, true));
            assert_eq!(exact(&loaded), exact(&plain));
        }
    }
}

#[test]
fn keys_that_come_and_go_are_found_as_well_as_ever() {
    for metric in METRICS {
        let all = keys(20_000, 1);
        let mut index = Index::new_in(&options(metric), &memory(0)).unwrap();
        fit(&mut index, &queries(500, 2));
        let o = QueryOptions { target_recall: 0.95, ..QueryOptions::new(10) };
        let asked = queries(100, 3);
        let mut next = 0;
        for round in 0..8u64 {
            for n in [1, 400, 13, 1500] {
                index.insert(Rows::new(&all[next * DIM..][..n * DIM], DIM).unwrap(), None).unwrap();
                next += n;
            }
            let r = recall(&index, &asked, &o, 10);
            assert!(r >= 0.9, "{metric:?} round {round}: {r}");
            let gone: Vec<u64> =
                index.ids().filter(|&id| iceformer_core::math::hash(round, id).is_multiple_of(3)).collect();
            index.remove(&gone).unwrap();
        }
        let rest: Vec<u64> = index.ids().skip(300).collect();
        index.remove(&rest).unwrap();
        assert_eq!(recall(&index, &asked, &o, 10), 1.0, "too few for cells");
    }
}

#[test]
fn what_does_not_vary_does_no_harm() {
    let o = QueryOptions { target_recall: 0.9, ..QueryOptions::new(5) };
    for metric in METRICS {
        for dim in [1, 3, 5, 33, 150] {
            let n = 900;
            let fine = noise(n * dim, 1, 1.0);
            let same = [0.5f32].repeat(n * dim);
            let line: Vec<f32> = (0..n * dim).map(|i| (i / dim) as f32).collect();
            let huge: Vec<f32> = fine.iter().map(|x| x * 1e16).collect();
            let tiny: Vec<f32> = fine.iter().map(|x| x * 1e-18 + 1e-30).collect();
            for keys in [&fine, &same, &line, &huge, &tiny] {
                for sample in [&fine, &same, &huge, &tiny] {
                    let made = IndexOptions { metric, engine: Engine::Cells, ..IndexOptions::new(dim) };
                    let mut index = index(&made, keys);
                    fit(&mut index, &sample[..200 * dim]);
                    let found = ask(&index, &sample[..40 * dim], &o, 8, false);
                    assert!(found.iter().all(|n| n.id < 900 && n.score.is_finite()), "{metric:?} {dim}");
                    let all = QueryOptions { visit_fraction: 1.0, retrieve_fraction: 1.0, ..QueryOptions::new(5) };
                    let (a, b) =
                        (ask(&index, &fine[..8 * dim], &all, 8, false), ask(&index, &fine[..8 * dim], &all, 8, true));
                    assert_eq!(bits(&a), bits(&b), "{metric:?} {dim}: everything is everything");
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_fitted_to_is_refused_and_changes_nothing() {
    for metric in METRICS {
        let mut index = index(&options(metric), &keys(1500, 1));
        let sample = queries(300, 2);
        fit(&mut index, &sample);
        let want = answers(&index);
        let refuse = |index: &mut Index, rows: Rows<'_>, status| {
            let e = index.fit(Some(rows)).unwrap_err();
            assert_eq!(e.status, status, "{e}");
            assert_eq!(answers(index), want);
            e
        };
        let e = refuse(&mut index, Rows::new(&sample[..127 * DIM], DIM).unwrap(), Status::Argument);
        assert!(e.to_string().contains("need 128, have 127"), "{e}");
        refuse(&mut index, Rows::new(&sample[..240 * 40], 40).unwrap(), Status::Shape);
        for (value, status) in
            [(f32::NAN, Status::NotFinite), (f32::INFINITY, Status::NotFinite), (1e18, Status::NotFinite)]
        {
            let mut bad = sample.clone();
            bad[201 * DIM + 5] = value;
            let e = refuse(&mut index, Rows::new(&bad, DIM).unwrap(), status);
            assert!(e.to_string().contains("row 201"), "{e}");
        }
        let mut bad = sample.clone();
        bad[77 * DIM..78 * DIM].fill(0.0);
        if metric == Metric::L2 {
            fit(&mut index, &bad);
        } else {
            let e = refuse(&mut index, Rows::new(&bad, DIM).unwrap(), Status::Argument);
            assert!(e.to_string().contains("row 77"), "{e}");
        }
        index.fit(Some(Rows::new(&[0f32; 0], DIM).unwrap())).unwrap();
    }
    for engine in [Engine::Walk, Engine::Scan] {
        let o = IndexOptions { engine, ..options(Metric::L2) };
        let mut index = Index::new_in(&o, &memory(0)).unwrap();
        assert_eq!(index.fit(None).unwrap_err().status, Status::Unsupported);
        let o = IndexOptions { directions: Directions::Fitted, ..o };
        assert_eq!(Index::new_in(&o, &memory(0)).err().unwrap().status, Status::Unsupported);
    }
}

#[test]
fn a_refused_allocation_changes_nothing() {
    let (all, sample) = (keys(1500, 1), queries(300, 2));
    let source = memory(0);
    let mut index = Index::new_in(&options(Metric::L2), &source).unwrap();
    index.insert(Rows::new(&all, DIM).unwrap(), None).unwrap();
    let (want, used) = (answers(&index), source.report().used);
    let mut refused = 0;
    for limit in (0..).step_by(20_000) {
        let mut index = Index::new_in(&options(Metric::L2), &memory(used + limit)).unwrap();
        index.insert(Rows::new(&all, DIM).unwrap(), None).unwrap();
        match index.fit(Some(Rows::new(&sample, DIM).unwrap())) {
            Ok(()) => break,
            Err(e) => assert_eq!(e.status, Status::Budget),
        }
        refused += 1;
        assert_eq!((answers(&index), index.options().directions), (want.clone(), Directions::Random));
    }
    assert!(refused > 3);
}

#[test]
fn planned_bytes_are_enough_and_one_less_is_not() {
    for engine in [Engine::Cells, Engine::Auto] {
        for capacity in [0, 511, 512, 3000] {
            let o = IndexOptions { capacity, engine, directions: Directions::Fitted, ..options(Metric::L2) };
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
            fit(&mut index, &queries(2000, 2));
            index.insert(Rows::new(&keys(capacity, 1), DIM).unwrap(), None).unwrap();
            fit(&mut index, &queries(150, 3));
            index.fit(None).unwrap();
            fit(&mut index, &queries(500, 4));
            if capacity == 3000 {
                let hooks = memory(0);
                let mut heap = Index::new_in(&o, &hooks).unwrap();
                let used = hooks.report().used;
                heap.insert(Rows::new(&keys(capacity, 1), DIM).unwrap(), None).unwrap();
                fit(&mut heap, &queries(500, 4));
                assert_eq!(hooks.report().used, used, "nothing was allocated");
                assert_eq!(answers(&index), answers(&heap));
            }
        }
    }
}

#[test]
fn damaged_sample_queries_are_refused() {
    let mut index = index(&options(Metric::InnerProduct), &keys(700, 1));
    fit(&mut index, &queries(128, 2));
    let mut bytes = vec![0; index.save_len()];
    index.save(&mut bytes).unwrap();
    // Number of queries, way, keys at the decision, queries.
    let at = bytes.len() - 4 - 128 * DIM * 4 - 16;
    let with = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = bytes.clone();
        change(&mut bytes[at..]);
        let end = bytes.len() - 4;
        let sum = crc32fast::hash(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
        Index::load(&bytes, &memory(0)).map(|_| ())
    };
    assert!(with(&|_| ()).is_ok());
    for change in [
        &(|b: &mut [u8]| b[0] = 129) as &dyn Fn(&mut [u8]),
        &|b| b[..4].copy_from_slice(&[255; 4]),
        &|b| b[..4].fill(0),
        &|b| b[4] = 3,
        &|b| b[16..20].copy_from_slice(&f32::NAN.to_le_bytes()),
        &|b| b[16..20].copy_from_slice(&1e18f32.to_le_bytes()),
        &|b| b[16..][..4 * DIM].fill(0),
    ] {
        assert_eq!(with(change).unwrap_err().status, Status::Buffer);
    }
    for cut in [1, 4, 100, 128 * DIM * 4, 128 * DIM * 4 + 17] {
        assert_eq!(Index::load(&bytes[..bytes.len() - cut], &memory(0)).err().unwrap().status, Status::Buffer);
    }
}
