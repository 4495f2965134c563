//! Kernels over codes against their definition, for every instruction set there is.

use super::codes::*;
use super::tile::{KEYS, PANEL};
use super::{Isa, Simd, Task};
use crate::math::hash;
use crate::mem::Rows;
use std::vec;
use std::vec::Vec;

fn noise(n: usize, seed: u64) -> Vec<f32> {
    (0..n).map(|i| (hash(seed, i as u64) >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

fn all() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available())
}

/// Products of sixteen fours of bytes on -7.
struct Dot8<'a>(&'a [u8; 64], &'a [i8; 64], &'a mut [f32; 16]);

impl Task for Dot8<'_> {
    type Out = ();
    const DOT16: bool = true;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for lane in (0..16).step_by(S::LANES) {
            // SAFETY: LANES fours of bytes from lane on are inside both.
            unsafe {
                let (a, b) =
                    (s.load_i(self.0.as_ptr().add(lane * 4).cast()), s.load_i(self.1.as_ptr().add(lane * 4).cast()));
                s.store(self.2.as_mut_ptr().add(lane), s.to_f32(s.dot8(s.splat_i(-7), a, b)));
            }
        }
    }
}

#[test]
fn products_of_bytes_are_exact_at_the_extremes() {
    for isa in all() {
        for seed in 0..if cfg!(miri) { 2 } else { 50 } {
            let pick = |i: usize, of: [u8; 3]| {
                let h = hash(seed, i as u64);
                [of[0], of[1], of[2], h as u8][(h >> 9) as usize % 4]
            };
            let a: [u8; 64] = core::array::from_fn(|i| pick(i, [0, 255, 128]));
            let b: [i8; 64] = core::array::from_fn(|i| pick(64 + i, [0x80, 0x7f, 0]) as i8);
            let mut out = [0.0; 16];
            isa.run(Dot8(&a, &b, &mut out));
            for (lane, have) in out.into_iter().enumerate() {
                let want: i32 = (0..4).map(|i| i32::from(a[lane * 4 + i]) * i32::from(b[lane * 4 + i])).sum();
                assert_eq!(have, (want - 7) as f32, "{isa:?}");
            }
        }
    }
}

/// Everything offered, in order.
struct Offers {
    limits: Vec<f32>,
    got: Vec<(u32, u32, f32)>,
}

impl Sink for Offers {
    fn limit(&self, row: u32) -> f32 {
        self.limits[row as usize]
    }
    fn take(&mut self, row: u32, first: u32, bits: u64, scores: &[f32; OFFER]) {
        for i in (0..64).filter(|i| bits >> i & 1 == 1) {
            self.got.push((row, first + i, scores[i as usize]));
        }
    }
}

#[test]
fn scans_offer_what_their_definition_says() {
    let shapes = [(1, 1, 1), (3, 2, 5), (8, 5, 13), (32, 9, 20)];
    // Miri takes a thousand times as long.
    for &(quads, blocks, visitors) in if cfg!(miri) { &shapes[1..2] } else { &shapes[..] } {
        let rank = quads * 4;
        let keys = blocks * BLOCK;
        let (mut codes, mut unit, mut bias) = (vec![0u8; keys * rank], vec![0.0; keys], noise(keys, 5));
        let raw = noise(keys * rank, 1);
        for i in 0..keys {
            let block = &mut codes[i / BLOCK * BLOCK * rank..][..BLOCK * rank];
            unit[i] = round_key(&raw[i * rank..][..rank], block, i % BLOCK);
        }
        bias[keys - 1] = f32::NEG_INFINITY;
        let rows = 9;
        let asked = noise(rows * rank, 2);
        let (mut q, mut q_unit, mut sum) = (vec![0i8; rows * rank], vec![0.0; rows], vec![0; rows]);
        for i in 0..rows {
            (q_unit[i], sum[i]) = round_query(&asked[i * rank..][..rank], &mut q[i * rank..][..rank]);
            assert_eq!(sum[i], q[i * rank..][..rank].iter().map(|&x| i32::from(x)).sum::<i32>());
        }
        let visits: Vec<Visit> =
            (0..visitors).map(|i| Visit { row: (i * 5 % rows) as u32, center: i as f32 * 0.1 }).collect();
        let limits: Vec<f32> = (0..rows).map(|i| 0.2 * i as f32 - 0.3).collect();
        let mut want = Vec::new();
        for v in &visits {
            let row = v.row as usize;
            for i in 0..keys - 1 {
                let at = |k: usize| codes[(((i / BLOCK) * quads + k / 4) * BLOCK + i % BLOCK) * 4 + k % 4];
                let dot: i32 = (0..rank).map(|k| (i32::from(at(k)) - 128) * i32::from(q[row * rank + k])).sum();
                let score = dot as f32 * unit[i] * q_unit[row] + bias[i] + v.center;
                // Decoded, a code is its number to within half a step.
                for k in 0..rank {
                    assert!(((i32::from(at(k)) - 128) as f32 * unit[i] - raw[i * rank + k]).abs() <= 0.501 * unit[i]);
                }
                want.push((v.row, i as u32, score));
            }
        }
        for isa in all() {
            let mut sink = Offers { limits: limits.clone(), got: Vec::new() };
            let blocks = Blocks { codes: &codes, unit: &unit, bias: &bias, first: 100 };
            let queries = Coded { codes: &q, unit: &q_unit, sum: &sum, quads };
            isa.run(Scan { blocks, queries, visits: &visits, sink: &mut sink });
            for &(row, i, score) in &want {
                let near = |s: f32| (s - score).abs() < 1e-4;
                let times = sink.got.iter().filter(|g| (g.0, g.1) == (row, i + 100) && near(g.2)).count();
                let limit = limits[row as usize];
                if score > limit + 1e-4 {
                    assert!(times >= 1, "{isa:?}: {row} {i} {score}");
                }
            }
            assert!(sink.got.iter().all(|g| g.2 > limits[g.0 as usize] - 1e-4 && g.1 < 100 + keys as u32 - 1));
            assert!(sink.got.len() < want.len() && !sink.got.is_empty());
        }
    }
}

#[test]
fn values_without_a_step_round_to_nothing() {
    let mut block = [7u8; BLOCK * 4];
    assert_eq!(round_key(&[0.0; 4], &mut block, 3), 0.0);
    assert_eq!(block[12..16], [128; 4]);
    let mut code = [7i8; 4];
    assert_eq!(round_query(&[0.0; 3], &mut code), (0.0, 0));
    assert_eq!(code, [0; 4]);
    assert_eq!(round_query(&[-2.0, 1.0, 2.0], &mut code).1, 64);
    assert_eq!(code, [-127, 64, 127, 0]);
}

#[test]
fn panels_hold_rows_and_products_are_those_of_rows() {
    for cols in if cfg!(miri) { 15..=16 } else { 1..=37 } {
        let (rows, at) = (noise(60 * cols, 3), [5u32, 59, 0, 17, 17]);
        let others = noise(7 * cols, 4);
        for isa in all() {
            let mut panel = vec![0.0; cols * PANEL];
            isa.run(Pack { rows: &rows, stride: cols, cols, at: &at, out: &mut panel });
            for lane in 0..PANEL {
                let row = at[lane.min(at.len() - 1)] as usize;
                assert!((0..cols).all(|k| panel[k * PANEL + lane] == rows[row * cols + k]));
            }
            let mut out = vec![0.0; (7 + KEYS) * PANEL];
            isa.run(Product { panel: &panel, rows: Rows::new(&others, cols).unwrap(), out: &mut out });
            let mut which = [0.0; PANEL];
            let half = [0.1, 0.0, 0.2, 0.0, 0.0, 0.3, 0.1];
            isa.run(Nearest { products: &out, half: &half, out: &mut which });
            for lane in 0..PANEL {
                let row = &rows[at[lane.min(at.len() - 1)] as usize * cols..][..cols];
                let dot = |i: usize| row.iter().zip(&others[i * cols..]).map(|(a, b)| a * b).sum::<f32>();
                assert!((0..7).all(|i| (out[i * PANEL + lane] - dot(i)).abs() < 1e-5));
                let best = (0..7).map(|i| dot(i) - half[i]).fold(f32::MIN, f32::max);
                assert!(dot(which[lane] as usize) - half[which[lane] as usize] > best - 1e-5);
            }
        }
    }
}

struct Caught {
    limits: [f32; PANEL],
    got: Vec<(u32, u64)>,
}

impl Catch for Caught {
    fn limits(&self) -> &[f32; PANEL] {
        &self.limits
    }
    fn take(&mut self, key: u32, bits: u64) {
        self.got.push((key, bits));
    }
}

#[test]
fn sieves_catch_what_their_definition_says() {
    let (dim, keys, lanes) = if cfg!(miri) { (3, 70, 20) } else { (19, 150, 20) };
    let (base, asked) = (noise(keys * dim, 6), noise(lanes * dim, 7));
    let norm2: Vec<f32> = base.chunks_exact(dim).map(|k| k.iter().map(|x| x * x).sum()).collect();
    let at: Vec<u32> = (0..lanes as u32).collect();
    for isa in all() {
        let mut panel = vec![0.0; dim * PANEL];
        isa.run(Pack { rows: &asked, stride: dim, cols: dim, at: &at, out: &mut panel });
        let mut catch = Caught { limits: [f32::INFINITY; PANEL], got: Vec::new() };
        catch.limits[..lanes].fill(0.5);
        let spread = [0.01; PANEL];
        let mut room = vec![0.0; (SIEVE + KEYS) * PANEL];
        isa.run(Sieve {
            panel: &panel,
            keys: Rows::new(&base, dim).unwrap(),
            lo: 10,
            hi: keys,
            lanes,
            norm2: &norm2,
            half: 0.5,
            spread: &spread,
            room: &mut room,
            catch: &mut catch,
        });
        let mut sure = 0;
        for key in 0..keys {
            let bits: u64 = catch.got.iter().filter(|g| g.0 == key as u32).map(|g| g.1).sum();
            for lane in 0..lanes {
                let row = &asked[lane * dim..][..dim];
                let dot: f32 = row.iter().zip(&base[key * dim..]).map(|(a, b)| a * b).sum();
                let x = dot - 0.5 * norm2[key] + 0.01 * norm2[key].sqrt() - 0.5;
                if x.abs() > 1e-5 && key >= 10 {
                    assert_eq!(bits >> lane & 1 == 1, x > 0.0, "{isa:?} {key} {lane}");
                    sure += u32::from(x > 0.0);
                }
                assert!(key >= 10 || bits == 0);
            }
            assert_eq!(bits >> lanes, 0, "lanes without a query catch nothing");
        }
        assert!(sure > 0);
    }
}

#[test]
fn reranking_is_the_kernel_of_single_rows() {
    let dim = 37;
    let (rows, q) = (noise(40 * dim, 8), noise(dim, 9));
    let at = [3u32, 39, 0, 3, 7, 22, 21];
    for isa in all() {
        for l2 in [false, true] {
            for n in 0..=at.len() {
                let mut out = vec![0.0; n];
                isa.run(Rerank { rows: &rows, dim, at: &at[..n], query: &q, l2, out: &mut out });
                for (x, &i) in out.iter().zip(&at) {
                    let row = &rows[i as usize * dim..][..dim];
                    assert_eq!(*x, if l2 { isa.sq_dist(row, &q) } else { isa.dot(row, &q) });
                }
            }
        }
    }
}
