//! Index operations: insert, query by each engine, one level and three.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use iceformer_bench::heads;
use iceformer_core::dci::{Engine, Index, IndexOptions, Neighbor, QueryOptions, Scratch};
use iceformer_core::mem::{Memory, Rows};

fn index(c: &mut Criterion) {
    let layers = heads::load(&heads::bundled(), usize::MAX).expect("the bundled file is there");
    let layer = &layers[1];
    let (keys, queries, d) = (layer.keys(0), layer.queries(0), layer.dim);
    let memory = Memory::system(0).expect("memory");
    for levels in [1, 3] {
        let options = IndexOptions { levels, capacity: layer.rows + 1, ..IndexOptions::new(d) };
        let mut full = Index::new(&options).expect("options");
        full.insert(Rows::new(keys, d).expect("rows"), None).expect("insert");
        let mut scratch = Scratch::new_in(&full, &memory).expect("scratch");
        let one = Rows::new(&queries[..d], d).expect("row");
        c.bench_function(&format!("insert and remove one of {} keys, {levels} levels", layer.rows), |b| {
            let id = full.next_id();
            b.iter(|| {
                full.insert(one, Some(&[id])).expect("insert");
                full.remove(&[id]).expect("remove");
            });
        });
        c.bench_function(&format!("insert {} keys at once, {levels} levels", layer.rows), |b| {
            b.iter_batched(
                || Index::new(&options).expect("options"),
                |mut ix| ix.insert(Rows::new(keys, d).expect("rows"), None).expect("insert"),
                BatchSize::LargeInput,
            );
        });
        for engine in [Engine::Walk, Engine::Scan, Engine::Auto] {
            let o = QueryOptions { engine, retrieve_fraction: 0.1, ..QueryOptions::new(30) };
            let mut out = [Neighbor::default(); 30];
            c.bench_function(&format!("query top 30, 10 % retrieved, {levels} levels, {engine:?}"), |b| {
                b.iter(|| full.query(&mut scratch, one, &o, &mut out, None).expect("query"));
            });
        }
    }
}

criterion_group!(benches, index);
criterion_main!(benches);
