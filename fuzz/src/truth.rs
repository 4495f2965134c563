//! Rows in f64, and how far from them rounding in f32 may take an output.

use crate::twin::{Naive, sees};
use iceformer_core::attention::Mask;

/// What the core's certificates allow rounding, as a share of the largest value.
const UNIT: f64 = 1.0 / (1 << 20) as f64;

/// Times that, for what is not certified.
const TIMES: f64 = 2.0;

/// A row as it is.
pub(crate) struct Truth {
    pub out: Vec<f64>,
    pub lse: f64,
    /// What rounding may do to the output.
    pub slack: f64,
    lse_slack: f64,
}

impl Truth {
    /// Length of the output.
    pub(crate) fn norm(&self) -> f64 {
        self.out.iter().map(|x| x * x).sum::<f64>().sqrt()
    }
}

/// [`sees`] among so many keys: counts beyond them mean all.
pub(crate) fn shows(mask: &Mask<'_>, keys: usize, [window, sinks]: [usize; 2], i: usize, j: usize) -> Option<f32> {
    match mask {
        Mask::Prefix(counts) => sees(&Mask::Prefix(&[counts[i].min(keys as u64)]), window, sinks, 0, j),
        _ => sees(mask, window, sinks, i, j),
    }
}

/// Of all rows of a head; `biased` says whether what `sees` gives is added to logits.
pub(crate) fn truth(head: &Naive<'_>, biased: bool) -> Vec<Truth> {
    let (o, keys) = (&head.options, head.v.len() / head.dim_v);
    let scale = if o.scale == 0.0 { 1.0 / (head.dim_k as f64).sqrt() } else { f64::from(o.scale) };
    let longest = head.k.chunks(head.dim_k).map(length).fold(0.0, f64::max);
    let lengths: Vec<f64> = head.v.chunks(head.dim_v).map(length).collect();
    let (out, lse) = head.run();
    let mut all = Vec::with_capacity(lse.len());
    for (i, (out, lse)) in out.chunks(head.dim_v).zip(lse).enumerate() {
        let (mut value, mut top) = (0.0f64, f64::NEG_INFINITY);
        for (j, &length) in lengths.iter().enumerate() {
            if let Some(bias) = (head.sees)(i, j).filter(|&b| b != f32::NEG_INFINITY) {
                (value, top) = (value.max(length), top.max(f64::from(bias)));
            }
        }
        let mut logit = length(&head.q[i * head.dim_k..][..head.dim_k]) * scale * longest;
        if o.softcap > 0.0 {
            logit += 4.0 * f64::from(o.softcap).min(logit);
        }
        if biased {
            // Logits that count lie not far below the largest.
            logit = if value == 0.0 { 0.0 } else { 3.0 * logit + top.abs() + 40.0 };
        }
        // One number is added to so often.
        let steps = keys.min(512) as f64 + keys as f64 / 16.0;
        let slack = TIMES * UNIT * (1.0 + logit / 4.0 + (keys as f64).sqrt() / 32.0 + steps / 32.0);
        let lse_slack = slack + 1e-6 * lse.abs();
        all.push(Truth { out: out.to_vec(), lse, slack: slack * value, lse_slack });
    }
    all
}

/// Holds outputs and log-sum-exps against them.
pub(crate) fn hold(truth: &[Truth], out: &[f32], lse: Option<&[f32]>, what: &str) {
    let dim = out.len() / truth.len().max(1);
    for (i, truth) in truth.iter().enumerate() {
        let wrong = distance(&out[i * dim..][..dim], &truth.out);
        assert!(wrong <= truth.slack, "{what}, row {i}: off by {wrong:e}, rounding allows {:e}", truth.slack);
        if let Some(lse) = lse {
            let (have, want) = (f64::from(lse[i]), truth.lse);
            assert!(have == want || (have - want).abs() <= truth.lse_slack, "{what}, row {i}: lse {have} for {want}");
        }
    }
}

fn length(x: &[f32]) -> f64 {
    x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
}

pub(crate) fn distance(have: &[f32], want: &[f64]) -> f64 {
    have.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>().sqrt()
}
