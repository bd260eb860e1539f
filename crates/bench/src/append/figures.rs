//! The figures: appends per second by writers, by sizes and by sequencer; latencies; recoveries.

use std::path::Path;

use super::point::{Point, Results, Series, Subject, Work};
use crate::BenchError;
use crate::kit::figure::{self, Axis, BarSeries, Bars, Drawing, Figure, Line, Scale};
use crate::kit::server::Durability;

/// Draws all figures for which there are results into a folder, and returns their files.
pub(super) fn draw(results: &Results, folder: &Path) -> Result<Vec<String>, BenchError> {
    let mut files = Vec::new();
    let appends = |wanted: &dyn Fn(&Point) -> bool| {
        let is_plain =
            |point: &Point| point.work == Work::Append && point.depth == 16 && point.reshape_ms.is_none();
        let wanted = results.series.iter().filter(|series| is_plain(&series.point) && wanted(&series.point));
        wanted.collect::<Vec<_>>()
    };
    for (durability, bytes, name, subtitle) in [
        (
            Durability::Volatile,
            100,
            "writers-volatile",
            "entries of 100 B in memory, 16 under way for each writer",
        ),
        (
            Durability::Always,
            4096,
            "writers-durable",
            "entries of 4 KiB on disk, 16 under way for each writer",
        ),
    ] {
        let series = appends(&|point| {
            let is_usual =
                point.label.matches(", ").count() <= if point.subject == Subject::Nats { 4 } else { 3 };
            point.durability == durability && point.entry_bytes == bytes && is_usual && !point.apart
        });
        let lines = figure::lines(
            series,
            |series| {
                series
                    .point
                    .label
                    .split(&format!(", {} W", series.point.writers))
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            },
            |series| (f64::from(series.point.writers), rates(series)),
            |series| colour(series.point.subject),
        );
        if lines.iter().any(|line| line.points.len() > 1) {
            let svg = chart("Appends per second", subtitle, ["writers", "appends/s"], lines);
            files.push(figure::write(folder, name, svg)?);
        }
    }
    let groups: [(&str, &str, Vec<&Series>); 2] = [
        (
            "sequencers",
            "by sequencer and by handles: entries of 100 B in memory, 16 writers",
            appends(&|point| point.label.contains("sequencer")),
        ),
        (
            "widths",
            "by number of objects: entries of 4 KiB on disk, 16 writers",
            appends(&|point| point.label.contains("width")),
        ),
    ];
    for (name, subtitle, series) in groups {
        if !series.is_empty() {
            let svg = bars("Appends per second", subtitle, "appends/s", &series, |series| {
                vec![("appends/s", rates(series))]
            });
            files.push(figure::write(folder, name, svg)?);
        }
    }
    let alone: Vec<&Series> = results
        .series
        .iter()
        .filter(|series| {
            series.point.depth == 1 && series.point.reshape_ms.is_none() && series.point.writers <= 2
        })
        .collect();
    if !alone.is_empty() {
        let svg = bars("Latency", "of one operation at a time", "µs", &alone, |series| {
            let all =
                |value: fn(&super::point::Measurement) -> f64| series.repetitions.iter().map(value).collect();
            vec![
                ("p50", all(|one| one.latency.p50_us)),
                ("p99", all(|one| one.latency.p99_us)),
                ("max", all(|one| one.latency.max_us)),
            ]
        });
        files.push(figure::write(folder, "latency", svg)?);
    }
    if results.recoveries.len() > 1 {
        let points = results.recoveries.iter().map(|recovery| (recovery.entries as f64, recovery.ms.clone()));
        let line = Line {
            name: "recovery".into(),
            points: points.collect(),
            connected: true,
            note: None,
            colour: 0,
        };
        let svg = Figure {
            title: "Time of a recovery".into(),
            subtitle: "seal, tail, new epoch: a log of 4 objects".into(),
            x: Axis::holding(
                "entries",
                Scale::Decades,
                line.points.iter().map(|(entries, _)| *entries).collect::<Vec<_>>(),
            ),
            y: Axis::holding(
                "ms",
                Scale::Linear,
                line.points.iter().flat_map(|(_, ms)| ms.clone()).collect::<Vec<_>>(),
            ),
            lines: vec![line],
        };
        files.push(figure::write(folder, "recovery", svg.svg())?);
    }
    Ok(files)
}

fn rates(series: &Series) -> Vec<f64> {
    series.repetitions.iter().map(|one| one.per_second).collect()
}

fn colour(subject: Subject) -> usize {
    match subject {
        Subject::Log => 0,
        Subject::Redis => 1,
        Subject::Nats => 2,
        Subject::Object => 3,
        Subject::Disk => 6,
    }
}

fn chart(title: &str, subtitle: &str, labels: [&str; 2], lines: Vec<Line>) -> Result<String, BenchError> {
    let xs: Vec<f64> = lines.iter().flat_map(|line| line.points.iter().map(|(x, _)| *x)).collect();
    let figure = Figure {
        title: title.into(),
        subtitle: subtitle.into(),
        x: Axis::holding(labels[0], Scale::Octaves, xs),
        y: Axis::holding(labels[1], Scale::Decades, figure::values(&lines).collect::<Vec<_>>()),
        lines,
    };
    figure.svg()
}

fn bars(
    title: &str,
    subtitle: &str,
    y_label: &str,
    series: &[&Series],
    values: impl Fn(&Series) -> Vec<(&'static str, Vec<f64>)>,
) -> Result<String, BenchError> {
    let all: Vec<_> = series.iter().map(|series| values(series)).collect();
    let names = all.first().map(|first| first.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let of = |(number, name): (usize, &str)| BarSeries {
        name: name.to_owned(),
        values: all.iter().map(|values| values[number].1.clone()).collect(),
        colour: number,
    };
    let bars = Bars {
        title: title.into(),
        subtitle: subtitle.into(),
        x_label: String::new(),
        groups: series.iter().map(|series| series.point.label.clone()).collect(),
        y_label: y_label.into(),
        scale: Scale::Decades,
        series: names.unwrap_or_default().into_iter().enumerate().map(of).collect(),
        stacked: false,
    };
    bars.svg()
}
