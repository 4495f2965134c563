//! Recall against seconds, as SVG.

use super::report::Point;
use plotters::prelude::*;
use std::error::Error;

const COLORS: [RGBColor; 9] = [
    RGBColor(214, 39, 40),
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
    RGBColor(23, 190, 207),
];

/// Of the first set: for every name the points that no other of its points beats.
pub fn svg(points: &[Point]) -> Result<String, Box<dyn Error>> {
    let set = points.first().map(|p| p.data.clone()).ok_or("a plot needs figures")?;
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    // What takes a hundred times as long would leave no room for the rest.
    let least = points.iter().filter(|p| p.data == set).map(|p| p.outcome.total()).fold(f64::INFINITY, f64::min);
    let shown = |p: &&Point| p.data == set && p.outcome.recall > 0.7 && p.outcome.total() < 100.0 * least;
    for p in points.iter().filter(shown) {
        let at = (p.outcome.recall, p.outcome.total().log10());
        match lines.iter_mut().find(|(name, _)| *name == p.outcome.name) {
            Some((_, line)) => line.push(at),
            None => lines.push((p.outcome.name.clone(), vec![at])),
        }
    }
    for (_, line) in &mut lines {
        line.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.total_cmp(&b.1)));
        let mut least = f64::INFINITY;
        line.retain(|p| {
            p.1 < least && {
                least = p.1;
                true
            }
        });
    }
    let all = || lines.iter().flat_map(|(_, l)| l.iter().map(|p| p.1));
    let (low, high) = (all().fold(f64::MAX, f64::min) - 0.1, all().fold(f64::MIN, f64::max) + 0.1);
    let mut out = String::new();
    {
        let area = SVGBackend::with_string(&mut out, (720, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .caption(format!("{set}: index built and all queries answered, one thread"), ("sans-serif", 16))
            .x_label_area_size(36)
            .y_label_area_size(52)
            .build_cartesian_2d(0.7..1.005, low..high)?;
        chart
            .configure_mesh()
            .x_desc("recall")
            .y_desc("seconds")
            .y_label_formatter(&|y| format!("{:.2}", 10f64.powf(*y)))
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(220, 220, 220))
            .draw()?;
        for ((name, points), color) in lines.iter().zip(COLORS.iter().cycle()) {
            chart
                .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?
                .label(name.as_str())
                .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
            chart.draw_series(points.iter().map(|&p| Circle::new(p, 3, color.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE)
            .border_style(RGBColor(220, 220, 220))
            .draw()?;
        area.present()?;
    }
    Ok(out)
}
