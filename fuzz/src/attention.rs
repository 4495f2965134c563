//! Attention in one call: exactly, of any shape, mask and storage, against f64 and in threads, here; by cells and over an
//! index, in modules of their own.

use crate::stored::Stored;
use crate::truth::{hold, shows, truth};
use crate::twin::{Naive, noise};
use crate::{Budget, cells, over_index};
use arbitrary::{Result, Unstructured};
use iceformer_core::attention::{AttentionOptions, Mask, Mode, Problem, attention, required};
use iceformer_core::mem::{Dtype, Tensor, TensorMut};
use iceformer_core::simd::Isa;

pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = match u.int_in_range(0..=7) {
        Ok(0 | 1) => program(&mut u),
        Ok(2 | 3) => over_index::program(&mut u),
        _ => cells::program(&mut u),
    };
}

fn program(u: &mut Unstructured<'_>) -> Result<()> {
    let (batch, heads_kv, group) = (u.int_in_range(1..=2)?, u.int_in_range(1..=2)?, u.int_in_range(1..=3)?);
    let heads = heads_kv * group;
    let (rows, keys) = (u.int_in_range(0..=40)?, u.int_in_range(0..=150)?);
    let (dim_k, dim_v) = (u.int_in_range(1..=140)?, u.int_in_range(1..=140)?);
    let seed = u64::from(u.arbitrary::<u8>()?);
    let scale = *u.choose(&[1.0, 0.0, 1e-3, 8.0, 60.0])?;
    let mut tensor = |shape: [usize; 4], seed, scale| {
        let numbers = noise(shape.iter().product(), seed, scale);
        Stored::new(u, shape, &numbers, &[Dtype::F32, Dtype::F16, Dtype::Bf16])
    };
    let q = tensor([batch, heads, rows, dim_k], seed, scale)?;
    let k = tensor([batch, heads_kv, keys, dim_k], seed + 1, 1.0)?;
    let v = tensor([batch, heads_kv, keys, dim_v], seed + 2, 1.0)?;
    // Masks of one batch and head, shared by all, so that the twin of the tests says what is seen.
    let prefix: Vec<u64> = (0..rows).map(|_| u.int_in_range(0..=keys as u64 + 3)).collect::<Result<_>>()?;
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
            sees: &|i, j| shows(&mask, keys, [options.window, options.sinks], i, j),
            top: usize::MAX,
        };
        let truth = truth(&naive, matches!(mask, Mask::Additive(_)));
        let at = (b * heads + h) * rows;
        hold(&truth, &out[at * dim_v..][..rows * dim_v], Some(&lse[at..][..rows]), "exact");
    }
    let threads = call(AttentionOptions { num_threads: 3, ..options });
    assert!(threads == (out.clone(), lse, pairs), "bits depend on threads");
    Ok(())
}
