//! Naive accelerated attention, to try selection rules on captured heads before they are written fast: keys in cells,
//! cells opened where they matter, estimated elsewhere. Plain loops in f64; only sampled rows are computed.

pub mod build;
pub mod eigen;
pub mod fit;
pub mod rule;

pub use build::{Cells, Shape};
pub use fit::Directions;
pub use rule::{Outcome, Rule, study};
