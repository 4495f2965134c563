//! The same seed and input give the same answers on every machine: neighbours, saved bytes and attention in plain
//! instructions against what is committed in `tests/data`. `ICE_BLESS=1` rewrites that; its difference then says what
//! changed for everybody.

mod common;

use common::{memory, noise};
use iceformer_core::attention::{Attend, AttentionOptions, Mode, Session, SessionOptions};
use iceformer_core::dci::{Engine, Index, IndexOptions, Metric, Neighbor, QueryOptions, Scratch};
use iceformer_core::mem::{Dtype, Plan, Rows, Tensor, TensorMut};
use iceformer_core::simd::Isa;
use std::fmt::Write;
use std::path::Path;

const DIM: usize = 6;

/// Compares bytes with a committed file, or rewrites it.
fn committed(file: &str, have: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file);
    if std::env::var_os("ICE_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&path, have).expect("tests/data is writable");
    }
    let want = std::fs::read(&path).expect("the vector is there");
    assert!(have == want, "tests/data/{file} differs");
}

fn index(metric: Metric) -> Index {
    let o =
        IndexOptions { metric, levels: 2, promotion: 0.25, seed: 5, isa: Some(Isa::Scalar), ..IndexOptions::new(DIM) };
    let mut index = Index::new_in(&o, &memory(0)).unwrap();
    let keys = noise(60 * DIM, 11, 1.0);
    index.insert(Rows::new(&keys, DIM).unwrap(), None).unwrap();
    index.remove(&[3, 17, 40]).unwrap();
    index
}

/// Answers under a budget, which depend on every list and projection.
fn answers(index: &Index) -> String {
    let mut text = String::new();
    let queries = noise(8 * DIM, 12, 1.0);
    let mut scratch = Scratch::new_in(index, &memory(0)).unwrap();
    for visit in [60, 200] {
        let o = QueryOptions { visit, retrieve: 20, field_of_view: 6, ..QueryOptions::new(4) };
        let (mut out, mut counts) = ([Neighbor::default(); 8 * 4], [0; 8]);
        let rows = Rows::new(&queries, DIM).unwrap();
        index.query(&mut scratch, rows, &o, &mut out, Some(&mut counts)).unwrap();
        for (q, n) in counts.iter().enumerate() {
            for x in &out[q * 4..][..*n as usize] {
                write!(text, "{}:{:08x} ", x.id, x.score.to_bits()).unwrap();
            }
            text.push('\n');
        }
    }
    text
}

#[test]
fn neighbours_and_saved_indices() {
    for (metric, name) in [(Metric::InnerProduct, "inner_product"), (Metric::L2, "l2")] {
        let index = index(metric);
        committed(&format!("index_{name}.txt"), answers(&index).as_bytes());
        let mut bytes = vec![0; index.save_len()];
        index.save(&mut bytes).unwrap();
        committed(&format!("index_{name}.bin"), &bytes);
        // Loaded on this machine, wherever it was saved; loading takes the machine's best instructions.
        let loaded = Index::load(&bytes, &memory(0)).unwrap();
        let ids =
            |text: &str| text.split_whitespace().map(|w| w.split(':').next().unwrap().into()).collect::<Vec<String>>();
        assert_eq!(ids(&answers(&loaded)), ids(&answers(&index)));
        // In place little-endian machines alone can read them: `view` holds those to it.
        if cfg!(target_endian = "big") {
            let words: &'static mut [u64] = vec![0; bytes.len() / 8 + 1].leak();
            // SAFETY: words are bytes.
            #[allow(unsafe_code)]
            let (_, place, _) = unsafe { words.align_to_mut::<u8>() };
            place[..bytes.len()].copy_from_slice(&bytes);
            let refused = Index::view(&place[..bytes.len()], &memory(0)).err().unwrap();
            assert_eq!(refused.status, iceformer_core::Status::Unsupported);
        }
    }
}

/// An index fitted to sample queries: its bytes, and single queries whose efforts come from those.
#[test]
fn fitted_indices() {
    let o = IndexOptions { engine: Engine::Cells, seed: 5, isa: Some(Isa::Scalar), ..IndexOptions::new(DIM) };
    let mut index = Index::new_in(&o, &memory(0)).unwrap();
    index.insert(Rows::new(&noise(700 * DIM, 31, 1.0), DIM).unwrap(), None).unwrap();
    let mut sample = noise(160 * DIM, 32, 1.0);
    sample.iter_mut().step_by(2).for_each(|x| *x *= 8.0);
    index.fit(Some(Rows::new(&sample, DIM).unwrap())).unwrap();
    let mut bytes = vec![0; index.save_len()];
    index.save(&mut bytes).unwrap();
    committed("index_fitted.bin", &bytes);
    let mut text = String::new();
    let mut scratch = Scratch::new_in(&index, &memory(0)).unwrap();
    for query in sample[..20 * DIM].chunks(DIM) {
        let o = QueryOptions { target_recall: 0.7, ..QueryOptions::new(6) };
        let mut out = [Neighbor::default(); 6];
        index.query(&mut scratch, Rows::new(query, DIM).unwrap(), &o, &mut out, None).unwrap();
        out.iter().for_each(|x| write!(text, "{}:{:08x} ", x.id, x.score.to_bits()).unwrap());
        text.push('\n');
    }
    committed("index_fitted.txt", text.as_bytes());
    assert_eq!(Index::load(&bytes, &memory(0)).unwrap().save_len(), bytes.len());
}

/// A file of before indices had engines and cells; never rewritten. It loads, keeps everything, and answers as the index
/// that it was saved from.
#[test]
fn files_of_the_format_before_engines_still_load() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/index_before_engines.bin");
    let bytes = std::fs::read(&path).expect("the vector is there");
    let (loaded, same) = (Index::load(&bytes, &memory(0)).unwrap(), index(Metric::InnerProduct));
    let (o, want) = (loaded.options(), same.options());
    assert_eq!((o.engine, o.metric, o.levels, o.seed), (Engine::Auto, Metric::InnerProduct, want.levels, want.seed));
    assert_eq!((loaded.len(), loaded.next_id()), (57, 60));
    for id in 0..60 {
        assert_eq!(loaded.key(id), same.key(id), "{id}");
    }
    let queries = noise(8 * DIM, 12, 1.0);
    let rows = Rows::new(&queries, DIM).unwrap();
    let ask = |index: &Index, engine| {
        let o = QueryOptions { engine, target_recall: 1.0, ..QueryOptions::new(4) };
        let mut out = [Neighbor::default(); 8 * 4];
        index.query(&mut Scratch::new_in(index, &memory(0)).unwrap(), rows, &o, &mut out, None).unwrap();
        out.map(|n| n.id)
    };
    // Cells are made of the keys in it, lists as they were.
    for engine in [Engine::Walk, Engine::Cells] {
        assert_eq!(ask(&loaded, engine), ask(&same, engine), "{engine:?}");
    }
}

#[test]
fn sessions() {
    for (mode, name) in [(Mode::Exact, "exact"), (Mode::Accelerated, "accelerated")] {
        let n = 520;
        let o = SessionOptions {
            heads_q: 2,
            heads_kv: 1,
            dim_k: DIM,
            dim_v: 4,
            capacity: n,
            kv_dtype: Dtype::F16,
            attention: AttentionOptions { mode, tolerance: 0.2, isa: Some(Isa::Scalar), ..AttentionOptions::default() },
            dense_below: 0,
        };
        let mut session = Session::new_in(&o, &memory(0)).unwrap();
        let (k, v) = (noise(n * DIM, 21, 1.0), noise(n * 4, 22, 1.0));
        let kt = Tensor::new(&k, [1, 1, n, DIM]).unwrap();
        session.append(kt, Tensor::new(&v, [1, 1, n, 4]).unwrap()).unwrap();
        session.commit().unwrap();
        let mut plan = Plan::new();
        session.work_plan(7, &mut plan).unwrap();
        let work = memory(plan.finish().unwrap().bytes);
        let q = noise(2 * 7 * DIM, 23, 2.0);
        let mut out = [0.0; 2 * 7 * 4];
        {
            let to = TensorMut::new(&mut out, [1, 2, 7, 4]).unwrap();
            session.attend(&Attend::new(Tensor::new(&q, [1, 2, 7, DIM]).unwrap(), &to), &work).unwrap();
        }
        let mut text = String::new();
        for row in out.chunks(4) {
            row.iter().for_each(|x| write!(text, "{:08x} ", x.to_bits()).unwrap());
            text.push('\n');
        }
        committed(&format!("session_{name}.txt"), text.as_bytes());
        let mut bytes = vec![0; session.save_len()];
        session.save(&mut bytes).unwrap();
        if mode == Mode::Exact {
            committed("session.bin", &bytes);
        }
        assert_eq!(Session::load(&bytes, &memory(0)).unwrap().len(), n);
    }
}
