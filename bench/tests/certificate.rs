//! On the heads that come with the examples every certified error is a bound, and verified attention keeps its tolerance.

use iceformer_bench::heads::{self, Layer};
use iceformer_core::attention::{AttentionOptions, AttentionStats, Mask, Mode, Problem, attention};
use iceformer_core::mem::{Memory, Tensor, TensorMut};

/// One row in so many is held against f64.
const EVERY: usize = 41;

fn attend(layer: &Layer, tolerance: f32, verified: bool) -> (Vec<f32>, Vec<f32>, AttentionStats) {
    let (n, d, heads) = (layer.rows, layer.dim, layer.heads_q);
    let (mut out, mut bounds) = (vec![0.0; heads * n * d], vec![f32::NAN; heads * n]);
    let tensor = |x, heads| Tensor::new(x, [1, heads, n, d]).unwrap();
    let problem = Problem {
        q: tensor(&layer.q, heads),
        k: tensor(&layer.k, layer.heads_kv),
        v: tensor(&layer.v, layer.heads_kv),
        out: TensorMut::new(&mut out, [1, heads, n, d]).unwrap(),
        lse: None,
        bounds: Some(TensorMut::new(&mut bounds, [1, heads, n, 1]).unwrap()),
        mask: if layer.causal { Mask::Causal { q_pos0: 0 } } else { Mask::None },
        options: AttentionOptions { mode: Mode::Accelerated, tolerance, verified, ..AttentionOptions::default() },
    };
    let stats = attention(&problem, &Memory::system(0).unwrap()).unwrap();
    (out, bounds, stats)
}

/// Relative error of a row against f64.
fn error(layer: &Layer, head: usize, row: usize, have: &[f32]) -> f64 {
    let d = layer.dim;
    let q = &layer.queries(head)[row * d..][..d];
    let seen = if layer.causal { row + 1 } else { layer.rows };
    let dot = |k: &[f32]| q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let logits: Vec<f64> = layer.keys(head).chunks(d).take(seen).map(|k| dot(k) / (d as f64).sqrt()).collect();
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|x| (x - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut want = vec![0.0; d];
    for (w, v) in weights.iter().zip(layer.values(head).chunks(d)) {
        want.iter_mut().zip(v).for_each(|(o, v)| *o += w / sum * f64::from(*v));
    }
    let wrong: f64 = want.iter().zip(have).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum();
    (wrong / want.iter().map(|x| x * x).sum::<f64>()).sqrt()
}

#[test]
fn certificates_hold_on_heads_of_trained_models() {
    let layers = heads::load(&heads::bundled(), usize::MAX).unwrap();
    let mut estimated = 0.0;
    for layer in &layers {
        for (tolerance, verified) in [(0.05, false), (0.05, true), (0.5, true)] {
            let (out, bounds, stats) = attend(layer, tolerance, verified);
            estimated += stats.estimated_mass;
            for head in 0..layer.heads_q {
                for row in (0..layer.rows).step_by(EVERY) {
                    let at = head * layer.rows + row;
                    let (error, bound) = (error(layer, head, row, &out[at * layer.dim..][..layer.dim]), bounds[at]);
                    let what = format!("layer {}, head {head}, row {row}", layer.number);
                    assert!(error <= f64::from(bound), "{what}: error {error:e}, certified {bound:e}");
                    assert!(!verified || bound <= tolerance, "{what}: certified {bound:e} of {tolerance}");
                }
            }
        }
    }
    assert!(estimated > 0.05, "something was estimated");
}
