//! Caches that forget: each row attends to the keys that were kept when it came.

use super::iceformer::run;
use super::rows::softmax;
use super::{Head, Method};
use iceformer_core::attention::{AttentionOptions, Mode};
use iceformer_core::simd::Isa;

/// H2O (Zhang et al., 2023): the newest tokens, and of the others those with the most attention so far.
pub struct H2o {
    /// Share of the tokens kept as heavy hitters.
    pub heavy: f64,
    /// Share of the tokens kept as the newest.
    pub recent: f64,
}

impl H2o {
    /// Tokens kept as heavy hitters and as the newest.
    pub fn budget(&self, rows: usize) -> (usize, usize) {
        let part = |share: f64| ((rows as f64 * share).round() as usize).max(1);
        (part(self.heavy), part(self.recent))
    }
}

impl Method for H2o {
    fn name(&self) -> &'static str {
        "H2O"
    }

    fn settings(&self, rows: usize) -> String {
        let (heavy, recent) = self.budget(rows);
        format!("{heavy} heavy, {recent} recent")
    }

    fn cannot(&self, causal: bool) -> Option<&'static str> {
        (!causal).then_some("eviction needs an order in time")
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        assert!(head.causal, "eviction needs an order in time");
        let (isa, d) = (Isa::best(), head.dim);
        let (heavy, recent) = self.budget(head.rows());
        // Tokens in ascending order, and the attention that each got so far.
        let (mut kept, mut gathered): (Vec<u32>, Vec<f32>) = (Vec::new(), Vec::new());
        let mut weights = Vec::new();
        for (i, (q, out)) in head.q.chunks(d).zip(out.chunks_mut(d)).enumerate() {
            kept.push(i as u32);
            gathered.push(0.0);
            weights.resize(kept.len(), 0.0);
            isa.dots_at(head.k, d, &kept, q, &mut weights);
            isa.scale(head.scale(), &mut weights);
            softmax(isa, &mut weights);
            isa.axpy(1.0, &weights, &mut gathered);
            out.fill(0.0);
            for (&j, &w) in kept.iter().zip(&weights) {
                isa.axpy(w, &head.v[j as usize * d..][..d], out);
            }
            if kept.len() > heavy + recent {
                let old = &gathered[..kept.len() - recent];
                let least = (1..old.len()).fold(0, |best, j| if old[j] < old[best] { j } else { best });
                kept.remove(least);
                gathered.remove(least);
            }
        }
    }
}

/// StreamingLLM (Xiao et al., 2023): the first tokens and the newest. Positions stay those of the captured keys: the
/// paper counts them within the cache, which changes those of the first tokens only.
pub struct StreamingLlm {
    /// First tokens kept.
    pub sinks: usize,
    /// Newest tokens kept, the row's own included.
    pub recent: usize,
}

impl Method for StreamingLlm {
    fn name(&self) -> &'static str {
        "StreamingLLM"
    }

    fn settings(&self, _: usize) -> String {
        format!("{} sinks, {} recent", self.sinks, self.recent)
    }

    fn cannot(&self, causal: bool) -> Option<&'static str> {
        (!causal).then_some("eviction needs an order in time")
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        assert!(head.causal, "eviction needs an order in time");
        let exact = AttentionOptions { mode: Mode::Exact, ..AttentionOptions::default() };
        run(head, AttentionOptions { window: self.recent, sinks: self.sinks, ..exact }, out);
    }
}
