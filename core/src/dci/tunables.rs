//! Every tunable of the index, with its unit and what speaks for it. What all of them come to is measured in
//! `bench/notes/2026-11-20-index.md`, those of fitted directions in `bench/notes/2026-11-20-fitted-directions.md`; where nothing else
//! is said, no run of a number's own is on record.

use crate::simd::tile::PANEL;

// Ways of answering.

/// Queries. Fewer are answered one by one where every key is scored: a panel of queries would be mostly empty.
pub(super) const BATCH_FROM: usize = 4;
/// Queries. From so many on, some are answered exactly first, to see what the recall takes: a tenth of the work at most.
pub(super) const MEASURE_FROM: usize = 512;
/// Queries of a batch that are answered exactly for that, at most, and the neighbours of each.
pub(super) const MEASURED_QUERIES: usize = 48;
pub(super) const MEASURED_NEIGHBOURS: usize = 64;
/// Candidates that are scored before looking whether to go on.
pub(super) const CANDIDATES_A_TURN: usize = 8;

// Sizes of chunks: what a batch works on at a time.

/// Panels of queries of a chunk, at most.
pub(super) const CHUNK_PANELS: usize = 21;
/// Elements of the queries of a chunk, about: 2 MiB.
pub(super) const CHUNK_ELEMENTS: usize = 1 << 19;
/// Entries of a list that are scored at a time.
pub(super) const ENTRIES_A_STEP: usize = 64;
/// Keys that every panel of a chunk is held against before the next ones.
pub(super) const KEYS_A_BLOCK: usize = 1024;

// Codes.

/// Keys. Fewer are searched exactly: there is nothing to gain.
pub(super) const CELLS_FROM: usize = 512;
/// Coordinates of a code, at most.
pub(super) const RANK: usize = 128;
/// Coordinates that keys are gathered by.
pub(super) const GATHERED_BY: usize = 32;
/// Keys that directions are fitted to, at most.
pub(super) const SAMPLED_KEYS: usize = 2048;
/// Keys of a cell: this times the root of all keys, and no fewer than that. Larger cells are read for too few of their keys,
/// smaller ones are too many to compare with.
pub(super) const CELL_KEYS: (f64, f64) = (0.8, 128.0);
/// New keys before all are gathered anew: a share (one in so many) of those gathered, and so many more.
pub(super) const TAIL_KEYS: (usize, usize) = (4, 256);
/// Rounds of moving centers to the means of what is nearest to them.
pub(super) const GATHER_ROUNDS: usize = 4;
/// Rounds of two means that the direction of a cut comes from, where cells are put in order.
pub(super) const ORDER_ROUNDS: usize = 2;

// Directions.

/// Rounds of subspace iteration. The span need not be exact: what it leaves out is counted through norms.
pub(super) const BASIS_ROUNDS: usize = 2;
/// Share of the sample's spread that codes should cover, if so many directions are to be had.
pub(super) const BASIS_COVER: f32 = 0.975;
/// Directions are used in whole steps of this.
pub(super) const BASIS_STEP: usize = 32;

// Directions fitted to queries.

/// Sample queries, at least.
pub(super) const LEAST_ASKED: usize = 128;
/// Queries that directions are fitted to, at most.
pub(super) const FITTED_QUERIES: usize = 1024;
/// Queries held back to measure on.
pub(super) const HELD_QUERIES: usize = PANEL;
/// Keys that both ways are tried on, at most.
pub(super) const TRIAL_KEYS: usize = 8192;
/// A decision holds until there are so many times the keys.
pub(super) const STALE_TIMES: usize = 4;
/// Share of the products' spread that codes should cover.
pub(super) const FITTED_COVER: f32 = 0.995;
/// Rounds of subspace iteration.
pub(super) const FITTED_ROUNDS: usize = 8;
/// Share of the largest spread below which there is none.
pub(super) const NO_SPREAD: f32 = 1e-8;

// What a recall takes, measured by a fold.

/// Own keys that a fold asks for, and the neighbours of each.
pub(super) const OWN_QUESTIONS: usize = 16;
pub(super) const OWN_NEIGHBOURS: usize = 32;
/// Neighbours wanted, and recalls, that a fold works out efforts for.
pub(super) const WANTED: [usize; 6] = [1, 2, 4, 8, 16, 32];
pub(super) const RECALLS: [f32; 8] = [0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.998];
/// Recalls that ways of choosing directions are compared at.
pub(super) const USUAL_RECALLS: [f32; 3] = [0.9, 0.95, 0.99];
/// A sample errs: this share of what a recall leaves out is found, too.
pub(super) const RECALL_MARGIN: f32 = 0.4;

// What things cost, in multiply-adds of f32 that lie in order: estimates, of which only ratios matter.

/// Of a key that is scored where it lies in order, beside its elements.
pub(super) const COST_EXACT_KEY: f32 = 4.0;
/// Of a coordinate of a code, with byte products and without, and of a coded key beside those.
pub(super) const COST_COORDINATE: (f32, f32) = (0.3, 0.8);
pub(super) const COST_CODED_KEY: f32 = 5.0;
/// Of comparing with a cell's mean, beside its coordinates, and of looking into a cell.
pub(super) const COST_MEAN: f32 = 12.0;
pub(super) const COST_CELL: f32 = 40.0;
/// Of a candidate: times its elements, since keys lie anywhere in memory, and beside those.
pub(super) const COST_CANDIDATE: (f32, f32) = (2.0, 300.0);
/// Of a place in the list of candidates, which come and go on the way to the best.
pub(super) const COST_PLACE: f32 = 20.0;
/// Share of the cost of scoring every key from which on that is done.
pub(super) const PAYS_BELOW: f32 = 0.95;
