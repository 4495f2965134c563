//! Tokens of ListOps as small numbers and as characters.

/// Ends a list.
pub const CLOSE: u8 = 14;
/// MAX, MIN, MED, SM.
pub const OPERATORS: [u8; 4] = [10, 11, 12, 13];
/// Different tokens.
pub const TOKENS: usize = 15;
/// One character for each token: digits, then A (MAX), I (MIN), E (MED), S (SM), then the closing bracket.
pub const LETTERS: &[u8; TOKENS] = b"0123456789AIES]";

/// The token of a digit.
pub fn digit(value: u8) -> u8 {
    value
}

/// Tokens as text.
pub fn letters(tokens: &[u8]) -> String {
    tokens.iter().map(|&t| char::from(LETTERS[usize::from(t)])).collect()
}
