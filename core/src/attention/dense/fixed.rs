//! Work memory of fixed-point scores, and how far they can be off.

use crate::mem::{Buf, Maker, Rows};
use crate::simd::fixed::{self, Fixed};
use crate::simd::tile::PANEL;
use crate::simd::{Simd, norm2, rows, sqrt};

/// Largest norms and units of what was rounded so far.
#[derive(Clone, Copy, Debug, Default)]
struct Worst {
    norm: f32,
    unit: f32,
}

impl Worst {
    fn add(&mut self, norm: f32, unit: f32) {
        self.norm = self.norm.max(norm);
        self.unit = self.unit.max(unit);
    }
}

/// Queries of a row block and keys of a key block as 16-bit integers.
#[derive(Debug)]
pub(crate) struct FixedWork {
    pairs: usize,
    limit: i32,
    /// `[panel][pairs][PANEL]`.
    q: Buf<[i16; 2]>,
    q_unit: Buf<f32>,
    /// `[key][pairs]`.
    keys: Buf<[i16; 2]>,
    key_unit: Buf<f32>,
    /// One row, as it is and rounded.
    row: Buf<f32>,
    rounded: Buf<i16>,
    queries_worst: Worst,
    keys_worst: Worst,
}

impl FixedWork {
    /// For row blocks of `rows` rows (whole panels) and key blocks of `block` keys.
    pub(crate) fn made(m: &mut Maker<'_>, dim: usize, rows: usize, block: usize) -> Self {
        let pairs = fixed::padded(dim) / 2;
        FixedWork {
            pairs,
            limit: fixed::limit(dim),
            q: m.filled(rows * pairs, [0; 2]),
            q_unit: m.filled(rows, 0.0),
            keys: m.filled(block * pairs, [0; 2]),
            key_unit: m.filled(block, 0.0),
            row: m.filled(dim, 0.0),
            rounded: m.filled(2 * pairs, 0),
            queries_worst: Worst::default(),
            keys_worst: Worst::default(),
        }
    }

    /// Rounds `rows` queries into panels; lanes without a row are zero.
    #[inline(always)]
    pub(crate) fn load_queries<S: Simd>(&mut self, s: S, q: &Rows<'_>, query: usize, rows: usize) {
        for r in 0..rows.next_multiple_of(PANEL) {
            self.q_unit[r] = 0.0;
            self.rounded.fill(0);
            if r < rows {
                rows::widen(s, q, query + r, &mut self.row);
                self.q_unit[r] = fixed::round_row(&self.row, self.limit, &mut self.rounded);
                self.queries_worst.add(sqrt(s, norm2(s, &self.row)), self.q_unit[r]);
            }
            let panel = &mut self.q[r / PANEL * self.pairs * PANEL..][..self.pairs * PANEL];
            let (pairs, _) = self.rounded.as_chunks::<2>();
            for (to, pair) in panel.chunks_exact_mut(PANEL).zip(pairs) {
                to[r % PANEL] = *pair;
            }
        }
    }

    /// Rounds a block of f32 keys.
    #[inline(always)]
    pub(crate) fn load_keys<S: Simd>(&mut self, s: S, keys: &Rows<'_>) {
        for j in 0..keys.rows() {
            let Some(row) = keys.row_f32(j) else { continue };
            let to = self.keys[j * self.pairs..][..self.pairs].as_flattened_mut();
            self.key_unit[j] = fixed::round_row(row, self.limit, to);
            self.keys_worst.add(sqrt(s, norm2(s, row)), self.key_unit[j]);
        }
    }

    /// Panel `panel` of the queries against the block of keys.
    pub(crate) fn panel(&self, panel: usize) -> Fixed<'_> {
        Fixed {
            q: &self.q[panel * self.pairs * PANEL..][..self.pairs * PANEL],
            q_unit: &self.q_unit[panel * PANEL..][..PANEL],
            keys: &self.keys,
            key_unit: &self.key_unit,
            pairs: self.pairs,
        }
    }

    /// Largest standard error of an inner product of what was rounded since the work memory was made: rounding errs
    /// evenly within half a unit, independently from element to element.
    pub(crate) fn error(&self) -> f32 {
        let (q, k) = (self.queries_worst, self.keys_worst);
        libm::hypotf(q.norm * k.unit, k.norm * q.unit) / libm::sqrtf(12.0)
    }
}

#[cfg(test)]
mod tests {
    use super::FixedWork;
    use crate::mem::Plan;

    #[test]
    fn numbers_take_two_bytes() {
        let (dim, rows, block) = (64, 96, 256);
        let mut plan = Plan::new();
        plan.count(|m| FixedWork::made(m, dim, rows, block));
        let (numbers, units, row) = (2 * (rows + block) * dim, 4 * (rows + block), 6 * dim);
        let bytes = plan.finish().unwrap().bytes;
        // Each of six arrays begins where a line of the cache does.
        assert!((numbers + units + row..=numbers + units + row + 7 * 64).contains(&bytes), "{bytes}");
    }
}
