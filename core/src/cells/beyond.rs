//! What bounds of a cell's estimate need beside the coordinates of its keys: how far the keys lie off their decoded
//! coordinates, and how far the values lie off their mean.

use super::{BLOCK, Coords, LEAVES, Level, SEGMENT};
use crate::error::Result;
use crate::mem::{Buf, Memory, Plan};
use crate::simd::Isa;
use crate::simd::block::{Beyond, Remainders, Width};

/// How many times a length may be what was summed in f32.
const ROUNDING: f32 = 1.0001;

/// By cell.
pub(super) struct Bounds {
    of: Buf<Beyond>,
    /// A cell's vectors, transposed.
    room: Buf<f32>,
}

impl Bounds {
    pub(super) fn plan(plan: &mut Plan, dim_k: usize, dim_v: usize, segments: usize) {
        Buf::<Beyond>::plan(plan, segments * LEAVES);
        Buf::<f32>::plan(plan, dim_k.max(dim_v) * BLOCK);
    }

    pub(super) fn new(memory: &Memory, dim_k: usize, dim_v: usize, segments: usize) -> Result<Self> {
        Ok(Bounds {
            of: Buf::filled(memory, segments * LEAVES, Beyond::default())?,
            room: Buf::filled(memory, dim_k.max(dim_v) * BLOCK, 0.0)?,
        })
    }

    pub(super) fn of(&self, cell: usize) -> Beyond {
        self.of[cell]
    }

    /// Sets what keys decide of segment `at`: `rows [SEGMENT][dim]` are its keys, `order` says which of them form cells, `means`
    /// are those of all cells, which logits are counted from.
    pub(super) fn keys(&mut self, isa: Isa, at: usize, rows: &[f32], order: &[u32], means: &[f32], coords: &Coords) {
        let dim = rows.len() / SEGMENT;
        let room = &mut self.room[..dim * BLOCK];
        for (i, cell) in order.chunks_exact(BLOCK).enumerate() {
            let leaf = at * LEAVES + i;
            let means = &means[leaf / BLOCK * dim * BLOCK..][..dim * BLOCK];
            for (k, out) in room.chunks_exact_mut(BLOCK).enumerate() {
                let mean = means[k * BLOCK + leaf % BLOCK];
                out.iter_mut().zip(cell).for_each(|(x, &j)| *x = rows[j as usize * dim + k] - mean);
            }
            let [decoded, reach, width] = isa.run(Remainders { coded: coords.cell(leaf), vectors: room });
            let of = &mut self.of[leaf];
            (of.decoded, of.reach, of.width) = (decoded * ROUNDING, reach * ROUNDING, width * ROUNDING);
        }
    }

    /// The same of its values.
    pub(super) fn values(&mut self, isa: Isa, at: usize, rows: &[f32], order: &[u32], leaves: &Level, stride: usize) {
        let dim = rows.len() / SEGMENT;
        let room = &mut self.room[..dim * BLOCK];
        for (i, cell) in order.chunks_exact(BLOCK).enumerate() {
            let leaf = at * LEAVES + i;
            let mean = &leaves.values.exact()[leaf * stride..][..dim];
            for (k, out) in room.chunks_exact_mut(BLOCK).enumerate() {
                out.iter_mut().zip(cell).for_each(|(x, &j)| *x = rows[j as usize * dim + k] - mean[k]);
            }
            self.of[leaf].value_width = isa.run(Width { vectors: room }) * ROUNDING;
            self.of[leaf].value = libm::sqrtf(isa.norm2(mean)) * ROUNDING;
        }
    }
}
