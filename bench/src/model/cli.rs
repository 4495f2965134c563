//! Options that the programs share.

use super::{Kind, Model, Result, default_model};
use clap::{Args, ValueEnum};
use iceformer_core::attention::AttentionOptions;
use iceformer_core::mem::Dtype;
use std::path::PathBuf;

/// Storage of keys and values.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Storage {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

/// Which model, and how it is run.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Llama-architecture GGUF file with f16 or f32 tensors
    #[arg(long, value_name = "FILE", default_value_os_t = default_model())]
    pub model: PathBuf,
    /// Storage of keys and values in the sessions
    #[arg(long, value_enum, default_value = "f16")]
    pub kv: Storage,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// Tokens per step of a prompt
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub chunk: usize,
}

impl Common {
    /// The model, or `None` with a line that says so where the file is absent.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn load(&self) -> Result<Option<Model>> {
        if !self.model.exists() {
            println!("skipped: no model at {} (--model FILE names one)", self.model.display());
            return Ok(None);
        }
        Model::load(&self.model).map(Some)
    }

    /// Exact attention as asked for; programs change the mode.
    pub fn kind(&self) -> Kind {
        Kind {
            attention: AttentionOptions::default(),
            kv: match self.kv {
                Storage::F16 => Dtype::F16,
                Storage::F32 => Dtype::F32,
            },
            threads: self.threads.max(1),
            chunk: self.chunk.max(1),
            exact_layers: 0,
        }
    }
}
