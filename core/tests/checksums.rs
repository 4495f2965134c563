//! Checksums of results per instruction set, so that a change that is to keep every bit can show that it does: calls, sessions, batches,
//! decoding, biases, queries of an index, saved bytes. `ICE_BLESS=1` rewrites the lines of this machine's instruction sets; the
//! difference then says which results changed. Sets without lines are left out.
//!
//! `tests/data/checksums.txt` has what only a decision changes: exact and top-k attention, the index, saved bytes.
//! `tests/data/checksums_accelerated.txt` has accelerated attention, whose bits change whenever it chooses other keys.

mod common;

use common::{memory, noise};
use iceformer_core::attention::{
    Attend, AttentionOptions, AttentionRoom, AttentionStats, IndexProblem, Mask, Mode, Problem, Session,
    SessionOptions, attention, index_attention, merge,
};
use iceformer_core::dci::{Directions, Engine, Index, IndexOptions, Metric, Neighbor, QueryOptions, Scratch};
use iceformer_core::math::hash;
use iceformer_core::mem::{Dtype, Plan, Rows, RowsMut, Tensor, TensorMut, bf16, f16};
use iceformer_core::simd::Isa;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// FNV-1a over numbers.
#[derive(Clone, Copy)]
struct Sum(u64);

impl Sum {
    fn new() -> Sum {
        Sum(0xcbf2_9ce4_8422_2325)
    }

    fn byte(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }

    fn number(&mut self, x: u64) {
        x.to_le_bytes().into_iter().for_each(|b| self.byte(b));
    }

    /// All NaN are one.
    fn floats(&mut self, x: &[f32]) {
        x.iter().for_each(|x| self.number(u64::from(if x.is_nan() { f32::NAN } else { *x }.to_bits())));
    }

    fn stats(&mut self, s: &AttentionStats) {
        [s.pairs, s.pairs_dense, s.certificates, s.certified].into_iter().for_each(|x| self.number(x));
        self.floats(&[s.score_error, s.certified_error]);
    }
}

/// Checksums by "set case".
type Table = BTreeMap<String, u64>;

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available())
}

/// With `isa` as the best there is: what is loaded takes that one, and names none of its own.
fn limited(isa: Isa, run: impl FnOnce()) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Isa::limit(Some(isa)).unwrap();
    run();
    Isa::limit(None).unwrap();
}

/// Compares with a committed table, or rewrites the lines of this machine's sets.
fn committed(file: &str, case: impl Fn(Isa, &mut dyn FnMut(String, Sum))) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let line = |line: &str| {
        let (name, sum) = line.rsplit_once(' ').expect("a name and a sum");
        (name.to_owned(), u64::from_str_radix(sum, 16).expect("hexadecimal"))
    };
    let mut want: Table = text.lines().map(line).collect();
    let bless = std::env::var_os("ICE_BLESS").is_some_and(|v| v == "1");
    let mut wrong = Vec::new();
    for isa in isas() {
        let mine = format!("{} ", isa.name());
        if bless {
            want.retain(|name, _| !name.starts_with(&mine));
        } else if !want.keys().any(|name| name.starts_with(&mine)) {
            println!("{}: no checksums of {}", file, isa.name());
            continue;
        }
        let mut have = Table::new();
        case(isa, &mut |name, sum| assert!(have.insert(mine.clone() + &name, sum.0).is_none(), "{name} twice"));
        if bless {
            want.extend(have);
            continue;
        }
        let names = want.keys().filter(|name| name.starts_with(&mine)).chain(have.keys());
        wrong.extend(names.filter(|name| want.get(*name) != have.get(*name)).cloned());
    }
    if bless {
        let text: String = want.iter().map(|(name, sum)| format!("{name} {sum:016x}\n")).collect();
        std::fs::write(&path, text).expect("tests/data is writable");
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "{file} differs in\n{}", wrong.join("\n"));
}

/// Numbers of any element type.
enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Data {
    fn new(dtype: Dtype, x: &[f32]) -> Data {
        match dtype {
            Dtype::F32 => Data::F32(x.to_vec()),
            Dtype::F16 => Data::F16(x.iter().map(|&x| f16::from_f32(x)).collect()),
            Dtype::Bf16 => Data::Bf16(x.iter().map(|&x| bf16::from_f32(x)).collect()),
        }
    }

    fn tensor(&self, shape: [usize; 4]) -> Tensor<'_> {
        match self {
            Data::F32(x) => Tensor::new(x, shape),
            Data::F16(x) => Tensor::new(x, shape),
            Data::Bf16(x) => Tensor::new(x, shape),
        }
        .unwrap()
    }
}

/// Keys or values that gather around centres.
fn near(n: usize, d: usize, seed: u64) -> Vec<f32> {
    let centres = noise(24 * d, seed + 50, 2.0);
    let mut x = noise(n * d, seed, 0.4);
    for (i, row) in x.chunks_mut(d).enumerate() {
        let c = hash(seed + 9, i as u64) as usize % 24;
        row.iter_mut().zip(&centres[c * d..]).for_each(|(x, c)| *x += c);
    }
    x
}

/// One call: two batches, four query heads on two KV heads.
struct Call {
    rows: [usize; 2],
    dims: [usize; 2],
    dtype: Dtype,
    options: AttentionOptions,
    bounds: bool,
}

impl Call {
    fn new(isa: Isa, mode: Mode, rows: [usize; 2], dims: [usize; 2]) -> Call {
        let options = AttentionOptions { mode, isa: Some(isa), ..AttentionOptions::default() };
        Call { rows, dims, dtype: Dtype::F32, options, bounds: false }
    }

    fn with(mut self, change: impl FnOnce(&mut AttentionOptions)) -> Call {
        change(&mut self.options);
        self
    }

    fn of(mut self, dtype: Dtype) -> Call {
        self.dtype = dtype;
        self
    }

    fn bounded(mut self) -> Call {
        self.bounds = true;
        self.with(|o| o.certificate = true)
    }

    fn sum(self, mask: Mask<'_>) -> Sum {
        let ([rows_q, rows_kv], [dk, dv]) = (self.rows, self.dims);
        let heads_q = if self.options.shared_qk { 2 } else { 4 };
        let q = Data::new(self.dtype, &noise(2 * heads_q * rows_q * dk, 1, 1.5));
        let k = Data::new(self.dtype, &near(4 * rows_kv, dk, 2));
        let v = Data::new(self.dtype, &near(4 * rows_kv, dv, 3));
        let (mut out, mut lse) = (vec![7.0; 2 * heads_q * rows_q * dv], vec![7.0; 2 * heads_q * rows_q]);
        let mut bounds = lse.clone();
        let each = [2, heads_q, rows_q, 1];
        let problem = Problem::new(
            q.tensor([2, heads_q, rows_q, dk]),
            k.tensor([2, 2, rows_kv, dk]),
            v.tensor([2, 2, rows_kv, dv]),
            TensorMut::new(&mut out, [2, heads_q, rows_q, dv]).unwrap(),
        )
        .lse(TensorMut::new(&mut lse, each).unwrap())
        .bounds(self.bounds.then(|| TensorMut::new(&mut bounds, each).unwrap()))
        .mask(mask)
        .options(self.options);
        let stats = attention(&problem, &memory(0)).unwrap();
        let mut sum = Sum::new();
        [&out, &lse, &bounds].into_iter().for_each(|x| sum.floats(x));
        sum.stats(&stats);
        sum
    }
}

const KEYS: usize = 150;

fn exact_calls(isa: Isa, note: &mut dyn FnMut(String, Sum)) {
    let causal = |rows: usize| Mask::Causal { q_pos0: (KEYS - rows) as u64 };
    let call = |rows: usize, dims| Call::new(isa, Mode::Exact, [rows, KEYS], dims);
    for rows in [1, 2, 4, 5, 12, 13, 40, KEYS] {
        for (d, dims) in [[64, 64], [40, 24], [7, 5]].into_iter().enumerate() {
            note(format!("exact {rows} rows dims {d}"), call(rows, dims).sum(causal(rows)));
        }
        for dtype in [Dtype::F16, Dtype::Bf16] {
            note(format!("exact {rows} rows {dtype:?}"), call(rows, [24, 32]).of(dtype).sum(causal(rows)));
        }
        let dims = [32, 16];
        let threads = call(rows, dims).with(|o| o.num_threads = 3);
        note(format!("exact {rows} rows threads"), threads.sum(causal(rows)));
        note(
            format!("exact {rows} rows fixed"),
            call(rows, [64, 64]).with(|o| o.fixed_scores = true).sum(causal(rows)),
        );
        note(format!("exact {rows} rows bounds"), call(rows, dims).bounded().sum(causal(rows)));
        note(format!("exact {rows} rows softcap"), call(rows, dims).with(|o| o.softcap = 3.0).sum(causal(rows)));
        let window = |o: &mut AttentionOptions| (o.window, o.sinks) = (20, 3);
        note(format!("exact {rows} rows window"), call(rows, dims).with(window).sum(causal(rows)));
        note(format!("exact {rows} rows both sides"), call(rows, dims).with(window).sum(Mask::None));
        let prefix: Vec<u64> = (0..rows as u64).map(|i| if i == 3 { 0 } else { hash(4, i) % 200 }).collect();
        note(format!("exact {rows} rows prefix"), call(rows, dims).sum(Mask::Prefix(&prefix)));
        let keep: Vec<u8> = (0..2 * KEYS as u64).map(|j| u8::from(!hash(5, j).is_multiple_of(4))).collect();
        note(format!("exact {rows} rows padding"), call(rows, dims).sum(Mask::Keys(&keep)));
        let mut bias = noise(4 * rows * KEYS, 6, 2.0);
        bias.iter_mut().step_by(7).for_each(|b| *b = f32::NEG_INFINITY);
        for dtype in [Dtype::F32, Dtype::F16] {
            let bias = Data::new(dtype, &bias);
            let bias = Mask::Additive(bias.tensor([1, 4, rows, KEYS]));
            note(format!("exact {rows} rows {dtype:?} bias"), call(rows, dims).sum(bias));
            note(format!("exact {rows} rows {dtype:?} bias bounds"), call(rows, dims).bounded().sum(bias));
        }
    }
    let shared = call(KEYS, [32, 32]).with(|o| o.shared_qk = true);
    note("exact shared".into(), shared.sum(Mask::Causal { q_pos0: 0 }));
    let (mut a, mut la) = (noise(12, 1, 1.0), vec![0.5, -3.0, f32::NEG_INFINITY]);
    merge(&mut a, &mut la, &noise(12, 2, 1.0), &[1.0, 9.0, 2.0], 4).unwrap();
    let mut sum = Sum::new();
    [&a, &la].into_iter().for_each(|x| sum.floats(x));
    note("merge".into(), sum);
}

fn top_k_calls(isa: Isa, note: &mut dyn FnMut(String, Sum)) {
    let few = |o: &mut AttentionOptions| (o.top_k, o.seed) = (9, 4);
    for rows in [1, 6, 30] {
        let call = || Call::new(isa, Mode::TopK, [rows, KEYS], [24, 16]).with(few);
        let causal = Mask::Causal { q_pos0: (KEYS - rows) as u64 };
        note(format!("top-k {rows} rows"), call().sum(causal));
        note(format!("top-k {rows} rows f16"), call().of(Dtype::F16).sum(Mask::None));
        note(format!("top-k {rows} rows window"), call().with(|o| (o.window, o.sinks) = (60, 2)).sum(causal));
        let bias = noise(rows * KEYS, 6, 2.0);
        let bias = Tensor::new(&bias, [1, 1, rows, KEYS]).unwrap();
        note(format!("top-k {rows} rows bias"), call().sum(Mask::Additive(bias)));
    }
    let shared = Call::new(isa, Mode::TopK, [KEYS, KEYS], [24, 16]).with(few).with(|o| o.shared_qk = true);
    note("top-k shared".into(), shared.sum(Mask::Causal { q_pos0: 0 }));
}

/// Answers of several ways of asking, and everything saved.
fn index(isa: Isa, note: &mut dyn FnMut(String, Sum)) {
    let (n, dim) = (700, 20);
    let (keys, queries) = (near(n, dim, 11), noise(600 * dim, 12, 1.0));
    for metric in [Metric::InnerProduct, Metric::L2, Metric::Cosine] {
        for (engine, levels) in [(Engine::Walk, 1), (Engine::Walk, 3), (Engine::Cells, 1), (Engine::Auto, 2)] {
            let o = IndexOptions { metric, engine, levels, seed: 3, isa: Some(isa), ..IndexOptions::new(dim) };
            let directions = if engine == Engine::Cells { Directions::Fitted } else { Directions::Random };
            let mut index = Index::new_in(&IndexOptions { directions, ..o }, &memory(0)).unwrap();
            let (first, last) = keys.split_at(600 * dim);
            index.insert(Rows::new(first, dim).unwrap(), None).unwrap();
            index.remove(&(0..600).step_by(7).collect::<Vec<u64>>()).unwrap();
            last.chunks(dim).for_each(|key| index.insert(Rows::new(key, dim).unwrap(), None).unwrap());
            let name = format!("index {metric:?} {engine:?} {levels}");
            if engine == Engine::Cells {
                index.fit(Some(Rows::new(&queries[..200 * dim], dim).unwrap())).unwrap();
            }
            let mut bytes = vec![0; index.save_len()];
            index.save(&mut bytes).unwrap();
            let mut sum = Sum::new();
            bytes.iter().for_each(|&b| sum.byte(b));
            note(format!("saved {name}"), sum);
            let mut scratch = Scratch::new_in(&index, &memory(0)).unwrap();
            for (asked, rows) in [("one", 1), ("few", 3), ("batch", 40), ("many", 600)] {
                let ask = Rows::new(&queries[..rows * dim], dim).unwrap();
                let some = [0xb6u8; 90];
                let mut ways = vec![
                    ("default", QueryOptions::new(5)),
                    ("recall", QueryOptions { target_recall: 0.8, ..QueryOptions::new(5) }),
                    ("range", QueryOptions { id_begin: 40, id_end: 500, ..QueryOptions::new(5) }),
                    ("filter", QueryOptions { filter: Some(&some), ..QueryOptions::new(5) }),
                ];
                if engine.walks() {
                    ways.push(("walk", QueryOptions { engine: Engine::Walk, visit: 90, ..QueryOptions::new(5) }));
                    ways.push(("scan", QueryOptions { engine: Engine::Scan, retrieve: 50, ..QueryOptions::new(5) }));
                }
                for (way, o) in ways {
                    let mut sum = Sum::new();
                    let (mut out, mut counts) = (vec![Neighbor::default(); rows * 5], vec![0; rows]);
                    for exact in [false, true] {
                        let counts = Some(&mut counts[..]);
                        match exact {
                            true => index.query_exact(&mut scratch, ask, &o, &mut out, counts),
                            false => index.query(&mut scratch, ask, &o, &mut out, counts),
                        }
                        .unwrap();
                        for x in &out {
                            sum.number(x.id);
                            sum.floats(&[x.score]);
                        }
                    }
                    counts.iter().for_each(|&n| sum.number(u64::from(n)));
                    note(format!("{name} {asked} {way}"), sum);
                }
            }
            if metric == Metric::InnerProduct {
                for mode in [Mode::Exact, Mode::TopK] {
                    if mode == Mode::Exact || engine.walks() {
                        note(format!("{name} {mode:?} attention"), over_index(&index, mode, false));
                        note(format!("{name} {mode:?} attention with room"), over_index(&index, mode, true));
                    }
                }
            }
        }
    }
}

trait Walks {
    fn walks(self) -> bool;
}

impl Walks for Engine {
    fn walks(self) -> bool {
        self != Engine::Cells
    }
}

fn over_index(index: &Index, mode: Mode, room: bool) -> Sum {
    let (rows, dim, dv) = (50, index.dim(), 12);
    let ids = index.next_id() as usize;
    let (q, v) = (noise(rows * dim, 13, 1.0), near(ids, dv, 14));
    let (q, v) = (Rows::new(&q, dim).unwrap(), Rows::new(&v, dv).unwrap());
    let options = AttentionOptions { mode, tolerance: 0.1, ..AttentionOptions::default() };
    let mut scratch = Scratch::new_in(index, &memory(0)).unwrap();
    let mut room = room.then(|| AttentionRoom::new_in(index, dv, &memory(0)).unwrap());
    let mut sum = Sum::new();
    for mask in [Mask::None, Mask::Causal { q_pos0: ids as u64 - 60 }] {
        let (mut out, mut lse) = (vec![7.0; rows * dv], vec![7.0; rows]);
        let to = &mut RowsMut::new(&mut out, dv).unwrap();
        let lse_to = Some(&mut lse[..]);
        let stats = index_attention(
            &IndexProblem::new(index, q, v).mask(mask).options(options),
            &mut scratch,
            room.as_mut(),
            to,
            lse_to,
        )
        .unwrap();
        [&out, &lse].into_iter().for_each(|x| sum.floats(x));
        sum.stats(&stats);
    }
    sum
}

/// A prompt in batches, tokens one by one, some taken back, saved.
fn sessions(isa: Isa, mode: Mode, tokens: usize, note: &mut dyn FnMut(String, Sum)) {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for (d, [dk, dv]) in [[64, 64], [20, 12]].into_iter().enumerate() {
            let attention = AttentionOptions { mode, top_k: 9, tolerance: 0.1, isa: Some(isa), ..Default::default() };
            let o = SessionOptions {
                heads_q: 4,
                heads_kv: 2,
                dim_k: dk,
                dim_v: dv,
                capacity: tokens + 20,
                kv_dtype: dtype,
                attention,
                dense_below: 0,
            };
            let mut session = Session::new_in(&o, &memory(0)).unwrap();
            let mut plan = Plan::new();
            session.work_plan(64, &mut plan).unwrap();
            let work = plan.finish().unwrap().bytes;
            let (k, v) = (near(2 * (tokens + 20), dk, 21), near(2 * (tokens + 20), dv, 22));
            let name = format!("session {mode:?} {dtype:?} dims {d}");
            let step =
                |session: &mut Session, at: usize, n: usize, mask: Option<Mask<'_>>, parts: usize, sum: &mut Sum| {
                    let (kn, vn) = (Tensor::new(&k[at * dk..][..2 * n * dk], [1, 2, n, dk]).unwrap(), &v[at * dv..]);
                    session.append(kn, Tensor::new(&vn[..2 * n * dv], [1, 2, n, dv]).unwrap()).unwrap();
                    session.commit().unwrap();
                    let q = noise(4 * n * dk, 23 + at as u64, 1.5);
                    let (mut out, mut lse) = (vec![7.0; 4 * n * dv], vec![7.0; 4 * n]);
                    {
                        let q = Tensor::new(&q, [1, 4, n, dk]).unwrap();
                        let out = TensorMut::new(&mut out, [1, 4, n, dv]).unwrap();
                        let lse = TensorMut::new(&mut lse, [1, 4, n, 1]).unwrap();
                        for ith in 0..parts {
                            let stats = session
                                .attend(&Attend::new(q, &out).mask(mask).lse(&lse).part(ith, parts), &memory(work))
                                .unwrap();
                            sum.stats(&stats);
                        }
                    }
                    [&out, &lse].into_iter().for_each(|x| sum.floats(x));
                };
            let mut sum = Sum::new();
            while session.len() + 64 < tokens {
                let at = session.len();
                step(&mut session, at, 64, None, 1 + at / 64 % 3, &mut sum);
            }
            note(format!("{name} prompt"), sum);
            for n in [1, 1, 2, 3, 4, 7] {
                let at = session.len();
                let mut sum = Sum::new();
                step(&mut session, at, n, None, 2, &mut sum);
                note(format!("{name} {n} rows at {at}"), sum);
            }
            let at = session.len();
            let bias = noise(2 * (at + 2), 24, 1.0);
            let bias = Mask::Additive(Tensor::new(&bias, [1, 1, 2, at + 2]).unwrap());
            let mut sum = Sum::new();
            step(&mut session, at, 2, Some(bias), 1, &mut sum);
            note(format!("{name} bias"), sum);
            session.truncate(at - 5).unwrap();
            session.remove_range(11, 19).unwrap();
            let at = session.len();
            let mut sum = Sum::new();
            step(&mut session, at, 1, None, 1, &mut sum);
            note(format!("{name} after a gap"), sum);
            let mut bytes = vec![0; session.save_len()];
            session.save(&mut bytes).unwrap();
            let mut sum = Sum::new();
            bytes.iter().for_each(|&b| sum.byte(b));
            note(format!("saved {name}"), sum);
            let mut sum = Sum::new();
            limited(isa, || {
                let mut loaded = Session::load(&bytes, &memory(0)).unwrap();
                let at = loaded.len();
                step(&mut loaded, at, 3, None, 1, &mut sum);
            });
            note(format!("{name} loaded"), sum);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn exact_top_k_index_and_saved_bytes() {
    committed("checksums.txt", |isa, note| {
        exact_calls(isa, note);
        top_k_calls(isa, note);
        index(isa, note);
        sessions(isa, Mode::Exact, 150, note);
        sessions(isa, Mode::TopK, 90, note);
    });
}

#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn accelerated() {
    committed("checksums_accelerated.txt", |isa, note| {
        for (rows, keys) in [(3, 1100), (12, 1100), (13, 1100), (300, 1100), (300, 600)] {
            for (dtype, dims) in [(Dtype::F32, [64, 64]), (Dtype::F32, [20, 12]), (Dtype::F16, [32, 32])] {
                let call =
                    || Call::new(isa, Mode::Accelerated, [rows, keys], dims).of(dtype).with(|o| o.tolerance = 0.1);
                let causal = Mask::Causal { q_pos0: (keys - rows) as u64 };
                let name = format!("accelerated {rows} rows {keys} keys {dtype:?} {dims:?}");
                note(name.clone(), call().sum(causal));
                if dims == [20, 12] {
                    note(name.clone() + " threads", call().with(|o| o.num_threads = 2).sum(causal));
                    note(name.clone() + " softcap", call().with(|o| o.softcap = 3.0).sum(causal));
                    note(name.clone() + " window", call().with(|o| (o.window, o.sinks) = (300, 3)).sum(causal));
                    let keep: Vec<u8> = (0..2 * keys as u64).map(|j| u8::from(!hash(5, j).is_multiple_of(4))).collect();
                    note(name + " padding", call().sum(Mask::Keys(&keep)));
                }
            }
        }
        sessions(isa, Mode::Accelerated, 1300, note);
        let (n, dim) = (900, 20);
        let keys = near(n, dim, 11);
        let o = IndexOptions { engine: Engine::Cells, seed: 3, isa: Some(isa), ..IndexOptions::new(dim) };
        let mut index = Index::new_in(&o, &memory(0)).unwrap();
        index.insert(Rows::new(&keys, dim).unwrap(), None).unwrap();
        index.remove(&(0..900).step_by(11).collect::<Vec<u64>>()).unwrap();
        note("accelerated over an index".into(), over_index(&index, Mode::Accelerated, true));
    });
}
