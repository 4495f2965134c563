//! What this build contains, as constants: code behind one that is false is compiled, checked and then dropped by the linker.
//! `Cargo.toml` says what each feature is.

use crate::error::{Error, Result, Status};

/// Accelerated attention.
pub const ACCELERATED: bool = cfg!(feature = "accelerated");
/// Error bounds by row.
pub const CERTIFICATES: bool = cfg!(feature = "certificates");
/// Top-k attention.
pub const TOP_K: bool = cfg!(feature = "top-k");
/// Cells of an index and batches of queries.
pub const CELLS: bool = cfg!(feature = "cells");
/// More than one level of an index.
pub const LEVELS: bool = cfg!(feature = "levels");
/// f16 and bf16 elements.
pub const HALF: bool = cfg!(feature = "half");
/// Queries that are the keys, too.
pub const SHARED_QK: bool = cfg!(feature = "shared-qk");
/// Tiles of many rows of exact attention.
pub const PANELS: bool = cfg!(feature = "panels");

/// Field, reason and detail of errors.
pub const MESSAGES: bool = cfg!(feature = "messages");

/// A part that only some builds have: none takes no room, and what would make and drop it is left out.
#[derive(Debug)]
pub(crate) struct Part<T, const HAS: usize>([T; HAS]);

impl<T, const HAS: usize> Part<T, HAS> {
    /// The part, made in its place where there is one.
    pub(crate) fn of(mut part: impl FnMut() -> T) -> Self {
        Part(core::array::from_fn(|_| part()))
    }

    /// The part, where there is one.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.first_mut()
    }
}

impl<T, const HAS: usize> core::ops::Deref for Part<T, HAS> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.0.first().unwrap_or_else(|| unreachable!("callers ask the constant"))
    }
}

impl<T, const HAS: usize> core::ops::DerefMut for Part<T, HAS> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        self.0.first_mut().unwrap_or_else(|| unreachable!("callers ask the constant"))
    }
}

/// Refuses what is not there.
///
/// # Errors
/// `Unsupported` unless `has`.
pub(crate) const fn need(has: bool, field: &'static str, reason: &'static str) -> Result<()> {
    if has { Ok(()) } else { Err(Error::new(Status::Unsupported, field, reason)) }
}
