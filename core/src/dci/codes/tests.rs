//! Directions that take sample queries into account.

use super::Keys;
use super::basis::noise;
use super::fitted::Fit;
use crate::dci::{Engine, Index, IndexOptions, Metric};
use crate::mem::Rows;
use std::vec;
use std::vec::Vec;

const DIM: usize = 12;
const KEYS: usize = 900;

/// Rows that vary by `spread(i)` along coordinate i, mixed a little.
fn rows(n: usize, seed: u64, spread: impl Fn(usize) -> f32) -> Vec<f32> {
    let mut x: Vec<f32> = (0..n * DIM).map(|i| noise(seed, i as u64) * spread(i % DIM)).collect();
    for row in x.chunks_exact_mut(DIM) {
        (1..DIM).for_each(|i| row[i] += 0.3 * row[i - 1] + 0.2);
    }
    x
}

/// An index of keys that vary where queries do not, its directions balanced.
fn balanced(metric: Metric) -> (Index, Vec<f32>, Vec<f32>) {
    let keys = rows(KEYS, 1, |i| 3.0 * 0.7f32.powi(i as i32));
    let queries = rows(400, 2, |i| 5.0 * 0.75f32.powi((DIM - i) as i32));
    let options = IndexOptions { metric, engine: Engine::Cells, ..IndexOptions::new(DIM) };
    let mut index = Index::new(&options).expect("memory");
    index.insert(Rows::new(&keys, DIM).expect("rows"), None).expect("memory");
    index.fit(Some(Rows::new(&queries, DIM).expect("rows"))).expect("queries");
    index.codes.asked.way = Fit::Balanced;
    let Keys { norm2, ids, dim, l2, isa, seed, .. } = index.keys_view();
    let (norm2, ids) = (norm2.to_vec(), ids.to_vec());
    index.codes.fold(Keys { keys: &keys, norm2: &norm2, ids: &ids, dim, l2, isa, seed });
    (index, keys, queries)
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Eigenvalues of a symmetric matrix by Jacobi's rotations, largest first.
fn eigenvalues(m: &mut [Vec<f64>]) -> Vec<f64> {
    let n = m.len();
    for _ in 0..60 {
        for p in 0..n {
            for q in p + 1..n {
                if m[p][q].abs() < 1e-300 {
                    continue;
                }
                let t = 0.5 * (2.0 * m[p][q]).atan2(m[q][q] - m[p][p]);
                let (s, c) = t.sin_cos();
                for row in m.iter_mut() {
                    (row[p], row[q]) = (c * row[p] - s * row[q], s * row[p] + c * row[q]);
                }
                for k in 0..n {
                    (m[p][k], m[q][k]) = (c * m[p][k] - s * m[q][k], s * m[p][k] + c * m[q][k]);
                }
            }
        }
    }
    let mut values: Vec<f64> = (0..n).map(|i| m[i][i]).collect();
    values.sort_by(|a, b| b.total_cmp(a));
    values
}

#[test]
fn coordinates_of_both_sides_multiply_to_products() {
    for metric in [Metric::InnerProduct, Metric::L2] {
        let (index, keys, queries) = balanced(metric);
        let cells = &index.codes;
        assert!(cells.asked.fitted() && cells.rank == DIM);
        for i in 0..DIM {
            for j in 0..DIM {
                let x = dot(&cells.basis[i * DIM..][..DIM], &cells.room[j * DIM..][..DIM]);
                assert!((x - f64::from(u8::from(i == j))).abs() < 1e-3, "{i} {j}: {x}");
            }
        }
        let (asking, offset) = cells.asking(DIM);
        for (key, query) in keys.chunks_exact(DIM).zip(queries.chunks_exact(DIM)) {
            let l2 = metric == Metric::L2;
            let mean: Vec<f32> = cells.mean[..DIM].to_vec();
            let centred: Vec<f32> = key.iter().zip(&mean).map(|(k, m)| k - m).collect();
            let seen: Vec<f32> = query.iter().zip(&mean).map(|(q, m)| if l2 { q - m } else { *q }).collect();
            let product: f64 = (0..DIM)
                .map(|j| {
                    let y = dot(&asking[j * DIM..][..DIM], query) - if l2 { f64::from(offset[j]) } else { 0.0 };
                    (dot(&cells.turned[j * DIM..][..DIM], key) - f64::from(cells.offset[j])) * y
                })
                .sum();
            let want = dot(&centred, &seen);
            let size = (dot(&centred, &centred) * dot(&seen, &seen)).sqrt();
            assert!((product - want).abs() < 1e-3 * size + 1e-4, "{product} for {want}");
        }
    }
}

/// The naive twin: what the best few directions leave out, by f64 and Jacobi's rotations.
#[test]
fn the_first_directions_leave_out_as_little_as_can_be() {
    let (index, keys, queries) = balanced(Metric::InnerProduct);
    let cells = &index.codes;
    let mean = &cells.mean[..DIM];
    let moment = |rows: &[f32], mean: &[f32]| {
        let mut m = vec![vec![0.0f64; DIM]; DIM];
        for row in rows.chunks_exact(DIM) {
            for i in 0..DIM {
                for j in 0..DIM {
                    m[i][j] += f64::from(row[i] - mean[i]) * f64::from(row[j] - mean[j]);
                }
            }
        }
        m
    };
    let (k, q) = (moment(&keys, mean), moment(&queries, &[0.0; DIM]));
    // L^T Q L for K = L L^T.
    let mut l = vec![vec![0.0; DIM]; DIM];
    for i in 0..DIM {
        for j in 0..=i {
            let x = k[i][j] - (0..j).map(|m| l[i][m] * l[j][m]).sum::<f64>();
            l[i][j] = if i == j { x.sqrt() } else { x / l[j][j] };
        }
    }
    let mut both = vec![vec![0.0; DIM]; DIM];
    for i in 0..DIM {
        for j in 0..DIM {
            for a in 0..DIM {
                both[i][j] += (0..DIM).map(|b| l[a][i] * q[a][b] * l[b][j]).sum::<f64>();
            }
        }
    }
    let values = eigenvalues(&mut both);
    let left_out = |kept: usize, ours: bool| {
        let mut sum = 0.0;
        for key in keys.chunks_exact(DIM) {
            let key: Vec<f32> = key.iter().zip(mean).map(|(k, m)| k - m).collect();
            let x: Vec<f64> = (0..kept).map(|j| dot(&cells.basis[j * DIM..][..DIM], &key)).collect();
            for query in queries.chunks_exact(DIM) {
                // Leading axes of the keys are nearly the first coordinates.
                let have = match ours {
                    true => (0..kept).map(|j| x[j] * dot(&cells.room[j * DIM..][..DIM], query)).sum::<f64>(),
                    false => dot(&key[..kept], &query[..kept]),
                };
                sum += (dot(&key, query) - have).powi(2);
            }
        }
        sum
    };
    for kept in [1, 3, 6, 9] {
        let best: f64 = values[kept..].iter().sum();
        let (ours, plain) = (left_out(kept, true), left_out(kept, false));
        assert!(ours < 1.2 * best && ours > 0.99 * best, "{kept}: {ours:e}, best {best:e}");
        assert!(plain > 1.5 * best, "{kept}: the keys alone do as well, {plain:e}");
    }
}
