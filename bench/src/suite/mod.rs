//! Real heads: what accelerated attention gains on every layer of a capture, what it errs by, and what it says it errs by.

mod bias;
mod charts;
mod truth;

use crate::heads::Layer;
pub use bias::Bias;
pub use charts::charts;
use half::f16;
use iceformer_core::attention::{AttentionOptions, AttentionStats, Mask, Mode, Problem, attention, attention_watched};
use iceformer_core::mem::{Memory, Tensor, TensorMut};
use std::time::Instant;
pub use truth::Truth;

/// Keys so near to a row may be scored exactly without anybody saying so: those of its block and of the segment before.
const NEAR: usize = 768;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Relative error that is accepted.
    pub tolerance: f32,
    /// By name, or as the library chooses.
    pub mode: Mode,
    /// Rows whose error is taken, of each layer.
    pub samples: usize,
    /// Rounds of turns; medians count.
    pub rounds: usize,
    /// Added to the logits.
    pub bias: Option<Bias>,
}

/// A layer.
pub struct Outcome {
    /// Its number in the capture.
    pub layer: usize,
    /// Median seconds of exact attention and of accelerated attention.
    pub seconds: [f64; 2],
    /// What the last accelerated call says.
    pub stats: AttentionStats,
    /// Relative errors of sampled rows, ascending.
    pub errors: Vec<f64>,
    /// Heavy keys, and those missed.
    pub heavy: (usize, usize),
    /// By how much log-sum-exps differ from those of exact attention, of all rows of the second half and all heads, ascending.
    pub off: Vec<f32>,
}

impl Outcome {
    /// Mean error.
    pub fn mean(&self) -> f64 {
        self.errors.iter().sum::<f64>() / self.errors.len().max(1) as f64
    }

    /// An error that so large a share of the rows keeps.
    pub fn quantile(&self, q: f64) -> f64 {
        let last = self.errors.len().saturating_sub(1);
        self.errors.get((q * last as f64).round() as usize).copied().unwrap_or(0.0)
    }

    /// By how much log-sum-exps are off: in mean, at most that of 99 of 100 rows, and of all.
    pub fn lse_off(&self) -> [f32; 3] {
        let Some(last) = self.off.len().checked_sub(1) else { return [0.0; 3] };
        [self.off.iter().sum::<f32>() / self.off.len() as f32, self.off[last * 99 / 100], self.off[last]]
    }

    /// Share of rows beyond an error.
    pub fn beyond(&self, error: f64) -> f64 {
        self.errors.iter().filter(|&&e| e > error).count() as f64 / self.errors.len().max(1) as f64
    }

    /// The error that the library has measured; NaN where it measured none.
    pub fn measured(&self) -> f64 {
        f64::from(self.stats.measured.mean())
    }
}

/// Measures one layer.
pub fn measure(layer: &Layer, settings: &Settings) -> Outcome {
    let plain = AttentionOptions { trusted: true, ..AttentionOptions::default() };
    let exact = AttentionOptions { mode: Mode::Exact, ..plain };
    let fast = AttentionOptions { mode: settings.mode, tolerance: settings.tolerance, ..plain };
    let mut out = vec![0.0; layer.q.len()];
    let rows = layer.rows - layer.first;
    let mut lse = [(); 2].map(|()| vec![0.0f32; layer.heads_q * rows]);
    let biases = settings.bias.map(|bias| bias.matrix(layer));
    let mask = mask(layer, biases.as_deref());
    let mut times = [Vec::new(), Vec::new()];
    let mut stats = None;
    for _ in 0..settings.rounds.max(1) {
        for ((options, times), lse) in [exact, fast].into_iter().zip(&mut times).zip(&mut lse) {
            let shape = [1, layer.heads_q, rows, 1];
            let lse = Some(TensorMut::new(lse, shape).expect("room for log-sum-exps"));
            let start = Instant::now();
            let problem = Problem { lse, ..problem(layer, mask, options, &mut out) };
            let said = attention(&problem, &system()).expect("attention of a layer");
            times.push(start.elapsed().as_secs_f64());
            stats = Some(said);
        }
    }
    let truth = Truth::new(layer, settings.samples, settings.bias);
    let mut errors = truth.errors(layer, &out);
    errors.sort_by(f64::total_cmp);
    let mut looked = truth.looked(layer);
    let mut watch = |head: usize, row: usize, scored: iceformer_core::attention::clustered::Scored<'_>| {
        truth.note(&mut looked, head, layer.first + row, scored);
    };
    let named = Mode::Exact != stats.map_or(Mode::Exact, |s| s.mode);
    if named {
        attention_watched(&problem(layer, mask, fast, &mut out), &mut watch, &system()).expect("attention of a layer");
    }
    let heavy = if named { truth.missed(&looked, if layer.causal { NEAR } else { 0 }) } else { (0, 0) };
    let seconds = times.map(|mut t| {
        t.sort_by(f64::total_cmp);
        t[t.len() / 2]
    });
    let stats = stats.unwrap_or_else(|| unreachable!("at least one round"));
    let [exact, fast] = &lse;
    let seen = exact.iter().zip(fast).enumerate().filter(|(i, _)| layer.first + i % rows >= layer.rows / 2);
    let mut off: Vec<f32> = seen.map(|(_, (a, b))| if a == b { 0.0 } else { (a - b).abs() }).collect();
    off.sort_by(f32::total_cmp);
    Outcome { layer: layer.number, seconds, stats, errors, heavy, off }
}

fn system() -> Memory {
    Memory::system(0).expect("memory without a limit")
}

fn mask<'a>(layer: &Layer, biases: Option<&'a [f16]>) -> Mask<'a> {
    let shape = [1, 1, layer.rows - layer.first, layer.rows];
    match biases {
        Some(biases) => Mask::Additive(Tensor::new(biases, shape).expect("biases of a layer")),
        None if layer.causal => Mask::Causal { q_pos0: layer.first as u64 },
        None => Mask::None,
    }
}

fn problem<'a>(layer: &'a Layer, mask: Mask<'a>, options: AttentionOptions, out: &'a mut [f32]) -> Problem<'a> {
    let (n, d) = (layer.rows, layer.dim);
    let tensor = |x: &'a [f32], heads, rows| Tensor::new(x, [1, heads, rows, d]).expect("a layer's tensor");
    let (q, k, v) = (
        tensor(&layer.q, layer.heads_q, n - layer.first),
        tensor(&layer.k, layer.heads_kv, n),
        tensor(&layer.v, layer.heads_kv, n),
    );
    let out = TensorMut::new(out, [1, layer.heads_q, n - layer.first, d]).expect("room for the output");
    Problem { q, k, v, out, lse: None, bounds: None, mask, options }
}
