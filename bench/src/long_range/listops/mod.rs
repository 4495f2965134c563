//! ListOps: nested lists of digits, whose value is the label.

pub mod generate;
pub mod vocabulary;

use super::Task;

/// Ten values.
pub const TASK: Task = Task { name: "listops", tokens: vocabulary::TOKENS, classes: 10 };
