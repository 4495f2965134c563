//! Rows of 16-bit elements against the definitions of the formats.

use super::element::{Bf16, F16, Stored};
use super::rows::convert;
use super::{Isa, Simd, Task};
use core::marker::PhantomData;
use std::vec;
use std::vec::Vec;

struct Convert<'a, E>(&'a [u16], &'a mut [f32], PhantomData<E>);

impl<E: Stored<T = u16>> Task for Convert<'_, E> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        convert::<E, S>(s, self.0, self.1);
    }
}

#[test]
fn sixteen_bit_rows_widen_exactly() {
    // Every finite pattern, cut into pieces of odd length so that tails are hit.
    let step = if cfg!(miri) { 977 } else { 1 };
    let f16: Vec<u16> = (0..=u16::MAX).step_by(step).filter(|b| b & 0x7c00 != 0x7c00).collect();
    let bf16: Vec<u16> = (0..=u16::MAX).step_by(step).filter(|b| b & 0x7f80 != 0x7f80).collect();
    for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
        for (at, n) in [(0, f16.len()), (1, 37), (5, 1), (9, 15), (3, 0), (100 / step, 16)] {
            let mut out = vec![0.0; n];
            isa.run(Convert::<F16>(&f16[at..at + n], &mut out, PhantomData));
            for (&b, &x) in f16[at..at + n].iter().zip(&out) {
                assert_eq!(x.to_bits(), half_to_f32(b).to_bits(), "{}: {b:#x}", isa.name());
            }
            isa.run(Convert::<Bf16>(&bf16[at..at + n], &mut out, PhantomData));
            for (&b, &x) in bf16[at..at + n].iter().zip(&out) {
                assert_eq!(x.to_bits(), u32::from(b) << 16);
            }
        }
    }
}

/// From the definition of the format.
fn half_to_f32(b: u16) -> f32 {
    let sign = if b >> 15 == 1 { -1.0 } else { 1.0 };
    let (e, m) = (i32::from(b >> 10 & 31), f64::from(b & 1023));
    let x = if e == 0 { m * 2f64.powi(-24) } else { (1024.0 + m) * 2f64.powi(e - 25) };
    (sign * x) as f32
}
