//! All heads of a call, cut into independent pieces.

use super::super::certificate::Certificate;
use super::super::exact::{self, Head};
use super::super::few::{self, MOST};
use super::super::mask::Masking;
use super::super::problem::AttentionStats;
use super::block::{RowBlock, Sizes, Work};
use super::carried::Carried;
use super::cost::of_few;
use super::ladder::{LADDER, Trial, Trials};
use super::lead::Lead;
use super::proof::Proving;
use super::rule::Rule;
use super::walk::Watch;
use crate::cells::{Cells, SEGMENT};
use crate::mem::{Rows, Tensor, TensorMut};
use crate::simd::Isa;
use core::ops::Range;

/// Rows that share one prediction: so many times those that are tried.
const LED: usize = 8;

/// As often as cells hold so many keys, as many more rows share one: what a trial costs grows with the keys.
const LONG: usize = 16_384;

/// Times as many rows share a prediction against so many keys.
pub(super) fn stretch(keys: usize) -> usize {
    (keys / LONG).max(1)
}

/// Times the tolerance that the predicted error of a few rows may reach before they walk again.
const FAR_OFF: f64 = 2.0;

/// The same where offsets are taken from outputs, which the prediction does not know of: errors are half of what they are without.
const FAR_OFF_BESIDE: f64 = 3.0;

/// The same where thresholds are eased: rows of a trial have shown that errors are small, whatever is predicted.
const FAR_OFF_EASED: f64 = 6.0;

/// Times the tolerance that it may reach before they give up: no thresholds bring that down in time. Heads of models reach 3,
/// noise 30.
const BEYOND: f64 = 12.0;

/// What biases cost a few rows: by about so much more.
const LIFTED: f64 = 2.0;

/// A block is attended exactly when one row in so many exceeds its tolerance.
const MOST_ALONE: usize = 4;

/// Rows of a head from which on a trial tells what others err by in common.
const TOLD: usize = 3;

/// Rules of the ladder from one way of a few rows to the next: a quarter of the thresholds.
const QUARTER: usize = 4;

/// Keys, values and cells of a (batch, KV head). Asked once a block, so that one copy of the code does for all who attend.
pub(crate) type Source<'a> = dyn Fn(usize, usize) -> (Rows<'a>, Rows<'a>, &'a Cells) + Sync + 'a;

/// What trials of a KV head found.
pub(crate) type Leads<'a> = dyn Fn(usize) -> &'a Lead + Sync + 'a;

/// What rows of a KV head err by in common.
pub(crate) type Carries<'a> = dyn Fn(usize) -> &'a Carried + Sync + 'a;

/// All heads of a problem.
pub(crate) struct Accelerated<'a> {
    pub(crate) q: Tensor<'a>,
    pub(crate) kv: &'a Source<'a>,
    pub(crate) heads_kv: usize,
    /// Keys that the work memory is for.
    pub(crate) keys: usize,
    pub(crate) out: &'a TensorMut<'a>,
    pub(crate) lse: Option<&'a TensorMut<'a>>,
    pub(crate) masking: &'a Masking<'a>,
    pub(crate) scale: f32,
    pub(crate) softcap: f32,
    pub(crate) rule: Rule,
    /// What was found for each run of rows, where that was done before.
    pub(in crate::attention) trials: Option<&'a Trials>,
    /// Where what is found is kept for the next call, by KV head.
    pub(in crate::attention) leads: Option<&'a Leads<'a>>,
    /// The same for what is taken from outputs.
    pub(in crate::attention) carries: Option<&'a Carries<'a>>,
    /// Certificates, where they are asked for.
    pub(in crate::attention) proof: Option<Proving<'a>>,
    pub(crate) isa: Isa,
}

/// Rows of a head that are attended together; `whole` says that all of them use the same segments.
fn rows_of(dims: [usize; 2], group: usize, rows: usize, keys: usize, whole: bool) -> usize {
    let (rows, _) = Sizes::new(dims[0], dims[1], group, rows, keys);
    if whole { rows.min(narrow(group)) } else { rows }
}

/// Rows of a head that are tried, of blocks of `step` rows. Neighbours do for what would have to be prepared around more of them.
pub(super) fn tried(step: usize, group: usize) -> usize {
    step.min(narrow(group)).div_ceil(4)
}

/// Most rows of a head where all use the same segments: twice as many of a head that is alone.
fn narrow(group: usize) -> usize {
    if group == 1 { 2 * SEGMENT } else { SEGMENT }
}

/// Rows that share a trial, against so many keys.
fn run_of(group: usize, keys: usize) -> usize {
    LED * narrow(group) * stretch(keys)
}

/// Runs of rows that share a trial.
pub(super) fn runs(group: usize, rows: usize, keys: usize) -> usize {
    rows.div_ceil(run_of(group, keys))
}

/// The most pieces worth handing to different parts; `whole` as for [`rows_of`].
pub(crate) fn most_pieces(shape: [usize; 4], heads_kv: usize, dim_v: usize, keys: usize, whole: bool) -> usize {
    let [batch, heads, rows, dim_k] = shape;
    batch * heads_kv * rows.div_ceil(rows_of([dim_k, dim_v], heads / heads_kv, rows, keys, whole))
}

impl<'a> Accelerated<'a> {
    /// Part `ith` of `nth`, added to the statistics. What is computed for a row does not depend on `nth`.
    pub(crate) fn run(
        &self,
        work: &mut Work,
        ith: usize,
        nth: usize,
        stats: &mut AttentionStats,
        watch: &mut Option<super::Watch<'_>>,
    ) {
        let [batch, _, rows, _] = self.q.shape();
        let step = self.step();
        let blocks = rows.div_ceil(step);
        let mut verdict = None;
        for piece in (ith..batch * self.heads_kv * blocks).step_by(nth) {
            // The last blocks of a causal head are the longest: hand them out first.
            let block = blocks - 1 - piece % blocks;
            let (of, run) = (piece / blocks, block * step / self.run_of());
            let head = self.head(of);
            let b = self.rows(&head, of, block * step..(block * step + step).min(rows));
            let way = match (self.trials, verdict) {
                (Some(trials), _) => {
                    let way = trials.way(run, of);
                    work.offsets.take(None);
                    if let Some(times) = way.filter(|_| self.takes_offsets()) {
                        work.offsets.take_kept(trials.offsets(run, of, times));
                    }
                    way
                }
                (_, Some((last, way))) if last == (of, run) => way,
                _ => self.lead(&self.leading(&head, of, run), of, rows, work),
            };
            verdict = Some(((of, run), way));
            match watch {
                Some(watch) => {
                    let mut each = |r: u16, ids: &[u32]| {
                        let (h, i) = (r as usize / b.n, r as usize % b.n);
                        watch(head.head + h, b.begin + i, ids);
                    };
                    self.block(&b, way, work, stats, &mut Some(&mut each));
                }
                None => self.block(&b, way, work, stats, &mut None),
            }
        }
    }

    /// The rule, tightened so often; for certificates with nothing of what is opened stood for by means.
    fn rule(&self, times: usize) -> Rule {
        let rule = if self.takes_offsets() { self.rule } else { self.rule.without_offsets() };
        let rule = if self.proof.is_some() { rule.whole() } else { rule };
        rule.tightened(times)
    }

    /// Query heads that share keys and values.
    fn group(&self) -> usize {
        self.q.shape()[1] / self.heads_kv
    }

    /// Rows of a head that are attended together.
    fn step(&self) -> usize {
        let ([_, _, rows, dim_k], dim_v) = (self.q.shape(), self.out.shape()[3]);
        let whole = self.proof.is_some() || self.masking.biases().is_some();
        rows_of([dim_k, dim_v], self.group(), rows, self.keys, whole)
    }

    /// Rows that share a trial.
    fn run_of(&self) -> usize {
        let (k, ..) = (self.kv)(0, 0);
        run_of(self.group(), k.rows())
    }

    /// The first head of group `of`, counted through all sequences.
    fn head(&self, of: usize) -> Head<'_> {
        let (batch, head) = (of / self.heads_kv, of % self.heads_kv * self.group());
        let (k, v, _) = (self.kv)(batch, of % self.heads_kv);
        let &Accelerated { masking, scale, softcap, .. } = self;
        Head { q: self.q.head(batch, head), k, v, masking, batch, head, scale, softcap, shared_qk: false }
    }

    /// Rows of the group that begins with `head`.
    fn rows<'b>(&'b self, head: &'b Head<'b>, of: usize, rows: Range<usize>) -> RowBlock<'b> {
        let (_, _, cells) = (self.kv)(of / self.heads_kv, of % self.heads_kv);
        let (isa, rule, q, group) = (self.isa, &self.rule, &self.q, self.group());
        RowBlock { isa, rule, q, head, group, cells, begin: rows.start, n: rows.len() }
    }

    /// The last rows of a run, which speak for all of it, whoever attends them.
    fn leading<'b>(&'b self, head: &'b Head<'b>, of: usize, run: usize) -> RowBlock<'b> {
        let end = ((run + 1) * self.run_of()).min(self.q.shape()[2]);
        self.rows(head, of, end - end.min(tried(self.step(), self.group()))..end)
    }

    /// [`choose`](Self::choose) for the blocks of a call of group `of`; where what trials find is kept, by what was chosen for the rows
    /// of the calls before, where they are no more than share one prediction.
    fn lead(&self, b: &RowBlock<'_>, of: usize, rows: usize, work: &mut Work) -> Option<usize> {
        work.offsets.take(None);
        let shared = rows <= LED * narrow(b.group);
        let leads = self.leads.filter(|_| shared && !b.is_few(work) && self.verified().is_none());
        let Some(lead) = leads.map(|leads| leads(of)) else { return self.choose(b, of, work) };
        if let Some(times) = lead.way() {
            if let Some(carried) = self.carried(of) {
                carried.give_many(times, &mut work.offsets);
            }
            return Some(times);
        }
        let trial = self.try_rules(b, self.carried(of), work);
        lead.note(&trial);
        let way = lead.or_as_before(&trial, f64::from(self.rule.error));
        work.offsets.take(way.filter(|_| self.takes_offsets()));
        way
    }

    /// The first of the rules under which a block is predicted to keep the error, if it is predicted to be cheaper than
    /// exact attention too. A few rows do not pay for a prediction; in auto mode they remember what came of it.
    fn choose(&self, b: &RowBlock<'_>, of: usize, work: &mut Work) -> Option<usize> {
        if let Some(certificate) = self.verified() {
            if b.is_few(work) {
                return Some(0);
            }
            let usable = b.find_usable(work);
            return (usable > 0 && b.pays(work, &self.rule(0), usable, certificate)).then_some(0);
        }
        if b.is_few(work) {
            if let Some(carried) = self.carried(of) {
                carried.give_few(b.head.k.rows(), &mut work.offsets);
            }
            return (!self.is_auto() || b.cells.rest().is_over()).then_some(0);
        }
        let asked = !self.rule.never_dense();
        let mut way = Some(0);
        if asked || self.takes_offsets() {
            let trial = self.try_rules(b, self.carried(of), work);
            way = if asked { trial.alone(f64::from(self.rule.error)) } else { way };
        }
        if self.takes_offsets() {
            work.offsets.take(way);
        }
        way
    }

    /// Whether what outputs are off by in common is taken from them: not where bounds know nothing of it.
    fn takes_offsets(&self) -> bool {
        self.proof.is_none()
    }

    /// Where what they are off by is kept for the rows to come, and found again.
    fn carried(&self, of: usize) -> Option<&'a Carried> {
        self.carries.filter(|_| self.takes_offsets()).map(|carries| carries(of))
    }

    /// Tries the rules on a few rows of a block: from the loosest to the first that keeps the tolerance, or while they cost less than
    /// exact attention. What they err by in common is noted for the rows to come, where these can know of it.
    fn try_rules(&self, b: &RowBlock<'_>, carried: Option<&Carried>, work: &mut Work) -> Trial {
        work.offsets.clear();
        let usable = b.find_usable(work);
        if usable == 0 {
            return Trial::idle();
        }
        b.prepare(work);
        b.attend_sample(work);
        let mut trial = Trial::new(b.sampled(), b.covered(work) as f64);
        let told = self.takes_offsets() && trial.rows >= TOLD * b.group;
        let mut next = Some(0);
        while let Some(times) = next {
            b.set_limits(work, &self.rule(times), usable, false);
            let of = b.rehearse(work, times, self.proof.is_none(), told);
            b.clear(work);
            if of.cost * f64::from(self.rule.caution) > b.covered(work) as f64 {
                break;
            }
            if trial.rules().len() + 1 == times {
                work.offsets.fill_between(times - 1);
            }
            next = trial.add(times, of, f64::from(self.rule.error));
        }
        if let Some(carried) = carried.filter(|_| told) {
            self.carry(b, &trial, usable, carried, work);
        }
        trial
    }

    /// After a trial: notes what its rows err by in common, by the rules that were tried and as a few rows would attend them.
    fn carry(&self, b: &RowBlock<'_>, trial: &Trial, usable: usize, carried: &Carried, work: &mut Work) {
        let mark = b.head.masking.visible(b.head.batch, b.begin + b.n - 1).end;
        if let Some(last) = trial.rules().len().checked_sub(1) {
            carried.note_many(mark, last, work.offsets.of(0), work.offsets.of(last));
        }
        if !carried.is_due(mark) {
            return;
        }
        b.tell_few(work, &self.rule(0), usable, mark, carried);
    }

    /// The trial of a run of rows and a group of heads. O(rows of the trial x keys x dim).
    pub(super) fn try_run(&self, run: usize, of: usize, work: &mut Work) -> Trial {
        let head = self.head(of);
        self.try_rules(&self.leading(&head, of, run), None, work)
    }

    /// Whether exact attention takes over where it is cheaper.
    fn is_auto(&self) -> bool {
        self.rule.caution > 0.0
    }

    /// The certificate that every row is to keep.
    fn verified(&self) -> Option<&Certificate<'a>> {
        self.proof.as_ref().filter(|p| p.verified).map(|p| &p.certificate)
    }

    /// One block by a rule, or exactly.
    fn block(
        &self,
        b: &RowBlock<'_>,
        way: Option<usize>,
        work: &mut Work,
        stats: &mut AttentionStats,
        watch: &mut Option<Watch<'_>>,
    ) {
        let queries = b.queries();
        let mut seen = 0;
        for i in 0..b.n {
            seen += b.head.masking.count(b.head.batch, b.head.masking.visible(b.head.batch, b.begin + i)) as u64;
        }
        let seen = seen * b.group as u64;
        stats.pairs_dense += seen;
        let (usable, first) = match way {
            Some(times) => (b.find_usable(work), times),
            None => (0, 0),
        };
        let part = AttentionStats { rows: queries as u64, ..AttentionStats::new(stats.mode, stats.reason) };
        if usable == 0 {
            stats.add(&AttentionStats { pairs: seen, ..part });
            return self.exact(b, work, stats);
        }
        // Verified rows are held to their bounds, others to predictions: of many rows before, of a few after they walked.
        let verified = self.verified().is_some();
        let doubtful = b.is_few(work) && !verified && self.rule.error < f32::INFINITY;
        let far_off = match (work.offsets.taken(), work.offsets.eased().keys) {
            (false, _) => FAR_OFF,
            (true, 0) => FAR_OFF_BESIDE,
            _ => FAR_OFF_EASED,
        };
        let (mut times, mut cost) = (first, 0.0);
        let (done, failing) = loop {
            b.prepare(work);
            if times == first {
                b.expect(work);
            }
            let rule = self.rule(times);
            b.set_limits(work, &rule.eased(work.offsets.eased()), usable, b.is_few(work));
            let (done, failing) = match &self.proof {
                Some(proof) => {
                    b.begin_proof(work, proof.certificate.tolerance);
                    let done = b.prove(work, false, verified, doubtful, watch);
                    let failing = b.set_bounds(work, &proof.certificate);
                    (done, if verified { failing } else { 0 })
                }
                None => {
                    let done = b.walk(work, doubtful, watch);
                    (done, done.lost as usize)
                }
            };
            // A single row errs more or less than the many that a prediction is made for: only what is far off is done again.
            if !doubtful {
                break (done, failing);
            }
            cost += of_few(queries, usable, &done) * if work.is_lifted() { LIFTED } else { 1.0 };
            let off = b.predicted_error(work, self.proof.is_none()) / f64::from(self.rule.error);
            if off <= far_off {
                b.cells.rest().note(cost - 1.0);
                break (done, failing);
            }
            // Every way before is lost time.
            times += QUARTER;
            if times >= LADDER || off > BEYOND {
                b.cells.rest().note(cost);
                stats.add(&AttentionStats { pairs: seen, ..part });
                return self.exact(b, work, stats);
            }
        };
        if failing * MOST_ALONE > queries {
            stats.add(&AttentionStats { pairs: seen, ..part });
            return self.exact(b, work, stats);
        }
        if let Some(certificate) = self.verified().filter(|_| failing > 0) {
            b.give_up_failing(work, certificate.tolerance);
        }
        if self.proof.is_none() {
            b.lean(work, false);
        }
        let again = failing as u64 * seen / queries as u64;
        let estimated_mass = self.finish(b, work, stats) / queries as f32;
        let pairs = seen - b.covered(work) as u64 + done.keys + again;
        stats.add(&AttentionStats { pairs, cells_opened: done.cells, estimated_mass, ..part });
    }

    /// A row whose weights left the range of f32: a key beyond everything that the means let expect.
    fn exact_row(&self, b: &RowBlock<'_>, h: usize, i: usize, work: &mut Work, stats: &mut AttentionStats) {
        let head = b.each(h);
        let mut out = self.out.rows(head.batch, head.head, b.begin + i, 1);
        let mut lse = self.lse.map(|t| t.rows(head.batch, head.head, b.begin + i, 1));
        let lse = lse.as_mut().and_then(|r| r.as_slice());
        exact::attend(b.isa, &head, b.begin + i, 1, &mut out, lse, &mut work.dense);
        self.certify_exact(&head, b.begin + i, 1, stats);
    }

    /// Certificates of rows whose outputs are exact.
    fn certify_exact(&self, head: &Head<'_>, begin: usize, n: usize, stats: &mut AttentionStats) {
        if let Some(proof) = &self.proof {
            proof.certificate.exact(&self.q, self.out, [head.batch, head.head], begin, n, stats);
        }
    }

    /// Rows that no cells can serve.
    fn exact(&self, b: &RowBlock<'_>, work: &mut Work, stats: &mut AttentionStats) {
        if b.is_few(work) {
            // The rows of all heads read keys and values once.
            let most = (MOST / b.n).max(1);
            for h in (0..b.group).step_by(most) {
                let heads = (b.group - h).min(most);
                few::attend_group(b.isa, &b.each(h), heads, b.q, self.out, self.lse, &mut work.dense);
            }
            return (0..b.group).for_each(|h| self.certify_exact(&b.each(h), b.begin, b.n, stats));
        }
        for h in 0..b.group {
            let head = b.each(h);
            let mut out = self.out.rows(head.batch, head.head, b.begin, b.n);
            let mut lse = self.lse.map(|t| t.rows(head.batch, head.head, b.begin, b.n));
            let lse = lse.as_mut().and_then(|r| r.as_slice());
            exact::attend(b.isa, &head, b.begin, b.n, &mut out, lse, &mut work.dense);
            self.certify_exact(&head, b.begin, b.n, stats);
        }
    }

    /// Divides by the sums of the weights; returns the sum of the rows' estimated shares.
    fn finish(&self, b: &RowBlock<'_>, work: &mut Work, stats: &mut AttentionStats) -> f32 {
        let mut share = 0.0;
        let (stride, dim_v) = (work.sizes.stride, work.sizes.dim_v);
        for h in 0..b.group {
            let mut out = self.out.rows(b.head.batch, b.head.head + h, b.begin, b.n);
            let mut lse = self.lse.map(|t| t.rows(b.head.batch, b.head.head + h, b.begin, b.n));
            let mut lse = lse.as_mut().and_then(|r| r.as_slice());
            for i in 0..b.n {
                let r = h * b.n + i;
                if work.lost[r] {
                    self.exact_row(b, h, i, work, stats);
                    continue;
                }
                let total = b.weight(work, r);
                let estimated = work.estimated_weight(r);
                let row = &mut work.sums[r * stride..][..dim_v];
                if total > 0.0 {
                    b.isa.scale(1.0 / total, row);
                    share += estimated / total;
                    work.offsets.apply(h, stride, estimated / total, row);
                } else {
                    row.fill(0.0);
                }
                out.write(i, row);
                if let (Some(proof), Some(evidence)) = (&self.proof, &work.evidence) {
                    let row = [b.head.batch, b.head.head + h, b.begin + i];
                    proof.certificate.note(row, evidence.bounds[r], stats);
                }
                if let Some(lse) = &mut lse {
                    let log2 = f64::from(work.reference[r]) + libm::log2(f64::from(total));
                    lse[i] = if total > 0.0 { (log2 * core::f64::consts::LN_2) as f32 } else { f32::NEG_INFINITY };
                }
            }
        }
        share
    }
}
