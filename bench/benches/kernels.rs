//! Vector kernels and exact attention on every instruction set of this machine.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use iceformer_core::attention::{AttentionOptions, Mask, Mode, Problem, attention};
use iceformer_core::math::hash;
use iceformer_core::mem::{Memory, Tensor, TensorMut};
use iceformer_core::simd::Isa;
use std::hint::black_box;

fn noise(n: usize, seed: u64) -> Vec<f32> {
    (0..n).map(|i| (hash(seed, i as u64) >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

fn kernels(c: &mut Criterion) {
    let (rows, d) = (512, 128);
    let (a, q) = (noise(rows * d, 1), noise(d, 2));
    let at: Vec<u32> = (0..rows as u32).map(|i| i * 37 % rows as u32).collect();
    for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
        let mut group = c.benchmark_group(isa.name());
        group.throughput(Throughput::Elements((rows * d) as u64));
        let mut out = vec![0.0; rows];
        group.bench_function("dots 512 x 128", |b| b.iter(|| isa.dots(black_box(&a), d, &q, &mut out)));
        group.bench_function("dots_at 512 x 128", |b| b.iter(|| isa.dots_at(black_box(&a), d, &at, &q, &mut out)));
        group.bench_function("sq_dists_at 512 x 128", |b| {
            b.iter(|| isa.sq_dists_at(black_box(&a), d, &at, &q, &mut out))
        });
        let mut x = a.clone();
        group.bench_function("exp_sum 65536", |b| {
            b.iter(|| {
                x.copy_from_slice(&a);
                isa.exp_sum(&mut x, 1.0)
            });
        });
        group.finish();
    }
}

fn exact(c: &mut Criterion) {
    let (n, d) = (1024, 64);
    let (q, k, v) = (noise(n * d, 1), noise(n * d, 2), noise(n * d, 3));
    let mut out = vec![0.0; n * d];
    for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
        for (name, mask) in [("all", Mask::None), ("causal", Mask::Causal { q_pos0: 0 })] {
            let shape = [1, 1, n, d];
            let problem = Problem {
                q: Tensor::new(&q, shape).expect("q"),
                k: Tensor::new(&k, shape).expect("k"),
                v: Tensor::new(&v, shape).expect("v"),
                out: TensorMut::new(&mut out, shape).expect("out"),
                lse: None,
                bounds: None,
                mask,
                options: AttentionOptions { mode: Mode::Exact, isa: Some(isa), ..AttentionOptions::default() },
            };
            let memory = Memory::system(0).expect("memory");
            c.bench_function(&format!("exact attention {n} x {d} {name} {}", isa.name()), |b| {
                b.iter(|| attention(&problem, &memory).expect("valid"));
            });
        }
    }
}

criterion_group!(benches, kernels, exact);
criterion_main!(benches);
