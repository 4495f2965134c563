//! An array that is an object's own or, until it is first written, lies in memory of somebody else.

use super::{Buf, Memory};
use crate::error::{Error, Result, Status};
use core::ops::Deref;

/// Read as a slice; written only once it is its own.
pub enum Held<T: Copy + 'static> {
    /// The object's own.
    Own(Buf<T>),
    /// Somebody else's: read only.
    View(&'static [T]),
}

impl<T: Copy> Held<T> {
    /// Whether the elements are somebody else's.
    pub fn is_view(&self) -> bool {
        matches!(self, Held::View(_))
    }

    /// Makes the elements its own, if they are not, with room for `cap` in all. On error nothing has changed.
    pub fn reserve(&mut self, memory: &Memory, cap: usize) -> Result<()> {
        match self {
            Held::Own(own) => own.reserve(cap),
            Held::View(view) => {
                let mut own = Buf::with_capacity(memory, cap.max(view.len()))?;
                own.extend_from_slice(view)?;
                *self = Held::Own(own);
                Ok(())
            }
        }
    }

    /// Makes it at least `len` elements long, new ones being `value`.
    ///
    /// # Errors
    /// `Capacity` beyond what is reserved, and always where the elements are somebody else's.
    pub fn extend(&mut self, len: usize, value: T) -> Result<()> {
        match self {
            Held::Own(own) if len > own.len() => own.resize(len, value),
            Held::View(view) if len > view.len() => Err(Error::new(Status::Capacity, "keys", "are only looked at")),
            _ => Ok(()),
        }
    }

    /// Shortens to `len` elements.
    pub fn truncate(&mut self, len: usize) {
        match self {
            Held::Own(own) => own.truncate(len),
            Held::View(view) => *view = view.get(..len).unwrap_or(view),
        }
    }

    /// The elements, to be written; none where they are somebody else's.
    pub fn own(&mut self) -> &mut [T] {
        match self {
            Held::Own(own) => own,
            Held::View(_) => &mut [],
        }
    }
}

impl<T: Copy> Deref for Held<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Held::Own(own) => own,
            Held::View(view) => view,
        }
    }
}

/// Little-endian f32 in place.
///
/// # Errors
/// `Alignment` unless `bytes` is aligned to 4; `Unsupported` on a big-endian machine.
pub fn f32s(bytes: &'static [u8], field: &'static str) -> Result<&'static [f32]> {
    if cfg!(target_endian = "big") {
        return Err(Error::new(Status::Unsupported, field, "cannot be read in place on a big-endian machine"));
    }
    // SAFETY: any four bytes are an f32.
    let (before, all, after) = unsafe { bytes.align_to::<f32>() };
    if before.is_empty() && after.is_empty() {
        Ok(all)
    } else {
        Err(Error::new(Status::Alignment, field, "must be aligned to 4 bytes"))
    }
}
