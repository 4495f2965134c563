//! Certified errors are bounds: on every kind of data, in every mode that has them, for every row.
#![allow(unsafe_code)]

mod common;

use common::{Naive, memory, noise, sees};
use half::f16;
use iceformer_core::attention::{
    Attend, AttentionOptions, AttentionStats, Mask, Mode, Problem, Reason, Session, SessionOptions, attention, required,
};
use iceformer_core::error::Status;
use iceformer_core::math::hash;
use iceformer_core::mem::{Dtype, Memory, Plan, Tensor, TensorMut};
use iceformer_core::simd::Isa;
use std::ptr::NonNull;

/// Heads of one batch.
struct Heads {
    heads_kv: usize,
    group: usize,
    rows: usize,
    keys: usize,
    dims: [usize; 2],
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// What a run gave.
struct Run {
    out: Vec<f32>,
    bounds: Vec<f32>,
    stats: AttentionStats,
}

impl Heads {
    /// Keys around centres, `spread` apart from them, and values that go with them; with a small spread as many to a centre
    /// as a cell has room for.
    fn new(heads_kv: usize, group: usize, rows: usize, keys: usize, dims: [usize; 2], spread: f32) -> Heads {
        let near = |d: usize, seed: u64, spread: f32| {
            let centres = noise(24 * d, seed + 50, 1.5);
            let mut x = noise(heads_kv * keys * d, seed, spread);
            for (i, row) in x.chunks_mut(d).enumerate() {
                let c = if spread < 0.15 { i % 16 } else { hash(9, i as u64) as usize % 24 };
                row.iter_mut().zip(&centres[c * d..]).for_each(|(x, c)| *x += c);
            }
            x
        };
        let (k, v) = (near(dims[0], 1, spread), near(dims[1], 2, spread));
        let q = noise(heads_kv * group * rows * dims[0], 3, 1.5);
        Heads { heads_kv, group, rows, keys, dims, q, k, v }
    }

    fn heads(&self) -> usize {
        self.heads_kv * self.group
    }

    fn problem<'a>(
        &'a self,
        out: &'a mut [f32],
        bounds: &'a mut [f32],
        mask: Mask<'a>,
        o: AttentionOptions,
    ) -> Problem<'a> {
        let kv = |d: usize| [1, self.heads_kv, self.keys, d];
        Problem {
            q: Tensor::new(&self.q, [1, self.heads(), self.rows, self.dims[0]]).unwrap(),
            k: Tensor::new(&self.k, kv(self.dims[0])).unwrap(),
            v: Tensor::new(&self.v, kv(self.dims[1])).unwrap(),
            out: TensorMut::new(out, [1, self.heads(), self.rows, self.dims[1]]).unwrap(),
            lse: None,
            bounds: Some(TensorMut::new(bounds, [1, self.heads(), self.rows, 1]).unwrap()),
            mask,
            options: o,
        }
    }

    fn run(&self, mask: Mask<'_>, o: AttentionOptions) -> Run {
        let n = self.heads() * self.rows;
        let (mut out, mut bounds) = (vec![f32::NAN; n * self.dims[1]], vec![f32::NAN; n]);
        let stats = attention(&self.problem(&mut out, &mut bounds, mask, o), &memory(0)).unwrap();
        Run { out, bounds, stats }
    }

    /// Relative errors of all rows against f64.
    fn errors(&self, out: &[f32], mask: Mask<'_>, o: AttentionOptions) -> Vec<f64> {
        let [dk, dv] = self.dims;
        let mut errors = Vec::new();
        for h in 0..self.heads() {
            let kv = h / self.group;
            let (want, _) = Naive {
                q: &self.q[h * self.rows * dk..][..self.rows * dk],
                k: &self.k[kv * self.keys * dk..][..self.keys * dk],
                v: &self.v[kv * self.keys * dv..][..self.keys * dv],
                dim_k: dk,
                dim_v: dv,
                options: o,
                sees: &|i, j| sees(&mask, o.window, o.sinks, i, j),
                top: usize::MAX,
            }
            .run();
            for (have, want) in out[h * self.rows * dv..].chunks(dv).zip(want.chunks(dv)) {
                let wrong: f64 = have.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
                let norm: f64 = want.iter().map(|x| x * x).sum();
                errors.push(if wrong == 0.0 { 0.0 } else { (wrong / norm).sqrt() });
            }
        }
        errors
    }

    /// Runs, and holds every bound against the error; returns the run with the errors.
    fn check(&self, mask: Mask<'_>, o: AttentionOptions, what: &str) -> (Run, Vec<f64>) {
        let run = self.run(mask, o);
        let errors = self.errors(&run.out, mask, o);
        hold(&run.bounds, &errors, what);
        let s = &run.stats;
        assert_eq!(s.certificates, run.bounds.len() as u64, "{what}");
        assert_eq!(s.certified_error, run.bounds.iter().fold(0.0, |m, &b| b.max(m)), "{what}");
        let mean = run.bounds.iter().map(|&b| f64::from(b.min(1.0))).sum::<f64>() / run.bounds.len() as f64;
        assert!((s.certified_mean - mean).abs() < 1e-9, "{what}");
        let tolerance = if o.tolerance == 0.0 { 0.05 } else { o.tolerance };
        assert_eq!(s.certified, run.bounds.iter().filter(|&&b| b <= tolerance).count() as u64, "{what}");
        (run, errors)
    }
}

fn hold(bounds: &[f32], errors: &[f64], what: &str) {
    assert_eq!(bounds.len(), errors.len());
    for (i, (&bound, &error)) in bounds.iter().zip(errors).enumerate() {
        assert!(error <= f64::from(bound), "{what}, row {i}: error {error:e}, certified {bound:e}");
    }
}

fn certified(mode: Mode, tolerance: f32) -> AttentionOptions {
    AttentionOptions { mode, tolerance, certificate: true, ..AttentionOptions::default() }
}

fn verified(mode: Mode, tolerance: f32) -> AttentionOptions {
    AttentionOptions { mode, tolerance, verified: true, ..AttentionOptions::default() }
}

/// Data of many kinds.
fn kinds(rows: usize) -> Vec<(&'static str, Heads)> {
    let mut all = vec![
        ("clusters", Heads::new(1, 2, rows, 2048, [64, 64], 0.1)),
        ("loose clusters", Heads::new(2, 1, rows, 1800, [40, 24], 0.5)),
        ("wide keys", Heads::new(1, 1, rows, 1536, [96, 33], 0.2)),
        ("narrow keys", Heads::new(1, 2, rows, 2048, [16, 80], 0.3)),
    ];
    let mut h = Heads::new(1, 1, rows, 2048, [64, 64], 0.3);
    (h.k, h.v) = (noise(2048 * 64, 5, 1.5), noise(2048 * 64, 6, 1.0));
    all.push(("noise", h));
    let mut h = Heads::new(1, 1, rows, 2048, [32, 32], 0.2);
    h.q.iter_mut().for_each(|x| *x *= 12.0);
    all.push(("high norms", h));
    let mut h = Heads::new(1, 2, rows, 2048, [64, 64], 0.1);
    for (i, q) in h.q.chunks(64).enumerate() {
        let j = (hash(10, i as u64) % 2048) as usize;
        let norm2: f32 = q.iter().map(|x| x * x).sum();
        h.k[j * 64..][..64].iter_mut().zip(q).for_each(|(k, q)| *k = q * 110.0 / norm2);
        h.v[j * 64..][..64].fill(5.0);
    }
    all.push(("needles", h));
    let mut h = Heads::new(1, 2, rows, 2048, [64, 64], 0.3);
    let of = noise(16 * 64, 8, 2.0);
    h.k.chunks_mut(64).enumerate().for_each(|(i, k)| k.copy_from_slice(&of[i % 16 * 64..][..64]));
    all.push(("duplicates", h));
    // Tight cells but for one key far off, in opposition to everything.
    let mut h = Heads::new(1, 1, rows, 2048, [32, 32], 0.02);
    h.k[777 * 32..][..32].iter_mut().enumerate().for_each(|(i, k)| *k = if i % 2 == 0 { 300.0 } else { -300.0 });
    all.push(("an outlier", h));
    // One element much larger than all others: little is left for the steps of coordinates.
    let mut h = Heads::new(1, 1, rows, 1536, [48, 48], 0.05);
    h.k.chunks_mut(48).for_each(|k| k[7] *= 60.0);
    all.push(("one large element", h));
    // Values that cancel: an output much shorter than they are.
    let mut h = Heads::new(1, 1, rows, 2048, [64, 64], 0.05);
    h.v.chunks_mut(64)
        .enumerate()
        .for_each(|(i, v)| v.iter_mut().for_each(|x| *x = if i % 2 == 0 { 9.0 } else { -9.0 } + *x / 50.0));
    all.push(("values that cancel", h));
    all
}

#[test]
fn bounds_hold_on_data_of_every_kind() {
    for (rows, tolerance) in [(3, 0.5), (18, 0.1)] {
        for (name, heads) in kinds(rows) {
            // Bounds need every key.
            let (run, _) = heads.check(Mask::None, certified(Mode::Accelerated, tolerance), name);
            assert_eq!((run.stats.mode, run.stats.reason), (Mode::Exact, Reason::OnlyWay), "{name}");
        }
    }
}

#[test]
fn bounds_hold_under_every_mask() {
    let (rows, keys) = (25, 1900);
    let heads = Heads::new(1, 2, rows, keys, [48, 40], 0.15);
    let padding: Vec<u8> = (0..keys as u64).map(|i| u8::from(!hash(4, i).is_multiple_of(9))).collect();
    let prefix: Vec<u64> = (0..rows as u64).map(|i| 1100 + 30 * i).collect();
    let mut bias = vec![0.0; rows * keys];
    for (i, row) in bias.chunks_mut(keys).enumerate() {
        row[1500 + i..].fill(f32::NEG_INFINITY);
        row[10] = 2.5;
    }
    let masks = [
        Mask::None,
        Mask::Causal { q_pos0: (keys - rows) as u64 },
        Mask::Prefix(&prefix),
        Mask::Keys(&padding),
        Mask::CausalKeys { q_pos0: (keys - rows) as u64, keep: &padding },
        Mask::Additive(Tensor::new(&bias, [1, 1, rows, keys]).unwrap()),
    ];
    for mask in masks {
        for (window, sinks, softcap) in [(0, 0, 0.0), (0, 0, 3.0), (1400, 7, 0.0)] {
            for o in [certified(Mode::Accelerated, 0.3), verified(Mode::Accelerated, 0.3), certified(Mode::Exact, 0.0)]
            {
                let o = AttentionOptions { window, sinks, softcap, ..o };
                heads.check(mask, o, &format!("{:?} {window} {softcap}", o.mode));
            }
        }
    }
}

#[test]
fn verified_rows_keep_the_tolerance() {
    for (rows, mode, tolerance) in [
        (2, Mode::Accelerated, 0.1),
        (20, Mode::Accelerated, 0.01),
        (20, Mode::Accelerated, 0.5),
        (260, Mode::Auto, 0.2),
    ] {
        for (name, heads) in kinds(rows) {
            if rows > 100 && !matches!(name, "clusters" | "needles" | "values that cancel") {
                continue;
            }
            let (run, errors) = heads.check(Mask::None, verified(mode, tolerance), name);
            let worst = errors.iter().fold(0.0, |m: f64, &e| m.max(e));
            assert!(worst <= f64::from(tolerance), "{name}: {worst} for {tolerance}");
            assert!(run.stats.pairs <= 2 * run.stats.pairs_dense);
        }
    }
}

#[test]
fn exact_attention_is_certified_for_its_rounding() {
    for rows in [1, 30] {
        for (name, heads) in kinds(rows) {
            for mode in [Mode::Exact, Mode::Auto] {
                let (run, _) = heads.check(Mask::None, certified(mode, 0.0), name);
                assert_eq!((run.stats.mode, run.stats.rows), (Mode::Exact, 0));
                // Where values cancel, rounding counts for more of what is left.
                let most = if matches!(name, "values that cancel" | "noise" | "an outlier") { 0.5 } else { 5e-3 };
                assert!(run.stats.certified_error < most, "{name}: {}", run.stats.certified_error);
            }
        }
    }
    // Rows that see nothing are right.
    let heads = Heads::new(1, 1, 5, 600, [16, 16], 0.2);
    let run = heads.run(Mask::Prefix(&[0, 0, 9, 0, 600]), certified(Mode::Exact, 0.0));
    assert!(run.bounds[0] == 0.0 && run.bounds[3] == 0.0 && run.bounds[4] > 0.0);
    let run = heads.run(Mask::Keys(&[0; 600]), certified(Mode::Exact, 0.0));
    assert!(run.bounds.iter().all(|&b| b == 0.0));
    // Zeros of values that cancel are not known to be right.
    let mut heads = Heads::new(1, 1, 5, 600, [16, 16], 0.2);
    heads.k.fill(0.0);
    heads.v.chunks_mut(16).enumerate().for_each(|(i, v)| v.fill([9.0, -9.0][i % 2]));
    let run = heads.run(Mask::None, certified(Mode::Exact, 0.0));
    assert!(run.out.iter().all(|&x| x == 0.0) && run.bounds.iter().all(|&b| b == f32::INFINITY));
}

/// What rounding takes from sums of equal values is never given back.
#[test]
fn rounding_of_equal_values_is_certified() {
    for keys in [300, 1024, 9000] {
        for rows in [2, 40] {
            let mut heads = Heads::new(1, 1, rows, keys, [16, 16], 0.0);
            heads.k.fill(0.0);
            for seed in 0..4 {
                let one = noise(16, 70 + seed, 1.0);
                heads.v.chunks_mut(16).for_each(|v| v.copy_from_slice(&one));
                for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
                    for o in [certified(Mode::Exact, 0.0), certified(Mode::Accelerated, 1e-12)] {
                        heads.check(Mask::None, AttentionOptions { isa: Some(isa), ..o }, isa.name());
                    }
                }
            }
        }
    }
}

/// A row's logits lie as low as the biases that its window lets it see.
#[test]
fn biases_outside_the_window_say_nothing_about_rounding() {
    let (rows, keys) = (10, 700);
    let heads = Heads::new(1, 2, rows, keys, [16, 16], 0.3);
    let mut bias = vec![-65504.0; rows * keys];
    bias.chunks_mut(keys).for_each(|row| row[300..].fill(0.25));
    let mask = Mask::Additive(Tensor::new(&bias, [1, 1, rows, keys]).unwrap());
    for o in [certified(Mode::Exact, 0.0), certified(Mode::Accelerated, 0.1), verified(Mode::Accelerated, 0.1)] {
        heads.check(mask, AttentionOptions { window: 99, sinks: 146, softcap: 50.0, ..o }, "a bias and a window");
    }
}

#[test]
fn every_instruction_set_and_any_number_of_threads_certify() {
    let heads = Heads::new(2, 2, 300, 2304, [48, 48], 0.1);
    let mask = Mask::Causal { q_pos0: 2004 };
    for o in [certified(Mode::Accelerated, 0.2), verified(Mode::Accelerated, 0.2)] {
        for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
            heads.check(mask, AttentionOptions { isa: Some(isa), ..o }, isa.name());
        }
        let want = heads.run(mask, o);
        for num_threads in if cfg!(feature = "std") { vec![2, 3, 7] } else { vec![] } {
            let have = heads.run(mask, AttentionOptions { num_threads, ..o });
            assert!(have.out == want.out && have.bounds == want.bounds, "{num_threads} threads");
            assert_eq!(
                (have.stats.certified, have.stats.certified_error),
                (want.stats.certified, want.stats.certified_error)
            );
        }
        // Exactly the memory that is asked for.
        let (mut out, mut bounds) = (vec![0.0; want.out.len()], vec![0.0; want.bounds.len()]);
        let problem = heads.problem(&mut out, &mut bounds, mask, o);
        let layout = required(&problem).unwrap();
        let mut bytes = vec![0u8; layout.bytes + layout.align];
        let begin = bytes.as_ptr().align_offset(layout.align);
        let base = NonNull::new(bytes[begin..].as_mut_ptr()).unwrap();
        // SAFETY: the block is writable and nobody else uses it.
        let less = unsafe { Memory::region(base, layout.bytes - 1) };
        assert!(less.and_then(|m| attention(&problem, &m)).is_err());
        // SAFETY: as above; the first memory is gone.
        attention(&problem, &unsafe { Memory::region(base, layout.bytes) }.unwrap()).unwrap();
        assert!(out == want.out && bounds == want.bounds);
    }
}

#[test]
fn sixteen_bit_keys_values_and_outputs() {
    let heads = Heads::new(1, 2, 20, 2048, [64, 64], 0.05);
    let round = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>();
    let (k, v) = (round(&heads.k), round(&heads.v));
    // The same numbers in f32.
    let wide = |x: &[f16]| x.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
    let heads = Heads { k: wide(&k), v: wide(&v), ..heads };
    let n = heads.heads() * heads.rows;
    for mode in [Mode::Exact, Mode::Accelerated] {
        let (mut out, mut bounds) = (vec![f16::ZERO; n * 64], vec![f32::NAN; n]);
        // SAFETY: the slices have these shapes and live on.
        unsafe {
            let tensor =
                |x: &[f16]| Tensor::from_raw(x.as_ptr().cast(), Dtype::F16, [1, 1, 2048, 64], [0; 3], "kv").unwrap();
            let problem = Problem {
                q: Tensor::new(&heads.q, [1, 2, 20, 64]).unwrap(),
                k: tensor(&k),
                v: tensor(&v),
                out: TensorMut::from_raw(out.as_mut_ptr().cast(), Dtype::F16, [1, 2, 20, 64], [0; 3], "out").unwrap(),
                lse: None,
                bounds: Some(TensorMut::new(&mut bounds, [1, 2, 20, 1]).unwrap()),
                mask: Mask::None,
                // Nobody sets a flag: bounds ask for themselves.
                options: AttentionOptions { mode, ..AttentionOptions::default() },
            };
            attention(&problem, &memory(0)).unwrap();
        }
        hold(&bounds, &heads.errors(&wide(&out), Mask::None, AttentionOptions::default()), "f16");
        assert!(bounds.iter().all(|&b| b >= 1.0 / 2048.0));
    }
}

#[test]
fn sessions_certify() {
    let keys = 2300;
    for (kv_dtype, mode) in [(Dtype::F32, Mode::Accelerated), (Dtype::F16, Mode::Accelerated), (Dtype::F16, Mode::Auto)]
    {
        for verified in [false, true] {
            let mut heads = Heads::new(2, 2, keys, keys, [64, 48], 0.06);
            let round = |x: &mut [f32]| x.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32());
            round(&mut heads.k);
            round(&mut heads.v);
            let attention =
                AttentionOptions { mode, tolerance: 0.1, certificate: true, verified, ..AttentionOptions::default() };
            let o = SessionOptions {
                heads_q: 4,
                heads_kv: 2,
                dim_k: 64,
                dim_v: 48,
                capacity: keys + 100,
                kv_dtype,
                attention,
                dense_below: 0,
            };
            let mut session = Session::new_in(&o, &memory(0)).unwrap();
            let k = Tensor::new(&heads.k, [1, 2, keys, 64]).unwrap();
            session.append(k, Tensor::new(&heads.v, [1, 2, keys, 48]).unwrap()).unwrap();
            session.commit().unwrap();
            for rows in [1, 4, 5, 200] {
                let mut plan = Plan::new();
                session.work_plan(rows, &mut plan).unwrap();
                let bytes = plan.finish().unwrap().bytes;
                let part: Vec<f32> = heads.q.chunks(keys * 64).flat_map(|h| h[..rows * 64].to_vec()).collect();
                let mut out = vec![0.0; 4 * rows * 48];
                let tensor = TensorMut::new(&mut out, [1, 4, rows, 48]).unwrap();
                let q = Tensor::new(&part, [1, 4, rows, 64]).unwrap();
                let stats = session.attend(&Attend::new(q, &tensor), &memory(bytes)).unwrap();
                let few = Heads { rows, q: part, k: heads.k.clone(), v: heads.v.clone(), ..heads };
                let mask = Mask::Causal { q_pos0: (keys - rows) as u64 };
                let worst = few.errors(&out, mask, attention).into_iter().fold(0.0, f64::max);
                assert!(worst <= f64::from(stats.certified_error), "{worst} and {stats:?}");
                assert_eq!(stats.certificates, 4 * rows as u64);
                assert!(!verified || worst <= 0.1 && stats.certified_error <= 0.1, "{worst} and {stats:?}");
            }
        }
    }
}

#[test]
fn what_has_no_certificate_is_said() {
    let heads = Heads::new(1, 1, 8, 600, [16, 16], 0.2);
    let (mut out, mut bounds) = (vec![0.0; 8 * 16], vec![0.0; 8]);
    for o in [certified(Mode::TopK, 0.0), verified(Mode::TopK, 0.0)] {
        let e = attention(&heads.problem(&mut out, &mut bounds, Mask::None, o), &memory(0)).unwrap_err();
        assert_eq!((e.status, e.field), (Status::Unsupported, "flags"));
    }
    // Fewer keys than a segment: exact.
    let run = Heads::new(1, 1, 8, 250, [16, 16], 0.2).run(Mask::None, certified(Mode::Accelerated, 0.5));
    assert!(run.stats.pairs == run.stats.pairs_dense && run.stats.certified_error < 1e-3);
    // Nobody asked.
    let mut problem = heads.problem(&mut out, &mut bounds, Mask::None, AttentionOptions::default());
    problem.bounds = None;
    let stats = attention(&problem, &memory(0)).unwrap();
    assert!(stats.certified_error.is_nan() && stats.certified_mean.is_nan());
    assert_eq!((stats.certificates, stats.reason), (0, Reason::Short));
}
