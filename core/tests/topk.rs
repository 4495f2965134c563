//! Top-k attention against its f64 twin, and the ways in which it must agree with exact attention and with itself.

mod common;

use common::{Naive, memory, noise, sees, worst};
use iceformer_core::Status;
use iceformer_core::attention::{
    AttentionOptions, AttentionStats, IndexProblem, Mask, Mode, Problem, Reason, attention, index_attention, required,
    sparsity, sparsity_required, top_k_for,
};
use iceformer_core::dci::{Index, IndexOptions, Scratch};
use iceformer_core::mem::{Rows, RowsMut, Tensor, TensorMut};

struct Data {
    shape: [usize; 4],
    kv: [usize; 4],
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Data {
    /// `[batch, heads_q, rows_q]`, `[heads_kv, rows_kv]`, dims.
    fn new(batch: usize, heads: [usize; 2], rows: [usize; 2], dims: [usize; 2], seed: u64) -> Data {
        let shape = [batch, heads[0], rows[0], dims[0]];
        let kv = [batch, heads[1], rows[1], dims[1]];
        let n = |s: [usize; 4]| s.iter().product::<usize>();
        Data {
            shape,
            kv,
            q: noise(n(shape), seed, 2.0),
            k: noise(batch * heads[1] * rows[1] * dims[0], seed + 1, 2.0),
            v: noise(n(kv), seed + 2, 1.0),
        }
    }

    fn run(&self, mask: Mask<'_>, options: AttentionOptions) -> (Vec<f32>, Vec<f32>, AttentionStats) {
        let [b, h, r, dim_k] = self.shape;
        let (mut out, mut lse) = (vec![f32::NAN; b * h * r * self.kv[3]], vec![f32::NAN; b * h * r]);
        let problem = Problem {
            q: Tensor::new(&self.q, self.shape).unwrap(),
            k: Tensor::new(&self.k, [b, self.kv[1], self.kv[2], dim_k]).unwrap(),
            v: Tensor::new(&self.v, self.kv).unwrap(),
            out: TensorMut::new(&mut out, [b, h, r, self.kv[3]]).unwrap(),
            lse: Some(TensorMut::new(&mut lse, [b, h, r, 1]).unwrap()),
            bounds: None,
            mask,
            options,
        };
        let bytes = required(&problem).unwrap().bytes;
        // A limit of exactly the stated bytes: neither more nor less is taken.
        let work = memory(bytes);
        let stats = attention(&problem, &work).unwrap();
        assert_eq!(work.report().peak, bytes);
        (out, lse, stats)
    }

    fn naive(&self, mask: Mask<'_>, options: AttentionOptions, top: usize) -> (Vec<f64>, Vec<f64>) {
        Naive {
            q: &self.q,
            k: &self.k,
            v: &self.v,
            dim_k: self.shape[3],
            dim_v: self.kv[3],
            options,
            sees: &|i, j| sees(&mask, options.window, options.sinks, i, j),
            top,
        }
        .run()
    }
}

/// Top-k with retrieval that misses nothing.
fn unlimited(top_k: usize) -> AttentionOptions {
    AttentionOptions {
        mode: Mode::TopK,
        top_k,
        retrieve_fraction: 1.0,
        field_of_view: 1 << 20,
        ..AttentionOptions::default()
    }
}

fn close(got: (&[f32], &[f32]), want: (&[f64], &[f64]), dim_v: usize, what: &str) {
    assert!(worst(got.0, want.0, dim_v) < 1e-5, "{what}: output off by {}", worst(got.0, want.0, dim_v));
    for (g, w) in got.1.iter().zip(want.1) {
        assert!(f64::from(*g) == *w || (f64::from(*g) - w).abs() < 1e-4, "{what}: lse {g} for {w}");
    }
}

#[test]
fn perfect_retrieval_gives_the_true_top_k_under_every_mask() {
    let d = Data::new(1, [1, 1], [60, 90], [24, 20], 11);
    let keep: Vec<u8> = (0..90).map(|j| u8::from(j % 3 != 1)).collect();
    let counts: Vec<u64> = (0..60).map(|i| (i * 37) % 91).collect();
    let bias: Vec<f32> =
        noise(60 * 90, 5, 1.0).into_iter().map(|b| if b < -0.5 { f32::NEG_INFINITY } else { b }).collect();
    let masks = [
        ("none", Mask::None),
        ("causal", Mask::Causal { q_pos0: 30 }),
        ("prefix", Mask::Prefix(&counts)),
        ("keys", Mask::Keys(&keep)),
        ("causal with padding", Mask::CausalKeys { q_pos0: 30, keep: &keep }),
        ("additive", Mask::Additive(Tensor::new(&bias, [1, 1, 60, 90]).unwrap())),
    ];
    for (name, mask) in masks {
        for (window, sinks) in [(0, 0), (17, 0), (17, 5)] {
            for softcap in [0.0, 3.0] {
                for levels in [1, 3] {
                    let o = AttentionOptions { window, sinks, softcap, levels, ..unlimited(7) };
                    let (out, lse, stats) = d.run(mask, o);
                    assert_eq!(stats.mode, Mode::TopK);
                    assert!(stats.pairs <= 60 * 7 && stats.pairs <= stats.pairs_dense);
                    let (want, want_lse) = d.naive(mask, o, 7);
                    close(
                        (&out, &lse),
                        (&want, &want_lse),
                        20,
                        &format!("{name} window {window} sinks {sinks} cap {softcap} levels {levels}"),
                    );
                }
            }
        }
    }
}

#[test]
fn enough_keys_make_top_k_exact() {
    let d = Data::new(1, [1, 1], [50, 50], [16, 16], 3);
    let exact = AttentionOptions { mode: Mode::Exact, ..AttentionOptions::default() };
    let causal = Mask::Causal { q_pos0: 0 };
    // Covering every key: said so, and computed exactly.
    let (out, _, stats) = d.run(causal, AttentionOptions { top_k: 50, mode: Mode::TopK, ..exact });
    assert_eq!((stats.mode, stats.reason), (Mode::Exact, Reason::Short));
    assert_eq!(out, d.run(causal, exact).0);
    // Covering every key a row sees: retrieval itself finds them all, with default budgets.
    let (out, lse, stats) = d.run(causal, AttentionOptions { top_k: 49, mode: Mode::TopK, ..exact });
    assert_eq!(stats.mode, Mode::TopK);
    let (want, want_lse) = d.naive(causal, exact, usize::MAX);
    close((&out[..49 * 16], &lse[..49]), (&want[..49 * 16], &want_lse[..49]), 16, "rows below k");
    // AUTO is exact for few keys and says why.
    let (auto, _, stats) = d.run(causal, AttentionOptions::default());
    assert_eq!((auto, stats.reason), (d.run(causal, exact).0, Reason::Short));
}

#[test]
fn later_keys_and_padding_change_nothing() {
    let mut d = Data::new(1, [2, 1], [80, 80], [16, 8], 21);
    let o = AttentionOptions { mode: Mode::TopK, top_k: 10, seed: 4, ..AttentionOptions::default() };
    for mode in [Mode::TopK, Mode::Exact] {
        let o = AttentionOptions { mode, ..o };
        let (before, lse, _) = d.run(Mask::Causal { q_pos0: 0 }, o);
        let (k, v) = (d.k.clone(), d.v.clone());
        d.k[50 * 16..].fill(1.5);
        d.v[50 * 8..].fill(-3.0);
        let (after, lse2, _) = d.run(Mask::Causal { q_pos0: 0 }, o);
        for head in 0..2 {
            let rows = head * 80 * 8..head * 80 * 8 + 50 * 8;
            assert_eq!(before[rows.clone()], after[rows]);
            assert_eq!(lse[head * 80..][..50], lse2[head * 80..][..50]);
        }
        (d.k, d.v) = (k, v);
        let keep: Vec<u8> = (0..80).map(|j| u8::from(j < 60)).collect();
        let before = d.run(Mask::Keys(&keep), o).0;
        d.k[60 * 16..].fill(3.0);
        d.v[60 * 8..].fill(1e6);
        assert_eq!(before, d.run(Mask::Keys(&keep), o).0, "padding contributes");
    }
}

#[test]
fn grouped_heads_equal_repeated_ones_at_any_number_of_threads() {
    let d = Data::new(2, [4, 2], [70, 70], [12, 12], 31);
    let mut wide = Data::new(2, [4, 4], [70, 70], [12, 12], 31);
    let repeat = |x: &[f32]| -> Vec<f32> { x.chunks(70 * 12).flat_map(|head| [head, head].concat()).collect() };
    (wide.q, wide.k, wide.v) = (d.q.clone(), repeat(&d.k), repeat(&d.v));
    for mode in [Mode::Exact, Mode::TopK] {
        for mask in [Mask::None, Mask::Causal { q_pos0: 0 }] {
            let o = AttentionOptions { mode, top_k: 9, ..AttentionOptions::default() };
            let (one, lse, stats) = d.run(mask, o);
            assert_eq!(one, wide.run(mask, o).0);
            // Threads come with `std`; without it they are refused.
            for num_threads in if cfg!(feature = "std") { [2, 3, 7] } else { [1; 3] } {
                let (many, lse2, more) = d.run(mask, AttentionOptions { num_threads, ..o });
                assert_eq!((&one, &lse), (&many, &lse2));
                assert_eq!((stats.pairs, stats.pairs_dense), (more.pairs, more.pairs_dense));
            }
        }
    }
}

#[test]
fn shared_query_key_mode_uses_unit_keys_and_skips_itself() {
    let d = Data::new(1, [1, 1], [40, 40], [16, 8], 41);
    let mut unit = d.q.clone();
    for row in unit.chunks_mut(16) {
        let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        row.iter_mut().for_each(|x| *x /= norm);
    }
    for (mask, causal) in [(Mask::Causal { q_pos0: 0 }, true), (Mask::None, false)] {
        for (mode, top) in [(Mode::Exact, usize::MAX), (Mode::TopK, 6)] {
            let o = AttentionOptions { mode, shared_qk: true, ..unlimited(6) };
            let (out, lse, _) = d.run(mask, o);
            let naive = Naive {
                q: &d.q,
                k: &unit,
                v: &d.v,
                dim_k: 16,
                dim_v: 8,
                options: o,
                // Row 0 of a causal head sees itself alone.
                sees: &|i, j| ((!causal || j <= i) && (i != j || (causal && i == 0))).then_some(0.0),
                top,
            };
            let (want, want_lse) = naive.run();
            close((&out, &lse), (&want, &want_lse), 8, "shared");
        }
    }
}

#[test]
fn one_head_over_an_index() {
    let d = Data::new(1, [1, 1], [20, 64], [16, 8], 51);
    let mut index =
        Index::new_in(&IndexOptions { levels: 2, capacity: 64, ..IndexOptions::new(16) }, &memory(0)).unwrap();
    // Inserted backwards, one key removed: rows of values follow the ids, not the order.
    for id in (0..64).rev() {
        index.insert(Rows::new(&d.k[id * 16..][..16], 16).unwrap(), Some(&[id as u64])).unwrap();
    }
    index.remove(&[13]).unwrap();
    let mut scratch = Scratch::new_in(&index, &memory(0)).unwrap();
    let counts: Vec<u64> = (0..20).map(|i| i * 3).collect();
    for mask in [Mask::None, Mask::Prefix(&counts), Mask::Causal { q_pos0: 44 }] {
        for (o, top) in [(AttentionOptions::default(), usize::MAX), (unlimited(5), 5)] {
            let (mut out, mut lse) = (vec![0.0; 20 * 8], vec![0.0; 20]);
            let stats = index_attention(
                &IndexProblem::new(&index, Rows::new(&d.q, 16).unwrap(), Rows::new(&d.v, 8).unwrap())
                    .mask(mask)
                    .options(o),
                &mut scratch,
                None,
                &mut RowsMut::new(&mut out, 8).unwrap(),
                Some(&mut lse),
            )
            .unwrap();
            let naive = Naive {
                q: &d.q,
                k: &d.k,
                v: &d.v,
                dim_k: 16,
                dim_v: 8,
                options: o,
                sees: &|i, j| (j != 13).then(|| sees(&mask, 0, 0, i, j)).flatten(),
                top,
            };
            let (want, want_lse) = naive.run();
            close((&out, &lse), (&want, &want_lse), 8, "index");
            assert!(stats.pairs <= stats.pairs_dense);
        }
    }
    let short = index_attention(
        &IndexProblem::new(&index, Rows::new(&d.q, 16).unwrap(), Rows::new(&d.v[..63 * 8], 8).unwrap()),
        &mut scratch,
        None,
        &mut RowsMut::new(&mut vec![0.0; 20 * 8], 8).unwrap(),
        None,
    );
    assert_eq!(short.unwrap_err().status, Status::NotFound);
}

#[test]
fn mistakes_are_named_before_anything_is_written() {
    let d = Data::new(1, [2, 1], [5, 6], [4, 4], 61);
    let check =
        |q: &[f32], k: &[f32], v: &[f32], mask: Mask<'_>, options: AttentionOptions, status: Status, text: &str| {
            let mut out = vec![7.0; 2 * 5 * 4];
            let problem = Problem {
                q: Tensor::new(q, d.shape).unwrap(),
                k: Tensor::new(k, [1, 1, 6, 4]).unwrap(),
                v: Tensor::new(v, d.kv).unwrap(),
                out: TensorMut::new(&mut out, [1, 2, 5, 4]).unwrap(),
                lse: None,
                bounds: None,
                mask,
                options,
            };
            let e = attention(&problem, &memory(0)).unwrap_err();
            assert_eq!(e.status, status, "{e}");
            assert!(e.to_string().contains(text), "{e} does not say {text}");
            assert!(out.iter().all(|&x| x == 7.0));
        };
    let bad = |x: &[f32], at: usize, v: f32| {
        let mut x = x.to_vec();
        x[at] = v;
        x
    };
    let o = AttentionOptions::default();
    check(&bad(&d.q, 9, f32::NAN), &d.k, &d.v, Mask::None, o, Status::NotFinite, "q: ");
    check(&d.q, &bad(&d.k, 13, f32::INFINITY), &d.v, Mask::None, o, Status::NotFinite, "row 3");
    check(&d.q, &d.k, &bad(&d.v, 4, f32::NAN), Mask::None, o, Status::NotFinite, "row 1");
    check(
        &d.q,
        &bad(&d.k, 13, 1e19),
        &d.v,
        Mask::None,
        AttentionOptions { mode: Mode::TopK, top_k: 2, ..o },
        Status::NotFinite,
        "row 3",
    );
    check(&bad(&d.q, 6, 1e30), &bad(&d.k, 0, -1e10), &d.v, Mask::None, o, Status::NotFinite, "row 1");
    check(&d.q, &d.k, &bad(&d.v, 2, 1e38), Mask::None, o, Status::NotFinite, "v: ");
    check(&d.q, &d.k, &d.v, Mask::Prefix(&[1; 4]), o, Status::Shape, "prefix");
    check(&d.q, &d.k, &d.v, Mask::Keys(&[1; 5]), o, Status::Shape, "keys");
    let nan = [f32::NAN; 30];
    check(&d.q, &d.k, &d.v, Mask::Additive(Tensor::new(&nan, [1, 1, 5, 6]).unwrap()), o, Status::NotFinite, "bias");
    check(&d.q, &d.k, &d.v, Mask::Causal { q_pos0: u64::MAX }, o, Status::Argument, "q_pos0");
    check(&d.q, &d.k, &d.v, Mask::None, AttentionOptions { scale: -1.0, ..o }, Status::Argument, "scale");
    check(&d.q, &d.k, &d.v, Mask::None, AttentionOptions { softcap: f32::NAN, ..o }, Status::Argument, "softcap");
    check(
        &d.q,
        &d.k,
        &d.v,
        Mask::None,
        AttentionOptions { certificate: true, mode: Mode::TopK, ..o },
        Status::Unsupported,
        "flags",
    );
    check(&d.q, &d.k, &d.v, Mask::None, AttentionOptions { shared_qk: true, ..o }, Status::Shape, "heads_kv");
}

/// A row from which a bias hides all keys, its own too, gets zeros, as where queries are the keys.
#[test]
fn a_row_that_sees_nothing_gets_zeros() {
    let (n, d) = (40, Data::new(1, [1, 1], [40, 40], [8, 5], 19));
    let bias: Vec<f32> = (0..n * n).map(|i| if i / n == 7 { f32::NEG_INFINITY } else { 0.25 }).collect();
    let mask = Mask::Additive(Tensor::new(&bias, [1, 1, n, n]).unwrap());
    for shared_qk in [false, true] {
        for mode in [Mode::TopK, Mode::Exact] {
            let (out, lse, _) = d.run(mask, AttentionOptions { mode, shared_qk, ..unlimited(6) });
            assert!(out[7 * 5..][..5] == [0.0; 5] && lse[7] == f32::NEG_INFINITY, "{mode:?}, shared {shared_qk}");
            assert!(out.iter().all(|x| x.is_finite()) && lse.iter().filter(|x| x.is_finite()).count() == n - 1);
        }
    }
}

#[test]
fn the_probe_measures_the_mass_of_the_heaviest_keys() {
    let d = Data::new(1, [2, 1], [64, 64], [16, 16], 71);
    let mut out = vec![0.0; 2 * 64 * 16];
    let mut problem = Problem {
        q: Tensor::new(&d.q, d.shape).unwrap(),
        k: Tensor::new(&d.k, [1, 1, 64, 16]).unwrap(),
        v: Tensor::new(&d.v, d.kv).unwrap(),
        out: TensorMut::new(&mut out, [1, 2, 64, 16]).unwrap(),
        lse: None,
        bounds: None,
        mask: Mask::Causal { q_pos0: 0 },
        options: AttentionOptions::default(),
    };
    let mut mass = [0.0; 2];
    let work = memory(sparsity_required(&problem).unwrap().bytes);
    for (head, softcap) in [(0, 0.0), (1, 0.0), (0, 1.5), (1, 1.5)] {
        problem.options.softcap = softcap;
        sparsity(&problem, 5, 64, &mut mass, &work).unwrap();
        let one = Data {
            shape: [1, 1, 64, 16],
            q: d.q[head * 1024..][..1024].to_vec(),
            kv: d.kv,
            k: d.k.clone(),
            v: d.v.clone(),
        };
        let all = one.naive(problem.mask, problem.options, usize::MAX).1;
        let top = one.naive(problem.mask, problem.options, 5).1;
        let want: f64 = top.iter().zip(&all).map(|(t, a)| (t - a).exp()).sum::<f64>() / 64.0;
        assert!((f64::from(mass[head]) - want).abs() < 1e-5, "{} for {want}", mass[head]);
    }
    sparsity(&problem, 64, 3, &mut mass, &memory(0)).unwrap();
    assert_eq!(mass, [1.0; 2]);
    assert_eq!(sparsity(&problem, 0, 3, &mut mass, &memory(0)).unwrap_err().status, Status::Argument);
}

#[test]
fn the_papers_rule_for_k() {
    let k = |n, alpha| top_k_for(n, alpha);
    assert_eq!([k(100, 0.005), k(8000, 0.005), k(9000, 0.005), k(100_000, 0.005)], [30, 40, 45, 50]);
    assert_eq!([k(0, 0.0), k(usize::MAX, f32::NAN), k(10_000, -1.0), k(10_000, f32::INFINITY)], [30, 30, 30, 50]);
}
