//! Top-k attention (Gupta et al., 2021): every score is computed, softmax is over the k largest of a row.

use super::rows::softmax;
use super::vanilla::by_blocks;
use super::{Head, Method};
use iceformer_core::simd::Isa;

/// Exact top-k attention.
pub struct TopK {
    /// Keys of a row; 0 = the IceFormer paper's rule.
    pub k: usize,
}

impl TopK {
    fn keys(&self, rows: usize) -> usize {
        if self.k == 0 { iceformer_core::attention::top_k_for(rows, 0.005) } else { self.k }
    }
}

impl Method for TopK {
    fn name(&self) -> &'static str {
        "Top-k, exact search"
    }

    fn settings(&self, rows: usize) -> String {
        format!("k {}", self.keys(rows))
    }

    fn cannot(&self, _: bool) -> Option<&'static str> {
        None
    }

    fn attend(&self, head: &Head<'_>, out: &mut [f32]) {
        let (isa, k, d) = (Isa::best(), self.keys(head.rows()), head.dim);
        let (mut order, mut weights): (Vec<u32>, Vec<f32>) = (Vec::new(), Vec::new());
        by_blocks(isa, head, |begin, keys, scores| {
            for (row, logits) in (begin..).zip(scores.chunks(keys)) {
                let logits = &logits[..head.seen(row)];
                order.clear();
                order.extend(0..logits.len() as u32);
                if k < logits.len() {
                    let logit = |j: u32| logits[j as usize];
                    order.select_nth_unstable_by(k, |&a, &b| logit(b).total_cmp(&logit(a)).then(a.cmp(&b)));
                    order.truncate(k);
                }
                weights.clear();
                weights.extend(order.iter().map(|&j| logits[j as usize]));
                softmax(isa, &mut weights);
                let out = &mut out[row * d..][..d];
                out.fill(0.0);
                for (&j, &w) in order.iter().zip(&weights) {
                    isa.axpy(w, &head.v[j as usize * d..][..d], out);
                }
            }
        });
    }
}
