//! One call: exact and accelerated attention of one head, causal, and what the library says it erred by.

use iceformer_core::attention::{AttentionOptions, Mode, Problem, attention};
use iceformer_core::mem::{Memory, Tensor, TensorMut};

fn main() -> iceformer_core::Result<()> {
    let shape = [1, 1, 4096, 64];
    let x: Vec<f32> = (0..4096 * 64).map(|i| 0.5 * (i as f32).sin()).collect();
    let mut outputs = [(); 2].map(|()| vec![0.0; x.len()]);
    for (out, mode) in outputs.iter_mut().zip([Mode::Exact, Mode::Auto]) {
        let t = Tensor::new(&x, shape)?;
        let options = AttentionOptions { mode, tolerance: 0.05, ..AttentionOptions::default() };
        let problem = Problem::new(t, t, t, TensorMut::new(out, shape)?).causal().options(options);
        let stats = attention(&problem, &Memory::system(0)?)?;
        let share = 100.0 * stats.pairs as f64 / stats.pairs_dense as f64;
        println!("{:?}: {share:.1} % of the pairs scored, measured error {:.4}", stats.mode, stats.measured.mean());
    }
    let [exact, near] = &outputs;
    let wrong: f32 = exact.iter().zip(near).map(|(a, b)| (a - b) * (a - b)).sum();
    println!("true error {:.4}", (wrong / exact.iter().map(|a| a * a).sum::<f32>()).sqrt());
    Ok(())
}
