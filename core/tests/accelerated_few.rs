//! Accelerated attention of a few hundred keys, small enough for an interpreter of Rust: cells are built, some opened and some
//! estimated, with and without biases and bounds, in a call and in a session.

mod common;

use common::{Naive, memory, noise, sees};
use iceformer_core::attention::accelerated::Rule;
use iceformer_core::attention::{
    AttentionOptions, AttentionStats, Mask, Mode, Problem, Session, SessionOptions, attention_by_rule,
};
use iceformer_core::cells::SEGMENT;
use iceformer_core::mem::{Dtype, Plan, Rows, Tensor, TensorMut};

const DIM: usize = 3;
/// One segment, and keys beside it.
const KEYS: usize = SEGMENT + 9;

/// Keys and values around six centres; rows of two heads that share them.
struct Data {
    rows: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Data {
    fn new(rows: usize) -> Data {
        let near = |seed: u64| {
            let centres = noise(6 * DIM, seed + 9, 2.0);
            let mut x = noise(KEYS * DIM, seed, 0.15);
            for (i, row) in x.chunks_mut(DIM).enumerate() {
                row.iter_mut().zip(&centres[i / 11 % 6 * DIM..]).for_each(|(x, c)| *x += c);
            }
            x
        };
        Data { rows, q: noise(2 * rows * DIM, 3, 2.0), k: near(1), v: near(2) }
    }

    /// By a rule that never gives up cells; the outputs, and how often a key was scored by itself.
    fn run(&self, mask: Mask<'_>, o: AttentionOptions) -> (Vec<f32>, Vec<f32>, AttentionStats) {
        let tall = |x: usize| [1, 2, self.rows, x];
        let (mut out, mut bounds) = (vec![f32::NAN; 2 * self.rows * DIM], vec![f32::NAN; 2 * self.rows]);
        let problem = Problem {
            q: Tensor::new(&self.q, tall(DIM)).unwrap(),
            k: Tensor::new(&self.k, [1, 1, KEYS, DIM]).unwrap(),
            v: Tensor::new(&self.v, [1, 1, KEYS, DIM]).unwrap(),
            out: TensorMut::new(&mut out, tall(DIM)).unwrap(),
            lse: None,
            bounds: o.certificate.then(|| TensorMut::new(&mut bounds, tall(1)).unwrap()),
            mask,
            options: o,
        };
        let rule = Rule { error: f32::INFINITY, ..Rule::new(o.tolerance, false) };
        let mut scored = 0;
        let mut watch = |_: usize, _: usize, ids: &[u32]| scored += ids.len() as u64;
        let stats = attention_by_rule(&problem, &rule, Some(&mut watch), &memory(0)).unwrap();
        // Of a few rows' cells only the keys that stand out.
        let all = 16 * stats.cells_opened;
        assert!(scored == all || self.rows <= 4 && (stats.cells_opened..all).contains(&scored), "{scored} of {all}");
        assert_eq!(stats.pairs, stats.pairs_dense - (2 * self.rows * SEGMENT) as u64 + scored);
        (out, bounds, stats)
    }

    /// Errors of all rows, relative to their outputs.
    fn errors(&self, out: &[f32], mask: &Mask<'_>, o: AttentionOptions) -> Vec<f64> {
        let mut errors = Vec::new();
        for (q, out) in self.q.chunks(self.rows * DIM).zip(out.chunks(self.rows * DIM)) {
            let sees = |i: usize, j: usize| sees(mask, 0, 0, i, j);
            let naive =
                Naive { q, k: &self.k, v: &self.v, dim_k: DIM, dim_v: DIM, options: o, sees: &sees, top: usize::MAX };
            for (have, want) in out.chunks(DIM).zip(naive.run().0.chunks(DIM)) {
                let wrong: f64 = have.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
                errors.push((wrong / want.iter().map(|x| x * x).sum::<f64>()).sqrt());
            }
        }
        errors
    }

    /// Some cells open, some closed: near what is right; none closed: right.
    fn check(&self, mask: Mask<'_>, o: AttentionOptions) {
        let worst = |x: Vec<f64>| x.into_iter().fold(0.0, f64::max);
        let (out, _, stats) = self.run(mask, o);
        assert!(stats.cells_opened > 0 && stats.pairs < stats.pairs_dense, "{stats:?}");
        assert!(stats.estimated_mass > 0.001, "{stats:?}");
        let error = worst(self.errors(&out, &mask, o));
        assert!(error < 0.2, "off by {error}");
        let o = AttentionOptions { tolerance: 1e-12, ..o };
        let error = worst(self.errors(&self.run(mask, o).0, &mask, o));
        assert!(error < 1e-4, "off by {error} with nothing to estimate");
    }
}

fn options() -> AttentionOptions {
    AttentionOptions { mode: Mode::Accelerated, tolerance: 0.1, scale: 1.0, ..AttentionOptions::default() }
}

/// Distances to keys, in steps; the last key hidden.
fn bias(rows: usize) -> Vec<f32> {
    let of = |i: usize, j: usize| if j + 1 == KEYS { f32::NEG_INFINITY } else { -0.02 * (KEYS + i - j) as f32 };
    (0..rows * KEYS).map(|x| of(x / KEYS, x % KEYS)).collect()
}

#[test]
fn some_rows() {
    Data::new(5).check(Mask::None, options());
}

#[test]
fn few_rows_under_a_softcap() {
    Data::new(2).check(Mask::Causal { q_pos0: 258 }, AttentionOptions { softcap: 20.0, ..options() });
}

#[test]
fn biases() {
    for &rows in if cfg!(miri) { &[2][..] } else { &[2, 5] } {
        let bias = bias(rows);
        Data::new(rows).check(Mask::Additive(Tensor::new(&bias, [1, 1, rows, KEYS]).unwrap()), options());
    }
}

#[test]
fn bounds() {
    let data = Data::new(2);
    for &verified in if cfg!(miri) { &[false][..] } else { &[false, true] } {
        let o = AttentionOptions { certificate: true, verified, ..options() };
        let (out, bounds, stats) = data.run(Mask::None, o);
        for (error, bound) in data.errors(&out, &Mask::None, o).into_iter().zip(bounds) {
            assert!(error <= f64::from(bound) && (!verified || bound <= 0.1), "{error} and {bound}");
        }
        assert_eq!(stats.certificates, 4);
    }
}

#[test]
fn a_session() {
    let data = Data::new(2);
    let o = SessionOptions {
        heads_q: 2,
        heads_kv: 1,
        dim_k: DIM,
        dim_v: DIM,
        capacity: KEYS,
        kv_dtype: Dtype::F16,
        attention: options(),
        dense_below: 0,
    };
    let mut session = Session::new_in(&o, &memory(0)).unwrap();
    // A segment that is complete, and taken back, and complete again.
    for (begin, end) in [(0, SEGMENT + 1), (SEGMENT - 1, KEYS)] {
        session.truncate(begin).unwrap();
        let rows = |x: &[f32]| x[begin * DIM..end * DIM].to_vec();
        let (k, v) = (rows(&data.k), rows(&data.v));
        session.heads_mut()[0].append(Rows::new(&k, DIM).unwrap(), Rows::new(&v, DIM).unwrap()).unwrap();
        session.commit().unwrap();
    }
    let mut plan = Plan::new();
    session.work_plan(2, &mut plan).unwrap();
    let bytes = plan.finish().unwrap().bytes;
    let attend = |session: &Session, mask: Mask<'_>| {
        let mut out = vec![f32::NAN; 2 * 2 * DIM];
        let to = TensorMut::new(&mut out, [1, 2, 2, DIM]).unwrap();
        let q = Tensor::new(&data.q, [1, 2, 2, DIM]).unwrap();
        let stats = session.attend(q, Some(mask), &to, None, &memory(bytes), 0, 1).unwrap();
        assert!(stats.cells_opened > 0 && stats.estimated_mass > 0.0, "{stats:?}");
        out
    };
    let bias = bias(2);
    for mask in [Mask::None, Mask::Additive(Tensor::new(&bias, [1, 1, 2, KEYS]).unwrap())] {
        let out = attend(&session, mask);
        let errors = data.errors(&out, &mask, o.attention);
        assert!(errors.iter().all(|&e| e < 0.2), "{errors:?}");
        let mut bytes = vec![0; session.save_len()];
        session.save(&mut bytes).unwrap();
        assert!(attend(&Session::load(&bytes, &memory(0)).unwrap(), mask) == out);
    }
}
