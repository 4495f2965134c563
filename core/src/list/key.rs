//! Keys: a cell and a projection in one integer whose order is theirs.

/// Integer whose unsigned order is the order of the floats; -0.0 counts as +0.0. Infinities sort at the ends, NaN beyond
/// them. O(1), no allocation.
#[inline]
pub fn image_of(x: f32) -> u32 {
    // Adding +0.0 turns -0.0 into +0.0 and nothing else into anything.
    let bits = (x + 0.0).to_bits();
    // Negative: all bits flip, so that larger magnitude is smaller. Positive: above every negative.
    bits ^ (((bits as i32 >> 31) as u32) | 0x8000_0000)
}

/// The float of an image: inverse of [`image_of`]. O(1), no allocation.
#[inline]
pub fn float_of(image: u32) -> f32 {
    f32::from_bits(image ^ (((!image as i32 >> 31) as u32) | 0x8000_0000))
}

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
