//! Heads in memory, from numbers of a seed, and what attention makes of them.

use crate::draw::Draw;
use iceformer_core::attention::{AttentionOptions, AttentionStats, Mask, Mode, Problem, attention};
use iceformer_core::error::Result;
use iceformer_core::mem::{Memory, Tensor, TensorMut};

/// Numbers from a seed: even ones, and such as follow a bell.
pub struct Bell {
    draw: Draw,
    spare: Option<f32>,
}

impl Bell {
    /// A stream of its own.
    pub fn new(seed: u64) -> Bell {
        Bell { draw: Draw::new(seed), spare: None }
    }

    /// From 0 on, below 1.
    pub fn even(&mut self) -> f64 {
        (self.draw.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.draw.below(n)
    }

    /// True so often.
    pub fn chance(&mut self, p: f64) -> bool {
        self.even() < p
    }

    /// One of mean 0 and deviation 1. Two are made at a time.
    pub fn normal(&mut self) -> f32 {
        if let Some(x) = self.spare.take() {
            return x;
        }
        let length = (-2.0 * (1.0 - self.even()).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * self.even()).sin_cos();
        self.spare = Some((length * sin) as f32);
        (length * cos) as f32
    }

    /// So many of a deviation.
    pub fn normals(&mut self, n: usize, deviation: f32) -> Vec<f32> {
        (0..n).map(|_| deviation * self.normal()).collect()
    }

    /// A direction of length 1.
    pub fn direction(&mut self, dim: usize) -> Vec<f32> {
        let mut x = self.normals(dim, 1.0);
        let length = dot(&x, &x).sqrt();
        x.iter_mut().for_each(|x| *x /= length);
        x
    }
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn add(to: &mut [f32], times: f32, x: &[f32]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += times * x);
}

/// How large heads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows, and as many keys.
    pub rows: usize,
    /// Elements of a query, a key and a value.
    pub dim: usize,
    /// Query heads, a multiple of `heads_kv`.
    pub heads_q: usize,
    /// KV heads.
    pub heads_kv: usize,
}

impl Shape {
    pub(super) fn group(&self) -> usize {
        self.heads_q / self.heads_kv
    }

    /// Square root of the dimension: a query of this length along a key's direction has that key's length as its logit.
    pub(super) fn root(&self) -> f32 {
        (self.dim as f32).sqrt()
    }
}

/// Queries `[heads_q, rows, dim]`, keys and values `[heads_kv, rows, dim]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Heads {
    /// Sizes.
    pub shape: Shape,
    /// Queries.
    pub q: Vec<f32>,
    /// Keys.
    pub k: Vec<f32>,
    /// Values.
    pub v: Vec<f32>,
}

impl Heads {
    pub(super) fn noise(shape: Shape, bell: &mut Bell) -> Heads {
        let head = shape.rows * shape.dim;
        let mut of = |heads| bell.normals(heads * head, 1.0);
        Heads { shape, q: of(shape.heads_q), k: of(shape.heads_kv), v: of(shape.heads_kv) }
    }

    fn span(&self, head: usize, row: usize) -> std::ops::Range<usize> {
        let Shape { rows, dim, .. } = self.shape;
        (head * rows + row) * dim..(head * rows + row + 1) * dim
    }

    pub(super) fn query(&mut self, head: usize, row: usize) -> &mut [f32] {
        let span = self.span(head, row);
        &mut self.q[span]
    }

    pub(super) fn key(&mut self, head: usize, row: usize) -> &mut [f32] {
        let span = self.span(head, row);
        &mut self.k[span]
    }

    pub(super) fn value(&mut self, head: usize, row: usize) -> &mut [f32] {
        let span = self.span(head, row);
        &mut self.v[span]
    }

    /// All queries with their rows.
    pub(super) fn queries(&mut self) -> impl Iterator<Item = (usize, &mut [f32])> {
        of_rows(&mut self.q, self.shape)
    }

    /// All keys with their rows.
    pub(super) fn keys(&mut self) -> impl Iterator<Item = (usize, &mut [f32])> {
        of_rows(&mut self.k, self.shape)
    }

    /// All values with their rows.
    pub(super) fn values(&mut self) -> impl Iterator<Item = (usize, &mut [f32])> {
        of_rows(&mut self.v, self.shape)
    }

    /// Causal attention in one call: outputs, log-sum-exp of every row, statistics.
    ///
    /// # Errors
    /// As `attention`.
    pub fn attend(&self, mode: Mode, tolerance: f32) -> Result<(Vec<f32>, Vec<f32>, AttentionStats)> {
        let Shape { rows, dim, heads_q, heads_kv } = self.shape;
        let (mut out, mut lse) = (vec![f32::NAN; self.q.len()], vec![f32::NAN; heads_q * rows]);
        let problem = Problem {
            q: Tensor::new(&self.q, [1, heads_q, rows, dim])?,
            k: Tensor::new(&self.k, [1, heads_kv, rows, dim])?,
            v: Tensor::new(&self.v, [1, heads_kv, rows, dim])?,
            out: TensorMut::new(&mut out, [1, heads_q, rows, dim])?,
            lse: Some(TensorMut::new(&mut lse, [1, heads_q, rows, 1])?),
            bounds: None,
            mask: Mask::Causal { q_pos0: 0 },
            options: AttentionOptions { mode, tolerance, ..AttentionOptions::default() },
        };
        let stats = attention(&problem, &Memory::system(0)?)?;
        Ok((out, lse, stats))
    }

    /// What a row weighs every key with that it sees, in f64.
    pub fn weights(&self, head: usize, row: usize) -> Vec<f64> {
        let (scale, q) = (1.0 / f64::from(self.shape.dim as u32).sqrt(), &self.q[self.span(head, row)]);
        let kv = head / self.shape.group();
        let logit = |j| -> f64 {
            let k = &self.k[self.span(kv, j)];
            q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>() * scale
        };
        let mut x: Vec<f64> = (0..=row).map(logit).collect();
        let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        x.iter_mut().for_each(|x| *x = (*x - most).exp());
        let sum: f64 = x.iter().sum();
        x.iter_mut().for_each(|x| *x /= sum);
        x
    }

    /// Output of a row in f64.
    pub fn exact(&self, head: usize, row: usize) -> Vec<f64> {
        let mut out = vec![0.0; self.shape.dim];
        for (j, weight) in self.weights(head, row).into_iter().enumerate() {
            let v = &self.v[self.span(head / self.shape.group(), j)];
            out.iter_mut().zip(v).for_each(|(out, &v)| *out += weight * f64::from(v));
        }
        out
    }

    /// Relative L2 error of every row from `first` on, all heads side by side.
    pub fn errors(&self, have: &[f32], want: &[f32], first: usize) -> Vec<f64> {
        let of = |row| {
            let (mut wrong, mut all) = (0.0, 0.0);
            for span in (0..self.shape.heads_q).map(|head| self.span(head, row)) {
                for (&x, &y) in have[span.clone()].iter().zip(&want[span]) {
                    wrong += (f64::from(x) - f64::from(y)).powi(2);
                    all += f64::from(y).powi(2);
                }
            }
            (wrong / all.max(f64::MIN_POSITIVE)).sqrt()
        };
        (first..self.shape.rows).map(of).collect()
    }
}

fn of_rows(x: &mut [f32], shape: Shape) -> impl Iterator<Item = (usize, &mut [f32])> {
    x.chunks_exact_mut(shape.dim).enumerate().map(move |(i, x)| (i % shape.rows, x))
}
