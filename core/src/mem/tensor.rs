//! Four-dimensional views `[batch, heads, rows, cols]`, made of [`Rows`].

use super::rows::{Dtype, Element, Rows, RowsMut, check};
use crate::error::{Error, Result, Status};
use core::marker::PhantomData;

/// Sizes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dims {
    batch: usize,
    heads: usize,
    rows: usize,
    cols: usize,
    row_stride: usize,
    head_stride: usize,
    batch_stride: usize,
    /// Bytes from the first element to the end of the last.
    extent: usize,
}

impl Dims {
    /// Fills in packed strides (0) and checks the rest. Heads may be interleaved with rows (`[rows, heads, cols]` is
    /// `row_stride = heads * cols`, `head_stride = cols`), so only the address range is checked across heads.
    fn new(addr: usize, dtype: Dtype, shape: [usize; 4], strides: [usize; 3], field: &'static str) -> Result<Self> {
        let [batch, heads, rows, cols] = shape;
        let overflow = Error::new(Status::Shape, field, "size overflows");
        let row_stride = if strides[0] != 0 { strides[0] } else { cols.checked_mul(dtype.size()).ok_or(overflow)? };
        check(addr, dtype, rows, cols, row_stride, field)?;
        let span = |n: usize, stride: usize| n.saturating_sub(1).checked_mul(stride);
        let head_stride = if strides[1] != 0 { strides[1] } else { rows.checked_mul(row_stride).ok_or(overflow)? };
        let batch_stride = if strides[2] != 0 { strides[2] } else { heads.checked_mul(head_stride).ok_or(overflow)? };
        for stride in [head_stride, batch_stride] {
            if !stride.is_multiple_of(dtype.size()) {
                let e = Error::new(Status::Stride, field, "stride is not a multiple of the element size");
                return Err(e.value(stride as u64));
            }
        }
        let total = span(rows, row_stride)
            .zip(span(heads, head_stride))
            .and_then(|(a, b)| a.checked_add(b))
            .zip(span(batch, batch_stride))
            .and_then(|(a, b)| a.checked_add(b))
            .and_then(|a| a.checked_add(cols * dtype.size()))
            .filter(|&t| t <= isize::MAX as usize && addr.checked_add(t).is_some());
        let Some(total) = total else {
            return Err(Error::new(Status::Stride, field, "strides overflow the address space"));
        };
        let extent = if batch == 0 || heads == 0 || rows == 0 { 0 } else { total };
        Ok(Dims { batch, heads, rows, cols, row_stride, head_stride, batch_stride, extent })
    }

    /// Sizes of a view into `len` elements of `T`; strides in elements (0 = packed), as those of [`Dims::new`].
    fn of<T: Element>(data: *const T, len: usize, shape: [usize; 4], strides: [usize; 3]) -> Result<Self> {
        let overflow = Error::new(Status::Stride, "tensor", "strides overflow the address space");
        let mut bytes = [0; 3];
        for (to, stride) in bytes.iter_mut().zip(strides) {
            *to = stride.checked_mul(T::DTYPE.size()).ok_or(overflow)?;
        }
        let dims = Dims::new(data.addr(), T::DTYPE, shape, bytes, "tensor")?;
        let need = dims.extent / T::DTYPE.size();
        if need > len {
            return Err(Error::new(Status::Shape, "tensor", "does not fit the slice").need(need, len));
        }
        Ok(dims)
    }

    /// Packed `len` elements, no more and no fewer.
    fn packed<T: Element>(data: *const T, len: usize, shape: [usize; 4]) -> Result<Self> {
        if shape.iter().try_fold(1usize, |a, &b| a.checked_mul(b)) != Some(len) {
            return Err(Error::new(Status::Shape, "tensor", "shape does not fit the slice").value(len as u64));
        }
        Dims::of(data, len, shape, [0; 3])
    }

    /// Whether no two rows of `cols` elements of `size` bytes share an element, told by the strides alone.
    fn rows_are_apart(&self, size: usize) -> bool {
        let mut dims = [(self.row_stride, self.rows), (self.head_stride, self.heads), (self.batch_stride, self.batch)];
        // Three are sorted by three exchanges, in less code than the standard library takes.
        for i in [0, 1, 0] {
            if dims[i].0 > dims[i + 1].0 {
                dims.swap(i, i + 1);
            }
        }
        // Each dimension steps over all that lies within a step.
        let mut within = self.cols * size;
        self.extent == 0
            || dims.into_iter().filter(|&(_, n)| n > 1).all(|(stride, n)| {
                let apart = stride >= within;
                within += (n - 1) * stride;
                apart
            })
    }

    fn offset(&self, batch: usize, head: usize) -> usize {
        assert!(batch < self.batch && head < self.heads);
        batch * self.batch_stride + head * self.head_stride
    }
}

/// Read-only `[batch, heads, rows, cols]` view; strides in bytes, rows contiguous.
///
/// ```
/// use iceformer_core::mem::{Dtype, Tensor, f16};
///
/// // Two heads of three rows, packed, and interleaved as `[rows, heads, cols]`.
/// let data = [0.0; 2 * 3 * 4];
/// let packed = Tensor::new(&data, [1, 2, 3, 4])?;
/// let interleaved = Tensor::strided(&data, [1, 2, 3, 4], [2 * 4, 4, 0])?;
/// assert_eq!(packed.shape(), interleaved.shape());
/// assert!(Tensor::strided(&data[1..], [1, 2, 3, 4], [2 * 4, 4, 0]).is_err());
/// # #[cfg(feature = "half")]
/// assert_eq!(Tensor::new(&[f16::ONE; 8], [1, 1, 2, 4])?.dtype(), Dtype::F16);
/// # Ok::<(), iceformer_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    data: *const u8,
    dims: Dims,
    dtype: Dtype,
    life: PhantomData<&'a [u8]>,
}

// SAFETY: a shared borrow of plain numbers.
unsafe impl Send for Tensor<'_> {}
// SAFETY: as above.
unsafe impl Sync for Tensor<'_> {}

impl<'a> Tensor<'a> {
    /// Packed tensor of shape `[batch, heads, rows, cols]`: f32, f16 or bf16.
    ///
    /// # Errors
    /// `Shape` unless the slice has exactly that many elements; `Unsupported` for an element type that this build does not
    /// have.
    pub fn new<T: Element>(data: &'a [T], shape: [usize; 4]) -> Result<Self> {
        let dims = Dims::packed(data.as_ptr(), data.len(), shape)?;
        Ok(Tensor { data: data.as_ptr().cast(), dims, dtype: T::DTYPE, life: PhantomData })
    }

    /// View of shape `[batch, heads, rows, cols]` into a slice; `strides` are from row to row, head to head and batch to batch, in
    /// elements (0 = packed). Rows that interleave heads, `[rows, heads, cols]` in memory, have strides
    /// `[heads * cols, cols, 0]`.
    ///
    /// # Errors
    /// `Shape` unless all of it lies in the slice; `Stride`; `Unsupported` as [`Tensor::new`].
    pub fn strided<T: Element>(data: &'a [T], shape: [usize; 4], strides: [usize; 3]) -> Result<Self> {
        let dims = Dims::of(data.as_ptr(), data.len(), shape, strides)?;
        Ok(Tensor { data: data.as_ptr().cast(), dims, dtype: T::DTYPE, life: PhantomData })
    }

    /// View at a raw address: `shape` is `[batch, heads, rows, cols]`, `strides` are row, head, batch in bytes (0 = packed).
    ///
    /// # Errors
    /// `Alignment`, `Stride`, `Shape`, naming `field`.
    ///
    /// # Safety
    /// Every described row is readable for `'a` and nobody writes it meanwhile.
    pub unsafe fn from_raw(
        data: *const u8,
        dtype: Dtype,
        shape: [usize; 4],
        strides: [usize; 3],
        field: &'static str,
    ) -> Result<Self> {
        Ok(Tensor { data, dims: Dims::new(data.addr(), dtype, shape, strides, field)?, dtype, life: PhantomData })
    }

    /// One head of one batch.
    pub(crate) fn of(rows: Rows<'a>) -> Self {
        let (shape, strides) = ([1, 1, rows.rows(), rows.cols()], [rows.stride(), 0, 0]);
        // SAFETY: the rows are readable for 'a; their geometry was checked when their view was made.
        unsafe { Self::from_raw(rows.as_ptr(), rows.dtype(), shape, strides, "tensor") }
            .unwrap_or_else(|_| unreachable!("checked at creation"))
    }

    /// One head's rows.
    ///
    /// # Panics
    /// If there is no such batch or head.
    pub fn head(&self, batch: usize, head: usize) -> Rows<'a> {
        let d = &self.dims;
        let data = self.data.wrapping_add(d.offset(batch, head));
        // SAFETY: the rows are inside the view that `from_raw` was vouched for; the geometry was checked there.
        unsafe { Rows::from_raw(data, self.dtype, d.rows, d.cols, d.row_stride, "tensor") }
            .unwrap_or_else(|_| unreachable!("checked at creation"))
    }

    /// `[batch, heads, rows, cols]`.
    pub fn shape(&self) -> [usize; 4] {
        [self.dims.batch, self.dims.heads, self.dims.rows, self.dims.cols]
    }

    /// Where the first element lies, and the strides of batches, heads and rows in bytes.
    pub fn place(&self) -> (*const u8, [usize; 3]) {
        (self.data, [self.dims.batch_stride, self.dims.head_stride, self.dims.row_stride])
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Largest magnitude and the row (within its head) that holds it; `(0, 0)` for an empty tensor.
    pub fn largest(&self) -> (f32, usize) {
        let mut best = (0.0, 0);
        for (b, h) in (0..self.dims.batch).flat_map(|b| (0..self.dims.heads).map(move |h| (b, h))) {
            let rows = self.head(b, h);
            for i in 0..rows.rows() {
                let x = rows.largest(i);
                if x > best.0 {
                    best = (x, i);
                }
            }
        }
        best
    }
}

/// Writable `[batch, heads, rows, cols]` view. Parts of a partitioned call write disjoint rows through one shared view,
/// so writing goes through crate-private calls only, and no row is ever written by two parts.
///
/// ```
/// use iceformer_core::mem::{TensorMut, bf16};
///
/// let mut data = [0.0; 2 * 3 * 4];
/// assert!(TensorMut::strided(&mut data, [1, 2, 3, 4], [2 * 4, 4, 0]).is_ok());
/// // Rows may not overlap: two of four elements, two apart.
/// assert!(TensorMut::strided(&mut data, [1, 1, 2, 4], [2, 0, 0]).is_err());
/// assert!(TensorMut::strided(&mut data, [1, 2, 3, 4], [4, 4, 0]).is_err());
/// # #[cfg(feature = "half")]
/// assert!(TensorMut::new(&mut [bf16::ZERO; 8], [1, 1, 2, 4]).is_ok());
/// ```
#[derive(Debug)]
pub struct TensorMut<'a> {
    /// The same rows, at an address that may be written.
    view: Tensor<'a>,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> TensorMut<'a> {
    /// Packed tensor of shape `[batch, heads, rows, cols]`: f32, f16 or bf16.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn new<T: Element>(data: &'a mut [T], shape: [usize; 4]) -> Result<Self> {
        let dims = Dims::packed(data.as_ptr(), data.len(), shape)?;
        Ok(Self::with(data, dims))
    }

    /// View into a slice, as [`Tensor::strided`]. Nothing beside its rows is written.
    ///
    /// # Errors
    /// As [`Tensor::strided`]; `Stride` where rows could share an element.
    pub fn strided<T: Element>(data: &'a mut [T], shape: [usize; 4], strides: [usize; 3]) -> Result<Self> {
        let dims = Dims::of(data.as_ptr(), data.len(), shape, strides)?;
        if !dims.rows_are_apart(T::DTYPE.size()) {
            return Err(Error::new(Status::Stride, "tensor", "rows overlap"));
        }
        Ok(Self::with(data, dims))
    }

    fn with<T: Element>(data: &'a mut [T], dims: Dims) -> Self {
        let data = data.as_mut_ptr().cast::<u8>().cast_const();
        TensorMut { view: Tensor { data, dims, dtype: T::DTYPE, life: PhantomData }, life: PhantomData }
    }

    /// View at a raw address; see [`Tensor::from_raw`].
    ///
    /// # Safety
    /// Every described row is writable for `'a`, rows do not overlap, and nobody else touches them meanwhile.
    pub unsafe fn from_raw(
        data: *mut u8,
        dtype: Dtype,
        shape: [usize; 4],
        strides: [usize; 3],
        field: &'static str,
    ) -> Result<Self> {
        // SAFETY: passed on.
        let view = unsafe { Tensor::from_raw(data.cast_const(), dtype, shape, strides, field)? };
        Ok(TensorMut { view, life: PhantomData })
    }

    /// One head of one batch.
    pub(crate) fn of(rows: &'a mut RowsMut<'_>) -> Self {
        TensorMut { view: Tensor::of(rows.view()), life: PhantomData }
    }

    /// Whether the rows of each head follow each other without gaps.
    pub fn rows_are_packed(&self) -> bool {
        let d = &self.view.dims;
        d.rows <= 1 || d.row_stride == d.cols * self.dtype().size()
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.view.dtype
    }

    /// `[batch, heads, rows, cols]`.
    pub fn shape(&self) -> [usize; 4] {
        self.view.shape()
    }

    /// As [`Tensor::place`].
    pub fn place(&self) -> (*const u8, [usize; 3]) {
        self.view.place()
    }

    /// Whether no two rows share an element, told by the strides alone.
    pub fn rows_are_apart(&self) -> bool {
        self.view.dims.rows_are_apart(self.dtype().size())
    }

    /// Rows `begin..begin + n` of one head. Crate rule: no two live parts ask for overlapping rows.
    pub(crate) fn rows(&self, batch: usize, head: usize, begin: usize, n: usize) -> RowsMut<'_> {
        let (d, data) = (&self.view.dims, self.view.data.cast_mut());
        assert!(begin <= d.rows && n <= d.rows - begin);
        let data = data.wrapping_add(d.offset(batch, head)).wrapping_add(begin * d.row_stride);
        // SAFETY: inside the view vouched for at creation; disjoint from other parts by the partition rule.
        unsafe { RowsMut::from_raw(data, self.dtype(), n, d.cols, d.row_stride, "tensor") }
            .unwrap_or_else(|_| unreachable!("checked at creation"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Dims, Dtype};

    #[test]
    fn strides_tell_whether_rows_are_apart() {
        let apart = |shape, [row, head, batch]: [usize; 3]| {
            Dims::new(4096, Dtype::F32, shape, [row, head, batch], "out").unwrap().rows_are_apart(4)
        };
        // [rows, heads, cols] in memory: rows step over all heads.
        assert!(apart([1, 3, 5, 4], [48, 16, 0]) && apart([2, 3, 5, 4], [0; 3]) && apart([2, 3, 5, 4], [48, 16, 240]));
        // Heads on top of each other, heads shorter than rows are, batches into heads.
        assert!(
            !apart([1, 3, 5, 4], [16, 16, 0]) && !apart([1, 3, 5, 4], [48, 12, 0]) && !apart([2, 3, 5, 4], [0, 0, 16])
        );
        // A stride of a dimension of one does not matter, nor do any where there is nothing.
        assert!(apart([1, 1, 5, 4], [16, 4, 4]) && apart([0, 3, 5, 4], [16, 4, 4]));
    }
}
