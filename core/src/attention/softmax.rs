//! Partial results of attention over disjoint key sets, merged by log-sum-exp.

use crate::error::{Error, Result, Status};

/// Merges attention over two disjoint key sets into `out_a` and `lse_a`: normalised outputs `[rows, dim_v]` and natural
/// log-sum-exps `[rows]`, `rows = lse_a.len()`. A side with log-sum-exp -inf saw nothing and leaves the other unchanged;
/// where both are -inf the row becomes zeros. Never allocates.
///
/// # Errors
/// `Shape` when the lengths do not fit; nothing is written then.
///
/// ```
/// use iceformer_core::attention::merge;
///
/// let (mut out, mut lse) = ([1.0], [0.0]);
/// merge(&mut out, &mut lse, &[3.0], &[0.0], 1)?;
/// assert_eq!((out[0], lse[0]), (2.0, 2f32.ln()));
/// # Ok::<(), iceformer_core::Error>(())
/// ```
pub fn merge(out_a: &mut [f32], lse_a: &mut [f32], out_b: &[f32], lse_b: &[f32], dim_v: usize) -> Result<()> {
    let rows = lse_a.len();
    let need = rows.checked_mul(dim_v).ok_or(Error::new(Status::Shape, "dim_v", "size overflows"))?;
    for (field, have, need) in
        [("lse_b", lse_b.len(), rows), ("out_a", out_a.len(), need), ("out_b", out_b.len(), need)]
    {
        if have != need {
            return Err(Error::new(Status::Shape, field, "length does not fit").need(need, have));
        }
    }
    for i in 0..rows {
        let (a, b) = (lse_a[i], lse_b[i]);
        let (row_a, row_b) = (&mut out_a[i * dim_v..][..dim_v], &out_b[i * dim_v..][..dim_v]);
        if b == f32::NEG_INFINITY {
            if a == f32::NEG_INFINITY {
                row_a.fill(0.0);
            }
            continue;
        }
        if a == f32::NEG_INFINITY {
            row_a.copy_from_slice(row_b);
            lse_a[i] = b;
            continue;
        }
        // In f64: log-sum-exps may be in the ten thousands, and only their difference matters.
        let top = f64::from(if a > b { a } else { b });
        let (wa, wb) = (libm::exp(f64::from(a) - top), libm::exp(f64::from(b) - top));
        let sum = wa + wb;
        let (fa, fb) = ((wa / sum) as f32, (wb / sum) as f32);
        for (x, y) in row_a.iter_mut().zip(row_b) {
            *x = *x * fa + y * fb;
        }
        lse_a[i] = (top + libm::log(sum)) as f32;
    }
    Ok(())
}
