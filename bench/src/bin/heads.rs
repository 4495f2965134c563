//! Real heads, layer by layer: how fast accelerated attention is against exact attention, what it errs by, and what it says.

use clap::Parser;
use iceformer_bench::heads;
use iceformer_bench::suite::{Bias, Outcome, Settings, charts, measure};
use iceformer_core::attention::Mode;
use iceformer_core::attention::clustered::ablation::{Part, leave_out};
use iceformer_core::simd::Isa;
use std::path::PathBuf;

/// Speed, error and measured error of every layer of captured heads.
#[derive(Parser)]
struct Cli {
    /// Captured heads, safetensors [default: the heads of SmolLM2-135M bundled with the C examples]
    files: Vec<PathBuf>,
    /// Layers, by number [default: all]
    #[arg(long, value_delimiter = ',')]
    layers: Vec<usize>,
    /// First rows of each file
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    rows: usize,
    /// Rows whose error is taken, of each layer
    #[arg(long, default_value_t = 48)]
    samples: usize,
    /// Rounds of turns; medians count
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Relative error that is accepted
    #[arg(long, default_value_t = 0.05)]
    tolerance: f32,
    /// Accelerated attention by name, not as the library chooses
    #[arg(long)]
    by_name: bool,
    /// Biases of distances added to the logits
    #[arg(long)]
    bias: Option<Bias>,
    /// Folder for charts: errors and speed over the layers
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Each of these parts of accelerated attention left out in turn, by the names of the table [default: all parts]: a line for all
    /// layers together
    #[arg(long, value_name = "PARTS", value_delimiter = ',', num_args = 0.., require_equals = true)]
    ablation: Option<Vec<String>>,
    /// Widest instruction set, such as avx2
    #[arg(long)]
    isa: Option<String>,
}

fn percent(x: f64) -> String {
    // Where nothing was measured.
    if x.is_nan() { "-".into() } else { format!("{:.1}", 100.0 * x) }
}

fn line(name: &str, all: &[&Outcome], tolerance: f64) {
    let seconds = all.iter().fold([0.0, 0.0], |a, o| [a[0] + o.seconds[0], a[1] + o.seconds[1]]);
    let sum = |f: &dyn Fn(&Outcome) -> f64| all.iter().map(|o| f(o)).sum::<f64>();
    let n = all.len().max(1) as f64;
    let worst = |q: f64| all.iter().map(|o| o.quantile(q)).fold(0.0, f64::max);
    let (heavy, missed) = all.iter().fold((0, 0), |a, o| (a.0 + o.heavy.0, a.1 + o.heavy.1));
    let rows = sum(&|o| o.stats.rows as f64).max(1.0);
    let measured: Vec<f64> = all.iter().map(|o| o.measured()).filter(|x| !x.is_nan()).collect();
    let most = |i: usize| all.iter().map(|o| o.lse_off()[i]).fold(0.0, f32::max);
    let (mean_off, p99_off, worst_off) = (sum(&|o| f64::from(o.lse_off()[0])) / n, most(1), most(2));
    println!(
        "| {name} | {:.2} | {} | {} | {} | {} | {} | {missed} of {heavy} | {} | {} | {} | {} | {mean_off:.3}, {p99_off:.3}, {worst_off:.3} |",
        seconds[0] / seconds[1],
        percent(sum(&Outcome::mean) / n),
        percent(worst(0.99)),
        percent(worst(1.0)),
        percent(sum(&|o| o.beyond(3.0 * tolerance)) / n),
        percent(measured.iter().sum::<f64>() / measured.len() as f64),
        percent(sum(&|o| o.stats.pairs as f64) / sum(&|o| o.stats.pairs_dense as f64)),
        percent(sum(&|o| o.stats.known as f64) / sum(&|o| o.stats.pairs_dense as f64)),
        percent(sum(&|o| o.stats.cells_opened as f64 * 16.0) / sum(&|o| o.stats.pairs_dense as f64)),
        percent(sum(&|o| o.stats.exact_rows.all() as f64) / rows),
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cli = Cli::parse();
    if let Some(name) = &cli.isa {
        Isa::limit(Isa::ALL.into_iter().find(|isa| isa.name() == name))?;
    }
    let files = if cli.files.is_empty() { vec![heads::sinks()] } else { cli.files };
    let mode = if cli.by_name { Mode::Accelerated } else { Mode::Auto };
    let settings =
        Settings { tolerance: cli.tolerance, mode, samples: cli.samples, rounds: cli.rounds, bias: cli.bias };
    for file in files {
        let layers = heads::load_rows(&file, cli.rows)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let queries = match layers[0].first {
            0 => String::new(),
            first => format!("queries of the last {}, ", layers[0].rows - first),
        };
        println!("\n{name}, {} tokens, {queries}tolerance {}, {}\n", layers[0].rows, cli.tolerance, Isa::best().name());
        println!(
            "| {} | times faster | error, mean % | p99 % | worst % | rows beyond 3x, % | measured % | heavy keys missed | pairs scored % | known % | opened % | rows exact % | log-sum-exps off, mean, p99, worst |",
            if cli.ablation.is_some() { "without" } else { "layer" }
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
        let layers_of = || layers.iter().filter(|l| cli.layers.is_empty() || cli.layers.contains(&l.number));
        if let Some(names) = &cli.ablation {
            let name_of = |part: &Part| format!("{part:?}");
            if let Some(name) = names.iter().find(|name| !Part::ALL.iter().map(name_of).any(|of| of == **name)) {
                return Err(format!("no part {name}; there are {:?}", Part::ALL).into());
            }
            let wanted = Part::ALL.into_iter().filter(|part| names.is_empty() || names.contains(&name_of(part)));
            for part in [None].into_iter().chain(wanted.map(Some)) {
                leave_out(part.as_slice());
                let all: Vec<_> = layers_of().map(|layer| measure(layer, &settings)).collect();
                let name = part.as_ref().map_or("nothing".into(), name_of);
                line(&name, &all.iter().collect::<Vec<_>>(), f64::from(cli.tolerance));
            }
            leave_out(&[]);
            continue;
        }
        let mut all = Vec::new();
        for layer in layers_of() {
            let outcome = measure(layer, &settings);
            line(&outcome.layer.to_string(), &[&outcome], f64::from(cli.tolerance));
            all.push(outcome);
        }
        line("all", &all.iter().collect::<Vec<_>>(), f64::from(cli.tolerance));
        if let Some(folder) = &cli.plot {
            std::fs::create_dir_all(folder)?;
            let stem = name.trim_end_matches(".safetensors");
            for (what, svg) in charts(&format!("{name}, {} tokens", layers[0].rows), &all, f64::from(cli.tolerance))? {
                std::fs::write(folder.join(format!("{stem}-{what}.svg")), svg)?;
            }
        }
    }
    Ok(())
}
