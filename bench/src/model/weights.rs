//! Shape and matrices of a Llama-architecture model, all in f32.

use super::rope::{DIVISORS, Rope};
use super::{Gguf, Result};

/// Sizes and constants.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Layers.
    pub layers: usize,
    /// Elements of a hidden row.
    pub width: usize,
    /// Elements of a hidden row of the feed-forward part.
    pub inner: usize,
    /// Query heads.
    pub heads_q: usize,
    /// KV heads.
    pub heads_kv: usize,
    /// Elements of a query, key or value.
    pub dim: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// What RMSNorm adds to the mean square.
    pub epsilon: f32,
}

/// One layer; matrices are `[out, in]`, row after row.
pub struct Layer {
    /// RMSNorm before attention.
    pub attention_norm: Vec<f32>,
    /// Queries.
    pub q: Vec<f32>,
    /// Keys.
    pub k: Vec<f32>,
    /// Values.
    pub v: Vec<f32>,
    /// Attention output.
    pub o: Vec<f32>,
    /// RMSNorm before the feed-forward part.
    pub inner_norm: Vec<f32>,
    /// Gate.
    pub gate: Vec<f32>,
    /// What the gate multiplies.
    pub up: Vec<f32>,
    /// Back to the hidden row.
    pub down: Vec<f32>,
}

/// The whole model.
pub struct Weights {
    /// Sizes.
    pub shape: Shape,
    /// Rotary embedding.
    pub rope: Rope,
    /// `[vocab, width]`.
    pub embedding: Vec<f32>,
    /// In order.
    pub layers: Vec<Layer>,
    /// RMSNorm before the output.
    pub norm: Vec<f32>,
    /// `[vocab, width]`, where it is not the embedding.
    pub output: Option<Vec<f32>>,
}

/// Tensors of a layer.
const PARTS: [&str; 9] =
    ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"];

/// Whether the forward pass uses a tensor: biases and experts it does not have.
fn used(name: &str, layers: usize) -> bool {
    let part = |name: &str| {
        let (layer, part) = name.strip_prefix("blk.")?.strip_suffix(".weight")?.split_once('.')?;
        Some(layer.parse::<usize>().ok()? < layers && PARTS.contains(&part))
    };
    [OUTPUT, DIVISORS, "token_embd.weight", "output_norm.weight"].contains(&name) || part(name) == Some(true)
}

/// The head that turns hidden rows into logits.
const OUTPUT: &str = "output.weight";

impl Weights {
    /// Reads and checks everything that the forward pass uses.
    ///
    /// # Errors
    /// Another architecture; missing or misshapen tensors.
    pub fn read(file: &Gguf) -> Result<Weights> {
        let architecture = file.text("general.architecture")?;
        if architecture != "llama" {
            return Err(format!("architecture {architecture} is not supported").into());
        }
        let whole = |key: &str| file.whole(&format!("llama.{key}"));
        let (width, heads) = (whole("embedding_length")?, whole("attention.head_count")?);
        let or = |key: &str, or: usize| file.whole_or(&format!("llama.{key}"), or);
        // What a file does not say follows from the width.
        let dim = or("attention.key_length", width / heads.max(1))?;
        if or("attention.value_length", dim)? != dim || or("rope.dimension_count", dim)? != dim || dim % 2 != 0 {
            return Err("keys, values and rotary parts must have one even size".into());
        }
        let shape = Shape {
            layers: whole("block_count")?,
            width,
            inner: whole("feed_forward_length")?,
            heads_q: heads,
            heads_kv: or("attention.head_count_kv", heads)?,
            dim,
            vocab: file.texts("tokenizer.ggml.tokens")?.len(),
            epsilon: file.float("llama.attention.layer_norm_rms_epsilon")? as f32,
        };
        if let Some(name) = file.names().find(|n| !used(n, shape.layers)) {
            return Err(format!("tensor {name} is none of those that the forward pass uses").into());
        }
        let (w, i) = (shape.width, shape.inner);
        let (q, kv) = (shape.heads_q * dim, shape.heads_kv * dim);
        let layer = |l: usize| -> Result<Layer> {
            let get = |name: &str, dims: &[usize]| file.tensor(&format!("blk.{l}.{name}.weight"), dims);
            Ok(Layer {
                attention_norm: get("attn_norm", &[w])?,
                q: get("attn_q", &[w, q])?,
                k: get("attn_k", &[w, kv])?,
                v: get("attn_v", &[w, kv])?,
                o: get("attn_output", &[q, w])?,
                inner_norm: get("ffn_norm", &[w])?,
                gate: get("ffn_gate", &[w, i])?,
                up: get("ffn_up", &[w, i])?,
                down: get("ffn_down", &[i, w])?,
            })
        };
        Ok(Weights {
            shape,
            rope: Rope::read(file, dim)?,
            embedding: file.tensor("token_embd.weight", &[w, shape.vocab])?,
            layers: (0..shape.layers).map(layer).collect::<Result<_>>()?,
            norm: file.tensor("output_norm.weight", &[w])?,
            output: file.names().any(|n| n == OUTPUT).then(|| file.tensor(OUTPUT, &[w, shape.vocab])).transpose()?,
        })
    }

    /// `[vocab, width]`: what turns hidden rows into logits.
    pub fn head(&self) -> &[f32] {
        self.output.as_ref().unwrap_or(&self.embedding)
    }
}
