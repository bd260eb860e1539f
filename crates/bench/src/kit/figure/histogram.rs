//! Histograms on one scale, one below the other, so that their widths are comparable.

use plotters::prelude::*;

use super::{Axis, Drawing, Failure, HEAD, SIZE, Scale, canvas, colour, text};

/// A histogram.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    pub(crate) name: String,
    /// The values to count.
    pub(crate) values: Vec<f64>,
    /// The index of the colour.
    pub(crate) colour: usize,
}

/// A figure of histograms.
#[derive(Clone, Debug)]
pub(crate) struct Histograms {
    pub(crate) title: String,
    /// A one-line description of the measurement.
    pub(crate) subtitle: String,
    /// The label of the values' axis.
    pub(crate) x_label: String,
    /// The label of the counts' axis.
    pub(crate) y_label: String,
    pub(crate) histograms: Vec<Histogram>,
}

/// The number of bins over the whole range.
const BINS: usize = 40;
/// The height of one histogram, in pixels.
const HEIGHT: u32 = 130;

impl Histogram {
    /// Returns the number of values in each of the bins between zero and `most`.
    fn counts(&self, most: f64) -> Vec<usize> {
        let mut counts = vec![0; BINS];
        for value in &self.values {
            counts[((value / most * BINS as f64) as usize).min(BINS - 1)] += 1;
        }
        counts
    }
}

impl Drawing for Histograms {
    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self, svg: &mut String) -> Result<(), Failure> {
        let rows = self.histograms.len().max(1);
        let size = (SIZE.0, HEAD + HEIGHT * rows as u32 + 48);
        let root = canvas(svg, size, &self.title, &self.subtitle)?;
        let values = self.histograms.iter().flat_map(|histogram| histogram.values.iter().copied());
        let x = Axis::holding(&self.x_label, Scale::Linear, values);
        let most = x.range.end;
        let mut top = HEAD;
        for (index, histogram) in self.histograms.iter().enumerate() {
            // The last one has the names below it, for all.
            let last = index + 1 == rows;
            let height = if last { HEIGHT + 40 } else { HEIGHT };
            let area = root.clone().margin(top, size.1 - top - height, 8, 24);
            top += height;
            let counts = histogram.counts(most);
            let highest = counts.iter().copied().max().unwrap_or(0) as f64;
            let y = Axis::counting(&self.y_label, highest.max(1.0));
            let mut chart = ChartBuilder::on(&area)
                .margin_top(22)
                .x_label_area_size(if last { 48 } else { 8 })
                .y_label_area_size(64)
                .build_cartesian_2d(x.clone(), y)?;
            let mut mesh = chart.configure_mesh();
            mesh.y_desc(self.y_label.clone())
                .axis_desc_style(text(13))
                .label_style(text(12))
                .light_line_style(TRANSPARENT)
                .bold_line_style(BLACK.mix(0.12));
            if last {
                mesh.x_desc(self.x_label.clone()).draw()?;
            } else {
                mesh.x_label_formatter(&|_| String::new()).draw()?;
            }
            let colour = colour(histogram.colour);
            let width = most / BINS as f64;
            let bars = counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(bin, count)| {
                let corners = [(bin as f64 * width, 0.0), ((bin as f64 + 0.9) * width, *count as f64)];
                Rectangle::new(corners, colour.filled())
            });
            chart.draw_series(bars)?;
            let values = &histogram.values;
            let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
            let busiest = values.iter().copied().fold(0.0, f64::max);
            let name = match mean > 0.0 {
                true => format!("{}: the most {:.2} × the mean", histogram.name, busiest / mean),
                false => histogram.name.clone(),
            };
            // Above the bars, where the axis begins.
            let place = (66, 3);
            area.draw(&Text::new(name, place, text(14).color(&colour)))?;
        }
        root.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_counted_once() {
        let histogram = Histogram { name: "one".into(), values: vec![0.0, 1.0, 1.0, 10.0, 9.99], colour: 0 };
        let counts = histogram.counts(10.0);
        assert_eq!(counts.iter().sum::<usize>(), 5);
        assert_eq!((counts[0], counts[4], counts[BINS - 1]), (1, 2, 2));
    }

    #[test]
    fn all_have_one_scale() {
        let histogram =
            |name: &str, values: &[f64]| Histogram { name: name.into(), values: values.to_vec(), colour: 1 };
        let figure = Histograms {
            title: "work".into(),
            subtitle: "of all".into(),
            x_label: "share".into(),
            y_label: "ranks".into(),
            histograms: vec![histogram("even", &[5.0, 5.0, 5.1]), histogram("uneven", &[1.0, 2.0, 12.0])],
        };
        let svg = figure.svg().unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let bars = document.descendants().filter(|node| node.attribute("fill") == Some("#D55E00"));
        let lefts: Vec<&str> = bars.filter_map(|node| node.attribute("x")).collect();
        assert!(lefts.len() >= 5, "{lefts:?}");
        assert!(svg.contains("uneven: the most 2.40 × the mean"));
    }
}
