//! The probe, on a random model that the test writes, and on a trained one where it lies beside the checkout.

#[path = "model/tiny.rs"]
#[allow(dead_code)]
mod tiny;

use iceformer_bench::model::{Kind, Model, default_model};
use iceformer_bench::probe::advice::{Quality, choose, layers, lost_after, whole};
use iceformer_bench::probe::{Batch, Layer, Outcome, Settings, measure, page};
use iceformer_core::attention::{AttentionOptions, Mode};
use iceformer_core::mem::Dtype;
use std::path::PathBuf;
use tiny::Tiny;

const PROMPT: usize = 3072;
const STEPS: usize = 8;

fn kind() -> Kind {
    Kind { attention: AttentionOptions::default(), kv: Dtype::F16, threads: 1, chunk: 512, exact_layers: 0 }
}

fn probe(model: &Model, mode: Mode, tolerances: &[f32]) -> Vec<Outcome> {
    let text: String =
        (0..).map(|i| format!("the inner line {} is in the tin\n", i * 7919 % 1000)).take(4000).collect();
    let mut tokens = model.tokenizer.start();
    tokens.extend(model.tokenizer.encode(&text));
    tokens.truncate(PROMPT + STEPS);
    assert_eq!(tokens.len(), PROMPT + STEPS);
    let settings = Settings { tolerances: tolerances.to_vec(), mode, prompt: PROMPT };
    let mut done = 0;
    let outcomes = measure(model, &tokens, &kind(), &settings, |now| done = now).expect("a probe");
    assert_eq!(done, tokens.len());
    for (o, &tolerance) in outcomes.iter().zip(tolerances) {
        assert_eq!((o.tolerance, o.layers.len()), (tolerance, model.weights.shape.layers));
        for layer in &o.layers {
            assert_eq!(layer.prompt.iter().map(|b| b.end).collect::<Vec<_>>(), [512, 1024, 1536, 2048, 2560, 3072]);
            assert!(
                layer.prompt.iter().flat_map(|b| b.seconds).all(|s| s > 0.0) && layer.steps.iter().all(|&s| s > 0.0)
            );
            // Every row that sees 2,048 keys or more.
            assert_eq!(layer.errors.len(), PROMPT + STEPS - 2047);
            assert!(layer.pairs[0] > 0 && layer.pairs[0] <= layer.pairs[1]);
            let visible = (PROMPT * (PROMPT + 1) / 2 * model.weights.shape.heads_q) as u64;
            assert_eq!(layer.pairs[1], visible);
        }
    }
    outcomes
}

fn about(shape: [usize; 4], steps: usize) -> page::About {
    page::About {
        model: "tiny.gguf".into(),
        texts: "lines".into(),
        shape,
        tokens: [PROMPT, 512, steps],
        kv: "f16".into(),
        isa: "any".into(),
        threads: 1,
    }
}

/// A line for every layer, the settings, and charts of every tolerance.
fn read(model: &Model, outcomes: &[Outcome]) {
    let s = model.weights.shape;
    let about = about([s.layers, s.heads_q, s.heads_kv, s.dim], STEPS);
    let quality = vec![Quality { perplexity: [10.0, 10.05], divergence: 0.001, same: 0.99 }; outcomes.len()];
    let text = page::markdown(&about, outcomes, &quality, ["a.svg", "b.svg"]);
    println!("{text}");
    for l in 0..s.layers {
        assert_eq!(text.lines().filter(|line| line.starts_with(&format!("| {l} | "))).count(), 1, "layer {l}");
    }
    assert!(text.contains("ICE_TOLERANCE=") && text.contains("+0.50 %") && text.contains("(a.svg)"));
    assert_eq!(text.contains("Exact attention, `ICE_TOLERANCE=0`"), outcomes.iter().all(|o| layers(o).is_empty()));
    let lost = |o: &Outcome| lost_after(whole(o, &layers(o)), STEPS);
    let warned = choose(outcomes, &quality).is_some_and(|i| lost(&outcomes[i]).is_some());
    assert_eq!(text.contains("**Warning: single tokens lose"), warned);
    for chart in page::charts(outcomes).expect("charts") {
        assert!(outcomes.iter().all(|o| chart.contains(&format!("tolerance {}", o.tolerance))));
    }
}

#[test]
fn a_warning_where_single_tokens_lose() {
    // The prompt saves 2 s, a token loses 0.05 or 0.005 s.
    let page = |steps: usize, seconds: f64| {
        let prompt = vec![Batch { end: PROMPT, seconds: [4.0, 2.0] }];
        let layer = Layer { prompt, steps: [1.0, seconds], squares: [0.0009, 1.0], ..Layer::default() };
        page::markdown(
            &about([1, 1, 1, 8], steps),
            &[Outcome { tolerance: 0.05, layers: vec![layer] }],
            &[],
            ["a", "b"],
        )
    };
    let (few, many, none) = (page(10, 1.5), page(1000, 6.0), page(10, 0.5));
    assert!(few.contains("**Warning: single tokens lose at this length.** After 40 of them"), "{few}");
    assert!(few.contains("set `ICE_TOLERANCE=0`") && few.contains("`--steps 256`"));
    assert!(many.contains("After 400 of them") && !many.contains("--steps"), "{many}");
    assert!(none.contains("`ICE_TOLERANCE=0.05`") && !none.contains("Warning"), "{none}");
}

#[test]
fn a_random_model() {
    let file = std::env::temp_dir().join(format!("iceformer-probe-{}.gguf", std::process::id()));
    std::fs::write(&file, Tiny::new(5).bytes()).expect("a writable folder");
    let model = Model::load(&file);
    std::fs::remove_file(&file).ok();
    let model = model.expect("a model");
    let outcomes = probe(&model, Mode::Accelerated, &[0.05, 0.0005]);
    for layer in &outcomes[0].layers {
        // Rows were measured, and what was measured is what the rows err by.
        let (said, error) = (layer.measured_error().expect("measured rows"), layer.error());
        assert!(error > 0.0 && error < 0.2 && said < 0.2, "{error}, measured {said}");
        assert!(layer.quantile(0.5) <= layer.quantile(0.99));
    }
    // Below 0.001 attention is exact.
    assert!(outcomes[1].layers.iter().all(|l| l.error() < 1e-5 && l.pairs[0] == l.pairs[1] && l.measured.0 == 0));
    read(&model, &outcomes);
}

#[test]
fn a_trained_model() {
    let path: PathBuf = default_model();
    if !path.exists() {
        println!("skipped: no model beside this checkout");
        return;
    }
    let model = Model::load(&path).expect("a model");
    let outcomes = probe(&model, Mode::Auto, &[0.05]);
    assert!(outcomes[0].layers.iter().all(|l| l.error() < 0.15));
    read(&model, &outcomes);
}
