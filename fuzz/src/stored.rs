//! Tensors in any element type and with any strides, for programs of attention.

use arbitrary::{Result, Unstructured};
use half::{bf16, f16};
use iceformer_core::mem::{Dtype, Tensor};

/// What storing in a type does to a number.
pub(crate) fn stored(x: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F32 => x,
        Dtype::F16 => f16::from_f32(x).to_f32(),
        Dtype::Bf16 => bf16::from_f32(x).to_f32(),
    }
}

/// One tensor, with padding between rows and heads.
pub(crate) struct Stored {
    bytes: Vec<u64>,
    dtype: Dtype,
    strides: [usize; 3],
    /// The numbers as stored, packed.
    exact: Vec<f32>,
    shape: [usize; 4],
}

impl Stored {
    /// Numbers `[batch, heads, rows, cols]` in one of the types.
    pub(crate) fn new(
        u: &mut Unstructured<'_>,
        shape: [usize; 4],
        numbers: &[f32],
        dtypes: &[Dtype],
    ) -> Result<Stored> {
        let dtype = *u.choose(dtypes)?;
        let size = dtype.size();
        let [batch, heads, rows, cols] = shape;
        let row = (cols + u.int_in_range(0..=3)?) * size;
        let head = row * rows + u.int_in_range(0..=3)? * size;
        let strides = [row, head, head * heads + u.int_in_range(0..=2)? * size];
        let exact = numbers.iter().map(|&x| stored(x, dtype)).collect();
        let bytes = vec![u64::MAX; (strides[2] * batch).div_ceil(8) + 1];
        let mut all = Stored { bytes, dtype, strides, exact, shape };
        (0..batch * heads).for_each(|at| all.write(at / heads, at % heads));
        Ok(all)
    }

    fn write(&mut self, b: usize, h: usize) {
        let [_, heads, rows, cols] = self.shape;
        let [row, head, batch] = self.strides;
        let raw = self.bytes.as_mut_ptr().cast::<u8>();
        for (i, &x) in self.exact[(b * heads + h) * rows * cols..][..rows * cols].iter().enumerate() {
            let at = i % cols * self.dtype.size() + i / cols * row + h * head + b * batch;
            // SAFETY: inside the block by its size.
            unsafe {
                match self.dtype {
                    Dtype::F32 => raw.add(at).cast::<f32>().write(x),
                    Dtype::F16 => raw.add(at).cast::<u16>().write(f16::from_f32(x).to_bits()),
                    Dtype::Bf16 => raw.add(at).cast::<u16>().write(bf16::from_f32(x).to_bits()),
                }
            }
        }
    }

    /// Other numbers for the rows of a head that `of` names.
    pub(crate) fn change(&mut self, [b, h]: [usize; 2], of: impl Fn(usize) -> Option<f32>) {
        let [_, heads, rows, cols] = self.shape;
        let head = &mut self.exact[(b * heads + h) * rows * cols..][..rows * cols];
        for (r, row) in head.chunks_mut(cols).enumerate() {
            if let Some(x) = of(r) {
                row.iter_mut().enumerate().for_each(|(c, to)| *to = stored(x + c as f32, self.dtype));
            }
        }
        self.write(b, h);
    }

    pub(crate) fn tensor(&self) -> Tensor<'_> {
        // SAFETY: shape and strides describe what was written above.
        unsafe { Tensor::from_raw(self.bytes.as_ptr().cast(), self.dtype, self.shape, self.strides, "tensor") }
            .expect("valid")
    }

    pub(crate) fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// The numbers of a head as stored, packed.
    pub(crate) fn head(&self, b: usize, h: usize) -> &[f32] {
        let [_, heads, rows, cols] = self.shape;
        &self.exact[(b * heads + h) * rows * cols..][..rows * cols]
    }
}
