//! Sampled rows: attended exactly, they say which keys are heavy for their neighbours, and what an approximation errs by.

use super::ablation::{Part, without};
use super::policy::{CHECKING, CUT, FEW_ROWS, KNOWING, LANES, LEAST_CHECKING, NOTED};
use crate::math::hash;
use crate::mem::{Buf, Maker};

/// Rows of a block that are sampled, at most.
const SAMPLED: usize = KNOWING + CHECKING;

/// Rows of a block that are sampled: those that find keys, then those that measure.
#[derive(Clone, Copy)]
pub(super) struct Sampled {
    rows: [usize; SAMPLED],
    n: usize,
}

impl Sampled {
    /// Rows of blocks of `n` rows that are sampled for heads in groups of `group`: as many as fill the vector lanes that so many take
    /// anyway.
    pub(super) fn count(group: usize, n: usize) -> usize {
        let least = KNOWING + LEAST_CHECKING;
        if n < FEW_ROWS { least } else { ((least * group).next_multiple_of(LANES) / group).min(SAMPLED) }
    }

    /// Of `n` rows. Rows that find keys lie evenly; those that measure lie anywhere in as many stretches, which `seed` decides.
    pub(super) fn new(group: usize, n: usize, seed: u64) -> Sampled {
        let (mut rows, count) = ([0; SAMPLED], Sampled::count(group, n));
        for (i, row) in rows[..KNOWING].iter_mut().enumerate() {
            *row = (2 * i + 1) * n / (2 * KNOWING);
        }
        let checking = count - KNOWING;
        for i in 0..checking {
            let (low, high) = (i * n / checking, (i + 1) * n / checking);
            let mut row = low + (hash(seed, i as u64) % (high - low) as u64) as usize;
            while rows[..KNOWING + i].contains(&row) {
                row = if row + 1 < high { row + 1 } else { low };
            }
            rows[KNOWING + i] = row;
        }
        Sampled { rows, n: count }
    }

    /// All of them.
    pub(super) fn all(&self) -> &[usize] {
        &self.rows[..self.n]
    }

    /// Those that measure.
    pub(super) fn checks(&self) -> &[usize] {
        &self.rows[KNOWING..self.n]
    }
}

/// A key and the logarithm, in powers of two, of what it weighs in a row, the sum not yet taken away.
#[derive(Clone, Copy, Debug, Default)]
struct Noted {
    key: u32,
    row: u32,
    weight: f32,
}

/// Keys that are heavy in sampled rows.
pub(super) struct Heavy {
    noted: Buf<Noted>,
    /// What is weighed against: logarithms of the rows' sums.
    sums: Buf<f32>,
    lost: bool,
}

impl Heavy {
    /// For so many rows, as part of a larger object.
    pub(super) fn made(m: &mut Maker<'_>, rows: usize) -> Self {
        Heavy { noted: m.room(NOTED), sums: m.filled(rows, f32::NEG_INFINITY), lost: false }
    }

    pub(super) fn clear(&mut self) {
        self.noted.clear();
        self.sums.fill(f32::NEG_INFINITY);
        self.lost = false;
    }

    /// Notes what weighs enough among keys `first..` for row `row`: `weights` relative to `max`, the sum of all so far `sum`.
    pub(super) fn note(
        &mut self,
        row: usize,
        first: usize,
        weights: impl Iterator<Item = f32>,
        max: f32,
        sum: f32,
        factor: f32,
    ) {
        if without(Part::KnownKeys) {
            return;
        }
        let least = CUT * sum;
        self.sums[row] = max * factor + libm::log2f(sum);
        for (key, weight) in (first as u32..).zip(weights) {
            if weight >= least && weight > 0.0 {
                if self.noted.len() == NOTED {
                    self.settle();
                    if self.noted.len() == NOTED {
                        self.lost = true;
                        return;
                    }
                }
                let weight = max * factor + libm::log2f(weight);
                let _ = self.noted.push(Noted { key, row: row as u32, weight });
            }
        }
    }

    /// Forgets what has become light since it was noted.
    pub(super) fn settle(&mut self) {
        let least = libm::log2f(CUT);
        let mut n = 0;
        for i in 0..self.noted.len() {
            let noted = self.noted[i];
            if noted.weight - self.sums[noted.row as usize] >= least {
                self.noted[n] = noted;
                n += 1;
            }
        }
        self.noted.truncate(n);
    }

    /// Keys that weigh at least so much, heaviest first, some more than once.
    pub(super) fn keys(&mut self, least: f32) -> impl Iterator<Item = u32> {
        self.settle();
        let (sums, least) = (&self.sums, libm::log2f(least));
        self.noted.sort_unstable_by(|a, b| {
            let weight = |x: &Noted| x.weight - sums[x.row as usize];
            weight(b).total_cmp(&weight(a)).then(a.key.cmp(&b.key))
        });
        let heavier = self.noted.iter().take_while(move |noted| noted.weight - sums[noted.row as usize] >= least);
        heavier.map(|noted| noted.key)
    }
}
