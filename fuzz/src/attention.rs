//! One attention call of any shape, mask and storage against f64; accelerated calls against exact ones and between
//! instruction sets, threads and memory.

use crate::Budget;
use crate::twin::{Naive, noise, sees, worst};
use arbitrary::{Result, Unstructured};
use half::{bf16, f16};
use iceformer_core::attention::{AttentionOptions, Mask, Mode, Problem, attention, required};
use iceformer_core::mem::{Dtype, Tensor, TensorMut};
use iceformer_core::simd::Isa;

pub fn run(data: &[u8]) {
    let _ = program(&mut Unstructured::new(data));
}

/// One tensor in any element type, with padding between rows and heads.
struct Stored {
    bytes: Vec<u64>,
    dtype: Dtype,
    strides: [usize; 3],
    /// The numbers as stored, packed.
    exact: Vec<f32>,
    shape: [usize; 4],
}

impl Stored {
    fn new(u: &mut Unstructured<'_>, shape: [usize; 4], seed: u64, scale: f32) -> Result<Stored> {
        let dtype = *u.choose(&[Dtype::F32, Dtype::F16, Dtype::Bf16])?;
        let size = dtype.size();
        let [batch, heads, rows, cols] = shape;
        let row = (cols + u.int_in_range(0..=3)?) * size;
        let head = row * rows + u.int_in_range(0..=3)? * size;
        let strides = [row, head, head * heads + u.int_in_range(0..=2)? * size];
        let mut exact = noise(batch * heads * rows * cols, seed, scale);
        let mut bytes = vec![u64::MAX; (strides[2] * batch).div_ceil(8) + 1];
        let raw = bytes.as_mut_ptr().cast::<u8>();
        for (i, x) in exact.iter_mut().enumerate() {
            let (c, r, h, b) = (i % cols, i / cols % rows, i / cols / rows % heads, i / cols / rows / heads);
            let at = c * size + r * row + h * head + b * strides[2];
            // SAFETY: inside the block by its size above.
            unsafe {
                match dtype {
                    Dtype::F32 => raw.add(at).cast::<f32>().write(*x),
                    Dtype::F16 => raw.add(at).cast::<u16>().write(f16::from_f32(*x).to_bits()),
                    Dtype::Bf16 => raw.add(at).cast::<u16>().write(bf16::from_f32(*x).to_bits()),
                }
            }
            *x = match dtype {
                Dtype::F32 => *x,
                Dtype::F16 => f16::from_f32(*x).to_f32(),
                Dtype::Bf16 => bf16::from_f32(*x).to_f32(),
            };
        }
        Ok(Stored { bytes, dtype, strides, exact, shape })
    }

    fn tensor(&self) -> Tensor<'_> {
        // SAFETY: shape and strides describe what was written above.
        unsafe { Tensor::from_raw(self.bytes.as_ptr().cast(), self.dtype, self.shape, self.strides, "tensor") }
            .expect("valid")
    }

    fn head(&self, b: usize, h: usize) -> &[f32] {
        let [_, heads, rows, cols] = self.shape;
        &self.exact[(b * heads + h) * rows * cols..][..rows * cols]
    }
}

fn program(u: &mut Unstructured<'_>) -> Result<()> {
    let accelerated = u.ratio(1, 4)?;
    let (batch, heads_kv, group) = (u.int_in_range(1..=2)?, u.int_in_range(1..=2)?, u.int_in_range(1..=3)?);
    let heads = heads_kv * group;
    let (rows, keys) = if accelerated {
        (u.int_in_range(1..=80)?, u.int_in_range(1..=900)?)
    } else {
        (u.int_in_range(0..=40)?, u.int_in_range(0..=150)?)
    };
    let most = if accelerated { 40 } else { 140 };
    let (dim_k, dim_v) = (u.int_in_range(1..=most)?, u.int_in_range(1..=most)?);
    let seed = u64::from(u.arbitrary::<u8>()?);
    let scale = *u.choose(&[1.0, 0.0, 1e-3, 8.0, 60.0])?;
    let q = Stored::new(u, [batch, heads, rows, dim_k], seed, scale)?;
    let k = Stored::new(u, [batch, heads_kv, keys, dim_k], seed + 1, 1.0)?;
    let v = Stored::new(u, [batch, heads_kv, keys, dim_v], seed + 2, 1.0)?;
    // Masks of one batch and head, shared by all, so that the twin of the tests says what is seen.
    let prefix: Vec<u64> = (0..rows).map(|_| Ok(u.int_in_range(0..=keys as u64 + 3)?)).collect::<Result<_>>()?;
    let keep: Vec<u8> = (0..keys).map(|_| Ok(u8::from(!u.ratio(1, 4)?))).collect::<Result<_>>()?;
    let mut bias = noise(rows * keys, seed + 3, 2.0);
    for x in &mut bias {
        if u.ratio(1, 5)? {
            *x = f32::NEG_INFINITY;
        }
    }
    let mask = match u.int_in_range(0..=4)? {
        0 => Mask::None,
        1 => Mask::Causal { q_pos0: u64::from(u.arbitrary::<u8>()?) },
        2 => Mask::Prefix(&prefix),
        3 => Mask::Keys(&keep),
        _ => Mask::Additive(Tensor::new(&bias, [1, 1, rows, keys]).expect("valid")),
    };
    let isas: Vec<Isa> = Isa::ALL.into_iter().filter(|i| i.available()).collect();
    let options = AttentionOptions {
        mode: Mode::Exact,
        softcap: f32::from(u.int_in_range(0u8..=4)?),
        window: if u.ratio(1, 3)? { u.int_in_range(1..=keys + 9)? } else { 0 },
        sinks: u.int_in_range(0..=4)?,
        scale: if u.ratio(1, 4)? { 0.3 } else { 0.0 },
        tolerance: f32::from(u.int_in_range(0u8..=9)?) / 30.0,
        isa: Some(*u.choose(&isas)?),
        ..AttentionOptions::default()
    };
    let call = |o: AttentionOptions| {
        let (mut out, mut lse) = (vec![f32::NAN; batch * heads * rows * dim_v], vec![f32::NAN; batch * heads * rows]);
        let problem = Problem {
            q: q.tensor(),
            k: k.tensor(),
            v: v.tensor(),
            out: TensorMut::new(&mut out, [batch, heads, rows, dim_v]).expect("valid"),
            lse: Some(TensorMut::new(&mut lse, [batch, heads, rows, 1]).expect("valid")),
            bounds: None,
            mask,
            options: o,
        };
        // Exactly what it says it needs.
        let need = required(&problem).unwrap_or_else(|e| panic!("required: {e}"));
        let work = Budget::new(need.bytes);
        let stats = attention(&problem, &work.memory().expect("planned")).unwrap_or_else(|e| panic!("{e}"));
        assert!(stats.pairs <= stats.pairs_dense, "{stats:?}");
        drop(problem);
        (out, lse, stats.pairs)
    };
    let (out, lse, pairs) = call(options);
    assert!(out.iter().all(|x| x.is_finite()) && lse.iter().all(|x| !x.is_nan()));
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        let naive = Naive {
            q: q.head(b, h),
            k: k.head(b, h / group),
            v: v.head(b, h / group),
            dim_k,
            dim_v,
            options,
            sees: &|i, j| sees(&mask, options.window, options.sinks, i, j),
            top: usize::MAX,
        };
        let (want, want_lse) = naive.run();
        let at = b * heads + h;
        let error = worst(&out[at * rows * dim_v..][..rows * dim_v], &want, dim_v);
        // Logits of thousands in f32 are off by as much as 1e-3.
        let slack = if scale > 8.0 { 2e-2 } else { 5e-4 };
        assert!(error < slack, "batch {b}, head {h}: error {error}");
        for (a, b) in lse[at * rows..][..rows].iter().zip(&want_lse) {
            assert!(f64::from(*a) == *b || (f64::from(*a) - b).abs() < 1e-3 * b.abs().max(1.0), "lse {a} for {b}");
        }
    }
    let threads = call(AttentionOptions { num_threads: 3, ..options });
    assert!(threads == (out.clone(), lse, pairs), "bits depend on threads");
    if !accelerated {
        return Ok(());
    }
    let cells = AttentionOptions { mode: Mode::Accelerated, ..options };
    let (near, near_lse, near_pairs) = call(cells);
    assert!(near.iter().all(|x| x.is_finite()) && near_lse.iter().all(|x| !x.is_nan()));
    assert!(call(AttentionOptions { num_threads: 2, ..cells }) == (near.clone(), near_lse, near_pairs));
    // With next to no tolerance nothing is left to estimate.
    let (tight, ..) = call(AttentionOptions { tolerance: 1e-12, ..cells });
    for (a, b) in tight.chunks(dim_v).zip(out.chunks(dim_v)) {
        let off = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < if scale > 8.0 { 0.1 } else { 2e-3 }, "accelerated without tolerance is off by {off}");
    }
    Ok(())
}
