//! Queries of a batch that are answered together, and what is found for them.

use super::lists::Entry;
use super::tunables::{CHUNK_ELEMENTS, CHUNK_PANELS, ENTRIES_A_STEP};
use crate::features::CELLS;
use crate::mem::{Buf, Maker};
use crate::simd::Isa;
use crate::simd::codes::{Pack, SIEVE};
use crate::simd::tile::{KEYS, PANEL};

/// What batches need of a scratch.
pub(super) struct Chunk {
    /// Queries of a chunk, `[chunk][dim]`.
    pub rows: Buf<f32>,
    /// The same transposed, `[panels][dim][PANEL]`.
    pub panels: Buf<f32>,
    /// Products of one panel.
    pub product: Buf<f32>,
    pub entries: Buf<Entry>,
    pub len: Buf<u32>,
    pub limit: Buf<f32>,
}

/// Sizes of a [`Chunk`].
#[derive(Clone, Copy)]
pub(super) struct ChunkShape {
    pub chunk: usize,
    dim: usize,
    product: usize,
    entries: usize,
}

impl ChunkShape {
    /// For keys of `dim` elements in `slots` slots; `rows` is the most that a panel is multiplied with beside keys.
    pub fn new(dim: usize, slots: usize, rows: usize) -> ChunkShape {
        if !CELLS {
            return ChunkShape { chunk: 0, dim, product: 0, entries: 0 };
        }
        let panels = (CHUNK_ELEMENTS / (dim * PANEL)).min(slots / 128).clamp(1, CHUNK_PANELS);
        ChunkShape {
            chunk: panels * PANEL,
            dim,
            product: (rows.max(SIEVE) + KEYS) * PANEL,
            entries: (slots + 2 * ENTRIES_A_STEP).max(slots.saturating_mul(16).min(1 << 19)),
        }
    }

    pub fn make(&self, m: &mut Maker<'_>) -> Chunk {
        Chunk {
            rows: m.filled(self.chunk * self.dim, 0.0),
            panels: m.filled(self.chunk * self.dim, 0.0),
            product: m.filled(self.product, 0.0),
            entries: m.filled(self.entries, Entry::default()),
            len: m.filled(self.chunk, 0),
            limit: m.filled(self.chunk, 0.0),
        }
    }
}

impl Chunk {
    /// Queries of a chunk whose lists hold `room` entries.
    pub fn queries(&self, room: usize) -> usize {
        (self.entries.len() / room).min(self.len.len())
    }

    /// Entries of a list that is cut back to `keep`, for an index of `len` keys.
    pub fn room(&self, keep: usize, len: usize) -> usize {
        (keep + keep.clamp(ENTRIES_A_STEP, 4096)).min(len.max(keep) + ENTRIES_A_STEP).min(self.entries.len())
    }

    /// Transposes the first `n` rows into panels.
    pub fn pack(&mut self, isa: Isa, dim: usize, n: usize) {
        for (p, panel) in self.panels.chunks_exact_mut(dim * PANEL).enumerate().take(n.div_ceil(PANEL)) {
            let mut at = [0; PANEL];
            let count = (n - p * PANEL).min(PANEL);
            at[..count].iter_mut().enumerate().for_each(|(i, at)| *at = (p * PANEL + i) as u32);
            isa.run(Pack { rows: &self.rows, stride: dim, cols: dim, at: &at[..count], out: panel });
        }
    }
}
