//! Where one way of attending ends and another begins, and what options that are 0 mean. Those of exact attention's own work are in
//! `dense/tunables.rs`, of accelerated attention in `clustered/policy.rs`, of the index in `dci/tunables.rs`.

// Limits between ways: `bench/notes/2026-11-22-exact-attention.md` has what exact attention costs.

/// Keys. AUTO attends exactly below, where cells cannot pay.
pub(super) const DENSE_BELOW: usize = 2048;

/// Keys below which a few rows of a session, as in decoding, are read exactly without loss: cells would save less than half of
/// the time.
pub(super) const DECODE_BELOW: usize = 4096;

/// Rows of a KV head. AUTO attends exactly below, which would not pay for building cells.
pub(super) const ROWS_BELOW: usize = 512;

/// Keys: rows of cells are numbered in 32 bits.
pub(super) const MOST_KEYS: usize = u32::MAX as usize;

/// Tolerance below which attention is exact: two measured rows a block cannot speak for less.
pub(super) const FINEST: f32 = 1e-3;

// Defaults.

/// Relative error of an output that accelerated attention aims at.
pub(super) const TOLERANCE: f32 = 0.05;

/// Keys that top-k attention retrieves: this share of all, between these bounds (the paper's experiments on language models).
pub(super) const TOP_K_SHARE: f32 = 0.005;
pub(super) const TOP_K_BOUNDS: [f32; 2] = [30.0, 50.0];

/// The index of top-k attention: levels, simple indices of a composite, composites, parents kept a level (the paper's), and the
/// share of the points searched at a level that is retrieved.
pub(super) const TOP_K_LEVELS: usize = 3;
pub(super) const NUM_SIMPLE: usize = 4;
pub(super) const NUM_COMPOSITE: usize = 2;
pub(super) const FIELD_OF_VIEW: usize = 30;
pub(super) const RETRIEVE_FRACTION: f32 = 0.8;

/// Rows of a head whose sparsity is looked at.
pub(super) const SPARSITY_ROWS: usize = 64;
