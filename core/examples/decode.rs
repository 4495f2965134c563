//! A session of four query heads on two KV heads: a prompt in batches, then tokens one by one.

use iceformer_core::attention::{Attend, AttentionStats, Session, SessionOptions};
use iceformer_core::mem::{Dtype, Memory, Plan, Tensor, TensorMut};

const HEADS_Q: usize = 4;
const HEADS_KV: usize = 2;
const DIM: usize = 64;
const BATCH: usize = 512;

/// Numbers in place of what a model computes for tokens `begin..begin + n`.
fn rows(heads: usize, begin: usize, n: usize) -> Vec<f32> {
    let of = |h: usize, i: usize, d: usize| (((begin + i) % 97 * 31 + d * 7 + h * 13) as f32).sin();
    (0..heads * n * DIM).map(|at| of(at / DIM / n, at / DIM % n, at % DIM)).collect()
}

fn step(session: &mut Session, work: &Memory, begin: usize, n: usize) -> iceformer_core::Result<AttentionStats> {
    let [q, k, v] = [HEADS_Q, HEADS_KV, HEADS_KV].map(|heads| rows(heads, begin, n));
    let kv = [1, HEADS_KV, n, DIM];
    session.append(Tensor::new(&k, kv)?, Tensor::new(&v, kv)?)?;
    session.commit()?;
    let (shape, mut out) = ([1, HEADS_Q, n, DIM], vec![0.0; q.len()]);
    // Without a mask: causal, the last row at the last token.
    session.attend(&Attend::new(Tensor::new(&q, shape)?, &TensorMut::new(&mut out, shape)?), work)
}

fn main() -> iceformer_core::Result<()> {
    let options = SessionOptions { kv_dtype: Dtype::F16, ..SessionOptions::new([HEADS_Q, HEADS_KV], DIM, 8192) };
    let mut session = Session::new(&options)?;
    let mut plan = Plan::new();
    session.work_plan(BATCH, &mut plan)?;
    println!("session {} bytes, work memory {} bytes", session.memory().used, plan.finish()?.bytes);
    let work = Memory::system(0)?;
    for begin in (0..6144).step_by(BATCH) {
        let stats = step(&mut session, &work, begin, BATCH)?;
        println!("prompt to {:>5}: {:.0} % of the pairs", session.len(), share(&stats));
    }
    for begin in 6144..6152 {
        let stats = step(&mut session, &work, begin, 1)?;
        println!("token {begin}: {:?}, {:.0} % of the pairs", stats.mode, share(&stats));
    }
    Ok(())
}

fn share(stats: &AttentionStats) -> f64 {
    100.0 * stats.pairs as f64 / stats.pairs_dense as f64
}
