//! Programs of session operations against lists of tokens: exact sessions and those without tolerance against f64, sessions
//! with cells against one that got the same tokens at once, against one that did all the same in other parts, and against their
//! certificates, and every output inside the range of the values it mixes.

use crate::Budget;
use crate::cells::biases;
use crate::stored::stored;
use crate::tally::{self, Kind};
use crate::truth::{distance, hold, shows, truth};
use crate::twin::{Naive, noise};
use arbitrary::{Result, Unstructured};
use iceformer_core::Status;
use iceformer_core::attention::{Attend, AttentionOptions, Mask, Mode, Session, SessionOptions};
use iceformer_core::mem::{Dtype, Plan, Rows, Tensor, TensorMut};

/// Rows of one KV head.
#[derive(Clone, Default)]
struct Head {
    k: Vec<f32>,
    v: Vec<f32>,
}

/// A tolerance that leaves nothing to estimate.
const NONE: f32 = 1e-12;

/// Pairs of a row and a key up to which f64 is asked.
const PAIRS: usize = 200_000;

/// Pairs after which a program attends no more: it would run for minutes under a sanitizer.
const ENOUGH: usize = 6_000_000;

pub fn run(data: &[u8]) {
    let budget = Budget::new(256 << 20);
    let _ = program(&mut Unstructured::new(data), &budget);
    assert_eq!(budget.live.get(), 0, "leaked");
}

fn program(u: &mut Unstructured<'_>, budget: &Budget) -> Result<()> {
    let mode = *u.choose(&[Mode::Accelerated, Mode::Accelerated, Mode::Exact, Mode::TopK, Mode::Auto])?;
    let heads_kv = u.int_in_range(1..=2)?;
    let attention = AttentionOptions {
        mode,
        // Without tolerance outputs are exact.
        tolerance: if u.ratio(1, 4)? { NONE } else { f32::from(u.int_in_range(0u8..=10)?) / 20.0 },
        softcap: f32::from(u.int_in_range(0u8..=3)?),
        window: if u.ratio(1, 4)? { u.int_in_range(1..=700)? } else { 0 },
        sinks: u.int_in_range(0..=5)?,
        top_k: u.int_in_range(0..=40)?,
        certificate: mode != Mode::TopK && u.ratio(1, 4)?,
        verified: mode != Mode::TopK && u.ratio(1, 8)?,
        ..AttentionOptions::default()
    };
    let o = SessionOptions {
        heads_q: heads_kv * u.int_in_range(1..=4)?,
        heads_kv,
        dim_k: u.int_in_range(1..=20)?,
        dim_v: u.int_in_range(1..=20)?,
        capacity: u.int_in_range(1..=1400)?,
        kv_dtype: *u.choose(&[Dtype::F32, Dtype::F16, Dtype::Bf16])?,
        attention,
        dense_below: u.int_in_range(0..=400)?,
    };
    let memory = budget.memory().expect("enough");
    let [session, twin] = [(); 2].map(|()| Session::new_in(&o, &memory).expect("valid options and enough memory"));
    let spread = *u.choose(&[0.5, 0.1, 0.02])?;
    let heads = vec![Head::default(); heads_kv];
    let mut run = Run { session, twin, told: false, heads, o, budget, spread, pairs: 0, seed: 0 };
    // Programs longer than this only repeat themselves.
    for _ in 0..24 {
        if u.is_empty() {
            break;
        }
        run.step(u)?;
        assert_eq!([&run.session, &run.twin].map(Session::len), [run.len(); 2]);
    }
    run.attend(3, u)
}

struct Run<'a> {
    session: Session,
    /// The same again, attended in other numbers of parts.
    twin: Session,
    /// Whether rows that were attended may have said something for rows to come.
    told: bool,
    heads: Vec<Head>,
    o: SessionOptions,
    budget: &'a Budget,
    /// Of rows around their centres.
    spread: f32,
    /// Pairs of rows and keys so far.
    pairs: usize,
    seed: u64,
}

/// What parts of a call give together.
struct Output {
    out: Vec<f32>,
    lse: Vec<f32>,
    pairs: u64,
    /// Whether that is all of them.
    all: bool,
    /// The worst bound; NaN where there is none.
    certified: f32,
}

impl Output {
    fn same(&self, other: &Output) -> bool {
        let bounds = self.certified.to_bits() == other.certified.to_bits();
        self.out == other.out && self.lse == other.lse && self.pairs == other.pairs && bounds
    }
}

impl Run<'_> {
    fn len(&self) -> usize {
        self.heads[0].k.len() / self.o.dim_k
    }

    /// Rows around a few centres.
    fn rows(&mut self, n: usize, d: usize) -> Vec<f32> {
        self.seed += 1;
        let (centres, mut rows) = (noise(6 * d, self.seed % 3, 2.0), noise(n * d, self.seed, self.spread));
        for (i, row) in rows.chunks_mut(d).enumerate() {
            let c = (i / 3 + self.seed as usize) % 6;
            row.iter_mut().zip(&centres[c * d..]).for_each(|(x, c)| *x = stored(*x + c, self.o.kv_dtype));
        }
        rows
    }

    fn step(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=9)? {
            0..=3 => self.append(u)?,
            4 => {
                let len = u.int_in_range(0..=self.len() + 3)?;
                let have = self.session.truncate(len);
                assert_eq!(self.twin.truncate(len), have);
                assert_eq!(have.is_ok(), len <= self.len(), "{have:?}");
                if have.is_ok() {
                    for h in &mut self.heads {
                        h.k.truncate(len * self.o.dim_k);
                        h.v.truncate(len * self.o.dim_v);
                    }
                }
            }
            5 => {
                let (begin, end) = (u.int_in_range(0..=self.len() + 2)?, u.int_in_range(0..=self.len() + 2)?);
                let have = self.session.remove_range(begin, end);
                assert_eq!(self.twin.remove_range(begin, end), have);
                assert_eq!(have.is_ok(), begin <= end && end <= self.len(), "{begin}..{end}: {have:?}");
                if have.is_ok() {
                    for h in &mut self.heads {
                        h.k.drain(begin * self.o.dim_k..end * self.o.dim_k);
                        h.v.drain(begin * self.o.dim_v..end * self.o.dim_v);
                    }
                }
            }
            6 => {
                let mut bytes = vec![0; self.session.save_len()];
                assert_eq!(self.session.save(&mut bytes), Ok(bytes.len()));
                let load = || Session::load(&bytes, &self.budget.memory().expect("enough")).expect("saved bytes load");
                // What was found for rows to come is not saved.
                (self.session, self.twin, self.told) = (load(), load(), false);
            }
            7 if u.ratio(1, 4)? => {
                self.session.reset();
                self.twin.reset();
                self.told = false;
                self.heads.fill(Head::default());
            }
            _ => {
                let rows = if u.arbitrary()? { u.int_in_range(1..=40)? } else { u.int_in_range(65..=120)? };
                self.attend(rows, u)?;
            }
        }
        Ok(())
    }

    /// Head by head, as parts do; sometimes a head is missing or holds NaN, and everything is taken back.
    fn append(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let n = if u.arbitrary()? { u.int_in_range(0..=3)? } else { u.int_in_range(0..=600)? };
        let (missing, nan) = (u.ratio(1, 12)?, u.ratio(1, 12)?);
        let full = self.len() + n > self.o.capacity;
        let mut grown = self.heads.clone();
        for (h, head) in grown.iter_mut().enumerate() {
            if missing && h == 0 && self.o.heads_kv > 1 {
                continue;
            }
            let (mut k, v) = (self.rows(n, self.o.dim_k), self.rows(n, self.o.dim_v));
            head.k.extend(&k);
            head.v.extend(&v);
            if nan && n > 0 {
                k[n / 2] = f32::NAN;
            }
            let (k, v) = (Rows::new(&k, self.o.dim_k).expect("rows"), Rows::new(&v, self.o.dim_v).expect("rows"));
            let have = self.session.heads_mut()[h].append(k, v);
            assert_eq!(self.twin.heads_mut()[h].append(k, v), have);
            assert_eq!(have.is_ok(), !(full || nan && n > 0), "{have:?}");
        }
        let broken = (missing && self.o.heads_kv > 1 && n > 0) || full || (nan && n > 0);
        let have = self.session.commit();
        assert_eq!(self.twin.commit(), have);
        match have {
            Ok(()) if !broken => self.heads = grown,
            Err(e) if broken => {
                assert!(matches!(e.status, Status::State | Status::Capacity | Status::NotFinite), "{e}")
            }
            have => panic!("commit of {n}: {have:?}, broken {broken}"),
        }
        Ok(())
    }

    fn outputs(&self, s: &Session, q: &[f32], rows: usize, mask: Option<Mask<'_>>, nth: usize) -> Output {
        let o = &self.o;
        let (mut out, mut lse) = (vec![f32::NAN; o.heads_q * rows * o.dim_v], vec![f32::NAN; o.heads_q * rows]);
        let mut plan = Plan::new();
        s.work_plan(rows, &mut plan).expect("a plan");
        let bytes = plan.finish().expect("a plan").bytes;
        let (mut pairs, mut dense, mut certified) = (0, 0, f32::NAN);
        {
            let q = Tensor::new(q, [1, o.heads_q, rows, o.dim_k]).expect("a tensor");
            let out = TensorMut::new(&mut out, [1, o.heads_q, rows, o.dim_v]).expect("a tensor");
            let lse = TensorMut::new(&mut lse, [1, o.heads_q, rows, 1]).expect("a tensor");
            for ith in 0..nth {
                let work = Budget::new(bytes);
                let memory = work.memory().expect("planned");
                let stats = s.attend(&Attend::new(q, &out).mask(mask).lse(&lse).part(ith, nth), &memory);
                let stats = stats.unwrap_or_else(|e| panic!("attend of {rows} rows: {e}"));
                assert!(stats.pairs <= 2 * stats.pairs_dense, "{stats:?}");
                (pairs, dense) = (pairs + stats.pairs, dense + stats.pairs_dense);
                certified = certified.max(stats.certified_error);
                let biased = matches!(mask, Some(Mask::Additive(_)));
                tally::note(if biased { Kind::Biased } else { Kind::Session }, &stats);
            }
        }
        assert!(lse.iter().all(|x| !x.is_nan()));
        Output { out, lse, pairs, all: pairs == dense, certified }
    }

    fn attend(&mut self, rows: usize, u: &mut Unstructured<'_>) -> Result<()> {
        let (o, len) = (self.o, self.len());
        self.pairs += o.heads_q * rows * len;
        if self.pairs > ENOUGH {
            return Ok(());
        }
        self.seed += 1;
        let q = noise(o.heads_q * rows * o.dim_k, self.seed, 2.0);
        let prefix: Vec<u64> = (0..rows as u64).map(|i| (i * 37 + self.seed) % (len as u64 + 2)).collect();
        // Here and there, so that no segment is whole, or whole segments.
        let scattered = u.arbitrary::<bool>()?;
        let keep: Vec<u8> = (0..len).map(|j| u8::from(if scattered { j % 5 != 2 } else { j / 256 % 2 == 0 })).collect();
        let (kind, mut bias) = (u.int_in_range(0..=6)?, None);
        if kind > 4 && rows * len <= PAIRS {
            let heads = *u.choose(&[1, o.heads_q])?;
            bias = Some(biases(u, [1, heads, rows, len])?);
        }
        let mask = match kind {
            0 => Some(Mask::None),
            1 => Some(Mask::Prefix(&prefix)),
            2 => Some(Mask::Keys(&keep)),
            3 => Some(Mask::Causal { q_pos0: u64::from(u.arbitrary::<u16>()?) }),
            _ => match &bias {
                Some(bias) => Some(Mask::Additive(bias.tensor())),
                None if rows > len => Some(Mask::None),
                None => None,
            },
        };
        let whole = self.outputs(&self.session, &q, rows, mask, 1);
        let nth = u.int_in_range(2..=4)?;
        assert!(self.outputs(&self.session, &q, rows, mask, nth).same(&whole), "bits depend on {nth} parts");
        // As often, since what cells cost single rows is added up.
        for nth in [nth, 1] {
            assert!(
                self.outputs(&self.twin, &q, rows, mask, nth).same(&whole),
                "bits depend on the parts of calls before"
            );
        }

        // A session that got the tokens at once gives the same bits, except that an index keeps its learnt norm bound,
        // certificates the lengths of the longest keys and values, and cells what was found for rows to come.
        let follows = self.told;
        self.told |= matches!(o.attention.mode, Mode::Accelerated | Mode::Auto);
        if o.attention.mode != Mode::TopK && !o.attention.certificate && !o.attention.verified && !follows {
            let memory = self.budget.memory().expect("enough");
            let mut fresh = Session::new_in(&o, &memory).expect("as before");
            for (h, head) in self.heads.iter().enumerate() {
                let rows = |x, d| Rows::new(x, d).expect("rows");
                fresh.heads_mut()[h].append(rows(&head.k, o.dim_k), rows(&head.v, o.dim_v)).expect("as before");
            }
            fresh.commit().expect("as before");
            assert!(self.outputs(&fresh, &q, rows, mask, 1).same(&whole), "bits depend on the history");
        }

        let shown = mask.unwrap_or(Mask::Causal { q_pos0: (len as u64).wrapping_sub(rows as u64) });
        // The largest bounds of all rows must hold for every row.
        let bounded = !whole.certified.is_nan();
        // Rows that are not sampled may err whatever the tolerance.
        let exact = o.attention.mode == Mode::Exact || o.attention.mode != Mode::TopK && whole.all;
        for h in 0..o.heads_q {
            let head = &self.heads[h / (o.heads_q / o.heads_kv)];
            let got = &whole.out[h * rows * o.dim_v..][..rows * o.dim_v];
            // Estimates lie among the values; what rows err by in common is added, and may reach out of them by the tolerance.
            let common = if exact || o.attention.mode == Mode::TopK { 0.0 } else { o.attention.tolerance.max(0.0) };
            for c in 0..o.dim_v {
                let of = head.v.chunks(o.dim_v).map(|v| v[c]);
                let (low, high) = of.fold((0f32, 0f32), |(a, b), x| (a.min(x), b.max(x)));
                let slack = 1e-3 * (high - low).max(1.0);
                let inside = |row: &[f32]| {
                    let slack = slack + common * row.iter().map(|x| x * x).sum::<f32>().sqrt();
                    row[c] >= low - slack && row[c] <= high + slack
                };
                assert!(got.chunks(o.dim_v).all(inside), "head {h}, column {c} outside {low}..{high}");
            }
            if !(exact || bounded) || rows * len > PAIRS {
                continue;
            }
            let (q, AttentionOptions { window, sinks, .. }) = (&q[h * rows * o.dim_k..][..rows * o.dim_k], o.attention);
            let sees = |i: usize, j: usize| match &bias {
                Some(bias) => {
                    let row = &bias.head(0, if bias.shape()[1] == 1 { 0 } else { h })[i * len..][..len];
                    let near = shows(&Mask::None, len, [window, sinks], i, j).is_some();
                    Some(row[j]).filter(|&x| near && x != f32::NEG_INFINITY)
                }
                None => shows(&shown, len, [window, sinks], i, j),
            };
            let (k, v, dim_k, dim_v) = (&head.k, &head.v, o.dim_k, o.dim_v);
            let naive = Naive { q, k, v, dim_k, dim_v, options: o.attention, sees: &sees, top: usize::MAX };
            let truth = truth(&naive, bias.is_some());
            if exact {
                hold(&truth, got, Some(&whole.lse[h * rows..][..rows]), "without tolerance");
            }
            for (i, (got, truth)) in got.chunks(dim_v).zip(&truth).enumerate().filter(|_| bounded) {
                let (wrong, norm) = (distance(got, &truth.out), truth.norm());
                let bound = f64::from(whole.certified) * norm;
                assert!(
                    wrong <= bound || wrong == 0.0 || whole.certified == f32::INFINITY,
                    "head {h}, row {i}: {wrong:e}, certified {bound:e}"
                );
                let most = f64::from(self.session.options().attention.tolerance) * norm + truth.slack;
                assert!(!o.attention.verified || wrong <= most, "head {h}, row {i}: {wrong:e} for {most:e}");
            }
        }
        Ok(())
    }
}
