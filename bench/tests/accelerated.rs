//! Accelerated attention on captured heads stays as accurate and as sparing as it was measured, with a quarter's slack.

use iceformer_bench::accelerated::{Outcome, Settings, Way, study};
use iceformer_bench::heads::{self, Layer};
use iceformer_bench::prefill::{Prefill, prefill};
use iceformer_core::attention::Mode;
use iceformer_core::attention::accelerated::Rule;
use std::path::Path;

fn all(layers: &[Layer], way: Way, samples: usize) -> Outcome {
    let mut all = Outcome::default();
    for layer in layers {
        all.add(&study(layer, &[way], &Settings { samples, rounds: 1, calibrate: false })[0]);
    }
    all
}

/// The rule for a tolerance as a call in accelerated mode follows it: tightened where a trial says so.
fn tried(tolerance: f32) -> Way {
    Way::Rule(Rule { error: tolerance, ..Rule::new(tolerance, false) })
}

/// Bounds on the mean layer error, the share of heavy keys missed, and the share of pairs scored.
fn hold(name: &str, layers: &[Layer], way: Way, samples: usize, [error, missed, pairs]: [f64; 3]) {
    let o = all(layers, way, samples);
    println!("{name}: error {:.4}, missed {} of {}, pairs {:.4}", o.mean(), o.missed, o.heavy, o.pairs_share());
    assert!(o.mean() <= error, "{name}: layer error {:.4}, at most {error}", o.mean());
    assert!(o.heavy > 0, "{name}: no heavy keys to find");
    assert!(o.missed_share() <= missed, "{name}: {} of {} heavy keys missed, at most {missed}", o.missed, o.heavy);
    assert!(o.pairs_share() <= pairs, "{name}: {:.4} of the pairs scored, at most {pairs}", o.pairs_share());
}

#[test]
fn plain_rule_on_bundled_heads() {
    let layers = heads::load(&heads::bundled(), usize::MAX).expect("the bundled file is there");
    // Where no row errs by more than is allowed, trying changes nothing.
    hold("bundled heads", &layers, Way::plain(0.05), 64, [0.0175, 0.005, 0.221]);
    hold("bundled heads, tried", &layers, tried(0.05), 64, [0.0175, 0.005, 0.221]);
}

#[test]
fn plain_rule_at_8k() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/qkv/ice-tiny-8k-f16.safetensors");
    if !path.exists() {
        println!("skipped: the 8k capture is not beside this checkout");
        return;
    }
    let layers = heads::load(&path, usize::MAX).expect("a readable capture");
    hold("8k capture", &layers, Way::plain(0.05), 64, [0.0173, 0.0071, 0.081]);
}

/// Layers of an encoder, on which the plain rule errs by more than is allowed.
#[test]
fn an_encoder_keeps_the_tolerance() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/qkv/minilm-encoder-8k-f16.safetensors");
    if !path.exists() {
        println!("skipped: the encoder's capture is not beside this checkout");
        return;
    }
    let layers = heads::load(&path, usize::MAX).expect("a readable capture");
    let plain = |layer: &Layer| all(std::slice::from_ref(layer), Way::plain(0.05), 32).mean();
    assert!(layers.iter().any(|layer| plain(layer) > 0.05), "nothing to be seen here");
    for layer in layers {
        hold(&format!("encoder, layer {}", layer.number), &[layer], tried(0.05), 32, [0.05, 0.0135, 0.077]);
    }
}

/// The values of noise cancel, so that no mean stands for them: nothing is left to cells.
#[test]
fn auto_leaves_noise_exact() {
    for rows in [2048, 4096] {
        let o = all(&heads::noise(rows), Way::Auto(0.05), 16);
        assert_eq!((o.pairs, o.cells), (o.pairs_dense, 0), "{rows} rows");
        assert!(o.mean() < 1e-5, "{rows} rows: {}", o.mean());
    }
}

/// A prompt in batches through a session, which is judged by what trials of the batches before found.
#[test]
fn prompts_in_batches_keep_the_tolerance() {
    let layers = heads::load(&heads::bundled(), usize::MAX).expect("the bundled file is there");
    let mut all = Prefill::default();
    for layer in &layers {
        all.add(&prefill(layer, Mode::Auto, 0.05, 512).expect("a session"));
    }
    let ([error, worst], pairs) = (all.error(), all.pairs[0] as f64 / all.pairs[1] as f64);
    println!("bundled heads in batches: error {error:.4}, p99 {worst:.4}, pairs {pairs:.4}");
    assert!(error > 0.0 && error <= 0.005, "error {error:.4}");
    // The first 2,048 rows are attended exactly.
    assert!(pairs <= 0.65, "pairs {pairs:.4}");
}
