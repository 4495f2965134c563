//! Kernels over coordinates in four bits, and what bounds are made from them, beside naive twins.

use super::tests::{QUERIES, cap, close, first, isas, lists, noise};
use super::*;
use crate::math::hash;
use crate::simd::{Isa, Task};
use half::bf16;
use std::vec;
use std::vec::Vec;

/// A block of vectors in four bits and queries in bytes.
struct Rounded {
    words: Vec<u32>,
    unit: [bf16; BLOCK],
    codes: Vec<i32>,
    of: Vec<Along>,
}

impl Rounded {
    /// Vectors of `dim` elements of about `size`, queries of about 1; a slack for each.
    fn new(dim: usize, size: f32, seed: u64) -> Rounded {
        let rows: Vec<f32> = noise(BLOCK * dim, seed).iter().map(|x| x * size).collect();
        let (mut words, mut unit) = (vec![0; super::words(dim) * BLOCK], [bf16::ZERO; BLOCK]);
        Isa::Scalar.run(Encode { rows: &rows, stride: dim, dim, words: &mut words, unit: &mut unit });
        let len = 2 * super::words(dim);
        let (mut codes, q) = (vec![0; QUERIES * len], noise(QUERIES * dim, seed + 1));
        let of = (0..QUERIES).map(|r| {
            let (x, out) = (&q[r * dim..][..dim], &mut codes[r * len..][..len]);
            let (unit, sum, lost) = Isa::Scalar.run(RoundQuery { x, out });
            Along { far: 0.2, ..Along::new(unit, sum, lost).allowing(0.3) }
        });
        let of = of.collect();
        Rounded { words, unit, codes, of }
    }

    fn coded(&self) -> Coded<'_> {
        Coded { words: &self.words, unit: &self.unit }
    }

    fn bytes(&self) -> Bytes<'_> {
        Bytes { codes: &self.codes, of: &self.of }
    }

    /// Element `k` of query `r` as its byte says.
    fn query(&self, r: usize, k: usize) -> f64 {
        let len = self.codes.len() / QUERIES;
        f64::from((self.codes[r * len + k / 4] >> (k % 4 * 8)) as i8) * f64::from(self.of[r].unit)
    }

    /// Product of query `r` and vector `j`.
    fn product(&self, dim: usize, r: usize, j: usize) -> f64 {
        (0..dim).map(|k| self.query(r, k) * f64::from(self.coded().decode(k, j))).sum()
    }
}

#[test]
fn products_of_nibbles_are_exact_at_the_extremes() {
    struct Products<'a>(&'a [i32; 16], &'a [i32; 16], &'a mut [[f32; 16]; 2]);
    impl Task for Products<'_> {
        type Out = ();
        const DOT16: bool = true;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for lane in (0..16).step_by(S::LANES) {
                // SAFETY: lanes of arrays of sixteen.
                unsafe {
                    let (a, b) = (s.load_i(self.0.as_ptr().add(lane)), s.load_i(self.1.as_ptr().add(lane)));
                    for (half, part) in s.nibbles(a).into_iter().enumerate() {
                        s.store(self.2[half].as_mut_ptr().add(lane), s.to_f32(s.dot7(s.splat_i(9), part, b)));
                    }
                }
            }
        }
    }
    for isa in isas() {
        for seed in 0..if cfg!(miri) { 2 } else { 50 } {
            let pick = |i: usize, of: [u8; 3]| {
                let h = hash(seed, i as u64);
                [of[0], of[1], of[2], h as u8][(h >> 9) as usize % 4]
            };
            let a: [[u8; 4]; 16] =
                core::array::from_fn(|j| core::array::from_fn(|b| pick(j * 4 + b, [0xff, 0xf0, 0x0f])));
            let b: [[u8; 4]; 16] =
                core::array::from_fn(|j| core::array::from_fn(|b| pick(99 + j * 4 + b, [0x80, 0x7f, 0])));
            let mut out = [[0.0; 16]; 2];
            isa.run(Products(&a.map(i32::from_le_bytes), &b.map(i32::from_le_bytes), &mut out));
            for j in 0..16 {
                for (half, out) in out.iter().enumerate() {
                    let code = |b: usize| i32::from(a[j][b] >> (4 * half) & 15);
                    let want: i32 = (0..4).map(|i| code(i) * i32::from(b[j][i] as i8)).sum();
                    assert_eq!(out[j], (want + 9) as f32, "{}", isa.name());
                }
            }
        }
    }
}

#[test]
fn rounding_is_to_the_nearest_step_everywhere() {
    for isa in isas() {
        for &dim in first(3, &[1, 4, 7, 8, 64, 83]) {
            let stride = dim + 3;
            let mut rows = noise(BLOCK * stride, dim as u64);
            // Vectors of all sizes, of zeros, and of numbers that have no inverse in f32.
            for (j, row) in rows.chunks_exact_mut(stride).enumerate() {
                let size = [1.0, 0.0, 1e30, 1e-30, 1e-42][j % 5];
                row.iter_mut().for_each(|x| *x *= size);
            }
            let (mut words, mut unit) = (vec![0; super::words(dim) * BLOCK], [bf16::ONE; BLOCK]);
            isa.run(Encode { rows: &rows, stride, dim, words: &mut words, unit: &mut unit });
            let coded = Coded { words: &words, unit: &unit };
            for j in 0..BLOCK {
                let row = &rows[j * stride..][..dim];
                let largest = row.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                let step = unit[j].to_f32();
                assert!(step <= largest / 7.5 * 1.01 && (step > 0.0 || largest < 1e-36), "{step} of {largest}");
                for (k, &x) in row.iter().enumerate() {
                    let wrong = (coded.decode(k, j) - x).abs();
                    let most = if step > 0.0 { 0.5001 * step } else { largest };
                    assert!(wrong <= most, "{}, {dim}: {x} is off by {wrong}, steps of {step}", isa.name());
                }
            }
            for size in [1.0, 1e30, 1e-20, 0.0, 1e-42] {
                let x: Vec<f32> = noise(dim, 7).iter().map(|x| x * size).collect();
                let mut out = vec![-1; 2 * super::words(dim)];
                let (unit, sum, lost) = isa.run(RoundQuery { x: &x, out: &mut out });
                let byte = |k: usize| (out[k / 4] >> (k % 4 * 8)) as i8;
                let off: Vec<f64> = (0..dim).map(|k| f64::from(x[k]) - f64::from(byte(k)) * f64::from(unit)).collect();
                assert!(off.iter().all(|o| o.abs() <= 0.5001 * f64::from(if unit > 0.0 { unit } else { 1e-36 })));
                assert!((dim..out.len() * 4).all(|k| byte(k) == 0));
                assert_eq!(sum, (0..dim).map(|k| f32::from(byte(k))).sum::<f32>());
                let length = off.iter().map(|o| o * o).sum::<f64>().sqrt();
                let dust = 1e-6 * f64::from(size);
                let [least, most] = if unit > 0.0 { [0.999, 1.001] } else { [1.0, 2.0 * (dim as f64).sqrt()] };
                assert!(
                    (least * length - dust..=most * length + dust).contains(&f64::from(lost)),
                    "{lost} and {length}"
                );
            }
        }
    }
}

#[test]
fn sifting_keeps_the_rows_with_a_key_that_reaches_the_needle() {
    let centers = noise(QUERIES * BLOCK, 18);
    let reach = noise(BLOCK, 19);
    let mut sure = vec![0u16; QUERIES];
    sure[4] = 1 << 6;
    for &dim in first(1, &[5, 32, 72]) {
        let mut rounded = Rounded::new(dim, 1.5, 15);
        for (along, x) in rounded.of.iter_mut().zip(noise(QUERIES, 17)) {
            along.needle = x * 6.0 + 3.0;
        }
        let coded = rounded.coded();
        for isa in isas() {
            for (list, softcap) in lists(QUERIES).zip([0.0, 0.0, 9.0, 0.0, 0.0, 9.0, 0.0, 9.0]) {
                let (mut rows, mut places, mut scores) = (list.clone(), list.clone(), vec![0.0; list.len() * BLOCK]);
                places.reverse();
                let given = places.clone();
                let n = isa.run(Sift {
                    keys: coded,
                    q: rounded.bytes(),
                    softcap,
                    reach: &reach,
                    scores: &mut scores,
                    centers: &centers,
                    sure: &sure,
                    lane: 6,
                    rows: &mut rows,
                    places: &mut places,
                });
                let (mut want, mut means) = (Vec::new(), Vec::new());
                for (&r, &place) in list.iter().zip(&given) {
                    let a = &rounded.of[r as usize];
                    let center = f64::from(centers[place as usize * BLOCK + 6]);
                    let x: Vec<f64> = (0..BLOCK).map(|j| rounded.product(dim, r as usize, j) + center).collect();
                    let best = (0..BLOCK).map(|j| {
                        let slack = f64::from(a.slack) * f64::from(coded.unit[j].to_f32());
                        cap(x[j] + slack + f64::from(a.far) * f64::from(reach[j]), softcap)
                    });
                    let best = best.fold(f64::NEG_INFINITY, f64::max) - f64::from(a.needle);
                    assert!(best.abs() > 1e-5, "the test's own numbers are clear");
                    if best > 0.0 || sure[place as usize] >> 6 & 1 == 1 {
                        want.push((r, place));
                        means.extend(x);
                    }
                }
                let have: Vec<(u16, u16)> = rows[..n].iter().copied().zip(places[..n].iter().copied()).collect();
                assert_eq!(have, want, "{}", isa.name());
                scores.iter().zip(&means).for_each(|(&have, &want)| close(have, want, 100.0, isa.name()));
                assert!(list.len() < QUERIES || (1..QUERIES).contains(&n), "rows of both kinds: {n}");
            }
        }
    }
}

/// Every cell of a node at once, by the coordinates of its keys.
#[test]
fn cells_keep_the_rows_with_a_key_that_reaches_the_needle() {
    let centers = noise(QUERIES * BLOCK, 113);
    // Places are numbers of rows in the node's list, which begins with the last query.
    let listed: Vec<u16> = (0..QUERIES as u16).rev().collect();
    let sure: Vec<u16> = (0..QUERIES).map(|i| u16::from(i % 7 == 4) << (i % 16)).collect();
    for &dim in first(1, &[5, 32, 72]) {
        let mut cells: Vec<Rounded> = (0..BLOCK as u64).map(|lane| Rounded::new(dim, 1.5, 115 + 2 * lane)).collect();
        // Queries of the first, for all.
        let (codes, mut of) = (cells[0].codes.clone(), cells[0].of.clone());
        for ((of, x), i) in of.iter_mut().zip(noise(QUERIES, 17)).zip(0..) {
            of.needle = match i {
                11 => f32::NEG_INFINITY,
                12 => f32::INFINITY,
                _ => x * 6.0 + 3.0,
            };
        }
        cells.iter_mut().for_each(|cell| (cell.codes, cell.of) = (codes.clone(), of.clone()));
        let words: Vec<u32> = cells.iter().flat_map(|cell| cell.words.clone()).collect();
        let unit: Vec<[bf16; BLOCK]> = cells.iter().map(|cell| cell.unit).collect();
        for isa in isas() {
            for (count, softcap) in
                [(1, 0.0), (3, 5.0), (15, 0.0), (16, 9.0), (18, 0.0), (QUERIES, 0.0), (QUERIES, 9.0)]
            {
                let mut len = [0; BLOCK];
                let (mut rows, mut places) = (vec![0; BLOCK * QUERIES], vec![0; BLOCK * QUERIES]);
                for lane in (0..BLOCK).filter(|lane| lane % 5 != 3) {
                    len[lane] = count - lane * count / 40;
                    for i in 0..len[lane] {
                        places[lane * QUERIES + i] = ((i * 5 + lane) % QUERIES) as u16;
                        rows[lane * QUERIES + i] = listed[places[lane * QUERIES + i] as usize];
                    }
                }
                let (given, given_places, given_len) = (rows.clone(), places.clone(), len);
                let mut gaps = centers.clone();
                let before = isa.run(SiftKeys {
                    keys: Many { words: &words, each: super::words(dim) * BLOCK, unit: &unit },
                    q: Bytes { codes: &codes, of: &of },
                    softcap,
                    rows: &listed,
                    centers: &mut gaps,
                    sure: &sure,
                    lists: Listing { len: &mut len, stride: QUERIES, rows: &mut rows, places: &mut places },
                });
                assert_eq!(before, given_len.iter().sum::<usize>());
                for lane in 0..BLOCK {
                    let at = lane * QUERIES;
                    let mut want = Vec::new();
                    for (&r, &place) in given[at..][..given_len[lane]].iter().zip(&given_places[at..]) {
                        let a = &of[r as usize];
                        let center = f64::from(centers[place as usize * BLOCK + lane]);
                        let best = (0..BLOCK).map(|j| {
                            let slack = f64::from(a.slack) * f64::from(unit[lane][j].to_f32());
                            cap(cells[lane].product(dim, r as usize, j) + center + slack, softcap)
                        });
                        let best = best.fold(f64::NEG_INFINITY, f64::max) - f64::from(a.needle);
                        assert!(best.abs() > 1e-5, "the test's own numbers are clear");
                        if best > 0.0 || sure[place as usize] >> lane & 1 == 1 {
                            want.push((r, place));
                        }
                    }
                    let have: Vec<(u16, u16)> =
                        rows[at..][..len[lane]].iter().copied().zip(places[at..].iter().copied()).collect();
                    assert_eq!(have, want, "{}, cell {lane}", isa.name());
                }
                let after: usize = len.iter().sum();
                assert!(count < QUERIES || (1..before).contains(&after), "rows of both kinds: {after} of {before}");
            }
        }
    }
}

/// Largest root mean square along many directions, those of the power method among them.
fn widest(vectors: &[f32]) -> f64 {
    let dim = vectors.len() / BLOCK;
    let mut best: f64 = 0.0;
    for seed in 0..if cfg!(miri) { 3 } else { 20 } {
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
        for &(dim, scale) in first(2, &[(1, 1.0), (3, 1e-12), (24, 1.0), (64, 1e9), (80, 1.0)]) {
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
        for &dim in first(1, &[5, 32, 67]) {
            let rounded = Rounded::new(dim, 1.0, 30);
            // Any vectors: it is not for this kernel that they are those of the codes.
            let residuals = noise(dim * BLOCK, 32);
            let mut vectors = residuals.clone();
            let have = isa.run(Remainders { coded: rounded.coded(), vectors: &mut vectors });
            let mut want = [0.0f64; 2];
            for j in 0..BLOCK {
                let d: Vec<f64> = (0..dim).map(|k| f64::from(rounded.coded().decode(k, j))).collect();
                let t: Vec<f64> = (0..dim).map(|k| f64::from(residuals[k * BLOCK + j]) - d[k]).collect();
                let length = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
                want = [want[0].max(length(&d)), want[1].max(length(&t))];
                (0..dim).for_each(|k| close(vectors[k * BLOCK + j], t[k], 10.0, isa.name()));
            }
            for (have, want) in have.into_iter().zip(want) {
                close(have, want, want, isa.name());
            }
            let width = widest(&vectors);
            assert!(f64::from(have[2]) >= width * (1.0 - 1e-4) && f64::from(have[2]) < 1.2 * width);
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
    let dim = 24;
    let mut rounded = Rounded::new(dim, 1.5, 40);
    for (along, x) in rounded.of.iter_mut().zip(noise(QUERIES, 42)) {
        along.needle = x * 6.0 + 2.0;
    }
    let coarsest = rounded.unit.iter().fold(0.0, |m, u| u.to_f32().max(m));
    let centers: Vec<f32> = noise(QUERIES * BLOCK, 43).iter().map(|x| x * 3.0).collect();
    let beyond = Beyond { decoded: 0.02, reach: 0.4, width: 0.15, value_width: 0.7, value: 1.3 };
    let lane = 6;
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
                let [lost, length, reference, budget, spent, value, square, excess] = &mut b.columns;
                let share = 3.0;
                let n = isa.run(Bound {
                    keys: rounded.coded(),
                    beyond,
                    softcap,
                    q: rounded.bytes(),
                    rows: &list,
                    centers: &centers,
                    lane,
                    opening: if by_rule { Opening::Rule(&open, &sure) } else { Opening::Budget { share, left: 9.0 } },
                    proofs: Proofs { lost, length, reference, budget, spent, value, square, excess },
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
                    let x: Vec<f64> = (0..BLOCK).map(|j| rounded.product(dim, r as usize, j)).collect();
                    let e: Vec<f64> = x.iter().map(|x| (cap(s + x, softcap) - cap(s, softcap)).exp2()).collect();
                    let mean = |f: &dyn Fn(f64) -> f64| e.iter().map(|&e| f(e)).sum::<f64>() / BLOCK as f64;
                    let (em, e2) = (mean(&|e| e), mean(&|e| e * e));
                    let top = e.iter().fold(0.0, |m: f64, &x| m.max(x));
                    let off = of(0) * f64::from(beyond.decoded);
                    let natural = |x: f32| (off + of(1) * f64::from(x)) * core::f64::consts::LN_2;
                    let (rho, sigma) = (natural(beyond.reach), natural(beyond.width));
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
                    let slack = f64::from(coarsest) * f64::from(rounded.of[r as usize].slack);
                    let best = x.iter().fold(f64::MIN, |m, &x| m.max(x)) + s + slack;
                    let [opens, margin] = if by_rule {
                        let reaches = cap(best, softcap) - f64::from(rounded.of[r as usize].needle);
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
