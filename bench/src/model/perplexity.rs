//! Perplexity of a text, all choices side by side, and how far each is from the first.

use super::dense::{largest, log_softmax};
use super::{Choice, Model, Result, Run, Tally};

/// What one choice gave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    nats: f64,
    late_nats: f64,
    divergence: f64,
    same: usize,
    tokens: usize,
    late: usize,
    /// Attention over the text.
    pub tally: Tally,
}

impl Outcome {
    /// Perplexity of all tokens after the first.
    pub fn all(&self) -> f64 {
        (self.nats / self.tokens.max(1) as f64).exp()
    }

    /// Perplexity of the second half, where the context is long.
    pub fn second_half(&self) -> f64 {
        (self.late_nats / self.late.max(1) as f64).exp()
    }

    /// Mean Kullback-Leibler divergence of the next token's distribution from the first choice's, in nats.
    pub fn divergence(&self) -> f64 {
        self.divergence / self.tokens.max(1) as f64
    }

    /// Share of positions at which the likeliest token is the first choice's.
    pub fn same(&self) -> f64 {
        self.same as f64 / self.tokens.max(1) as f64
    }
}

/// Runs every choice on the tokens, chunk by chunk, taking turns; `each` is told how many tokens are done.
///
/// # Errors
/// What the sessions answer.
pub fn measure(model: &Model, choices: &[Choice], tokens: &[u32], mut each: impl FnMut(usize)) -> Result<Vec<Outcome>> {
    let (vocab, half) = (model.weights.shape.vocab, tokens.len() / 2);
    let new = |c: &Choice| Run::new(&model.weights, tokens.len(), &c.kind);
    let mut runs = choices.iter().map(new).collect::<Result<Vec<_>>>()?;
    let mut all = vec![Outcome::default(); choices.len()];
    let chunk = choices.first().map_or(1, |c| c.kind.chunk.max(1));
    for (i, part) in tokens.chunks(chunk).enumerate() {
        let mut first: Vec<(Vec<f64>, usize)> = Vec::new();
        for (c, (run, o)) in runs.iter_mut().zip(&mut all).enumerate() {
            let hidden = run.step(part, &mut |_| Ok(()))?;
            let logits = run.logits(&hidden);
            for (r, row) in logits.chunks(vocab).enumerate() {
                let at = i * chunk + r;
                let Some(&next) = tokens.get(at + 1) else { break };
                let (logs, top) = (log_softmax(row), largest(row));
                o.nats -= logs[next as usize];
                o.tokens += 1;
                if at >= half {
                    o.late_nats -= logs[next as usize];
                    o.late += 1;
                }
                if let Some((p, best)) = first.get(r).filter(|_| c > 0) {
                    o.divergence += p.iter().zip(&logs).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
                    o.same += usize::from(top == *best);
                } else {
                    o.same += 1;
                    first.push((logs, top));
                }
            }
        }
        each((i * chunk + part.len()).min(tokens.len()));
    }
    for (o, run) in all.iter_mut().zip(&runs) {
        o.tally = run.tally;
    }
    Ok(all)
}
