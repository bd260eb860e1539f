//! Histograms drawn as SVG, with one panel of bars for each.
//!
//! The text names a font family and leaves the choice to the viewer, so that drawing needs no fonts here.

use std::collections::HashMap;

use nacre_quantity::grouped;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::report::histogram::Histogram;
use crate::report::print::{bucket_name, title};

const WIDTH: i32 = 860;
const ROW: i32 = 18;
/// The width left of the bars, in pixels.
const NAMES: i32 = 180;
/// The width right of the longest bar, in pixels.
const NUMBERS: i32 = 120;
const HEAD: i32 = 44;
const BAR: RGBColor = RGBColor(0, 114, 178);

/// Draws histograms, and returns the text of the SVG file.
///
/// # Errors
/// If the drawing library fails.
pub fn svg(histograms: &[Histogram]) -> Result<String, String> {
    let rows: i32 = histograms.iter().map(|histogram| histogram.shown_buckets().len() as i32).sum();
    let height = HEAD * histograms.len().max(1) as i32 + ROW * rows + ROW;
    let mut text = String::new();
    let backend = SVGBackend::with_string(&mut text, (WIDTH as u32, height as u32));
    draw(histograms, &backend.into_drawing_area()).map_err(|error| format!("cannot draw: {error}"))?;
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(histograms: &[Histogram], area: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let style = |size: i32, horizontal| {
        let style = TextStyle::from(("sans-serif", size).into_font());
        style.pos(Pos::new(horizontal, VPos::Center)).color(&BLACK)
    };
    let mut y = 0;
    for histogram in histograms {
        // Of users in one, of groups in another.
        let mut names = HashMap::new();
        let place = (ROW, y + HEAD / 2);
        area.draw(&Text::new(title(histogram.measure()), place, style(16, HPos::Left)))?;
        y += HEAD;
        let most = histogram.buckets().map(|(_, tally)| tally.entries).max().unwrap_or(1);
        for (bucket, tally) in histogram.shown_buckets() {
            let name = bucket_name(histogram, bucket, &mut names);
            let middle = y + ROW / 2;
            area.draw(&Text::new(name, (NAMES - 8, middle), style(12, HPos::Right)))?;
            let length = (tally.entries as f64 / most as f64 * f64::from(WIDTH - NAMES - NUMBERS)).ceil();
            let end = NAMES + length as i32;
            area.draw(&Rectangle::new([(NAMES, y + 2), (end, y + ROW - 2)], BAR.filled()))?;
            area.draw(&Text::new(grouped(tally.entries), (end + 8, middle), style(12, HPos::Left)))?;
            y += ROW;
        }
    }
    area.present()?;
    Ok(())
}
