//! Other ways of computing or approximating attention, one file each, over one head at a time.
//!
//! Written from the papers. Hyperparameters are fields; [`catalogue`] holds the values used in the comparison. Matrix
//! products go through one f32 kernel ([`matrix`](crate::matrix)) and exponentials through the library's, so that the
//! methods are timed alike; IceFormer, and methods that are exact attention under another mask, run on the library's own.

mod ablation;
pub mod catalogue;
mod eviction;
mod h_transformer;
mod iceformer;
mod landmarks;
mod lara;
mod linformer;
mod longformer;
mod nystromformer;
mod performer;
mod random;
mod reformer;
mod rows;
mod top_k;
mod vanilla;

pub use ablation::{Nothing, Uniform};
pub use eviction::{H2o, StreamingLlm};
pub use h_transformer::HTransformer1d;
pub use iceformer::{Exact, IceFormer, IceFormerTopK};
pub use landmarks::segment_means;
pub use lara::Lara;
pub use linformer::Linformer;
pub use longformer::Longformer;
pub use nystromformer::Nystromformer;
pub use performer::Performer;
pub use random::{normals, orthogonal};
pub use reformer::Reformer;
pub use top_k::TopK;
pub use vanilla::Vanilla;

/// One head of self-attention: softmax(q k^T / sqrt(dim)) v.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// `[rows, dim]`.
    pub q: &'a [f32],
    /// `[rows, dim]`.
    pub k: &'a [f32],
    /// `[rows, dim]`.
    pub v: &'a [f32],
    /// Elements of a row.
    pub dim: usize,
    /// Whether rows see only keys up to their own.
    pub causal: bool,
}

impl Head<'_> {
    /// Tokens.
    pub fn rows(&self) -> usize {
        self.q.len() / self.dim
    }

    /// Keys that a row sees.
    pub fn seen(&self, row: usize) -> usize {
        if self.causal { row + 1 } else { self.rows() }
    }

    /// Softmax scale.
    pub fn scale(&self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }
}

/// A way to compute attention.
pub trait Method {
    /// Name for tables.
    fn name(&self) -> &'static str;

    /// Its hyperparameters in words, empty where it has none.
    fn settings(&self, rows: usize) -> String;

    /// Whether keys are the queries scaled to unit norm, and a row does not see itself: what it approximates is attention
    /// of a model trained so.
    fn shared_qk(&self) -> bool {
        false
    }

    /// Why it cannot do this kind of attention, where it cannot.
    fn cannot(&self, causal: bool) -> Option<&'static str>;

    /// What is a parameter of the model rather than work on a head (random projections), made before the clock runs.
    fn prepare(&mut self, rows: usize, dim: usize) {
        let _ = (rows, dim);
    }

    /// Computes `out`, `[rows, dim]`.
    ///
    /// # Panics
    /// Where it [`cannot`](Method::cannot), or was not prepared for these sizes.
    fn attend(&self, head: &Head<'_>, out: &mut [f32]);
}
