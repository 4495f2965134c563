//! Two threads against one on a long causal prompt.

use super::{noise, options, timed};
use crate::aligned::Aligned;
use iceformer_core::attention::{Mask, Problem, attention, required};
use iceformer_core::mem::{Memory, Tensor, TensorMut};
use iceformer_core::simd::Isa;

/// Milliseconds with one and two threads, interleaved, the best of several rounds.
pub fn table(isa: Isa, rows: usize, rounds: usize) {
    println!("\nThreads, causal, {rows} rows, {}, milliseconds:\n", isa.name());
    println!("| heads | d | one | two | ratio |");
    println!("|---|---|---|---|---|");
    for (heads, d) in [(1, 64), (1, 128), (4, 64)] {
        let shape = [1, heads, rows, d];
        let [q, k, v] = [1, 2, 3].map(|seed| Aligned::from(noise(heads * rows * d, seed)));
        let mut out = vec![0.0; heads * rows * d];
        let mut best = [f64::INFINITY; 2];
        for _ in 0..rounds {
            for (i, best) in best.iter_mut().enumerate() {
                let problem = Problem {
                    q: Tensor::new(&q, shape).expect("q"),
                    k: Tensor::new(&k, shape).expect("k"),
                    v: Tensor::new(&v, shape).expect("v"),
                    out: TensorMut::new(&mut out, shape).expect("out"),
                    lse: None,
                    bounds: None,
                    mask: Mask::Causal { q_pos0: 0 },
                    options: options(isa, i + 1),
                };
                let memory = Memory::system(required(&problem).expect("plan").bytes).expect("memory");
                let seconds = timed(|| {
                    attention(&problem, &memory).expect("attention");
                });
                *best = best.min(seconds);
            }
        }
        println!("| {heads} | {d} | {:.1} | {:.1} | {:.2}x |", best[0] * 1e3, best[1] * 1e3, best[0] / best[1]);
    }
}
