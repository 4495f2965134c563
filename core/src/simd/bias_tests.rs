//! Biases of the keys behind entries beside their definition, on every instruction set of the machine.

use super::bias::{Extent, HeadBiases, Largest, SEGMENT};
use super::clustered::{CELL, EntryBiases, ScoreEntries, WeighEntries};
use super::clustered_tests::{capped, close, dot, first as first_of, isas, noise, panel};
use super::online::State;
use super::tile::{KEYS, PANEL};
use crate::mem::{Rows, Tensor};
use half::f16;
use std::format;
use std::vec;
use std::vec::Vec;

/// Biases of two heads, one key in so many hidden, and the query of each row.
pub(super) fn some_biases(rows: usize, keys: usize, scale: f32, hidden: usize) -> (Vec<f16>, Vec<[u32; 2]>) {
    let mut biases: Vec<f16> = noise(2 * rows * keys, 31).iter().map(|&x| f16::from_f32(scale * x + 2.5)).collect();
    biases.iter_mut().step_by(hidden).for_each(|x| *x = f16::NEG_INFINITY);
    (biases, (0..rows as u32).map(|r| [r % 2, r * 5 % rows as u32]).collect())
}

pub(super) fn heads_of(biases: &[f16], rows: usize, keys: usize) -> HeadBiases<'_> {
    HeadBiases { tensor: Tensor::new(biases, [1, 2, rows, keys]).expect("shape"), batch: 0 }
}

/// The bias that the query of a head has for a key.
pub(super) fn bias_at(biases: &[f16], keys: usize, [head, row]: [u32; 2], key: usize) -> f64 {
    let rows = biases.len() / 2 / keys;
    biases[(head as usize * rows + row as usize) * keys + key].to_f64()
}

#[test]
fn biases_of_the_keys_behind_entries_count() {
    // Keys of the first and the third of three segments, in any order.
    let (n, keys, dim) = (2 * CELL, 3 * SEGMENT, 8);
    let ids: Vec<u32> = (0..n * CELL).map(|i| (i * 7 % SEGMENT + i / SEGMENT * 2 * SEGMENT) as u32).collect();
    let mut known = vec![0u16; n];
    (known[2], known[4]) = (0b101, u16::MAX);
    let shift: Vec<f32> = known.iter().map(|&k| if k == u16::MAX { f32::NEG_INFINITY } else { 0.3 }).collect();
    let (mean_keys, q) = (noise(n * dim, 32), noise(PANEL * dim, 33));
    let factor = std::f32::consts::LOG2_E;
    // Far apart; near each other; all alike.
    let kinds = [(1.0, 10.0), (0.2, 50.0), (0.0, 10.0)];
    for (isa, &(scale, unit)) in isas().flat_map(|isa| first_of(1, &kinds).iter().map(move |kind| (isa, kind))) {
        let (biases, queries) = some_biases(PANEL, keys, scale, usize::MAX);
        let of = heads_of(&biases, PANEL, keys).of(&queries);
        let entries = EntryBiases { of, ids: &ids, known: &known };
        let (lanes, q_panel) = (PANEL - 3, panel(&q, dim, PANEL - 3));
        let (mut max, mut sum, mut alpha) = ([f32::NEG_INFINITY; PANEL], [0.0; PANEL], [1.0; PANEL]);
        let [mut scores, mut weights] = [(); 2].map(|()| vec![f32::NAN; (n + KEYS) * PANEL]);
        isa.run(ScoreEntries {
            q: &q_panel,
            lanes,
            keys: Rows::new(&mean_keys, dim).expect("rows"),
            shift: &shift,
            logits: Some((0.7, 0.0)),
            biases: Some(entries),
            factor,
            scores: &mut scores,
            weights: &mut weights,
            state: State { max: &mut max, sum: &mut sum, alpha: &mut alpha },
        });
        for lane in (0..lanes).step_by(if cfg!(miri) { 20 } else { 1 }) {
            let logit = |e: usize| capped(dot(&q[lane * dim..][..dim], &mean_keys[e * dim..][..dim]), Some((0.7, 0.0)));
            let unknown = |e: usize| {
                let of_e = known[e];
                (0..CELL).filter(move |j| of_e >> j & 1 == 0)
            };
            let bias = |e: usize, j: usize| bias_at(&biases, keys, queries[lane], ids[e * CELL + j] as usize);
            let mut row_scores: Vec<f32> = (0..n).map(|e| logit(e) as f32 / 0.7).collect();
            let (mut row_max, mut row_sum, mut row_weights) = (f32::NEG_INFINITY, 0.0, vec![f32::NAN; n]);
            isa.run(WeighEntries {
                scores: &mut row_scores,
                shift: &shift,
                logits: Some((0.7, 0.0)),
                biases: Some((entries, lane)),
                factor,
                weights: &mut row_weights,
                max: &mut row_max,
                sum: &mut row_sum,
            });
            let (mut all, mut all_of_row) = (0.0, 0.0);
            for e in 0..n {
                let what = format!("{} lane {lane} entry {e}", isa.name());
                let at = e * PANEL + lane;
                let most = unknown(e).map(|j| bias(e, j)).fold(f64::NEG_INFINITY, f64::max);
                let mass = unknown(e).map(|j| (logit(e) + bias(e, j)).exp()).sum::<f64>();
                if mass == 0.0 {
                    assert_eq!((scores[at], weights[at]), (f32::NEG_INFINITY, 0.0), "{what}");
                    assert_eq!((row_scores[e], row_weights[e]), (f32::NEG_INFINITY, 0.0), "{what}");
                    continue;
                }
                close(scores[at], logit(e) + most, 10.0, &what);
                close(row_scores[e], logit(e) + most, 10.0, &what);
                let [of_panel, of_row] = [max[lane], row_max].map(|max| mass * (-f64::from(max)).exp());
                close(weights[at], of_panel, unit * (1.0 + of_panel), &what);
                close(row_weights[e], of_row, unit * (1.0 + of_row), &what);
                (all, all_of_row) = (all + of_panel, all_of_row + of_row);
            }
            close(sum[lane], all, 10.0 * unit * (1.0 + all), isa.name());
            close(row_sum, all_of_row, 10.0 * unit * (1.0 + all_of_row), isa.name());
        }
    }
}

#[test]
fn what_biases_hide_of_a_segment_is_found() {
    let (rows, first, keys) = (9, 13, 13 + SEGMENT + 5);
    // Of which rows a key is hidden from: of none, of some, of all but the first or the last, of all.
    let kinds: [fn(usize, usize) -> bool; 7] = [
        |_, _| false,
        |i, j| j > 40 * i,
        |i, j| j % 17 == 3 && i > 0,
        |i, j| j % 17 == 3 && i < 8,
        |_, j| j == 255,
        |i, _| i != 4,
        |_, _| true,
    ];
    for (isa, hidden) in isas().flat_map(|isa| first_of(2, &kinds).iter().map(move |kind| (isa, kind))) {
        let (mut halves, _) = some_biases(rows, keys, 1.0, usize::MAX);
        for (at, x) in halves.iter_mut().enumerate() {
            let (i, j) = (at / keys % rows, (at % keys).wrapping_sub(first));
            // Outside everything is hidden.
            *x = if j >= SEGMENT || hidden(i, j) { f16::NEG_INFINITY } else { *x };
        }
        let wide: Vec<f32> = halves.iter().map(|x| x.to_f32()).collect();
        let of = |i: usize| &wide[i * keys + first..][..SEGMENT];
        for biases in [Rows::new(&halves[..rows * keys], keys), Rows::new(&wide[..rows * keys], keys)] {
            let biases = biases.expect("rows");
            for (begin, end) in [(0, rows), (3, 5), (4, 5), (8, 9)] {
                let [low, high] = isa.run(Extent { biases, rows: begin..end, first });
                let all = || (begin..end).flat_map(of).copied();
                let want = [all().fold(f32::INFINITY, f32::min), all().fold(f32::NEG_INFINITY, f32::max)];
                assert_eq!(low, want[0], "{}", isa.name());
                // Mixed segments need not be read to the end.
                let known = if low == f32::NEG_INFINITY { high > low } else { high == want[1] };
                assert!(known || want[1] == low, "{} {begin}..{end}: {high} for {}", isa.name(), want[1]);
                assert!(high <= want[1]);
            }
            let mut most = [f32::NEG_INFINITY; SEGMENT];
            let all = isa.run(Largest { biases, first, most: &mut most });
            let want: Vec<f32> =
                (0..SEGMENT).map(|j| (0..rows).map(|i| of(i)[j]).fold(f32::NEG_INFINITY, f32::max)).collect();
            assert_eq!(all, !want.contains(&f32::NEG_INFINITY), "{}", isa.name());
            if !all {
                assert_eq!(most.to_vec(), want, "{}", isa.name());
            }
        }
    }
}
