//! Speed of exact attention beside the limits of the machine, measured in the same run.

use clap::{Parser, ValueEnum};
use iceformer_bench::speed::{decode, prefill, threads};
use iceformer_core::simd::Isa;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Table {
    Prefill,
    Decode,
    Rows,
    Threads,
}

/// Times of exact attention, the best of interleaved rounds: others take turns on a busy machine. Pin it to one core, unless
/// threads are asked for.
#[derive(Parser)]
struct Cli {
    /// Rows of the prompts
    #[arg(default_values_t = [2048, 8192])]
    rows: Vec<usize>,
    /// Tables [default: all]
    #[arg(long, value_enum, value_name = "NAME,..", value_delimiter = ',')]
    table: Vec<Table>,
    /// Instruction sets, by name [default: all that this machine has]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    isa: Vec<String>,
}

fn main() -> Result<(), String> {
    let cli = Cli::parse();
    let here: Vec<Isa> = Isa::ALL.into_iter().filter(|i| i.available() && *i != Isa::Scalar).collect();
    if let Some(other) = cli.isa.iter().find(|name| here.iter().all(|i| i.name() != name.as_str())) {
        let names: Vec<_> = here.iter().map(|i| i.name()).collect();
        return Err(format!("no instruction set {other} here; there are: {}", names.join(", ")));
    }
    let isas: Vec<Isa> =
        here.into_iter().filter(|i| cli.isa.is_empty() || cli.isa.iter().any(|name| name == i.name())).collect();
    let wanted = |table| cli.table.is_empty() || cli.table.contains(&table);
    if wanted(Table::Prefill) {
        prefill::table(&isas, &cli.rows);
    }
    let isa = isas.last().copied().unwrap_or(Isa::Scalar);
    if wanted(Table::Decode) {
        decode::table(isa, &[4096, 16384, 65536, 262_144]);
    }
    if wanted(Table::Rows) {
        decode::rows(isa, &[1024, 4096, 16384, 65536]);
    }
    if wanted(Table::Threads) {
        threads::table(isa, 8192, 15);
    }
    Ok(())
}
