//! Reformer (Kitaev, Kaiser and Levskaya, 2020): locality-sensitive hashing by random rotations; a row attends to keys of
//! its bucket.
//!
//! Shared queries and keys, as published: tokens are sorted by bucket and cut into chunks; a row sees the keys of its
//! bucket in its own chunk and the one before, itself only where there is no other. Separate queries and keys, the
//! paper's starting point: every key of the query's bucket; a row whose bucket has no key gets zeros. Over several
//! rounds of hashing a row sees the union, each key counted once.

use super::rows::{BLOCK, Partial};
use super::{Head, Method, normals};
use crate::matrix::{product, times};
use iceformer_core::simd::Isa;

/// LSH attention.
pub struct Reformer {
    /// Rounds of hashing.
    pub hashes: usize,
    /// Tokens of a chunk: twice the mean size of a bucket.
    pub bucket_size: usize,
    /// Keys are the queries scaled to unit norm.
    pub shared_qk: bool,
    /// Of the rotations.
    pub seed: u64,
}

/// Where one round puts the tokens.
struct Round {
    query: Vec<u32>,
    key: Vec<u32>,
    /// Of a token in the sorted order; only with shared queries and keys.
    chunk: Vec<u32>,
}

impl Round {
    fn reaches(&self, i: usize, j: usize, shared: bool) -> bool {
        let near = || self.chunk[j] <= self.chunk[i] && self.chunk[j] + 1 >= self.chunk[i];
        self.query[i] == self.key[j] && (!shared || near())
    }
}

impl Reformer {
    /// Buckets for so many tokens: an even number, two to a chunk.
    pub fn buckets(&self, rows: usize) -> usize {
        2 * rows.div_ceil(self.bucket_size).max(1)
    }

    /// Bucket of every row: the largest of (x R, -x R), the first of equals.
    pub fn hash(&self, x: &[f32], dim: usize, buckets: usize, round: usize) -> Vec<u32> {
        let half = buckets / 2;
        let rotation = normals(half * dim, self.seed.wrapping_add(round as u64));
        let mut turned = vec![0.0; x.len() / dim * half];
        product(x, &rotation, dim, &mut turned, false);
        let best = |row: &[f32]| {
            let mut best = (f32::NEG_INFINITY, 0);
            for (b, x) in row.iter().copied().chain(row.iter().map(|x| -x)).enumerate() {
                if x > best.0 {
                    best = (x, b as u32);
                }
            }
            best.1
        };
        turned.chunks(half).map(best).collect()
    }

    fn round(&self, head: &Head<'_>, round: usize) -> Round {
        let buckets = self.buckets(head.rows());
        let query = self.hash(head.q, head.dim, buckets, round);
        if !self.shared_qk {
            let key = self.hash(head.k, head.dim, buckets, round);
            return Round { query, key, chunk: Vec::new() };
        }
        let mut chunk = vec![0; query.len()];
        for (place, token) in sorted(&query).into_iter().enumerate() {
            chunk[token as usize] = (place / self.bucket_size) as u32;
        }
        Round { key: query.clone(), query, chunk }
    }

    /// Queries that are handled together in a round, and every key they may reach.
    fn groups(&self, round: &Round) -> Vec<(Vec<u32>, Vec<u32>)> {
        if self.shared_qk {
            let order = sorted(&round.query);
            let chunks: Vec<&[u32]> = order.chunks(self.bucket_size).collect();
            let back = |c: usize| if c == 0 { Vec::new() } else { chunks[c - 1].to_vec() };
            return chunks.iter().enumerate().map(|(c, own)| (own.to_vec(), [&back(c), *own].concat())).collect();
        }
        let buckets = round.query.iter().chain(&round.key).max().map_or(0, |b| b + 1);
        let mut groups = vec![(Vec::new(), Vec::new()); buckets as usize];
        round.query.iter().enumerate().for_each(|(i, &b)| groups[b as usize].0.push(i as u32));
        round.key.iter().enumerate().for_each(|(j, &b)| groups[b as usize].1.push(j as u32));
        groups
    }
}

/// Tokens by bucket, then by position.
fn sorted(bucket: &[u32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..bucket.len() as u32).collect();
    order.sort_by_key(|&t| bucket[t as usize]);
    order
}

fn gather(x: &[f32], dim: usize, at: &[u32]) -> Vec<f32> {
    at.iter().flat_map(|&t| x[t as usize * dim..][..dim].iter().copied()).collect()
}

impl Method for Reformer {
    fn name(&self) -> &'static str {
        if self.shared_qk { "Reformer" } else { "Reformer's LSH, separate Q and K" }
    }

    fn settings(&self, _: usize) -> String {
        format!("{} hash, bucket {}", self.hashes, self.bucket_size)
    }

    fn shared_qk(&self) -> bool {
        self.shared_qk
    }

    fn cannot(&self, _: bool) -> Option<&'static str> {
        None
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        let (isa, n, d, shared) = (Isa::best(), head.rows(), head.dim, self.shared_qk);
        let unit: Vec<f32>;
        let keys = if shared {
            let scale = |q: &[f32]| 1.0 / isa.norm2(q).sqrt().max(f32::MIN_POSITIVE);
            unit = head.q.chunks(d).flat_map(|q| q.iter().map(move |x| x * scale(q))).collect();
            &unit[..]
        } else {
            head.k
        };
        let rounds: Vec<Round> = (0..self.hashes).map(|r| self.round(head, r)).collect();
        let (mut tops, mut sums) = (vec![f32::NEG_INFINITY; n], vec![0.0; n]);
        out.fill(0.0);
        let mut scores = Vec::new();
        let mut add = vec![0.0; BLOCK * d];
        for round in &rounds {
            for (rows, reach) in self.groups(round) {
                if reach.is_empty() {
                    continue;
                }
                let (k, v) = (gather(keys, d, &reach), gather(head.v, d, &reach));
                for rows in rows.chunks(BLOCK) {
                    scores.resize(rows.len() * reach.len(), 0.0);
                    product(&gather(head.q, d, rows), &k, d, &mut scores, false);
                    isa.scale(head.scale(), &mut scores);
                    for (&i, logits) in rows.iter().zip(scores.chunks_mut(reach.len())) {
                        let i = i as usize;
                        for (&j, logit) in reach.iter().zip(&mut *logits) {
                            let j = j as usize;
                            let open = round.reaches(i, j, shared) && (!head.causal || j <= i) && !(shared && j == i);
                            if !open {
                                *logit = f32::NEG_INFINITY;
                            } else if rounds.len() > 1 {
                                let times = rounds.iter().filter(|r| r.reaches(i, j, shared)).count();
                                *logit -= (times as f32).ln();
                            }
                        }
                        let mut row = Partial { max: tops[i], sum: sums[i], out: &mut out[i * d..][..d] };
                        let max = row.raise(isa, isa.max(logits));
                        if max == f32::NEG_INFINITY {
                            logits.fill(0.0);
                            continue;
                        }
                        row.sum += isa.exp_sum(logits, max);
                        (tops[i], sums[i]) = (row.max, row.sum);
                    }
                    let add = &mut add[..rows.len() * d];
                    times(&scores, &v, reach.len(), add, false);
                    for (&i, add) in rows.iter().zip(add.chunks(d)) {
                        isa.axpy(1.0, add, &mut out[i as usize * d..][..d]);
                    }
                }
            }
        }
        for (i, (out, sum)) in out.chunks_mut(d).zip(sums).enumerate() {
            if sum > 0.0 {
                isa.scale(1.0 / sum, out);
            } else if shared {
                out.copy_from_slice(&head.v[i * d..][..d]);
            }
        }
    }
}
