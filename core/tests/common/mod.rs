//! Shared by the attention tests: an f64 twin of every mask and mode, and deterministic data.
#![allow(dead_code, unsafe_code)]

pub mod heads;
pub mod tokens;

use iceformer_core::attention::{AttentionOptions, Mask};
use iceformer_core::mem::{Hooks, Memory};
use std::alloc::Layout;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Blocks taken so far through [`memory`], by any test of this program.
pub static TAKEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn take(_: *mut c_void, size: usize, align: usize) -> *mut c_void {
    TAKEN.fetch_add(1, Relaxed);
    // SAFETY: the library asks for a valid, non-zero layout.
    unsafe { std::alloc::alloc(Layout::from_size_align(size, align).unwrap()).cast() }
}

extern "C" fn give(_: *mut c_void, ptr: *mut c_void, size: usize, align: usize) {
    // SAFETY: the block came from `take` with this layout.
    unsafe { std::alloc::dealloc(ptr.cast(), Layout::from_size_align(size, align).unwrap()) }
}

/// Memory through hooks: there in every build of the library, also without `alloc`.
pub fn memory(limit: usize) -> Memory {
    // SAFETY: the hooks keep their contract.
    unsafe { Memory::hooks(Hooks { user: std::ptr::null_mut(), alloc: take, free: give }, limit) }.unwrap()
}

/// Deterministic floats in [-scale, scale).
pub fn noise(n: usize, seed: u64, scale: f32) -> Vec<f32> {
    (0..n)
        .map(|i| scale * ((iceformer_core::math::hash(seed, i as u64) >> 40) as f32 / (1u64 << 23) as f32 - 1.0))
        .collect()
}

/// One head in f64: rows `q [rows_q, dim_k]`, `k [rows_kv, dim_k]`, `v [rows_kv, dim_v]`.
pub struct Naive<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub dim_k: usize,
    pub dim_v: usize,
    pub options: AttentionOptions,
    /// Whether row i sees key j, and the bias on it.
    pub sees: &'a dyn Fn(usize, usize) -> Option<f32>,
    /// Keep only this many of the largest inner products per row.
    pub top: usize,
}

impl Naive<'_> {
    /// Output rows and log-sum-exp.
    pub fn run(&self) -> (Vec<f64>, Vec<f64>) {
        let (rows_q, rows_kv) = (self.q.len() / self.dim_k, self.v.len() / self.dim_v);
        let o = &self.options;
        let scale = if o.scale == 0.0 { 1.0 / (self.dim_k as f64).sqrt() } else { f64::from(o.scale) };
        let (mut out, mut lse) = (vec![0.0; rows_q * self.dim_v], vec![f64::NEG_INFINITY; rows_q]);
        for i in 0..rows_q {
            let q = &self.q[i * self.dim_k..][..self.dim_k];
            let mut seen: Vec<(f64, f64, usize)> = (0..rows_kv)
                .filter_map(|j| (self.sees)(i, j).filter(|&b| b != f32::NEG_INFINITY).map(|b| (j, b)))
                .map(|(j, bias)| {
                    let k = &self.k[j * self.dim_k..][..self.dim_k];
                    let dot: f64 = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    let mut s = scale * dot;
                    if o.softcap > 0.0 {
                        s = f64::from(o.softcap) * (s / f64::from(o.softcap)).tanh();
                    }
                    (dot, s + f64::from(bias), j)
                })
                .collect();
            seen.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
            seen.truncate(self.top);
            let max = seen.iter().map(|s| s.1).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = seen.iter().map(|s| (s.1 - max).exp()).sum();
            for (_, s, j) in &seen {
                let weight = (s - max).exp() / sum;
                for c in 0..self.dim_v {
                    out[i * self.dim_v + c] += weight * f64::from(self.v[j * self.dim_v + c]);
                }
            }
            if !seen.is_empty() {
                lse[i] = max + sum.ln();
            }
        }
        (out, lse)
    }
}

/// What a mask with window and sinks shows to row `i` of batch 0, head 0, spelled out.
pub fn sees(mask: &Mask<'_>, window: usize, sinks: usize, i: usize, j: usize) -> Option<f32> {
    let (i, j) = (i as i64, j as i64);
    let (pos, limited) = match mask {
        Mask::Causal { q_pos0 } | Mask::CausalKeys { q_pos0, .. } => (*q_pos0 as i64 + i, j > *q_pos0 as i64 + i),
        Mask::Prefix(counts) => (counts[i as usize] as i64 - 1, j >= counts[i as usize] as i64),
        _ => (i, false),
    };
    if limited {
        return None;
    }
    let two_sided = !matches!(mask, Mask::Causal { .. } | Mask::CausalKeys { .. } | Mask::Prefix(_));
    let w = window as i64;
    let outside = w > 0 && (j <= pos - w || (two_sided && j >= pos + w));
    if outside && j >= sinks as i64 {
        return None;
    }
    match mask {
        Mask::Keys(keep) | Mask::CausalKeys { keep, .. } if keep[j as usize] == 0 => None,
        Mask::Additive(t) => {
            let mut b = [0.0];
            t.head(0, 0).read_part(i as usize, j as usize, &mut b);
            Some(b[0])
        }
        _ => Some(0.0),
    }
}

/// Largest error of a row relative to the size of the values in it.
pub fn worst(got: &[f32], want: &[f64], dim: usize) -> f64 {
    got.chunks(dim)
        .zip(want.chunks(dim))
        .map(|(g, w)| {
            let err: f64 = g.iter().zip(w).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum();
            let size: f64 = w.iter().map(|w| w * w).sum();
            (err.sqrt()) / size.sqrt().max(1e-3)
        })
        .fold(0.0, f64::max)
}

/// Bytes that outlive every index, at `off` bytes from an aligned address.
pub fn kept(bytes: &[u8], off: usize) -> &'static [u8] {
    // Still reachable in the end: no leak.
    static ALL: Mutex<Vec<&[u64]>> = Mutex::new(Vec::new());
    let mut words = vec![0u64; bytes.len() / 8 + 2];
    // SAFETY: words are bytes.
    let (_, all, _) = unsafe { words.align_to_mut::<u8>() };
    all[off..][..bytes.len()].copy_from_slice(bytes);
    let words: &'static [u64] = words.leak();
    ALL.lock().unwrap().push(words);
    // SAFETY: words are bytes.
    let (_, all, _) = unsafe { words.align_to::<u8>() };
    &all[off..][..bytes.len()]
}
