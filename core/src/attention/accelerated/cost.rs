//! What attending by cells costs, in query-key pairs of the dense kernels: measured at 64 elements a key and value, where
//! products grow with them and the rest does not.

use super::walk::Done;
use crate::cells::{NODES, SEGMENT};

/// Dimensions as costs see them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    small: f64,
}

/// What a few rows pay for a walk over so many segments, as a share of exact attention to them: measured at 64 elements in f16,
/// where both grow with the elements. Exactly, all rows of a group read keys and values once.
pub(super) fn of_few(queries: usize, segments: usize, done: &Done) -> f64 {
    let exactly = (segments * SEGMENT) as f64 * (0.7 + 0.3 * queries as f64);
    let Done { nodes, cells, sifted, .. } = *done;
    let listed = 15.0 * nodes as f64 + 30.0 * cells as f64 + 3.0 * sifted as f64;
    let always = 850.0 + 6.0 * (segments * NODES * queries) as f64;
    (always + listed) / exactly
}

impl Cost {
    pub(super) fn new(dim_k: usize, dim_v: usize) -> Cost {
        Cost { small: 128.0 / (dim_k + dim_v).max(1) as f64 }
    }

    /// Of what a walk did: nodes and cells opened, those looked into.
    pub(super) fn lists(self, nodes: f64, cells: f64, sifted: f64) -> f64 {
        (4.0 + 3.0 * self.small) * nodes + (6.0 + 6.5 * self.small) * cells + (0.7 + 0.4 * self.small) * sifted
    }

    /// What biases add to that: those of so many nodes are brought together by cell, those of opened cells added. That all
    /// are read once before costs about what exact attention pays for adding them.
    pub(super) fn lifts(self, nodes: f64, cells: f64) -> f64 {
        self.small * (45.0 * nodes + 7.0 * cells)
    }

    /// Of a row whatever it opens, among so many blocks of nodes.
    pub(super) fn row(self, roots: f64) -> f64 {
        (13.0 + 7.0 * self.small) * roots + 200.0 * self.small
    }

    /// Of building cells, for each key.
    pub(super) fn build(self) -> f64 {
        220.0 + 100.0 * self.small
    }
}
