//! Walks whose outputs are certified: every cell that is not opened is bounded by the coordinates of its keys, which give
//! its estimate too.
//!
//! With estimated masses m'_i of means v_i, bounds r_i on their errors, b_i on what the values of a cell do, and o' the
//! output, the error is at most `(sum r_i |v_i - o'| + b_i) / (Z' - sum (m'_i - least m_i))`, and by Cauchy-Schwarz
//! `sum r_i |v_i - o'| <= sqrt(R (sum r_i |v_i|^2 - 2 <o', sum r_i v_i> + R |o'|^2))`, `R = sum r_i`.

use super::super::certificate::{Certificate, length};
use super::block::{Listed, RowBlock, Sizes, Work};
use super::rule::Rule;
use super::walk::{Done, Shared, Watch, children, doubts};
use crate::cells::{BLOCK, ROOT, SEGMENT};
use crate::error::Result;
use crate::mem::{Buf, Memory, Plan};
use crate::simd::block::{AddValues, Bound, Bytes, Choose, Matrix, Opening, Proofs, Scores, Stored};

/// Verified attention opens a cell that may be wrong by so many times its even share of what is left of the tolerance:
/// 16 and 1 left a row fewer cells closed, or more rows to attend exactly.
const SHARE: f32 = 4.0;

/// Share of the allowed error that cells may use up before everything is opened: what is left is for outputs that turn
/// out shorter than expected.
const SPENT: f32 = 0.9;

/// What bounding a cell for a row costs, in pairs of the dense kernels at 64 elements a key and value: bounding all cells
/// adds about half of the time of exact attention there.
const BOUNDING: f64 = 7.0;

/// What is asked of a call beside its output.
pub(in crate::attention) struct Proving<'a> {
    pub(in crate::attention) certificate: Certificate<'a>,
    /// Rows are to keep the tolerance by their bounds.
    pub(in crate::attention) verified: bool,
}

/// A row's query, and what it may err by.
#[derive(Clone, Copy, Default)]
struct Claim {
    lost: f32,
    length: f32,
    reference: f32,
    budget: f32,
}

/// Numbers of a row in [`Proofs`].
const COLUMNS: usize = 8;

/// Work memory of a proof.
pub(super) struct Evidence {
    claims: Buf<Claim>,
    /// [`Proofs`] by place in the list that is walked, one after the other.
    columns: Buf<f32>,
    /// Radii of a node's cells, `[queries][BLOCK]`.
    radii: Buf<f32>,
    /// Their sums, `[queries][BLOCK]`, and weighted sums of the mean values, `[queries][stride]`.
    radius: Buf<f32>,
    drift: Buf<f32>,
    /// Relative bounds.
    pub(super) bounds: Buf<f32>,
}

impl Work {
    /// Adds what [`Work::proving`] takes to a plan.
    pub(crate) fn plan_proving(plan: &mut Plan, dim_k: usize, dim_v: usize, group: usize, rows: usize, keys: usize) {
        let (_, s) = Sizes::new(dim_k, dim_v, group, rows, keys);
        Buf::<Claim>::plan(plan, s.queries);
        Buf::<f32>::plan(plan, COLUMNS * s.queries.next_multiple_of(BLOCK));
        for len in [s.queries * BLOCK, s.queries * BLOCK, s.queries * s.stride, s.queries] {
            Buf::<f32>::plan(plan, len);
        }
    }

    /// With room for certificates.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub(crate) fn proving(mut self, memory: &Memory) -> Result<Work> {
        let s = &self.sizes;
        let f = |len: usize| Buf::filled(memory, len, 0.0f32);
        self.evidence = Some(Evidence {
            claims: Buf::filled(memory, s.queries, Claim::default())?,
            columns: f(COLUMNS * s.queries.next_multiple_of(BLOCK))?,
            radii: f(s.queries * BLOCK)?,
            radius: f(s.queries * BLOCK)?,
            drift: f(s.queries * s.stride)?,
            bounds: f(s.queries)?,
        });
        Ok(self)
    }

    fn evidence(&mut self) -> &mut Evidence {
        self.evidence.as_mut().unwrap_or_else(|| unreachable!("whoever proves has asked for the memory"))
    }
}

fn columns_of(x: &mut [f32]) -> [&mut [f32]; COLUMNS] {
    let n = x.len() / COLUMNS;
    let mut columns = x.chunks_exact_mut(n.max(1));
    core::array::from_fn(|_| columns.next().unwrap_or_default())
}

fn sum_of(x: &[f32], i: usize) -> f32 {
    x[i * BLOCK..][..BLOCK].iter().sum()
}

impl RowBlock<'_> {
    /// After [`RowBlock::prepare`] and the limits: lengths of the queries, and what each row may err by, from outputs
    /// that the nodes let expect.
    pub(super) fn begin_proof(&self, work: &mut Work, tolerance: f32) {
        let n = self.queries();
        let stride = work.sizes.stride;
        work.evidence().drift[..n * stride].fill(0.0);
        work.evidence().radius[..n * BLOCK].fill(0.0);
        for at in 0..self.cells.segments().div_ceil(ROOT) {
            if work.usable.present(at) == 0 {
                continue;
            }
            let block = self.cells.root(at);
            self.choose(work, &block, at, Listed::All);
            let Work { scores, every, evidence: Some(Evidence { radius, drift, .. }), .. } = work else { return };
            let rows = &every[..n];
            self.isa.run(AddValues {
                p: &scores[1],
                values: block.values,
                rows,
                out: drift,
                total: Some(radius),
                lean: None,
            });
        }
        let Work { sizes, q, sums, along, reference, evidence: Some(evidence), .. } = work else { return };
        let Evidence { claims, drift, .. } = evidence;
        for i in 0..n {
            let out = sums[i * stride..][..sizes.dim_v].iter().zip(&drift[i * stride..]);
            let norm2: f32 = out.map(|(a, b)| (a + b) * (a + b)).sum();
            let q2 = self.isa.norm2(&q[i * sizes.q_stride..][..sizes.dim_k]);
            claims[i] = Claim {
                lost: along[i].lost * 1.0002,
                length: libm::sqrtf(q2) * 1.0002,
                reference: reference[i],
                // Relative to the sum of the weights, like the terms that are held against it.
                budget: tolerance / (1.0 + tolerance) * SPENT * libm::sqrtf(norm2),
            };
        }
    }

    /// Sums of the rows of a walk start at zero.
    fn reset_proof(&self, work: &mut Work, sample: bool) {
        let stride = work.sizes.stride;
        let Work { every, sample: few, evidence: Some(evidence), .. } = work else { return };
        let rows = if sample { &**few } else { &every[..self.queries()] };
        let Evidence { claims, columns, radius, drift, .. } = evidence;
        let [lost, length, reference, budget, sums @ ..] = columns_of(columns);
        sums.into_iter().for_each(|x| x.fill(0.0));
        for (at, &i) in rows.iter().enumerate() {
            let i = i as usize;
            let claim = claims[i];
            (lost[at], length[at]) = (claim.lost, claim.length);
            (reference[at], budget[at]) = (claim.reference, claim.budget);
            radius[i * BLOCK..][..BLOCK].fill(0.0);
            drift[i * stride..][..stride].fill(0.0);
        }
    }

    /// A walk of all rows or of the sample, with evidence; each opens what its own tolerance asks for, or
    /// without `verified` what the rule does. `doubtful` says that errors are to be predicted too.
    pub(super) fn prove(
        &self,
        work: &mut Work,
        sample: bool,
        verified: bool,
        doubtful: bool,
        watch: &mut Option<Watch<'_>>,
    ) -> Done {
        self.reset_proof(work, sample);
        if doubtful {
            work.doubt[..self.queries() * BLOCK].fill(0.0);
        }
        let mut done = Done::default();
        let mut left = work.usable.count() * SEGMENT / BLOCK;
        for at in 0..self.cells.segments().div_ceil(ROOT) {
            let bits = work.usable.present(at);
            for lane in (0..BLOCK).filter(|lane| bits >> lane & 1 != 0) {
                let budget = verified.then_some(left);
                self.prove_node(work, at * BLOCK + lane, sample, budget, doubtful, &mut done, watch);
                left -= BLOCK;
            }
        }
        done
    }

    /// The cells of one node, for all rows.
    fn prove_node(
        &self,
        work: &mut Work,
        node: usize,
        sample: bool,
        budget: Option<usize>,
        doubtful: bool,
        done: &mut Done,
        watch: &mut Option<Watch<'_>>,
    ) {
        let coords = self.cells.coords();
        // Cells under proof have them.
        let Some(means) = self.cells.cell_keys(node) else { return };
        let block = self.cells.node(node);
        let softcap = self.head.softcap * core::f32::consts::LOG2_E;
        let Work { sizes, q, scores, every, sample: few, reference, needle, shares, mass, sigma, .. } = work;
        let Work { centers, sure, open, lists, codes, along, evidence: Some(Evidence { columns, radii, .. }), .. } =
            work
        else {
            return;
        };
        let rows = if sample { &**few } else { &every[..self.queries()] };
        let matrix = Matrix { data: q, stride: sizes.q_stride, cols: sizes.dim_k };
        let list = &mut lists[0];
        self.isa.run(Scores { block: Stored::F32(means), q: matrix, rows, out: &mut centers[0] });
        self.isa.run(Choose {
            centers: &centers[0],
            rows,
            children: children(&block, 0, &[1.0; BLOCK], 0xffff),
            limits: self.limits(&Shared { reference, needle, stand_out: shares.stand_out }, 0, &mass[0], &sigma[0]),
            weights: &mut scores[0],
            open,
            sure: &mut sure[0],
        });
        for leaf in 0..BLOCK {
            let cell = node * BLOCK + leaf;
            list.len[leaf] = rows.len();
            let (to, places) = list.of_mut(leaf);
            let [lost, length, from, allowed, spent, value, square, excess] = columns_of(columns);
            let opened = self.isa.run(Bound {
                keys: coords.cell(cell),
                beyond: self.cells.beyond(cell).unwrap_or_default(),
                softcap,
                q: Bytes { codes, of: along },
                rows,
                centers: &centers[0],
                lane: leaf,
                opening: match budget {
                    Some(left) => Opening::Budget { share: SHARE, left: (left - leaf) as f32 },
                    None => Opening::Rule(open, &sure[0]),
                },
                proofs: Proofs { lost, length, reference: from, budget: allowed, spent, value, square, excess },
                mass: &mut scores[0],
                radius: radii,
                opened: to,
                places,
            });
            list.len[leaf] = opened;
            done.sifted += rows.len() as u64;
        }
        done.nodes += rows.len() as u64;
        self.opened(work, node, done, watch);
        let Work { scores, sums, every, sample: few, estimated, doubt, sigma, evidence: Some(evidence), .. } = work
        else {
            return;
        };
        let Evidence { radii, radius, drift, .. } = evidence;
        let rows = if sample { &**few } else { &every[..self.queries()] };
        if doubtful {
            self.isa.run(doubts(&block, 0, &scores[0], rows, &sigma[0], doubt));
        }
        let values = block.values;
        self.isa.run(AddValues { p: &scores[0], values, rows, out: sums, total: Some(estimated), lean: None });
        self.isa.run(AddValues { p: radii, values, rows, out: drift, total: Some(radius), lean: None });
    }

    /// The relative bound of query `i`, number `place` of the list, after a walk.
    fn bound(&self, work: &Work, place: usize, i: usize, certificate: &Certificate<'_>) -> f32 {
        let Some(evidence) = &work.evidence else { return f32::INFINITY };
        let (stride, dim_v) = (work.sizes.stride, work.sizes.dim_v);
        let columns = &evidence.columns;
        let [value, square, excess] = [5, 6, 7].map(|c| f64::from(columns[c * (columns.len() / COLUMNS) + place]));
        let of = |x: &[f32]| f64::from(sum_of(x, i));
        let total = f64::from(work.dense_sum[i]) + of(&work.exact) + of(&work.estimated) - f64::from(work.light[i]);
        let radius = of(&evidence.radius);
        let (mut norm2, mut along) = (0.0, 0.0);
        let sums = &work.sums[i * stride..][..dim_v];
        for (&x, &d) in sums.iter().zip(&evidence.drift[i * stride..]) {
            let x = f64::from(x) / total;
            norm2 += x * x;
            along += x * f64::from(d);
        }
        // Sums in f32 are right to a few 1e-6 of their largest parts.
        let apart = (square - 2.0 * along + radius * norm2).max(0.0) + 1e-5 * (square + radius * norm2);
        let wrong = libm::sqrt(radius * apart) + value;
        let least = total * (1.0 - 1e-5) - excess * 1.001;
        if least.is_nan() || least <= 0.0 {
            return f32::INFINITY;
        }
        let (h, r) = (i / self.n, self.begin + i % self.n);
        let query = length(&self.q.head(self.head.batch, self.head.head + h), r);
        let slack = certificate.slack(self.head.batch, self.head.head + h, r, query);
        certificate.relative(wrong * 1.001 / least + slack, libm::sqrt(norm2))
    }

    /// Bounds of all rows after a walk; returns how many exceed the tolerance.
    pub(super) fn set_bounds(&self, work: &mut Work, certificate: &Certificate<'_>) -> usize {
        let mut failing = 0;
        for i in 0..self.queries() {
            let bound = self.bound(work, i, i, certificate);
            failing += usize::from(bound > certificate.tolerance);
            work.evidence().bounds[i] = bound;
        }
        failing
    }

    /// Leaves the rows whose bound exceeds the tolerance to exact attention.
    pub(super) fn give_up_failing(&self, work: &mut Work, tolerance: f32) {
        let Work { lost, evidence: Some(evidence), .. } = work else { return };
        let rows = lost.iter_mut().zip(&*evidence.bounds).take(self.queries());
        rows.for_each(|(lost, &bound)| *lost |= bound > tolerance);
    }

    /// Whether verified cells are predicted to be cheaper than exact attention, from a few rows that are attended by them
    /// and then forgotten.
    pub(super) fn pays(&self, work: &mut Work, rule: &Rule, usable: usize, certificate: &Certificate<'_>) -> bool {
        self.prepare(work);
        self.set_limits(work, rule, usable, false);
        self.begin_proof(work, certificate.tolerance);
        self.keep_sample(work);
        let pairs = (usable * SEGMENT) as f64;
        let small = 128.0 / (work.sizes.dim_k + work.sizes.dim_v) as f64;
        let done = self.prove(work, true, true, false, &mut None);
        let rows = work.sample.len();
        let failing = (0..rows).filter(|&at| {
            let i = work.sample[at] as usize;
            self.bound(work, at, i, certificate) > certificate.tolerance
        });
        let failing = failing.count() as f64;
        self.forget_sample(work);
        self.clear(work);
        let cells = (9.0 + 9.0 * small) * done.cells as f64
            + (BOUNDING * small) * done.sifted as f64
            + (15.0 + 6.0 * small) * done.nodes as f64;
        cells + failing * pairs < rows as f64 * pairs
    }
}
