//! Heads of attention calls whose keys gather around centres.

use super::memory;
use iceformer_core::attention::{AttentionOptions, AttentionStats, Mask, Mode, Problem, attention};
use iceformer_core::math::hash;
use iceformer_core::mem::{Tensor, TensorMut};

pub fn noise(n: usize, seed: u64, scale: f32) -> Vec<f32> {
    // Two uniform numbers: near enough to a bell.
    let uniform = |i: u64| (hash(seed, i) >> 40) as f32 / (1 << 24) as f32 - 0.5;
    (0..n as u64).map(|i| (uniform(2 * i) + uniform(2 * i + 1)) * 2.0 * scale).collect()
}

/// Heads whose keys gather around centres, with values that go with them.
pub struct Heads {
    pub shape: [usize; 4],
    pub keys: usize,
    pub dim_v: usize,
    pub group: usize,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

impl Heads {
    pub fn new(
        batch: usize,
        heads_kv: usize,
        group: usize,
        rows: usize,
        keys: usize,
        dims: [usize; 2],
        spread: f32,
    ) -> Heads {
        let near = |n: usize, d: usize, seed: u64, spread: f32| {
            let centres = noise(32 * d, seed + 50, 2.0);
            let mut x = noise(n * d, seed, spread);
            for (i, row) in x.chunks_mut(d).enumerate() {
                let c = hash(9, i as u64) as usize % 32;
                row.iter_mut().zip(&centres[c * d..]).for_each(|(x, c)| *x += c);
            }
            x
        };
        let [dim_k, dim_v] = dims;
        let shape = [batch, heads_kv * group, rows, dim_k];
        let n = batch * heads_kv * keys;
        let (k, v) = (near(n, dim_k, 1, spread), near(n, dim_v, 2, spread));
        Heads { shape, keys, dim_v, group, q: noise(shape.iter().product(), 3, 1.5), k, v }
    }

    pub fn problem<'a>(
        &'a self,
        out: &'a mut [f32],
        lse: &'a mut [f32],
        mask: Mask<'a>,
        o: AttentionOptions,
    ) -> Problem<'a> {
        let [batch, heads, rows, _] = self.shape;
        let kv = |d: usize| [batch, heads / self.group, self.keys, d];
        Problem {
            q: Tensor::new(&self.q, self.shape).unwrap(),
            k: Tensor::new(&self.k, kv(self.shape[3])).unwrap(),
            v: Tensor::new(&self.v, kv(self.dim_v)).unwrap(),
            out: TensorMut::new(out, [batch, heads, rows, self.dim_v]).unwrap(),
            lse: Some(TensorMut::new(lse, [batch, heads, rows, 1]).unwrap()),
            bounds: None,
            mask,
            options: o,
        }
    }

    pub fn run(&self, mask: Mask<'_>, o: AttentionOptions) -> (Vec<f32>, Vec<f32>, AttentionStats) {
        let [batch, heads, rows, _] = self.shape;
        let (mut out, mut lse) = (vec![0.0; batch * heads * rows * self.dim_v], vec![0.0; batch * heads * rows]);
        let stats = attention(&self.problem(&mut out, &mut lse, mask, o), &memory(0)).unwrap();
        (out, lse, stats)
    }
}

pub fn mode(mode: Mode, tolerance: f32) -> AttentionOptions {
    AttentionOptions { mode, tolerance, ..AttentionOptions::default() }
}

pub fn distance(a: &[f32], b: &[f32]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b))) / norm(&mut b.iter().map(|&b| f64::from(b)))
}

/// Log-sum-exps of rows that see nothing are equal, the others differ by so much at most.
pub fn near(have: &[f32], want: &[f32], most: f32) -> bool {
    have.iter().zip(want).all(|(a, b)| a == b || (a - b).abs() <= most)
}
