//! One query head, and what all heads of a call have in common.

use super::super::AttentionOptions;
use super::super::mask::Masking;
use super::tunables::FEW;
use crate::features::{PANELS, SHARED_QK};
use crate::mem::{Rows, RowsMut, Tensor, TensorMut};
use crate::simd::Isa;

/// What all heads of a call or a session have in common.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) q: Tensor<'a>,
    pub(crate) out: &'a TensorMut<'a>,
    /// Packed f32.
    pub(crate) lse: Option<&'a TensorMut<'a>>,
    pub(crate) masking: &'a Masking<'a>,
    /// Resolved.
    pub(crate) options: &'a AttentionOptions,
    pub(crate) isa: Isa,
}

impl<'a> Call<'a> {
    /// Query head `head` of a batch, on these keys and values.
    pub(crate) fn head(&self, batch: usize, head: usize, k: Rows<'a>, v: Rows<'a>) -> Head<'a> {
        let (q, o) = (self.q.head(batch, head), self.options);
        let (k, masking) = (if o.shared() { q } else { k }, self.masking);
        Head { q, k, v, masking, batch, head, scale: o.scale, softcap: o.softcap, shared_qk: o.shared_qk }
    }

    /// Where the outputs and the log-sum-exps of rows `begin..begin + n` of a query head go.
    pub(crate) fn rows(
        &self,
        batch: usize,
        head: usize,
        begin: usize,
        n: usize,
    ) -> (RowsMut<'a>, Option<&'a mut [f32]>) {
        let lse = self.lse.and_then(|lse| lse.rows(batch, head, begin, n).into_slice());
        (self.out.rows(batch, head, begin, n), lse)
    }
}

/// Whether an exact call of `rows` rows multiplies in fixed point.
pub(crate) fn uses_fixed_scores(o: &AttentionOptions, rows: usize) -> bool {
    PANELS && o.fixed_scores && rows > FEW && o.isa.unwrap_or_else(Isa::best).dot16()
}

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
