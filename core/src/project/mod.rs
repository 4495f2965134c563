//! Projections: seeded unit directions, the lift that turns inner products into distances, and their product.
//!
//! Directions and lift use `libm` and fixed summation orders only, so their bits are the same on every target.

mod directions;
mod lift;

pub use directions::Projector;
pub use lift::Lift;

/// One 64-bit hash of a seed and a number (the finaliser of SplitMix64 over their sum): independent streams from one
/// seed, and the levels a key is promoted to.
pub fn hash(seed: u64, x: u64) -> u64 {
    let mut z = seed.wrapping_add(x.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
