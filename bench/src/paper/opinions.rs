//! Classification of text by bytes end to end.

use super::classification::{self, Guess, Page, Set, most_frequent};
use crate::long_range::Example;
use crate::long_range::encoder::Encoder;
use crate::long_range::opinions::{BLAMED, PRAISED, generate::Generator, words};

/// Above the tables.
pub const PAGE: Page = Page {
    name: "opinions",
    title: "Opinions",
    unit: "bytes",
    about: "A small encoder (2 layers of 4 heads of 16, trained by `bench/encoder/train.py`) reads generated texts byte by \
            byte. It says whether the place that the first sentence asks for is well or ill spoken of, or not at all. Chance is \
            33 %.",
};

/// Classifies `examples` fresh texts, see [`classification::measure`].
pub fn measure(encoder: &Encoder, lengths: (usize, usize), examples: usize, told: &mut dyn FnMut(&str)) -> Set {
    let all: Vec<Example> = Generator::new(977, lengths.0, lengths.1).take(examples).collect();
    let by_words = |e: &&Example| e.label == if more_praise(&e.tokens) { PRAISED } else { BLAMED };
    let guesses = vec![
        Guess { by: "Always the most frequent label", right: most_frequent(all.iter()) },
        Guess { by: "Praise against blame in all, whichever the place", right: all.iter().filter(by_words).count() },
    ];
    classification::measure(encoder, lengths, &all, guesses, told)
}

/// Whether a text has more words of praise than of blame.
fn more_praise(text: &[u8]) -> bool {
    let mut sum = 0;
    for word in text.split(|b| !b.is_ascii_alphabetic()) {
        let among = |of: &[&str]| i32::from(of.iter().any(|w| w.as_bytes() == word));
        sum += among(&words::GOOD) - among(&words::BAD);
    }
    sum > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn praise_is_counted_by_words() {
        assert!(more_praise(
            b"How is Arlen? The soup of Rowan was warm. Arlen has a tasty roof. Arlen has a slow roof."
        ));
        assert!(!more_praise(b"How is Arlen? Arlen's soup was lukewarm. At Rowan the view was stale."));
    }
}
