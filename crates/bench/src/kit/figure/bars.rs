//! Bar charts, side by side or stacked.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{
    Axis, Drawing, Failure, Mark, SIZE, Scale, Shape, beside_legend, canvas, colour, short, text,
    with_left_out,
};

use crate::kit::statistic::Spread;

/// A series of bars, one for each group.
#[derive(Clone, Debug)]
pub(crate) struct BarSeries {
    /// The name in the legend.
    pub(crate) name: String,
    /// The results of the repetitions for each group. A group without any has no bar.
    pub(crate) values: Vec<Vec<f64>>,
    /// The index of the colour.
    pub(crate) colour: usize,
}

/// A bar chart whose heights are the medians.
#[derive(Clone, Debug)]
pub(crate) struct Bars {
    pub(crate) title: String,
    /// A one-line description of the measurement.
    pub(crate) subtitle: String,
    /// The label of the groups' axis.
    pub(crate) x_label: String,
    pub(crate) groups: Vec<String>,
    pub(crate) y_label: String,
    pub(crate) scale: Scale,
    pub(crate) series: Vec<BarSeries>,
    /// Stacks the bars; otherwise they are side by side.
    pub(crate) stacked: bool,
}

/// The maximum number of bars at which each still has room for a number above it.
const NUMBERED_MAX: usize = 30;

/// The width of a letter of a group's name, in pixels.
const LETTER_WIDTH: u32 = 7;

/// The height of the groups' names and of the label of their axis, in pixels, where each name fits below its group.
const NAMES_HEIGHT: u32 = 48;

/// The width of a sheet that its groups do not have, in pixels, without a legend.
const MARGINS: u32 = 120;

/// A value of a measurement, with its name.
pub(crate) type NamedValue<M> = (&'static str, fn(&M) -> f64);

impl Bars {
    /// Creates a chart with a group for each point, given by its name and its repetitions, and with these values of a
    /// repetition side by side.
    pub(crate) fn of<'a, M: 'a>(
        title: &str,
        subtitle: &str,
        y_label: &str,
        points: impl IntoIterator<Item = (&'a str, &'a [M])>,
        values: &[NamedValue<M>],
    ) -> Self {
        let (names, points): (Vec<&str>, Vec<&[M]>) = points.into_iter().unzip();
        let series = values.iter().enumerate().map(|(colour, (name, value))| BarSeries {
            name: (*name).into(),
            values: points.iter().map(|repetitions| repetitions.iter().map(value).collect()).collect(),
            colour,
        });
        Self {
            title: title.into(),
            subtitle: subtitle.into(),
            x_label: String::new(),
            groups: names.into_iter().map(str::to_owned).collect(),
            y_label: y_label.into(),
            scale: Scale::Decades,
            series: series.collect(),
            stacked: false,
        }
    }

    fn median(&self, series: usize, group: usize) -> Option<f64> {
        let values = self.series[series].values.get(group).filter(|values| !values.is_empty())?;
        Some(Spread::of(values.iter().copied()).median)
    }

    /// Returns the medians of all series in all groups.
    fn medians(&self) -> impl Iterator<Item = f64> {
        let places = (0..self.groups.len())
            .flat_map(move |group| (0..self.series.len()).map(move |series| (series, group)));
        places.filter_map(move |(series, group)| self.median(series, group))
    }

    /// Returns the height of the groups' names if they are turned, in pixels: where one is longer than its group is wide.
    fn turned_height(&self) -> Option<u32> {
        let longest =
            self.groups.iter().map(|name| name.chars().count()).max().unwrap_or(0) as u32 * LETTER_WIDTH;
        let is_wider = longest * self.groups.len() as u32 > SIZE.0 - MARGINS;
        is_wider.then_some(NAMES_HEIGHT + longest)
    }

    /// Returns all heights that the axis must hold.
    fn heights(&self) -> Vec<f64> {
        let of_group = |group: usize| {
            let medians = (0..self.series.len()).filter_map(move |series| self.median(series, group));
            if self.stacked { vec![medians.sum()] } else { medians.collect::<Vec<f64>>() }
        };
        let repetitions = self.series.iter().flat_map(|series| series.values.iter().flatten().copied());
        let repetitions = repetitions.filter(|_| !self.stacked);
        let mut heights: Vec<f64> = (0..self.groups.len()).flat_map(of_group).chain(repetitions).collect();
        if self.scale == Scale::Decades {
            // Where there is no zero to stand on, the lowest bar is a bar all the same.
            let least = heights.iter().copied().filter(|height| *height > 0.0).fold(f64::INFINITY, f64::min);
            heights.extend(least.is_finite().then_some(least / 3.0));
        }
        heights
    }
}

impl Drawing for Bars {
    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self, svg: &mut String) -> Result<(), Failure> {
        let turned = self.turned_height();
        let below = turned.unwrap_or(NAMES_HEIGHT);
        let subtitle = with_left_out(&self.subtitle, self.scale, self.medians());
        let root = canvas(svg, (SIZE.0, SIZE.1 + below - NAMES_HEIGHT), &self.title, &subtitle)?;
        let marks = self.series.iter().map(|series| Mark {
            name: &series.name,
            note: None,
            colour: series.colour,
            shape: Shape::Bar,
        });
        // What lies on top is named first.
        let marks: Vec<Mark> = if self.stacked { marks.rev().collect() } else { marks.collect() };
        let (area, legend) = beside_legend(&root, marks);
        // Turned names are drawn apart: the library turns them about their middle.
        let names = if turned.is_some() { Vec::new() } else { self.groups.clone() };
        let mut x = Axis::naming(&self.x_label, names);
        x.range = -0.5..self.groups.len() as f64 - 0.5;
        let y = Axis::holding(&self.y_label, self.scale, self.heights());
        // A logarithmic axis has no zero for bars to stand on.
        let y_label = match self.scale {
            Scale::Linear => self.y_label.clone(),
            _ => {
                let begin = y.ticks.first().map_or("0", |(_, begin)| begin.as_str());
                format!("{} (bars begin at {begin})", self.y_label)
            }
        };
        let mut chart = ChartBuilder::on(&area)
            .x_label_area_size(below)
            .y_label_area_size(72)
            .build_cartesian_2d(x, y.clone())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_desc(self.x_label.clone())
            .y_desc(y_label)
            .axis_desc_style(text(15))
            .label_style(text(13))
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .draw()?;
        if turned.is_some() {
            let style = text(13).transform(FontTransform::Rotate90).pos(Pos::new(HPos::Left, VPos::Center));
            let names = self.groups.iter().enumerate().map(|(group, name)| {
                let at = EmptyElement::at((group as f64, y.range.start));
                at + Text::new(name.clone(), (0, 8), style.clone())
            });
            chart.draw_series(names)?;
        }
        let numbered = self.groups.len() * self.series.len() <= NUMBERED_MAX && !self.stacked;
        // Of the place of a group, a fifth is left free.
        let width = if self.stacked { 0.6 } else { 0.8 / self.series.len().max(1) as f64 };
        for group in 0..self.groups.len() {
            let mut below = 0.0;
            for (index, series) in self.series.iter().enumerate() {
                let median = self.median(index, group).filter(|median| self.scale.shows(*median));
                let Some(median) = median else { continue };
                let left = match self.stacked {
                    true => group as f64 - width / 2.0,
                    false => group as f64 - 0.4 + index as f64 * width,
                };
                let right = left + width * if self.stacked { 1.0 } else { 0.92 };
                let foot = if self.stacked { y.position(below) } else { y.range.start };
                let top = y.position(below + median);
                let bar = Rectangle::new([(left, foot), (right, top)], colour(series.colour).filled());
                chart.draw_series([bar])?;
                if self.stacked {
                    below += median;
                    continue;
                }
                let middle = (left + right) / 2.0;
                let values = &series.values[group];
                let points = values.iter().filter(|_| values.len() > 1).map(|value| y.position(*value));
                chart.draw_series(points.map(|value| Circle::new((middle, value), 2, BLACK.filled())))?;
                if numbered {
                    let highest = values.iter().copied().fold(median, f64::max);
                    let style = text(11).pos(Pos::new(HPos::Center, VPos::Bottom));
                    // Above the points.
                    let number = EmptyElement::at((middle, y.position(highest)))
                        + Text::new(short(rounded(median)), (0, -5), style);
                    chart.draw_series([number])?;
                }
            }
        }
        legend.draw()?;
        root.present()?;
        Ok(())
    }
}

/// Rounds a number to three significant digits.
fn rounded(number: f64) -> f64 {
    if number == 0.0 {
        return 0.0;
    }
    let unit = 10f64.powf(number.abs().log10().floor() - 2.0);
    (number / unit).round() * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(stacked: bool, scale: Scale) -> Bars {
        let series = |name: &str, colour, values: [Vec<f64>; 2]| BarSeries {
            name: name.into(),
            values: values.to_vec(),
            colour,
        };
        Bars {
            title: "messages".into(),
            subtitle: "of two".into(),
            x_label: "files".into(),
            groups: vec!["few".into(), "many".into()],
            y_label: "messages".into(),
            scale,
            series: vec![
                series("one", 0, [vec![10.0, 30.0, 20.0], vec![4000.0]]),
                series("other", 1, [vec![0.0], vec![]]),
                series("third", 2, [vec![7.0], vec![123_456.0]]),
            ],
            stacked,
        }
    }

    fn count(svg: &str, name: &str) -> usize {
        let document = roxmltree::Document::parse(svg).unwrap();
        document.descendants().filter(|node| node.has_tag_name(name)).count()
    }

    #[test]
    fn every_group_has_a_bar_of_everything_that_has_a_value() {
        let logarithmic = bars(false, Scale::Decades).svg().unwrap();
        // The sheet, three marks of the legend, and four bars: nothing has no bar on a logarithmic axis.
        assert_eq!(count(&logarithmic, "rect"), 1 + 3 + 4);
        // One point for each repetition where there are several.
        assert_eq!(count(&logarithmic, "circle"), 3);
        assert!(logarithmic.contains("of two; 1 value that is not positive is not drawn"));
        for number in ["20", "4000", "7", "123k"] {
            assert!(logarithmic.contains(&format!("\n{number}\n")), "{number} is missing");
        }
        let linear = bars(false, Scale::Linear).svg().unwrap();
        assert_eq!(count(&linear, "rect"), 1 + 3 + 5);
    }

    #[test]
    fn names_that_are_wider_than_their_groups_are_turned() {
        let mut bars = bars(false, Scale::Linear);
        assert!(!bars.svg().unwrap().contains("rotate(90"));
        bars.groups[1] = "many of those that have a name which does not fit below a group".into();
        let svg = bars.svg().unwrap();
        assert_eq!(svg.matches("rotate(90").count(), 2);
        assert!(svg.contains("does not fit below a group"));
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts = document.descendants().filter(|node| node.has_tag_name("text"));
        let empty = texts.filter(|node| node.text().unwrap_or_default().trim().is_empty());
        assert_eq!(empty.count(), 0, "no label is empty");
    }

    #[test]
    fn stacked_bars_stand_on_each_other() {
        let stacked = Bars { groups: vec!["few".into()], ..bars(true, Scale::Linear) };
        let svg = stacked.svg().unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let number =
            |node: &roxmltree::Node, name: &str| node.attribute(name).unwrap().parse::<f64>().unwrap();
        let rects: Vec<roxmltree::Node> =
            document.descendants().filter(|node| node.has_tag_name("rect")).collect();
        let of = |colour: &str| {
            let found = rects.iter().filter(|rect| rect.attribute("fill") == Some(colour));
            // The mark of the legend is narrower than a bar.
            found.max_by(|one, other| number(one, "width").total_cmp(&number(other, "width"))).unwrap()
        };
        let (lowest, highest) = (of("#0072B2"), of("#009E73"));
        let top = number(lowest, "y");
        let foot = number(highest, "y") + number(highest, "height");
        assert!((top - foot).abs() <= 1.0, "{top} {foot}");
    }

    #[test]
    fn numbers_are_rounded_to_three_digits() {
        assert_eq!(rounded(123_456.0), 123_000.0);
        assert_eq!(rounded(0.0), 0.0);
        assert!((rounded(0.012_345) - 0.0123).abs() < 1e-12);
    }
}
