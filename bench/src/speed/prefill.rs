//! All rows of a prompt against its keys, on one thread.

use super::noise;
use crate::aligned::Aligned;
use iceformer_core::attention::exact::{Head, ROW_BLOCK, Work, attend};
use iceformer_core::attention::{Mask, Masking};
use iceformer_core::mem::{Memory, Rows, RowsMut};
use iceformer_core::simd::Isa;
use std::time::Instant;

/// Seconds that as many multiply-adds take as two products of `pairs` pairs need, in chains that touch no memory.
fn probe(isa: Isa, pairs: u64, d: usize) -> f64 {
    let a_round = 12 * isa.lanes() as u64;
    let t = Instant::now();
    std::hint::black_box(isa.fma_chains((pairs * 2 * d as u64).div_ceil(a_round)));
    t.elapsed().as_secs_f64()
}

/// What one table row says.
struct Times {
    /// Seconds: the best round of every row block, added up.
    attention: f64,
    /// The same of a probe after each block. Clock rates change within milliseconds: pieces as long, tried as often and in
    /// between, meet the same ones.
    probe: f64,
    /// Visible.
    pairs: u64,
}

fn measure(isa: Isa, n: usize, d: usize, causal: bool) -> Times {
    let [q, k, v] = [1, 2, 3].map(|seed| Aligned::from(noise(n * d, seed)));
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
    let mut best = vec![[f64::INFINITY; 2]; n.div_ceil(ROW_BLOCK)];
    let mut all = 0;
    let start = Instant::now();
    for round in 0.. {
        all = 0;
        for (i, out) in out.chunks_mut(ROW_BLOCK * d).enumerate() {
            let rows = out.len() / d;
            let mut out = RowsMut::new(out, d).expect("out");
            let t = Instant::now();
            let pairs = attend(isa, &head, i * ROW_BLOCK, rows, &mut out, None, &mut work);
            let times = [t.elapsed().as_secs_f64(), probe(isa, pairs, d)];
            for (best, t) in best[i].iter_mut().zip(times) {
                *best = best.min(t);
            }
            all += pairs;
        }
        if round >= 4 && start.elapsed().as_secs_f64() > 4.0 {
            break;
        }
    }
    let sum = |which: usize| best.iter().map(|b| b[which]).sum();
    Times { attention: sum(0), probe: sum(1), pairs: all }
}

/// GFLOP/s count two products of `2 d` operations per visible pair; the share is of what the probe reaches with the same
/// instruction set.
pub fn table(isas: &[Isa], sizes: &[usize]) {
    println!("| isa | rows | d | causal | ms | GFLOP/s | peak | share |");
    println!("|---|---|---|---|---|---|---|---|");
    for &isa in isas {
        for &n in sizes {
            for (d, causal) in [(64, false), (64, true), (128, false), (128, true)] {
                let times = measure(isa, n, d, causal);
                let gflops = |t: f64| times.pairs as f64 * 4.0 * d as f64 / t / 1e9;
                let (rate, top) = (gflops(times.attention), gflops(times.probe));
                println!(
                    "| {} | {n} | {d} | {causal} | {:.2} | {rate:.1} | {top:.1} | {:.1} % |",
                    isa.name(),
                    times.attention * 1e3,
                    rate / top * 100.0
                );
            }
        }
    }
}
