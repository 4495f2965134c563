//! The one-call form: cells of all heads first, then the rows.

use super::super::call::{exactly, in_parts};
use super::super::certificate::longest;
use super::super::clock;
use super::super::exact::Head;
use super::super::problem::{AttentionStats, Checked, Problem};
use super::super::{Mode, Reason};
use super::all::{Accelerated, most_pieces, runs};
use super::hope::{ALIKE, hopeless};
use super::ladder::{Deal, Trial, Trials};
use super::{APART, Proving, Rule, Work, bias, offset};
use crate::cells::{Alike, Cells, SEGMENT};
use crate::error::Result;
use crate::mem::{Buf, Dtype, Memory, Objects, Plan, Rows};
use crate::simd::Isa;

/// Rows are numbered in 32 bits.
pub(crate) const MOST_KEYS: usize = u32::MAX as usize;

/// Called with a query head (of a batch of 1), a row, and the keys scored exactly for it beside those of the dense part.
pub type Watch<'a> = &'a mut dyn FnMut(usize, usize, &[u32]);

/// Parts that build, each a run of heads, and parts that attend.
fn parts(c: &Checked<'_>) -> [usize; 2] {
    let shape = [c.batch, c.heads_q, c.rows_q, c.dim_k];
    let pieces = most_pieces(shape, c.heads_kv, c.dim_v, c.rows_kv, c.options.certificate || has_bias(c));
    let threads = c.options.num_threads.max(1);
    let heads = c.batch * c.heads_kv;
    [heads.div_ceil(run_of(heads, threads)).max(1), threads.min(pieces).max(1)]
}

/// Heads that one of so many threads builds.
fn run_of(heads: usize, threads: usize) -> usize {
    heads.div_ceil(threads).max(1)
}

/// Whether keys come in an order of their own: all rows see the same, and are more than a few, which would not repay it.
fn reorders(c: &Checked<'_>) -> bool {
    c.masking.shows_all() && c.rows_q > APART
}

/// Heads that a part builds, its room for their order, where it may choose one, and for what a bias makes padding.
type Building<'a> = (usize, &'a mut [Cells], Option<Alike>, Option<Buf<u8>>);

fn has_bias(c: &Checked<'_>) -> bool {
    c.masking.biases().is_some()
}

/// Adds everything that [`call`] takes to a plan.
pub(crate) fn plan_call(c: &Checked<'_>, plan: &mut Plan) {
    let heads = c.batch * c.heads_kv;
    let mut cells = Plan::new();
    Cells::plan(&mut cells, Dtype::F32, c.dim_k, c.dim_v, c.rows_kv);
    if c.options.certificate {
        Cells::plan_certified(&mut cells, c.dim_k, c.dim_v, c.rows_kv);
    }
    Objects::<Cells>::plan(plan, heads);
    plan.add_plan(&cells, heads);
    let mut work = Plan::new();
    let group = c.heads_q / c.heads_kv;
    Work::plan(&mut work, c.dim_k, c.dim_v, group, c.rows_q, c.rows_kv);
    if c.options.certificate {
        Work::plan_proving(&mut work, c.dim_k, c.dim_v, group, c.rows_q, c.rows_kv);
    }
    if has_bias(c) {
        Work::plan_lifted(&mut work, c.dim_k, c.dim_v, group, c.rows_q, c.rows_kv);
    }
    let [build_parts, parts] = parts(c);
    Objects::<Work>::plan(plan, parts);
    plan.add_plan(&work, parts);
    Objects::<Building<'_>>::plan(plan, build_parts);
    if reorders(c) {
        let mut order = Plan::new();
        Alike::plan(&mut order, c.rows_kv);
        plan.add_plan(&order, build_parts);
    }
    for _ in 0..if has_bias(c) { build_parts } else { 0 } {
        Buf::<u8>::plan(plan, c.rows_kv);
    }
    Buf::<bool>::plan(plan, heads);
    if tries(c) {
        Trials::plan(plan, deal(c, parts), offset::each(group, c.dim_v));
    }
    Objects::<Trying<'_>>::plan(plan, if tries(c) { parts } else { 0 });
    if c.reason == Reason::Cheaper {
        Work::plan(plan, c.dim_k, c.dim_v, group, 1, 0);
    }
}

/// Whether rows get what trials of their heads say: not a few rows, nor where bounds say it.
fn tries(c: &Checked<'_>) -> bool {
    c.rows_q > APART && !c.options.verified
}

/// Trials of a call.
fn deal(c: &Checked<'_>, parts: usize) -> Deal {
    Deal::new(c.batch * c.heads_kv, runs(c.heads_q / c.heads_kv, c.rows_q, c.rows_kv), parts)
}

/// Work memory for one row and no cells.
fn first_look(c: &Checked<'_>, memory: &Memory) -> Result<Work> {
    Work::new_in(memory, c.dim_k, c.dim_v, c.heads_q / c.heads_kv, 1, 0)
}

/// Which heads cells cannot serve, by (batch, KV head); `shared` as for [`hopeless`].
fn look_ahead(problem: &Problem<'_>, c: &Checked<'_>, rule: &Rule, shared: f64, work: &mut Work, out: &mut [bool]) {
    let group = c.heads_q / c.heads_kv;
    let isa = c.options.isa.unwrap_or_else(Isa::best);
    for (i, out) in out.iter_mut().enumerate() {
        let (batch, head) = (i / c.heads_kv, i % c.heads_kv);
        let first = head * group;
        let head = Head {
            q: problem.q.head(batch, first),
            k: problem.k.head(batch, head),
            v: problem.v.head(batch, head),
            masking: &c.masking,
            batch,
            head: first,
            scale: c.options.scale,
            softcap: c.options.softcap,
            shared_qk: false,
        };
        *out = hopeless(isa, rule, &head, &problem.q, group, shared, work);
    }
}

/// Attends a whole problem.
pub(crate) fn call(
    problem: &Problem<'_>,
    c: &Checked<'_>,
    memory: &Memory,
    rule: Option<&Rule>,
    watch: Option<Watch<'_>>,
) -> Result<AttentionStats> {
    let isa = c.options.isa.unwrap_or_else(Isa::best);
    let auto = problem.options.mode == Mode::Auto;
    let rule = rule.copied().unwrap_or_else(|| Rule::new(c.options.tolerance, auto));
    let heads = c.batch * c.heads_kv;
    // Whether it pays to build cells is asked before anything is made for them; who asks for cells by name gets them.
    let mut hopeless = Buf::filled(memory, heads, false)?;
    let reorder = reorders(c);
    if auto {
        let mut look = first_look(c, memory)?;
        look_ahead(problem, c, &rule, if reorder { ALIKE } else { 1.0 }, &mut look, &mut hopeless);
        if hopeless.iter().all(|&hopeless| hopeless) {
            drop(look);
            let stats = exactly(problem, c, parts(c)[1], memory)?;
            let rows = (c.batch * c.heads_q * c.rows_q) as u64;
            return Ok(AttentionStats { mode: Mode::Exact, reason: Reason::Diffuse, rows, ..stats });
        }
    }
    let mut cells = Objects::with_capacity(memory, heads)?;
    for &hopeless in hopeless.iter() {
        let keys = if hopeless { 0 } else { c.rows_kv };
        let empty = Cells::new_in(memory, Dtype::F32, c.dim_k, c.dim_v, keys)?;
        cells.push(if c.options.certificate { empty.certified(memory)? } else { empty })?;
    }
    let [build_parts, parts] = parts(c);
    let mut works = Objects::with_capacity(memory, parts)?;
    for _ in 0..parts {
        let work = Work::new_in(memory, c.dim_k, c.dim_v, c.heads_q / c.heads_kv, c.rows_q, c.rows_kv)?;
        let work = if c.options.certificate { work.proving(memory)? } else { work };
        works.push(if has_bias(c) { work.lifted(memory)? } else { work })?;
    }
    let mut trials = None;
    if tries(c) && !rule.never_dense() {
        let each = offset::each(c.heads_q / c.heads_kv, c.dim_v);
        trials = Some(Trials::new_in(memory, deal(c, parts), each)?);
    }
    // All room is made before anything is built: what is planned is what there is at once.
    let trying = Objects::with_capacity(memory, if trials.is_some() { parts } else { 0 })?;
    let mut stats = AttentionStats::new(c.mode, c.reason);
    let kv = |batch: usize, head: usize| (problem.k.head(batch, head), problem.v.head(batch, head));
    let step = run_of(heads, build_parts);
    let mut builders = Objects::with_capacity(memory, build_parts)?;
    for (i, run) in cells.chunks_mut(step).enumerate() {
        let order = if reorder { Some(Alike::new_in(memory, c.rows_kv)?) } else { None };
        let padding = if has_bias(c) { Some(Buf::filled(memory, c.rows_kv, 0u8)?) } else { None };
        builders.push((i * step, run, order, padding))?;
    }
    let build = |_, (first, run, order, padding): &mut Building<'_>| {
        let start = clock::now();
        for (i, cells) in run.iter_mut().enumerate() {
            if hopeless[*first + i] {
                continue;
            }
            let (batch, head) = ((*first + i) / c.heads_kv, (*first + i) % c.heads_kv);
            let (k, v) = kv(batch, head);
            let mut keep = c.masking.keep(batch);
            if let Some(padding) = padding {
                let group = c.heads_q / c.heads_kv;
                bias::padding(&c.masking, batch, head * group, group, c.rows_q, padding);
                keep = Some(padding);
            }
            match order {
                Some(order) => order.fill(isa, cells, &k, &v, keep),
                None => fill(isa, cells, &k, &v, keep),
            }
        }
        let mut stats = AttentionStats::new(c.mode, c.reason);
        stats.build_seconds = clock::since(start);
        Ok(stats)
    };
    in_parts(&mut builders, build, &mut stats)?;
    drop(builders);
    let source = |batch: usize, head: usize| {
        let (k, v) = kv(batch, head);
        (k, v, &cells[batch * c.heads_kv + head])
    };
    let mut all = Accelerated {
        q: problem.q,
        kv: &source,
        heads_kv: c.heads_kv,
        keys: c.rows_kv,
        out: &problem.out,
        lse: problem.lse.as_ref(),
        masking: &c.masking,
        scale: c.options.scale,
        softcap: c.options.softcap,
        rule,
        trials: None,
        leads: None,
        carries: None,
        proof: c.options.certificate.then(|| Proving {
            certificate: c.certificate(problem, [longest(&problem.k), longest(&problem.v)]),
            verified: c.options.verified,
        }),
        isa,
    };
    if let Some(trials) = &mut trials {
        try_all(&all, trials, deal(c, parts), &mut works, trying, &mut stats)?;
        trials.judge(c.heads_kv, f64::from(rule.error));
    }
    all.trials = trials.as_ref();
    if let (Some(watch), [work]) = (watch, &mut *works) {
        let mut part = AttentionStats::new(c.mode, c.reason);
        all.run(work, 0, 1, &mut part, &mut Some(watch));
        stats.add(&part);
        return Ok(stats);
    }
    let run = |ith, work: &mut Work| {
        let mut part = AttentionStats::new(c.mode, c.reason);
        let start = clock::now();
        all.run(work, ith, parts, &mut part, &mut None);
        part.attend_seconds = clock::since(start);
        Ok(part)
    };
    in_parts(&mut works, run, &mut stats)?;
    if auto && stats.pairs == stats.pairs_dense {
        (stats.mode, stats.reason) = (Mode::Exact, Reason::Diffuse);
    }
    Ok(stats)
}

/// A part's work memory and room for its trials, and for their offsets.
type Trying<'a> = (&'a mut Work, (&'a mut [Trial], &'a mut [f32]));

/// Trials of all heads, and what follows from them, layer by layer: the same for any number of parts. `room` is for these.
fn try_all<'b>(
    all: &Accelerated<'_>,
    trials: &'b mut Trials,
    deal: Deal,
    works: &'b mut [Work],
    mut room: Objects<Trying<'b>>,
    stats: &mut AttentionStats,
) -> Result<()> {
    let (mode, reason) = (stats.mode, stats.reason);
    for part in works.iter_mut().zip(trials.of_parts()) {
        room.push(part)?;
    }
    let run = |ith, (work, (trials, offsets)): &mut Trying<'_>| {
        let start = clock::now();
        let each = work.offsets.of_rules().len();
        for (j, (trial, offsets)) in trials.iter_mut().zip(offsets.chunks_exact_mut(each)).enumerate() {
            if let Some((run, of)) = deal.named(ith, j) {
                *trial = all.try_run(run, of, work);
                offsets.copy_from_slice(work.offsets.of_rules());
            }
        }
        Ok(AttentionStats { attend_seconds: clock::since(start), ..AttentionStats::new(mode, reason) })
    };
    in_parts(&mut room, run, stats)
}

/// Cells over all keys that are not padding.
pub(crate) fn fill(isa: Isa, cells: &mut Cells, k: &Rows<'_>, v: &Rows<'_>, keep: Option<&[u8]>) {
    let (mut ids, mut n) = ([0; SEGMENT], 0);
    for j in (0..k.rows()).filter(|&j| keep.is_none_or(|keep| keep[j] != 0)) {
        ids[n] = j as u32;
        n += 1;
        if n == SEGMENT {
            cells.push(isa, k, v, &ids);
            n = 0;
        }
    }
}
