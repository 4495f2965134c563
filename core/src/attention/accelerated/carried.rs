//! [Offsets](super::offset) that a session carries from trials to the rows that come with its next appends.
//!
//! As with a [lead](super::lead), what is noted counts only once the head has grown. Of several trials that of the latest rows
//! does, number by number, whoever notes it and when. It speaks for so many tokens after its last row as long as the segments are
//! there that its rows used: who takes tokens back and appends them again gets the same.

use super::all::stretch;
use super::ease::EASIEST;
use super::ladder::LADDER;
use super::offset::{self, Offsets};
use super::rule::Ease;
use super::surplus;
use crate::cells::SEGMENT;
use crate::error::Result;
use crate::mem::{Buf, Memory, Objects, Plan};

/// Tokens after a trial for which offsets of a few rows speak, against short contexts. Against 65,536 keys those of 8,000 tokens before take
/// nearly as much from the error as new ones.
const TOKENS: usize = 8192;

/// Of these, the part within which [surpluses](surplus) fade, and after which thresholds are eased once at most: rows that weigh less by
/// then than they are told, or whose heavy keys are others, lose keys.
const FADING: usize = 4;

/// The bits that came with the highest mark, which is not 0; the largest of those that came with the same.
#[cfg(target_has_atomic = "64")]
#[derive(Debug, Default)]
struct Latest(core::sync::atomic::AtomicU64);

#[cfg(target_has_atomic = "64")]
impl Latest {
    fn note(&self, mark: u32, bits: u32) {
        self.0.fetch_max(u64::from(mark) << 32 | u64::from(bits), core::sync::atomic::Ordering::Relaxed);
    }

    fn mark(&mut self) -> Option<u32> {
        Some((*self.0.get_mut() >> 32) as u32).filter(|&mark| mark > 0)
    }

    fn get(&self) -> (u32, u32) {
        let x = self.0.load(core::sync::atomic::Ordering::Relaxed);
        ((x >> 32) as u32, x as u32)
    }

    fn take(&mut self) -> Option<(u32, u32)> {
        let x = core::mem::take(self.0.get_mut());
        (x != 0).then_some(((x >> 32) as u32, x as u32))
    }
}

/// The same, where an interrupt, or another thread that notes a different trial at once, may leave bits of either.
#[cfg(not(target_has_atomic = "64"))]
#[derive(Debug, Default)]
struct Latest([core::sync::atomic::AtomicU32; 2]);

#[cfg(not(target_has_atomic = "64"))]
impl Latest {
    fn note(&self, mark: u32, bits: u32) {
        use core::sync::atomic::Ordering::Relaxed;
        let [of, to] = &self.0;
        if (mark, bits) > (of.load(Relaxed), to.load(Relaxed)) {
            to.store(bits, Relaxed);
            of.store(mark, Relaxed);
        }
    }

    fn mark(&mut self) -> Option<u32> {
        Some(*self.0[0].get_mut()).filter(|&mark| mark > 0)
    }

    fn get(&self) -> (u32, u32) {
        let [mark, bits] = self.0.each_ref().map(|x| x.load(core::sync::atomic::Ordering::Relaxed));
        (mark, bits)
    }

    fn take(&mut self) -> Option<(u32, u32)> {
        let [mark, bits] = self.0.each_mut().map(|x| core::mem::take(x.get_mut()));
        (mark != 0).then_some((mark, bits))
    }
}

/// Whose offsets: those of the loosest rule and of the tightest one that was tried, and of a few rows.
#[derive(Clone, Copy)]
enum Slot {
    Loose,
    Tight,
    Few,
}

const SLOTS: usize = 3;

/// Of a trial: keys that its last row sees, and what else is to be known of the numbers of a slot: how often the rule is tightened,
/// or how far the thresholds of a few rows are [eased](number).
type Said = (u32, u32);

/// Ways to ease thresholds for keys.
const WAYS: usize = EASIEST.keys + 1;

/// An easing as one number: none is beyond that of the easiest.
const fn number(of: Ease) -> u32 {
    (of.keys + WAYS * of.estimates) as u32
}

/// The easing of a number.
fn ease(number: u32) -> Ease {
    let number = number as usize;
    Ease { keys: number % WAYS, estimates: number / WAYS }
}

/// Of one KV head.
pub(crate) struct Carried {
    /// `[SLOTS][each + 1]`: numbers, and one that says more of them.
    noted: Objects<Latest>,
    /// What was noted before the last append, or before that: `[SLOTS][each]`.
    of: Buf<f32>,
    said: [Option<Said>; SLOTS],
}

impl Carried {
    /// For `group` query heads whose values have `dim_v` elements.
    pub(crate) fn plan(plan: &mut Plan, group: usize, dim_v: usize) {
        let each = offset::each(group, dim_v);
        Objects::<Latest>::plan(plan, SLOTS * (each + 1));
        Buf::<f32>::plan(plan, SLOTS * each);
    }

    /// As planned.
    ///
    /// # Errors
    /// `NoMemory`, `Budget`.
    pub(crate) fn new_in(memory: &Memory, group: usize, dim_v: usize) -> Result<Self> {
        let each = offset::each(group, dim_v);
        let mut noted = Objects::with_capacity(memory, SLOTS * (each + 1))?;
        (0..SLOTS * (each + 1)).try_for_each(|_| noted.push(Latest::default()))?;
        Ok(Carried { noted, of: Buf::filled(memory, SLOTS * each, 0.0)?, said: [None; SLOTS] })
    }

    fn each(&self) -> usize {
        self.of.len() / SLOTS
    }

    fn slot(&self, slot: Slot) -> &[f32] {
        &self.of[slot as usize * self.each()..][..self.each()]
    }

    fn note(&self, slot: Slot, mark: u32, says: u32, offsets: &[f32]) {
        let to = &self.noted[slot as usize * (self.each() + 1)..][..self.each() + 1];
        for (to, bits) in to.iter().zip(offsets.iter().map(|x| x.to_bits()).chain([says])) {
            to.note(mark, bits);
        }
    }

    /// Notes those of the loosest rule and of one that is tightened `times` times; `mark`: keys that the last row of the trial sees.
    pub(super) fn note_many(&self, mark: usize, times: usize, loose: &[f32], tight: &[f32]) {
        let mark = mark.min(u32::MAX as usize) as u32;
        self.note(Slot::Loose, mark, 0, loose);
        self.note(Slot::Tight, mark, times as u32, tight);
    }

    /// Notes those of a few rows, and how far the thresholds of these are eased.
    pub(super) fn note_few(&self, mark: usize, eased: Ease, offsets: &[f32]) {
        self.note(Slot::Few, mark.min(u32::MAX as usize) as u32, number(eased), offsets);
    }

    /// After an append. O(1), and O(numbers) where something was noted.
    pub(crate) fn grow(&mut self) {
        let each = self.each();
        let noted = self.noted.chunks_exact_mut(each + 1).zip(self.of.chunks_exact_mut(each));
        for ((noted, of), said) in noted.zip(&mut self.said) {
            let (last, noted) = noted.split_last_mut().unwrap_or_else(|| unreachable!("one more than numbers"));
            if let Some(says) = last.take() {
                *said = Some(says);
                for (from, to) in noted.iter_mut().zip(of) {
                    *to = from.take().map_or(0.0, |(_, bits)| f32::from_bits(bits));
                }
            }
        }
    }

    /// Before all but the first `len` tokens go: nothing is left where a trial used segments that go, too.
    pub(crate) fn cut(&mut self, len: usize) {
        let each = self.each();
        let noted = self.noted.chunks_exact_mut(each + 1).filter_map(|noted| noted.last_mut()?.mark());
        let last = self.said.iter().flatten().map(|&(mark, _)| mark).chain(noted).max();
        if last.is_some_and(|mark| len / SEGMENT < mark as usize / SEGMENT) {
            self.clear();
        }
    }

    /// Nothing, as when it was new.
    pub(crate) fn clear(&mut self) {
        for noted in self.noted.iter_mut() {
            noted.take();
        }
        self.said = [None; SLOTS];
    }

    /// Bytes of [`save`](Self::save) for so many heads.
    pub(crate) fn saved(heads: usize, group: usize, dim_v: usize) -> Option<usize> {
        dim_v
            .checked_add(1)?
            .checked_mul(group)?
            .checked_add(2)?
            .checked_mul(size_of::<u32>() * 2 * SLOTS)?
            .checked_mul(heads)
    }

    /// Which numbers of a slot mean anything, those of values of `dim_v` elements, and where [surpluses](surplus) begin among them.
    fn elements(&self, dim_v: usize) -> (impl Iterator<Item = usize> + use<>, usize) {
        let (each, row) = (self.each(), offset::row(dim_v));
        let surpluses = each / (row + 1) * row;
        ((0..each).filter(move |&at| at >= surpluses || at % row < dim_v), surpluses)
    }

    /// What to save: of every slot what counts, and what was noted since. Of each the keys that the last row of the trial saw (0:
    /// nothing is there), what else was said, and numbers as their bits: offsets of `dim_v` elements and surpluses.
    pub(crate) fn save(&self, dim_v: usize, mut put: impl FnMut(u32)) {
        let (each, elements) = (self.each(), || self.elements(dim_v).0);
        for (slot, noted) in self.noted.chunks_exact(each + 1).enumerate() {
            let (mark, says) = self.said[slot].unwrap_or_default();
            [mark, says].into_iter().for_each(&mut put);
            let of = &self.of[slot * each..];
            elements().for_each(|at| put(if mark > 0 { of[at].to_bits() } else { 0 }));
            let (mark, says) = noted[each].get();
            [mark, says].into_iter().for_each(&mut put);
            elements().for_each(|at| put(noted[at].get().1));
        }
    }

    /// Takes what was saved of a head of `len` tokens where nothing is carried yet; whether all of it can be.
    pub(crate) fn restore(&mut self, len: usize, dim_v: usize, mut next: impl FnMut() -> Option<u32>) -> bool {
        let each = self.each();
        for (slot, most) in [0, LADDER as u32 - 1, number(EASIEST)].into_iter().enumerate() {
            for counts in [true, false] {
                let (Some(mark), Some(says)) = (next(), next()) else { return false };
                if says > most || mark as usize / SEGMENT > len / SEGMENT {
                    return false;
                }
                let (elements, surpluses) = self.elements(dim_v);
                for at in elements {
                    let Some(x) = next().map(f32::from_bits) else { return false };
                    if !(if at < surpluses { x.is_finite() } else { (0.0..=surplus::MOST).contains(&x) }) {
                        return false;
                    }
                    if counts {
                        self.of[slot * each + at] = x;
                    } else if mark > 0 {
                        self.noted[slot * (each + 1) + at].note(mark, x.to_bits());
                    }
                }
                if counts {
                    self.said[slot] = (mark > 0).then_some((mark, says));
                } else if mark > 0 {
                    self.noted[slot * (each + 1) + each].note(mark, says);
                }
            }
        }
        true
    }

    /// Those of a rule, which is tightened `times` times, if any were noted: between those that were.
    pub(super) fn give_many(&self, times: usize, to: &mut Offsets) {
        if let Some((_, tight)) = self.said[Slot::Tight as usize] {
            let share = if times >= tight as usize { 1.0 } else { times as f32 / tight as f32 };
            to.take_between(self.slot(Slot::Loose), self.slot(Slot::Tight), share);
        }
    }

    /// Whether it is time to note those of a few rows, against so many keys: to find them takes some of a trial's time.
    pub(super) fn is_due(&self, keys: usize) -> bool {
        self.said[Slot::Few as usize].is_none_or(|(mark, _)| 2 * keys >= 2 * mark as usize + speaks(mark))
    }

    /// Those of a few rows, if they were noted lately, for so many keys.
    pub(super) fn give_few(&self, keys: usize, to: &mut Offsets) {
        let said = self.said[Slot::Few as usize];
        if let Some((mark, eased)) = said.filter(|&(mark, _)| keys <= mark as usize + speaks(mark)) {
            let age = keys.saturating_sub(mark as usize) as f32 / (speaks(mark) / FADING) as f32;
            to.take_kept(self.slot(Slot::Few));
            let eased = ease(eased);
            to.ease(Ease { keys: if age > 1.0 { eased.keys.min(1) } else { eased.keys }, ..eased });
            to.fade((1.0 - age).max(0.0));
        }
    }
}

/// Tokens for which a trial against so many keys speaks to a few rows.
fn speaks(keys: u32) -> usize {
    TOKENS * stretch(keys as usize)
}

#[cfg(all(test, feature = "full", feature = "alloc"))]
mod tests {
    use super::*;
    use crate::mem::Maker;
    use std::vec::Vec;

    const GROUP: usize = 2;
    const DIM: usize = 16;
    const EACH: usize = GROUP * (DIM + 1);

    const NOT: Ease = Ease { keys: 0, estimates: 0 };
    const ONCE: Ease = Ease { keys: 1, estimates: 0 };

    fn carried() -> Carried {
        Carried::new_in(&Memory::system(0).unwrap(), GROUP, DIM).unwrap()
    }

    fn offsets() -> Offsets {
        let memory = Memory::system(0).unwrap();
        let mut m = Maker::new(&memory);
        let offsets = Offsets::made(&mut m, true, GROUP, DIM);
        m.finish().unwrap();
        offsets
    }

    /// What is taken from outputs of ones of both heads.
    fn taken(offsets: &Offsets) -> Vec<f32> {
        let mut rows = [1.0; GROUP * DIM];
        rows.chunks_mut(DIM).enumerate().for_each(|(h, row)| offsets.apply(h, DIM, 1.0, row));
        rows.iter().map(|x| 1.0 - x).collect()
    }

    /// What a few rows of so many keys get.
    fn few(carried: &Carried, keys: usize) -> Option<(f32, Ease)> {
        let mut to = offsets();
        carried.give_few(keys, &mut to);
        let taken = taken(&to);
        assert!(taken.iter().all(|x| *x == taken[0]));
        to.taken().then_some((taken[0], to.eased()))
    }

    #[test]
    fn what_is_noted_counts_from_the_next_append_on_and_no_longer_than_it_speaks() {
        let mut carried = carried();
        assert_eq!(few(&carried, 700), None);
        assert!(carried.is_due(700));
        carried.note_few(700, ONCE, &[0.25; EACH]);
        assert_eq!(few(&carried, 700), None, "nothing changes between appends");
        carried.grow();
        for (keys, due) in [(701, false), (699 + TOKENS / 2, false), (700 + TOKENS / 2, true), (700 + TOKENS, true)] {
            assert_eq!((few(&carried, keys), carried.is_due(keys)), (Some((0.25, ONCE)), due), "{keys}");
        }
        assert_eq!(few(&carried, 701 + TOKENS), None);
        carried.note_few(65_536, NOT, &[0.5; EACH]);
        carried.grow();
        assert_eq!(few(&carried, 65_536 + 4 * TOKENS), Some((0.5, NOT)), "against many keys for longer");
        assert_eq!(few(&carried, 65_537 + 4 * TOKENS), None);
    }

    #[test]
    fn surpluses_fade_and_thresholds_rise_while_offsets_stay() {
        let (mut carried, mut plain) = (carried(), carried());
        carried.note_few(65_536, EASIEST, &[0.5; EACH]);
        carried.grow();
        let once = Ease { keys: 1, ..EASIEST };
        for (age, want, eased) in [
            (0, 0.5, EASIEST),
            (1, 0.5, EASIEST),
            (TOKENS / 4, 0.375, EASIEST),
            (TOKENS, 0.0, EASIEST),
            (TOKENS + 1, 0.0, once),
            (2 * TOKENS, 0.0, once),
            (4 * TOKENS, 0.0, once),
        ] {
            let mut to = offsets();
            carried.give_few(65_536 + age, &mut to);
            for h in 0..GROUP {
                assert!((to.surplus(0, h) - want).abs() < 1e-4, "{} after {age}, not {want}", to.surplus(0, h));
            }
            assert_eq!((taken(&to), to.eased()), (std::vec![0.5; GROUP * DIM], eased), "after {age}");
        }
        // Nor does it grow where tokens were taken back.
        let mut to = offsets();
        carried.give_few(65_000, &mut to);
        assert_eq!((to.surplus(0, 0), to.eased()), (0.5, EASIEST));
        // Those that are not eased stay so.
        plain.note_few(65_536, NOT, &[0.5; EACH]);
        plain.grow();
        assert_eq!([65_536, 65_536 + 2 * TOKENS].map(|keys| few(&plain, keys)), [Some((0.5, NOT)); 2]);
    }

    #[test]
    fn what_is_cut_off_goes_along() {
        let mark = 5 * SEGMENT + 9;
        for (len, kept) in
            [(mark + 1000, true), (mark, true), (5 * SEGMENT, true), (5 * SEGMENT - 1, false), (0, false)]
        {
            for grown in [true, false] {
                let mut carried = carried();
                carried.note_few(mark, ONCE, &[0.25; EACH]);
                carried.note_many(mark - 300, 2, &[0.5; EACH], &[0.25; EACH]);
                if grown {
                    carried.grow();
                }
                carried.cut(len);
                carried.grow();
                assert_eq!(few(&carried, mark).is_some(), kept, "{len}");
                assert_eq!(carried.said[Slot::Tight as usize].is_some(), kept, "{len}");
            }
        }
    }

    #[test]
    fn every_easing_has_its_number() {
        let all = || {
            (0..=EASIEST.estimates).flat_map(|estimates| (0..=EASIEST.keys).map(move |keys| Ease { keys, estimates }))
        };
        for (i, of) in all().enumerate() {
            assert_eq!((number(of), ease(number(of))), (i as u32, of));
        }
        assert_eq!(all().last(), Some(EASIEST));
    }

    #[test]
    fn notes_of_any_order_are_the_same() {
        let notes = [(900, 0.5, ONCE), (700, 2.0, NOT), (900, -0.25, ONCE), (400, -8.0, EASIEST)];
        let found = |order: [usize; 4]| {
            let mut carried = carried();
            for (mark, x, eased) in order.map(|i| notes[i]) {
                carried.note_few(mark, eased, &[x; EACH]);
            }
            carried.grow();
            few(&carried, 1000).unwrap()
        };
        let first = found([0, 1, 2, 3]);
        assert!(first == (-0.25, ONCE) || first == (0.5, ONCE), "of the latest rows: {first:?}");
        assert!(
            [[3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1], [0, 2, 1, 3]].into_iter().all(|order| found(order) == first)
        );
    }

    #[test]
    fn rules_between_two_get_what_lies_between() {
        let mut carried = carried();
        let many = |carried: &Carried, times: usize| {
            let mut to = offsets();
            carried.give_many(times, &mut to);
            taken(&to)
        };
        assert_eq!(many(&carried, 0), [0.0; GROUP * DIM]);
        let of = |x: f32| -> Vec<f32> { (0..EACH).map(|i| x * (1 + i) as f32 / 64.0).collect() };
        carried.note_many(600, 4, &of(1.0), &of(0.5));
        carried.grow();
        for (times, x) in [(0, 1.0), (1, 0.875), (2, 0.75), (4, 0.5), (9, 0.5)] {
            assert_eq!(many(&carried, times), of(x)[..GROUP * DIM], "{times}");
        }
        // A single rule.
        carried.note_many(900, 0, &of(0.25), &of(0.25));
        carried.grow();
        assert_eq!([0, 3].map(|times| many(&carried, times)), [(); 2].map(|()| of(0.25)[..GROUP * DIM].to_vec()));
    }
}
