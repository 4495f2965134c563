//! # iceformer-core
//!
//! Attention of long contexts on CPUs: exact, accelerated with its error measured in every call, and the top-k attention of the
//! IceFormer paper (ICLR 2024); key-value sessions; the Prioritized DCI index. `no_std`, with every byte accounted for.
//!
//! ```text
//!   Tensor q, k, v ── Problem ── attention() ──┐                      ┌── every key ───── tiles of rows and keys ──┐
//!                                              │  checks, then one of │                                            │
//!   Session: append, commit ── attend() ───────┼──── mode ────────────┼── accelerated ─── cells of like keys:      ├── out
//!            keys and values by token,         │                      │                   opened, or their means   │   log-sum-exp
//!            cells as they come                │                      │                                            │   AttentionStats
//!   Index: insert, remove ── index_attention() ┘                      └── top-k ───────── keys an index retrieves ─┘
//!          └── query(): nearest neighbours
//!
//!   Memory (system, hooks, a region) holds all of it; Plan says how much before; Isa are the instructions that compute it.
//! ```
//!
//! ```
//! # #[cfg(feature = "std")] {
//! use iceformer_core::attention::{Problem, attention};
//! use iceformer_core::mem::{Memory, Tensor, TensorMut};
//!
//! let (shape, x) = ([1, 1, 100, 64], vec![0.5; 100 * 64]);
//! let mut out = vec![0.0; x.len()];
//! let t = Tensor::new(&x, shape)?;
//! let problem = Problem::new(t, t, t, TensorMut::new(&mut out, shape)?).causal();
//! let stats = attention(&problem, &Memory::system(0)?)?;
//! assert_eq!(stats.pairs_dense, 5050);
//! # }
//! # Ok::<(), iceformer_core::Error>(())
//! ```
//!
//! | module | what a user calls |
//! |---|---|
//! | [`attention`] | [`attention()`](attention::attention) of a [`Problem`](attention::Problem); [`Session`](attention::Session), keys and values that stay; [`index_attention`](attention::index_attention); [`merge`](attention::merge) |
//! | [`dci`] | [`Index`](dci::Index): inner-product and nearest-neighbour search with keys that come and go |
//! | [`mem`] | [`Tensor`](mem::Tensor) and [`Rows`](mem::Rows) over memory of yours; [`Memory`](mem::Memory), where objects live; [`Plan`](mem::Plan), sizes before creation |
//! | [`simd`] | [`Isa`](simd::Isa): the instruction sets, and which of them to use |
//! | [`error`] | [`Error`], [`Status`], [`Detail`], without a heap |
//! | [`features`] | what this build contains, as constants |
//!
//! Within, each module imports only what stands above it:
//!
//! | module | what |
//! |---|---|
//! | `error`, `math` | errors; hashes, floats as ordered integers |
//! | `features` | what the build contains |
//! | `mem` | memory sources, plans, arrays, strided views |
//! | `bytes`, `simd` | saved bytes; vector types, detection, kernels |
//! | `project` | seeded directions, the inner-product lift, projections |
//! | `idmap`, `list`, `queue`, `seen` | id lookup, skip lists, bounded queues, visit counters |
//! | `dci` | the index |
//! | `attention` | the three modes and what they are called by |
//!
//! Features: none (memory from hooks or regions), `alloc` (system allocator, hashed id lookup), `std` (threads, times; the
//! default), and what [`features`] lists, all of it by default through `full`. `internals` opens the inner modules to benchmarks and
//! tests; nothing of them is promised.
//!
//! # Debug builds
//!
//! Kernels without optimisation are up to 90 times slower. A program that is debugged with this library in it wants
//!
//! ```toml
//! [profile.dev.package.iceformer-core]
//! opt-level = 3
//! ```
#![no_std]
#![deny(unsafe_code)]
// What only benchmarks and tests call.
#![cfg_attr(not(feature = "internals"), allow(dead_code, unused_imports))]

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
#[allow(unsafe_code)]
pub mod mem;
#[allow(unsafe_code)]
pub mod simd;

// Modules that users have no need of.
mod idmap;
mod list;
#[cfg(not(feature = "internals"))]
mod math;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod math;
mod project;
mod queue;
mod seen;

pub use error::{Detail, Error, Result, Status};

/// Version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
