//! One attention problem over four-dimensional tensors: its description and checks.

use super::dense::Call;
use super::mask::{Mask, Masking};
use super::mode::Mode;
use super::options::AttentionOptions;
use super::stats::Reason;
use super::tunables::{DENSE_BELOW, FINEST, MOST_KEYS, ROWS_BELOW};
use crate::error::{Error, Result, Status, same, same_shape};
use crate::features::{ACCELERATED, TOP_K};
use crate::mem::{Dtype, Rows, Tensor, TensorMut};
use crate::simd::Isa;

/// One attention call: out = softmax(scale q k^T + mask) v per head; query head h uses KV head `h / (heads_q / heads_kv)`.
///
/// ```
/// # #[cfg(feature = "std")] {
/// use iceformer_core::attention::{AttentionOptions, Mode, Problem, attention};
/// use iceformer_core::mem::{Memory, Tensor, TensorMut};
///
/// // Four query heads on two KV heads, eight tokens.
/// let (q, kv, mut out) = (vec![0.5; 4 * 8 * 16], vec![0.25; 2 * 8 * 16], vec![0.0; 4 * 8 * 16]);
/// let kv = Tensor::new(&kv, [1, 2, 8, 16])?;
/// let to = TensorMut::new(&mut out, [1, 4, 8, 16])?;
/// let problem = Problem::new(Tensor::new(&q, [1, 4, 8, 16])?, kv, kv, to).causal();
/// let options = AttentionOptions { mode: Mode::Exact, ..AttentionOptions::default() };
/// let stats = attention(&problem.options(options), &Memory::system(0)?)?;
/// assert_eq!(stats.pairs, 4 * 36);
/// assert!(out.iter().all(|x| (x - 0.25).abs() < 1e-6));
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
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

impl<'a> Problem<'a> {
    /// Every key for every row, with default options; the fields and the functions below say what else there is.
    pub fn new(q: Tensor<'a>, k: Tensor<'a>, v: Tensor<'a>, out: TensorMut<'a>) -> Self {
        Problem { q, k, v, out, lse: None, bounds: None, mask: Mask::None, options: AttentionOptions::default() }
    }

    /// Each row sees the keys up to its own, the last row all of them.
    pub fn causal(self) -> Self {
        let [rows_q, rows_kv] = [self.q.shape()[2], self.v.shape()[2]];
        self.mask(Mask::Causal { q_pos0: rows_kv.saturating_sub(rows_q) as u64 })
    }

    /// Another mask.
    pub fn mask(self, mask: Mask<'a>) -> Self {
        Problem { mask, ..self }
    }

    /// Other options.
    pub fn options(self, options: AttentionOptions) -> Self {
        Problem { options, ..self }
    }

    /// Log-sum-exps too: see [`Problem::lse`](#structfield.lse).
    pub fn lse(self, lse: impl Into<Option<TensorMut<'a>>>) -> Self {
        Problem { lse: lse.into(), ..self }
    }

    /// Bounds too: see [`Problem::bounds`](#structfield.bounds).
    pub fn bounds(self, bounds: impl Into<Option<TensorMut<'a>>>) -> Self {
        Problem { bounds: bounds.into(), ..self }
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
    /// What its heads have in common.
    pub(super) fn call(&'a self, of: &'a Problem<'a>) -> Call<'a> {
        let (options, masking) = (&self.options, &self.masking);
        let isa = options.isa.unwrap_or_else(Isa::best);
        Call { q: of.q, out: &of.out, lse: of.lse.as_ref(), masking, options, isa }
    }

    /// Keys and values of a KV head.
    pub(super) fn kv(&self, of: &Problem<'a>, batch: usize, head: usize) -> (Rows<'a>, Rows<'a>) {
        let k = if self.options.shared() { of.q } else { of.k };
        (k.head(batch, head), of.v.head(batch, head))
    }
}

/// Refuses NaN and infinity, naming the row (counted within its head).
pub(super) fn check_finite(t: &Tensor<'_>, field: &'static str) -> Result<()> {
    let [batch, heads, _, _] = t.shape();
    (0..batch).try_for_each(|b| (0..heads).try_for_each(|h| t.head(b, h).check_finite(field)))
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
            same("heads_kv", "shared query-key mode needs as many as heads_q", heads_q, heads_kv)?;
            same("rows_kv", "shared query-key mode needs as many as rows_q", rows_q, rows_kv)?;
        }
        same("k", "batch differs from q's", batch, batch_k)?;
        same("k", "heads differ from v's", heads_kv, heads_k)?;
        same("k", "rows differ from v's", rows_kv, rows_k)?;
        same("k", "row size differs from q's", dim_k, cols_k)?;
        same("v", "batch differs from q's", batch, self.v.shape()[0])?;
        let wrong = "shape is not [batch, heads_q, rows_q, dim_v]";
        same_shape("out", wrong, [batch, heads_q, rows_q, dim_v], self.out.shape())?;
        for (field, rows) in [("lse", &self.lse), ("bounds", &self.bounds)] {
            let Some(rows) = rows else { continue };
            same_shape(field, "shape is not [batch, heads_q, rows_q]", [batch, heads_q, rows_q, 1], rows.shape())?;
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
        // Bounds and the finest tolerances need every key.
        let whole = ACCELERATED && (options.certificate || options.tolerance < FINEST);
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
