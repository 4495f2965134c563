//! A Llama-architecture model whose attention is one session per layer, to judge attention by what a model makes of it.
//!
//! `gguf` the file, `quant` its element types, `bpe` its tokenizer, `weights` its matrices; `dense` and `rope` the arithmetic
//! beside attention; `run` the forward pass in chunks, `generate` greedy decoding, `modes` exact and accelerated by name; `text`
//! prompts and documents; `needles`, `perplexity`, `capture` what is measured; `cli` what the programs share.

pub mod bpe;
pub mod capture;
pub mod cli;
pub mod dense;
pub mod generate;
pub mod gguf;
pub mod modes;
pub mod needles;
pub mod perplexity;
pub mod quant;
pub mod rope;
pub mod run;
pub mod text;
pub mod weights;

pub use bpe::Tokenizer;
pub use gguf::Gguf;
pub use modes::Choice;
pub use run::{Kind, Run, Tally};
pub use weights::{Shape, Weights};

use std::error::Error;
use std::path::{Path, PathBuf};

/// Errors of files and sessions alike.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Weights and tokenizer of one file.
pub struct Model {
    /// Matrices and shape.
    pub weights: Weights,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
}

impl Model {
    /// Reads a GGUF file.
    ///
    /// # Errors
    /// What cannot be read, is damaged, or is another architecture.
    pub fn load(path: &Path) -> Result<Model> {
        let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let file = Gguf::parse(bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Model { weights: Weights::read(&file)?, tokenizer: Tokenizer::read(&file)? })
    }
}

/// A file that lies beside the checkout, not in it.
pub fn shared(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared").join(path)
}

/// The model that the measurements are made for.
pub fn default_model() -> PathBuf {
    shared("models/ice-tiny/ice-tiny-f16.gguf")
}
