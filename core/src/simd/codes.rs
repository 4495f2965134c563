//! Keys as bytes, in blocks, against lists of queries; and panels of rows against matrices.
//!
//! A block is [`BLOCK`] keys, four coordinates of each side by side (`[quads][BLOCK][4]`), so that keys fill the lanes and a
//! query is read four coordinates at a time as a broadcast. A key's coordinate is `(byte - 128) * unit`, a query's
//! `byte * unit`.

use super::math::nearest;
use super::tile::{self, PANEL, Span};
use super::vector::Simd;
use super::{Task, kernels};
use crate::mem::Rows;

/// Keys of a block.
pub(crate) const BLOCK: usize = 16;
/// Most keys a sink is offered at once.
pub(crate) const OFFER: usize = 64;
/// What is added to a key's coordinate to make it unsigned.
const SHIFT: i32 = 128;

/// A query that looks into a run of blocks, and its score of what the codes are relative to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Visit {
    pub(crate) row: u32,
    pub(crate) center: f32,
}

/// Takes keys that score above a query's limit.
pub(crate) trait Sink {
    /// What a score must exceed.
    fn limit(&self, row: u32) -> f32;
    /// Key `first + i` scores `scores[i]` for every bit `i`.
    fn take(&mut self, row: u32, first: u32, bits: u64, scores: &[f32; OFFER]);
}

/// Blocks of keys.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    /// `[blocks][quads][BLOCK][4]`.
    pub(crate) codes: &'a [u8],
    /// Size of a step, by key.
    pub(crate) unit: &'a [f32],
    /// Added to the score, by key; -inf where there is no key.
    pub(crate) bias: &'a [f32],
    /// Number of the first key.
    pub(crate) first: u32,
}

/// Queries as bytes.
#[derive(Clone, Copy)]
pub(crate) struct Coded<'a> {
    /// `[rows][quads * 4]`.
    pub(crate) codes: &'a [i8],
    pub(crate) unit: &'a [f32],
    /// Sum of the codes.
    pub(crate) sum: &'a [i32],
    /// Fours of coordinates.
    pub(crate) quads: usize,
}

/// Offers `sink` every key of the blocks that scores above the limit of a visiting query.
pub(crate) struct Scan<'a, K: Sink> {
    pub(crate) blocks: Blocks<'a>,
    pub(crate) queries: Coded<'a>,
    pub(crate) visits: &'a [Visit],
    pub(crate) sink: &'a mut K,
}

impl<K: Sink> Task for Scan<'_, K> {
    type Out = ();
    const DOT16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Blocks { codes, unit, bias, .. } = self.blocks;
        let Coded { codes: q, unit: q_unit, sum, quads } = self.queries;
        let blocks = unit.len() / BLOCK;
        assert!(unit.len() == blocks * BLOCK && bias.len() == unit.len() && codes.len() >= blocks * quads * BLOCK * 4);
        let rows = q_unit.len().min(sum.len());
        assert!(q.len() >= rows * quads * 4 && self.visits.iter().fold(true, |ok, v| ok & ((v.row as usize) < rows)));
        // SAFETY: all blocks and all queries of the visits are there.
        unsafe {
            match S::LANES {
                16 => {
                    let mut block = 0;
                    while block + 4 <= blocks {
                        self.visit::<S, 4, 6>(s, block);
                        block += 4;
                    }
                    while block < blocks {
                        self.visit::<S, 1, 6>(s, block);
                        block += 1;
                    }
                }
                8 => (0..blocks).for_each(|b| self.visit::<S, 2, 4>(s, b)),
                4 => (0..blocks).for_each(|b| self.visit::<S, 4, 4>(s, b)),
                _ => (0..blocks).for_each(|b| self.visit::<S, 16, 1>(s, b)),
            }
        }
    }
}

impl<K: Sink> Scan<'_, K> {
    /// All visits to `C` vectors of keys.
    ///
    /// # Safety
    /// As checked in `run`; the vectors from `block` on are there.
    #[inline(always)]
    unsafe fn visit<S: Simd, const C: usize, const R: usize>(&mut self, s: S, block: usize) {
        let mut i = 0;
        // SAFETY: visits i.. are there.
        unsafe {
            while i + R <= self.visits.len() {
                self.tile::<S, C, R>(s, block, i);
                i += R;
            }
            while R > 2 && i + 2 <= self.visits.len() {
                self.tile::<S, C, 2>(s, block, i);
                i += 2;
            }
            while i < self.visits.len() {
                self.tile::<S, C, 1>(s, block, i);
                i += 1;
            }
        }
    }

    /// `R` visits from visit `i` on.
    ///
    /// # Safety
    /// As for `visit`, and those visits are there.
    #[inline(always)]
    unsafe fn tile<S: Simd, const C: usize, const R: usize>(&mut self, s: S, block: usize, i: usize) {
        let quads = self.queries.quads;
        let mut q = [self.queries.codes.as_ptr(); R];
        let mut acc = [[s.splat_i(0); C]; R];
        for r in 0..R {
            let row = self.visits[i + r].row as usize;
            // SAFETY: the row is there.
            q[r] = unsafe { q[r].add(row * quads * 4) };
            acc[r] = [s.splat_i(-SHIFT * self.queries.sum[row]); C];
        }
        let mut keys = [self.blocks.codes.as_ptr(); C];
        for c in 0..C {
            let key = block * BLOCK + c * S::LANES;
            // SAFETY: the vector is there.
            keys[c] = unsafe { keys[c].add((key / BLOCK * quads * BLOCK + key % BLOCK) * 4) };
        }
        for k in 0..quads {
            let mut a = [s.splat_i(0); C];
            for c in 0..C {
                // SAFETY: quad k of the vector's block.
                a[c] = unsafe { s.load_i(keys[c].add(k * BLOCK * 4).cast()) };
            }
            for r in 0..R {
                // SAFETY: k < quads. Both sides are bytes as they lie, so the byte order does not matter.
                let b = s.splat_i(unsafe { q[r].add(k * 4).cast::<i32>().read_unaligned() });
                for c in 0..C {
                    acc[r][c] = s.dot8(acc[r][c], a[c], b);
                }
            }
        }
        let at = block * BLOCK;
        for r in 0..R {
            let Visit { row, center } = self.visits[i + r];
            let (unit, limit) = (s.splat(self.queries.unit[row as usize]), s.splat(self.sink.limit(row) - center));
            let mut x = [unit; C];
            let mut bits = 0u64;
            for c in 0..C {
                // SAFETY: units and biases of the block's keys.
                let (scale, bias) = unsafe {
                    let lane = at + c * S::LANES;
                    (s.load(self.blocks.unit.as_ptr().add(lane)), s.load(self.blocks.bias.as_ptr().add(lane)))
                };
                x[c] = s.fma(s.mul(s.to_f32(acc[r][c]), scale), unit, bias);
                bits |= u64::from(s.lt_bits(limit, x[c])) << (c * S::LANES);
            }
            if bits != 0 {
                let mut scores = [0.0; OFFER];
                for c in 0..C {
                    // SAFETY: C * LANES is at most OFFER.
                    unsafe { s.store(scores.as_mut_ptr().add(c * S::LANES), s.add(x[c], s.splat(center))) };
                }
                self.sink.take(row, self.blocks.first + at as u32, bits, &scores);
            }
        }
    }
}

/// Rounds a query to signed bytes; returns unit and sum. `out` holds a multiple of four.
pub(crate) fn round_query(x: &[f32], out: &mut [i8]) -> (f32, i32) {
    let (factor, unit) = steps(x);
    out.fill(0);
    let mut sum = 0;
    for (o, &x) in out.iter_mut().zip(x) {
        let code = nearest(x * factor);
        *o = code as i8;
        sum += code;
    }
    (unit, sum)
}

/// Rounds a key to bytes in lane `lane` of its block; returns the unit.
pub(crate) fn round_key(x: &[f32], block: &mut [u8], lane: usize) -> f32 {
    let (factor, unit) = steps(x);
    for (k, x) in x.chunks(4).enumerate() {
        let quad = &mut block[(k * BLOCK + lane) * 4..][..4];
        for (i, o) in quad.iter_mut().enumerate() {
            let code = x.get(i).map_or(0, |&x| nearest(x * factor));
            *o = (code + SHIFT) as u8;
        }
    }
    unit
}

/// Steps per unit of value and the unit itself; 0 for values too small for a factor.
fn steps(x: &[f32]) -> (f32, f32) {
    let largest = f32::from_bits(x.iter().fold(0, |m, x| m.max(x.to_bits() & 0x7fff_ffff)));
    let factor = 127.0 / largest;
    if factor.is_finite() && largest.is_finite() { (factor, largest / 127.0) } else { (0.0, 0.0) }
}

/// Rows `at` of `rows` (`stride` apart, `cols` of each), at most [`PANEL`], transposed into `[cols][PANEL]`; the lanes left
/// over repeat the last row.
pub(crate) struct Pack<'a> {
    pub(crate) rows: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) cols: usize,
    pub(crate) at: &'a [u32],
    pub(crate) out: &'a mut [f32],
}

impl Task for Pack<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Pack { rows, stride, cols, at, out } = self;
        let Some(&last) = at.last() else { return };
        let top = at.iter().fold(0, |m, &i| if i > m { i } else { m });
        assert!(at.len() <= PANEL && cols <= stride && (top as usize * stride + cols) <= rows.len());
        assert!(out.len() >= cols * PANEL);
        for group in 0..PANEL / 16 {
            let mut from = [rows.as_ptr(); 16];
            for j in 0..16 {
                let row = at.get(group * 16 + j).copied().unwrap_or(last);
                // SAFETY: the row is there.
                from[j] = unsafe { from[j].add(row as usize * stride) };
            }
            let whole = cols / 16 * 16;
            let mut square = [0.0; 256];
            for k in (0..whole).step_by(16) {
                // SAFETY: sixteen columns from k on are in every row.
                unsafe { s.transpose(&from, k, square.as_mut_ptr()) };
                for i in 0..16 {
                    let to = &mut out[(k + i) * PANEL + group * 16..][..16];
                    to.copy_from_slice(&square[i * 16..][..16]);
                }
            }
            for k in whole..cols {
                for j in 0..16 {
                    // SAFETY: k < cols.
                    out[k * PANEL + group * 16 + j] = unsafe { *from[j].add(k) };
                }
            }
        }
    }
}

/// `out[i * PANEL + lane] = <row i, lane>` for a panel `[cols][PANEL]`; `out` has [`tile::KEYS`] rows more than `rows`.
pub(crate) struct Product<'a> {
    pub(crate) panel: &'a [f32],
    pub(crate) rows: Rows<'a>,
    pub(crate) out: &'a mut [f32],
}

impl Task for Product<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        product(s, self.panel, &self.rows, 0, self.rows.rows(), PANEL / S::LANES, self.out);
    }
}

#[inline(always)]
fn product<S: Simd>(s: S, panel: &[f32], rows: &Rows<'_>, lo: usize, hi: usize, vectors: usize, out: &mut [f32]) {
    let spans = [Span { begin: 0, end: rows.rows() }; PANEL];
    tile::scores(s, panel, rows, lo, hi, &spans[..vectors], out, &mut [0.0; PANEL], |_, _| ());
}

/// Of every lane of a panel: the row with the largest product less `half[row]`, smaller rows first.
pub(crate) struct Nearest<'a> {
    /// `[rows][PANEL]`.
    pub(crate) products: &'a [f32],
    pub(crate) half: &'a [f32],
    pub(crate) out: &'a mut [f32; PANEL],
}

impl Task for Nearest<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert!(self.products.len() >= self.half.len() * PANEL);
        for c in 0..PANEL / S::LANES {
            let mut best = s.splat(f32::NEG_INFINITY);
            let mut which = s.splat(0.0);
            for (i, &half) in self.half.iter().enumerate() {
                // SAFETY: vector c of row i.
                let x = s.sub(unsafe { s.load(self.products.as_ptr().add(i * PANEL + c * S::LANES)) }, s.splat(half));
                which = s.select_lt(best, x, s.splat(i as f32), which);
                best = s.max(best, x);
            }
            // SAFETY: vector c of the panel.
            unsafe { s.store(self.out.as_mut_ptr().add(c * S::LANES), which) };
        }
    }
}

/// Takes keys that may score above the limit of a lane.
pub(crate) trait Catch {
    /// What products must exceed, by lane.
    fn limits(&self) -> &[f32; PANEL];
    /// Key `key` may be above the limit of every lane whose bit is set.
    fn take(&mut self, key: u32, bits: u64);
}

/// Offers `catch` the keys `lo..hi` whose product with a lane, plus `spread[lane]` times their norm, less `half` times their
/// squared norm, is above the lane's limit. `room` holds [`SIEVE`] rows of a panel and [`tile::KEYS`] more.
pub(crate) struct Sieve<'a, C: Catch> {
    pub(crate) panel: &'a [f32],
    pub(crate) keys: Rows<'a>,
    pub(crate) lo: usize,
    pub(crate) hi: usize,
    /// Lanes in use.
    pub(crate) lanes: usize,
    /// Squared norm by key.
    pub(crate) norm2: &'a [f32],
    pub(crate) half: f32,
    pub(crate) spread: &'a [f32; PANEL],
    pub(crate) room: &'a mut [f32],
    pub(crate) catch: &'a mut C,
}

/// Keys of one step of a sieve.
pub(crate) const SIEVE: usize = 64;

impl<C: Catch> Task for Sieve<'_, C> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut lo = self.lo;
        let vectors = self.lanes.div_ceil(S::LANES);
        assert!(self.lanes <= PANEL);
        assert!(self.norm2.len() >= self.hi);
        while lo < self.hi {
            let hi = (lo + SIEVE).min(self.hi);
            product(s, self.panel, &self.keys, lo, hi, vectors, self.room);
            for key in lo..hi {
                let half = s.splat(self.norm2[key] * self.half);
                let reach = s.sqrt(s.splat(self.norm2[key]));
                let mut bits = 0u64;
                for c in 0..vectors {
                    // SAFETY: vector c of a row of the room, of the limits and of the spreads.
                    unsafe {
                        let x = s.load(self.room.as_ptr().add((key - lo) * PANEL + c * S::LANES));
                        let x = s.fma(s.load(self.spread.as_ptr().add(c * S::LANES)), reach, s.sub(x, half));
                        let limit = s.load(self.catch.limits().as_ptr().add(c * S::LANES));
                        bits |= u64::from(s.lt_bits(limit, x)) << (c * S::LANES);
                    }
                }
                if bits != 0 {
                    self.catch.take(key as u32, bits);
                }
            }
            lo = hi;
        }
    }
}

/// Products (or squared distances) of a query with rows `at`, the rows asked for ahead of their turn: they lie anywhere.
pub(crate) struct Rerank<'a> {
    pub(crate) rows: &'a [f32],
    pub(crate) dim: usize,
    pub(crate) at: &'a [u32],
    pub(crate) query: &'a [f32],
    pub(crate) l2: bool,
    pub(crate) out: &'a mut [f32],
}

impl Task for Rerank<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        const STEP: usize = 4;
        let ask = |at: &[u32]| {
            for &i in at {
                let row = self.rows.as_ptr().wrapping_add(i as usize * self.dim).cast::<u8>();
                (0..self.dim * 4).step_by(64).for_each(|b| s.prefetch(row.wrapping_add(b)));
            }
        };
        ask(&self.at[..self.at.len().min(STEP)]);
        for (i, out) in self.out.chunks_mut(STEP).enumerate() {
            let next = (i + 1) * STEP;
            ask(&self.at[next.min(self.at.len())..(next + STEP).min(self.at.len())]);
            let at = &self.at[i * STEP..][..out.len()];
            if self.l2 {
                kernels::sq_dists_at(s, self.rows, self.dim, at, self.query, out);
            } else {
                kernels::dots_at(s, self.rows, self.dim, at, self.query, out);
            }
        }
    }
}
