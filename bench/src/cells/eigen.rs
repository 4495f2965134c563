//! Eigenvectors of small symmetric matrices by cyclic Jacobi rotations.

/// Eigenvalues in descending order and their eigenvectors as columns of `vectors[row * n + column]`; `a` is symmetric,
/// `n x n`, row-major.
pub fn symmetric(a: &[f64], n: usize) -> (Vec<f64>, Vec<f64>) {
    let mut a = a.to_vec();
    let mut v: Vec<f64> = (0..n * n).map(|i| f64::from(u8::from(i / n == i % n))).collect();
    for _ in 0..30 {
        let off: f64 = (0..n * n).filter(|i| i / n != i % n).map(|i| a[i] * a[i]).sum();
        let all: f64 = a.iter().map(|x| x * x).sum();
        if off <= 1e-22 * all {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                let apq = a[p * n + q];
                if apq == 0.0 {
                    continue;
                }
                let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * apq);
                let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
                let t = if theta == 0.0 { 1.0 } else { t };
                let c = 1.0 / (t * t + 1.0).sqrt();
                let s = t * c;
                for k in 0..n {
                    let (x, y) = (a[k * n + p], a[k * n + q]);
                    (a[k * n + p], a[k * n + q]) = (c * x - s * y, s * x + c * y);
                }
                for k in 0..n {
                    let (x, y) = (a[p * n + k], a[q * n + k]);
                    (a[p * n + k], a[q * n + k]) = (c * x - s * y, s * x + c * y);
                }
                for k in 0..n {
                    let (x, y) = (v[k * n + p], v[k * n + q]);
                    (v[k * n + p], v[k * n + q]) = (c * x - s * y, s * x + c * y);
                }
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| a[j * n + j].total_cmp(&a[i * n + i]));
    let values = order.iter().map(|&i| a[i * n + i]).collect();
    let vectors = (0..n * n).map(|i| v[i / n * n + order[i % n]]).collect();
    (values, vectors)
}

/// `a b` for `n x n` matrices.
pub fn product(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
    let mut c = vec![0.0; n * n];
    for i in 0..n {
        for k in 0..n {
            for j in 0..n {
                c[i * n + j] += a[i * n + k] * b[k * n + j];
            }
        }
    }
    c
}

/// `U f(w) U^T` for the eigenvalues w of a symmetric matrix.
pub fn of_eigenvalues(a: &[f64], n: usize, f: impl Fn(f64) -> f64) -> Vec<f64> {
    let (w, u) = symmetric(a, n);
    let scaled: Vec<f64> = (0..n * n).map(|i| u[i] * f(w[i % n])).collect();
    let transposed: Vec<f64> = (0..n * n).map(|i| u[i % n * n + i / n]).collect();
    product(&scaled, &transposed, n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_diagonalise() {
        let n = 7;
        let x: Vec<f64> = (0..n * n).map(|i| ((i * i * 7 + 3 * i) % 11) as f64 - 5.0).collect();
        let transposed: Vec<f64> = (0..n * n).map(|i| x[i % n * n + i / n]).collect();
        let a = product(&x, &transposed, n);
        let (w, v) = symmetric(&a, n);
        assert!(w.is_sorted_by(|a, b| a >= b));
        for j in 0..n {
            for i in 0..n {
                let av: f64 = (0..n).map(|k| a[i * n + k] * v[k * n + j]).sum();
                assert!((av - w[j] * v[i * n + j]).abs() < 1e-9 * w[0]);
            }
        }
        let root = of_eigenvalues(&a, n, |w| w.max(0.0).sqrt());
        let again = product(&root, &root, n);
        assert!(again.iter().zip(&a).all(|(x, y)| (x - y).abs() < 1e-8 * w[0]));
    }
}
