//! Which cells a row opens, and what that costs and errs.

use super::build::{Cells, Known, Shape};
use super::fit::{Asked, Coding, Coordinates, rounded_means, whitened};
use crate::heads::Layer;

/// A selection rule. A cell is opened when its best key seems to reach `needle` of the softmax mass, or when its estimated
/// share times its spread reaches `mass`; infinity switches a rule off.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Cells.
    pub shape: Shape,
    /// How keys are told apart within their cells.
    pub coding: Coding,
    /// Whether cells score by their nodes' means and four bits a coordinate instead of their own means, where they have nodes.
    pub rounded: bool,
    /// Share of the mass that a key must seem to reach.
    pub needle: f64,
    /// Whether the weights that a row has found take the place of its estimated sum where they exceed it.
    pub found: bool,
    /// Cells from which on `needle` grows with the cells that a row has opened, and times it that it grows to.
    pub plenty: f64,
    /// See `plenty`.
    pub most: f64,
    /// Standard deviations of what the coordinates do not tell, added to every key's score.
    pub margin: f64,
    /// Share of the mass times spread that a cell must reach.
    pub mass: f64,
    /// Levels: 1 looks at every cell, 2 at those of the nodes that are opened, 3 has nodes of nodes.
    pub levels: usize,
    /// What unopened cells contribute.
    pub estimate: Estimate,
    /// Mean values move with the keys that a row prefers, as values go with keys in the head's sets on average.
    pub tilt: bool,
    /// Where the standard deviation of a cell's logits comes from.
    pub sigma: Sigma,
}

/// What an unopened set of keys weighs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Estimate {
    /// Nothing.
    Nothing,
    /// `count * exp(mean.q)`.
    Exp,
    /// The same times `cosh(sigma)`.
    Cosh,
}

/// The standard deviation of a set's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sigma {
    /// Keys spread alike in all directions.
    Isotropic,
    /// As the head's sets do on average.
    Mean,
    /// As they do.
    Each,
}

/// Standard deviations that the farthest key of a cell, and of a node, may stand out.
const STAND_OUT: [f64; 3] = [2.62, 3.5, 3.5];

/// Thresholds that grow by less stay.
const RAISE: f64 = 1.2;

/// What a rule gave on one layer.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Relative L2 errors of the layer's output rows (all heads side by side).
    pub errors: Vec<f64>,
    /// Row-key pairs outside the exact part with a true weight of 1 % and more, and those that were not opened.
    pub heavy: usize,
    /// See `heavy`.
    pub missed: usize,
    /// Mean share of the cells' keys that were opened, by (head, row).
    pub opened: f64,
    /// Mean share of the visible keys in the exact part, by (head, row).
    pub local: f64,
    /// Means and keys scored, as a share of the cells' keys, by (head, row).
    pub scored: f64,
}

impl Outcome {
    /// Mean error.
    pub fn mean(&self) -> f64 {
        self.errors.iter().sum::<f64>() / self.errors.len().max(1) as f64
    }

    /// 99th percentile of the errors.
    pub fn p99(&self) -> f64 {
        let mut e = self.errors.clone();
        e.sort_by(f64::total_cmp);
        e.get((e.len().max(1) - 1) * 99 / 100).copied().unwrap_or(0.0)
    }

    /// Joins another layer's outcome.
    pub fn add(&mut self, other: &Outcome) {
        let (a, b) = (self.errors.len() as f64, other.errors.len() as f64);
        self.opened = (self.opened * a + other.opened * b) / (a + b);
        self.local = (self.local * a + other.local * b) / (a + b);
        self.scored = (self.scored * a + other.scored * b) / (a + b);
        self.errors.extend(&other.errors);
        self.heavy += other.heavy;
        self.missed += other.missed;
    }
}

/// Queries and keys of one chunk are attended exactly; cells of earlier chunks are chosen from.
const CHUNK: usize = 512;

/// Tokens whose queries directions are fitted to.
const FITTED: usize = 1024;

/// Runs a rule on `samples` rows of the second half of a layer.
pub fn study(layer: &Layer, rule: &Rule, samples: usize) -> Outcome {
    let (n, d) = (layer.rows, layer.dim);
    let rows: Vec<usize> = (0..samples).map(|i| n / 2 + (2 * i + 1) * (n - n / 2) / (2 * samples)).collect();
    let group = layer.heads_q / layer.heads_kv;
    let mut out = vec![[vec![0.0; 0], vec![0.0; 0]]; rows.len()];
    let mut outcome = Outcome::default();
    for kv in 0..layer.heads_kv {
        let head = kv * group;
        let (keys, values) = (layer.keys(head), layer.values(head));
        let queries: Vec<&[f32]> = (head..head + group).map(|h| layer.queries(h)).collect();
        let placed = if rule.shape.whitened { whitened(keys, &queries, d, FITTED) } else { keys.to_vec() };
        let cells = Cells::new(keys, &placed, values, d, &rule.shape);
        let fit = Coordinates::new(&cells, keys, &queries, d, FITTED, rule.coding);
        let means = if rule.rounded && rule.levels > 1 { rounded_means(&cells, d) } else { cells.known.mean.clone() };
        for q in queries {
            for (at, &row) in rows.iter().enumerate() {
                let [exact, approx] = attend(layer, rule, &cells, &means, &fit, keys, values, q, row, &mut outcome);
                out[at][0].extend(exact);
                out[at][1].extend(approx);
            }
        }
    }
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    outcome.errors = out
        .iter()
        .map(|[e, a]| norm(&mut e.iter().zip(a).map(|(e, a)| e - a)) / norm(&mut e.iter().copied()).max(1e-30))
        .collect();
    let units = (layer.heads_q * rows.len()) as f64;
    outcome.opened /= units;
    outcome.local /= units;
    outcome.scored /= units;
    outcome
}

/// The sets of one level that a row sees.
struct Seen<'a> {
    known: &'a Known,
    centre: Vec<f64>,
    sigma: Vec<f64>,
    /// Standard deviation of logits per unit of distance from the mean.
    unit: f64,
    /// What a mean value moves by per unit of variance, `[dim]`.
    tilt: Vec<f64>,
}

impl<'a> Seen<'a> {
    fn new(known: &'a Known, means: &[f64], rule: &Rule, q: &[f64], logits: &[f64], done: usize) -> Seen<'a> {
        let (d, count) = (q.len(), (0..known.keys.len()).filter(|&c| known.end[c] <= done).count());
        let form = |a: usize| q[a] * (0..d).map(|b| known.covariance[a * d + b] * q[b]).sum::<f64>();
        let tau: f64 = match rule.sigma {
            Sigma::Isotropic => q.iter().map(|x| x * x).sum::<f64>() / d as f64,
            _ => (0..d).map(form).sum(),
        };
        let centre: Vec<f64> =
            (0..count).map(|c| q.iter().zip(&means[c * d..][..d]).map(|(a, b)| a * b).sum()).collect();
        let variance = |c: usize| match rule.sigma {
            Sigma::Each => {
                let keys = &known.keys[c];
                keys.iter().map(|&i| (logits[i as usize] - centre[c]).powi(2)).sum::<f64>() / keys.len() as f64
            }
            _ => tau * known.spread[c],
        };
        let sigma = (0..count).map(|c| variance(c).max(0.0).sqrt().min(12.0)).collect();
        let tilt = known.crossed.chunks(d).map(|row| row.iter().zip(q).map(|(m, q)| m * q).sum()).collect();
        Seen { known, centre, sigma, unit: tau.max(0.0).sqrt(), tilt }
    }

    /// Estimated weight of a set.
    fn guess(&self, c: usize, top: f64) -> f64 {
        self.known.keys[c].len() as f64 * (self.centre[c] - top).exp() * self.sigma[c].cosh()
    }
}

/// A row on its way down.
struct Walk<'a> {
    rule: &'a Rule,
    cells: &'a Cells,
    levels: &'a [Seen<'a>],
    fit: &'a Coordinates,
    asked: Asked,
    /// Exact weights of all keys, relative to `exp(top)`.
    weight: &'a [f64],
    top: f64,
    /// What all keys are expected to weigh, and what the weight of a key is a share of.
    total: f64,
    bar: f64,
    /// Exact weights found, and cells opened.
    found: f64,
    opened: f64,
    open: Vec<bool>,
    estimated: Vec<(usize, usize)>,
    scored: usize,
}

impl Walk<'_> {
    /// Set `c` of a level, and what is below.
    fn visit(&mut self, level: usize, c: usize) {
        self.scored += 1;
        let (rule, levels, cells, top) = (self.rule, self.levels, self.cells, self.top);
        let seen = &levels[level];
        let far = seen.centre[c] + STAND_OUT[level] * seen.unit * seen.known.reach[c];
        let mut needle = (far - top).exp() >= rule.needle * self.bar;
        if needle && level == 0 {
            let key = |i: &u32| self.fit.residual(&self.asked, *i as usize, rule.margin);
            let best = cells.known.keys[c].iter().map(key).fold(f64::NEG_INFINITY, f64::max);
            needle = (seen.centre[c] + best - top).exp() >= rule.needle * self.bar;
        }
        if !needle && seen.guess(c, top) * seen.sigma[c].min(1.0) < rule.mass * self.total {
            return self.estimated.push((level, c));
        }
        if level == 0 {
            self.open[c] = true;
            self.opened += 1.0;
            self.found += cells.known.keys[c].iter().map(|&i| self.weight[i as usize]).sum::<f64>();
        } else {
            cells.above[level - 1].children[c].clone().for_each(|child| self.visit(level - 1, child));
        }
        if level == 1 || rule.levels == 1 {
            self.raise();
        }
    }

    /// Thresholds by what has been found and opened, where that makes a difference.
    fn raise(&mut self) {
        let total = if self.rule.found { self.total.max(self.found) } else { self.total };
        let bar = total * (self.opened / self.rule.plenty).clamp(1.0, self.rule.most);
        if bar > RAISE * self.bar {
            (self.total, self.bar) = (total, bar);
        }
    }
}

/// One row: exact output and the rule's.
fn attend(
    layer: &Layer,
    rule: &Rule,
    cells: &Cells,
    means: &[f64],
    fit: &Coordinates,
    keys: &[f32],
    values: &[f32],
    q: &[f32],
    row: usize,
    outcome: &mut Outcome,
) -> [Vec<f64>; 2] {
    let d = layer.dim;
    let scale = 1.0 / (d as f64).sqrt();
    let q: Vec<f64> = q[row * d..][..d].iter().map(|&x| f64::from(x) * scale).collect();
    let seen = if layer.causal { row + 1 } else { layer.rows };
    let dot = |k: &[f32]| q.iter().zip(k).map(|(a, &b)| a * f64::from(b)).sum::<f64>();
    let logits: Vec<f64> = keys.chunks(d).take(seen).map(dot).collect();
    // Cells of segments that end before the row's chunk begins; the rest is attended exactly.
    let done = if layer.causal { row / CHUNK * CHUNK } else { cells.done };
    let [nodes, tops] = &cells.above;
    let known = [(&cells.known, means), (&nodes.known, &nodes.known.mean), (&tops.known, &tops.known.mean)];
    let levels: Vec<Seen<'_>> = known
        .into_iter()
        .take(rule.levels)
        .map(|(known, means)| Seen::new(known, means, rule, &q, &logits, done))
        .collect();
    let count = levels[0].centre.len();
    let celled = |j: usize| cells.of[j] != u32::MAX && (cells.of[j] as usize) < count;
    let top = logits.iter().chain(&levels[0].centre).fold(f64::NEG_INFINITY, |m, &x| m.max(x));
    let weight: Vec<f64> = logits.iter().map(|x| (x - top).exp()).collect();
    let local: f64 = (0..seen).filter(|&j| !celled(j)).map(|j| weight[j]).sum();
    let highest = &levels[rule.levels - 1];
    let total = local + (0..highest.centre.len()).map(|c| highest.guess(c, top)).sum::<f64>();
    let mut walk = Walk {
        rule,
        cells,
        levels: &levels,
        fit,
        asked: fit.query(&q),
        weight: &weight,
        top,
        total,
        bar: total,
        found: local,
        opened: 0.0,
        open: vec![false; count],
        estimated: Vec::new(),
        scored: 0,
    };
    // The newest first.
    (0..highest.centre.len()).rev().for_each(|c| walk.visit(rule.levels - 1, c));
    let Walk { open, estimated, scored, .. } = walk;
    let exact_sum: f64 = weight.iter().sum();
    let (mut exact, mut approx, mut sum) = (vec![0.0; d], vec![0.0; d], 0.0);
    for j in 0..seen {
        let v = &values[j * d..][..d];
        exact.iter_mut().zip(v).for_each(|(o, &v)| *o += weight[j] / exact_sum * f64::from(v));
        let kept = !celled(j) || open[cells.of[j] as usize];
        if kept {
            sum += weight[j];
            approx.iter_mut().zip(v).for_each(|(o, &v)| *o += weight[j] * f64::from(v));
        }
        if celled(j) && weight[j] >= 0.01 * exact_sum {
            outcome.heavy += 1;
            outcome.missed += usize::from(!kept);
        }
    }
    for (level, c) in estimated.into_iter().filter(|_| rule.estimate != Estimate::Nothing) {
        let seen = &levels[level];
        let guess = match rule.estimate {
            Estimate::Cosh => seen.guess(c, top),
            _ => seen.known.keys[c].len() as f64 * (seen.centre[c] - top).exp(),
        };
        sum += guess;
        // A key that scores one deviation more weighs in by tanh(sigma) more: linear while that is small.
        let slope = if seen.sigma[c] > 0.0 { seen.sigma[c].tanh() / seen.sigma[c] } else { 1.0 };
        let lean = if rule.tilt { slope * seen.known.spread[c] } else { 0.0 };
        let value = seen.known.value[c * d..][..d].iter().zip(&seen.tilt);
        approx.iter_mut().zip(value).for_each(|(o, (v, t))| *o += guess * (v + lean * t));
    }
    approx.iter_mut().for_each(|x| *x /= sum.max(1e-300));
    let (all, opened) = (0..count).fold((0, 0), |(a, o), c| {
        let n = cells.known.keys[c].len();
        (a + n, o + if open[c] { n } else { 0 })
    });
    outcome.opened += opened as f64 / f64::max(all as f64, 1.0);
    outcome.scored += (scored + opened) as f64 / f64::max(all as f64, 1.0);
    outcome.local += (seen - all) as f64 / seen as f64;
    [exact, approx]
}
