//! An encoder that classifies, with any attention in it; trained by `bench/encoder/train.py`.

use super::Task;
use crate::baselines::{Head, Method};
use crate::clock::now;
use crate::matrix::product;
use crate::peak;
use half::f16;
use safetensors::{Dtype, SafeTensors};
use std::error::Error;
use std::path::Path;

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
    /// Logits of the labels.
    pub logits: Vec<f32>,
    /// Processor seconds of attention.
    pub attention: f64,
    /// Most bytes that attention allocated at once.
    pub bytes: usize,
}

impl Answer {
    /// The label it takes for likeliest.
    pub fn label(&self) -> u8 {
        crate::model::dense::largest(&self.logits) as u8
    }
}

impl Encoder {
    /// Reads weights (f16 or f32) of an encoder of this task.
    ///
    /// # Errors
    /// What cannot be read; missing or misshapen tensors, by name.
    pub fn load(path: &Path, task: &Task) -> Result<Encoder, Box<dyn Error>> {
        let read = std::fs::read(path).map_err(Into::into);
        read.and_then(|bytes| Self::parse(&bytes, task)).map_err(|e| format!("{}: {e}", path.display()).into())
    }

    fn parse(bytes: &[u8], task: &Task) -> Result<Encoder, Box<dyn Error>> {
        let (_, metadata) = SafeTensors::read_metadata(bytes)?;
        let heads = metadata.metadata().as_ref().and_then(|m| m.get("heads")?.parse().ok());
        let heads: usize = heads.ok_or("the metadata names no number of heads")?;
        let file = SafeTensors::deserialize(bytes)?;
        let tensor = |name: &str| file.tensor(name).map_err(|e| format!("{name}: {e}"));
        let get = |name: &str, shape: &[usize]| -> Result<Vec<f32>, Box<dyn Error>> {
            let t = tensor(name)?;
            if t.shape() != shape {
                return Err(format!("{name} is {:?}, not {shape:?}", t.shape()).into());
            }
            let bytes = t.data();
            match t.dtype() {
                Dtype::F16 => Ok(bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()),
                Dtype::F32 => Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
                other => Err(format!("{name} is {other:?}, neither F16 nor F32").into()),
            }
        };
        // What the widths are is read off two vectors; every other tensor must fit them and the task.
        let length = |name: &str| match tensor(name)?.shape() {
            &[n] if n > 0 => Ok(n),
            shape => Err(format!("{name} is {shape:?}, not a vector")),
        };
        let (width, inner) = (length("norm.weight")?, length("layers.0.up.bias")?);
        let norm = |name: &str| -> Result<Norm, Box<dyn Error>> {
            let (weight, bias) = (get(&format!("{name}.weight"), &[width])?, get(&format!("{name}.bias"), &[width])?);
            Ok(Norm { weight, bias })
        };
        let linear = |name: &str, rows: usize, cols: usize| -> Result<Linear, Box<dyn Error>> {
            let weight = get(&format!("{name}.weight"), &[rows, cols])?;
            Ok(Linear { weight, bias: get(&format!("{name}.bias"), &[rows])? })
        };
        let mut layers = Vec::new();
        while tensor(&format!("layers.{}.up.bias", layers.len())).is_ok() {
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
        let embedding = get("embedding.weight", &[task.tokens, width])?;
        let classify = linear("classify", task.classes, width)?;
        Ok(Encoder { width, heads, embedding, layers, norm: norm("norm")?, classify })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::long_range::{listops, opinions};
    use safetensors::tensor::{TensorView, serialize};
    use std::collections::HashMap;

    /// Loads ListOps weights after a change to one tensor (a shape for its values in F32, or nothing to drop it) or to
    /// the number of heads.
    fn changed(tensor: &str, to: Option<&[usize]>, heads: &str) -> Result<Encoder, Box<dyn Error>> {
        let bytes = std::fs::read(listops::TASK.bundled())?;
        let file = SafeTensors::deserialize(&bytes)?;
        let zeros = vec![0; 4 * to.map_or(0, |shape| shape.iter().product())];
        let mut all: Vec<(String, TensorView<'_>)> = file.tensors();
        let before = all.len();
        all.retain(|(name, _)| name != tensor);
        if let Some(shape) = to {
            assert_eq!(all.len() + 1, before, "{tensor} is there");
            all.push((tensor.to_string(), TensorView::new(Dtype::F32, shape.to_vec(), &zeros)?));
        }
        let words = HashMap::from([("heads".to_string(), heads.to_string())]);
        Encoder::parse(&serialize(all, Some(words))?, &listops::TASK)
    }

    #[test]
    fn weights_that_do_not_fit_are_named() {
        let told = |what: Result<Encoder, Box<dyn Error>>| what.err().expect("refused").to_string();
        assert!(changed("norm.weight", Some(&[64]), "2").is_ok(), "another type, the same shape");
        for (tensor, shape, want) in [
            ("embedding.weight", &[16, 64][..], "embedding.weight is [16, 64], not [15, 64]"),
            ("classify.bias", &[2], "classify.bias is [2], not [10]"),
            ("layers.1.qkv.weight", &[64, 192], "layers.1.qkv.weight is [64, 192], not [192, 64]"),
            ("layers.0.down.bias", &[128], "layers.0.down.bias is [128], not [64]"),
            ("norm.weight", &[0], "norm.weight is [0], not a vector"),
            ("layers.0.up.bias", &[], "layers.0.up.bias is [], not a vector"),
        ] {
            assert_eq!(told(changed(tensor, Some(shape), "2")), want);
        }
        let missing = told(changed("layers.1.up.weight", None, "2"));
        assert!(missing.starts_with("layers.1.up.weight: "), "{missing}");
        assert_eq!(told(changed("", None, "3")), "3 heads do not share 64 columns");
        assert_eq!(told(changed("", None, "two")), "the metadata names no number of heads");
        // Weights of one task for another, and no weights.
        let other = told(Encoder::load(&listops::TASK.bundled(), &opinions::TASK));
        assert!(other.ends_with("embedding.weight is [15, 64], not [256, 64]"), "{other}");
        let nowhere = told(Encoder::load(Path::new("nowhere.safetensors"), &opinions::TASK));
        assert!(nowhere.starts_with("nowhere.safetensors: "), "{nowhere}");
    }
}
