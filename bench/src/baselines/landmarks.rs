//! Landmarks: means of consecutive rows.

/// Means `[count, dim]` of `count` runs of consecutive rows, whose lengths differ by at most one.
///
/// # Panics
/// If there are fewer rows than `count`.
pub fn segment_means(x: &[f32], dim: usize, count: usize) -> Vec<f32> {
    let n = x.len() / dim;
    assert!((1..=n).contains(&count), "a run has a row");
    let mut out = vec![0.0; count * dim];
    for (i, mean) in out.chunks_mut(dim).enumerate() {
        let (begin, end) = (i * n / count, (i + 1) * n / count);
        for row in x[begin * dim..end * dim].chunks(dim) {
            mean.iter_mut().zip(row).for_each(|(m, x)| *m += x);
        }
        mean.iter_mut().for_each(|m| *m /= (end - begin) as f32);
    }
    out
}
