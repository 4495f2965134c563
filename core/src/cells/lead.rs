//! What a trial of a few rows found, for the rows that come with the next appends.
//!
//! A prompt in batches would otherwise pay for a trial in every one of them. As with [rests](super::rest), what is noted
//! counts only once the head has grown, and of several notes the most careful one does: what a row gets depends on what was attended
//! before the last append, never on when or on which thread.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Appended tokens for which a trial speaks.
pub(crate) const TOKENS: usize = 2048;

/// Of one head.
#[derive(Debug, Default)]
pub(crate) struct Lead {
    /// One more than the way that was found since the last append; 0: none.
    found: AtomicU32,
    way: Option<usize>,
    left: usize,
}

impl Lead {
    /// A trial has chosen the rules that are tightened so often.
    pub(crate) fn note(&self, times: usize) {
        let found = times as u32 + 1;
        #[cfg(target_has_atomic = "32")]
        self.found.fetch_max(found, Relaxed);
        // Such machines have one core; a note that an interrupt takes away is made again.
        #[cfg(not(target_has_atomic = "32"))]
        self.found.store(self.found.load(Relaxed).max(found), Relaxed);
    }

    /// After an append of so many tokens.
    pub(crate) fn grow(&mut self, tokens: usize) {
        self.left = self.left.saturating_sub(tokens);
        let found = core::mem::take(self.found.get_mut());
        if found > 0 {
            (self.way, self.left) = (Some(found as usize - 1), TOKENS);
        }
    }

    /// The rules that rows may take without a trial of their own.
    pub(crate) fn way(&self) -> Option<usize> {
        self.way.filter(|_| self.left > 0)
    }
}

#[cfg(all(test, feature = "full"))]
mod tests {
    use super::*;

    #[test]
    fn a_trial_speaks_for_what_is_appended_next_and_no_longer() {
        let mut lead = Lead::default();
        lead.grow(512);
        assert_eq!(lead.way(), None);
        lead.note(1);
        lead.note(3);
        lead.note(0);
        assert_eq!(lead.way(), None, "nothing changes between appends");
        lead.grow(512);
        assert_eq!(lead.way(), Some(3), "the most careful one");
        lead.grow(TOKENS - 512);
        assert_eq!(lead.way(), Some(3));
        lead.grow(512);
        assert_eq!(lead.way(), None);
        lead.note(0);
        lead.grow(100_000);
        assert_eq!(lead.way(), Some(0));
    }
}
