//! Speed of exact attention beside the limits of the machine, measured in the same run.
//!
//! `exact_speed [rows | isa | prefill | decode | threads]...`: rows of the prompts (default 2048 8192), instruction sets
//! (default all), tables (default all). Times are the best of interleaved rounds: others take turns on a busy machine.

use iceformer_bench::speed::{decode, prefill, threads};
use iceformer_core::simd::Isa;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut sizes: Vec<usize> = args.iter().filter_map(|a| a.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![2048, 8192];
    }
    let mut isas: Vec<Isa> = Isa::ALL.into_iter().filter(|i| i.available() && *i != Isa::Scalar).collect();
    if isas.iter().any(|i| args.iter().any(|a| a == i.name())) {
        isas.retain(|i| args.iter().any(|a| a == i.name()));
    }
    let tables = ["prefill", "decode", "threads"];
    let named = |t: &str| args.iter().any(|a| a == t) || !args.iter().any(|a| tables.contains(&a.as_str()));
    if named("prefill") {
        prefill::table(&isas, &sizes);
    }
    let isa = isas.last().copied().unwrap_or(Isa::Scalar);
    if named("decode") {
        decode::table(isa, &[4096, 16384, 65536, 262_144]);
    }
    if named("threads") {
        threads::table(isa, 8192, 15);
    }
}
