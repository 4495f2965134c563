//! Matrix products and what stands between them.

use crate::matrix;

/// `rows x in` times the transpose of `out x in`; added to `to` where `add` says so. Threads take blocks of rows.
///
/// # Panics
/// If the sizes do not fit together.
pub fn product(x: &[f32], w: &[f32], inner: usize, to: &mut [f32], add: bool, threads: usize) {
    let (rows, cols) = (x.len() / inner, w.len() / inner);
    assert!(x.len() == rows * inner && w.len() == cols * inner && to.len() == rows * cols);
    let block = rows.div_ceil(threads.max(1)).max(1);
    let parts = x.chunks(block * inner).zip(to.chunks_mut(block * cols));
    if threads <= 1 || rows < 32 {
        parts.for_each(|(x, to)| matrix::product(x, w, inner, to, add));
        return;
    }
    std::thread::scope(|s| {
        parts.for_each(|(x, to)| {
            s.spawn(move || matrix::product(x, w, inner, to, add));
        });
    });
}

/// Rows scaled to unit mean square, times the weights.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, to: &mut [f32]) {
    for (x, to) in x.chunks(weight.len()).zip(to.chunks_mut(weight.len())) {
        let square = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
        let scale = 1.0 / (square + epsilon).sqrt();
        to.iter_mut().zip(x).zip(weight).for_each(|((to, x), w)| *to = x * scale * w);
    }
}

/// `gate` becomes `silu(gate) * up`.
pub fn gated(gate: &mut [f32], up: &[f32]) {
    gate.iter_mut().zip(up).for_each(|(g, u)| *g = *g / (1.0 + (-*g).exp()) * u);
}

/// Place of the largest element, the first of equals.
pub fn largest(x: &[f32]) -> usize {
    (1..x.len()).fold(0, |best, i| if x[i] > x[best] { i } else { best })
}

/// Logarithms of the softmax of one row.
pub fn log_softmax(x: &[f32]) -> Vec<f64> {
    let max = f64::from(x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let log = max + x.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln();
    x.iter().map(|&x| f64::from(x) - log).collect()
}
