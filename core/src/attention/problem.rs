//! One attention problem over four-dimensional tensors: its description, checks and statistics.

use super::certificate::Certificate;
use super::clustered::FINEST;
use super::measured::Measured;
use super::{AttentionOptions, Mask, Masking, Mode};
use crate::error::{Error, Result, Status};
use crate::features::{ACCELERATED, TOP_K};
use crate::mem::{Dtype, Rows, Tensor, TensorMut};

/// One attention call: out = softmax(scale q k^T + mask) v per head; query head h uses KV head `h / (heads_q / heads_kv)`.
pub struct Problem<'a> {
    /// Queries `[batch, heads_q, rows_q, dim_k]`.
    pub q: Tensor<'a>,
    /// Keys `[batch, heads_kv, rows_kv, dim_k]`; not read with `shared_qk` (pass the queries).
    pub k: Tensor<'a>,
    /// Values `[batch, heads_kv, rows_kv, dim_v]`.
    pub v: Tensor<'a>,
    /// Output `[batch, heads_q, rows_q, dim_v]`; rows that see no key become zero.
    pub out: TensorMut<'a>,
    /// Log-sum-exp of each row's logits, f32 `[batch, heads_q, rows_q, 1]`; -inf for rows that see no key.
    pub lse: Option<TensorMut<'a>>,
    /// Bounds on the relative error of each row's output, f32 `[batch, heads_q, rows_q, 1]`; asks for them like
    /// `options.certificate`. Infinite where nothing is certified.
    pub bounds: Option<TensorMut<'a>>,
    /// Mask.
    pub mask: Mask<'a>,
    /// Options.
    pub options: AttentionOptions,
}

/// AUTO attends exactly below so many keys, where cells cannot pay.
pub(super) const DENSE_BELOW: usize = 2048;

/// Keys below which a few rows of a session, as in decoding, are read exactly without loss: cells would save less than half of
/// the time.
pub(super) const DECODE_BELOW: usize = 4096;

/// AUTO attends exactly below so many rows of a KV head, which would not pay for building cells.
pub(super) const ROWS_BELOW: usize = 512;

/// Rows of cells are numbered in 32 bits.
pub(super) const MOST_KEYS: usize = u32::MAX as usize;

/// Why the mode in the statistics ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// The caller asked for it.
    #[default]
    Requested,
    /// AUTO: this kind of problem has no faster way that keeps a tolerance.
    OnlyWay,
    /// Too few keys or rows: fewer keys than `dense_below`, or `top_k` covers all of them.
    Short,
    /// AUTO: cells were predicted to be cheaper for these heads, or for most of their rows.
    Cheaper,
    /// AUTO: cells were predicted to cost as much as every key.
    Diffuse,
}

/// What a call did. Parts of a partitioned call each report their own share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionStats {
    /// Mode that ran.
    pub mode: Mode,
    /// Why.
    pub reason: Reason,
    /// Query-key pairs whose weight was computed exactly.
    pub pairs: u64,
    /// Visible pairs: what exact attention computes.
    pub pairs_dense: u64,
    /// Pairs of a row and a cell whose keys were scored exactly, in accelerated mode.
    pub cells_opened: u64,
    /// Rows of a call in accelerated mode, all heads counted, however each of them was attended.
    pub rows: u64,
    /// Deprecated: always 0. See [`measured`](Self::measured).
    pub estimated_mass: f32,
    /// Rows of such a call that were attended exactly, beside sampled ones.
    pub exact_rows: u64,
    /// Pairs of a row and a known key, one that sampled rows found heavy.
    pub known: u64,
    /// What was measured on sampled rows.
    pub measured: Measured,
    /// Largest standard error of a logit that came from fixed point; 0 where all came from f32.
    pub score_error: f32,
    /// Worst certified error of a row, relative to its output; NaN where none was asked for.
    pub certified_error: f32,
    /// Mean certified error, errors above 1 counted as 1; NaN where none was asked for.
    pub certified_mean: f64,
    /// Rows with a certified error.
    pub certificates: u64,
    /// Those of them that keep the tolerance by it.
    pub certified: u64,
    /// Seconds spent inserting keys into an index (0 without `std`); the sum over threads.
    pub build_seconds: f64,
    /// Seconds spent attending (0 without `std`); the sum over threads.
    pub attend_seconds: f64,
}

impl AttentionStats {
    pub(super) fn new(mode: Mode, reason: Reason) -> Self {
        AttentionStats {
            mode,
            reason,
            pairs: 0,
            pairs_dense: 0,
            cells_opened: 0,
            rows: 0,
            estimated_mass: 0.0,
            exact_rows: 0,
            known: 0,
            measured: Measured::default(),
            score_error: 0.0,
            certified_error: f32::NAN,
            certified_mean: f64::NAN,
            certificates: 0,
            certified: 0,
            build_seconds: 0.0,
            attend_seconds: 0.0,
        }
    }

    /// Pairs that were all scored.
    pub(super) fn add_exact(&mut self, pairs: u64) {
        self.pairs += pairs;
        self.pairs_dense += pairs;
    }

    /// A row more, certified for a relative error.
    pub(super) fn certify(&mut self, error: f32, tolerance: f32) {
        self.add_certified(1, error, f64::from(error.min(1.0)));
        self.certified += u64::from(error <= tolerance);
    }

    fn add_certified(&mut self, rows: u64, worst: f32, mean: f64) {
        if rows == 0 {
            return;
        }
        let all = (self.certificates + rows) as f64;
        (self.certified_error, self.certified_mean) = match self.certificates {
            0 => (worst, mean),
            _ => (
                self.certified_error.max(worst),
                self.certified_mean + (mean - self.certified_mean) * rows as f64 / all,
            ),
        };
        self.certificates += rows;
    }

    /// Adds another part of the same call.
    pub fn add(&mut self, other: &AttentionStats) {
        let rows = self.rows + other.rows;
        if rows > 0 {
            let sum = self.estimated_mass * self.rows as f32 + other.estimated_mass * other.rows as f32;
            self.estimated_mass = sum / rows as f32;
        }
        self.rows = rows;
        self.exact_rows += other.exact_rows;
        self.known += other.known;
        self.measured.add(&other.measured);
        self.add_certified(other.certificates, other.certified_error, other.certified_mean);
        self.certified += other.certified;
        self.pairs += other.pairs;
        self.pairs_dense += other.pairs_dense;
        self.cells_opened += other.cells_opened;
        self.score_error = self.score_error.max(other.score_error);
        self.build_seconds += other.build_seconds;
        self.attend_seconds += other.attend_seconds;
    }
}

/// A problem that passed its checks: shapes by name, options without zeros.
pub(super) struct Checked<'a> {
    pub batch: usize,
    pub heads_q: usize,
    pub heads_kv: usize,
    pub rows_q: usize,
    pub rows_kv: usize,
    pub dim_k: usize,
    pub dim_v: usize,
    pub options: AttentionOptions,
    pub mode: Mode,
    pub reason: Reason,
    pub masking: Masking<'a>,
}

impl<'a> Checked<'a> {
    /// How rows are certified, for the lengths of the longest key and value.
    pub(super) fn certificate<'b>(&'b self, problem: &'b Problem<'_>, longest: [f32; 2]) -> Certificate<'b> {
        let AttentionOptions { scale, softcap, tolerance, .. } = self.options;
        let bounds = problem.bounds.as_ref();
        let numbers = [scale, softcap, tolerance];
        Certificate::new(bounds, &self.masking, longest, self.rows_kv, numbers, problem.out.dtype())
    }
}

fn shape(field: &'static str, reason: &'static str, need: usize, have: usize) -> Result<()> {
    if need == have { Ok(()) } else { Err(Error::new(Status::Shape, field, reason).need(need, have)) }
}

/// Refuses NaN and infinity, naming the row (counted within its head).
pub(super) fn check_finite(t: &Tensor<'_>, field: &'static str) -> Result<()> {
    match t.first_not_finite() {
        Some((_, _, row)) => Err(Error::new(Status::NotFinite, field, "holds NaN or infinity").row(row)),
        None => Ok(()),
    }
}

/// Refuses finite numbers so large that products of queries and keys, or sums of weighted values, leave the range of f32:
/// `largest` are the largest magnitudes of keys and values.
pub(super) fn check_range(q: &Tensor<'_>, largest: [f32; 2], rows_kv: usize) -> Result<()> {
    let [key, value] = largest.map(f64::from);
    let most = f64::from(f32::MAX) / 4.0;
    let (query, row) = q.largest();
    if f64::from(query) * key * q.shape()[3] as f64 > most {
        return Err(Error::new(Status::NotFinite, "q", "products with the keys overflow").row(row));
    }
    if value * rows_kv as f64 > most {
        return Err(Error::new(Status::NotFinite, "v", "sums of the values overflow").number(largest[1]));
    }
    Ok(())
}

/// Refuses rows whose norm an index cannot take.
pub(super) fn check_norms(rows: &Rows<'_>, field: &'static str) -> Result<()> {
    let most = f64::from(crate::dci::MAX_NORM);
    for i in 0..rows.rows() {
        let mut norm2 = 0.0f64;
        let mut part = [0.0f32; 64];
        for begin in (0..rows.cols()).step_by(64) {
            let n = (rows.cols() - begin).min(64);
            rows.read_part(i, begin, &mut part[..n]);
            norm2 += part[..n].iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        }
        // Half of the limit: the index sums in f32.
        if norm2 >= most * most * 0.5 {
            return Err(Error::new(Status::NotFinite, field, "norm is too large for top-k retrieval").row(i));
        }
    }
    Ok(())
}

impl<'a> Problem<'a> {
    /// Checks everything that can be wrong before anything is written. O(inputs) unless `trusted`.
    pub(super) fn check(&self) -> Result<Checked<'a>> {
        let [batch, heads_q, rows_q, dim_k] = self.q.shape();
        let [_, heads_kv, rows_kv, dim_v] = self.v.shape();
        self.options.built()?;
        let keys = if self.options.shared() { self.q } else { self.k };
        let [batch_k, heads_k, rows_k, cols_k] = keys.shape();
        for (field, n) in
            [("batch", batch), ("heads_q", heads_q), ("heads_kv", heads_kv), ("dim_k", dim_k), ("dim_v", dim_v)]
        {
            if n == 0 {
                return Err(Error::new(Status::Shape, field, "must be at least 1").value(0));
            }
        }
        if !heads_q.is_multiple_of(heads_kv) {
            return Err(Error::new(Status::Shape, "heads_q", "must be a multiple of heads_kv").need(heads_kv, heads_q));
        }
        if self.options.shared() {
            shape("heads_kv", "shared query-key mode needs as many as heads_q", heads_q, heads_kv)?;
            shape("rows_kv", "shared query-key mode needs as many as rows_q", rows_q, rows_kv)?;
        }
        shape("k", "batch differs from q's", batch, batch_k)?;
        shape("k", "heads differ from v's", heads_kv, heads_k)?;
        shape("k", "rows differ from v's", rows_kv, rows_k)?;
        shape("k", "row size differs from q's", dim_k, cols_k)?;
        shape("v", "batch differs from q's", batch, self.v.shape()[0])?;
        let want = [batch, heads_q, rows_q, dim_v];
        for (need, have) in want.into_iter().zip(self.out.shape()) {
            shape("out", "shape is not [batch, heads_q, rows_q, dim_v]", need, have)?;
        }
        for (field, rows, wrong) in [
            ("lse", &self.lse, "shape is not [batch, heads_q, rows_q]"),
            ("bounds", &self.bounds, "shape is not [batch, heads_q, rows_q]"),
        ] {
            let Some(rows) = rows else { continue };
            for (need, have) in [batch, heads_q, rows_q, 1].into_iter().zip(rows.shape()) {
                shape(field, wrong, need, have)?;
            }
            if rows.dtype() != Dtype::F32 {
                return Err(Error::new(Status::Unsupported, field, "must be f32"));
            }
            if !rows.rows_are_packed() {
                return Err(Error::new(Status::Stride, field, "the rows of a head must be packed"));
            }
        }
        let certificate = self.options.certificate || self.bounds.is_some();
        let options = AttentionOptions { certificate, ..self.options }.resolve(dim_k, rows_kv)?;
        let masking =
            Masking::new(self.mask, options.window, options.sinks, [batch, heads_q, rows_q, rows_kv], options.trusted)?;
        // Bounds and the finest tolerances need every key, and cells know nothing of biases.
        let whole = options.certificate || masking.biases().is_some() || options.tolerance < FINEST;
        let (mode, reason) = match self.options.mode {
            Mode::Auto | Mode::Accelerated if whole && !options.shared() => (Mode::Exact, Reason::OnlyWay),
            Mode::TopK if options.top_k >= rows_kv => (Mode::Exact, Reason::Short),
            Mode::TopK => (Mode::TopK, Reason::Requested),
            Mode::Auto if !ACCELERATED || options.shared() || rows_kv > MOST_KEYS => (Mode::Exact, Reason::OnlyWay),
            Mode::Auto if rows_kv < DENSE_BELOW || rows_q * (heads_q / heads_kv) < ROWS_BELOW => {
                (Mode::Exact, Reason::Short)
            }
            Mode::Auto => (Mode::Accelerated, Reason::Cheaper),
            Mode::Accelerated if options.shared() => {
                return Err(Error::new(Status::Unsupported, "flags", "shared query-key mode is exact or top-k"));
            }
            Mode::Accelerated if rows_kv > MOST_KEYS => {
                return Err(Error::new(Status::Shape, "rows_kv", "is too large for cells").value(rows_kv as u64));
            }
            Mode::Accelerated => (Mode::Accelerated, Reason::Requested),
            Mode::Exact => (Mode::Exact, Reason::Requested),
        };
        if !options.trusted {
            check_finite(&self.q, "q")?;
            if !options.shared() {
                check_finite(&self.k, "k")?;
            }
            check_finite(&self.v, "v")?;
            // Keys of the shared mode have unit norm.
            let key = if options.shared() { 1.0 } else { self.k.largest().0 };
            check_range(&self.q, [key, self.v.largest().0], rows_kv)?;
            if TOP_K && mode == Mode::TopK && !options.shared() {
                for b in 0..batch {
                    (0..heads_kv).try_for_each(|h| check_norms(&self.k.head(b, h), "k"))?;
                }
            }
        }
        Ok(Checked { batch, heads_q, heads_kv, rows_q, rows_kv, dim_k, dim_v, options, mode, reason, masking })
    }
}

/// The paper's rule for the number of keys to retrieve: max(min(floor(n alpha), 50), 30) (experiments on LLMs).
pub fn top_k_for(n: usize, alpha: f32) -> usize {
    // In f32, where n x 0.005 rounds back to the number that was meant. NaN compares false and gives the lower end.
    let share = libm::floorf(n as f32 * alpha);
    if share > 30.0 { share.min(50.0) as usize } else { 30 }
}
