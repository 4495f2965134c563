//! Queries, keys and values of a text as a safetensors file that [`heads`](crate::heads) reads.

use super::{Kind, Model, Result, Run};
use half::f16;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::path::Path;

/// Runs the model on the tokens and writes `layer{l}.q` `[heads, n, d]`, `.k` and `.v` in f16. `source` says what the text
/// was; `each` is told how many tokens are done.
///
/// # Errors
/// What the sessions or the file system answer.
pub fn capture(
    model: &Model,
    tokens: &[u32],
    kind: &Kind,
    source: &str,
    path: &Path,
    mut each: impl FnMut(usize),
) -> Result<()> {
    let (s, n) = (model.weights.shape, tokens.len());
    let heads = [("q", s.heads_q), ("k", s.heads_kv), ("v", s.heads_kv)];
    let mut stores: Vec<Vec<u8>> =
        (0..s.layers).flat_map(|_| heads.map(|(_, h)| vec![0u8; h * n * s.dim * 2])).collect();
    let mut run = Run::new(&model.weights, n, kind)?;
    for chunk in tokens.chunks(kind.chunk.max(1)) {
        run.step(chunk, &mut |seen| {
            for (store, x) in stores[seen.layer * 3..].iter_mut().zip([seen.q, seen.k, seen.v]) {
                for (h, head) in x.chunks(chunk.len() * s.dim).enumerate() {
                    let to = &mut store[(h * n + seen.begin) * s.dim * 2..][..head.len() * 2];
                    let halves = head.iter().map(|&x| f16::from_f32(x));
                    to.chunks_exact_mut(2).zip(halves).for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes()));
                }
            }
            Ok(())
        })?;
        each(run.len());
    }
    let mut views = Vec::new();
    for (i, store) in stores.iter().enumerate() {
        let (name, h) = heads[i % 3];
        views.push((format!("layer{}.{name}", i / 3), TensorView::new(Dtype::F16, vec![h, n, s.dim], store)?));
    }
    let words = [
        ("n", n.to_string()),
        ("source", source.to_string()),
        ("causal", "true".to_string()),
        ("rope_base", s.rope_base.to_string()),
        ("rope_layout", "interleaved".to_string()),
        ("scale", (1.0 / (s.dim as f64).sqrt()).to_string()),
    ];
    let words: HashMap<String, String> = words.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
    safetensors::serialize_to_file(views, Some(words), path)?;
    Ok(())
}
