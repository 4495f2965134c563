//! What a session keeps of a head: tree, entries and known keys, for a few rows at a time, as in decoding.

use super::control::{Control, Why};
use super::front::Front;
use super::memo::Memo;
use super::policy::{FAILURES, KNOWN, LIFE, REST, SEGMENT, STEP_CUT};
use super::tree::Tree;
use crate::error::reserved;
use crate::mem::{Buf, Dtype, Maker, Rows};
use crate::simd::Isa;

/// Tree, entries and known keys of a head of a session.
pub(crate) struct Clusters {
    tree: Tree,
    pub(super) front: Front,
    /// The length at which each known key was heavy last.
    last: Buf<u32>,
    room: Buf<u32>,
    pub(super) memo: Memo,
    control: Control,
    /// Whether rows have borne this threshold.
    pub(super) measured: bool,
    /// Times in a row that no threshold has kept the tolerance: a row attended exactly makes keys known, with which the next may do.
    failures: usize,
    /// Tokens for which few rows are attended exactly.
    rest: usize,
    /// Why.
    why: Why,
    /// Tokens since many rows were attended: what these have found is of rows with known keys of their own.
    pub(super) since: usize,
    /// Segments that the entries are of.
    pub(super) shown: usize,
    /// Whether they are of all of them: no segment is without cells.
    pub(super) covers: bool,
}

impl Clusters {
    /// For up to `capacity` tokens in a cache of this type.
    pub(crate) fn made(m: &mut Maker<'_>, dims: [usize; 2], capacity: usize, dtype: Dtype) -> Self {
        let [dim_k, dim_v] = dims;
        Clusters {
            tree: Tree::made(m, dim_k, dim_v, capacity),
            front: Front::made(m, dims, capacity, dtype),
            last: m.room(KNOWN),
            room: m.room(KNOWN),
            memo: Memo::default(),
            control: Control::default(),
            measured: false,
            failures: 0,
            rest: 0,
            why: Why::Strict,
            since: 0,
            shown: 0,
            covers: true,
        }
    }

    /// The tree.
    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Builds the segments that have become complete, unseen until [`publish`](Clusters::publish).
    pub(crate) fn build(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>) {
        self.tree.fill(isa, keys, values, |_| true);
    }

    /// After `tokens` more were published: of all, keys and values, `unit` the logit of a unit of a score.
    pub(crate) fn publish(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>, tokens: usize, unit: f32) {
        self.tree.publish();
        self.rest = self.rest.saturating_sub(tokens);
        self.since = if self.memo.take_prompt() { 0 } else { self.since + tokens };
        if let Some((control, failed)) = self.memo.take_control() {
            self.control = control;
            self.measured = failed.is_none();
            self.failures = if failed.is_some() { self.failures + 1 } else { 0 };
            self.why = failed.unwrap_or(self.why);
            if self.failures == FAILURES {
                (self.rest, self.failures) = (REST, 0);
            }
        }
        let len = keys.rows() as u32;
        let whole = self.shown != self.tree.segments();
        for (i, last) in self.last.iter_mut().enumerate() {
            if self.memo.take_still_heavy(i) {
                *last = len;
            }
        }
        for key in self.memo.take_heavy() {
            if let Some(i) = self.front.known_at(&self.tree, key) {
                self.last[i] = len;
            } else if !whole && self.front.learn(isa, &self.tree, keys, values, key, unit) {
                reserved(self.last.push(len));
            } else if whole && (key as usize) < keys.rows() && self.front.known.len() < self.front.known.capacity() {
                reserved(self.front.known.push(key));
                reserved(self.last.push(len));
            }
        }
        if whole {
            self.rebuild(isa, keys, values, unit);
        }
    }

    /// Entries of all segments, less the known keys that were heavy of late.
    fn rebuild(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>, unit: f32) {
        let len = keys.rows();
        self.room.clear();
        for (&key, &last) in self.front.known.iter().zip(&*self.last) {
            if last as usize + LIFE > len {
                reserved(self.room.push(key));
            }
        }
        let apart = (0..self.tree.segments()).try_fold(0, |n, segment| Some(n + self.tree.apart_of(segment)?));
        self.covers = apart.is_some_and(|n| n <= KNOWN / 2);
        self.shown = self.tree.segments();
        if !self.covers {
            self.front.clear();
            self.last.clear();
            return;
        }
        self.front.start(isa, &self.tree, 0..self.tree.segments());
        self.front.know(isa, &self.tree, keys, values, self.room.iter().copied(), unit);
        // Whose time cannot be told any more starts anew: half of it.
        self.last.clear();
        reserved(self.last.resize(self.front.known.len(), (len - len.min(LIFE / 2)) as u32));
    }

    /// Forgets what waits.
    pub(crate) fn roll_back(&mut self) {
        self.tree.roll_back();
    }

    /// Keeps the segments that lie whole in the first `len` tokens.
    pub(crate) fn truncate(&mut self, isa: Isa, keys: &Rows<'_>, values: &Rows<'_>, len: usize, unit: f32) {
        self.tree.truncate(isa, keys, values, len / SEGMENT);
        let mut n = 0;
        for i in 0..self.front.known.len() {
            if (self.front.known[i] as usize) < len / SEGMENT * SEGMENT {
                self.front.known[n] = self.front.known[i];
                self.last[n] = self.last[i].min(len as u32);
                n += 1;
            }
        }
        self.front.known.truncate(n);
        self.last.truncate(n);
        self.memo = Memo::default();
        self.measured = false;
        self.rebuild(isa, &keys.slice(0, len), &values.slice(0, len), unit);
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.tree.clear();
        self.front.clear();
        self.last.clear();
        self.memo = Memo::default();
        self.control = Control::default();
        self.measured = false;
        self.failures = 0;
        self.rest = 0;
        self.since = 0;
        self.shown = 0;
    }

    /// The threshold as last found.
    pub(crate) fn control(&self) -> Control {
        self.control
    }

    /// Why few rows are attended exactly for now, if they are.
    pub(super) fn rests(&self) -> Option<Why> {
        (self.rest > 0).then_some(self.why)
    }

    /// Whether they are.
    pub(crate) fn rest(&self) -> bool {
        self.rest > 0
    }

    /// Notes what many rows have found: for those after the next append.
    pub(crate) fn note(&self, control: &Control, heavy: impl Iterator<Item = u32>) {
        if control.is_measured() {
            self.memo.control(control, None);
        }
        heavy.for_each(|key| self.memo.heavy(key, STEP_CUT));
        self.memo.prompt();
    }
}
