//! One query head, and which of its rows are attended.

use super::super::mask::Masking;
use crate::features::SHARED_QK;
use crate::mem::Rows;

/// One (batch, query head) of an exact attention problem.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Queries `[rows_q, dim_k]`.
    pub q: Rows<'a>,
    /// Keys `[rows_kv, dim_k]`; not read under `shared_qk`.
    pub k: Rows<'a>,
    /// Values `[rows_kv, dim_v]`.
    pub v: Rows<'a>,
    /// Mask, window, sinks.
    pub masking: &'a Masking<'a>,
    /// Batch, for the mask.
    pub batch: usize,
    /// Query head, for the mask.
    pub head: usize,
    /// Softmax scale.
    pub scale: f32,
    /// Logits become `softcap * tanh(logit / softcap)`; 0 = off.
    pub softcap: f32,
    /// Keys are the queries scaled to unit norm; a row sees itself only when it sees nothing else.
    pub shared_qk: bool,
}

impl Head<'_> {
    /// Whether keys are the queries.
    #[inline(always)]
    pub(crate) fn shared(&self) -> bool {
        SHARED_QK && self.shared_qk
    }
}
