//! Directions fitted to sample queries, on captured attention heads: the same queries asked with and without.

use super::data::Set;
use super::{recall, seconds};
use crate::heads::Layer;
use iceformer_core::Result;
use iceformer_core::dci::{Directions, Engine, Index, IndexOptions, Metric, Neighbor, QueryOptions, Scratch};
use iceformer_core::mem::{Memory, Rows};
use std::fmt::Write as _;

/// Keys of a head, the queries that are asked, and others as a sample.
pub struct Head {
    set: Set,
    sample: Vec<f32>,
}

/// Every head of some layers: one query in four is of the sample, as is the first of every four.
///
/// # Errors
/// As [`Index::query`].
pub fn heads(
    layers: &[Layer],
    metric: Metric,
    near: usize,
) -> std::result::Result<Vec<Head>, Box<dyn std::error::Error>> {
    let mut out = Vec::new();
    for layer in layers {
        for head in 0..layer.heads_q {
            let (mut sample, mut queries) = (Vec::new(), Vec::new());
            for (i, row) in layer.queries(head).chunks_exact(layer.dim).enumerate() {
                if i % 4 == 0 { &mut sample } else { &mut queries }.extend_from_slice(row);
            }
            let name = format!("layer{}.{head}", layer.number);
            let base = layer.keys(head).to_vec();
            let set = Set { name, metric, dim: layer.dim, base, queries, truth: Vec::new(), near };
            out.push(Head { set: set.with_truth()?, sample });
        }
    }
    Ok(out)
}

/// How one head was asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Seconds from keys to an index, the fit not counted.
    pub build: f64,
    /// Seconds of the fit.
    pub fit: f64,
    /// Seconds for all queries.
    pub query: f64,
    /// Share of the true neighbours found.
    pub recall: f64,
}

impl Head {
    /// One run: `batch` queries a call.
    ///
    /// # Errors
    /// As [`Index::query`].
    pub fn run(&self, fitted: bool, target: f32, batch: usize) -> Result<Asked> {
        let set = &self.set;
        let directions = if fitted { Directions::Fitted } else { Directions::Random };
        let capacity = set.base.len() / set.dim;
        let options = IndexOptions {
            metric: set.metric,
            engine: Engine::Cells,
            capacity,
            directions,
            ..IndexOptions::new(set.dim)
        };
        let start = seconds();
        let mut index = Index::new(&options)?;
        index.insert(Rows::new(&set.base, set.dim)?, None)?;
        let build = seconds() - start;
        if fitted {
            index.fit(Some(Rows::new(&self.sample, set.dim)?))?;
        }
        let fit = seconds() - start - build;
        let mut scratch = Scratch::new_in(&index, &Memory::system(0)?)?;
        let k = set.near;
        let o = QueryOptions { target_recall: target, ..QueryOptions::new(k) };
        let mut found = vec![Neighbor::default(); set.queries.len() / set.dim * k];
        let start = seconds();
        for (rows, out) in set.queries.chunks(batch * set.dim).zip(found.chunks_mut(batch * k)) {
            index.query(&mut scratch, Rows::new(rows, set.dim)?, &o, out, None)?;
        }
        let query = seconds() - start;
        Ok(Asked { build, fit, query, recall: recall(set, k, &found) })
    }
}

/// Medians of `rounds` turns at every target, head by head, with and without; lines of a table.
///
/// # Errors
/// As [`Index::query`].
pub fn compare(name: &str, heads: &[Head], targets: &[f32], batch: usize, rounds: usize) -> Result<String> {
    let mut out = String::new();
    for &target in targets {
        let (mut sums, mut logs, mut span) = ([[0.0; 4]; 2], 0.0, (f64::MAX, 0.0f64));
        let mut least = [1.0f64; 2];
        for head in heads {
            let mut runs = [Vec::new(), Vec::new()];
            for _ in 0..rounds.max(1) {
                for (fitted, runs) in [false, true].into_iter().zip(&mut runs) {
                    runs.push(head.run(fitted, target, batch)?);
                }
            }
            let [plain, fitted] = runs.map(|mut runs| {
                let mut median = runs[0];
                for (to, of) in [
                    (&mut median.build, (|a| a.build) as fn(&Asked) -> f64),
                    (&mut median.fit, |a| a.fit),
                    (&mut median.query, |a| a.query),
                ] {
                    runs.sort_by(|a, b| of(a).total_cmp(&of(b)));
                    *to = of(&runs[runs.len() / 2]);
                }
                median
            });
            for ((sum, least), a) in sums.iter_mut().zip(&mut least).zip([plain, fitted]) {
                for (sum, x) in sum.iter_mut().zip([a.build, a.fit, a.query, a.recall]) {
                    *sum += x / heads.len() as f64;
                }
                *least = least.min(a.recall);
            }
            let ratio = fitted.query / plain.query;
            logs += ratio.ln() / heads.len() as f64;
            span = (span.0.min(ratio), span.1.max(ratio));
        }
        let [plain, fitted] = sums;
        let _ = writeln!(
            out,
            "| {name} | {target} | {:.3} ({:.2}) | {:.3} ({:.2}) | {:.1} + {:.1} | {:.1} + {:.1} + {:.1} | {:.2} ({:.2} to {:.2}) |",
            plain[3],
            least[0],
            fitted[3],
            least[1],
            plain[0] * 1e3,
            plain[2] * 1e3,
            fitted[0] * 1e3,
            fitted[1] * 1e3,
            fitted[2] * 1e3,
            logs.exp(),
            span.0,
            span.1
        );
    }
    Ok(out)
}

/// What the columns of [`compare`] are.
pub const COLUMNS: &str = "| heads | recall aimed at | reached by keys' directions (worst head) | by fitted ones | ms: build + queries | build + fit + queries | queries, fitted to keys' (least to most) |\n|---|---|---|---|---|---|---|";
