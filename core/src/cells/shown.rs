//! Moments of published segments, where others may wait.

use super::moments_len;
use crate::error::Result;
use crate::mem::{Buf, Dtype, Maker, Memory, Plan};
use crate::simd::block::Stored;
use half::bf16;

/// Cells, then nodes.
pub(super) struct Shown {
    /// As they were published.
    whole: [Buf<f32>; 2],
    /// The same to be read, where keys and values are not f32 either: a row reads all of them, in decoding after everything else has
    /// been through the caches.
    short: Option<[Buf<bf16>; 2]>,
}

impl Shown {
    pub(super) fn plan(plan: &mut Plan, dtype: Dtype, dim_k: usize, stride: usize) {
        for len in moments_len(dim_k, stride) {
            Buf::<f32>::plan(plan, len);
            if dtype != Dtype::F32 {
                Buf::<bf16>::plan(plan, len);
            }
        }
    }

    pub(super) fn new(memory: &Memory, dtype: Dtype, dim_k: usize, stride: usize) -> Result<Self> {
        let (lens, mut m) = (moments_len(dim_k, stride), Maker::new(memory));
        let whole = lens.map(|len| m.filled(len, 0.0));
        let short = (dtype != Dtype::F32).then(|| lens.map(|len| m.filled(len, bf16::ZERO)));
        m.finish().map(|()| Shown { whole, short })
    }

    /// From now on these.
    pub(super) fn set(&mut self, moments: [&[f32]; 2]) {
        for (whole, from) in self.whole.iter_mut().zip(moments) {
            whole.copy_from_slice(from);
        }
        for (short, from) in self.short.iter_mut().flatten().zip(moments) {
            short.iter_mut().zip(from).for_each(|(to, &x)| *to = bf16::from_f32(x));
        }
    }

    /// As they were published.
    pub(super) fn whole(&self) -> [&[f32]; 2] {
        self.whole.each_ref().map(|x| &**x)
    }

    /// To read.
    pub(super) fn stored(&self) -> [Stored<'_>; 2] {
        match &self.short {
            Some(short) => short.each_ref().map(|x| Stored::Bf16(x)),
            None => self.whole().map(Stored::F32),
        }
    }
}
