//! Byte-level BPE as a model file describes it, by the `tokenizers` crate.

use super::{Gguf, Result};
use std::collections::HashSet;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior};

/// Kinds of tokens, as files number them: what steers a model, and what users added.
const CONTROL: i128 = 3;
const ADDED: i128 = 4;

/// Text to tokens and back.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    len: usize,
    begin: Option<u32>,
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

fn plain(e: tokenizers::Error) -> Box<dyn std::error::Error> {
    e
}

/// How a text is cut into words before merges.
fn words(pre: &str) -> Result<PreTokenizerWrapper> {
    // Bytes to characters, after the splitting rule of GPT-2 where `rule` says so; no space is put first.
    let bytes = |rule: bool| PreTokenizerWrapper::from(ByteLevel::new(false, false, rule));
    let both = |first: PreTokenizerWrapper, then| PreTokenizerWrapper::from(Sequence::new(vec![first, then]));
    Ok(match pre {
        "gpt-2" => bytes(true),
        "smollm" => both(Digits::new(true).into(), bytes(true)),
        "llama-bpe" => {
            let parts = [
                r"(?i:'(?:s|d|m|t|ll|ve|re))",
                r"[^\r\n\p{L}\p{N}]?\p{L}+",
                r"\p{N}{1,3}",
                r" ?[^\s\p{L}\p{N}]+[\r\n]*",
                r"\s*[\r\n]+",
                r"\s+(?!\S)",
                r"\s+",
            ];
            let rule = SplitPattern::Regex(parts.join("|"));
            both(Split::new(rule, SplitDelimiterBehavior::Isolated, false).map_err(plain)?.into(), bytes(false))
        }
        other => {
            let known = "gpt-2, smollm and llama-bpe are";
            return Err(format!("the pre-tokenizer {other} is not supported, {known}").into());
        }
    })
}

/// Pairs in the order of their ranks; of equal ones the first counts.
fn merges(file: &Gguf, known: &HashSet<&str>) -> Result<Vec<(String, String)>> {
    let (mut all, mut seen) = (Vec::new(), HashSet::new());
    for merge in file.texts("tokenizer.ggml.merges")? {
        let there = |(a, b): &(&str, &str)| [*a, b, &format!("{a}{b}")].iter().all(|t| known.contains(t));
        let pair = merge.split_once(' ').filter(there);
        let (a, b) = pair.ok_or_else(|| format!("merge {merge:?} names a token that is not there"))?;
        if seen.insert((a, b)) {
            all.push((a.to_string(), b.to_string()));
        }
    }
    Ok(all)
}

impl Tokenizer {
    /// The tokenizer in a model file.
    ///
    /// # Errors
    /// Another kind of tokenizer; tokens or merges that do not fit together.
    pub fn read(file: &Gguf) -> Result<Tokenizer> {
        let model = file.text("tokenizer.ggml.model")?;
        if model != "gpt2" {
            return Err(format!("the tokenizer {model} is not supported, gpt2 (byte-level BPE) is").into());
        }
        let pre = file.text("tokenizer.ggml.pre")?;
        let words = words(pre)?;
        let texts = file.texts("tokenizer.ggml.tokens")?;
        let known: HashSet<&str> = texts.iter().copied().collect();
        let merges = merges(file, &known)?;
        let vocabulary: Vocab = texts.iter().map(|t| t.to_string()).zip(0..).collect();
        // Llama 3 takes words that are tokens as they are.
        let whole = pre == "llama-bpe";
        let bpe = BPE::builder().vocab_and_merges(vocabulary, merges);
        let mut inner = tokenizers::Tokenizer::new(bpe.ignore_merges(whole).build().map_err(plain)?);
        inner.with_pre_tokenizer(Some(words)).with_decoder(Some(ByteLevel::default()));
        let begin = match file.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(whole) {
            true => Some(u32::try_from(file.whole("tokenizer.ggml.bos_token_id")?)?),
            false => None,
        };
        if begin.is_some_and(|id| id as usize >= texts.len()) {
            return Err("the beginning token is outside the vocabulary".into());
        }
        if file.has("tokenizer.ggml.token_type") {
            let kinds = file.wholes("tokenizer.ggml.token_type")?;
            let of = |kind| texts.iter().zip(&kinds).filter(move |t| *t.1 == kind).map(|t| t.0.to_string());
            inner.add_special_tokens(of(CONTROL).map(|t| AddedToken::from(t, true))).map_err(plain)?;
            inner.add_tokens(of(ADDED).map(|t| AddedToken::from(t, false).normalized(false))).map_err(plain)?;
        }
        inner.set_encode_special_tokens(true);
        Ok(Tokenizer { inner, len: texts.len(), begin })
    }

    /// Whether names of control tokens in a text, such as `<|im_start|>`, stand for these tokens. At first they do not.
    pub fn set_control(&mut self, on: bool) {
        self.inner.set_encode_special_tokens(!on);
    }

    /// The tokens that begin every text: one, or none where the model was made without.
    pub fn start(&self) -> Vec<u32> {
        self.begin.into_iter().collect()
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens of a text, without those that begin it. Some vocabularies lack control characters, which are left out then.
    ///
    /// # Panics
    /// If the splitting rule gives up, which takes a word of many megabytes.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.inner.encode_fast(text, false).expect("bytes have tokens").get_ids().to_vec()
    }

    /// Text of tokens; bytes that are no UTF-8 are replaced.
    pub fn decode(&self, tokens: &[u32]) -> String {
        self.inner.decode(tokens, false).expect("bytes have characters")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    fn cut(pre: &str, text: &str) -> Vec<String> {
        let mut parts = PreTokenizedString::from(text);
        words(pre).expect("a rule").pre_tokenize(&mut parts).expect("words");
        let parts = parts.get_splits(OffsetReferential::Original, OffsetType::Byte);
        parts.iter().map(|p| text[p.1.0..p.1.1].to_string()).collect()
    }

    #[test]
    fn words_are_those_of_gpt2() {
        let cut = |s| cut("gpt-2", s);
        assert_eq!(cut("Hello  world's  \n x12!?  "), ["Hello", " ", " world", "'s", "  \n", " x", "12", "!?", "  "]);
        assert_eq!(cut("a\n\nb\n c"), ["a", "\n", "\n", "b", "\n", " c"]);
        assert_eq!(cut("x = 3\t# é 中"), ["x", " =", " 3", "\t", "#", " é", " 中"]);
        assert_eq!(cut(" "), [" "]);
        assert!(cut("").is_empty());
    }

    #[test]
    fn digits_are_words_where_the_rule_says_so() {
        assert_eq!(cut("smollm", "a 12 x3's"), ["a", " ", "1", "2", " x", "3", "'s"]);
        assert_eq!(cut("llama-bpe", "a 1234 (b)\n\n c'S"), ["a", " ", "123", "4", " (", "b", ")\n\n", " c", "'S"]);
        let e = words("deepseek-llm").expect_err("not known").to_string();
        assert!(e.contains("deepseek-llm") && e.contains("smollm"), "{e}");
    }

    #[test]
    fn every_byte_has_its_character() {
        let all: HashSet<char> = (0..=255).map(byte_char).collect();
        assert_eq!(all.len(), 256);
        assert_eq!((byte_char(b' '), byte_char(b'\n'), byte_char(b'a'), byte_char(173)), ('Ġ', 'Ċ', 'a', 'Ń'));
        assert!(all == ByteLevel::alphabet().into_iter().collect());
    }
}
