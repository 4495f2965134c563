//! Whether cells can serve a head at all, from exact attention of a few rows: before anything is built.

use super::super::exact::{self, Head};
use super::cost::Cost;
use super::{Rule, Work};
use crate::cells::{BLOCK, LEAVES, Matrix, ROOT, SEGMENT};
use crate::math::hash;
use crate::mem::{RowsMut, Tensor};
use crate::simd::Isa;
use crate::simd::block::ScoresAt;

/// Rows looked at: one in so many, but no more than that.
const ROWS: (usize, usize) = (512, 4);

/// Rows that are attended together, whose keys are dense: about.
const TOGETHER: usize = 256;

/// One block of light keys in so many is looked at.
const THINNED: usize = 4;

/// Times the rule's error that the doubt may reach: leaning means know more of the values than their spread.
const SLACK: f64 = 2.0;

/// Keys below so many times the needle's weight are light: nobody looks at them one by one.
const LIGHT: f32 = 0.6;

/// Heavy keys lie in so many times the cells that they lie in where cells are cut from runs of keys, where those come in an
/// order in which neighbours are alike: 0.4 on the heads of an encoder at 8,192 keys, 1 on those of a decoder, for which
/// cells pay anyway. More than 0.4, since at that encoders of 2,048 keys were let through that lost.
pub(crate) const ALIKE: f64 = 0.6;

/// Cells cost so much more than a few rows let expect, on processors whose products are fast beside the rest.
const RISK: f64 = 1.4;

/// Most of exact attention that building may cost: it is lost where cells are given up later.
const BUILT: f64 = 0.2;

/// Rows whose keys are counted for that.
const COUNTED: usize = 16;

/// For the rows that are looked at.
const SEED: u64 = 0x10_0c;

/// What a few rows of a head say.
#[derive(Default)]
struct Signs {
    /// Squares of the light keys' values, by weight, and of the outputs.
    light: f64,
    all: f64,
    /// Costs in pairs.
    dense: f64,
    cells: f64,
}

/// Whether nothing speaks for cells on the `group` heads from `head` on, which share keys and values. Either the values of
/// keys too light to be weighed one by one cancel, so that no mean can stand for them: the root of `sum w^2 |v|^2` over
/// these keys, against the output, as in noise. Or so many keys are heavy enough to be opened that looking for them costs
/// more than attending to all. From a few rows. O(rows looked at x keys x dim).
///
/// `shared` is by how much fewer cells heavy keys lie in than where cells are cut from runs of keys.
pub(crate) fn hopeless(
    isa: Isa,
    rule: &Rule,
    head: &Head<'_>,
    q: &Tensor<'_>,
    group: usize,
    shared: f64,
    work: &mut Work,
) -> bool {
    let n = head.q.rows();
    let cost = Cost::new(head.q.cols(), head.v.cols());
    let build = cost.build() * head.v.rows() as f64 / (n * group) as f64;
    if build > BUILT * visible(head) {
        return true;
    }
    let rows = (n / ROWS.0).clamp(1, ROWS.1);
    let mut signs = Signs::default();
    for i in 0..rows {
        let one = Head { q: q.head(head.batch, head.head + i % group), ..*head };
        // Anywhere in its part: text repeats itself at round numbers.
        let [begin, end] = [i, i + 1].map(|i| i * n / rows);
        let row = begin + (hash(SEED, i as u64) % (end - begin) as u64) as usize;
        look(isa, rule, &one, row, shared, work, &mut signs);
    }
    let cells = signs.cells + rows as f64 * build;
    libm::sqrt(signs.light) > SLACK * f64::from(rule.error) * libm::sqrt(signs.all) || RISK * cells > signs.dense
}

/// Keys that a row sees, in the mean of a few.
fn visible(head: &Head<'_>) -> f64 {
    let (n, masking) = (head.q.rows(), head.masking);
    let count = |i: usize| masking.count(head.batch, masking.visible(head.batch, (2 * i + 1) * n / (2 * COUNTED)));
    (0..COUNTED).map(count).sum::<usize>() as f64 / COUNTED as f64
}

/// One row.
fn look(isa: Isa, rule: &Rule, head: &Head<'_>, row: usize, shared: f64, work: &mut Work, signs: &mut Signs) {
    let (dim_k, dim_v) = (head.q.cols(), head.v.cols());
    let (masking, keep) = (head.masking, head.masking.keep(head.batch));
    let Work { dense, q, keys, sums, .. } = work;
    keys.fill_up(0.0);
    let Ok(mut out) = RowsMut::new(&mut sums[..dim_v], dim_v) else { unreachable!("one whole row") };
    let mut lse = [0.0];
    exact::attend_rows(isa, head, &[row as u32], &mut out, Some(&mut lse), dense);
    let (query, value) = (&mut q[..dim_k], &mut keys[..dim_v]);
    head.q.read(row, query);
    let seen = masking.visible(head.batch, row);
    let count = masking.count(head.batch, seen);
    // Keys in cells that all rows of a block see.
    let first = masking.visible(head.batch, row.saturating_sub(TOGETHER)).end.min(seen.end);
    let last = masking.visible(head.batch, (row + TOGETHER).min(head.q.rows() - 1)).begin.max(seen.begin);
    let whole = last.next_multiple_of(SEGMENT)..first / SEGMENT * SEGMENT;
    let needle = lse[0] + libm::logf(rule.needle_among(count, true));
    let light = lse[0] + libm::logf(LIGHT * rule.needle);
    let bias = masking.bias(head.batch, head.head);
    let (mut opened, mut among, mut squares) = (0usize, 0usize, 0.0);
    // Segments with keys to be opened; blocks of keys, and those under biases that are not all the same.
    let (mut segments, mut last, mut blocks, mut uneven) = (0usize, None, 0usize, 0usize);
    for (at, begin) in whole.step_by(BLOCK).enumerate() {
        let ids: [u32; BLOCK] = core::array::from_fn(|j| (begin + j) as u32);
        let q = Matrix { data: query, stride: dim_k, cols: dim_k };
        let mut logits = [0.0; BLOCK];
        isa.run(ScoresAt { from: &head.k, ids: &ids, q, rows: &[0], out: &mut logits });
        let mut part = [0.0; BLOCK];
        if let Some(bias) = &bias {
            bias.read_part(row, begin, &mut part);
            (blocks, uneven) = (blocks + 1, uneven + usize::from(part.iter().any(|&x| x != part[0])));
        }
        for (j, (&logit, bias)) in logits.iter().zip(part).enumerate() {
            if keep.is_some_and(|keep| keep[begin + j] == 0) {
                continue;
            }
            let x = head.scale * logit;
            let x = bias + if head.softcap > 0.0 { head.softcap * libm::tanhf(x / head.softcap) } else { x };
            among += 1;
            opened += usize::from(x >= needle);
            if x >= needle && last != Some(begin / SEGMENT) {
                (segments, last) = (segments + 1, Some(begin / SEGMENT));
            }
            // Light ones are many: some of them stand for all.
            if at % THINNED == 0 && x < light {
                let w = f64::from(libm::expf(x - lse[0]));
                head.v.read(begin + j, value);
                squares += THINNED as f64 * w * w * f64::from(isa.norm2(value));
            }
        }
    }
    signs.light += squares;
    signs.all += f64::from(isa.norm2(&sums[..dim_v]));
    signs.dense += count as f64;
    signs.cells += (count - among) as f64;
    if among > 0 {
        let (among, opened) = (among as f64, opened as f64 * shared);
        // Measured on causal heads and an encoder's: some cells are opened for nothing, and many more looked into.
        let (mut cells, mut nodes) = (1.2 * opened + 3.0, f64::INFINITY);
        if bias.is_some() {
            // Biases go with positions, and what they lift lies side by side.
            nodes = 1.6 * segments as f64 + 3.0;
            cells = cells.min((LEAVES * segments) as f64 + 3.0);
        }
        let cells = cells.min(among / BLOCK as f64);
        let nodes = nodes.min(1.6 * cells).min(among / SEGMENT as f64);
        let sifted = (8.0 * cells).min(among / BLOCK as f64);
        let cost = Cost::new(dim_k, dim_v);
        let lifts = cost.lifts(nodes, cells) * uneven as f64 / blocks.max(1) as f64;
        signs.cells += cost.lists(nodes, cells, sifted) + lifts + cost.row((among / (SEGMENT * ROOT) as f64).max(1.0));
    }
}
