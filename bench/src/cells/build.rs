//! Keys of complete segments gathered into cells, and cells into nodes.

use iceformer_core::math::hash;

/// How cells are made.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Keys of a segment; a multiple of the query chunk, 512.
    pub segment: usize,
    /// Mean keys of a cell.
    pub cell: usize,
    /// How keys come together.
    pub split: Split,
    /// First keys that stay outside, attended exactly.
    pub sinks: usize,
    /// Distances between keys as the head's queries see them: along `E[q q^T]`, not as they are.
    pub whitened: bool,
}

/// How the keys of a segment come together in cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Split {
    /// Halves, again and again, at the median along the difference of two means: what the library does.
    Halves,
    /// Parents drawn by hash, keys to the nearest, so many Lloyd steps.
    Parents(usize),
    /// Runs of consecutive keys.
    Position,
}

/// Keys of a cell's, and cells of a node's, parent.
pub const CHILDREN: usize = 16;

/// Runs of [`CHILDREN`] cells, or of nodes, of one segment.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// Children of every group.
    pub children: Vec<std::ops::Range<usize>>,
    /// What is known of the keys below.
    pub known: Known,
}

/// What is kept of sets of keys.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Keys of each.
    pub keys: Vec<Vec<u32>>,
    /// Last key of the segment plus one: a row past it sees the whole set.
    pub end: Vec<usize>,
    /// Mean keys `[sets, dim]`.
    pub mean: Vec<f64>,
    /// Mean values `[sets, dim]`.
    pub value: Vec<f64>,
    /// Mean squared distance of the keys from their mean.
    pub spread: Vec<f64>,
    /// Largest distance.
    pub reach: Vec<f64>,
    /// Mean covariance of the keys within their set, scaled to trace 1: `[dim, dim]`.
    pub covariance: Vec<f64>,
    /// Covariance of values (rows) with keys within their set, scaled alike: `[dim, dim]`.
    pub crossed: Vec<f64>,
}

/// Cells over the first `done` keys of a head.
pub struct Cells {
    /// Keys `sinks..done` are in cells.
    pub done: usize,
    /// Cell of every key; `u32::MAX` outside.
    pub of: Vec<u32>,
    /// The cells.
    pub known: Known,
    /// Nodes of cells, nodes of nodes: where segments have room for them.
    pub above: [Groups; 2],
}

fn sq_dist(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum()
}

/// Labels of the keys of one segment, `0..parents`, some perhaps empty.
fn label(keys: &[f32], d: usize, shape: &Shape, seed: u64) -> Vec<usize> {
    let n = keys.len() / d;
    let lloyd = match shape.split {
        Split::Position => return (0..n).map(|i| i / shape.cell).collect(),
        Split::Halves => {
            let mut labels = vec![0; n];
            let mut order: Vec<usize> = (0..n).collect();
            let mut next = 0;
            halve(keys, d, &mut order, shape.cell, &mut next, &mut labels);
            return labels;
        }
        Split::Parents(steps) => steps,
    };
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
    for _ in 0..lloyd {
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

/// Halves `order` until `cell` keys are left, and numbers what is left from `next` on.
fn halve(keys: &[f32], d: usize, order: &mut [usize], cell: usize, next: &mut usize, labels: &mut [usize]) {
    let n = order.len();
    if n <= cell {
        order.iter().for_each(|&i| labels[i] = *next);
        *next += 1;
        return;
    }
    let mean = |of: &mut dyn Iterator<Item = usize>| -> Vec<f64> {
        let (mut m, mut count) = (vec![0.0; d], 0.0);
        for i in of {
            m.iter_mut().zip(&keys[i * d..][..d]).for_each(|(m, &x)| *m += f64::from(x));
            count += 1.0;
        }
        m.iter_mut().for_each(|m| *m /= f64::max(count, 1.0));
        m
    };
    let centre = mean(&mut order.iter().copied());
    let far = order.iter().copied().max_by(|&a, &b| {
        sq_dist(&centre, &keys[a * d..][..d]).total_cmp(&sq_dist(&centre, &keys[b * d..][..d])).then(b.cmp(&a))
    });
    let along = |direction: &[f64], i: usize| -> f64 {
        direction.iter().zip(&keys[i * d..][..d]).zip(&centre).map(|((w, &x), m)| w * (f64::from(x) - m)).sum()
    };
    let from = far.unwrap_or(order[0]);
    let mut direction: Vec<f64> = keys[from * d..][..d].iter().zip(&centre).map(|(&x, m)| f64::from(x) - m).collect();
    for _ in 0..2 {
        let upper: Vec<usize> = order.iter().copied().filter(|&i| along(&direction, i) > 0.0).collect();
        if upper.is_empty() || upper.len() == n {
            break;
        }
        direction = mean(&mut upper.into_iter()).iter().zip(&centre).map(|(u, m)| u - m).collect();
    }
    order.sort_by(|&a, &b| along(&direction, a).total_cmp(&along(&direction, b)).then(a.cmp(&b)));
    let (low, high) = order.split_at_mut(n / 2);
    halve(keys, d, low, cell, next, labels);
    halve(keys, d, high, cell, next, labels);
}

impl Cells {
    /// Cells over the complete segments of `keys [n, d]`, `values [n, d]`; `placed [n, d]` are the keys as distances
    /// between them are to be seen.
    pub fn new(keys: &[f32], placed: &[f32], values: &[f32], d: usize, shape: &Shape) -> Cells {
        let n = keys.len() / d;
        let done = n / shape.segment * shape.segment;
        let mut cells =
            Cells { done, of: vec![u32::MAX; n], known: Known::new(d), above: [Groups::new(d), Groups::new(d)] };
        for start in (0..done).step_by(shape.segment) {
            let (first, end) = (start.max(shape.sinks), start + shape.segment);
            if first >= end {
                continue;
            }
            let labels = label(&placed[first * d..end * d], d, shape, start as u64);
            let begin = cells.known.keys.len();
            for c in 0..=labels.iter().copied().max().unwrap_or(0) {
                let members: Vec<u32> =
                    (0..labels.len()).filter(|&i| labels[i] == c).map(|i| (first + i) as u32).collect();
                if !members.is_empty() {
                    members.iter().for_each(|&i| cells.of[i as usize] = cells.known.keys.len() as u32);
                    cells.known.add(keys, values, d, members, end);
                }
            }
            let [nodes, tops] = &mut cells.above;
            let begin_nodes = nodes.children.len();
            nodes.gather(&cells.known, begin, keys, values, d, end);
            tops.gather(&nodes.known, begin_nodes, keys, values, d, end);
        }
        cells.known.finish(d);
        cells.above.iter_mut().for_each(|a| a.known.finish(d));
        cells
    }
}

impl Groups {
    fn new(d: usize) -> Groups {
        Groups { children: Vec::new(), known: Known::new(d) }
    }

    /// Groups over the sets from `begin` on.
    fn gather(&mut self, below: &Known, begin: usize, keys: &[f32], values: &[f32], d: usize, end: usize) {
        for first in (begin..below.keys.len()).step_by(CHILDREN) {
            let children = first..(first + CHILDREN).min(below.keys.len());
            let members = below.keys[children.clone()].concat();
            self.children.push(children);
            self.known.add(keys, values, d, members, end);
        }
    }
}

impl Known {
    fn new(d: usize) -> Known {
        Known { covariance: vec![0.0; d * d], crossed: vec![0.0; d * d], ..Known::default() }
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
        let (mut spread, mut reach) = (0.0, 0.0f64);
        for &i in &members {
            let r: Vec<f64> = keys[i as usize * d..][..d].iter().zip(&centre).map(|(&k, m)| f64::from(k) - m).collect();
            let length = r.iter().map(|x| x * x).sum::<f64>();
            spread += length / members.len() as f64;
            reach = reach.max(length.sqrt());
            for a in 0..d {
                let v = f64::from(values[i as usize * d + a]) - value[a];
                for b in 0..d {
                    self.covariance[a * d + b] += r[a] * r[b];
                    self.crossed[a * d + b] += v * r[b];
                }
            }
        }
        self.mean.extend(centre);
        self.value.extend(value);
        self.spread.push(spread);
        self.reach.push(reach);
        self.end.push(end);
        self.keys.push(members);
    }

    fn finish(&mut self, d: usize) {
        let trace: f64 = (0..d).map(|i| self.covariance[i * d + i]).sum();
        for x in self.covariance.iter_mut().chain(&mut self.crossed) {
            *x /= trace.max(f64::MIN_POSITIVE);
        }
    }
}
