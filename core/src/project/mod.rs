//! Projections: seeded unit directions, the lift that turns inner products into distances, their product.
//!
//! Directions and lift use `libm` and fixed summation orders only, so their bits are the same on every target.

mod directions;
mod lift;

pub use directions::Projector;
pub use lift::Lift;
