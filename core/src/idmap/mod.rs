//! From ids of the caller to slots. The ids themselves are kept by the index, by slot; only slots are stored here.
//!
//! Two forms of one interface: a hash table where there is an allocator interface (feature `alloc`), a sorted array
//! elsewhere. Neither allocates within its capacity, whatever comes and goes.

#[cfg(feature = "alloc")]
mod hashed;
#[cfg(not(feature = "alloc"))]
mod sorted;
#[cfg(test)]
mod tests;

#[cfg(feature = "alloc")]
pub use hashed::IdMap;
#[cfg(not(feature = "alloc"))]
pub use sorted::IdMap;

use crate::error::{Error, Status};

const FULL: Error = Error::new(Status::Capacity, "capacity", "id map is full");

const TAKEN: Error = Error::new(Status::Duplicate, "id", "is already in use");
