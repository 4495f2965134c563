//! Attention over an index beside attention over raw tensors, on captured heads.

use clap::Parser;
use iceformer_bench::accelerated::inputs::Inputs;
use iceformer_bench::accelerated::over::{Outcome, Over, study};
use iceformer_bench::accelerated::{Way, mean, p99, report};
use std::error::Error;
use std::path::PathBuf;

/// Times accelerated attention over an index beside exact attention over it and beside the call over raw tensors, in turns;
/// every row sees every key. Errors are relative L2 of a row, all heads of a layer side by side, against f64; heavy keys
/// have a true weight of 1 % and more. Pin it to one core: everything runs on one thread.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    inputs: Inputs,
    /// Let the library choose between cells and exact attention
    #[arg(long)]
    auto: bool,
    /// Write the table between the marks <!-- over-index --> of a file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Marks to write between
    #[arg(long, value_name = "NAME", default_value = "over-index")]
    mark: String,
}

impl Cli {
    fn ways(&self) -> Vec<(String, Over)> {
        let mut ways = vec![("call, exact".into(), Over::CallExact), ("index, exact".into(), Over::IndexExact)];
        for &t in &self.inputs.tolerance {
            let (way, word) = if self.auto { (Way::Auto(t), "auto") } else { (Way::plain(t), "accelerated") };
            ways.push((format!("call, {word} {t}"), Over::Call(way)));
            ways.push((format!("index, {word} {t}"), Over::Index(way)));
        }
        ways
    }

    fn command(&self) -> String {
        let mut words = vec!["cargo run --release -p iceformer-bench --bin over_index --".to_string()];
        words.extend(self.inputs.words());
        if self.auto {
            words.push("--auto".into());
        }
        words.join(" ")
    }
}

fn row(data: &str, way: &str, o: &Outcome, exact: f64) -> String {
    let percent = |x: f64| format!("{:.1}%", x * 100.0);
    let missed = match o.heavy {
        0 => "-".into(),
        heavy => format!("{} ({} of {heavy})", percent(o.missed as f64 / heavy as f64), o.missed),
    };
    let construct = if o.construct > 0.0 { format!("{:.0}", o.construct * 1e3) } else { "-".into() };
    let cells = [
        data.to_string(),
        way.to_string(),
        construct,
        format!("{:.0}", o.seconds * 1e3),
        format!("{:.0}", o.build * 1e3),
        format!("{:.2}", exact / o.seconds),
        o.break_even(exact).map_or("-".into(), |rows| format!("{rows:.0}")),
        percent(mean(&o.errors)),
        percent(p99(&o.errors)),
        missed,
        percent(o.pairs as f64 / o.pairs_dense.max(1) as f64),
    ];
    format!("| {} |", cells.join(" | "))
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let ways = cli.ways();
    let over: Vec<Over> = ways.iter().map(|w| w.1).collect();
    let head = [
        "data",
        "way",
        "index ms",
        "call ms",
        "of it before the rows",
        "call, exact / this",
        "rows to break even",
        "error mean",
        "error p99",
        "heavy keys missed",
        "pairs scored",
    ];
    let mut lines = vec![
        format!("Made by `{}`.", cli.command()),
        String::new(),
        format!("| {} |", head.join(" | ")),
        format!("|{}", "---|".repeat(head.len())),
    ];
    cli.inputs.each(|data, layers| {
        let data = format!("{data}, {} rows", layers[0].rows);
        let mut all = vec![Outcome::default(); ways.len()];
        for mut layer in layers {
            let outcomes = study(&mut layer, &over, cli.inputs.samples, cli.inputs.rounds)?;
            for (((way, _), all), o) in ways.iter().zip(&mut all).zip(&outcomes) {
                println!("{}", row(&format!("layer {}", layer.number), way, o, outcomes[0].seconds));
                all.add(o);
            }
        }
        for ((way, _), o) in ways.iter().zip(&all) {
            lines.push(row(&data, way, o, all[0].seconds));
            println!("{}", lines[lines.len() - 1]);
        }
        Ok(())
    })?;
    if let Some(path) = &cli.markdown {
        report::place(path, &cli.mark, &lines.join("\n"))?;
    }
    Ok(())
}
