//! Sessions of made-up tokens, and what rows get of them.

use super::{memory, noise};
use iceformer_core::attention::{
    Attend, AttentionOptions, AttentionStats, Mask, Mode, Problem, Session, SessionOptions, attention,
};
use iceformer_core::mem::{Dtype, Plan, Tensor, TensorMut};

/// Tokens by KV head.
#[derive(Clone)]
pub struct Tokens {
    pub heads: usize,
    pub dims: [usize; 2],
    pub k: Vec<Vec<f32>>,
    pub v: Vec<Vec<f32>>,
}

impl Tokens {
    /// Keys around a few centres that shift slowly, as those of trained models do, and values that go with them.
    pub fn new(heads: usize, dims: [usize; 2], n: usize, seed: u64) -> Tokens {
        let [dim_k, dim_v] = dims;
        let rows = |h: u64, d: usize, kind: u64, spread: f32| {
            let centres = noise(24 * d, seed + 100 + 10 * kind + h, 2.0);
            let mut rows = noise(n * d, seed + 10 * kind + h, spread);
            for (t, row) in rows.chunks_mut(d).enumerate() {
                let c = iceformer_core::math::hash(seed + h, t as u64) as usize % 8 + t / 200 % 16;
                row.iter_mut().zip(&centres[c * d..]).for_each(|(x, c)| *x += c);
            }
            rows
        };
        Tokens {
            heads,
            dims,
            k: (0..heads as u64).map(|h| rows(h, dim_k, 0, 0.7)).collect(),
            v: (0..heads as u64).map(|h| rows(h, dim_v, 1, 0.5)).collect(),
        }
    }

    pub fn len(&self) -> usize {
        self.k[0].len() / self.dims[0]
    }

    /// Tokens `begin..end` of all heads, packed.
    pub fn part(&self, begin: usize, end: usize) -> [Vec<f32>; 2] {
        let of = |x: &[Vec<f32>], d: usize| x.iter().flat_map(|x| x[begin * d..end * d].to_vec()).collect();
        [of(&self.k, self.dims[0]), of(&self.v, self.dims[1])]
    }

    pub fn drain(&mut self, begin: usize, end: usize) {
        for (all, d) in [(&mut self.k, self.dims[0]), (&mut self.v, self.dims[1])] {
            all.iter_mut().for_each(|x| drop(x.drain(begin * d..end * d)));
        }
    }

    pub fn append(&self, session: &mut Session, begin: usize, end: usize) {
        let [k, v] = self.part(begin, end);
        let shape = |d| [1, self.heads, end - begin, d];
        let k = Tensor::new(&k, shape(self.dims[0])).unwrap();
        session.append(k, Tensor::new(&v, shape(self.dims[1])).unwrap()).unwrap();
    }

    /// A session of these tokens, appended and published in chunks.
    pub fn session(&self, o: &SessionOptions, chunk: usize) -> Session {
        let mut session = Session::new_in(o, &memory(0)).unwrap();
        self.extend(&mut session, chunk);
        session
    }

    /// The rest of the tokens.
    pub fn extend(&self, session: &mut Session, chunk: usize) {
        while session.len() < self.len() {
            let from = session.len();
            self.append(session, from, (from + chunk).min(self.len()));
            session.commit().unwrap();
        }
    }
}

pub fn options(tokens: &Tokens, group: usize, mode: Mode) -> SessionOptions {
    SessionOptions {
        heads_q: tokens.heads * group,
        heads_kv: tokens.heads,
        dim_k: tokens.dims[0],
        dim_v: tokens.dims[1],
        capacity: tokens.len() + 300,
        kv_dtype: Dtype::F32,
        attention: AttentionOptions { mode, ..AttentionOptions::default() },
        dense_below: 0,
    }
}

pub fn with(o: SessionOptions, change: impl Fn(&mut AttentionOptions)) -> SessionOptions {
    let mut o = o;
    change(&mut o.attention);
    o
}

#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub out: Vec<f32>,
    pub lse: Vec<f32>,
}

/// All parts, each in exactly the planned work memory.
pub fn attend_all(s: &Session, rows: usize, mask: Option<Mask<'_>>, nth: usize) -> (Outcome, AttentionStats) {
    let o = s.options();
    attend_queries(s, &noise(o.heads_q * rows * o.dim_k, 7, 1.5), mask, nth)
}

/// The same of queries `[heads_q, rows, dim_k]`.
pub fn attend_queries(s: &Session, q: &[f32], mask: Option<Mask<'_>>, nth: usize) -> (Outcome, AttentionStats) {
    let o = *s.options();
    let rows = q.len() / (o.heads_q * o.dim_k);
    let (mut out, mut lse) = (vec![f32::NAN; o.heads_q * rows * o.dim_v], vec![f32::NAN; o.heads_q * rows]);
    let mut plan = Plan::new();
    s.work_plan(rows, &mut plan).unwrap();
    let bytes = plan.finish().unwrap().bytes;
    let mut stats: Option<AttentionStats> = None;
    {
        let q = Tensor::new(q, [1, o.heads_q, rows, o.dim_k]).unwrap();
        let out = TensorMut::new(&mut out, [1, o.heads_q, rows, o.dim_v]).unwrap();
        let lse = TensorMut::new(&mut lse, [1, o.heads_q, rows, 1]).unwrap();
        for ith in (0..nth).rev() {
            let part = s.attend(&Attend::new(q, &out).mask(mask).lse(&lse).part(ith, nth), &memory(bytes)).unwrap();
            match &mut stats {
                Some(stats) => stats.add(&part),
                None => stats = Some(part),
            }
        }
    }
    (Outcome { out, lse }, stats.unwrap())
}

pub fn attend(s: &Session, rows: usize) -> Outcome {
    attend_all(s, rows, None, 1).0
}

/// The same rows by one call that knows nothing of sessions.
pub fn call(tokens: &Tokens, o: &SessionOptions, rows: usize) -> Outcome {
    let n = tokens.len();
    let q = noise(o.heads_q * rows * o.dim_k, 7, 1.5);
    let (mut out, mut lse) = (vec![f32::NAN; o.heads_q * rows * o.dim_v], vec![f32::NAN; o.heads_q * rows]);
    let [k, v] = tokens.part(0, n);
    let problem = Problem {
        q: Tensor::new(&q, [1, o.heads_q, rows, o.dim_k]).unwrap(),
        k: Tensor::new(&k, [1, o.heads_kv, n, o.dim_k]).unwrap(),
        v: Tensor::new(&v, [1, o.heads_kv, n, o.dim_v]).unwrap(),
        out: TensorMut::new(&mut out, [1, o.heads_q, rows, o.dim_v]).unwrap(),
        lse: Some(TensorMut::new(&mut lse, [1, o.heads_q, rows, 1]).unwrap()),
        bounds: None,
        mask: Mask::Causal { q_pos0: (n - rows) as u64 },
        options: o.attention,
    };
    attention(&problem, &memory(0)).unwrap();
    Outcome { out, lse }
}

/// Outputs within `tolerance` of what they should be, all together, and log-sum-exps within it row by row.
pub fn hold(have: &Outcome, want: &Outcome, tolerance: f32, what: &str) {
    let off = error(std::slice::from_ref(&have.out), std::slice::from_ref(&want.out));
    assert!(have.out == want.out || off <= f64::from(tolerance), "{what}: off by {off}");
    for (i, (a, b)) in have.lse.iter().zip(&want.lse).enumerate() {
        assert!(a == b || (a - b).abs() <= tolerance, "{what}: {a} for {b} in row {i}");
    }
}

/// Relative, of all outputs.
pub fn error(have: &[Vec<f32>], want: &[Vec<f32>]) -> f64 {
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        have.iter().flatten().zip(want.iter().flatten()).map(|(&a, &b)| of(f64::from(a), f64::from(b))).sum()
    };
    (sum(&|a, b| (a - b) * (a - b)) / sum(&|_, b| b * b)).sqrt()
}
