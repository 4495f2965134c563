//! Accelerated attention in one call: near exact attention, which takes over where it has to, the same bits on any number of threads.
#![allow(unsafe_code)]

mod common;

use common::heads::{Heads, distance, mode, near, noise};
use common::memory;
use half::{bf16, f16};
use iceformer_core::attention::{
    AttentionOptions, ExactRows, Mask, Masking, Mode, Problem, Reason, attention, attention_watched, clustered::Scored,
    required, sparsity,
};
use iceformer_core::math::hash;
use iceformer_core::mem::{Dtype, Memory, Tensor, TensorMut};
use iceformer_core::simd::Isa;
use std::ptr::NonNull;

/// Keys of a segment, as the library has it.
const SEGMENT: usize = 256;

/// Rows that see fewer and fewer keys, and through a window the first of them only later on.
fn falling(rows: usize, keys: usize) -> Vec<u64> {
    (0..rows).map(|i| (keys - i) as u64).collect()
}

#[test]
fn every_mask_keeps_the_tolerance() {
    let (rows, keys) = (300, 2300);
    let heads = Heads::new(2, 2, 3, rows, keys, [40, 24], 0.3);
    let padding: Vec<u8> = (0..2 * keys as u64).map(|i| u8::from(!hash(4, i / 16).is_multiple_of(99))).collect();
    let (prefix, falling) = ((0..rows as u64).map(|i| 1500 + 2 * i).collect::<Vec<_>>(), falling(rows, keys));
    let masks = [
        Mask::None,
        Mask::Causal { q_pos0: 2000 },
        Mask::Prefix(&prefix),
        Mask::Prefix(&falling),
        Mask::Keys(&padding),
        Mask::CausalKeys { q_pos0: 2000, keep: &padding },
    ];
    let tolerance = 0.1;
    for (nth, mask) in masks.into_iter().enumerate() {
        for (window, sinks, softcap) in [(0, 0, 0.0), (0, 0, 4.0), (2100, 5, 0.0)] {
            let o = |m, t| AttentionOptions { window, sinks, softcap, ..mode(m, t) };
            let what = format!("mask {nth}, window {window}, softcap {softcap}");
            let (want, want_lse, exact) = heads.run(mask, o(Mode::Exact, 0.0));
            for way in [Mode::Accelerated, Mode::Auto] {
                let (have, lse, stats) = heads.run(mask, o(way, tolerance));
                assert_eq!(stats.pairs_dense, exact.pairs_dense, "{what}");
                assert!(stats.pairs <= stats.pairs_dense, "{what}: {stats:?}");
                let error = distance(&have, &want);
                assert!(error < 2.0 * f64::from(tolerance), "{what}, {way:?}: {error}");
                // Of 99 rows in 100.
                let mut off: Vec<f32> = lse.iter().zip(&want_lse).map(|(a, b)| (a - b).abs()).collect();
                off.sort_by(f32::total_cmp);
                let most = off[off.len() * 99 / 100];
                assert!(most < 2.0 * tolerance, "{what}, {way:?}: log-sum-exps off by {most}");
            }
            // No threshold keeps such a tolerance.
            let (have, lse, _) = heads.run(mask, o(Mode::Auto, 1e-12));
            assert!(distance(&have, &want) < 1e-5 && near(&lse, &want_lse, 1e-4), "{what}");
        }
    }
}

#[test]
fn only_what_a_row_sees_is_scored() {
    let (rows, keys) = (300, 2300);
    let heads = Heads::new(1, 1, 2, rows, keys, [24, 16], 0.3);
    let padding: Vec<u8> = (0..keys as u64).map(|i| u8::from(!hash(4, i / 16).is_multiple_of(99))).collect();
    let falling = falling(rows, keys);
    let padded = Mask::CausalKeys { q_pos0: 2000, keep: &padding };
    // The first row of the block misses just the last key of a segment; the last one, by the window, just the first key of another.
    let almost = Mask::Causal { q_pos0: 8 * SEGMENT as u64 - 2 };
    let causal = Mask::Causal { q_pos0: 2000 };
    for mask in [Mask::None, causal, almost, Mask::Prefix(&falling), Mask::Keys(&padding), padded] {
        for (window, sinks) in [(0, 0), (2100, 0), (2100, 5), (1999, 0)] {
            let o = AttentionOptions { window, sinks, ..mode(Mode::Accelerated, 0.1) };
            let masking = Masking::new(mask, window, sinks, [1, 2, rows, keys], false).unwrap();
            let mut scored = vec![vec![0u8; keys]; 2 * rows];
            let mut all = 0;
            let mut watch = |head: usize, row: usize, keys: Scored<'_>| match keys {
                Scored::All => all += 1,
                Scored::Keys(keys) => keys.iter().for_each(|&key| scored[head * rows + row][key as usize] += 1),
            };
            let (want, want_lse, stats) = heads.run(mask, o);
            let (mut out, mut lse) = (vec![0.0; want.len()], vec![0.0; want_lse.len()]);
            let watched =
                attention_watched(&heads.problem(&mut out, &mut lse, mask, o), &mut watch, &memory(0)).unwrap();
            assert!(out == want && lse == want_lse && watched.pairs == stats.pairs, "{mask:?}");
            // Five rows of a block are sampled.
            assert!(all >= 2 * 2 * 5 && stats.cells_opened > 0, "{mask:?}, window {window}: {all} {stats:?}");
            for (i, scored) in scored.iter().enumerate() {
                let seen = masking.visible(0, i % rows);
                for (key, &times) in scored.iter().enumerate() {
                    // A known key is told once more with its cell, where that opens.
                    let sees = seen.contains(key)
                        && !(matches!(mask, Mask::Keys(_) | Mask::CausalKeys { .. }) && padding[key] == 0);
                    assert!(
                        times <= 2 * u8::from(sees),
                        "{mask:?}, window {window}: row {i}, key {key}, {times} times"
                    );
                }
            }
        }
    }
}

/// A pair counts once, however often its key was looked at. So as many pairs as exact attention has means that nothing was estimated.
#[test]
fn pairs_that_are_scored_count_once() {
    // Of whole segments, so that no keys are near. In a short block most keys are known.
    for (rows, keys) in [(28, 1024), (300, 2048)] {
        for tolerance in [0.35, 0.1, 0.02] {
            let heads = Heads::new(1, 1, 2, rows, keys, [16, 16], 0.3);
            let o = mode(Mode::Accelerated, tolerance);
            let mut scored = vec![vec![false; keys]; 2 * rows];
            let mut watch = |head: usize, row: usize, keys: Scored<'_>| match keys {
                Scored::All => scored[head * rows + row].fill(true),
                Scored::Keys(keys) => keys.iter().for_each(|&key| scored[head * rows + row][key as usize] = true),
            };
            let (mut out, mut lse) = (vec![0.0; 2 * rows * 16], vec![0.0; 2 * rows]);
            let problem = heads.problem(&mut out, &mut lse, Mask::None, o);
            let stats = attention_watched(&problem, &mut watch, &memory(0)).unwrap();
            let pairs = scored.iter().flatten().filter(|&&scored| scored).count() as u64;
            assert_eq!(stats.pairs, pairs, "{rows} rows, tolerance {tolerance}: {stats:?}");
            assert!(
                stats.cells_opened > 0 && pairs < stats.pairs_dense,
                "{rows} rows, tolerance {tolerance}: {stats:?}"
            );
        }
    }
}

#[test]
fn what_is_estimated_keeps_the_tolerance() {
    let heads = Heads::new(1, 1, 2, 600, 4096, [64, 64], 0.15);
    let (want, want_lse, _) = heads.run(Mask::None, mode(Mode::Exact, 0.0));
    let mut before = 0;
    for tolerance in [0.2, 0.05, 0.01] {
        let (have, lse, stats) = heads.run(Mask::None, mode(Mode::Accelerated, tolerance));
        let error = distance(&have, &want);
        assert!(error < 2.0 * f64::from(tolerance), "tolerance {tolerance}: error {error}");
        assert!(stats.pairs < stats.pairs_dense, "{stats:?}");
        assert!(stats.pairs >= before, "less error, fewer pairs");
        before = stats.pairs;
        let off = lse.iter().zip(&want_lse).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(near(&lse, &want_lse, 3.0 * tolerance), "tolerance {tolerance}: off by {off}");
    }
}

/// Values that follow their key, in a straight line or not, and keys in tight or loose heaps. Enough rows for every block to be
/// sampled.
#[test]
fn whatever_the_heads_the_tolerance_is_kept() {
    let (n, d) = (2048, 64);
    for (straight, spread) in [(true, 0.1), (false, 0.1), (true, 0.3), (false, 0.3), (true, 0.6)] {
        let mut heads = Heads::new(1, 1, 2, n, n, [d, d], spread);
        let turn = noise(d * d, 77, 0.2);
        for (k, v) in heads.k.chunks(d).zip(heads.v.chunks_mut(d)) {
            for (v, turn) in v.iter_mut().zip(turn.chunks(d)) {
                let x: f32 = k.iter().zip(turn).map(|(k, t)| k * t).sum();
                *v = if straight { x } else { (3.0 * x).sin() };
            }
        }
        let mask = Mask::Causal { q_pos0: 0 };
        let (want, ..) = heads.run(mask, mode(Mode::Exact, 0.0));
        for tolerance in [0.05, 0.02] {
            for way in [Mode::Accelerated, Mode::Auto] {
                let (have, ..) = heads.run(mask, mode(way, tolerance));
                let error = distance(&have, &want);
                let what = format!("{way:?}, spread {spread}, tolerance {tolerance}");
                assert!(error < 2.0 * f64::from(tolerance), "{what}: error {error}");
            }
        }
    }
}

/// Where values follow their keys, closed cells lean to those of their keys that score high.
#[test]
fn estimates_follow_the_covariance_of_keys_and_values() {
    let (rows, keys, d) = (64, 4096, 32);
    let mut heads = Heads::new(1, 1, 1, rows, keys, [d, d], 1.0);
    (heads.q, heads.k) = (noise(rows * d, 3, 0.6), noise(keys * d, 5, 1.0));
    let turn = noise(d * d, 77, 0.5);
    for (k, v) in heads.k.chunks(d).zip(heads.v.chunks_mut(d)) {
        for (v, turn) in v.iter_mut().zip(turn.chunks(d)) {
            *v = k.iter().zip(turn).map(|(k, t)| k * t).sum();
        }
    }
    // What all values share keeps outputs long: no cell is opened.
    const SHARED: f32 = 40.0;
    heads.v.iter_mut().for_each(|v| *v += SHARED);
    let less = |out: Vec<f32>| out.into_iter().map(|x| x - SHARED).collect::<Vec<_>>();
    let (want, ..) = heads.run(Mask::None, mode(Mode::Exact, 0.0));
    let (have, _, stats) = heads.run(Mask::None, mode(Mode::Accelerated, 0.1));
    let error = distance(&less(have), &less(want));
    // By means alone it is 0.8: most of a key lies apart from its cell's mean.
    assert!(error < 0.06 && stats.cells_opened == 0, "error {error}, {stats:?}");
}

/// What is measured on sampled rows is what all rows err by.
#[test]
fn measured_errors_are_those_of_all_rows() {
    let (n, d) = (4096, 64);
    let heads = Heads::new(1, 1, 2, n, n, [d, d], 0.3);
    let mask = Mask::Causal { q_pos0: 0 };
    let (want, ..) = heads.run(mask, mode(Mode::Exact, 0.0));
    let (have, _, stats) = heads.run(mask, mode(Mode::Accelerated, 0.05));
    // Blocks that see less than four segments are attended exactly.
    let short = ExactRows { short: 2 * 4 * SEGMENT as u64, ..ExactRows::default() };
    assert_eq!((stats.rows, stats.exact_rows), (2 * n as u64, short));
    // Two heads share keys: vector lanes have room for five rows of each.
    assert_eq!(stats.measured.rows(), 5 * (n / SEGMENT - 4) as u64);
    let after = |x: &[f32]| x.chunks(n * d).flat_map(|x| x[4 * SEGMENT * d..].to_vec()).collect::<Vec<f32>>();
    let (error, measured) = (distance(&after(&have), &after(&want)), f64::from(stats.measured.mean()));
    assert!(error < 2.0 * measured && measured < 2.0 * error, "{error}, measured {measured}");
    assert!(stats.measured.worst() >= stats.measured.p95() && stats.measured.p95() > 0.0);
}

/// Where no threshold keeps the tolerance, rows are attended exactly, by name, too.
#[test]
fn noise_keeps_the_tolerance_by_name() {
    let (n, d) = (4096, 64);
    let mut heads = Heads::new(1, 1, 2, n, n, [d, d], 1.0);
    (heads.k, heads.v) = (noise(n * d, 5, 1.5), noise(n * d, 6, 1.5));
    let mask = Mask::Causal { q_pos0: 0 };
    let (want, ..) = heads.run(mask, mode(Mode::Exact, 0.0));
    let (have, _, stats) = heads.run(mask, mode(Mode::Accelerated, 0.05));
    assert!(distance(&have, &want) < 0.1 && stats.exact_rows.all() > 0, "{stats:?}");
}

#[test]
fn cells_of_equal_keys_are_estimated_exactly() {
    let mut heads = Heads::new(1, 1, 2, 40, 2048, [64, 64], 0.5);
    // Every cell holds one key, sixteen times.
    let kinds = noise(16 * 64, 8, 2.0);
    heads.k.chunks_mut(64).enumerate().for_each(|(i, k)| k.copy_from_slice(&kinds[i % 16 * 64..][..64]));
    // Rows that see different keys: cells are cut from runs of them.
    let mask = Mask::Causal { q_pos0: 2008 };
    let (want, ..) = heads.run(mask, mode(Mode::Exact, 0.0));
    let (have, _, stats) = heads.run(mask, mode(Mode::Accelerated, 0.05));
    assert!(distance(&have, &want) < 1e-5 && stats.pairs < stats.pairs_dense);
}

/// Cells of equal keys again, and a row of every block that looks so far out that its scores are rounded by hundreds: what its cells are
/// estimated at lies above all of their keys, and nothing is left of its weights.
#[test]
fn rows_that_no_estimate_comes_near_are_attended_exactly() {
    let (rows, keys, dim) = (256, 2048, 64);
    let mut heads = Heads::new(1, 1, 2, rows, keys, [dim, 24], 0.5);
    let kinds = noise(16 * dim, 8, 2.0);
    heads.k.chunks_mut(dim).enumerate().for_each(|(i, k)| k.copy_from_slice(&kinds[i % 16 * dim..][..dim]));
    for i in (0..2 * rows).filter(|i| i % 64 == 21) {
        heads.q[i * dim..][..dim].iter_mut().for_each(|x| *x *= 1e10);
    }
    let (want, want_lse, _) = heads.run(Mask::None, mode(Mode::Exact, 0.0));
    let (have, lse, stats) = heads.run(Mask::None, mode(Mode::Accelerated, 0.05));
    assert!((1..8).contains(&stats.exact_rows.strict), "{stats:?}");
    for i in 0..2 * rows {
        let row = i * 24..(i + 1) * 24;
        assert!(distance(&have[row.clone()], &want[row]) < 1e-3, "row {i}");
        assert!(
            (lse[i] - want_lse[i]).abs() <= 1e-6 * want_lse[i].abs().max(100.0),
            "row {i}: {} for {}",
            lse[i],
            want_lse[i]
        );
    }
}

/// Keys that all rows see come together however they are mixed, padding or not; the last few make no segment.
#[test]
fn mixed_keys_come_together_where_all_rows_see_them() {
    let (kinds, more) = (64, 77);
    let keys = kinds * SEGMENT + more;
    let mut heads = Heads::new(2, 1, 2, 240, keys + 300, [64, 64], 0.5);
    let mut padding: Vec<u8> = (0..2 * heads.keys).map(|i| u8::from(i % 270 != 5)).collect();
    for batch in padding.chunks_mut(keys + 300) {
        // As many as make whole segments of every kind, and some.
        let mut seen = 0;
        batch.iter_mut().for_each(|keep| {
            *keep &= u8::from(seen < keys);
            seen += usize::from(*keep);
        });
        assert_eq!(seen, keys);
    }
    let of = noise(kinds * 64, 8, 2.0);
    for (k, keep) in heads.k.chunks_mut(64 * (keys + 300)).zip(padding.chunks(keys + 300)) {
        let mut at = 0;
        for (k, &keep) in k.chunks_mut(64).zip(keep) {
            k.copy_from_slice(&of[at * 5 % kinds * 64..][..64]);
            at += usize::from(keep);
        }
    }
    let mask = Mask::Keys(&padding);
    let (want, ..) = heads.run(mask, mode(Mode::Exact, 0.0));
    let (have, _, stats) = heads.run(mask, mode(Mode::Accelerated, 0.05));
    assert!(distance(&have, &want) < 1e-5, "{}", distance(&have, &want));
    assert!(stats.pairs * 8 < stats.pairs_dense, "{stats:?}");
}

/// No rows, rows that see nothing, and one row.
#[test]
fn the_least_there_can_be_is_attended() {
    let keys = 4096;
    let (padding, nothing) = (vec![0u8; keys], vec![0u64; 300]);
    for (rows, mask) in
        [(0, Mask::None), (1, Mask::None), (7, Mask::None), (300, Mask::Keys(&padding)), (300, Mask::Prefix(&nothing))]
    {
        let heads = Heads::new(1, 1, 2, rows, keys, [64, 64], 0.3);
        let (want, want_lse, _) = heads.run(mask, mode(Mode::Exact, 0.0));
        for way in [Mode::Auto, Mode::Accelerated] {
            let (have, lse, _) = heads.run(mask, mode(way, 0.05));
            assert!(rows == 0 || distance(&have, &want) < 0.1 || have == want, "{rows} rows, {mask:?}");
            assert!(near(&lse, &want_lse, 0.1), "{rows} rows, {mask:?}");
            if !matches!(mask, Mask::None) {
                assert!(have.iter().all(|&x| x == 0.0) && lse.iter().all(|&x| x == f32::NEG_INFINITY));
            }
        }
    }
}

/// AUTO builds no cells for few rows, all heads that share keys together.
#[test]
fn few_rows_of_a_call_are_attended_exactly() {
    for (group, rows, want) in [
        (1, 1, Reason::Short),
        (1, 511, Reason::Short),
        (4, 127, Reason::Short),
        (1, 512, Reason::Cheaper),
        (4, 128, Reason::Cheaper),
    ] {
        let heads = Heads::new(1, 1, group, rows, 4096, [32, 32], 0.2);
        let (.., stats) = heads.run(Mask::None, mode(Mode::Auto, 0.1));
        assert_eq!(stats.reason, want, "{group} heads, {rows} rows: {stats:?}");
    }
}

#[test]
fn noise_is_attended_exactly() {
    let (n, d) = (2560, 64);
    let mut heads = Heads::new(1, 1, 2, n, n, [d, d], 1.0);
    (heads.k, heads.v) = (noise(n * d, 5, 1.5), noise(n * d, 6, 1.5));
    let (want, ..) = heads.run(Mask::Causal { q_pos0: 0 }, mode(Mode::Exact, 0.0));
    let (have, _, stats) = heads.run(Mask::Causal { q_pos0: 0 }, mode(Mode::Auto, 0.05));
    assert_eq!((stats.mode, stats.reason, stats.pairs), (Mode::Exact, Reason::Diffuse, stats.pairs_dense));
    // Blocks that see less than four segments are short; no threshold serves the others, and where one does it opens nearly all.
    let why = stats.exact_rows;
    assert_eq!((stats.rows, why.short), (2 * n as u64, 2 * 4 * SEGMENT as u64));
    assert!(why.strict + why.costly == why.all() - why.short && why.all() == 2 * n as u64, "{why:?}");
    assert!(distance(&have, &want) < 1e-6);
    // What keeps a loose tolerance would be costly. Where weights are so even that no threshold opens a cell, none keeps it.
    let exact = |heads: &Heads| heads.run(Mask::Causal { q_pos0: 0 }, mode(Mode::Auto, 0.05)).2.exact_rows;
    assert!(exact(&heads).costly > 0, "{:?}", exact(&heads));
    heads.q.iter_mut().for_each(|x| *x *= 0.3);
    assert!(exact(&heads).strict > 0, "{:?}", exact(&heads));
    // By name nothing is too costly.
    assert_eq!(heads.run(Mask::Causal { q_pos0: 0 }, mode(Mode::Accelerated, 0.3)).2.exact_rows.costly, 0);
}

/// Bounds need every key: attended exactly, to the bit.
#[test]
fn bounds_are_attended_exactly() {
    let (rows, keys) = (300, 2300);
    let heads = Heads::new(1, 2, 2, rows, keys, [24, 16], 0.2);
    let o = |m| AttentionOptions { certificate: true, ..mode(m, 0.3) };
    let (want, want_lse, _) = heads.run(Mask::None, o(Mode::Exact));
    for way in [Mode::Accelerated, Mode::Auto] {
        let (have, lse, stats) = heads.run(Mask::None, o(way));
        assert!(have == want && lse == want_lse, "{way:?}");
        assert_eq!((stats.mode, stats.reason, stats.pairs), (Mode::Exact, Reason::OnlyWay, stats.pairs_dense));
        let (mut out, mut lse) = (vec![0.0; want.len()], vec![0.0; want_lse.len()]);
        let mut watch = |_: usize, _: usize, _: Scored<'_>| panic!("nothing is to be seen");
        attention_watched(&heads.problem(&mut out, &mut lse, Mask::None, o(way)), &mut watch, &memory(0)).unwrap();
        assert!(out == want && lse == want_lse, "{way:?}");
    }
}

/// One head that cells serve and one that they do not, or two of these, within the memory that was asked for.
#[test]
fn heads_are_judged_one_by_one() {
    let (n, d) = (4096, 64);
    let mask = Mask::None;
    for diffuse in 1..=2 {
        let mut heads = Heads::new(1, 2, 2, n, n, [d, d], 0.15);
        heads.k[..diffuse * n * d].copy_from_slice(&noise(diffuse * n * d, 5, 1.5));
        heads.v[..diffuse * n * d].copy_from_slice(&noise(diffuse * n * d, 6, 1.5));
        // Rows of the other head that weigh many keys alike.
        heads.q[2 * diffuse * n * d..].iter_mut().for_each(|x| *x *= 0.4);
        let (want, want_lse, stats) = heads.run(mask, mode(Mode::Auto, 0.05));
        assert_eq!(stats.pairs == stats.pairs_dense, diffuse == 2, "{stats:?}");
        let (exact, ..) = heads.run(mask, mode(Mode::Exact, 0.0));
        assert!(want[..2 * n * d] == exact[..2 * n * d] && distance(&want, &exact) < 0.1);
        for threads in if cfg!(feature = "std") { [1, 3] } else { [1, 1] } {
            let o = AttentionOptions { num_threads: threads, ..mode(Mode::Auto, 0.05) };
            within_the_plan(&heads, mask, o, (&want, &want_lse));
        }
    }
}

/// The same bits in a region of exactly the bytes that are required, and an error in one that is a byte smaller.
fn within_the_plan(heads: &Heads, mask: Mask<'_>, o: AttentionOptions, want: (&[f32], &[f32])) {
    let (mut out, mut lse) = (vec![7.0; want.0.len()], vec![7.0; want.1.len()]);
    let problem = heads.problem(&mut out, &mut lse, mask, o);
    let layout = required(&problem).unwrap();
    let mut bytes = vec![0u8; layout.bytes + layout.align];
    let begin = bytes.as_ptr().align_offset(layout.align);
    let base = NonNull::new(bytes[begin..].as_mut_ptr()).unwrap();
    // SAFETY: the block is writable and nobody else uses it.
    let less = unsafe { Memory::region(base, layout.bytes - 1) };
    assert!(less.and_then(|m| attention(&problem, &m)).is_err());
    assert!(out.iter().chain(&lse).all(|&x| x == 7.0), "nothing was written");
    let problem = heads.problem(&mut out, &mut lse, mask, o);
    // SAFETY: as above; the first memory is gone.
    attention(&problem, &unsafe { Memory::region(base, layout.bytes) }.unwrap()).unwrap();
    assert!(out == want.0 && lse == want.1);
}

/// Every allocation may fail: nothing is written then.
#[test]
fn a_refused_allocation_changes_nothing() {
    let heads = Heads::new(1, 1, 2, 100, 1100, [16, 16], 0.2);
    let (mut limit, mut refused) = (0, 0);
    loop {
        let (mut out, mut lse) = (vec![7.0; 2 * 100 * 16], vec![7.0; 2 * 100]);
        let problem = heads.problem(&mut out, &mut lse, Mask::None, mode(Mode::Accelerated, 0.1));
        let done = attention(&problem, &memory(limit)).is_ok();
        if limit > 0 && done {
            break;
        }
        assert!(limit == 0 || out.iter().chain(&lse).all(|&x| x == 7.0), "{limit} bytes");
        refused += 1;
        limit += 40_000;
    }
    assert!(refused > 3);
}

#[test]
fn keys_that_stand_out_count() {
    // Enough blocks for a share of bad rows to show in the few that are measured.
    let mut heads = Heads::new(1, 1, 1, 2048, 8192, [64, 64], 0.2);
    // Every row's own key, somewhere, so that it takes half of the softmax and more.
    for (i, q) in heads.q.chunks(64).enumerate() {
        let j = (hash(10, i as u64) % 8192) as usize;
        let norm2: f32 = q.iter().map(|x| x * x).sum();
        heads.k[j * 64..][..64].iter_mut().zip(q).for_each(|(k, q)| *k = q * 130.0 / norm2);
        heads.v[j * 64..][..64].fill(9.0 + i as f32 / 8.0);
    }
    let (want, ..) = heads.run(Mask::None, mode(Mode::Exact, 0.0));
    // By name whatever it errs by is measured; left the choice, the tolerance is kept.
    let (have, _, stats) = heads.run(Mask::None, mode(Mode::Accelerated, 0.1));
    assert!(distance(&have, &want) < 0.2 || stats.measured.mean() > 0.1, "{} {stats:?}", distance(&have, &want));
    let (have, ..) = heads.run(Mask::None, mode(Mode::Auto, 0.1));
    assert!(distance(&have, &want) < 0.2, "{}", distance(&have, &want));
}

#[test]
fn logits_far_beyond_the_means_are_right() {
    let mut heads = Heads::new(1, 1, 2, 64, 2048, [32, 32], 0.1);
    // One key in opposition to its neighbours, with logits of hundreds for some rows.
    heads.k[777 * 32..][..32].iter_mut().enumerate().for_each(|(i, k)| *k = if i % 2 == 0 { 900.0 } else { -900.0 });
    let (want, ..) = heads.run(Mask::None, mode(Mode::Exact, 0.0));
    let (have, ..) = heads.run(Mask::None, mode(Mode::Accelerated, 0.05));
    assert!(have.iter().all(|x| x.is_finite()));
    assert!(distance(&have, &want) < 0.1, "{}", distance(&have, &want));
}

/// Estimates take squares of logits: where those leave f32, logits that do not are right all the same.
#[test]
fn logits_whose_squares_overflow_are_right() {
    for (rows, q, k) in [(2, 1e9, 1e10), (4, 1e10, 1e12), (40, 1e2, 1e20), (40, 1e10, 1e12)] {
        let mut heads = Heads::new(1, 2, 2, rows, 1100, [16, 8], 0.4);
        heads.q.iter_mut().for_each(|x| *x *= q);
        heads.k.iter_mut().for_each(|x| *x *= k);
        for mask in [Mask::None, Mask::Causal { q_pos0: 1050 }] {
            let [exact, run] = [Mode::Exact, Mode::Accelerated].map(|m| heads.run(mask, mode(m, 0.3)));
            assert!(distance(&run.0, &exact.0) < 1e-5, "{rows} rows, {q}, {k}: {}", distance(&run.0, &exact.0));
            assert!(run.1.iter().zip(&exact.1).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs()), "{rows} rows, {q}, {k}");
        }
    }
}

#[test]
fn threads_and_memory_change_nothing() {
    threads_and_memory(Mask::Causal { q_pos0: 1804 });
}

/// Keys that all rows see are gathered first: one more stage that threads share, with room of its own.
#[test]
fn threads_and_memory_change_nothing_where_keys_are_gathered() {
    threads_and_memory(Mask::None);
    let padding: Vec<u8> = (0..2304).map(|j| u8::from(j % 7 != 3)).collect();
    threads_and_memory(Mask::Keys(&padding));
}

fn threads_and_memory(mask: Mask) {
    let heads = Heads::new(2, 2, 2, 500, 2304, [48, 48], 0.2);
    let o = |threads| AttentionOptions { num_threads: threads, ..mode(Mode::Accelerated, 0.1) };
    let (want, want_lse, stats) = heads.run(mask, o(1));
    assert!(stats.pairs < stats.pairs_dense);
    let many: &[usize] = if cfg!(feature = "std") { &[2, 3, 7] } else { &[] };
    for &threads in many {
        let (have, lse, part) = heads.run(mask, o(threads));
        assert!(have == want && lse == want_lse, "{threads} threads");
        assert_eq!((part.pairs, part.cells_opened, part.rows), (stats.pairs, stats.cells_opened, stats.rows));
        assert_eq!((part.exact_rows, part.known), (stats.exact_rows, stats.known));
    }
    for threads in if cfg!(feature = "std") { [1, 3] } else { [1, 1] } {
        within_the_plan(&heads, mask, o(threads), (&want, &want_lse));
    }
}

#[test]
fn every_instruction_set_estimates_the_same() {
    let heads = Heads::new(1, 1, 2, 200, 2048, [64, 64], 0.15);
    let all: Vec<_> = Isa::ALL
        .into_iter()
        .filter(|i| i.available())
        .map(|isa| heads.run(Mask::None, AttentionOptions { isa: Some(isa), ..mode(Mode::Accelerated, 0.1) }))
        .collect();
    for (out, _, stats) in &all {
        assert!(stats.pairs < stats.pairs_dense);
        // A threshold met to the last bit may open a cell for one of them alone.
        assert!(distance(out, &all[0].0) < 0.01, "{}", distance(out, &all[0].0));
    }
}

/// Keys, values and outputs of 16 bits, heads of a token side by side: the bits of the same numbers in f32.
#[test]
fn short_numbers_and_strides_change_nothing() {
    let (heads_kv, group, rows, keys, d) = (2, 2, 120, 1400, 24);
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let short = |x: f32| if dtype == Dtype::F16 { f16::from_f32(x).to_bits() } else { bf16::from_f32(x).to_bits() };
        let long = |x: u16| if dtype == Dtype::F16 { f16::from_bits(x).to_f32() } else { bf16::from_bits(x).to_f32() };
        let mut heads = Heads::new(1, heads_kv, group, rows, keys, [d, d], 0.2);
        heads.k.iter_mut().chain(&mut heads.v).chain(&mut heads.q).for_each(|x| *x = long(short(*x)));
        let mask = Mask::Causal { q_pos0: (keys - rows) as u64 };
        let o = mode(Mode::Accelerated, 0.1);
        let (want, want_lse, stats) = heads.run(mask, o);
        assert!(stats.pairs < stats.pairs_dense);
        // Token by token, with a number between them.
        let apart = |x: &[f32], n: usize, heads: usize| {
            let mut to = vec![0x7fff_u16; n * (heads * d + 2)];
            for (at, x) in x.chunks(d).enumerate() {
                let begin = at % n * (heads * d + 2) + at / n * d;
                to[begin..begin + d].iter_mut().zip(x).for_each(|(to, &x)| *to = short(x));
            }
            to
        };
        let (q, k, v) =
            (apart(&heads.q, rows, heads_kv * group), apart(&heads.k, keys, heads_kv), apart(&heads.v, keys, heads_kv));
        let strides = |heads: usize, n: usize| [2 * (heads * d + 2), 2 * d, 2 * n * (heads * d + 2)];
        let view = |x: &[u16], n: usize, heads: usize| {
            // SAFETY: so many rows in every head, and nobody writes them.
            unsafe { Tensor::from_raw(x.as_ptr().cast(), dtype, [1, heads, n, d], strides(heads, n), "view") }.unwrap()
        };
        let all = heads_kv * group;
        let (mut out, mut lse) = (vec![0x7fff_u16; rows * (all * d + 2)], vec![0.0; want_lse.len()]);
        let shape = [1, all, rows, d];
        // SAFETY: as above, and nobody else touches them.
        let to = unsafe { TensorMut::from_raw(out.as_mut_ptr().cast(), dtype, shape, strides(all, rows), "out") };
        let problem = Problem {
            q: view(&q, rows, all),
            k: view(&k, keys, heads_kv),
            v: view(&v, keys, heads_kv),
            out: to.unwrap(),
            lse: Some(TensorMut::new(&mut lse, [1, all, rows, 1]).unwrap()),
            bounds: None,
            mask,
            options: o,
        };
        attention(&problem, &memory(0)).unwrap();
        assert_eq!(lse, want_lse, "{dtype:?}");
        assert!(out == apart(&want, rows, all), "{dtype:?}");
    }
}

#[test]
fn groups_of_very_many_heads_are_right() {
    // More sampled rows of a group than 16 bits number.
    let heads = Heads::new(1, 1, 40_000, 7, 1024, [4, 4], 0.2);
    let (want, ..) = heads.run(Mask::None, mode(Mode::Exact, 0.0));
    let (have, _, stats) = heads.run(Mask::None, mode(Mode::Accelerated, 0.05));
    let error = distance(&have, &want);
    assert!(error < 0.1 && stats.measured.worst() < 1.0, "{error}, {:?}", stats.measured);
}

#[test]
fn what_it_cannot_do_is_said() {
    let heads = Heads::new(1, 2, 1, 64, 64, [16, 16], 0.2);
    let (mut out, mut lse) = (vec![0.0; 2 * 64 * 16], vec![0.0; 2 * 64]);
    let o = AttentionOptions { shared_qk: true, ..mode(Mode::Accelerated, 0.0) };
    let problem = heads.problem(&mut out, &mut lse, Mask::None, o);
    assert_eq!(attention(&problem, &memory(0)).unwrap_err().field, "flags");
    // Fewer keys than a segment: nothing to estimate, and right.
    let (have, _, stats) = heads.run(Mask::None, mode(Mode::Accelerated, 0.05));
    let (want, ..) = heads.run(Mask::None, mode(Mode::Exact, 0.0));
    assert!(distance(&have, &want) < 1e-6 && stats.pairs == stats.pairs_dense);
    let mut mass = [0.0; 2];
    let problem = heads.problem(&mut out, &mut lse, Mask::None, mode(Mode::Accelerated, 0.0));
    sparsity(&problem, 8, 4, &mut mass, &memory(0)).unwrap();
    assert!(mass.iter().all(|&m| m > 0.1 && m <= 1.0));
    // What is not finite is named before anything is written.
    let mut heads = heads;
    heads.k[37 * 16] = f32::NAN;
    let problem = heads.problem(&mut out, &mut lse, Mask::None, mode(Mode::Accelerated, 0.0));
    assert_eq!(attention(&problem, &memory(0)).unwrap_err().field, "k");
}

/// Equal keys are estimated exactly, so a log-sum-exp counts the keys that a row sees: also where its first or last one is the end of
/// a segment.
#[test]
fn rows_see_their_keys_and_no_other() {
    let (rows, keys) = (300, 2600);
    let mut heads = Heads::new(1, 1, 2, rows, keys, [16, 8], 0.3);
    heads.k.fill(0.0);
    let end = 8 * SEGMENT as u64;
    let mut used = 0;
    for q_pos0 in [end - 3, end - 2, end - 1, end] {
        // Every place of the window's begin in a segment, whatever rows are a block.
        let windows = if q_pos0 == end { 1900..1900 + SEGMENT } else { 0..1 };
        for window in windows {
            let mask = Mask::Causal { q_pos0 };
            let (_, lse, stats) = heads.run(mask, AttentionOptions { window, ..mode(Mode::Accelerated, 0.1) });
            used += usize::from(stats.pairs < stats.pairs_dense);
            let masking = Masking::new(mask, window, 0, [1, 2, rows, keys], false).unwrap();
            for (i, lse) in lse.iter().enumerate() {
                let seen = masking.visible(0, i % rows).len() as f32;
                assert!((lse - seen.ln()).abs() < 2e-5, "{q_pos0}, window {window}, row {i}: {} of {seen}", lse.exp());
            }
        }
    }
    assert!(used > 200, "{used}");
}
