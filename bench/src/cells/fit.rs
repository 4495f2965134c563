//! Coordinates of keys' residuals within their cells: in four bits as they lie, or in eight along few directions, fitted to
//! a head, whose leading coordinates carry most of the logit's variation for this head's queries, or random.

use super::build::Cells;
use super::eigen::{of_eigenvalues, product, symmetric};

/// How keys are told apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Coding {
    /// By all coordinates, each in one of sixteen steps of the key's own size, against queries in signed bytes.
    Nibbles,
    /// Along so many directions fitted to the head, in int8.
    Fitted(usize),
    /// Along so many random directions, in int8.
    Random(usize),
}

/// Coordinates of every key; `<query map, residual map> = <q, residual>` but for what is left out or rounded.
pub struct Coordinates {
    /// Kept of each residual.
    r: usize,
    d: usize,
    /// `[d, d]`, columns by importance; none where queries stay as they are.
    for_queries: Vec<f64>,
    /// Coordinates of every key's residual, rounded: `[n, r]`; zeros for keys outside cells.
    residuals: Vec<f64>,
    /// Step of each key's coordinates; none where rounding does not count.
    steps: Vec<f64>,
    /// Standard deviation of each coordinate that is left out, `[d - r]`.
    rest: Vec<f64>,
}

/// A query's coordinates, and the standard deviation of what they do not tell, per step of the key's where keys have one.
pub struct Asked {
    q: Vec<f64>,
    left: f64,
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

/// Each coordinate to the nearest of sixteen steps of the vector's own size, which is returned, too.
fn nibbles(x: &[f64]) -> (f64, Vec<f64>) {
    let step = x.iter().fold(0.0f64, |m, x| m.max(x.abs())) / 7.5;
    let near = |x: &f64| if step > 0.0 { ((x / step + 7.5).round().clamp(0.0, 15.0) - 7.5) * step } else { 0.0 };
    (step, x.iter().map(near).collect())
}

/// Means of cells as their nodes' means and four bits a coordinate leave them, `[sets, dim]`.
pub fn rounded_means(cells: &Cells, d: usize) -> Vec<f64> {
    let mut means = cells.known.mean.clone();
    let nodes = &cells.above[0];
    for (children, node) in nodes.children.iter().zip(nodes.known.mean.chunks(d)) {
        for mean in means.chunks_mut(d).skip(children.start).take(children.len()) {
            let apart: Vec<f64> = mean.iter().zip(node).map(|(m, n)| m - n).collect();
            mean.iter_mut().zip(node).zip(nibbles(&apart).1).for_each(|((m, n), x)| *m = n + x);
        }
    }
    means
}

/// Key `i` less the mean of its cell.
fn residual_of<'a>(cells: &'a Cells, keys: &'a [f32], d: usize, i: usize) -> impl Iterator<Item = f64> + 'a {
    let mean = &cells.known.mean[cells.of[i] as usize * d..][..d];
    keys[i * d..][..d].iter().zip(mean).map(|(&k, m)| f64::from(k) - m)
}

impl Coordinates {
    /// Of all keys in cells; directions are fitted to their residuals and to the first `tokens` rows of the given query heads
    /// (each `[n, d]`).
    pub fn new(cells: &Cells, keys: &[f32], queries: &[&[f32]], d: usize, tokens: usize, coding: Coding) -> Self {
        match coding {
            Coding::Nibbles => Coordinates::nibbles(cells, keys, d),
            Coding::Fitted(r) => Coordinates::directions(cells, keys, d, r.min(d), fitted(cells, queries, d, tokens)),
            Coding::Random(r) => Coordinates::directions(cells, keys, d, r.min(d), random(d)),
        }
    }

    fn nibbles(cells: &Cells, keys: &[f32], d: usize) -> Self {
        let n = keys.len() / d;
        let (mut residuals, mut steps) = (vec![0.0; n * d], vec![0.0; n]);
        for i in (0..n).filter(|&i| cells.of[i] != u32::MAX) {
            let x: Vec<f64> = residual_of(cells, keys, d, i).collect();
            let (step, near) = nibbles(&x);
            steps[i] = step;
            residuals[i * d..][..d].copy_from_slice(&near);
        }
        Coordinates { r: d, d, for_queries: Vec::new(), residuals, steps, rest: Vec::new() }
    }

    fn directions(cells: &Cells, keys: &[f32], d: usize, r: usize, maps: [Vec<f64>; 2]) -> Self {
        let [for_queries, for_keys] = maps;
        let n = keys.len() / d;
        let mut all = vec![0.0; n * d];
        for i in (0..n).filter(|&i| cells.of[i] != u32::MAX) {
            for (a, x) in residual_of(cells, keys, d, i).enumerate() {
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
        Coordinates { r, d, for_queries, residuals, steps: Vec::new(), rest }
    }

    /// A query's side.
    pub fn query(&self, q: &[f64]) -> Asked {
        if self.for_queries.is_empty() {
            let step = q.iter().fold(0.0f64, |m, x| m.max(x.abs())) / 127.0;
            let length = q.iter().map(|x| x * x).sum::<f64>().sqrt();
            let rounded = |x: &f64| if step > 0.0 { (x / step).round() * step } else { 0.0 };
            return Asked { q: q.iter().map(rounded).collect(), left: length / 12f64.sqrt() };
        }
        let coordinate = |b: usize| (0..self.d).map(|a| q[a] * self.for_queries[a * self.d + b]).sum::<f64>();
        let left = (self.r..self.d).map(|b| (coordinate(b) * self.rest[b - self.r]).powi(2)).sum::<f64>();
        Asked { q: (0..self.r).map(coordinate).collect(), left: left.sqrt() }
    }

    /// What the coordinates say of `<q, residual>` for key `i`, and `margin` times what they may not say.
    pub fn residual(&self, asked: &Asked, i: usize, margin: f64) -> f64 {
        let known: f64 = asked.q.iter().zip(&self.residuals[i * self.r..][..self.r]).map(|(a, b)| a * b).sum();
        known + margin * asked.left * self.steps.get(i).copied().unwrap_or(1.0)
    }
}

/// Maps of queries and of residuals whose coordinates are by importance.
fn fitted(cells: &Cells, queries: &[&[f32]], d: usize, tokens: usize) -> [Vec<f64>; 2] {
    let mut ck = cells.known.covariance.clone();
    let floor = 1e-6;
    (0..d).for_each(|i| ck[i * d + i] += floor);
    let (root, inverse) = (of_eigenvalues(&ck, d, f64::sqrt), of_eigenvalues(&ck, d, |w| 1.0 / w.sqrt()));
    let (_, u) = symmetric(&product(&product(&root, &moment(queries, d, tokens), d), &root, d), d);
    [product(&root, &u, d), product(&inverse, &u, d)]
}

/// An orthonormal basis drawn by hash.
fn random(d: usize) -> [Vec<f64>; 2] {
    let noise: Vec<f64> = (0..d * d)
        .map(|i| (iceformer_core::math::hash(5, i as u64) >> 11) as f64 / (1u64 << 53) as f64 - 0.5)
        .collect();
    let transposed: Vec<f64> = (0..d * d).map(|i| noise[i % d * d + i / d]).collect();
    let (_, basis) = symmetric(&noise.iter().zip(&transposed).map(|(a, b)| a + b).collect::<Vec<_>>(), d);
    [basis.clone(), basis]
}
