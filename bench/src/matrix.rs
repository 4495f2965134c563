//! Products of row-major f32 matrices.

/// `to` (+)= `a` times the transpose of `b`: `[m, inner] x [n, inner] -> [m, n]`.
///
/// # Panics
/// If the sizes do not fit together.
pub fn product(a: &[f32], b: &[f32], inner: usize, to: &mut [f32], add: bool) {
    let (m, n) = (a.len() / inner, b.len() / inner);
    gemm((a, m, inner, false), (b, inner, n, true), to, add);
}

/// `to` (+)= `a` times `b`: `[m, inner] x [inner, n] -> [m, n]`.
///
/// # Panics
/// As [`product`].
pub fn times(a: &[f32], b: &[f32], inner: usize, to: &mut [f32], add: bool) {
    let (m, n) = (a.len() / inner, b.len() / inner);
    gemm((a, m, inner, false), (b, inner, n, false), to, add);
}

/// `to` (+)= the transpose of `a` times `b`: `[inner, m] x [inner, n] -> [m, n]`.
///
/// # Panics
/// As [`product`].
pub fn gram(a: &[f32], b: &[f32], inner: usize, to: &mut [f32], add: bool) {
    let (m, n) = (a.len() / inner, b.len() / inner);
    gemm((a, m, inner, true), (b, inner, n, false), to, add);
}

/// A matrix with its rows, columns, and whether it is stored the other way round.
type Side<'a> = (&'a [f32], usize, usize, bool);

fn gemm((a, m, k, a_turned): Side<'_>, (b, k_b, n, b_turned): Side<'_>, to: &mut [f32], add: bool) {
    assert!(k == k_b && a.len() == m * k && b.len() == k * n && to.len() == m * n, "sizes fit together");
    let strides = |rows: usize, cols: usize, turned: bool| {
        if turned { (1, rows as isize) } else { (cols as isize, 1) }
    };
    let ((a_row, a_col), (b_row, b_col)) = (strides(m, k, a_turned), strides(k, n, b_turned));
    let beta = if add { 1.0 } else { 0.0 };
    // SAFETY: the three slices are m x k, k x n and m x n, checked above; the strides walk exactly those.
    unsafe {
        let (a, b, to) = (a.as_ptr(), b.as_ptr(), to.as_mut_ptr());
        matrixmultiply::sgemm(m, k, n, 1.0, a, a_row, a_col, b, b_row, b_col, beta, to, n as isize, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speed::noise;

    #[test]
    fn as_written_out() {
        for (m, k, n) in [(1, 1, 1), (5, 7, 3), (20, 33, 17), (64, 8, 9)] {
            let (a, b) = (noise(m * k, 1), noise(k * n, 2));
            let at: Vec<f32> = (0..k * m).map(|i| a[(i % m) * k + i / m]).collect();
            let bt: Vec<f32> = (0..n * k).map(|i| b[(i % k) * n + i / k]).collect();
            let want: Vec<f64> = (0..m * n)
                .map(|i| (0..k).map(|x| f64::from(a[i / n * k + x]) * f64::from(b[x * n + i % n])).sum())
                .collect();
            for add in [false, true] {
                let base = if add { 2.0 } else { 0.0 };
                let check = |to: &[f32]| {
                    for (have, want) in to.iter().zip(&want) {
                        assert!((f64::from(*have) - base - want).abs() < 1e-4, "{m} {k} {n}");
                    }
                };
                let mut to = vec![2.0; m * n];
                product(&a, &bt, k, &mut to, add);
                check(&to);
                to.fill(2.0);
                times(&a, &b, k, &mut to, add);
                check(&to);
                to.fill(2.0);
                gram(&at, &b, k, &mut to, add);
                check(&to);
            }
        }
    }
}
