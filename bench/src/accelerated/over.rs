//! Attention over an index beside the call over raw tensors: every row sees every key.

use super::truth::Truth;
use super::{Way, attend, median, options, system};
use crate::heads::Layer;
use iceformer_core::Result;
use iceformer_core::attention::accelerated::Watch;
use iceformer_core::attention::{AttentionRoom, AttentionStats, Mask, Mode, index_attention, index_attention_by_rule};
use iceformer_core::dci::{Engine, Index, IndexOptions, Scratch};
use iceformer_core::mem::{Rows, RowsMut};
use std::time::Instant;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Over {
    /// Raw tensors.
    Call(Way),
    /// Raw tensors, exact.
    CallExact,
    /// An index per KV head.
    Index(Way),
    /// An index per KV head, exact.
    IndexExact,
}

/// What a way gave on one or more layers.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Seconds of the calls.
    pub seconds: f64,
    /// Of these, before the first row: bringing keys together and building trees.
    pub build: f64,
    /// Seconds that constructing the indices took before.
    pub construct: f64,
    /// Relative L2 errors of output rows, all heads of a layer side by side.
    pub errors: Vec<f64>,
    /// Keys with a true weight of 1 % and more, and those of them not scored exactly; none counted in `Way::Auto`.
    pub heavy: usize,
    /// See `heavy`.
    pub missed: usize,
    /// Pairs computed exactly.
    pub pairs: u64,
    /// All pairs.
    pub pairs_dense: u64,
    /// Query rows, all heads counted, and KV heads.
    pub rows: usize,
    /// See `rows`.
    pub heads_kv: usize,
}

impl Outcome {
    /// Adds another layer's.
    pub fn add(&mut self, other: &Outcome) {
        self.seconds += other.seconds;
        self.build += other.build;
        self.construct += other.construct;
        self.errors.extend_from_slice(&other.errors);
        self.heavy += other.heavy;
        self.missed += other.missed;
        self.pairs += other.pairs;
        self.pairs_dense += other.pairs_dense;
        self.rows += other.rows;
        self.heads_kv += other.heads_kv;
    }

    /// Rows of a KV head from which on this takes less time than `exact` seconds for all rows.
    pub fn break_even(&self, exact: f64) -> Option<f64> {
        let gain = (exact - (self.seconds - self.build)) / self.rows as f64;
        (self.build > 0.0 && gain > 0.0).then(|| self.build / self.heads_kv as f64 / gain)
    }
}

/// Indices over the keys of a layer, one for each KV head, with what attention needs of each.
struct Indices {
    of: Vec<(Index, Scratch, AttentionRoom)>,
    seconds: f64,
}

impl Indices {
    fn new(layer: &Layer) -> Result<Indices> {
        let (n, d) = (layer.rows, layer.dim);
        let (mut of, mut seconds) = (Vec::new(), 0.0);
        for keys in layer.k.chunks_exact(n * d) {
            let start = Instant::now();
            let options = IndexOptions { capacity: n, engine: Engine::Cells, ..IndexOptions::new(d) };
            let mut index = Index::new(&options)?;
            index.insert(Rows::new(keys, d)?, None)?;
            seconds += start.elapsed().as_secs_f64();
            let (scratch, room) = (Scratch::new_in(&index, &system())?, AttentionRoom::new_in(&index, d, &system())?);
            of.push((index, scratch, room));
        }
        Ok(Indices { of, seconds })
    }

    /// Output `[heads_q, rows, dim]` of a layer; the heads of a group are rows of one call.
    fn attend(
        &mut self,
        layer: &Layer,
        way: Option<Way>,
        mut watch: Option<Watch<'_>>,
    ) -> Result<(Vec<f32>, AttentionStats)> {
        let (n, d) = (layer.rows, layer.dim);
        let group = layer.heads_q / layer.heads_kv;
        let mut out = vec![0.0; layer.q.len()];
        let mut all: Option<AttentionStats> = None;
        let heads =
            self.of.iter_mut().zip(layer.q.chunks_exact(group * n * d)).zip(out.chunks_exact_mut(group * n * d));
        for (kv, (((index, scratch, room), q), out)) in heads.enumerate() {
            let (q, v) = (Rows::new(q, d)?, Rows::new(&layer.v[kv * n * d..][..n * d], d)?);
            let out = &mut RowsMut::new(out, d)?;
            let stats = match way {
                Some(Way::Rule(rule)) => {
                    let o = options(Mode::Accelerated, 0.05);
                    let mut each = |_: usize, row: usize, ids: &[u32]| {
                        if let Some(watch) = &mut watch {
                            watch(kv * group + row / n, row % n, ids);
                        }
                    };
                    index_attention_by_rule(index, scratch, room, q, v, Mask::None, &o, out, &rule, Some(&mut each))?
                }
                Some(Way::Auto(tolerance)) => {
                    let o = options(Mode::Auto, tolerance);
                    index_attention(index, scratch, Some(room), q, v, Mask::None, &o, out, None)?
                }
                None => {
                    let o = options(Mode::Exact, 0.0);
                    index_attention(index, scratch, Some(room), q, v, Mask::None, &o, out, None)?
                }
            };
            match &mut all {
                Some(all) => all.add(&stats),
                None => all = Some(stats),
            }
        }
        Ok((out, all.expect("a layer has heads")))
    }
}

/// One layer, without its causal mask, every way in turn.
///
/// # Errors
/// Of the index.
pub fn study(layer: &mut Layer, ways: &[Over], samples: usize, rounds: usize) -> Result<Vec<Outcome>> {
    layer.causal = false;
    let layer = &*layer;
    let mut indices = Indices::new(layer)?;
    let mut outcomes = vec![Outcome::default(); ways.len()];
    let mut times = vec![(Vec::new(), Vec::new()); ways.len()];
    let mut outputs = vec![Vec::new(); ways.len()];
    for _ in 0..rounds.max(1) {
        for (i, &way) in ways.iter().enumerate() {
            let (out, stats, seconds) = match way {
                Over::Call(way) => attend(layer, way),
                Over::CallExact => super::attend_exact(layer),
                Over::Index(_) | Over::IndexExact => {
                    let start = Instant::now();
                    let way = if let Over::Index(way) = way { Some(way) } else { None };
                    let (out, stats) = indices.attend(layer, way, None)?;
                    (out, stats, start.elapsed().as_secs_f64())
                }
            };
            times[i].0.push(seconds);
            times[i].1.push(stats.build_seconds);
            outputs[i] = out;
            (outcomes[i].pairs, outcomes[i].pairs_dense) = (stats.pairs, stats.pairs_dense);
        }
    }
    let truth = Truth::new(layer, samples);
    for (i, o) in outcomes.iter_mut().enumerate() {
        (o.seconds, o.build) = (median(&mut times[i].0), median(&mut times[i].1));
        o.errors = truth.errors(layer, &outputs[i]);
        (o.rows, o.heads_kv) = (layer.heads_q * layer.rows, layer.heads_kv);
        (o.heavy, o.missed) = match ways[i] {
            Over::Call(Way::Rule(rule)) => truth.missed(layer, &rule),
            Over::Index(way @ Way::Rule(_)) => {
                let mut result = Ok(());
                let counts = truth.missed_by(layer, |watch| {
                    result = indices.attend(layer, Some(way), Some(watch)).map(drop);
                });
                result?;
                counts
            }
            _ => (0, 0),
        };
        if matches!(ways[i], Over::Index(_) | Over::IndexExact) {
            o.construct = indices.seconds;
        }
    }
    Ok(outcomes)
}
