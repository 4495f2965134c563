//! Tasks of long sequences: examples, and the encoder that classifies them with any attention in it.

pub mod encoder;
pub mod listops;
pub mod opinions;

use std::path::{Path, PathBuf};

/// One example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Tokens, below [`Task::tokens`].
    pub tokens: Vec<u8>,
    /// What it is, below [`Task::classes`].
    pub label: u8,
}

/// What an encoder must fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Name, as in file names.
    pub name: &'static str,
    /// Different tokens.
    pub tokens: usize,
    /// Different labels.
    pub classes: usize,
}

impl Task {
    /// The weights that come with the repository.
    pub fn bundled(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/{}-encoder.safetensors", self.name))
    }
}
