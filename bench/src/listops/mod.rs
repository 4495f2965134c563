//! ListOps, a task of long sequences, from examples to a classified test set.

pub mod generate;
pub mod model;
pub mod vocabulary;
