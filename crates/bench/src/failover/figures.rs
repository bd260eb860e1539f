//! The figures: positions per second over time (the paper's figure 10), and the pauses by event.

use std::path::Path;

use super::point::{BIN_MS, Measurement, Series};
use crate::BenchError;
use crate::kit::figure::{self, Bars, Drawing, Figure, Line, NamedValue, Scale};

/// The intervals before and after an event that its close-up shows.
const CLOSE_UP: (usize, usize) = (20, 60);
const PAUSE: NamedValue<Measurement> = ("longest pause", |one| one.pause_ms);
/// The maximum number of points of a line over the whole time.
const POINTS_MAX: usize = 600;

/// Draws all figures into a folder, and returns their files.
pub(super) fn draw(series: &[Series], folder: &Path) -> Result<Vec<String>, BenchError> {
    let mut files = Vec::new();
    for series in series {
        let Some(measured) = series.repetitions.first() else { continue };
        let label = &series.point.label;
        let words =
            label.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let name = words.collect::<Vec<_>>().join("-");
        let intervals = measured.sequencers.iter().map(|record| record.bins.len()).max().unwrap_or(0);
        let joined = intervals.div_ceil(POINTS_MAX).max(1);
        let whole = lines(measured, 0, intervals, joined);
        let subtitle = format!(
            "{label} after {:.1} s; means of {} ms; the first repetition",
            measured.at_ms / 1e3,
            joined as u64 * BIN_MS
        );
        files.push(write(folder, &format!("throughput-{name}"), subtitle, "s", whole)?);
        let event = (measured.at_ms / BIN_MS as f64) as usize;
        let (from, to) = (event.saturating_sub(CLOSE_UP.0), (event + CLOSE_UP.1).min(intervals));
        let at_s = measured.at_ms / 1e3 - (from as u64 * BIN_MS) as f64 / 1e3;
        let subtitle =
            format!("{label}, which is at {at_s:.2} s here; means of {BIN_MS} ms; the first repetition");
        files.push(write(folder, &format!("close-up-{name}"), subtitle, "s", lines(measured, from, to, 1))?);
    }
    if !series.is_empty() {
        let points = series.iter().map(|series| (series.point.label.as_str(), &series.repetitions[..]));
        let by = "the longest time that a client waited: bars are medians, dots are repetitions";
        let bars = Bars::of("Pause by event", by, "ms", points, &[PAUSE]);
        files.push(figure::write(folder, "pauses", bars.svg())?);
    }
    Ok(files)
}

fn write(
    folder: &Path,
    name: &str,
    subtitle: String,
    x: &str,
    lines: Vec<Line>,
) -> Result<String, BenchError> {
    let (x, y) = ((x, Scale::Linear), ("positions/s", Scale::Linear));
    figure::write(folder, name, Figure::of("Positions per second over time", subtitle, x, y, lines).svg())
}

/// Returns the rate of each sequencer in a range of intervals, of which each point of a line covers several.
fn lines(measured: &Measurement, from: usize, to: usize, joined: usize) -> Vec<Line> {
    let of_sequencer = |(number, bins): (usize, &[u32])| {
        let shown = &bins[from.min(bins.len())..to.min(bins.len())];
        let points = shown.chunks(joined).enumerate().map(|(place, chunk)| {
            let seconds = (place * joined) as f64 * BIN_MS as f64 / 1e3;
            let positions = chunk.iter().map(|count| f64::from(*count)).sum::<f64>();
            (seconds, vec![positions / (chunk.len() as f64 * BIN_MS as f64 / 1e3)])
        });
        Line {
            name: format!("sequencer {}", number + 1),
            points: points.collect(),
            connected: true,
            note: None,
            colour: number,
        }
    };
    let bins = measured.sequencers.iter().map(|record| &record.bins[..]);
    bins.enumerate().map(of_sequencer).collect()
}
