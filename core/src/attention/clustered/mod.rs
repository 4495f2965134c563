//! Accelerated attention: far keys gathered into cells, a cell's mean in place of its keys where that is good enough.
//!
//! `policy` every tunable; `ablation` what a measurement can leave out. `order`, `split`, `tree` cells; `rows` query rows and their softmax;
//! `sample` rows attended exactly; `front` what rows meet in place of far keys; `estimate` which cells open, and means for the others;
//! `control` the threshold; `engine` a block of rows; `memo`, `clusters` what a session keeps of a head; `decode` a few rows by it; `runs` all
//! heads; `call` the one-call form.

#[cfg(feature = "ablation")]
pub mod ablation;
#[cfg(not(feature = "ablation"))]
mod ablation;
mod call;
mod clusters;
mod control;
mod decode;
mod engine;
mod estimate;
mod front;
mod memo;
mod order;
mod policy;
mod rows;
mod runs;
mod sample;
mod split;
mod tree;

pub(super) use call::{call, plan_call};
pub(crate) use clusters::Clusters;
pub(crate) use control::Control;
pub use decode::FewWork;
pub use engine::{BlockWork, Scored, Watch};
pub use policy::SEGMENT;
pub(crate) use runs::Heads;
pub use tree::Tree;
