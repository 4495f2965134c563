//! x86-64 vectors.

pub(super) mod avx2;
pub(super) mod avx512;
