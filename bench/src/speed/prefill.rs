//! All rows of a prompt against its keys, on one thread.

use super::noise;
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

/// Seconds, the best round of every row block added up, and visible pairs.
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
    let mut work = Work::new_in(&memory, d, d, ROW_BLOCK).expect("work");
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

/// GFLOP/s count two products of `2 d` operations per visible pair; the share is of the peak of the same instruction set.
pub fn table(isas: &[Isa], sizes: &[usize]) {
    println!("| isa | rows | d | causal | ms | GFLOP/s | peak | share |");
    println!("|---|---|---|---|---|---|---|---|");
    for &isa in isas {
        for &n in sizes {
            for (d, causal) in [(64, false), (64, true), (128, false), (128, true)] {
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
