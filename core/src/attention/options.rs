//! What a caller asks for: mode, softmax shape, limits, knobs of the search.

use super::mode::Mode;
use super::tunables;
use crate::error::{Error, Result, Status};
use crate::features::{self, ACCELERATED, CERTIFICATES, SHARED_QK, TOP_K};
use crate::simd::Isa;

/// Options of an attention call or session. In each field 0 means its default.
///
/// The default is [`Mode::Auto`]: softmax(QK^T / sqrt(dim_k)) V, exact below 2,048 keys and where nothing else pays, else within a
/// relative error of about `tolerance`, which [`AttentionStats::measured`](super::AttentionStats::measured) reports. Ask
/// for [`Mode::Exact`] where every key has to count.
///
/// ```
/// use iceformer_core::attention::{AttentionOptions, Mode};
///
/// let default = AttentionOptions::default();
/// assert_eq!((default.mode, default.resolve(64, 8192)?.tolerance), (Mode::Auto, 0.05));
/// let exact = AttentionOptions { mode: Mode::Exact, window: 1024, ..AttentionOptions::default() };
/// assert_eq!(exact.resolve(64, 8192)?.scale, 0.125);
/// # Ok::<(), iceformer_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionOptions {
    /// Mode.
    pub mode: Mode,
    /// Relative output error aimed at in accelerated and auto mode; 0 = 0.05. It is no bound: measured on sampled rows, query heads
    /// that share keys and values side by side as one row. Below 0.001 attention is exact.
    pub tolerance: f32,
    /// Keys retrieved per row in top-k mode; 0 = [`top_k_for`]`(rows_kv, 0.005)`.
    pub top_k: usize,
    /// Softmax scale; 0 = 1/sqrt(dim_k).
    pub scale: f32,
    /// Logits become `softcap * tanh(logit / softcap)` before the mask; 0 = off.
    pub softcap: f32,
    /// Sliding window: a row at position p sees keys at positions above p - window (and below p + window where no causal
    /// limit applies); 0 = off.
    pub window: usize,
    /// Keys 0..sinks stay visible whatever the window says (masks still apply).
    pub sinks: usize,
    /// Threads to use inside one call (feature `std`); 0 or 1 = the caller's thread alone.
    pub num_threads: usize,
    /// Seed of the index in top-k mode.
    pub seed: u64,
    /// Levels of the index in top-k mode; 0 = 3.
    pub levels: usize,
    /// Simple indices per composite; 0 = 4.
    pub num_simple: usize,
    /// Composite indices; 0 = 2.
    pub num_composite: usize,
    /// Parents kept per level; 0 = 30.
    pub field_of_view: usize,
    /// Share of the points searched at a level that is retrieved; 0 = 0.8.
    pub retrieve_fraction: f32,
    /// Keys are the queries, scaled to unit norm, and a row does not see itself unless it sees nothing else (the
    /// shared-QK transformers of the paper's comparison with Reformer). The key tensor is not read.
    pub shared_qk: bool,
    /// Exact mode may multiply queries and keys in 16-bit fixed point where that is faster (AVX-512 with VNNI, more than
    /// twelve rows): logits are then off by a standard error that the statistics name, a few 1e-4 for usual heads.
    pub fixed_scores: bool,
    /// Bound the output error of every row, relative to its output: in the statistics, and by row in
    /// [`Problem::bounds`](super::Problem::bounds). Attention is exact then; what is bounded is rounding. Not in top-k mode.
    /// Scores stay f32 whatever `fixed_scores` says.
    pub certificate: bool,
    /// The same as `certificate`; kept for programs that name it. What accelerated attention errs by is in
    /// [`AttentionStats::measured`](super::AttentionStats::measured) without it.
    pub verified: bool,
    /// Inputs are known to be finite: skip the check.
    pub trusted: bool,
    /// Instruction set; `None` = the best of this machine.
    pub isa: Option<Isa>,
}

impl AttentionOptions {
    /// Whether this build has what is asked for.
    ///
    /// # Errors
    /// `Unsupported` and the field.
    pub fn built(&self) -> Result<()> {
        let has = ACCELERATED || self.mode != Mode::Accelerated;
        features::need(has, "mode", "this build has no accelerated attention")?;
        features::need(TOP_K || self.mode != Mode::TopK, "mode", "this build has no top-k attention")?;
        let has = CERTIFICATES || !(self.certificate || self.verified);
        features::need(has, "flags", "this build has no certificates")?;
        features::need(SHARED_QK || !self.shared_qk, "flags", "this build has no shared query-key mode")
    }

    /// Whether keys are the queries.
    pub(super) fn shared(&self) -> bool {
        SHARED_QK && self.shared_qk
    }

    /// Checks the ranges and replaces every 0 by its default, for heads of `dim_k` and `rows_kv` keys.
    ///
    /// # Errors
    /// `Argument` naming the field and value; `Unsupported` for what this version does not have.
    pub fn resolve(mut self, dim_k: usize, rows_kv: usize) -> Result<Self> {
        for (field, x, max) in [
            ("tolerance", self.tolerance, 1.0),
            ("scale", self.scale, f32::MAX),
            ("softcap", self.softcap, f32::MAX),
            ("retrieve_fraction", self.retrieve_fraction, 1.0),
        ] {
            if !(x >= 0.0 && x <= max) {
                return Err(Error::new(Status::Argument, field, "is negative, too large or not a number").number(x));
            }
        }
        let unsupported = |field, reason| Err(Error::new(Status::Unsupported, field, reason));
        self.built()?;
        self.certificate |= self.verified;
        if self.certificate && self.mode == Mode::TopK {
            return unsupported(
                "flags",
                "top-k attention drops keys, so that nothing bounds its error: no certificates",
            );
        }
        // Fixed point errs by what a standard error describes, not a bound.
        self.fixed_scores &= !self.certificate;
        if let Some(isa) = self.isa.filter(|i| !i.available()) {
            return unsupported("isa", isa.name());
        }
        if self.mode == Mode::Auto {
            self.mode = Mode::Exact;
        }
        let or = |x: usize, d: usize| if x == 0 { d } else { x };
        self.levels = or(self.levels, tunables::TOP_K_LEVELS);
        self.num_simple = or(self.num_simple, tunables::NUM_SIMPLE);
        self.num_composite = or(self.num_composite, tunables::NUM_COMPOSITE);
        self.field_of_view = or(self.field_of_view, tunables::FIELD_OF_VIEW);
        self.num_threads = or(self.num_threads, 1);
        if TOP_K {
            self.top_k = or(self.top_k, top_k_for(rows_kv, tunables::TOP_K_SHARE));
        }
        if self.tolerance == 0.0 {
            self.tolerance = tunables::TOLERANCE;
        }
        if self.retrieve_fraction == 0.0 {
            self.retrieve_fraction = tunables::RETRIEVE_FRACTION;
        }
        if self.scale == 0.0 {
            self.scale = 1.0 / libm::sqrtf(dim_k as f32);
        }
        Ok(self)
    }
}

/// The paper's rule for the number of keys to retrieve: max(min(floor(n alpha), 50), 30) (experiments on LLMs).
///
/// ```
/// use iceformer_core::attention::top_k_for;
///
/// assert_eq!([1_000, 8_000, 32_000].map(|n| top_k_for(n, 0.005)), [30, 40, 50]);
/// ```
pub fn top_k_for(n: usize, alpha: f32) -> usize {
    // In f32, where n x 0.005 rounds back to the number that was meant. NaN compares false and gives the lower end.
    let share = libm::floorf(n as f32 * alpha);
    let [least, most] = tunables::TOP_K_BOUNDS;
    if share > least { share.min(most) as usize } else { least as usize }
}
