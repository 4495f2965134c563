//! All nodes at once beside a twin in f64, and beside a task for every root block, on every instruction set of the machine.

use super::few_rows::Means;
use super::tests::{close, first, isas, noise};
use super::{
    Along, Asking, BLOCK, ByteKeys, Bytes, Children, ChooseRoots, Elements, LOWEST, Limits, Matrix, NodeKeys, Roots,
    RoundQuery, ScoreNodes, ScoreRoots, Stored, Total, Values, round_key,
};
use crate::simd::Isa;
use half::bf16;
use std::vec;
use std::vec::Vec;

/// Nodes that are seen: all of a root block, none, some.
const PRESENT: [u16; 6] = [0xffff, 0, 0x00ff, 1, 0x8001, 0xfffe];
const ROOTS: usize = PRESENT.len();
/// One more than there are queries.
const STEP: usize = 4 * BLOCK;

/// Nodes and queries.
struct Case {
    dim: usize,
    keys: Vec<f32>,
    words: Vec<u32>,
    unit: Vec<[bf16; BLOCK]>,
    spread: Vec<f32>,
    q: Vec<f32>,
    codes: Vec<i32>,
    along: Vec<Along>,
    numbers: Vec<f32>,
}

impl Case {
    fn new(dim: usize) -> Case {
        let positive = |n: usize, seed: u64| noise(n, seed).iter().map(|x| 1.0 + 0.5 * x).collect::<Vec<_>>();
        let (keys, q) = (noise(ROOTS * dim * BLOCK, 4), noise(3 * dim, 6));
        let each = ByteKeys::quads(dim);
        let (mut words, mut unit) = (vec![0; ROOTS * each * BLOCK], vec![[bf16::ZERO; BLOCK]; ROOTS]);
        for (i, key) in keys.chunks_exact(dim).enumerate() {
            let at = i / BLOCK;
            round_key(key, &noise(dim, 9), i % BLOCK, &mut words[at * each * BLOCK..], &mut unit[at]);
        }
        let (mut codes, mut along) = (vec![0; 3 * each], Vec::new());
        for (x, out) in q.chunks_exact(dim).zip(codes.chunks_exact_mut(each)) {
            let (unit, sum, lost) = Isa::Scalar.run(RoundQuery { x, out });
            along.push(Along::new(unit, sum, lost));
        }
        let (spread, numbers) = (positive(ROOTS * BLOCK, 5), positive(3, 7));
        Case { dim, keys, words, unit, spread, q, codes, along, numbers }
    }

    /// As they are stored, one way or the other.
    fn stored(&self) -> [NodeKeys<'_>; 2] {
        let (words, unit) = (&self.words, &self.unit);
        [NodeKeys::Whole(Stored::F32(&self.keys)), NodeKeys::Bytes(ByteKeys { words, unit })]
    }

    fn asking(&self) -> Asking<'_> {
        let q = Matrix { data: &self.q, stride: self.dim, cols: self.dim };
        Asking { q, bytes: Bytes { codes: &self.codes, of: &self.along }, base: &self.numbers }
    }

    fn means(&self) -> Means<'_> {
        let values = Values { data: Elements::F32(&[]), stride: 0, cols: 0 };
        Means { values, spread: &self.spread, reach: &self.spread, value_spread: &self.spread }
    }

    fn limits(&self, softcap: f32) -> Limits<'_> {
        let x = &self.numbers;
        Limits { reference: x, needle: x, mass: x, sigma: x, stand_out: 1.0, softcap }
    }
}

#[test]
fn scores_and_sums_of_all_nodes_are_those_of_root_blocks() {
    for &dim in first(1, &[20, 64, 1]) {
        let case = Case::new(dim);
        for isa in isas() {
            for (rows, softcap) in [(&[0, 1, 2][..], 0.0), (&[0], 3.0), (&[0, 1], 0.0)] {
                let n = rows.len();
                for stored in case.stored() {
                    let empty = || (vec![f32::NAN; ROOTS * STEP], vec![LOWEST; n * BLOCK], vec![0.0; n * BLOCK]);
                    let (mut scores, mut max, mut sum) = empty();
                    isa.run(ScoreRoots {
                        roots: Roots { keys: stored, means: case.means(), present: &PRESENT },
                        asking: case.asking(),
                        rows,
                        limits: case.limits(softcap),
                        scores: &mut scores,
                        step: STEP,
                        max: &mut max,
                        sum: &mut sum,
                    });
                    let mut want = empty();
                    for (at, &bits) in PRESENT.iter().enumerate().filter(|(_, bits)| **bits != 0) {
                        let (keys, asking) = (stored.blocks(at, 1, dim), case.asking());
                        let out = &mut want.0[at * STEP..][..n * BLOCK];
                        isa.run(ScoreNodes { keys, asking, rows, out });
                        let Means { spread, reach, .. } = case.means().block(at);
                        let present = &core::array::from_fn(|lane| f32::from(bits >> lane & 1));
                        let children = Children { spread, reach, present, bits, log2_count: 8.0 };
                        let (limits, max, sum) = (case.limits(softcap), &mut want.1[..], &mut want.2[..]);
                        isa.run(Total { scores: out, children, limits, count: n, max, sum });
                    }
                    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&scores), bits(&want.0), "{}, {dim}", isa.name());
                    assert_eq!([bits(&max), bits(&sum)], [bits(&want.1), bits(&want.2)], "{}, {dim}", isa.name());
                }
            }
        }
    }
}

#[test]
fn sums_are_of_what_is_seen() {
    let case = Case::new(20);
    for isa in isas() {
        let (mut scores, mut max, mut sum) = (vec![0.0; ROOTS * STEP], vec![LOWEST; 3 * BLOCK], vec![0.0; 3 * BLOCK]);
        isa.run(ScoreRoots {
            roots: Roots { keys: case.stored()[0], means: case.means(), present: &PRESENT },
            asking: case.asking(),
            rows: &[0, 1, 2],
            limits: case.limits(0.0),
            scores: &mut scores,
            step: STEP,
            max: &mut max,
            sum: &mut sum,
        });
        for r in 0..3 {
            let mut want = 0.0;
            for node in (0..ROOTS * BLOCK).filter(|i| PRESENT[i / BLOCK] >> (i % BLOCK) & 1 != 0) {
                let (at, lane) = (node / BLOCK, node % BLOCK);
                let key = |k: usize| f64::from(case.keys[(at * 20 + k) * BLOCK + lane]);
                let score: f64 = (0..20).map(|k| f64::from(case.q[r * 20 + k]) * key(k)).sum();
                close(scores[at * STEP + r * BLOCK + lane], score, 20.0, isa.name());
                let spread = f64::from(case.spread[node]) * f64::from(case.numbers[r]);
                // Of 256 keys one half a deviation above, the other below.
                want += 128.0 * ((score + spread).exp2() + (score - spread).exp2());
            }
            let lanes = max[r * BLOCK..][..BLOCK].iter().zip(&sum[r * BLOCK..]);
            let have: f64 = lanes.map(|(m, s)| f64::from(*m).exp2() * f64::from(*s)).sum();
            assert!((have / want - 1.0).abs() < 1e-5, "{}: {have} and {want}", isa.name());
        }
    }
}

#[test]
fn nothing_is_listed_where_nothing_is_seen() {
    let case = Case::new(20);
    let scores = noise(ROOTS * STEP, 8);
    for isa in isas() {
        let (mut weights, mut open, mut sure) = (vec![f32::NAN; ROOTS * BLOCK], vec![0xffff; ROOTS], vec![0; ROOTS]);
        isa.run(ChooseRoots {
            roots: Roots { keys: case.stored()[0], means: case.means(), present: &PRESENT },
            rows: &[0],
            limits: case.limits(0.0),
            scores: &scores,
            step: STEP,
            weights: &mut weights,
            open: &mut open,
            sure: &mut sure,
        });
        let seen = |i: usize| PRESENT[i / BLOCK] >> (i % BLOCK) & 1 != 0;
        assert!(weights.iter().enumerate().all(|(i, w)| if seen(i) { *w > 0.0 } else { *w == 0.0 }), "{}", isa.name());
        assert!(open.iter().zip(PRESENT).all(|(open, seen)| open & !seen == 0), "{}: {open:x?}", isa.name());
        assert!(open.iter().any(|x| *x != 0), "{}: {open:x?}", isa.name());
    }
}
