//! Root blocks for a few rows beside a twin that follows the rules one row, node, cell and key at a time in f64.

use super::super::coords::words;
use super::super::tests::{cap, close, first, isas, noise};
use super::super::{
    AddRoots, Along, ChooseRoots, Elements, Encode, Limits, NodeKeys, Roots, RoundQuery, Shares, Stored, Thresholds,
};
use super::*;
use crate::math::hash;
use crate::mem::Rows;
use crate::simd::Isa;
use half::{bf16, f16};
use std::vec;
use std::vec::Vec;

/// Nodes: two root blocks whole, and a part of a third.
const NODES: usize = 2 * BLOCK + 7;
const ROOTS: usize = NODES.div_ceil(BLOCK);
const CELLS: usize = NODES * BLOCK;
const KEYS: usize = 300;

/// Coordinates of the vectors of many blocks.
struct Table {
    words: Vec<u32>,
    unit: Vec<[bf16; BLOCK]>,
    each: usize,
}

impl Table {
    fn new(blocks: usize, dim: usize, seed: u64) -> Table {
        let each = words(dim) * BLOCK;
        let mut table = Table { words: vec![0; blocks * each], unit: vec![[bf16::ZERO; BLOCK]; blocks], each };
        for (block, unit) in table.unit.iter_mut().enumerate() {
            let rows = noise(BLOCK * dim, seed + block as u64);
            let words = &mut table.words[block * each..][..each];
            Isa::Scalar.run(Encode { rows: &rows, stride: dim, dim, words, unit });
        }
        table
    }

    fn many(&self) -> Many<'_> {
        Many { words: &self.words, each: self.each, unit: &self.unit }
    }
}

/// What is known of the vectors of a level.
struct Numbers {
    spread: Vec<f32>,
    reach: Vec<f32>,
    value_spread: Vec<f32>,
    means: Vec<f32>,
}

impl Numbers {
    fn new(n: usize, cols: usize, seed: u64) -> Numbers {
        Numbers {
            spread: size(n, seed, 0.3, 0.6),
            reach: size(n, seed + 1, 0.6, 1.0),
            value_spread: size(n, seed + 2, 0.5, 1.0),
            means: noise(n * cols.next_multiple_of(16), seed + 3),
        }
    }

    fn means(&self, cols: usize) -> Means<'_> {
        Means {
            values: Values { data: Elements::F32(&self.means), stride: cols.next_multiple_of(16), cols },
            spread: &self.spread,
            reach: &self.reach,
            value_spread: &self.value_spread,
        }
    }
}

fn half(n: usize, seed: u64) -> Vec<f16> {
    noise(n, seed).iter().map(|&x| f16::from_f32(x)).collect()
}

fn size(n: usize, seed: u64, low: f32, high: f32) -> Vec<f32> {
    noise(n, seed).iter().map(|x| low + (high - low) * (0.5 * x + 0.5)).collect()
}

/// Nodes with their rows.
struct Case {
    dim: usize,
    cols: usize,
    queries: usize,
    softcap: f32,
    nodes: Table,
    cells: Table,
    of_nodes: Numbers,
    of_cells: Numbers,
    ids: Vec<u32>,
    keys: Vec<f16>,
    values: Vec<f16>,
    q: Vec<f32>,
    codes: Vec<i32>,
    along: Vec<Along>,
    /// `[root block][query][BLOCK]`, with more behind those of a root block.
    centers: Vec<f32>,
    /// Nodes that there are, by root block.
    present: [u16; ROOTS],
    reference: Vec<f32>,
    fine: Vec<f32>,
    coarse: Vec<f32>,
    /// Of cells and of nodes.
    mass: [Vec<f32>; 2],
    sigma: [Vec<f32>; 2],
    total: Vec<f32>,
    shares: Shares,
}

/// What comes out, `[query]..`, and what is compared with it.
struct Outcome {
    exact: Vec<f64>,
    estimated: Vec<f64>,
    light: Vec<f64>,
    lean: [Vec<f64>; 2],
    doubt: Vec<f64>,
    out: Vec<f64>,
    nodes: Vec<f64>,
    count: Count,
    /// Queries and the keys that were scored for them, in order.
    opened: Vec<(u16, u32)>,
}

/// Less spread than so many steps: scored by a key.
const TIGHT: f32 = 1.0;

impl Case {
    fn new(dim: usize, cols: usize, queries: usize, softcap: f32, seed: u64) -> Case {
        let (q_stride, len) = (dim.next_multiple_of(BLOCK), 2 * words(dim));
        let (mut q, mut codes) = (vec![0.0; queries * q_stride], vec![0; queries * len]);
        let mut along = vec![Along::default(); queries];
        for (r, x) in noise(queries * dim, seed + 1).chunks(dim).enumerate() {
            q[r * q_stride..][..dim].copy_from_slice(x);
            let (unit, sum, lost) = Isa::Scalar.run(RoundQuery { x, out: &mut codes[r * len..][..len] });
            along[r] = Along { far: 0.9, needle: 1.9, ..Along::new(unit, sum, lost).allowing(0.2) };
        }
        let mut of_cells = Numbers::new(CELLS, cols, seed + 20);
        // Some cells whose keys lie together: less than a step, which is about 2 / 15.
        of_cells.spread.iter_mut().step_by(9).for_each(|x| *x = 0.01);
        Case {
            dim,
            cols,
            queries,
            softcap,
            nodes: Table::new(NODES, dim, seed + 100),
            cells: Table::new(CELLS, dim, seed + 200),
            of_nodes: Numbers::new(ROOTS * BLOCK, cols, seed + 30),
            of_cells,
            ids: (0..CELLS * BLOCK).map(|j| (hash(seed + 6, j as u64) % KEYS as u64) as u32).collect(),
            keys: half(KEYS * dim, seed + 7),
            values: half(KEYS * cols, seed + 8),
            q,
            codes,
            along,
            centers: noise(ROOTS * (queries + 1) * BLOCK, seed + 9),
            present: [0x7fff, 0xfffe, (1 << (NODES % BLOCK)) - 1],
            reference: noise(queries, seed + 13),
            fine: size(queries, seed + 14, 4.0, 8.0),
            coarse: size(queries, seed + 15, 20.0, 60.0),
            mass: [size(queries, seed + 16, 30.0, 60.0), size(queries, seed + 18, 100.0, 250.0)],
            sigma: [size(queries, seed + 17, 0.5, 1.0), size(queries, seed + 19, 0.5, 1.0)],
            total: vec![1e9; queries],
            shares: Shares {
                needle: 0.5,
                each: 0.0,
                most: 1.0,
                mass: [1.0, 1.0],
                fine: 0.1,
                coarse: 0.5,
                stand_out: [0.5, 2.2],
            },
        }
    }

    /// `a < b`, where nothing turns on how they are rounded.
    fn less(a: f64, b: f64) -> bool {
        assert!((a - b).abs() > 1e-5 * a.abs().max(b.abs()), "too near to be decided: {a} and {b}");
        a < b
    }

    /// Product of a query as its bytes say and vector `j` of a block, and the vector's step.
    fn product(&self, r: usize, table: &Table, block: usize, j: usize) -> (f64, f64) {
        let (len, coded) = (2 * words(self.dim), table.many().block(block));
        let byte = |k: usize| f64::from((self.codes[r * len + k / 4] >> (k % 4 * 8)) as i8);
        let sum: f64 = (0..self.dim).map(|k| byte(k) * f64::from(coded.decode(k, j))).sum();
        (sum * f64::from(self.along[r].unit), f64::from(table.unit[block][j].to_f32()))
    }

    fn score(&self, r: usize, id: u32) -> f64 {
        let (q, k) = (&self.q[r * self.dim.next_multiple_of(BLOCK)..], &self.keys[id as usize * self.dim..]);
        (0..self.dim).map(|i| f64::from(q[i]) * f64::from(k[i].to_f32())).sum()
    }

    fn twin(&self) -> Outcome {
        let stride = self.cols.next_multiple_of(16);
        let per_query = || vec![0.0; self.queries * BLOCK];
        let mut o = Outcome {
            exact: per_query(),
            estimated: per_query(),
            light: vec![0.0; self.queries],
            lean: [per_query(), per_query()],
            doubt: per_query(),
            out: vec![0.0; self.queries * stride],
            nodes: vec![0.0; ROOTS * self.queries * BLOCK],
            count: Count::default(),
            opened: vec![],
        };
        for root in (0..ROOTS).rev() {
            for lane in (0..BLOCK).filter(|lane| self.present[root] >> lane & 1 != 0) {
                for r in 0..self.queries {
                    self.node(r, root, lane, &mut o);
                }
            }
        }
        let at = |root: usize, r: usize| (root * self.queries + r) * BLOCK;
        for i in 0..ROOTS * self.queries * BLOCK {
            let (root, r, lane) = (i / BLOCK / self.queries, i / BLOCK % self.queries, i % BLOCK);
            let (node, w) = (root * BLOCK + lane, o.nodes[at(root, r) + lane]);
            o.estimated[r * BLOCK + lane] += w;
            self.weigh_in(r, 1, node, lane, w, &mut o, true);
        }
        o
    }

    /// Estimated weight of a vector, from the score of its mean; whether it may be wrong by more than is left to a mean, and
    /// whether its farthest key is a needle.
    fn judge(&self, r: usize, level: usize, at: usize, x: f64) -> (f64, bool, bool) {
        let capped = |x: f64| cap(x, self.softcap);
        let of = [&self.of_cells, &self.of_nodes][level];
        let raw = f64::from(of.spread[at]) * f64::from(self.sigma[level][r]);
        let slope = capped(x) / f64::from(self.softcap);
        let sigma = if self.softcap > 0.0 { raw * (1.0 - slope * slope) } else { raw };
        let v = sigma * core::f64::consts::LN_2;
        let series = 2.0 + v * v + v.powi(4) / 12.0 + v.powi(6) / 360.0;
        let half = [3.0, 7.0][level];
        let weight = (capped(x) + half - f64::from(self.reference[r])).exp2() * series;
        let sure = !Case::less(weight * v.min(1.0), f64::from(self.mass[level][r]));
        let a = &self.along[r];
        let far = [a.far, self.sigma[1][r] * self.shares.stand_out[1]][level];
        let best = capped(x + f64::from(of.reach[at]) * f64::from(far));
        (weight, sure, sure || !Case::less(best, f64::from(a.needle)))
    }

    /// A weight with its mean's value, if `valued`, and the doubt about it.
    #[allow(clippy::too_many_arguments)]
    fn weigh_in(&self, r: usize, level: usize, at: usize, lane: usize, w: f64, o: &mut Outcome, valued: bool) {
        let (of, count) = ([&self.of_cells, &self.of_nodes][level], [16.0, 256.0][level]);
        let spread = f64::from(of.spread[at]);
        let v = (spread * f64::from(self.sigma[level][r]) * core::f64::consts::LN_2).powi(2).min(4.0);
        let grown = v * (1.0 + v * (0.5 + v / 6.0));
        o.doubt[r * BLOCK + lane] += w * w * grown * f64::from(of.value_spread[at]) / count;
        if valued {
            o.lean[level][r * BLOCK + lane] += spread * spread * w;
            let stride = self.cols.next_multiple_of(16);
            let out = o.out[r * stride..][..stride].iter_mut();
            out.zip(&of.means[at * stride..]).for_each(|(out, &v)| *out += w * f64::from(v));
        }
    }

    /// Node `lane` of a root block for a query.
    fn node(&self, r: usize, root: usize, lane: usize, o: &mut Outcome) {
        let capped = |x: f64| cap(x, self.softcap);
        let stride = self.cols.next_multiple_of(16);
        let node = root * BLOCK + lane;
        let a = &self.along[r];
        let [slack, far, needle] = [a.slack, a.far, a.needle].map(f64::from);
        let reference = f64::from(self.reference[r]);
        let center = f64::from(self.centers[(root * (self.queries + 1) + r) * BLOCK + lane]);
        let to = (root * self.queries + r) * BLOCK + lane;
        let (weight, node_sure, listed) = self.judge(r, 1, node, center);
        o.nodes[to] = weight;
        if !listed {
            return;
        }
        o.count.sifted += 1;
        let (mut x, mut pass) = ([0.0; BLOCK], node_sure);
        for leaf in 0..BLOCK {
            let cell = node * BLOCK + leaf;
            let (dot, unit) = self.product(r, &self.nodes, node, leaf);
            let most = center + dot + slack * unit + f64::from(self.of_cells.reach[cell]) * far;
            pass |= !Case::less(capped(most), needle);
            let tight = f64::from(self.of_cells.spread[cell]) < unit * f64::from(TIGHT);
            x[leaf] = if tight { self.score(r, self.ids[cell * BLOCK]) } else { center + dot };
        }
        if !pass {
            return;
        }
        o.count.nodes += 1;
        let (mut weights, mut scored) = ([0.0; BLOCK], 0);
        for leaf in 0..BLOCK {
            let cell = node * BLOCK + leaf;
            let ids = &self.ids[cell * BLOCK..][..BLOCK];
            // By the node: a cell's weight is that of its mean, spread as the head spreads.
            let (weight, sure, listed) = self.judge(r, 0, cell, x[leaf]);
            weights[leaf] = weight;
            if !listed {
                continue;
            }
            // By the coordinates of its keys.
            o.count.sifted += 1;
            let mut found = [sure; BLOCK];
            let mut by_code = [0.0; BLOCK];
            for j in 0..BLOCK {
                let (dot, unit) = self.product(r, &self.cells, cell, j);
                by_code[j] = (capped(x[leaf] + dot) - reference).exp2();
                found[j] |= !Case::less(capped(x[leaf] + dot + slack * unit), needle);
            }
            weights[leaf] = by_code.iter().sum();
            if !found.contains(&true) {
                continue;
            }
            // Exactly what stands out or comes with its own value, the others by their coordinates.
            o.count.cells += 1;
            weights[leaf] = 0.0;
            let mut light = 0.0;
            for (j, &id) in ids.iter().enumerate() {
                if !found[j] && Case::less(by_code[j], f64::from(self.fine[r])) {
                    weights[leaf] += by_code[j];
                    continue;
                }
                o.count.keys += 1;
                o.opened.push((r as u16, id));
                let w = (capped(self.score(r, id)) - reference).exp2();
                o.exact[r * BLOCK + scored % BLOCK] += w;
                scored += 1;
                if Case::less(w, f64::from(self.fine[r])) {
                    light += w;
                    continue;
                }
                let value = &self.values[id as usize * self.cols..][..self.cols];
                let out = o.out[r * stride..][..self.cols].iter_mut();
                out.zip(value).for_each(|(out, v)| *out += w * f64::from(v.to_f32()));
            }
            weights[leaf] += light;
            o.light[r] += light;
        }
        let sum: f64 = weights.iter().sum();
        let small = Case::less(sum, f64::from(self.coarse[r]));
        o.nodes[to] = if small { sum } else { 0.0 };
        if !small {
            o.estimated[r * BLOCK + lane] += sum;
        }
        for leaf in 0..BLOCK {
            self.weigh_in(r, 0, node * BLOCK + leaf, leaf, weights[leaf], o, !small);
        }
    }

    /// The kernel, and the sums that thresholds came from in the end.
    fn run(&self, isa: Isa) -> (Outcome, Vec<f32>, Vec<Along>) {
        let stride = self.cols.next_multiple_of(16);
        let zeros = |n: usize| vec![0.0f32; n];
        let (mut exact, mut estimated) = (zeros(self.queries * BLOCK), zeros(self.queries * BLOCK));
        let mut lean = [zeros(self.queries * BLOCK), zeros(self.queries * BLOCK)];
        let mut doubt = zeros(self.queries * BLOCK);
        let (mut light, mut lost) = (zeros(self.queries), vec![false; self.queries]);
        let mut out = zeros(self.queries * stride);
        let listed = ROOTS * self.queries;
        let (mut open, mut sure, mut nodes) = (vec![0; listed], vec![0; listed], zeros(listed * BLOCK));
        let slots = ON_THE_WAY * TOGETHER * self.queries;
        let (mut who, mut scores, mut below) =
            (vec![Slot::default(); slots], zeros(slots * BLOCK), zeros(slots * BLOCK));
        let (rows, mut keys) = ((0..self.queries as u16).collect::<Vec<_>>(), vec![]);
        let mut seen = |query: u16, ids: &[u32]| keys.extend(ids.iter().map(|&id| (query, id)));
        let (mut total, mut along) = (self.total.clone(), self.along.clone());
        let (mut opened, mut bar) = (zeros(self.queries), self.total.clone());
        let mut needle: Vec<f32> = along.iter().map(|a| a.needle).collect();
        let (mut mass, mut fine, mut coarse) = (self.mass.clone(), self.fine.clone(), self.coarse.clone());
        let [lean_of_cells, lean_of_nodes] = &mut lean;
        let keys_of_nodes = vec![0.0; ROOTS * self.dim * BLOCK];
        let roots = Roots {
            keys: NodeKeys::Whole(Stored::F32(&keys_of_nodes)),
            means: self.of_nodes.means(self.cols),
            present: &self.present,
        };
        isa.run(ChooseRoots {
            roots,
            rows: &rows,
            limits: Limits {
                reference: &self.reference,
                needle: &needle,
                mass: &mass[1],
                sigma: &self.sigma[1],
                stand_out: self.shares.stand_out[1],
                softcap: self.softcap,
            },
            scores: &self.centers,
            step: (self.queries + 1) * BLOCK,
            weights: &mut nodes,
            open: &mut open,
            sure: &mut sure,
        });
        let [cells, of_nodes] = &mut mass;
        let count = isa.run(FewRows {
            tree: Tree {
                cells: self.of_cells.means(self.cols),
                of_cells: self.nodes.many(),
                of_keys: self.cells.many(),
                ids: &self.ids,
            },
            keys: &Rows::f16(&self.keys, self.dim).unwrap(),
            values: &Rows::f16(&self.values, self.cols).unwrap(),
            queries: self.queries,
            q: Matrix { data: &self.q, stride: self.dim.next_multiple_of(BLOCK), cols: self.dim },
            codes: &self.codes,
            softcap: self.softcap,
            tight: TIGHT,
            centers: &self.centers,
            step: (self.queries + 1) * BLOCK,
            limits: Thresholds {
                shares: self.shares,
                reference: &self.reference,
                dense: &vec![0.5; self.queries],
                sigma: &self.sigma[0],
                total: &mut total,
                opened: &mut opened,
                bar: &mut bar,
                needle: &mut needle,
                mass: [cells, of_nodes],
                fine: &mut fine,
                coarse: &mut coarse,
                along: &mut along,
            },
            sums: Sums {
                exact: &mut exact,
                estimated: &mut estimated,
                light: &mut light,
                lost: &mut lost,
                lean: lean_of_cells,
                doubt: Some(&mut doubt),
                out: &mut out,
                stride,
            },
            room: Room {
                open: &open,
                sure: &sure,
                weights: &mut nodes,
                slots: &mut who,
                scores: &mut scores,
                below: &mut below,
            },
            seen: Some(&mut seen),
        });
        assert!(lost.iter().all(|lost| !lost));
        isa.run(AddRoots {
            roots,
            rows: &rows,
            weights: &nodes,
            total: &mut estimated,
            lean: lean_of_nodes,
            out: &mut out,
            sigma: &self.sigma[1],
            doubt: Some(&mut doubt),
        });
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let [exact, estimated, light, doubt, out, nodes] =
            [&exact, &estimated, &light, &doubt, &out, &nodes].map(|x| wide(x));
        let lean = lean.map(|x| wide(&x));
        (Outcome { exact, estimated, light, lean, doubt, out, nodes, count, opened: keys }, total, along)
    }
}

#[test]
fn a_few_rows_go_down_as_the_rules_say() {
    for &(dim, cols) in first(1, &[(12usize, 20usize), (32, 40), (64, 64), (80, 72)]) {
        for &(queries, softcap) in first(2, &[(1, 0.0), (3, 4.0), (2, 0.0), (5, 0.0)]) {
            let case = Case::new(dim, cols, queries, softcap, 1700 + (dim + queries) as u64);
            let want = case.twin();
            let looked = want.count.sifted;
            assert!(
                want.count.keys > 0 && want.count.keys < want.count.cells * (BLOCK - 2) && want.count.nodes < looked,
                "{dim}, {queries}: {:?}",
                want.count
            );
            for isa in isas() {
                let (have, ..) = case.run(isa);
                let what = isa.name();
                assert_eq!(have.count, want.count, "{what}");
                assert_eq!(have.opened, want.opened, "{what}");
                for r in 0..queries {
                    // A row's sums as a whole: parts of them may be small.
                    let part = r * BLOCK..(r + 1) * BLOCK;
                    let size = |x: &[f64]| x.iter().fold(1.0f64, |m, x| m.max(x.abs()));
                    for (have, want) in [
                        (&have.exact, &want.exact),
                        (&have.estimated, &want.estimated),
                        (&have.lean[0], &want.lean[0]),
                        (&have.lean[1], &want.lean[1]),
                        (&have.doubt, &want.doubt),
                    ] {
                        for (have, &x) in have[part.clone()].iter().zip(&want[part.clone()]) {
                            close(*have as f32, x, 20.0 * size(&want[part.clone()]), what);
                        }
                    }
                    for (have, &x) in have.nodes.iter().zip(&want.nodes) {
                        close(*have as f32, x, 20.0 * x.max(1.0), what);
                    }
                    close(have.light[r] as f32, want.light[r], 20.0 * want.light[r].max(1.0), what);
                    let stride = want.out.len() / queries;
                    let out = &want.out[r * stride..][..cols];
                    for (have, &x) in have.out[r * stride..].iter().zip(out) {
                        close(*have as f32, x, 100.0 * size(out), what);
                    }
                }
            }
        }
    }
}

#[test]
fn what_a_row_gets_does_not_depend_on_the_rows_it_comes_with() {
    let (dim, cols, queries) = (32, 40, if cfg!(miri) { 2 } else { 5 });
    let case = Case::new(dim, cols, queries, 0.0, 900);
    for isa in isas() {
        let (all, ..) = case.run(isa);
        for r in 0..queries {
            let mut one = Case::new(dim, cols, queries, 0.0, 900);
            for other in (0..queries).filter(|&other| other != r) {
                // Lists nothing.
                (one.along[other].needle, one.mass[1][other]) = (1e9, 1e9);
            }
            let (alone, ..) = one.run(isa);
            let (stride, part) = (all.out.len() / queries, r * BLOCK..(r + 1) * BLOCK);
            assert_eq!(alone.out[r * stride..][..stride], all.out[r * stride..][..stride], "{}", isa.name());
            assert_eq!(alone.exact[part.clone()], all.exact[part.clone()], "{}", isa.name());
            for (alone, all) in alone.nodes.chunks(queries * BLOCK).zip(all.nodes.chunks(queries * BLOCK)) {
                assert_eq!(alone[part.clone()], all[part.clone()], "{}", isa.name());
            }
            assert!(alone.opened.iter().eq(all.opened.iter().filter(|(query, _)| *query as usize == r)));
        }
    }
}

#[test]
fn thresholds_rise_with_what_is_found() {
    let mut case = Case::new(32, 40, 2, 0.0, 900);
    let before = case.run(Isa::Scalar).0;
    // The first row was expected to weigh next to nothing, the second ten times what it finds.
    let found = |r: usize| before.exact[r * BLOCK..][..BLOCK].iter().sum::<f64>() as f32;
    case.total = vec![1e-3, 10.0 * found(1)];
    for isa in isas() {
        let (after, total, along) = case.run(isa);
        assert!(total[0] > 1.0 && total[1] == case.total[1], "{}: {total:?}", isa.name());
        // Of the first batch of nodes everything is found, of the others what still reaches the threshold.
        assert!(after.count.cells <= before.count.cells);
        let needle = case.reference[0] + (total[0] * case.shares.needle).log2();
        assert!((along[0].needle - needle).abs() < 1e-4, "{}: {} and {needle}", isa.name(), along[0].needle);
        assert!((along[0].far - case.shares.stand_out[0] * case.sigma[0][0]).abs() < 1e-6);
        assert_eq!(along[1].needle, case.along[1].needle);
    }
}
