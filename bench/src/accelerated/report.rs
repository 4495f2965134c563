//! What was measured: lines while it runs, tables, JSON.

use super::{Outcome, Settings, Way};
use serde_json::{Value, json};
use std::error::Error;
use std::path::Path;

/// A file (or noise) under a way.
pub struct Case {
    /// Name of the file.
    pub data: String,
    /// Tokens.
    pub rows: usize,
    /// Tolerance of the way.
    pub tolerance: f32,
    /// What differs from the plain rule.
    pub changes: String,
    /// The way.
    pub way: Way,
    /// Outcomes by the layers' numbers.
    pub layers: Vec<(usize, Outcome)>,
}

impl Case {
    /// All layers together.
    pub fn all(&self) -> Outcome {
        let mut all = Outcome::default();
        self.layers.iter().for_each(|(_, o)| all.add(o));
        all
    }

    /// What names it in a line.
    pub fn name(&self) -> String {
        let auto = if matches!(self.way, Way::Auto(_)) { ", auto" } else { "" };
        let changes = if self.changes.is_empty() { String::new() } else { format!(", {}", self.changes) };
        format!("{}, {} rows, tolerance {}{auto}{changes}", self.data, self.rows, self.tolerance)
    }

    /// Prints a line for each layer and one for all.
    pub fn print(&self) {
        println!("\n{}", self.name());
        println!(
            "{:<5} {:>10} {:>10} {:>6} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}",
            "layer",
            "exact ms",
            "accel ms",
            "ratio",
            "build ms",
            "error",
            "p99",
            "heavy",
            "missed",
            "pairs",
            "cells",
            "est"
        );
        self.layers.iter().for_each(|(number, o)| self.line(&number.to_string(), o));
        self.line("all", &self.all());
    }

    fn line(&self, name: &str, o: &Outcome) {
        println!(
            "{name:<5} {:>10.1} {:>10.1} {:>6.2} {:>8.1} {:>7.4} {:>7.4} {:>7} {:>7} {:>7.4} {:>7.4} {:>7.4}",
            o.exact * 1e3,
            o.accelerated * 1e3,
            o.ratio(),
            o.build * 1e3,
            o.mean(),
            o.p99(),
            o.heavy,
            o.missed,
            o.pairs_share(),
            o.cells_share(),
            o.estimated_share(),
        );
    }

    fn row(&self) -> String {
        let o = self.all();
        let missed = match self.way {
            Way::Auto(_) => "-".into(),
            Way::Rule(_) => format!("{} ({} of {})", percent(o.missed_share()), o.missed, o.heavy),
        };
        let changes = if self.changes.is_empty() { String::new() } else { format!(", {}", self.changes) };
        let cells = [
            self.data.clone(),
            self.rows.to_string(),
            format!("{:.2}{changes}", self.tolerance),
            format!("{:.0}", o.exact * 1e3),
            format!("{:.0}", o.accelerated * 1e3),
            format!("{:.2}", o.ratio()),
            percent(o.build / o.accelerated),
            percent(o.mean()),
            percent(o.p99()),
            missed,
            percent(o.pairs_share()),
        ];
        format!("| {} |", cells.join(" | "))
    }

    fn json(&self) -> Value {
        let of = |name: String, o: &Outcome| {
            json!({
                "layer": name, "exact_seconds": o.exact, "accelerated_seconds": o.accelerated,
                "build_seconds": o.build, "ratio": o.ratio(), "error_mean": o.mean(), "error_p99": o.p99(),
                "heavy": o.heavy, "missed": o.missed, "pairs": o.pairs, "pairs_dense": o.pairs_dense,
                "cells": o.cells, "estimated": o.estimated_share(),
            })
        };
        let layers: Vec<Value> = self.layers.iter().map(|(n, o)| of(n.to_string(), o)).collect();
        let (auto, rule) = match self.way {
            Way::Auto(_) => (true, Value::Null),
            Way::Rule(rule) => (false, format!("{rule:?}").into()),
        };
        json!({
            "data": self.data, "rows": self.rows, "tolerance": self.tolerance, "auto": auto, "rule": rule,
            "layers": layers, "all": of("all".into(), &self.all()),
        })
    }
}

fn percent(x: f64) -> String {
    format!("{:.1}%", x * 100.0)
}

/// How it was measured, in a line.
pub fn method(settings: &Settings) -> String {
    let exact = if settings.calibrate {
        "exact attention timed on the first 4096 rows before and after and scaled by pairs"
    } else {
        "exact attention timed on all rows"
    };
    format!("Rounds: {}; {exact}; {} rows sampled for errors.", settings.rounds, settings.samples)
}

/// The command, the method and a table, in Markdown.
pub fn markdown(cases: &[Case], settings: &Settings, command: &str) -> String {
    let head = [
        "data",
        "rows",
        "tolerance",
        "exact ms",
        "accelerated ms",
        "ratio",
        "build share",
        "error mean",
        "error p99",
        "heavy keys missed",
        "pairs scored",
    ];
    let mut lines = vec![format!("Made by `{command}`."), String::new(), method(settings), String::new()];
    lines.push(format!("| {} |", head.join(" | ")));
    lines.push(format!("|{}", "---|".repeat(head.len())));
    lines.extend(cases.iter().map(Case::row));
    lines.join("\n")
}

/// Puts text between the marks `<!-- mark -->` and `<!-- /mark -->` of a file, or writes it as the file where there are
/// no marks.
pub fn place(path: &Path, mark: &str, text: &str) -> Result<(), Box<dyn Error>> {
    let (begin, end) = (format!("<!-- {mark} -->"), format!("<!-- /{mark} -->"));
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let new = match (old.find(&begin), old.find(&end)) {
        (Some(a), Some(b)) if a < b => format!("{}{begin}\n{text}\n{}", &old[..a], &old[b..]),
        _ if old.is_empty() => format!("{begin}\n{text}\n{end}\n"),
        _ => return Err(format!("{}: no {begin} ... {end}", path.display()).into()),
    };
    Ok(std::fs::write(path, new)?)
}

/// Every figure.
pub fn json(cases: &[Case], settings: &Settings) -> String {
    let Settings { samples, rounds, calibrate } = settings;
    let cases: Vec<Value> = cases.iter().map(Case::json).collect();
    format!("{:#}\n", json!({ "samples": samples, "rounds": rounds, "calibrate": calibrate, "cases": cases }))
}
