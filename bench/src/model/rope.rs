//! Rotary embedding of neighbouring pairs, as GGUF orders them: elements `2i` and `2i + 1` of a head turn together. (Hugging
//! Face turns `i` and `i + dim / 2`; who converts a model to GGUF reorders queries' and keys' rows.) And the way from token
//! rows to heads and back.

use super::{Gguf, Result};
use std::f64::consts::TAU;

/// How turns are slowed down for texts longer than those of the training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// They are not.
    None,
    /// Positions are divided by this.
    Linear(f64),
    /// YaRN: pairs that turn often within the texts of the training stay, those that do not turn once are divided.
    Yarn {
        /// What slow pairs are divided by.
        factor: f64,
        /// Pairs of more turns stay.
        fast: f64,
        /// Pairs of fewer turns are divided.
        slow: f64,
        /// Queries and keys grow by this, besides what the factor asks for.
        gain: f64,
    },
}

impl Scaling {
    /// YaRN as it is used without training for it.
    pub fn yarn(factor: f64) -> Scaling {
        Scaling::Yarn { factor, fast: 32.0, slow: 1.0, gain: 1.0 }
    }
}

/// Speeds of the pairs of a model.
#[derive(Clone, Debug)]
pub struct Rope {
    /// Elements of a head.
    pub dim: usize,
    /// Pair `i` turns by `base ^ (-2 i / dim)` per position.
    pub base: f64,
    /// Longest text of the training, in tokens.
    pub trained: usize,
    /// What is done for longer ones.
    pub scaling: Scaling,
    /// What each pair's speed is divided by, where the file says so.
    pub divisors: Option<Vec<f32>>,
}

impl Rope {
    /// What a file says.
    ///
    /// # Errors
    /// Kinds of scaling that are not known; factors that make no sense.
    pub fn read(file: &Gguf, dim: usize) -> Result<Rope> {
        let float = |key: &str, or: f64| file.float_or(&format!("llama.rope.{key}"), or);
        let factor = float("scaling.factor", float("scale_linear", 1.0)?)?;
        let kind = match file.has("llama.rope.scaling.type") {
            true => file.text("llama.rope.scaling.type")?,
            false => "linear",
        };
        let scaling = match kind {
            "none" => Scaling::None,
            "linear" if factor == 1.0 => Scaling::None,
            "linear" => Scaling::Linear(factor),
            "yarn" => Scaling::Yarn {
                factor,
                fast: float("scaling.yarn_beta_fast", 32.0)?,
                slow: float("scaling.yarn_beta_slow", 1.0)?,
                gain: float("scaling.attn_factor", 1.0)?,
            },
            other => return Err(format!("rotary scaling {other} is not supported").into()),
        };
        let trained = file.whole_or("llama.context_length", 0)?;
        let trained = file.whole_or("llama.rope.scaling.original_context_length", trained)?;
        let divisors = file.names().any(|n| n == DIVISORS).then(|| file.tensor(DIVISORS, &[dim / 2])).transpose()?;
        let base = float("freq_base", 10_000.0)?;
        Rope { dim, base, trained, scaling: Scaling::None, divisors }.scaled(scaling)
    }

    /// The same with another scaling.
    ///
    /// # Errors
    /// Factors that make no sense; YaRN where the file does not say how long the texts of the training were.
    pub fn scaled(self, scaling: Scaling) -> Result<Rope> {
        let (Scaling::Linear(factor) | Scaling::Yarn { factor, .. }) = scaling else {
            return Ok(Rope { scaling, ..self });
        };
        if !(factor.is_finite() && factor > 0.0) {
            return Err(format!("rotary positions cannot be divided by {factor}").into());
        }
        if matches!(scaling, Scaling::Yarn { .. }) && self.trained == 0 {
            return Err("YaRN needs llama.context_length, which is missing".into());
        }
        Ok(Rope { scaling, ..self })
    }

    /// Turns of each pair per position, in radians.
    pub fn speeds(&self) -> Vec<f64> {
        let (dim, n) = (self.dim as f64, self.dim / 2);
        let divisor = |i: usize| self.divisors.as_ref().map_or(1.0, |d| f64::from(d[i]));
        let plain = (0..n).map(|i| self.base.powf(-2.0 * i as f64 / dim) / divisor(i));
        match self.scaling {
            Scaling::None => plain.collect(),
            Scaling::Linear(factor) => plain.map(|s| s / factor).collect(),
            Scaling::Yarn { factor, fast, slow, .. } => {
                // The pair that turns so many times within the texts of the training.
                let pair = |turns: f64| dim * (self.trained as f64 / (turns * TAU)).ln() / (2.0 * self.base.ln());
                let (from, to) = (pair(fast).floor().max(0.0), pair(slow).ceil().min(dim - 1.0));
                let share = |i: usize| ((i as f64 - from) / (to - from).max(1e-3)).clamp(0.0, 1.0);
                plain.enumerate().map(|(i, s)| s * (share(i) / factor + 1.0 - share(i))).collect()
            }
        }
    }

    /// What queries and keys are multiplied by while they turn.
    pub fn gain(&self) -> f64 {
        match self.scaling {
            Scaling::Yarn { factor, gain, .. } => gain * (0.1 * factor.max(1.0).ln() + 1.0),
            _ => 1.0,
        }
    }
}

/// The tensor that slows pairs of Llama 3.1 and later down.
pub const DIVISORS: &str = "rope_freqs.weight";

/// Cosines and sines of consecutive positions.
pub struct Table {
    pairs: usize,
    turns: Vec<(f32, f32)>,
}

impl Table {
    /// Positions `begin..begin + rows`.
    pub fn new(begin: usize, rows: usize, rope: &Rope) -> Table {
        let (speeds, gain) = (rope.speeds(), rope.gain());
        let turn = |at: usize, s: f64| {
            let (sin, cos) = (at as f64 * s).sin_cos();
            ((gain * cos) as f32, (gain * sin) as f32)
        };
        let turns = (begin..begin + rows).flat_map(|at| speeds.iter().map(move |&s| turn(at, s))).collect();
        Table { pairs: speeds.len(), turns }
    }

    /// Turns every head's rows of `[heads, rows, dim]`.
    pub fn apply(&self, x: &mut [f32]) {
        for head in x.chunks_mut(self.turns.len() * 2) {
            for (row, turns) in head.chunks_mut(self.pairs * 2).zip(self.turns.chunks(self.pairs)) {
                for (pair, &(cos, sin)) in row.chunks_mut(2).zip(turns) {
                    let (a, b) = (pair[0], pair[1]);
                    (pair[0], pair[1]) = (a * cos - b * sin, a * sin + b * cos);
                }
            }
        }
    }
}

/// `[rows, heads, dim]` to `[heads, rows, dim]`; the way back is the same with rows and heads changed over.
pub fn swap(x: &[f32], rows: usize, dim: usize, to: &mut [f32]) {
    let heads = x.len() / (rows * dim);
    for (r, row) in x.chunks(heads * dim).enumerate() {
        for (h, part) in row.chunks(dim).enumerate() {
            to[(h * rows + r) * dim..][..dim].copy_from_slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: Scaling) -> Rope {
        let plain = Rope { dim: 64, base: 100_000.0, trained: 8192, scaling: Scaling::None, divisors: None };
        plain.scaled(scaling).expect("a factor")
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let (plain, yarn) = (rope(Scaling::None).speeds(), rope(Scaling::yarn(4.0)).speeds());
        // 32 turns in 8,192 tokens: pair 10.3; one: pair 19.9.
        assert_eq!(plain[..11], yarn[..11]);
        assert!((20..32).all(|i| (yarn[i] * 4.0 / plain[i] - 1.0).abs() < 1e-12));
        assert!((yarn[15] / plain[15] - 0.625).abs() < 1e-12, "half-way between 1 and a quarter");
        assert!((rope(Scaling::yarn(4.0)).gain() - 1.138_629_436_111_989).abs() < 1e-12);
    }

    #[test]
    fn linear_scaling_divides_positions() {
        let (plain, linear) = (Table::new(5, 1, &rope(Scaling::None)), rope(Scaling::Linear(2.0)));
        assert_eq!(Table::new(10, 1, &linear).turns, plain.turns);
        let divided = Rope { divisors: Some(vec![2.0; 32]), ..rope(Scaling::None) };
        assert_eq!(divided.speeds(), linear.speeds());
        assert_eq!(linear.gain(), 1.0);
    }

    #[test]
    fn factors_that_make_no_sense_are_errors() {
        for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(rope(Scaling::None).scaled(Scaling::Linear(factor)).is_err(), "{factor}");
        }
        let unknown = Rope { trained: 0, ..rope(Scaling::None) };
        assert!(unknown.scaled(Scaling::yarn(2.0)).is_err());
    }
}
