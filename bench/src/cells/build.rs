//! Keys of complete segments gathered into cells: parents by hash, nearest assignment, Lloyd steps.

use iceformer_core::math::hash;

/// How cells are made.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Keys of a segment; a multiple of the query chunk, 512.
    pub segment: usize,
    /// Mean keys of a cell.
    pub cell: usize,
    /// Lloyd steps after the first assignment.
    pub lloyd: usize,
    /// First keys that stay outside, attended exactly.
    pub sinks: usize,
    /// Runs of consecutive keys instead of similar ones.
    pub by_position: bool,
}

/// Cells over the first `done` keys of a head.
pub struct Cells {
    /// Keys `sinks..done` are in cells.
    pub done: usize,
    /// Cell of every key; `u32::MAX` outside.
    pub of: Vec<u32>,
    /// Keys by cell.
    pub keys: Vec<Vec<u32>>,
    /// Last key of the cell's segment plus one: a row past it sees the whole cell.
    pub end: Vec<usize>,
    /// Mean keys `[cells, dim]`.
    pub mean: Vec<f64>,
    /// Mean values `[cells, dim]`.
    pub value: Vec<f64>,
    /// Mean squared distance of a cell's keys from their mean.
    pub spread: Vec<f64>,
    /// Mean within-cell covariance of the keys, scaled to trace 1: `[dim, dim]`.
    pub covariance: Vec<f64>,
}

fn sq_dist(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum()
}

/// Labels of the keys of one segment, `0..parents`, some perhaps empty.
fn label(keys: &[f32], d: usize, shape: &Shape, seed: u64) -> Vec<usize> {
    let n = keys.len() / d;
    if shape.by_position {
        return (0..n).map(|i| i / shape.cell).collect();
    }
    let parents = n.div_ceil(shape.cell);
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|&i| hash(seed, i as u64));
    let mut centres: Vec<Vec<f64>> =
        order[..parents].iter().map(|&i| keys[i * d..][..d].iter().map(|&x| f64::from(x)).collect()).collect();
    let assign = |centres: &[Vec<f64>]| -> Vec<usize> {
        keys.chunks(d)
            .map(|k| {
                let best = (0..centres.len()).map(|c| (sq_dist(&centres[c], k), c)).min_by(|a, b| a.0.total_cmp(&b.0));
                best.map_or(0, |b| b.1)
            })
            .collect()
    };
    for _ in 0..shape.lloyd {
        let labels = assign(&centres);
        for (c, centre) in centres.iter_mut().enumerate() {
            let members: Vec<usize> = (0..n).filter(|&i| labels[i] == c).collect();
            if !members.is_empty() {
                centre.fill(0.0);
                for &i in &members {
                    centre
                        .iter_mut()
                        .zip(&keys[i * d..][..d])
                        .for_each(|(c, &x)| *c += f64::from(x) / members.len() as f64);
                }
            }
        }
    }
    assign(&centres)
}

impl Cells {
    /// Cells over the complete segments of `keys [n, d]`, `values [n, d]`.
    pub fn new(keys: &[f32], values: &[f32], d: usize, shape: &Shape) -> Cells {
        let n = keys.len() / d;
        let done = n / shape.segment * shape.segment;
        let mut cells = Cells {
            done,
            of: vec![u32::MAX; n],
            keys: Vec::new(),
            end: Vec::new(),
            mean: Vec::new(),
            value: Vec::new(),
            spread: Vec::new(),
            covariance: vec![0.0; d * d],
        };
        for start in (0..done).step_by(shape.segment) {
            let (first, end) = (start.max(shape.sinks), start + shape.segment);
            if first >= end {
                continue;
            }
            let labels = label(&keys[first * d..end * d], d, shape, start as u64);
            for c in 0..=labels.iter().copied().max().unwrap_or(0) {
                let members: Vec<u32> =
                    (0..labels.len()).filter(|&i| labels[i] == c).map(|i| (first + i) as u32).collect();
                if !members.is_empty() {
                    cells.add(keys, values, d, members, end);
                }
            }
        }
        let trace: f64 = (0..d).map(|i| cells.covariance[i * d + i]).sum();
        cells.covariance.iter_mut().for_each(|x| *x /= trace.max(f64::MIN_POSITIVE));
        cells
    }

    fn add(&mut self, keys: &[f32], values: &[f32], d: usize, members: Vec<u32>, end: usize) {
        let mean = |x: &[f32]| -> Vec<f64> {
            let mut m = vec![0.0; d];
            for &i in &members {
                m.iter_mut()
                    .zip(&x[i as usize * d..][..d])
                    .for_each(|(m, &x)| *m += f64::from(x) / members.len() as f64);
            }
            m
        };
        let (centre, value) = (mean(keys), mean(values));
        let mut spread = 0.0;
        for &i in &members {
            self.of[i as usize] = self.keys.len() as u32;
            let r: Vec<f64> = keys[i as usize * d..][..d].iter().zip(&centre).map(|(&k, m)| f64::from(k) - m).collect();
            spread += r.iter().map(|x| x * x).sum::<f64>() / members.len() as f64;
            for a in 0..d {
                for b in 0..d {
                    self.covariance[a * d + b] += r[a] * r[b];
                }
            }
        }
        self.mean.extend(centre);
        self.value.extend(value);
        self.spread.push(spread);
        self.end.push(end);
        self.keys.push(members);
    }
}
