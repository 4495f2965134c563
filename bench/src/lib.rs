//! Data and measures shared by the benchmarks: captured heads, retrieval quality, output error, speed, a small model.

pub mod accelerated;
pub mod cells;
pub mod heads;
pub mod knn;
pub mod model;
pub mod retrieval;
pub mod speed;
