//! Kernels over all cells of a node beside naive twins, cell by cell.

use super::tests::{QUERIES, cap, close, first, isas, noise};
use super::*;
use crate::math::hash;
use crate::mem::Rows;
use std::vec;
use std::vec::Vec;

/// Queries of a list.
const STEP: usize = QUERIES;

/// Who opens what: nobody, some, all, in one list after the other.
struct Openings {
    len: [usize; BLOCK],
    rows: Vec<u16>,
    places: Vec<u16>,
}

impl Openings {
    fn new() -> Openings {
        let mut some = Openings { len: [0; BLOCK], rows: vec![0; BLOCK * STEP], places: vec![0; BLOCK * STEP] };
        for lane in 0..BLOCK {
            some.len[lane] = [0, 1, 2, 7, 0, STEP][lane % 6];
            for i in 0..some.len[lane] {
                some.rows[lane * STEP + i] = ((i * 3 + lane) % QUERIES) as u16;
                some.places[lane * STEP + i] = ((i * 5 + lane) % QUERIES) as u16;
            }
        }
        some
    }

    fn listing(&mut self) -> Listing<'_> {
        Listing { len: &mut self.len, stride: STEP, rows: &mut self.rows, places: &mut self.places }
    }

    /// Queries and places of a list.
    fn of(&self, lane: usize) -> impl Iterator<Item = (usize, usize)> {
        let at = lane * STEP..lane * STEP + self.len[lane];
        self.rows[at.clone()].iter().zip(&self.places[at]).map(|(&r, &p)| (r as usize, p as usize))
    }
}

/// By query: sums of weights and what they come to.
struct Sums {
    sum: Vec<f32>,
    mass: Vec<f32>,
    light: Vec<f32>,
    lost: Vec<bool>,
    out: Vec<f32>,
}

#[test]
fn opened_cells_are_weighed_and_added() {
    for &(dim, cols) in first(1, &[(5usize, 3usize), (32, 40), (64, 64)]) {
        let (q_stride, stride) = (dim.next_multiple_of(BLOCK), cols.next_multiple_of(16));
        let (keys, values) = (noise(300 * dim, 101), noise(300 * cols, 102));
        let (key, value) = (Rows::new(&keys, dim).unwrap(), Rows::new(&values, cols).unwrap());
        let ids: Vec<u32> = (0..BLOCK * BLOCK).map(|j| (hash(103, j as u64) % 300) as u32).collect();
        let mut q = noise(QUERIES * q_stride, 104);
        q.chunks_mut(q_stride).for_each(|row| row[dim..].fill(0.0));
        let reference = noise(QUERIES, 105);
        let fine: Vec<f32> = noise(QUERIES, 106).iter().map(|x| x.abs() * 2.0).collect();
        for isa in isas() {
            for (few, softcap) in [(true, 0.0), (false, 0.0), (true, 3.0), (false, 3.0)] {
                let mut some = Openings::new();
                let zeros = |n: usize| vec![0.0f32; n];
                let mut to = Sums {
                    sum: zeros(QUERIES * BLOCK),
                    mass: vec![-1.0; QUERIES * BLOCK],
                    light: zeros(QUERIES),
                    lost: vec![false; QUERIES],
                    out: zeros(QUERIES * stride),
                };
                let lists = if few { BLOCK } else { 1 };
                let (mut scores, mut full) = (zeros(lists * STEP * BLOCK), vec![[0; 2]; lists * STEP]);
                let (mut block, mut room) = (zeros(dim * BLOCK), zeros(dim * BLOCK));
                let pairs = isa.run(Opened {
                    keys: &key,
                    values: &value,
                    ids: &ids,
                    q: Matrix { data: &q, stride: q_stride, cols: dim },
                    lists: some.listing(),
                    few,
                    softcap,
                    biases: None,
                    reference: &reference,
                    fine: &fine,
                    sum: &mut to.sum,
                    mass: &mut to.mass,
                    light: &mut to.light,
                    lost: &mut to.lost,
                    out: &mut to.out,
                    stride,
                    scores: &mut scores,
                    full: &mut full,
                    block: &mut block,
                    room: &mut room,
                });
                assert_eq!(pairs, some.len.iter().sum::<usize>());
                let (mut out, mut light) = (vec![0.0; QUERIES * cols], [0.0; QUERIES]);
                let mut sum = [0.0; QUERIES];
                for lane in 0..BLOCK {
                    for (r, place) in some.of(lane) {
                        let mut shared = 0.0;
                        for &id in &ids[lane * BLOCK..][..BLOCK] {
                            let id = id as usize;
                            let of = |k: usize| f64::from(q[r * q_stride + k]) * f64::from(keys[id * dim + k]);
                            let x = cap((0..dim).map(of).sum(), softcap);
                            let w = (x - f64::from(reference[r])).exp2();
                            sum[r] += w;
                            // Where a weight is as large as the limit, within rounding, both ways lead to the same sum.
                            if w < f64::from(fine[r]) {
                                shared += w;
                            } else {
                                let value = values[id * cols..][..cols].iter();
                                let to = out[r * cols..][..cols].iter_mut();
                                to.zip(value).for_each(|(to, &v)| *to += w * f64::from(v));
                            }
                        }
                        light[r] += shared;
                        close(to.mass[place * BLOCK + lane], shared, 1e3, isa.name());
                    }
                }
                for r in 0..QUERIES {
                    let have: f32 = to.sum[r * BLOCK..][..BLOCK].iter().sum();
                    close(have, sum[r], 10.0 * sum[r].max(1.0), isa.name());
                    close(to.light[r], light[r], 10.0 * light[r].max(1.0), isa.name());
                    for c in 0..cols {
                        close(to.out[r * stride + c], out[r * cols + c], 10.0 * sum[r].max(1.0), isa.name());
                    }
                    assert!(!to.lost[r]);
                }
            }
        }
    }
}
