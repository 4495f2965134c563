//! AArch64 vectors.

pub(super) mod neon;
