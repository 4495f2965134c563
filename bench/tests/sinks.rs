//! Accelerated attention, asked for by name, on heads with a sink and words that come again: most of what a row weighs is in one
//! key that adds nothing, and what is left must come out right all the same.

use iceformer_bench::families::{Shape, Sunk, sunk};
use iceformer_core::attention::Mode;

/// Mean shares of the weight of some rows: on the first key, and on the words that the row looks for.
fn shares(of: &Sunk) -> [f64; 2] {
    let shape = of.heads.shape;
    let group = shape.heads_q / shape.heads_kv;
    let mut sums = [0.0; 2];
    let mut count = 0.0;
    for head in 0..shape.heads_q {
        let kv = head / group;
        for row in (shape.rows / 4 + head..shape.rows).step_by(shape.rows / 16) {
            let weights = of.heads.weights(head, row);
            let wanted = of.wanted[kv][row];
            let words = weights.iter().zip(&of.words[kv]).filter(|(_, word)| **word == Some(wanted));
            sums[0] += weights[0];
            sums[1] += words.map(|(weight, _)| weight).sum::<f64>();
            count += 1.0;
        }
    }
    sums.map(|sum| sum / count)
}

fn hold(shape: Shape, seed: u64) {
    let of = sunk(shape, seed).expect("finite heads");
    let [sink, words] = shares(&of);
    println!("{shape:?}: {:.1} % of the weight on the sink, {:.1} % on words", 100.0 * sink, 100.0 * words);
    assert!((sink - 0.6).abs() < 0.05 && words > 0.08 && words < 0.25, "not the heads that were meant");
    let (want, ..) = of.heads.attend(Mode::Exact, 0.0).expect("finite heads");
    let (have, _, stats) = of.heads.attend(Mode::Accelerated, 0.0).expect("finite heads");
    let mut errors = of.heads.errors(&have, &want, 0);
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    errors.sort_by(f64::total_cmp);
    let (p99, worst) = (errors[errors.len() * 99 / 100], errors[errors.len() - 1]);
    let pairs = stats.pairs as f64 / stats.pairs_dense as f64;
    println!("  error mean {mean:.4}, p99 {p99:.4}, worst {worst:.3}, pairs {:.1} %", 100.0 * pairs);
    assert!(mean <= 0.05 && p99 <= 0.15, "{shape:?}: error mean {mean:.4}, p99 {p99:.4}");
}

#[test]
fn a_sink_and_words_that_come_again() {
    hold(Shape { rows: 8192, dim: 64, heads_q: 4, heads_kv: 2 }, 1);
}

#[test]
fn a_sink_and_words_in_long_keys() {
    hold(Shape { rows: 8192, dim: 128, heads_q: 4, heads_kv: 1 }, 2);
}

#[test]
fn a_sink_of_one_head() {
    hold(Shape { rows: 8192, dim: 64, heads_q: 1, heads_kv: 1 }, 3);
}
