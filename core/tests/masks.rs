//! What masks, windows and sinks show, and which biases are none.
#![allow(unsafe_code)]

mod common;

use half::f16;
use iceformer_core::attention::{Mask, Masking};
use iceformer_core::mem::{Dtype, Tensor};

/// Ranges of keys against the rules of mask, window and sinks, key by key: the twin of `exact` takes the ranges as they are.
#[test]
fn what_masks_show() {
    let (rows, keys) = (40, 70);
    let counts: Vec<u64> = (0..rows as u64).map(|i| i * 37 % 71).collect();
    let masks = [
        Mask::None,
        Mask::Causal { q_pos0: 0 },
        Mask::Causal { q_pos0: 30 },
        Mask::Prefix(&counts),
        Mask::Keys(&[1; 70]),
    ];
    for mask in masks {
        for window in [0, 1, 2, 9, 40, 69, 100] {
            for sinks in [0, 1, 5, 20, 45, 70, 150] {
                let masking = Masking::new(mask, window, sinks, [1, 1, rows, keys], false).unwrap();
                for i in 0..rows {
                    let seen = masking.visible(0, i);
                    assert!(seen.sinks <= seen.begin && seen.begin <= seen.end && seen.end <= keys);
                    for j in 0..keys {
                        let want = common::sees(&mask, window, sinks, i, j).is_some();
                        assert_eq!(
                            seen.contains(j),
                            want,
                            "{mask:?}, window {window}, sinks {sinks}: row {i}, key {j}"
                        );
                    }
                }
            }
        }
    }
}

/// Every number of 16 bits, and many of 32: what is no bias is refused, with its row.
#[test]
fn biases_are_finite_or_exclude() {
    let refused = |data: *const u8, dtype: Dtype, rows: usize| {
        // SAFETY: packed numbers, one a row, which live as long as the call.
        let bias = unsafe { Tensor::from_raw(data, dtype, [1, 1, rows, 1], [0; 3], "mask.bias") }.unwrap();
        Masking::new(Mask::Additive(bias), 0, 0, [1, 1, rows, 1], false).err().map(|e| (e.status, e.detail))
    };
    let at = |row| Some((iceformer_core::Status::NotFinite, iceformer_core::Detail::Row(row)));
    for bits in 0..=u16::MAX {
        let x = f16::from_bits(bits);
        let three = [f16::ONE, x, f16::NEG_INFINITY];
        let want = if x.is_nan() || x == f16::INFINITY { at(1) } else { None };
        assert_eq!(refused(three.as_ptr().cast(), Dtype::F16, 3), want, "{bits:x}");
    }
    for bits in (0..=u32::MAX).step_by(0x1_8001).chain([0x7f80_0000, 0xff80_0000, 0x7f80_0001, 0xff80_0001, u32::MAX]) {
        let x = f32::from_bits(bits);
        let want = if x.is_nan() || x == f32::INFINITY { at(1) } else { None };
        assert_eq!(refused([1.0, x].as_ptr().cast(), Dtype::F32, 2), want, "{bits:x}");
    }
}
