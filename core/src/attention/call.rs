//! The one-call form: plan, check, run, on one thread or several.

use super::certificates;
use super::dense::heads::{Dense, most_pieces};
use super::dense::{exact, uses_fixed_scores};
use super::head_topk::{self, index_options};
use super::parts::{THREADS, allowed, in_parts};
use super::problem::{Checked, Problem};
use super::stats::AttentionStats;
use super::{Mode, clock, clustered};
use crate::error::Result;
use crate::features::{ACCELERATED, CERTIFICATES, Part, TOP_K};
use crate::mem::{Layout, Maker, Memory, Plan};

/// Work memory of one part; made once per part, so its own size does not matter.
#[allow(clippy::large_enum_variant)]
enum Work {
    Exact(exact::Work),
    TopK(Part<head_topk::TopKWork, { TOP_K as usize }>),
}

impl Work {
    /// Readies what was made.
    fn begin(&mut self) {
        if let Work::TopK(work) = self
            && TOP_K
        {
            work.begin();
        }
    }
}

/// Gives `make` the function that makes the work memory of a part: to be counted, or to be called.
fn with_work<T>(c: &Checked<'_>, make: impl FnOnce(&dyn Fn(&mut Maker<'_>) -> Work) -> Result<T>) -> Result<T> {
    if TOP_K && c.mode == Mode::TopK {
        let index = index_options(&c.options, c.dim_k, c.rows_kv)?;
        return make(&|m| Work::TopK(Part::of(|| head_topk::TopKWork::made(m, &index))));
    }
    let fixed = uses_fixed_scores(&c.options, c.rows_q);
    make(&|m| Work::Exact(exact::Work::made(m, c.dim_k, c.dim_v, c.rows_q, fixed)))
}

/// Pieces worth handing to different parts: (batch, KV head) for top-k, rows of query heads for exact.
fn pieces(checked: &Checked<'_>) -> usize {
    match checked.mode {
        Mode::TopK => checked.batch * checked.heads_kv,
        _ => most_pieces([checked.batch, checked.heads_q, checked.rows_q, checked.dim_k]),
    }
}

/// Part `ith` of `nth`. Which part takes a piece never changes what is computed in it.
fn run_part(
    problem: &Problem<'_>,
    checked: &Checked<'_>,
    work: &mut Work,
    ith: usize,
    nth: usize,
) -> Result<AttentionStats> {
    let o = &checked.options;
    let mut stats = AttentionStats::new(checked.mode, checked.reason);
    match work {
        Work::TopK(work) if TOP_K => {
            for piece in (ith..pieces(checked)).step_by(nth) {
                work.run(problem, checked, piece / checked.heads_kv, piece % checked.heads_kv, &mut stats)?;
            }
        }
        Work::TopK(_) => {}
        Work::Exact(work) => {
            let start = clock::now();
            let certificate = certificates::of_call(problem, checked);
            let dense = Dense {
                call: checked.call(problem),
                kv: &|batch, head| checked.kv(problem, batch, head),
                heads_kv: checked.heads_kv,
            };
            dense.run(work, ith, nth, &mut stats, &|head, begin, n, stats| {
                if CERTIFICATES && let Some(certificate) = &certificate {
                    certificate.exact(&dense.call, head, begin, n, stats);
                }
            });
            stats.score_error = work.score_error() * o.scale;
            stats.attend_seconds += clock::since(start);
        }
    }
    Ok(stats)
}

/// Bytes of work memory that [`attention`] takes, the `Memory` block included. O(rows_kv x dim_k) per thread in top-k
/// mode, independent of the rows in exact mode; never rows_q x rows_kv.
///
/// # Errors
/// As [`attention`].
pub fn required(problem: &Problem<'_>) -> Result<Layout> {
    let checked = problem.check()?;
    let mut plan = Plan::new();
    Memory::plan(&mut plan);
    if ACCELERATED && checked.mode == Mode::Accelerated {
        clustered::plan_call(&checked, &mut plan);
        return plan.finish();
    }
    let parts = parts(&checked)?;
    with_work(&checked, |made| {
        match THREADS {
            true => plan.count(|m| m.objects(parts, made)),
            false => plan.count(made),
        }
        Ok(())
    })?;
    plan.finish()
}

/// Threads worth using.
fn parts(checked: &Checked<'_>) -> Result<usize> {
    allowed(checked.options.num_threads.min(pieces(checked)).max(1))
}

/// Computes a whole problem. Work memory comes from `work`, all of it before the first row; `num_threads` above 1 needs
/// feature `std` and starts that many scoped threads less one.
///
/// The result's bits do not depend on the number of threads.
///
/// # Errors
/// `Shape`, `Argument`, `NotFinite` (with the row within its head), `Unsupported`, before anything is written; `NoMemory`,
/// `Budget`.
pub fn attention(problem: &Problem<'_>, work: &Memory) -> Result<AttentionStats> {
    let checked = problem.check()?;
    if ACCELERATED && checked.mode == Mode::Accelerated {
        return clustered::call(problem, &checked, work, None);
    }
    let parts = parts(&checked)?;
    if !THREADS {
        // One part needs no list, which is code that small builds have no room for.
        let mut work = with_work(&checked, |made| Maker::make(work, made))?;
        work.begin();
        return run_part(problem, &checked, &mut work, 0, 1);
    }
    let mut works = with_work(&checked, |made| Maker::make(work, |m| m.objects(parts, made)))?;
    works.iter_mut().for_each(Work::begin);
    let mut stats = AttentionStats::new(checked.mode, checked.reason);
    in_parts(&mut works, |ith, work| run_part(problem, &checked, work, ith, parts), &mut stats)?;
    Ok(stats)
}

/// [`attention`] with a look at what accelerated attention scores exactly: for studies. Where that does not run, `watch` is not
/// called.
///
/// # Errors
/// As [`attention`].
#[cfg(feature = "internals")]
pub fn attention_watched(problem: &Problem<'_>, watch: clustered::Watch<'_>, work: &Memory) -> Result<AttentionStats> {
    let checked = problem.check()?;
    match checked.mode {
        Mode::Accelerated if ACCELERATED => clustered::call(problem, &checked, work, Some(watch)),
        _ => attention(problem, work),
    }
}
