//! The small model against a naive twin; models in files, where they are there, against recorded figures.

mod quant;
mod real;
mod smollm;
mod tiny;
mod twin;

use iceformer_bench::heads;
use iceformer_bench::model::{Choice, Gguf, Kind, Model, Run, Tokenizer, capture, generate, modes, perplexity, text};
use iceformer_core::attention::{AttentionOptions, Mode};
use iceformer_core::mem::Dtype;
use std::path::PathBuf;
use tiny::Tiny;

const TEXT: &str = "the inner line\n\n  in the 12th    thing: é, 1 the tin's  thin \u{3000}rim!\n";

/// A file of this test run, gone with it.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        Temporary(std::env::temp_dir().join(format!("iceformer-{}-{name}", std::process::id())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

fn exact(kv: Dtype, chunk: usize, threads: usize) -> Kind {
    let attention = AttentionOptions { mode: Mode::Exact, ..AttentionOptions::default() };
    Kind { attention, kv, threads, chunk, exact_layers: 0 }
}

fn load(tiny: &Tiny, name: &str) -> Model {
    let file = Temporary::new(name);
    std::fs::write(&file.0, tiny.bytes()).expect("a writable folder");
    Model::load(&file.0).expect("a readable model")
}

fn tokens(model: &Model) -> Vec<u32> {
    let mut all = model.tokenizer.start();
    all.extend(model.tokenizer.encode(TEXT));
    all
}

#[test]
fn tokenizer_merges_and_round_trip() {
    let t = Tokenizer::read(&Gguf::parse(Tiny::new(1).bytes()).expect("a file")).expect("a tokenizer");
    assert_eq!(t.decode(&t.encode(TEXT)), TEXT);
    let texts = |s: &str| t.encode(s).iter().map(|&id| t.decode(&[id])).collect::<Vec<_>>();
    assert_eq!(texts("the the in 12"), ["the", " the", " ", "in", " 1", "2"]);
    assert_eq!(t.len(), 257 + 5);
    let every: String = (0..=0x2ff).filter_map(char::from_u32).collect();
    assert_eq!(t.decode(&t.encode(&every)), every);
    // Vocabularies of others lack some bytes.
    let mut tiny = Tiny::new(1);
    tiny.tokens[1 + 4] = "none".into();
    let t = Tokenizer::read(&Gguf::parse(tiny.bytes()).expect("a file")).expect("a tokenizer");
    assert_eq!(t.decode(&t.encode("a\u{4}the")), "athe");
}

#[test]
fn damaged_files_are_errors() {
    let bytes = Tiny::new(1).bytes();
    let read = |bytes: &[u8]| -> Result<(), Box<dyn std::error::Error>> {
        let file = Gguf::parse(bytes.to_vec())?;
        Tokenizer::read(&file)?;
        iceformer_bench::model::Weights::read(&file).map(|_| ())
    };
    read(&bytes).expect("whole");
    for end in (0..bytes.len() - 64).step_by(97) {
        assert!(read(&bytes[..end]).is_err(), "cut at {end}");
    }
    for at in 0..4000.min(bytes.len()) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x81;
        // Not every byte matters; none may panic.
        let _ = read(&bytes);
    }
}

#[test]
fn forward_pass_is_the_twins() {
    for seed in [1, 2] {
        let tiny = Tiny::new(seed);
        let model = load(&tiny, &format!("forward-{seed}"));
        let tokens = tokens(&model);
        let want = twin::run(&tiny, &tokens).logits;
        let largest = want.iter().flatten().fold(0.0f64, |a, b| a.max(b.abs()));
        for (kv, bound) in [(Dtype::F32, 1e-5), (Dtype::F16, 4e-3)] {
            for (chunk, threads) in [(1, 1), (16, 2), (512, 1), (512, 3)] {
                let mut run = Run::new(&model.weights, tokens.len(), &exact(kv, chunk, threads)).expect("a run");
                let mut have = Vec::new();
                run.feed(&tokens, |run, hidden| {
                    have.extend(run.logits(hidden));
                    Ok(())
                })
                .expect("tokens of the vocabulary");
                assert_eq!(run.len(), tokens.len());
                assert!(have.len() == want.len() * want[0].len());
                let worst = have.iter().zip(want.iter().flatten()).map(|(a, b)| (f64::from(*a) - b).abs());
                let worst = worst.fold(0.0, f64::max) / largest;
                assert!(worst < bound, "{kv:?}, chunks of {chunk}, {threads} threads: {worst}");
                assert!((run.tally.opened() - 1.0).abs() < 1e-12 && run.tally.attention < run.tally.total);
            }
        }
    }
}

#[test]
fn embeddings_are_the_head_where_none_is_there() {
    let mut tiny = Tiny::new(7);
    tiny.tensors.retain(|t| t.0 != "output.weight");
    let model = load(&tiny, "tied");
    let tokens = tokens(&model);
    let mut run = Run::new(&model.weights, tokens.len(), &exact(Dtype::F32, 512, 1)).expect("a run");
    let hidden = run.step(&tokens, &mut |_| Ok(())).expect("tokens of the vocabulary");
    let have = run.logits(&hidden);
    for (have, want) in have.iter().zip(twin::run(&tiny, &tokens).logits.iter().flatten()) {
        assert!((f64::from(*have) - want).abs() < 1e-4 * want.abs() + 1e-3, "{have} {want}");
    }
}

/// What a model has and the forward pass has not must not go unnoticed.
#[test]
fn tensors_that_nobody_uses_are_errors() {
    for name in ["blk.0.attn_q.bias", "blk.2.attn_q.weight", "blk.0.ffn_gate_exps.weight", "else"] {
        let mut tiny = Tiny::new(8);
        tiny.tensors.push((name.into(), vec![32], vec![0.0; 32]));
        let file = Gguf::parse(tiny.bytes()).expect("a file");
        let e = iceformer_bench::model::Weights::read(&file).err().expect("an error").to_string();
        assert!(e.contains(name), "{e}");
    }
}

#[test]
fn greedy_follows_the_twin() {
    let tiny = Tiny::new(3);
    let model = load(&tiny, "greedy");
    let mut all = tokens(&model);
    let mut run = Run::new(&model.weights, all.len() + 6, &exact(Dtype::F32, 32, 1)).expect("a run");
    for token in generate::greedy(&mut run, &all, 6).expect("a prompt") {
        let row = twin::run(&tiny, &all).logits.pop().expect("a row");
        let best = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert!(row[token as usize] > best - 1e-4);
        all.push(token);
    }
    assert!(run.feed(&[9999], |_, _| Ok(())).is_err(), "outside the vocabulary");
}

#[test]
fn perplexity_is_the_twins() {
    let tiny = Tiny::new(4);
    let model = load(&tiny, "perplexity");
    let tokens = tokens(&model);
    let logits = twin::run(&tiny, &tokens).logits;
    let nats = |at: usize| {
        let total: f64 = logits[at].iter().map(|x| x.exp()).sum();
        total.ln() - logits[at][tokens[at + 1] as usize]
    };
    let (n, half) = (tokens.len() - 1, tokens.len() / 2);
    let mean = |from: usize| ((from..n).map(nats).sum::<f64>() / (n - from) as f64).exp();
    let choice = |kv| Choice { name: String::new(), kind: exact(kv, 16, 1) };
    let all = perplexity::measure(&model, &[choice(Dtype::F32), choice(Dtype::F16)], &tokens, |_| ()).expect("a text");
    assert!((all[0].all() / mean(0) - 1.0).abs() < 1e-5 && (all[0].second_half() / mean(half) - 1.0).abs() < 1e-5);
    assert!((all[1].all() / all[0].all() - 1.0).abs() < 1e-2 && all[1].divergence() < 1e-4 && all[1].same() > 0.9);
    assert!(all[0].divergence() == 0.0 && all[0].same() == 1.0 && all[1].divergence() > 0.0);
}

#[test]
fn captures_are_the_twins_heads() {
    let tiny = Tiny::new(5);
    let model = load(&tiny, "capture");
    let (source, file) = (Temporary::new("source.txt"), Temporary::new("capture.safetensors"));
    std::fs::write(&source.0, TEXT.repeat(3)).expect("a writable folder");
    let path = source.0.display();
    let tokens = text::document(&model.tokenizer, &[format!("{path}=9"), path.to_string()], 50).expect("long enough");
    assert!(text::document(&model.tokenizer, &[format!("{path}=9")], 11).is_err());
    assert_eq!(tokens[1..9], tokens[10..18]);
    let capture = |layers: &[usize]| {
        let what = capture::What { layers, source: "a \"test\"" };
        capture::capture(&model, &tokens, &exact(Dtype::F32, 16, 1), &what, &file.0, |_| ())?;
        heads::load(&file.0, usize::MAX)
    };
    let some = capture(&[1]).expect("a readable capture of one layer");
    assert!(capture(&[2]).is_err() && capture(&[]).is_err() && capture(&[0, 0]).is_err(), "layers that are not there");
    let layers = capture(&[1, 0]).expect("a readable capture");
    assert!(some.len() == 1 && some[0].number == 1 && some[0].q[..] == layers[1].q[..]);
    let want = twin::run(&tiny, &tokens).heads;
    assert_eq!(layers.len(), want.len());
    for (layer, want) in layers.iter().zip(&want) {
        assert!(layer.causal && (layer.heads_q, layer.heads_kv) == (tiny::HEADS_Q, tiny::HEADS_KV));
        for (have, want) in [&layer.q, &layer.k, &layer.v].into_iter().zip(want) {
            let want: Vec<f64> = want.iter().flatten().flatten().copied().collect();
            assert_eq!(have.len(), want.len());
            for (a, b) in have.iter().zip(&want) {
                assert!((f64::from(*a) - b).abs() < 1e-3 * b.abs() + 1e-4, "{a} {b}");
            }
        }
    }
}

#[test]
fn prompts_are_spread() {
    let all: Vec<usize> = (0..50).collect();
    assert_eq!(text::spread(&all, 6), [&4, &12, &20, &29, &37, &45]);
    assert!(text::spread(&all, 50).into_iter().eq(&all) && text::spread(&all, 99).into_iter().eq(&all));
    assert!(text::spread(&all, 0).is_empty());
}

/// Accelerated attention takes part where this version has it; a tolerance that makes no sense is an error either way.
#[test]
fn modes_that_are_absent_are_left_out() {
    let model = load(&Tiny::new(6), "modes");
    let kind = exact(Dtype::F16, 16, 1);
    let choices = modes::choices(&model.weights, &kind, &[0.05]).expect("a tolerance");
    assert!(choices[0].name == "exact" && choices[0].kind.attention.mode == Mode::Exact && choices.len() <= 2);
    let all = perplexity::measure(&model, &choices, &tokens(&model), |_| ()).expect("a text");
    assert!(all.iter().all(|o| o.all().is_finite()));
    assert!(modes::choices(&model.weights, &kind, &[2.0]).is_err());
}
