//! Options that the programs share.

use super::rope::Scaling;
use super::{Kind, Model, Result, default_model};
use clap::{Args, ValueEnum};
use iceformer_core::attention::AttentionOptions;
use iceformer_core::mem::Dtype;
use std::path::PathBuf;
use std::time::{Duration, Instant};

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
    /// Llama-architecture GGUF file with a byte-level BPE tokenizer
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
    /// Rotary positions by YaRN for texts this many times longer than those of the training; what the file says is void
    #[arg(long, value_name = "FACTOR", conflicts_with = "rope_linear")]
    pub yarn: Option<f64>,
    /// Rotary positions divided by this; what the file says is void
    #[arg(long, value_name = "FACTOR")]
    pub rope_linear: Option<f64>,
    /// Names of control tokens in texts stand for these tokens
    #[arg(long)]
    pub control: bool,
}

/// Lines on standard error while something long runs, every ten seconds.
pub struct Progress {
    all: usize,
    start: Instant,
    last: Duration,
}

impl Progress {
    /// Of so many tokens.
    pub fn new(all: usize) -> Progress {
        Progress { all, start: Instant::now(), last: Duration::ZERO }
    }

    /// So many are done.
    pub fn at(&mut self, done: usize) {
        let now = self.start.elapsed();
        if now - self.last >= Duration::from_secs(10) {
            self.last = now;
            eprintln!("{done} of {} tokens, {:.0} s", self.all, now.as_secs_f64());
        }
    }
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
        let mut model = Model::load(&self.model)?;
        let scaling = self.yarn.map(Scaling::yarn).or(self.rope_linear.map(Scaling::Linear));
        if let Some(scaling) = scaling {
            model.weights.rope = model.weights.rope.scaled(scaling)?;
        }
        model.tokenizer.set_control(self.control);
        Ok(Some(model))
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
