//! The figures: positions per second (the paper's figure 4), latencies (figure 5), and positions over time.

use std::path::Path;

use super::point::{Measurement, Series};
use crate::BenchError;
use crate::kit::figure::{self, Bars, Drawing, Figure, Line, NamedValue, Scale};

/// The time over which positions of clients are shown, in microseconds.
const SHOWN_US: u64 = 200_000;

/// The latencies that are shown.
const PERCENTILES: [NamedValue<Measurement>; 3] =
    [("p50", |one| one.latency.p50_us), ("p99", |one| one.latency.p99_us), ("max", |one| one.latency.max_us)];

/// Draws all figures into a folder, and returns their files.
pub(super) fn draw(series: &[Series], folder: &Path) -> Result<Vec<String>, BenchError> {
    let mut files = Vec::new();
    if series.is_empty() {
        return Ok(files);
    }
    let points = || series.iter().map(|series| (series.point.label.as_str(), &series.repetitions[..]));
    let by = "by policy: bars are medians, dots are repetitions";
    let rates = Bars::of(
        "Positions per second",
        by,
        "positions/s",
        points(),
        &[("positions/s", |one: &Measurement| one.per_second)],
    );
    files.push(figure::write(folder, "throughput", rates.svg())?);
    let over = "over all positions: bars are medians of the repetitions, dots are repetitions";
    let latency = Bars::of("Latency of a position", over, "µs", points(), &PERCENTILES);
    files.push(figure::write(folder, "latency", latency.svg())?);
    for series in series.iter().filter(|series| series.point.clients == 2) {
        let Some(measured) = series.repetitions.first() else { continue };
        let lines: Vec<Line> = measured
            .spans
            .iter()
            .enumerate()
            .map(|(client, spans)| {
                let shown = spans.iter().filter(|(us, _)| *us <= SHOWN_US);
                let points = shown.map(|(us, position)| (*us as f64 / 1000.0, vec![*position as f64]));
                let name = format!("client {}", client + 1);
                Line { name, points: points.collect(), connected: false, note: None, colour: client }
            })
            .collect();
        let (x, y) = (("ms", Scale::Linear), ("position", Scale::Linear));
        let subtitle =
            format!("{}: the first {} ms of the first repetition", series.point.label, SHOWN_US / 1000);
        let figure = Figure::of("Positions over time", subtitle, x, y, lines);
        let name: String = series.point.label.chars().filter(char::is_ascii_alphanumeric).collect();
        files.push(figure::write(folder, &format!("interleaving-{name}"), figure.svg())?);
    }
    Ok(files)
}
