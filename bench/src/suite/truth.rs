//! Sampled rows in f64: outputs, and the keys that weigh much.

use super::bias::Bias;
use crate::heads::Layer;
use iceformer_core::attention::clustered::Scored;
use iceformer_core::math::hash;

/// True weight from which on a key counts as heavy.
pub const HEAVY: f64 = 0.01;

/// Which rows are looked at.
const SEED: u64 = 0x7207;

/// One row of a head: its output and its heavy keys.
struct Row {
    output: Vec<f64>,
    heavy: Vec<usize>,
}

/// Rows of a layer's second half, or of those of it that have queries, all heads each.
pub struct Truth {
    /// Which rows.
    pub rows: Vec<usize>,
    of: Vec<Vec<Row>>,
}

/// Keys that were looked at, by row and head.
pub struct Looked {
    exact: Vec<bool>,
    seen: Vec<Vec<bool>>,
    heads: usize,
}

impl Truth {
    /// `samples` rows, one anywhere in each of as many stretches: evenly spaced ones may be those that the library attends exactly.
    pub fn new(layer: &Layer, samples: usize, bias: Option<Bias>) -> Truth {
        let (n, heads) = (layer.rows, layer.heads_q);
        let from = layer.first.max(n / 2);
        let samples = samples.min(n - from);
        let edge = |i: usize| from + i * (n - from) / samples;
        let any = |i: usize| edge(i) + (hash(SEED, i as u64) % (edge(i + 1) - edge(i)) as u64) as usize;
        let rows: Vec<usize> = (0..samples).map(any).collect();
        let of = rows.iter().map(|&row| (0..heads).map(|head| attend(layer, head, row, bias)).collect()).collect();
        Truth { rows, of }
    }

    /// Relative L2 errors, all heads of a row side by side.
    pub fn errors(&self, layer: &Layer, out: &[f32]) -> Vec<f64> {
        let (n, d) = (layer.rows - layer.first, layer.dim);
        let error = |(&row, of): (&usize, &Vec<Row>)| {
            let (mut wrong, mut norm) = (0.0, 0.0);
            for (head, want) in of.iter().enumerate() {
                let have = &out[(head * n + row - layer.first) * d..][..d];
                wrong += want.output.iter().zip(have).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum::<f64>();
                norm += want.output.iter().map(|a| a * a).sum::<f64>();
            }
            (wrong / norm.max(1e-300)).sqrt()
        };
        self.rows.iter().zip(&self.of).map(error).collect()
    }

    /// Nothing looked at yet.
    pub fn looked(&self, layer: &Layer) -> Looked {
        let n = self.rows.len() * layer.heads_q;
        Looked { exact: vec![false; n], seen: vec![vec![false; layer.rows]; n], heads: layer.heads_q }
    }

    /// Notes what a row of a head has scored exactly.
    pub fn note(&self, looked: &mut Looked, head: usize, row: usize, scored: Scored<'_>) {
        let Ok(i) = self.rows.binary_search(&row) else { return };
        let at = i * looked.heads + head;
        match scored {
            Scored::All => looked.exact[at] = true,
            Scored::Keys(keys) => keys.iter().for_each(|&key| looked.seen[at][key as usize] = true),
        }
    }

    /// Heavy keys of rows that were not attended exactly, farther away than `near` rows, and those not looked at.
    pub fn missed(&self, looked: &Looked, near: usize) -> (usize, usize) {
        let (mut heavy, mut missed) = (0, 0);
        for (i, row) in self.of.iter().flatten().enumerate() {
            if looked.exact[i] {
                continue;
            }
            let end = self.rows[i / looked.heads].saturating_sub(near);
            for &key in row.heavy.iter().filter(|&&key| key < end) {
                heavy += 1;
                missed += usize::from(!looked.seen[i][key]);
            }
        }
        (heavy, missed)
    }
}

fn attend(layer: &Layer, head: usize, row: usize, bias: Option<Bias>) -> Row {
    let (n, d) = (layer.rows, layer.dim);
    let scale = 1.0 / (d as f64).sqrt();
    let q = &layer.queries(head)[(row - layer.first) * d..][..d];
    let visible = if layer.causal { row + 1 } else { n };
    let dot = |k: &[f32]| q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let more = |j: usize| bias.map_or(0.0, |bias| bias.at(row.abs_diff(j)).to_f64());
    let logits = layer.keys(head).chunks(d).take(visible).enumerate().map(|(j, k)| scale * dot(k) + more(j));
    let logits: Vec<f64> = logits.collect();
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|x| (x - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut output = vec![0.0; d];
    for (w, v) in weights.iter().zip(layer.values(head).chunks(d)) {
        output.iter_mut().zip(v).for_each(|(o, v)| *o += w / sum * f64::from(*v));
    }
    let heavy = (0..visible).filter(|&j| weights[j] >= HEAVY * sum).collect();
    Row { output, heavy }
}
