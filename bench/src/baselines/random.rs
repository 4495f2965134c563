//! Random matrices from a seed.

use crate::draw::Draw;

/// `n` independent standard normal numbers (Box-Muller).
pub fn normals(n: usize, seed: u64) -> Vec<f32> {
    let mut draw = Draw::new(seed);
    // In (0, 1), so that the logarithm is finite.
    let mut uniform = || ((draw.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let mut out = Vec::with_capacity(n + 1);
    while out.len() < n {
        let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), std::f64::consts::TAU * uniform());
        out.extend([(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]);
    }
    out.truncate(n);
    out
}

/// `[rows, dim]` in blocks of `dim` rows that are orthogonal to each other, each as long as a normal vector would be.
pub fn orthogonal(rows: usize, dim: usize, seed: u64) -> Vec<f32> {
    let mut out = normals(rows * dim, seed);
    let lengths = normals(rows * dim, seed ^ 0x5bd1_e995);
    for block in out.chunks_mut(dim * dim) {
        for i in 0..block.len() / dim {
            let (done, row) = block.split_at_mut(i * dim);
            let row = &mut row[..dim];
            // Twice: once leaves what rounding put back.
            for _ in 0..2 {
                for other in done.chunks(dim) {
                    let dot: f64 = other.iter().zip(&*row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    row.iter_mut().zip(other).for_each(|(x, o)| *x -= dot as f32 * o);
                }
                let norm = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
                row.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
            }
        }
    }
    for (row, length) in out.chunks_mut(dim).zip(lengths.chunks(dim)) {
        let length = length.iter().map(|x| x * x).sum::<f32>().sqrt();
        row.iter_mut().for_each(|x| *x *= length);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_their_moments() {
        let x = normals(200_001, 3);
        let moment = |p: i32| x.iter().map(|&x| f64::from(x).powi(p)).sum::<f64>() / x.len() as f64;
        for (p, want, slack) in [(1, 0.0, 0.01), (2, 1.0, 0.02), (3, 0.0, 0.05), (4, 3.0, 0.1)] {
            assert!((moment(p) - want).abs() < slack, "moment {p}: {}", moment(p));
        }
        assert_eq!(x, normals(200_001, 3));
    }

    #[test]
    fn blocks_are_orthogonal() {
        let (rows, dim) = (20, 8);
        let x = orthogonal(rows, dim, 5);
        for block in x.chunks(dim * dim) {
            for (i, a) in block.chunks(dim).enumerate() {
                for b in block.chunks(dim).take(i) {
                    assert!(a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>().abs() < 1e-4);
                }
            }
        }
    }
}
