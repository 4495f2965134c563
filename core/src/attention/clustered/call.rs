//! The one-call form: trees of all heads first, then the rows.

use super::super::Mode;
use super::super::clock;
use super::super::dense::FEW;
use super::super::parts::in_parts;
use super::super::problem::{Checked, Problem};
use super::super::stats::AttentionStats;
use super::ablation::{Part, without};
use super::control::Control;
use super::engine::{BlockWork, Watch};
use super::order::Order;
use super::runs::{Heads, runs_of};
use super::tree::Tree;
use crate::error::Result;
use crate::mem::{Maker, Memory, Objects, Plan};
use crate::simd::Isa;

fn parts(c: &Checked<'_>) -> usize {
    c.options.num_threads.min(runs_of(c.batch * c.heads_kv, c.heads_q / c.heads_kv, c.rows_q, c.rows_kv)).max(1)
}

/// Threads that build, a run of heads each.
fn builders(c: &Checked<'_>) -> usize {
    let heads = c.batch * c.heads_kv;
    heads.div_ceil(heads.div_ceil(c.options.num_threads.max(1))).max(1)
}

/// What a part builds: its first head, the trees of its heads, and room for their order.
type Building<'a> = (usize, &'a mut [Tree], Option<Order>);

/// Whether keys come in an order of their own: all rows see the same, and are more than a few, which would not repay it.
fn reorders(c: &Checked<'_>) -> bool {
    c.masking.shows_all() && c.rows_q > FEW && !without(Part::Order)
}

fn trees_made(m: &mut Maker<'_>, c: &Checked<'_>) -> Objects<Tree> {
    m.objects(c.batch * c.heads_kv, |m| Tree::made(m, c.dim_k, c.dim_v, c.rows_kv))
}

fn works_made(m: &mut Maker<'_>, c: &Checked<'_>) -> Objects<BlockWork> {
    m.objects(parts(c), |m| BlockWork::made(m, [c.dim_k, c.dim_v], c.heads_q / c.heads_kv, c.rows_q, c.rows_kv))
}

/// For heads still to be named.
fn building_made<'a>(m: &mut Maker<'_>, c: &Checked<'_>) -> Objects<Building<'a>> {
    m.objects(builders(c), |m| (0, Default::default(), reorders(c).then(|| Order::made(m, c.rows_kv))))
}

/// Adds everything that [`call`] takes to a plan.
pub(in super::super) fn plan_call(c: &Checked<'_>, plan: &mut Plan) {
    plan.count(|m| (trees_made(m, c), works_made(m, c), building_made(m, c)));
}

/// Attends a whole problem.
pub(in super::super) fn call(
    problem: &Problem<'_>,
    c: &Checked<'_>,
    memory: &Memory,
    watch: Option<Watch<'_>>,
) -> Result<AttentionStats> {
    let isa = c.options.isa.unwrap_or_else(Isa::best);
    let (heads, parts) = (c.batch * c.heads_kv, parts(c));
    let mut trees = Maker::make(memory, |m| trees_made(m, c))?;
    let mut works = Maker::make(memory, |m| works_made(m, c))?;
    let mut stats = AttentionStats::new(c.mode, c.reason);
    let kv = |i: usize| c.kv(problem, i / c.heads_kv, i % c.heads_kv);
    let step = heads.div_ceil(builders(c));
    let mut building = Maker::make(memory, |m| building_made(m, c))?;
    for ((i, trees), piece) in trees.chunks_mut(step).enumerate().zip(&mut *building) {
        (piece.0, piece.1) = (i * step, trees);
    }
    let build = |_, (first, trees, order): &mut Building<'_>| {
        let start = clock::now();
        for (i, tree) in (*first..).zip(trees.iter_mut()) {
            let (k, v) = kv(i);
            let (batch, group) = (i / c.heads_kv, c.heads_q / c.heads_kv);
            let heads = i % c.heads_kv * group..(i % c.heads_kv + 1) * group;
            match order {
                Some(order) => tree.fill_in_order(isa, &k, &v, c.masking.keep(batch), order),
                None => tree.fill(isa, &k, &v, |first| c.masking.shows_segment(isa, batch, heads.clone(), first)),
            }
            tree.publish();
        }
        Ok(AttentionStats { build_seconds: clock::since(start), ..AttentionStats::new(c.mode, c.reason) })
    };
    in_parts(&mut building, build, &mut stats)?;
    drop(building);
    let source = |batch: usize, head: usize| {
        let at = batch * c.heads_kv + head;
        let (k, v) = kv(at);
        (k, v, &trees[at])
    };
    let all = Heads {
        call: c.call(problem),
        auto: problem.options.mode == Mode::Auto,
        heads_kv: c.heads_kv,
        kv: &source,
        before: &|_| Control::default(),
        after: &|_, _, _| {},
    };
    let attend = |ith: usize, work: &mut BlockWork, watch: &mut Option<Watch<'_>>| {
        let start = clock::now();
        let mut stats = AttentionStats::new(c.mode, c.reason);
        all.run(work, ith, parts, &mut stats, watch);
        stats.attend_seconds = clock::since(start);
        Ok(stats)
    };
    if let (Some(watch), [work]) = (watch, &mut *works) {
        stats.add(&attend(0, work, &mut Some(watch))?);
    } else {
        in_parts(&mut works, |ith, work| attend(ith, work, &mut None), &mut stats)?;
    }
    if all.auto {
        stats.settle();
    }
    Ok(stats)
}
