//! Every method written out in f64, by definition and without blocks.

use iceformer_bench::baselines::{H2o, HTransformer1d, Head, Lara, Linformer, Longformer, Performer, Reformer};
use iceformer_bench::baselines::{StreamingLlm, normals};

/// A row-major matrix in f64.
pub type Matrix = Vec<Vec<f64>>;

pub fn matrix(x: &[f32], cols: usize) -> Matrix {
    x.chunks(cols).map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn times(a: &Matrix, b: &Matrix) -> Matrix {
    let column = |j: usize| b.iter().map(move |row| row[j]).collect::<Vec<f64>>();
    let columns: Vec<Vec<f64>> = (0..b[0].len()).map(column).collect();
    a.iter().map(|row| columns.iter().map(|c| dot(row, c)).collect()).collect()
}

/// Mean of rows.
fn mean(rows: &[Vec<f64>]) -> Vec<f64> {
    (0..rows[0].len()).map(|e| rows.iter().map(|r| r[e]).sum::<f64>() / rows.len() as f64).collect()
}

fn runs(x: &Matrix, count: usize) -> Matrix {
    (0..count).map(|i| mean(&x[i * x.len() / count..(i + 1) * x.len() / count])).collect()
}

/// Each row: weights of all keys (not normalised), applied to the values; rows without weight are 0.
pub fn weighted(head: &Head<'_>, weight: impl Fn(usize, usize) -> f64) -> Matrix {
    let (n, v) = (head.rows(), matrix(head.v, head.dim));
    let row = |i| {
        let w: Vec<f64> = (0..n).map(|j| weight(i, j)).collect();
        let sum: f64 = w.iter().sum();
        let share = |e: usize| w.iter().zip(&v).map(|(w, v)| w * v[e]).sum::<f64>();
        (0..head.dim).map(|e| if sum == 0.0 { 0.0 } else { share(e) / sum }).collect()
    };
    (0..n).map(row).collect()
}

/// Softmax weights where `open`.
pub fn masked(head: &Head<'_>, open: impl Fn(usize, usize) -> bool) -> Matrix {
    let (q, k) = (matrix(head.q, head.dim), matrix(head.k, head.dim));
    let scale = (head.dim as f64).powf(-0.5);
    weighted(head, |i, j| {
        let open = open(i, j) && (!head.causal || j <= i);
        if open { (scale * dot(&q[i], &k[j])).exp() } else { 0.0 }
    })
}

pub fn top_k(head: &Head<'_>, k: usize) -> Matrix {
    let (q, keys) = (matrix(head.q, head.dim), matrix(head.k, head.dim));
    let least = |i: usize| {
        let mut all: Vec<f64> = keys[..head.seen(i)].iter().map(|k| dot(&q[i], k)).collect();
        all.sort_by(|a, b| b.total_cmp(a));
        all[k.min(all.len()) - 1]
    };
    let least: Vec<f64> = (0..head.rows()).map(least).collect();
    masked(head, |i, j| dot(&q[i], &keys[j]) >= least[i])
}

/// Keys as the shared mode has them: queries of unit norm.
pub fn unit(head: &Head<'_>) -> Vec<f32> {
    let norm = |q: &[f32]| q.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    head.q.chunks(head.dim).flat_map(|q| q.iter().map(move |x| (f64::from(*x) / norm(q)) as f32)).collect()
}

pub fn reformer(head: &Head<'_>, m: &Reformer) -> Matrix {
    let (n, buckets) = (head.rows(), m.buckets(head.rows()));
    let rounds: Vec<[Vec<u32>; 3]> = (0..m.hashes)
        .map(|r| {
            let q = m.hash(head.q, head.dim, buckets, r);
            let k = if m.shared_qk { q.clone() } else { m.hash(head.k, head.dim, buckets, r) };
            // Place in the sorted order: tokens of smaller buckets, and earlier ones of the same.
            let before = |t: usize| (0..n).filter(|&u| (q[u], u) < (q[t], t)).count();
            let chunk = (0..n).map(|t| (before(t) / m.bucket_size) as u32).collect();
            [q, k, chunk]
        })
        .collect();
    let reached = |i: usize, j: usize| {
        rounds
            .iter()
            .any(|[q, k, chunk]| q[i] == k[j] && (!m.shared_qk || chunk[j] == chunk[i] || chunk[j] + 1 == chunk[i]))
    };
    let keys = if m.shared_qk { unit(head) } else { head.k.to_vec() };
    let head = &Head { k: &keys, ..*head };
    let mut out = masked(head, |i, j| reached(i, j) && !(m.shared_qk && i == j));
    if m.shared_qk {
        let alone = |i: usize| !(0..head.seen(i)).any(|j| j != i && reached(i, j));
        let v = matrix(head.v, head.dim);
        (0..n).filter(|&i| alone(i)).for_each(|i| out[i] = v[i].clone());
    }
    out
}

pub fn nystromformer(head: &Head<'_>, landmarks: usize) -> Matrix {
    let d = head.dim;
    let scale = (d as f64).powf(-0.5);
    let softmax = |a: &Matrix, b: &Matrix| -> Matrix {
        a.iter()
            .map(|a| {
                let e: Vec<f64> = b.iter().map(|b| (scale * dot(a, b)).exp()).collect();
                let sum: f64 = e.iter().sum();
                e.iter().map(|e| e / sum).collect()
            })
            .collect()
    };
    let (q, k) = (matrix(head.q, d), matrix(head.k, d));
    let (qm, km) = (runs(&q, landmarks), runs(&k, landmarks));
    let (f, a, b) = (softmax(&q, &km), softmax(&qm, &km), softmax(&qm, &k));
    let rows = a.iter().map(|r| r.iter().sum()).fold(0.0, f64::max);
    let cols = (0..landmarks).map(|j| a.iter().map(|r| r[j]).sum()).fold(0.0, f64::max);
    let mut z: Matrix = (0..landmarks).map(|i| (0..landmarks).map(|j| a[j][i] / (rows * cols)).collect()).collect();
    let minus = |c: f64, x: &Matrix| -> Matrix {
        let entry = |i: usize, j: usize| if i == j { c - x[i][j] } else { -x[i][j] };
        (0..landmarks).map(|i| (0..landmarks).map(|j| entry(i, j)).collect()).collect()
    };
    for _ in 0..6 {
        let az = times(&a, &z);
        let inner = minus(13.0, &times(&az, &minus(15.0, &times(&az, &minus(7.0, &az)))));
        z = times(&z, &inner).into_iter().map(|r| r.into_iter().map(|x| x / 4.0).collect()).collect();
    }
    times(&times(&f, &z), &times(&b, &matrix(head.v, d)))
}

/// The estimator with densities written out; `m` must not have more landmarks than rows.
pub fn lara(head: &Head<'_>, m: &Lara) -> Matrix {
    let (d, c) = (head.dim, m.landmarks);
    let half = (d as f64).powf(-0.25);
    let scaled =
        |x: &[f32]| -> Matrix { matrix(x, d).into_iter().map(|r| r.into_iter().map(|x| x * half).collect()).collect() };
    let (q, k, v) = (scaled(head.q), scaled(head.k), matrix(head.v, d));
    let qm = runs(&q, c);
    let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<f64>>();
    let mu: Matrix = runs(&k, c).iter().zip(&qm).map(|(k, q)| sum(k, q)).collect();
    let noise = m.seed.map_or(vec![0.0; c * d], |seed| normals(c * d, seed));
    let w: Matrix = mu.iter().zip(&matrix(&noise, d)).map(|(m, e)| sum(m, e)).collect();
    let xi = |x: &[f64], w: &[f64]| (dot(x, w) - dot(x, x) / 2.0).exp();
    // Densities of normal distributions, without the factor that all share.
    let density =
        |w: &[f64], mean: &[f64]| (-w.iter().zip(mean).map(|(w, m)| (w - m).powi(2)).sum::<f64>() / 2.0).exp();
    let zero = vec![0.0; d];
    let keys: Vec<(f64, Vec<f64>)> = w
        .iter()
        .map(|w| {
            let x: Vec<f64> = k.iter().map(|k| xi(k, w)).collect();
            let values = (0..d).map(|e| x.iter().zip(&v).map(|(x, v)| x * v[e]).sum()).collect();
            (x.iter().sum(), values)
        })
        .collect();
    q.iter()
        .map(|q| {
            let own: Vec<f64> = qm.iter().map(|m| dot(q, m).exp()).collect();
            let own_sum: f64 = own.iter().sum();
            let (mut total, mut out) = (0.0, vec![0.0; d]);
            for i in 0..c {
                let balance = density(&w[i], &mu[i]) / mu.iter().map(|m| density(&w[i], m)).sum::<f64>();
                let alpha = (balance + own[i] / own_sum - 1.0 / c as f64).max(1e-8);
                let weight = alpha * density(&w[i], &zero) / density(&w[i], &mu[i]) * xi(q, &w[i]);
                total += weight * keys[i].0;
                out.iter_mut().zip(&keys[i].1).for_each(|(o, v)| *o += weight * v);
            }
            out.into_iter().map(|o| o / total).collect()
        })
        .collect()
}

/// Of pairs: both tokens' means at the first level at which their blocks touch.
pub fn h_transformer(head: &Head<'_>, m: &HTransformer1d) -> Matrix {
    let (n, d, b) = (head.rows(), head.dim, m.block_size);
    let (q, k) = (matrix(head.q, d), matrix(head.k, d));
    let group = |x: &Matrix, t: usize, l: usize| mean(&x[t >> l << l..n.min(((t >> l) + 1) << l)]);
    weighted(head, |i, j| {
        if head.causal && j > i {
            return 0.0;
        }
        let block = |t: usize, l: usize| (t >> l) / b;
        let level = (0..).find(|&l| block(i, l).abs_diff(block(j, l)) <= 1).expect("one block holds all in the end");
        (dot(&group(&q, i, level), &group(&k, j, level)) / (d as f64).sqrt()).exp()
    })
}

pub fn longformer(head: &Head<'_>, m: &Longformer) -> Matrix {
    masked(head, |i, j| i.abs_diff(j) <= m.window / 2 || i < m.global || j < m.global)
}

/// Products of features, each written out.
pub fn performer(head: &Head<'_>, m: &Performer) -> Matrix {
    let (d, directions) = (head.dim, matrix(m.directions(), head.dim));
    let half = (d as f64).powf(-0.25);
    let exponents = |x: &[f32]| -> (Matrix, Vec<f64>) {
        let x: Matrix = matrix(x, d).into_iter().map(|r| r.into_iter().map(|x| x * half).collect()).collect();
        let dots = x.iter().map(|x| directions.iter().map(|w| dot(x, w)).collect()).collect();
        (dots, x.iter().map(|x| dot(x, x) / 2.0).collect())
    };
    let ((q, q_norm), (k, k_norm)) = (exponents(head.q), exponents(head.k));
    let top = |x: &[f64]| x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let most = k.iter().map(|k| top(k)).fold(f64::NEG_INFINITY, f64::max);
    let features =
        |x: &[f64], norm: f64, max: f64| -> Vec<f64> { x.iter().map(|x| (x - norm - max).exp() + 1e-4).collect() };
    let q: Matrix = q.iter().zip(q_norm).map(|(x, norm)| features(x, norm, top(x))).collect();
    let k: Matrix = k.iter().zip(k_norm).map(|(x, norm)| features(x, norm, most)).collect();
    weighted(head, |i, j| if head.causal && j > i { 0.0 } else { dot(&q[i], &k[j]) })
}

pub fn linformer(head: &Head<'_>, m: &Linformer) -> Matrix {
    let (n, d) = (head.rows(), head.dim);
    let e = matrix(m.projection(), n);
    let (k, v) = (times(&e, &matrix(head.k, d)), times(&e, &matrix(head.v, d)));
    matrix(head.q, d)
        .iter()
        .map(|q| {
            let w: Vec<f64> = k.iter().map(|k| (dot(q, k) / (d as f64).sqrt()).exp()).collect();
            let sum: f64 = w.iter().sum();
            (0..d).map(|e| w.iter().zip(&v).map(|(w, v)| w * v[e]).sum::<f64>() / sum).collect()
        })
        .collect()
}

/// What is forgotten is marked, not removed.
pub fn h2o(head: &Head<'_>, m: &H2o) -> Matrix {
    let (n, d) = (head.rows(), head.dim);
    let (heavy, recent) = m.budget(n);
    let (q, k) = (matrix(head.q, d), matrix(head.k, d));
    let (mut forgotten, mut gathered) = (vec![usize::MAX; n], vec![0.0; n]);
    for i in 0..n {
        let kept: Vec<usize> = (0..=i).filter(|&j| forgotten[j] == usize::MAX).collect();
        let w: Vec<f64> = kept.iter().map(|&j| (dot(&q[i], &k[j]) / (d as f64).sqrt()).exp()).collect();
        let sum: f64 = w.iter().sum();
        kept.iter().zip(&w).for_each(|(&j, w)| gathered[j] += w / sum);
        if kept.len() > heavy + recent {
            let old = kept[..kept.len() - recent].iter().copied();
            let least = old.min_by(|&a, &b| f64::total_cmp(&gathered[a], &gathered[b])).expect("heavy ones");
            forgotten[least] = i;
        }
    }
    masked(head, |i, j| forgotten[j] == usize::MAX || i <= forgotten[j])
}

pub fn streaming(head: &Head<'_>, m: &StreamingLlm) -> Matrix {
    masked(head, |i, j| j < m.sinks || i < j + m.recent)
}
