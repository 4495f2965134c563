//! Shape and matrices of a Llama-architecture model, all in f32.

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
    /// Base of the rotary embedding.
    pub rope_base: f64,
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
    /// `[vocab, width]`.
    pub embedding: Vec<f32>,
    /// In order.
    pub layers: Vec<Layer>,
    /// RMSNorm before the output.
    pub norm: Vec<f32>,
    /// `[vocab, width]`.
    pub output: Vec<f32>,
}

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
        let dim = whole("attention.key_length")?;
        if whole("attention.value_length")? != dim || whole("rope.dimension_count")? != dim {
            return Err("keys, values and rotary parts must have one size".into());
        }
        let shape = Shape {
            layers: whole("block_count")?,
            width: whole("embedding_length")?,
            inner: whole("feed_forward_length")?,
            heads_q: whole("attention.head_count")?,
            heads_kv: whole("attention.head_count_kv")?,
            dim,
            vocab: file.texts("tokenizer.ggml.tokens")?.len(),
            rope_base: file.float("llama.rope.freq_base")?,
            epsilon: file.float("llama.attention.layer_norm_rms_epsilon")? as f32,
        };
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
            embedding: file.tensor("token_embd.weight", &[w, shape.vocab])?,
            layers: (0..shape.layers).map(layer).collect::<Result<_>>()?,
            norm: file.tensor("output_norm.weight", &[w])?,
            output: file.tensor("output.weight", &[w, shape.vocab])?,
        })
    }
}
