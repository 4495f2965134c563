//! What every build has, with whatever features: exact attention in f32 and the walked index, against their naive twins; and that
//! what a build leaves out is refused by name and changes nothing.

mod common;

use common::{Naive, memory, noise, sees, worst};
use iceformer_core::attention::{
    Attend, AttentionOptions, Mask, Mode, Problem, Reason, Session, SessionOptions, attention,
};
use iceformer_core::dci::{Engine, Index, IndexOptions, Neighbor, QueryOptions, Scratch};
use iceformer_core::features::{ACCELERATED, CELLS, CERTIFICATES, HALF, LEVELS, MESSAGES, SHARED_QK, TOP_K};
use iceformer_core::mem::{Dtype, Layout, Memory, Plan, Rows, Tensor, TensorMut};
use iceformer_core::{Result, Status};

const DIM: usize = 12;

fn session_options(attention: AttentionOptions, kv_dtype: Dtype) -> SessionOptions {
    SessionOptions {
        heads_q: 2,
        heads_kv: 1,
        dim_k: DIM,
        dim_v: DIM,
        capacity: 400,
        kv_dtype,
        attention,
        dense_below: 0,
    }
}

/// `Ok`, or `Unsupported` and the field, as the build has it or not.
fn there<T>(result: Result<T>, has: bool, field: &str) {
    match result {
        Ok(_) => assert!(has, "{field} came to be"),
        Err(e) => {
            assert!(!has && e.status == Status::Unsupported, "{e}");
            match e.message() {
                Some((at, reason, _)) => assert!(MESSAGES && at == field && reason.starts_with("this build "), "{e}"),
                None => assert!(!MESSAGES && e.to_string() == Status::Unsupported.message(), "{e}"),
            }
        }
    }
}

#[test]
fn exact_attention_of_any_number_of_rows() {
    let shapes = [(1, 1), (3, 50), (4, 130), (5, 130), (23, 400), (200, 200)];
    // Miri takes a thousand times as long.
    for &(rows, keys) in if cfg!(miri) { &shapes[..2] } else { &shapes[..] } {
        let (q, k, v) = (noise(2 * rows * DIM, 1, 2.0), noise(keys * DIM, 2, 2.0), noise(keys * DIM, 3, 1.0));
        for (mask, window, sinks, softcap) in [
            (Mask::None, 0, 0, 0.0),
            (Mask::Causal { q_pos0: (keys - rows.min(keys)) as u64 }, 0, 0, 0.0),
            (Mask::Causal { q_pos0: (keys - rows.min(keys)) as u64 }, 17, 2, 5.0),
        ] {
            let options = AttentionOptions { mode: Mode::Exact, window, sinks, softcap, ..AttentionOptions::default() };
            let (mut out, mut lse) = (vec![0.0; 2 * rows * DIM], vec![0.0; 2 * rows]);
            let problem = Problem {
                q: Tensor::new(&q, [1, 2, rows, DIM]).unwrap(),
                k: Tensor::new(&k, [1, 1, keys, DIM]).unwrap(),
                v: Tensor::new(&v, [1, 1, keys, DIM]).unwrap(),
                out: TensorMut::new(&mut out, [1, 2, rows, DIM]).unwrap(),
                lse: Some(TensorMut::new(&mut lse, [1, 2, rows, 1]).unwrap()),
                bounds: None,
                mask,
                options,
            };
            let stats = attention(&problem, &memory(0)).unwrap();
            assert_eq!(stats.mode, Mode::Exact);
            for h in 0..2 {
                let naive = Naive {
                    q: &q[h * rows * DIM..][..rows * DIM],
                    k: &k,
                    v: &v,
                    dim_k: DIM,
                    dim_v: DIM,
                    options,
                    sees: &|i, j| sees(&mask, window, sinks, i, j),
                    top: usize::MAX,
                };
                let (want, want_lse) = naive.run();
                assert!(worst(&out[h * rows * DIM..][..rows * DIM], &want, DIM) < 2e-5, "{rows} {keys} {window}");
                for (got, want) in lse[h * rows..][..rows].iter().zip(&want_lse) {
                    assert!(
                        (f64::from(*got) - want).abs() < 2e-5
                            || got == &f32::NEG_INFINITY && want == &f64::NEG_INFINITY
                    );
                }
            }
        }
    }
}

#[test]
fn a_session_decodes_what_one_call_gives() {
    let parts = if cfg!(miri) { [1, 10, 19] } else { [1, 100, 199] };
    let (n, rows) = (parts.iter().sum::<usize>(), 7);
    let (q, kv) = (noise(2 * rows * DIM, 4, 2.0), noise(n * DIM, 5, 1.0));
    let o = session_options(AttentionOptions { mode: Mode::Exact, ..AttentionOptions::default() }, Dtype::F32);
    let mut session = Session::new_in(&o, &memory(0)).unwrap();
    let mut begin = 0;
    for part in parts {
        let t = Tensor::new(&kv[begin * DIM..][..part * DIM], [1, 1, part, DIM]).unwrap();
        session.append(t, t).unwrap();
        session.commit().unwrap();
        begin += part;
    }
    let mut plan = Plan::new();
    session.work_plan(rows, &mut plan).unwrap();
    let Layout { bytes, .. } = plan.finish().unwrap();
    let (mut out, mut parts) = (vec![0.0; 2 * rows * DIM], vec![0.0; 2 * rows * DIM]);
    let query = Tensor::new(&q, [1, 2, rows, DIM]).unwrap();
    let to = TensorMut::new(&mut out, [1, 2, rows, DIM]).unwrap();
    session.attend(&Attend::new(query, &to), &memory(bytes)).unwrap();
    let to = TensorMut::new(&mut parts, [1, 2, rows, DIM]).unwrap();
    for ith in 0..3 {
        session.attend(&Attend::new(query, &to).part(ith, 3), &memory(bytes)).unwrap();
    }
    assert_eq!(out, parts);
    for h in 0..2 {
        let naive = Naive {
            q: &q[h * rows * DIM..][..rows * DIM],
            k: &kv,
            v: &kv,
            dim_k: DIM,
            dim_v: DIM,
            options: o.attention,
            sees: &|i, j| (j + rows <= n + i).then_some(0.0),
            top: usize::MAX,
        };
        assert!(worst(&out[h * rows * DIM..][..rows * DIM], &naive.run().0, DIM) < 2e-5);
    }
}

#[test]
fn index_against_brute_force() {
    let (n, asked, k) = if cfg!(miri) { (60, 2, 6) } else { (900, 40, 6) };
    let (keys, queries) = (noise(n * DIM, 6, 1.0), noise(asked * DIM, 7, 1.0));
    for levels in if LEVELS { 1..=3 } else { 1..=1 } {
        let o = IndexOptions { levels, capacity: n, ..IndexOptions::new(DIM) };
        let mut index = Index::new_in(&o, &memory(0)).unwrap();
        index.insert(Rows::new(&keys, DIM).unwrap(), None).unwrap();
        index.remove(&(0..n as u64).step_by(3).collect::<Vec<_>>()).unwrap();
        let mut scratch = Scratch::new_in(&index, &memory(0)).unwrap();
        let everything = QueryOptions { field_of_view: n, ..QueryOptions::unlimited(k) };
        for engine in [Engine::Auto, Engine::Walk, Engine::Scan] {
            let (mut out, mut exact) = (vec![Neighbor::default(); asked * k], vec![Neighbor::default(); asked * k]);
            let rows = Rows::new(&queries, DIM).unwrap();
            index.query(&mut scratch, rows, &QueryOptions { engine, ..everything }, &mut out, None).unwrap();
            index.query_exact(&mut scratch, rows, &everything, &mut exact, None).unwrap();
            assert_eq!(out, exact);
            for (query, found) in queries.chunks(DIM).zip(out.chunks(k)) {
                let score = |id: usize| -> f64 {
                    query.iter().zip(&keys[id * DIM..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
                };
                let mut best: Vec<f64> = (0..n).filter(|id| id % 3 != 0).map(score).collect();
                best.sort_by(|a, b| b.total_cmp(a));
                for (found, best) in found.iter().zip(best) {
                    assert!(found.id % 3 != 0 && (f64::from(found.score) - best).abs() < 1e-4);
                    assert!((score(found.id as usize) - best).abs() < 1e-4);
                }
            }
        }
    }
}

#[test]
fn what_is_left_out_is_refused() {
    let mode = |mode| AttentionOptions { mode, ..AttentionOptions::default() };
    let session = |a, dtype| Session::new_in(&session_options(a, dtype), &memory(0));
    there(session(mode(Mode::Accelerated), Dtype::F32), ACCELERATED, "mode");
    there(session(mode(Mode::TopK), Dtype::F32), TOP_K, "mode");
    there(session(mode(Mode::Exact), Dtype::F16), HALF, "kv_dtype");
    there(session(mode(Mode::Exact), Dtype::Bf16), HALF, "kv_dtype");
    let certified = AttentionOptions { certificate: true, ..mode(Mode::Exact) };
    there(session(certified, Dtype::F32), CERTIFICATES, "flags");
    let verified = AttentionOptions { verified: true, ..mode(Mode::Exact) };
    there(session(verified, Dtype::F32), CERTIFICATES, "flags");
    let engine = IndexOptions { engine: Engine::Cells, capacity: 600, ..IndexOptions::new(DIM) };
    there(Index::new_in(&engine, &memory(0)), CELLS, "engine");
    let levels = IndexOptions { levels: 2, ..IndexOptions::new(DIM) };
    there(Index::new_in(&levels, &memory(0)), LEVELS, "levels");
    let same = noise(4 * DIM, 11, 1.0);
    let t = Tensor::new(&same, [1, 1, 4, DIM]).unwrap();
    let mut out = vec![7.0; 4 * DIM];
    let shared = Problem {
        q: t,
        k: t,
        v: t,
        out: TensorMut::new(&mut out, [1, 1, 4, DIM]).unwrap(),
        lse: None,
        bounds: None,
        mask: Mask::None,
        options: AttentionOptions { shared_qk: true, ..mode(Mode::Exact) },
    };
    there(attention(&shared, &memory(0)), SHARED_QK, "flags");
    assert!(SHARED_QK || out.iter().all(|x| *x == 7.0));

    let (data, bits) = (noise(600 * DIM, 8, 1.0), vec![0u16; 8 * DIM]);
    let mut index = Index::new_in(&IndexOptions { engine: Engine::Auto, ..engine }, &memory(0)).unwrap();
    // SAFETY: eight rows that stay where they are.
    #[allow(unsafe_code)]
    let halves = unsafe { Rows::from_raw(bits.as_ptr().cast(), Dtype::F16, 8, DIM, 2 * DIM, "keys") };
    there(halves, HALF, "keys");
    index.insert(Rows::new(&data, DIM).unwrap(), None).unwrap();
    let mut scratch = Scratch::new_in(&index, &memory(0)).unwrap();
    let mut out = vec![Neighbor { id: 77, score: 7.0 }; 3];
    let o = QueryOptions { engine: Engine::Cells, ..QueryOptions::new(3) };
    let asked = index.query(&mut scratch, Rows::new(&data[..DIM], DIM).unwrap(), &o, &mut out, None);
    if CELLS {
        asked.unwrap();
    } else {
        assert_eq!((asked.unwrap_err().status, out[0].id), (Status::Unsupported, 77));
    }
}

#[test]
fn auto_is_exact_where_there_is_nothing_else() {
    let (n, rows) = (4096, 64);
    let (q, kv) = (noise(rows * DIM, 9, 2.0), noise(n * DIM, 10, 1.0));
    let run = |mode, memory: &Memory| {
        let mut out = vec![0.0; rows * DIM];
        let problem = Problem {
            q: Tensor::new(&q, [1, 1, rows, DIM]).unwrap(),
            k: Tensor::new(&kv, [1, 1, n, DIM]).unwrap(),
            v: Tensor::new(&kv, [1, 1, n, DIM]).unwrap(),
            out: TensorMut::new(&mut out, [1, 1, rows, DIM]).unwrap(),
            lse: None,
            bounds: None,
            mask: Mask::None,
            options: AttentionOptions { mode, ..AttentionOptions::default() },
        };
        let stats = attention(&problem, memory).unwrap();
        (out, stats)
    };
    let (exact, _) = run(Mode::Exact, &memory(0));
    let (auto, stats) = run(Mode::Auto, &memory(0));
    if !ACCELERATED {
        assert_eq!((stats.mode, stats.reason), (Mode::Exact, Reason::OnlyWay));
        assert_eq!(auto, exact);
    }
    assert!(auto.iter().all(|x| x.is_finite()));
}
