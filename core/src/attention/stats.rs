//! What a call did.

use super::measured::Measured;
use super::mode::Mode;

/// Why the mode in the statistics ran.
///
/// ```
/// # #[cfg(all(feature = "std", feature = "full"))] {
/// use iceformer_core::attention::{Problem, Reason, attention};
/// use iceformer_core::mem::{Memory, Tensor, TensorMut};
///
/// let (x, mut out) = ([0.5; 3 * 4], [0.0; 3 * 4]);
/// let t = Tensor::new(&x, [1, 1, 3, 4])?;
/// let stats = attention(&Problem::new(t, t, t, TensorMut::new(&mut out, [1, 1, 3, 4])?), &Memory::system(0)?)?;
/// assert_eq!(stats.reason, Reason::Short); // Three keys: AUTO attends exactly.
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
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

/// Rows of an accelerated call that were attended exactly, and why; all query heads counted.
///
/// ```
/// use iceformer_core::attention::ExactRows;
///
/// assert_eq!(ExactRows { short: 3, strict: 2, costly: 1 }.all(), 6);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExactRows {
    /// Too few whole segments are seen by all rows of their block, or their block has too few rows.
    pub short: u64,
    /// Sampled rows err by more than the tolerance at every threshold.
    pub strict: u64,
    /// AUTO: cells would have cost about as much.
    pub costly: u64,
}

impl ExactRows {
    /// All of them.
    pub fn all(&self) -> u64 {
        self.short + self.strict + self.costly
    }

    fn add(&mut self, other: &ExactRows) {
        self.short += other.short;
        self.strict += other.strict;
        self.costly += other.costly;
    }
}

/// What a call did. Parts of a partitioned call each report their own share.
///
/// ```
/// # #[cfg(all(feature = "std", feature = "full"))] {
/// use iceformer_core::attention::{AttentionOptions, Mode, Problem, Reason, attention};
/// use iceformer_core::mem::{Memory, Tensor, TensorMut};
///
/// let x: Vec<f32> = (0..4096 * 16).map(|i| 0.5 * (i as f32).sin()).collect();
/// let (mut out, shape) = (vec![0.0; x.len()], [1, 1, 4096, 16]);
/// let t = Tensor::new(&x, shape)?;
/// let problem = Problem::new(t, t, t, TensorMut::new(&mut out, shape)?).causal();
/// let stats = attention(&problem, &Memory::system(0)?)?;
/// assert_eq!((stats.mode, stats.reason), (Mode::Accelerated, Reason::Cheaper));
/// assert!(stats.pairs < stats.pairs_dense / 2);
/// // The error of a few sampled rows, which were attended exactly, too.
/// assert!(stats.measured.rows() > 0 && stats.measured.mean() < 0.05);
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
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
    /// Rows of such a call that were attended exactly, beside sampled ones.
    pub exact_rows: ExactRows,
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
            exact_rows: ExactRows::default(),
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

    /// Of AUTO, after a call: where all was attended exactly, that is what it was.
    pub(super) fn settle(&mut self) {
        if self.pairs == self.pairs_dense {
            (self.mode, self.reason) = (Mode::Exact, Reason::Diffuse);
        }
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
        self.rows += other.rows;
        self.exact_rows.add(&other.exact_rows);
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
