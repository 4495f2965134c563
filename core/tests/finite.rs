//! Numerical safety: whatever is finite gives outputs that are finite, within the range of the values a row sees, coordinate by
//! coordinate, but for rounding and the tolerance times their spread; or it is refused as `NotFinite`.
#![allow(unsafe_code)]

mod common;

use common::{Naive, memory, noise};
use half::{bf16, f16};
use iceformer_core::Status;
use iceformer_core::attention::{Attend, AttentionOptions, Mask, Mode, Problem, Session, SessionOptions, attention};
use iceformer_core::error::Result;
use iceformer_core::math::hash;
use iceformer_core::mem::{Dtype, Plan, Tensor, TensorMut};
use proptest::prelude::*;

/// Keys of a segment, as the library has it.
const SEGMENT: usize = 256;

/// Of the options, where they say nothing.
const TOLERANCE: f32 = 0.05;

const MODES: [Mode; 2] = [Mode::Accelerated, Mode::Auto];

/// Heads of one sequence: queries `[heads_kv * group, rows, dim]`, keys and values `[heads_kv, keys, dim]`.
#[derive(Clone, Debug)]
struct Heads {
    heads_kv: usize,
    group: usize,
    rows: usize,
    keys: usize,
    dim: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Heads {
    /// Keys and values around a few centres, so that there is something to estimate.
    fn new(heads_kv: usize, group: usize, rows: usize, keys: usize, dim: usize, seed: u64) -> Heads {
        let near = |kind: u64, spread: f32| {
            let centres = noise(16 * dim, seed + kind, 2.0);
            let mut x = noise(heads_kv * keys * dim, seed + kind + 1, spread);
            for (i, x) in x.chunks_mut(dim).enumerate() {
                let centre = (hash(seed, i as u64) % 16) as usize * dim;
                x.iter_mut().zip(&centres[centre..]).for_each(|(x, c)| *x += c);
            }
            x
        };
        let q = noise(heads_kv * group * rows * dim, seed + 9, 1.5);
        Heads { heads_kv, group, rows, keys, dim, q, k: near(1, 0.4), v: near(5, 0.4) }
    }

    /// The same rows of all heads, keys and values shared.
    fn some(&self, begin: usize, end: usize) -> Vec<f32> {
        self.q.chunks(self.rows * self.dim).flat_map(|q| q[begin * self.dim..end * self.dim].to_vec()).collect()
    }

    /// How many keys a row sees: the last row sees all.
    fn seen(&self, row: usize) -> usize {
        self.keys - self.rows + row + 1
    }

    fn call(&self, options: AttentionOptions, dtype: Dtype) -> Result<Outcome> {
        let heads_q = self.heads_kv * self.group;
        let mut outcome = Outcome::new(heads_q * self.rows, self.dim);
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|x| stored(x, dtype));
        let kv = [1, self.heads_kv, self.keys, self.dim];
        let problem = Problem {
            q: view(&q, dtype, [1, heads_q, self.rows, self.dim]),
            k: view(&k, dtype, kv),
            v: view(&v, dtype, kv),
            out: TensorMut::new(&mut outcome.out, [1, heads_q, self.rows, self.dim])?,
            lse: Some(TensorMut::new(&mut outcome.lse, [1, heads_q, self.rows, 1])?),
            bounds: None,
            mask: Mask::Causal { q_pos0: (self.keys - self.rows) as u64 },
            options,
        };
        attention(&problem, &memory(0))?;
        Ok(outcome)
    }

    /// A session of all keys, appended in chunks whose lengths a seed gives.
    fn session(&self, mode: Mode, dtype: Dtype, dense_below: usize, chunks: u64) -> Result<Session> {
        let options = SessionOptions {
            heads_q: self.heads_kv * self.group,
            heads_kv: self.heads_kv,
            dim_k: self.dim,
            dim_v: self.dim,
            capacity: self.keys + 80,
            kv_dtype: dtype,
            attention: of(mode),
            dense_below,
        };
        let mut session = Session::new_in(&options, &memory(0))?;
        let mut nth = 0;
        while session.len() < self.keys {
            let begin = session.len();
            let most = [40, 300, 5000][(hash(chunks, nth) % 3) as usize];
            let end = (begin + 1 + hash(chunks + 1, nth) as usize % most).min(self.keys);
            nth += 1;
            let part = |x: &[f32]| -> Vec<f32> {
                x.chunks(self.keys * self.dim).flat_map(|x| x[begin * self.dim..end * self.dim].to_vec()).collect()
            };
            let shape = [1, self.heads_kv, end - begin, self.dim];
            session.append(Tensor::new(&part(&self.k), shape)?, Tensor::new(&part(&self.v), shape)?)?;
            session.commit()?;
        }
        Ok(session)
    }

    /// Whether products of queries and keys, or sums of values, may leave f32: what may be refused.
    fn are_too_large(&self) -> bool {
        let most = f64::from(f32::MAX) / 4.0;
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|x| f64::from(x.iter().fold(0.0f32, |a, x| a.max(x.abs()))));
        q * k * self.dim as f64 > most || v * self.keys as f64 > most
    }

    /// Keeps to what a storage type holds.
    fn rounded(&mut self, dtype: Dtype) {
        for x in [&mut self.k, &mut self.v].into_iter().flatten() {
            *x = round(*x, dtype);
        }
    }

    /// Finite, and within the range of what each row sees, but for the tolerance times its spread, and rounding.
    fn hold(&self, outcome: &Outcome, rows: std::ops::Range<usize>) -> std::result::Result<(), String> {
        let n = rows.len() * self.dim;
        if let Some(lse) = outcome.lse.iter().find(|x| !x.is_finite()) {
            return Err(format!("a log-sum-exp of {lse}"));
        }
        for (kv, heads) in outcome.out.chunks(self.group * n).enumerate() {
            let values = &self.v[kv * self.keys * self.dim..][..self.keys * self.dim];
            let (mut low, mut high) = (vec![f32::INFINITY; self.dim], vec![f32::NEG_INFINITY; self.dim]);
            let mut known = 0;
            for (i, row) in rows.clone().enumerate() {
                let seen = self.seen(row);
                for v in values[known * self.dim..seen * self.dim].chunks(self.dim) {
                    low.iter_mut().zip(v).for_each(|(low, &v)| *low = low.min(v));
                    high.iter_mut().zip(v).for_each(|(high, &v)| *high = high.max(v));
                }
                known = seen;
                for (head, x) in heads.chunks(n).enumerate() {
                    for (at, &x) in x[i * self.dim..][..self.dim].iter().enumerate() {
                        let (low, high) = (low[at], high[at]);
                        let slack = TOLERANCE * (high - low) + 1e-5 * low.abs().max(high.abs()) + f32::MIN_POSITIVE;
                        if !(x >= low - slack && x <= high + slack) {
                            return Err(format!(
                                "head {head} of KV head {kv}, row {row}: {x:e} at {at}, of values {low:e} to {high:e}"
                            ));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

struct Outcome {
    out: Vec<f32>,
    lse: Vec<f32>,
}

impl Outcome {
    fn new(rows: usize, dim: usize) -> Outcome {
        Outcome { out: vec![f32::NAN; rows * dim], lse: vec![f32::NAN; rows] }
    }
}

fn of(mode: Mode) -> AttentionOptions {
    AttentionOptions { mode, ..AttentionOptions::default() }
}

fn round(x: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_f32(x.clamp(-65504.0, 65504.0)).to_f32(),
        // The largest would round to infinity.
        Dtype::Bf16 => bf16::from_f32(x.clamp(-3.3e38, 3.3e38)).to_f32(),
        _ => x,
    }
}

/// As bytes of a type.
fn stored(x: &[f32], dtype: Dtype) -> Vec<u32> {
    match dtype {
        Dtype::F32 => x.iter().map(|x| x.to_bits()).collect(),
        _ => {
            let bits = |x: &f32| match dtype {
                Dtype::F16 => f16::from_f32(*x).to_bits(),
                _ => bf16::from_f32(*x).to_bits(),
            };
            // Two in one, in the order of memory.
            let bytes: Vec<u8> = x.iter().flat_map(|x| bits(x).to_ne_bytes()).chain([0; 2]).collect();
            bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
    }
}

fn view(x: &[u32], dtype: Dtype, shape: [usize; 4]) -> Tensor<'_> {
    assert!(shape.iter().product::<usize>() * if dtype == Dtype::F32 { 4 } else { 2 } <= size_of_val(x));
    // SAFETY: so many numbers are there, borrowed as long as the view.
    unsafe { Tensor::from_raw(x.as_ptr().cast(), dtype, shape, [0; 3], "heads") }.unwrap()
}

/// The last rows of a session, with queries `[heads_q, rows, dim]`.
fn attend(session: &Session, q: &[f32], mask: Option<Mask<'_>>) -> Result<Outcome> {
    let o = session.options();
    let rows = q.len() / (o.heads_q * o.dim_k);
    let mut plan = Plan::new();
    session.work_plan(rows, &mut plan)?;
    let mut outcome = Outcome::new(o.heads_q * rows, o.dim_v);
    let shape = [1, o.heads_q, rows, o.dim_k];
    let out = TensorMut::new(&mut outcome.out, [1, o.heads_q, rows, o.dim_v])?;
    let lse = TensorMut::new(&mut outcome.lse, [1, o.heads_q, rows, 1])?;
    session.attend(&Attend::new(Tensor::new(q, shape)?, &out).mask(mask).lse(&lse), &memory(plan.finish()?.bytes))?;
    Ok(outcome)
}

/// What is done to heads that were harmless.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Nothing,
    /// One coordinate of a token's key.
    Coordinate(f32),
    /// All of a token's key.
    Key(f32),
    /// One coordinate of a key in every segment.
    Segments(f32),
    /// One coordinate of every key, on either side.
    Everywhere(f32),
    /// One coordinate of a token's value.
    Value(f32),
    /// All values.
    Values(f32),
    /// All queries and keys have one coordinate.
    OneHot(f32),
    /// Queries so long that logits deviate by this.
    Logits(f32),
}

fn harm(heads: &mut Heads, harm: Harm, seed: u64) {
    let (d, keys) = (heads.dim, heads.keys);
    let below = |n: usize, nth: u64| (hash(seed, nth) % n as u64) as usize;
    let (token, at) = (below(keys, 0), below(d, 1));
    let sign = |i: usize| if hash(seed + 1, i as u64) & 1 == 0 { 1.0 } else { -1.0 };
    for head in 0..heads.heads_kv {
        let k = &mut heads.k[head * keys * d..][..keys * d];
        let v = &mut heads.v[head * keys * d..][..keys * d];
        match harm {
            Harm::Nothing | Harm::Logits(_) => {}
            Harm::Coordinate(x) => k[token * d + at] = sign(0) * x,
            Harm::Key(x) => k[token * d..][..d].iter_mut().enumerate().for_each(|(i, k)| *k = sign(i) * x),
            Harm::Segments(x) => {
                for (i, k) in k.chunks_mut(SEGMENT * d).enumerate() {
                    k[below(k.len() / d, 2 + i as u64) * d + at] = sign(i) * x;
                }
            }
            Harm::Everywhere(x) => k.chunks_mut(d).enumerate().for_each(|(i, k)| k[at] = sign(i) * x),
            Harm::Value(x) => v[token * d + at] = sign(0) * x,
            Harm::Values(x) => v.iter_mut().for_each(|v| *v *= x),
            Harm::OneHot(x) => {
                k.fill(0.0);
                k.chunks_mut(d).enumerate().for_each(|(i, k)| k[below(d, i as u64)] = x);
            }
        }
    }
    match harm {
        Harm::OneHot(_) => {
            heads.q.fill(0.0);
            heads.q.chunks_mut(d).enumerate().for_each(|(i, q)| q[below(d, 7 + i as u64)] = 2.0);
        }
        Harm::Logits(x) => heads.q.iter_mut().for_each(|q| *q *= x / 2.0),
        _ => {}
    }
}

fn any_size(least: i32, most: i32) -> impl Strategy<Value = f32> {
    (least * 4..=most * 4).prop_map(|e| 10f32.powf(e as f32 / 4.0))
}

fn any_harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        Just(Harm::Nothing),
        any_size(4, 38).prop_map(Harm::Coordinate),
        any_size(4, 38).prop_map(Harm::Key),
        any_size(1, 38).prop_map(Harm::Segments),
        any_size(1, 38).prop_map(Harm::Everywhere),
        any_size(1, 38).prop_map(Harm::Value),
        any_size(-38, 35).prop_map(Harm::Values),
        any_size(0, 38).prop_map(Harm::OneHot),
        any_size(1, 4).prop_map(Harm::Logits),
        Just(Harm::Logits(300.0)),
    ]
}

fn any_dtype() -> impl Strategy<Value = Dtype> {
    prop_oneof![Just(Dtype::F32), Just(Dtype::F16), Just(Dtype::Bf16)]
}

fn any_mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(MODES[0]), Just(MODES[1])]
}

/// Either right or refused for being too large.
fn sound<T>(heads: &Heads, result: Result<T>) -> std::result::Result<Option<T>, TestCaseError> {
    match result {
        Ok(x) => Ok(Some(x)),
        Err(e) if e.status == Status::NotFinite && heads.are_too_large() => Ok(None),
        Err(e) => Err(TestCaseError::fail(format!("{e:?}"))),
    }
}

/// Always the same cases.
fn cases(n: u32) -> ProptestConfig {
    let seed = proptest::test_runner::RngSeed::Fixed(0x1ce);
    ProptestConfig { rng_seed: seed, failure_persistence: None, ..ProptestConfig::with_cases(n) }
}

proptest! {
    #![proptest_config(cases(250))]

    #[test]
    fn calls_stay_within_their_values(
        seed in 0u64..1 << 40, first in any_harm(), second in any_harm(), queries in any_size(-3, 12), plain in any::<bool>(),
        dtype in any_dtype(), mode in any_mode(), heads_kv in 1usize..3, group in 1usize..4,
        rows in prop_oneof![1usize..5, 5usize..80, Just(520usize)], dim in prop_oneof![Just(8usize), Just(17), Just(32)],
        // AUTO asks for 2,048 keys.
        keys in prop_oneof![200usize..1400, 2048usize..2400],
    ) {
        let mut heads = Heads::new(heads_kv, group, rows.min(keys), keys, dim, seed);
        harm(&mut heads, first, seed + 1);
        harm(&mut heads, second, seed + 2);
        if !plain {
            heads.q.iter_mut().for_each(|q| *q *= queries);
        }
        heads.rounded(dtype);
        heads.q.iter_mut().for_each(|q| *q = round(*q, dtype));
        if let Some(out) = sound(&heads, heads.call(of(mode), dtype))? {
            heads.hold(&out, 0..heads.rows).map_err(TestCaseError::fail)?;
        }
    }

    #[test]
    fn sessions_stay_within_their_values(
        seed in 0u64..1 << 40, first in any_harm(), second in any_harm(), queries in any_size(-3, 12), plain in any::<bool>(),
        dtype in any_dtype(), mode in any_mode(), heads_kv in 1usize..3, group in 1usize..4,
        rows in prop_oneof![1usize..5, 5usize..80, Just(300usize)], dim in prop_oneof![Just(8usize), Just(17), Just(32)],
        keys in 300usize..1400,
    ) {
        let mut heads = Heads::new(heads_kv, group, rows, keys, dim, seed);
        harm(&mut heads, first, seed + 1);
        harm(&mut heads, second, seed + 2);
        if !plain {
            heads.q.iter_mut().for_each(|q| *q *= queries);
        }
        heads.rounded(dtype);
        let Some(session) = sound(&heads, heads.session(mode, dtype, SEGMENT, seed))? else { return Ok(()) };
        // All rows at once, then one by one as far as they see the same.
        if let Some(out) = sound(&heads, attend(&session, &heads.q, None))? {
            heads.hold(&out, 0..rows).map_err(TestCaseError::fail)?;
        }
        for row in (0..rows).rev().take(4) {
            let mask = Mask::Causal { q_pos0: (heads.seen(row) - 1) as u64 };
            if let Some(out) = sound(&heads, attend(&session, &heads.some(row, row + 1), Some(mask)))? {
                heads.hold(&out, row..row + 1).map_err(TestCaseError::fail)?;
            }
        }
    }
}

/// Error of a row against f64, relative to the row, and what it weighs some keys with.
struct Row {
    error: f64,
    weight: f64,
}

/// All rows, head by head, of heads with one KV head.
fn rows_of(heads: &Heads, out: &[f32], tokens: &[usize]) -> Vec<Row> {
    let d = heads.dim;
    // One coordinate more tells the weight.
    let tagged = |(j, v): (usize, &[f32])| [v, &[f32::from(u8::from(tokens.contains(&j)))]].concat();
    let v: Vec<f32> = heads.v.chunks(d).enumerate().flat_map(tagged).collect();
    let row = |(at, (q, out)): (usize, (&[f32], &[f32]))| {
        let sees = |_: usize, j: usize| (j < heads.seen(at % heads.rows)).then_some(0.0);
        let options = of(Mode::Exact);
        let row = Naive { q, k: &heads.k, v: &v, dim_k: d, dim_v: d + 1, options, sees: &sees, top: usize::MAX };
        let (want, _) = row.run();
        let wrong: f64 = out.iter().zip(&want).map(|(&x, y)| (f64::from(x) - y).powi(2)).sum();
        let size: f64 = want[..d].iter().map(|y| y * y).sum();
        Row { error: (wrong / size).sqrt(), weight: want[d] }
    };
    heads.q.chunks(d).zip(out.chunks(d)).enumerate().map(row).collect()
}

/// Rows that look away from outliers are as right as without them, and rows that look at nothing else find them.
#[derive(Default)]
struct Tally {
    away: [usize; 2],
    at: [usize; 2],
    worst: f64,
    /// The worst error of the same rows with the nearest outliers.
    plain: f64,
    wild: Vec<String>,
}

impl Tally {
    /// Rows may err by a few times the tolerance.
    const FEW: f64 = 4.0 * TOLERANCE as f64;

    fn add(&mut self, heads: &Heads, out: &Outcome, tokens: &[usize], what: &str) {
        if let Err(e) = heads.hold(out, 0..heads.rows) {
            self.wild.push(format!("{what}: {e}"));
        }
        for Row { error, weight } in rows_of(heads, &out.out, tokens) {
            let [of, wrong] = if weight < 0.5 { &mut self.away } else { &mut self.at };
            *of += 1;
            *wrong += usize::from(error.is_nan() || error > Self::FEW.max(1.01 * self.plain));
            self.worst = if self.worst.is_nan() || error <= self.worst { self.worst } else { error };
        }
    }

    /// Rows may err by what the worst of these errs by, whose outliers are the nearest: how far they are out changes nothing.
    fn without(&mut self, heads: &Heads, out: &Outcome) {
        self.plain = rows_of(heads, &out.out, &[]).iter().map(|row| row.error).fold(0.0, f64::max);
    }

    fn assert(&self) {
        let Tally { away, at, worst, wild, .. } = self;
        println!(
            "off: {} of {} that look away, {} of {} that do not, worst {worst:.3e}",
            away[1], away[0], at[1], at[0]
        );
        assert!(wild.is_empty(), "{} outside the range of the values:\n{}", wild.len(), wild.join("\n"));
        assert!(away[0] > 0, "no rows that look away");
        assert_eq!([away[1], at[1]], [0, 0], "rows are off, of {away:?} and {at:?}; worst {worst:e}");
    }
}

/// 520 tokens of noise, one number of one key far out, a row at a time.
#[test]
fn one_key_far_out_in_a_session() {
    let mut tally = Tally::default();
    for (dtype, mode) in [Dtype::F32, Dtype::Bf16].into_iter().flat_map(|t| MODES.map(|mode| (t, mode))) {
        for (seed, size) in (0..20).flat_map(|seed| [1e6, -1e12, 1e18, -1e24, 1e30, -1e30].map(|size| (seed, size))) {
            let mut heads = in_noise(seed);
            let token = seed as usize * 20 + 7;
            heads.k[token * 16 + 3] = size;
            heads.rounded(dtype);
            let session = heads.session(mode, dtype, 64, seed).unwrap();
            let out = attend(&session, &heads.q, None).unwrap();
            tally.add(&heads, &out, &[token], &format!("{mode:?}, {dtype:?}, a key of {size:e}"));
        }
    }
    tally.assert();
}

#[test]
fn one_value_far_out_in_a_session() {
    for (dtype, mode) in [(Dtype::F32, Mode::Accelerated), (Dtype::Bf16, Mode::Accelerated), (Dtype::F32, Mode::Auto)] {
        for (seed, size) in (0..20).flat_map(|seed| [1e6, 1e12, 1e18, 1e24, 1e30].map(|size| (seed, size))) {
            let mut heads = in_noise(seed);
            heads.v[(seed as usize * 20 + 7) * 16 + 3] = size;
            heads.rounded(dtype);
            let out = attend(&heads.session(mode, dtype, 64, seed).unwrap(), &heads.q, None).unwrap();
            let held = heads.hold(&out, 0..1);
            assert!(held.is_ok(), "{mode:?}, {dtype:?}, a value of {size:e}: {held:?}");
        }
    }
}

fn in_noise(seed: u64) -> Heads {
    let of = |tokens: usize, kind: u64| noise(tokens * 16, 3 * seed + kind + 100, 1.0);
    Heads { heads_kv: 1, group: 1, rows: 1, keys: 520, dim: 16, q: of(1, 0), k: of(520, 1), v: of(520, 2) }
}

/// Waves, and one number of one key out by more and more: few rows and many, in calls.
#[test]
fn one_key_far_out_in_a_call() {
    let (n, d, token) = (4096, 16, 5);
    let mut tally = Tally::default();
    for rows in [1, 4, 5, 64] {
        for size in [0.0, 10.0, 30.0, 100.0, 300.0, 1e3, 1e4, 1e5, 1e6, 1e8, 1e10, 1e20, 1e30] {
            for sign in [-1.0, 1.0] {
                let wave = |n: usize, of: &dyn Fn(usize) -> f32| (0..n * d).map(|i| of(i).sin()).collect::<Vec<f32>>();
                let mut heads = Heads {
                    q: wave(rows, &|i| 0.9 * (((n - rows) * d) as f32 + i as f32)),
                    k: wave(n, &|i| 1.7 * i as f32 + (i / 700) as f32),
                    v: wave(n, &|i| 2.3 * i as f32 + std::f32::consts::FRAC_PI_2),
                    ..Heads { heads_kv: 1, group: 1, rows, keys: n, dim: d, q: vec![], k: vec![], v: vec![] }
                };
                heads.k[token * d + 3] = sign * 100.0;
                let plain = heads.call(of(Mode::Accelerated), Dtype::F32).unwrap();
                tally.without(&heads, &plain);
                heads.k[token * d + 3] = sign * size;
                let out = heads.call(of(Mode::Accelerated), Dtype::F32).unwrap();
                tally.add(&heads, &out, &[token], &format!("{rows} rows, a key of {:e}", sign * size));
            }
        }
    }
    tally.assert();
}

/// One key of every segment is far out, to the side from which half of the rows look away, each farther than the one before: rounding
/// leaves no doubt which of them rows look at.
#[test]
fn one_key_far_out_in_every_segment() {
    let (n, d) = (2100, 32);
    let mut tally = Tally::default();
    for (mode, rows) in MODES.into_iter().flat_map(|mode| [3, 64].map(|rows| (mode, rows))) {
        for size in [1e2, 1e4, 1e8, 1e16, 1e30] {
            let mut heads = Heads::new(1, 8, rows, n, d, 77);
            let tokens: Vec<usize> = (0..n / SEGMENT).map(|s| s * SEGMENT + 31 * s % SEGMENT).collect();
            let put = |heads: &mut Heads, size: f32| {
                for (i, token) in tokens.iter().enumerate() {
                    heads.k[token * d + 11] = size * (1.0 + 0.1 * i as f32);
                }
            };
            put(&mut heads, 1e2);
            let plain = heads.call(of(mode), Dtype::F32).unwrap();
            tally.without(&heads, &plain);
            put(&mut heads, size);
            let out = heads.call(of(mode), Dtype::F32).unwrap();
            tally.add(&heads, &out, &tokens, &format!("{mode:?}, {rows} rows, keys of {size:e}"));
        }
    }
    tally.assert();
}
