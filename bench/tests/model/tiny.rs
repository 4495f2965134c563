//! A random model of two layers, written as a GGUF file.

use half::f16;
use iceformer_bench::model::bpe::byte_char;
use std::collections::HashMap;

pub const LAYERS: usize = 2;
pub const WIDTH: usize = 32;
pub const INNER: usize = 48;
pub const HEADS_Q: usize = 4;
pub const HEADS_KV: usize = 2;
pub const DIM: usize = 8;
pub const BASE: f64 = 10_000.0;
pub const EPSILON: f64 = 1e-5;

/// What the file holds: `(name, shape with the fastest dimension first, numbers)`, tokens and merges.
pub struct Tiny {
    pub tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
    pub tokens: Vec<String>,
    pub merges: Vec<String>,
}

struct Noise(u64);

impl Noise {
    /// About uniform in -1..1.
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / (1 << 23) as f32) - 1.0
    }
}

impl Tiny {
    pub fn new(seed: u64) -> Tiny {
        let merges: Vec<String> = ["t h", "th e", "Ġ the", "i n", "Ġ 1"].map(String::from).to_vec();
        let mut tokens = vec!["<|endoftext|>".to_string()];
        tokens.extend((0..=255).map(|b| byte_char(b).to_string()));
        tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
        let (vocab, q, kv) = (tokens.len(), HEADS_Q * DIM, HEADS_KV * DIM);
        let mut noise = Noise(seed);
        let mut tensors = Vec::new();
        let mut add = |name: String, shape: Vec<usize>, scale: f32| {
            let n = shape.iter().product();
            // Norms are near one and stay f32; matrices are rounded to what the file holds.
            let make = |x: f32| if shape.len() == 1 { 1.0 + 0.3 * x } else { f16::from_f32(x * scale).to_f32() };
            let data = (0..n).map(|_| make(noise.next())).collect();
            tensors.push((name, shape, data));
        };
        add("token_embd.weight".into(), vec![WIDTH, vocab], 1.0);
        for l in 0..LAYERS {
            for (name, shape, scale) in [
                ("attn_norm", vec![WIDTH], 1.0),
                ("attn_q", vec![WIDTH, q], 0.6),
                ("attn_k", vec![WIDTH, kv], 0.6),
                ("attn_v", vec![WIDTH, kv], 0.3),
                ("attn_output", vec![q, WIDTH], 0.3),
                ("ffn_norm", vec![WIDTH], 1.0),
                ("ffn_gate", vec![WIDTH, INNER], 0.4),
                ("ffn_up", vec![WIDTH, INNER], 0.4),
                ("ffn_down", vec![INNER, WIDTH], 0.3),
            ] {
                add(format!("blk.{l}.{name}.weight"), shape, scale);
            }
        }
        add("output_norm.weight".into(), vec![WIDTH], 1.0);
        add("output.weight".into(), vec![WIDTH, vocab], 0.5);
        Tiny { tensors, tokens, merges }
    }

    pub fn tensor(&self) -> HashMap<&str, &[f32]> {
        self.tensors.iter().map(|(name, _, data)| (name.as_str(), data.as_slice())).collect()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        let text = |out: &mut Vec<u8>, s: &str| {
            out.extend((s.len() as u64).to_le_bytes());
            out.extend(s.as_bytes());
        };
        let mut values = Vec::new();
        let mut count = 0u64;
        let mut value = |key: &str, kind: u32, bytes: &[u8]| {
            text(&mut values, key);
            values.extend(kind.to_le_bytes());
            values.extend(bytes);
            count += 1;
        };
        let word = |s: &str| {
            let mut out = Vec::new();
            text(&mut out, s);
            out
        };
        let list = |all: &[String]| {
            let mut out = 8u32.to_le_bytes().to_vec();
            out.extend((all.len() as u64).to_le_bytes());
            all.iter().for_each(|s| text(&mut out, s));
            out
        };
        value("general.architecture", 8, &word("llama"));
        value("general.alignment", 4, &64u32.to_le_bytes());
        for (key, n) in [
            ("block_count", LAYERS),
            ("embedding_length", WIDTH),
            ("feed_forward_length", INNER),
            ("attention.head_count", HEADS_Q),
            ("attention.head_count_kv", HEADS_KV),
            ("attention.key_length", DIM),
            ("attention.value_length", DIM),
            ("rope.dimension_count", DIM),
        ] {
            value(&format!("llama.{key}"), 4, &(n as u32).to_le_bytes());
        }
        value("llama.rope.freq_base", 6, &(BASE as f32).to_le_bytes());
        value("llama.attention.layer_norm_rms_epsilon", 6, &(EPSILON as f32).to_le_bytes());
        value("tokenizer.ggml.model", 8, &word("gpt2"));
        value("tokenizer.ggml.pre", 8, &word("gpt-2"));
        value("tokenizer.ggml.tokens", 9, &list(&self.tokens));
        value("tokenizer.ggml.merges", 9, &list(&self.merges));
        value("tokenizer.ggml.bos_token_id", 4, &0u32.to_le_bytes());
        value("tokenizer.ggml.add_bos_token", 7, &[1]);
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend(values);
        let mut data: Vec<u8> = Vec::new();
        for (name, shape, numbers) in &self.tensors {
            text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|&n| out.extend((n as u64).to_le_bytes()));
            out.extend(u32::from(shape.len() > 1).to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            match shape.len() {
                1 => numbers.iter().for_each(|x| data.extend(x.to_le_bytes())),
                _ => numbers.iter().for_each(|&x| data.extend(f16::from_f32(x).to_le_bytes())),
            }
            data.resize(data.len().next_multiple_of(64), 0);
        }
        out.resize(out.len().next_multiple_of(64), 0);
        out.extend(data);
        out
    }
}
