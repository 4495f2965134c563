//! The methods as they are compared.

use super::*;

/// Where the hyperparameters come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The paper's appendix: its values for ListOps, the task of up to 4,000 tokens.
    Paper,
    /// The other end of the ranges the paper tuned over: the strongest approximation.
    Strong,
}

/// Every method that approximates, IceFormer first. `seed` is that of random projections, rotations and samples.
pub fn methods(choice: Choice, seed: u64) -> Vec<Box<dyn Method>> {
    let pick = |paper: usize, strong: usize| if choice == Choice::Paper { paper } else { strong };
    let reformer = |shared_qk| Reformer { hashes: 1, bucket_size: pick(512, 64), shared_qk, seed };
    let tolerance = if choice == Choice::Paper { 0.05 } else { 0.2 };
    let share = if choice == Choice::Paper { 0.1 } else { 0.03 };
    vec![
        Box::new(IceFormer { tolerance }),
        Box::new(IceFormerTopK { k: pick(0, 8), shared_qk: false }),
        Box::new(IceFormerTopK { k: pick(0, 10), shared_qk: true }),
        Box::new(TopK { k: pick(0, 8) }),
        Box::new(reformer(true)),
        Box::new(reformer(false)),
        Box::new(Lara { landmarks: pick(256, 64), seed: None }),
        Box::new(Nystromformer { landmarks: pick(256, 64) }),
        Box::new(HTransformer1d { block_size: pick(1024, 64) }),
        Box::new(Longformer { window: pick(2048, 256), global: 1 }),
        Box::new(Performer::new(pick(2048, 256), seed)),
        Box::new(Linformer::new(pick(2048, 256), seed)),
        Box::new(H2o { heavy: share, recent: share }),
        Box::new(StreamingLlm { sinks: 4, recent: pick(2044, 252) }),
    ]
}

/// Exact attention written out and by the library: what the others are compared with.
pub fn exact() -> Vec<Box<dyn Method>> {
    vec![Box::new(Vanilla), Box::new(Exact { shared_qk: false }), Box::new(Exact { shared_qk: true })]
}

/// No attention at all: what a model gives without it.
pub fn ablations() -> Vec<Box<dyn Method>> {
    vec![Box::new(Uniform), Box::new(Nothing)]
}
