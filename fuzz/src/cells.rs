//! Accelerated calls in which cells are built, some opened and others estimated. Without tolerance the output is that of f64; elsewhere
//! bounds hold, what no row sees changes no bit, nothing hidden is scored, and neither threads nor memory change bits.

use crate::Budget;
use crate::stored::Stored;
use crate::tally::{self, Kind};
use crate::truth::{Truth, distance, hold, shows, truth};
use crate::twin::{Naive, memory, noise};
use arbitrary::{Result, Unstructured};
use iceformer_core::Status;
use iceformer_core::attention::clustered::{SEGMENT, Scored};
use iceformer_core::attention::{
    AttentionOptions, AttentionStats, Mask, Mode, Problem, attention, attention_watched, required,
};
use iceformer_core::math::hash;
use iceformer_core::mem::{Dtype, TensorMut};
use iceformer_core::simd::Isa;

/// Pairs of a row and a key that one program may cost.
const PAIRS: usize = 500_000;

/// Keys or values around centres that follow each other in runs.
pub(crate) fn clusters(n: usize, dim: usize, seed: u64, spread: f32) -> Vec<f32> {
    let (centres, mut x) = (noise(32 * dim, seed + 50, 1.5), noise(n * dim, seed, spread));
    for (i, row) in x.chunks_mut(dim).enumerate() {
        let c = hash(9, i as u64) as usize % 8 + i / 150 % 24;
        row.iter_mut().zip(&centres[c * dim..]).for_each(|(x, c)| *x += c);
    }
    x
}

/// What is seen of a head's keys.
enum Shown {
    All,
    Causal(u64),
    Prefix(Vec<u64>),
    Keys(Vec<u8>),
    Additive(Stored),
}

impl Shown {
    fn mask(&self) -> Mask<'_> {
        match self {
            Shown::All => Mask::None,
            Shown::Causal(q_pos0) => Mask::Causal { q_pos0: *q_pos0 },
            Shown::Prefix(counts) => Mask::Prefix(counts),
            Shown::Keys(keep) => Mask::Keys(keep),
            Shown::Additive(bias) => Mask::Additive(bias.tensor()),
        }
    }
}

/// Padding of whole segments, of runs, here and there, or of nearly everything.
pub(crate) fn padding(u: &mut Unstructured<'_>, n: usize) -> Result<Vec<u8>> {
    let (kind, at, len) = (u.int_in_range(0..=4)?, u.int_in_range(0..=n)?, u.int_in_range(0..=n / 2)?);
    let keep = |j: usize| match kind {
        0 => (j / SEGMENT).is_multiple_of(2),
        1 => j < at,
        2 => !(at..at + len).contains(&j),
        3 => !hash(at as u64, j as u64).is_multiple_of(9),
        _ => hash(at as u64, j as u64).is_multiple_of(40),
    };
    Ok((0..n).map(|j| u8::from(keep(j))).collect())
}

/// Biases `[batch, heads, rows, keys]` of many kinds, and what they hide.
pub(crate) fn biases(u: &mut Unstructured<'_>, shape: [usize; 4]) -> Result<Stored> {
    let [_, heads, rows, keys] = shape;
    let (kind, hiding) = (u.int_in_range(0..=8)?, u.int_in_range(0..=7)?);
    let (first, at, len) = (u.int_in_range(0..=keys)?, u.int_in_range(0..=keys)?, u.int_in_range(0..=keys / 2)?);
    let low = *u.choose(&[f32::NEG_INFINITY, f32::NEG_INFINITY, f32::MIN, -65504.0, -10000.0])?;
    let size = *u.choose(&[0.1, 1.0, 5.0])?;
    let seed = u64::from(u.arbitrary::<u8>()?);
    let slope = |h: usize| (-8.0 * (h % heads + 1) as f32 / heads as f32).exp2();
    let bias = |h: usize, i: usize, j: usize| match kind {
        0 => -slope(h) * (first + i).abs_diff(j) as f32,
        1 => (i.abs_diff(j) / 300 % 5) as f32 - 2.0,
        2 => noise_at(seed, ((h * rows + i) * keys + j) as u64, size),
        3 => noise_at(seed, (h * keys + j) as u64, size),
        // Half a segment a step: nodes of one bias and of two.
        4 => noise_at(seed, (j / 128) as u64, 3.0 * size),
        5 => [0.0, 0.25, -3.0, 700.0, -9000.0][seed as usize % 5],
        6 => 13.0 * f32::from(u8::from(hash(seed, i as u64) as usize % keys == j)),
        7 => 300.0 * f32::from(u8::from(hash(seed, i as u64) as usize % keys == j)),
        _ => 0.0,
    };
    let hidden = |i: usize, j: usize| match hiding {
        0 => hash(seed, j as u64).is_multiple_of(9),
        1 => (at..at + len).contains(&j) || j % 256 == 7 && seed % 2 == 0,
        2 => j > first + i,
        3 => j > first + i || j + len < first + i,
        4 => hash(seed, (i * keys + j) as u64).is_multiple_of(40),
        5 => i % 3 == 1 || (at..at + len).contains(&j),
        _ => false,
    };
    let mut all = Vec::with_capacity(shape.iter().product());
    for h in 0..shape[0] * shape[1] {
        for i in 0..rows {
            all.extend((0..keys).map(|j| if hidden(i, j) { low } else { bias(h, i, j) }));
        }
    }
    let small = all.iter().all(|&x| x == f32::NEG_INFINITY || x.abs() <= 65504.0);
    let dtypes: &[Dtype] = if small { &[Dtype::F32, Dtype::F16] } else { &[Dtype::F32] };
    Stored::new(u, shape, &all, dtypes)
}

fn noise_at(seed: u64, at: u64, scale: f32) -> f32 {
    scale * ((hash(seed, at) >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    batch: usize,
    heads_kv: usize,
    group: usize,
    rows: usize,
    keys: usize,
    dims: [usize; 2],
}

impl Shape {
    fn new(u: &mut Unstructured<'_>) -> Result<Shape> {
        let (batch, heads_kv) = (1 + usize::from(u.ratio(1, 4)?), 1 + usize::from(u.ratio(1, 4)?));
        let group = *u.choose(&[1, 1, 2, 3, 4])?;
        let deep = u.ratio(1, 16)?;
        let segments = if deep { u.int_in_range(17..=19)? } else { u.int_in_range(2..=12)? };
        let keys = segments * SEGMENT + *u.choose(&[0, 0, 1, 44, 255])?;
        let most = (PAIRS / (batch * heads_kv * group * keys)).max(1);
        let rows = if u.ratio(1, 3)? { u.int_in_range(1..=4)? } else { u.int_in_range(20..=400)? }.min(most);
        let dim = |u: &mut Unstructured<'_>| if u.arbitrary()? { u.int_in_range(1..=24) } else { Ok(16) };
        Ok(Shape { batch, heads_kv, group, rows, keys, dims: [dim(u)?, dim(u)?] })
    }

    fn heads(&self) -> usize {
        self.heads_kv * self.group
    }
}

struct Heads {
    s: Shape,
    q: Stored,
    k: Stored,
    v: Stored,
    shown: Shown,
}

struct Run {
    out: Vec<f32>,
    lse: Vec<f32>,
    bounds: Vec<f32>,
    stats: AttentionStats,
}

impl Run {
    fn same(&self, other: &Run) -> bool {
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let all = |r: &Run| [bits(&r.out), bits(&r.lse), bits(&r.bounds)];
        all(self) == all(other) && self.stats.pairs == other.stats.pairs
    }
}

impl Heads {
    fn new(u: &mut Unstructured<'_>) -> Result<Heads> {
        let s = Shape::new(u)?;
        let ([dim_k, dim_v], seed) = (s.dims, u64::from(u.arbitrary::<u8>()?));
        let (all, kind) = (s.batch * s.heads_kv * s.keys, u.int_in_range(0..=9)?);
        let spread = *u.choose(&[0.1, 0.4, 0.02, 0.0])?;
        let (q_scale, k_scale) = if u.ratio(1, 4)? {
            (*u.choose(&[0.0, 1e-3, 8.0, 60.0, 1e10])?, *u.choose(&[1.0, 1e-3, 1e-20, 1e-39, 30.0, 1e12])?)
        } else {
            (*u.choose(&[1.5, 1.5, 4.0])?, 1.0)
        };
        let mut k = match kind {
            0 => noise(all * dim_k, seed, 1.0),
            1 | 2 => clusters(16 * all.div_ceil(16), dim_k, seed, 1.0),
            _ => clusters(all, dim_k, seed, spread),
        };
        let mut v = clusters(all, dim_v, seed + 1, spread);
        if let 1 | 2 = kind {
            // Sixteen different keys, or one.
            let different = if kind == 1 { 16 } else { 1 };
            for i in different..all {
                k.copy_within(i % different * dim_k..(i % different + 1) * dim_k, i * dim_k);
                v.copy_within(i % different * dim_v..(i % different + 1) * dim_v, i * dim_v);
            }
            k.truncate(all * dim_k);
        }
        let cols = |x: &mut [f32], of: fn(usize, usize) -> f32, d: usize| {
            x.iter_mut().enumerate().for_each(|(i, x)| *x = of(i / d, i % d) + *x / 50.0);
        };
        match kind {
            3 => k[all / 2 * dim_k..][..dim_k].iter_mut().for_each(|x| *x *= -300.0),
            4 => k.chunks_mut(dim_k).for_each(|k| k[0] *= 60.0),
            5 => cols(&mut v, |i, _| if i % 2 == 0 { 9.0 } else { -9.0 }, dim_v),
            6 => v = noise(all * dim_v, seed + 1, 1.0),
            // Far more than all others: where rows that do not see them use them, it shows.
            7 => v.chunks_mut(dim_v).step_by(97).for_each(|v| v.iter_mut().for_each(|x| *x *= 2e3)),
            _ => {}
        }
        k.iter_mut().for_each(|x| *x *= k_scale);
        let q = noise(s.batch * s.heads() * s.rows * dim_k, seed + 2, q_scale);
        let kv = |d| [s.batch, s.heads_kv, s.keys, d];
        let wide = [Dtype::F32, Dtype::Bf16];
        let of = |x: f32| if x > 100.0 { &wide[..] } else { &[Dtype::F32, Dtype::F16, Dtype::Bf16] };
        let q = Stored::new(u, [s.batch, s.heads(), s.rows, dim_k], &q, of(q_scale))?;
        let k = Stored::new(u, kv(dim_k), &k, of(if kind == 3 { 1e3 } else { k_scale }))?;
        let v = Stored::new(u, kv(dim_v), &v, of(0.0))?;
        let shown = match u.int_in_range(0..=9)? {
            0 | 1 => Shown::All,
            2 | 3 => Shown::Causal(u.int_in_range(0..=s.keys as u64)?),
            4 => {
                let n = s.rows * *u.choose(&[1, s.batch])?;
                let (least, step) = (u.int_in_range(0..=s.keys as u64)?, u.int_in_range(0..=40)?);
                Shown::Prefix((0..n as u64).map(|i| least + hash(seed, i) % (step + 1)).collect())
            }
            5 => Shown::Keys(padding(u, s.keys)?),
            _ => {
                let shape = [*u.choose(&[1, s.batch])?, *u.choose(&[1, s.heads()])?, s.rows, s.keys];
                Shown::Additive(biases(u, shape)?)
            }
        };
        Ok(Heads { s, q, k, v, shown })
    }

    /// Whether row `i` of head `h` sees key `j`, and the bias on it.
    fn sees(&self, o: &AttentionOptions, [b, h]: [usize; 2], i: usize, j: usize) -> Option<f32> {
        let (s, near) = (self.s, [o.window, o.sinks]);
        match &self.shown {
            Shown::Prefix(counts) => {
                let first = if counts.len() > s.rows { b * s.rows } else { 0 };
                shows(&Mask::Prefix(&counts[first..][..s.rows]), s.keys, near, i, j)
            }
            Shown::Additive(bias) => {
                let [batches, heads, ..] = bias.shape();
                let row = bias.head(if batches == 1 { 0 } else { b }, if heads == 1 { 0 } else { h });
                let x = row[i * s.keys + j];
                shows(&Mask::None, s.keys, near, i, j).filter(|_| x != f32::NEG_INFINITY).map(|_| x)
            }
            shown => shows(&shown.mask(), s.keys, near, i, j),
        }
    }

    fn each(&self) -> impl Iterator<Item = [usize; 2]> {
        let heads = self.s.heads();
        (0..self.s.batch * heads).map(move |at| [at / heads, at % heads])
    }

    /// All rows in f64.
    fn truth(&self, o: &AttentionOptions) -> Vec<Truth> {
        let [dim_k, dim_v] = self.s.dims;
        let of = |[b, h]: [usize; 2]| {
            let (q, k, v) = (self.q.head(b, h), self.k.head(b, h / self.s.group), self.v.head(b, h / self.s.group));
            let sees = |i: usize, j: usize| self.sees(o, [b, h], i, j);
            let naive = Naive { q, k, v, dim_k, dim_v, options: *o, sees: &sees, top: usize::MAX };
            truth(&naive, matches!(self.shown, Shown::Additive(_)))
        };
        self.each().flat_map(of).collect()
    }

    /// Calls with `by`.
    fn call(&self, o: AttentionOptions, by: impl FnOnce(&Problem<'_>) -> AttentionStats) -> Run {
        let n = self.s.batch * self.s.heads() * self.s.rows;
        let mut out = vec![f32::NAN; n * self.s.dims[1]];
        let (mut lse, mut bounds) = (vec![f32::NAN; n], vec![f32::NAN; if o.certificate { n } else { 0 }]);
        let tall = |x: usize| [self.s.batch, self.s.heads(), self.s.rows, x];
        let stats = by(&Problem {
            q: self.q.tensor(),
            k: self.k.tensor(),
            v: self.v.tensor(),
            out: TensorMut::new(&mut out, tall(self.s.dims[1])).expect("valid"),
            lse: Some(TensorMut::new(&mut lse, tall(1)).expect("valid")),
            bounds: o.certificate.then(|| TensorMut::new(&mut bounds, tall(1)).expect("valid")),
            mask: self.shown.mask(),
            options: o,
        });
        assert!(out.iter().all(|x| x.is_finite()) && lse.iter().all(|x| !x.is_nan() && *x < f32::INFINITY));
        assert!(stats.pairs <= 2 * stats.pairs_dense, "{stats:?}");
        Run { out, lse, bounds, stats }
    }

    /// Whether it is refused, for numbers whose products or sums leave f32.
    fn refused(&self, o: AttentionOptions) -> bool {
        let mut out = vec![0.0; self.s.batch * self.s.heads() * self.s.rows * self.s.dims[1]];
        let out = TensorMut::new(&mut out, [self.s.batch, self.s.heads(), self.s.rows, self.s.dims[1]]);
        let (q, k, v, mask) = (self.q.tensor(), self.k.tensor(), self.v.tensor(), self.shown.mask());
        match required(&Problem { q, k, v, out: out.expect("valid"), lse: None, bounds: None, mask, options: o }) {
            Err(e) => {
                assert_eq!(e.status, Status::NotFinite, "{e}");
                true
            }
            Ok(_) => false,
        }
    }

    /// In exactly the memory that is asked for.
    fn run(&self, o: AttentionOptions) -> Run {
        let run = self.call(o, |problem| {
            let need = required(problem).unwrap_or_else(|e| panic!("required: {e}"));
            let work = Budget::new(need.bytes);
            attention(problem, &work.memory().expect("planned")).unwrap_or_else(|e| panic!("{e}"))
        });
        self.tally(&run.stats);
        run
    }

    /// With a look at what is scored exactly.
    fn watched(&self, o: AttentionOptions) -> Run {
        let mut watch = |h: usize, i: usize, scored: Scored<'_>| {
            if let Scored::Keys(keys) = scored {
                for &j in keys {
                    assert!(
                        self.sees(&o, [0, h], i, j as usize).is_some(),
                        "head {h}, row {i}: scores {j}, which is hidden"
                    );
                }
            }
        };
        self.call(o, |problem| {
            attention_watched(problem, &mut watch, &memory(0)).unwrap_or_else(|e| panic!("watched: {e}"))
        })
    }

    fn tally(&self, stats: &AttentionStats) {
        let kinds = [
            (matches!(self.shown, Shown::All | Shown::Causal(_) | Shown::Prefix(_)), Kind::Call),
            (matches!(self.shown, Shown::Keys(_)), Kind::Padded),
            (matches!(self.shown, Shown::Additive(_)), Kind::Biased),
            (self.s.group > 1, Kind::Grouped),
            (self.s.keys > 16 * SEGMENT, Kind::Deep),
        ];
        kinds.into_iter().filter(|(is, _)| *is).for_each(|(_, kind)| tally::note(kind, stats));
    }

    /// Holds bounds against errors.
    fn certified(&self, o: &AttentionOptions, run: &Run, truth: &[Truth]) {
        let stats = &run.stats;
        assert_eq!(stats.certificates as usize, truth.len(), "{stats:?}");
        assert_eq!(stats.certified_error, run.bounds.iter().fold(0.0, |m: f32, &b| m.max(b)));
        for (i, (truth, have)) in truth.iter().zip(run.out.chunks(self.s.dims[1])).enumerate() {
            let (wrong, norm) = (distance(have, &truth.out), truth.norm());
            let bound = f64::from(run.bounds[i]);
            assert!(
                wrong <= bound * norm || wrong == 0.0 || bound == f64::INFINITY,
                "row {i}: error {:e}, certified {bound:e}",
                wrong / norm
            );
            let most = f64::from(o.tolerance) * norm + truth.slack;
            assert!(!o.verified || wrong <= most, "row {i}: error {:e} for {}", wrong / norm, o.tolerance);
        }
    }

    /// Changes keys and values that no row of any head that reads them sees through padding or bias; says whether there are any.
    fn change_hidden(&mut self, o: &AttentionOptions) -> bool {
        let free = AttentionOptions { window: 0, ..*o };
        let s = self.s;
        let mut any = false;
        for (b, kv) in (0..s.batch).flat_map(|b| (0..s.heads_kv).map(move |kv| (b, kv))) {
            let heads = kv * s.group..(kv + 1) * s.group;
            let of = |h: usize, i: usize, j: usize| self.sees(&free, [b, h], i, j).unwrap_or(f32::NEG_INFINITY);
            let hidden: Vec<bool> = match &self.shown {
                Shown::Keys(_) => (0..s.keys).map(|j| of(0, 0, j) == f32::NEG_INFINITY).collect(),
                Shown::Additive(_) => {
                    let mut all = vec![f32::NEG_INFINITY; s.keys];
                    for (h, i) in heads.flat_map(|h| (0..s.rows).map(move |i| (h, i))) {
                        all.iter_mut().enumerate().for_each(|(j, x)| *x = x.max(of(h, i, j)));
                    }
                    all.into_iter().map(|x| x == f32::NEG_INFINITY).collect()
                }
                _ => return false,
            };
            any |= hidden.contains(&true);
            self.k.change([b, kv], |j| hidden[j].then_some(-3.0 + j as f32 / 64.0));
            self.v.change([b, kv], |j| hidden[j].then_some(3e4));
        }
        any
    }
}

pub(crate) fn program(u: &mut Unstructured<'_>) -> Result<()> {
    let mut heads = Heads::new(u)?;
    let isas: Vec<Isa> = Isa::ALL.into_iter().filter(|i| i.available()).collect();
    let windowed = u.ratio(1, 4)?;
    let o = AttentionOptions {
        mode: Mode::Accelerated,
        softcap: *u.choose(&[0.0, 0.0, 0.5, 5.0, 50.0])?,
        window: if windowed { u.int_in_range(1..=heads.s.keys + 9)? } else { 0 },
        sinks: if windowed { u.int_in_range(0..=300)? } else { 0 },
        scale: if u.ratio(1, 4)? { 0.3 } else { 0.0 },
        tolerance: *u.choose(&[0.05, 0.02, 0.1, 0.3, 1.0, 1e-3])?,
        isa: Some(*u.choose(&isas)?),
        ..AttentionOptions::default()
    };
    let kind = u.int_in_range(0..=3)?;
    // Products beyond f32 are refused.
    if heads.refused(o) {
        return Ok(());
    }
    let truth = heads.truth(&o);
    let hold = |run: &Run, what: &str| hold(&truth, &run.out, Some(&run.lse), what);
    if kind == 0 {
        let tight = heads.run(AttentionOptions { tolerance: 1e-12, ..o });
        // Rows that are not sampled may err whatever the tolerance.
        if tight.stats.pairs == tight.stats.pairs_dense {
            hold(&tight, "without tolerance");
        }
    }
    let certificate = kind > 1;
    let o = AttentionOptions { certificate, verified: kind == 3, ..o };
    let run = heads.run(o);
    if certificate {
        heads.certified(&o, &run, &truth);
    }
    if heads.s.batch == 1 && !certificate {
        assert!(heads.watched(o).same(&run), "a look changes bits");
    }
    let num_threads = u.int_in_range(2..=4)?;
    assert!(heads.run(AttentionOptions { num_threads, ..o }).same(&run), "bits depend on {num_threads} threads");
    if !certificate && heads.change_hidden(&o) {
        let other = heads.run(o);
        let wrong = run.out.iter().zip(&other.out).fold(0.0, |m: f32, (a, b)| m.max((a - b).abs()));
        let same = other.same(&run);
        assert!(same, "hidden keys change bits, by {wrong}: {:?}, {o:?}, {:?}, {:?}", heads.s, run.stats, other.stats);
    }
    Ok(())
}
