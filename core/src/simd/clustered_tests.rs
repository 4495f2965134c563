//! Kernels of accelerated attention beside their definition, on every instruction set of the machine.

use super::Isa;
use super::bias_tests::{bias_at, heads_of, some_biases};
use super::clustered::{AddMeans, CELL, EstimateEntries, MarkEntries, ScoreEntries, Screen, Spread, WeighEntries};
use super::gather::{BLOCK, Gather, Gram, Less, Matrix, ScoresAt, SumRows};
use super::online::State;
use super::opened::{OpenCells, OpenRoom};
use super::tile::{KEYS, PANEL};
use crate::math::hash;
use crate::mem::{Buf, Hooks, Memory, Rows};
use half::f16;
use std::format;
use std::vec;
use std::vec::Vec;

/// Rows of a panel, no multiple of any vector's lanes and one that is.
const LANES: [usize; 4] = [1, 7, 16, PANEL];

pub(super) fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available())
}

pub(super) fn noise(n: usize, seed: u64) -> Vec<f32> {
    (0..n).map(|i| (hash(seed, i as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// All of these, the first few under Miri, which takes a thousand times as long.
pub(super) fn first<T>(few: usize, all: &[T]) -> &[T] {
    if cfg!(miri) { &all[..few] } else { all }
}

#[track_caller]
pub(super) fn close(have: f32, want: f64, unit: f64, what: &str) {
    assert!((f64::from(have) - want).abs() <= unit * 2e-5, "{what}: {have} and {want}");
}

/// `lanes` queries as a panel, zeros beyond.
pub(super) fn panel(q: &[f32], dim: usize, lanes: usize) -> Vec<f32> {
    let mut panel = vec![0.0; dim * PANEL];
    for (lane, q) in q.chunks(dim).take(lanes).enumerate() {
        q.iter().enumerate().for_each(|(d, &x)| panel[d * PANEL + lane] = x);
    }
    panel
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

pub(super) fn capped(score: f64, logits: Option<(f32, f32)>) -> f64 {
    match logits {
        Some((scale, cap)) if cap > 0.0 => f64::from(cap) * (score * f64::from(scale) / f64::from(cap)).tanh(),
        Some((scale, _)) => score * f64::from(scale),
        None => score,
    }
}

extern "C" fn take(_: *mut core::ffi::c_void, size: usize, align: usize) -> *mut core::ffi::c_void {
    // SAFETY: the library asks for a valid, non-zero layout.
    unsafe { std::alloc::alloc(core::alloc::Layout::from_size_align(size, align).expect("a layout")).cast() }
}

extern "C" fn give(_: *mut core::ffi::c_void, ptr: *mut core::ffi::c_void, size: usize, align: usize) {
    // SAFETY: the block came from `take` with this layout.
    unsafe { std::alloc::dealloc(ptr.cast(), core::alloc::Layout::from_size_align(size, align).expect("a layout")) }
}

fn memory() -> Memory {
    // SAFETY: the hooks keep their contract.
    unsafe { Memory::hooks(Hooks { user: core::ptr::null_mut(), alloc: take, free: give }, 0) }.expect("memory")
}

#[test]
fn spreads_are_square_roots_of_forms() {
    for isa in isas() {
        for &dim in first(2, &[1usize, 5, 16, 33, 64]) {
            // A symmetric positive matrix: a sum of outer products.
            let few = noise(3 * dim, 3);
            let covariance: Vec<f32> = (0..dim * dim)
                .map(|i| {
                    few.chunks(dim).map(|x| x[i / dim] * x[i % dim]).sum::<f32>()
                        + f32::from(u8::from(i / dim == i % dim))
                })
                .collect();
            let q = noise(PANEL * dim, 4);
            for lanes in LANES {
                let (mut room, mut out) = (vec![f32::NAN; (dim + KEYS) * PANEL], [f32::NAN; PANEL]);
                let q_panel = panel(&q, dim, lanes);
                let rows = Rows::new(&covariance, dim).expect("square");
                isa.run(Spread { q: &q_panel, covariance: rows, lanes, room: &mut room, out: &mut out });
                for (q, &out) in q.chunks(dim).zip(&out[..lanes]) {
                    let form: f64 = covariance.chunks(dim).zip(q).map(|(c, &x)| dot(c, q) * f64::from(x)).sum();
                    close(out, form.sqrt(), dim as f64, isa.name());
                }
                // Beyond f32, on the way or in the end.
                let wild: Vec<f32> = covariance.iter().map(|x| x * 1e38).collect();
                for (scale, covariance) in [(1e30, &covariance), (1e3, &wild)] {
                    let q: Vec<f32> = q_panel.iter().map(|x| x * scale).collect();
                    let rows = Rows::new(covariance, dim).expect("square");
                    isa.run(Spread { q: &q, covariance: rows, lanes, room: &mut room, out: &mut out });
                    assert!(out[..lanes].iter().all(|&x| x == f32::INFINITY), "{}: {out:?}", isa.name());
                }
            }
        }
    }
}

#[test]
fn scores_and_weights_of_entries() {
    let n = 21;
    for isa in isas() {
        for &dim in first(2, &[1usize, 8, 33, 64]) {
            let (q, keys) = (noise(PANEL * dim, 5), noise(n * dim, 6));
            let mut shift: Vec<f32> = noise(n, 7);
            shift[4] = f32::NEG_INFINITY;
            for logits in [None, Some((0.7, 0.0)), Some((0.7, 1.5))] {
                for lanes in LANES {
                    let (factor, q_panel) = (1.3, panel(&q, dim, lanes));
                    // Rows that have seen something, those that have not, and one whose reference is far above.
                    let before: Vec<[f32; 2]> =
                        (0..PANEL).map(|i| [[0.5, 2.0], [f32::NEG_INFINITY, 0.0], [50.0, 1.0]][i % 3]).collect();
                    let mut max: Vec<f32> = before.iter().map(|x| x[0]).collect();
                    let mut sum: Vec<f32> = before.iter().map(|x| x[1]).collect();
                    let mut alpha = [1.0; PANEL];
                    let [mut scores, mut weights] = [(); 2].map(|()| vec![f32::NAN; (n + KEYS) * PANEL]);
                    isa.run(ScoreEntries {
                        q: &q_panel,
                        lanes,
                        keys: Rows::new(&keys, dim).expect("rows"),
                        shift: &shift,
                        logits,
                        biases: None,
                        factor,
                        scores: &mut scores,
                        weights: &mut weights,
                        state: State { max: &mut max, sum: &mut sum, alpha: &mut alpha },
                    });
                    for (lane, q) in q.chunks(dim).take(lanes).enumerate() {
                        let what = format!("{} {dim} {lanes} {logits:?} lane {lane}", isa.name());
                        let score = |e: usize| capped(dot(q, &keys[e * dim..][..dim]), logits);
                        let [max_before, sum_before] = before[lane].map(f64::from);
                        let top = (0..n).filter(|&e| e != 4).map(score).fold(max_before, f64::max);
                        // References rise beyond what they have to.
                        assert!(
                            f64::from(max[lane]) >= top - 1e-4 && max[lane].is_finite(),
                            "{what}: {} {top}",
                            max[lane]
                        );
                        let weight = |x: f64| ((x - f64::from(max[lane])) * f64::from(factor)).exp2();
                        let faded = if max_before == f64::NEG_INFINITY { 0.0 } else { weight(max_before) };
                        if sum_before > 0.0 {
                            close(alpha[lane], faded, 10.0, &what);
                        }
                        let mut all = sum_before * faded;
                        for e in 0..n {
                            let at = e * PANEL + lane;
                            if e == 4 {
                                assert_eq!((scores[at], weights[at]), (f32::NEG_INFINITY, 0.0), "{what}");
                                continue;
                            }
                            close(scores[at], score(e), 1.0 + dim as f64, &what);
                            let want = weight(score(e) + f64::from(shift[e]));
                            close(weights[at], want, 10.0 * (1.0 + want), &what);
                            all += want;
                        }
                        close(sum[lane], all, 30.0 * (1.0 + all), &what);
                    }
                }
            }
        }
    }
}

#[test]
fn cells_open_where_they_may_matter() {
    let n = 13;
    for isa in isas() {
        for lanes in LANES {
            let (scores, given) =
                (noise(n * PANEL, 8), noise(n * PANEL, 9).iter().map(|x| x + 1.0).collect::<Vec<_>>());
            let radius: Vec<f32> = noise(n, 10).iter().map(|x| x + 1.0).collect();
            let (mut spread, mut threshold, mut sum) = ([0.0; PANEL], [f32::INFINITY; PANEL], [3.0; PANEL]);
            spread.copy_from_slice(&noise(PANEL, 11).iter().map(|x| 3.0 * (x + 1.0)).collect::<Vec<_>>());
            threshold[..lanes].copy_from_slice(&noise(lanes, 12).iter().map(|x| 4.0 * x + 2.0).collect::<Vec<_>>());
            if lanes > 2 {
                spread[1] = f32::INFINITY;
                threshold[2] = f32::NEG_INFINITY;
            }
            let (sigma, unit, mut weights, mut opened) = (3.0, 0.4, given.clone(), vec![u64::MAX; n]);
            let mut tilt = [2.0; PANEL];
            isa.run(Screen {
                lanes,
                scores: &scores,
                weights: &mut weights,
                radius: &radius,
                spread: &spread,
                sigma,
                unit,
                threshold: &threshold,
                opened: &mut opened,
                sum: &mut sum,
                tilt: &mut tilt,
            });
            for lane in 0..lanes {
                let (mut all, mut lean) = (3.0, 2.0);
                for e in 0..n {
                    let (at, what) = (e * PANEL + lane, format!("{} {lanes}: entry {e}, lane {lane}", isa.name()));
                    let deviation = f64::from(spread[lane]) * f64::from(radius[e]);
                    let reach = f64::from(scores[at]) + f64::from(sigma) * deviation;
                    let opens = opened[e] >> lane & 1 != 0;
                    // Where a limit is met to the last digits either answer is right.
                    if (reach - f64::from(threshold[lane])).abs() > 1e-4 {
                        assert_eq!(opens, reach > f64::from(threshold[lane]), "{what}");
                    }
                    let x = (deviation * f64::from(unit)).min(4.0);
                    let want = f64::from(given[at]) * x.cosh();
                    if opens {
                        assert_eq!(weights[at], 0.0, "{what}");
                    } else {
                        assert!((f64::from(weights[at]) - want).abs() <= 0.08 * want, "{what}: {} {want}", weights[at]);
                        lean += f64::from(given[at]) * f64::from(radius[e]) * x.sinh();
                    }
                    all += f64::from(weights[at]);
                }
                close(sum[lane], all, 1.0 + all, isa.name());
                let what = format!("{} {lanes}: {} {lean}", isa.name(), tilt[lane]);
                assert!(f64::from(tilt[lane]) <= lean * 1.0001 && f64::from(tilt[lane]) >= 0.85 * lean, "{what}");
            }
            assert!(opened.iter().all(|&bits| lanes == 64 || bits >> lanes == 0), "lanes that are there");
        }
    }
}

#[test]
fn means_are_added() {
    // More than stay in the cache at a time.
    for &n in first(1, &[5usize, 512, 700]) {
        for isa in isas() {
            for stride in [16, 48, 80] {
                let (weights, from) = (noise(n * PANEL, 13), noise(n * stride, 14));
                // Aligned, as they are kept.
                let mut values = Buf::filled(&memory(), n * stride, 0.0f32).expect("memory");
                values.copy_from_slice(&from);
                let start = noise(PANEL * stride, 15);
                for lanes in LANES {
                    let (mut alpha, mut sums) = ([1.0; PANEL], start.clone());
                    alpha.iter_mut().zip(noise(PANEL, 16)).for_each(|(a, x)| *a = 0.5 + x / 4.0);
                    let values_rows = Rows::new(&values, stride).expect("rows");
                    isa.run(AddMeans {
                        lanes,
                        weights: &weights,
                        values: values_rows,
                        alpha: &alpha,
                        sums: &mut sums,
                        stride,
                    });
                    for lane in 0..lanes {
                        for c in 0..stride {
                            let of =
                                |e: usize| f64::from(weights[e * PANEL + lane]) * f64::from(values[e * stride + c]);
                            let before = f64::from(alpha[lane]) * f64::from(start[lane * stride + c]);
                            let want = before + (0..n).map(of).sum::<f64>();
                            close(sums[lane * stride + c], want, n as f64, isa.name());
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn opened_cells_are_attended_exactly() {
    let memory = memory();
    let (n, keys, rows) = (5, 5 * CELL + 3, PANEL + 9);
    let panels = rows.div_ceil(PANEL);
    for isa in isas() {
        for &(dim, dim_v) in first(1, &[(5usize, 3usize), (16, 16), (33, 40), (64, 72)]) {
            let stride = dim_v.next_multiple_of(16);
            let short = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>();
            let (k, v, q) = (short(&noise(keys * dim, 17)), short(&noise(keys * dim_v, 18)), noise(rows * dim, 19));
            let wide = |x: &[f16]| x.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
            let (k_wide, v_wide) = (wide(&k), wide(&v));
            let ids: Vec<u32> = (0..n as u32 * 16).map(|i| i * 7 % keys as u32).collect();
            let mut known = vec![0u16; n];
            (known[1], known[3]) = (0b1000_0000_0010_0001, u16::MAX);
            // From no row of a cell to all of them.
            let mut opened = vec![0u64; panels * n];
            for (i, bits) in opened.iter_mut().enumerate() {
                let live = (rows - i / n * PANEL).min(PANEL);
                let some = hash(20, i as u64) & hash(21, i as u64);
                *bits = [0, u64::MAX, some, u64::MAX, 1][i % n] & ((1u64 << live) - 1);
            }
            let (biases, queries) = some_biases(rows, keys, 1.0, 11);
            let of = heads_of(&biases, rows, keys).of(&queries);
            for (logits, biased) in [(None, false), (Some((0.7, 1.5)), false), (Some((0.7, 1.5)), true)] {
                for shorts in [false, true] {
                    let room = |n: usize| Buf::filled(&memory, n, 0.0f32).expect("memory");
                    let mut open_room = OpenRoom {
                        keys: room(CELL * dim),
                        transposed: room(CELL * dim),
                        values: room(CELL * stride),
                        rows: Buf::filled(&memory, panels * PANEL, 0).expect("memory"),
                    };
                    let (from_k, from_v) = if shorts {
                        (Rows::f16(&k, dim).expect("rows"), Rows::f16(&v, dim_v).expect("rows"))
                    } else {
                        (Rows::new(&k_wide, dim).expect("rows"), Rows::new(&v_wide, dim_v).expect("rows"))
                    };
                    let factor = 1.2f32;
                    let mut max: Vec<f32> = (0..panels * PANEL).map(|i| [0.1, -3.0, 9.0][i % 3]).collect();
                    let (max_before, mut sum) = (max.clone(), vec![1.5f32; panels * PANEL]);
                    let start = noise(panels * PANEL * stride, 22);
                    let mut sums = start.clone();
                    let pairs = isa.run(OpenCells {
                        ids: &ids,
                        known: &known,
                        opened: &opened,
                        keys: &from_k,
                        values: &from_v,
                        q: &q,
                        logits,
                        biases: biased.then_some(of),
                        factor,
                        max: &mut max,
                        sum: &mut sum,
                        sums: &mut sums,
                        stride,
                        room: &mut open_room,
                    });
                    let mut want_pairs = 0;
                    for r in 0..rows {
                        let what = format!("{} {dim} {dim_v} {logits:?} {shorts} row {r}", isa.name());
                        let mine: Vec<usize> = (0..n * CELL)
                            .filter(|i| opened[r / PANEL * n + i / CELL] >> (r % PANEL) & 1 != 0)
                            .filter(|i| known[i / CELL] >> (i % CELL) & 1 == 0)
                            .map(|i| ids[i] as usize)
                            .collect();
                        want_pairs += mine.len() as u64;
                        let more = |j: usize| if biased { bias_at(&biases, keys, queries[r], j) } else { 0.0 };
                        let score =
                            |j: usize| capped(dot(&q[r * dim..][..dim], &k_wide[j * dim..][..dim]), logits) + more(j);
                        let top = mine.iter().map(|&j| score(j)).fold(f64::from(max_before[r]), f64::max);
                        close(max[r], top, dim as f64, &what);
                        let weight = |x: f64| ((x - f64::from(max[r])) * f64::from(factor)).exp2();
                        let faded = weight(f64::from(max_before[r]));
                        let total = 1.5 * faded + mine.iter().map(|&j| weight(score(j))).sum::<f64>();
                        close(sum[r], total, 10.0 * (1.0 + total), &what);
                        for c in 0..dim_v {
                            let of = |j: &usize| weight(score(*j)) * f64::from(v_wide[j * dim_v + c]);
                            let before = faded * f64::from(start[r * stride + c]);
                            let want = before + mine.iter().map(of).sum::<f64>();
                            close(sums[r * stride + c], want, 10.0 * (1.0 + total), &what);
                        }
                    }
                    assert_eq!(pairs, want_pairs, "{}", isa.name());
                }
            }
        }
    }
}

#[test]
fn entries_of_one_row_are_weighed() {
    let factor = 1.3;
    for isa in isas() {
        for n in [CELL, 3 * CELL] {
            let (products, mut shift) = (noise(n, 21), noise(n, 22));
            shift[4] = f32::NEG_INFINITY;
            for logits in [None, Some((0.7, 0.0)), Some((0.7, 1.5))] {
                // A row that has seen nothing, one whose reference stays, and one whose reference rises.
                for (max, sum) in [(f32::NEG_INFINITY, 0.0f32), (50.0, 1.0), (-2.0, 3.0)] {
                    let (mut scores, mut weights) = (products.clone(), vec![f32::NAN; n]);
                    let (mut max_out, mut sum_out) = (max, sum);
                    let alpha = isa.run(WeighEntries {
                        scores: &mut scores,
                        shift: &shift,
                        logits,
                        biases: None,
                        factor,
                        weights: &mut weights,
                        max: &mut max_out,
                        sum: &mut sum_out,
                    });
                    let live = (0..n).filter(|&e| e != 4);
                    let logit = |e: usize| capped(f64::from(products[e]), logits);
                    let top = live.clone().map(logit).fold(f64::from(max), f64::max);
                    let power = |x: f64| (x * f64::from(factor)).exp2();
                    let what = format!("{}, {n} entries, {logits:?}, {max}", isa.name());
                    close(max_out, top, 1.0, &what);
                    let kept = if max == f32::NEG_INFINITY { 0.0 } else { power(f64::from(max) - top) };
                    if sum > 0.0 {
                        close(alpha, kept, 1.0, &what);
                    }
                    let mut want = f64::from(sum) * kept;
                    for e in live {
                        let weight = power(logit(e) + f64::from(shift[e]) - top);
                        close(scores[e], logit(e), 1.0, &what);
                        close(weights[e], weight, 2.0, &what);
                        want += weight;
                    }
                    assert!(scores[4] == f32::NEG_INFINITY && weights[4] == 0.0, "{what}");
                    close(sum_out, want, want.max(1.0), &what);
                }
            }
        }
    }
}

#[test]
fn one_row_opens_what_may_matter() {
    for isa in isas() {
        for n in [CELL, 3 * CELL] {
            let scores = noise(n, 23);
            let radius: Vec<f32> = noise(n, 24).iter().map(|x| x.abs()).collect();
            for (spread, threshold) in [(0.3, 0.8), (0.0, 0.0), (f32::INFINITY, 0.5), (0.3, f32::INFINITY)] {
                let mut opened = vec![0; n];
                opened[5] = 1;
                isa.run(MarkEntries {
                    scores: &scores,
                    radius: &radius,
                    spread,
                    sigma: 3.0,
                    threshold,
                    opened: &mut opened,
                });
                for e in 0..n {
                    let reach = f64::from(scores[e]) + 3.0 * f64::from(spread) * f64::from(radius[e]);
                    // What another row has marked stays; what is as near as rounding may go either way.
                    let near = (reach - f64::from(threshold)).abs() < 1e-5;
                    assert!(near || opened[e] == u8::from(e == 5 || reach > f64::from(threshold)), "{}", isa.name());
                }
            }
        }
    }
}

#[test]
fn estimates_of_one_row_widen_with_the_radius() {
    for isa in isas() {
        for n in [CELL, 3 * CELL] {
            let from: Vec<f32> = noise(n, 25).iter().map(|x| x.abs()).collect();
            let radius: Vec<f32> = noise(n, 26).iter().map(|x| x.abs()).collect();
            let closed: Vec<f32> = (0..n).map(|e| f32::from(u8::from(e % 3 != 0))).collect();
            for deviation in [0.0, 0.7, 1.5] {
                let mut weights = from.clone();
                let [sum, tilt] =
                    isa.run(EstimateEntries { weights: &mut weights, radius: &radius, deviation, closed: &closed });
                let (mut want, mut lean) = (0.0, 0.0);
                for e in 0..n {
                    let x = f64::from(radius[e] * deviation);
                    let weight = f64::from(from[e]) * f64::from(closed[e]) * x.cosh();
                    close(weights[e], weight, 20.0, isa.name());
                    want += weight;
                    lean += f64::from(from[e]) * f64::from(closed[e] * radius[e]) * x.sinh();
                }
                close(sum, want, 20.0 * want, isa.name());
                close(tilt, lean, 200.0 * lean, isa.name());
            }
            // Beyond the widest deviation an estimate grows no more.
            let estimates = [1e3, 1e6].map(|deviation| {
                let (mut weights, radius) = (from.clone(), vec![1.0; n]);
                isa.run(EstimateEntries { weights: &mut weights, radius: &radius, deviation, closed: &closed });
                weights
            });
            assert_eq!(estimates[0], estimates[1], "{}", isa.name());
        }
    }
}

#[test]
fn rows_are_gathered_and_summed() {
    let rows = 23;
    for isa in isas() {
        for &dim in first(2, &[1usize, 16, 33, 64, 130]) {
            let stride = dim + 3;
            let (data, at) = (noise(rows * stride, 23), [5u32, 0, 22, 5, 7]);
            let matrix = Matrix { data: &data, stride, cols: dim };
            let mut acc = noise(dim, 24);
            let before = acc.clone();
            isa.run(SumRows { rows: matrix, at: &at, acc: &mut acc });
            for c in 0..dim {
                let want = at.iter().map(|&i| f64::from(data[i as usize * stride + c])).sum::<f64>();
                close(acc[c], f64::from(before[c]) + want, 6.0, isa.name());
            }
            let half: Vec<f16> = data[..rows * dim].iter().map(|&x| f16::from_f32(x)).collect();
            let from = Rows::f16(&half, dim).expect("rows");
            let mut out = vec![7.0; at.len() * stride];
            isa.run(Gather { from: &from, ids: &at, stride, out: &mut out });
            for (out, &id) in out.chunks(stride).zip(&at) {
                assert!(out[..dim].iter().zip(&half[id as usize * dim..]).all(|(a, b)| *a == b.to_f32()));
                assert!(out[dim..].iter().all(|&x| x == 7.0), "{}", isa.name());
            }
            let ids: Vec<u32> = (0..BLOCK as u32).map(|j| j * 5 % 16).collect();
            let q = Matrix { data: &data, stride, cols: dim };
            let (list, mut scores) = ([3u16, 0, 9], vec![0.0; 3 * BLOCK]);
            isa.run(ScoresAt { from: &from, ids: &ids, q, rows: &list, out: &mut scores });
            for (scores, &row) in scores.chunks(BLOCK).zip(&list) {
                for (&score, &id) in scores.iter().zip(&ids) {
                    let key: Vec<f32> = half[id as usize * dim..][..dim].iter().map(|x| x.to_f32()).collect();
                    close(score, dot(&data[row as usize * stride..][..dim], &key), dim as f64, isa.name());
                }
            }
        }
    }
}

#[test]
fn sums_of_outer_products() {
    for isa in isas() {
        for &dim in first(2, &[1usize, 16, 33, 64]) {
            let (n, stride) = (3, dim.next_multiple_of(BLOCK));
            let few = noise(n * stride, 25);
            let mean = few[..dim].to_vec();
            // Less a mean that is their first row, in another order.
            let mut apart = vec![f32::NAN; n * stride];
            let (rows, at) = (Matrix { data: &few, stride, cols: dim }, [2, 0, 1]);
            isa.run(Less { rows, mean: &mean, at: &at, out: &mut apart, stride });
            for (out, &i) in apart.chunks(stride).zip(&at) {
                assert!((0..dim).all(|c| out[c] == few[i as usize * stride + c] - mean[c]));
                assert!(out[dim..].iter().all(|&x| x == 0.0), "{}", isa.name());
            }
            let mut moment = vec![0.5; dim * stride];
            for b in (0..stride).step_by(2 * BLOCK) {
                isa.run(Gram {
                    x: Matrix { data: &apart, stride, cols: dim },
                    y: &apart[b..],
                    y_stride: stride,
                    rows: n,
                    out: &mut moment[b..],
                    out_stride: stride,
                    out_step: BLOCK,
                    blocks: ((stride - b) / BLOCK).min(2),
                });
            }
            for (i, &have) in moment.iter().enumerate() {
                let of = |x: &[f32]| f64::from(x[i / stride]) * f64::from(x[i % stride]);
                close(have, 0.5 + apart.chunks(stride).map(of).sum::<f64>(), 4.0, isa.name());
            }
        }
    }
}
