//! Longformer (Beltagy, Peters and Cohan, 2020): a sliding window, and global tokens that see and are seen by all.
//!
//! Global tokens use the same projections as the others: trained ones of their own do not exist in a model that was
//! trained without. Causal, as in the paper's language models: the half of the window that lies before a row.

use super::iceformer::run;
use super::{Head, Method};
use iceformer_core::attention::{AttentionOptions, Mode};

/// Window and global tokens.
pub struct Longformer {
    /// Keys around a row, half on each side, even.
    pub window: usize,
    /// The first tokens, which are global.
    pub global: usize,
}

impl Method for Longformer {
    fn name(&self) -> &'static str {
        "Longformer"
    }

    fn settings(&self, _: usize) -> String {
        format!("window {}, {} global", self.window, self.global)
    }

    fn cannot(&self, _: bool) -> Option<&'static str> {
        None
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        let exact = AttentionOptions { mode: Mode::Exact, ..AttentionOptions::default() };
        let windowed = AttentionOptions { window: self.window / 2 + 1, sinks: self.global, ..exact };
        run(head, windowed, out);
        let global = self.global.min(head.rows()) * head.dim;
        if global > 0 && !head.causal {
            run(&Head { q: &head.q[..global], ..*head }, exact, &mut out[..global]);
        }
    }
}
