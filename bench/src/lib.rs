//! Data and measures shared by the benchmarks: captured heads, retrieval quality, output error, speed, a small model, the
//! other ways of approximating attention.

pub mod aligned;
pub mod baselines;
pub mod bias;
pub mod clock;
pub mod draw;
pub mod families;
pub mod heads;
pub mod knn;
pub mod long_range;
pub mod matrix;
pub mod model;
pub mod paper;
pub mod peak;
pub mod place;
pub mod plot;
pub mod prefill;
pub mod probe;
pub mod retrieval;
pub mod speed;
pub mod suite;
