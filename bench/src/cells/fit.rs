//! Directions fitted to a head: the leading coordinates of a key's residual within its cell carry most of the logit's
//! variation for this head's queries.

use super::build::Cells;
use super::eigen::{of_eigenvalues, product, symmetric};

/// Maps with `<query map, residual map> = <q, residual>`, the first `r` coordinates kept, residuals rounded to int8.
pub struct Directions {
    r: usize,
    d: usize,
    /// `[d, d]`, columns by importance.
    for_queries: Vec<f64>,
    /// Coordinates of every key's residual, rounded: `[n, r]`; zeros for keys outside cells.
    residuals: Vec<f64>,
    /// Standard deviation of each coordinate that is left out, `[d - r]`.
    rest: Vec<f64>,
}

/// `E[q q^T]` over the first `tokens` rows of the query heads, `[d, d]`.
pub fn moment(queries: &[&[f32]], d: usize, tokens: usize) -> Vec<f64> {
    let mut m = vec![0.0; d * d];
    let count: usize = queries.iter().map(|x| (x.len() / d).min(tokens)).sum();
    for q in queries.iter().flat_map(|x| x.chunks(d).take(tokens)) {
        for a in 0..d {
            for b in 0..d {
                m[a * d + b] += f64::from(q[a]) * f64::from(q[b]) / count as f64;
            }
        }
    }
    m
}

/// Keys `[n, d]` mapped so that their distances are what the queries see: times the root of the queries' moment.
pub fn whitened(keys: &[f32], queries: &[&[f32]], d: usize, tokens: usize) -> Vec<f32> {
    let root = of_eigenvalues(&moment(queries, d, tokens), d, |w| w.max(0.0).sqrt());
    let of = |k: &[f32], b: usize| (0..d).map(|a| f64::from(k[a]) * root[a * d + b]).sum::<f64>() as f32;
    keys.chunks(d).flat_map(|k| (0..d).map(move |b| (k, b))).map(|(k, b)| of(k, b)).collect()
}

impl Directions {
    /// Fitted to the cells' residuals and to the first `tokens` rows of the given query heads (each `[n, d]`). With
    /// `random`, an orthonormal basis drawn by hash instead.
    pub fn new(
        cells: &Cells,
        keys: &[f32],
        queries: &[&[f32]],
        d: usize,
        r: usize,
        tokens: usize,
        random: bool,
    ) -> Self {
        let r = r.min(d);
        let (for_queries, for_keys) = if random {
            let noise: Vec<f64> = (0..d * d)
                .map(|i| (iceformer_core::math::hash(5, i as u64) >> 11) as f64 / (1u64 << 53) as f64 - 0.5)
                .collect();
            let transposed: Vec<f64> = (0..d * d).map(|i| noise[i % d * d + i / d]).collect();
            let (_, basis) = symmetric(&noise.iter().zip(&transposed).map(|(a, b)| a + b).collect::<Vec<_>>(), d);
            (basis.clone(), basis)
        } else {
            let mut ck = cells.known.covariance.clone();
            let floor = 1e-6;
            (0..d).for_each(|i| ck[i * d + i] += floor);
            let (root, inverse) = (of_eigenvalues(&ck, d, f64::sqrt), of_eigenvalues(&ck, d, |w| 1.0 / w.sqrt()));
            let (_, u) = symmetric(&product(&product(&root, &moment(queries, d, tokens), d), &root, d), d);
            (product(&root, &u, d), product(&inverse, &u, d))
        };
        let n = keys.len() / d;
        let mut all = vec![0.0; n * d];
        for i in (0..n).filter(|&i| cells.of[i] != u32::MAX) {
            let mean = &cells.known.mean[cells.of[i] as usize * d..][..d];
            for a in 0..d {
                let x = f64::from(keys[i * d + a]) - mean[a];
                for b in 0..d {
                    all[i * d + b] += x * for_keys[a * d + b];
                }
            }
        }
        let column = |b: usize| (0..n).map(move |i| i * d + b);
        let rest = (r..d).map(|b| (column(b).map(|i| all[i] * all[i]).sum::<f64>() / n as f64).sqrt()).collect();
        let mut residuals = vec![0.0; n * r];
        for b in 0..r {
            let step = column(b).map(|i| all[i].abs()).fold(0.0, f64::max) / 127.0;
            for i in 0..n {
                residuals[i * r + b] = if step > 0.0 { (all[i * d + b] / step).round() * step } else { 0.0 };
            }
        }
        Directions { r, d, for_queries, residuals, rest }
    }

    /// Coordinates of a query, and the standard deviation of the logit's part that is left out.
    pub fn query(&self, q: &[f64]) -> (Vec<f64>, f64) {
        let coordinate = |b: usize| (0..self.d).map(|a| q[a] * self.for_queries[a * self.d + b]).sum::<f64>();
        let left = (self.r..self.d).map(|b| (coordinate(b) * self.rest[b - self.r]).powi(2)).sum::<f64>();
        ((0..self.r).map(coordinate).collect(), left.sqrt())
    }

    /// What the kept coordinates say of `<q, residual>` for key `i`.
    pub fn residual(&self, q: &[f64], i: usize) -> f64 {
        q.iter().zip(&self.residuals[i * self.r..][..self.r]).map(|(a, b)| a * b).sum()
    }
}
