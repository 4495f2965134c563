//! The forward pass of one text: a session per layer, tokens in chunks.

use super::dense::{gated, product, rms_norm};
use super::rope::{Table, swap};
use super::{Result, Shape, Weights};
use crate::clock;
use iceformer_core::attention::{Attend, AttentionOptions, AttentionStats, Mode, Session, SessionOptions};
use iceformer_core::mem::{Dtype, Memory, Tensor, TensorMut};
use std::time::Instant;

/// How a text is run.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Attention options of every session.
    pub attention: AttentionOptions,
    /// Storage of keys and values.
    pub kv: Dtype,
    /// Threads.
    pub threads: usize,
    /// Tokens per step of a prompt.
    pub chunk: usize,
    /// Bit l: layer l is attended exactly, whatever the mode.
    pub exact_layers: u64,
}

/// What the attention of a run did, over layers and calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Wall-clock seconds of append, commit and attend.
    pub attention: f64,
    /// Processor seconds of the calling thread in append, commit and attend: with one thread all of them.
    pub processor: f64,
    /// Wall-clock seconds of everything.
    pub total: f64,
    /// Query-key pairs computed exactly.
    pub pairs: u64,
    /// Visible query-key pairs.
    pub visible: u64,
}

impl Tally {
    /// Adds another run.
    pub fn add(&mut self, other: &Tally) {
        self.attention += other.attention;
        self.processor += other.processor;
        self.total += other.total;
        self.pairs += other.pairs;
        self.visible += other.visible;
    }

    /// Share of the visible pairs that was computed exactly.
    pub fn opened(&self) -> f64 {
        self.pairs as f64 / self.visible.max(1) as f64
    }

    fn count(&mut self, stats: &AttentionStats) {
        self.pairs += stats.pairs;
        self.visible += stats.pairs_dense;
    }
}

/// Queries, keys and values of a layer for one chunk, `[heads, rows, dim]`, as the session gets them, and what it made of them.
pub struct Seen<'a> {
    /// Layer.
    pub layer: usize,
    /// Position of the first row.
    pub begin: usize,
    /// Queries.
    pub q: &'a [f32],
    /// Keys.
    pub k: &'a [f32],
    /// Values.
    pub v: &'a [f32],
    /// Attention, as the queries.
    pub out: &'a [f32],
    /// Wall-clock seconds of append, commit and attend.
    pub seconds: f64,
}

/// A text in progress.
pub struct Run<'m> {
    weights: &'m Weights,
    kind: Kind,
    sessions: Vec<Session>,
    works: Vec<Memory>,
    /// What happened so far.
    pub tally: Tally,
}

impl<'m> Run<'m> {
    /// An empty text with room for `capacity` tokens.
    ///
    /// # Errors
    /// Options that the sessions refuse.
    pub fn new(weights: &'m Weights, capacity: usize, kind: &Kind) -> Result<Run<'m>> {
        Run::first(weights, weights.layers.len(), capacity, kind)
    }

    /// As [`Run::new`], of the first `layers` alone: for those who look at heads, not at what comes out.
    ///
    /// # Errors
    /// As [`Run::new`].
    pub fn first(weights: &'m Weights, layers: usize, capacity: usize, kind: &Kind) -> Result<Run<'m>> {
        let s = &weights.shape;
        let options = |layer: usize| match kind.exact_layers.checked_shr(layer as u32).unwrap_or(0) & 1 {
            0 => kind.attention,
            _ => AttentionOptions { mode: Mode::Exact, ..kind.attention },
        };
        let kind = Kind { threads: kind.threads.max(1), chunk: kind.chunk.max(1), ..*kind };
        Ok(Run {
            weights,
            kind,
            sessions: (0..layers.min(s.layers))
                .map(|l| session(s, capacity, kind.kv, options(l)))
                .collect::<Result<_>>()?,
            works: (0..kind.threads).map(|_| Ok(Memory::system(0)?)).collect::<Result<_>>()?,
            tally: Tally::default(),
        })
    }

    /// Tokens so far.
    pub fn len(&self) -> usize {
        self.sessions.first().map_or(0, Session::len)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shape of the model.
    pub fn shape(&self) -> &Shape {
        &self.weights.shape
    }

    /// Runs tokens chunk after chunk; `each` gets a chunk's normalised hidden rows.
    ///
    /// # Errors
    /// What the sessions answer; tokens outside the vocabulary.
    pub fn feed(&mut self, tokens: &[u32], mut each: impl FnMut(&mut Self, &[f32]) -> Result<()>) -> Result<()> {
        for chunk in tokens.chunks(self.kind.chunk) {
            let hidden = self.step(chunk, &mut |_| Ok(()))?;
            each(self, &hidden)?;
        }
        Ok(())
    }

    /// Runs one chunk and gives its normalised hidden rows; `tap` sees what each layer's session gets and gives. Its time is not
    /// in the tally.
    ///
    /// # Errors
    /// As [`Run::feed`], and what `tap` answers.
    pub fn step(&mut self, tokens: &[u32], tap: &mut dyn FnMut(&Seen<'_>) -> Result<()>) -> Result<Vec<f32>> {
        let start = Instant::now();
        let mut aside = 0.0;
        let (weights, threads) = (self.weights, self.kind.threads);
        let s = weights.shape;
        let (begin, rows) = (self.len(), tokens.len());
        let mut x = Vec::with_capacity(rows * s.width);
        for &t in tokens {
            let row = weights.embedding.chunks(s.width).nth(t as usize);
            x.extend_from_slice(row.ok_or("a token is outside the vocabulary")?);
        }
        let table = Table::new(begin, rows, &weights.rope);
        let (q_len, kv_len) = (rows * s.heads_q * s.dim, rows * s.heads_kv * s.dim);
        let mut norm = vec![0.0; x.len()];
        let (mut flat, mut out) = (vec![0.0; q_len], vec![0.0; q_len]);
        let (mut q, mut k, mut v) = (vec![0.0; q_len], vec![0.0; kv_len], vec![0.0; kv_len]);
        let (mut gate, mut up) = (vec![0.0; rows * s.inner], vec![0.0; rows * s.inner]);
        for (l, layer) in weights.layers.iter().take(self.sessions.len()).enumerate() {
            rms_norm(&x, &layer.attention_norm, s.epsilon, &mut norm);
            for (w, heads) in [(&layer.q, &mut q), (&layer.k, &mut k), (&layer.v, &mut v)] {
                let flat = &mut flat[..heads.len()];
                product(&norm, w, s.width, flat, false, threads);
                swap(flat, rows, s.dim, heads);
            }
            table.apply(&mut q);
            table.apply(&mut k);
            let seconds = self.attend(l, &q, &k, &v, &mut out)?;
            let tapped = Instant::now();
            tap(&Seen { layer: l, begin, q: &q, k: &k, v: &v, out: &out, seconds })?;
            aside += tapped.elapsed().as_secs_f64();
            swap(&out, s.heads_q, s.dim, &mut flat);
            product(&flat, &layer.o, s.heads_q * s.dim, &mut x, true, threads);
            rms_norm(&x, &layer.inner_norm, s.epsilon, &mut norm);
            product(&norm, &layer.gate, s.width, &mut gate, false, threads);
            product(&norm, &layer.up, s.width, &mut up, false, threads);
            gated(&mut gate, &up);
            product(&gate, &layer.down, s.inner, &mut x, true, threads);
        }
        rms_norm(&x, &weights.norm, s.epsilon, &mut norm);
        self.tally.total += start.elapsed().as_secs_f64() - aside;
        Ok(norm)
    }

    /// Appends a chunk to one layer and attends with its rows; seconds.
    fn attend(&mut self, layer: usize, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]) -> Result<f64> {
        let (start, processor) = (Instant::now(), clock::now());
        for stats in attend(&mut self.sessions[layer], &self.works, &self.weights.shape, [q, k, v], out)? {
            self.tally.count(&stats);
        }
        let seconds = start.elapsed().as_secs_f64();
        self.tally.attention += seconds;
        self.tally.processor += clock::now() - processor;
        Ok(seconds)
    }

    /// Logits `[rows, vocab]` of normalised hidden rows.
    pub fn logits(&mut self, hidden: &[f32]) -> Vec<f32> {
        let start = Instant::now();
        let s = &self.weights.shape;
        let mut to = vec![0.0; hidden.len() / s.width * s.vocab];
        product(hidden, self.weights.head(), s.width, &mut to, false, self.kind.threads);
        self.tally.total += start.elapsed().as_secs_f64();
        to
    }
}

/// A session of one layer.
///
/// # Errors
/// Options that it refuses.
pub fn session(s: &Shape, capacity: usize, kv: Dtype, attention: AttentionOptions) -> Result<Session> {
    let (heads_q, heads_kv, dim) = (s.heads_q, s.heads_kv, s.dim);
    let options =
        SessionOptions { heads_q, heads_kv, dim_k: dim, dim_v: dim, capacity, kv_dtype: kv, attention, dense_below: 0 };
    Ok(Session::new(&options)?)
}

/// Appends rows to a session and attends with them, one thread for each work memory; what each part did.
///
/// # Errors
/// What the session answers.
pub fn attend(
    session: &mut Session,
    works: &[Memory],
    s: &Shape,
    [q, k, v]: [&[f32]; 3],
    out: &mut [f32],
) -> Result<Vec<AttentionStats>> {
    let rows = q.len() / (s.heads_q * s.dim);
    let tensor = |x, heads| Tensor::new(x, [1, heads, rows, s.dim]);
    session.append(tensor(k, s.heads_kv)?, tensor(v, s.heads_kv)?)?;
    session.commit()?;
    let (session, q) = (&*session, tensor(q, s.heads_q)?);
    let out = TensorMut::new(out, [1, s.heads_q, rows, s.dim])?;
    let nth = works.len();
    let part = |ith: usize| session.attend(&Attend::new(q, &out).part(ith, nth), &works[ith]);
    let stats: Vec<_> = if nth == 1 {
        vec![part(0)]
    } else {
        std::thread::scope(|scope| {
            let part = &part;
            let parts: Vec<_> = (0..nth).map(|ith| scope.spawn(move || part(ith))).collect();
            parts.into_iter().map(|p| p.join().expect("attention does not panic")).collect()
        })
    };
    stats.into_iter().map(|s| Ok(s?)).collect()
}
