//! Heat maps of a value from each row to each column, with one colour scale for all.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Area, Axis, Drawing, Failure, HEAD, SIZE, Scale, canvas, short, text};

/// A heat map.
#[derive(Clone, Debug)]
pub(crate) struct HeatMap {
    pub(crate) name: String,
    /// The rows of cells, as many as each has columns.
    pub(crate) cells: Vec<Vec<f64>>,
}

/// A figure of heat maps side by side.
#[derive(Clone, Debug)]
pub(crate) struct HeatMaps {
    pub(crate) title: String,
    /// A one-line description of the measurement.
    pub(crate) subtitle: String,
    pub(crate) row_label: String,
    pub(crate) column_label: String,
    /// The label of the colour scale.
    pub(crate) value_label: String,
    pub(crate) maps: Vec<HeatMap>,
}

/// The number of maps in a row of the sheet.
const COLUMNS: usize = 3;
/// The space for the labels of a map and its axes, and for the colour scale, in pixels.
const LEFT: u32 = 52;
const ABOVE: u32 = 26;
const BELOW: u32 = 44;
const SCALE: u32 = 110;
/// The maximum number of cells on a side of a map; more are added up in groups.
const SIDE_MAX: usize = 128;

/// The colours from low to high; zero is white.
const RAMP: [(f64, RGBColor); 4] = [
    (0.0, RGBColor(255, 243, 190)),
    (0.4, RGBColor(253, 174, 72)),
    (0.75, RGBColor(214, 60, 30)),
    (1.0, RGBColor(92, 6, 30)),
];

/// Returns the colour of a share of the range.
fn ramp(share: f64) -> RGBColor {
    let share = share.clamp(0.0, 1.0);
    let upper = RAMP.iter().position(|(place, _)| *place >= share).unwrap_or(RAMP.len() - 1).max(1);
    let ((from, low), (to, high)) = (RAMP[upper - 1], RAMP[upper]);
    let part = (share - from) / (to - from);
    let mix = |low: u8, high: u8| (f64::from(low) + part * (f64::from(high) - f64::from(low))).round() as u8;
    RGBColor(mix(low.0, high.0), mix(low.1, high.1), mix(low.2, high.2))
}

impl HeatMap {
    /// Returns the cells, with neighbours added up if there are too many, and the number of rows that a cell stands
    /// for.
    fn condensed(&self) -> (Vec<Vec<f64>>, usize) {
        let each = self.cells.len().div_ceil(SIDE_MAX).max(1);
        let side = self.cells.len().div_ceil(each);
        let mut cells = vec![vec![0.0; side]; side];
        for (row, values) in self.cells.iter().enumerate() {
            for (column, value) in values.iter().enumerate() {
                cells[row / each][(column / each).min(side.saturating_sub(1))] += value;
            }
        }
        (cells, each)
    }
}

impl HeatMaps {
    #[allow(clippy::too_many_arguments)]
    fn draw_map<'a>(
        &self,
        root: &Area<'a>,
        name: &str,
        cells: &[Vec<f64>],
        each: usize,
        (left, top): (i32, i32),
        side: u32,
        scale: &Axis,
    ) -> Result<(), Failure> {
        let count = cells.len().max(1);
        let at = |place: usize| (place as f64 * f64::from(side) / count as f64).round() as i32;
        let side = side as i32;
        root.draw(&Text::new(name.to_owned(), (left, top - 20), text(15)))?;
        for (row, values) in cells.iter().enumerate() {
            for (column, value) in values.iter().enumerate().filter(|(_, value)| **value > 0.0) {
                let share =
                    (scale.position(*value) - scale.range.start) / (scale.range.end - scale.range.start);
                let corners =
                    [(left + at(column), top + at(row)), (left + at(column + 1), top + at(row + 1))];
                root.draw(&Rectangle::new(corners, ramp(share).filled()))?;
            }
        }
        root.draw(&Rectangle::new([(left, top), (left + side, top + side)], BLACK.mix(0.5)))?;
        // Ranks are named at a distance that is a round number, at the middle of their cells.
        let step = [1, 2, 5, 10, 20, 50, 100].into_iter().find(|step| count / step <= 8).unwrap_or(200);
        for place in (0..cells.len()).step_by(step) {
            let middle = (at(place) + at(place + 1)) / 2;
            let name = (place * each).to_string();
            let below = text(11).pos(Pos::new(HPos::Center, VPos::Top));
            root.draw(&Text::new(name.clone(), (left + middle, top + side + 3), below))?;
            let beside = text(11).pos(Pos::new(HPos::Right, VPos::Center));
            root.draw(&Text::new(name, (left - 4, top + middle), beside))?;
        }
        let centred = text(13).pos(Pos::new(HPos::Center, VPos::Top));
        root.draw(&Text::new(self.column_label.clone(), (left + side / 2, top + side + 18), centred))?;
        let upright = ("sans-serif", 13).into_font().transform(FontTransform::Rotate270).color(&BLACK);
        let upright = upright.pos(Pos::new(HPos::Center, VPos::Bottom));
        root.draw(&Text::new(self.row_label.clone(), (left - 28, top + side / 2), upright))?;
        Ok(())
    }
}

impl Drawing for HeatMaps {
    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self, svg: &mut String) -> Result<(), Failure> {
        let columns = self.maps.len().clamp(1, COLUMNS) as u32;
        let rows = self.maps.len().div_ceil(COLUMNS).max(1) as u32;
        // One or two maps are not larger than they need be.
        let side = ((SIZE.0 - SCALE) / columns).saturating_sub(LEFT + 8).min(420);
        let height = HEAD + rows * (ABOVE + side + BELOW) + 8;
        let root = canvas(svg, (SIZE.0, height), &self.title, &self.subtitle)?;
        let maps: Vec<(Vec<Vec<f64>>, usize)> = self.maps.iter().map(HeatMap::condensed).collect();
        let values = maps.iter().flat_map(|(cells, _)| cells.iter().flatten().copied());
        let scale = Axis::holding(&self.value_label, Scale::Decades, values);
        for (index, (map, (cells, each))) in self.maps.iter().zip(&maps).enumerate() {
            let (row, column) = ((index / COLUMNS) as u32, (index % COLUMNS) as u32);
            let corner = (LEFT + column * (LEFT + 8 + side), HEAD + ABOVE + row * (ABOVE + side + BELOW));
            self.draw_map(&root, &map.name, cells, *each, (corner.0 as i32, corner.1 as i32), side, &scale)?;
        }
        let left = (columns * (LEFT + 8 + side) + 24) as i32;
        draw_scale(&root, &scale, (left, (HEAD + ABOVE) as i32), side as i32)?;
        root.present()?;
        Ok(())
    }
}

/// Draws the colour scale with its labels.
fn draw_scale<'a>(
    root: &Area<'a>,
    scale: &Axis,
    (left, top): (i32, i32),
    height: i32,
) -> Result<(), Failure> {
    const STEPS: i32 = 60;
    for step in 0..STEPS {
        let (upper, lower) = (top + height * step / STEPS, top + height * (step + 1) / STEPS);
        let share = 1.0 - (f64::from(step) + 0.5) / f64::from(STEPS);
        root.draw(&Rectangle::new([(left, upper), (left + 16, lower)], ramp(share).filled()))?;
    }
    for (position, name) in &scale.ticks {
        let share = (position - scale.range.start) / (scale.range.end - scale.range.start);
        let y = top + height - (share * f64::from(height)).round() as i32;
        root.draw(&PathElement::new([(left + 16, y), (left + 20, y)], BLACK))?;
        let style = text(12).pos(Pos::new(HPos::Left, VPos::Center));
        root.draw(&Text::new(name.clone(), (left + 24, y), style))?;
    }
    // Nothing, below the least.
    let nothing = [(left, top + height + 6), (left + 16, top + height + 20)];
    root.draw(&Rectangle::new(nothing, BLACK.mix(0.5)))?;
    let style = text(12).pos(Pos::new(HPos::Left, VPos::Center));
    root.draw(&Text::new(short(0.0), (left + 24, top + height + 13), style))?;
    root.draw(&Text::new(scale.label.clone(), (left - 4, top - 20), text(13)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_from_light_to_dark() {
        let light = |share: f64| {
            let RGBColor(red, green, blue) = ramp(share);
            u32::from(red) + u32::from(green) + u32::from(blue)
        };
        let shares: Vec<u32> = (0..=20).map(|step| light(f64::from(step) / 20.0)).collect();
        assert!(shares.windows(2).all(|pair| pair[0] > pair[1]), "{shares:?}");
        assert_eq!(ramp(-1.0), ramp(0.0));
        assert_eq!(ramp(2.0), ramp(1.0));
    }

    #[test]
    fn a_map_has_a_cell_for_every_pair_that_exchanged_something() {
        let cells = vec![vec![0.0, 5.0, 7.0], vec![900.0, 0.0, 0.0], vec![3.0, 0.0, 0.0]];
        let maps = HeatMaps {
            title: "bytes".into(),
            subtitle: "between three".into(),
            row_label: "from".into(),
            column_label: "to".into(),
            value_label: "bytes".into(),
            maps: vec![
                HeatMap { name: "cp".into(), cells: cells.clone() },
                HeatMap { name: "b".into(), cells },
            ],
        };
        let svg = maps.svg().unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let filled = document.descendants().filter(|node| node.has_tag_name("rect"));
        let filled = filled.filter(|node| node.attribute("fill") != Some("none")).count();
        // The sheet, the colour scale, and four cells of each map.
        assert_eq!(filled, 1 + 60 + 2 * 4);
    }

    #[test]
    fn many_ranks_are_summed_up() {
        let map = HeatMap { name: "many".into(), cells: vec![vec![1.0; 300]; 300] };
        let (cells, each) = map.condensed();
        assert_eq!((cells.len(), each), (100, 3));
        assert_eq!(cells.iter().flatten().sum::<f64>(), 90_000.0);
        assert_eq!(cells[0][0], 9.0);
    }
}
