//! The figures: the distributions of the time until an update is live (the paper's figure 6), and commits by the time for which updates
//! are gathered.

use std::path::Path;

use super::point::{CommitMeasurement, Results, Series, name};
use crate::BenchError;
use crate::kit::figure::{self, Bars, Drawing as _, Figure, Line, Scale};
use crate::kit::server::Durability;

/// Draws all figures for which there are results into a folder, and returns their files.
pub(super) fn draw(results: &Results, folder: &Path) -> Result<Vec<String>, BenchError> {
    let mut files = Vec::new();
    let sizes = figure::distinct(results.series.iter().map(|one| (one.point.servers, one.point.per_process)));
    for (servers, per_process) in sizes {
        for durability in [Durability::Volatile, Durability::Always] {
            let is_of = |one: &&Series| {
                (one.point.servers, one.point.per_process, one.point.durability)
                    == (servers, per_process, durability)
            };
            let lines: Vec<Line> = results.series.iter().filter(is_of).filter_map(line).collect();
            if lines.is_empty() {
                continue;
            }
            let (x, y) = (("ms", Scale::Decades), ("share of updates and servers", Scale::Linear));
            let subtitle = format!(
                "{servers} servers, {}; from the request to commit it, first repetition",
                name(durability)
            );
            let figure = Figure::of("Time until an update is live", subtitle, x, y, lines);
            let file = format!("live-{servers}-{}", name(durability));
            files.push(figure::write(folder, &file, figure.svg())?);
        }
    }
    if !results.commits.is_empty() {
        let points = results.commits.iter().map(|one| (one.point.label.as_str(), &one.repetitions[..]));
        let rates = Bars::of(
            "Commits per second",
            "bars are medians, dots are repetitions",
            "commits/s",
            points,
            &[("commits/s", |one: &CommitMeasurement| one.per_second)],
        );
        files.push(figure::write(folder, "commits", rates.svg())?);
    }
    Ok(files)
}

/// Returns the distribution of a point's first repetition as a line.
fn line(series: &Series) -> Option<Line> {
    let measured = series.repetitions.first()?;
    let shares = measured.hundredths_us.iter().enumerate();
    Some(Line {
        name: series.point.way.name().to_owned(),
        points: shares.map(|(share, us)| (us / 1e3, vec![share as f64 / 100.0])).collect(),
        connected: true,
        note: None,
        colour: series.point.way as usize,
    })
}
