//! A task of long sequences end to end: a small encoder, trained with exact attention, classifies with each method in its
//! place.

use super::report::{Part, mb, ms, table};
use crate::baselines::catalogue::{self, Choice};
use crate::baselines::{IceFormerTopK, Method, TopK};
use crate::long_range::Example;
use crate::long_range::encoder::Encoder;
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

/// An answer that can be had without a model.
#[derive(Clone, Debug)]
pub struct Guess {
    /// What it goes by.
    pub by: &'static str,
    /// Right answers.
    pub right: usize,
}

/// What stands above the tables of a task.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Name of the files.
    pub name: &'static str,
    /// Title.
    pub title: &'static str,
    /// What a token is, in the plural.
    pub unit: &'static str,
    /// The task and the encoder.
    pub about: &'static str,
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
    /// What goes without a model.
    pub guesses: Vec<Guess>,
    /// Exact attention first.
    pub outcomes: Vec<Outcome>,
}

/// Right answers of the one that names the label most frequent among `of`.
pub fn most_frequent<'a>(of: impl Iterator<Item = &'a Example>) -> usize {
    let mut counts = [0; 256];
    of.for_each(|e| counts[usize::from(e.label)] += 1);
    counts.into_iter().max().unwrap_or(0)
}

/// Classifies examples with every method at the paper's settings, with top-k of each k, and without attention. `lengths`
/// and `guesses` are passed on.
pub fn measure(
    encoder: &Encoder,
    lengths: (usize, usize),
    all: &[Example],
    guesses: Vec<Guess>,
    told: &mut dyn FnMut(&str),
) -> Set {
    let rows = all.iter().map(|e| e.tokens.len()).sum::<usize>() / all.len().max(1);
    let mut methods: Vec<(Option<usize>, Box<dyn Method>)> =
        catalogue::exact().into_iter().map(|m| (None, m)).collect();
    methods.extend(catalogue::methods(Choice::Paper, 1).into_iter().map(|m| (None, m)));
    methods.extend(catalogue::ablations().into_iter().map(|m| (None, m)));
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
            o.right += usize::from(a.label() == e.label);
            o.same += usize::from(a.label() == truth.label());
            let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            let far = norm(&mut a.logits.iter().zip(&truth.logits).map(|(a, b)| a - b));
            o.moved += far / norm(&mut truth.logits.iter().copied()) / all.len() as f64;
            o.attention += a.attention;
            o.bytes = o.bytes.max(a.bytes);
        }
        if (i + 1) % 20 == 0 {
            told(&format!("{} to {} long: {} of {}", lengths.0, lengths.1, i + 1, all.len()));
        }
    }
    Set { lengths, tokens: rows, examples: all.len(), guesses, outcomes }
}

/// The part of the report.
///
/// # Errors
/// Of drawing.
pub fn part(page: &Page, sets: &[Set]) -> Result<Part, Box<dyn Error>> {
    let mut text = format!(
        "# {}\n\n{} Each method takes the place of its attention, without retraining. Attention: processor time of all heads of \
         an example. Memory: most bytes that it allocated at once, beside queries, keys, values and output. Logits moved: \
         distance of the logits to those of exact attention, over their norm. The last two methods are no attention at all.\n",
        page.title, page.about
    );
    let mut drawings = Vec::new();
    for s in sets {
        let (low, high) = s.lengths;
        let name = format!("{low} to {high} {}", page.unit);
        text += &format!("\n## {name}\n\n{} examples of {} {} in the mean.", s.examples, s.tokens, page.unit);
        for guess in &s.guesses {
            text += &format!(" {}: {:.1}% right.", guess.by, share(guess.right, s.examples));
        }
        text += "\n\n";
        let head = ["method", "settings", "right", "same as exact", "logits moved", "ms an example", "MB"];
        text += &table(&head, s.outcomes.iter().filter(|o| o.k.is_none()).map(|o| row(o, s.examples)));
        text += "\n\nBy k:\n\n";
        text += &table(&head, s.outcomes.iter().filter(|o| o.k.is_some()).map(|o| row(o, s.examples)));
        text += "\n";
        drawings.push((format!("{}-{low}-{high}", page.name), drawing(s, &format!("{}, {name}", page.title))?));
    }
    let json = json!({ "sets": sets.iter().map(to_json).collect::<Vec<_>>() });
    Ok(Part { name: page.name, markdown: text, json, drawings })
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

fn drawing(s: &Set, title: &str) -> Result<String, Box<dyn Error>> {
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
    // No attention is no method to weigh against its time.
    let ablations = catalogue::ablations();
    let drawn = |o: &&Outcome| !topped.contains(&o.method) && ablations.iter().all(|m| m.name() != o.method);
    for o in s.outcomes.iter().filter(|o| o.k.is_none() && o.cannot.is_none()).filter(drawn) {
        series.push(Series { name: o.method.into(), points: vec![point(o)] });
    }
    let up = Axis { range: Some((0.0, 104.0)), ..Axis::new("% classified as with exact attention", Scale::Linear) };
    let chart = Chart::new(title, Axis::new("ms of attention an example", Scale::Log10), up, series);
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
        "guesses": s.guesses.iter().map(|g| json!({ "by": g.by, "right": g.right })).collect::<Vec<_>>(), "outcomes": of,
    })
}
