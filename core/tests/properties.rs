//! Properties of accelerated attention that hold for any heads, instead of figures of some: over shapes, element types and masks.
#![allow(unsafe_code)]

mod common;

use common::{memory, noise};
use half::{bf16, f16};
use iceformer_core::attention::{
    Attend, AttentionOptions, AttentionStats, Mask, Mode, Problem, Session, SessionOptions, attention,
};
use iceformer_core::math::hash;
use iceformer_core::mem::{Dtype, Tensor, TensorMut};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use std::cell::Cell;

/// Keys of a segment, as the library has it.
const SEGMENT: usize = 256;

/// What rare rows may add to the error of a call, whatever its tolerance: those that look at keys that no sampled row looks at.
const RARE: f64 = 0.03;

/// One call's shape and data, small enough to be many.
#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    batch: usize,
    heads_kv: usize,
    group: usize,
    rows: usize,
    keys: usize,
    dims: [usize; 2],
    /// Distance of keys from their centres: heads from peaked to diffuse.
    spread: f32,
    /// Length of queries.
    sharp: f32,
    tolerance: f32,
    dtype: Dtype,
    shown: Shown,
    kind: Kind,
}

/// What keys and values are like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Around a few centres.
    Clustered,
    /// Around none.
    Loose,
    /// Around centres; few keys and values are many times as long, and the first key is what every row looks at.
    Outlying,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shown {
    All,
    Causal,
    Padded,
    CausalPadded,
    /// Causal, with a window and sinks.
    Windowed,
    /// Finite biases that grow with distance.
    Biased,
}

/// Causal rows see so many keys, and the first few: long enough that rows see whole segments.
const WINDOW: usize = 1300;
const SINKS: usize = 20;

fn any_case() -> impl Strategy<Value = Case> {
    let shape = (1..=2usize, 1..=2usize, 1..=3usize, 520..=700usize, 1100..=1900usize);
    let dims = (prop::sample::select(vec![8usize, 16, 24, 33]), prop::sample::select(vec![5usize, 8, 20]));
    let data = (0.15..0.6f32, 0.7..2.0f32, prop::sample::select(vec![0.03f32, 0.05, 0.1]));
    let dtype = prop::sample::select(vec![Dtype::F32, Dtype::F16, Dtype::Bf16]);
    let shown = prop::sample::select(vec![
        Shown::All,
        Shown::Causal,
        Shown::Padded,
        Shown::CausalPadded,
        Shown::Windowed,
        Shown::Biased,
    ]);
    let kind = prop::sample::select(vec![Kind::Clustered, Kind::Loose, Kind::Outlying]);
    (any::<u64>(), shape, dims, data, dtype, shown, kind).prop_map(|(seed, shape, dims, data, dtype, shown, kind)| {
        Case {
            seed,
            batch: shape.0,
            heads_kv: shape.1,
            group: shape.2,
            rows: shape.3,
            keys: shape.4,
            dims: [dims.0, dims.1],
            spread: data.0,
            sharp: data.1,
            tolerance: data.2,
            dtype,
            shown,
            kind,
        }
    })
}

/// Tensors in their element type.
#[derive(Clone)]
struct Data {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    keep: Vec<u8>,
    /// Of all heads.
    bias: Vec<f32>,
}

/// What storing in a type does.
fn stored(x: &mut [f32], dtype: Dtype) {
    x.iter_mut().for_each(|x| {
        *x = match dtype {
            Dtype::F32 => *x,
            Dtype::F16 => f16::from_f32(*x).to_f32(),
            Dtype::Bf16 => bf16::from_f32(*x).to_f32(),
        }
    });
}

impl Case {
    fn data(&self) -> Data {
        let near = |n: usize, d: usize, seed: u64| {
            let centres = noise(24 * d, seed + 50, 1.5);
            let mut x = noise(n * d, seed, self.spread);
            for (i, row) in x.chunks_mut(d).enumerate() {
                let drawn = hash(self.seed, i as u64) as usize;
                if self.kind != Kind::Loose {
                    row.iter_mut().zip(&centres[drawn % 24 * d..]).for_each(|(x, c)| *x += c);
                }
                if self.kind == Kind::Outlying && (drawn / 24).is_multiple_of(60) {
                    row.iter_mut().for_each(|x| *x *= 6.0);
                }
            }
            x
        };
        let [dim_k, dim_v] = self.dims;
        let n = self.batch * self.heads_kv * self.keys;
        let mut q = noise(self.batch * self.heads_kv * self.group * self.rows * dim_k, self.seed ^ 3, self.sharp);
        if self.kind == Kind::Outlying {
            // All queries lean to one side, and so does the first key.
            q.chunks_mut(dim_k).for_each(|row| row[0] += 2.0);
        }
        let (mut k, mut v) = (near(n, dim_k, self.seed ^ 1), near(n, dim_v, self.seed ^ 2));
        if self.kind == Kind::Outlying {
            k.chunks_mut(self.keys * dim_k).for_each(|head| head[0] = 8.0);
        }
        [&mut q, &mut k, &mut v].into_iter().for_each(|x| stored(x, self.dtype));
        // The first tokens of each prompt are padding, as many as a draw says.
        let padding = |b: usize| hash(self.seed, b as u64) as usize % (self.keys / 3);
        let keep = (0..self.batch).flat_map(|b| (0..self.keys).map(move |j| (b, j)));
        let keep = keep.map(|(b, j)| u8::from(j >= padding(b))).collect();
        let far = |i: usize, j: usize| (i + self.keys - self.rows).abs_diff(j) as f32;
        let slope = if self.shown == Shown::Biased { -3.0 / self.keys as f32 } else { 0.0 };
        let bias = (0..self.rows).flat_map(|i| (0..self.keys).map(move |j| slope * far(i, j))).collect();
        Data { q, k, v, keep, bias }
    }

    /// What rare rows may add.
    fn rare(&self) -> f64 {
        if self.kind == Kind::Outlying { RARE } else { 0.0 }
    }

    fn mask<'a>(&self, data: &'a Data) -> Mask<'a> {
        let q_pos0 = (self.keys - self.rows) as u64;
        match self.shown {
            Shown::All => Mask::None,
            Shown::Causal | Shown::Windowed => Mask::Causal { q_pos0 },
            Shown::Padded => Mask::Keys(&data.keep),
            Shown::CausalPadded => Mask::CausalKeys { q_pos0, keep: &data.keep },
            Shown::Biased => Mask::Additive(Tensor::new(&data.bias, [1, 1, self.rows, self.keys]).unwrap()),
        }
    }

    /// Whether row `i` of batch `b` sees key `j`.
    fn sees(&self, data: &Data, b: usize, i: usize, j: usize) -> bool {
        let at = i + self.keys - self.rows;
        let kept = data.keep[b * self.keys + j] != 0;
        match self.shown {
            Shown::All | Shown::Biased => true,
            Shown::Causal => j <= at,
            Shown::Padded => kept,
            Shown::CausalPadded => j <= at && kept,
            Shown::Windowed => j <= at && (j + WINDOW > at || j < SINKS),
        }
    }

    /// Accelerated at a tolerance, or exact at 0.
    fn options(&self, tolerance: f32) -> AttentionOptions {
        let mode = if tolerance == 0.0 { Mode::Exact } else { Mode::Accelerated };
        let (window, sinks) = if self.shown == Shown::Windowed { (WINDOW, SINKS) } else { (0, 0) };
        AttentionOptions { mode, tolerance, window, sinks, ..AttentionOptions::default() }
    }

    fn run(&self, data: &Data, o: AttentionOptions) -> Run {
        let [dim_k, dim_v] = self.dims;
        let heads = self.heads_kv * self.group;
        let mut out = vec![f32::NAN; self.batch * heads * self.rows * dim_v];
        let mut lse = vec![f32::NAN; self.batch * heads * self.rows];
        let halves = |x: &[f32]| -> Vec<u16> {
            let bits = |&x: &f32| match self.dtype {
                Dtype::F16 => f16::from_f32(x).to_bits(),
                _ => bf16::from_f32(x).to_bits(),
            };
            x.iter().map(bits).collect()
        };
        let narrow = [&data.q, &data.k, &data.v].map(|x| halves(x));
        let tensor = |at: usize, wide: &'_ [f32], shape: [usize; 4]| {
            let place = match self.dtype {
                Dtype::F32 => wide.as_ptr().cast(),
                _ => narrow[at].as_ptr().cast(),
            };
            // SAFETY: packed numbers of that shape, which outlive the call.
            unsafe { Tensor::from_raw(place, self.dtype, shape, [0; 3], "tensor") }.unwrap()
        };
        let problem = Problem {
            q: tensor(0, &data.q, [self.batch, heads, self.rows, dim_k]),
            k: tensor(1, &data.k, [self.batch, self.heads_kv, self.keys, dim_k]),
            v: tensor(2, &data.v, [self.batch, self.heads_kv, self.keys, dim_v]),
            out: TensorMut::new(&mut out, [self.batch, heads, self.rows, dim_v]).unwrap(),
            lse: Some(TensorMut::new(&mut lse, [self.batch, heads, self.rows, 1]).unwrap()),
            bounds: None,
            mask: self.mask(data),
            options: o,
        };
        let stats = attention(&problem, &memory(0)).unwrap();
        Run { out, lse, stats }
    }
}

struct Run {
    out: Vec<f32>,
    lse: Vec<f32>,
    stats: AttentionStats,
}

impl Run {
    /// Root of the squared differences of outputs, by the outputs.
    fn off(&self, other: &Run) -> f64 {
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        norm(&mut self.out.iter().zip(&other.out).map(|(a, b)| f64::from(a - b)))
            / norm(&mut other.out.iter().map(|&b| f64::from(b))).max(1e-30)
    }

    /// The share of rows that err by more than `most`, by their own length.
    fn astray(&self, other: &Run, dim: usize, most: f64) -> f64 {
        let far = |(a, b): &(&[f32], &[f32])| {
            let off: f64 = a.iter().zip(*b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let long: f64 = b.iter().map(|&b| f64::from(b).powi(2)).sum();
            off > most * most * long
        };
        let n = self.out.chunks(dim).zip(other.out.chunks(dim)).filter(far).count();
        n as f64 / (self.out.len() / dim) as f64
    }
}

/// Runs a property on many cases, the same ones every time, more of them with `ICE_CASES=10`; it says whether cells were used, which most
/// cases must.
fn hold(cases: u32, property: impl Fn(&Case) -> Result<bool, TestCaseError>) {
    let times = std::env::var("ICE_CASES").map_or(1, |n| n.parse().expect("a number"));
    let config = ProptestConfig {
        cases: cases * times,
        failure_persistence: None,
        max_shrink_iters: 20,
        rng_seed: RngSeed::Fixed(0x1ce),
        ..ProptestConfig::default()
    };
    let (all, used) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(config);
    let run = runner.run(&any_case(), |case| {
        let cells = property(&case)?;
        all.set(all.get() + 1);
        used.set(used.get() + u32::from(cells));
        Ok(())
    });
    run.unwrap_or_else(|e| panic!("{e}"));
    assert!(2 * used.get() > all.get(), "cells were used in {} of {} cases", used.get(), all.get());
}

fn cells(run: &Run) -> bool {
    run.stats.mode == Mode::Accelerated && run.stats.pairs < run.stats.pairs_dense
}

/// Each output coordinate stays within those of the values that its row sees; a row that sees nothing is zeros.
#[test]
fn outputs_stay_in_the_hull_of_values() {
    hold(24, |case| {
        let data = case.data();
        let run = case.run(&data, case.options(case.tolerance));
        let dim = case.dims[1];
        let heads = case.heads_kv * case.group;
        for (at, row) in run.out.chunks(dim).enumerate() {
            let (b, h, i) = (at / case.rows / heads, at / case.rows % heads, at % case.rows);
            // One row in five is looked at.
            if !(i + h).is_multiple_of(5) {
                continue;
            }
            let values = &data.v[(b * case.heads_kv + h / case.group) * case.keys * dim..][..case.keys * dim];
            let (mut low, mut high) = (vec![f32::INFINITY; dim], vec![f32::NEG_INFINITY; dim]);
            for (_, value) in values.chunks(dim).enumerate().filter(|&(j, _)| case.sees(&data, b, i, j)) {
                for c in 0..dim {
                    (low[c], high[c]) = (low[c].min(value[c]), high[c].max(value[c]));
                }
            }
            if low[0] > high[0] {
                prop_assert!(row.iter().all(|&x| x == 0.0), "row {i} sees nothing: {row:?}");
                continue;
            }
            for c in 0..dim {
                let slack = 1e-5 * (high[c] - low[c]);
                let fine = low[c] - slack <= row[c] && row[c] <= high[c] + slack;
                prop_assert!(fine, "row {i}: {} outside {}..{}", row[c], low[c], high[c]);
            }
        }
        Ok(cells(&run))
    });
}

/// Below the finest tolerance the bits are those of exact attention; at any other the error keeps to it, but for rare rows of heads with
/// outliers, and few calls have those.
#[test]
fn smaller_tolerances_come_to_exact_attention() {
    // With the share of rows that may err by more than twice the tolerance.
    const TOLERANCES: [(f32, f64); 4] = [(0.1, 0.04), (0.03, 0.2), (0.01, 0.2), (0.002, 0.2)];
    let worst = Cell::new([[0.0f64; 2]; TOLERANCES.len()]);
    // Calls on outlying heads, and those of them that err by more than other heads may.
    let (all, beyond) = (Cell::new(0), Cell::new(0));
    hold(16, |case| {
        let data = case.data();
        let exact = case.run(&data, case.options(0.0));
        for tolerance in [1e-12, 9e-4] {
            let run = case.run(&data, case.options(tolerance));
            prop_assert!(run.out == exact.out && run.lse == exact.lse, "tolerance {tolerance}");
        }
        let (mut used, mut most) = (false, worst.get());
        let outlying = case.kind == Kind::Outlying;
        for ((tolerance, share), most) in TOLERANCES.into_iter().zip(&mut most) {
            let run = case.run(&data, case.options(tolerance));
            let (off, kept) = (run.off(&exact), 1.25 * f64::from(tolerance));
            // An aim, measured on few rows: those keep it, and others that are like them.
            prop_assert!(off <= kept + case.rare(), "tolerance {tolerance}: {off}");
            let astray = run.astray(&exact, case.dims[1], 2.0 * f64::from(tolerance));
            prop_assert!(astray <= share, "tolerance {tolerance}: {astray} of the rows");
            let most = &mut most[usize::from(outlying)];
            *most = most.max(off / f64::from(tolerance));
            if cells(&run) {
                used = true;
                all.set(all.get() + usize::from(outlying));
                beyond.set(beyond.get() + usize::from(off > kept));
                let measured = run.stats.measured.mean();
                prop_assert!(measured <= tolerance, "tolerance {tolerance}: measured {measured}");
            }
        }
        worst.set(most);
        Ok(used)
    });
    let (all, beyond) = (all.get(), beyond.get());
    println!("times the tolerance at worst, of outlying heads second: {:.2?}", worst.get());
    println!("{beyond} of {all} calls on outlying heads err by more than others may");
    assert!(8 * beyond <= all, "{beyond} of {all}");
}

/// The order of keys within a segment is nobody's business but a causal row's.
#[test]
fn keys_of_a_segment_may_change_places() {
    hold(16, |case| {
        let shown = match case.shown {
            Shown::All | Shown::Causal => Shown::All,
            Shown::Biased => Shown::Biased,
            _ => Shown::Padded,
        };
        let case = Case { shown, ..case.clone() };
        let mut data = case.data();
        // Whole segments are kept or padding, so that keys change places with their like.
        for (j, keep) in data.keep.iter_mut().enumerate() {
            *keep = u8::from(j % case.keys / SEGMENT != 1);
        }
        let before = case.run(&data, case.options(case.tolerance));
        let [dim_k, dim_v] = case.dims;
        let segment = hash(case.seed, 9) as usize % (case.keys / SEGMENT);
        let place = |i: usize| segment * SEGMENT + (i * 77 + 5) % SEGMENT;
        // A bias goes with its key.
        for (x, dim) in [(&mut data.k, dim_k), (&mut data.v, dim_v), (&mut data.bias, 1)] {
            for rows in x.chunks_mut(case.keys * dim) {
                let old = rows.to_vec();
                for i in 0..SEGMENT {
                    let (to, from) = (segment * SEGMENT + i, place(i));
                    rows[to * dim..][..dim].copy_from_slice(&old[from * dim..][..dim]);
                }
            }
        }
        let after = case.run(&data, case.options(case.tolerance));
        let off = after.off(&before);
        prop_assert!(off < 2.0 * (f64::from(case.tolerance) + case.rare()), "{off}");
        Ok(cells(&before))
    });
}

/// Twice the same context: the same outputs, and log-sum-exps by log 2 more.
#[test]
fn a_context_twice_changes_nothing() {
    hold(16, |case| {
        let shown = if case.shown == Shown::Biased { Shown::Biased } else { Shown::All };
        let case = Case { shown, ..case.clone() };
        let data = case.data();
        let once = case.run(&data, case.options(case.tolerance));
        let twice = |x: &[f32], dim: usize| x.chunks(case.keys * dim).flat_map(|head| [head, head].concat()).collect();
        let long = Case { keys: 2 * case.keys, ..case.clone() };
        let double = Data {
            q: data.q.clone(),
            k: twice(&data.k, case.dims[0]),
            v: twice(&data.v, case.dims[1]),
            keep: vec![],
            bias: twice(&data.bias, 1),
        };
        let run = long.run(&double, case.options(case.tolerance));
        let off = run.off(&once);
        prop_assert!(off < 2.0 * (f64::from(case.tolerance) + case.rare()), "{off}");
        let mut more: Vec<f32> = run.lse.iter().zip(&once.lse).map(|(a, b)| (a - b - 2f32.ln()).abs()).collect();
        more.sort_by(f32::total_cmp);
        prop_assert!(more[more.len() * 95 / 100] < 2.0 * case.tolerance, "{}", more[more.len() * 95 / 100]);
        Ok(cells(&once) && cells(&run))
    });
}

/// A constant in all keys moves all logits of a row alike.
#[test]
fn a_constant_in_all_keys_changes_nothing() {
    hold(16, |case| {
        let case = Case { dtype: Dtype::F32, ..case.clone() };
        let mut data = case.data();
        let before = case.run(&data, case.options(case.tolerance));
        let constant = noise(case.dims[0], case.seed ^ 7, 3.0);
        data.k.chunks_mut(case.dims[0]).for_each(|row| row.iter_mut().zip(&constant).for_each(|(x, c)| *x += c));
        let after = case.run(&data, case.options(case.tolerance));
        let off = after.off(&before);
        prop_assert!(off < 2.0 * f64::from(case.tolerance), "{off}");
        Ok(cells(&before))
    });
}

/// Values by a power of two: the outputs are by that power, to the bit.
#[test]
fn scaled_values_scale_outputs() {
    hold(16, |case| {
        let data = case.data();
        let before = case.run(&data, case.options(case.tolerance));
        // Small numbers of 16 bits lose digits when they become smaller.
        for by in [if case.dtype == Dtype::F16 { 2.0f32 } else { 0.25 }, 8.0] {
            let v = data.v.iter().map(|x| x * by).collect();
            let scaled = Data { v, ..data.clone() };
            let after = case.run(&scaled, case.options(case.tolerance));
            let same = after.out.iter().zip(&before.out).all(|(a, b)| *a == b * by);
            prop_assert!(same && after.lse == before.lse && after.stats.pairs == before.stats.pairs, "by {by}");
        }
        Ok(cells(&before))
    });
}

#[test]
fn threads_change_no_bit() {
    hold(12, |case| {
        let data = case.data();
        let before = case.run(&data, case.options(case.tolerance));
        for num_threads in [2, 5] {
            let after = case.run(&data, AttentionOptions { num_threads, ..case.options(case.tolerance) });
            prop_assert!(after.out == before.out && after.lse == before.lse, "{num_threads} threads");
        }
        Ok(cells(&before))
    });
}

/// Tokens come in pieces and heads are attended in parts: the bits are those of one piece and one part.
#[test]
fn chunks_and_parts_change_no_bit() {
    hold(12, |case| {
        let data = case.data();
        let [dim_k, dim_v] = case.dims;
        let heads = case.heads_kv * case.group;
        let options = SessionOptions {
            heads_q: heads,
            heads_kv: case.heads_kv,
            dim_k,
            dim_v,
            capacity: case.keys,
            kv_dtype: case.dtype,
            attention: case.options(case.tolerance),
            dense_below: 0,
        };
        let attend = |chunk: usize, nth: usize| {
            let mut session = Session::new_in(&options, &memory(0)).unwrap();
            let mut at = 0;
            while at < case.keys {
                let n = chunk.min(case.keys - at);
                let cut = |x: &[f32], dim: usize| -> Vec<f32> {
                    (0..case.heads_kv).flat_map(|h| x[(h * case.keys + at) * dim..][..n * dim].to_vec()).collect()
                };
                let (k, v) = (cut(&data.k, dim_k), cut(&data.v, dim_v));
                let tensor = |x, dim| Tensor::new(x, [1, case.heads_kv, n, dim]).unwrap();
                session.append(tensor(&k, dim_k), tensor(&v, dim_v)).unwrap();
                session.commit().unwrap();
                at += n;
            }
            let mut out = vec![f32::NAN; heads * case.rows * dim_v];
            let to = TensorMut::new(&mut out, [1, heads, case.rows, dim_v]).unwrap();
            let q = Tensor::new(&data.q[..heads * case.rows * dim_k], [1, heads, case.rows, dim_k]).unwrap();
            let stats = (0..nth).map(|ith| session.attend(&Attend::new(q, &to).part(ith, nth), &memory(0)).unwrap());
            let pairs: Vec<[u64; 2]> = stats.map(|s| [s.pairs, s.pairs_dense]).collect();
            (out, pairs.iter().fold([0; 2], |a, b| [a[0] + b[0], a[1] + b[1]]))
        };
        let (whole, [pairs, dense]) = attend(case.keys, 1);
        for (chunk, nth) in [(1 + hash(case.seed, 4) as usize % 300, 1), (SEGMENT, 3), (case.keys, 2)] {
            let (out, _) = attend(chunk, nth);
            prop_assert!(out == whole, "chunks of {chunk}, {nth} parts");
        }
        Ok(pairs < dense)
    });
}
