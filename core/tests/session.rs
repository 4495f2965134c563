//! Sessions against attention from scratch, through every way of changing them.

mod common;

use common::{memory, noise};
use half::f16;
use iceformer_core::Status;
use iceformer_core::attention::{
    Attend, AttentionOptions, Mask, Mode, Problem, Reason, Session, SessionOptions, attention,
};
use iceformer_core::mem::{Dtype, Plan, Rows, Tensor, TensorMut};

/// What storing does to a number.
type Round = fn(f32) -> f32;

const HEADS_Q: usize = 4;
const HEADS_KV: usize = 2;
const DIM_K: usize = 16;
const DIM_V: usize = 8;

fn options(mode: Mode, kv_dtype: Dtype) -> SessionOptions {
    SessionOptions {
        heads_q: HEADS_Q,
        heads_kv: HEADS_KV,
        dim_k: DIM_K,
        dim_v: DIM_V,
        capacity: 200,
        kv_dtype,
        attention: AttentionOptions { mode, top_k: 12, ..AttentionOptions::default() },
        dense_below: 0,
    }
}

/// What the session holds: keys and values by KV head.
#[derive(Clone, Default)]
struct Model {
    k: [Vec<f32>; HEADS_KV],
    v: [Vec<f32>; HEADS_KV],
}

impl Model {
    fn len(&self) -> usize {
        self.k[0].len() / DIM_K
    }

    /// `n` new tokens, as `[1, heads, n, dim]` tensors.
    fn grow(&mut self, n: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
        let (k, v) = (noise(HEADS_KV * n * DIM_K, seed, 2.0), noise(HEADS_KV * n * DIM_V, seed + 1, 1.0));
        for h in 0..HEADS_KV {
            self.k[h].extend_from_slice(&k[h * n * DIM_K..][..n * DIM_K]);
            self.v[h].extend_from_slice(&v[h * n * DIM_V..][..n * DIM_V]);
        }
        (k, v)
    }

    /// The same rows from calls that know nothing of sessions, one for the heads of every head of keys: several would be judged
    /// together.
    fn attend(&self, q: &[f32], rows: usize, o: AttentionOptions, round: Round) -> (Vec<f32>, Vec<f32>) {
        const GROUP: usize = HEADS_Q / HEADS_KV;
        let n = self.len();
        let (mut out, mut lse) = (vec![0.0; HEADS_Q * rows * DIM_V], vec![0.0; HEADS_Q * rows]);
        for head in 0..HEADS_KV {
            let all = |x: &[f32]| x.iter().copied().map(round).collect::<Vec<_>>();
            let (k, v) = (all(&self.k[head]), all(&self.v[head]));
            let part = |dim: usize| head * GROUP * rows * dim..(head + 1) * GROUP * rows * dim;
            let problem = Problem {
                q: Tensor::new(&q[part(DIM_K)], [1, GROUP, rows, DIM_K]).unwrap(),
                k: Tensor::new(&k, [1, 1, n, DIM_K]).unwrap(),
                v: Tensor::new(&v, [1, 1, n, DIM_V]).unwrap(),
                out: TensorMut::new(&mut out[part(DIM_V)], [1, GROUP, rows, DIM_V]).unwrap(),
                lse: Some(TensorMut::new(&mut lse[part(1)], [1, GROUP, rows, 1]).unwrap()),
                bounds: None,
                mask: Mask::Causal { q_pos0: (n - rows) as u64 },
                options: o,
            };
            attention(&problem, &memory(0)).unwrap();
        }
        (out, lse)
    }
}

fn append(session: &mut Session, n: usize, (k, v): &(Vec<f32>, Vec<f32>)) {
    let k = Tensor::new(k, [1, HEADS_KV, n, DIM_K]).unwrap();
    session.append(k, Tensor::new(v, [1, HEADS_KV, n, DIM_V]).unwrap()).unwrap();
    session.commit().unwrap();
}

/// All parts of `nth`, each with exactly the planned work memory.
fn attend(session: &Session, q: &[f32], rows: usize, nth: usize) -> (Vec<f32>, Vec<f32>, Mode, Reason) {
    let (mut out, mut lse) = (vec![f32::NAN; HEADS_Q * rows * DIM_V], vec![f32::NAN; HEADS_Q * rows]);
    let mut plan = Plan::new();
    session.work_plan(rows, &mut plan).unwrap();
    let bytes = plan.finish().unwrap().bytes;
    let mut mode = (Mode::Auto, Reason::Requested);
    {
        let out = TensorMut::new(&mut out, [1, HEADS_Q, rows, DIM_V]).unwrap();
        let lse = TensorMut::new(&mut lse, [1, HEADS_Q, rows, 1]).unwrap();
        let q = Tensor::new(q, [1, HEADS_Q, rows, DIM_K]).unwrap();
        for ith in (0..nth).rev() {
            let work = memory(bytes);
            let stats = session.attend(&Attend::new(q, &out).lse(&lse).part(ith, nth), &work).unwrap();
            mode = (stats.mode, stats.reason);
        }
    }
    (out, lse, mode.0, mode.1)
}

fn check(session: &Session, model: &Model, rows: usize, seed: u64, round: Round) {
    assert_eq!(session.len(), model.len());
    let q = noise(HEADS_Q * rows * DIM_K, seed, 2.0);
    let (out, lse, mode, _) = attend(session, &q, rows, 1);
    for nth in [2, 3, 16] {
        let (other, other_lse, _, _) = attend(session, &q, rows, nth);
        assert_eq!((&out, &lse), (&other, &other_lse), "bits depend on nth = {nth}");
    }
    // A session gives every key to its index at once and limits rows by id; a call inserts them row by row. With
    // retrieval that misses nothing both are the true top k.
    if mode == Mode::Accelerated {
        // Sessions and calls find their own thresholds: both keep the tolerance.
        let o = AttentionOptions { mode: Mode::Exact, ..session.options().attention };
        let (want, _) = model.attend(&q, rows, o, round);
        let of = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let error = of(&mut out.iter().zip(&want).map(|(a, b)| a - b)) / of(&mut want.iter().copied());
        assert!(error < 0.1, "{rows} rows: {error}");
        return;
    }
    let o = AttentionOptions { mode, retrieve_fraction: 1.0, field_of_view: 1 << 20, ..session.options().attention };
    let (want, want_lse) = model.attend(&q, rows, o, round);
    for (a, b) in out.iter().zip(&want).chain(lse.iter().zip(&want_lse)) {
        assert!((a - b).abs() < 2e-5, "{a} for {b}");
    }
}

fn perfect(mode: Mode, dtype: Dtype) -> SessionOptions {
    let mut o = options(mode, dtype);
    (o.attention.retrieve_fraction, o.attention.field_of_view) = (1.0, 1 << 20);
    o
}

#[test]
fn every_way_of_changing_a_session_keeps_it_right() {
    let rounds: [(Dtype, Round); 3] = [
        (Dtype::F32, |x| x),
        (Dtype::F16, |x| f16::from_f32(x).to_f32()),
        (Dtype::Bf16, |x| half::bf16::from_f32(x).to_f32()),
    ];
    for mode in [Mode::Exact, Mode::TopK, Mode::Accelerated, Mode::Auto] {
        for (dtype, round) in rounds {
            let mut session = Session::new_in(&perfect(mode, dtype), &memory(0)).unwrap();
            let mut model = Model::default();
            append(&mut session, 70, &model.grow(70, 1));
            check(&session, &model, 70, 2, round);
            for step in 0..5 {
                append(&mut session, 1, &model.grow(1, 10 + step));
                check(&session, &model, 1, 20 + step, round);
            }
            session.truncate(40).unwrap();
            for h in 0..HEADS_KV {
                model.k[h].truncate(40 * DIM_K);
                model.v[h].truncate(40 * DIM_V);
            }
            check(&session, &model, 40, 3, round);
            append(&mut session, 90, &model.grow(90, 30));
            session.remove_range(20, 65).unwrap();
            for h in 0..HEADS_KV {
                model.k[h].drain(20 * DIM_K..65 * DIM_K);
                model.v[h].drain(20 * DIM_V..65 * DIM_V);
            }
            check(&session, &model, 7, 4, round);
            let mut bytes = vec![0; session.save_len()];
            session.save(&mut bytes).unwrap();
            let loaded = Session::load(&bytes, &memory(0)).unwrap();
            check(&loaded, &model, 7, 5, round);
            let q = noise(HEADS_Q * 3 * DIM_K, 6, 2.0);
            assert_eq!(attend(&loaded, &q, 3, 1).0, attend(&session, &q, 3, 1).0);
            session.reset();
            assert!(session.is_empty());
            let mut fresh = Model::default();
            append(&mut session, 33, &fresh.grow(33, 40));
            check(&session, &fresh, 33, 41, round);
        }
    }
}

/// Heads of several pieces, whole and not, in parts of any number.
#[test]
fn long_calls_are_whole_in_every_mode() {
    let steps: &[usize] = if cfg!(miri) { &[40] } else { &[192, 1, 192, 193, 384, 385] };
    for mode in [Mode::Exact, Mode::TopK, Mode::Accelerated] {
        let o = SessionOptions { capacity: steps.iter().sum(), ..perfect(mode, Dtype::F32) };
        let mut session = Session::new_in(&o, &memory(0)).unwrap();
        let mut model = Model::default();
        for (i, &n) in steps.iter().enumerate() {
            append(&mut session, n, &model.grow(n, 100 + 2 * i as u64));
            check(&session, &model, n, 200 + i as u64, |x| x);
        }
    }
}

#[test]
fn short_sessions_are_exact_and_say_so() {
    let mut session =
        Session::new_in(&SessionOptions { dense_below: 50, ..options(Mode::TopK, Dtype::F32) }, &memory(0)).unwrap();
    let mut model = Model::default();
    append(&mut session, 49, &model.grow(49, 1));
    let q = noise(HEADS_Q * DIM_K, 2, 2.0);
    assert_eq!(attend(&session, &q, 1, 1).3, Reason::Short);
    append(&mut session, 1, &model.grow(1, 3));
    assert_eq!((attend(&session, &q, 1, 1).2, attend(&session, &q, 1, 1).3), (Mode::TopK, Reason::Requested));
}

#[test]
fn a_failed_append_is_rolled_back_everywhere() {
    for mode in [Mode::Exact, Mode::TopK] {
        let mut session = Session::new_in(&options(mode, Dtype::F16), &memory(0)).unwrap();
        let mut model = Model::default();
        append(&mut session, 30, &model.grow(30, 1));
        let q = noise(HEADS_Q * DIM_K, 2, 2.0);
        let before = attend(&session, &q, 1, 1);
        let good = Model::default().grow(4, 5);
        let shape = |n, d| [1, HEADS_KV, n, d];
        let mut refuse = |k: &[f32], v: &[f32], status: Status, text: &str| {
            let k = Tensor::new(k, shape(4, DIM_K)).unwrap();
            let e = session.append(k, Tensor::new(v, shape(4, DIM_V)).unwrap()).unwrap_err();
            assert_eq!(e.status, status);
            assert!(e.to_string().contains(text), "{e}");
            // Nothing else is allowed before the commit, which reports the failure again.
            assert_eq!(session.truncate(1).unwrap_err().status, Status::State);
            assert_eq!(session.commit().unwrap_err(), e);
            assert_eq!(session.len(), 30);
            assert_eq!(attend(&session, &q, 1, 1), before);
        };
        let with = |x: &[f32], at: usize, value: f32| {
            let mut x = x.to_vec();
            x[at] = value;
            x
        };
        // Head 1 is at fault: head 0 has already taken its rows.
        refuse(&with(&good.0, (4 + 2) * DIM_K, f32::NAN), &good.1, Status::NotFinite, "row 2");
        refuse(&with(&good.0, (4 + 1) * DIM_K, 1e6), &good.1, Status::NotFinite, "row 1");
        refuse(&good.0, &with(&good.1, (4 + 3) * DIM_V, -1e6), Status::NotFinite, "row 3");
        // Heads that disagree.
        let rows = Rows::new(&good.0[..DIM_K], DIM_K).unwrap();
        session.heads_mut()[1].append(rows, Rows::new(&good.1[..DIM_V], DIM_V).unwrap()).unwrap();
        assert_eq!(session.commit().unwrap_err().status, Status::State);
        assert_eq!(attend(&session, &q, 1, 1), before);
        // Too many.
        let many = Model::default().grow(171, 6);
        let k = Tensor::new(&many.0, shape(171, DIM_K)).unwrap();
        let e = session.append(k, Tensor::new(&many.1, shape(171, DIM_V)).unwrap()).unwrap_err();
        assert_eq!(e.status, Status::Capacity);
        assert!(session.commit().is_err());
        append(&mut session, 170, &model.grow(170, 7));
        assert_eq!(session.len(), 200);
    }
}

#[test]
fn wrong_calls_are_refused_and_change_nothing() {
    let mut session = Session::new_in(&options(Mode::Exact, Dtype::F32), &memory(0)).unwrap();
    let mut model = Model::default();
    append(&mut session, 10, &model.grow(10, 1));
    assert_eq!(session.truncate(11).unwrap_err().status, Status::Argument);
    assert_eq!(session.remove_range(5, 11).unwrap_err().status, Status::Argument);
    assert_eq!(session.remove_range(6, 5).unwrap_err().status, Status::Argument);
    let q = noise(HEADS_Q * 11 * DIM_K, 2, 1.0);
    let mut out = vec![7.0; HEADS_Q * 11 * DIM_V];
    let mut try_attend = |q: &[f32], rows: usize, mask, ith, nth| {
        let e = session
            .attend(
                &Attend::new(
                    Tensor::new(&q[..HEADS_Q * rows * DIM_K], [1, HEADS_Q, rows, DIM_K]).unwrap(),
                    &TensorMut::new(&mut out[..HEADS_Q * rows * DIM_V], [1, HEADS_Q, rows, DIM_V]).unwrap(),
                )
                .mask(mask)
                .part(ith, nth),
                &memory(0),
            )
            .unwrap_err();
        assert!(out.iter().all(|&x| x == 7.0));
        e.status
    };
    assert_eq!(try_attend(&q, 11, None, 0, 1), Status::State);
    assert_eq!(try_attend(&q, 5, None, 1, 1), Status::Argument);
    assert_eq!(try_attend(&q, 5, None, 0, 0), Status::Argument);
    assert_eq!(try_attend(&q, 5, Some(Mask::Keys(&[1; 9])), 0, 1), Status::Shape);
    let mut bad = q.clone();
    bad[3 * DIM_K] = f32::NAN;
    assert_eq!(try_attend(&bad, 5, None, 0, 1), Status::NotFinite);
    let mut large = q.clone();
    large[2 * DIM_K] = 3e38;
    assert_eq!(try_attend(&large, 5, None, 0, 1), Status::NotFinite);
    for (field, o) in [
        ("heads_q", SessionOptions { heads_q: 3, ..options(Mode::Exact, Dtype::F32) }),
        ("capacity", SessionOptions { capacity: 0, ..options(Mode::Exact, Dtype::F32) }),
    ] {
        let e = Session::new_in(&o, &memory(0)).err().unwrap();
        assert_eq!(e.field, field);
    }
}

#[test]
fn damaged_and_foreign_bytes_are_refused() {
    let mut session = Session::new_in(&options(Mode::TopK, Dtype::F16), &memory(0)).unwrap();
    append(&mut session, 3, &Model::default().grow(3, 1));
    let mut bytes = vec![0; session.save_len()];
    session.save(&mut bytes).unwrap();
    // Miri takes a thousand times as long.
    for at in (0..bytes.len()).step_by(if cfg!(miri) { 397 } else { 1 }) {
        let mut bad = bytes.clone();
        bad[at] ^= 4;
        assert_eq!(Session::load(&bad, &memory(0)).err().map(|e| e.status), Some(Status::Buffer));
        assert!(Session::peek(&bytes[..at]).is_err());
    }
    assert!(session.save(&mut bytes[1..]).is_err());
}

#[test]
fn sessions_of_earlier_builds_load() {
    let o = options(Mode::Accelerated, Dtype::F16);
    let mut session = Session::new_in(&o, &memory(0)).unwrap();
    append(&mut session, 3, &Model::default().grow(3, 1));
    let mut bytes = vec![0; session.save_len()];
    session.save(&mut bytes).unwrap();
    // The last number before the tokens said that more follows them.
    let flag = 8 + 4 + 4 * 16 + 8 * 7;
    let old = |said: u8, more: usize| {
        let mut old = bytes[..bytes.len() - 4].to_vec();
        old[flag] = said;
        old.extend(vec![7; more]);
        old.extend(crc32fast::hash(&old).to_le_bytes());
        old
    };
    let q = noise(HEADS_Q * DIM_K, 6, 2.0);
    let want = attend(&session, &q, 1, 1);
    for (said, more) in [(0, 0), (1, 0), (1, 840)] {
        let loaded = Session::load(&old(said, more), &memory(0)).unwrap();
        assert!(loaded.len() == 3 && attend(&loaded, &q, 1, 1) == want, "{said}, {more}");
        assert_eq!(loaded.save_len(), bytes.len());
    }
    for (said, more) in [(0, 8), (2, 0), (2, 8)] {
        assert_eq!(Session::load(&old(said, more), &memory(0)).err().map(|e| e.status), Some(Status::Buffer));
    }
}

#[test]
fn flags_are_saved() {
    let (tokens, rows) = if cfg!(miri) { (5, 2) } else { (20, 9) };
    for (trusted, fixed_scores) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut o = options(Mode::Exact, Dtype::F32);
        (o.attention.trusted, o.attention.fixed_scores) = (trusted, fixed_scores);
        let mut session = Session::new_in(&o, &memory(0)).unwrap();
        append(&mut session, tokens, &Model::default().grow(tokens, 1));
        let mut bytes = vec![0; session.save_len()];
        session.save(&mut bytes).unwrap();
        let loaded = Session::load(&bytes, &memory(0)).unwrap();
        let a = loaded.options().attention;
        assert_eq!((a.trusted, a.fixed_scores), (trusted, fixed_scores));
        // Fixed point where the machine has it, the same bits in any case.
        let q = noise(HEADS_Q * rows * DIM_K, 6, 2.0);
        assert_eq!(attend(&loaded, &q, rows, 1), attend(&session, &q, rows, 1));
    }
}
