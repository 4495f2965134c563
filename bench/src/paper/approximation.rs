//! Quality of the approximation: how far the output of each method is from attention's, on captured heads, and how long
//! it takes.

use super::report::{Part, mb, ms, table};
use crate::baselines::catalogue::{self, Choice};
use crate::baselines::{Exact, Head, Method};
use crate::clock::{median, now};
use crate::heads::Layer;
use crate::peak;
use crate::plot::{Axis, Chart, Scale, Series};
use serde_json::{Value, json};
use std::error::Error;

/// What a method gave on all heads of one kind.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Name.
    pub method: &'static str,
    /// Hyperparameters.
    pub settings: String,
    /// Whether they are the paper's; `None` for exact methods, which have none.
    pub choice: Option<Choice>,
    /// Keys are the queries: compared with exact attention of that kind.
    pub shared_qk: bool,
    /// Why there are no figures.
    pub cannot: Option<&'static str>,
    /// Mean L2 norm of the error of a row.
    pub l2: f64,
    /// Mean over rows of that norm over the row's own.
    pub relative: f64,
    /// Median seconds of a head, what the method needs to know about the model not included.
    pub seconds: f64,
    /// Most bytes allocated at once during a head, beside queries, keys, values, output and what belongs to the model.
    pub bytes: usize,
}

/// Outcomes on one file's heads of one kind.
#[derive(Clone, Debug)]
pub struct Table {
    /// Name of the file.
    pub data: String,
    /// Whether rows see only earlier keys.
    pub causal: bool,
    /// Tokens.
    pub rows: usize,
    /// Query heads.
    pub heads: usize,
    /// Exact methods first.
    pub outcomes: Vec<Outcome>,
}

impl Table {
    /// The outcome of a method by name.
    pub fn of(&self, method: &str, choice: Choice) -> Option<&Outcome> {
        self.outcomes.iter().find(|o| o.method == method && o.choice.is_none_or(|c| c == choice))
    }
}

/// Runs every method, with the paper's and with the strongest settings, on up to `most` evenly spread heads of each layer,
/// `rounds` times. `told` hears of every head that is done.
pub fn measure(data: &str, layers: &[Layer], most: usize, rounds: usize, told: &mut dyn FnMut(&str)) -> Vec<Table> {
    let kinds = [true, false].map(|causal| layers.iter().filter(move |l| l.causal == causal).collect::<Vec<_>>());
    let with = kinds.into_iter().filter(|layers| !layers.is_empty());
    with.map(|layers| of_kind(data, &layers, most, rounds, told)).collect()
}

fn of_kind(data: &str, layers: &[&Layer], most: usize, rounds: usize, told: &mut dyn FnMut(&str)) -> Table {
    let causal = layers[0].causal;
    let mut methods: Vec<(Option<Choice>, Box<dyn Method>)> =
        catalogue::exact().into_iter().map(|m| (None, m)).collect();
    for choice in [Choice::Paper, Choice::Strong] {
        methods.extend(catalogue::methods(choice, 1).into_iter().map(|m| (Some(choice), m)));
    }
    let (mut errors, mut times) = (vec![[0.0; 2]; methods.len()], vec![Vec::new(); methods.len()]);
    let mut most_bytes = vec![0; methods.len()];
    let mut heads = 0;
    for layer in layers {
        for head in crate::model::text::spread(&(0..layer.heads_q).collect::<Vec<_>>(), most) {
            let (q, k, v) = (layer.queries(*head), layer.keys(*head), layer.values(*head));
            let at = Head { q, k, v, dim: layer.dim, causal };
            let truth = [false, true].map(|shared_qk| {
                let mut out = vec![0.0; q.len()];
                Exact { shared_qk }.attend(&at, &mut out);
                out
            });
            let mut out = vec![0.0; q.len()];
            let mut mine = vec![Vec::new(); methods.len()];
            for round in 0..rounds.max(1) {
                for (i, (_, m)) in methods.iter_mut().enumerate() {
                    if m.cannot(causal).is_some() {
                        continue;
                    }
                    m.prepare(layer.rows, layer.dim);
                    let start = now();
                    let ((), bytes) = peak::of(|| m.attend(&at, &mut out));
                    mine[i].push(now() - start);
                    most_bytes[i] = bytes.max(most_bytes[i]);
                    if round == 0 {
                        let [l2, relative] = distance(&out, &truth[usize::from(m.shared_qk())], layer.dim);
                        errors[i][0] += l2;
                        errors[i][1] += relative;
                    }
                }
            }
            times.iter_mut().zip(mine).for_each(|(all, mine)| all.push(median(mine)));
            heads += 1;
            told(&format!("{data}, layer {}, head {head}", layer.number));
        }
    }
    let rows = layers[0].rows;
    let outcome = |i: usize| {
        let (choice, m) = &methods[i];
        let [l2, relative] = errors[i].map(|e| e / heads as f64);
        let (method, settings, cannot) = (m.name(), m.settings(rows), m.cannot(causal));
        let seconds = median(times[i].clone());
        Outcome {
            method,
            settings,
            choice: *choice,
            shared_qk: m.shared_qk(),
            cannot,
            l2,
            relative,
            seconds,
            bytes: most_bytes[i],
        }
    };
    Table { data: data.into(), causal, rows, heads, outcomes: (0..methods.len()).map(outcome).collect() }
}

/// Mean over rows of |have - want|, and of that over |want|.
fn distance(have: &[f32], want: &[f32], dim: usize) -> [f64; 2] {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let (mut sum, mut relative) = (0.0, 0.0);
    for (have, want) in have.chunks(dim).zip(want.chunks(dim)) {
        let wrong = norm(&mut have.iter().zip(want).map(|(a, b)| f64::from(*a) - f64::from(*b)));
        sum += wrong;
        relative += wrong / norm(&mut want.iter().map(|&x| f64::from(x))).max(1e-30);
    }
    let rows = (want.len() / dim) as f64;
    [sum / rows, relative / rows]
}

/// The part of the report.
///
/// # Errors
/// Of drawing.
pub fn part(tables: &[Table], rounds: usize) -> Result<Part, Box<dyn Error>> {
    let mut text = String::from(
        "# Quality of the approximation\n\nEach method on captured heads, one thread. Error: L2 norm of the difference of \
         an output row to exact attention's, and that over the norm of the row, means over all rows and heads. Time: \
         processor time of one head, median over heads, building of indexes, cells, landmarks and hashes included, \
         random projections that belong to a model not. Memory: most bytes allocated at once for a head, beside \
         its queries, keys, values, output and such projections. Two settings of each method: main, those of the paper's appendix for \
         ListOps, where it lists any (its tasks have up to 4,000 tokens), and stronger, towards the other end of the ranges it tuned \
         over. Shared QK: keys are the queries scaled to unit norm, and the error is against exact attention of that \
         kind; the captured models were not trained so.\n",
    );
    let mut drawings = Vec::new();
    for t in tables {
        let kind = if t.causal { "causal" } else { "bidirectional" };
        let (heads, name) = (t.heads, &t.data);
        text += &format!("\n## {name}: {heads} heads, {kind}, {} tokens\n\nRounds: {rounds}.\n\n", t.rows);
        let exact = t.of("Exact", Choice::Paper).map_or(0.0, |o| o.seconds);
        text += &table(
            &[
                "method",
                "settings",
                "which",
                "shared QK",
                "ms a head",
                "exact / this",
                "MB",
                "L2 error",
                "relative error",
            ],
            t.outcomes.iter().map(|o| row(o, exact)),
        );
        text += "\n";
        drawings.push((format!("approximation-{name}-{kind}"), drawing(t)?));
    }
    let json = json!({ "rounds": rounds, "tables": tables.iter().map(to_json).collect::<Vec<_>>() });
    Ok(Part { name: "approximation", markdown: text, json, drawings })
}

fn row(o: &Outcome, exact: f64) -> Vec<String> {
    let from = match o.choice {
        None => "",
        Some(Choice::Paper) => "main",
        Some(Choice::Strong) => "stronger",
    };
    let shared = if o.shared_qk { "yes" } else { "" };
    let mut cells = vec![o.method.to_string(), o.settings.clone(), from.into(), shared.into()];
    match o.cannot {
        Some(why) => cells.extend(["cannot".into(), String::new(), String::new(), why.into(), String::new()]),
        None => cells.extend([
            ms(o.seconds),
            format!("{:.2}", exact / o.seconds),
            mb(o.bytes),
            if o.l2 < 1e-4 { "0".into() } else { format!("{:.4}", o.l2) },
            if o.relative < 1e-4 { "0".into() } else { format!("{:.1}%", o.relative * 100.0) },
        ]),
    }
    cells
}

fn drawing(t: &Table) -> Result<String, Box<dyn Error>> {
    let mut series: Vec<Series> = Vec::new();
    for o in t.outcomes.iter().filter(|o| o.choice.is_some() && o.cannot.is_none()) {
        // What is exact at this length has no place on this axis: it stands at the edge.
        let point = (o.seconds * 1e3, (o.relative * 100.0).clamp(0.05, 1000.0));
        match series.iter_mut().find(|s| s.name == o.method) {
            Some(s) => s.points.push(point),
            None => series.push(Series { name: o.method.into(), points: vec![point] }),
        }
    }
    let title = format!("{}, {} tokens: names at the main settings", t.data, t.rows);
    let up = Axis::new("relative error, %", Scale::Log10);
    let chart = Chart::new(&title, Axis::new("ms a head", Scale::Log10), up, series);
    Chart { names_at_points: true, size: (860, 560), ..chart }.svg()
}

fn to_json(t: &Table) -> Value {
    let outcomes: Vec<Value> = t
        .outcomes
        .iter()
        .map(|o| {
            json!({
                "method": o.method, "settings": o.settings, "from": o.choice.map(|c| format!("{c:?}")),
                "shared_qk": o.shared_qk, "cannot": o.cannot, "l2": o.l2, "relative": o.relative, "seconds": o.seconds, "peak_bytes": o.bytes,
            })
        })
        .collect();
    json!({ "data": t.data, "causal": t.causal, "rows": t.rows, "heads": t.heads, "outcomes": outcomes })
}
