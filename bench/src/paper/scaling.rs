//! Scaling: attention time and line-retrieval accuracy of a small model against the length of the prompt; which layers are
//! sparse.

use super::report::{Part, table};
use crate::model::needles::{self, Outcome};
use crate::model::text::{Prompt, spread};
use crate::model::{Choice, Kind, Model, Result, Run, modes};
use crate::plot::{Axis, Chart, Scale, Series};
use iceformer_core::attention::{AttentionOptions, Mask, Mode, Problem, sparsity, top_k_for};
use iceformer_core::mem::{Memory, Tensor, TensorMut};
use serde_json::{Value, json};

/// How sparse the heads of a model are on one prompt.
#[derive(Clone, Debug)]
pub struct Sparsity {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Heaviest keys counted: the paper's k for that length.
    pub k: usize,
    /// Mean share of the softmax mass on them, by layer and query head.
    pub mass: Vec<Vec<f32>>,
}

impl Sparsity {
    /// Layers, the sparsest first.
    pub fn order(&self) -> Vec<usize> {
        let mean = |l: &usize| self.mass[*l].iter().sum::<f32>() / self.mass[*l].len() as f32;
        let mut order: Vec<usize> = (0..self.mass.len()).collect();
        order.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        order
    }

    /// Bits of the diffuse half of the layers: the paper leaves these exact.
    pub fn diffuse_half(&self) -> u64 {
        let order = self.order();
        order[order.len().div_ceil(2)..].iter().fold(0, |bits, l| bits | 1 << l)
    }
}

/// Probes every layer on one prompt, run exactly.
///
/// # Errors
/// What the sessions answer.
pub fn probe(model: &Model, kind: &Kind, prompt: &Prompt) -> Result<Sparsity> {
    let mut tokens = model.tokenizer.start();
    tokens.extend(model.tokenizer.encode(&prompt.text));
    let (n, shape) = (tokens.len(), model.weights.shape);
    let k = top_k_for(n, 0.005);
    let exact = AttentionOptions { mode: Mode::Exact, ..kind.attention };
    let mut run = Run::new(&model.weights, n, &Kind { attention: exact, ..*kind })?;
    let mut mass = Vec::new();
    // The whole prompt in one step, so that a tap sees the whole layer.
    run.step(&tokens, &mut |seen| {
        let tensor = |x, heads| Tensor::new(x, [1, heads, n, shape.dim]);
        let mut out = vec![0.0; seen.q.len()];
        let problem = Problem {
            q: tensor(seen.q, shape.heads_q)?,
            k: tensor(seen.k, shape.heads_kv)?,
            v: tensor(seen.v, shape.heads_kv)?,
            out: TensorMut::new(&mut out, [1, shape.heads_q, n, shape.dim])?,
            lse: None,
            bounds: None,
            mask: Mask::Causal { q_pos0: 0 },
            options: exact,
        };
        let mut of = vec![0.0; shape.heads_q];
        sparsity(&problem, k, 64, &mut of, &Memory::system(0)?)?;
        mass.push(of);
        Ok(())
    })?;
    Ok(Sparsity { tokens: n, k, mass })
}

/// Prompts of one length under every choice.
pub struct Length {
    /// Mean tokens of the prompts.
    pub tokens: usize,
    /// Prompts.
    pub prompts: usize,
    /// In the order of [`choices`].
    pub outcomes: Vec<Outcome>,
}

/// Exact; accelerated in every layer; accelerated in the sparser half of the layers, as the paper does.
///
/// # Errors
/// Options that are wrong.
pub fn choices(model: &Model, kind: &Kind, tolerance: f32, found: &Sparsity) -> Result<Vec<Choice>> {
    let mut all = modes::choices(&model.weights, kind, &[tolerance])?;
    if let Some(every) = all.get(1).cloned() {
        let name = format!("{}, sparser half", every.name);
        let kind = Kind { exact_layers: found.diffuse_half(), ..every.kind };
        all[1].name += ", every layer";
        all.push(Choice { name, kind });
    }
    Ok(all)
}

/// Runs up to `most` prompts of one length, evenly spread.
///
/// # Errors
/// What the sessions answer.
pub fn measure(model: &Model, choices: &[Choice], prompts: &[Prompt], most: usize) -> Result<Length> {
    let prompts = spread(prompts, most);
    let tokens = prompts.iter().map(|p| p.tokens).sum::<usize>() / prompts.len().max(1);
    let outcomes = needles::measure(model, choices, &prompts, |_| ())?;
    Ok(Length { tokens, prompts: prompts.len(), outcomes })
}

/// The part of the report.
///
/// # Errors
/// Of drawing.
pub fn part(model: &str, found: &Sparsity, choices: &[Choice], lengths: &[Length]) -> Result<Part> {
    let mut text = format!(
        "# Scaling\n\nLine-retrieval prompts through {model}, attention in sessions (f16 keys and values), one thread, \
         choices taking turns. Attention: processor seconds of all layers and a whole prompt, its answer included. \
         Scored: share of the visible query-key pairs computed exactly.\n\n"
    );
    text += &table(
        &["tokens", "attention", "right", "same as exact", "attention, s", "exact / this", "scored"],
        lengths.iter().flat_map(|l| {
            choices.iter().zip(&l.outcomes).map(|(c, o)| {
                let seconds = |o: &Outcome| o.tally.processor / l.prompts.max(1) as f64;
                vec![
                    l.tokens.to_string(),
                    c.name.clone(),
                    format!("{} of {}", o.right, l.prompts),
                    o.agreement(&l.outcomes[0]).to_string(),
                    format!("{:.3}", seconds(o)),
                    format!("{:.2}", seconds(&l.outcomes[0]) / seconds(o)),
                    format!("{:.1}%", o.tally.opened() * 100.0),
                ]
            })
        }),
    );
    text += &format!(
        "\n\n## Which layers are sparse\n\nMean share of the softmax mass on the {} heaviest keys of a row (the paper's k \
         at this length), on one prompt of {} tokens, 64 rows of each head. The sparser half is what \"sparser half\" \
         accelerates.\n\n",
        found.k, found.tokens
    );
    let diffuse = found.diffuse_half();
    text += &table(
        &["layer", "by head", "mean", "half"],
        found.mass.iter().enumerate().map(|(l, of)| {
            let mean = of.iter().sum::<f32>() / of.len() as f32;
            let heads: Vec<String> = of.iter().map(|x| format!("{:.0}%", x * 100.0)).collect();
            let half = if diffuse >> l & 1 == 0 { "sparser" } else { "diffuse" };
            vec![l.to_string(), heads.join(" "), format!("{:.0}%", mean * 100.0), half.into()]
        }),
    );
    text += "\n";
    let series = |of: &dyn Fn(&Length, &Outcome) -> f64| -> Vec<Series> {
        let line = |(i, c): (usize, &Choice)| {
            let points = lengths.iter().map(|l| (l.tokens as f64, of(l, &l.outcomes[i]))).collect();
            Series { name: c.name.clone(), points }
        };
        choices.iter().enumerate().map(line).collect()
    };
    let across = || Axis::new("tokens of the prompt", Scale::Log2);
    let time = Chart::new(
        "Attention of a prompt, one thread",
        across(),
        Axis::new("seconds", Scale::Log10),
        series(&|l, o| o.tally.processor / l.prompts.max(1) as f64),
    );
    let accuracy = Chart::new(
        "Line retrieval",
        across(),
        Axis { range: Some((0.0, 1.05)), ..Axis::new("share of answers that are right", Scale::Linear) },
        series(&|l, o| o.right as f64 / l.prompts.max(1) as f64),
    );
    let accuracy = Chart { names_at: plotters::prelude::SeriesLabelPosition::LowerLeft, ..accuracy };
    let drawings = vec![("scaling-time".into(), time.svg()?), ("scaling-accuracy".into(), accuracy.svg()?)];
    let json = json!({
        "model": model,
        "sparsity": { "tokens": found.tokens, "k": found.k, "mass": found.mass },
        "lengths": lengths.iter().map(|l| to_json(choices, l)).collect::<Vec<_>>(),
    });
    Ok(Part { name: "scaling", markdown: text, json, drawings })
}

fn to_json(choices: &[Choice], l: &Length) -> Value {
    let of: Vec<Value> = choices
        .iter()
        .zip(&l.outcomes)
        .map(|(c, o)| {
            json!({
                "choice": c.name, "right": o.right, "same_as_exact": o.agreement(&l.outcomes[0]),
                "attention_seconds": o.tally.processor, "attention_wall_seconds": o.tally.attention, "total_seconds": o.tally.total, "scored": o.tally.opened(),
            })
        })
        .collect();
    json!({ "tokens": l.tokens, "prompts": l.prompts, "choices": of })
}
