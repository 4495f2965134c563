//! Element types of GGUF tensors, all to f32.
//!
//! Quantized rows are blocks of 32 or 256 elements, little-endian. Those of 32 have one f16 scale `d` (and an f16 lowest value
//! `m`) before the numbers: an element is `d * q` with a signed `q`, or `d * q + m`. Of 16 bytes with two numbers each, low
//! halves are elements 0 to 15 and high halves 16 to 31.
//!
//! Those of 256 ("K") have parts with small whole scales of their own, multiplied by the block's.

use half::{bf16, f16};

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, non_camel_case_types)]
pub enum Kind {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl Kind {
    /// The type of a number in a file.
    pub fn of(number: u32) -> Option<Kind> {
        Some(match number {
            0 => Kind::F32,
            1 => Kind::F16,
            2 => Kind::Q4_0,
            3 => Kind::Q4_1,
            6 => Kind::Q5_0,
            7 => Kind::Q5_1,
            8 => Kind::Q8_0,
            12 => Kind::Q4_K,
            13 => Kind::Q5_K,
            14 => Kind::Q6_K,
            30 => Kind::BF16,
            _ => return None,
        })
    }

    /// Elements and bytes of a block.
    pub fn block(self) -> (usize, usize) {
        match self {
            Kind::F32 => (1, 4),
            Kind::F16 | Kind::BF16 => (1, 2),
            Kind::Q4_0 => (32, 18),
            Kind::Q4_1 => (32, 20),
            Kind::Q5_0 => (32, 22),
            Kind::Q5_1 => (32, 24),
            Kind::Q8_0 => (32, 34),
            Kind::Q4_K => (256, 144),
            Kind::Q5_K => (256, 176),
            Kind::Q6_K => (256, 210),
        }
    }

    /// Numbers of whole blocks; what is no whole block is left out.
    pub fn numbers(self, bytes: &[u8]) -> Vec<f32> {
        let (elements, size) = self.block();
        let mut to = vec![0.0; bytes.len() / size * elements];
        let one = match self {
            Kind::F32 => |b: &[u8], to: &mut [f32]| to[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            Kind::F16 => |b: &[u8], to: &mut [f32]| to[0] = half(b),
            Kind::BF16 => |b: &[u8], to: &mut [f32]| to[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
            Kind::Q4_0 => q4_0,
            Kind::Q4_1 => q4_1,
            Kind::Q5_0 => q5_0,
            Kind::Q5_1 => q5_1,
            Kind::Q8_0 => q8_0,
            Kind::Q4_K => q4_k,
            Kind::Q5_K => q5_k,
            Kind::Q6_K => q6_k,
        };
        bytes.chunks_exact(size).zip(to.chunks_exact_mut(elements)).for_each(|(b, to)| one(b, to));
        to
    }
}

fn half(b: &[u8]) -> f32 {
    f16::from_le_bytes([b[0], b[1]]).to_f32()
}

/// The two numbers of a byte, without their fifth bits.
fn low(byte: u8) -> u8 {
    byte & 15
}

fn high(byte: u8) -> u8 {
    byte >> 4
}

/// `d`, 16 bytes; numbers count from -8.
fn q4_0(b: &[u8], to: &mut [f32]) {
    let d = half(b);
    for (i, &pair) in b[2..18].iter().enumerate() {
        to[i] = d * (f32::from(low(pair)) - 8.0);
        to[16 + i] = d * (f32::from(high(pair)) - 8.0);
    }
}

/// `d`, `m`, 16 bytes.
fn q4_1(b: &[u8], to: &mut [f32]) {
    let (d, m) = (half(b), half(&b[2..]));
    for (i, &pair) in b[4..20].iter().enumerate() {
        to[i] = d * f32::from(low(pair)) + m;
        to[16 + i] = d * f32::from(high(pair)) + m;
    }
}

/// The five bits of element `i`: four among 16 bytes, the fifth is bit `i` of the 4 bytes before them.
fn five(b: &[u8], i: usize) -> f32 {
    let pair = b[4 + i % 16];
    let four = if i < 16 { low(pair) } else { high(pair) };
    f32::from(four | (b[i / 8] >> (i % 8) & 1) << 4)
}

/// `d`, 4 bytes of fifth bits, 16 bytes; numbers count from -16.
fn q5_0(b: &[u8], to: &mut [f32]) {
    let d = half(b);
    to.iter_mut().enumerate().for_each(|(i, to)| *to = d * (five(&b[2..], i) - 16.0));
}

/// `d`, `m`, 4 bytes of fifth bits, 16 bytes.
fn q5_1(b: &[u8], to: &mut [f32]) {
    let (d, m) = (half(b), half(&b[2..]));
    to.iter_mut().enumerate().for_each(|(i, to)| *to = d * five(&b[4..], i) + m);
}

/// `d`, 32 signed bytes.
fn q8_0(b: &[u8], to: &mut [f32]) {
    let d = half(b);
    to.iter_mut().zip(&b[2..34]).for_each(|(to, &q)| *to = d * f32::from(q.cast_signed()));
}

/// Scale and lowest value of part `j` of 8, six bits each, out of 12 bytes: those of parts 0 to 3 are the low bits of bytes
/// 0 to 3 and 4 to 7. Parts 4 to 7 share bytes 8 to 11, and their two high bits are those left free in the first eight.
fn six(b: &[u8], j: usize) -> (f32, f32) {
    let (scale, least) = match j {
        0..4 => (b[j] & 63, b[j + 4] & 63),
        _ => (low(b[j + 4]) | b[j - 4] >> 6 << 4, high(b[j + 4]) | b[j] >> 6 << 4),
    };
    (f32::from(scale), f32::from(least))
}

/// `d`, `m`, 12 bytes of scales for 8 parts of 32, 128 bytes: 32 bytes hold two parts. An element is
/// `d * scale * q - m * least`.
fn q4_k(b: &[u8], to: &mut [f32]) {
    let (d, m) = (half(b), half(&b[2..]));
    for (j, to) in to.chunks_exact_mut(32).enumerate() {
        let (scale, least) = six(&b[4..16], j);
        let take = if j % 2 == 0 { low } else { high };
        let bytes = &b[16 + j / 2 * 32..][..32];
        to.iter_mut().zip(bytes).for_each(|(to, &pair)| *to = d * scale * f32::from(take(pair)) - m * least);
    }
}

/// As [`q4_k`], with 32 bytes of fifth bits before the 128: bit `j` of byte `i` is of element `i` of part `j`.
fn q5_k(b: &[u8], to: &mut [f32]) {
    let (d, m) = (half(b), half(&b[2..]));
    for (j, to) in to.chunks_exact_mut(32).enumerate() {
        let (scale, least) = six(&b[4..16], j);
        let take = if j % 2 == 0 { low } else { high };
        let bytes = b[48 + j / 2 * 32..][..32].iter().zip(&b[16..48]);
        for (to, (&pair, fifth)) in to.iter_mut().zip(bytes) {
            *to = d * scale * f32::from(take(pair) | (fifth >> j & 1) << 4) - m * least;
        }
    }
}

/// 128 bytes of low halves, 64 bytes of two high bits, 16 signed scales, `d`; parts of 16. Numbers count from -32. Each half
/// of the block has four quarters of 32: bytes 0 to 31 and 32 to 63 of its low halves hold the first two below and the last
/// two above, and a byte of high bits has those of one element of each quarter.
fn q6_k(b: &[u8], to: &mut [f32]) {
    let d = half(&b[208..]);
    for (i, to) in to.iter_mut().enumerate() {
        let (part, quarter, at) = (i / 128, i / 32 % 4, i % 32);
        let pair = b[part * 64 + quarter % 2 * 32 + at];
        let four = if quarter < 2 { low(pair) } else { high(pair) };
        let two = b[128 + part * 32 + at] >> (2 * quarter) & 3;
        let scale = b[192 + i / 16].cast_signed();
        *to = d * f32::from(scale) * (f32::from(four | two << 4) - 32.0);
    }
}
