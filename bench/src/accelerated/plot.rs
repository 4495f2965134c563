//! Speed-up against length, as SVG.

use super::report::Case;
use plotters::prelude::*;
use std::error::Error;

const COLORS: [RGBColor; 3] = [RGBColor(31, 119, 180), RGBColor(214, 96, 39), RGBColor(44, 140, 80)];

/// A line for each tolerance that was measured at two lengths or more.
pub fn svg(cases: &[Case]) -> Result<String, Box<dyn Error>> {
    let mut tolerances: Vec<f32> = cases.iter().map(|c| c.tolerance).collect();
    tolerances.sort_by(f32::total_cmp);
    tolerances.dedup();
    let points = |t: f32| {
        let of = cases.iter().filter(move |c| c.tolerance == t);
        of.map(|c| ((c.rows as f64).log2(), c.all().ratio())).collect::<Vec<_>>()
    };
    let lines: Vec<_> = tolerances.into_iter().map(|t| (t, points(t))).filter(|(_, p)| p.len() > 1).collect();
    let all = || lines.iter().flat_map(|(_, p)| p.iter().copied());
    let low = all().map(|p| p.0).fold(f64::MAX, f64::min);
    let high = all().map(|p| p.0).fold(f64::MIN, f64::max);
    if low >= high {
        return Err("a plot needs two lengths".into());
    }
    let top = all().map(|p| p.1).fold(1.0, f64::max) * 1.1;
    let mut out = String::new();
    {
        let area = SVGBackend::with_string(&mut out, (640, 360)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .caption("Accelerated attention: exact time over accelerated time", ("sans-serif", 16))
            .x_label_area_size(36)
            .y_label_area_size(44)
            .build_cartesian_2d(low - 0.1..high + 0.1, 0.0..top)?;
        chart
            .configure_mesh()
            .x_labels(((high - low).round() as usize + 1).max(2))
            .x_label_formatter(&|x| format!("{:.0}", x.exp2()))
            .x_desc("tokens, causal")
            .y_desc("speed-up")
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(220, 220, 220))
            .draw()?;
        let grey = RGBColor(120, 120, 120);
        chart.draw_series(LineSeries::new([(low - 0.1, 1.0), (high + 0.1, 1.0)], &grey))?;
        for ((tolerance, points), color) in lines.into_iter().zip(COLORS.iter().cycle()) {
            chart
                .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?
                .label(format!("tolerance {tolerance:.2}"))
                .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
            chart.draw_series(points.iter().map(|&p| Circle::new(p, 4, color.filled())))?;
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
