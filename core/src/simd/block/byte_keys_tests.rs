//! Mean keys in bytes beside products in f64, on every instruction set of the machine.

use super::tests::{first, isas, lists, noise};
use super::{Along, Asking, BLOCK, ByteKeys, Bytes, Matrix, NodeKeys, RoundQuery, ScoreNodes, round_key, words};
use crate::math::hash;
use crate::simd::Isa;
use half::bf16;
use std::vec;
use std::vec::Vec;

const QUERIES: usize = 24;

/// Mean keys as they came and as they are kept.
struct Kept {
    dim: usize,
    center: Vec<f32>,
    keys: Vec<f32>,
    words: Vec<u32>,
    unit: Vec<[bf16; BLOCK]>,
}

impl Kept {
    /// Keys that have much in common, and differ by as much as `size` says.
    fn new(blocks: usize, dim: usize, size: impl Fn(usize) -> f32) -> Kept {
        let center: Vec<f32> = noise(dim, 90).iter().map(|x| 50.0 * x).collect();
        let mut keys = noise(blocks * BLOCK * dim, 91);
        keys.iter_mut().enumerate().for_each(|(at, x)| *x = center[at % dim] + *x * size(at / dim));
        let len = ByteKeys::quads(dim) * BLOCK;
        // What was there before leaves nothing behind; nothing was there beyond the elements of a key.
        let mut words: Vec<u32> = (0..blocks * len).map(|i| hash(92, i as u64) as u32 & 0x7f7f_7f7f).collect();
        let mut unit = vec![[bf16::ONE; BLOCK]; blocks];
        for (i, key) in keys.chunks_exact(dim).enumerate() {
            let at = i / BLOCK;
            round_key(key, &center, i % BLOCK, &mut words[at * len..][..len], &mut unit[at]);
        }
        Kept { dim, center, keys, words, unit }
    }

    fn bytes(&self) -> NodeKeys<'_> {
        NodeKeys::Bytes(ByteKeys { words: &self.words, unit: &self.unit })
    }

    /// Element `c` of key `i`, as it is kept.
    fn get(&self, i: usize, c: usize) -> f64 {
        let (block, j) = (i / BLOCK, i % BLOCK);
        let word = self.words[(block * ByteKeys::quads(self.dim) + c / 4) * BLOCK + j];
        let code = f64::from(word >> (c % 4 * 8) & 0xff) - 64.0;
        f64::from(self.center[c]) + code * f64::from(self.unit[block][j].to_f32())
    }
}

#[test]
fn elements_are_kept_to_a_126th_of_the_largest_difference() {
    for dim in [1, 16, 20, 64] {
        // Some as the center itself, and of all sizes.
        let kept = Kept::new(2, dim, |i| (i as f32 - 12.0).exp2() * f32::from(i != 3));
        for (i, x) in kept.keys.chunks_exact(dim).enumerate() {
            let apart = x.iter().zip(&kept.center).map(|(x, c)| (x - c).abs());
            let largest = apart.fold(0.0f32, f32::max);
            for (c, &x) in x.iter().enumerate() {
                // A unit is up to 2^-7 above what it needs to be.
                let most = f64::from(largest) / 126.0 * (1.0 + 1.0 / 128.0);
                // Differences are rounded to f32.
                assert!((kept.get(i, c) - f64::from(x)).abs() <= most + 4e-6, "{i} {c}");
            }
        }
    }
}

/// Queries in bytes, and as these say.
fn queries(isa: Isa, q: &[f32], dim: usize) -> (Vec<i32>, Vec<Along>, Vec<f64>) {
    let each = 2 * words(dim);
    let (mut codes, mut along, mut values) = (vec![0; QUERIES * each], Vec::new(), Vec::new());
    for (i, x) in q.chunks_exact(dim).enumerate() {
        let (unit, sum, lost) = isa.run(RoundQuery { x, out: &mut codes[i * each..][..each] });
        along.push(Along::new(unit, sum, lost));
        let byte = |c: usize| (codes[i * each + c / 4] >> (c % 4 * 8)) as u8 as i8;
        values.extend((0..dim).map(|c| f64::from(byte(c)) * f64::from(unit)));
    }
    (codes, along, values)
}

#[test]
fn scores_are_those_of_bytes_beside_what_all_have_in_common() {
    for &dim in first(1, &[20, 64, 1, 33]) {
        let kept = Kept::new(2, dim, |i| 0.1 + (i % 5) as f32);
        let q = noise(QUERIES * dim, 93);
        let base: Vec<f32> = q.chunks(dim).map(|q| q.iter().zip(&kept.center).map(|(a, b)| a * b).sum()).collect();
        for isa in isas() {
            let (codes, along, rounded) = queries(isa, &q, dim);
            let matrix = Matrix { data: &q, stride: dim, cols: dim };
            let asking = Asking { q: matrix, bytes: Bytes { codes: &codes, of: &along }, base: &base };
            for (rows, at) in lists(QUERIES).flat_map(|rows| [(rows.clone(), 0), (rows, 1)]) {
                let mut out = vec![f32::NAN; rows.len() * BLOCK];
                isa.run(ScoreNodes { keys: kept.bytes().blocks(at, 1, dim), asking, rows: &rows, out: &mut out });
                for (i, &have) in out.iter().enumerate() {
                    let (row, key) = (rows[i / BLOCK] as usize, at * BLOCK + i % BLOCK);
                    let apart = |c: usize| kept.get(key, c) - f64::from(kept.center[c]);
                    let want: f64 = (0..dim).map(|c| rounded[row * dim + c] * apart(c)).sum();
                    let want = want + f64::from(base[row]);
                    let size = 50.0 * dim as f64;
                    assert!((f64::from(have) - want).abs() < 1e-6 * size, "{}, {dim}: {have}, {want}", isa.name());
                    // And near those of what came: rounding takes a hundredth of what keys differ by.
                    let exact: f64 =
                        (0..dim).map(|c| f64::from(q[row * dim + c]) * f64::from(kept.keys[key * dim + c])).sum();
                    let differ = 5.0 * (dim as f64).sqrt();
                    assert!((f64::from(have) - exact).abs() < 0.03 * differ + 1e-5 * size, "{have}, {exact}");
                }
            }
        }
    }
}

/// Rows are the same in any company.
#[test]
fn scores_do_not_depend_on_the_list() {
    let dim = 40;
    let kept = Kept::new(1, dim, |_| 1.0);
    let (q, base) = (noise(QUERIES * dim, 94), noise(QUERIES, 95));
    for isa in isas() {
        let (codes, along, _) = queries(isa, &q, dim);
        let matrix = Matrix { data: &q, stride: dim, cols: dim };
        let asking = Asking { q: matrix, bytes: Bytes { codes: &codes, of: &along }, base: &base };
        let of = |rows: &[u16]| {
            let mut out = vec![0.0; rows.len() * BLOCK];
            isa.run(ScoreNodes { keys: kept.bytes(), asking, rows, out: &mut out });
            out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        for rows in lists(QUERIES) {
            let alone: Vec<u32> = rows.iter().flat_map(|&row| of(&[row])).collect();
            assert_eq!(of(&rows), alone, "{}", isa.name());
        }
    }
}
