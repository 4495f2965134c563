//! This library: exact attention, the paper's Algorithm 1, accelerated attention.

use super::{Head, Method};
use iceformer_core::attention::{AttentionOptions, AttentionStats, Mask, Mode, Problem, attention, top_k_for};
use iceformer_core::mem::{Memory, Tensor, TensorMut};

/// Rows of a head through the library.
pub(super) fn run(head: &Head<'_>, options: AttentionOptions, out: &mut [f32]) -> AttentionStats {
    let (n, rows, d) = (head.k.len() / head.dim, head.rows(), head.dim);
    let tensor = |x, rows| Tensor::new(x, [1, 1, rows, d]).expect("a head's tensor");
    let mask = if head.causal { Mask::Causal { q_pos0: 0 } } else { Mask::None };
    let problem = Problem {
        q: tensor(head.q, rows),
        k: tensor(head.k, n),
        v: tensor(head.v, n),
        out: TensorMut::new(out, [1, 1, rows, d]).expect("room for the output"),
        lse: None,
        bounds: None,
        mask,
        options: AttentionOptions { trusted: true, ..options },
    };
    attention(&problem, &Memory::system(0).expect("memory")).expect("attention of a head")
}

/// Exact attention by the library's kernel.
pub struct Exact {
    /// Keys are the queries scaled to unit norm.
    pub shared_qk: bool,
}

impl Method for Exact {
    fn name(&self) -> &'static str {
        if self.shared_qk { "Exact, shared QK" } else { "Exact" }
    }

    fn settings(&self, _: usize) -> String {
        String::new()
    }

    fn shared_qk(&self) -> bool {
        self.shared_qk
    }

    fn cannot(&self, _: bool) -> Option<&'static str> {
        None
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        let options = AttentionOptions { mode: Mode::Exact, shared_qk: self.shared_qk, ..AttentionOptions::default() };
        run(head, options, out);
    }
}

/// The paper's method: top-k retrieval by Prioritized DCI, softmax over the keys found.
pub struct IceFormerTopK {
    /// Keys of a row; 0 = the paper's rule for long prompts.
    pub k: usize,
    /// Keys are the queries scaled to unit norm.
    pub shared_qk: bool,
}

impl Method for IceFormerTopK {
    fn name(&self) -> &'static str {
        if self.shared_qk { "IceFormer top-k, shared QK" } else { "IceFormer top-k" }
    }

    fn settings(&self, rows: usize) -> String {
        format!("k {}", if self.k == 0 { top_k_for(rows, 0.005) } else { self.k })
    }

    fn shared_qk(&self) -> bool {
        self.shared_qk
    }

    fn cannot(&self, _: bool) -> Option<&'static str> {
        None
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        let plain = AttentionOptions::default();
        run(head, AttentionOptions { mode: Mode::TopK, top_k: self.k, shared_qk: self.shared_qk, ..plain }, out);
    }
}

/// Accelerated attention: cells opened where they matter, estimated elsewhere.
pub struct IceFormer {
    /// Error aimed at.
    pub tolerance: f32,
}

impl Method for IceFormer {
    fn name(&self) -> &'static str {
        "IceFormer accelerated"
    }

    fn settings(&self, _: usize) -> String {
        format!("tolerance {}", self.tolerance)
    }

    fn cannot(&self, _: bool) -> Option<&'static str> {
        None
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        let options =
            AttentionOptions { mode: Mode::Accelerated, tolerance: self.tolerance, ..AttentionOptions::default() };
        run(head, options, out);
    }
}
