//! Accelerated attention beside exact: time, output error, heavy keys missed.

pub mod inputs;
pub mod over;
pub mod plot;
pub mod report;
mod truth;

use crate::heads::Layer;
use iceformer_core::attention::accelerated::Rule;
use iceformer_core::attention::{AttentionOptions, AttentionStats, Mask, Mode, Problem, attention, attention_by_rule};
use iceformer_core::mem::{Memory, Tensor, TensorMut};
use std::time::Instant;
use truth::Truth;

/// Rows that exact attention is timed on instead of all, to be scaled.
const SHORT: usize = 4096;
/// Calls on these rows of which the fastest counts.
const SHORT_CALLS: usize = 3;

/// What decides which cells are opened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// A rule as given.
    Rule(Rule),
    /// `Mode::Auto`: the library chooses, block by block, between a rule for this tolerance and exact attention.
    Auto(f32),
}

impl Way {
    /// The rule for a tolerance as it is: no tightening, no exact attention instead.
    pub fn plain(tolerance: f32) -> Way {
        Way::Rule(Rule { error: f32::INFINITY, ..Rule::new(tolerance, false) })
    }
}

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Rows whose error is measured.
    pub samples: usize,
    /// Rounds of turns: exact attention, then every way. Medians count.
    pub rounds: usize,
    /// Time exact attention on the first 4096 rows only, before and after the ways, and scale by pairs.
    pub calibrate: bool,
}

/// What a way gave on one or more layers.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Seconds of exact attention.
    pub exact: f64,
    /// Seconds of accelerated attention, cells included.
    pub accelerated: f64,
    /// Of these, building cells.
    pub build: f64,
    /// Relative L2 errors of output rows, all heads of a layer side by side.
    pub errors: Vec<f64>,
    /// Row-key pairs with a true weight of 1 % and more among the keys that cells cover.
    pub heavy: usize,
    /// Those of them whose weight was not computed exactly. Not known of `Way::Auto`: none are counted.
    pub missed: usize,
    /// Pairs computed exactly.
    pub pairs: u64,
    /// Visible pairs.
    pub pairs_dense: u64,
    /// (cell, row) pairs opened.
    pub cells: u64,
    /// Sum over rows of the estimated share of the mass.
    pub estimated: f64,
    /// Rows.
    pub rows: u64,
}

impl Outcome {
    /// Adds another layer's.
    pub fn add(&mut self, other: &Outcome) {
        self.exact += other.exact;
        self.accelerated += other.accelerated;
        self.build += other.build;
        self.errors.extend_from_slice(&other.errors);
        self.heavy += other.heavy;
        self.missed += other.missed;
        self.pairs += other.pairs;
        self.pairs_dense += other.pairs_dense;
        self.cells += other.cells;
        self.estimated += other.estimated;
        self.rows += other.rows;
    }

    /// Mean error.
    pub fn mean(&self) -> f64 {
        mean(&self.errors)
    }

    /// 99th percentile of the errors.
    pub fn p99(&self) -> f64 {
        p99(&self.errors)
    }

    /// How many times as long exact attention takes.
    pub fn ratio(&self) -> f64 {
        self.exact / self.accelerated
    }

    /// Share of the heavy keys whose weight was not computed exactly.
    pub fn missed_share(&self) -> f64 {
        self.missed as f64 / self.heavy.max(1) as f64
    }

    /// Share of the visible pairs computed exactly.
    pub fn pairs_share(&self) -> f64 {
        self.pairs as f64 / self.pairs_dense.max(1) as f64
    }

    /// Share of the visible pairs in cells that were opened.
    pub fn cells_share(&self) -> f64 {
        self.cells as f64 * 16.0 / self.pairs_dense.max(1) as f64
    }

    /// Mean share of the mass that was estimated.
    pub fn estimated_share(&self) -> f64 {
        self.estimated / self.rows.max(1) as f64
    }
}

/// Mean error.
pub fn mean(errors: &[f64]) -> f64 {
    errors.iter().sum::<f64>() / errors.len().max(1) as f64
}

/// 99th percentile of errors.
pub fn p99(errors: &[f64]) -> f64 {
    let mut sorted = errors.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(0.0)
}

/// One layer, each way timed in turn with exact attention; errors and misses of rows of the second half.
pub fn study(layer: &Layer, ways: &[Way], settings: &Settings) -> Vec<Outcome> {
    let mut exact = Vec::new();
    let mut outcomes = vec![Outcome::default(); ways.len()];
    let mut times = vec![(Vec::new(), Vec::new()); ways.len()];
    let mut outputs = vec![Vec::new(); ways.len()];
    let short = settings.calibrate.then(|| first_rows(layer, SHORT));
    for _ in 0..settings.rounds.max(1) {
        let before = exact_seconds(layer, short.as_ref());
        for (i, way) in ways.iter().enumerate() {
            let (out, stats, seconds) = attend(layer, *way);
            times[i].0.push(seconds);
            times[i].1.push(stats.build_seconds);
            outputs[i] = out;
            let o = &mut outcomes[i];
            (o.pairs, o.pairs_dense, o.cells, o.rows) =
                (stats.pairs, stats.pairs_dense, stats.cells_opened, stats.rows);
            o.estimated = f64::from(stats.estimated_mass) * stats.rows as f64;
        }
        exact.push(match &short {
            None => before,
            Some(_) => (before + exact_seconds(layer, short.as_ref())) / 2.0,
        });
    }
    let truth = Truth::new(layer, settings.samples);
    let exact = median(&mut exact);
    for (i, o) in outcomes.iter_mut().enumerate() {
        let (all, build) = &mut times[i];
        (o.exact, o.accelerated, o.build) = (exact, median(all), median(build));
        o.errors = truth.errors(layer, &outputs[i]);
        if let Way::Rule(rule) = &ways[i] {
            (o.heavy, o.missed) = truth.missed(layer, rule);
        }
    }
    outcomes
}

fn median(x: &mut [f64]) -> f64 {
    x.sort_by(f64::total_cmp);
    x[x.len() / 2]
}

/// A layer of the first rows of another, without its bias.
fn first_rows(layer: &Layer, rows: usize) -> Layer {
    let rows = layer.rows.min(rows);
    let cut =
        |x: &[f32]| x.chunks(layer.rows * layer.dim).flat_map(|h| h[..rows * layer.dim].iter().copied()).collect();
    Layer { rows, q: cut(&layer.q), k: cut(&layer.k), v: cut(&layer.v), bias: None, ..*layer }
}

/// Seconds of exact attention, of a shorter layer and scaled where there is one.
fn exact_seconds(layer: &Layer, short: Option<&Layer>) -> f64 {
    let time = |layer: &Layer| {
        let mut out = vec![0.0; layer.q.len()];
        let p = problem(layer, options(Mode::Exact, 0.0), &mut out);
        let start = Instant::now();
        attention(&p, &system()).expect("exact attention of a layer");
        start.elapsed().as_secs_f64()
    };
    let Some(short) = short else { return time(layer) };
    let pairs = |l: &Layer| l.rows as f64 * if l.causal { (l.rows + 1) as f64 / 2.0 } else { l.rows as f64 };
    (0..SHORT_CALLS).map(|_| time(short)).fold(f64::MAX, f64::min) * pairs(layer) / pairs(short)
}

fn system() -> Memory {
    Memory::system(0).expect("memory without a limit")
}

fn options(mode: Mode, tolerance: f32) -> AttentionOptions {
    let plain = AttentionOptions::default();
    let tolerance = if mode == Mode::Exact { plain.tolerance } else { tolerance };
    AttentionOptions { mode, tolerance, trusted: true, ..plain }
}

/// Output `[heads_q, rows, dim]` of a layer, statistics and seconds.
fn attend(layer: &Layer, way: Way) -> (Vec<f32>, AttentionStats, f64) {
    let mut out = vec![0.0; layer.q.len()];
    let start = Instant::now();
    let stats = match way {
        Way::Rule(rule) => {
            let p = problem(layer, options(Mode::Accelerated, 0.05), &mut out);
            attention_by_rule(&p, &rule, None, &system())
        }
        Way::Auto(tolerance) => attention(&problem(layer, options(Mode::Auto, tolerance), &mut out), &system()),
    };
    (out, stats.expect("attention of a layer"), start.elapsed().as_secs_f64())
}

/// The same of exact attention.
fn attend_exact(layer: &Layer) -> (Vec<f32>, AttentionStats, f64) {
    let mut out = vec![0.0; layer.q.len()];
    let start = Instant::now();
    let stats = attention(&problem(layer, options(Mode::Exact, 0.0), &mut out), &system());
    (out, stats.expect("attention of a layer"), start.elapsed().as_secs_f64())
}

fn problem<'a>(layer: &'a Layer, options: AttentionOptions, out: &'a mut [f32]) -> Problem<'a> {
    let (n, d) = (layer.rows, layer.dim);
    let tensor = |x: &'a [f32], heads| Tensor::new(x, [1, heads, n, d]).expect("a layer's tensor");
    let (q, k, v) = (&layer.q, &layer.k, &layer.v);
    let (q, k, v) = (tensor(q, layer.heads_q), tensor(k, layer.heads_kv), tensor(v, layer.heads_kv));
    let out = TensorMut::new(out, [1, layer.heads_q, n, d]).expect("room for the output");
    let mask = match &layer.bias {
        Some(bias) => bias.mask(),
        None if layer.causal => Mask::Causal { q_pos0: 0 },
        None => Mask::None,
    };
    Problem { q, k, v, out, lse: None, bounds: None, mask, options }
}
