//! Errors of sampled rows, which are attended exactly and approximately.

use crate::features::ACCELERATED;

/// Bins of relative errors, two an octave, the last from 1 on.
const BINS: usize = 32;

/// Relative output errors of sampled rows, all heads that share keys and values side by side: measured, not predicted.
///
/// ```
/// use iceformer_core::attention::Measured;
///
/// // What exact calls report: nothing was measured.
/// let none = Measured::default();
/// assert!(none.rows() == 0 && none.mean().is_nan() && none.p95().is_nan() && none.worst().is_nan());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Rows measured.
    rows: u64,
    /// Sums of squared errors and of squared outputs.
    squares: [f64; 2],
    worst: f32,
    bins: [u32; BINS],
}

impl Measured {
    /// A row more, that erred so, squared, where its output has such a square.
    pub(super) fn note(&mut self, error: f32, output: f32) {
        if !error.is_finite() || !output.is_finite() {
            // Squares beyond the range of f32 say nothing.
            return;
        }
        self.rows += 1;
        self.squares[0] += f64::from(error);
        self.squares[1] += f64::from(output);
        if output > 0.0 {
            let share = libm::sqrtf(error / output);
            self.worst = self.worst.max(share);
            // Of 0 it is -inf, and the first.
            let bin = (BINS - 1) as f32 + libm::floorf(2.0 * libm::log2f(share));
            self.bins[bin.clamp(0.0, (BINS - 1) as f32) as usize] += 1;
        }
    }

    /// Adds those of another part.
    pub(super) fn add(&mut self, other: &Measured) {
        if !ACCELERATED {
            return;
        }
        self.rows += other.rows;
        self.squares = [0, 1].map(|i| self.squares[i] + other.squares[i]);
        self.worst = self.worst.max(other.worst);
        self.bins.iter_mut().zip(&other.bins).for_each(|(a, b)| *a += b);
    }

    /// Rows measured: of each KV head its own.
    pub fn rows(&self) -> u64 {
        if ACCELERATED { self.rows } else { 0 }
    }

    /// Root of the squared errors of all rows and heads by their squared outputs; NaN where nothing was measured.
    pub fn mean(&self) -> f32 {
        let [error, output] = self.squares;
        if self.rows() == 0 { f32::NAN } else { libm::sqrt(error / output.max(f64::MIN_POSITIVE)) as f32 }
    }

    /// An error that 95 of 100 rows keep, within a factor of 1.42; NaN where nothing was measured.
    pub fn p95(&self) -> f32 {
        if self.rows() == 0 {
            return f32::NAN;
        }
        let all: u64 = self.bins.iter().map(|&n| u64::from(n)).sum();
        let (mut seen, mut bin) = (0, 0);
        while bin + 1 < BINS && (seen + u64::from(self.bins[bin])) * 100 < all * 95 {
            seen += u64::from(self.bins[bin]);
            bin += 1;
        }
        let edge = libm::exp2f((bin as f32 + 2.0 - BINS as f32) / 2.0);
        if all == 0 { f32::NAN } else { edge.min(self.worst) }
    }

    /// The largest error of a row; NaN where nothing was measured.
    pub fn worst(&self) -> f32 {
        if self.rows() == 0 { f32::NAN } else { self.worst }
    }
}

#[cfg(all(test, feature = "accelerated"))]
mod tests {
    use super::Measured;

    #[test]
    fn quantiles_are_within_a_bin() {
        let mut all = Measured::default();
        assert!(all.mean().is_nan() && all.p95().is_nan() && all.worst().is_nan());
        for i in 1..=100 {
            let share = i as f32 / 1000.0;
            let mut part = Measured::default();
            part.note(share * share, 1.0);
            all.add(&part);
        }
        assert_eq!(all.rows(), 100);
        assert!((0.095..=0.095 * 1.42).contains(&all.p95()), "{}", all.p95());
        assert!((all.worst() - 0.1).abs() < 1e-6);
        let mean = (1..=100).map(|i| (f64::from(i) / 1000.0).powi(2)).sum::<f64>() / 100.0;
        assert!((f64::from(all.mean()) - mean.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn an_exact_row_errs_by_nothing() {
        let mut of = Measured::default();
        of.note(0.0, 2.0);
        assert_eq!((of.mean(), of.p95(), of.worst()), (0.0, 0.0, 0.0));
    }
}
