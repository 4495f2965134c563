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
/// f16 and bf16 elements.
pub const HALF: bool = cfg!(feature = "half");
/// Tiles of many rows of exact attention.
pub const PANELS: bool = cfg!(feature = "panels");

/// Refuses what is not there.
///
/// # Errors
/// `Unsupported` unless `has`.
pub(crate) const fn need(has: bool, field: &'static str, reason: &'static str) -> Result<()> {
    if has { Ok(()) } else { Err(Error::new(Status::Unsupported, field, reason)) }
}
