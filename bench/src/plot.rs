//! Line and point charts as SVG.

use plotters::prelude::*;
use std::error::Error;

const COLORS: [RGBColor; 10] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 96, 39),
    RGBColor(44, 140, 80),
    RGBColor(140, 86, 175),
    RGBColor(120, 84, 70),
    RGBColor(200, 60, 130),
    RGBColor(130, 130, 40),
    RGBColor(20, 150, 170),
    RGBColor(90, 90, 90),
    RGBColor(190, 30, 45),
];
const GREY: RGBColor = RGBColor(120, 120, 120);
const LIGHT: RGBColor = RGBColor(220, 220, 220);

/// How an axis grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// By steps.
    Linear,
    /// By doubling.
    Log2,
    /// By factors of ten.
    Log10,
}

impl Scale {
    fn place(self, x: f64) -> f64 {
        match self {
            Scale::Linear => x,
            Scale::Log2 => x.log2(),
            Scale::Log10 => x.log10(),
        }
    }

    fn value(self, x: f64) -> f64 {
        match self {
            Scale::Linear => x,
            Scale::Log2 => x.exp2(),
            Scale::Log10 => 10f64.powf(x),
        }
    }
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows, with the unit.
    pub name: String,
    /// How it grows.
    pub scale: Scale,
    /// From where to where; `None` = as far as the points go.
    pub range: Option<(f64, f64)>,
}

impl Axis {
    /// As far as the points go.
    pub fn new(name: &str, scale: Scale) -> Axis {
        Axis { name: name.into(), scale, range: None }
    }

    /// From where to where on paper, with a little air where that follows the points.
    fn span(&self, values: impl Iterator<Item = f64>) -> Result<(f64, f64), Box<dyn Error>> {
        if let Some((low, high)) = self.range {
            return Ok((self.scale.place(low), self.scale.place(high)));
        }
        let (low, high) =
            values.map(|x| self.scale.place(x)).fold((f64::MAX, f64::MIN), |(l, h), x| (l.min(x), h.max(x)));
        if !(low.is_finite() && high.is_finite() && low <= high) {
            return Err(format!("{}: no points to draw, or points that have no place", self.name).into());
        }
        let air = ((high - low) * 0.05).max(1e-3);
        Ok((low - air, high + air))
    }

    fn labels(&self, (low, high): (f64, f64)) -> usize {
        match self.scale {
            Scale::Linear => 8,
            Scale::Log2 | Scale::Log10 => (high - low).round() as usize + 2,
        }
    }

    fn text(&self, x: f64) -> String {
        let value = self.scale.value(x);
        let digits = if self.scale == Scale::Linear { 2 } else { 1 - value.log10().floor().min(1.0) as i32 };
        let text = format!("{value:.*}", digits.max(0) as usize);
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
    }
}

/// Points of one name.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name.
    pub name: String,
    /// In the order in which a line joins them.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Title.
    pub title: String,
    /// Across.
    pub x: Axis,
    /// Up.
    pub y: Axis,
    /// What it shows.
    pub series: Vec<Series>,
    /// A grey line at this height.
    pub level: Option<f64>,
    /// Names stand at the first points instead of in a box.
    pub names_at_points: bool,
    /// Corner of the box.
    pub names_at: SeriesLabelPosition,
    /// Width and height in pixels.
    pub size: (u32, u32),
}

impl Chart {
    /// Without level, names in a box at the upper left.
    pub fn new(title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Chart {
        let (title, names_at, size) = (title.into(), SeriesLabelPosition::UpperLeft, (640, 360));
        Chart { title, x, y, series, level: None, names_at_points: false, names_at, size }
    }

    /// Draws it.
    ///
    /// # Errors
    /// Nothing to draw; points without a place on a logarithmic axis.
    pub fn svg(&self) -> Result<String, Box<dyn Error>> {
        let all = || self.series.iter().flat_map(|s| s.points.iter().copied());
        let across = self.x.span(all().map(|p| p.0))?;
        let up = self.y.span(all().map(|p| p.1).chain(self.level))?;
        let place = |p: (f64, f64)| (self.x.scale.place(p.0), self.y.scale.place(p.1));
        let mut out = String::new();
        {
            let area = SVGBackend::with_string(&mut out, self.size).into_drawing_area();
            area.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(&area)
                .margin(12)
                .caption(&self.title, ("sans-serif", 16))
                .x_label_area_size(36)
                .y_label_area_size(52)
                .build_cartesian_2d(across.0..across.1, up.0..up.1)?;
            chart
                .configure_mesh()
                .x_labels(self.x.labels(across))
                .y_labels(self.y.labels(up))
                .x_label_formatter(&|x| self.x.text(*x))
                .y_label_formatter(&|y| self.y.text(*y))
                .x_desc(&self.x.name)
                .y_desc(&self.y.name)
                .light_line_style(WHITE)
                .bold_line_style(LIGHT)
                .draw()?;
            if let Some(level) = self.level {
                let y = self.y.scale.place(level);
                chart.draw_series(LineSeries::new([(across.0, y), (across.1, y)], &GREY))?;
            }
            let mut labels = Labels::new(self.size);
            for series in &self.series {
                series.points.iter().for_each(|&p| labels.keep_free(chart.backend_coord(&place(p))));
            }
            for (series, color) in self.series.iter().zip(COLORS.iter().cycle()) {
                let points: Vec<(f64, f64)> = series.points.iter().map(|&p| place(p)).collect();
                let line = chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
                if !self.names_at_points {
                    line.label(&series.name)
                        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
                }
                chart.draw_series(points.iter().map(|&p| Circle::new(p, 4, color.filled())))?;
                if let (true, Some(&first)) = (self.names_at_points, points.first()) {
                    let at = chart.backend_coord(&first);
                    let by = labels.place(at, series.name.chars().count() as i32);
                    let name = Text::new(series.name.clone(), by, ("sans-serif", 11).into_font().color(color));
                    chart.draw_series([EmptyElement::at(first) + name])?;
                }
            }
            if !self.names_at_points {
                chart
                    .configure_series_labels()
                    .position(self.names_at.clone())
                    .background_style(WHITE)
                    .border_style(LIGHT)
                    .draw()?;
            }
            area.present()?;
        }
        Ok(out)
    }
}

/// Places of names beside points, so that none covers another or a point.
struct Labels {
    size: (u32, u32),
    /// Left, top, right, bottom.
    taken: Vec<[i32; 4]>,
}

impl Labels {
    fn new(size: (u32, u32)) -> Labels {
        Labels { size, taken: Vec::new() }
    }

    fn keep_free(&mut self, (x, y): (i32, i32)) {
        self.taken.push([x - 4, y - 4, x + 4, y + 4]);
    }

    /// Where a name of so many letters goes, relative to its point: the first free place, or the first one.
    fn place(&mut self, (x, y): (i32, i32), letters: i32) -> (i32, i32) {
        let (width, height) = (letters * 6, 12);
        let around = [0, -10, 10, -22, 22, -34, 34].into_iter().flat_map(|dy| [(8, dy - 6), (-8 - width, dy - 6)]);
        let box_at = |(dx, dy): (i32, i32)| [x + dx, y + dy, x + dx + width, y + dy + height];
        let free = |b: &[i32; 4]| {
            let apart = |t: &[i32; 4]| b[2] <= t[0] || t[2] <= b[0] || b[3] <= t[1] || t[3] <= b[1];
            b[0] >= 64 && b[2] <= self.size.0 as i32 - 12 && b[1] >= 32 && self.taken.iter().all(apart)
        };
        let by = around.clone().find(|&by| free(&box_at(by))).unwrap_or((8, -6));
        self.taken.push(box_at(by));
        by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: Vec<(f64, f64)>) -> Chart {
        let series = vec![Series { name: "a line".into(), points }];
        Chart::new("title", Axis::new("across", scale), Axis::new("up", Scale::Linear), series)
    }

    #[test]
    fn draws_what_it_is_given() {
        let svg = chart(Scale::Log2, vec![(1024.0, 1.0), (2048.0, 2.0), (4096.0, 1.5)]).svg().expect("a drawing");
        for word in ["<svg", "title", "across", "up", "a line", "1024", "4096"] {
            assert!(svg.contains(word), "{word}");
        }
        assert_eq!(svg.matches("<circle").count(), 3);
    }

    #[test]
    fn names_keep_apart() {
        let mut labels = Labels::new((640, 360));
        labels.keep_free((300, 100));
        let places: Vec<(i32, i32)> = (0..10).map(|_| labels.place((300, 100), 9)).collect();
        for (i, a) in places.iter().enumerate() {
            assert!(places[..i].iter().all(|b| (a.0 - b.0).abs() >= 54 || (a.1 - b.1).abs() >= 12), "{places:?}");
        }
    }

    #[test]
    fn refuses_what_has_no_place() {
        assert!(chart(Scale::Linear, Vec::new()).svg().is_err());
        assert!(chart(Scale::Log10, vec![(0.0, 1.0), (10.0, 1.0)]).svg().is_err());
    }
}
