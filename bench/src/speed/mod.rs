//! Speed of exact attention, each table beside the limit of the machine measured in the same run: [`prefill`] beside the
//! rate of fused multiply-adds, [`decode`] beside the rate of reading memory in order, [`threads`] beside one thread.

pub mod decode;
pub mod prefill;
pub mod threads;

use iceformer_core::attention::AttentionOptions;
use iceformer_core::simd::Isa;
use std::time::Instant;

/// Deterministic numbers, about normal.
pub fn noise(n: usize, seed: u64) -> Vec<f32> {
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

/// Seconds of one call.
fn timed(f: impl FnOnce()) -> f64 {
    let t = Instant::now();
    f();
    t.elapsed().as_secs_f64()
}

fn options(isa: Isa, num_threads: usize) -> AttentionOptions {
    AttentionOptions { isa: Some(isa), num_threads, trusted: true, ..AttentionOptions::default() }
}
