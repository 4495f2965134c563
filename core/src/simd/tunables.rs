//! Every number of the kernels that was chosen, with its unit and what speaks for it.

/// Entries whose mean values are added in one go: they stay in the second-level cache.
pub(super) const CHUNK: usize = 512;

/// Standard deviations of a logit up to which a cell's mass is estimated: beyond, cells are opened wherever they matter.
pub(super) const WIDEST: f32 = 4.0;

/// Logits that the biases of a cell's keys may be apart for mean and variance to stand for the sum of their exponentials: it is off by
/// less than 2 % then.
pub(super) const NARROW: f32 = 1.0;

/// Rows that are asked for ahead of the one that is gathered. They lie anywhere, which no machine follows by itself. On SmolLM2 at 32,768
/// tokens gathering takes half the time. Asked for all at once, most come too late.
pub(super) const ROWS_AHEAD: usize = 16;

/// Bytes of a matrix that are asked for ahead of their use: into the nearest cache, and from memory, there also for machines that
/// [bring lines nearer](super::detect::fetches_near) by themselves. Machines fetch ahead within a page only, and keys and values change
/// pages every few steps.
pub(super) const NEAR_AHEAD: usize = 2 << 10;
pub(super) const FAR_AHEAD: [usize; 2] = [16 << 10, 8 << 10];

/// Bytes of the longest keys that such machines follow: eight are read side by side, which in longer ones is too many places.
pub(super) const FOLLOWED: usize = 256;
