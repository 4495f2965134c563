//! # iceformer-core
//!
//! Nearest-neighbour search by (multi-level) Prioritized DCI and the transformer attention built on it, for CPUs,
//! `no_std`, with every byte accounted for. Follows IceFormer (ICLR 2024).
//!
//! Layers, each importing only what stands above it:
//!
//! | module | what |
//! |---|---|
//! | [`error`], [`features`] | statuses and errors without a heap; what this build contains |
//! | [`math`] | hashes, floats as ordered integers |
//! | [`mem`] | memory sources, plans, arrays, strided views |
//! | [`simd`] | vector types, detection, kernels |
//! | [`project`] | seeded directions, the inner-product lift, projections |
//! | [`list`], [`queue`], [`seen`], [`idmap`] | skip lists, bounded queues, visit counters, id lookup |
//! | [`dci`] | the index |
//! | [`attention`] | exact, accelerated and top-k attention, sessions |
//!
//! Features: none (core only: memory from hooks or regions), `alloc` (system allocator, hashed id lookup), `std`
//! (threads, times); and what [`features`] lists, all of them on by default through `full`.
#![no_std]
#![deny(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

/// The Rust sample of the README is a test.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../../README.md")]
struct Readme;

pub mod attention;
mod bytes;
pub mod dci;
pub mod error;
pub mod features;
pub mod idmap;
pub mod list;
pub mod math;
#[allow(unsafe_code)]
pub mod mem;
pub mod project;
pub mod queue;
pub mod seen;
#[allow(unsafe_code)]
pub mod simd;

pub use error::{Detail, Error, Result, Status};

/// Version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
