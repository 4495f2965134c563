//! Batches of queries against cells: each cell is read once for all queries of a chunk that look into it.

use super::basis::product;
use super::effort::{Effort, Found};
use super::{BLOCK, Codes, Keys, NONE, PANEL, RANK, Shape};
use crate::dci::chunk::Chunk;
use crate::dci::lists::{Allowed, Entry, Lists};
use crate::mem::{Buf, Maker};
use crate::simd::codes::{Blocks, Coded, OFFER, Pack, Scan, Sink, Visit, round_query};
use crate::simd::tile::KEYS;

/// What looking into cells needs of a scratch, for chunks of the batch's size.
pub(in crate::dci) struct Probing {
    codes: Buf<i8>,
    unit: Buf<f32>,
    sum: Buf<i32>,
    /// Products with the cells' means, `[panels][cells][PANEL]`.
    centers: Buf<f32>,
    /// Codes of one query, best first in part.
    column: Buf<f32>,
    /// Queries that look into a cell first, and later, `[cells][panels]`.
    first: Buf<u64>,
    rest: Buf<u64>,
    visits: Buf<Visit>,
    cells: usize,
    rank: usize,
}

impl Probing {
    fn sizes(shape: &Shape, chunk: usize) -> (usize, usize, usize, usize) {
        let some = usize::from(shape.rank > 0);
        let panels = chunk / PANEL;
        (chunk * shape.rank, chunk * some, (panels * shape.cells + KEYS) * PANEL * some, panels * shape.cells)
    }

    pub fn new(m: &mut Maker<'_>, shape: &Shape, chunk: usize) -> Probing {
        let (codes, rows, centers, bits) = Self::sizes(shape, chunk);
        Probing {
            codes: m.filled(codes, 0),
            unit: m.filled(rows, 0.0),
            sum: m.filled(rows, 0),
            centers: m.filled(centers, 0.0),
            column: m.filled(2 * shape.cells, 0.0),
            first: m.filled(bits, 0),
            rest: m.filled(bits, 0),
            visits: m.filled(rows, Visit::default()),
            cells: shape.cells,
            rank: shape.rank,
        }
    }

    /// A number for every cell.
    pub fn ranks(&mut self) -> &mut [f32] {
        &mut self.column
    }

    /// Whether this is room enough for the cells as they are.
    pub fn fits(&self, cells: &Codes) -> bool {
        !cells.active() || cells.count() <= self.cells && cells.rank() <= self.rank
    }
}

/// Keeps the best codes of every query.
struct Candidates<'a> {
    lists: Lists<'a>,
    order: &'a [u32],
    ids: &'a [u64],
    allowed: Allowed<'a>,
    all: bool,
}

impl Sink for Candidates<'_> {
    #[inline]
    fn limit(&self, row: u32) -> f32 {
        self.lists.limit[row as usize]
    }

    fn take(&mut self, row: u32, first: u32, mut bits: u64, scores: &[f32; OFFER]) {
        while bits != 0 {
            let i = bits.trailing_zeros();
            bits &= bits - 1;
            let at = self.order[(first + i) as usize];
            if self.all || self.allowed.admits(self.ids[at as usize]) {
                self.lists.push(row as usize, Entry { score: scores[i as usize & (OFFER - 1)], at });
            }
        }
    }
}

/// Writes every score by slot.
struct Dense<'a> {
    order: &'a [u32],
    scores: &'a mut [f32],
}

impl Sink for Dense<'_> {
    fn limit(&self, _: u32) -> f32 {
        f32::NEG_INFINITY
    }

    fn take(&mut self, _: u32, first: u32, mut bits: u64, scores: &[f32; OFFER]) {
        while bits != 0 {
            let i = bits.trailing_zeros();
            bits &= bits - 1;
            self.scores[self.order[(first + i) as usize] as usize] = scores[i as usize & (OFFER - 1)];
        }
    }
}

/// Room of [`Codes::rank_found`]: a number by slot, and twice as many as there are cells.
pub(in crate::dci) struct Ranked<'a> {
    pub dense: &'a mut [f32],
    pub ranks: &'a mut [f32],
}

impl Codes {
    /// Blocks `from..to`.
    fn blocks(&self, from: usize, to: usize) -> Blocks<'_> {
        Blocks {
            codes: &self.codes[from * BLOCK * self.rank..to * BLOCK * self.rank],
            unit: &self.unit[from * BLOCK..to * BLOCK],
            bias: &self.bias[from * BLOCK..to * BLOCK],
            first: (from * BLOCK) as u32,
        }
    }

    fn cell(&self, c: usize) -> Blocks<'_> {
        self.blocks(self.start[c] as usize, self.start[c + 1] as usize)
    }

    fn tail_blocks(&self) -> Blocks<'_> {
        let from = self.tail_block();
        self.blocks(from, from + self.tail.div_ceil(BLOCK))
    }

    /// How promising cell `c` is for a query of length `length` whose product with its mean is `center`.
    #[inline]
    fn promise(&self, keys: &Keys<'_>, c: usize, center: f32, length: f32) -> f32 {
        if keys.l2 { center - self.half[c] } else { center + 2.0 * length * self.reach[c] }
    }

    /// Looks for the candidates of queries `0..n` of `batch.rows`: the slots of the best codes, at most `keep` each (of those
    /// allowed), in lists of `room`.
    pub fn probe(
        &self,
        keys: Keys<'_>,
        batch: &mut Chunk,
        probing: &mut Probing,
        n: usize,
        effort: Effort,
        room: usize,
        allowed: Allowed<'_>,
    ) {
        self.choose_cells(keys, batch, probing, n, effort.probe as usize);
        let mut sink = Candidates {
            lists: Lists {
                entries: &mut batch.entries,
                len: &mut batch.len,
                limit: &mut batch.limit,
                room,
                keep: effort.keep as usize,
            },
            order: &self.order,
            ids: keys.ids,
            allowed,
            all: allowed.all(),
        };
        sink.lists.begin(n);
        let panels = n.div_ceil(PANEL);
        let Probing { codes, unit, sum, centers, first, rest, visits, .. } = probing;
        let queries = Coded { codes, unit, sum, quads: self.rank / 4 };
        // The nearest cell first: it sets limits that spare most of the rest.
        for bits in [&first[..], &rest[..]] {
            for c in 0..self.count {
                let mut count = 0;
                for p in 0..panels {
                    let mut word = bits[c * panels + p];
                    while word != 0 {
                        let lane = word.trailing_zeros() as usize;
                        word &= word - 1;
                        let center = centers[(p * self.count + c) * PANEL + lane];
                        visits[count] = Visit { row: (p * PANEL + lane) as u32, center };
                        count += 1;
                    }
                }
                if count > 0 {
                    let visits = &visits[..count];
                    keys.isa.run(Scan { blocks: self.cell(c), queries, visits, sink: &mut sink });
                }
            }
        }
        if self.tail > 0 {
            let visits = &mut visits[..n];
            visits.iter_mut().enumerate().for_each(|(i, v)| *v = Visit { row: i as u32, center: 0.0 });
            keys.isa.run(Scan { blocks: self.tail_blocks(), queries, visits, sink: &mut sink });
        }
        (0..n).for_each(|row| sink.lists.cut(row));
    }

    /// Codes the queries and marks the `probe` most promising cells of each.
    fn choose_cells(&self, keys: Keys<'_>, batch: &mut Chunk, probing: &mut Probing, n: usize, probe: usize) {
        let (dim, rank, cells, isa) = (keys.dim, self.rank, self.count, keys.isa);
        let panels = n.div_ceil(PANEL);
        let probe = probe.min(cells);
        let Probing { codes, unit, sum, centers, column, first, rest, .. } = probing;
        first[..panels * cells].fill(0);
        rest[..panels * cells].fill(0);
        let half = column.len() / 2;
        for p in 0..panels {
            let count = (n - p * PANEL).min(PANEL);
            let mut at = [0; PANEL];
            at.iter_mut().enumerate().for_each(|(i, at)| *at = (p * PANEL + i) as u32);
            let out = &mut batch.panels[..dim * PANEL];
            isa.run(Pack { rows: &batch.rows, stride: dim, cols: dim, at: &at[..count], out });
            let (asking, offset) = self.asking(dim);
            product(isa, out, asking, dim, &mut batch.product);
            if keys.l2 {
                for (row, &offset) in batch.product.chunks_exact_mut(PANEL).zip(offset) {
                    row.iter_mut().for_each(|x| *x -= offset);
                }
            }
            let centers = &mut centers[p * cells * PANEL..];
            product(isa, &batch.product[..rank * PANEL], &self.means[..cells * rank], rank, centers);
            for lane in 0..count {
                let row = p * PANEL + lane;
                let mut x = [0.0; RANK];
                x[..rank].iter_mut().enumerate().for_each(|(j, x)| *x = batch.product[j * PANEL + lane]);
                let code = &mut codes[row * rank..][..rank];
                (unit[row], sum[row]) = round_query(&x[..rank], code);
                let length = libm::sqrtf(isa.norm2(&x[..rank]));
                let (column, sorted) = column.split_at_mut(half);
                let (column, sorted) = (&mut column[..cells], &mut sorted[..cells]);
                let mut best = 0;
                for c in 0..cells {
                    column[c] = self.promise(&keys, c, centers[c * PANEL + lane], length);
                    if column[c] > column[best] {
                        best = c;
                    }
                }
                let bit = 1u64 << lane;
                if probe < cells {
                    sorted.copy_from_slice(column);
                    let (_, &mut worst, _) = sorted.select_nth_unstable_by(probe.max(1) - 1, |a, b| b.total_cmp(a));
                    for (c, &x) in column.iter().enumerate() {
                        rest[c * panels + p] |= if x >= worst { bit } else { 0 };
                    }
                } else {
                    (0..cells).for_each(|c| rest[c * panels + p] |= bit);
                }
                rest[best * panels + p] &= !bit;
                first[best * panels + p] |= bit;
            }
        }
    }

    /// For every slot of `truth`: how many cells come before its own, and how many keys before itself, in the order in which
    /// codes put them. `own` is a slot left out.
    pub fn rank_found(
        &self,
        keys: Keys<'_>,
        query: &[f32],
        own: Option<u32>,
        truth: impl Iterator<Item = u32>,
        room: Ranked<'_>,
        found: &mut [Found],
    ) {
        let (rank, isa, cells) = (self.rank, keys.isa, self.count);
        let mut x = [0.0; RANK];
        let x = &mut x[..rank];
        let (asking, offset) = self.asking(keys.dim);
        isa.dots(asking, keys.dim, query, x);
        if keys.l2 {
            x.iter_mut().zip(offset).for_each(|(x, o)| *x -= o);
        }
        let mut code = [0i8; RANK];
        let (unit, sum) = round_query(x, &mut code[..rank]);
        let length = libm::sqrtf(isa.norm2(x));
        let centers = &mut room.ranks[..cells];
        isa.dots(&self.means[..cells * rank], rank, x, centers);
        room.dense.fill(f32::NEG_INFINITY);
        let queries = Coded { codes: &code, unit: &[unit], sum: &[sum], quads: rank / 4 };
        let mut sink = Dense { order: &self.order, scores: room.dense };
        for (c, center) in centers.iter_mut().enumerate() {
            let visits = &[Visit { row: 0, center: *center }];
            isa.run(Scan { blocks: self.cell(c), queries, visits, sink: &mut sink });
            *center = self.promise(&keys, c, *center, length);
        }
        let visits = &[Visit { row: 0, center: 0.0 }];
        isa.run(Scan { blocks: self.tail_blocks(), queries, visits, sink: &mut sink });
        if let Some(own) = own {
            room.dense[own as usize] = f32::NEG_INFINITY;
        }
        for (slot, found) in truth.zip(found) {
            let at = self.place[slot as usize];
            if at == NONE {
                continue;
            }
            let block = at as usize / BLOCK;
            let ends = &self.start[1..=cells];
            let cell = ends.partition_point(|&end| end as usize <= block);
            let score = room.dense[slot as usize];
            found.cells = match centers.get(cell) {
                Some(&own) => centers.iter().filter(|&&x| x > own).count() as u32,
                None => 0,
            };
            found.codes = room.dense.iter().map(|&x| u32::from(x >= score)).sum::<u32>().saturating_sub(1);
        }
    }
}
