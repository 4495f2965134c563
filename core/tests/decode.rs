//! Few query rows: heads that share keys and values are attended together, with the bits of every head alone; long
//! contexts of 16-bit keys and values lose nothing to accumulation.

mod common;

use common::{memory, noise};
use half::{bf16, f16};
use iceformer_core::attention::exact::{Head, Work, attend};
use iceformer_core::attention::{AttentionOptions, Mask, Masking, Problem, attention, required};
use iceformer_core::mem::{Dtype, Rows, RowsMut, Tensor, TensorMut};
use iceformer_core::simd::Isa;

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available())
}

/// Packed numbers of one element type.
struct Data {
    bytes: Vec<u32>,
    dtype: Dtype,
    shape: [usize; 4],
}

impl Data {
    fn new(dtype: Dtype, shape: [usize; 4], seed: u64) -> Data {
        let x = noise(shape.iter().product(), seed, 1.5);
        let pairs = |f: &dyn Fn(f32) -> u16| {
            x.chunks(2).map(|c| u32::from(f(c[0])) | u32::from(f(*c.get(1).unwrap_or(&0.0))) << 16).collect()
        };
        let bytes = match dtype {
            Dtype::F32 => x.iter().map(|x| x.to_bits()).collect(),
            Dtype::F16 => pairs(&|x| f16::from_f32(x).to_bits()),
            Dtype::Bf16 => pairs(&|x| bf16::from_f32(x).to_bits()),
        };
        Data { bytes, dtype, shape }
    }

    fn view(&self) -> Tensor<'_> {
        // SAFETY: packed numbers of this type and shape, borrowed as long as the view.
        unsafe { Tensor::from_raw(self.bytes.as_ptr().cast(), self.dtype, self.shape, [0; 3], "data").unwrap() }
    }
}

/// Every head alone.
fn alone(isa: Isa, [q, k, v]: [Tensor<'_>; 3], masking: &Masking<'_>, o: &AttentionOptions) -> (Vec<f32>, Vec<f32>) {
    let [batch, heads, rows, dim_k] = q.shape();
    let [_, heads_kv, _, dim_v] = v.shape();
    let (mut out, mut lse) = (vec![f32::NAN; batch * heads * rows * dim_v], vec![f32::NAN; batch * heads * rows]);
    let mut work = Work::new_in(&memory(0), dim_k, dim_v, rows).unwrap();
    let pairs = out.chunks_mut(rows * dim_v).zip(lse.chunks_mut(rows));
    for (i, (out, lse)) in pairs.enumerate() {
        let (batch, head) = (i / heads, i % heads);
        let kv = head / (heads / heads_kv);
        let head = Head {
            q: q.head(batch, head),
            k: k.head(batch, kv),
            v: v.head(batch, kv),
            masking,
            batch,
            head,
            scale: o.scale,
            softcap: o.softcap,
            shared_qk: false,
        };
        attend(isa, &head, 0, rows, &mut RowsMut::new(out, dim_v).unwrap(), Some(lse), &mut work);
    }
    (out, lse)
}

#[test]
fn groups_have_the_bits_of_heads_alone() {
    let types = [Dtype::F32, Dtype::F16, Dtype::Bf16];
    let threads: &[usize] = if cfg!(feature = "std") { &[1, 2, 5, 64] } else { &[1] };
    // Batch, query heads, KV heads, rows, keys, dimensions.
    let shapes = [
        [2, 6, 2, 1, 300, 24, 24],
        [1, 4, 1, 3, 131, 128, 64],
        [1, 35, 1, 1, 77, 40, 33],
        [1, 16, 2, 4, 270, 80, 96],
        [2, 3, 3, 2, 9, 5, 1],
        [1, 8, 1, 4, 140, 1024, 17],
        [1, 2, 1, 2, 0, 8, 8],
        [1, 8, 2, 5, 200, 64, 64],
        [2, 10, 2, 12, 150, 40, 33],
        [1, 5, 1, 12, 150, 24, 40],
        [1, 6, 2, 13, 90, 16, 16],
    ];
    let shapes: &[_] = if cfg!(miri) { &shapes[4..5] } else { &shapes };
    for (turn, &[batch, heads, heads_kv, rows, keys, dim_k, dim_v]) in shapes.iter().enumerate() {
        let q = Data::new(types[turn % 3], [batch, heads, rows, dim_k], 1);
        let k = Data::new(types[(turn + 1) % 3], [batch, heads_kv, keys, dim_k], 2);
        let v = Data::new(types[(turn + 1 + turn / 3) % 3], [batch, heads_kv, keys, dim_v], 3);
        let mut bias = noise(batch * heads * rows * keys, 4, 1.0);
        bias.iter_mut().step_by(3).for_each(|b| *b = f32::NEG_INFINITY);
        let keep: Vec<u8> = (0..batch * keys).map(|j| u8::from(j % 7 > 2)).collect();
        let counts: Vec<u64> = (0..batch * rows).map(|i| (i * 37) as u64 % (keys as u64 + 1)).collect();
        let masks = [
            Mask::None,
            Mask::Causal { q_pos0: (keys / 2) as u64 },
            Mask::Prefix(&counts),
            Mask::Keys(&keep),
            Mask::CausalKeys { q_pos0: (keys / 2) as u64, keep: &keep },
            Mask::Additive(Tensor::new(&bias, [batch, heads, rows, keys]).unwrap()),
        ];
        for (m, mask) in masks.into_iter().enumerate() {
            for (window, sinks, softcap) in [(0, 0, 0.0), (50, 3, 0.0), (0, 0, 2.0), (1, 0, 0.0)] {
                for isa in isas() {
                    let o = AttentionOptions {
                        isa: Some(isa),
                        scale: 0.3,
                        softcap,
                        window,
                        sinks,
                        ..AttentionOptions::default()
                    };
                    let masking = Masking::new(mask, window, sinks, [batch, heads, rows, keys], false).unwrap();
                    let (want, want_lse) = alone(isa, [q.view(), k.view(), v.view()], &masking, &o);
                    for &num_threads in threads {
                        let (mut out, mut lse) = (vec![f32::NAN; want.len()], vec![f32::NAN; want_lse.len()]);
                        let problem = Problem {
                            q: q.view(),
                            k: k.view(),
                            v: v.view(),
                            out: TensorMut::new(&mut out, [batch, heads, rows, dim_v]).unwrap(),
                            lse: Some(TensorMut::new(&mut lse, [batch, heads, rows, 1]).unwrap()),
                            bounds: None,
                            mask,
                            options: AttentionOptions { num_threads, ..o },
                        };
                        let bytes = required(&problem).unwrap().bytes;
                        let work = memory(bytes);
                        let stats = attention(&problem, &work).unwrap();
                        assert_eq!(work.report().peak, bytes);
                        let seen: usize = (0..batch * rows)
                            .map(|i| masking.count(i / rows, masking.visible(i / rows, i % rows)) * heads)
                            .sum();
                        assert_eq!(stats.pairs, seen as u64);
                        let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(
                            same(&out, &want) && same(&lse, &want_lse),
                            "{}: shape {turn} mask {m} window {window} softcap {softcap} threads {num_threads}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_few_neighbours() {
    let (keys, d) = if cfg!(miri) { (20, 3) } else { (500, 40) };
    let (q, k, v) = (noise(12 * d, 1, 1.0), noise(keys * d, 2, 1.0), noise(keys * d, 3, 1.0));
    for isa in isas() {
        for (window, sinks) in [(0, 0), (90, 3)] {
            let masking = Masking::new(Mask::Causal { q_pos0: 250 }, window, sinks, [1, 1, 12, keys], false).unwrap();
            let head = Head {
                q: Rows::new(&q, d).unwrap(),
                k: Rows::new(&k, d).unwrap(),
                v: Rows::new(&v, d).unwrap(),
                masking: &masking,
                batch: 0,
                head: 0,
                scale: 0.2,
                softcap: 0.0,
                shared_qk: false,
            };
            let mut work = Work::new_in(&memory(0), d, d, 12).unwrap();
            let mut rows = |begin: usize, n: usize| {
                let mut out = vec![0.0; n * d];
                attend(isa, &head, begin, n, &mut RowsMut::new(&mut out, d).unwrap(), None, &mut work);
                out
            };
            let all = rows(0, 12);
            for (begin, n) in [(0, 1), (1, 1), (3, 1), (0, 2), (1, 3), (2, 2), (3, 9), (5, 7), (0, 11)] {
                assert_eq!(rows(begin, n), all[begin * d..][..n * d], "{}: {begin}..+{n}", isa.name());
            }
        }
    }
}

/// One row over many keys in f64.
fn exact(q: &[f32], k: impl Fn(usize) -> f64, v: impl Fn(usize) -> f64, keys: usize, scale: f32) -> Vec<f64> {
    let d = q.len();
    let s: Vec<f64> =
        (0..keys).map(|j| f64::from(scale) * (0..d).map(|c| f64::from(q[c]) * k(j * d + c)).sum::<f64>()).collect();
    let max = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = s.iter().map(|s| (s - max).exp()).sum();
    let mut out = vec![0.0; d];
    for j in 0..keys {
        let w = (s[j] - max).exp() / sum;
        (0..d).for_each(|c| out[c] += w * v(j * d + c));
    }
    out
}

#[test]
fn long_half_precision_contexts_are_accumulated_in_f32() {
    let (keys, d) = if cfg!(miri) { (200, 16) } else { (70_001, 32) };
    let (q, k, v) = (noise(d, 1, 2.0), noise(keys * d, 2, 1.0), noise(keys * d, 3, 1.0));
    let h16 = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>();
    let (kh, vh) = (h16(&k), h16(&v));
    let scale = 1.0 / (d as f32).sqrt();
    let stored = exact(&q, |i| kh[i].to_f64(), |i| vh[i].to_f64(), keys, scale);
    let unstored = exact(&q, |i| f64::from(k[i]), |i| f64::from(v[i]), keys, scale);
    let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
    let size = distance(&stored, &vec![0.0; d]);
    let storage = distance(&stored, &unstored) / size;
    let masking = Masking::new(Mask::None, 0, 0, [1, 1, 1, keys], false).unwrap();
    for isa in isas() {
        let head = Head {
            q: Rows::new(&q, d).unwrap(),
            k: Rows::new(&kh, d).unwrap(),
            v: Rows::new(&vh, d).unwrap(),
            masking: &masking,
            batch: 0,
            head: 0,
            scale,
            softcap: 0.0,
            shared_qk: false,
        };
        let mut out = vec![0.0; d];
        let mut work = Work::new_in(&memory(0), d, d, 1).unwrap();
        attend(isa, &head, 0, 1, &mut RowsMut::new(&mut out, d).unwrap(), None, &mut work);
        let out: Vec<f64> = out.iter().map(|&x| f64::from(x)).collect();
        let error = distance(&out, &stored) / size;
        assert!(error <= 1e-5, "{}: {error:e}", isa.name());
        // What storing costs stays what it is: accumulation adds less than a thousandth.
        let total = distance(&out, &unstored) / size;
        assert!((total - storage).abs() <= 1e-3 * storage && error <= 1e-2 * storage, "{}: {total:e}", isa.name());
    }
}
