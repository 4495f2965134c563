//! Certified errors: what rows are known to be off by at most, and where that is written.

use super::super::dense::Call;
use super::super::mask::{Masking, Visible};
use super::super::stats::AttentionStats;
use crate::mem::{Dtype, Rows, Tensor, TensorMut};

/// Rounding allowed for, in units of the largest value's length: see [`Certificate::slack`].
const UNIT: f64 = 1.0 / (1 << 20) as f64;

/// Keys that exact attention sums in one run, at most.
const LONGEST_BLOCK: usize = 512;

/// Logits so far below the largest weigh nothing.
const NOTHING: f64 = 40.0;

/// How rows of a call are certified.
pub(in crate::attention) struct Certificate<'a> {
    /// Relative bounds, f32 `[batch, heads_q, rows_q, 1]`.
    pub(in crate::attention) bounds: Option<&'a TensorMut<'a>>,
    pub(in crate::attention) masking: &'a Masking<'a>,
    /// Length of the longest key and of the longest value.
    pub(in crate::attention) longest: [f32; 2],
    pub(in crate::attention) keys: usize,
    pub(in crate::attention) scale: f32,
    pub(in crate::attention) softcap: f32,
    /// What a row must keep to be counted as certified.
    pub(in crate::attention) tolerance: f32,
    /// Relative rounding of a stored output.
    rounding: f64,
}

impl<'a> Certificate<'a> {
    pub(in crate::attention) fn new(
        bounds: Option<&'a TensorMut<'a>>,
        masking: &'a Masking<'a>,
        longest: [f32; 2],
        keys: usize,
        [scale, softcap, tolerance]: [f32; 3],
        out: Dtype,
    ) -> Self {
        let rounding = match out {
            Dtype::F32 => 0.0,
            Dtype::F16 => 1.0 / 2048.0,
            Dtype::Bf16 => 1.0 / 256.0,
        };
        Certificate { bounds, masking, longest, keys, scale, softcap, tolerance, rounding }
    }

    /// What rounding in f32 may do to an output: `2^-20 (1 + |logit| / 4 + sqrt(keys) / 32 + steps / 32)` times the longest
    /// value, the largest logit that query and keys allow. `steps` is the longest run of additions to one number: a block of
    /// keys, or one for each sixteen. Rounding of equal values goes the same way in all of them, by half of what is allowed
    /// here at most; else it is several times what is seen. `query` is the length of the query.
    pub(in crate::attention) fn slack(&self, batch: usize, head: usize, row: usize, query: f64) -> f64 {
        let mut logit = query * f64::from(self.scale) * f64::from(self.longest[0]);
        // The hyperbolic tangent of a softcap has an error of its own.
        logit += 4.0 * f64::from(self.softcap).min(logit);
        if let Some(bias) = self.masking.bias(batch, head) {
            let top = largest_bias(&bias, row, self.masking.visible(batch, row));
            // Logits that count lie not far below the largest.
            logit = if top == f64::NEG_INFINITY { 0.0 } else { 3.0 * logit + top.abs() + NOTHING };
        }
        let value = f64::from(self.longest[1]);
        let (keys, steps) = (self.keys as f64, self.keys.min(LONGEST_BLOCK) as f64 + self.keys as f64 / 16.0);
        UNIT * (1.0 + logit / 4.0 + libm::sqrt(keys) / 32.0 + steps / 32.0) * value
    }

    /// The relative error of a row whose output has length `norm` and is off by at most `bound`.
    pub(in crate::attention) fn relative(&self, bound: f64, norm: f64) -> f32 {
        if bound == 0.0 {
            return self.rounding as f32;
        }
        if bound.is_nan() || bound >= norm {
            return f32::INFINITY;
        }
        let relative = bound / (norm - bound);
        (relative + self.rounding * (1.0 + relative)) as f32 * (1.0 + f32::EPSILON)
    }

    /// Notes what a row is certified for.
    pub(in crate::attention) fn note(&self, [batch, head, row]: [usize; 3], relative: f32, stats: &mut AttentionStats) {
        stats.certify(relative, self.tolerance);
        if let Some(bounds) = self.bounds {
            bounds.rows(batch, head, row, 1).write_part(0, 0, &[relative]);
        }
    }

    /// Whether mask, window and bias leave a row no key.
    fn sees_nothing(&self, batch: usize, head: usize, row: usize) -> bool {
        let seen = self.masking.visible(batch, row);
        let bias = self.masking.bias(batch, head);
        self.masking.count(batch, seen) == 0 || bias.is_some_and(|b| largest_bias(&b, row, seen) == f64::NEG_INFINITY)
    }

    /// Rows `begin..begin + n` of a head, whose outputs are exact but for rounding.
    pub(in crate::attention) fn exact(
        &self,
        call: &Call<'_>,
        [batch, head]: [usize; 2],
        begin: usize,
        n: usize,
        stats: &mut AttentionStats,
    ) {
        let q = call.q.head(batch, head);
        for row in begin..begin + n {
            let out = call.out.rows(batch, head, row, 1);
            let norm = length(&out.view(), 0);
            // Rows that see nothing are zeros, and rightly so; values that cancel may come to that by rounding.
            let nothing = norm == 0.0 && self.sees_nothing(batch, head, row);
            let slack = if nothing { 0.0 } else { self.slack(batch, head, row, length(&q, row)) };
            self.note([batch, head, row], self.relative(slack, norm), stats);
        }
    }
}

/// Largest bias of a row, of keys that mask and window let it see.
fn largest_bias(bias: &Rows<'_>, row: usize, seen: Visible) -> f64 {
    let (mut part, mut top) = ([0.0f32; 64], f64::NEG_INFINITY);
    for range in [0..seen.sinks, seen.begin..seen.end] {
        for begin in range.clone().step_by(part.len()) {
            let part = &mut part[..(range.end - begin).min(64)];
            bias.read_part(row, begin, part);
            top = part.iter().fold(top, |m, &x| m.max(f64::from(x)));
        }
    }
    top
}

/// Length of row `i`.
pub(in crate::attention) fn length(rows: &Rows<'_>, i: usize) -> f64 {
    let (mut part, mut sum) = ([0.0f32; 64], 0.0f64);
    for begin in (0..rows.cols()).step_by(part.len()) {
        let part = &mut part[..(rows.cols() - begin).min(64)];
        rows.read_part(i, begin, part);
        sum += part.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
    }
    libm::sqrt(sum)
}

/// Length of the longest row of all heads.
pub(in crate::attention) fn longest(t: &Tensor<'_>) -> f32 {
    let [batch, heads, rows, _] = t.shape();
    let mut best = 0.0f64;
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        let head = t.head(b, h);
        best = (0..rows).fold(best, |m, i| m.max(length(&head, i)));
    }
    best as f32 * (1.0 + f32::EPSILON)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::mask::Mask;

    /// Against an adversary who moves the output by all of the bound: longer, shorter and aside.
    #[test]
    fn relative_errors_hold_whichever_way_an_output_is_moved() {
        let masking = Masking::new(Mask::None, 0, 0, [1; 4], true);
        let masking = masking.unwrap_or_else(|e| panic!("{e}"));
        let c = Certificate::new(None, &masking, [1.0; 2], 1, [1.0, 0.0, 0.05], Dtype::F32);
        for bound in [1e-9f64, 1e-3, 0.1, 0.9, 3.0, 50.0] {
            for length in [0.5f64, 1.0, 7.0, 1e6] {
                for computed in [length + bound, (length - bound).abs(), libm::sqrt(length * length + bound * bound)] {
                    let relative = f64::from(c.relative(bound, computed));
                    assert!(relative >= bound / length * (1.0 - 1e-12), "{bound} {length} {computed}: {relative}");
                }
            }
        }
        assert_eq!(c.relative(0.0, 1.0), 0.0);
        for (bound, norm) in [(1.0, 1.0), (2.0, 1.0), (f64::NAN, 1.0), (1.0, 0.0)] {
            assert_eq!(c.relative(bound, norm), f32::INFINITY);
        }
    }
}
