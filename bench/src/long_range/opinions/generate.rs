//! Texts of places, good and bad.
//!
//! A text opens with a question after one place. Sentences follow until the text is as long as drawn: three of four give
//! an opinion of one of the text's places, drawn evenly, the others none. Places are good and bad in turn, and 85 % of the
//! opinions of a place say so. In one draw of three none of them is the place asked for; otherwise the label is what most
//! opinions of that place say, and texts without a majority are drawn again. A text speaks of one place and one more for
//! each 100 bytes, of eight at most: all opinions of a long text together say next to nothing.

use super::super::Example;
use super::words::{BAD, FILLERS, GOOD, OPINIONS, PLACES, THINGS};
use super::{ABSENT, BLAMED, PRAISED};
use crate::draw::Draw;

/// Places in a text at most.
const MOST_PLACES: usize = 8;
/// Bytes for each further place.
const BYTES_A_PLACE: usize = 100;
/// Per cent of the opinions of a place that are as the place is.
const FAITHFUL: usize = 85;

/// A stream of examples: the same seed gives the same ones.
pub struct Generator {
    draw: Draw,
    shortest: usize,
    longest: usize,
}

impl Generator {
    /// Examples of `shortest` to `longest` bytes.
    ///
    /// # Panics
    /// If the range is empty or no text can be so short.
    pub fn new(seed: u64, shortest: usize, longest: usize) -> Generator {
        assert!(longest >= 60 && shortest <= longest, "a range that texts fall into");
        Generator { draw: Draw::new(seed), shortest, longest }
    }

    /// A text, if it came out in the range and with a majority.
    fn text(&mut self) -> Option<Example> {
        let d = &mut self.draw;
        let length = self.shortest + d.below(self.longest - self.shortest + 1);
        let count = (1 + length / BYTES_A_PLACE).min(MOST_PLACES);
        let mut places = PLACES;
        for i in 0..=count {
            places.swap(i, i + d.below(PLACES.len() - i));
        }
        let asked = if d.below(3) == 0 { count } else { 0 };
        let mut text = format!("How is {}?", places[asked]);
        // The places stand in any order, so they can be good and bad in turn.
        let good_turn = d.below(2);
        let mut sum = 0;
        while text.len() < length {
            text.push(' ');
            if d.below(4) == 0 {
                write(&mut text, d.pick(&FILLERS), "", "", || d.pick(&THINGS));
                continue;
            }
            let place = d.below(count);
            let praise = (place % 2 == good_turn) == (d.below(100) < FAITHFUL);
            let (sentence, word) = (d.pick(&OPINIONS), d.pick(if praise { &GOOD } else { &BAD }));
            write(&mut text, sentence, places[place], word, || d.pick(&THINGS));
            if place == 0 {
                sum += if praise { 1 } else { -1 };
            }
        }
        let fits = (self.shortest..=self.longest).contains(&text.len());
        let label = match sum {
            _ if asked != 0 => Some(ABSENT),
            0 => None,
            _ => Some(if sum > 0 { PRAISED } else { BLAMED }),
        };
        label.filter(|_| fits).map(|label| Example { tokens: text.into_bytes(), label })
    }
}

/// Writes a sentence with its blanks filled.
fn write(to: &mut String, sentence: &str, place: &str, word: &str, mut thing: impl FnMut() -> &'static str) {
    let mut parts = sentence.split('{');
    to.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (blank, after) = part.split_once('}').expect("a blank ends");
        to.push_str(match blank {
            "place" => place,
            "thing" => thing(),
            _ => word,
        });
        to.push_str(after);
    }
}

impl Iterator for Generator {
    type Item = Example;

    fn next(&mut self) -> Option<Example> {
        loop {
            if let Some(example) = self.text() {
                return Some(example);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Praise less blame in the sentences that name a place: read off the text, apart from the generator.
    fn opinion(text: &str, place: &str) -> i32 {
        let words = |s: &str| s.split(|c: char| !c.is_ascii_alphabetic()).map(str::to_string).collect::<Vec<_>>();
        let of = |sentence: &str| -> i32 {
            let words = words(sentence);
            let count = |of: &[&str]| words.iter().filter(|w| of.contains(&w.as_str())).count() as i32;
            if words.iter().any(|w| w == place) { count(&GOOD) - count(&BAD) } else { 0 }
        };
        text.split('.').map(of).sum()
    }

    #[test]
    fn labels_lengths_and_seeds() {
        for (shortest, longest) in [(60, 200), (500, 2000), (2000, 4000)] {
            let examples: Vec<Example> = Generator::new(7, shortest, longest).take(60).collect();
            for e in &examples {
                let text = std::str::from_utf8(&e.tokens).expect("ASCII");
                assert!((shortest..=longest).contains(&text.len()) && text.ends_with('.') && text.is_ascii());
                assert!(!text.contains(['{', '}']), "{text}");
                let (question, rest) = text.split_once('?').expect("a question");
                let place = question.strip_prefix("How is ").expect("of this form");
                let label = match opinion(rest, place) {
                    _ if !rest.contains(place) => ABSENT,
                    0 => panic!("no majority: {text}"),
                    sum => {
                        if sum > 0 {
                            PRAISED
                        } else {
                            BLAMED
                        }
                    }
                };
                assert_eq!(e.label, label, "{text}");
                let places = PLACES.iter().filter(|p| rest.contains(*p)).count();
                assert!(places <= MOST_PLACES && (longest < 500 || places >= 5), "{places}: {text}");
            }
            assert_eq!(examples, Generator::new(7, shortest, longest).take(60).collect::<Vec<_>>());
            assert_ne!(examples, Generator::new(8, shortest, longest).take(60).collect::<Vec<_>>());
        }
    }

    #[test]
    fn labels_are_even_and_words_come_up() {
        let all: Vec<Example> = Generator::new(1, 60, 400).take(3000).collect();
        for label in [BLAMED, PRAISED, ABSENT] {
            let count = all.iter().filter(|e| e.label == label).count();
            assert!((800..=1300).contains(&count), "{label}: {count}");
        }
        let text = |e: &Example| String::from_utf8(e.tokens.clone()).expect("ASCII");
        let texts: Vec<String> = all.iter().map(text).collect();
        for word in PLACES.iter().chain(&THINGS).chain(&GOOD).chain(&BAD) {
            assert!(texts.iter().any(|t| t.contains(word)), "{word}");
        }
    }
}
