//! Queries and attention allocate nothing once their objects exist. A program of its own: the allocation counter is
//! shared by everything in it.

mod common;

use common::{TAKEN, memory, noise};
use iceformer_core::attention::{
    Attend, AttentionOptions, AttentionRoom, IndexProblem, Mask, Mode, Session, SessionOptions, index_attention,
};
use iceformer_core::dci::{Engine, Index, IndexOptions, Neighbor, QueryOptions, Scratch};
use iceformer_core::mem::{Dtype, Plan, Rows, RowsMut, Tensor, TensorMut};
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn nothing_is_allocated_by_queries_appends_and_attends() {
    let keys = noise(700 * 8, 1, 1.0);
    let options = IndexOptions { levels: 3, capacity: 700, ..IndexOptions::new(8) };
    let mut index = Index::new_in(&options, &memory(0)).unwrap();
    let mut scratch = Scratch::new_in(&index, &memory(0)).unwrap();
    let mut out = vec![Neighbor::default(); 700 * 10];
    let before = TAKEN.load(Relaxed);
    for part in keys.chunks(25 * 8) {
        index.insert(Rows::new(part, 8).unwrap(), None).unwrap();
    }
    for engine in [Engine::Auto, Engine::Walk, Engine::Scan, Engine::Cells] {
        for o in
            [QueryOptions::new(10), QueryOptions::unlimited(10), QueryOptions { visit: 60, ..QueryOptions::new(10) }]
        {
            let rows = Rows::new(&keys, 8).unwrap();
            index.query(&mut scratch, rows, &QueryOptions { engine, ..o }, &mut out, None).unwrap();
        }
    }
    index.query_exact(&mut scratch, Rows::new(&keys, 8).unwrap(), &QueryOptions::new(10), &mut out, None).unwrap();
    assert_eq!(TAKEN.load(Relaxed), before, "the index allocated");
    let mut room = AttentionRoom::new_in(&index, 8, &memory(0)).unwrap();
    let before = TAKEN.load(Relaxed);
    for mode in [Mode::Accelerated, Mode::Auto, Mode::Exact, Mode::TopK] {
        for mask in [Mask::None, Mask::Causal { q_pos0: 0 }] {
            let o = AttentionOptions { mode, ..AttentionOptions::default() };
            let (rows, mut out) = (Rows::new(&keys, 8).unwrap(), vec![0.0; 700 * 8]);
            let out = &mut RowsMut::new(&mut out, 8).unwrap();
            index_attention(
                &IndexProblem::new(&index, rows, rows).mask(mask).options(o),
                &mut scratch,
                Some(&mut room),
                out,
                None,
            )
            .unwrap();
        }
    }
    assert_eq!(TAKEN.load(Relaxed), before, "attention over the index allocated");
    index.remove_present(&(0..300).collect::<Vec<_>>());
    index.save(&mut vec![0; index.save_len()]).unwrap();
    assert_eq!(TAKEN.load(Relaxed), before, "the index allocated");

    for mode in [Mode::Exact, Mode::TopK, Mode::Accelerated] {
        let o = SessionOptions {
            heads_q: 2,
            heads_kv: 1,
            dim_k: 8,
            dim_v: 8,
            capacity: 500,
            kv_dtype: Dtype::F16,
            attention: AttentionOptions { mode, top_k: 20, ..AttentionOptions::default() },
            dense_below: 0,
        };
        let mut session = Session::new_in(&o, &memory(0)).unwrap();
        let before = TAKEN.load(Relaxed);
        let kv = Tensor::new(&keys[..500 * 8], [1, 1, 500, 8]).unwrap();
        session.append(kv, kv).unwrap();
        session.commit().unwrap();
        session.truncate(400).unwrap();
        session.remove_range(100, 150).unwrap();
        assert_eq!(TAKEN.load(Relaxed), before, "the session allocated");
        let mut plan = Plan::new();
        session.work_plan(40, &mut plan).unwrap();
        let bytes = plan.finish().unwrap().bytes;
        let mut out = vec![0.0; 2 * 40 * 8];
        let out = TensorMut::new(&mut out, [1, 2, 40, 8]).unwrap();
        let q = noise(2 * 40 * 8, 2, 1.0);
        let work = memory(bytes);
        session.attend(&Attend::new(Tensor::new(&q, [1, 2, 40, 8]).unwrap(), &out), &work).unwrap();
        assert!(work.report().peak <= bytes, "attending takes no more than planned, once, from its work memory");
    }
}
