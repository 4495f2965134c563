//! Every tunable of accelerated attention, with its unit and what speaks for it.

/// Keys of a cell: cells of 8 double the entries, cells of 32 are opened for one key too often.
pub(crate) use crate::simd::clustered::CELL;

/// Consecutive keys that are split into cells together.
pub const SEGMENT: usize = 256;

/// Cells of a segment.
pub(crate) const CELLS: usize = SEGMENT / CELL;

/// Rounds of two means that a cut's direction comes from.
pub(super) const ROUNDS: usize = 2;

/// Rows of a block: they share sampled rows, known keys and entries.
pub(super) const BLOCK_ROWS: usize = 256;

/// Queries of a block, all heads that share keys together.
pub(super) const BLOCK_QUERIES: usize = 2048;

/// Rows of a block that are attended exactly to find the keys that are heavy for all.
pub(super) const KNOWING: usize = 3;

/// Rows of a block that are attended exactly and not asked for keys: they measure the error.
pub(super) const CHECKING: usize = 2;

/// A key that weighs so much in a sampled row is known.
pub(super) const CUT: f32 = 0.0015;

/// Notes of heavy keys of a block's sampled rows before those of less weight are left out.
pub(super) const NOTED: usize = 8192;

/// Known keys of a block at most.
pub(super) const KNOWN: usize = 1024;

/// The first keys of a sequence are known: attention sinks.
pub(super) const FIRST: usize = 16;

/// Deviations of a logit up to which a cell's heaviest key is looked for.
pub(super) const SIGMA: f32 = 3.0;

/// Weights of a key that cells are opened for, from loose to tight.
pub(super) const NEEDLES: [f32; 6] = [0.03, 0.015, 0.0075, 0.0037, 0.0018, 0.0009];

/// Share of the tolerance that the error measured on sampled rows is to keep: it is a root of a mean square, and of few rows.
pub(super) const KEEP: f32 = 0.8;

/// Share of that error below which thresholds become looser: a step is a factor of about 1.4 in the error.
pub(super) const RELAX: f32 = 0.6;

/// Weight of a block's measured errors against those of the block after.
pub(super) const MEMORY: f32 = 0.75;

/// Share of the exact cost from which on a block is attended exactly.
pub(super) const PAYS: f32 = 0.85;

/// Segments that rows must see whole for their cells to be used.
pub(super) const LEAST: usize = 4;

/// Blocks of a head that go one after the other, each by what the ones before have shown.
pub(super) const RUN: usize = 8;

/// Tokens for which a key stays known in a session after it was last heavy.
pub(super) const LIFE: usize = 512;

/// Tokens after which a session's few rows are attended exactly, too, to measure their error.
pub(super) const CHECK_EVERY: usize = 128;

/// Heavy keys that a session's few rows find between two appends: of those that share a place the heaviest is kept.
pub(super) const PLACES: usize = 512;

/// Keys of opened cells that are gathered at once for few rows.
pub(super) const GATHERED: usize = 512;

/// Tokens for which a session's few rows are attended exactly after no threshold kept the tolerance.
pub(super) const REST: usize = 256;

/// Times the median length of a segment's keys or values from which on a key stays out of the cells: its cell's mean would speak for
/// nobody. It is known.
pub(super) const OUTLYING: f32 = 8.0;

/// Keys of a segment that may stay out of the cells; with more of them the segment has none.
pub(super) const APART: usize = 16;

/// Length of keys and values beyond which squares of differences leave the range of f32.
pub(super) const LONGEST: f32 = 1e15;
