//! The encoder that classifies ListOps, with any attention in it; trained by `bench/listops/train.py`.

use super::vocabulary::TOKENS;
use crate::baselines::{Head, Method};
use crate::clock::now;
use crate::matrix::product;
use crate::peak;
use half::f16;
use safetensors::{Dtype, SafeTensors};
use std::error::Error;
use std::path::{Path, PathBuf};

/// Scale and shift.
struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Norm {
    /// Rows to mean 0 and variance 1, then scaled and shifted.
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut out = x.to_vec();
        for row in out.chunks_mut(self.weight.len()) {
            let n = row.len() as f32;
            let mean = row.iter().sum::<f32>() / n;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n;
            let scale = 1.0 / (variance + 1e-5).sqrt();
            row.iter_mut().zip(&self.weight).zip(&self.bias).for_each(|((x, w), b)| *x = (*x - mean) * scale * w + b);
        }
        out
    }
}

/// `[out, in]` and what is added.
struct Linear {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Linear {
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let (cols, inner) = (self.bias.len(), self.weight.len() / self.bias.len());
        let mut out: Vec<f32> = (0..x.len() / inner).flat_map(|_| self.bias.iter().copied()).collect();
        debug_assert_eq!(out.len(), x.len() / inner * cols);
        product(x, &self.weight, inner, &mut out, true);
        out
    }
}

struct Layer {
    attention_norm: Norm,
    qkv: Linear,
    out: Linear,
    inner_norm: Norm,
    up: Linear,
    down: Linear,
}

/// Weights.
pub struct Encoder {
    width: usize,
    heads: usize,
    embedding: Vec<f32>,
    layers: Vec<Layer>,
    norm: Norm,
    classify: Linear,
}

/// What became of one example.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Logits of the ten values.
    pub logits: Vec<f32>,
    /// Processor seconds of attention.
    pub attention: f64,
    /// Most bytes that attention allocated at once.
    pub bytes: usize,
}

impl Answer {
    /// The value it takes for likeliest.
    pub fn value(&self) -> u8 {
        crate::model::dense::largest(&self.logits) as u8
    }
}

impl Encoder {
    /// The weights that come with the repository.
    pub fn bundled() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("data/listops-encoder.safetensors")
    }

    /// Reads weights (f16 or f32).
    ///
    /// # Errors
    /// What cannot be read; missing or misshapen tensors.
    pub fn load(path: &Path) -> Result<Encoder, Box<dyn Error>> {
        let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
        let heads = metadata.metadata().as_ref().and_then(|m| m.get("heads")?.parse().ok()).ok_or("no heads")?;
        let file = SafeTensors::deserialize(&bytes)?;
        let get = |name: &str, shape: &[usize]| -> Result<Vec<f32>, Box<dyn Error>> {
            let t = file.tensor(name)?;
            if t.shape() != shape {
                return Err(format!("{name} is {:?}, not {shape:?}", t.shape()).into());
            }
            let bytes = t.data();
            match t.dtype() {
                Dtype::F16 => Ok(bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()),
                Dtype::F32 => Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
                other => Err(format!("{name} is {other:?}").into()),
            }
        };
        let (Some(&width), Some(&inner)) =
            (file.tensor("norm.weight")?.shape().first(), file.tensor("layers.0.up.bias")?.shape().first())
        else {
            return Err("norm.weight and layers.0.up.bias must have a dimension".into());
        };
        let norm = |name: &str| -> Result<Norm, Box<dyn Error>> {
            let (weight, bias) = (get(&format!("{name}.weight"), &[width])?, get(&format!("{name}.bias"), &[width])?);
            Ok(Norm { weight, bias })
        };
        let linear = |name: &str, rows: usize, cols: usize| -> Result<Linear, Box<dyn Error>> {
            let weight = get(&format!("{name}.weight"), &[rows, cols])?;
            Ok(Linear { weight, bias: get(&format!("{name}.bias"), &[rows])? })
        };
        let mut layers = Vec::new();
        while file.tensor(&format!("layers.{}.up.bias", layers.len())).is_ok() {
            let at = |part: &str| format!("layers.{}.{part}", layers.len());
            layers.push(Layer {
                attention_norm: norm(&at("attention_norm"))?,
                qkv: linear(&at("qkv"), 3 * width, width)?,
                out: linear(&at("out"), width, width)?,
                inner_norm: norm(&at("inner_norm"))?,
                up: linear(&at("up"), inner, width)?,
                down: linear(&at("down"), width, inner)?,
            });
        }
        if heads == 0 || width % heads != 0 || width % 2 != 0 {
            return Err(format!("{heads} heads do not share {width} columns").into());
        }
        let embedding = get("embedding.weight", &[TOKENS, width])?;
        Ok(Encoder { width, heads, embedding, layers, norm: norm("norm")?, classify: linear("classify", 10, width)? })
    }

    /// Elements of a row of a head.
    pub fn dim(&self) -> usize {
        self.width / self.heads
    }

    /// Classifies one example; every head of every layer goes through `method`, which is prepared for its length.
    ///
    /// # Panics
    /// If there are no tokens or one is not of the vocabulary.
    pub fn classify(&self, tokens: &[u8], method: &mut dyn Method) -> Answer {
        let (n, w, d) = (tokens.len(), self.width, self.dim());
        method.prepare(n, d);
        let mut x: Vec<f32> = (0..n)
            .flat_map(|p| {
                let embedded = &self.embedding[usize::from(tokens[p]) * w..][..w];
                (0..w).map(move |e| embedded[e] + position(p, e, w))
            })
            .collect();
        let (mut attention, mut bytes) = (0.0, 0);
        let add = |x: &mut [f32], y: &[f32]| x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        for layer in &self.layers {
            let qkv = layer.qkv.apply(&layer.attention_norm.apply(&x));
            // Columns of one head out of rows of three times the width.
            let cut = |which: usize, head: usize| -> Vec<f32> {
                qkv.chunks(3 * w).flat_map(|row| &row[which * w + head * d..][..d]).copied().collect()
            };
            let mut joined = vec![0.0; n * w];
            for head in 0..self.heads {
                let (q, k, v) = (cut(0, head), cut(1, head), cut(2, head));
                let mut out = vec![0.0; n * d];
                let start = now();
                let one = Head { q: &q, k: &k, v: &v, dim: d, causal: false };
                let ((), most) = peak::of(|| method.attend(&one, &mut out));
                attention += now() - start;
                bytes = bytes.max(most);
                for (to, row) in joined.chunks_mut(w).zip(out.chunks(d)) {
                    to[head * d..][..d].copy_from_slice(row);
                }
            }
            add(&mut x, &layer.out.apply(&joined));
            let mut inner = layer.up.apply(&layer.inner_norm.apply(&x));
            inner.iter_mut().for_each(|x| *x = x.max(0.0));
            add(&mut x, &layer.down.apply(&inner));
        }
        let x = self.norm.apply(&x);
        let mean: Vec<f32> = (0..w).map(|e| x.iter().skip(e).step_by(w).sum::<f32>() / n as f32).collect();
        Answer { logits: self.classify.apply(&mean), attention, bytes }
    }
}

/// sin and cos of p / 10000^(2i / width), all sines first.
fn position(p: usize, e: usize, width: usize) -> f32 {
    let half = width / 2;
    let angle = p as f32 * (-(10000f32.ln()) * 2.0 * (e % half) as f32 / width as f32).exp();
    if e < half { angle.sin() } else { angle.cos() }
}
