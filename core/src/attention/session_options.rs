//! What a caller asks of a session.

use super::clustered::SEGMENT;
use super::head_topk::index_options;
use super::mode::Mode;
use super::options::AttentionOptions;
use super::tunables::DENSE_BELOW;
use crate::dci::IndexOptions;
use crate::error::{Error, Result, Status};
use crate::features::{self, ACCELERATED, HALF, TOP_K};
use crate::mem::Dtype;
use crate::simd::Isa;

/// Shape of a session.
///
/// ```
/// use iceformer_core::attention::{AttentionOptions, Mode, SessionOptions};
/// use iceformer_core::mem::Dtype;
///
/// let attention = AttentionOptions { mode: Mode::Exact, ..AttentionOptions::default() };
/// let options = SessionOptions { dim_v: 32, attention, ..SessionOptions::new([8, 2], 64, 4096) };
/// assert_eq!((options.resolve()?.kv_dtype, options.heads_q / options.heads_kv), (Dtype::F32, 4));
/// # Ok::<(), iceformer_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Query heads, a multiple of `heads_kv`.
    pub heads_q: usize,
    /// KV heads.
    pub heads_kv: usize,
    /// Elements of a key.
    pub dim_k: usize,
    /// Elements of a value.
    pub dim_v: usize,
    /// Tokens there is room for; all memory is taken at creation.
    pub capacity: usize,
    /// Storage type of keys and values.
    pub kv_dtype: Dtype,
    /// Attention options. `num_threads` and `shared_qk` have no place here: parts are the caller's threads.
    pub attention: AttentionOptions,
    /// Below this many tokens attention is exact whatever the mode; 0 = no such limit, in auto mode 2048 and,
    /// for up to 12 rows at a time, 4,096.
    pub dense_below: usize,
}

impl SessionOptions {
    /// Keys and values of `dim` f32 elements, `heads_q` query heads on `heads_kv` KV heads, room for `capacity` tokens, and defaults
    /// for the rest.
    pub fn new([heads_q, heads_kv]: [usize; 2], dim: usize, capacity: usize) -> Self {
        SessionOptions {
            heads_q,
            heads_kv,
            dim_k: dim,
            dim_v: dim,
            capacity,
            kv_dtype: Dtype::F32,
            attention: AttentionOptions::default(),
            dense_below: 0,
        }
    }

    /// Whether the heads keep an index.
    pub(super) fn has_index(&self) -> bool {
        TOP_K && self.attention.mode == Mode::TopK
    }

    /// Options of the index that the heads keep, if they do; of resolved options.
    ///
    /// # Errors
    /// As [`IndexOptions::resolve`].
    pub(super) fn index(&self) -> Result<Option<IndexOptions>> {
        self.has_index().then(|| index_options(&self.attention, self.dim_k, self.capacity)).transpose()
    }

    /// Tokens from which on something else than exact attention may run.
    pub(super) fn least(&self) -> usize {
        match (self.dense_below, self.attention.mode) {
            (0, Mode::Auto) => DENSE_BELOW,
            (n, _) => n,
        }
    }

    /// Whether the heads keep cells: where there may once be a complete segment to use.
    pub(super) fn has_cells(&self) -> bool {
        ACCELERATED
            && matches!(self.attention.mode, Mode::Accelerated | Mode::Auto)
            && !self.attention.certificate
            && self.capacity >= self.least().max(SEGMENT)
    }

    pub(super) fn isa(&self) -> Isa {
        self.attention.isa.unwrap_or_else(Isa::best)
    }

    /// Checks the ranges; attention options keep their zeros except for those that size the index.
    ///
    /// # Errors
    /// `Shape`, `Argument`, `Unsupported`, naming the field.
    pub fn resolve(mut self) -> Result<Self> {
        let sizes = [
            ("heads_q", self.heads_q, 1 << 16),
            ("heads_kv", self.heads_kv, 1 << 16),
            ("dim_k", self.dim_k, 65535),
            ("dim_v", self.dim_v, 65535),
            ("capacity", self.capacity, crate::dci::MAX_KEYS),
        ];
        for (field, n, most) in sizes {
            if n == 0 || n > most {
                return Err(Error::new(Status::Shape, field, "must be at least 1 and not too large").value(n as u64));
            }
        }
        if !self.heads_q.is_multiple_of(self.heads_kv) {
            return Err(Error::new(Status::Shape, "heads_q", "must be a multiple of heads_kv")
                .need(self.heads_kv, self.heads_q));
        }
        if self.attention.shared_qk {
            return Err(Error::new(Status::Unsupported, "flags", "shared query-key mode has no sessions"));
        }
        if self.attention.num_threads > 1 {
            return Err(Error::new(Status::Unsupported, "num_threads", "sessions are partitioned by the caller"));
        }
        features::need(HALF || self.kv_dtype == Dtype::F32, "kv_dtype", "this build stores f32 only")?;
        let mode = self.attention.mode;
        let top_k = self.attention.top_k;
        self.attention = self.attention.resolve(self.dim_k, self.capacity)?;
        // Both follow the length of the moment.
        self.attention.mode = mode;
        self.attention.top_k = top_k;
        Ok(self)
    }
}
