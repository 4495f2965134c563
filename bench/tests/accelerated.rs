//! Accelerated attention on captured heads stays as accurate and as sparing as it was measured, with a quarter's slack.

use iceformer_bench::accelerated::{Outcome, Settings, Way, study};
use iceformer_bench::heads::{self, Layer};
use std::path::Path;

fn all(layers: &[Layer], way: Way, samples: usize) -> Outcome {
    let mut all = Outcome::default();
    for layer in layers {
        all.add(&study(layer, &[way], &Settings { samples, rounds: 1, calibrate: false })[0]);
    }
    all
}

/// Bounds on the mean layer error, the share of heavy keys missed, and the share of pairs scored.
fn hold(name: &str, layers: &[Layer], samples: usize, [error, missed, pairs]: [f64; 3]) {
    let o = all(layers, Way::plain(0.05), samples);
    println!("{name}: error {:.4}, missed {} of {}, pairs {:.4}", o.mean(), o.missed, o.heavy, o.pairs_share());
    assert!(o.mean() <= error, "{name}: layer error {:.4}, at most {error}", o.mean());
    assert!(o.heavy > 0, "{name}: no heavy keys to find");
    assert!(o.missed_share() <= missed, "{name}: {} of {} heavy keys missed, at most {missed}", o.missed, o.heavy);
    assert!(o.pairs_share() <= pairs, "{name}: {:.4} of the pairs scored, at most {pairs}", o.pairs_share());
}

#[test]
fn plain_rule_on_bundled_heads() {
    let layers = heads::load(&heads::bundled(), usize::MAX).expect("the bundled file is there");
    hold("bundled heads", &layers, 64, [0.049, 0.005, 0.36]);
}

#[test]
fn plain_rule_at_8k() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/qkv/ice-tiny-8k-f16.safetensors");
    if !path.exists() {
        println!("skipped: the 8k capture is not beside this checkout");
        return;
    }
    hold("8k capture", &heads::load(&path, usize::MAX).expect("a readable capture"), 64, [0.0283, 0.0162, 0.104]);
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
