//! What the studies of accelerated attention are asked to measure.

use crate::heads::{self, Layer};
use clap::Args;
use std::error::Error;
use std::path::{Path, PathBuf};

/// Heads, and how long they are looked at.
#[derive(Args)]
pub struct Inputs {
    /// Captured heads, safetensors [default: the heads bundled with the C examples]
    files: Vec<PathBuf>,
    /// Takes the files for one long text, one after the other, each with its own positions
    #[arg(long, requires = "files")]
    chain: bool,
    /// Gaussian noise of these lengths instead of files
    #[arg(long, value_name = "ROWS,..", value_delimiter = ',', conflicts_with = "files")]
    noise: Vec<usize>,
    /// First rows of each file
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    rows: usize,
    /// Rows whose error is measured, of each layer
    #[arg(long, default_value_t = 64)]
    pub samples: usize,
    /// Rounds of turns; medians count
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Tolerances
    #[arg(long, value_name = "X,..", value_delimiter = ',', default_value = "0.05")]
    pub tolerance: Vec<f32>,
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

impl Inputs {
    /// The options as given, files by name alone.
    pub fn words(&self) -> Vec<String> {
        let list = |x: Vec<String>| x.join(",");
        let mut words: Vec<String> = self.files.iter().map(|f| name(f)).collect();
        if self.chain {
            words.push("--chain".into());
        }
        if !self.noise.is_empty() {
            words.push(format!("--noise {}", list(self.noise.iter().map(usize::to_string).collect())));
        }
        if self.rows != usize::MAX {
            words.push(format!("--rows {}", self.rows));
        }
        words.push(format!("--tolerance {}", list(self.tolerance.iter().map(f32::to_string).collect())));
        words.push(format!("--samples {} --rounds {}", self.samples, self.rounds));
        words
    }

    /// Calls `measure` with the name and the layers of each input.
    ///
    /// # Errors
    /// Those of reading and of `measure`; files that do not fit together.
    pub fn each(
        &self,
        mut measure: impl FnMut(&str, Vec<Layer>) -> Result<(), Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        for &rows in &self.noise {
            measure("noise", heads::noise(rows))?;
        }
        if !self.noise.is_empty() {
            return Ok(());
        }
        let bundled = [heads::bundled()];
        let files = if self.files.is_empty() { &bundled[..] } else { &self.files };
        if self.chain {
            let parts: Result<Vec<_>, _> = files.iter().map(|file| heads::load(file, self.rows)).collect();
            return measure("one after the other", heads::chain(parts?)?);
        }
        for file in files {
            measure(name(file).trim_end_matches(".safetensors"), heads::load(file, self.rows)?)?;
        }
        Ok(())
    }
}
