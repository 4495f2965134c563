//! ListOps: nested lists of digits under MAX, MIN, MED and SM (sum modulo 10), written as tokens; the label is the value.
//!
//! The distribution is that of the long version of the task: at every depth a node is a list with probability 1/4 and a
//! digit otherwise, a list has 2 to 10 members, the root is a list, lists nest up to 10 deep, and trees outside the
//! wanted lengths are drawn again.

use super::super::Example;
use super::vocabulary::{CLOSE, OPERATORS, digit};
use crate::draw::Draw;

/// Members of a list at most.
const MOST_MEMBERS: usize = 10;
/// Lists inside lists at most.
const MOST_DEPTH: usize = 10;

/// A stream of examples: the same seed gives the same ones.
pub struct Generator {
    draw: Draw,
    shortest: usize,
    longest: usize,
}

impl Generator {
    /// Examples of `shortest` to `longest` tokens.
    ///
    /// # Panics
    /// If no tree can be so short or the range is empty.
    pub fn new(seed: u64, shortest: usize, longest: usize) -> Generator {
        assert!(longest >= 8 && shortest <= longest, "a range that trees fall into");
        Generator { draw: Draw::new(seed), shortest, longest }
    }

    /// Writes a node and gives its value; `None` as soon as the tree is too long.
    fn node(&mut self, depth: usize, tokens: &mut Vec<u8>) -> Option<u8> {
        if tokens.len() >= self.longest {
            return None;
        }
        let is_list = depth == 0 || (depth < MOST_DEPTH && self.draw.below(4) == 0);
        if !is_list {
            let value = self.draw.below(10) as u8;
            tokens.push(digit(value));
            return Some(value);
        }
        let operator = self.draw.below(OPERATORS.len());
        let members = 2 + self.draw.below(MOST_MEMBERS - 1);
        tokens.push(OPERATORS[operator]);
        let mut values = Vec::with_capacity(members);
        for _ in 0..members {
            values.push(self.node(depth + 1, tokens)?);
        }
        tokens.push(CLOSE);
        (tokens.len() <= self.longest).then(|| apply(operator, &mut values))
    }
}

/// The value of a list; the median of an even number of members is the mean of the middle two, rounded down.
fn apply(operator: usize, values: &mut [u8]) -> u8 {
    values.sort_unstable();
    let n = values.len();
    match operator {
        0 => values[n - 1],
        1 => values[0],
        2 => (values[(n - 1) / 2] + values[n / 2]) / 2,
        _ => (values.iter().map(|&x| u32::from(x)).sum::<u32>() % 10) as u8,
    }
}

impl Iterator for Generator {
    type Item = Example;

    fn next(&mut self) -> Option<Example> {
        let mut tokens = Vec::new();
        loop {
            tokens.clear();
            if let Some(label) = self.node(0, &mut tokens)
                && tokens.len() >= self.shortest
            {
                return Some(Example { tokens, label });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses tokens again, from the left, and gives the value: written apart from the generator.
    fn evaluate(tokens: &[u8]) -> u8 {
        let mut stack: Vec<(u8, Vec<u8>)> = vec![(0, Vec::new())];
        for &t in tokens {
            let closed = match t {
                CLOSE => {
                    let (operator, mut x) = stack.pop().expect("an open list");
                    x.sort_unstable();
                    match OPERATORS.iter().position(|&o| o == operator).expect("an operator") {
                        0 => *x.last().expect("members"),
                        1 => x[0],
                        2 if x.len() % 2 == 1 => x[x.len() / 2],
                        2 => (x[x.len() / 2 - 1] + x[x.len() / 2]) / 2,
                        _ => x.iter().fold(0, |sum, x| (sum + x) % 10),
                    }
                }
                t if OPERATORS.contains(&t) => {
                    stack.push((t, Vec::new()));
                    continue;
                }
                t => (0..10).find(|&x| digit(x) == t).expect("a digit"),
            };
            stack.last_mut().expect("the root").1.push(closed);
        }
        assert_eq!((stack.len(), stack[0].1.len()), (1, 1), "one whole tree");
        stack[0].1[0]
    }

    #[test]
    fn labels_lengths_and_seeds() {
        for (shortest, longest) in [(4, 40), (200, 400), (500, 2000)] {
            let examples: Vec<Example> = Generator::new(7, shortest, longest).take(100).collect();
            for e in &examples {
                assert!((shortest..=longest).contains(&e.tokens.len()));
                assert_eq!(e.label, evaluate(&e.tokens));
                assert!(OPERATORS.contains(&e.tokens[0]));
            }
            assert_eq!(examples, Generator::new(7, shortest, longest).take(100).collect::<Vec<_>>());
            assert_ne!(examples, Generator::new(8, shortest, longest).take(100).collect::<Vec<_>>());
        }
        // Every label and operator comes up.
        let all: Vec<Example> = Generator::new(1, 4, 100).take(500).collect();
        (0..10).for_each(|l| assert!(all.iter().any(|e| e.label == l), "{l}"));
        OPERATORS.iter().for_each(|&o| assert!(all.iter().any(|e| e.tokens[0] == o), "{o}"));
    }

    #[test]
    fn medians_round_down() {
        assert_eq!(apply(2, &mut [9, 0]), 4);
        assert_eq!(apply(2, &mut [3, 9, 1]), 3);
        assert_eq!(apply(3, &mut [9, 9, 9]), 7);
    }
}
