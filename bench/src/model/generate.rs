//! Greedy decoding.

use super::dense::largest;
use super::{Result, Run};

/// Runs the prompt and appends the likeliest token `n` times.
///
/// # Errors
/// What the sessions answer.
pub fn greedy(run: &mut Run<'_>, prompt: &[u32], n: usize) -> Result<Vec<u32>> {
    let width = run.shape().width;
    let mut last = Vec::new();
    run.feed(prompt, |_, hidden| {
        last = hidden[hidden.len() - width..].to_vec();
        Ok(())
    })?;
    let mut out = Vec::with_capacity(n);
    for i in 0..n {
        let token = largest(&run.logits(&last)) as u32;
        out.push(token);
        if i + 1 < n {
            last = run.step(&[token], &mut |_| Ok(()))?;
        }
    }
    Ok(out)
}
