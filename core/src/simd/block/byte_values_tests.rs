//! Values in bytes beside sums in f64, on every instruction set of the machine.

use super::tests::{first, isas, lists, noise};
use super::{AddValues, BLOCK, ByteValues, Elements, Values, round_value};
use crate::math::hash;
use half::bf16;
use std::vec;
use std::vec::Vec;

const QUERIES: usize = 24;

/// Blocks of values as they came and as they are kept.
struct Kept {
    values: Vec<f32>,
    words: Vec<u32>,
    unit: Vec<[bf16; BLOCK]>,
    stride: usize,
    cols: usize,
}

impl Kept {
    /// Value `i` is as large as `size` says.
    fn new(blocks: usize, cols: usize, seed: u64, size: impl Fn(usize) -> f32) -> Kept {
        let stride = cols.next_multiple_of(BLOCK);
        let mut values = noise(blocks * BLOCK * cols, seed);
        values.iter_mut().enumerate().for_each(|(at, x)| *x *= size(at / cols));
        let len = ByteValues::words(stride);
        // What was there before leaves nothing behind.
        let words: Vec<u32> = (0..blocks * len).map(|i| hash(seed + 1, i as u64) as u32).collect();
        let mut kept = Kept { values, words, unit: vec![[bf16::ONE; BLOCK]; blocks], stride, cols };
        for i in 0..blocks * BLOCK {
            let x = &kept.values[i * cols..][..cols];
            round_value(x, i % BLOCK, &mut kept.words[i / BLOCK * len..][..len], &mut kept.unit[i / BLOCK]);
        }
        kept
    }

    fn block(&self, at: usize) -> Values<'_> {
        let data = Elements::Bytes(ByteValues { words: &self.words, unit: &self.unit });
        Values { data, stride: self.stride, cols: self.cols }.block(at)
    }

    /// Element `c` of value `i`, as it is kept.
    fn get(&self, i: usize, c: usize) -> f64 {
        let (block, j) = (i / BLOCK, i % BLOCK);
        let at = block * ByteValues::words(self.stride) + (c / BLOCK * 4 + j / 4) * BLOCK + c % BLOCK;
        f64::from((self.words[at] >> (j % 4 * 8)) as u8 as i8) * f64::from(self.unit[block][j].to_f32())
    }
}

#[test]
fn elements_are_kept_to_a_255th_of_the_largest() {
    for cols in [1, 16, 20, 64] {
        let kept = Kept::new(2, cols, 70 + cols as u64, |i| (i as f32 - 12.0).exp2() * f32::from(i != 3));
        for (i, x) in kept.values.chunks_exact(cols).enumerate() {
            let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            for (c, &x) in x.iter().enumerate() {
                // A unit is up to 2^-7 above what it needs to be.
                let most = f64::from(largest) / 254.0 * (1.0 + 1.0 / 128.0);
                assert!((kept.get(i, c) - f64::from(x)).abs() <= most, "{i} {c}");
            }
        }
    }
}

#[test]
fn elements_too_small_for_a_unit_are_nothing() {
    let kept = Kept::new(1, 16, 80, |_| 1e-44);
    assert!((0..BLOCK).all(|i| kept.unit[0][i] == bf16::ZERO && (0..16).all(|c| kept.get(i, c) == 0.0)));
}

#[test]
fn sums_are_off_by_what_rounding_weights_allows() {
    for isa in isas() {
        for &cols in first(2, &[1usize, 20, 64, 96]) {
            let kept = Kept::new(3, cols, 90 + cols as u64, |i| 1.0 + (i % 7) as f32);
            let start = noise(QUERIES * kept.stride, 5);
            for (rows, at) in lists(QUERIES).zip([0, 1, 2].into_iter().cycle()) {
                let p: Vec<f32> = noise(rows.len() * BLOCK, 6).iter().map(|x| x * x * x.abs()).collect();
                let (mut out, mut total) = (start.clone(), vec![1.0; QUERIES * BLOCK]);
                let (values, some) = (kept.block(at), Some(&mut total[..]));
                isa.run(AddValues { p: &p, values, rows: &rows, out: &mut out, total: some, lean: None });
                let mut want: Vec<f64> = start.iter().map(|&x| f64::from(x)).collect();
                let mut most = vec![0.0; start.len()];
                for (&r, p) in rows.iter().zip(p.chunks_exact(BLOCK)) {
                    let unit = |j: usize| f64::from(kept.unit[at][j].to_f32());
                    let step = (0..BLOCK).map(|j| f64::from(p[j]) * unit(j)).fold(0.0, f64::max) / 127.0;
                    for c in 0..cols {
                        let to = r as usize * kept.stride + c;
                        for (j, &p) in p.iter().enumerate() {
                            let x = kept.get(at * BLOCK + j, c);
                            want[to] += f64::from(p) * x;
                            // Half a step of the weight, of as many units as the element has.
                            most[to] += 0.5 * step * (x / unit(j)).abs();
                        }
                    }
                }
                for (i, (&have, (want, most))) in out.iter().zip(want.iter().zip(&most)).enumerate() {
                    let allowed = most * 1.001 + 1e-6 * (want.abs() + 16.0);
                    if i % kept.stride < cols {
                        assert!((f64::from(have) - want).abs() <= allowed, "{}: {have} {want}", isa.name());
                    }
                }
                for (&r, p) in rows.iter().zip(p.chunks_exact(BLOCK)) {
                    assert!((0..BLOCK).all(|j| total[r as usize * BLOCK + j] == 1.0 + p[j]));
                }
            }
        }
    }
}

#[test]
fn a_weight_alone_is_not_rounded() {
    for isa in isas() {
        let kept = Kept::new(1, 40, 100, |_| 3.0);
        for j in 0..BLOCK {
            let (mut p, mut out) = ([0.0; BLOCK], vec![0.0; kept.stride]);
            p[j] = 0.37;
            isa.run(AddValues { p: &p, values: kept.block(0), rows: &[0], out: &mut out, total: None, lean: None });
            for (c, &have) in out[..40].iter().enumerate() {
                let want = 0.37 * kept.get(j, c);
                assert!((f64::from(have) - want).abs() <= 1e-6 * want.abs(), "{}: {have} {want}", isa.name());
            }
        }
    }
}

#[test]
fn weights_of_nothing_add_nothing() {
    for isa in isas() {
        let kept = Kept::new(1, 33, 110, |_| 1.0);
        for w in [0.0, 1e-44] {
            let mut out = noise(2 * kept.stride, 7);
            let before = out.clone();
            let p = [w; 2 * BLOCK];
            isa.run(AddValues { p: &p, values: kept.block(0), rows: &[0, 1], out: &mut out, total: None, lean: None });
            assert_eq!(out, before, "{}", isa.name());
        }
    }
}
