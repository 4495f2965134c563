//! Byte-level BPE with the splitting rule of GPT-2.

use super::{Gguf, Result};
use regex::Regex;
use std::collections::HashMap;

/// The rule without its look-ahead, which [`pieces`] adds.
const RULE: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

/// Text to tokens and back.
pub struct Tokenizer {
    rule: Regex,
    /// Bytes of each token.
    tokens: Vec<Vec<u8>>,
    /// Token of each byte.
    bytes: [u32; 256],
    /// Rank and result of each merge.
    merges: HashMap<(u32, u32), (u32, u32)>,
    bos: u32,
}

/// The printable character that stands for a byte in token texts.
pub fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return char::from(byte);
    }
    // The others follow each other from 256.
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Words as the rule cuts them: white space before a word leaves its last character to the word.
fn pieces<'a>(rule: &Regex, text: &'a str) -> Vec<&'a str> {
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(m) = rule.find_at(text, at) {
        let mut piece = m.as_str();
        let last = piece.chars().next_back().map_or(0, char::len_utf8);
        // Only the last alternative ends in white space.
        if m.end() < text.len() && piece.len() > last && piece.ends_with(char::is_whitespace) {
            piece = &piece[..piece.len() - last];
        }
        out.push(piece);
        at = m.start() + piece.len();
    }
    out
}

impl Tokenizer {
    /// The tokenizer in a model file.
    ///
    /// # Errors
    /// Another kind of tokenizer; tokens or merges that do not fit together.
    pub fn read(file: &Gguf) -> Result<Tokenizer> {
        let (model, pre) = (file.text("tokenizer.ggml.model")?, file.text("tokenizer.ggml.pre")?);
        if (model, pre) != ("gpt2", "gpt-2") {
            return Err(format!("tokenizer {model} / {pre} is not supported").into());
        }
        let texts = file.texts("tokenizer.ggml.tokens")?;
        let ids: HashMap<&str, u32> = texts.iter().copied().zip(0..).collect();
        let chars: HashMap<char, u8> = (0..=255).map(|b| (byte_char(b), b)).collect();
        let spell = |text: &str| -> Vec<u8> {
            let byte = |c: char| chars.get(&c).copied().unwrap_or(b'?');
            text.chars().map(byte).collect()
        };
        let mut bytes = [0; 256];
        for b in 0..=255u8 {
            let id = ids.get(byte_char(b).to_string().as_str());
            bytes[usize::from(b)] = *id.ok_or_else(|| format!("no token for byte {b}"))?;
        }
        let mut merges = HashMap::new();
        for (rank, merge) in (0..).zip(file.texts("tokenizer.ggml.merges")?) {
            let pair = merge
                .split_once(' ')
                .and_then(|(a, b)| Some(((*ids.get(a)?, *ids.get(b)?), (rank, *ids.get(format!("{a}{b}").as_str())?))));
            let (pair, to) = pair.ok_or_else(|| format!("merge {merge:?} names a token that is not there"))?;
            merges.entry(pair).or_insert(to);
        }
        let bos = u32::try_from(file.whole("tokenizer.ggml.bos_token_id")?)?;
        let tokens = texts.iter().map(|t| spell(t)).collect();
        Ok(Tokenizer { rule: Regex::new(RULE)?, tokens, bytes, merges, bos })
    }

    /// The token that begins every text.
    pub fn bos(&self) -> u32 {
        self.bos
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Tokens of a text, without the one that begins it.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        for piece in pieces(&self.rule, text) {
            let mut word: Vec<u32> = piece.bytes().map(|b| self.bytes[usize::from(b)]).collect();
            self.merge(&mut word);
            out.extend(word);
        }
        out
    }

    /// Joins the leftmost pair of the lowest rank until no pair has one.
    fn merge(&self, word: &mut Vec<u32>) {
        loop {
            let pairs = word.windows(2).enumerate();
            let found = pairs.filter_map(|(i, p)| self.merges.get(&(p[0], p[1])).map(|&(rank, id)| (rank, i, id)));
            let Some((_, i, id)) = found.min() else { return };
            word[i] = id;
            word.remove(i + 1);
        }
    }

    /// Text of tokens; bytes that are no UTF-8 are replaced.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().filter_map(|&t| self.tokens.get(t as usize)).flatten().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_those_of_gpt2() {
        let cut = |s: &'static str| pieces(&Regex::new(RULE).expect("a rule"), s);
        assert_eq!(cut("Hello  world's  \n x12!?  "), ["Hello", " ", " world", "'s", "  \n", " x", "12", "!?", "  "]);
        assert_eq!(cut("a\n\nb\n c"), ["a", "\n", "\n", "b", "\n", " c"]);
        assert_eq!(cut("x = 3\t# é 中"), ["x", " =", " 3", "\t", "#", " é", " 中"]);
        assert_eq!(cut(" "), [" "]);
        assert!(cut("").is_empty());
    }

    #[test]
    fn every_byte_has_its_character() {
        let all: std::collections::HashSet<char> = (0..=255).map(byte_char).collect();
        assert_eq!(all.len(), 256);
        assert_eq!((byte_char(b' '), byte_char(b'\n'), byte_char(b'a'), byte_char(173)), ('Ġ', 'Ċ', 'a', 'Ń'));
    }
}
