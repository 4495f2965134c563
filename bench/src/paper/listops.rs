//! ListOps end to end.

use super::classification::{self, Guess, Page, Set, most_frequent};
use crate::long_range::Example;
use crate::long_range::encoder::Encoder;
use crate::long_range::listops::{generate::Generator, vocabulary::OPERATORS};

/// Above the tables.
pub const PAGE: Page = Page {
    name: "listops",
    title: "ListOps",
    unit: "tokens",
    about: "A small encoder (2 layers of 2 heads of 32, trained by `bench/encoder/train.py` on lists of up to 1,000 tokens) \
            classifies fresh lists. Chance is 10 %.",
};

/// Classifies `examples` fresh lists, see [`classification::measure`].
pub fn measure(encoder: &Encoder, lengths: (usize, usize), examples: usize, told: &mut dyn FnMut(&str)) -> Set {
    let all: Vec<Example> = Generator::new(977, lengths.0, lengths.1).take(examples).collect();
    let with = |o: u8| most_frequent(all.iter().filter(|e| e.tokens[0] == o));
    let guesses = vec![
        Guess { by: "Always the most frequent label", right: most_frequent(all.iter()) },
        Guess { by: "Most frequent label of the outermost operator", right: OPERATORS.into_iter().map(with).sum() },
    ];
    classification::measure(encoder, lengths, &all, guesses, told)
}
