//! Element types of tensors against a naive twin, which knows blocks as fields of bits.

use half::{bf16, f16};
use iceformer_bench::model::quant::Kind;

const ALL: [(u32, Kind); 11] = [
    (0, Kind::F32),
    (1, Kind::F16),
    (30, Kind::BF16),
    (2, Kind::Q4_0),
    (3, Kind::Q4_1),
    (6, Kind::Q5_0),
    (7, Kind::Q5_1),
    (8, Kind::Q8_0),
    (12, Kind::Q4_K),
    (13, Kind::Q5_K),
    (14, Kind::Q6_K),
];

/// `count` bits from bit `at` of byte `byte`.
fn bits(block: &[u8], byte: usize, at: usize, count: usize) -> f64 {
    let bit = |i: usize| block[byte + (at + i) / 8] >> ((at + i) % 8) & 1;
    (0..count).map(|i| f64::from(bit(i)) * f64::from(1u32 << i)).sum()
}

fn signed(x: f64) -> f64 {
    if x < 128.0 { x } else { x - 256.0 }
}

fn half_at(block: &[u8], byte: usize) -> f64 {
    f16::from_bits(bits(block, byte, 0, 16) as u16).to_f64()
}

/// The scale and the lowest value of part `j` of Q4_K and Q5_K.
fn part(block: &[u8], j: usize) -> (f64, f64) {
    if j < 4 {
        return (bits(block, 4 + j, 0, 6), bits(block, 8 + j, 0, 6));
    }
    let scale = bits(block, 8 + j, 0, 4) + 16.0 * bits(block, j, 6, 2);
    (scale, bits(block, 8 + j, 4, 4) + 16.0 * bits(block, 4 + j, 6, 2))
}

fn twin(kind: Kind, b: &[u8], i: usize) -> f64 {
    let nibble = |byte: usize| bits(b, byte + i % 16, i / 16 * 4, 4);
    let k_nibble = |byte: usize| bits(b, byte + i / 64 * 32 + i % 32, i / 32 % 2 * 4, 4);
    match kind {
        Kind::F32 => f32::from_bits(bits(b, 0, 0, 32) as u32).into(),
        Kind::F16 => half_at(b, 0),
        Kind::BF16 => bf16::from_bits(bits(b, 0, 0, 16) as u16).to_f64(),
        Kind::Q4_0 => half_at(b, 0) * (nibble(2) - 8.0),
        Kind::Q4_1 => half_at(b, 0) * nibble(4) + half_at(b, 2),
        Kind::Q5_0 => half_at(b, 0) * (nibble(6) + 16.0 * bits(b, 2, i, 1) - 16.0),
        Kind::Q5_1 => half_at(b, 0) * (nibble(8) + 16.0 * bits(b, 4, i, 1)) + half_at(b, 2),
        Kind::Q8_0 => half_at(b, 0) * signed(bits(b, 2 + i, 0, 8)),
        Kind::Q4_K => {
            let (scale, least) = part(b, i / 32);
            half_at(b, 0) * scale * k_nibble(16) - half_at(b, 2) * least
        }
        Kind::Q5_K => {
            let (scale, least) = part(b, i / 32);
            let q = k_nibble(48) + 16.0 * bits(b, 16 + i % 32, i / 32, 1);
            half_at(b, 0) * scale * q - half_at(b, 2) * least
        }
        Kind::Q6_K => {
            let four = bits(b, i / 128 * 64 + i % 64, i / 64 % 2 * 4, 4);
            let two = bits(b, 128 + i / 128 * 32 + i % 32, i / 32 % 4 * 2, 2);
            half_at(b, 208) * signed(bits(b, 192 + i / 16, 0, 8)) * (four + 16.0 * two - 32.0)
        }
    }
}

/// Where a block has f16 numbers, which must be finite.
fn halves(kind: Kind) -> &'static [usize] {
    match kind {
        Kind::F32 | Kind::BF16 => &[],
        Kind::F16 | Kind::Q4_0 | Kind::Q5_0 | Kind::Q8_0 => &[0],
        Kind::Q4_1 | Kind::Q5_1 | Kind::Q4_K | Kind::Q5_K => &[0, 2],
        Kind::Q6_K => &[208],
    }
}

#[test]
fn blocks_are_the_twins() {
    let mut state = 7u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    for (number, kind) in ALL {
        assert_eq!(Kind::of(number), Some(kind));
        let (elements, size) = kind.block();
        let mut bytes: Vec<u8> = (0..size * 40).map(|_| byte()).collect();
        for block in bytes.chunks_mut(size) {
            // Halves of -2 to 2; the floats of F32 and BF16 likewise.
            halves(kind).iter().for_each(|&at| block[at + 1] &= 0xbf);
            if matches!(kind, Kind::F32 | Kind::BF16) {
                block[size - 1] &= 0xbf;
            }
        }
        // What is no whole block is left out.
        let have = kind.numbers(&[&bytes[..], &bytes[..size - 1]].concat());
        assert_eq!(have.len(), elements * 40);
        for (block, have) in bytes.chunks(size).zip(have.chunks(elements)) {
            for (i, &have) in have.iter().enumerate() {
                let want = twin(kind, block, i);
                let largest = 2e-6 * (want.abs() + 4.0 * 64.0 * f64::from(u8::from(elements > 1)));
                assert!((f64::from(have) - want).abs() <= largest, "{kind:?} element {i}: {have} {want}");
            }
        }
    }
    assert_eq!([4, 5, 9, 10, 11, 15, 16, 29, 31].map(Kind::of), [None; 9]);
}

#[test]
fn written_by_hand() {
    // d = 0.5, m = -1; element 0 is 3, element 16 is 15, the others 0.
    let mut block = [&f16::from_f32(0.5).to_le_bytes()[..], &f16::from_f32(-1.0).to_le_bytes(), &[0; 16]].concat();
    block[4] = 0xf3;
    let have = Kind::Q4_1.numbers(&block);
    assert_eq!((have[0], have[16], have[1], have[31]), (0.5, 6.5, -1.0, -1.0));
    // The same numbers count from -8 without m.
    block.drain(2..4);
    let have = Kind::Q4_0.numbers(&block);
    assert_eq!((have[0], have[16], have[1]), (-2.5, 3.5, -4.0));
    // d = 2; bytes 1, -1.
    let block = [&f16::from_f32(2.0).to_le_bytes()[..], &[1, 0xff], &[0; 30]].concat();
    assert_eq!(Kind::Q8_0.numbers(&block)[..3], [2.0, -2.0, 0.0]);
    // d = 1, one scale of 3 for elements 16 to 31, and element 17 is 32 + 5.
    let mut block = vec![0; 210];
    (block[17], block[128 + 17], block[193]) = (5, 2, 3);
    block[208..].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
    let have = Kind::Q6_K.numbers(&block);
    assert_eq!((have[17], have[16], have[15]), (15.0, -96.0, 0.0));
}
