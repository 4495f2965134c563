//! Naive accelerated attention, to try selection rules on captured heads before they are written fast: keys in cells,
//! cells opened where they matter, estimated elsewhere. Plain loops in f64; only sampled rows are computed.

pub mod build;
pub mod eigen;
pub mod fit;
pub mod rule;

/// The library's tree and rule at the default tolerance, but for rows in chunks of 512 instead of 256.
pub const LIBRARY: Rule = Rule {
    shape: Shape { segment: 256, cell: 16, split: Split::Halves, sinks: 0, whitened: false },
    coding: Coding::Nibbles,
    rounded: true,
    needle: 0.0037,
    found: true,
    plenty: 6.0,
    most: 1.4,
    margin: 1.1,
    mass: 0.02,
    levels: 2,
    estimate: Estimate::Cosh,
    tilt: true,
    sigma: Sigma::Mean,
};

pub use build::{Cells, Shape, Split};
pub use fit::{Coding, Coordinates};
pub use rule::{Estimate, Outcome, Rule, Sigma, study};
