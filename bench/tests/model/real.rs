//! The real model, where it lies beside the checkout.

use crate::exact;
use iceformer_bench::model::{Choice, Model, default_model, needles, perplexity, shared, text};
use iceformer_core::mem::Dtype;

const SNIPPET: &str = include_str!("snippet.txt");

fn model() -> Option<Model> {
    let path = default_model();
    if !path.exists() {
        println!("skipped: no model beside this checkout");
        return None;
    }
    Some(Model::load(&path).expect("a readable model"))
}

fn choice(kv: Dtype) -> Choice {
    Choice { name: "exact".into(), kind: exact(kv, 512, 1) }
}

/// Tokens of every prompt as the files count them, and the first number of the shortest.
#[test]
fn prompts_and_first_answer() {
    let Some(model) = model() else { return };
    let path = shared("data/longeval/lines-1k.jsonl");
    if !path.exists() {
        println!("skipped: no prompts beside this checkout");
        return;
    }
    let prompts = text::prompts(&path).expect("prompts");
    for p in &prompts {
        assert_eq!(model.tokenizer.encode(&p.text).len() + 1, p.tokens);
        assert_eq!(model.tokenizer.decode(&model.tokenizer.encode(&p.text)), p.text);
    }
    for kv in [Dtype::F16, Dtype::F32] {
        let (written, tally) = needles::ask(&model, &choice(kv), &prompts[0]).expect("an answer");
        assert_eq!(written, prompts[0].answer);
        assert!((tally.opened() - 1.0).abs() < 1e-12);
    }
}

/// The figure is PyTorch's too.
#[test]
fn perplexity_stays_what_it_was() {
    let Some(model) = model() else { return };
    let mut tokens = model.tokenizer.start();
    tokens.extend(model.tokenizer.encode(SNIPPET));
    let all = perplexity::measure(&model, &[choice(Dtype::F32), choice(Dtype::F16)], &tokens, |_| ()).expect("a text");
    println!("{} tokens, perplexity {} (f32), {} (f16)", tokens.len(), all[0].all(), all[1].all());
    assert_eq!(tokens.len(), 504);
    assert!((all[0].all() / 11.628_31 - 1.0).abs() < 1e-4 && (all[1].all() / all[0].all() - 1.0).abs() < 1e-3);
    assert!(all[1].same() > 0.99 && all[1].divergence() < 1e-5);
}
