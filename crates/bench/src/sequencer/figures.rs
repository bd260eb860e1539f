//! The figures: positions per second (the paper's figure 4), latencies (figure 5), and positions over time.

use std::path::Path;

use super::point::Series;
use crate::BenchError;
use crate::kit::figure::{self, Axis, BarSeries, Bars, Drawing, Figure, Line, Scale};

/// The time over which positions of clients are shown, in microseconds.
const SHOWN_US: u64 = 200_000;

/// Draws all figures into a folder, and returns their files.
pub(super) fn draw(series: &[Series], folder: &Path) -> Result<Vec<String>, BenchError> {
    let mut files = Vec::new();
    if series.is_empty() {
        return Ok(files);
    }
    let rates = series.iter().map(|series| series.repetitions.iter().map(|one| one.per_second).collect());
    let bars = Bars {
        title: "Positions per second".into(),
        subtitle: "by policy, median and range of the repetitions".into(),
        x_label: String::new(),
        groups: series.iter().map(|series| series.point.label.clone()).collect(),
        y_label: "positions/s".into(),
        scale: Scale::Decades,
        series: vec![BarSeries { name: "positions/s".into(), values: rates.collect(), colour: 0 }],
        stacked: false,
    };
    files.push(figure::write(folder, "throughput", bars.svg())?);
    type Values = fn(&Series) -> Vec<f64>;
    let percentiles: [(&str, Values); 3] = [
        ("p50", |series| series.repetitions.iter().map(|one| one.latency.p50_us).collect()),
        ("p99", |series| series.repetitions.iter().map(|one| one.latency.p99_us).collect()),
        ("max", |series| series.repetitions.iter().map(|one| one.latency.max_us).collect()),
    ];
    let latency = Bars {
        title: "Latency of a position".into(),
        subtitle: "over all positions; those of a cached sequencer cost nanoseconds".into(),
        y_label: "µs".into(),
        series: percentiles
            .into_iter()
            .enumerate()
            .map(|(colour, (name, values))| BarSeries {
                name: name.into(),
                values: series.iter().map(values).collect(),
                colour,
            })
            .collect(),
        ..bars
    };
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
        let times = lines.iter().flat_map(|line| line.points.iter().map(|(time, _)| *time));
        let figure = Figure {
            title: "Positions over time".into(),
            subtitle: series.point.label.clone(),
            x: Axis::holding("ms", Scale::Linear, times.collect::<Vec<_>>()),
            y: Axis::holding("position", Scale::Linear, figure::values(&lines).collect::<Vec<_>>()),
            lines,
        };
        let name: String = series.point.label.chars().filter(char::is_ascii_alphanumeric).collect();
        files.push(figure::write(folder, &format!("interleaving-{name}"), figure.svg())?);
    }
    Ok(files)
}
