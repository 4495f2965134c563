//! Every kernel beside a naive twin, on every instruction set of the machine.

use super::*;
use crate::math::hash;
use crate::mem::Rows;
use crate::simd::Isa;
use std::vec;
use std::vec::Vec;

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available())
}

fn noise(n: usize, seed: u64) -> Vec<f32> {
    (0..n).map(|i| (hash(seed, i as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn close(have: f32, want: f64, unit: f64, what: &str) {
    assert!((f64::from(have) - want).abs() <= unit * 2e-5, "{what}: {have} and {want}");
}

/// Lists of several lengths, in no order.
fn lists(count: usize) -> impl Iterator<Item = Vec<u16>> {
    [0, 1, 2, 3, 5, 8, 13, count].into_iter().map(move |n| (0..n).map(|i| (i * 7 % count) as u16).collect())
}

const QUERIES: usize = 19;

#[test]
fn scores_and_forms() {
    for isa in isas() {
        for dim in [1usize, 16, 33, 64] {
            let stride = dim.next_multiple_of(BLOCK);
            let mut data = vec![0.0; QUERIES * stride];
            for (row, x) in data.chunks_mut(stride).zip(noise(QUERIES * dim, 1).chunks(dim)) {
                row[..dim].copy_from_slice(x);
            }
            let q = Matrix { data: &data, stride, cols: dim };
            let block = noise(dim * BLOCK, 2);
            for rows in lists(QUERIES) {
                let mut out = vec![0.0; rows.len() * BLOCK];
                isa.run(Scores { block: Stored::F32(&block), q, rows: &rows, out: &mut out });
                for (i, &r) in rows.iter().enumerate() {
                    for j in 0..BLOCK {
                        let dot = |k: usize| f64::from(data[r as usize * stride + k]) * f64::from(block[k * BLOCK + j]);
                        close(out[i * BLOCK + j], (0..dim).map(dot).sum(), dim as f64, isa.name());
                    }
                }
                // The same from numbers that f16 holds, and from the block's vectors as rows in another order.
                let half: Vec<f16> = block.iter().map(|&x| f16::from_f32(x)).collect();
                let wide: Vec<f32> = half.iter().map(|x| x.to_f32()).collect();
                isa.run(Scores { block: Stored::F32(&wide), q, rows: &rows, out: &mut out });
                let mut short = vec![0.0; rows.len() * BLOCK];
                isa.run(Scores { block: Stored::F16(&half), q, rows: &rows, out: &mut short });
                assert_eq!(out, short, "{}", isa.name());
                let ids: Vec<u32> = (0..BLOCK as u32).map(|j| j * 5 % 16).collect();
                let keys: Vec<f16> = (0..BLOCK * dim).map(|i| half[i % dim * BLOCK + i / dim]).collect();
                let from = Rows::f16(&keys, dim).unwrap();
                isa.run(ScoresAt { from: &from, ids: &ids, q, rows: &rows, out: &mut short });
                for (out, short) in out.chunks(BLOCK).zip(short.chunks(BLOCK)) {
                    for (&id, &short) in ids.iter().zip(short) {
                        close(short, f64::from(out[id as usize]), dim as f64, "rows of a matrix");
                    }
                }
            }
            // A symmetric positive matrix: the sum of a few outer products.
            let mut moment = vec![0.0; dim * stride];
            let mut few = vec![0.0; 3 * stride];
            for (row, x) in few.chunks_mut(stride).zip(noise(3 * dim, 3).chunks(dim)) {
                row[..dim].copy_from_slice(x);
            }
            for b in (0..stride).step_by(BLOCK) {
                let x = Matrix { data: &few, stride, cols: dim };
                let (y, out) = (&few[b..], &mut moment[b..]);
                isa.run(Gram { x, y, y_stride: stride, rows: 3, out, out_stride: stride });
            }
            for i in 0..dim * stride {
                let want = few.chunks(stride).map(|x| f64::from(x[i / stride]) * f64::from(x[i % stride])).sum();
                close(moment[i], want, 1.0, "sum of outer products");
            }
            let mut out = [0.0; QUERIES];
            isa.run(Forms { q, moment: &moment, factor: 0.5, out: &mut out });
            for (r, &out) in out.iter().enumerate() {
                let at = |k: usize| f64::from(data[r * stride + k]);
                let form: f64 = (0..dim * dim)
                    .map(|i| at(i / dim) * at(i % dim) * f64::from(moment[i / dim * stride + i % dim]))
                    .sum();
                close(out * out, form * 0.5, dim as f64, "form");
            }
        }
    }
}

#[test]
fn values_of_blocks_and_of_single_keys() {
    for isa in isas() {
        for cols in [1usize, 16, 40, 128] {
            let stride = cols.next_multiple_of(16);
            let values = noise(BLOCK * stride, 4);
            let start = noise(QUERIES * stride, 5);
            for rows in lists(QUERIES) {
                let p = noise(rows.len() * BLOCK, 6);
                let (mut out, mut total) = (start.clone(), vec![1.0; QUERIES * BLOCK]);
                let of = |data| Values { data, stride, cols };
                let matrix = of(Stored::F32(&values));
                let spread = noise(BLOCK, 7);
                let mut lean = vec![2.0; QUERIES * BLOCK];
                isa.run(AddValues {
                    p: &p,
                    values: matrix,
                    rows: &rows,
                    out: &mut out,
                    total: Some(&mut total),
                    lean: Some((&spread, &mut lean)),
                });
                // A block of listed rows of a matrix.
                let mut moved = start.clone();
                let x = noise(rows.len() * BLOCK, 8);
                let (by, at) = (&start[..QUERIES * BLOCK], stride - BLOCK);
                isa.run(AddScaled { by, x: &x, rows: &rows, out: &mut moved, stride, at });
                for i in 0..QUERIES * stride {
                    let (row, col) = (i / stride, i % stride);
                    let place = rows.iter().position(|&r| r as usize == row).filter(|_| col >= at);
                    let more = |p: usize| f64::from(by[row * BLOCK]) * f64::from(x[p * BLOCK + col - at]);
                    close(moved[i], f64::from(start[i]) + place.map_or(0.0, more), 1.0, "block of a row");
                }
                // From numbers that f16 holds, the same.
                let half: Vec<f16> = values.iter().map(|&x| f16::from_f32(x)).collect();
                let wide: Vec<f32> = half.iter().map(|x| x.to_f32()).collect();
                let [a, b] = [Stored::F32(&wide), Stored::F16(&half)].map(|data| {
                    let mut out = start.clone();
                    isa.run(AddValues { p: &p, values: of(data), rows: &rows, out: &mut out, total: None, lean: None });
                    out
                });
                assert_eq!(a, b, "{}", isa.name());
                // The same by keys: every second of them, values in another order.
                let mut single = start.clone();
                let full: Vec<[u16; 2]> = rows.iter().map(|&r| [r, 0x5555]).collect();
                let ids: Vec<u32> = (0..BLOCK as u32).map(|j| j * 5 % 16).collect();
                let view = Rows::strided(&values, BLOCK, cols, stride).unwrap();
                isa.run(AddKeys { p: &p, rows: &full, values: &view, ids: &ids, out: &mut single, stride });
                for (i, &r) in rows.iter().enumerate() {
                    for c in 0..cols {
                        let at = r as usize * stride + c;
                        let of = |j: usize, v: usize| f64::from(p[i * BLOCK + j]) * f64::from(values[v * stride + c]);
                        let want = f64::from(start[at]) + (0..BLOCK).map(|j| of(j, j)).sum::<f64>();
                        close(out[at], want, 16.0, isa.name());
                        let some = (0..BLOCK).step_by(2).map(|j| of(j, ids[j] as usize)).sum::<f64>();
                        close(single[at], f64::from(start[at]) + some, 16.0, isa.name());
                    }
                    for j in 0..BLOCK {
                        close(total[r as usize * BLOCK + j], 1.0 + f64::from(p[i * BLOCK + j]), 1.0, "total");
                        let want = 2.0 + f64::from(p[i * BLOCK + j]) * f64::from(spread[j]).powi(2);
                        close(lean[r as usize * BLOCK + j], want, 1.0, "lean");
                    }
                }
            }
        }
    }
}

/// Limits of every query, some of them opening everything or nothing.
struct Known {
    reference: Vec<f32>,
    needle: Vec<f32>,
    mass: Vec<f32>,
    sigma: Vec<f32>,
}

impl Known {
    fn new() -> Known {
        let of = |seed, scale: f32, offset: f32| noise(QUERIES, seed).iter().map(|x| x * scale + offset).collect();
        let mut known = Known {
            reference: of(7, 2.0, 1.0),
            needle: of(8, 3.0, 2.0),
            mass: of(9, 2.0, 2.5),
            sigma: of(10, 0.3, 0.6),
        };
        known.needle[3] = f32::NEG_INFINITY;
        known.needle[4] = 1e9;
        known.mass[4] = 1e30;
        known
    }

    fn limits(&self, softcap: f32) -> Limits<'_> {
        let Known { reference, needle, mass, sigma } = self;
        Limits { reference, needle, mass, sigma, stand_out: 1.5, softcap }
    }
}

fn cap(x: f64, cap: f32) -> f64 {
    if cap > 0.0 { f64::from(cap) * (x / f64::from(cap)).tanh() } else { x }
}

/// Mean and spread of a child's logits, in powers of two.
fn child(known: &Known, q: usize, x: f32, spread: f32, softcap: f32) -> (f64, f64) {
    let slope = if softcap > 0.0 { 1.0 - (f64::from(x) / f64::from(softcap)).tanh().powi(2) } else { 1.0 };
    (cap(f64::from(x), softcap), f64::from(spread) * f64::from(known.sigma[q]) * slope)
}

#[test]
fn estimates_and_what_is_opened() {
    let known = Known::new();
    let spread: Vec<f32> = noise(BLOCK, 11).iter().map(|x| x + 1.0).collect();
    let reach: Vec<f32> = spread.iter().map(|x| x * 1.7).collect();
    let mut present = [1.0; BLOCK];
    (present[2], present[9]) = (0.0, 0.0);
    let bits = !(1u16 << 2) & !(1 << 9);
    for isa in isas() {
        for softcap in [0.0, 3.0] {
            let of = || Children { spread: &spread, reach: &reach, present: &present, bits, log2_count: 4.0 };
            let scores: Vec<f32> = noise(QUERIES * BLOCK, 12).iter().map(|x| x * 4.0).collect();
            let (mut max, mut sum) = (vec![LOWEST; QUERIES * BLOCK], vec![0.0; QUERIES * BLOCK]);
            for _ in 0..2 {
                let limits = known.limits(softcap);
                isa.run(Total {
                    scores: &scores,
                    children: of(),
                    limits,
                    count: QUERIES,
                    max: &mut max,
                    sum: &mut sum,
                });
            }
            let rows: Vec<u16> = (0..QUERIES as u16).rev().collect();
            let (mut p, mut centers) = (scores.clone(), vec![0.0; QUERIES * BLOCK]);
            let (mut open, mut sure) = (vec![0; QUERIES], vec![0; QUERIES]);
            let (limits, children) = (known.limits(softcap), of());
            let (open_to, sure_to) = (&mut open, &mut sure);
            isa.run(Choose {
                scores: &mut p,
                rows: &rows,
                children,
                limits,
                centers: &mut centers,
                open: open_to,
                sure: sure_to,
            });
            assert_eq!(centers, scores);
            for (i, &r) in rows.iter().enumerate() {
                let q = r as usize;
                for j in 0..BLOCK {
                    let (x, sigma) = child(&known, q, scores[i * BLOCK + j], spread[j], softcap);
                    let v = (sigma * core::f64::consts::LN_2).powi(2);
                    let cosh = 1.0 + v / 2.0 + v * v / 24.0 + v * v * v / 720.0;
                    let w = 16.0 * (x - f64::from(known.reference[q])).exp2() * cosh * f64::from(present[j]);
                    close(p[i * BLOCK + j], w, w.max(1e-3), isa.name());
                    let far = f64::from(reach[j]) * f64::from(known.sigma[q]) * 1.5;
                    let best = cap(f64::from(scores[i * BLOCK + j]) + far, softcap) - f64::from(known.needle[q]);
                    let wrong = w * v.sqrt().min(1.0) - f64::from(known.mass[q]);
                    // Where a limit is met to the last digits either answer is right.
                    if present[j] == 1.0 && best.abs() > 1e-4 && wrong.abs() > 1e-4 * w {
                        assert_eq!(sure[i] >> j & 1, u16::from(wrong > 0.0), "{}", isa.name());
                        assert_eq!(open[i] >> j & 1, u16::from(best > 0.0 || wrong > 0.0), "{}", isa.name());
                    }
                    // Twice the same estimates.
                    let (x, sigma) = child(&known, q, scores[q * BLOCK + j], spread[j], softcap);
                    let want = 2.0 * 8.0 * ((x + sigma).exp2() + (x - sigma).exp2()) * f64::from(present[j]);
                    let have = f64::from(sum[q * BLOCK + j]) * f64::from(max[q * BLOCK + j]).exp2();
                    assert!((have - want).abs() <= 1e-4 * want.max(1e-3), "{}: {have} and {want}", isa.name());
                }
                assert_eq!(open[i] & !bits, 0);
            }
        }
    }
}

#[test]
fn weights_of_keys() {
    let reference = noise(QUERIES, 13);
    for isa in isas() {
        for softcap in [0.0, 2.0] {
            let rows: Vec<u16> = (0..QUERIES as u16 - 2).map(|i| i + 1).collect();
            let places: Vec<u16> = (0..rows.len() as u16).map(|i| i * 3 % 17).collect();
            let mut scores: Vec<f32> = noise(rows.len() * BLOCK, 14).iter().map(|x| x * 5.0).collect();
            let given = scores.clone();
            let mut fine = vec![4.0; QUERIES];
            (fine[2], fine[5]) = (0.0, 1e30);
            scores[6 * BLOCK] = 500.0;
            let (mut sum, mut mass) = (vec![0.0; QUERIES * BLOCK], vec![-1.0; 17 * BLOCK]);
            let (mut light, mut full, mut lost) = (vec![0.0; QUERIES], vec![[0; 2]; QUERIES], vec![false; QUERIES]);
            let front = isa.run(Weigh {
                scores: &mut scores,
                rows: &rows,
                places: &places,
                lane: 3,
                reference: &reference,
                fine: &fine,
                softcap,
                sum: &mut sum,
                mass: &mut mass,
                light: &mut light,
                full: &mut full,
                lost: &mut lost,
            });
            let mut at = 0;
            for (i, &r) in rows.iter().enumerate() {
                let q = r as usize;
                assert_eq!(lost[q], i == 6 && softcap == 0.0);
                if i == 6 {
                    at += 1;
                    continue;
                }
                let w: Vec<f64> = (0..BLOCK)
                    .map(|j| (cap(f64::from(given[i * BLOCK + j]), softcap) - f64::from(reference[q])).exp2())
                    .collect();
                let small: f64 = w.iter().filter(|&&w| w < f64::from(fine[q])).sum();
                close(mass[places[i] as usize * BLOCK + 3], small, 64.0, isa.name());
                close(light[q], small, 64.0, isa.name());
                let bits: u16 = (0..BLOCK).map(|j| u16::from(w[j] >= f64::from(fine[q])) << j).sum();
                if bits != 0 {
                    assert_eq!(full[at], [r, bits]);
                    (0..BLOCK).for_each(|j| close(scores[at * BLOCK + j], w[j], 64.0, isa.name()));
                    at += 1;
                }
                (0..BLOCK).for_each(|j| close(sum[q * BLOCK + j], w[j], 64.0, isa.name()));
            }
            assert_eq!(front, at);
        }
    }
}

#[test]
fn sifting_keeps_the_rows_with_a_key_that_reaches_the_needle() {
    let keys: Vec<i8> = (0..BLOCK * RANK).map(|i| hash(15, i as u64) as i8).collect();
    let q: Vec<Along> = (0..QUERIES)
        .map(|r| Along {
            pairs: core::array::from_fn(|k| [0, 1].map(|h| (hash(16, (r * RANK + 2 * k + h) as u64) as i16) >> 3)),
            unit: 1e-4,
            rest: 0.3,
            far: 0.2,
            needle: noise(QUERIES, 17)[r] * 20.0 + 15.0,
        })
        .collect();
    let centers = noise(QUERIES * BLOCK, 18);
    let reach = noise(BLOCK, 19);
    let mut sure = vec![0u16; QUERIES];
    sure[4] = 1 << 6;
    for isa in isas() {
        for (list, softcap) in lists(QUERIES).zip([0.0, 0.0, 9.0, 0.0, 0.0, 9.0, 0.0, 9.0]) {
            let (mut rows, mut places) = (list.clone(), list.clone());
            places.reverse();
            let given = places.clone();
            let n = isa.run(Sift {
                keys: &keys,
                unit: 2e-2,
                rest: 1.5,
                q: &q,
                softcap,
                reach: &reach,
                centers: &centers,
                sure: &sure,
                lane: 6,
                rows: &mut rows,
                places: &mut places,
            });
            let mut want = Vec::new();
            for (&r, &place) in list.iter().zip(&given) {
                let a = &q[r as usize];
                let best = (0..BLOCK).map(|j| {
                    let dot: i64 = (0..RANK)
                        .map(|k| i64::from(a.pairs[k / 2][k % 2]) * i64::from(keys[(k / 2 * BLOCK + j) * 2 + k % 2]))
                        .sum();
                    let x = dot as f64 * 2e-6 + f64::from(centers[place as usize * BLOCK + 6]) + 0.45;
                    cap(x + 0.2 * f64::from(reach[j]), softcap)
                });
                let best = best.fold(f64::NEG_INFINITY, f64::max) - f64::from(a.needle);
                assert!(best.abs() > 1e-4, "the test's own numbers are clear");
                if best > 0.0 || sure[place as usize] >> 6 & 1 == 1 {
                    want.push((r, place));
                }
            }
            let have: Vec<(u16, u16)> = rows[..n].iter().copied().zip(places[..n].iter().copied()).collect();
            assert_eq!(have, want, "{}", isa.name());
        }
    }
}

#[test]
fn small_sums_are_settled_and_doubts_add_up() {
    let rows: Vec<u16> = vec![5, 2, 9, 11];
    let places: Vec<u16> = vec![3, 0, 1, 2];
    let p: Vec<f32> = noise(4 * BLOCK, 20).iter().map(|x| x + 1.0).collect();
    for isa in isas() {
        let mut fine = vec![0.0; QUERIES];
        fine[2] = 1e9;
        let (mut q, mut mass, mut total) = (p.clone(), vec![-1.0; 4 * BLOCK], vec![0.0; QUERIES * BLOCK]);
        let mut full = vec![0; 4];
        let n = isa.run(Settle {
            p: &mut q,
            rows: &rows,
            places: &places,
            fine: &fine,
            lane: 7,
            mass: &mut mass,
            total: &mut total,
            full: &mut full,
        });
        assert_eq!((n, &full[..3]), (3, &[5, 9, 11][..]));
        let sum = |i: usize| p[i * BLOCK..][..BLOCK].iter().map(|&x| f64::from(x)).sum::<f64>();
        close(mass[7], sum(1), 16.0, "settled");
        assert_eq!([mass[3 * BLOCK + 7], mass[BLOCK + 7]], [0.0; 2]);
        close(total[5 * BLOCK + 7], sum(0), 16.0, "counted");
        assert_eq!(q[BLOCK..3 * BLOCK], p[2 * BLOCK..]);

        let (spread, value_spread) = (vec![0.8; BLOCK], vec![2.0; BLOCK]);
        let sigma = vec![0.5; QUERIES];
        let mut out = vec![0.0; QUERIES * BLOCK];
        let (spread, value_spread, sigma) = (&spread, &value_spread, &sigma);
        isa.run(Doubt { p: &p, rows: &rows, spread, value_spread, sigma, count: 16.0, out: &mut out });
        let v = (0.4 * core::f64::consts::LN_2).powi(2);
        let w = f64::from(p[3 * BLOCK + 5]);
        close(out[11 * BLOCK + 5], w * w * (v + v * v / 2.0 + v * v * v / 6.0) * 2.0 / 16.0, 1.0, "doubt");
    }
}

#[test]
fn rows_are_gathered_transposed_and_listed() {
    for isa in isas() {
        for cols in [1, 7, 16, 50] {
            let data = noise(40 * (cols + 3), 21);
            let from = Rows::strided(&data, 40, cols, cols + 3).unwrap();
            let ids: Vec<u32> = (0..BLOCK as u32).map(|j| j * 11 % 40).collect();
            let (mut out, mut room) = (vec![0.0; cols * BLOCK], vec![0.0; cols * BLOCK]);
            isa.run(Transpose { from: &from, ids: &ids, room: &mut room, out: &mut out });
            let stride = cols + 1;
            let mut rows = vec![0.0; BLOCK * stride];
            isa.run(Gather { from: &from, ids: &ids, stride, out: &mut rows });
            let mut sum = vec![1.0; cols];
            isa.run(SumRows { rows: Matrix { data: &data, stride: cols + 3, cols }, at: &ids, acc: &mut sum });
            for c in 0..cols {
                let at = |j: usize| data[ids[j] as usize * (cols + 3) + c];
                for j in 0..BLOCK {
                    assert_eq!([out[c * BLOCK + j], rows[j * stride + c]], [at(j); 2], "{}", isa.name());
                }
                close(sum[c], 1.0 + (0..BLOCK).map(|j| f64::from(at(j))).sum::<f64>(), 16.0, "sum");
            }
        }
    }
    let (rows, open) = ([4, 9, 2], [0b101, 0, 0x8001]);
    let (mut queries, mut places) = (vec![0; 4 * BLOCK], vec![0; 4 * BLOCK]);
    let len = by_child(&rows, &open, 4, &mut queries, &mut places);
    assert_eq!((len[0], len[2], len[15], len.iter().sum::<usize>()), (2, 1, 1, 4));
    assert_eq!((&queries[..2], &places[..2]), (&[4, 2][..], &[0, 2][..]));
    assert_eq!((queries[60], places[60]), (2, 2));
}

/// Largest root mean square along many directions, those of the power method among them.
fn widest(vectors: &[f32]) -> f64 {
    let dim = vectors.len() / BLOCK;
    let mut best: f64 = 0.0;
    for seed in 0..20 {
        let mut u: Vec<f64> = noise(dim, seed + 5).iter().map(|&x| f64::from(x)).collect();
        for _ in 0..30 {
            let norm = u.iter().map(|x| x * x).sum::<f64>().sqrt();
            u.iter_mut().for_each(|x| *x /= norm);
            let mut along = [0.0; BLOCK];
            for (row, u) in vectors.chunks_exact(BLOCK).zip(&u) {
                along.iter_mut().zip(row).for_each(|(a, &x)| *a += u * f64::from(x));
            }
            best = best.max((along.iter().map(|a| a * a).sum::<f64>() / BLOCK as f64).sqrt());
            for (row, u) in vectors.chunks_exact(BLOCK).zip(&mut u) {
                *u = row.iter().zip(&along).map(|(&x, a)| f64::from(x) * a).sum();
            }
        }
    }
    best
}

#[test]
fn widths_are_bounds_and_close() {
    for isa in isas() {
        for (dim, scale) in [(1, 1.0), (3, 1e-12), (24, 1.0), (64, 1e9), (80, 1.0)] {
            let mut x = noise(dim * BLOCK, dim as u64);
            // One direction longer than the others.
            x[..BLOCK].iter_mut().for_each(|x| *x *= 3.0);
            x.iter_mut().for_each(|x| *x *= scale);
            let (have, want) = (f64::from(isa.run(Width { vectors: &x })), widest(&x));
            assert!(have >= want * (1.0 - 1e-5) && have < 1.2 * want, "{}: {have} and {want}", isa.name());
        }
        assert_eq!(isa.run(Width { vectors: &[0.0; 7 * BLOCK] }), 0.0);
    }
}

#[test]
fn remainders_are_what_coordinates_leave_out() {
    for isa in isas() {
        for dim in [5, 32, 67] {
            let data: Vec<i8> = (0..BLOCK * RANK).map(|i| hash(30, i as u64) as i8).collect();
            // Any directions: it is not for this kernel that they are orthonormal.
            let basis = noise(dim * RANK, 31);
            let residuals = noise(dim * BLOCK, 32);
            let unit = 3e-3;
            let mut vectors = residuals.clone();
            let have = isa.run(Remainders { data: &data, unit, basis: &basis, vectors: &mut vectors });
            let u = |k: usize, r: usize| f64::from(basis[(r / BLOCK * dim + k) * BLOCK + r % BLOCK]);
            let mut want = [0.0f64; 3];
            for j in 0..BLOCK {
                let d = |r: usize| f64::from(data[(r / 2 * BLOCK + j) * 2 + r % 2]) * f64::from(unit);
                let t: Vec<f64> = (0..dim)
                    .map(|k| f64::from(residuals[k * BLOCK + j]) - (0..RANK).map(|r| u(k, r) * d(r)).sum::<f64>())
                    .collect();
                let seen = |r: usize| (0..dim).map(|k| u(k, r) * t[k]).sum::<f64>();
                let length = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
                want[0] = want[0].max(length(&mut (0..RANK).map(seen)));
                want[1] = want[1].max(length(&mut (0..RANK).map(d)));
                want[2] = want[2].max(length(&mut t.iter().copied()));
                (0..dim).for_each(|k| close(vectors[k * BLOCK + j], t[k], 10.0, isa.name()));
            }
            for (have, want) in have.into_iter().zip(want) {
                close(have, want, want, isa.name());
            }
            let width = widest(&vectors);
            assert!(f64::from(have[3]) >= width * (1.0 - 1e-4) && f64::from(have[3]) < 1.2 * width);
        }
    }
}

/// Rows of a list of `n` queries for [`Bound`], with its outputs.
struct Bounded {
    columns: [Vec<f32>; 8],
    mass: Vec<f32>,
    radius: Vec<f32>,
    opened: Vec<(u16, u16)>,
}

#[test]
fn bounds_of_cells_hold_and_are_those_of_the_twin() {
    let keys: Vec<i8> = (0..BLOCK * RANK).map(|i| hash(40, i as u64) as i8 / 2).collect();
    let along = |r: usize| Along {
        pairs: core::array::from_fn(|k| [0, 1].map(|h| (hash(41, (r * RANK + 2 * k + h) as u64) as i16) >> 3)),
        unit: 1e-4,
        rest: 0.3,
        far: 0.0,
        needle: noise(QUERIES, 42)[r] * 6.0 + 2.0,
    };
    let q: Vec<Along> = (0..QUERIES).map(along).collect();
    let centers: Vec<f32> = noise(QUERIES * BLOCK, 43).iter().map(|x| x * 3.0).collect();
    let beyond = Beyond { inside: 0.02, reach: 0.4, width: 0.15, value_width: 0.7, value: 1.3 };
    let (unit, lane) = (2e-3, 6);
    let (open, sure) = (vec![1 << lane; QUERIES], (0..QUERIES as u16).map(|i| (i % 5 / 4) << lane).collect::<Vec<_>>());
    for isa in isas() {
        for (list, softcap) in lists(QUERIES).zip([0.0, 0.0, 9.0, 0.0, 0.0, 9.0, 0.0, 9.0]) {
            for by_rule in [false, true] {
                let padded = list.len().next_multiple_of(BLOCK);
                let column = |seed: u64| noise(padded, seed).iter().map(|x| x.abs() + 0.2).collect::<Vec<f32>>();
                let mut b = Bounded {
                    columns: core::array::from_fn(|c| column(50 + c as u64)),
                    mass: vec![-1.0; QUERIES * BLOCK],
                    radius: vec![-1.0; QUERIES * BLOCK],
                    opened: Vec::new(),
                };
                b.columns[3].iter_mut().for_each(|x| *x *= 400.0);
                if let Some(x) = b.columns[1].get_mut(2) {
                    // Nothing bounds a key as far off as this.
                    *x = 500.0;
                }
                let before = b.columns.clone();
                let (mut opened, mut places) = (vec![0; list.len()], vec![0; list.len()]);
                let [inside, outside, reference, budget, spent, value, square, excess] = &mut b.columns;
                let share = 3.0;
                let n = isa.run(Bound {
                    keys: &keys,
                    unit,
                    rest: 1.5,
                    beyond,
                    softcap,
                    q: &q,
                    rows: &list,
                    centers: &centers,
                    lane,
                    opening: if by_rule { Opening::Rule(&open, &sure) } else { Opening::Budget { share, left: 9.0 } },
                    proofs: Proofs { inside, outside, reference, budget, spent, value, square, excess },
                    mass: &mut b.mass,
                    radius: &mut b.radius,
                    opened: &mut opened,
                    places: &mut places,
                });
                b.opened = opened[..n].iter().copied().zip(places[..n].iter().copied()).collect();
                for (place, &r) in list.iter().enumerate() {
                    let is_open = b.opened.contains(&(r, place as u16));
                    let of = |c: usize| f64::from(before[c][place]);
                    let s = f64::from(centers[place * BLOCK + lane]);
                    let x: Vec<f64> = (0..BLOCK)
                        .map(|j| {
                            let pair = |k: usize| f64::from(q[r as usize].pairs[k / 2][k % 2]);
                            let key = |k: usize| f64::from(keys[(k / 2 * BLOCK + j) * 2 + k % 2]);
                            (0..RANK).map(|k| pair(k) * key(k)).sum::<f64>() * f64::from(unit) * 1e-4
                        })
                        .collect();
                    let e: Vec<f64> = x.iter().map(|x| (cap(s + x, softcap) - cap(s, softcap)).exp2()).collect();
                    let mean = |f: &dyn Fn(f64) -> f64| e.iter().map(|&e| f(e)).sum::<f64>() / BLOCK as f64;
                    let (em, e2) = (mean(&|e| e), mean(&|e| e * e));
                    let top = e.iter().fold(0.0, |m: f64, &x| m.max(x));
                    let natural =
                        |a: f32, x: f32| (of(0) * f64::from(a) + of(1) * f64::from(x)) * core::f64::consts::LN_2;
                    let (rho, sigma) = (natural(beyond.inside, beyond.reach), natural(beyond.inside, beyond.width));
                    let f = (rho / 2.0 + rho * rho / 24.0).exp();
                    assert!(f >= rho.exp_m1() / rho);
                    let wrong = f * (e2.sqrt() * sigma).min(em * rho);
                    let low = (em - wrong).max(if softcap > 0.0 { 0.0 } else { 1.0 });
                    let mass = em.max(low);
                    let radius = ((em + wrong).max(mass) - mass).max(mass - low);
                    let of_values = (e2 - em * em).max(0.0).sqrt() + f * (e2.sqrt() * rho).min(top * sigma);
                    let of_values = of_values * f64::from(beyond.value_width);
                    let count = 16.0 * (cap(s, softcap) - of(2)).exp2();
                    let term = count * (radius * f64::from(beyond.value) + of_values);
                    let far = rho > 40.0;
                    let best = x.iter().fold(f64::MIN, |m, &x| m.max(x)) + s + 1.5 * 0.3;
                    let [opens, margin] = if by_rule {
                        let reaches = cap(best, softcap) - f64::from(q[r as usize].needle);
                        let opens = if sure[place] != 0 { 1.0 } else { reaches };
                        [opens, 1e-4]
                    } else if far {
                        [1.0, 0.0]
                    } else {
                        let (a, b) = (term * 9.0 - 3.0 * (of(3) - of(4)), of(4) + term - of(3));
                        [if a.abs() < b.abs() && a < 0.0 && b < 0.0 { a } else { a.max(b) }, 1e-2 * term]
                    };
                    if opens.abs() <= margin {
                        continue;
                    }
                    assert_eq!(is_open, opens > 0.0, "{}, row {r}: {opens}", isa.name());
                    let at = place * BLOCK + lane;
                    let kept = if is_open { 0.0 } else { count };
                    let near = |have: f32, want: f64, what: &str| {
                        assert!(
                            (f64::from(have) - want).abs() <= 1e-3 * want.abs().max(1e-2),
                            "{what}: {have} and {want}"
                        );
                    };
                    near(b.mass[at], if is_open || far { b.mass[at].into() } else { count * mass }, "mass");
                    if far {
                        assert!(is_open || (b.radius[at] == 0.0 && b.columns[5][place] == f32::INFINITY));
                        continue;
                    }
                    near(b.radius[at], kept * radius, "radius");
                    let square = f64::from(beyond.value) * f64::from(beyond.value);
                    near(b.columns[4][place], of(4) + kept / count * term, "spent");
                    near(b.columns[5][place], of(5) + kept * of_values, "value");
                    near(b.columns[6][place], of(6) + kept * radius * square, "square");
                    near(b.columns[7][place], of(7) + kept * (mass - low), "excess");
                }
            }
        }
    }
}

#[test]
fn sums_of_rows() {
    for isa in isas() {
        // Sums of lanes with maxima of their own, one row without a dense part.
        let max: Vec<f32> = noise(QUERIES * BLOCK, 31).iter().map(|x| x * 40.0).collect();
        let sum: Vec<f32> = noise(QUERIES * BLOCK, 32).iter().map(|x| x + 1.5).collect();
        let mut dense_max: Vec<f32> = noise(QUERIES, 33).iter().map(|x| x * 60.0).collect();
        let dense: Vec<f32> = noise(QUERIES, 34).iter().map(|x| x + 1.25).collect();
        dense_max[3] = f32::NEG_INFINITY;
        let mut dense_sum = dense.clone();
        let [mut reference, mut total, mut scale] = [(); 3].map(|()| vec![0.0; QUERIES]);
        let to = (&mut dense_sum, &mut reference, &mut total, &mut scale);
        isa.run(AddUp {
            max: &max,
            sum: &sum,
            dense_max: &dense_max,
            dense_sum: to.0,
            reference: to.1,
            total: to.2,
            scale: to.3,
        });
        for i in 0..QUERIES {
            let lanes = || max[i * BLOCK..][..BLOCK].iter().zip(&sum[i * BLOCK..]);
            let top = lanes().fold(dense_max[i], |m, (&x, _)| m.max(x));
            assert_eq!(reference[i], top);
            let by = f64::from(dense_max[i] - top).exp2();
            let lanes = lanes().map(|(&x, &s)| f64::from(s) * f64::from(x - top).exp2()).sum::<f64>();
            let want = lanes + by * f64::from(dense[i]);
            close(scale[i], by, by.max(1e-30), isa.name());
            close(dense_sum[i], by * f64::from(dense[i]), 1.0, isa.name());
            close(total[i], want, want, isa.name());
        }
        // Exact weights raise the sums that they exceed, those of listed rows alone.
        let (exact, total): (_, Vec<f32>) = (sum, (0..QUERIES).map(|i| if i % 3 == 0 { 50.0 } else { 12.0 }).collect());
        for rows in lists(QUERIES) {
            let (mut now, mut raised) = (total.clone(), vec![0; rows.len()]);
            let factor = 1.125;
            let to = &mut now;
            let count =
                isa.run(Raise { rows: &rows, exact: &exact, dense: &dense, total: to, factor, raised: &mut raised });
            let mut left = raised[..count].iter();
            let mut expected = total.clone();
            for &r in &rows {
                let i = r as usize;
                let found =
                    f64::from(dense[i]) + exact[i * BLOCK..][..BLOCK].iter().map(|&x| f64::from(x)).sum::<f64>();
                if found > f64::from(factor * total[i]) {
                    assert_eq!(left.next(), Some(&r), "{}", isa.name());
                    expected[i] = found as f32;
                }
            }
            assert_eq!(left.next(), None);
            assert!(rows.len() < QUERIES || (1..QUERIES).contains(&count), "rows of both kinds");
            (0..QUERIES).for_each(|i| close(now[i], f64::from(expected[i]), f64::from(expected[i]), isa.name()));
        }
    }
}
