//! Work memory of the caller, as a program that decodes passes it: nothing is allocated in a call.

use iceformer_core::error::Result;
use iceformer_core::mem::{Layout, Memory};
use std::ptr::NonNull;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]);

/// A region of memory that outlives the calls it is lent to.
pub struct Place(Vec<Line>);

impl Place {
    /// Room for what a plan says.
    pub fn new(of: &Layout) -> Self {
        Place(vec![Line([0; 64]); of.bytes.div_ceil(64)])
    }

    /// All of it, for one call.
    ///
    /// # Errors
    /// `Buffer` if not even the accounting fits.
    ///
    /// # Safety
    /// No handle is left when it is lent again, or gone.
    pub unsafe fn lend(&mut self) -> Result<Memory> {
        // SAFETY: the lines are this place's own, and used by nobody else: the caller's word.
        unsafe { Memory::region(NonNull::from(self.0.as_mut_slice()).cast(), size_of_val(self.0.as_slice())) }
    }
}
