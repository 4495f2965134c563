//! What to set, from what was measured.

use super::Outcome;

/// A layer gains from this ratio of exact to accelerated seconds on.
pub const GAIN: f64 = 1.1;
/// Single tokens lose from this ratio of accelerated to exact seconds on: less is noise of the clock.
pub const LOSS: f64 = 1.05;
/// Perplexity may rise by so much.
pub const PERPLEXITY: f64 = 0.01;
/// Without a perplexity: the 99th percentile of rows may be so many tolerances.
const TAIL: f64 = 4.0;

/// Quality of the whole model with one tolerance, against exact attention.
#[derive(Clone, Copy, Debug)]
pub struct Quality {
    /// Perplexity, exact and accelerated.
    pub perplexity: [f64; 2],
    /// Mean Kullback-Leibler divergence of the next token, in nats.
    pub divergence: f64,
    /// Share of positions with the same likeliest token.
    pub same: f64,
}

impl Quality {
    /// By how much perplexity rises, a fraction.
    pub fn rise(&self) -> f64 {
        self.perplexity[1] / self.perplexity[0] - 1.0
    }
}

/// Layers of an outcome that gain in prompts, and whose error on average is no more than the tolerance twice.
pub fn layers(outcome: &Outcome) -> Vec<usize> {
    let gains = |l: &usize| {
        let layer = &outcome.layers[*l];
        let [exact, fast] = layer.seconds();
        exact >= GAIN * fast && layer.error() <= 2.0 * f64::from(outcome.tolerance)
    };
    (0..outcome.layers.len()).filter(gains).collect()
}

/// Seconds of a whole prompt of every batch's length, exact and accelerated, over some layers.
pub fn by_length(outcome: &Outcome, layers: &[usize]) -> Vec<(usize, [f64; 2])> {
    let mut sums = [0.0; 2];
    let batches = outcome.layers.first().map_or(0, |l| l.prompt.len());
    let at = |i: usize| {
        for &l in layers {
            let seconds = outcome.layers[l].prompt[i].seconds;
            sums = [sums[0] + seconds[0], sums[1] + seconds[1]];
        }
        (outcome.layers[0].prompt[i].end, sums)
    };
    (0..batches).map(at).collect()
}

/// Seconds of the prompt and of all single tokens after it, each with all layers exact and with `layers` accelerated.
pub fn whole(outcome: &Outcome, layers: &[usize]) -> [[f64; 2]; 2] {
    let mut sums = [[0.0; 2]; 2];
    for (l, layer) in outcome.layers.iter().enumerate() {
        for (sum, [exact, fast]) in sums.iter_mut().zip([layer.seconds(), layer.steps]) {
            *sum = [sum[0] + exact, sum[1] + if layers.contains(&l) { fast } else { exact }];
        }
    }
    sums
}

/// Single tokens, of `steps` that were measured, after which they have lost what the prompt saved; `None` where they lose nothing to
/// speak of.
pub fn lost_after([prompt, tokens]: [[f64; 2]; 2], steps: usize) -> Option<usize> {
    let [exact, fast] = tokens;
    let saved = f64::max(prompt[0] - prompt[1], 0.0);
    (fast > LOSS * exact).then(|| (saved * steps as f64 / (fast - exact)) as usize)
}

/// Length from which on prompts take less time, this one and all longer ones; `None` where they never do.
pub fn pays_from(outcome: &Outcome, layers: &[usize]) -> Option<usize> {
    let all = by_length(outcome, layers);
    let late = all.iter().rev().take_while(|(_, [exact, fast])| *exact > 1.02 * fast).last();
    late.map(|&(end, _)| end)
}

/// Which outcome to take: the largest tolerance that keeps perplexity, or, where none was taken, whose rows keep to it. `None`
/// where no layer gains or no tolerance keeps it.
pub fn choose(outcomes: &[Outcome], quality: &[Quality]) -> Option<usize> {
    let keeps = |i: &usize| {
        let (o, chosen) = (&outcomes[*i], layers(&outcomes[*i]));
        let tail = || chosen.iter().all(|&l| o.layers[l].quantile(0.99) <= TAIL * f64::from(o.tolerance));
        !chosen.is_empty() && quality.get(*i).map_or_else(tail, |q| q.rise() <= PERPLEXITY)
    };
    let larger = |a: &usize, b: &usize| outcomes[*a].tolerance.total_cmp(&outcomes[*b].tolerance);
    (0..outcomes.len()).filter(keeps).max_by(larger)
}

/// Numbers as `ICE_LAYERS` takes them: "0,2-5".
pub fn ranges(layers: &[usize]) -> String {
    let mut runs: Vec<[usize; 2]> = Vec::new();
    for &l in layers {
        match runs.last_mut() {
            Some(run) if run[1] + 1 == l => run[1] = l,
            _ => runs.push([l, l]),
        }
    }
    let text = |[a, b]: &[usize; 2]| if a == b { a.to_string() } else { format!("{a}-{b}") };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::{Batch, Layer};
    use super::*;

    /// Two batches, of which the first takes as long either way.
    fn layer(times: f64, error: f64) -> Layer {
        let batch = |end, seconds| Batch { end, seconds };
        let prompt = vec![batch(2048, [1.0, 1.0]), batch(4096, [4.0, 4.0 / times])];
        Layer { prompt, squares: [error * error, 1.0], errors: vec![error as f32; 8], ..Layer::default() }
    }

    fn outcome(tolerance: f32, layers: Vec<Layer>) -> Outcome {
        Outcome { tolerance, layers }
    }

    #[test]
    fn layers_that_gain_and_keep_to_the_tolerance() {
        let o = outcome(0.05, vec![layer(3.0, 0.03), layer(1.0, 0.01), layer(2.0, 0.2), layer(2.0, 0.06)]);
        assert_eq!(layers(&o), [0, 3]);
        assert_eq!(ranges(&[0, 2, 3, 4, 9]), "0,2-4,9");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn length_from_which_it_pays() {
        let o = outcome(0.05, vec![layer(3.0, 0.03), layer(0.5, 0.03)]);
        assert_eq!(pays_from(&o, &[0]), Some(4096));
        assert_eq!(pays_from(&o, &[1]), None);
        let (length, [exact, fast]) = by_length(&o, &[0, 1])[1];
        assert!(length == 4096 && (exact - 10.0).abs() < 1e-9 && (fast - 2.0 - 4.0 / 3.0 - 8.0).abs() < 1e-9);
    }

    #[test]
    fn single_tokens_that_lose() {
        let with = |steps| Layer { steps, ..layer(2.0, 0.03) };
        // The second layer is left exact.
        let o = outcome(0.05, vec![with([1.0, 1.5]), with([1.0, 9.0])]);
        assert_eq!(whole(&o, &[0]), [[10.0, 8.0], [2.0, 2.5]]);
        // 2 s saved, 0.05 s lost with each of 10 tokens.
        assert_eq!(lost_after(whole(&o, &[0]), 10), Some(40));
        assert_eq!(lost_after([[1.0, 2.0], [1.0, 2.0]], 10), Some(0));
        assert_eq!(lost_after([[10.0, 8.0], [2.0, 2.04]], 10), None);
        assert_eq!(lost_after([[10.0, 8.0], [2.0, 1.0]], 10), None);
        assert_eq!(lost_after([[10.0, 8.0], [0.0, 0.0]], 0), None);
    }

    #[test]
    fn the_largest_tolerance_that_keeps_perplexity() {
        let all = [outcome(0.02, vec![layer(2.0, 0.01)]), outcome(0.05, vec![layer(3.0, 0.03)])];
        let with = |rises: [f64; 2]| {
            rises.map(|r| Quality { perplexity: [10.0, 10.0 * (1.0 + r)], divergence: 0.0, same: 1.0 })
        };
        assert_eq!(choose(&all, &with([0.001, 0.005])), Some(1));
        assert_eq!(choose(&all, &with([0.001, 0.05])), Some(0));
        assert_eq!(choose(&all, &with([0.02, 0.05])), None);
        assert_eq!(choose(&all, &[]), Some(1));
        let none = [outcome(0.05, vec![layer(1.0, 0.01)])];
        assert_eq!(choose(&none, &[]), None);
        let wild = [outcome(0.02, vec![layer(2.0, 0.02)]), outcome(0.01, vec![layer(2.0, 0.01)])];
        let mut wild = wild.to_vec();
        wild[0].layers[0].errors = vec![0.3; 8];
        assert_eq!(choose(&wild, &[]), Some(1));
    }
}
