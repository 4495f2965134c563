//! How far the thresholds of a few rows ease: those of heads that keep the tolerance with it, since offsets are taken from their
//! outputs, and further those of heads whose rows have many heavy keys and lose next to none of them by it.
//!
//! How far a key stands out from its cell, and a cell from its node, differs by head; thresholds are for those where that is most. Rows
//! of a trial that find as many heavy keys with fewer deviations tell that their head is another. What is compared is what was found,
//! not what is there: it says what easing loses, and not what is lost anyway.
//!
//! What is estimated, and which keys and cells count with values of their own, matters less the more keys share the weights: heads with
//! room left let estimates be wrong by more.

use super::all::stretch;
use super::block::{RowBlock, SAMPLED, Work};
use super::carried::Carried;
use super::ladder::{Rehearsed, error};
use super::offset::FEW;
use super::rule::{Ease, Rule};
use super::walk::Done;
use crate::cells::SEGMENT;
use crate::mem::Buf;

/// How far thresholds are eased at most.
pub(super) const EASIEST: Ease = Ease { keys: 2, estimates: 2 };

/// The part of the tolerance that heads keep whose thresholds for estimates ease: there is less to gain by it.
const SPARED: f64 = 0.8;

/// The part that heads keep whose thresholds for keys ease twice: the rows that follow have other heavy keys.
const SPARED_TWICE: f64 = 0.9;

/// Keys that weigh so many times what is looked for then are heavy.
const HEAVY: f32 = 1.5;

/// Heavy keys from which on a trial tells something, and one in how many may be lost.
const ENOUGH: u32 = 48;
const LOST: u32 = 32;

/// How often thresholds for estimates ease at most against so many keys: among few there is little to gain.
fn estimates_among(keys: usize) -> usize {
    EASIEST.estimates.min(stretch(keys).ilog2() as usize)
}

/// Whether of so many heavy keys enough were found again.
fn keeps(found: u32, again: u32) -> bool {
    found >= ENOUGH && found.saturating_sub(again) <= found / LOST
}

/// The easing for a head, if it bears any, with thresholds for estimates doubled so often at most; `try_out` says what part of the
/// tolerance a trial's rows err by with an easing, and how many heavy keys they find. What was tried last with keys once, and with keys
/// twice, is what is chosen.
///
/// Thresholds for keys come first: where they ease twice, a third of a step is gone, and of estimates less.
fn easiest(estimates: usize, mut try_out: impl FnMut(Ease) -> (f64, u32)) -> Option<Ease> {
    let (mut borne, mut heavy) = (None, 0);
    for estimates in (0..=estimates).rev() {
        let once = Ease { keys: 1, estimates };
        let most = if estimates > 0 { SPARED } else { 1.0 };
        if borne.is_none() {
            let (error, found) = try_out(once);
            heavy = found;
            // Nor what is no number.
            borne = (error <= most).then_some(once);
        }
        if borne.is_none() {
            continue;
        }
        if heavy < ENOUGH {
            break;
        }
        let twice = Ease { keys: EASIEST.keys, ..once };
        let (error, again) = try_out(twice);
        if !keeps(heavy, again) {
            break;
        }
        if error <= most.min(SPARED_TWICE) {
            return Some(twice);
        }
    }
    borne
}

impl RowBlock<'_> {
    /// After a trial of rows that see no more than `mark` keys: notes what they err by in common as a few rows would attend them, and
    /// how far their thresholds are eased. O(rows of the trial x what each of them opens).
    pub(super) fn tell_few(&self, work: &mut Work, rule: &Rule, usable: usize, mark: usize, carried: &Carried) {
        let error = |of: &Rehearsed| error(of.wrong, of.all, self.sampled()) / f64::from(rule.error);
        for place in FEW {
            self.find_surplus(work, place);
        }
        self.find_heavy(work, rule, usable);
        // Offsets of thresholds for keys that ease once and twice.
        let place = |ease: Ease| FEW[ease.keys.saturating_sub(1)];
        let eased = easiest(estimates_among(usable * SEGMENT), |ease| {
            let (of, found) = self.rehearse_few(work, &rule.eased(ease), usable, place(ease));
            (error(&of), found)
        });
        let eased = eased.unwrap_or_else(|| {
            self.rehearse_few(work, rule, usable, place(Ease::default()));
            Ease::default()
        });
        carried.note_few(mark, eased, work.offsets.of(place(eased)));
    }

    /// The logits, as powers of two, from which on keys are heavy for the rows of the trial.
    fn find_heavy(&self, work: &mut Work, rule: &Rule, usable: usize) {
        let needle = rule.eased(EASIEST).needle_among(usable * SEGMENT, true);
        let Work { sample, heavy, reference, surplus, expected, .. } = work;
        for (at, &i) in sample.iter().enumerate() {
            let sum = reference[i as usize] + surplus[at] + libm::log2f(expected[at]);
            heavy[at] = sum + libm::log2f(HEAVY * needle);
        }
    }

    /// The rows of the trial as if each had come alone, by a rule; offsets are left at `place`. Returns how many heavy keys were found,
    /// too, where no biases are added: with them rows go down in lists.
    fn rehearse_few(&self, work: &mut Work, rule: &Rule, usable: usize, place: usize) -> (Rehearsed, u32) {
        self.expect_of_sample(work, place);
        self.set_limits(work, rule, usable, true);
        let (done, found) =
            if work.is_lifted() { (self.descend(work, true, false, &mut None), 0) } else { self.count_heavy(work) };
        let of = self.rehearsed(work, place, true, true, &done);
        self.clear(work);
        (of, found)
    }

    /// The rows of the trial one after the other, and how many heavy keys they find.
    fn count_heavy(&self, work: &mut Work) -> (Done, u32) {
        work.room.fill_up(0.0);
        // Used by the watch while the rest is written: rows that go down by themselves need none of it.
        let mut take = |of: fn(&mut Work) -> &mut Buf<f32>| {
            let empty = Buf::new(work.q.memory());
            core::mem::replace(of(work), empty)
        };
        let (asked, heavy, mut key) = (take(|w| &mut w.asked), take(|w| &mut w.heavy), take(|w| &mut w.room));
        let (dim, mut found) = (work.sizes.dim_k, 0);
        let unit = self.head.scale * core::f32::consts::LOG2_E;
        let cap = self.head.softcap * core::f32::consts::LOG2_E;
        let mut count = |query: u16, ids: &[u32]| {
            let at = query as usize / SAMPLED;
            for &id in ids {
                self.head.k.read(id as usize, &mut key[..dim]);
                let x = self.isa.dot(&key[..dim], &asked[at * dim..][..dim]) * unit;
                let x = if cap > 0.0 { cap * libm::tanhf(x / cap) } else { x };
                found += u32::from(x >= heavy[at]);
            }
        };
        let done = self.sample_apart(work, &mut Some(&mut count));
        (work.asked, work.heavy, work.room) = (asked, heavy, key);
        (done, found)
    }
}

#[cfg(all(test, feature = "full", feature = "alloc"))]
mod tests {
    use super::super::offset::Offsets;
    use super::super::trial::tests::{DIM, KEYS, ROWS, noise, with_trial};
    use super::*;
    use crate::mem::{Maker, Memory};
    use crate::simd::Isa;
    use std::vec::Vec;

    #[test]
    fn only_many_found_keys_tell_anything() {
        for (found, again, want) in [
            (0, 0, false),
            (ENOUGH - 1, ENOUGH - 1, false),
            (ENOUGH, ENOUGH, true),
            (ENOUGH, ENOUGH + 2, true),
            (ENOUGH, ENOUGH - 1, true),
            (ENOUGH, ENOUGH - 2, false),
            (4 * LOST - 1, 4 * LOST - 4, true),
            (4 * LOST - 1, 4 * LOST - 5, false),
            (4 * LOST, 4 * LOST - 4, true),
            (10 * LOST, 9 * LOST, false),
        ] {
            assert_eq!(keeps(found, again), want, "{again} of {found}");
        }
    }

    /// How often thresholds ease after a trial of rows near `common`, and the heavy keys found by easing once and twice.
    fn told(isa: Isa, common: &[f32], k: &[f32], scale: f32) -> (Ease, [u32; 2]) {
        let (mut q, v) = (noise(ROWS * DIM, 6), noise(KEYS * DIM, 8));
        q.iter_mut().enumerate().for_each(|(i, x)| *x = 0.1 * *x + common[i % DIM]);
        // Whatever they err by.
        let rule = Rule { error: f32::INFINITY, ..Rule::new(0.05, false) };
        let memory = Memory::system(0).unwrap();
        let mut carried = Carried::new_in(&memory, 1, DIM).unwrap();
        let mut found = [0; 2];
        with_trial(isa, [&q, k, &v], scale, &rule, |b, work| {
            b.tell_few(work, &rule, KEYS / SEGMENT, KEYS, &carried);
            for (keys, found) in [1, EASIEST.keys].into_iter().zip(&mut found) {
                let ease = Ease { keys, estimates: 0 };
                *found = b.rehearse_few(work, &rule.eased(ease), KEYS / SEGMENT, FEW[0]).1;
            }
        });
        carried.grow();
        let mut m = Maker::new(&memory);
        let mut offsets = Offsets::made(&mut m, true, 1, DIM);
        m.finish().unwrap();
        carried.give_few(KEYS, &mut offsets);
        assert!(offsets.taken());
        (offsets.eased(), found)
    }

    /// Keys, one of `every` so many of which is heavy: near the others that are, or far from all keys of its cell.
    fn keys(common: &[f32], every: usize, near: bool) -> Vec<f32> {
        let (own, along) = if near { (0.05, 2.0) } else { (1.0, 0.5) };
        let mut k = noise(KEYS * DIM, 7);
        for key in (0..KEYS).step_by(every) {
            let row = &mut k[key * DIM..][..DIM];
            row.iter_mut().zip(common).for_each(|(k, x)| *k = own * *k + along * x);
        }
        k
    }

    #[test]
    fn keys_ease_before_estimates() {
        // By how often estimates ease: what rows err by, with keys eased once and twice, and the keys that they find.
        let chosen = |errors: [[f64; 3]; 2], found: [u32; 2], most: usize| {
            let mut tried = Vec::new();
            let chosen = easiest(most, |ease| {
                tried.push(ease);
                (errors[ease.keys - 1][ease.estimates], found[ease.keys - 1])
            });
            // What is chosen was tried last of its kind: its offsets are there.
            if let Some(chosen) = chosen {
                assert_eq!(tried.iter().rfind(|ease| ease.keys == chosen.keys), Some(&chosen));
            }
            chosen.map(|ease| (ease.keys, ease.estimates))
        };
        let (little, kept) = ([0.1; 3], [100, 100]);
        for (errors, found, most, want) in [
            ([little, little], kept, 2, Some((2, 2))),
            ([little, little], kept, 0, Some((2, 0))),
            ([little, little], [ENOUGH - 1; 2], 2, Some((1, 2))),
            ([little, little], [100, 90], 2, Some((1, 2))),
            // Keys twice is worth more than estimates.
            ([little, [0.6, 0.7, 0.81]], kept, 2, Some((2, 1))),
            ([little, [0.89, 0.9, 0.9]], kept, 2, Some((2, 0))),
            ([[0.1, 0.2, 0.9], [0.85, 0.85, 0.9]], kept, 2, Some((2, 0))),
            // Where it is not borne, estimates ease as far as they may with keys once.
            ([[0.1, 0.7, 0.9], [0.91, 0.95, 1.0]], kept, 2, Some((1, 1))),
            ([[1.0, 1.1, 1.2], [1.1, 1.2, 1.3]], kept, 2, Some((1, 0))),
            ([[1.01, 1.1, 1.2], little], kept, 2, None),
            ([[f64::NAN; 3], little], kept, 2, None),
            ([little, [f64::NAN; 3]], kept, 2, Some((1, 2))),
        ] {
            assert_eq!(chosen(errors, found, most), want, "{errors:?}, {found:?}");
        }
    }

    #[test]
    fn estimates_ease_among_many_keys() {
        let of = [KEYS, 32_767, 32_768, 65_536, 131_072, 1 << 30].map(estimates_among);
        assert_eq!(of, [0, 0, 1, 2, 2, EASIEST.estimates]);
    }

    #[test]
    fn heads_that_lose_nothing_ease_further() {
        let common = noise(DIM, 5);
        let rows = ROWS.div_ceil(SAMPLED) as u32;
        let most = Ease { estimates: 0, ..EASIEST };
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let (eased, [once, twice]) = told(isa, &common, &keys(&common, 32, true), 0.3);
            let heavy = rows * (KEYS / 32) as u32;
            assert_eq!((eased, once, twice), (most, heavy, heavy), "{}", isa.name());
            // They stand out from their cells.
            let less = Ease { keys: 1, ..most };
            let (eased, [once, twice]) = told(isa, &common, &keys(&common, 32, false), 0.5);
            assert!(eased == less && once > ENOUGH && twice < once, "{}: {eased:?}, {twice} of {once}", isa.name());
            // They are few.
            let (eased, [once, twice]) = told(isa, &common, &keys(&common, 512, true), 0.3);
            let heavy = rows * (KEYS / 512) as u32;
            assert_eq!((eased, once, twice), (less, heavy, heavy), "{}", isa.name());
        }
    }
}
