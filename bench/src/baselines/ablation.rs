//! What is left without attention: how far a model needs it.

use super::{Head, Method};

/// The same weight for every key that a row sees.
pub struct Uniform;

impl Method for Uniform {
    fn name(&self) -> &'static str {
        "Mean of the values"
    }

    fn settings(&self, _: usize) -> String {
        String::new()
    }

    fn cannot(&self, _: bool) -> Option<&'static str> {
        None
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        let d = head.dim;
        let mut sum = vec![0.0; d];
        let mut summed = 0;
        for (row, out) in out.chunks_mut(d).enumerate() {
            let seen = head.seen(row);
            for value in head.v[summed * d..seen * d].chunks(d) {
                sum.iter_mut().zip(value).for_each(|(s, &v)| *s += f64::from(v));
            }
            summed = seen;
            out.iter_mut().zip(&sum).for_each(|(o, s)| *o = (s / seen as f64) as f32);
        }
    }
}

/// Zeros: a layer without its attention.
pub struct Nothing;

impl Method for Nothing {
    fn name(&self) -> &'static str {
        "Nothing"
    }

    fn settings(&self, _: usize) -> String {
        String::new()
    }

    fn cannot(&self, _: bool) -> Option<&'static str> {
        None
    }

    fn attend(&self, _: &Head<'_>, out: &mut [f32]) {
        out.fill(0.0);
    }
}
