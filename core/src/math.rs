//! Bit-exact arithmetic that every layer shares: hashes, and floats as ordered integers.

/// Spreads every bit over the whole word (the finaliser of SplitMix64). Fixed: equal calls give equal tables and towers.
#[inline]
pub fn mix(x: u64) -> u64 {
    hash(x, 0)
}

/// One 64-bit hash of a seed and a number: independent streams from one seed, and the levels a key is promoted to.
#[inline]
pub fn hash(seed: u64, x: u64) -> u64 {
    let mut z = seed.wrapping_add(x.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

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
