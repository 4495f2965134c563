//! ListOps end to end: a small encoder, trained with exact attention, classifies with each method in its place.

use super::report::{Part, mb, ms, table};
use crate::baselines::catalogue::{self, Choice};
use crate::baselines::{IceFormerTopK, Method, TopK};
use crate::listops::generate::{Example, Generator};
use crate::listops::model::Encoder;
use crate::listops::vocabulary::OPERATORS;
use crate::plot::{Axis, Chart, Scale, Series};
use serde_json::{Value, json};
use std::error::Error;

/// The values of k of the paper's trade-off.
pub const KEYS: [usize; 6] = [3, 5, 8, 10, 15, 20];

/// What a method made of a set of examples.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Name.
    pub method: &'static str,
    /// Hyperparameters.
    pub settings: String,
    /// k in the trade-off; `None` in the comparison.
    pub k: Option<usize>,
    /// Why there are no figures.
    pub cannot: Option<&'static str>,
    /// Examples classified rightly.
    pub right: usize,
    /// Examples classified as with exact attention.
    pub same: usize,
    /// Mean over examples of the L2 distance of the logits to those of exact attention, over their norm.
    pub moved: f64,
    /// Processor seconds of attention, all examples.
    pub attention: f64,
    /// Most bytes that attention allocated at once in any example, beside queries, keys, values and output.
    pub bytes: usize,
}

/// Examples of one range of lengths.
#[derive(Clone, Debug)]
pub struct Set {
    /// Tokens at least and at most.
    pub lengths: (usize, usize),
    /// Their mean.
    pub tokens: usize,
    /// Examples.
    pub examples: usize,
    /// Right answers of the one that always names the label most frequent in the set.
    pub most_frequent: usize,
    /// Right answers of the one that sees the outermost operator alone and names the label most frequent with it.
    pub by_operator: usize,
    /// Exact attention first.
    pub outcomes: Vec<Outcome>,
}

/// Classifies `examples` fresh examples with every method at the paper's settings, and with top-k of each k.
pub fn measure(encoder: &Encoder, lengths: (usize, usize), examples: usize, told: &mut dyn FnMut(&str)) -> Set {
    let all: Vec<Example> = Generator::new(977, lengths.0, lengths.1).take(examples).collect();
    let rows = all.iter().map(|e| e.tokens.len()).sum::<usize>() / all.len().max(1);
    let most = |of: &dyn Fn(&Example) -> bool| {
        let count = |l: u8| all.iter().filter(|e| of(e) && e.label == l).count();
        (0..10).map(count).max().unwrap_or(0)
    };
    let most_frequent = most(&|_| true);
    let by_operator = OPERATORS.iter().map(|&o| most(&|e| e.tokens[0] == o)).sum();
    let mut methods: Vec<(Option<usize>, Box<dyn Method>)> =
        catalogue::exact().into_iter().map(|m| (None, m)).collect();
    methods.extend(catalogue::methods(Choice::Paper, 1).into_iter().map(|m| (None, m)));
    for k in KEYS {
        methods.push((Some(k), Box::new(IceFormerTopK { k, shared_qk: false })));
        methods.push((Some(k), Box::new(TopK { k })));
    }
    let start = |(k, m): &(Option<usize>, Box<dyn Method>)| {
        let cannot = m.cannot(false).or(m.shared_qk().then_some("the encoder was trained with queries and keys apart"));
        let (method, settings) = (m.name(), m.settings(rows));
        Outcome { method, settings, k: *k, cannot, right: 0, same: 0, moved: 0.0, attention: 0.0, bytes: 0 }
    };
    let mut outcomes: Vec<Outcome> = methods.iter().map(start).collect();
    for (i, e) in all.iter().enumerate() {
        let mut exact = None;
        for ((_, m), o) in methods.iter_mut().zip(&mut outcomes).filter(|(_, o)| o.cannot.is_none()) {
            let a = encoder.classify(&e.tokens, m.as_mut());
            let truth = exact.get_or_insert_with(|| a.clone());
            o.right += usize::from(a.value() == e.label);
            o.same += usize::from(a.value() == truth.value());
            let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            let far = norm(&mut a.logits.iter().zip(&truth.logits).map(|(a, b)| a - b));
            o.moved += far / norm(&mut truth.logits.iter().copied()) / all.len() as f64;
            o.attention += a.attention;
            o.bytes = o.bytes.max(a.bytes);
        }
        if (i + 1) % 20 == 0 {
            told(&format!("ListOps of {} to {} tokens: {} of {examples}", lengths.0, lengths.1, i + 1));
        }
    }
    Set { lengths, tokens: rows, examples: all.len(), most_frequent, by_operator, outcomes }
}

/// The part of the report.
///
/// # Errors
/// Of drawing.
pub fn part(sets: &[Set]) -> Result<Part, Box<dyn Error>> {
    let mut text = String::from(
        "# ListOps\n\nA small encoder (2 layers of 2 heads of 32, trained by `bench/listops/train.py` on lists of up to 1,000 \
         tokens) classifies fresh lists with each method in place of its attention, without retraining. Chance is 10 %. \
         Attention: processor time of all heads of an example. Memory: most bytes that it allocated at once, \
         beside queries, keys, values and output. Logits moved: distance of the logits to those of exact \
         attention, over their norm.\n",
    );
    let mut drawings = Vec::new();
    for s in sets {
        let (low, high) = s.lengths;
        let name = format!("{low} to {high} tokens");
        text += &format!(
            "\n## {name}\n\n{} examples of {} tokens in the mean. Always naming the most frequent label: {:.1}% right; naming \
             the most frequent label of the outermost operator: {:.1}%.\n\n",
            s.examples,
            s.tokens,
            share(s.most_frequent, s.examples),
            share(s.by_operator, s.examples)
        );
        let head = ["method", "settings", "right", "same as exact", "logits moved", "ms an example", "MB"];
        text += &table(&head, s.outcomes.iter().filter(|o| o.k.is_none()).map(|o| row(o, s.examples)));
        text += "\n\nBy k:\n\n";
        text += &table(&head, s.outcomes.iter().filter(|o| o.k.is_some()).map(|o| row(o, s.examples)));
        text += "\n";
        drawings.push((format!("listops-{low}-{high}"), drawing(s, &name)?));
    }
    let json = json!({ "sets": sets.iter().map(to_json).collect::<Vec<_>>() });
    Ok(Part { name: "listops", markdown: text, json, drawings })
}

fn share(part: usize, of: usize) -> f64 {
    part as f64 * 100.0 / of.max(1) as f64
}

fn row(o: &Outcome, examples: usize) -> Vec<String> {
    let mut cells = vec![o.method.to_string(), o.settings.clone()];
    match o.cannot {
        Some(why) => cells.extend(["cannot".into(), why.into(), String::new(), String::new(), String::new()]),
        None => cells.extend([
            format!("{:.1}%", share(o.right, examples)),
            format!("{:.1}%", share(o.same, examples)),
            format!("{:.1}%", o.moved * 100.0),
            ms(o.attention / examples.max(1) as f64),
            mb(o.bytes),
        ]),
    }
    cells
}

fn drawing(s: &Set, name: &str) -> Result<String, Box<dyn Error>> {
    let point = |o: &Outcome| (o.attention * 1e3 / s.examples.max(1) as f64, share(o.same, s.examples));
    let with_k = s.outcomes.iter().filter(|o| o.k.is_some());
    let mut series: Vec<Series> = Vec::new();
    for o in with_k {
        let name = format!("{}, k 3 to 20", o.method);
        match series.iter_mut().find(|s| s.name == name) {
            Some(s) => s.points.push(point(o)),
            None => series.push(Series { name, points: vec![point(o)] }),
        }
    }
    let topped: Vec<&str> = s.outcomes.iter().filter(|o| o.k.is_some()).map(|o| o.method).collect();
    for o in s.outcomes.iter().filter(|o| o.k.is_none() && o.cannot.is_none() && !topped.contains(&o.method)) {
        series.push(Series { name: o.method.into(), points: vec![point(o)] });
    }
    let up = Axis { range: Some((0.0, 104.0)), ..Axis::new("% classified as with exact attention", Scale::Linear) };
    let chart =
        Chart::new(&format!("ListOps, {name}"), Axis::new("ms of attention an example", Scale::Log10), up, series);
    Chart { names_at_points: true, size: (860, 560), ..chart }.svg()
}

fn to_json(s: &Set) -> Value {
    let of: Vec<Value> = s
        .outcomes
        .iter()
        .map(|o| {
            json!({
                "method": o.method, "settings": o.settings, "k": o.k, "cannot": o.cannot, "right": o.right,
                "same_as_exact": o.same, "logits_moved": o.moved, "attention_seconds": o.attention, "peak_bytes": o.bytes,
            })
        })
        .collect();
    json!({
        "shortest": s.lengths.0, "longest": s.lengths.1, "mean_tokens": s.tokens, "examples": s.examples,
        "most_frequent_label": s.most_frequent, "most_frequent_of_operator": s.by_operator, "outcomes": of,
    })
}
