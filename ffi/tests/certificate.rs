//! Certificates through the border: a bound for every row of exact attention, which they ask for, and what the statistics say
//! of them.
// Every unsafe block here calls the border with live fixtures.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use iceformer::*;
use std::ptr::{null, null_mut};

const ROWS: usize = 40;
const LONG: usize = 1536;
const WIDE: usize = 32;
const HEADS: usize = 2;

/// Heads with enough tight groups of keys for cells.
struct Tight {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    out: Vec<f32>,
    bounds: Vec<f32>,
}

impl Tight {
    fn new() -> Tight {
        let near = |seed: u64| {
            let (centers, mut x) = (numbers(16 * WIDE, seed + 9), numbers(LONG * WIDE, seed));
            for (i, row) in x.chunks_mut(WIDE).enumerate() {
                row.iter_mut().zip(&centers[i % 16 * WIDE..]).for_each(|(x, c)| *x = *x * 0.02 + c);
            }
            x
        };
        Tight {
            q: numbers(HEADS * ROWS * WIDE, 5),
            k: near(6),
            v: near(7),
            out: vec![7.0; HEADS * ROWS * WIDE],
            bounds: vec![7.0; HEADS * ROWS],
        }
    }

    fn run(&mut self, mode: ice_mode, flags: u32, by_row: bool) -> ice_attention_stats {
        let mut d: ice_attention_desc = made(|p| unsafe { ice_attention_desc_init(p) });
        assert!(d.bounds.is_null());
        (d.batch, d.heads_q, d.heads_kv) = (1, HEADS as u32, 1);
        (d.dim_k, d.dim_v) = (WIDE as u32, WIDE as u32);
        (d.rows_q, d.rows_kv) = (ROWS, LONG);
        (d.q, d.k, d.v) = (tensor(&self.q), tensor(&self.k), tensor(&self.v));
        d.out = tensor_mut(&mut self.out);
        (d.options.mode, d.options.flags, d.options.tolerance) = (mode, flags, 0.1);
        if by_row {
            d.bounds = self.bounds.as_mut_ptr();
        }
        let (mut bytes, mut align) = (0, 0);
        ok(|e| unsafe { ice_attention_required(&d, &mut bytes, &mut align, e) });
        let mut work = vec![0u128; bytes.div_ceil(16) + align / 16];
        let mut st = stats();
        // Exactly the memory that was named.
        let at = work.as_mut_ptr().cast::<u8>();
        let at = at.wrapping_add(at.align_offset(align));
        ok(|e| unsafe { ice_attention(&d, at.cast(), bytes, &mut st, e) });
        st
    }

    /// Relative error of every row against `want`.
    fn errors(&self, want: &[f32]) -> Vec<f64> {
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let rows = self.out.chunks(WIDE).zip(want.chunks(WIDE));
        rows.map(|(a, b)| {
            let wrong = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
            wrong / norm(&mut b.iter().map(|b| f64::from(*b)))
        })
        .collect()
    }
}

#[test]
fn every_row_has_its_bound() {
    let mut exact = Tight::new();
    let st = exact.run(ICE_MODE_EXACT, ICE_ATTENTION_CERTIFICATE, true);
    let rounding = exact.bounds.iter().copied().fold(0.0, f32::max);
    assert_eq!((st.certificates, st.certified_error), ((HEADS * ROWS) as u64, rounding));
    assert!(exact.bounds.iter().all(|&b| b > 0.0) && rounding < 1e-3);
    for flags in [0, ICE_ATTENTION_CERTIFICATE, ICE_ATTENTION_VERIFIED] {
        let mut heads = Tight::new();
        let st = heads.run(ICE_MODE_ACCELERATED, flags, true);
        // Nothing but exact attention is certified.
        assert_eq!((st.mode, st.reason, st.pairs), (ICE_MODE_EXACT, ICE_REASON_ONLY_WAY, st.pairs_dense));
        assert!(st.rows_measured == 0 && st.measured_error.is_nan());
        for (row, (error, &bound)) in heads.errors(&exact.out).into_iter().zip(&heads.bounds).enumerate() {
            // The exact outputs are rounded too.
            assert!(error <= f64::from(bound) + 2.0 * f64::from(rounding), "row {row}: {error} and {bound}");
        }
        // Statistics are those of the rows.
        let n = heads.bounds.len() as f64;
        let mean = heads.bounds.iter().map(|&b| f64::from(b.min(1.0))).sum::<f64>() / n;
        assert_eq!(st.certificates, (HEADS * ROWS) as u64);
        assert_eq!(st.certified_error, heads.bounds.iter().copied().fold(0.0, f32::max));
        assert!((st.certified_mean - mean).abs() < 1e-9);
        assert_eq!(st.certified, heads.bounds.iter().filter(|&&b| b <= 0.1).count() as u64);
        if flags == ICE_ATTENTION_VERIFIED {
            assert!(st.certified == st.certificates && st.certified_error <= 0.1);
        }
    }
}

#[test]
fn statistics_alone_do_and_nothing_is_said_unasked() {
    let mut heads = Tight::new();
    let st = heads.run(ICE_MODE_ACCELERATED, ICE_ATTENTION_CERTIFICATE, false);
    assert!(st.certificates == (HEADS * ROWS) as u64 && st.certified_error.is_finite());
    assert!(heads.bounds.iter().all(|&b| b == 7.0));
    let st = heads.run(ICE_MODE_ACCELERATED, 0, false);
    assert!(st.certified_error.is_nan() && st.certified_mean.is_nan());
    assert_eq!((st.certificates, st.certified), (0, 0));
}

#[test]
fn a_session_certifies() {
    let heads = Tight::new();
    for flags in [0, ICE_ATTENTION_CERTIFICATE] {
        let mut o = session_options();
        (o.heads_q, o.heads_kv, o.capacity) = (HEADS as u32, 1, LONG);
        (o.dim_k, o.dim_v, o.kv_dtype) = (WIDE as u32, WIDE as u32, ICE_F16);
        (o.attention.mode, o.attention.flags, o.attention.tolerance) = (ICE_MODE_ACCELERATED, flags, 0.1);
        let s = new_session(&o);
        ok(|e| unsafe { ice_session_append(s, &tensor(&heads.k), &tensor(&heads.v), LONG, 0, 1, e) });
        status(ICE_OK, unsafe { ice_session_commit(s) });
        let (q, mut out, mut st) = (numbers(HEADS * WIDE, 8), vec![0.0; HEADS * WIDE], stats());
        let to = tensor_mut(&mut out);
        ok(|e| unsafe {
            ice_session_attend(s, &tensor(&q), 1, null(), &to, null_mut(), null_mut(), 0, 0, 1, &mut st, e)
        });
        assert_eq!(st.certificates, if flags == 0 { 0 } else { HEADS as u64 });
        assert_eq!(st.certified_error.is_nan(), flags == 0);
        unsafe { ice_session_free(s) };
    }
}
