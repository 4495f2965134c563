//! How sparse is a head: the softmax mass on its heaviest keys, from a few rows. Tells which layers to accelerate.

use super::dense::exact::Head;
use super::problem::Problem;
use super::tunables::SPARSITY_ROWS;
use crate::error::{Error, Result, Status};
use crate::mem::{Buf, Layout, Memory, Plan};
use crate::project::Lift;
use crate::simd::Isa;

/// Bytes of work memory that [`sparsity`] takes, the `Memory` block included: two rows and one number per key.
///
/// # Errors
/// As [`sparsity`].
pub fn sparsity_required(problem: &Problem<'_>) -> Result<Layout> {
    let checked = problem.check()?;
    let mut plan = Plan::new();
    Memory::plan(&mut plan);
    Buf::<f32>::plan(&mut plan, checked.dim_k);
    Buf::<f32>::plan(&mut plan, checked.dim_k);
    Buf::<f32>::plan(&mut plan, checked.rows_kv);
    plan.finish()
}

/// Share of the softmax mass on the `k` heaviest keys of a row, averaged over `sample_rows` evenly spaced rows (0 = 64)
/// that see any key; 1 where no row does. `mass[batch * heads_q + head]`. O(sample_rows x rows_kv x dim_k) per head.
///
/// # Errors
/// As [`attention`](super::attention); `Argument` for k = 0; `Buffer` unless `mass` has `batch x heads_q` places.
///
/// ```
/// # #[cfg(feature = "std")] {
/// use iceformer_core::attention::{Problem, sparsity};
/// use iceformer_core::mem::{Memory, Tensor, TensorMut};
///
/// let (x, mut out, mut mass) = ([0.5; 10 * 4], [0.0; 10 * 4], [0.0]);
/// let t = Tensor::new(&x, [1, 1, 10, 4])?;
/// let problem = Problem::new(t, t, t, TensorMut::new(&mut out, [1, 1, 10, 4])?);
/// sparsity(&problem, 2, 0, &mut mass, &Memory::system(0)?)?;
/// // Ten keys alike: two have a fifth.
/// assert!((mass[0] - 0.2).abs() < 1e-6);
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
pub fn sparsity(problem: &Problem<'_>, k: usize, sample_rows: usize, mass: &mut [f32], work: &Memory) -> Result<()> {
    let checked = problem.check()?;
    if k == 0 {
        return Err(Error::new(Status::Argument, "k", "must be at least 1").value(0));
    }
    let need = checked.batch * checked.heads_q;
    if mass.len() != need {
        return Err(Error::new(Status::Buffer, "mass", "one place per batch and query head").need(need, mass.len()));
    }
    let mut q = Buf::filled(work, checked.dim_k, 0.0)?;
    let mut key = Buf::filled(work, checked.dim_k, 0.0)?;
    let mut logits = Buf::with_capacity(work, checked.rows_kv)?;
    let call = checked.call(problem);
    let samples = if sample_rows == 0 { SPARSITY_ROWS } else { sample_rows }.min(checked.rows_q);
    for (unit, mass) in mass.iter_mut().enumerate() {
        let (batch, head) = (unit / checked.heads_q, unit % checked.heads_q);
        let (keys, values) = checked.kv(problem, batch, head / (checked.heads_q / checked.heads_kv));
        let head = call.head(batch, head, keys, values);
        let (mut sum, mut rows) = (0.0f64, 0u32);
        for i in 0..samples {
            // The middle of each of `samples` stretches of rows.
            let row = (2 * i + 1) * checked.rows_q / (2 * samples);
            head.q.read(row, &mut q);
            score_row(call.isa, &head, row, &q, &mut key, &mut logits)?;
            if let Some(share) = top_share(call.isa, &mut logits, k) {
                sum += f64::from(share);
                rows += 1;
            }
        }
        *mass = if rows == 0 { 1.0 } else { (sum / f64::from(rows)) as f32 };
    }
    Ok(())
}

/// Logits of the keys one row sees, whose query is `q`.
fn score_row(isa: Isa, head: &Head<'_>, row: usize, q: &[f32], key: &mut [f32], logits: &mut Buf<f32>) -> Result<()> {
    let (keep, bias) = (head.masking.keep(head.batch), head.masking.bias(head.batch, head.head));
    let visible = head.masking.visible(head.batch, row);
    let alone = head.shared() && visible.len() == 1;
    logits.clear();
    for j in (0..visible.sinks).chain(visible.begin..visible.end) {
        if keep.is_some_and(|keep| keep[j] == 0) || (head.shared() && j == row && !alone) {
            continue;
        }
        head.k.read(j, key);
        let mut dot = isa.dot(q, key);
        if head.shared() {
            let norm = libm::sqrtf(Lift::norm2(key));
            dot = if norm > 0.0 { dot / norm } else { 0.0 };
        }
        let mut logit = head.scale * dot;
        if head.softcap > 0.0 {
            logit = head.softcap * libm::tanhf(logit / head.softcap);
        }
        let mut b = [0.0];
        if let Some(bias) = &bias {
            bias.read_part(row, j, &mut b);
        }
        if b[0] != f32::NEG_INFINITY {
            logits.push(logit + b[0])?;
        }
    }
    Ok(())
}

/// Share of the softmax mass on the `k` largest of these logits.
fn top_share(isa: Isa, logits: &mut [f32], k: usize) -> Option<f32> {
    if logits.is_empty() {
        return None;
    }
    if k >= logits.len() {
        return Some(1.0);
    }
    logits.select_nth_unstable_by(k, |a, b| b.total_cmp(a));
    let max = isa.max(&logits[..k]);
    let (top, rest) = logits.split_at_mut(k);
    let (top, rest) = (isa.exp_sum(top, max), isa.exp_sum(rest, max));
    Some(top / (top + rest))
}
