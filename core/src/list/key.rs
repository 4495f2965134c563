//! Keys: a cell and a projection in one integer whose order is theirs.

use crate::math::{float_of, image_of};

/// Key of an entry: by cell, then by projection. O(1), no allocation.
#[inline]
pub fn sort_key(cell: u32, proj: f32) -> u64 {
    (cell as u64) << 32 | image_of(proj) as u64
}

/// The cell of a key. O(1), no allocation.
#[inline]
pub fn cell_of(key: u64) -> u32 {
    (key >> 32) as u32
}

/// The projection of a key, bit for bit except that -0.0 has become +0.0. O(1), no allocation.
#[inline]
pub fn proj_of(key: u64) -> f32 {
    float_of(key as u32)
}
