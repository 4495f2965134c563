//! One page about a probe: Markdown and two charts.

use super::advice::{GAIN, PERPLEXITY, Quality, by_length, choose, layers, lost_after, pays_from, ranges, whole};
use super::{Layer, Outcome};
use crate::plot::{Axis, Chart, Scale, Series};
use std::error::Error;
use std::fmt::Write;

/// Single tokens from which on the dearer first ones are few among them.
const SETTLED: usize = 256;

/// What was probed, in words.
#[derive(Clone, Debug)]
pub struct About {
    /// File of the model.
    pub model: String,
    /// Texts.
    pub texts: String,
    /// Layers, query heads, KV heads, elements.
    pub shape: [usize; 4],
    /// Tokens of the prompt, of a batch, and single ones after it.
    pub tokens: [usize; 3],
    /// Storage of keys and values.
    pub kv: String,
    /// Instruction set.
    pub isa: String,
    /// Threads.
    pub threads: usize,
}

fn percent(x: f64) -> String {
    format!("{:.1}", 100.0 * x)
}

fn times([exact, fast]: [f64; 2]) -> f64 {
    exact / fast.max(1e-12)
}

fn sum(all: impl Iterator<Item = [f64; 2]>) -> [f64; 2] {
    all.fold([0.0; 2], |a, b| [a[0] + b[0], a[1] + b[1]])
}

/// The page; `charts` names the files of [`charts`].
pub fn markdown(about: &About, outcomes: &[Outcome], quality: &[Quality], charts: [&str; 2]) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    let ([count, heads, heads_kv, dim], [prompt, batch, steps]) = (about.shape, about.tokens);
    line(format!("# iceformer and {}\n", about.model));
    line(format!(
        "{count} layers, {heads} query heads on {heads_kv} KV heads of {dim}. Text: {}; a prompt of {prompt} tokens in batches of {batch}, then \
         {steps} single tokens. Keys and values in {}, {}, {} thread(s). Times are of attention alone, against this library's exact attention.\n",
        about.texts, about.kv, about.isa, about.threads
    ));
    line("## What to set\n".into());
    let chosen = choose(outcomes, quality);
    line(advice(outcomes, quality, chosen, [prompt, steps]));
    line("\n## Tolerances\n".into());
    line("Errors are relative, of a row with all heads side by side, in mean over the layers. Measured: what the library says of rows \
          that it sampled. True: of every row that sees 2,048 tokens or more, against exact attention.\n".into());
    line("| tolerance | layers that gain | prompt, times faster | steps, times faster | scored % | measured error % | true error % | \
          perplexity | KL, nats | same likeliest token % |".into());
    line("|---|---|---|---|---|---|---|---|---|---|".into());
    for (i, o) in outcomes.iter().enumerate() {
        line(tolerance_row(o, quality.get(i)));
    }
    line(format!("\n![Times faster by layer]({})\n\n![Times faster by length]({})\n", charts[0], charts[1]));
    if let Some(o) = chosen.or((!outcomes.is_empty()).then_some(0)).map(|i| &outcomes[i]) {
        line(format!("## Layers at tolerance {}\n", o.tolerance));
        line("| layer | exact, ms | accelerated, ms | times faster | scored % | measured error % | true error % | 99 of 100 rows % | gains |".into());
        line("|---|---|---|---|---|---|---|---|---|".into());
        let gain = layers(o);
        for (l, layer) in o.layers.iter().enumerate() {
            line(layer_row(l, layer, gain.contains(&l)));
        }
    }
    out
}

fn advice(outcomes: &[Outcome], quality: &[Quality], chosen: Option<usize>, [prompt, steps]: [usize; 2]) -> String {
    let Some(i) = chosen else {
        let why = if outcomes.iter().all(|o| layers(o).is_empty()) {
            format!("No layer is {GAIN} times faster at this length.")
        } else {
            format!("No tolerance that was tried keeps the rise of perplexity at {} % or below.", percent(PERPLEXITY))
        };
        return format!("Exact attention, `ICE_TOLERANCE=0`. {why}");
    };
    let (o, gain) = (&outcomes[i], layers(&outcomes[i]));
    let mut out = format!("`ICE_TOLERANCE={}`", o.tolerance);
    if gain.len() < o.layers.len() {
        write!(out, " `ICE_LAYERS={}`", ranges(&gain)).ok();
    }
    match pays_from(o, &gain) {
        Some(length) => write!(out, ". It pays from prompts of {length} tokens on.").ok(),
        None => write!(out, ". It does not pay over the whole prompt at this length.").ok(),
    };
    let seconds = whole(o, &gain);
    let [[exact, mixed], tokens] = seconds;
    write!(
        out,
        " Attention of {prompt} tokens takes {mixed:.2} s instead of {exact:.2} s, {:.1} times less.",
        times([exact, mixed])
    )
    .ok();
    if steps > 0 {
        let [exact, mixed] = tokens.map(|s| 1e3 * s / steps as f64);
        write!(out, " That of a single token after it takes {mixed:.1} ms instead of {exact:.1} ms.").ok();
    }
    if let Some(q) = quality.get(i) {
        write!(out, " Perplexity: {:+.2} %.", 100.0 * q.rise()).ok();
    }
    if let Some(written) = lost_after(seconds, steps) {
        // No setting of the plugin keeps single tokens alone exact.
        write!(
            out,
            "\n\n**Warning: single tokens lose at this length.** After {written} of them the time that the prompt saved is lost. For longer \
             answers to prompts of {prompt} tokens set `ICE_TOLERANCE=0`; longer prompts may do better: probe them with `-n`."
        )
        .ok();
        if steps < SETTLED {
            write!(
                out,
                " The first tokens after a prompt are dearer than those that follow, as some are attended both ways: `--steps {SETTLED}` tells more."
            )
            .ok();
        }
    }
    out
}

fn tolerance_row(o: &Outcome, quality: Option<&Quality>) -> String {
    let n = o.layers.len().max(1) as f64;
    let mean = |of: &dyn Fn(&Layer) -> f64| o.layers.iter().map(of).sum::<f64>() / n;
    let pairs = o.layers.iter().fold([0.0; 2], |a, l| [a[0] + l.pairs[0] as f64, a[1] + l.pairs[1] as f64]);
    let measured: Vec<f64> = o.layers.iter().filter_map(Layer::measured_error).collect();
    let said =
        if measured.is_empty() { "-".into() } else { percent(measured.iter().sum::<f64>() / measured.len() as f64) };
    let steps = sum(o.layers.iter().map(|l| l.steps));
    let steps = if steps[1] > 0.0 { format!("{:.2}", times(steps)) } else { "-".into() };
    let quality = quality.map_or_else(
        || "- | - | -".into(),
        |q| format!("{:+.2} % | {:.5} | {}", 100.0 * q.rise(), q.divergence, percent(q.same)),
    );
    format!(
        "| {} | {} of {} | {:.2} | {steps} | {} | {said} | {} | {quality} |",
        o.tolerance,
        layers(o).len(),
        o.layers.len(),
        times(sum(o.layers.iter().map(Layer::seconds))),
        percent(pairs[0] / f64::max(pairs[1], 1.0)),
        percent(mean(&Layer::error)),
    )
}

fn layer_row(number: usize, layer: &Layer, gains: bool) -> String {
    let [exact, fast] = layer.seconds();
    format!(
        "| {number} | {:.1} | {:.1} | {:.2} | {} | {} | {} | {} | {} |",
        1e3 * exact,
        1e3 * fast,
        times([exact, fast]),
        percent(layer.pairs[0] as f64 / layer.pairs[1].max(1) as f64),
        layer.measured_error().map_or("-".into(), percent),
        percent(layer.error()),
        percent(layer.quantile(0.99)),
        if gains { "yes" } else { "no" },
    )
}

/// Times faster by layer, and by length of the prompt over the layers that gain (all of them where none does).
///
/// # Errors
/// Nothing to draw.
pub fn charts(outcomes: &[Outcome]) -> Result<[String; 2], Box<dyn Error>> {
    let name = |o: &Outcome| format!("tolerance {}", o.tolerance);
    let by_layer = |o: &Outcome| {
        let points = o.layers.iter().enumerate().map(|(l, layer)| (l as f64, times(layer.seconds()))).collect();
        Series { name: name(o), points }
    };
    let by_prompt = |o: &Outcome| {
        let gain = layers(o);
        let of = if gain.is_empty() { (0..o.layers.len()).collect() } else { gain };
        let points = by_length(o, &of).into_iter().map(|(end, seconds)| (end as f64, times(seconds))).collect();
        Series { name: name(o), points }
    };
    let chart = |title: &str, x: &str, series| {
        let mut chart =
            Chart::new(title, Axis::new(x, Scale::Linear), Axis::new("times faster than exact", Scale::Linear), series);
        chart.level = Some(1.0);
        chart.svg()
    };
    Ok([
        chart("Attention of the prompt, by layer", "layer", outcomes.iter().map(by_layer).collect())?,
        chart("Attention of a whole prompt, layers that gain", "tokens", outcomes.iter().map(by_prompt).collect())?,
    ])
}
