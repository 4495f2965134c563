//! Data and measures shared by the benchmarks: captured heads, retrieval quality, output error, speed.

pub mod accelerated;
pub mod cells;
pub mod heads;
pub mod retrieval;
pub mod speed;
