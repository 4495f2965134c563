//! Line retrieval: does the model still write the right number?

use super::generate::greedy;
use super::text::Prompt;
use super::{Choice, Model, Result, Run, Tally};

/// What one choice gave on the prompts of a file.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What the model wrote, in the order of the prompts.
    pub written: Vec<String>,
    /// Exact matches.
    pub right: usize,
    /// Share of the answer's digits that are right, summed over prompts.
    pub digits: f64,
    /// Attention over all prompts, decoding included.
    pub tally: Tally,
}

impl Outcome {
    /// Prompts on which two choices wrote the same.
    pub fn agreement(&self, other: &Outcome) -> usize {
        self.written.iter().zip(&other.written).filter(|(a, b)| a == b).count()
    }
}

/// Writes as many tokens as the answer of one prompt has.
///
/// # Errors
/// What the sessions answer.
pub fn ask(model: &Model, choice: &Choice, prompt: &Prompt) -> Result<(String, Tally)> {
    let t = &model.tokenizer;
    let mut tokens = t.start();
    tokens.extend(t.encode(&prompt.text));
    let n = t.encode(&prompt.answer).len();
    let mut run = Run::new(&model.weights, tokens.len() + n, &choice.kind)?;
    let written = greedy(&mut run, &tokens, n)?;
    Ok((t.decode(&written), run.tally))
}

/// Every choice on every prompt, taking turns; `each` is told how many prompts are done.
///
/// # Errors
/// As [`ask`].
pub fn measure(
    model: &Model,
    choices: &[Choice],
    prompts: &[&Prompt],
    mut each: impl FnMut(usize),
) -> Result<Vec<Outcome>> {
    let mut all = vec![Outcome::default(); choices.len()];
    for (i, prompt) in prompts.iter().enumerate() {
        for turn in 0..choices.len() {
            // Nobody is always the first.
            let c = (i + turn) % choices.len();
            let (written, tally) = ask(model, &choices[c], prompt)?;
            all[c].right += usize::from(written == prompt.answer);
            let same = written.chars().zip(prompt.answer.chars()).filter(|(a, b)| a == b).count();
            all[c].digits += same as f64 / prompt.answer.chars().count().max(1) as f64;
            all[c].written.push(written);
            all[c].tally.add(&tally);
        }
        each(i + 1);
    }
    Ok(all)
}
