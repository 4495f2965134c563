//! Rotary embedding of neighbouring pairs, and the way from token rows to heads and back.

/// Cosines and sines of consecutive positions.
pub struct Table {
    pairs: usize,
    turns: Vec<(f32, f32)>,
}

impl Table {
    /// Positions `begin..begin + rows` for heads of `dim` elements.
    pub fn new(begin: usize, rows: usize, dim: usize, base: f64) -> Table {
        let pairs = dim / 2;
        let speed: Vec<f64> = (0..pairs).map(|i| base.powf(-2.0 * i as f64 / dim as f64)).collect();
        let turn = |at: usize, s: f64| {
            let (sin, cos) = (at as f64 * s).sin_cos();
            (cos as f32, sin as f32)
        };
        let turns = (begin..begin + rows).flat_map(|at| speed.iter().map(move |&s| turn(at, s))).collect();
        Table { pairs, turns }
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
