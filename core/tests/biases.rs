//! Accelerated attention under biases: near exact attention, by fewer pairs, whatever the biases are and whichever keys they hide. What
//! they hide changes nothing.

mod common;

use common::heads::{Heads, distance, mode, near, noise};
use common::tokens::{Tokens, attend_all, hold, options, with};
use half::f16;
use iceformer_core::attention::{AttentionOptions, ExactRows, Mask, Mode};
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
        ("far below", 1, biases(1, KEYS, |_, _, j| if j < 700 { -1e30 } else { -5.0 })),
        ("one key far above", 1, biases(1, KEYS, |_, i, j| if j == 3 * i { 30.0 } else { 0.0 })),
    ];
    gentle(KEYS).into_iter().chain(others).collect()
}

/// With keys hidden by such a bias, and whether blocks find segments of which all of their rows see all or nothing.
fn hiding(hidden: f32) -> Vec<(&'static str, usize, Vec<f32>, bool)> {
    let own = |i: usize| KEYS - ROWS + i;
    let one = |of: &dyn Fn(usize, usize) -> f32| biases(1, KEYS, |_, i, j| of(i, j));
    let hide = |hides: bool| if hides { hidden } else { 0.0 };
    let slopes = |h: usize, i: usize, j: usize| (j as f32 - own(i) as f32) * 0.002 / (h + 1) as f32 + hide(j > own(i));
    let some = |h: usize, j: usize| hide(j / 256 == 2 * (h / 2) || j / 256 == 5 && j % 2 == h % 2);
    let many = |i: usize, j: usize| !hash(i as u64 / 40, j as u64 / 300).is_multiple_of(4);
    vec![
        ("causal", 1, one(&|i, j| hide(j > own(i))), true),
        ("causal with slopes by head", 4, biases(4, KEYS, slopes), true),
        ("a window", 1, one(&|i, j| hide(j > own(i) || j + 1700 < own(i))), true),
        ("padding to the left", 1, one(&|_, j| hide(j < 300)), true),
        ("padding to the right", 1, one(&|_, j| hide(j >= 1500)), true),
        ("padding in two places", 1, one(&|_, j| hide((256..600).contains(&j) || j > 2000)), true),
        ("of every head its own", 4, biases(4, KEYS, |h, _, j| some(h, j)), true),
        ("a key of most cells", 1, one(&|_, j| if j % 17 == 3 { hidden } else { 0.1 }), false),
        ("most keys", 1, one(&|i, j| hide(many(i, j))), false),
        ("rows that see nothing", 1, one(&|i, _| if i % 50 == 7 { hidden } else { 1.0 }), false),
    ]
}

#[test]
fn every_bias_keeps_the_tolerance() {
    let heads = Heads::new(1, 2, 2, ROWS, KEYS, [40, 24], 0.3);
    let tolerance = 0.1;
    // Programs hide by finite numbers, too.
    let hiding = [HIDDEN, f32::MIN, -10_000.0].into_iter().flat_map(hiding);
    let hiding = hiding.map(|(what, n, data, cells)| (what, n, data, Some(cells)));
    for (what, n, data, cells) in kinds().into_iter().map(|(what, n, data)| (what, n, data, None)).chain(hiding) {
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
                assert_eq!((stats.mode, stats.pairs_dense), (Mode::Accelerated, exact.pairs_dense), "{what}");
                if let Some(cells) = cells.filter(|_| window == 0) {
                    let short = if cells { 0 } else { stats.rows };
                    assert_eq!((stats.exact_rows.short, stats.measured.rows() > 0), (short, cells), "{what}");
                }
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
        // Beside many elements they cost little.
        let heads = Heads::new(1, 1, 2, ROWS, keys, [128, 128], 0.3);
        let mask = Mask::Additive(Tensor::new(&data[..ROWS * keys], [1, 1, ROWS, keys]).unwrap());
        let (.., stats) = heads.run(mask, mode(Mode::Auto, 0.1));
        assert!(stats.exact_rows == ExactRows::default() && stats.pairs < stats.pairs_dense / 2, "{what}: {stats:?}");
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

/// Keys of a KV head that no row of its two query heads sees.
fn unseen(data: &[f32], n: usize, kv: usize) -> impl Fn(usize) -> bool {
    let heads = if n == 1 { 0..1 } else { 2 * kv..2 * kv + 2 };
    move |j| heads.clone().all(|h| (0..ROWS).all(|i| data[(h * ROWS + i) * KEYS + j] == HIDDEN))
}

/// Whatever keys and values hold that no row sees, and on any instruction set.
#[test]
fn hidden_keys_and_values_change_no_bit() {
    let heads = || Heads::new(1, 2, 2, ROWS, KEYS, [40, 24], 0.3);
    let (plain, mut changed) = (heads(), 0);
    let kinds = hiding(HIDDEN).into_iter().filter(|(what, ..)| !what.starts_with("rows"));
    for (nth, (what, n, data, _)) in kinds.enumerate() {
        let mask = Mask::Additive(Tensor::new(&data, [1, n, ROWS, KEYS]).unwrap());
        for wild in [1e30, -7.0] {
            let mut other = heads();
            for kv in 0..2 {
                for j in (0..KEYS).filter(|&j| unseen(&data, n, kv)(j)) {
                    other.k[(kv * KEYS + j) * 40..][..40].fill(wild);
                    other.v[(kv * KEYS + j) * 24..][..24].fill(wild);
                    changed += 1;
                }
            }
            for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
                // All kinds on the best set, one on the others.
                if isa != Isa::best() && nth != 5 {
                    continue;
                }
                let o = AttentionOptions { isa: Some(isa), num_threads: 1 + nth % 3, ..mode(Mode::Accelerated, 0.1) };
                let ((want, want_lse, _), (have, lse, _)) = (plain.run(mask, o), other.run(mask, o));
                assert!(have == want && lse == want_lse, "{what}, {isa:?}, {wild}: {}", distance(&have, &want));
            }
        }
    }
    assert!(changed > 5000);
}

/// Keys that some rows see and others do not: of these estimates know no more than by the covariance of all keys.
#[test]
fn keys_of_later_rows_leave_the_tolerance() {
    let mut heads = Heads::new(1, 2, 2, ROWS, KEYS, [40, 24], 0.3);
    let causal = biases(1, KEYS, |_, i, j| if j > KEYS - ROWS + i { HIDDEN } else { 0.0 });
    let mask = Mask::Additive(Tensor::new(&causal, [1, 1, ROWS, KEYS]).unwrap());
    let first = |x: &[f32]| x.chunks(ROWS * 24).flat_map(|head| head[..256 * 24].to_vec()).collect::<Vec<f32>>();
    let (want, ..) = heads.run(mask, mode(Mode::Exact, 0.0));
    let (before, ..) = heads.run(mask, mode(Mode::Accelerated, 0.1));
    for kv in 0..2 {
        // What rows from 256 on see alone.
        heads.v[(kv * KEYS + KEYS - ROWS + 256) * 24..(kv + 1) * KEYS * 24].fill(1e4);
    }
    let (after, ..) = heads.run(mask, mode(Mode::Accelerated, 0.1));
    assert!(distance(&first(&before), &first(&want)) < 0.1);
    assert!(distance(&first(&after), &first(&want)) < 0.1, "{}", distance(&first(&after), &first(&want)));
}

/// A causal mask as a bias finds the segments that it finds as such, and leaves out those that it hides.
#[test]
fn a_causal_bias_is_a_causal_mask() {
    let (rows, keys) = (1400, 1400);
    let heads = Heads::new(1, 2, 2, rows, keys, [40, 24], 0.3);
    let bias: Vec<f32> = (0..rows * keys).map(|at| if at % keys > at / keys { HIDDEN } else { 0.0 }).collect();
    let mask = Mask::Additive(Tensor::new(&bias, [1, 1, rows, keys]).unwrap());
    let [(want, want_lse, _), (have, lse, _)] =
        [Mask::Causal { q_pos0: 0 }, mask].map(|mask| heads.run(mask, mode(Mode::Exact, 0.0)));
    assert!(distance(&have, &want) < 1e-6 && near(&lse, &want_lse, 1e-5), "{}", distance(&have, &want));
    let (want, want_lse, structural) = heads.run(Mask::Causal { q_pos0: 0 }, mode(Mode::Accelerated, 0.1));
    let (have, lse, stats) = heads.run(mask, mode(Mode::Accelerated, 0.1));
    assert_eq!(stats.exact_rows, structural.exact_rows);
    // A threshold met to the last bit may open a cell for one of them alone.
    assert!(distance(&have, &want) < 0.01 && near(&lse, &want_lse, 0.1), "{}", distance(&have, &want));
    // Blocks of five segments and more; beyond what rows see they score less than a block and the tail of the keys.
    let exact = structural.exact_rows.all();
    let more = stats.pairs - exact * keys as u64 - (structural.pairs - exact * (exact / 4 + 1) / 2);
    assert!(more < (stats.rows - exact) * 400, "{more}: {stats:?}, {structural:?}");
}

/// Of a session: many rows and few, under biases that hide later keys, or others.
#[test]
fn sessions_use_cells_where_biases_hide_nothing_of_them() {
    let tokens = Tokens::new(2, [40, 24], 12 * 256 + 200, 4);
    let o = with(options(&tokens, 2, Mode::Accelerated), |o| o.tolerance = 0.1);
    let (mut session, mut exact) = (tokens.session(&o, 4000), tokens.session(&with(o, |o| o.mode = Mode::Exact), 4000));
    let more = Tokens::new(2, [40, 24], 300, 9);
    let mut used = [0; 2];
    for step in 0..30 {
        let (rows, len) = ([300, 1, 4, 13][if step == 0 { 0 } else { 1 + step % 3 }], session.len());
        // Every other step hides a key of a complete segment, too: its value must not show.
        let hidden = if step % 2 == 1 { Some(256 * 3 + step) } else { None };
        let bias = (0..4 * rows * len).map(|at| (at / len / rows, at / len % rows, at % len)).map(|(h, i, j)| {
            let gone = j + rows > len + i || hidden == Some(j);
            if gone { HIDDEN } else { (j as f32 - (len + i - rows) as f32) * 0.001 / (h + 1) as f32 }
        });
        let bias: Vec<f16> = bias.map(f16::from_f32).collect();
        let mask = Some(Mask::Additive(Tensor::new(&bias, [1, 4, rows, len]).unwrap()));
        let (have, stats) = attend_all(&session, rows, mask, 1);
        for nth in [2, 3] {
            assert_eq!(attend_all(&session, rows, mask, nth).0, have, "step {step}");
        }
        assert_eq!(stats.mode, Mode::Accelerated);
        let (want, _) = attend_all(&exact, rows, mask, 1);
        hold(&have, &want, 0.2, &format!("step {step}"));
        let whole = stats.exact_rows.all() == stats.rows;
        // 13 rows are many: they use the segments beside that of the hidden key.
        assert_eq!(whole, hidden.is_some() && rows <= 12, "step {step}: {stats:?}");
        used[usize::from(rows > 12)] += usize::from(stats.pairs < stats.pairs_dense);
        for session in [&mut session, &mut exact] {
            more.append(session, step * 9, step * 9 + 9);
            session.commit().unwrap();
        }
    }
    assert!(used[0] >= 4 && used[1] >= 8, "{used:?}");
}

/// Padding that a bias hides in a session changes nothing that is scored, and estimates by its covariance alone.
#[test]
fn padding_of_sessions_leaves_the_tolerance() {
    let mut tokens = Tokens::new(2, [40, 24], 12 * 256, 4);
    for v in &mut tokens.v {
        v[..600 * 24].fill(1e5);
    }
    let o = with(options(&tokens, 2, Mode::Accelerated), |o| o.tolerance = 0.1);
    let (session, exact) = (tokens.session(&o, 4000), tokens.session(&with(o, |o| o.mode = Mode::Exact), 4000));
    for rows in [1, 4, 300] {
        let len = tokens.len();
        let bias: Vec<f32> = (0..rows * len).map(|at| if at % len < 600 { HIDDEN } else { 0.0 }).collect();
        let mask = Some(Mask::Additive(Tensor::new(&bias, [1, 1, rows, len]).unwrap()));
        let (have, stats) = attend_all(&session, rows, mask, 1);
        hold(&have, &attend_all(&exact, rows, mask, 1).0, 0.2, &format!("{rows} rows"));
        assert_eq!(stats.exact_rows.short == 0, rows > 12, "{stats:?}");
    }
}
