//! Whether cells can serve a head at all, from exact attention of a few rows: before anything is built.

use super::super::exact::Head;
use super::{Rule, Work};
use crate::simd::Isa;

/// Rows looked at: one in so many, but no more than that.
const ROWS: (usize, usize) = (2048, 4);

/// Times the rule's error that the doubt may reach.
const SLACK: f64 = 1.0;

/// Whether the values of keys too light to be weighed one by one cancel, so that no mean can stand for them: the root of
/// `sum w^2 |v|^2` over these keys, against the output, as in noise. From a few rows of the second half, position and
/// padding alone considered. O(rows looked at x keys x dim).
pub(super) fn hopeless(isa: Isa, rule: &Rule, head: &Head<'_>, work: &mut Work) -> bool {
    let (n, keep) = (head.q.rows(), head.masking.keep(head.batch));
    let (dim_k, dim_v) = (head.q.cols(), head.v.cols());
    let (query, key) = work.q.split_at_mut(dim_k);
    let (key, value) = (&mut key[..dim_k], &mut work.keys[..dim_v]);
    let out = &mut work.sums[..dim_v];
    let (mut light, mut all) = (0.0, 0.0);
    let rows = (n / ROWS.0).clamp(1, ROWS.1);
    for i in 0..rows {
        let row = n / 2 + (2 * i + 1) * (n - n / 2) / (2 * rows);
        head.q.read(row, query);
        let seen = head.masking.visible(head.batch, row);
        let keys = || (seen.begin..seen.end).filter(|&j| keep.is_none_or(|keep| keep[j] != 0));
        let mut logit = |j: usize| {
            head.k.read(j, key);
            head.scale * isa.dot(query, key)
        };
        let (mut top, mut sum) = (f32::NEG_INFINITY, 0.0f32);
        for j in keys() {
            let x = logit(j);
            if x > top {
                sum *= libm::expf(top - x);
                top = x;
            }
            sum += libm::expf(x - top);
        }
        out.fill(0.0);
        let mut squares = 0.0;
        for j in keys() {
            let w = libm::expf(logit(j) - top) / sum;
            head.v.read(j, value);
            isa.axpy(w, value, out);
            if w < rule.needle {
                squares += f64::from(w) * f64::from(w) * f64::from(isa.norm2(value));
            }
        }
        light += squares;
        all += f64::from(isa.norm2(out));
    }
    libm::sqrt(light) > SLACK * f64::from(rule.error) * libm::sqrt(all)
}
