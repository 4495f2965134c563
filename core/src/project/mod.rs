//! Projections: seeded unit directions, the lift that turns inner products into distances, their product; directions
//! fitted to data.
//!
//! Directions and lift use `libm` and fixed summation orders only, so their bits are the same on every target.

mod directions;
pub mod fitted;
mod lift;

pub use directions::Projector;
pub use lift::Lift;
