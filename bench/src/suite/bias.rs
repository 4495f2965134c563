//! Biases of distances, as models with relative positions have them.

use crate::heads::Layer;
use half::f16;

/// Which biases a layer is attended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Bias {
    /// Falls by 1 every 1,024 tokens: a flat head of ALiBi.
    Slope,
    /// Falls by 0.25 with every power of two: buckets of relative positions.
    Buckets,
}

impl Bias {
    /// The bias of a key so many tokens away, as it is stored.
    pub fn at(self, distance: usize) -> f16 {
        let distance = distance as f32;
        f16::from_f32(match self {
            Bias::Slope => -distance / 1024.0,
            Bias::Buckets => -0.25 * (distance + 1.0).log2().floor(),
        })
    }

    /// `[rows][keys]` for all heads of a layer; keys that a row does not see are hidden.
    pub fn matrix(self, layer: &Layer) -> Vec<f16> {
        let of = |row: usize, key: usize| match layer.causal && key > row {
            true => f16::NEG_INFINITY,
            false => self.at(row.abs_diff(key)),
        };
        (layer.first..layer.rows).flat_map(|row| (0..layer.rows).map(move |key| of(row, key))).collect()
    }
}
