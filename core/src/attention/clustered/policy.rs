//! Every tunable of accelerated attention, with its unit and what speaks for it.

/// Keys of a cell: cells of 8 double the entries, cells of 32 are opened for one key too often.
pub(crate) use crate::simd::clustered::CELL;

/// Consecutive keys that are split into cells together.
pub const SEGMENT: usize = 256;

/// Cells of a segment.
pub(crate) const SEGMENT_CELLS: usize = SEGMENT / CELL;

/// Rounds of two means that a cut's direction comes from.
pub(super) const ROUNDS: usize = 2;

/// Rows of a block: they share sampled rows, known keys and entries.
pub(super) const BLOCK_ROWS: usize = 256;

/// Keys from which on blocks have twice as many rows and queries: sampled rows weigh more there, and rows near the block less. SmolLM2 at
/// 32,768 tokens is 8 % faster by it; at 8,192 tokens single rows would err by more.
pub(super) const LONG: usize = 12_288;

/// Queries of a block, all heads that share keys together.
pub(super) const BLOCK_QUERIES: usize = 2048;

/// Queries of a block, several heads', that go through cells together: the keys of an opened cell are read once for all of them. Queries and
/// sums of so many rows of 64 elements take 768 KiB. On SmolLM2 that and asking for the keys ahead halve the time of opened cells.
pub(super) const TOGETHER: usize = 1536;

/// Rows of a block that are attended exactly to find the keys that are heavy for all.
pub(super) const KNOWING: usize = 3;

/// Rows of a block that are attended exactly and not asked for keys: they measure the error. At least, and at most where vector lanes
/// are free.
pub(super) const LEAST_CHECKING: usize = 2;
pub(super) const CHECKING: usize = 5;

/// Queries that sampled rows of all heads are filled up to a multiple of.
pub(super) const LANES: usize = 16;

/// Rows of a block below which no more than the least are sampled.
pub(super) const FEW_ROWS: usize = 128;

/// A key that weighs so much in a sampled row is known.
pub(super) const CUT: f32 = 0.0015;

/// The same for a session's few rows, which all read what is known. At 0.0015 steps are 2.6 in place of 3.0 times as fast as exact ones on
/// SmolLM2 at 8,192 tokens and 2.0 in place of 2.1 on ice-tiny, with errors of 0.7 to 2.1 in place of 1.1 to 2.4 %.
pub(super) const STEP_CUT: f32 = 0.006;

/// Notes of heavy keys of a block's sampled rows before those of less weight are left out.
pub(super) const NOTED: usize = 8192;

/// Known keys of a block at most.
pub(super) const KNOWN: usize = 1024;

/// Deviations of a logit up to which a cell's heaviest key is looked for.
pub(super) const SIGMA: f32 = 3.0;

/// The loosest of the thresholds: weight of a key, in a row whose output is as long as usual, that cells are opened for. The next are each
/// smaller by a square root of 2, the tightest is 0.001.
pub(super) const LOOSEST: f32 = 0.1;

/// How many there are.
pub(super) const THRESHOLDS: usize = 14;

/// The one that a run of blocks begins with, 0.018. From 0.006 on 10 in place of 12 of 58 made-up heads miss their aim, for 9 % more pairs
/// of SmolLM2.
pub(super) const START: usize = 5;

/// Weight of a key that cells are opened for, whatever it adds to the output: heavier ones are not to be missed. With thresholds up to 0.03
/// ice-tiny missed 46 of 1,258 heavy keys in place of 28, at 12.3 in place of 13.4 % of its pairs; SmolLM2 opens as many cells either way.
pub(super) const HEAVY: f32 = 0.012;

/// Weight of a key below which no cell is opened for it: sums of f32 would not show it.
pub(super) const LIGHTEST: f32 = 1e-6;

/// Share of the tolerance that the root mean square of the errors measured on sampled rows is to keep: they are few. At 0.6 SmolLM2 and the
/// encoder score an eighth and a third more pairs, at 1 the encoder errs by 3.8 in place of 2.9 %.
pub(super) const KEEP: f32 = 0.8;

/// Times the tolerance that no sampled row may err by. Without, p99 of nine layers of SmolLM2 is 29 in place of 7 %, at the same pairs; ice-tiny
/// and the encoder stay as they are. At 2 one more of 58 made-up heads misses its aim, for 1 % fewer pairs; at 1 SmolLM2 and the encoder
/// score an eighth and a third more.
pub(super) const WORST: f32 = 1.5;

/// Share of what is to be kept below which thresholds become looser: a step is a factor of about 1.2 in the error.
pub(super) const RELAX: f32 = 0.8;

/// Weight of a block's measured errors against those of the block after.
pub(super) const MEMORY: f32 = 0.75;

/// Cost of a pair of a row and an entry, and of one and a key of an opened cell, in pairs of exact attention. Entries take 7 % of exact attention
/// on SmolLM2 at any length.
pub(super) const ENTRY_COST: f32 = 1.4;
pub(super) const OPENED_COST: f32 = 1.6;

/// What reading a bias and summing it costs, in elements of a key or value that are multiplied and added, and how much more one costs that is
/// gathered. So SmolLM2 (64 elements) is predicted to take 0.4, and layer 3 of the encoder (32 elements) 0.99 of exact attention; they take
/// 0.43 and 1.0.
pub(super) const BIAS_COST: f32 = 32.0;
pub(super) const GATHERED_BIAS: f32 = 3.0;

/// Difference of two biases, in logits, from which on the smaller hides its key: a segment where rows have both is scored key by key. Masks without
/// -inf hide by -10,000 or less. The steepest slopes of ALiBi (0.71) come to 543 over a block and a segment.
pub(super) const HIDING: f32 = 1000.0;

/// Share of the exact cost from which on a block is attended exactly.
pub(super) const PAYS: f32 = 0.85;

/// Blocks of a run that are attended exactly without a look after one that cells did not serve: looks cost up to a tenth of exact attention.
pub(super) const SKIPPED: usize = 3;

/// Segments that rows must see whole for their cells to be used.
pub(super) const LEAST: usize = 4;

/// Blocks of a head that go one after the other, each by what the ones before have shown.
pub(super) const RUN: usize = 8;

/// Tokens for which a key stays known in a session after it was last heavy.
pub(super) const LIFE: usize = 512;

/// Tokens after which a session's few rows are attended exactly, too, to measure their error.
pub(super) const CHECK_EVERY: usize = 128;

/// Tokens after a prompt at which a session's few rows are attended exactly, too: they know fewer keys than the rows of the prompt. On SmolLM2 a
/// layer at 32,768 tokens errs by 1.7 in place of 7.6 %, one at 8,192 by 1.1 in place of 4.7 %.
pub(super) const CHECK_SOON: [usize; 3] = [0, 4, 24];

/// Heavy keys that a session's few rows find between two appends: of those that share a place the heaviest is kept.
pub(super) const PLACES: usize = 512;

/// Keys of opened cells that are gathered at once for few rows: a block of exact attention.
pub(super) const GATHERED: usize = 128;

/// Times in a row that no threshold keeps the tolerance of a session's few rows before they are attended exactly for a while. At the first
/// failure two layers of SmolLM2 at 32,768 tokens would decode 1.2 times as fast as exact attention.
pub(super) const FAILURES: usize = 3;

/// Tokens for which they are attended exactly then.
pub(super) const REST: usize = 256;

/// Times the median length of a segment's keys or values from which on a key stays out of the cells: its cell's mean would speak for
/// nobody. It is known.
pub(super) const OUTLYING: f32 = 8.0;

/// Share of the squared distances of a cell's keys from their mean from which on a key stays out of the cell. One key in 5,000 of ice-tiny,
/// one in 300 of the encoder and none of SmolLM2 lie so far out; rows that look for such a key alone err by all without.
pub(super) const ALONE: f32 = 0.25;

/// Keys of a segment that may stay out of the cells; with more of them the segment has none.
pub(super) const APART: usize = 16;

/// Length of keys and values beyond which squares of differences leave the range of f32.
pub(super) const LONGEST: f32 = 1e15;
