//! Accelerated attention under finite biases, against plain loops in f64.
#![allow(unsafe_code)]

mod common;

use common::{Naive, memory, noise};
use half::f16;
use iceformer_core::attention::{
    AttentionOptions, AttentionStats, Mask, Mode, Problem, Reason, Session, SessionOptions, attention, required,
};
use iceformer_core::cells::SEGMENT;
use iceformer_core::math::hash;
use iceformer_core::mem::{Dtype, Memory, Plan, Tensor, TensorMut};
use iceformer_core::simd::Isa;
use std::ptr::NonNull;

const DIM: usize = 32;
const INF: f32 = f32::INFINITY;

/// Keys around centres that follow each other in runs, values that go with them.
#[derive(Clone)]
struct Heads {
    batch: usize,
    heads_kv: usize,
    group: usize,
    rows: usize,
    keys: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// What a call gives.
struct Run {
    out: Vec<f32>,
    lse: Vec<f32>,
    stats: AttentionStats,
}

impl Heads {
    fn new(batch: usize, heads_kv: usize, group: usize, rows: usize, keys: usize, spread: f32) -> Heads {
        let near = |seed: u64| {
            let centres = noise(32 * DIM, seed + 50, 1.5);
            let mut x = noise(batch * heads_kv * keys * DIM, seed, spread);
            for (i, row) in x.chunks_mut(DIM).enumerate() {
                let c = hash(9, i as u64) as usize % 8 + i / 150 % 24;
                row.iter_mut().zip(&centres[c * DIM..]).for_each(|(x, c)| *x += c);
            }
            x
        };
        let q = noise(batch * heads_kv * group * rows * DIM, 3, 1.5);
        Heads { batch, heads_kv, group, rows, keys, q, k: near(1), v: near(2) }
    }

    fn heads(&self) -> usize {
        self.heads_kv * self.group
    }

    fn problem<'a>(
        &'a self,
        mask: Mask<'a>,
        o: AttentionOptions,
        out: &'a mut [f32],
        lse: &'a mut [f32],
        bounds: Option<&'a mut [f32]>,
    ) -> Problem<'a> {
        let tall = |x: usize| [self.batch, self.heads(), self.rows, x];
        let kv = [self.batch, self.heads_kv, self.keys, DIM];
        Problem {
            q: Tensor::new(&self.q, tall(DIM)).unwrap(),
            k: Tensor::new(&self.k, kv).unwrap(),
            v: Tensor::new(&self.v, kv).unwrap(),
            out: TensorMut::new(out, tall(DIM)).unwrap(),
            lse: Some(TensorMut::new(lse, tall(1)).unwrap()),
            bounds: bounds.map(|b| TensorMut::new(b, tall(1)).unwrap()),
            mask,
            options: o,
        }
    }

    fn run(&self, mask: Mask<'_>, o: AttentionOptions) -> Run {
        let n = self.batch * self.heads() * self.rows;
        let (mut out, mut lse) = (vec![0.0; n * DIM], vec![0.0; n]);
        let stats = attention(&self.problem(mask, o, &mut out, &mut lse, None), &memory(0)).unwrap();
        Run { out, lse, stats }
    }

    /// An accelerated session with all keys and values of the first sequence.
    fn session(&self, dtype: Dtype) -> Session {
        let o = SessionOptions {
            heads_q: self.heads(),
            heads_kv: self.heads_kv,
            dim_k: DIM,
            dim_v: DIM,
            capacity: self.keys,
            kv_dtype: dtype,
            attention: mode(Mode::Accelerated, 0.05),
            dense_below: 0,
        };
        let mut session = Session::new_in(&o, &memory(0)).unwrap();
        let kv = [1, self.heads_kv, self.keys, DIM];
        session.append(Tensor::new(&self.k, kv).unwrap(), Tensor::new(&self.v, kv).unwrap()).unwrap();
        session.commit().unwrap();
        session
    }

    /// Outputs and log-sum-exps in f64, with biases of `batches` and `heads` (1: shared).
    fn naive(&self, bias: &[f32], [batches, heads]: [usize; 2], o: AttentionOptions) -> (Vec<f64>, Vec<f64>) {
        let (mut out, mut lse) = (Vec::new(), Vec::new());
        let (rows, keys) = (self.rows * DIM, self.keys * DIM);
        for b in 0..self.batch {
            for h in 0..self.heads() {
                let of = (if batches == 1 { 0 } else { b }) * heads + if heads == 1 { 0 } else { h };
                let bias = &bias[of * self.rows * self.keys..][..self.rows * self.keys];
                let sees = |i: usize, j: usize| Some(bias[i * self.keys + j]).filter(|&b| b != -INF);
                let kv = b * self.heads_kv + h / self.group;
                let naive = Naive {
                    q: &self.q[(b * self.heads() + h) * rows..][..rows],
                    k: &self.k[kv * keys..][..keys],
                    v: &self.v[kv * keys..][..keys],
                    dim_k: DIM,
                    dim_v: DIM,
                    options: o,
                    sees: &sees,
                    top: usize::MAX,
                };
                let (o, l) = naive.run();
                out.extend(o);
                lse.extend(l);
            }
        }
        (out, lse)
    }
}

fn mode(mode: Mode, tolerance: f32) -> AttentionOptions {
    AttentionOptions { mode, tolerance, ..AttentionOptions::default() }
}

fn additive(bias: &[f32], shape: [usize; 4]) -> Mask<'_> {
    Mask::Additive(Tensor::new(bias, shape).unwrap())
}

/// The same numbers in f16.
fn halves(bias: &[f16], shape: [usize; 4]) -> Mask<'_> {
    // SAFETY: as many numbers as the shape says, borrowed as long as the mask.
    Mask::Additive(unsafe { Tensor::from_raw(bias.as_ptr().cast(), Dtype::F16, shape, [0; 3], "bias") }.unwrap())
}

fn distance(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let wrong: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    (wrong / b.iter().map(|b| b * b).sum::<f64>()).sqrt()
}

/// ALiBi: the distance to a key, the first row at `first`, times a head's slope; later keys hidden where `causal`.
fn alibi(heads: usize, rows: usize, keys: usize, first: usize, causal: bool) -> Vec<f32> {
    let of = |h: usize, i: usize, j: usize| {
        let slope = (-8.0 * (h + 1) as f32 / heads as f32).exp2();
        if causal && j > first + i { -INF } else { -slope * (first + i).abs_diff(j) as f32 }
    };
    (0..heads * rows * keys).map(|x| of(x / keys / rows, x / keys % rows, x % keys)).collect()
}

#[test]
fn biases_of_many_kinds_keep_the_tolerance() {
    let (group, rows, keys) = (2, 210, 2600);
    let heads = Heads::new(2, 1, group, rows, keys, 0.15);
    let n = rows * keys;
    let kinds = [
        ("ALiBi", [1, 2], alibi(2, rows, keys, keys - rows, true)),
        ("ALiBi to both sides", [1, 2], alibi(2, rows, keys, 1000, false)),
        ("steps", [1, 1], (0..n).map(|x| ((x % keys).abs_diff(x / keys) / 300 % 5) as f32 - 2.0).collect()),
        ("noise 0.1", [1, 1], noise(n, 21, 0.1)),
        ("noise 1", [2, 2], noise(4 * n, 22, 1.0)),
        ("noise 5", [2, 1], noise(2 * n, 23, 5.0)),
    ];
    for (name, [b, h], bias) in kinds {
        let bias: Vec<f16> = bias.iter().map(|&x| f16::from_f32(x)).collect();
        let wide: Vec<f32> = bias.iter().map(|x| x.to_f32()).collect();
        let shape = [b, h, rows, keys];
        for softcap in [0.0, 5.0] {
            let o = |m, t| AttentionOptions { softcap, ..mode(m, t) };
            let (want, want_lse) = heads.naive(&wide, [b, h], AttentionOptions { softcap, ..Default::default() });
            for tolerance in [0.1, 0.02] {
                let run = heads.run(additive(&wide, shape), o(Mode::Accelerated, tolerance));
                let error = distance(&run.out, &want);
                assert!(error < f64::from(tolerance), "{name}, softcap {softcap}: {error} for {tolerance}");
                for (a, b) in run.lse.iter().zip(&want_lse) {
                    assert!((f64::from(*a) - b).abs() < 3.0 * f64::from(tolerance), "{name}: {a} and {b}");
                }
                let gains = run.stats.pairs < run.stats.pairs_dense && run.stats.estimated_mass > 0.0;
                assert!(gains || name == "noise 5" || tolerance < 0.05, "{name}, {softcap}: {:?}", run.stats);
                // Numbers that f16 holds are the same numbers.
                let half = heads.run(halves(&bias, shape), o(Mode::Accelerated, tolerance));
                assert!(half.out == run.out && half.lse == run.lse, "{name}");
            }
            let auto = heads.run(additive(&wide, shape), o(Mode::Auto, 0.05));
            assert!(distance(&auto.out, &want) < 0.05, "{name}");
        }
    }
}

#[test]
fn the_same_bias_on_every_key_changes_nothing() {
    let (rows, keys) = (300, 3000);
    let heads = Heads::new(1, 1, 2, rows, keys, 0.15);
    // What all rows see alike comes in an order of its own where there is no bias: a mask that shows all.
    let plain = heads.run(additive(&vec![0.0; rows * keys], [1, 1, rows, keys]), mode(Mode::Accelerated, 0.05));
    let (want, _) = heads.naive(&vec![0.0; rows * keys], [1, 1], AttentionOptions::default());
    for bias in [0.25, -3.0, 700.0] {
        let all = vec![bias; rows * keys];
        let run = heads.run(additive(&all, [1, 1, rows, keys]), mode(Mode::Accelerated, 0.05));
        assert!(run.stats.pairs < run.stats.pairs_dense / 2, "{:?}", run.stats);
        // A key at a threshold may fall on either side of it.
        assert!(run.stats.pairs.abs_diff(plain.stats.pairs) <= plain.stats.pairs / 500);
        let (a, b) = (distance(&run.out, &want), distance(&plain.out, &want));
        assert!((a - b).abs() < 1e-4, "{bias}: error {a}, without {b}");
        for (a, b) in run.lse.iter().zip(&plain.lse) {
            assert!((a - bias - b).abs() < 2e-3, "{bias}: {a} and {b}");
        }
    }
    // With nothing estimated they agree to rounding.
    let exact = heads.run(additive(&vec![700.0; rows * keys], [1, 1, rows, keys]), mode(Mode::Accelerated, 1e-12));
    assert!(distance(&exact.out, &want) < 1e-4);
}

#[test]
fn keys_that_only_a_bias_lifts_are_found() {
    let (rows, keys) = (260, 4096);
    let mut heads = Heads::new(1, 1, 1, rows, keys, 0.2);
    let mut bias = vec![0.0; rows * keys];
    let at = |i: usize| (hash(10, i as u64) % 3500) as usize;
    for i in 0..rows {
        bias[i * keys + at(i)] = 13.0;
        heads.v[at(i) * DIM..][..DIM].fill(7.0 + i as f32 / 32.0);
    }
    for softcap in [0.0, 6.0] {
        let o = AttentionOptions { softcap, ..mode(Mode::Accelerated, 0.05) };
        let (want, _) = heads.naive(&bias, [1, 1], AttentionOptions { softcap, ..Default::default() });
        let run = heads.run(additive(&bias, [1, 1, rows, keys]), o);
        assert!(run.stats.pairs < run.stats.pairs_dense, "{:?}", run.stats);
        for (i, (a, b)) in run.out.chunks(DIM).zip(want.chunks(DIM)).enumerate() {
            assert!(distance(a, b) < 0.05, "softcap {softcap}, row {i}, key {}: {}", at(i), distance(a, b));
        }
    }
    // Lifted beyond everything that weights hold relative to what means let expect.
    bias.iter_mut().filter(|x| **x > 0.0).for_each(|x| *x = 300.0);
    let (want, _) = heads.naive(&bias, [1, 1], AttentionOptions::default());
    let run = heads.run(additive(&bias, [1, 1, rows, keys]), mode(Mode::Accelerated, 0.05));
    assert!(distance(&run.out, &want) < 1e-4, "{}", distance(&run.out, &want));
}

#[test]
fn what_a_bias_hides_is_in_no_estimate() {
    let (rows, keys) = (300, 3300);
    let heads = Heads::new(1, 1, 2, rows, keys, 0.15);
    // Here and there, a run of several segments, and the end.
    let hidden = |j: usize| hash(31, j as u64).is_multiple_of(9) || (900..1700).contains(&j) || j > 3200;
    let mut other = heads.clone();
    for j in (0..keys).filter(|&j| hidden(j)) {
        other.k[j * DIM..][..DIM].iter_mut().for_each(|x| *x = 5.0 - 9.0 * *x);
        other.v[j * DIM..][..DIM].fill(1e4);
    }
    let (row, half) = (noise(keys, 32, 0.7), |x: f32| f16::from_f32(x).to_f32());
    for (name, low) in [("-inf", -INF), ("lowest", f32::MIN), ("lowest f16", -65504.0), ("-10000", -10000.0)] {
        let hide = |j: usize| if hidden(j) { low } else { half(row[j]) };
        for causal in [false, true] {
            let sees = |x: usize| if causal && x % keys > 2900 + x / keys { low } else { hide(x % keys) };
            let bias: Vec<f32> = (0..rows * keys).map(sees).collect();
            let mask = additive(&bias, [1, 1, rows, keys]);
            for o in [mode(Mode::Accelerated, 0.05), mode(Mode::Auto, 0.05)] {
                let [a, b] = [&heads, &other].map(|heads| heads.run(mask, o));
                assert!(a.out == b.out && a.lse == b.lse, "{name}, causal {causal}: hidden keys have changed bits");
                let (want, _) = heads.naive(&bias, [1, 1], AttentionOptions::default());
                assert!(distance(&a.out, &want) < 0.05, "{name}, causal {causal}");
                let gains = a.stats.pairs < a.stats.pairs_dense && a.stats.estimated_mass > 0.0;
                assert!(gains || o.mode == Mode::Auto, "{name}, causal {causal}: {:?}", a.stats);
            }
        }
    }
    // Steep distances far from all rows: next to nothing is left to score.
    let steep: Vec<f32> = (0..rows * keys).map(|x| -8.0 * (keys + 100 - x % keys) as f32).collect();
    let run = heads.run(additive(&steep, [1, 1, rows, keys]), mode(Mode::Accelerated, 0.05));
    let (want, _) = heads.naive(&steep, [1, 1], AttentionOptions::default());
    assert!(distance(&run.out, &want) < 1e-3, "{}", distance(&run.out, &want));
    // Hidden from some rows only, in every cell: nothing can be estimated, and nothing is.
    let some: Vec<f32> =
        (0..rows * keys).map(|x| if hash(33, x as u64).is_multiple_of(40) { -INF } else { 0.3 }).collect();
    let run = heads.run(additive(&some, [1, 1, rows, keys]), mode(Mode::Accelerated, 0.05));
    let (want, _) = heads.naive(&some, [1, 1], AttentionOptions::default());
    assert!(run.stats.pairs == run.stats.pairs_dense && distance(&run.out, &want) < 1e-5);
    // Rows that see nothing at all, and one that sees a single segment.
    let mut none = vec![-INF; rows * keys];
    none[7 * keys + 512..7 * keys + 768].fill(-1.0);
    let run = heads.run(additive(&none, [1, 1, rows, keys]), mode(Mode::Accelerated, 0.05));
    let (want, want_lse) = heads.naive(&none, [1, 1], AttentionOptions::default());
    assert!(distance(&run.out, &want) < 1e-5);
    for (i, (a, b)) in run.lse.iter().zip(&want_lse).enumerate() {
        assert!((i % rows == 7) == a.is_finite() && (b.is_infinite() || (f64::from(*a) - b).abs() < 1e-4));
    }
}

/// Rows whose every bias is as low as a mask is made of weigh their keys by nothing else: as exact attention does.
#[test]
fn biases_without_room_for_logits_are_attended_exactly() {
    let (rows, keys) = (64, 2100);
    let heads = Heads::new(1, 1, 1, rows, keys, 0.2);
    for bias in [f32::MIN, -1e9, 1e9, 3e38] {
        let all = vec![bias; rows * keys];
        let [a, b] =
            [Mode::Accelerated, Mode::Exact].map(|m| heads.run(additive(&all, [1, 1, rows, keys]), mode(m, 0.05)));
        let want: Vec<f64> = b.out.iter().map(|&x| f64::from(x)).collect();
        assert!(distance(&a.out, &want) < 1e-5 && a.lse == b.lse, "{bias}");
    }
}

#[test]
fn a_tiny_tolerance_is_exact() {
    let (rows, keys) = (300, 2300);
    let heads = Heads::new(2, 2, 3, rows, keys, 0.4);
    let mut bias = alibi(6, rows, keys, keys - rows, true);
    noise(bias.len(), 41, 1.0).iter().zip(&mut bias).for_each(|(a, b)| *b += a);
    for (window, sinks, softcap) in [(0, 0, 0.0), (0, 0, 4.0), (900, 5, 0.0)] {
        let o = |m, t| AttentionOptions { window, sinks, softcap, ..mode(m, t) };
        let mask = additive(&bias, [1, 6, rows, keys]);
        let (exact, run) = (heads.run(mask, o(Mode::Exact, 0.0)), heads.run(mask, o(Mode::Accelerated, 1e-12)));
        let want: Vec<f64> = exact.out.iter().map(|&x| f64::from(x)).collect();
        assert!(distance(&run.out, &want) < 1e-5, "window {window}, softcap {softcap}");
        assert!(run.lse.iter().zip(&exact.lse).all(|(a, b)| (a - b).abs() < 1e-4 || a == b));
        assert_eq!(run.stats.pairs_dense, exact.stats.pairs_dense);
    }
}

#[test]
fn threads_memory_and_instructions_change_nothing() {
    let (rows, keys) = (500, 2304);
    let heads = Heads::new(2, 2, 2, rows, keys, 0.2);
    let bias = alibi(4, rows, keys, keys - rows, true);
    let mask = additive(&bias, [1, 4, rows, keys]);
    let o = |threads| AttentionOptions { num_threads: threads, ..mode(Mode::Accelerated, 0.1) };
    let want = heads.run(mask, o(1));
    assert!(want.stats.pairs < want.stats.pairs_dense && want.stats.cells_opened > 0);
    let many: &[usize] = if cfg!(feature = "std") { &[2, 3, 7] } else { &[] };
    for &threads in many {
        let run = heads.run(mask, o(threads));
        assert!(run.out == want.out && run.lse == want.lse, "{threads} threads");
        assert_eq!((run.stats.pairs, run.stats.cells_opened), (want.stats.pairs, want.stats.cells_opened));
    }
    for threads in if cfg!(feature = "std") { [1, 3] } else { [1, 1] } {
        let (mut out, mut lse) = (vec![0.0; want.out.len()], vec![0.0; want.lse.len()]);
        let problem = heads.problem(mask, o(threads), &mut out, &mut lse, None);
        let layout = required(&problem).unwrap();
        let mut bytes = vec![0u8; layout.bytes + layout.align];
        let begin = bytes.as_ptr().align_offset(layout.align);
        let base = NonNull::new(bytes[begin..].as_mut_ptr()).unwrap();
        // SAFETY: the block is writable and nobody else uses it.
        let less = unsafe { Memory::region(base, layout.bytes - 1) };
        assert!(less.and_then(|m| attention(&problem, &m)).is_err());
        // SAFETY: as above; the first memory is gone.
        attention(&problem, &unsafe { Memory::region(base, layout.bytes) }.unwrap()).unwrap();
        assert!(out == want.out && lse == want.lse);
    }
    let wide: Vec<f64> = want.out.iter().map(|&x| f64::from(x)).collect();
    for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
        let run = heads.run(mask, AttentionOptions { isa: Some(isa), ..mode(Mode::Accelerated, 0.1) });
        // A threshold met to the last bit may open a cell for one of them alone.
        assert!(distance(&run.out, &wide) < 0.01, "{}", isa.name());
    }
}

/// Bounds know nothing of biases: keys under them are attended exactly.
#[test]
fn certificates_hold() {
    let (rows, keys) = (40, 2600);
    let heads = Heads::new(1, 1, 2, rows, keys, 0.1);
    let n = 2 * rows;
    let mut partly = vec![0.0; rows * keys];
    partly.chunks_mut(keys).for_each(|row| row[600..1000].fill(1.5));
    for (name, bias) in [("all", noise(rows * keys, 51, 1.0)), ("some", partly)] {
        let (want, _) = heads.naive(&bias, [1, 1], AttentionOptions::default());
        for verified in [false, true] {
            let o = AttentionOptions { certificate: true, verified, ..mode(Mode::Accelerated, 0.3) };
            let (mut out, mut lse, mut bounds) = (vec![0.0; n * DIM], vec![0.0; n], vec![0.0; n]);
            let mask = additive(&bias, [1, 1, rows, keys]);
            let stats = attention(&heads.problem(mask, o, &mut out, &mut lse, Some(&mut bounds)), &memory(0)).unwrap();
            for ((have, want), &bound) in out.chunks(DIM).zip(want.chunks(DIM)).zip(&bounds) {
                let error = distance(have, want);
                assert!(error <= f64::from(bound) && (!verified || bound <= 0.3), "{name}: {error} and {bound}");
            }
            assert_eq!(stats.certificates, n as u64);
            // Verified rows are attended exactly where bounds would be too wide.
            assert!(verified || (stats.pairs < stats.pairs_dense) == (name == "some"), "{name}: {stats:?}");
        }
    }
}

#[test]
fn auto_leaves_noise_under_biases_to_exact_attention() {
    let (rows, keys) = (2560, 2560);
    let mut heads = Heads::new(1, 1, 1, rows, keys, 1.0);
    (heads.k, heads.v) = (noise(keys * DIM, 5, 2.5), noise(keys * DIM, 6, 2.5));
    let bias = noise(rows * keys, 61, 0.5);
    let run = heads.run(additive(&bias, [1, 1, rows, keys]), mode(Mode::Auto, 0.05));
    assert_eq!((run.stats.mode, run.stats.reason), (Mode::Exact, Reason::Diffuse));
    assert_eq!(run.stats.pairs, run.stats.pairs_dense);
}

/// Fewer keys than a segment, of several rows: no cell to lift.
#[test]
fn biases_of_few_keys_are_attended_exactly() {
    let o = |m| AttentionOptions { scale: 0.2, ..mode(m, 0.05) };
    for (rows, keys) in [(2, 1), (3, 40), (40, 200), (2, SEGMENT - 1)] {
        let heads = Heads::new(1, 1, 2, rows, keys, 0.3);
        let bias = noise(rows * keys, 71, 1.0);
        let mask = additive(&bias, [1, 1, rows, keys]);
        let want = heads.run(mask, o(Mode::Exact));
        let run = heads.run(mask, o(Mode::Accelerated));
        assert!(run.out == want.out && run.lse == want.lse, "{rows} rows, {keys} keys");

        let o = SessionOptions {
            heads_q: 2,
            heads_kv: 1,
            dim_k: DIM,
            dim_v: DIM,
            capacity: 2 * SEGMENT,
            kv_dtype: Dtype::F32,
            attention: o(Mode::Accelerated),
            dense_below: 0,
        };
        let mut session = Session::new_in(&o, &memory(0)).unwrap();
        let kv = [1, 1, keys, DIM];
        session.append(Tensor::new(&heads.k, kv).unwrap(), Tensor::new(&heads.v, kv).unwrap()).unwrap();
        session.commit().unwrap();
        let mut out = vec![0.0; 2 * rows * DIM];
        let to = TensorMut::new(&mut out, [1, 2, rows, DIM]).unwrap();
        let q = Tensor::new(&heads.q, [1, 2, rows, DIM]).unwrap();
        session.attend(q, Some(mask), &to, None, &memory(0), 0, 1).unwrap();
        let wide: Vec<f64> = want.out.iter().map(|&x| f64::from(x)).collect();
        assert!(distance(&out, &wide) < 1e-5, "session, {rows} rows, {keys} keys");
    }
}

/// Sessions of f32 and f16 keys, in chunks and row by row.
#[test]
fn sessions_take_biases_to_their_cells() {
    let (tokens, group) = (9 * SEGMENT + 40, 2);
    for dtype in [Dtype::F32, Dtype::F16] {
        for rows in [1, 3, 200] {
            let mut heads = Heads::new(1, 1, group, rows, tokens, 0.15);
            if dtype == Dtype::F16 {
                let round = |x: &mut f32| *x = f16::from_f32(*x).to_f32();
                heads.k.iter_mut().chain(&mut heads.v).for_each(round);
            }
            let session = heads.session(dtype);
            let mut plan = Plan::new();
            session.work_plan(rows, &mut plan).unwrap();
            let bytes = plan.finish().unwrap().bytes;
            let bias = alibi(group, rows, tokens, tokens - rows, true);
            let mask = additive(&bias, [1, group, rows, tokens]);
            let attend = |nth: usize| {
                let (mut out, mut stats) = (vec![0.0; group * rows * DIM], None::<AttentionStats>);
                let q = Tensor::new(&heads.q, [1, group, rows, DIM]).unwrap();
                let to = TensorMut::new(&mut out, [1, group, rows, DIM]).unwrap();
                for ith in 0..nth {
                    let part = session.attend(q, Some(mask), &to, None, &memory(bytes), ith, nth).unwrap();
                    match &mut stats {
                        Some(stats) => stats.add(&part),
                        None => stats = Some(part),
                    }
                }
                (out, stats.unwrap())
            };
            let (have, stats) = attend(1);
            let (want, _) = heads.naive(&bias, [1, group], AttentionOptions::default());
            // Single rows are held to twice the tolerance.
            let error = distance(&have, &want);
            assert!(error < if rows < 5 { 0.1 } else { 0.05 }, "{dtype:?}, {rows} rows: {error}");
            assert!(stats.pairs < stats.pairs_dense && stats.estimated_mass > 0.0, "{rows} rows: {stats:?}");
            assert!(attend(3).0 == have, "{rows} rows");
        }
    }
}

/// What single rows err by is told by rows of a batch, which go down in lists where biases are added, and open cells there.
#[test]
fn trials_under_biases_speak_for_single_rows() {
    let (tokens, rows, group) = (9 * SEGMENT + 40, 200, 2);
    let mut heads = Heads::new(1, 1, group, rows, tokens, 0.5);
    // Rows that want the same cells: long lists.
    let (common, own) = (noise(DIM, 4, 1.5), noise(group * rows * DIM, 5, 0.1));
    for (i, x) in heads.q.iter_mut().enumerate() {
        *x = common[i % DIM] + own[i];
    }
    let session = heads.session(Dtype::F32);
    let mut bias = noise(group * rows * tokens, 77, 0.5);
    for (i, row) in bias.chunks_mut(tokens).enumerate() {
        row[tokens - rows + i % rows + 1..].fill(-INF);
    }
    let mask = additive(&bias, [1, group, rows, tokens]);
    let mut out = vec![0.0; group * rows * DIM];
    let q = Tensor::new(&heads.q, [1, group, rows, DIM]).unwrap();
    let to = TensorMut::new(&mut out, [1, group, rows, DIM]).unwrap();
    let stats = session.attend(q, Some(mask), &to, None, &memory(0), 0, 1).unwrap();
    let (want, _) = heads.naive(&bias, [1, group], AttentionOptions::default());
    let error = distance(&out, &want);
    assert!(error < 0.05, "{error}");
    assert!(stats.cells_opened > 0 && stats.pairs < stats.pairs_dense, "{stats:?}");
}
