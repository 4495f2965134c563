//! What rows have found out about a head of a session, for the rows that come after the next append.
//!
//! Rows of several parts note things at once, in any order: of several notes the most careful counts, and none of them before the
//! head has grown. So what a row gets depends on what was attended before the last append, never on when or on which thread.

use super::ablation::{Part, without};
use super::control::{Control, Why};
use super::policy::{PLACES, THRESHOLDS};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Bits of a place that hold the key; weight is above.
const KEY: u32 = 24;

/// The largest number that was noted.
#[derive(Debug, Default)]
struct Largest(AtomicU32);

impl Largest {
    fn note(&self, x: u32) {
        #[cfg(target_has_atomic = "32")]
        self.0.fetch_max(x, Relaxed);
        // Such machines have one core; a note that an interrupt takes away is made again.
        #[cfg(not(target_has_atomic = "32"))]
        self.0.store(self.0.load(Relaxed).max(x), Relaxed);
    }

    fn take(&mut self) -> u32 {
        core::mem::take(self.0.get_mut())
    }
}

/// Notes on one head.
#[derive(Debug)]
pub(super) struct Memo {
    heavy: [Largest; PLACES],
    /// One more than the level that is to be used; beyond the last where cells do not pay, and one more where no level keeps the
    /// tolerance.
    level: Largest,
    /// Mean squared relative error at that level.
    error: Largest,
    /// 1 after many rows were attended.
    prompt: Largest,
}

impl Default for Memo {
    fn default() -> Self {
        Memo {
            heavy: core::array::from_fn(|_| Largest::default()),
            level: Largest::default(),
            error: Largest::default(),
            prompt: Largest::default(),
        }
    }
}

impl Memo {
    /// Notes a key that weighs so large a share of some row.
    pub(super) fn heavy(&self, key: u32, share: f32) {
        if key < 1 << KEY && share > 0.0 && !without(Part::KnownKeys) {
            let weight = (255.0 + 8.0 * libm::log2f(share)).clamp(0.0, 255.0) as u32;
            let place = crate::math::mix(u64::from(key)) as usize % PLACES;
            self.heavy[place].note(weight << KEY | (key + 1) & ((1 << KEY) - 1));
        }
    }

    /// Notes what rows have made of the threshold.
    pub(super) fn control(&self, control: &Control, failed: Option<Why>) {
        let level = match failed {
            None => control.level(),
            Some(Why::Costly) => THRESHOLDS,
            Some(_) => THRESHOLDS + 1,
        };
        self.level.note(level as u32 + 1);
        self.error.note(control.error().to_bits());
    }

    /// Notes that many rows were attended.
    pub(super) fn prompt(&self) {
        self.prompt.note(1);
    }

    /// Whether many rows were attended since the last time.
    pub(super) fn take_prompt(&mut self) -> bool {
        self.prompt.take() != 0
    }

    /// Heavy keys noted since the last time.
    pub(super) fn take_heavy(&mut self) -> impl Iterator<Item = u32> {
        self.heavy.iter_mut().filter_map(|place| (place.take() & ((1 << KEY) - 1)).checked_sub(1))
    }

    /// The threshold, if somebody noted one, and why it is of no use, if it is not.
    pub(super) fn take_control(&mut self) -> Option<(Control, Option<Why>)> {
        let (level, error) = (self.level.take() as usize, f32::from_bits(self.error.take()));
        let level = level.checked_sub(1)?;
        let failed = (level >= THRESHOLDS).then_some(if level == THRESHOLDS { Why::Costly } else { Why::Strict });
        Some((Control::at(level.min(THRESHOLDS - 1), error), failed))
    }
}
