//! Figures as SVG: line charts here, with one point for each repetition and a line through the medians; bar charts,
//! heat maps and histograms in their own modules.
//!
//! The text of a figure names a font family and leaves the choice to the viewer, so that drawing needs no font on the
//! machine.

mod axis;
mod bars;
mod heat;
mod histogram;

use std::path::Path;

use nacre_quantity::Escaped;
use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

use self::axis::short;
pub(crate) use self::axis::{Axis, Scale};
pub(crate) use self::bars::{BarSeries, Bars, NamedValue};
pub(crate) use self::heat::{HeatMap, HeatMaps};
pub(crate) use self::histogram::{Histogram, Histograms};
use crate::BenchError;
use crate::kit::machine::origin;
use crate::kit::statistic::Spread;

/// Width and height of a figure in pixels.
const SIZE: (u32, u32) = (860, 520);

/// Colours that most people can tell apart, also in print (Okabe and Ito's), in the order of the series.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];

/// A figure that can be drawn as SVG.
pub(crate) trait Drawing {
    /// Returns its title.
    fn title(&self) -> &str;

    /// Draws it.
    fn draw(&self, svg: &mut String) -> Result<(), Failure>;

    /// Returns it as SVG.
    ///
    /// # Errors
    /// [`BenchError::Figure`] if the drawing library fails.
    fn svg(&self) -> Result<String, BenchError> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| BenchError::Figure {
            figure: self.title().to_owned(),
            message: error.to_string(),
        })?;
        Ok(svg)
    }
}

/// Writes a figure into a folder under a name, and returns its file.
///
/// # Errors
/// If it cannot be drawn or written.
pub(crate) fn write(
    folder: &Path,
    name: &str,
    svg: Result<String, BenchError>,
) -> Result<String, BenchError> {
    let file = folder.join(format!("{name}.svg"));
    std::fs::write(&file, svg?).map_err(BenchError::io(format!("write {}", Escaped::of(&file))))?;
    Ok(Escaped::of(&file).to_string())
}

/// Returns the distinct values of some results, in order of appearance, such as the names of a figure's lines.
pub(crate) fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut known = Vec::new();
    for value in values {
        if !known.contains(&value) {
            known.push(value);
        }
    }
    known
}

/// A line of a figure.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// The name in the legend.
    pub(crate) name: String,
    /// The results of the repetitions at each position on the x axis.
    pub(crate) points: Vec<(f64, Vec<f64>)>,
    /// Connects the medians.
    pub(crate) connected: bool,
    /// A second line of the legend, in small print.
    pub(crate) note: Option<String>,
    /// The index of its colour, so that one subject has the same colour in all figures.
    pub(crate) colour: usize,
}

/// Returns results as lines, in order of appearance: those of one name are a line, its points in the order of the x axis.
pub(crate) fn lines<T>(
    results: impl IntoIterator<Item = T>,
    name: impl Fn(&T) -> String,
    point: impl Fn(&T) -> (f64, Vec<f64>),
    colour: impl Fn(&T) -> usize,
) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for result in results {
        let (name, (x, values)) = (name(&result), point(&result));
        let known = lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
            let colour = colour(&result);
            lines.push(Line { name, points: Vec::new(), connected: true, note: None, colour });
            lines.len() - 1
        });
        let points = &mut lines[known].points;
        let place = points.partition_point(|(before, _)| *before < x);
        match points.get_mut(place) {
            Some((same, known)) if *same == x => known.extend(values),
            _ => points.insert(place, (x, values)),
        }
    }
    lines
}

/// Returns all values of some lines, for the axis that is to hold them.
pub(crate) fn values(lines: &[Line]) -> impl Iterator<Item = f64> {
    lines.iter().flat_map(|line| line.points.iter().flat_map(|(_, values)| values.iter().copied()))
}

/// A line chart.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) title: String,
    /// A one-line description of the measurement.
    pub(crate) subtitle: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
}

impl Figure {
    /// Creates a chart whose axes, each with its label and scale, hold all points of its lines.
    pub(crate) fn of(
        title: impl Into<String>,
        subtitle: impl Into<String>,
        x: (&str, Scale),
        y: (&str, Scale),
        lines: Vec<Line>,
    ) -> Self {
        let places = lines.iter().flat_map(|line| line.points.iter().map(|(place, _)| *place));
        Self {
            x: Axis::holding(x.0, x.1, places),
            y: Axis::holding(y.0, y.1, values(&lines)),
            title: title.into(),
            subtitle: subtitle.into(),
            lines,
        }
    }
}

impl Drawing for Figure {
    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self, svg: &mut String) -> Result<(), Failure> {
        let subtitle = with_left_out(&self.subtitle, self.y.scale, values(&self.lines));
        let root = canvas(svg, SIZE, &self.title, &subtitle)?;
        let marks = self.lines.iter().map(|line| Mark {
            name: &line.name,
            note: line.note.as_deref(),
            colour: line.colour,
            shape: if line.connected { Shape::Line } else { Shape::Point },
        });
        let (area, legend) = beside_legend(&root, marks.collect());
        let mut chart = ChartBuilder::on(&area)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        chart
            .configure_mesh()
            .x_desc(self.x.label.clone())
            .y_desc(self.y.label.clone())
            .axis_desc_style(text(15))
            .label_style(text(13))
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .draw()?;
        for line in &self.lines {
            let colour = colour(line.colour);
            let place = |x: f64, y: f64| (self.x.position(x), self.y.position(y));
            let visible = |y: f64| self.y.scale.shows(y);
            let values = line.points.iter().flat_map(|(x, ys)| ys.iter().map(move |y| (*x, *y)));
            let values: Vec<(f64, f64)> = values.filter(|(_, y)| visible(*y)).collect();
            chart.draw_series(values.iter().map(|(x, y)| {
                EmptyElement::at(place(*x, *y)) + Polygon::new(marker(line.colour), colour.mix(0.55).filled())
            }))?;
            // From the least to the most of the repetitions.
            let spans = line.points.iter().filter_map(|(x, ys)| {
                let shown = || ys.iter().copied().filter(|y| visible(*y));
                let (least, most) = (shown().reduce(f64::min)?, shown().reduce(f64::max)?);
                (least < most).then(|| [place(*x, least), place(*x, most)])
            });
            chart.draw_series(spans.map(|span| PathElement::new(span, colour.mix(0.55).stroke_width(1))))?;
            let medians: Vec<(f64, f64)> =
                line.points.iter().map(|(x, ys)| (*x, Spread::of(ys.iter().copied()).median)).collect();
            if line.connected {
                let path = medians.iter().filter(|(_, y)| visible(*y)).map(|(x, y)| place(*x, *y));
                let style = colour.stroke_width(2);
                if let Some((dash, gap)) = dashes(line.colour) {
                    chart.draw_series(DashedLineSeries::new(path, dash, gap, style))?;
                } else {
                    chart.draw_series(LineSeries::new(path, style))?;
                }
            }
        }
        legend.draw()?;
        root.present()?;
        Ok(())
    }
}

/// The error of the drawing library.
type Failure = DrawingAreaErrorKind<std::io::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Returns a style of black text of the given size.
fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK)
}

/// Returns the colour with this index.
fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// Returns the corners of a colour's marker around its position, in pixels: lines are told apart in print too.
fn marker(number: usize) -> &'static [(i32, i32)] {
    match number % 4 {
        0 => &[(3, 0), (2, 2), (0, 3), (-2, 2), (-3, 0), (-2, -2), (0, -3), (2, -2)],
        1 => &[(0, -4), (4, 3), (-4, 3)],
        2 => &[(-3, -3), (3, -3), (3, 3), (-3, 3)],
        _ => &[(0, -5), (4, 0), (0, 5), (-4, 0)],
    }
}

/// Returns the dashes and gaps, in pixels, of the lines of a colour; `None` if they are solid.
fn dashes(number: usize) -> Option<(u32, u32)> {
    [None, Some((9, 4)), Some((2, 3))][number % 3]
}

/// Returns a subtitle that says how many of the values have no place on the axis, if there are such.
fn with_left_out(subtitle: &str, scale: Scale, values: impl Iterator<Item = f64>) -> String {
    match values.filter(|value| !scale.shows(*value)).count() {
        0 => subtitle.to_owned(),
        1 => format!("{subtitle}; 1 value that is not positive is not drawn"),
        many => format!("{subtitle}; {many} values that are not positive are not drawn"),
    }
}

/// Creates a white sheet with title and subtitle, and the machine, the program and the day at its foot.
fn canvas<'a>(
    svg: &'a mut String,
    size: (u32, u32),
    title: &str,
    subtitle: &str,
) -> Result<Area<'a>, Failure> {
    let root = SVGBackend::with_string(svg, (size.0, size.1 + FOOT)).into_drawing_area();
    root.fill(&WHITE)?;
    let grey = BLACK.mix(0.65);
    let foot = Text::new(origin().to_owned(), (24, size.1 as i32 + 2), text(11).color(&grey));
    root.draw(&foot)?;
    root.draw(&Text::new(title.to_owned(), (24, 14), text(20)))?;
    root.draw(&Text::new(subtitle.to_owned(), (24, 40), text(13)))?;
    Ok(root.margin(0, FOOT, 0, 0))
}

/// The height of the title and subtitle, in pixels.
const HEAD: u32 = 64;
/// The height of the line at the foot, in pixels.
const FOOT: u32 = 20;

/// The form of a mark in a legend.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Line,
    Point,
    Bar,
}

/// An entry of a legend.
struct Mark<'a> {
    name: &'a str,
    /// The second line, in small print.
    note: Option<&'a str>,
    colour: usize,
    shape: Shape,
}

/// A legend and the area that it is drawn in.
struct Legend<'a, 'b> {
    area: Area<'a>,
    marks: Vec<Mark<'b>>,
}

/// Returns the area of the plot, and the legend to the right of it, where it hides nothing. A single mark needs no
/// legend.
fn beside_legend<'a, 'b>(root: &Area<'a>, marks: Vec<Mark<'b>>) -> (Area<'a>, Legend<'a, 'b>) {
    let letters = |mark: &Mark| {
        // Small print is an eighth narrower.
        let note = mark.note.map_or(0, |note| note.chars().count() * 7 / 8);
        mark.name.chars().count().max(note) as u32
    };
    let width = match marks.len() {
        0 | 1 => 24,
        _ => 52 + 7 * marks.iter().map(letters).max().unwrap_or(0),
    };
    let (all, _) = root.dim_in_pixel();
    let (plot, area) = root.margin(HEAD, 8, 8, 0).split_horizontally(all - width - 8);
    (plot, Legend { area, marks })
}

impl<'a> Legend<'a, '_> {
    fn draw(&self) -> Result<(), Failure> {
        if self.marks.len() < 2 {
            return Ok(());
        }
        let mut y = 24;
        for mark in &self.marks {
            let colour = colour(mark.colour);
            if mark.shape == Shape::Line {
                let (dash, gap) = dashes(mark.colour).unwrap_or((24, 0));
                let steps =
                    (8..32).step_by((dash + gap) as usize).map(|from| (from, (from + dash as i32).min(32)));
                for (from, to) in steps {
                    self.area.draw(&PathElement::new([(from, y), (to, y)], colour.stroke_width(2)))?;
                }
            }
            match mark.shape {
                Shape::Bar => self.area.draw(&Rectangle::new([(12, y - 7), (30, y + 7)], colour.filled()))?,
                _ => self.area.draw(
                    &(EmptyElement::at((20, y)) + Polygon::new(marker(mark.colour), colour.filled())),
                )?,
            }
            self.area.draw(&Text::new(mark.name.to_owned(), (40, y - 7), text(14)))?;
            if let Some(note) = mark.note {
                y += 17;
                let grey = BLACK.mix(0.65);
                self.area.draw(&Text::new(note.to_owned(), (40, y - 6), text(12).color(&grey)))?;
            }
            y += 26;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_well_formed_and_shows_every_repetition() {
        let points = vec![(1.0, vec![10.0, 20.0, 30.0]), (2.0, vec![100.0, 200.0]), (4.0, vec![0.0])];
        let line = |name: &str| Line {
            name: name.into(),
            points: points.clone(),
            connected: true,
            note: Some("up to 150/s".into()),
            colour: 8,
        };
        let figure = Figure {
            title: "rates < & >".into(),
            subtitle: "of \"nothing\"".into(),
            x: Axis::holding("x", Scale::Octaves, [1.0, 4.0]),
            y: Axis::holding("y", Scale::Decades, [10.0, 200.0]),
            lines: vec![line("one"), line("other")],
        };
        let svg = figure.svg().unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let count = |name: &str| document.descendants().filter(|node| node.has_tag_name(name)).count();
        // Five repetitions that a logarithmic axis can show for each line, and one mark for each in the legend.
        assert_eq!(count("polygon"), 2 * 5 + 2);
        let texts: Vec<String> = document
            .descendants()
            .filter_map(|node| node.text())
            .map(|text| text.trim().to_string())
            .collect();
        let subtitle = "of \"nothing\"; 2 values that are not positive are not drawn";
        for expected in ["rates < & >", subtitle, "one", "other", "x", "y", "up to 150/s"] {
            assert!(texts.iter().any(|text| text == expected), "{expected} is missing from {texts:?}");
        }
    }
}
