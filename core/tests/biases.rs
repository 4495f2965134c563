//! Accelerated attention under biases: near exact attention, by fewer pairs, whatever the biases are and whichever keys they hide.

mod common;

use common::heads::{Heads, distance, mode, near, noise};
use half::f16;
use iceformer_core::attention::{AttentionOptions, Mask, Mode};
use iceformer_core::math::hash;
use iceformer_core::mem::Tensor;
use iceformer_core::simd::Isa;

const ROWS: usize = 300;
const KEYS: usize = 2300;
const HIDDEN: f32 = f32::NEG_INFINITY;

/// Biases `[heads][ROWS][keys]`.
fn biases(heads: usize, keys: usize, of: impl Fn(usize, usize, usize) -> f32) -> Vec<f32> {
    let index = |h| (0..ROWS).flat_map(move |i| (0..keys).map(move |j| (h, i, j)));
    (0..heads).flat_map(index).map(|(h, i, j)| of(h, i, j)).collect()
}

/// By name: biases as trained models have them, and for how many heads.
fn gentle(keys: usize) -> Vec<(&'static str, usize, Vec<f32>)> {
    let distance = |i: usize, j: usize| (keys - ROWS + i).abs_diff(j) as f32;
    vec![
        ("slopes by head", 4, biases(4, keys, |h, i, j| -distance(i, j) * 0.002 / (h + 1) as f32)),
        ("buckets of distances", 1, biases(1, keys, |_, i, j| (distance(i, j) + 1.0).log2().floor() * -0.3)),
    ]
}

/// And others.
fn kinds() -> Vec<(&'static str, usize, Vec<f32>)> {
    let random = noise(ROWS * KEYS, 77, 1.0);
    let others = vec![
        ("every key its own", 1, biases(1, KEYS, |_, _, j| noise(1, j as u64, 0.7)[0])),
        ("every pair its own", 1, random),
        ("causal", 1, biases(1, KEYS, |_, i, j| if j > KEYS - ROWS + i { HIDDEN } else { 0.0 })),
        ("a key of most cells hidden", 1, biases(1, KEYS, |_, _, j| if j % 17 == 3 { HIDDEN } else { 0.1 })),
        (
            "most keys hidden",
            1,
            biases(1, KEYS, |_, i, j| if hash(i as u64 / 40, j as u64 / 300).is_multiple_of(4) { 0.0 } else { HIDDEN }),
        ),
        ("rows that see nothing", 1, biases(1, KEYS, |_, i, _| if i % 50 == 7 { HIDDEN } else { 1.0 })),
        ("far below", 1, biases(1, KEYS, |_, _, j| if j < 700 { -1e30 } else { -5.0 })),
        ("one key far above", 1, biases(1, KEYS, |_, i, j| if j == 3 * i { 30.0 } else { 0.0 })),
    ];
    gentle(KEYS).into_iter().chain(others).collect()
}

#[test]
fn every_bias_keeps_the_tolerance() {
    let heads = Heads::new(1, 2, 2, ROWS, KEYS, [40, 24], 0.3);
    let tolerance = 0.1;
    for (what, n, data) in kinds() {
        let half: Vec<f16> = data.iter().map(|&x| f16::from_f32(x)).collect();
        let shape = [1, n, ROWS, KEYS];
        let mut masks = vec![("f32", Mask::Additive(Tensor::new(&data, shape).unwrap()))];
        if half.iter().zip(&data).all(|(h, x)| h.is_finite() == x.is_finite()) {
            masks.push(("f16", Mask::Additive(Tensor::new(&half, shape).unwrap())));
        }
        for (dtype, mask) in masks {
            for (window, softcap) in [(0, 0.0), (0, 4.0), (2100, 0.0)] {
                let what = format!("{what}, {dtype}, window {window}, softcap {softcap}");
                let o = |m, t| AttentionOptions { window, softcap, ..mode(m, t) };
                let (want, want_lse, exact) = heads.run(mask, o(Mode::Exact, 0.0));
                let (have, lse, stats) = heads.run(mask, o(Mode::Accelerated, tolerance));
                assert!(have.iter().all(|x| x.is_finite()), "{what}");
                // What is hidden must change nothing: exact.
                let way = if data.contains(&HIDDEN) { Mode::Exact } else { Mode::Accelerated };
                assert_eq!((stats.mode, stats.pairs_dense), (way, exact.pairs_dense), "{what}");
                let error = distance(&have, &want);
                assert!(error < 2.0 * f64::from(tolerance), "{what}: {error}");
                assert!(near(&lse, &want_lse, 1.0), "{what}");
                // No threshold keeps such a tolerance.
                let (have, lse, _) = heads.run(mask, o(Mode::Auto, 1e-12));
                assert!(distance(&have, &want) < 1e-5 && near(&lse, &want_lse, 1e-4), "{what}");
            }
        }
    }
}

/// Heads that cells serve without biases are served by them under gentle ones, too.
#[test]
fn gentle_biases_leave_most_cells_closed() {
    let keys = 8192;
    let heads = Heads::new(1, 2, 2, ROWS, keys, [40, 24], 0.3);
    let (.., plain) = heads.run(Mask::None, mode(Mode::Accelerated, 0.1));
    for (what, n, data) in gentle(keys) {
        let mask = Mask::Additive(Tensor::new(&data, [1, n, ROWS, keys]).unwrap());
        let (want, ..) = heads.run(mask, mode(Mode::Exact, 0.0));
        let (have, _, stats) = heads.run(mask, mode(Mode::Accelerated, 0.1));
        assert!(distance(&have, &want) < 0.1, "{what}: {}", distance(&have, &want));
        assert!(stats.pairs < stats.pairs_dense / 2, "{what}: {stats:?}, without biases {plain:?}");
        let (have, _, stats) = heads.run(mask, mode(Mode::Auto, 0.1));
        assert!(distance(&have, &want) < 0.1, "{what}: {}", distance(&have, &want));
        // Biases that are read cost, so that heads of so few elements may well be attended exactly.
        assert_eq!((stats.exact_rows.short, stats.exact_rows.strict), (0, 0), "{what}: {stats:?}");
    }
}

/// A number added to all logits of a row changes its log-sum-exp by that number, and no output.
#[test]
fn the_same_bias_for_all_keys_changes_no_output() {
    let heads = Heads::new(1, 2, 2, ROWS, KEYS, [40, 24], 0.3);
    let o = AttentionOptions { window: KEYS, ..mode(Mode::Accelerated, 0.1) };
    let bias = |x: f32| biases(1, KEYS, |_, i, _| x * i as f32);
    let (zeros, same) = (bias(0.0), bias(0.1));
    let run = |x: &[f32]| heads.run(Mask::Additive(Tensor::new(x, [1, 1, ROWS, KEYS]).unwrap()), o);
    let (want, want_lse, _) = run(&zeros);
    let (have, lse, _) = run(&same);
    // A threshold met to the last bit may open a cell for one of them alone.
    assert!(distance(&have, &want) < 0.01, "{}", distance(&have, &want));
    let moved: Vec<f32> = want_lse.iter().enumerate().map(|(r, x)| x + 0.1 * (r % ROWS) as f32).collect();
    assert!(near(&lse, &moved, 0.1));
}

#[test]
fn every_instruction_set_and_number_of_threads_agree() {
    let heads = Heads::new(2, 2, 2, ROWS, KEYS, [40, 24], 0.3);
    let (_, n, data) = kinds().swap_remove(0);
    let mask = Mask::Additive(Tensor::new(&data, [1, n, ROWS, KEYS]).unwrap());
    let (want, want_lse, _) = heads.run(mask, mode(Mode::Accelerated, 0.1));
    for num_threads in [2, 3, 8] {
        let (have, lse, _) = heads.run(mask, AttentionOptions { num_threads, ..mode(Mode::Accelerated, 0.1) });
        assert!(have == want && lse == want_lse, "{num_threads} threads");
    }
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        let (have, ..) = heads.run(mask, AttentionOptions { isa: Some(isa), ..mode(Mode::Accelerated, 0.1) });
        // A threshold met to the last bit may open a cell for one of them alone.
        assert!(distance(&have, &want) < 0.01, "{isa:?}: {}", distance(&have, &want));
    }
}
