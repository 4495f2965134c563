//! A prompt in batches through two sessions, one exact: what an inference engine does with what it links.

use crate::heads::Layer;
use crate::place::Place;
use iceformer_core::attention::{Attend, AttentionOptions, Mode, Session, SessionOptions};
use iceformer_core::mem::{Dtype, Plan, Tensor, TensorMut};
use std::error::Error;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What a layer's prompt cost and how far it was off.
#[derive(Clone, Debug, Default)]
pub struct Prefill {
    /// Seconds of appending and attending, exactly and by cells.
    pub seconds: [f64; 2],
    /// Relative L2 error of every row, heads side by side, against the exact session.
    pub errors: Vec<f64>,
    /// Pairs scored and pairs visible.
    pub pairs: [u64; 2],
}

impl Prefill {
    /// Adds another layer's.
    pub fn add(&mut self, other: &Prefill) {
        for i in 0..2 {
            self.seconds[i] += other.seconds[i];
            self.pairs[i] += other.pairs[i];
        }
        self.errors.extend_from_slice(&other.errors);
    }

    /// Mean of the errors and their 99th percentile.
    pub fn error(&self) -> [f64; 2] {
        let mut all = self.errors.clone();
        all.sort_by(f64::total_cmp);
        let n = all.len().max(1);
        let mean = all.iter().sum::<f64>() / n as f64;
        [mean, all.get((n * 99 / 100).min(n - 1)).copied().unwrap_or(0.0)]
    }
}

/// An empty session for the rows of a layer, keys and values in f16.
///
/// # Errors
/// As `Session::new`.
pub fn session(layer: &Layer, mode: Mode, tolerance: f32) -> Outcome<Session> {
    Ok(Session::new(&SessionOptions {
        heads_q: layer.heads_q,
        heads_kv: layer.heads_kv,
        dim_k: layer.dim,
        dim_v: layer.dim,
        capacity: layer.rows,
        kv_dtype: Dtype::F16,
        attention: AttentionOptions { mode, tolerance, ..AttentionOptions::default() },
        dense_below: 0,
    })?)
}

struct Run {
    session: Session,
    work: Place,
    out: Vec<f32>,
    seconds: f64,
}

impl Run {
    fn new(layer: &Layer, mode: Mode, tolerance: f32, batch: usize) -> Outcome<Run> {
        let session = session(layer, mode, tolerance)?;
        let mut plan = Plan::new();
        session.work_plan(batch, &mut plan)?;
        let work = Place::new(&plan.finish()?);
        Ok(Run { session, work, out: vec![0.0; layer.heads_q * batch * layer.dim], seconds: 0.0 })
    }

    /// Appends and attends rows `begin..end`.
    fn step(&mut self, layer: &Layer, begin: usize, end: usize, pairs: &mut [u64; 2]) -> Outcome<()> {
        let (d, n) = (layer.dim, end - begin);
        let part = |x: &[f32]| -> Vec<f32> {
            x.chunks(layer.rows * d).flat_map(|x| x[begin * d..end * d].iter().copied()).collect()
        };
        let [q, k, v] = [&layer.q, &layer.k, &layer.v].map(|x| part(x));
        let start = Instant::now();
        let shape = [1, layer.heads_kv, n, d];
        self.session.append(Tensor::new(&k, shape)?, Tensor::new(&v, shape)?)?;
        self.session.commit()?;
        let shape = [1, layer.heads_q, n, d];
        let out = TensorMut::new(&mut self.out[..layer.heads_q * n * d], shape)?;
        // SAFETY: the handle is gone at the end of the step.
        let memory = unsafe { self.work.lend()? };
        let stats = self.session.attend(&Attend::new(Tensor::new(&q, shape)?, &out), &memory)?;
        self.seconds += start.elapsed().as_secs_f64();
        *pairs = [pairs[0] + stats.pairs, pairs[1] + stats.pairs_dense];
        Ok(())
    }
}

/// The rows of a causal layer in batches, one after the other, keys and values in f16, one thread, the two sessions in turns.
///
/// # Errors
/// As sessions have them.
pub fn prefill(layer: &Layer, mode: Mode, tolerance: f32, batch: usize) -> Outcome<Prefill> {
    let mut runs = [Run::new(layer, Mode::Exact, 0.0, batch)?, Run::new(layer, mode, tolerance, batch)?];
    let mut of = Prefill::default();
    let d = layer.dim;
    for begin in (0..layer.rows).step_by(batch) {
        let end = (begin + batch).min(layer.rows);
        let [exact, fast] = &mut runs;
        exact.step(layer, begin, end, &mut [0; 2])?;
        fast.step(layer, begin, end, &mut of.pairs)?;
        let n = end - begin;
        for i in 0..n {
            let (mut wrong, mut all) = (0.0, 0.0);
            for at in (0..layer.heads_q).map(|head| (head * n + i) * d) {
                for (&x, &y) in exact.out[at..at + d].iter().zip(&fast.out[at..at + d]) {
                    wrong += f64::from(x - y) * f64::from(x - y);
                    all += f64::from(x) * f64::from(x);
                }
            }
            of.errors.push((wrong / all.max(f64::MIN_POSITIVE)).sqrt());
        }
    }
    of.seconds = runs.each_ref().map(|run| run.seconds);
    Ok(of)
}
