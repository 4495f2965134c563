//! Strided rows over memory of the caller: checked once, then infallible.

use crate::error::{Error, Result, Status};
use crate::features::{self, HALF};
use core::marker::PhantomData;
use half::{bf16, f16};

/// Element type of a view.
///
/// ```
/// use iceformer_core::mem::Dtype;
///
/// assert_eq!([Dtype::F32, Dtype::F16, Dtype::Bf16].map(Dtype::size), [4, 2, 2]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// IEEE 16-bit float.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }

    /// The type, which is f32 in builds without others: lets the compiler drop what is for those.
    pub(crate) const fn used(self) -> Dtype {
        if HALF { self } else { Dtype::F32 }
    }

    /// Refuses types that this build does not have: no view of such elements comes to be.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn check(self, field: &'static str) -> Result<()> {
        features::need(HALF || self == Dtype::F32, field, "this build has no 16-bit elements")
    }
}

/// What rows and tensors are made of: `f32`, [`struct@f16`] and [`bf16`].
///
/// ```
/// use iceformer_core::mem::{Dtype, Element, bf16, f16};
///
/// assert_eq!([f32::DTYPE, f16::DTYPE, bf16::DTYPE], [Dtype::F32, Dtype::F16, Dtype::Bf16]);
/// ```
pub trait Element: Copy + private::Sealed {
    /// How it is named at run time.
    const DTYPE: Dtype;
}

mod private {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}

impl Element for f16 {
    const DTYPE: Dtype = Dtype::F16;
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}

/// Checks a matrix description: row length, stride and address range. `field` names it in errors.
pub(super) fn check(
    addr: usize,
    dtype: Dtype,
    rows: usize,
    cols: usize,
    stride: usize,
    field: &'static str,
) -> Result<()> {
    dtype.check(field)?;
    let size = dtype.size();
    if !addr.is_multiple_of(size) {
        return Err(Error::new(Status::Alignment, field, "data is not aligned for its element type"));
    }
    if !stride.is_multiple_of(size) {
        return Err(
            Error::new(Status::Stride, field, "stride is not a multiple of the element size").value(stride as u64)
        );
    }
    let row = cols.checked_mul(size).ok_or(Error::new(Status::Shape, field, "row size overflows"))?;
    if rows > 1 && stride < row {
        return Err(Error::new(Status::Stride, field, "stride is smaller than a row").need(row, stride));
    }
    let span = rows.saturating_sub(1).checked_mul(stride).and_then(|s| s.checked_add(row));
    match span.and_then(|s| addr.checked_add(s)) {
        Some(end) if end - addr <= isize::MAX as usize => Ok(()),
        _ => Err(Error::new(Status::Stride, field, "rows overflow the address space").value(stride as u64)),
    }
}

/// Rows of `cols` elements that `len` elements are.
fn whole_rows(len: usize, cols: usize) -> Result<usize> {
    if cols == 0 || !len.is_multiple_of(cols) {
        return Err(Error::new(Status::Shape, "rows", "length is not a multiple of the row size").value(len as u64));
    }
    Ok(len / cols)
}

/// The stride in bytes of rows, `stride` elements apart, that lie in `len` elements.
fn fitting(len: usize, dtype: Dtype, rows: usize, cols: usize, stride: usize) -> Result<usize> {
    dtype.check("rows")?;
    let need = rows.saturating_sub(1).checked_mul(stride).and_then(|s| s.checked_add(if rows > 0 { cols } else { 0 }));
    if stride < cols || need.is_none_or(|n| n > len) {
        return Err(Error::new(Status::Stride, "rows", "rows do not fit the slice").value(stride as u64));
    }
    // No slice is longer than the address space; a single row may claim any stride.
    Ok(stride.saturating_mul(dtype.size()))
}

/// Read-only matrix: `rows` rows of `cols` contiguous elements, `stride` bytes apart. Nothing between the rows is read.
///
/// ```
/// use iceformer_core::mem::Rows;
///
/// let data = [1.0, 2.0, 9.0, 3.0, 4.0];
/// let rows = Rows::strided(&data, 2, 2, 3)?;
/// let mut row = [0.0; 2];
/// rows.read(1, &mut row);
/// assert_eq!((rows.rows(), row), (2, [3.0, 4.0]));
/// # Ok::<(), iceformer_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    data: *const u8,
    rows: usize,
    cols: usize,
    stride: usize,
    dtype: Dtype,
    life: PhantomData<&'a [u8]>,
}

// SAFETY: a shared borrow of plain numbers.
unsafe impl Send for Rows<'_> {}
// SAFETY: as above.
unsafe impl Sync for Rows<'_> {}

impl<'a> Rows<'a> {
    /// Packed rows of `cols` elements: f32, f16 or bf16.
    ///
    /// # Errors
    /// `Shape` unless `data` is whole rows; `Unsupported` for an element type that this build does not have.
    pub fn new<T: Element>(data: &'a [T], cols: usize) -> Result<Self> {
        Rows::strided(data, whole_rows(data.len(), cols)?, cols, cols)
    }

    /// Rows of `cols` elements, `stride` elements apart, inside `data`.
    ///
    /// # Errors
    /// `Stride` unless they lie in `data` beside each other; `Unsupported` as [`Rows::new`].
    pub fn strided<T: Element>(data: &'a [T], rows: usize, cols: usize, stride: usize) -> Result<Self> {
        let stride = fitting(data.len(), T::DTYPE, rows, cols, stride)?;
        Ok(Rows { data: data.as_ptr().cast(), rows, cols, stride, dtype: T::DTYPE, life: PhantomData })
    }

    /// Rows at a raw address; `stride` in bytes.
    ///
    /// # Errors
    /// `Alignment`, `Stride`, `Shape`: the description contradicts itself; `field` names it.
    ///
    /// # Safety
    /// Every described row is readable for `'a` and nobody writes it meanwhile.
    pub unsafe fn from_raw(
        data: *const u8,
        dtype: Dtype,
        rows: usize,
        cols: usize,
        stride: usize,
        field: &'static str,
    ) -> Result<Self> {
        check(data.addr(), dtype, rows, cols, stride, field)?;
        Ok(Rows { data, rows, cols, stride, dtype, life: PhantomData })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes from row to row.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype.used()
    }

    /// Address of row 0, for kernels that walk the rows themselves.
    pub fn as_ptr(&self) -> *const u8 {
        self.data
    }

    /// Rows `begin..begin + n`.
    ///
    /// # Panics
    /// If they are not all there.
    pub fn slice(&self, begin: usize, n: usize) -> Rows<'a> {
        assert!(begin <= self.rows && n <= self.rows - begin);
        let data = if n == 0 { self.data } else { self.data.wrapping_add(begin * self.stride) };
        Rows { data, rows: n, ..*self }
    }

    fn row_ptr(&self, i: usize) -> *const u8 {
        assert!(i < self.rows);
        self.data.wrapping_add(i * self.stride)
    }

    /// Row `i` in place, if the elements are f32.
    ///
    /// # Panics
    /// If `i >= rows`.
    pub fn row_f32(&self, i: usize) -> Option<&'a [f32]> {
        let p = self.row_ptr(i);
        // SAFETY: elements of this type, in range, aligned, and borrowed for 'a.
        (self.dtype() == Dtype::F32).then(|| unsafe { self.elements(p) })
    }

    /// Row `i` in place as raw bits, if the elements are 16-bit.
    ///
    /// # Panics
    /// If `i >= rows`.
    pub fn row_bits(&self, i: usize) -> Option<&'a [u16]> {
        let p = self.row_ptr(i);
        // SAFETY: as above, elements of 16 bits.
        (self.dtype() != Dtype::F32).then(|| unsafe { self.elements(p) })
    }

    /// # Safety
    /// `p` is a row of elements `T`.
    unsafe fn elements<T>(&self, p: *const u8) -> &'a [T] {
        // A view without columns may have no address. SAFETY: a row, as the caller says.
        if self.cols == 0 { &[] } else { unsafe { core::slice::from_raw_parts(p.cast(), self.cols) } }
    }

    /// Row `i` converted to f32 into `out[..cols]`.
    ///
    /// # Panics
    /// If `i >= rows` or `out` is shorter than a row.
    pub fn read(&self, i: usize, out: &mut [f32]) {
        self.read_part(i, 0, &mut out[..self.cols]);
    }

    /// Elements `begin..begin + out.len()` of row `i` converted to f32.
    ///
    /// # Panics
    /// If they are not all there.
    pub fn read_part(&self, i: usize, begin: usize, out: &mut [f32]) {
        if let Some(row) = self.row_f32(i) {
            out.copy_from_slice(&row[begin..][..out.len()]);
        } else if let Some(row) = self.row_bits(i) {
            let row = &row[begin..][..out.len()];
            let pairs = out.iter_mut().zip(row);
            match self.dtype() {
                Dtype::F16 => pairs.for_each(|(o, &b)| *o = f16::from_bits(b).to_f32()),
                _ => pairs.for_each(|(o, &b)| *o = bf16::from_bits(b).to_f32()),
            }
        }
    }

    /// Refuses NaN and infinity, naming the row. O(elements).
    ///
    /// # Errors
    /// `NotFinite`.
    pub(crate) fn check_finite(&self, field: &'static str) -> Result<()> {
        // Exponent all ones: the same test for the three formats, on bits, so that it vectorises.
        let mask16 = if self.dtype() == Dtype::F16 { 0x7c00 } else { 0x7f80 };
        let bad = (0..self.rows).find(|&i| match (self.row_f32(i), self.row_bits(i)) {
            (Some(row), _) => row.iter().fold(false, |bad, x| bad | (x.to_bits() & 0x7f80_0000 == 0x7f80_0000)),
            (_, Some(bits)) => bits.iter().fold(false, |bad, &b| bad | (b & mask16 == mask16)),
            _ => false,
        });
        match bad {
            Some(row) => Err(Error::new(Status::NotFinite, field, "holds NaN or infinity").row(row)),
            None => Ok(()),
        }
    }

    /// Largest magnitude in a row, as f32. O(cols).
    ///
    /// # Panics
    /// If `i >= rows`.
    pub fn largest(&self, i: usize) -> f32 {
        // Without the sign, the bits of finite numbers are ordered as the numbers are: that vectorises.
        match (self.row_f32(i), self.row_bits(i)) {
            (Some(row), _) => f32::from_bits(row.iter().fold(0, |m, x| m.max(x.to_bits() & 0x7fff_ffff))),
            (_, Some(bits)) => {
                let top = bits.iter().fold(0, |m, &b| m.max(b & 0x7fff));
                if self.dtype() == Dtype::F16 { f16::from_bits(top).to_f32() } else { bf16::from_bits(top).to_f32() }
            }
            _ => 0.0,
        }
    }
}

/// Writable matrix, same geometry as [`Rows`]. Values are stored from f32, rounded to nearest even.
///
/// ```
/// use iceformer_core::mem::RowsMut;
///
/// let mut data = [0.0; 5];
/// RowsMut::strided(&mut data, 2, 2, 3)?.write(1, &[3.0, 4.0]);
/// assert_eq!(data, [0.0, 0.0, 0.0, 3.0, 4.0]);
/// # Ok::<(), iceformer_core::Error>(())
/// ```
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// The same rows, at an address that may be written.
    view: Rows<'a>,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> RowsMut<'a> {
    /// Packed rows of `cols` elements: f32, f16 or bf16.
    ///
    /// # Errors
    /// As [`Rows::new`].
    pub fn new<T: Element>(data: &'a mut [T], cols: usize) -> Result<Self> {
        let rows = whole_rows(data.len(), cols)?;
        RowsMut::strided(data, rows, cols, cols)
    }

    /// Rows of `cols` elements, `stride` elements apart, inside `data`. Nothing between them is written.
    ///
    /// # Errors
    /// As [`Rows::strided`].
    pub fn strided<T: Element>(data: &'a mut [T], rows: usize, cols: usize, stride: usize) -> Result<Self> {
        let stride = fitting(data.len(), T::DTYPE, rows, cols, stride)?;
        let data = data.as_mut_ptr().cast::<u8>().cast_const();
        let view = Rows { data, rows, cols, stride, dtype: T::DTYPE, life: PhantomData };
        Ok(RowsMut { view, life: PhantomData })
    }

    /// Rows at a raw address; `stride` in bytes.
    ///
    /// # Errors
    /// As [`Rows::from_raw`].
    ///
    /// # Safety
    /// Every described row is writable for `'a` and nobody else touches it meanwhile; rows do not overlap.
    pub unsafe fn from_raw(
        data: *mut u8,
        dtype: Dtype,
        rows: usize,
        cols: usize,
        stride: usize,
        field: &'static str,
    ) -> Result<Self> {
        // SAFETY: passed on.
        let view = unsafe { Rows::from_raw(data.cast_const(), dtype, rows, cols, stride, field)? };
        Ok(RowsMut { view, life: PhantomData })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.view.rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.view.cols
    }

    /// The rows as they are.
    pub fn view(&self) -> Rows<'_> {
        self.view
    }

    fn row_ptr(&mut self, i: usize) -> *mut u8 {
        self.view.row_ptr(i).cast_mut()
    }

    /// Row `i` in place, if the elements are f32.
    ///
    /// # Panics
    /// If `i >= rows`.
    pub fn row_f32(&mut self, i: usize) -> Option<&mut [f32]> {
        let p = self.row_ptr(i);
        // A view without columns may have no address.
        if self.cols() == 0 {
            return (self.view.dtype() == Dtype::F32).then_some(&mut []);
        }
        // SAFETY: in range, aligned, exclusively borrowed.
        (self.view.dtype() == Dtype::F32).then(|| unsafe { core::slice::from_raw_parts_mut(p.cast(), self.cols()) })
    }

    /// All rows as one slice, if they are packed f32.
    pub fn into_slice(self) -> Option<&'a mut [f32]> {
        let Rows { data, rows, cols, stride, .. } = self.view;
        if self.view.dtype() != Dtype::F32 || (rows > 1 && stride != cols * 4) {
            return None;
        }
        if rows == 0 || cols == 0 {
            return Some(&mut []);
        }
        // SAFETY: the rows are contiguous, aligned and exclusively borrowed; their extent was checked at creation.
        Some(unsafe { core::slice::from_raw_parts_mut(data.cast_mut().cast(), rows * cols) })
    }

    /// Stores `row[..cols]` as row `i`.
    ///
    /// # Panics
    /// If `i >= rows` or `row` is too short.
    pub fn write(&mut self, i: usize, row: &[f32]) {
        self.write_part(i, 0, &row[..self.cols()]);
    }

    /// Stores `part` as elements `begin..begin + part.len()` of row `i`.
    ///
    /// # Panics
    /// If they are not all there.
    pub fn write_part(&mut self, i: usize, begin: usize, part: &[f32]) {
        let p = self.row_ptr(i);
        let (cols, dtype) = (self.cols(), self.view.dtype());
        if let Some(row) = self.row_f32(i) {
            return row[begin..][..part.len()].copy_from_slice(part);
        }
        // SAFETY: in range, aligned, exclusively borrowed.
        let row = unsafe { core::slice::from_raw_parts_mut(p.cast::<u16>(), cols) };
        for (b, &x) in row[begin..][..part.len()].iter_mut().zip(part) {
            *b = if dtype == Dtype::F16 { f16::from_f32(x).to_bits() } else { bf16::from_f32(x).to_bits() };
        }
    }
}
