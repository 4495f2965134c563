//! Every tunable of exact attention, with its unit and what speaks for it; where nothing is said, what they come to together is in
//! `bench/notes/2026-11-22-exact-attention.md`.

use crate::simd::tile::PANEL;

/// Query rows worth handing to one [`attend`](super::exact::attend) call: what keys and values in the second-level cache are reused for. Cut
/// problems at multiples of it.
pub const ROW_BLOCK: usize = 8 * PANEL;

/// Rows of the smallest pieces that a head is cut into.
pub(crate) const PIECE: usize = ROW_BLOCK / 2;

/// Row blocks for each part, below which heads are cut into smaller pieces: parts would not end at about the same time.
pub(super) const BLOCKS_A_PART: usize = 8;

/// Up to so many rows of a head are attended by `decode.rs`: memory traffic decides then, and tiles, whose lanes are rows, would be
/// mostly empty. They are as fast from 12 to 16 rows on where keys are f16 and shared by heads, or f32 and beyond the second-level
/// cache of one that is alone; later for others.
pub(crate) const FEW: usize = 12;

/// Rows of all heads of a group that `decode.rs` takes together.
pub(crate) const MOST: usize = 32;

/// Elements of the keys and values of a block, which so take 256 KiB, where the dimensions allow it.
pub(super) const BLOCK_ELEMENTS: usize = 65536;

/// Keys of a block, at least and at most.
pub(super) const BLOCK_KEYS: [usize; 2] = [32, 512];

/// Keys of a block of few rows. Larger ones measure no better; smaller ones load and store the sums too often.
pub(super) const FEW_BLOCK: usize = 128;

/// Bytes of keys and values that a row sees from which memory, not arithmetic, decides: caches do not hold them.
pub(crate) const FAR: usize = 16 << 20;

/// Bytes from row to row from which on rows fall on few cache lines or many pages: copying them is cheaper then.
pub(super) const AWKWARD_STRIDE: usize = 4096;
