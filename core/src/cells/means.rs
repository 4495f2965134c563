//! Means, as they are stored.

use super::BLOCK;
use crate::error::Result;
use crate::mem::{Buf, Dtype, Memory, Plan};
use crate::simd::block::{ByteKeys, ByteValues, Elements, NodeKeys, Stored, round_key, round_value};
use half::bf16;

/// Mean keys of nodes: in f32 for keys and values in f32, a byte an element for others.
enum Numbers {
    /// Transposed, `[block][dim_k][BLOCK]`.
    Whole(Buf<f32>),
    /// As [`ByteKeys`]: what sets them apart from that of the first, which never changes while others are there.
    Bytes { words: Buf<u32>, unit: Buf<[bf16; BLOCK]>, center: Buf<f32> },
}

/// Mean keys.
pub(super) struct MeanKeys {
    dim: usize,
    nodes: Numbers,
    /// Only certificates need them: to everything else a cell's mean is that of its node and four bits a coordinate.
    cells: Option<Buf<f32>>,
}

impl MeanKeys {
    pub(super) fn plan(plan: &mut Plan, dtype: Dtype, dim: usize, blocks: usize) {
        match dtype {
            Dtype::F32 => Buf::<f32>::plan(plan, blocks * dim * BLOCK),
            _ => {
                Buf::<u32>::plan(plan, blocks * ByteKeys::quads(dim) * BLOCK);
                Buf::<[bf16; BLOCK]>::plan(plan, blocks);
                Buf::<f32>::plan(plan, dim);
            }
        }
    }

    pub(super) fn new(memory: &Memory, dtype: Dtype, dim: usize, blocks: usize) -> Result<Self> {
        let nodes = match dtype {
            Dtype::F32 => Numbers::Whole(Buf::filled(memory, blocks * dim * BLOCK, 0.0)?),
            _ => Numbers::Bytes {
                words: Buf::filled(memory, blocks * ByteKeys::quads(dim) * BLOCK, 0)?,
                unit: Buf::filled(memory, blocks, [bf16::ZERO; BLOCK])?,
                center: Buf::filled(memory, dim, 0.0)?,
            },
        };
        Ok(MeanKeys { dim, nodes, cells: None })
    }

    /// Adds what [`keep_cells`](MeanKeys::keep_cells) takes to a plan.
    pub(super) fn plan_cells(plan: &mut Plan, dim: usize, cells: usize) {
        Buf::<f32>::plan(plan, cells * dim);
    }

    /// From now on those of cells are kept, too.
    pub(super) fn keep_cells(&mut self, memory: &Memory, cells: usize) -> Result<()> {
        self.cells = Some(Buf::filled(memory, cells * self.dim, 0.0)?);
        Ok(())
    }

    /// Where the elements of vector `at` of all blocks lie.
    fn places(&self, at: usize) -> core::iter::StepBy<core::ops::Range<usize>> {
        let begin = at / BLOCK * self.dim * BLOCK + at % BLOCK;
        (begin..begin + self.dim * BLOCK).step_by(BLOCK)
    }

    /// Of node `at`, counted over all blocks; the first comes before all others.
    pub(super) fn set_node(&mut self, at: usize, key: &[f32]) {
        let places = self.places(at).zip(key);
        match &mut self.nodes {
            Numbers::Whole(to) => places.for_each(|(i, &x)| to[i] = x),
            Numbers::Bytes { words, unit, center } => {
                if at == 0 {
                    center.copy_from_slice(key);
                }
                let (block, len) = (at / BLOCK, ByteKeys::quads(self.dim) * BLOCK);
                round_key(key, center, at % BLOCK, &mut words[block * len..][..len], &mut unit[block]);
            }
        }
    }

    /// What those of nodes are set apart from, where they are.
    pub(super) fn center(&self) -> Option<&[f32]> {
        match &self.nodes {
            Numbers::Whole(_) => None,
            Numbers::Bytes { center, .. } => Some(center),
        }
    }

    /// Of cell `at`.
    pub(super) fn set_cell(&mut self, at: usize, key: &[f32]) {
        let places = self.places(at);
        if let Some(cells) = &mut self.cells {
            places.zip(key).for_each(|(i, &x)| cells[i] = x);
        }
    }

    /// Of `n` root blocks from block `at` on.
    pub(super) fn of_roots(&self, at: usize, n: usize) -> NodeKeys<'_> {
        let all = match &self.nodes {
            Numbers::Whole(x) => NodeKeys::Whole(Stored::F32(x)),
            Numbers::Bytes { words, unit, .. } => NodeKeys::Bytes(ByteKeys { words, unit }),
        };
        all.blocks(at, n, self.dim)
    }

    /// Of all cells, where they are kept.
    pub(super) fn of_cells(&self) -> Option<&Buf<f32>> {
        self.cells.as_ref()
    }
}

/// Mean values of a level: in f32 for keys and values in f32, a byte an element for others.
pub(super) enum MeanValues {
    /// `[block][BLOCK][stride]`.
    Whole(Buf<f32>),
    /// As [`ByteValues`].
    Bytes { words: Buf<u32>, unit: Buf<[bf16; BLOCK]> },
}

impl MeanValues {
    pub(super) fn plan(plan: &mut Plan, dtype: Dtype, blocks: usize, stride: usize) {
        match dtype {
            Dtype::F32 => Buf::<f32>::plan(plan, blocks * BLOCK * stride),
            _ => {
                Buf::<u32>::plan(plan, ByteValues::words(stride) * blocks);
                Buf::<[bf16; BLOCK]>::plan(plan, blocks);
            }
        }
    }

    pub(super) fn new(memory: &Memory, dtype: Dtype, blocks: usize, stride: usize) -> Result<Self> {
        Ok(match dtype {
            Dtype::F32 => MeanValues::Whole(Buf::filled(memory, blocks * BLOCK * stride, 0.0)?),
            _ => MeanValues::Bytes {
                words: Buf::filled(memory, ByteValues::words(stride) * blocks, 0)?,
                unit: Buf::filled(memory, blocks, [bf16::ZERO; BLOCK])?,
            },
        })
    }

    /// Of vector `at`, counted over all blocks, of `stride` elements with what they are padded with.
    pub(super) fn set(&mut self, at: usize, stride: usize, x: &[f32]) {
        match self {
            MeanValues::Whole(to) => to[at * stride..][..x.len()].copy_from_slice(x),
            MeanValues::Bytes { words, unit } => {
                let (block, len) = (at / BLOCK, ByteValues::words(stride));
                round_value(x, at % BLOCK, &mut words[block * len..][..len], &mut unit[block]);
            }
        }
    }

    /// Of blocks from `at` on.
    pub(super) fn blocks(&self, at: usize, n: usize, stride: usize) -> Elements<'_> {
        match self {
            MeanValues::Whole(x) => Elements::F32(&x[at * BLOCK * stride..][..n * BLOCK * stride]),
            MeanValues::Bytes { words, unit } => {
                let len = ByteValues::words(stride);
                Elements::Bytes(ByteValues { words: &words[at * len..][..n * len], unit: &unit[at..][..n] })
            }
        }
    }

    /// All of them, of cells that are certified.
    pub(super) fn exact(&self) -> &[f32] {
        match self {
            MeanValues::Whole(x) => x,
            MeanValues::Bytes { .. } => unreachable!("certified cells keep means in f32"),
        }
    }
}
