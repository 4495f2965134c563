//! Captured queries, keys and values: safetensors with `layer{l}.q` `[heads, n, d]`, `layer{l}.k` and `.v`
//! `[KV heads, n, d]`, metadata `causal` (and `layer{l}.causal` where a layer differs).
//!
//! Elements are floats, or bytes (I8) that a factor of their row in `layer{l}.q.scale` `[heads, n]` multiplies. `layer{l}.first` is the
//! position of the first query where only the last rows of a prompt have queries.

use crate::aligned::Aligned;
use crate::bias::Bias;
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One layer in f32.
pub struct Layer {
    /// Its number in the file.
    pub number: usize,
    /// Whether rows see only earlier keys.
    pub causal: bool,
    /// Query heads.
    pub heads_q: usize,
    /// KV heads.
    pub heads_kv: usize,
    /// Tokens.
    pub rows: usize,
    /// Position of the first query; 0 where every token has one.
    pub first: usize,
    /// Elements of a row.
    pub dim: usize,
    /// `[heads_q, rows - first, dim]`.
    pub q: Aligned,
    /// `[heads_kv, rows, dim]`.
    pub k: Aligned,
    /// `[heads_kv, rows, dim]`.
    pub v: Aligned,
    /// Added to the logits; hides what `causal` hides.
    pub bias: Option<Arc<Bias>>,
}

impl Layer {
    /// Queries of one head.
    pub fn queries(&self, head: usize) -> &[f32] {
        let n = (self.rows - self.first) * self.dim;
        &self.q[head * n..][..n]
    }

    /// Keys that one query head uses.
    pub fn keys(&self, head: usize) -> &[f32] {
        let kv = head / (self.heads_q / self.heads_kv);
        &self.k[kv * self.rows * self.dim..][..self.rows * self.dim]
    }

    /// Values that one query head uses.
    pub fn values(&self, head: usize) -> &[f32] {
        let kv = head / (self.heads_q / self.heads_kv);
        &self.v[kv * self.rows * self.dim..][..self.rows * self.dim]
    }
}

/// The heads bundled with the C examples.
pub fn bundled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples-c/data/heads.safetensors")
}

/// Heads of SmolLM2-135M with sinks that are bundled with the C examples.
pub fn sinks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples-c/data/smollm2.safetensors")
}

/// One causal layer of Gaussian noise: two heads on one KV head of 64 elements.
pub fn noise(rows: usize) -> Vec<Layer> {
    let draw = |heads: usize, seed: u64| Aligned::from(crate::speed::noise(heads * rows * 64, seed));
    let (q, k, v) = (draw(2, 1), draw(1, 2), draw(1, 3));
    vec![Layer { number: 0, causal: true, heads_q: 2, heads_kv: 1, rows, first: 0, dim: 64, q, k, v, bias: None }]
}

/// Reads a file of captured heads, the first `most` tokens of each.
///
/// # Errors
/// What cannot be read; queries of some rows only, see [`load_rows`].
pub fn load(path: &Path, most: usize) -> Result<Vec<Layer>, Box<dyn Error>> {
    let layers = load_rows(path, most)?;
    match layers.iter().find(|l| l.first > 0) {
        Some(l) => Err(format!("layer {} has queries of its last {} tokens only", l.number, l.rows - l.first).into()),
        None => Ok(layers),
    }
}

/// Reads a file of captured heads, the first `most` tokens of each, also where only the last rows have queries.
///
/// # Errors
/// What cannot be read; no layer; `most` tokens without a query.
pub fn load_rows(path: &Path, most: usize) -> Result<Vec<Layer>, Box<dyn Error>> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
    let words = metadata.metadata().clone().unwrap_or_default();
    let file = SafeTensors::deserialize(&bytes)?;
    let mut layers = Vec::new();
    // Captures of chosen layers keep their numbers.
    let mut numbers: Vec<usize> =
        file.names().iter().filter_map(|n| n.strip_prefix("layer")?.strip_suffix(".q")?.parse().ok()).collect();
    numbers.sort_unstable();
    for number in numbers {
        let shape =
            |part: &str| Ok::<_, Box<dyn Error>>(file.tensor(&format!("layer{number}.{part}"))?.shape().to_vec());
        let (&[heads_q, n_q, dim], &[heads_kv, n, _]) = (&shape("q")?[..], &shape("k")?[..]) else {
            return Err("tensors must have three dimensions".into());
        };
        let first = match words.get(&format!("layer{number}.first")) {
            Some(word) => word.parse().map_err(|_| format!("layer{number}.first is no position"))?,
            None => 0,
        };
        let rows = n.min(most);
        if n_q + first != n || rows <= first {
            return Err(format!("layer {number}: {n_q} queries from position {first} on, {rows} keys").into());
        }
        let cut = |part: &str, want: [usize; 3], keep: usize| -> Result<Aligned, Box<dyn Error>> {
            if shape(part)? != want {
                return Err("shapes of a layer do not fit together".into());
            }
            let all = elements(&file, &format!("layer{number}.{part}"))?;
            Ok(all.chunks(want[1] * dim).flat_map(|head| head[..keep * dim].iter().copied()).collect())
        };
        let word = words.get(&format!("layer{number}.causal")).or_else(|| words.get("causal"));
        let causal = word.is_some_and(|w| w.eq_ignore_ascii_case("true") || w == "1");
        let q = cut("q", [heads_q, n_q, dim], rows - first)?;
        let (k, v) = (cut("k", [heads_kv, n, dim], rows)?, cut("v", [heads_kv, n, dim], rows)?);
        layers.push(Layer { number, causal, heads_q, heads_kv, rows, first, dim, q, k, v, bias: None });
    }
    if layers.is_empty() { Err("no tensor layer{l}.q".into()) } else { Ok(layers) }
}

/// A tensor `[heads, rows, dim]` in f32.
fn elements(file: &SafeTensors<'_>, name: &str) -> Result<Vec<f32>, Box<dyn Error>> {
    let t = file.tensor(name)?;
    if t.dtype() != Dtype::I8 {
        return floats(t.dtype(), t.data());
    }
    let scale = file.tensor(&format!("{name}.scale"))?;
    if scale.shape() != &t.shape()[..2] {
        return Err(format!("{name}.scale does not have a factor for every row").into());
    }
    let dim = t.shape()[2].max(1);
    let rows = t.data().chunks_exact(dim).zip(floats(scale.dtype(), scale.data())?);
    Ok(rows.flat_map(|(row, scale)| row.iter().map(move |&b| f32::from(b as i8) * scale)).collect())
}

/// Captures of one model as one text: rows one after the other, head by head.
///
/// # Errors
/// If layers, heads or elements differ.
pub fn chain(parts: Vec<Vec<Layer>>) -> Result<Vec<Layer>, Box<dyn Error>> {
    let mut parts = parts.into_iter();
    let mut all = parts.next().ok_or("nothing to chain")?;
    for part in parts {
        if part.len() != all.len() {
            return Err("captures of different layers".into());
        }
        for (to, from) in all.iter_mut().zip(part) {
            let shape = |l: &Layer| (l.number, l.causal, l.heads_q, l.heads_kv, l.dim, l.first);
            if shape(to) != shape(&from) {
                return Err(format!("layer {} differs between captures", to.number).into());
            }
            let append = |a: &[f32], b: &[f32]| -> Aligned {
                let heads = a.chunks(to.rows * to.dim).zip(b.chunks(from.rows * to.dim));
                heads.flat_map(|(a, b)| a.iter().chain(b).copied()).collect()
            };
            let [q, k, v] = [(&to.q, &from.q), (&to.k, &from.k), (&to.v, &from.v)].map(|(a, b)| append(a, b));
            (to.q, to.k, to.v) = (q, k, v);
            to.rows += from.rows;
        }
    }
    Ok(all)
}

fn floats(dtype: Dtype, bytes: &[u8]) -> Result<Vec<f32>, Box<dyn Error>> {
    let halves = || bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    Ok(match dtype {
        Dtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Dtype::F16 => halves().map(|b| f16::from_bits(b).to_f32()).collect(),
        Dtype::BF16 => halves().map(|b| bf16::from_bits(b).to_f32()).collect(),
        other => return Err(format!("element type {other:?} is not supported").into()),
    })
}

#[cfg(test)]
mod tests {
    use super::{Layer, chain, load, load_rows};

    fn layer(rows: usize, first: f32) -> Layer {
        let row = |heads: usize| (0..heads * rows * 2).map(|i| first + i as f32).collect();
        Layer {
            number: 3,
            causal: true,
            heads_q: 2,
            heads_kv: 1,
            rows,
            first: 0,
            dim: 2,
            q: row(2),
            k: row(1),
            v: row(1),
            bias: None,
        }
    }

    #[test]
    fn chained_rows_follow_head_by_head() {
        let all = chain(vec![vec![layer(2, 0.0)], vec![layer(1, 50.0)]]).unwrap();
        assert_eq!(all[0].rows, 3);
        assert_eq!(all[0].queries(0), [0.0, 1.0, 2.0, 3.0, 50.0, 51.0]);
        assert_eq!(all[0].queries(1), [4.0, 5.0, 6.0, 7.0, 52.0, 53.0]);
        assert_eq!(all[0].keys(1), [0.0, 1.0, 2.0, 3.0, 50.0, 51.0]);
        assert_eq!(all[0].values(0), all[0].keys(0));
    }

    /// Two keys, of which the second has a query; keys and queries are bytes with factors, values floats.
    fn file(name: &str, first: &str) -> std::path::PathBuf {
        let header = serde_json::json!({
            "__metadata__": { "causal": "true", "layer7.first": first },
            "layer7.q": { "dtype": "I8", "shape": [1, 1, 2], "data_offsets": [0, 2] },
            "layer7.k": { "dtype": "I8", "shape": [1, 2, 2], "data_offsets": [2, 6] },
            "layer7.q.scale": { "dtype": "F16", "shape": [1, 1], "data_offsets": [6, 8] },
            "layer7.k.scale": { "dtype": "F16", "shape": [1, 2], "data_offsets": [8, 12] },
            "layer7.v": { "dtype": "F16", "shape": [1, 2, 2], "data_offsets": [12, 20] },
        });
        let mut header = header.to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend([127i8, -127, 1, 2, 3, -4].map(|x| x as u8));
        for x in [2.0, 0.5, 0.25, 1.0, 2.0, 3.0, 4.0] {
            bytes.extend(half::f16::from_f32(x).to_le_bytes());
        }
        let path = std::env::temp_dir().join(format!("iceformer-{name}-{}.safetensors", std::process::id()));
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    #[test]
    fn bytes_are_multiplied_and_the_first_query_has_a_place() {
        let path = file("bytes", "1");
        let layers = load_rows(&path, usize::MAX).expect("a capture");
        let (whole, cut) = (load(&path, usize::MAX), load_rows(&path, 1));
        std::fs::remove_file(path).expect("the file");
        let l = &layers[0];
        assert_eq!((l.number, l.rows, l.first), (7, 2, 1));
        assert_eq!(l.queries(0), [254.0, -254.0]);
        assert_eq!(l.keys(0), [0.5, 1.0, 0.75, -1.0]);
        assert_eq!(l.values(0), [1.0, 2.0, 3.0, 4.0]);
        assert!(whole.is_err(), "not every token has a query");
        assert!(cut.is_err(), "the first token has none");
    }

    #[test]
    fn queries_that_have_no_place_are_refused() {
        for first in ["0", "2", "one"] {
            let path = file(&format!("place-{first}"), first);
            let layers = load_rows(&path, usize::MAX);
            std::fs::remove_file(path).expect("the file");
            assert!(layers.is_err(), "{first}");
        }
    }

    #[test]
    fn captures_of_other_heads_are_refused() {
        assert!(chain(vec![]).is_err());
        assert!(chain(vec![vec![layer(2, 0.0)], vec![]]).is_err());
        let other = Layer { heads_kv: 2, ..layer(1, 0.0) };
        assert!(chain(vec![vec![layer(2, 0.0)], vec![other]]).is_err());
    }
}
