//! Exact attention against an f64 twin: every instruction set, shapes, masks, element types, adversarial logits.

use half::{bf16, f16};
mod common;

use iceformer_core::attention::exact::{Head, ROW_BLOCK, Work, attend, plan};
use iceformer_core::attention::merge;
use iceformer_core::attention::{Mask, Masking};
use iceformer_core::mem::{Dtype, Memory, Plan, Rows, RowsMut, Tensor};
use iceformer_core::simd::Isa;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.uniform() * 1.5).collect()
    }
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available())
}

/// Outputs and log-sum-exps of all rows, in f64.
fn twin(head: &Head<'_>) -> (Vec<f64>, Vec<f64>) {
    let (rows, keys) = (head.q.rows(), head.v.rows());
    let (dk, dv) = (head.q.cols(), head.v.cols());
    let read = |r: &Rows<'_>| {
        let mut x = vec![0.0f32; r.rows() * r.cols()];
        for i in 0..r.rows() {
            r.read(i, &mut x[i * r.cols()..][..r.cols()]);
        }
        x.into_iter().map(f64::from).collect::<Vec<_>>()
    };
    let (q, v) = (read(&head.q), read(&head.v));
    let mut k = if head.shared_qk { q.clone() } else { read(&head.k) };
    if head.shared_qk {
        for k in k.chunks_mut(dk) {
            let norm = k.iter().map(|x| x * x).sum::<f64>().sqrt();
            k.iter_mut().for_each(|x| *x = if norm > 0.0 { *x / norm } else { 0.0 });
        }
    }
    let keep = head.masking.keep(head.batch);
    let bias = head.masking.bias(head.batch, head.head);
    let (mut out, mut lse) = (vec![0.0; rows * dv], vec![f64::NEG_INFINITY; rows]);
    let mut b = vec![0.0f32; keys];
    for i in 0..rows {
        let seen = head.masking.visible(head.batch, i);
        if let Some(bias) = &bias {
            bias.read(i, &mut b);
        }
        let mut s: Vec<f64> = (0..keys)
            .map(|j| {
                if !seen.contains(j) || keep.is_some_and(|k| k[j] == 0) {
                    return f64::NEG_INFINITY;
                }
                let mut x = f64::from(head.scale) * (0..dk).map(|c| q[i * dk + c] * k[j * dk + c]).sum::<f64>();
                if head.softcap > 0.0 {
                    x = f64::from(head.softcap) * (x / f64::from(head.softcap)).tanh();
                }
                x + f64::from(b[j])
            })
            .collect();
        if head.shared_qk && s.iter().enumerate().any(|(j, &x)| j != i && x != f64::NEG_INFINITY) && i < keys {
            s[i] = f64::NEG_INFINITY;
        }
        let m = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if m == f64::NEG_INFINITY {
            continue;
        }
        let w: Vec<f64> = s.iter().map(|x| (x - m).exp()).collect();
        let sum: f64 = w.iter().sum();
        lse[i] = m + sum.ln();
        for j in 0..keys {
            for c in 0..dv {
                out[i * dv + c] += w[j] / sum * v[j * dv + c];
            }
        }
    }
    (out, lse)
}

/// All rows, cut at row blocks; returns outputs, log-sum-exps and pairs.
fn run(isa: Isa, head: &Head<'_>) -> (Vec<f32>, Vec<f32>, u64) {
    let (rows, dv) = (head.q.rows(), head.v.cols());
    let memory = common::memory(0);
    let mut work = Work::new_in(&memory, head.q.cols(), dv, rows).unwrap();
    let (mut out, mut lse) = (vec![f32::NAN; rows * dv], vec![f32::NAN; rows]);
    let used = memory.report().used;
    let mut pairs = 0;
    for (b, (out, lse)) in out.chunks_mut(ROW_BLOCK * dv).zip(lse.chunks_mut(ROW_BLOCK)).enumerate() {
        let mut out = RowsMut::new(out, dv).unwrap();
        pairs += attend(isa, head, b * ROW_BLOCK, lse.len(), &mut out, Some(lse), &mut work);
    }
    assert_eq!(memory.report().peak, used, "attend allocated");
    (out, lse, pairs)
}

fn check(head: &Head<'_>, tolerance: f64, what: &str) {
    let (want, want_lse) = twin(head);
    let dv = head.v.cols();
    let keep = head.masking.keep(head.batch);
    let visible: usize = (0..head.q.rows())
        .map(|i| {
            let seen = head.masking.visible(head.batch, i);
            (0..head.v.rows()).filter(|&j| seen.contains(j) && keep.is_none_or(|k| k[j] != 0)).count()
        })
        .sum();
    for isa in isas() {
        let (out, lse, pairs) = run(isa, head);
        assert_eq!(pairs, visible as u64, "{what}");
        for i in 0..head.q.rows() {
            let (got, want) = (&out[i * dv..][..dv], &want[i * dv..][..dv]);
            let error: f64 = got.iter().zip(want).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum::<f64>().sqrt();
            let size = want.iter().map(|x| x * x).sum::<f64>().sqrt();
            assert!(error <= tolerance * size.max(0.05), "{}: {what}: row {i}: {error:e} of {size:e}", isa.name());
            if want_lse[i] == f64::NEG_INFINITY {
                assert_eq!(lse[i], f32::NEG_INFINITY, "{}: {what}: row {i}", isa.name());
                assert!(got.iter().all(|&x| x == 0.0));
            } else {
                let error = (f64::from(lse[i]) - want_lse[i]).abs();
                let size = want_lse[i].abs().max(1.0);
                assert!(
                    error <= tolerance * size,
                    "{}: {what}: row {i}: lse {} for {}",
                    isa.name(),
                    lse[i],
                    want_lse[i]
                );
            }
        }
    }
}

/// The same with scores in fixed point; also their standard error.
fn run_fixed(isa: Isa, head: &Head<'_>) -> (Vec<f32>, Vec<f32>, f32) {
    let (rows, dv) = (head.q.rows(), head.v.cols());
    let mut work = Work::new_fixed(&common::memory(0), head.q.cols(), dv, rows).unwrap();
    let (mut out, mut lse) = (vec![f32::NAN; rows * dv], vec![f32::NAN; rows]);
    attend(isa, head, 0, rows, &mut RowsMut::new(&mut out, dv).unwrap(), Some(&mut lse), &mut work);
    (out, lse, work.score_error() * head.scale)
}

#[test]
fn fixed_point_scores_err_as_stated() {
    let mut rng = Rng(77);
    for (d, keys) in
        [(1, 40), (2, 5), (3, 200), (31, 130), (32, 64), (64, 517), (80, 90), (129, 200), (256, 70), (300, 41)]
    {
        let rows = 100;
        let (mut q, mut k, v) = (rng.vec(rows * d), rng.vec(keys * d), rng.vec(keys * d));
        // A row of zeros, a tiny one, and one that stands out.
        q[..d].fill(0.0);
        q[d..2 * d].fill(1e-38);
        k[(keys - 1) * d..].iter_mut().for_each(|x| *x *= 6.0);
        for mask in [Mask::None, Mask::Causal { q_pos0: 0 }] {
            let m = masking(mask, 0, 0, rows, keys);
            let views = [Rows::new(&q, d), Rows::new(&k, d), Rows::new(&v, d)].map(Result::unwrap);
            let head = head(views[0], views[1], views[2], &m);
            let (want, want_lse) = twin(&head);
            let mut first: Option<Vec<f32>> = None;
            for isa in isas() {
                let (out, lse, error) = run_fixed(isa, &head);
                assert!(error > 0.0 && error < 0.02, "{}: d {d}: {error:e}", isa.name());
                // Six standard errors of a logit bound the log-sum-exp; outputs are sums of values times weights.
                for (i, (&a, b)) in lse.iter().zip(&want_lse).enumerate() {
                    let off = (f64::from(a) - b).abs();
                    assert!(
                        off <= 6.0 * f64::from(error) + 1e-5 * b.abs().max(1.0),
                        "{}: d {d} row {i}: {off:e}",
                        isa.name()
                    );
                }
                let largest = v.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                for (a, b) in out.iter().zip(&want) {
                    let off = (f64::from(*a) - b).abs();
                    assert!(
                        off <= f64::from(largest) * (12.0 * f64::from(error) + 1e-5),
                        "{}: d {d}: {off:e}",
                        isa.name()
                    );
                }
                // Integers: every instruction set sums the same numbers; only the softmax rounds differently.
                let first = first.get_or_insert_with(|| out.clone());
                assert!(out.iter().zip(first.iter()).all(|(a, b)| (a - b).abs() <= 2e-6 * largest.max(1.0)));
            }
        }
    }
}

fn head<'a>(q: Rows<'a>, k: Rows<'a>, v: Rows<'a>, masking: &'a Masking<'a>) -> Head<'a> {
    let scale = 1.0 / (q.cols() as f32).sqrt();
    Head { q, k, v, masking, batch: 0, head: 0, scale, softcap: 0.0, shared_qk: false }
}

fn masking(mask: Mask<'_>, window: usize, sinks: usize, rows: usize, keys: usize) -> Masking<'_> {
    Masking::new(mask, window, sinks, [1, 1, rows, keys], false).unwrap()
}

#[test]
fn shapes() {
    let dims: &[usize] =
        if cfg!(miri) { &[3] } else { &[1, 2, 3, 5, 8, 16, 31, 32, 64, 80, 96, 100, 128, 192, 256, 512] };
    let all_keys: &[usize] = if cfg!(miri) { &[0, 17] } else { &[0, 1, 2, 15, 16, 17, 63, 64, 65, 200, 517] };
    let all_rows: &[usize] = if cfg!(miri) { &[3, 13] } else { &[1, 2, 3, 7, 12, 13, 33, 130] };
    let mut rng = Rng(3);
    let mut turn = 0;
    for &d in dims {
        for &keys in all_keys {
            for &rows in all_rows {
                // The large corner once is enough.
                if rows * keys * d > 130 * 200 * 64 && turn % 7 != 0 {
                    turn += 1;
                    continue;
                }
                let dv = if turn % 3 == 0 { dims[turn % dims.len()] } else { d };
                let (q, k, v) = (rng.vec(rows * d), rng.vec(keys * d), rng.vec(keys * dv));
                let mask = if turn % 2 == 0 {
                    Mask::None
                } else {
                    Mask::Causal { q_pos0: [0, keys as u64 / 2, 1000][turn % 3] }
                };
                let masking = masking(mask, 0, 0, rows, keys);
                let (q, k, v) = (Rows::new(&q, d).unwrap(), Rows::new(&k, d).unwrap(), Rows::new(&v, dv).unwrap());
                check(&head(q, k, v, &masking), 1e-5, &format!("d {d} dv {dv} rows {rows} keys {keys} {mask:?}"));
                turn += 1;
            }
        }
    }
}

#[test]
fn masks() {
    let mut rng = Rng(4);
    let (d, sizes) =
        if cfg!(miri) { (5, vec![(7, 19)]) } else { (24, vec![(3, 70), (7, 19), (61, 61), (230, 600), (200, 130)]) };
    for (rows, keys) in sizes {
        let (q, k, v) = (rng.vec(rows * d), rng.vec(keys * d), rng.vec(keys * d));
        let (q, k, v) = (Rows::new(&q, d).unwrap(), Rows::new(&k, d).unwrap(), Rows::new(&v, d).unwrap());
        let counts: Vec<u64> =
            (0..rows).map(|_| rng.next() % (keys as u64 + 5)).map(|c| if c % 5 == 0 { 0 } else { c }).collect();
        let mut keep: Vec<u8> = (0..keys).map(|_| (rng.next() % 3) as u8).collect();
        keep[..3].fill(0);
        let mut bias: Vec<f32> = rng.vec(rows * keys);
        for b in &mut bias {
            if rng.next().is_multiple_of(4) {
                *b = f32::NEG_INFINITY;
            }
        }
        bias[..keys].fill(f32::NEG_INFINITY);
        let half_bias: Vec<f16> = bias.iter().map(|&b| f16::from_f32(b)).collect();
        let tensor = |data: *const u8, dtype: Dtype| {
            // SAFETY: the data is rows x keys packed and lives as long as the test.
            unsafe {
                let size = dtype.size();
                let all = rows * keys * size;
                Tensor::from_raw(data, dtype, [1, 1, rows, keys], [keys * size, all, all], "mask.bias").unwrap()
            }
        };
        let masks = [
            Mask::None,
            Mask::Causal { q_pos0: 0 },
            Mask::Causal { q_pos0: keys.saturating_sub(rows) as u64 },
            Mask::Prefix(&counts),
            Mask::Keys(&keep),
            Mask::CausalKeys { q_pos0: keys.saturating_sub(rows) as u64, keep: &keep },
            Mask::Additive(tensor(bias.as_ptr().cast(), Dtype::F32)),
            Mask::Additive(tensor(half_bias.as_ptr().cast(), Dtype::F16)),
        ];
        for (m, mask) in masks.into_iter().enumerate() {
            for (window, sinks) in [(0, 0), (1, 0), (9, 0), (40, 4), (100, 150), (3, 1)] {
                let masking = masking(mask, window, sinks, rows, keys);
                for softcap in [0.0, 1.5] {
                    let mut h = head(q, k, v, &masking);
                    h.softcap = softcap;
                    check(&h, 1e-5, &format!("mask {m} window {window} sinks {sinks} softcap {softcap} rows {rows}"));
                }
                if window != 100 {
                    let mut q = q;
                    if rows <= keys {
                        q = k;
                    }
                    if q.rows() != keys {
                        continue;
                    }
                    // Keys are the queries: as many rows as keys.
                    let mask = match mask {
                        Mask::None | Mask::Causal { .. } | Mask::Keys(_) | Mask::CausalKeys { .. } => mask,
                        _ => continue,
                    };
                    let masking = self::masking(mask, window, sinks, keys, keys);
                    let mut h = head(q, q, v, &masking);
                    h.shared_qk = true;
                    h.scale = 2.0;
                    check(&h, 1e-5, &format!("shared {m} window {window} sinks {sinks} keys {keys}"));
                }
            }
        }
    }
}

#[test]
fn shared_queries_alone_and_zero() {
    let mut rng = Rng(5);
    for n in [1, 2, 6, 20] {
        let mut q = rng.vec(n * 4);
        q[..4].fill(0.0);
        let v = rng.vec(n * 3);
        let bias: Vec<f32> = (0..n * n).map(|i| if i / n == i % n { 0.5 } else { f32::NEG_INFINITY }).collect();
        // SAFETY: packed n x n floats that outlive the view.
        let bias = unsafe {
            let all = n * n * 4;
            Tensor::from_raw(bias.as_ptr().cast(), Dtype::F32, [1, 1, n, n], [n * 4, all, all], "bias").unwrap()
        };
        for mask in [Mask::Causal { q_pos0: 0 }, Mask::Additive(bias), Mask::None] {
            let masking = masking(mask, 0, 0, n, n);
            let (q, v) = (Rows::new(&q, 4).unwrap(), Rows::new(&v, 3).unwrap());
            let mut h = head(q, q, v, &masking);
            h.shared_qk = true;
            for softcap in [0.0, 2.0] {
                h.softcap = softcap;
                check(&h, 1e-5, &format!("shared n {n} {mask:?}"));
            }
        }
    }
}

#[test]
fn element_types_and_strides() {
    let mut rng = Rng(6);
    for (rows, keys, d) in [(2, 40, 33), (7, 40, 33), (70, 300, 48), (5, 9, 1)] {
        let (q, k, v) = (rng.vec(rows * d), rng.vec(keys * d), rng.vec(keys * d));
        let masking = masking(Mask::Causal { q_pos0: 3 }, 0, 0, rows, keys);
        let h16 = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>();
        let b16 = |x: &[f32]| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
        let (qh, kh, vh) = (h16(&q), h16(&k), h16(&v));
        let (qb, kb, vb) = (b16(&q), b16(&k), b16(&v));
        let qs = [Rows::new(&q, d).unwrap(), Rows::new(&qh, d).unwrap(), Rows::new(&qb, d).unwrap()];
        let ks = [Rows::new(&k, d).unwrap(), Rows::new(&kh, d).unwrap(), Rows::new(&kb, d).unwrap()];
        let vs = [Rows::new(&v, d).unwrap(), Rows::new(&vh, d).unwrap(), Rows::new(&vb, d).unwrap()];
        for i in 0..9 {
            check(&head(qs[i % 3], ks[i / 3], vs[(i + 1) % 3], &masking), 1e-5, &format!("types {i}"));
        }
        for stride in [d + 3, 1024, 1040] {
            let spread = |x: &[f32], n: usize| {
                let mut y = vec![f32::NAN; n * stride];
                (0..n).for_each(|i| y[i * stride..][..d].copy_from_slice(&x[i * d..][..d]));
                y
            };
            let (q, k, v) = (spread(&q, rows), spread(&k, keys), spread(&v, keys));
            let r = |x, n| Rows::strided(x, n, d, stride).unwrap();
            check(&head(r(&q, rows), r(&k, keys), r(&v, keys), &masking), 1e-5, &format!("stride {stride}"));
        }
        // Output in 16 bits: the f32 result, rounded.
        for isa in isas() {
            let h = head(qs[0], ks[0], vs[0], &masking);
            let (want, _, _) = run(isa, &h);
            let mut out = vec![f16::ZERO; rows * d];
            let memory = common::memory(0);
            let mut work = Work::new_in(&memory, d, d, rows).unwrap();
            // SAFETY: packed rows of f16, borrowed here alone.
            let mut view =
                unsafe { RowsMut::from_raw(out.as_mut_ptr().cast(), Dtype::F16, rows, d, d * 2, "out").unwrap() };
            attend(isa, &h, 0, rows, &mut view, None, &mut work);
            assert!(out.iter().zip(&want).all(|(a, &b)| *a == f16::from_f32(b)));
        }
    }
}

/// Where values begin and how far apart they lie decides how tiles read them, in place or packed, and nothing else.
#[test]
fn values_at_any_address_give_the_same_bits() {
    let mut rng = Rng(17);
    let sizes: &[_] =
        if cfg!(miri) { &[(6, 9, 16)] } else { &[(50, 70, 16), (70, 600, 64), (61, 300, 144), (40, 90, 24)] };
    for &(rows, keys, d) in sizes {
        let (q, k, v) = (rng.vec(rows * d), rng.vec(keys * d), rng.vec(keys * d));
        let masking = masking(Mask::Causal { q_pos0: keys as u64 / 2 }, 0, 0, rows, keys);
        let (q, k) = (Rows::new(&q, d).unwrap(), Rows::new(&k, d).unwrap());
        let mut first = None;
        // A multiple of every vector's length, one of the shorter ones only, none; rows a page apart are packed whatever the address.
        for stride in [d.next_multiple_of(16), d.next_multiple_of(16) + 8, d + 1, 1024] {
            for shift in [0, 4, 8, 1] {
                // NaN around the values: nothing there may be read into a sum.
                let mut room = vec![f32::NAN; keys * stride + 32];
                let begin = room.as_ptr().align_offset(64) + shift;
                assert!(room[begin..].as_ptr() as usize % 64 == shift * 4);
                (0..keys).for_each(|j| room[begin + j * stride..][..d].copy_from_slice(&v[j * d..][..d]));
                let values = Rows::strided(&room[begin..], keys, d, stride).unwrap();
                let head = head(q, k, values, &masking);
                let all: Vec<_> = isas().map(|isa| run(isa, &head)).collect();
                let Some(want) = &first else {
                    check(&head, 1e-5, &format!("aligned, d {d}"));
                    first = Some(all);
                    continue;
                };
                assert!(all == *want, "d {d}, stride {stride}, shift {shift}");
            }
        }
    }
}

#[test]
fn large_logits() {
    let mut rng = Rng(11);
    // Small whole numbers: inner products are exact in f32, so only the softmax is tested.
    for (rows, keys) in [(3, 200), (50, 200), (50, 700)] {
        let d = 16;
        let int = |rng: &mut Rng, n: usize| (0..n).map(|_| (rng.uniform() * 16.0).round()).collect::<Vec<f32>>();
        let (q, k, v) = (int(&mut rng, rows * d), int(&mut rng, keys * d), rng.vec(keys * d));
        let (q, k, v) = (Rows::new(&q, d).unwrap(), Rows::new(&k, d).unwrap(), Rows::new(&v, d).unwrap());
        for scale in [8.0, 1.0, 0.0625, 1000.0, 0.0, -0.25] {
            let masking = masking(Mask::None, 0, 0, rows, keys);
            let mut h = head(q, k, v, &masking);
            h.scale = scale;
            check(&h, 1e-5, &format!("scale {scale}"));
            h.softcap = 30.0;
            check(&h, 2e-5, &format!("scale {scale} capped"));
        }
    }
}

#[test]
fn maxima_that_move() {
    let (rows, keys) = if cfg!(miri) { (14, 30) } else { (70, 1100) };
    // One dimension: the scores are what is written here, times the row's factor.
    let cut = keys / 3;
    let growing: Vec<f32> = (0..keys).map(|j| j as f32 * 0.125).collect();
    let falling: Vec<f32> = growing.iter().rev().copied().collect();
    let creeping: Vec<f32> = (0..keys).map(|j| j as f32 / 4096.0).collect();
    let jumps: Vec<f32> = (0..keys).map(|j| [0.0, 5.5, 40.0, 1000.0, 1e5][j * 5 / keys] + (j % 3) as f32).collect();
    let spikes: Vec<f32> = (0..keys).map(|j| if j % 97 == 50 { j as f32 } else { -1.0 }).collect();
    let low: Vec<f32> = (0..keys).map(|j| if j < cut { -3e4 } else { -2e4 + (j % 7) as f32 }).collect();
    let huge: Vec<f32> = (0..keys).map(|j| if j < cut { -4e37 } else { (j % 5) as f32 * 3e37 }).collect();
    let q: Vec<f32> = (0..rows).map(|i| [1.0, 0.5, -1.0, 0.0, 2.0, -0.25, 0.0625][i % 7]).collect();
    let v = Rng(21).vec(keys * 20);
    let keep: Vec<u8> = (0..keys).map(|j| u8::from(j >= cut)).collect();
    let mut bias = vec![0.0f32; rows * keys];
    for (i, b) in bias.chunks_mut(keys).enumerate() {
        b[..(i * 31) % keys].fill(f32::NEG_INFINITY);
    }
    let bias = Tensor::new(&bias, [1, 1, rows, keys]).unwrap();
    let masks =
        [Mask::None, Mask::Keys(&keep), Mask::Additive(bias), Mask::Causal { q_pos0: (keys - rows / 2) as u64 }];
    for (name, k) in [
        ("growing", &growing),
        ("falling", &falling),
        ("creeping", &creeping),
        ("jumps", &jumps),
        ("spikes", &spikes),
        ("low", &low),
        ("huge", &huge),
    ] {
        for (m, &mask) in masks.iter().enumerate() {
            // Powers of two, so that logits are exact and only the softmax is tested.
            for (scale, softcap) in [(1.0, 0.0), (1.0, 20.0), (0.007_812_5, 0.0), (f32::MIN_POSITIVE, 0.0)] {
                let masking = masking(mask, 0, 0, rows, keys);
                let views = [Rows::new(&q, 1), Rows::new(k, 1), Rows::new(&v, 20)].map(Result::unwrap);
                let mut h = head(views[0], views[1], views[2], &masking);
                (h.scale, h.softcap) = (scale, softcap);
                check(&h, 1e-5, &format!("{name} mask {m} scale {scale} softcap {softcap}"));
                // A row whose maximum jumps changes nothing beside it.
                for isa in isas() {
                    let (all, all_lse, _) = run(isa, &h);
                    let n = 13;
                    let mut work = Work::new_in(&common::memory(0), 1, 20, n).unwrap();
                    let (mut out, mut lse) = (vec![0.0; n * 20], vec![0.0; n]);
                    attend(isa, &h, 1, n, &mut RowsMut::new(&mut out, 20).unwrap(), Some(&mut lse), &mut work);
                    assert_eq!(out, all[20..][..n * 20], "{}: {name} mask {m}", isa.name());
                    assert_eq!(lse, all_lse[1..][..n]);
                }
            }
        }
    }
}

#[test]
fn values_near_the_largest_number_do_not_overflow() {
    // What is summed is weights of at most 1 times values: as many as there are keys fit.
    let (rows, keys, d) = (9, 600, 3);
    let mut rng = Rng(22);
    let (q, k) = (rng.vec(rows * d), rng.vec(keys * d));
    let v = vec![f32::MAX / (keys + 1) as f32; keys];
    let masking = masking(Mask::None, 0, 0, rows, keys);
    let h = head(Rows::new(&q, d).unwrap(), Rows::new(&k, d).unwrap(), Rows::new(&v, 1).unwrap(), &masking);
    check(&h, 1e-5, "large values");
}

#[test]
fn later_keys_change_nothing() {
    let (n, d) = (if cfg!(miri) { 9 } else { 330 }, 40);
    let mut rng = Rng(12);
    let (q, mut k, mut v) = (rng.vec(n * d), rng.vec(n * d), rng.vec(n * d));
    for isa in isas() {
        let masking = masking(Mask::Causal { q_pos0: 0 }, 0, 0, n, n);
        let all = |k: &[f32], v: &[f32]| {
            let h = head(Rows::new(&q, d).unwrap(), Rows::new(k, d).unwrap(), Rows::new(v, d).unwrap(), &masking);
            run(isa, &h)
        };
        for cut in [n - 1, n / 2, 3, 1] {
            let (a, a_lse, _) = all(&k, &v);
            k[cut * d..].iter_mut().for_each(|x| *x = rng.uniform() * 50.0);
            v[cut * d..].iter_mut().for_each(|x| *x = rng.uniform() * 50.0);
            let (b, b_lse, _) = all(&k, &v);
            assert!(a[..cut * d].iter().zip(&b[..cut * d]).all(|(a, b)| a.to_bits() == b.to_bits()), "cut {cut}");
            assert!(a_lse[..cut].iter().zip(&b_lse[..cut]).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}

#[test]
fn neighbours_change_nothing() {
    let (n, keys, d) = if cfg!(miri) { (17, 20, 3) } else { (250, 700, 40) };
    let mut rng = Rng(14);
    let (q, k, v) = (rng.vec(n * d), rng.vec(keys * d), rng.vec(keys * d));
    for isa in isas() {
        for (window, sinks) in [(0, 0), (90, 3)] {
            let masking = masking(Mask::Causal { q_pos0: 400 }, window, sinks, n, keys);
            let h = head(Rows::new(&q, d).unwrap(), Rows::new(&k, d).unwrap(), Rows::new(&v, d).unwrap(), &masking);
            let (want, want_lse, _) = run(isa, &h);
            let memory = common::memory(0);
            let mut work = Work::new_in(&memory, d, d, n).unwrap();
            for (begin, rows) in [(0, 13), (3, 14), (100, 48), (n - 13, 13), (1, n - 1)] {
                if begin >= n || rows > n - begin {
                    continue;
                }
                let (mut out, mut lse) = (vec![0.0; rows * d], vec![0.0; rows]);
                let mut view = RowsMut::new(&mut out, d).unwrap();
                attend(isa, &h, begin, rows, &mut view, Some(&mut lse), &mut work);
                let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same(&out, &want[begin * d..]), "{}: rows {begin}..+{rows}", isa.name());
                assert!(same(&lse, &want_lse[begin..]));
            }
        }
    }
}

#[test]
fn memory_is_planned_exactly() {
    let dims = [(1, 1), (64, 64), (128, 128), (80, 96), (1024, 1), (5000, 3)];
    for ((dk, dv), rows) in dims.into_iter().flat_map(|d| [1, 4, 12, 13, 192, 9999].map(|rows| (d, rows))) {
        let mut p = Plan::new();
        Memory::plan(&mut p);
        plan(&mut p, dk, dv, rows);
        let bytes = p.finish().unwrap().bytes;
        let memory = common::memory(bytes);
        let work = Work::new_in(&memory, dk, dv, rows).unwrap();
        assert_eq!(memory.report().used, bytes);
        drop(work);
        let tight = common::memory(bytes - 1);
        assert!(Work::new_in(&tight, dk, dv, rows).is_err());
    }
}

#[test]
fn halves_merge_to_the_whole() {
    let (rows, keys, d) = (9, 60, 8);
    let mut rng = Rng(13);
    let (q, k, v) = (rng.vec(rows * d), rng.vec(keys * d), rng.vec(keys * d));
    for isa in isas() {
        for cut in [0, 1, 30, 60] {
            let part = |from: usize, to: usize| {
                let masking = masking(Mask::None, 0, 0, rows, to - from);
                let (k, v) = (&k[from * d..to * d], &v[from * d..to * d]);
                let h = head(Rows::new(&q, d).unwrap(), Rows::new(k, d).unwrap(), Rows::new(v, d).unwrap(), &masking);
                run(isa, &h)
            };
            let (whole, whole_lse, _) = part(0, keys);
            let (mut a, mut a_lse, _) = part(0, cut);
            let (b, b_lse, _) = part(cut, keys);
            merge(&mut a, &mut a_lse, &b, &b_lse, d).unwrap();
            assert!(a.iter().zip(&whole).all(|(a, b)| (a - b).abs() < 1e-5));
            assert!(a_lse.iter().zip(&whole_lse).all(|(a, b)| (a - b).abs() < 1e-5));
        }
    }
    let none = f32::NEG_INFINITY;
    let (mut out, mut lse) = ([1.0, 2.0], [none]);
    merge(&mut out, &mut lse, &[3.0, 4.0], &[none], 2).unwrap();
    assert_eq!((out, lse), ([0.0, 0.0], [none]));
    merge(&mut out, &mut lse, &[3.0, 4.0], &[-5e4], 2).unwrap();
    assert_eq!((out, lse), ([3.0, 4.0], [-5e4]));
    merge(&mut out, &mut lse, &[5.0, 6.0], &[-5e4], 2).unwrap();
    assert_eq!(out, [4.0, 5.0]);
    assert!(merge(&mut out, &mut lse, &[0.0; 3], &[0.0], 2).is_err());
    assert!(merge(&mut out, &mut lse, &[0.0; 2], &[0.0; 2], 2).is_err());
}
