//! The short form of the suite: heads of a pretrained model with attention sinks, which come with the repository, keep what
//! accelerated attention promises, and the error that it measures is the true one.

use iceformer_bench::heads::{self, Layer};
use iceformer_bench::suite::{Outcome, Settings, measure};
use iceformer_core::attention::Mode;

/// The default tolerance.
const TOLERANCE: f32 = 0.05;

/// Rows whose error is taken.
const SAMPLES: usize = 256;

/// Mean share of the weight that the first key has, over some rows of all heads.
fn sink(layer: &Layer) -> f64 {
    let (d, n) = (layer.dim, layer.rows - layer.first);
    let (mut sum, mut count) = (0.0, 0.0);
    for head in 0..layer.heads_q {
        for row in (n / 16..n).step_by(n / 8) {
            let q = &layer.queries(head)[row * d..][..d];
            let seen = layer.keys(head).chunks(d).take(layer.first + row + 1);
            let dot = |k: &[f32]| q.iter().zip(k).map(|(a, b)| f64::from(a * b)).sum::<f64>() / (d as f64).sqrt();
            let logits: Vec<f64> = seen.map(dot).collect();
            let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            sum += (logits[0] - top).exp() / logits.iter().map(|x| (x - top).exp()).sum::<f64>();
            count += 1.0;
        }
    }
    sum / count
}

fn hold(what: &str, o: &Outcome) {
    let (mean, p99, measured) = (o.mean(), o.quantile(0.99), o.measured());
    let (heavy, missed) = o.heavy;
    println!(
        "{what}: {:.2} times faster; error {:.2} %, p99 {:.2} %, worst {:.2} %, measured {:.2} %; {missed} of {heavy} heavy keys missed",
        o.seconds[0] / o.seconds[1],
        100.0 * mean,
        100.0 * p99,
        100.0 * o.quantile(1.0),
        100.0 * measured,
    );
    let tolerance = f64::from(TOLERANCE);
    assert!(o.stats.mode == Mode::Accelerated, "{what}: attended exactly");
    assert!(o.errors.len() == SAMPLES && mean > 0.0, "{what}: nothing was estimated");
    assert!(mean <= tolerance, "{what}: error {mean:.4}");
    assert!(p99 <= 3.0 * tolerance, "{what}: p99 {p99:.4}");
    assert!(heavy >= 200, "{what}: {heavy} heavy keys are too few to judge by");
    assert!(missed as f64 <= 0.03 * heavy as f64, "{what}: {missed} of {heavy} heavy keys missed");
    assert!(measured >= mean / 1.5 && measured <= mean * 1.5, "{what}: error {mean:.4}, measured {measured:.4}");
}

#[test]
fn heads_with_sinks_keep_the_tolerance() {
    let layers = heads::load_rows(&heads::sinks(), usize::MAX).expect("the bundled file is there");
    assert_eq!(layers.iter().map(|l| l.number).collect::<Vec<_>>(), [5, 20]);
    assert!(sink(&layers[1]) > 0.2, "layer 20 has a sink: {:.3}", sink(&layers[1]));
    for layer in &layers {
        for mode in [Mode::Auto, Mode::Accelerated] {
            let settings = Settings { tolerance: TOLERANCE, mode, samples: SAMPLES, rounds: 1, bias: None };
            hold(&format!("layer {}, {mode:?}", layer.number), &measure(layer, &settings));
        }
    }
}

#[test]
fn queries_of_the_last_rows_are_not_taken_for_a_whole_prompt() {
    let part = heads::load_rows(&heads::sinks(), usize::MAX).expect("the bundled file is there");
    let whole = heads::load(&heads::sinks(), usize::MAX);
    assert_eq!(whole.is_ok(), part.iter().all(|l| l.first == 0));
    for l in &part {
        assert_eq!(l.queries(l.heads_q - 1).len(), (l.rows - l.first) * l.dim);
    }
}
