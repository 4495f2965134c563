//! Accelerated attention in one call: exact where it has to be, near it elsewhere, the same bits on any number of threads.
#![allow(unsafe_code)]

mod common;

use common::memory;
use iceformer_core::attention::{
    AttentionOptions, AttentionStats, Mask, Mode, Problem, Reason, accelerated::Rule, attention, attention_by_rule,
    required, sparsity,
};
use iceformer_core::cells::SEGMENT;
use iceformer_core::math::hash;
use iceformer_core::mem::{Memory, Tensor, TensorMut};
use iceformer_core::simd::Isa;
use std::ptr::NonNull;

fn noise(n: usize, seed: u64, scale: f32) -> Vec<f32> {
    // Two uniform numbers: near enough to a bell.
    let uniform = |i: u64| (hash(seed, i) >> 40) as f32 / (1 << 24) as f32 - 0.5;
    (0..n as u64).map(|i| (uniform(2 * i) + uniform(2 * i + 1)) * 2.0 * scale).collect()
}

/// Heads whose keys gather around centres, with values that go with them.
struct Heads {
    shape: [usize; 4],
    keys: usize,
    dim_v: usize,
    group: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Heads {
    fn new(
        batch: usize,
        heads_kv: usize,
        group: usize,
        rows: usize,
        keys: usize,
        dims: [usize; 2],
        spread: f32,
    ) -> Heads {
        let near = |n: usize, d: usize, seed: u64, spread: f32| {
            let centres = noise(32 * d, seed + 50, 2.0);
            let mut x = noise(n * d, seed, spread);
            for (i, row) in x.chunks_mut(d).enumerate() {
                let c = hash(9, i as u64) as usize % 32;
                row.iter_mut().zip(&centres[c * d..]).for_each(|(x, c)| *x += c);
            }
            x
        };
        let [dim_k, dim_v] = dims;
        let shape = [batch, heads_kv * group, rows, dim_k];
        let n = batch * heads_kv * keys;
        let (k, v) = (near(n, dim_k, 1, spread), near(n, dim_v, 2, spread));
        Heads { shape, keys, dim_v, group, q: noise(shape.iter().product(), 3, 1.5), k, v }
    }

    fn problem<'a>(
        &'a self,
        out: &'a mut [f32],
        lse: &'a mut [f32],
        mask: Mask<'a>,
        o: AttentionOptions,
    ) -> Problem<'a> {
        let [batch, heads, rows, _] = self.shape;
        let kv = |d: usize| [batch, heads / self.group, self.keys, d];
        Problem {
            q: Tensor::new(&self.q, self.shape).unwrap(),
            k: Tensor::new(&self.k, kv(self.shape[3])).unwrap(),
            v: Tensor::new(&self.v, kv(self.dim_v)).unwrap(),
            out: TensorMut::new(out, [batch, heads, rows, self.dim_v]).unwrap(),
            lse: Some(TensorMut::new(lse, [batch, heads, rows, 1]).unwrap()),
            bounds: None,
            mask,
            options: o,
        }
    }

    fn run(&self, mask: Mask<'_>, o: AttentionOptions) -> (Vec<f32>, Vec<f32>, AttentionStats) {
        let [batch, heads, rows, _] = self.shape;
        let (mut out, mut lse) = (vec![0.0; batch * heads * rows * self.dim_v], vec![0.0; batch * heads * rows]);
        let stats = attention(&self.problem(&mut out, &mut lse, mask, o), &memory(0)).unwrap();
        (out, lse, stats)
    }
}

fn mode(mode: Mode, tolerance: f32) -> AttentionOptions {
    AttentionOptions { mode, tolerance, ..AttentionOptions::default() }
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b))) / norm(&mut b.iter().map(|&b| f64::from(b)))
}

#[test]
fn a_tiny_tolerance_is_exact_with_every_mask() {
    let (rows, keys) = (300, 1100);
    let heads = Heads::new(2, 2, 3, rows, keys, [40, 24], 0.4);
    let padding: Vec<u8> = (0..2 * keys as u64).map(|i| u8::from(!hash(4, i).is_multiple_of(5))).collect();
    let prefix: Vec<u64> = (0..rows as u64).map(|i| 500 + 2 * i).collect();
    let mut bias = vec![0.0; rows * keys];
    for (i, row) in bias.chunks_mut(keys).enumerate() {
        row[700 + i..].fill(f32::NEG_INFINITY);
        row[10] = 1.5;
    }
    let masks = [
        Mask::None,
        Mask::Causal { q_pos0: 800 },
        Mask::Prefix(&prefix),
        Mask::Keys(&padding),
        Mask::Additive(Tensor::new(&bias, [1, 1, rows, keys]).unwrap()),
    ];
    for mask in masks {
        for (window, sinks, softcap) in [(0, 0, 0.0), (0, 0, 4.0), (700, 5, 0.0)] {
            let o = |m, t| AttentionOptions { window, sinks, softcap, ..mode(m, t) };
            let (want, want_lse, exact) = heads.run(mask, o(Mode::Exact, 0.0));
            let (have, have_lse, stats) = heads.run(mask, o(Mode::Accelerated, 1e-12));
            assert_eq!(stats.pairs_dense, exact.pairs_dense, "{mask:?}");
            assert!(distance(&have, &want) < 1e-5, "{mask:?}");
            for (a, b) in have_lse.iter().zip(&want_lse) {
                assert!((a - b).abs() < 1e-4 || a == b, "{mask:?}: {a} and {b}");
            }
        }
    }
}

/// Blocks of four parts, of which each has more segments than the one before, or others where a window moves along.
#[test]
fn parts_of_a_block_use_what_their_own_rows_see() {
    let n = 4196;
    let heads = Heads::new(1, 1, 1, n, n, [8, 8], 0.4);
    for (window, sinks, softcap) in [(0, 0, 0.0), (0, 0, 4.0), (1500, 5, 0.0)] {
        let o = |m, t| AttentionOptions { window, sinks, softcap, ..mode(m, t) };
        let (want, want_lse, exact) = heads.run(Mask::Causal { q_pos0: 0 }, o(Mode::Exact, 0.0));
        let by = |opened: f32| {
            let rule =
                Rule { needle: opened, outstanding: opened, cell: opened, node: opened, ..Rule::new(0.05, false) };
            let rule = Rule { fine: 0.0, coarse: 0.0, error: f32::INFINITY, ..rule };
            let (mut out, mut lse) = (vec![0.0; want.len()], vec![0.0; n]);
            let problem = heads.problem(&mut out, &mut lse, Mask::Causal { q_pos0: 0 }, o(Mode::Accelerated, 0.05));
            let stats = attention_by_rule(&problem, &rule, None, &memory(0)).unwrap();
            (out, lse, stats)
        };
        // Every cell open: nothing is estimated.
        let (have, lse, stats) = by(0.0);
        assert_eq!((stats.pairs, stats.pairs_dense), (exact.pairs_dense, exact.pairs_dense));
        assert!(distance(&have, &want) < 1e-5 && lse.iter().zip(&want_lse).all(|(a, b)| (a - b).abs() < 1e-4));
        // Every cell closed: only what lies around the segments that 256 rows all see.
        let (.., stats) = by(f32::INFINITY);
        let first = |i: usize| if window > 0 { (i + 1).saturating_sub(window) } else { 0 };
        let dense = (0..n).map(|i| {
            let (begin, last) = (i / 256 * 256, (i / 256 * 256 + 255).min(n - 1));
            let (low, high) = (first(last).div_ceil(256), begin / 256);
            let seen = i + 1 - first(i) + sinks.min(first(i));
            seen - high.saturating_sub(low) * 256
        });
        assert_eq!(stats.pairs, dense.sum::<usize>() as u64, "window {window}");
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
        assert!(error < f64::from(tolerance), "tolerance {tolerance}: error {error}");
        assert!(stats.pairs < stats.pairs_dense && stats.estimated_mass > 0.0, "{stats:?}");
        assert!(stats.pairs >= before, "less error, fewer pairs");
        before = stats.pairs;
        assert!(lse.iter().zip(&want_lse).all(|(a, b)| (a - b).abs() < 3.0 * tolerance));
    }
}

/// Values that follow their key, in a straight line or not, and keys in tight or loose heaps: what no model of how keys
/// scatter within a cell foresees. Enough rows for every block to be tried.
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
            let (have, ..) = heads.run(mask, mode(Mode::Accelerated, tolerance));
            let error = distance(&have, &want);
            assert!(error < f64::from(tolerance), "spread {spread}, tolerance {tolerance}: error {error}");
        }
    }
}

/// Heads whose outputs are short may err by more in a layer than they do alone, and cost less: the same bits in any number of parts.
#[test]
fn trials_are_judged_by_layer() {
    let (n, d) = (2304, 32);
    let mut heads = Heads::new(1, 2, 2, n, n, [d, d], 0.3);
    let (q, kv) = (2 * n * d, n * d);
    heads.k[kv..].iter_mut().zip(noise(n * d, 79, 1.0)).for_each(|(x, y)| *x += y);
    heads.v[..kv].iter_mut().for_each(|x| *x *= 3.0);
    heads.v[kv..].copy_from_slice(&noise(n * d, 78, 4.0));
    let group = |q: &[f32], k: &[f32], v: &[f32]| Heads {
        shape: [1, 2, n, d],
        q: q.to_vec(),
        k: k.to_vec(),
        v: v.to_vec(),
        ..Heads { keys: n, ..Heads::new(1, 1, 2, 1, 1, [d, d], 0.3) }
    };
    let mask = Mask::Causal { q_pos0: 0 };
    let o = |threads| AttentionOptions { num_threads: threads, ..mode(Mode::Accelerated, 0.05) };
    let (want, ..) = heads.run(mask, mode(Mode::Exact, 0.0));
    let (have, have_lse, stats) = heads.run(mask, o(1));
    let (_, _, long) = group(&heads.q[..q], &heads.k[..kv], &heads.v[..kv]).run(mask, o(1));
    let (alone, _, short) = group(&heads.q[q..], &heads.k[kv..], &heads.v[kv..]).run(mask, o(1));
    let (layer, of_short) = (distance(&have, &want), distance(&have[q..], &want[q..]));
    assert!(layer < 0.05 && of_short > 2.0 * distance(&alone, &want[q..]), "{layer}, {of_short}");
    assert!(stats.pairs < long.pairs + short.pairs, "{} {} {}", stats.pairs, long.pairs, short.pairs);
    let many: &[usize] = if cfg!(feature = "std") { &[2, 3, 5] } else { &[] };
    for &threads in many {
        let (out, lse, part) = heads.run(mask, o(threads));
        assert!(out == have && lse == have_lse, "{threads} threads");
        assert_eq!((part.pairs, part.cells_opened, part.rows), (stats.pairs, stats.cells_opened, stats.rows));
    }
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

/// Keys that all rows see come together however they are mixed, padding or not; the last few make no segment.
#[test]
fn mixed_keys_come_together_where_all_rows_see_them() {
    let (kinds, each, more) = (8, SEGMENT, 77);
    let keys = kinds * each + more;
    let mut heads = Heads::new(2, 1, 2, 40, keys + 300, [64, 64], 0.5);
    let mut padding: Vec<u8> = (0..2 * heads.keys).map(|i| u8::from(i % 27 != 5)).collect();
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
    for way in [Mode::Accelerated, Mode::Auto] {
        let (have, _, stats) = heads.run(mask, mode(way, 0.05));
        assert!(distance(&have, &want) < 1e-5, "{}", distance(&have, &want));
        if way == Mode::Accelerated {
            // Rows that see different keys find a mixture.
            let runs = heads.run(Mask::Causal { q_pos0: (keys + 260) as u64 }, mode(way, 0.05)).2;
            assert!(stats.pairs * 8 < stats.pairs_dense && stats.pairs * 2 < runs.pairs, "{stats:?}, {runs:?}");
        }
    }
}

/// No rows, rows that see nothing, and one row: AUTO's first look and the trial have nothing to go by.
#[test]
fn the_least_there_can_be_is_attended() {
    let keys = 4096;
    let (padding, nothing) = (vec![0u8; keys], vec![0u64; 300]);
    for (rows, mask) in
        [(0, Mask::None), (1, Mask::None), (5, Mask::None), (300, Mask::Keys(&padding)), (300, Mask::Prefix(&nothing))]
    {
        let heads = Heads::new(1, 1, 2, rows, keys, [64, 64], 0.3);
        let (want, want_lse, _) = heads.run(mask, mode(Mode::Exact, 0.0));
        for way in [Mode::Auto, Mode::Accelerated] {
            let (have, lse, _) = heads.run(mask, mode(way, 0.05));
            // Single rows are held to twice the tolerance.
            assert!(rows == 0 || distance(&have, &want) < 0.1 || have == want, "{rows} rows, {mask:?}");
            assert!(lse.iter().zip(&want_lse).all(|(a, b)| (a - b).abs() < 0.1 || a == b), "{rows} rows, {mask:?}");
            if !matches!(mask, Mask::None) {
                assert!(have.iter().all(|&x| x == 0.0) && lse.iter().all(|&x| x == f32::NEG_INFINITY));
            }
        }
    }
}

#[test]
fn noise_is_attended_exactly() {
    let (n, d) = (2560, 64);
    let mut heads = Heads::new(1, 1, 2, n, n, [d, d], 1.0);
    (heads.k, heads.v) = (noise(n * d, 5, 1.5), noise(n * d, 6, 1.5));
    let (want, ..) = heads.run(Mask::Causal { q_pos0: 0 }, mode(Mode::Exact, 0.0));
    for m in [Mode::Auto, Mode::Accelerated] {
        let (have, _, stats) = heads.run(Mask::Causal { q_pos0: 0 }, mode(m, 0.05));
        // Asked for by name, cells are opened until the tolerance is kept: nearly all of them.
        assert!(stats.pairs > stats.pairs_dense * 9 / 10 && distance(&have, &want) < 0.05);
        if m == Mode::Auto {
            assert_eq!((stats.mode, stats.reason, stats.pairs), (Mode::Exact, Reason::Diffuse, stats.pairs_dense));
            assert_eq!(stats.rows as usize, 2 * n);
            assert!(distance(&have, &want) < 1e-6);
        }
    }
}

/// Nothing is made for heads that cells cannot serve, and no more than was said is taken for what is left.
#[test]
fn a_first_look_stays_within_the_memory_of_the_call() {
    let (n, d) = (4096, 64);
    let mask = Mask::Causal { q_pos0: 0 };
    for diffuse in 1..=2 {
        let mut heads = Heads::new(1, 2, 2, n, n, [d, d], 0.15);
        heads.k[..diffuse * n * d].copy_from_slice(&noise(diffuse * n * d, 5, 1.5));
        heads.v[..diffuse * n * d].copy_from_slice(&noise(diffuse * n * d, 6, 1.5));
        let (want, want_lse, stats) = heads.run(mask, mode(Mode::Auto, 0.05));
        assert_eq!(stats.pairs == stats.pairs_dense, diffuse == 2, "{stats:?}");
        let (exact, ..) = heads.run(mask, mode(Mode::Exact, 0.0));
        assert!(want[..2 * n * d] == exact[..2 * n * d] && distance(&want, &exact) < 0.05);
        for threads in if cfg!(feature = "std") { [1, 3] } else { [1, 1] } {
            let o = AttentionOptions { num_threads: threads, ..mode(Mode::Auto, 0.05) };
            let (mut out, mut lse) = (vec![0.0; want.len()], vec![0.0; want_lse.len()]);
            let problem = heads.problem(&mut out, &mut lse, mask, o);
            let layout = required(&problem).unwrap();
            let mut bytes = vec![0u8; layout.bytes + layout.align];
            let begin = bytes.as_ptr().align_offset(layout.align);
            let base = NonNull::new(bytes[begin..].as_mut_ptr()).unwrap();
            // SAFETY: the block is writable and nobody else uses it.
            attention(&problem, &unsafe { Memory::region(base, layout.bytes) }.unwrap()).unwrap();
            assert!(out == want && lse == want_lse);
        }
    }
}

#[test]
fn keys_that_stand_out_are_found() {
    let mut heads = Heads::new(1, 1, 1, 64, 4096, [64, 64], 0.2);
    // Every row's own key, somewhere, so that it takes half of the softmax and more.
    let mut at = Vec::new();
    for (i, q) in heads.q.chunks(64).enumerate() {
        let j = (hash(10, i as u64) % 4096) as usize;
        let norm2: f32 = q.iter().map(|x| x * x).sum();
        heads.k[j * 64..][..64].iter_mut().zip(q).for_each(|(k, q)| *k = q * 130.0 / norm2);
        heads.v[j * 64..][..64].fill(9.0 + i as f32 / 8.0);
        at.push(j);
    }
    let (want, ..) = heads.run(Mask::None, mode(Mode::Exact, 0.0));
    let (have, _, stats) = heads.run(Mask::None, mode(Mode::Accelerated, 0.1));
    assert!(stats.pairs < stats.pairs_dense, "{stats:?}");
    for (i, (a, b)) in have.chunks(64).zip(want.chunks(64)).enumerate() {
        assert!(distance(a, b) < 0.05, "row {i}, key {}: {}", at[i], distance(a, b));
    }
}

#[test]
fn logits_far_beyond_the_means_are_right() {
    let mut heads = Heads::new(1, 1, 2, 64, 2048, [32, 32], 0.1);
    // One key in opposition to its neighbours, with logits of hundreds for some rows.
    heads.k[777 * 32..][..32].iter_mut().enumerate().for_each(|(i, k)| *k = if i % 2 == 0 { 900.0 } else { -900.0 });
    let (want, ..) = heads.run(Mask::None, mode(Mode::Exact, 0.0));
    let (have, ..) = heads.run(Mask::None, mode(Mode::Accelerated, 0.05));
    assert!(have.iter().all(|x| x.is_finite()));
    assert!(distance(&have, &want) < 0.05);
}

/// Estimates take squares of logits: where those leave f32, logits that do not are attended exactly.
#[test]
fn logits_whose_squares_overflow_are_right() {
    for (rows, q, k) in [(2, 1e9, 1e10), (4, 1e10, 1e12), (2, 1e2, 1e20), (40, 1e10, 1e12)] {
        let mut heads = Heads::new(1, 2, 2, rows, 1100, [16, 8], 0.4);
        heads.q.iter_mut().for_each(|x| *x *= q);
        heads.k.iter_mut().for_each(|x| *x *= k);
        for mask in [Mask::None, Mask::Causal { q_pos0: 1000 }] {
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
    }
    for threads in if cfg!(feature = "std") { [1, 3] } else { [1, 1] } {
        let (mut out, mut lse) = (vec![0.0; want.len()], vec![0.0; want_lse.len()]);
        let problem = heads.problem(&mut out, &mut lse, mask, o(threads));
        let layout = required(&problem).unwrap();
        let mut bytes = vec![0u8; layout.bytes + layout.align];
        let begin = bytes.as_ptr().align_offset(layout.align);
        let base = NonNull::new(bytes[begin..].as_mut_ptr()).unwrap();
        // SAFETY: the block is writable and nobody else uses it.
        let less = unsafe { Memory::region(base, layout.bytes - 1) };
        assert!(less.and_then(|m| attention(&problem, &m)).is_err());
        // SAFETY: as above; the first memory is gone.
        attention(&problem, &unsafe { Memory::region(base, layout.bytes) }.unwrap()).unwrap();
        assert!(out == want && lse == want_lse);
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
        assert!(distance(out, &all[0].0) < 0.01);
    }
}

#[test]
fn groups_of_very_many_heads_are_right() {
    // More queries of a group than 16 bits number, with one row of each head.
    let heads = Heads::new(1, 1, 70_000, 1, 512, [4, 4], 0.2);
    let (want, ..) = heads.run(Mask::None, mode(Mode::Exact, 0.0));
    let (have, _, stats) = heads.run(Mask::None, mode(Mode::Accelerated, 0.05));
    assert!(distance(&have, &want) < 1e-6 && stats.pairs == stats.pairs_dense);
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
}

/// Values that are the keys in another order: what rows see is how keys weigh, and cells that stay closed know it too.
#[test]
fn values_lean_with_the_keys_that_a_row_prefers() {
    let (n, d) = (4096, 32);
    let mut heads = Heads::new(1, 1, 1, 256, n, [d, d], 0.0);
    heads.k = noise(n * d, 21, 1.0);
    heads.v = heads.k.chunks(d).flat_map(|k| k.iter().rev().copied()).collect();
    heads.q = noise(256 * d, 22, 0.5);
    let (want, ..) = heads.run(Mask::None, mode(Mode::Exact, 0.0));
    let closed = f32::INFINITY;
    let rule = Rule { needle: closed, outstanding: closed, cell: closed, node: closed, ..Rule::new(0.05, false) };
    let (mut out, mut lse) = (vec![0.0; want.len()], vec![0.0; 256]);
    let rule = Rule { error: closed, ..rule };
    let problem = heads.problem(&mut out, &mut lse, Mask::None, mode(Mode::Accelerated, 0.05));
    let stats = attention_by_rule(&problem, &rule, None, &memory(0)).unwrap();
    assert_eq!(stats.cells_opened, 0);
    // The means of nodes alone see next to nothing of this.
    assert!(distance(&out, &want) < 0.15, "{}", distance(&out, &want));
}
