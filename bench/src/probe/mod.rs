//! What accelerated attention is to one model on one text: speed and error of every layer, beside the exact forward pass.
//!
//! The prompt goes through the model in batches, as an inference engine feeds it, then single tokens. Exact sessions give the hidden
//! rows; beside each of them lies an accelerated session of every tolerance that gets the same queries, keys and values.

pub mod advice;
pub mod page;

use crate::model::run::{attend, session};
use crate::model::{Kind, Model, Result, Run};
use iceformer_core::attention::{AttentionOptions, AttentionStats, Mode, Session};
use iceformer_core::mem::Memory;
use std::time::Instant;

/// What is tried.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tolerances of accelerated attention.
    pub tolerances: Vec<f32>,
    /// Accelerated by name, or as the library chooses.
    pub mode: Mode,
    /// Tokens of the prompt; what follows comes one by one.
    pub prompt: usize,
}

/// One batch of a prompt in one layer.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Tokens until its end.
    pub end: usize,
    /// Seconds, exact and accelerated.
    pub seconds: [f64; 2],
}

/// One layer with one tolerance.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    /// The prompt.
    pub prompt: Vec<Batch>,
    /// Seconds of all single tokens, exact and accelerated.
    pub steps: [f64; 2],
    /// Pairs scored exactly and pairs visible, of the prompt.
    pub pairs: [u64; 2],
    /// Relative error of every accelerated row that sees 2,048 keys or more, all heads side by side, against exact attention.
    pub errors: Vec<f32>,
    /// Squared errors and squared outputs of these rows.
    pub squares: [f64; 2],
    /// Rows that the library measured, and their squared relative errors.
    pub measured: (u64, f64),
}

impl Layer {
    /// Seconds of the prompt, exact and accelerated.
    pub fn seconds(&self) -> [f64; 2] {
        self.prompt.iter().fold([0.0; 2], |a, b| [a[0] + b.seconds[0], a[1] + b.seconds[1]])
    }

    /// Root of the squared errors by the squared outputs.
    pub fn error(&self) -> f64 {
        if self.squares[1] > 0.0 { (self.squares[0] / self.squares[1]).sqrt() } else { 0.0 }
    }

    /// An error that so large a share of the rows keeps.
    pub fn quantile(&self, q: f64) -> f64 {
        let mut all = self.errors.clone();
        all.sort_by(f32::total_cmp);
        let last = all.len().saturating_sub(1);
        all.get((q * last as f64).round() as usize).map_or(0.0, |&e| e.into())
    }

    /// The error that the library measured; `None` where it measured nothing.
    pub fn measured_error(&self) -> Option<f64> {
        let (rows, squares) = self.measured;
        (rows > 0).then(|| (squares / rows as f64).sqrt())
    }

    fn count(&mut self, stats: &AttentionStats, prompt: bool) {
        if prompt {
            self.pairs = [self.pairs[0] + stats.pairs, self.pairs[1] + stats.pairs_dense];
        }
        let (rows, mean) = (stats.measured.rows(), f64::from(stats.measured.mean()));
        if rows > 0 {
            self.measured = (self.measured.0 + rows, self.measured.1 + rows as f64 * mean * mean);
        }
    }

    /// Errors of a batch whose first row sees `first` keys.
    fn compare(&mut self, [heads, rows, dim]: [usize; 3], first: usize, exact: &[f32], fast: &[f32]) {
        for row in (0..rows).filter(|row| first + row >= LONG) {
            let (mut wrong, mut all) = (0.0, 0.0);
            for at in (0..heads).map(|head| (head * rows + row) * dim) {
                for (&x, &y) in exact[at..at + dim].iter().zip(&fast[at..at + dim]) {
                    wrong += f64::from(x - y).powi(2);
                    all += f64::from(x).powi(2);
                }
            }
            self.squares = [self.squares[0] + wrong, self.squares[1] + all];
            self.errors.push((wrong / all.max(f64::MIN_POSITIVE)).sqrt() as f32);
        }
    }
}

/// Keys from which on the library considers accelerated attention.
const LONG: usize = 2048;

/// All layers with one tolerance.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Relative error that was accepted.
    pub tolerance: f32,
    /// In order.
    pub layers: Vec<Layer>,
}

/// Runs the tokens through the model; `each` is told how many are done.
///
/// # Errors
/// What the sessions answer.
pub fn measure(
    model: &Model,
    tokens: &[u32],
    kind: &Kind,
    settings: &Settings,
    mut each: impl FnMut(usize),
) -> Result<Vec<Outcome>> {
    let s = model.weights.shape;
    let exact = Kind { attention: AttentionOptions { mode: Mode::Exact, ..kind.attention }, exact_layers: 0, ..*kind };
    let mut run = Run::new(&model.weights, tokens.len(), &exact)?;
    let works: Vec<Memory> = (0..kind.threads.max(1)).map(|_| Ok(Memory::system(0)?)).collect::<Result<_>>()?;
    let beside = |&tolerance: &f32| -> Result<Vec<Session>> {
        let options = AttentionOptions { mode: settings.mode, tolerance, ..kind.attention };
        (0..s.layers).map(|_| session(&s, tokens.len(), kind.kv, options)).collect()
    };
    let mut sessions = settings.tolerances.iter().map(beside).collect::<Result<Vec<_>>>()?;
    let empty = |&tolerance: &f32| Outcome { tolerance, layers: vec![Layer::default(); s.layers] };
    let mut all: Vec<Outcome> = settings.tolerances.iter().map(empty).collect();
    let (prompt, steps) = tokens.split_at(settings.prompt.min(tokens.len()));
    let mut out = Vec::new();
    for chunk in prompt.chunks(kind.chunk.max(1)).chain(steps.chunks(1)) {
        let end = run.len() + chunk.len();
        let in_prompt = end <= prompt.len();
        run.step(chunk, &mut |seen| {
            for (outcome, sessions) in all.iter_mut().zip(&mut sessions) {
                let layer = &mut outcome.layers[seen.layer];
                out.resize(seen.out.len(), 0.0);
                let start = Instant::now();
                let stats = attend(&mut sessions[seen.layer], &works, &s, [seen.q, seen.k, seen.v], &mut out)?;
                let seconds = [seen.seconds, start.elapsed().as_secs_f64()];
                stats.iter().for_each(|stats| layer.count(stats, in_prompt));
                layer.compare([s.heads_q, chunk.len(), s.dim], seen.begin + 1, seen.out, &out);
                if in_prompt {
                    layer.prompt.push(Batch { end, seconds });
                } else {
                    layer.steps = [layer.steps[0] + seconds[0], layer.steps[1] + seconds[1]];
                }
            }
            Ok(())
        })?;
        each(end);
    }
    Ok(all)
}
