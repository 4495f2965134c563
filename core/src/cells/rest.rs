//! Whether a few rows at a time, as in decoding, should ask a head's cells at all.
//!
//! Whoever attends notes what rows gained or lost, in any order and on any thread, and that counts only once the head has
//! grown: what a row gets depends on what was attended before the last append, never on when.

use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Tokens for which cells rest when asking them has cost more than it saved.
const TOKENS: usize = 128;

/// Parts that a step of exact attention is counted in.
const STEP: f64 = 64.0;

/// What may be lost before cells rest: one step; and what of gains is remembered: four.
const LOST: i32 = STEP as i32;
const GAINED: i32 = 4 * STEP as i32;

/// Of one head.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// What was lost, less what was gained.
    lost: AtomicI32,
    left: usize,
}

impl Rest {
    /// Rows took so much longer than exact attention would have, as a share of that; less where it is negative.
    pub(crate) fn note(&self, share: f64) {
        let lost = (share.clamp(-1.0, 8.0) * STEP) as i32;
        #[cfg(target_has_atomic = "32")]
        self.lost.fetch_add(lost, Relaxed);
        // Such machines have one core; a note that an interrupt takes away makes cells rest a little later.
        #[cfg(not(target_has_atomic = "32"))]
        self.lost.store(self.lost.load(Relaxed) + lost, Relaxed);
    }

    /// After an append of so many tokens.
    pub(crate) fn grow(&mut self, tokens: usize) {
        self.left = self.left.saturating_sub(tokens);
        let lost = self.lost.get_mut();
        if *lost > LOST {
            (*lost, self.left) = (0, TOKENS);
        }
        *lost = (*lost).max(-GAINED);
    }

    /// Whether rows may ask.
    pub(crate) fn is_over(&self) -> bool {
        self.left == 0
    }
}

#[cfg(all(test, feature = "full"))]
mod tests {
    use super::*;

    #[test]
    fn cells_rest_once_they_have_cost_more_than_they_saved() {
        let mut rest = Rest::default();
        // Noise: a third of a step lost, every time.
        let mut asked = 0;
        for _ in 0..TOKENS {
            if rest.is_over() {
                rest.note(0.33);
                asked += 1;
            }
            assert_eq!(rest.is_over(), asked < 4 || rest.left == 0, "nothing changes between appends");
            rest.grow(1);
        }
        assert_eq!(asked, 4);
        (0..3).for_each(|_| rest.grow(1));
        assert!(!rest.is_over());
        rest.grow(1000);
        assert!(rest.is_over());
    }

    #[test]
    fn a_row_that_costs_much_among_many_that_cost_little_changes_nothing() {
        let mut rest = Rest::default();
        for step in 0..1000 {
            rest.note(if step % 10 == 9 { 3.0 } else { -0.6 });
            rest.grow(1);
            assert!(rest.is_over(), "step {step}");
        }
        // What was gained long ago does not pay for what is lost now.
        for _ in 0..8 {
            rest.note(1.0);
            rest.grow(1);
        }
        assert!(!rest.is_over());
    }
}
