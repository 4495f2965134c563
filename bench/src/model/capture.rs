//! Queries, keys and values of a text as a safetensors file that [`heads`](crate::heads) reads.
//!
//! They are as the sessions get them, after the rotary embedding, with neighbouring elements turning together.

use super::rope::Scaling;
use super::{Kind, Model, Result, Run};
use half::f16;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

/// What is captured, of what.
#[derive(Clone, Copy, Debug)]
pub struct What<'a> {
    /// Layers.
    pub layers: &'a [usize],
    /// What the text was.
    pub source: &'a str,
}

/// Bytes of one number.
const WIDTH: usize = 2;

/// Runs the model on the tokens and writes `layer{l}.q` `[heads, n, d]`, `.k` and `.v` in f16 while it runs; `each` is told how
/// many tokens are done. Until all are, the file has `.part` after its name.
///
/// # Errors
/// What the sessions or the file system answer; layers that are not there, or twice.
pub fn capture(
    model: &Model,
    tokens: &[u32],
    kind: &Kind,
    what: &What<'_>,
    path: &Path,
    mut each: impl FnMut(usize),
) -> Result<()> {
    let (s, n) = (model.weights.shape, tokens.len());
    let mut layers = what.layers.to_vec();
    layers.sort_unstable();
    let last = layers.last().copied().filter(|l| *l < s.layers && layers.windows(2).all(|l| l[0] != l[1]));
    let last = last.ok_or_else(|| format!("layers {:?} are not some of {}", what.layers, s.layers))?;
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let mut file = File::create(&part).map_err(|e| format!("{}: {e}", path.display()))?;
    let parts = [("q", s.heads_q), ("k", s.heads_kv), ("v", s.heads_kv)];
    // A tensor after the other; where each begins, in bytes after the header.
    let (mut begins, mut end, mut header) = (Vec::new(), 0, Map::new());
    header.insert("__metadata__".into(), about(model, n, what.source));
    for l in &layers {
        for (name, heads) in parts {
            begins.push(end);
            end += heads * n * s.dim * WIDTH;
            let (shape, range) = ([heads, n, s.dim], [begins[begins.len() - 1], end]);
            let tensor = json!({ "dtype": "F16", "shape": shape, "data_offsets": range });
            header.insert(format!("layer{l}.{name}"), tensor);
        }
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    let data = 8 + header.len();
    let mut run = Run::first(&model.weights, last + 1, n, kind)?;
    let mut bytes = Vec::new();
    for chunk in tokens.chunks(kind.chunk.max(1)) {
        run.step(chunk, &mut |seen| {
            let Ok(at) = layers.binary_search(&seen.layer) else { return Ok(()) };
            for (begin, x) in begins[at * 3..].iter().zip([seen.q, seen.k, seen.v]) {
                for (h, head) in x.chunks(chunk.len() * s.dim).enumerate() {
                    bytes.clear();
                    bytes.extend(head.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()));
                    let to = data + begin + (h * n + seen.begin) * s.dim * WIDTH;
                    file.seek(SeekFrom::Start(to as u64))?;
                    file.write_all(&bytes)?;
                }
            }
            Ok(())
        })?;
        each(run.len());
    }
    file.sync_all()?;
    std::fs::rename(&part, path)?;
    Ok(())
}

/// Words for whoever reads the file.
fn about(model: &Model, n: usize, source: &str) -> Value {
    let (s, rope) = (model.weights.shape, &model.weights.rope);
    let scaling = match rope.scaling {
        Scaling::None => "none".to_string(),
        Scaling::Linear(factor) => format!("linear {factor}"),
        Scaling::Yarn { factor, .. } => format!("yarn {factor}"),
    };
    json!({
        "n": n.to_string(),
        "source": source,
        "causal": "true",
        "rope_base": rope.base.to_string(),
        "rope_layout": "interleaved",
        "rope_scaling": scaling,
        "scale": (1.0 / (s.dim as f64).sqrt()).to_string(),
    })
}
