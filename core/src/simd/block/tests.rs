//! Every kernel beside a naive twin, on every instruction set of the machine.

use super::*;
use crate::math::hash;
use crate::mem::Rows;
use crate::simd::Isa;
use half::f16;
use std::vec;
use std::vec::Vec;

pub(super) fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available())
}

pub(super) fn noise(n: usize, seed: u64) -> Vec<f32> {
    (0..n).map(|i| (hash(seed, i as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

pub(super) fn close(have: f32, want: f64, unit: f64, what: &str) {
    assert!((f64::from(have) - want).abs() <= unit * 2e-5, "{what}: {have} and {want}");
}

/// All of these, the first few under Miri, which takes a thousand times as long.
pub(super) fn first<T>(few: usize, all: &[T]) -> &[T] {
    if cfg!(miri) { &all[..few] } else { all }
}

/// Lists of several lengths, in no order.
pub(super) fn lists(count: usize) -> impl Iterator<Item = Vec<u16>> {
    let lengths = [0, 1, 2, 3, 5, 8, 13, count].into_iter().filter(move |&n| !cfg!(miri) || n < 2 || n == count);
    lengths.map(move |n| (0..n).map(|i| (i * 7 % count) as u16).collect())
}

pub(super) const QUERIES: usize = 19;

#[test]
fn scores_and_forms() {
    for isa in isas() {
        for &dim in first(2, &[1usize, 16, 33, 64]) {
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
                // The same from numbers that 16 bits hold, and from the block's vectors as rows in another order.
                let half: Vec<f16> = block.iter().map(|&x| f16::from_f32(x)).collect();
                let wide: Vec<f32> = half.iter().map(|x| x.to_f32()).collect();
                isa.run(Scores { block: Stored::F32(&wide), q, rows: &rows, out: &mut out });
                let mut short = vec![0.0; rows.len() * BLOCK];
                let brief: Vec<bf16> = block.iter().map(|&x| bf16::from_f32(x)).collect();
                let broad: Vec<f32> = brief.iter().map(|x| x.to_f32()).collect();
                let mut from_wide = short.clone();
                isa.run(Scores { block: Stored::F32(&broad), q, rows: &rows, out: &mut from_wide });
                isa.run(Scores { block: Stored::Bf16(&brief), q, rows: &rows, out: &mut short });
                assert_eq!(from_wide, short, "{}", isa.name());
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
            for b in (0..stride).step_by(2 * BLOCK) {
                let x = Matrix { data: &few, stride, cols: dim };
                let (y, out, blocks) = (&few[b..], &mut moment[b..], ((stride - b) / BLOCK).min(2));
                let (y_stride, out_stride) = (stride, stride);
                isa.run(Gram { x, y, y_stride, rows: 3, out, out_stride, out_step: BLOCK, blocks });
            }
            for i in 0..dim * stride {
                let want = few.chunks(stride).map(|x| f64::from(x[i / stride]) * f64::from(x[i % stride])).sum();
                close(moment[i], want, 1.0, "sum of outer products");
            }
            // The same with a block of columns after the other, less a mean that is their first row.
            let (mut apart, mut blocks) = (vec![f32::NAN; 3 * stride], vec![0.0; dim * stride]);
            let rows = Matrix { data: &few, stride, cols: dim };
            isa.run(Less { rows, mean: &few[..dim], at: &[2, 0, 1], out: &mut apart, stride });
            for b in (0..stride).step_by(2 * BLOCK) {
                let (y, out, n) = (&apart[b..], &mut blocks[b * dim..], ((stride - b) / BLOCK).min(2));
                let x = Matrix { data: &few, stride, cols: dim };
                let (out_stride, out_step) = (BLOCK, dim * BLOCK);
                isa.run(Gram { x, y, y_stride: stride, rows: 3, out, out_stride, out_step, blocks: n });
            }
            for (i, &have) in blocks.iter().enumerate() {
                let (b, a) = (i / (dim * BLOCK) * BLOCK + i % BLOCK, i / BLOCK % dim);
                let at = |r: usize, c: usize| f64::from(few[r * stride + c]);
                let want = [2, 0, 1].into_iter().enumerate().map(|(r, from)| at(r, a) * (at(from, b) - at(0, b))).sum();
                close(have, want, 1.0, "blocks of products");
            }
            let mut out = [0.0; QUERIES];
            isa.run(Forms { q, moment: Stored::F32(&moment), factor: 0.5, out: &mut out });
            for (r, &out) in out.iter().enumerate() {
                let at = |k: usize| f64::from(data[r * stride + k]);
                let form: f64 = (0..dim * dim)
                    .map(|i| at(i / dim) * at(i % dim) * f64::from(moment[i / dim * stride + i % dim]))
                    .sum();
                close(out * out, form * 0.5, dim as f64, "form");
            }
            // The same from numbers that 16 bits hold.
            let brief: Vec<bf16> = moment.iter().map(|&x| bf16::from_f32(x)).collect();
            let broad: Vec<f32> = brief.iter().map(|x| x.to_f32()).collect();
            let of = |moment: Stored<'_>| {
                let mut out = [0.0; QUERIES];
                isa.run(Forms { q, moment, factor: 0.5, out: &mut out });
                out
            };
            assert_eq!(of(Stored::Bf16(&brief)), of(Stored::F32(&broad)), "{}", isa.name());
        }
    }
}

#[test]
fn values_of_blocks_and_of_single_keys() {
    for isa in isas() {
        for &cols in first(2, &[1usize, 16, 40, 128]) {
            let stride = cols.next_multiple_of(16);
            let values = noise(BLOCK * stride, 4);
            let start = noise(QUERIES * stride, 5);
            for rows in lists(QUERIES) {
                let p = noise(rows.len() * BLOCK, 6);
                let (mut out, mut total) = (start.clone(), vec![1.0; QUERIES * BLOCK]);
                let of = |data| Values { data, stride, cols };
                let matrix = of(Elements::F32(&values));
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

pub(super) fn cap(x: f64, cap: f32) -> f64 {
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
            let mut p = vec![-1.0; QUERIES * BLOCK];
            let (mut open, mut sure) = (vec![0; QUERIES], vec![0; QUERIES]);
            let (limits, children) = (known.limits(softcap), of());
            let (open_to, sure_to) = (&mut open, &mut sure);
            isa.run(Choose {
                centers: &scores,
                rows: &rows,
                children,
                limits,
                weights: &mut p,
                open: open_to,
                sure: sure_to,
            });
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
fn rows_are_gathered_and_transposed() {
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
}

#[test]
fn rows_are_listed_by_child() {
    let stride = if cfg!(miri) { 19 } else { 70 };
    let count: Vec<u16> = (0..stride as u16).collect();
    for isa in isas() {
        for n in (0..8).chain([15, 16, 17, stride - 1, stride]) {
            let rows: Vec<u16> = (0..n).map(|i| (hash(51, i as u64) >> 40) as u16).collect();
            for all in [false, true] {
                let open: Vec<u16> =
                    (0..n).map(|i| if all { 0xffff } else { (hash(52, i as u64) >> 30) as u16 & 0xfeff }).collect();
                let len = BLOCK * stride + TOGETHER;
                let (mut queries, mut places) = (vec![0xaaaa; len], vec![0xaaaa; len]);
                let (to, at) = (&mut queries[..], &mut places[..]);
                let len = isa.run(ByChild { rows: &rows, open: &open, count: &count, stride, queries: to, places: at });
                for c in 0..BLOCK {
                    let want: Vec<u16> = (0..n as u16).filter(|&i| open[i as usize] >> c & 1 != 0).collect();
                    assert_eq!(places[c * stride..][..len[c]], want, "{}, {n} rows", isa.name());
                    let want: Vec<u16> = want.iter().map(|&i| rows[i as usize]).collect();
                    assert_eq!(queries[c * stride..][..len[c]], want, "{}, {n} rows", isa.name());
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
    }
}
