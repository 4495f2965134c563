//! One new row per head against many keys, and several.

use super::{noise, options, timed};
use half::f16;
use iceformer_core::attention::{AttentionOptions, Mask, Mode, Problem, attention, required};
use iceformer_core::mem::{Dtype, Memory, Tensor, TensorMut};
use iceformer_core::simd::Isa;

/// What one table row is measured on: keys and values of one head, in the order of rows.
struct Data {
    n: usize,
    d: usize,
    half: bool,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Data {
    fn new(n: usize, d: usize, half: bool) -> Data {
        // Halves are kept in the bits of f32 vectors, so that one probe reads both.
        let make = |seed| {
            let x = noise(n * d, seed);
            if !half {
                return x;
            }
            let bits = |x: f32| u32::from(f16::from_f32(x).to_bits());
            x.chunks(2).map(|c| f32::from_bits(bits(c[0]) | bits(c[1]) << 16)).collect()
        };
        Data { n, d, half, k: make(2), v: make(3) }
    }

    fn tensor(&self, x: &[f32]) -> Tensor<'_> {
        let dtype = if self.half { Dtype::F16 } else { Dtype::F32 };
        // SAFETY: `x` is one of the two vectors, n rows of d elements of this type, borrowed as long as the view.
        unsafe { Tensor::from_raw(x.as_ptr().cast(), dtype, [1, 1, self.n, self.d], [0; 3], "kv").expect("kv") }
    }

    /// Seconds of one attention call with `rows` rows of each of `heads` query heads.
    fn attend(&self, isa: Isa, heads: usize, rows: usize, q: &[f32], out: &mut [f32]) -> f64 {
        let shape = [1, heads, rows, self.d];
        let problem = Problem {
            q: Tensor::new(q, shape).expect("q"),
            k: self.tensor(&self.k),
            v: self.tensor(&self.v),
            out: TensorMut::new(out, shape).expect("out"),
            lse: None,
            bounds: None,
            mask: Mask::None,
            options: AttentionOptions { mode: Mode::Exact, ..options(isa, 1) },
        };
        let memory = Memory::system(required(&problem).expect("plan").bytes).expect("memory");
        timed(|| {
            attention(&problem, &memory).expect("attention");
        })
    }

    /// Seconds of reading keys and values once, in order.
    fn read(&self, isa: Isa) -> f64 {
        timed(|| {
            for x in [&self.k, &self.v] {
                std::hint::black_box(isa.norm2(std::hint::black_box(x)));
            }
        })
    }
}

/// Microseconds per head of decoding and of reading the same bytes, interleaved, the best of many rounds.
pub fn table(isa: Isa, sizes: &[usize]) {
    println!("\nDecode, one row a head, {}, microseconds; all heads of a group share one KV head:\n", isa.name());
    println!("| keys | d | elements | read | one head | share of read rate | group of 4 | to one head | GB/s read |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for &n in sizes {
        for (d, half) in [(64, true), (128, true), (128, false)] {
            let data = Data::new(n, d, half);
            let q = noise(4 * d, 1);
            let mut out = vec![0.0; 4 * d];
            let mut best = [f64::INFINITY; 3];
            for _ in 0..(1 << 21) / n + 12 {
                best[0] = best[0].min(data.read(isa));
                best[1] = best[1].min(data.attend(isa, 1, 1, &q[..d], &mut out[..d]));
                best[2] = best[2].min(data.attend(isa, 4, 1, &q, &mut out));
            }
            let [read, one, four] = best;
            println!(
                "| {n} | {d} | {} | {:.1} | {:.1} | {:.1} % | {:.1} | {:.2}x | {:.1} |",
                if half { "f16" } else { "f32" },
                read * 1e6,
                one * 1e6,
                read / one * 100.0,
                four * 1e6,
                four / one,
                (2 * n * d * if half { 2 } else { 4 }) as f64 / read / 1e9,
            );
        }
    }
}

/// Rows of [`rows`].
const ROWS: [usize; 9] = [1, 4, 5, 8, 12, 13, 16, 32, 48];

/// Microseconds of a call of a few rows of each head, work memory made in it, as where guesses of the next tokens are checked; the best of
/// many rounds.
pub fn rows(isa: Isa, sizes: &[usize]) {
    println!("\nA few rows a head, {}, microseconds; all heads share one KV head:\n", isa.name());
    let join = |cells: Vec<String>| cells.join(" | ");
    println!("| keys | d | elements | heads | {} |", join(ROWS.iter().map(|r| format!("{r} rows")).collect()));
    println!("|---|---|---|---|{}", "---|".repeat(ROWS.len()));
    for &n in sizes {
        for (d, half) in [(64, true), (128, true), (64, false)] {
            let data = Data::new(n, d, half);
            for heads in [1, 4] {
                let most = heads * ROWS[ROWS.len() - 1] * d;
                let (q, mut out) = (noise(most, 1), vec![0.0; most]);
                let mut best = [f64::INFINITY; ROWS.len()];
                for _ in 0..(1 << 19) / n + 12 {
                    for (best, rows) in best.iter_mut().zip(ROWS) {
                        let len = heads * rows * d;
                        *best = best.min(data.attend(isa, heads, rows, &q[..len], &mut out[..len]));
                    }
                }
                let cells = best.iter().map(|s| format!("{:.0}", s * 1e6)).collect();
                println!("| {n} | {d} | {} | {heads} | {} |", if half { "f16" } else { "f32" }, join(cells));
            }
        }
    }
}
