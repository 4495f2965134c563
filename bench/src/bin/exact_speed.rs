//! Speed of exact attention on one thread, beside the FMA peak of the core measured in the same run.
//!
//! `exact_speed [rows | isa]...` (default 2048 8192, every instruction set). GFLOP/s count two products of `2 d` operations per visible pair; the
//! share is of the peak of the same instruction set.
//! Then one row against many keys (decode) beside the rate of reading memory in order.
//! Times are sums over row blocks of the best of several rounds.

use iceformer_core::attention::exact::{Head, ROW_BLOCK, Work, attend};
use iceformer_core::attention::{Mask, Masking};
use iceformer_core::mem::{Memory, Rows, RowsMut};
use iceformer_core::simd::Isa;
use std::time::Instant;

/// GFLOP/s of the FMA probe: the best of many pieces of about a millisecond.
fn peak(isa: Isa) -> f64 {
    let rounds = 4_000_000 / isa.lanes() as u64;
    let flops = rounds as f64 * 12.0 * 2.0 * isa.lanes() as f64;
    (0..100).fold(0.0, |best: f64, _| {
        let t = Instant::now();
        std::hint::black_box(isa.fma_chains(rounds));
        best.max(flops / t.elapsed().as_secs_f64() / 1e9)
    })
}

/// Deterministic numbers, about normal.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            (0..4).fold(0.0f32, |sum, _| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                sum + (x >> 40) as f32 / (1u64 << 24) as f32 - 0.5
            }) * 1.7
        })
        .collect()
}

fn seconds(isa: Isa, n: usize, d: usize, causal: bool) -> (f64, u64) {
    let (q, k, v) = (noise(n * d, 1), noise(n * d, 2), noise(n * d, 3));
    let mut out = vec![0.0f32; n * d];
    let mask = if causal { Mask::Causal { q_pos0: 0 } } else { Mask::None };
    let masking = Masking::new(mask, 0, 0, [1, 1, n, n], true).expect("mask");
    let head = Head {
        q: Rows::new(&q, d).expect("q"),
        k: Rows::new(&k, d).expect("k"),
        v: Rows::new(&v, d).expect("v"),
        masking: &masking,
        batch: 0,
        head: 0,
        scale: 1.0 / (d as f32).sqrt(),
        softcap: 0.0,
        shared_qk: false,
    };
    let memory = Memory::system(0).expect("memory");
    let mut work = Work::new_in(&memory, d, d).expect("work");
    // The best round of every row block, added up: others take turns on a busy machine.
    let mut best = vec![f64::INFINITY; n.div_ceil(ROW_BLOCK)];
    let mut pairs = 0;
    let start = Instant::now();
    for round in 0.. {
        pairs = 0;
        for (i, out) in out.chunks_mut(ROW_BLOCK * d).enumerate() {
            let rows = out.len() / d;
            let mut out = RowsMut::new(out, d).expect("out");
            let t = Instant::now();
            pairs += attend(isa, &head, i * ROW_BLOCK, rows, &mut out, None, &mut work);
            best[i] = best[i].min(t.elapsed().as_secs_f64());
        }
        if round >= 4 && start.elapsed().as_secs_f64() > 2.0 {
            break;
        }
    }
    (best.iter().sum(), pairs)
}

/// Milliseconds of one row against `n` keys, and the GB/s of keys and values read.
fn decode(isa: Isa, n: usize, d: usize, half: bool) -> (f64, f64) {
    let (q, k, v) = (noise(d, 1), noise(n * d, 2), noise(n * d, 3));
    let f16 = |x: &[f32]| x.iter().map(|&x| half::f16::from_f32(x)).collect::<Vec<_>>();
    let (kh, vh) = (f16(&k), f16(&v));
    let masking = Masking::new(Mask::None, 0, 0, [1, 1, 1, n], true).expect("mask");
    let head = Head {
        q: Rows::new(&q, d).expect("q"),
        k: if half { Rows::f16(&kh, d).expect("k") } else { Rows::new(&k, d).expect("k") },
        v: if half { Rows::f16(&vh, d).expect("v") } else { Rows::new(&v, d).expect("v") },
        masking: &masking,
        batch: 0,
        head: 0,
        scale: 1.0 / (d as f32).sqrt(),
        softcap: 0.0,
        shared_qk: false,
    };
    let memory = Memory::system(0).expect("memory");
    let mut work = Work::new_in(&memory, d, d).expect("work");
    let mut out = vec![0.0; d];
    let best = (0..12).fold(f64::INFINITY, |best, _| {
        let mut out = RowsMut::new(&mut out, d).expect("out");
        let t = Instant::now();
        attend(isa, &head, 0, 1, &mut out, None, &mut work);
        best.min(t.elapsed().as_secs_f64())
    });
    let bytes = 2 * n * d * if half { 2 } else { 4 };
    (best * 1e3, bytes as f64 / best / 1e9)
}

/// Best GB/s of reading 128 MiB in order (a maximum, which nobody can skip).
fn read_rate(isa: Isa) -> f64 {
    let x = vec![1.0f32; 32 << 20];
    (0..8).fold(0.0, |best: f64, _| {
        let t = Instant::now();
        std::hint::black_box(isa.max(std::hint::black_box(&x)));
        best.max(x.len() as f64 * 4.0 / t.elapsed().as_secs_f64() / 1e9)
    })
}

fn main() {
    let mut sizes: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![2048, 8192];
    }
    println!("| isa | rows | d | causal | ms | GFLOP/s | peak | share |");
    println!("|---|---|---|---|---|---|---|---|");
    let named: Vec<String> = std::env::args().skip(1).filter(|a| a.parse::<usize>().is_err()).collect();
    for isa in Isa::ALL.into_iter().filter(|i| i.available() && *i != Isa::Scalar) {
        if !named.is_empty() && !named.iter().any(|n| n == isa.name()) {
            continue;
        }
        for &n in &sizes {
            for d in [64, 128] {
                for causal in [false, true] {
                    let top = peak(isa);
                    let (t, pairs) = seconds(isa, n, d, causal);
                    let rate = pairs as f64 * 4.0 * d as f64 / t / 1e9;
                    let top = top.max(peak(isa));
                    println!(
                        "| {} | {n} | {d} | {causal} | {:.2} | {rate:.1} | {top:.1} | {:.1} % |",
                        isa.name(),
                        t * 1e3,
                        rate / top * 100.0
                    );
                }
            }
        }
    }
    println!("\n| isa | keys | d | elements | decode ms | GB/s | read GB/s |");
    println!("|---|---|---|---|---|---|---|");
    let isa = Isa::best();
    for (n, half) in [(8192, true), (65536, true), (65536, false)] {
        let (ms, rate) = decode(isa, n, 128, half);
        let name = if half { "f16" } else { "f32" };
        println!("| {} | {n} | 128 | {name} | {ms:.3} | {rate:.1} | {:.1} |", isa.name(), read_rate(isa));
    }
}
