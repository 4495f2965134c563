//! Certificates: what the output of a row can be off by, at most, for rounding.
//!
//! What they are worth. With a certificate every row is attended exactly, whatever the mode: the price is an exact call. What is then
//! bounded is rounding in f32 alone: by 1e-5 to 1e-4 of a row as a rule, where 3e-7 is seen, and by more where values cancel, since
//! the bound takes the longest key and value for all. The factors in it allow for more than was ever measured (`core/tests/certificate.rs` holds all kinds of data to
//! them); they are no proof. A certificate says nothing about accelerated attention: what that errs by is measured on sampled
//! rows, in every call, for nothing ([`Measured`](super::Measured)). Who wants to know how far accelerated rows are off looks
//! there; who must not be off at all asks for exact attention, with a certificate only if a number of the rounding is wanted.
//!
//! `verified` means the same as `certificate`. It is kept because programs name it: numbers of flags are never taken away.
//!
//! The rest of attention does not know of this folder: `call` and `session` ask for a certificate, and hand it the rows that exact
//! attention has done.

mod bound;

pub(super) use bound::{Certificate, length};

use super::dense::Call;
use super::problem::{Checked, Problem};
use crate::features::CERTIFICATES;
use bound::longest;

/// How rows of a call are certified, if that was asked for.
pub(super) fn of_call<'a>(problem: &'a Problem<'_>, checked: &'a Checked<'_>) -> Option<Certificate<'a>> {
    let o = &checked.options;
    (CERTIFICATES && o.certificate).then(|| {
        // Keys of the shared mode have unit norm.
        let key = if o.shared() { 1.0 } else { longest(&problem.k) };
        let longest = [key, longest(&problem.v)];
        let numbers = [o.scale, o.softcap, o.tolerance];
        let bounds = problem.bounds.as_ref();
        Certificate::new(bounds, &checked.masking, longest, checked.rows_kv, numbers, problem.out.dtype())
    })
}

/// How rows of a session are certified, if that was asked for, for the lengths of the longest key and value of so many.
pub(super) fn of_session<'a>(
    call: &Call<'a>,
    longest: impl Iterator<Item = [f32; 2]>,
    keys: usize,
) -> Option<Certificate<'a>> {
    let o = call.options;
    (CERTIFICATES && o.certificate).then(|| {
        let longest = longest.fold([0.0f32; 2], |a, b| [a[0].max(b[0]), a[1].max(b[1])]);
        Certificate::new(None, call.masking, longest, keys, [o.scale, o.softcap, o.tolerance], call.out.dtype())
    })
}
