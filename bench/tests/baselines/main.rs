//! Every baseline against its naive twin, and what it must do where it has nothing to approximate.

mod twin;

use iceformer_bench::baselines::catalogue::{self, Choice};
use iceformer_bench::baselines::*;
use iceformer_bench::speed::noise;
use twin::Matrix;

/// Queries, keys and values of one head; logits of about one unit.
struct Data {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    dim: usize,
}

impl Data {
    fn new(rows: usize, dim: usize, spread: f32, seed: u64) -> Data {
        let draw = |salt: u64, by: f32| noise(rows * dim, seed * 10 + salt).iter().map(|x| x * by).collect();
        Data { q: draw(1, spread), k: draw(2, spread), v: draw(3, 1.0), dim }
    }

    fn head(&self, causal: bool) -> Head<'_> {
        Head { q: &self.q, k: &self.k, v: &self.v, dim: self.dim, causal }
    }
}

fn run(method: &mut dyn Method, head: &Head<'_>) -> Vec<f32> {
    // What was in the output before must not matter.
    let mut out = vec![f32::NAN; head.q.len()];
    method.prepare(head.rows(), head.dim);
    method.attend(head, &mut out);
    out
}

/// Relative L2 distance of everything.
fn distance(have: &[f32], want: &Matrix) -> f64 {
    let want = want.concat();
    assert_eq!(have.len(), want.len());
    let norm: f64 = want.iter().map(|x| x * x).sum();
    (have.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>() / norm).sqrt()
}

/// Sizes that fill blocks and such that do not.
const SIZES: [(usize, usize); 3] = [(128, 16), (203, 16), (333, 32)];

/// Holds a method to its twin in each kind of attention that it can do.
fn hold<M: Method>(mut method: M, limit: f64, twin: impl Fn(&Head<'_>, &M) -> Matrix) {
    for (seed, (rows, dim)) in (1..).zip(SIZES) {
        let data = Data::new(rows, dim, 1.3, seed);
        for causal in [false, true] {
            if method.cannot(causal).is_some() {
                continue;
            }
            let head = data.head(causal);
            let have = run(&mut method, &head);
            let far = distance(&have, &twin(&head, &method));
            assert!(far <= limit, "{}, {rows} x {dim}, causal {causal}: {far:.2e}", method.name());
        }
    }
}

#[test]
fn vanilla() {
    hold(Vanilla, 2e-6, |head, _| twin::masked(head, |_, _| true));
    hold(Exact { shared_qk: false }, 2e-6, |head, _| twin::masked(head, |_, _| true));
}

#[test]
fn exact_of_shared_queries_and_keys() {
    hold(Exact { shared_qk: true }, 2e-6, |head, _| {
        let k = twin::unit(head);
        let mut out = twin::masked(&Head { k: &k, ..*head }, |i, j| i != j);
        if head.causal {
            out[0] = twin::matrix(head.v, head.dim)[0].clone();
        }
        out
    });
}

#[test]
fn top_k() {
    for k in [1, 7, 30, 1000] {
        hold(TopK { k }, 2e-6, |head, m| twin::top_k(head, m.k));
    }
}

#[test]
fn reformer() {
    for shared_qk in [false, true] {
        for hashes in [1, 2, 4] {
            for bucket_size in [16, 48, 1024] {
                let m = Reformer { hashes, bucket_size, shared_qk, seed: 9 };
                hold(m, 4e-6, twin::reformer);
            }
        }
    }
}

/// Buckets are what random rotations say, and like rows share them.
#[test]
fn hashes_of_reformer() {
    let m = Reformer { hashes: 1, bucket_size: 16, shared_qk: true, seed: 4 };
    let (rows, dim, buckets) = (64, 16, 8);
    let x = noise(rows * dim, 5);
    let have = m.hash(&x, dim, buckets, 2);
    let rotation = twin::matrix(&normals(buckets / 2 * dim, 6), dim);
    for (row, bucket) in twin::matrix(&x, dim).iter().zip(&have) {
        let turned: Vec<f64> = rotation.iter().map(|r| twin::dot(r, row)).collect();
        let all: Vec<f64> = turned.iter().copied().chain(turned.iter().map(|x| -x)).collect();
        assert!(all.iter().all(|&x| x <= all[*bucket as usize] + 1e-5));
    }
    let longer: Vec<f32> = x.iter().map(|x| 3.0 * x).collect();
    assert_eq!(have, m.hash(&longer, dim, buckets, 2), "the length of a row does not matter");
    let turned: Vec<f32> = x.iter().map(|x| -x).collect();
    let opposite: Vec<u32> = have.iter().map(|b| (b + 4) % 8).collect();
    assert_eq!(opposite, m.hash(&turned, dim, buckets, 2));
}

#[test]
fn nystromformer() {
    for landmarks in [1, 8, 30] {
        hold(Nystromformer { landmarks }, 1e-3, |head, m| twin::nystromformer(head, m.landmarks));
    }
    // As many landmarks as tokens leave nothing to approximate.
    hold(Nystromformer { landmarks: 400 }, 2e-6, |head, _| twin::masked(head, |_, _| true));
}

#[test]
fn lara() {
    for landmarks in [1, 8, 30] {
        hold(Lara { landmarks, seed: None }, 2e-5, twin::lara);
        hold(Lara { landmarks, seed: Some(3) }, 2e-4, twin::lara);
    }
}

#[test]
fn h_transformer() {
    for block_size in [2, 8, 16, 64, 256] {
        hold(HTransformer1d { block_size }, 4e-6, twin::h_transformer);
    }
}

#[test]
fn longformer() {
    for (window, global) in [(16, 1), (64, 3), (64, 0), (2048, 1)] {
        hold(Longformer { window, global }, 2e-6, twin::longformer);
    }
}

#[test]
fn performer() {
    for features in [16, 100] {
        hold(Performer::new(features, 5), 2e-5, twin::performer);
    }
}

#[test]
fn linformer() {
    for projected in [8, 64] {
        hold(Linformer::new(projected, 5), 2e-4, twin::linformer);
    }
}

#[test]
fn eviction() {
    for (heavy, recent) in [(0.02, 0.02), (0.1, 0.1), (0.0, 0.3)] {
        hold(H2o { heavy, recent }, 4e-6, twin::h2o);
    }
    for (sinks, recent) in [(4, 12), (0, 30), (4, 2044)] {
        hold(StreamingLlm { sinks, recent }, 2e-6, twin::streaming);
    }
}

/// The paper's search with budgets is no twin's business; with every key asked for it is attention itself, and few keys
/// cannot beat the best few.
#[test]
fn iceformer() {
    hold(IceFormerTopK { k: 400, shared_qk: false }, 2e-6, |head, _| twin::masked(head, |_, _| true));
    let data = Data::new(300, 16, 1.3, 8);
    for causal in [false, true] {
        let head = data.head(causal);
        let best = run(&mut TopK { k: 30 }, &head);
        let found = run(&mut IceFormerTopK { k: 30, shared_qk: false }, &head);
        let truth = twin::masked(&head, |_, _| true);
        let (best, found) = (distance(&best, &truth), distance(&found, &truth));
        assert!(found < 1.2 * best, "causal {causal}: {found} {best}");
    }
    hold(IceFormer { tolerance: 0.05 }, 0.05, |head, _| twin::masked(head, |_, _| true));
}

/// Estimators approach attention where they should: short queries and keys, many samples.
#[test]
fn estimators_estimate() {
    let data = Data::new(256, 16, 0.5, 6);
    let head = data.head(false);
    let mut truth = twin::masked(&head, |_, _| true);
    // What is common to all rows is easy: judge what is not.
    let common: Vec<f64> = (0..16).map(|e| truth.iter().map(|r| r[e]).sum::<f64>() / 256.0).collect();
    let apart = |have: &[f32], truth: &Matrix| -> f64 {
        let rest: f64 = truth.iter().flat_map(|r| r.iter().zip(&common).map(|(x, c)| (x - c).powi(2))).sum();
        let rows = have.chunks(16).zip(truth);
        (rows.flat_map(|(h, t)| h.iter().zip(t).map(|(h, t)| (f64::from(*h) - t).powi(2))).sum::<f64>() / rest).sqrt()
    };
    let performer = apart(&run(&mut Performer::new(4096, 1), &head), &truth);
    assert!(performer < 0.2, "Performer: {performer}");
    let lara = apart(&run(&mut Lara { landmarks: 256, seed: Some(1) }, &head), &truth);
    assert!(lara < 0.9, "LARA: {lara}");
    let nystrom = apart(&run(&mut Nystromformer { landmarks: 64 }, &head), &truth);
    assert!(nystrom < 0.9, "Nystromformer: {nystrom}");
    // And a method of a wrong answer is far away.
    truth.reverse();
    assert!(apart(&run(&mut Vanilla, &head), &truth) > 1.0);
}

#[test]
fn ablations() {
    hold(Uniform, 2e-6, |head, _| twin::weighted(head, |i, j| if head.causal && j > i { 0.0 } else { 1.0 }));
    let data = Data::new(40, 16, 1.3, 8);
    assert!(run(&mut Nothing, &data.head(false)).iter().all(|&x| x == 0.0));
    assert_eq!(catalogue::ablations().iter().map(|m| m.name()).collect::<Vec<_>>(), ["Mean of the values", "Nothing"]);
}

/// What a method says it cannot do, and the catalogue's order and settings.
#[test]
fn catalogue_is_whole() {
    let kinds = |choice| catalogue::methods(choice, 0);
    let (paper, strong) = (kinds(Choice::Paper), kinds(Choice::Strong));
    assert_eq!(paper.len(), 14);
    for (a, b) in paper.iter().zip(&strong) {
        assert_eq!(a.name(), b.name());
        assert_ne!(a.settings(8192), b.settings(8192), "{}", a.name());
        assert!(a.cannot(true).is_none() || a.cannot(false).is_none());
    }
    let cannot = |causal| paper.iter().filter(|m| m.cannot(causal).is_some()).map(|m| m.name()).collect::<Vec<_>>();
    assert_eq!(cannot(true), ["LARA", "Nystromformer", "Linformer"]);
    assert_eq!(cannot(false), ["H2O", "StreamingLLM"]);
}
