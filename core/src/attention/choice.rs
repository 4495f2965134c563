//! Where one way of attending ends and another begins: every limit of it that is not a kernel's.

/// AUTO attends exactly below so many keys, where cells cannot pay.
pub(super) const DENSE_BELOW: usize = 2048;

/// Keys below which a few rows of a session, as in decoding, are read exactly without loss: cells would save less than half of
/// the time.
pub(super) const DECODE_BELOW: usize = 4096;

/// AUTO attends exactly below so many rows of a KV head, which would not pay for building cells.
pub(super) const ROWS_BELOW: usize = 512;

/// Rows of cells are numbered in 32 bits.
pub(super) const MOST_KEYS: usize = u32::MAX as usize;

/// Tolerance below which attention is exact: two measured rows a block cannot speak for less.
pub(super) const FINEST: f32 = 1e-3;
