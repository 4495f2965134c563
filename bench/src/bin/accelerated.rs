//! Accelerated attention beside exact attention on captured heads.

use clap::Parser;
use iceformer_bench::accelerated::inputs::Inputs;
use iceformer_bench::accelerated::report::{self, Case};
use iceformer_bench::accelerated::{Outcome, Settings, Way, plot, study};
use iceformer_bench::bias::{Bias, Kind};
use iceformer_core::attention::accelerated::Rule;
use iceformer_core::mem::Dtype;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

/// Times accelerated attention beside exact attention on captured heads, in turns, and measures output errors (relative
/// L2 of a row, all heads of a layer side by side, against f64) and heavy keys missed (true weight of 1 % and more, in
/// cells, not scored exactly). Pin it to one core: everything runs on one thread.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    inputs: Inputs,
    /// Let the library choose between cells and exact attention
    #[arg(long, conflicts_with = "set")]
    auto: bool,
    /// Fields of the rule: needle, outstanding, outstanding_few, plenty, most, stand_out, stand_out_node,
    /// margin, cell, node, fine, coarse, error, caution
    #[arg(long, value_name = "NAME=VALUE", value_parser = field)]
    set: Vec<(String, f32)>,
    /// Try every --set by itself, after the rule without any
    #[arg(long)]
    apart: bool,
    /// Time exact attention on the first 4096 rows before and after, scaled by pairs, instead of on all rows
    #[arg(long)]
    calibrate: bool,
    /// Add a bias to all logits, given as a mask that hides later keys too: alibi or buckets (as of T5)
    #[arg(long, value_name = "KIND", conflicts_with = "calibrate")]
    bias: Option<Kind>,
    /// Biases in f16
    #[arg(long, requires = "bias")]
    bias_f16: bool,
    /// Write the table between the marks <!-- accelerated --> of a file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Marks to write between
    #[arg(long, value_name = "NAME", default_value = "accelerated")]
    mark: String,
    /// Write every figure
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the ratio against the length, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

fn field(text: &str) -> Result<(String, f32), String> {
    let (name, value) = text.split_once('=').ok_or("not NAME=VALUE")?;
    let value = value.parse().map_err(|e| format!("{value}: {e}"))?;
    set(&mut Rule::new(0.05, false), name, value)?;
    Ok((name.into(), value))
}

fn set(rule: &mut Rule, name: &str, value: f32) -> Result<(), String> {
    let field = match name {
        "needle" => &mut rule.needle,
        "outstanding" => &mut rule.outstanding,
        "outstanding_few" => &mut rule.outstanding_few,
        "plenty" => &mut rule.plenty,
        "most" => &mut rule.most,
        "stand_out" => &mut rule.stand_out,
        "stand_out_node" => &mut rule.stand_out_node,
        "margin" => &mut rule.margin,
        "cell" => &mut rule.cell,
        "node" => &mut rule.node,
        "fine" => &mut rule.fine,
        "coarse" => &mut rule.coarse,
        "error" => &mut rule.error,
        "caution" => &mut rule.caution,
        _ => return Err(format!("a rule has no {name}")),
    };
    *field = value;
    Ok(())
}

impl Cli {
    /// Ways with what differs in them from the plain rule.
    fn ways(&self) -> Result<Vec<(f32, String, Way)>, String> {
        let mut ways = Vec::new();
        for &tolerance in &self.inputs.tolerance {
            if self.auto {
                ways.push((tolerance, String::new(), Way::Auto(tolerance)));
                continue;
            }
            let changed = |fields: &[(String, f32)]| {
                let Way::Rule(mut rule) = Way::plain(tolerance) else { unreachable!("a plain way is a rule") };
                let mut words = Vec::new();
                for (name, value) in fields {
                    set(&mut rule, name, *value)?;
                    words.push(format!("{name} {value}"));
                }
                Ok::<_, String>((tolerance, words.join(", "), Way::Rule(rule)))
            };
            if self.apart {
                ways.push(changed(&[])?);
                for field in &self.set {
                    ways.push(changed(std::slice::from_ref(field))?);
                }
            } else {
                ways.push(changed(&self.set)?);
            }
        }
        Ok(ways)
    }

    /// The options as given, files by name alone and without where results go.
    fn command(&self) -> String {
        let mut words = vec!["cargo run --release -p iceformer-bench --bin accelerated --".to_string()];
        words.extend(self.inputs.words());
        words.extend(self.set.iter().map(|(name, value)| format!("--set {name}={value}")));
        for (is_set, word) in [(self.auto, "--auto"), (self.apart, "--apart"), (self.calibrate, "--calibrate")] {
            if is_set {
                words.push(word.into());
            }
        }
        match self.bias {
            Some(Kind::Alibi) => words.push("--bias alibi".into()),
            Some(Kind::Buckets) => words.push("--bias buckets".into()),
            None => {}
        }
        if self.bias_f16 {
            words.push("--bias-f16".into());
        }
        words.join(" ")
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let settings = Settings { samples: cli.inputs.samples, rounds: cli.inputs.rounds, calibrate: cli.calibrate };
    let ways = cli.ways()?;
    println!("{}", report::method(&settings));
    let mut cases = Vec::new();
    cli.inputs.each(|data, mut layers| {
        let rows = layers[0].rows;
        if let Some(kind) = cli.bias {
            let dtype = if cli.bias_f16 { Dtype::F16 } else { Dtype::F32 };
            let bias = Arc::new(Bias::new(kind, dtype, layers[0].heads_q, rows, layers[0].causal));
            layers.iter_mut().for_each(|layer| layer.bias = Some(bias.clone()));
        }
        let plain: Vec<Way> = ways.iter().map(|w| w.2).collect();
        let mut of: Vec<Vec<(usize, Outcome)>> = vec![Vec::new(); ways.len()];
        for layer in &layers {
            for (of, outcome) in of.iter_mut().zip(study(layer, &plain, &settings)) {
                of.push((layer.number, outcome));
            }
        }
        for (layers, (tolerance, changes, way)) in of.into_iter().zip(&ways) {
            let (data, changes) = (data.to_string(), changes.clone());
            let case = Case { data, rows, tolerance: *tolerance, changes, way: *way, layers };
            case.print();
            cases.push(case);
        }
        Ok(())
    })?;
    if let Some(path) = &cli.markdown {
        report::place(path, &cli.mark, &report::markdown(&cases, &settings, &cli.command()))?;
    }
    if let Some(path) = &cli.json {
        std::fs::write(path, report::json(&cases, &settings))?;
    }
    if let Some(path) = &cli.plot {
        std::fs::write(path, plot::svg(&cases)?)?;
    }
    Ok(())
}
