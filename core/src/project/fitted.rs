//! Directions fitted to a head: the leading eigenvectors of the covariance of keys within their cells, which carry most
//! of what tells the keys of a cell apart.

use crate::math::hash;

/// Directions kept: a vector of coordinates is a block for the kernels.
pub const RANK: usize = crate::simd::block::RANK;

/// Rounds of subspace iteration. The span need not be exact: what it leaves out is accounted for.
const ROUNDS: usize = 12;

/// Fits an orthonormal basis `[dim][RANK]` to the symmetric matrix `moment` (`[dim][stride]`), with the variance along
/// each of its columns; columns beyond the matrix's rank are zero. `room` is as long as the basis. O(dim^2 RANK) a round,
/// no allocation.
///
/// # Panics
/// If a slice is too short.
pub fn fit(moment: &[f32], stride: usize, basis: &mut [f32], room: &mut [f32]) -> [f32; RANK] {
    let dim = basis.len() / RANK;
    for (i, x) in basis.iter_mut().enumerate() {
        *x = (hash(0x6669_7474, i as u64) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    }
    let mut variance = [0.0; RANK];
    for _ in 0..ROUNDS {
        orthonormalise(basis);
        for (row, out) in moment.chunks_exact(stride).zip(room.chunks_exact_mut(RANK)).take(dim) {
            let mut sum = [0.0; RANK];
            for (&c, v) in row.iter().zip(basis.chunks_exact(RANK)) {
                for (s, &v) in sum.iter_mut().zip(v) {
                    *s += c * v;
                }
            }
            out.copy_from_slice(&sum);
        }
        for (r, variance) in variance.iter_mut().enumerate() {
            *variance = column_dot(basis, room, r, r).max(0.0);
        }
        basis.copy_from_slice(&room[..basis.len()]);
    }
    orthonormalise(basis);
    variance
}

fn column_dot(a: &[f32], b: &[f32], i: usize, j: usize) -> f32 {
    a.chunks_exact(RANK).zip(b.chunks_exact(RANK)).map(|(a, b)| a[i] * b[j]).sum()
}

/// Gram-Schmidt, twice for each column; a column that vanishes stays zero.
fn orthonormalise(x: &mut [f32]) {
    for j in 0..RANK {
        let before = column_dot(x, x, j, j);
        for _ in 0..2 {
            for i in 0..j {
                let dot = column_dot(x, x, i, j);
                x.chunks_exact_mut(RANK).for_each(|row| row[j] -= dot * row[i]);
            }
        }
        let norm2 = column_dot(x, x, j, j);
        let factor = if norm2 > before * 1e-10 && norm2 > f32::MIN_POSITIVE { 1.0 / libm::sqrtf(norm2) } else { 0.0 };
        x.chunks_exact_mut(RANK).for_each(|row| row[j] *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    /// A covariance with known axes: a rotation of coordinates 2 i and 2 i + 1, variances falling by a third.
    fn moment(dim: usize) -> Vec<f32> {
        let (c, s) = (0.8f32, 0.6f32);
        let mut m = vec![0.0; dim * dim];
        for i in 0..dim / 2 {
            let (a, b) = (0.66f32.powi(2 * i as i32), 0.66f32.powi(2 * i as i32 + 1));
            let at = |x: usize, y: usize| (2 * i + x) * dim + 2 * i + y;
            m[at(0, 0)] = c * c * a + s * s * b;
            m[at(1, 1)] = s * s * a + c * c * b;
            m[at(0, 1)] = c * s * (a - b);
            m[at(1, 0)] = m[at(0, 1)];
        }
        m
    }

    #[test]
    fn leading_axes_are_found() {
        for dim in [16, 24, 40] {
            let m = moment(dim);
            let (mut basis, mut room) = (vec![0.0; dim * RANK], vec![0.0; dim * RANK]);
            let variance = fit(&m, dim, &mut basis, &mut room);
            let kept: f32 = variance.iter().sum();
            let best: f32 = (0..RANK.min(dim)).map(|i| 0.66f32.powi(i as i32)).sum();
            assert!(kept > 0.999 * best && kept < 1.001 * best, "{kept} of {best}");
            for i in 0..RANK.min(dim) {
                for j in 0..=i {
                    let want = if i == j { 1.0 } else { 0.0 };
                    assert!((column_dot(&basis, &basis, i, j) - want).abs() < 1e-4);
                }
            }
        }
    }

    #[test]
    fn columns_beyond_the_rank_are_zero() {
        let mut m = vec![0.0; 64];
        m[0] = 2.0;
        m[9] = 1.0;
        let (mut basis, mut room) = (vec![0.0; 8 * RANK], vec![0.0; 8 * RANK]);
        let variance = fit(&m, 8, &mut basis, &mut room);
        assert!((variance.iter().sum::<f32>() - 3.0).abs() < 1e-4);
        assert!(variance[2..].iter().all(|&v| v < 1e-6));
        fit(&[0.0; 64], 8, &mut basis, &mut room);
        assert!(basis.iter().all(|&x| x == 0.0));
    }
}
