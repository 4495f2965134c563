//! Sampled rows in f64: outputs, and the keys that weigh much.

use super::{options, problem, system};
use crate::heads::Layer;
use iceformer_core::attention::accelerated::{Rule, Watch};
use iceformer_core::attention::{Mode, attention_by_rule};
use iceformer_core::cells::SEGMENT;

/// True weight from which on a key counts as heavy.
const HEAVY: f64 = 0.01;

/// Rows that the library may attend together: keys of a block's own rows are scored densely, so they say nothing.
const TOGETHER: usize = 512;

/// The output of one row of a head, and its heavy keys that cells cover.
type Attended = (Vec<f64>, Vec<usize>);

pub(super) struct Truth {
    rows: Vec<usize>,
    /// By row, then head.
    of: Vec<Vec<Attended>>,
}

impl Truth {
    /// `samples` rows of the second half.
    pub(super) fn new(layer: &Layer, samples: usize) -> Truth {
        let (n, heads) = (layer.rows, layer.heads_q);
        let rows: Vec<usize> = (0..samples).map(|i| n / 2 + (2 * i + 1) * (n - n / 2) / (2 * samples)).collect();
        let of = rows.iter().map(|&row| (0..heads).map(|head| attend(layer, head, row)).collect()).collect();
        Truth { rows, of }
    }

    /// Relative L2 errors, all heads of a row side by side.
    pub(super) fn errors(&self, layer: &Layer, out: &[f32]) -> Vec<f64> {
        let (n, d) = (layer.rows, layer.dim);
        let error = |(&row, of): (&usize, &Vec<Attended>)| {
            let (mut wrong, mut norm) = (0.0, 0.0);
            for (head, (want, _)) in of.iter().enumerate() {
                let have = &out[(head * n + row) * d..][..d];
                wrong += want.iter().zip(have).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum::<f64>();
                norm += want.iter().map(|a| a * a).sum::<f64>();
            }
            (wrong / norm.max(1e-300)).sqrt()
        };
        self.rows.iter().zip(&self.of).map(error).collect()
    }

    /// Heavy keys, and those not scored exactly under a rule.
    pub(super) fn missed(&self, layer: &Layer, rule: &Rule) -> (usize, usize) {
        let mut out = vec![0.0; layer.q.len()];
        let p = problem(layer, options(Mode::Accelerated, 0.05), &mut out);
        self.missed_by(layer, |watch| {
            attention_by_rule(&p, rule, Some(watch), &system()).expect("attention of a layer");
        })
    }

    /// The same of any way that names what it scores exactly.
    pub(super) fn missed_by(&self, layer: &Layer, run: impl FnOnce(Watch<'_>)) -> (usize, usize) {
        let (n, heads) = (layer.rows, layer.heads_q);
        let mut at = vec![None; n];
        self.rows.iter().enumerate().for_each(|(i, &row)| at[row] = Some(i));
        let mut seen = vec![vec![false; n]; self.rows.len() * heads];
        let mut watch = |head: usize, row: usize, ids: &[u32]| {
            if let Some(i) = at[row] {
                ids.iter().for_each(|&j| seen[i * heads + head][j as usize] = true);
            }
        };
        run(&mut watch);
        let keys = self.of.iter().flatten().zip(&seen);
        let heavy = keys.clone().map(|((_, keys), _)| keys.len()).sum();
        let missed = keys.map(|((_, keys), seen)| keys.iter().filter(|&&j| !seen[j]).count()).sum();
        (heavy, missed)
    }
}

/// One row of a head in full; keys count as covered that are certainly in cells.
fn attend(layer: &Layer, head: usize, row: usize) -> Attended {
    let (n, d) = (layer.rows, layer.dim);
    let scale = 1.0 / (d as f64).sqrt();
    let q = &layer.queries(head)[row * d..][..d];
    let visible = if layer.causal { row + 1 } else { n };
    let dot = |k: &[f32]| q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let mut logits: Vec<f64> = layer.keys(head).chunks(d).take(visible).map(|k| scale * dot(k)).collect();
    if let Some(bias) = &layer.bias {
        logits.iter_mut().zip(bias.row(head, row)).for_each(|(x, bias)| *x += bias);
    }
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|x| (x - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; d];
    for (w, v) in weights.iter().zip(layer.values(head).chunks(d)) {
        out.iter_mut().zip(v).for_each(|(o, v)| *o += w / sum * f64::from(*v));
    }
    let covered = if layer.causal { row.saturating_sub(TOGETHER - 1) } else { n };
    let covered = covered / SEGMENT * SEGMENT;
    let heavy = (0..covered).filter(|&j| weights[j] >= HEAVY * sum).collect();
    (out, heavy)
}
