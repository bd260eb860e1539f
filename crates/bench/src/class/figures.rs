//! The figures: operations per second by concurrency, and the time of an operation in process.

use std::path::Path;

use super::operation::Operation;
use super::point::{Measurement, Series};
use crate::BenchError;
use crate::kit::figure::{self, Bars, Drawing as _, Figure, Scale};

/// Draws all figures for which there are results into a folder, and returns their files.
pub(super) fn draw(series: &[Series], folder: &Path) -> Result<Vec<String>, BenchError> {
    let mut files = Vec::new();
    let lines = figure::lines(
        series.iter().filter(|one| !one.point.local),
        |one| one.point.operation.name().to_owned(),
        |one| {
            let rates = one.repetitions.iter().map(|measured| measured.per_second);
            (f64::from(one.point.concurrency), rates.collect())
        },
        |one| colour(one.point.operation),
    );
    if !lines.is_empty() {
        let (x, y) = (("operations under way", Scale::Octaves), ("operations/s", Scale::Decades));
        let subtitle = "over TCP, on two connections, on one where one is under way; in memory";
        let figure = Figure::of("Operations per second", subtitle, x, y, lines);
        files.push(figure::write(folder, "rates", figure.svg())?);
    }
    let local: Vec<&Series> = series.iter().filter(|one| one.point.local).collect();
    if !local.is_empty() {
        let points = local.iter().map(|one| (one.point.operation.name(), &one.repetitions[..]));
        let bars = Bars::of(
            "Time of an operation in process",
            "one after the other, in memory: bars are medians, dots are repetitions",
            "µs",
            points,
            &[("mean", |one: &Measurement| 1e6 / one.per_second)],
        );
        files.push(figure::write(folder, "in-process", bars.svg())?);
    }
    Ok(files)
}

fn colour(operation: Operation) -> usize {
    operation as usize
}
