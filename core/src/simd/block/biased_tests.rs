//! Kernels of biases beside naive twins.

use super::tests::{QUERIES, close, isas, lists, noise};
use super::*;
use crate::mem::{Dtype, Tensor};

use core::f32::consts::LOG2_E;
use half::f16;
use std::vec;
use std::vec::Vec;

const KEYS: usize = 3 * BLOCK * BLOCK;
const HEADS: usize = 2;
/// Rows of a head in the block; the last query of the second head is not there.
const ROWS: usize = QUERIES.div_ceil(HEADS);

/// Biases `[1, HEADS, ROWS + 1, KEYS]`, the first row not of the block; every seventh row the same on all keys.
fn biases() -> Vec<f32> {
    let mut x = noise(HEADS * (ROWS + 1) * KEYS, 71);
    x.iter_mut().for_each(|x| *x = f16::from_f32(6.0 * *x).to_f32());
    x.chunks_mut(KEYS).step_by(7).for_each(|row| row.fill(-1.5));
    x
}

fn half(x: &[f32]) -> Vec<f16> {
    x.iter().map(|&x| f16::from_f32(x)).collect()
}

fn tensor(x: &[f16]) -> Tensor<'_> {
    let shape = [1, HEADS, ROWS + 1, KEYS];
    // SAFETY: so many numbers, borrowed as long as the tensor.
    unsafe { Tensor::from_raw(x.as_ptr().cast(), Dtype::F16, shape, [0; 3], "bias") }.unwrap()
}

fn row(x: &[f32], query: usize) -> &[f32] {
    &x[(query / ROWS * (ROWS + 1) + 1 + query % ROWS) * KEYS..][..KEYS]
}

/// Largest in powers of two, and mean of the weights relative to it.
fn lift(x: impl Iterator<Item = f32> + Clone) -> (f64, f64) {
    let top = x.clone().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = x.clone().map(|x| f64::from(x - top).exp()).sum();
    (f64::from(top) * f64::from(LOG2_E), sum / x.count() as f64)
}

#[test]
fn surveys_and_lifts_of_cells() {
    let x = biases();
    let halves = half(&x);
    let ids: Vec<u32> = (0..KEYS as u32).map(|i| i / 256 * 256 + i * 37 % 256).collect();
    let ranges = [[0, 255], [256, 511], [512, 767]];
    let step = QUERIES * BLOCK;
    for isa in isas() {
        for of in [Tensor::new(&x, [1, HEADS, ROWS + 1, KEYS]).unwrap(), tensor(&halves)] {
            let biases = Biases { of, batch: 0, head: 0, begin: 1, n: ROWS };
            let (mut top, mut share, mut found) = (vec![0.0; step], vec![0.0; step], [0; 3]);
            for query in 0..QUERIES {
                let (top, share) = (&mut top[query * BLOCK..], &mut share[query * BLOCK..]);
                let lifts = LiftsMut { top, share };
                isa.run(Survey {
                    biases,
                    query: query as u16,
                    ranges: &ranges,
                    ids: &ids,
                    found: &mut found,
                    lifts,
                    step,
                });
                for segment in 0..3 {
                    let (a, b) = lift(row(&x, query)[segment * 256..][..256].iter().copied());
                    close(top[segment], a, 10.0, isa.name());
                    close(share[segment], b, 1.0, isa.name());
                }
            }
            assert_eq!(found, [found::ALL | found::BIASED; 3]);
            for rows in lists(QUERIES) {
                let (mut cell_top, mut cell_share) = (vec![0.0; step], vec![0.0; step]);
                let (node, lane) = (Lifts { top: &top, share: &share }, 1);
                let out = LiftsMut { top: &mut cell_top, share: &mut cell_share };
                let gathered = isa.run(CellLifts { biases, rows: &rows, ids: &ids[256..512], node, lane, out });
                let same = |&&q: &&u16| row(&x, q as usize)[0] == -1.5;
                assert_eq!(gathered, rows.len() - rows.iter().filter(same).count());
                for (place, &query) in rows.iter().enumerate() {
                    for cell in 0..BLOCK {
                        let keys = &ids[256 + cell * BLOCK..][..BLOCK];
                        let of = |&id: &u32| row(&x, query as usize)[id as usize];
                        let (a, b) = lift(keys.iter().map(of));
                        close(cell_top[place * BLOCK + cell], a, 10.0, isa.name());
                        close(cell_share[place * BLOCK + cell], b, 1.0, isa.name());
                    }
                }
                let places: Vec<u16> = (0..rows.len() as u16).collect();
                for softcap in [0.0, 2.0] {
                    let before = noise(rows.len() * BLOCK, 72);
                    let mut scores = before.clone();
                    let (cells, lane) = (Lifts { top: &cell_top, share: &cell_share }, 5);
                    let ids = &ids[256 + lane * BLOCK..][..BLOCK];
                    let (rows, places, scores_of) = (&rows[..], &places[..], &mut scores[..]);
                    isa.run(AddBiases { biases, scores: scores_of, rows, ids, places, cells, lane, softcap });
                    for (i, (&have, &was)) in scores.iter().zip(&before).enumerate() {
                        let was = f64::from(was);
                        let cap = f64::from(softcap);
                        let was = if cap > 0.0 { cap * (was / cap).tanh() } else { was };
                        let bias = row(&x, rows[i / BLOCK] as usize)[ids[i % BLOCK] as usize];
                        close(have, was + f64::from(bias) * f64::from(LOG2_E), 10.0, isa.name());
                    }
                }
            }
        }
    }
}

/// What rows see in part, not at all, or only far below their other keys.
#[test]
fn surveys_tell_what_is_hidden() {
    let none = f32::NEG_INFINITY;
    let ids: Vec<u32> = (0..KEYS as u32).collect();
    let ranges = [[0, 255], [256, 511], [512, 767]];
    let find = |x: &[f32], ids: &[u32], ranges: &[[u32; 2]]| -> Vec<Vec<u8>> {
        let of = Tensor::new(x, [1, 1, 1, KEYS]).unwrap();
        let biases = Biases { of, batch: 0, head: 0, begin: 0, n: 1 };
        let survey = |isa: crate::simd::Isa| {
            let (mut top, mut share, mut found) = ([0.0; BLOCK], [0.0; BLOCK], vec![0; ranges.len()]);
            let lifts = LiftsMut { top: &mut top, share: &mut share };
            isa.run(Survey { biases, query: 0, ranges, ids, found: &mut found, lifts, step: BLOCK });
            found
        };
        isas().map(survey).collect()
    };
    let mut x = vec![0.0; KEYS];
    x[256..512].fill(none);
    x[700] = none;
    assert!(find(&x, &ids, &ranges).iter().all(|f| f[..] == [found::ALL, found::NONE, found::PART]));
    x[256..512].fill(-5000.0);
    x[700] = -5000.0;
    assert!(find(&x, &ids, &ranges).iter().all(|f| f[..] == [found::ALL, found::NOTHING, found::PART]));
    // Padding between the keys of a segment is no part of it.
    let some: Vec<u32> = (0..KEYS as u32).filter(|j| j % 3 != 1).take(512).collect();
    let ranges = [[some[0], some[255]], [some[256], some[511]]];
    for low in [none, -5000.0] {
        let x: Vec<f32> = (0..KEYS).map(|j| if j % 3 == 1 { low } else { 0.5 }).collect();
        assert!(find(&x, &some, &ranges).iter().all(|f| f[..] == [found::ALL | found::BIASED; 2]));
        let mut wrong = x.clone();
        (wrong[3], wrong[4]) = (low, 0.5);
        assert!(find(&wrong, &some, &ranges).iter().all(|f| f[..] == [found::PART, found::ALL | found::BIASED]));
    }
    assert!(find(&vec![3e38; KEYS], &ids, &[[0, 255]; 3]).iter().all(|f| f[..] == [found::PART; 3]));
}

/// Biases of 0 leave estimates as they are; the same bias on all keys makes all heavier.
#[test]
fn estimates_follow_biases() {
    for isa in isas() {
        for softcap in [0.0, 3.0] {
            let (sigma, reference) = (noise(QUERIES, 81), noise(QUERIES, 82));
            let sigma: Vec<f32> = sigma.iter().map(|x| x.abs()).collect();
            let (needle, mass) = (noise(QUERIES, 83), vec![0.4; QUERIES]);
            let (spread, reach) = ([0.3; BLOCK], [0.7; BLOCK]);
            let before = noise(QUERIES * BLOCK, 84);
            let rows: Vec<u16> = (0..QUERIES as u16).collect();
            let children =
                || Children { spread: &spread, reach: &reach, present: &[1.0; BLOCK], bits: 0xffff, log2_count: 4.0 };
            let limits = || Limits {
                reference: &reference,
                needle: &needle,
                mass: &mass,
                sigma: &sigma,
                stand_out: 2.0,
                softcap,
            };
            let plain = || {
                let mut weights = vec![0.0; QUERIES * BLOCK];
                let (mut open, mut sure) = (vec![0; QUERIES], vec![0; QUERIES]);
                isa.run(Choose {
                    centers: &before,
                    rows: &rows,
                    children: children(),
                    limits: limits(),
                    weights: &mut weights,
                    open: &mut open,
                    sure: &mut sure,
                });
                (weights, before.clone(), open, sure)
            };
            let lifted = |bias: f32, share: f32| {
                let (top, share) = (vec![bias; QUERIES * BLOCK], vec![share; QUERIES * BLOCK]);
                let (mut weights, mut centers) = (vec![0.0; QUERIES * BLOCK], before.clone());
                let (mut open, mut sure) = (vec![0; QUERIES], vec![0; QUERIES]);
                isa.run(ChooseBiased {
                    centers: &mut centers,
                    rows: &rows,
                    children: children(),
                    limits: limits(),
                    lifts: Lifts { top: &top, share: &share },
                    by_query: true,
                    weights: &mut weights,
                    open: &mut open,
                    sure: &mut sure,
                });
                let (mut max, mut sum) = (vec![LOWEST; QUERIES * BLOCK], vec![0.0; QUERIES * BLOCK]);
                isa.run(TotalBiased {
                    scores: &before,
                    children: children(),
                    limits: limits(),
                    lifts: Lifts { top: &top, share: &share },
                    count: QUERIES,
                    max: &mut max,
                    sum: &mut sum,
                });
                (weights, centers, open, sure, max, sum)
            };
            let (want, none) = (plain(), lifted(0.0, 1.0));
            assert!(none.0 == want.0 && none.1 == want.1 && none.2 == want.2, "{}", isa.name());
            assert!(none.3 == if softcap > 0.0 { want.2.clone() } else { want.3.clone() });
            let (mut max, mut sum) = (vec![LOWEST; QUERIES * BLOCK], vec![0.0; QUERIES * BLOCK]);
            let (limits, count) = (limits(), QUERIES);
            let (max_of, sum_of) = (&mut max[..], &mut sum[..]);
            isa.run(Total { scores: &before, children: children(), limits, count, max: max_of, sum: sum_of });
            assert!(none.4 == max && none.5 == sum);
            let heavy = lifted(2.0, 0.5);
            for i in 0..QUERIES * BLOCK {
                close(heavy.0[i], 2.0 * f64::from(want.0[i]), 100.0, "weight");
                close(heavy.1[i], f64::from(want.1[i]) + 2.0, 10.0, "center");
                close(heavy.4[i], f64::from(max[i]) + 2.0, 10.0, "largest");
                close(heavy.5[i], 0.5 * f64::from(sum[i]), 10.0, "sum");
            }
            // Spread biases are uncertain by themselves.
            assert!(heavy.2.iter().zip(&want.2).all(|(a, b)| a & b == *b));
            let uneven = lifted(5.0, 1.0 / 16.0);
            assert!(uneven.3.iter().zip(&want.3).all(|(a, b)| a & b == *b));
        }
    }
}

#[test]
fn doubt_grows_with_spread_biases() {
    for isa in isas() {
        for rows in lists(QUERIES) {
            let p: Vec<f32> = noise(rows.len() * BLOCK, 91).iter().map(|x| x.abs()).collect();
            let share: Vec<f32> = noise(QUERIES * BLOCK, 92).iter().map(|x| 1.0 - 0.9 * x.abs()).collect();
            let (top, value_spread) = (vec![0.0; QUERIES * BLOCK], [0.7; BLOCK]);
            let mut out = vec![0.0; QUERIES * BLOCK];
            let lifts = Lifts { top: &top, share: &share };
            let (p_of, out_of) = (&p[..], &mut out[..]);
            let (rows_of, spread_of) = (&rows[..], &value_spread[..]);
            isa.run(DoubtBiased {
                p: p_of,
                rows: rows_of,
                lifts,
                by_query: true,
                value_spread: spread_of,
                count: 16.0,
                out: out_of,
            });
            for (i, &row) in rows.iter().enumerate() {
                for c in 0..BLOCK {
                    let at = row as usize * BLOCK + c;
                    let b = 0.58 * (1.0 / f64::from(share[at]) - 1.0);
                    let v = (b * b).min(4.0);
                    let p = f64::from(p[i * BLOCK + c]);
                    let want = p * p * v * (1.0 + v / 2.0 + v * v / 6.0) * 0.7 / 16.0;
                    close(out[at], want, 10.0, isa.name());
                }
            }
        }
    }
}
