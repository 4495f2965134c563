//! Bounded lists of scored keys, one per query of a batch: appended to until full, then cut back to the best.

use core::cmp::Ordering;

/// A key and its score; higher is better.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Entry {
    pub score: f32,
    pub at: u32,
}

/// Lists of `room` entries each.
pub(super) struct Lists<'a> {
    pub entries: &'a mut [Entry],
    /// Entries in use, by list.
    pub len: &'a mut [u32],
    /// Score of the worst entry worth having, by list.
    pub limit: &'a mut [f32],
    pub room: usize,
    /// Entries that a full list is cut back to; less than `room`.
    pub keep: usize,
}

impl Lists<'_> {
    /// Empties lists `0..rows`.
    pub fn begin(&mut self, rows: usize) {
        self.len[..rows].fill(0);
        self.limit[..rows].fill(f32::NEG_INFINITY);
    }

    pub fn list(&mut self, row: usize) -> &mut [Entry] {
        &mut self.entries[row * self.room..][..self.len[row] as usize]
    }

    /// Appends an entry that scores above the list's limit. Of a full list the best `keep` stay, and the worst of them is
    /// the limit.
    #[inline]
    pub fn push(&mut self, row: usize, entry: Entry) {
        if entry.score <= self.limit[row] {
            return;
        }
        if self.len[row] as usize == self.room {
            self.cut(row);
            if entry.score <= self.limit[row] {
                return;
            }
        }
        self.entries[row * self.room + self.len[row] as usize] = entry;
        self.len[row] += 1;
    }

    /// Leaves the best `keep` entries, equal scores by place. O(entries).
    pub fn cut(&mut self, row: usize) {
        let keep = self.keep;
        let list = self.list(row);
        if list.len() <= keep {
            return;
        }
        let (_, worst, _) = list.select_nth_unstable_by(keep - 1, by_place);
        let limit = worst.score;
        self.limit[row] = limit;
        self.len[row] = keep as u32;
    }
}

/// Better first, equal scores by place.
pub(super) fn by_place(a: &Entry, b: &Entry) -> Ordering {
    b.score.total_cmp(&a.score).then(a.at.cmp(&b.at))
}

/// Which ids may be answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed<'a> {
    pub begin: u64,
    pub end: u64,
    /// Bit `id % 8` of byte `id / 8`; ids beyond it are refused.
    pub bits: Option<&'a [u8]>,
}

impl Allowed<'_> {
    /// Whether every id is allowed.
    pub fn all(&self) -> bool {
        self.begin == 0 && self.end == u64::MAX && self.bits.is_none()
    }

    #[inline]
    pub fn admits(&self, id: u64) -> bool {
        if id < self.begin || id >= self.end {
            return false;
        }
        self.bits.is_none_or(|bits| {
            usize::try_from(id / 8).ok().and_then(|at| bits.get(at)).is_some_and(|byte| byte >> (id % 8) & 1 == 1)
        })
    }
}
