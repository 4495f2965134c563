//! Figures as text, JSON and tables.

use super::Outcome;
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

/// One figure.
#[derive(Clone, Debug)]
pub struct Point {
    /// Set of keys and queries.
    pub data: String,
    /// Neighbours per query.
    pub k: usize,
    /// Time and recall.
    pub outcome: Outcome,
}

impl Point {
    /// A figure of a set.
    pub fn new(data: &str, k: usize, outcome: Outcome) -> Point {
        Point { data: data.into(), k, outcome }
    }
}

/// One line of a listing.
pub fn line(o: &Outcome) -> String {
    let Outcome { name, target, build, query, recall } = o;
    format!(
        "{name:16} aim {target:<5} build {build:7.3} s  queries {query:7.3} s  total {:7.3} s  recall {recall:.4}",
        o.total()
    )
}

/// All figures, one object a line.
pub fn json(points: &[Point]) -> Result<String, Box<dyn Error>> {
    let mut out = String::new();
    for p in points {
        let Outcome { name, target, build, query, recall } = &p.outcome;
        let round = |x: f64| (x * 1e4).round() / 1e4;
        let target = round(f64::from(*target));
        let (build, query, recall) = (round(*build), round(*query), round(*recall));
        let value = json!({"data": p.data, "k": p.k, "name": name, "target": target, "build_s": build, "query_s": query, "recall": recall});
        writeln!(out, "{}", serde_json::to_string(&value)?)?;
    }
    Ok(out)
}

/// Figures written by [`json`], or by the script that runs the others.
pub fn read(path: &Path) -> Result<Vec<Point>, Box<dyn Error>> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut points = Vec::new();
    for line in text.lines().filter(|l| !l.trim().is_empty()) {
        let v: Value = serde_json::from_str(line)?;
        let number = |key: &str| v[key].as_f64().ok_or(format!("{key} is missing in {line}"));
        let word = |key: &str| v[key].as_str().map(str::to_owned).ok_or(format!("{key} is missing in {line}"));
        points.push(Point {
            data: word("data")?,
            k: number("k")? as usize,
            outcome: Outcome {
                name: word("name")?,
                target: v["target"].as_f64().unwrap_or(0.0) as f32,
                build: number("build_s")?,
                query: number("query_s")?,
                recall: number("recall")?,
            },
        });
    }
    Ok(points)
}

/// Recalls of the tables.
const RECALLS: [f64; 3] = [0.9, 0.95, 0.99];

/// Least total seconds at every recall, a table for every set.
pub fn tables(points: &[Point]) -> String {
    let mut out = String::new();
    let mut sets: Vec<&str> = Vec::new();
    for p in points {
        if !sets.contains(&p.data.as_str()) {
            sets.push(&p.data);
        }
    }
    for set in sets {
        let here = || points.iter().filter(move |p| p.data == set);
        let mut names: Vec<&str> = Vec::new();
        for p in here() {
            if !names.contains(&p.outcome.name.as_str()) {
                names.push(&p.outcome.name);
            }
        }
        let k = here().next().map_or(0, |p| p.k);
        let _ = writeln!(out, "\n`{set}`, k = {k}:\n\n| | recall >= 0.9 | >= 0.95 | >= 0.99 |\n|---|---|---|---|");
        for name in names {
            let mut row = format!("| {name} |");
            for recall in RECALLS {
                let best = here()
                    .filter(|p| p.outcome.name == name && p.outcome.recall >= recall)
                    .min_by(|a, b| a.outcome.total().total_cmp(&b.outcome.total()));
                let _ = match best.map(|p| &p.outcome) {
                    Some(o) => write!(row, " {:.2} s ({:.2} + {:.2}), {:.3} |", o.total(), o.build, o.query, o.recall),
                    None => write!(row, " |"),
                };
            }
            let _ = writeln!(out, "{row}");
        }
    }
    out
}

/// Puts the tables between the marks of a file.
pub fn write_tables(path: &Path, points: &[Point]) -> Result<(), Box<dyn Error>> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (open, close) = ("<!-- knn -->\n", "<!-- /knn -->");
    let (head, rest) = text.split_once(open).ok_or("the file has no mark <!-- knn -->")?;
    let (_, tail) = rest.split_once(close).ok_or("the file has no mark <!-- /knn -->")?;
    std::fs::write(path, format!("{head}{open}{}\n{close}{tail}", tables(points)))?;
    Ok(())
}
