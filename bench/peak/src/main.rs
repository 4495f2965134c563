//! What the core can do, for the side-by-side benchmark: its FMA rate per instruction set and its rate of reading memory.
//!
//! `core_peak` prints one JSON object. `core_peak --serve` answers lines from standard input, so that the probe can take
//! its turn between other programs: `fma ISA` with GFLOP/s, the best of some pieces of about a millisecond; `read BYTES
//! PASSES` with the seconds of so many passes over that many bytes.

use iceformer_core::simd::Isa;
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::Instant;

/// GFLOP/s of fused multiply-adds, the best of `pieces`.
fn fma(isa: Isa, pieces: usize) -> f64 {
    let rounds = 4_000_000 / isa.lanes() as u64;
    let flops = rounds as f64 * 12.0 * 2.0 * isa.lanes() as f64;
    (0..pieces).fold(0.0, |best: f64, _| {
        let t = Instant::now();
        black_box(isa.fma_chains(rounds));
        best.max(flops / t.elapsed().as_secs_f64() / 1e9)
    })
}

/// Seconds of one pass over `data`: a maximum, which nobody can skip.
fn pass(data: &[f32]) -> f64 {
    let t = Instant::now();
    black_box(Isa::best().max(black_box(data)));
    t.elapsed().as_secs_f64()
}

fn sets() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available() && *i != Isa::Scalar)
}

fn answer(line: &str, data: &mut Vec<f32>) -> Option<f64> {
    match line.split_once(' ')? {
        ("fma", name) => Some(fma(sets().find(|i| i.name() == name)?, 12)),
        ("read", what) => {
            let (bytes, passes) = what.split_once(' ')?;
            let (n, passes) = (bytes.parse::<usize>().ok()? / 4, passes.parse::<usize>().ok()?);
            if data.len() != n {
                *data = vec![1.0; n];
            }
            Some((0..passes).map(|_| pass(data)).sum())
        }
        _ => None,
    }
}

fn main() -> std::io::Result<()> {
    let mut data = Vec::new();
    if std::env::args().any(|a| a == "--serve") {
        for line in std::io::stdin().lock().lines() {
            println!("{:e}", answer(&line?, &mut data).unwrap_or(f64::NAN));
            std::io::stdout().flush()?;
        }
        return Ok(());
    }
    let rates: Vec<String> = sets().map(|i| format!("\"{}\": {:.1}", i.name(), fma(i, 100))).collect();
    data.resize(32 << 20, 1.0);
    let best = (0..8).fold(f64::INFINITY, |best, _| pass(&data).min(best));
    let read = data.len() as f64 * 4.0 / best / 1e9;
    println!("{{\"fma_gflops\": {{{}}}, \"read_gb_s\": {read:.1}}}", rates.join(", "));
    Ok(())
}
