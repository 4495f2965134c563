//! Which segments' cells stand for their keys: those that rows see whole.
//!
//! Lists of rows are the longer the more rows walk together, but keys that some of them do not see are dense for all. So a
//! block has parts, [`SEGMENT`] rows of every head: each uses the segments that all its own rows see.

use super::bias::Seen;
use super::block::{NUMBERED, RowBlock, Work};
use crate::cells::{BLOCK, Cells, NODES, ROOT, SEGMENT};
use crate::mem::{Buf, Maker, Plan};
use crate::simd::tile::Span;

/// Most parts of a block.
pub(super) const PARTS: usize = 4;

/// The nodes of a root block's first segment, as bits.
const LANES: u16 = ((1u32 << NODES) - 1) as u16;

/// Beside the bits of parts: nobody sees anything of the segment.
const HIDDEN: u8 = 1 << PARTS;

/// The segments that the parts of a block use.
pub(super) struct Usable {
    /// By segment: parts that do not attend to its keys densely.
    bits: Buf<u8>,
    /// By root block: nodes that each part uses, as bits.
    nodes: Buf<[u16; PARTS]>,
}

impl Usable {
    pub(super) fn plan(plan: &mut Plan, segments: usize) {
        Buf::<u8>::plan(plan, segments);
        Buf::<[u16; PARTS]>::plan(plan, segments.div_ceil(ROOT));
    }

    pub(super) fn made(m: &mut Maker<'_>, segments: usize) -> Self {
        Usable { bits: m.filled(segments, 0), nodes: m.filled(segments.div_ceil(ROOT), [0; PARTS]) }
    }

    fn clear(&mut self) {
        self.bits.fill(0);
        self.nodes.fill([0; PARTS]);
    }

    /// A part uses the segments that lie between two rows: no mask keeps it from any.
    fn set_between(&mut self, part: usize, cells: &Cells, first: usize, end: usize) {
        if cells.in_order() {
            let (first, end) = (first.div_ceil(SEGMENT), (end / SEGMENT).min(cells.segments()));
            for at in first..end {
                self.bits[at] |= 1 << part;
            }
            for (at, nodes) in self.nodes.iter_mut().enumerate() {
                let [a, b] = [first, end].map(|x| x.clamp(at * ROOT, (at + 1) * ROOT) - at * ROOT);
                // As many ones as nodes, from the first on.
                let ones = |segments: usize| ((1u32 << (segments * NODES)) - 1) as u16;
                nodes[part] = ones(b) & !ones(a);
            }
            return;
        }
        for (segment, range) in cells.ranges().iter().enumerate() {
            let [low, high] = range.map(|x| x as usize);
            if low >= first && high < end {
                self.bits[segment] |= 1 << part;
                self.nodes[segment / ROOT][part] |= LANES << (segment % ROOT * NODES);
            }
        }
    }

    /// The parts of `bits`, of so many, use a segment.
    fn set(&mut self, segment: usize, bits: u8, parts: usize) {
        self.bits[segment] = bits;
        for (part, nodes) in self.nodes[segment / ROOT][..parts].iter_mut().enumerate() {
            *nodes |= (LANES * u16::from(bits >> part & 1)) << (segment % ROOT * NODES);
        }
    }

    /// Whether a part uses the cells of a segment.
    fn of(&self, segment: usize, part: usize) -> bool {
        self.bits.get(segment).is_some_and(|bits| bits & HIDDEN == 0 && bits >> part & 1 != 0)
    }

    /// Nodes of root block `at` that some part uses, as bits.
    pub(super) fn present(&self, at: usize) -> u16 {
        self.nodes[at].iter().fold(0, |all, bits| all | bits)
    }

    /// Segments that a part uses.
    fn of_part(&self, part: usize) -> usize {
        self.nodes.iter().map(|nodes| nodes[part].count_ones() as usize).sum::<usize>() / NODES
    }

    /// Segments that some part uses.
    pub(super) fn count(&self) -> usize {
        self.bits.iter().filter(|&bits| bits & HIDDEN == 0 && *bits != 0).count()
    }
}

/// Consecutive rows of a list that see the same nodes of a root block.
pub(super) struct Run {
    pub(super) begin: usize,
    pub(super) end: usize,
    /// Which they see, as numbers and as bits.
    pub(super) present: [f32; BLOCK],
    pub(super) bits: u16,
}

impl RowBlock<'_> {
    /// Parts of the block: rows so close that they are to use the same segments.
    pub(super) fn parts(&self) -> usize {
        self.n.div_ceil(SEGMENT)
    }

    /// Part of a query.
    pub(super) fn part_of(&self, query: usize) -> usize {
        query % self.n / SEGMENT
    }

    /// Marks for every part of the block the segments that all its rows see whole; returns how many the part with the most has:
    /// none for more queries than 16 bits number, nor where there is no segment. Bounds and biases are of whole blocks: there all
    /// parts use what all rows see.
    pub(super) fn find_usable(&self, work: &mut Work) -> usize {
        work.usable.clear();
        if self.queries() > NUMBERED || self.cells.segments() == 0 {
            return 0;
        }
        let (masking, parts) = (self.head.masking, self.parts());
        let mut seen = [[0, usize::MAX]; PARTS];
        for i in 0..self.n {
            let of = masking.visible(self.head.batch, self.begin + i);
            let [first, end] = &mut seen[i / SEGMENT];
            *first = of.begin.max(of.sinks).max(*first);
            *end = of.end.min(*end);
        }
        let [first, end] = seen[..parts].iter().fold([0, usize::MAX], |[a, b], &[c, d]| [a.max(c), b.min(d)]);
        self.survey(work, first, end);
        if masking.biases().is_some() || work.evidence.is_some() {
            seen.fill([first, end]);
        }
        if masking.keep(self.head.batch).is_none() && masking.biases().is_none() {
            for (part, &[first, end]) in seen[..parts].iter().enumerate() {
                work.usable.set_between(part, self.cells, first, end);
            }
        } else {
            self.set_seen(work, &seen[..parts]);
        }
        (0..parts).map(|part| work.usable.of_part(part)).max().unwrap_or(0)
    }

    /// Marks the segments that lie between two rows of a part each, but for those of which something is masked.
    fn set_seen(&self, work: &mut Work, seen: &[[usize; 2]]) {
        for (segment, range) in self.cells.ranges().iter().enumerate() {
            let [low, high] = range.map(|x| x as usize);
            let inside = |&[first, end]: &[usize; 2]| u8::from(low >= first && high < end);
            let bits = seen.iter().rev().fold(0, |bits, part| bits << 1 | inside(part));
            if bits == 0 {
                continue;
            }
            match self.masked(work, segment) {
                Seen::All => work.usable.set(segment, bits, seen.len()),
                Seen::Part => {}
                Seen::Nothing => work.usable.bits[segment] = bits | HIDDEN,
            }
        }
    }

    /// Query-key pairs that cells stand for, after [`find_usable`](RowBlock::find_usable).
    pub(super) fn covered(&self, work: &Work) -> usize {
        let rows = |part: usize| (self.n - part * SEGMENT).min(SEGMENT);
        (0..self.parts()).map(|part| rows(part) * work.usable.of_part(part)).sum::<usize>() * SEGMENT * self.group
    }

    /// Notes what is left between the segments that a part uses, but for what no row sees.
    pub(super) fn leave_ranges(&self, work: &mut Work, part: usize) {
        work.ranges.clear();
        let mut at = 0;
        let Work { ranges, usable, .. } = &mut *work;
        let mut take = |low: usize, end: usize| {
            if at < low {
                // One more range than segments fits.
                crate::error::reserved(ranges.push(Span { begin: at, end: low }));
            }
            at = end;
        };
        let segments = self.cells.segments();
        for (root, nodes) in usable.nodes.iter().enumerate() {
            if self.cells.in_order() && nodes[part] == u16::MAX {
                take(root * ROOT * SEGMENT, (root + 1) * ROOT * SEGMENT);
                continue;
            }
            for segment in root * ROOT..segments.min((root + 1) * ROOT) {
                if usable.bits[segment] >> part & 1 != 0 {
                    let [low, high] = self.cells.range(segment);
                    take(low, high + 1);
                }
            }
        }
        take(self.head.v.rows(), self.head.v.rows());
        self.trim(work);
    }

    /// The other side: the segments themselves.
    pub(super) fn take_ranges(&self, work: &mut Work, part: usize) {
        work.ranges.clear();
        for segment in (0..self.cells.segments()).filter(|&segment| work.usable.of(segment, part)) {
            let [low, high] = self.cells.range(segment);
            let span = Span { begin: low, end: high + 1 };
            // Segments of keys in another order share theirs.
            if work.ranges.last() != Some(&span) {
                crate::error::reserved(work.ranges.push(span));
            }
        }
    }

    /// The run of a list of queries, ascending, that begins at place `begin`, at root block `at`: all that is left of the list where all
    /// parts use the same nodes.
    pub(super) fn run_from(&self, usable: &Usable, at: usize, rows: &[u16], begin: usize) -> Run {
        let query = rows[begin] as usize;
        let part = self.part_of(query);
        let nodes = &usable.nodes[at];
        let bits = nodes[part];
        let end = if nodes[..self.parts()].iter().all(|&other| other == bits) {
            rows.len()
        } else {
            let end = query / self.n * self.n + self.n.min((part + 1) * SEGMENT);
            begin + rows[begin..].partition_point(|&query| (query as usize) < end)
        };
        Run { begin, end, present: core::array::from_fn(|lane| f32::from(bits >> lane & 1)), bits }
    }

    /// What padding or a bias leaves of a segment.
    fn masked(&self, work: &Work, segment: usize) -> Seen {
        let (masking, batch) = (self.head.masking, self.head.batch);
        let (mut clear, mut hidden) = (true, true);
        if let Some(keep) = masking.keep(batch) {
            for leaf in 0..crate::cells::LEAVES {
                let node = segment * crate::cells::NODES + leaf / BLOCK;
                for &id in self.cells.keys_of(node, leaf % BLOCK) {
                    clear &= keep[id as usize] != 0;
                    hidden &= keep[id as usize] == 0;
                }
            }
        } else if masking.biases().is_some() {
            return self.seen(work, segment);
        }
        match (clear, hidden) {
            (true, _) => Seen::All,
            (_, true) => Seen::Nothing,
            _ => Seen::Part,
        }
    }
}
