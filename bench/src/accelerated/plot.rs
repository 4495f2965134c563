//! Speed-up against length, as SVG.

use super::report::Case;
use crate::plot::{Axis, Chart, Scale, Series};
use std::error::Error;

/// A line for each tolerance that was measured at two lengths or more.
pub fn svg(cases: &[Case]) -> Result<String, Box<dyn Error>> {
    let mut tolerances: Vec<f32> = cases.iter().map(|c| c.tolerance).collect();
    tolerances.sort_by(f32::total_cmp);
    tolerances.dedup();
    let series = |t: f32| {
        let of = cases.iter().filter(move |c| c.tolerance == t);
        let points = of.map(|c| (c.rows as f64, c.all().ratio())).collect();
        Series { name: format!("tolerance {t:.2}"), points }
    };
    let lines: Vec<Series> = tolerances.into_iter().map(series).filter(|s| s.points.len() > 1).collect();
    let all = || lines.iter().flat_map(|s| s.points.iter());
    let low = all().map(|p| p.0).fold(f64::MAX, f64::min);
    let high = all().map(|p| p.0).fold(f64::MIN, f64::max);
    if low >= high {
        return Err("a plot needs two lengths".into());
    }
    let top = all().map(|p| p.1).fold(1.0, f64::max) * 1.1;
    let title = "Accelerated attention: exact time over accelerated time";
    let up = Axis { range: Some((0.0, top)), ..Axis::new("speed-up", Scale::Linear) };
    let chart = Chart::new(title, Axis::new("tokens, causal", Scale::Log2), up, lines);
    Chart { level: Some(1.0), ..chart }.svg()
}
