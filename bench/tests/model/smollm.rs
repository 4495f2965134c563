//! A model that others have trained, where it is there: `bench/real_model.sh` fetches it, `ICE_REAL_MODEL` names another place.
//!
//! Recorded figures are of a NumPy program of its own on the same file, SmolLM2-135M-Instruct in Q4_1.

use crate::exact;
use iceformer_bench::model::rope::Scaling;
use iceformer_bench::model::{Choice, Model, Run, perplexity};
use iceformer_core::mem::Dtype;
use std::path::{Path, PathBuf};

const SNIPPET: &str = include_str!("snippet.txt");

fn found() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("ICE_REAL_MODEL") {
        return Some(path.into());
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/models");
    let files = std::fs::read_dir(folder).ok()?.filter_map(|e| Some(e.ok()?.path()));
    files.filter(|p| p.extension().is_some_and(|e| e == "gguf")).min()
}

#[test]
fn figures_of_a_real_model() {
    let Some(path) = found().filter(|p| p.exists()) else {
        println!("skipped: no model in target/models (bench/real_model.sh) and none named by ICE_REAL_MODEL");
        return;
    };
    let mut model = Model::load(&path).expect("a readable model");
    let smollm = path.file_name().is_some_and(|n| n == "SmolLM2-135M-Instruct.Q4_1.gguf");

    let mut tokens = model.tokenizer.start();
    tokens.extend(model.tokenizer.encode("The capital of France is"));
    let mut run = Run::new(&model.weights, tokens.len(), &exact(Dtype::F32, 512, 1)).expect("a run");
    let hidden = run.step(&tokens, &mut |_| Ok(())).expect("tokens of the vocabulary");
    let last = run.logits(&hidden[hidden.len() - model.weights.shape.width..]);
    assert!(last.iter().all(|x| x.is_finite()));
    assert_eq!(model.tokenizer.decode(&model.tokenizer.encode(SNIPPET)), SNIPPET);

    let mut text = |scaling| {
        let rope = model.weights.rope.clone();
        model.weights.rope = rope.scaled(scaling).expect("a factor");
        let mut tokens = model.tokenizer.start();
        tokens.extend(model.tokenizer.encode(SNIPPET));
        let choice = Choice { name: "exact".into(), kind: exact(Dtype::F32, 512, 1) };
        let all = perplexity::measure(&model, &[choice], &tokens, |_| ()).expect("a text");
        println!("{scaling:?}: {} tokens, perplexity {}", tokens.len(), all[0].all());
        (tokens, all[0].all())
    };
    let (snippet, plain) = text(Scaling::None);
    assert!(plain < 20.0, "no model that has learnt anything");
    if !smollm {
        println!("skipped: recorded figures, which are of another file");
        return;
    }
    assert_eq!(tokens, [504, 3575, 282, 4649, 314]);
    assert_eq!((snippet.len(), &snippet[..5]), (414, &[3327, 33343, 7515, 282, 253][..]));
    for (token, want) in [(7042, 17.371_27), (260, 14.888_59), (4528, 13.244_98), (2250, 13.009_46), (216, 12.712_97)] {
        assert!((last[token] - want).abs() < 2e-3, "token {token}: {} {want}", last[token]);
    }
    assert!((plain / 3.321_176 - 1.0).abs() < 1e-4);
    assert!((text(Scaling::yarn(4.0)).1 / 3.610_389 - 1.0).abs() < 1e-4);
    assert!((text(Scaling::Linear(2.0)).1 / 5.807_015 - 1.0).abs() < 1e-4);

    // A control token by name, and the same letters as text.
    assert!(model.tokenizer.encode("<|im_start|>").len() > 1);
    model.tokenizer.set_control(true);
    assert_eq!(model.tokenizer.encode("<|im_start|>user"), [1, 4093]);
}
