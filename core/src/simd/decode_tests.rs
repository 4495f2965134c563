//! Few rows against keys and values anywhere: beside f64, and the same bits wherever these lie.

use super::Isa;
use super::decode::{Lies, STEP, Weights, accumulate, dots};
use crate::math::hash;
use crate::mem::{Dtype, Rows};
use half::{bf16, f16};
use std::vec;
use std::vec::Vec;

const PLACES: [Lies; 3] = [Lies::Cached, Lies::Memory, Lies::MemoryAndNear];
const KEYS: usize = 21;

fn noise(n: usize, seed: u64) -> Vec<f32> {
    (0..n).map(|i| (hash(seed, i as u64) >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

/// As elements of a type, in words that are aligned for all, and what these say.
fn stored(x: &[f32], dtype: Dtype) -> (Vec<u32>, Vec<f64>) {
    let each = |&x: &f32| match dtype {
        Dtype::F32 => (x.to_ne_bytes().to_vec(), x),
        Dtype::F16 => (f16::from_f32(x).to_ne_bytes().to_vec(), f16::from_f32(x).to_f32()),
        Dtype::Bf16 => (bf16::from_f32(x).to_ne_bytes().to_vec(), bf16::from_f32(x).to_f32()),
    };
    let (bytes, said): (Vec<Vec<u8>>, Vec<f32>) = x.iter().map(each).unzip();
    let mut bytes = bytes.concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let words = bytes.as_chunks::<4>().0.iter().map(|&b| u32::from_ne_bytes(b)).collect();
    (words, said.into_iter().map(f64::from).collect())
}

/// Scores of all rows, then weighted sums.
fn both(isa: Isa, x: &Rows<'_>, q: &[f32], rows: usize, lies: Lies) -> (Vec<f32>, Vec<f32>) {
    let stride = KEYS + STEP;
    let (mut scores, mut sums) = (vec![0.0; rows * stride], vec![1.0; rows * x.cols()]);
    dots(isa, x, q, rows, &mut scores, stride, lies);
    let w = Weights { p: &scores, stride, alpha: &[0.5; 8] };
    accumulate(isa, x, &w, rows, &mut sums, x.cols(), lies);
    (scores, sums)
}

#[test]
fn places_change_nothing_but_what_is_asked_for() {
    // Rows of 128 to 1,024 bytes: some longer than machines follow, some no whole vectors.
    let dims: &[usize] = if cfg!(miri) { &[71] } else { &[1, 64, 71, 128, 256] };
    for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
        for &dim in dims {
            for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                let (words, said) = stored(&noise(KEYS * dim, 1), dtype);
                let (p, stride) = (words.as_ptr().cast(), dim * dtype.size());
                // SAFETY: KEYS rows of `dim` elements of this type, borrowed as long as the view.
                let x = unsafe { Rows::from_raw(p, dtype, KEYS, dim, stride, "x") }.expect("rows");
                for rows in [1, 2, 3, 5] {
                    let q = noise(rows * dim, 2);
                    let of = |lies| both(isa, &x, &q, rows, lies);
                    let [(scores, sums), others @ ..] = PLACES.map(of);
                    for (more, than) in others {
                        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                        // What is written beyond the last key is nobody's.
                        for r in 0..rows {
                            let at = r * (KEYS + STEP)..r * (KEYS + STEP) + KEYS;
                            assert_eq!(bits(&scores[at.clone()]), bits(&more[at]), "{isa:?} {dtype:?} {dim}");
                        }
                        assert_eq!(bits(&sums), bits(&than), "{isa:?} {dtype:?} {dim}");
                    }
                    for r in 0..rows {
                        let scores = &scores[r * (KEYS + STEP)..];
                        for j in 0..KEYS {
                            let q = q[r * dim..][..dim].iter();
                            let want: f64 = q.zip(&said[j * dim..]).map(|(&q, k)| f64::from(q) * k).sum();
                            assert!((f64::from(scores[j]) - want).abs() < 1e-4, "{isa:?} {dtype:?} {dim}");
                        }
                        for i in 0..dim {
                            let of = |j: usize| f64::from(scores[j]) * said[j * dim + i];
                            let want = 0.5 + (0..KEYS).map(of).sum::<f64>();
                            assert!((f64::from(sums[r * dim + i]) - want).abs() < 1e-4, "{isa:?} {dtype:?} {dim}");
                        }
                    }
                }
            }
        }
    }
}
