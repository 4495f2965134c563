//! Opinions: a generated text, read byte by byte, asks for a place and goes on to speak of several; the label says whether
//! what it says of that one is good or bad, or that it says nothing of it.

pub mod generate;
pub mod words;

use super::Task;

/// Bytes, three labels.
pub const TASK: Task = Task { name: "opinions", tokens: 256, classes: 3 };

/// The label where blame prevails.
pub const BLAMED: u8 = 0;
/// The label where praise prevails.
pub const PRAISED: u8 = 1;
/// The label of a text that never names the place asked for.
pub const ABSENT: u8 = 2;
