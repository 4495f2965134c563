//! What the suite prints, as charts over the layers.

use super::Outcome;
use crate::plot::{Axis, Chart, Scale, Series};
use std::error::Error;

/// Errors, and times faster, as SVG files by name.
///
/// # Errors
/// Nothing to draw.
pub fn charts(title: &str, all: &[Outcome], tolerance: f64) -> Result<[(&'static str, String); 2], Box<dyn Error>> {
    let series = |name: &str, of: &dyn Fn(&Outcome) -> f64| {
        let points = all.iter().map(|o| (o.layer as f64, of(o))).filter(|p| p.1.is_finite()).collect();
        Series { name: name.into(), points }
    };
    let over_layers = |y: &str, level: f64, series: Vec<Series>| {
        let series = series.into_iter().filter(|s| !s.points.is_empty()).collect();
        let chart = Chart::new(title, Axis::new("layer", Scale::Linear), Axis::new(y, Scale::Linear), series);
        Chart { level: Some(level), ..chart }.svg()
    };
    let errors = vec![
        series("mean error", &|o| 100.0 * o.mean()),
        series("measured by the call", &|o| 100.0 * o.measured()),
        series("99th percentile of rows", &|o| 100.0 * o.quantile(0.99)),
    ];
    let speed = vec![series("as chosen by the library", &|o| o.seconds[0] / o.seconds[1])];
    Ok([
        ("error", over_layers("relative error of a row, %", 100.0 * tolerance, errors)?),
        ("speed", over_layers("times as fast as exact attention", 1.0, speed)?),
    ])
}
