//! Additive biases of the usual kinds, in full, with what a causal mask hides.

use half::f16;
use iceformer_core::attention::Mask;
use iceformer_core::mem::{Dtype, Tensor};
use std::str::FromStr;

/// How a bias comes from positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// ALiBi: the distance times a head's slope, `-2^(-8 h / heads)` for heads 1, 2, ...
    Alibi,
    /// T5: a number for every head and every one of 32 buckets of distances, drawn from a unit bell.
    Buckets,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "alibi" => Ok(Kind::Alibi),
            "buckets" => Ok(Kind::Buckets),
            _ => Err("alibi or buckets".into()),
        }
    }
}

/// Buckets of [`Kind::Buckets`], and the distance from which on all share the last.
const BUCKETS: (usize, usize) = (32, 128);

/// T5's bucket of a distance: half of them hold one each, the others more and more; to both sides where there are two.
fn bucket(row: usize, key: usize, causal: bool) -> usize {
    let (count, far) = BUCKETS;
    let (count, first) = if causal { (count, 0) } else { (count / 2, if key > row { count / 2 } else { 0 }) };
    let (distance, whole) = (row.abs_diff(key), count / 2);
    if distance < whole {
        return first + distance;
    }
    let part = (distance as f64 / whole as f64).ln() / (far as f64 / whole as f64).ln();
    first + (whole + (part * (count - whole) as f64) as usize).min(count - 1)
}

enum Numbers {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

/// Biases `[heads, rows, rows]`.
pub struct Bias {
    heads: usize,
    rows: usize,
    numbers: Numbers,
}

impl Bias {
    /// In f32 or f16; -inf where a row is not to see a later key.
    pub fn new(kind: Kind, dtype: Dtype, heads: usize, rows: usize, causal: bool) -> Bias {
        let table = crate::speed::noise(heads * BUCKETS.0, 9);
        let of = move |head: usize, row: usize, key: usize| match kind {
            _ if causal && key > row => f32::NEG_INFINITY,
            Kind::Alibi => -(-8.0 * (head + 1) as f32 / heads as f32).exp2() * row.abs_diff(key) as f32,
            Kind::Buckets => table[head * BUCKETS.0 + bucket(row, key, causal)],
        };
        let all = (0..heads).flat_map(|h| (0..rows).map(move |i| (h, i)));
        let all = all.flat_map(|(h, i)| (0..rows).map(move |j| (h, i, j))).map(|(h, i, j)| of(h, i, j));
        let numbers = match dtype {
            Dtype::F16 => Numbers::F16(all.map(f16::from_f32).collect()),
            _ => Numbers::F32(all.collect()),
        };
        Bias { heads, rows, numbers }
    }

    /// Of all keys for one row.
    pub fn row(&self, head: usize, row: usize) -> Vec<f64> {
        let range = (head * self.rows + row) * self.rows..(head * self.rows + row + 1) * self.rows;
        match &self.numbers {
            Numbers::F32(x) => x[range].iter().map(|&x| f64::from(x)).collect(),
            Numbers::F16(x) => x[range].iter().map(|&x| f64::from(x)).collect(),
        }
    }

    /// For a call.
    pub fn mask(&self) -> Mask<'_> {
        let shape = [1, self.heads, self.rows, self.rows];
        let (data, dtype) = match &self.numbers {
            Numbers::F32(x) => (x.as_ptr().cast(), Dtype::F32),
            Numbers::F16(x) => (x.as_ptr().cast(), Dtype::F16),
        };
        // SAFETY: so many numbers, borrowed as long as the mask.
        Mask::Additive(unsafe { Tensor::from_raw(data, dtype, shape, [0; 3], "bias") }.expect("as many numbers"))
    }
}
