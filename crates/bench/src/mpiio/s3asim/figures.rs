//! The paper's figures 11 and 12.

use std::path::Path;

use super::super::chart::{Plotted, over_ranks};
use super::{Measurement, Series, io_without_locks};
use crate::BenchError;
use crate::kit::figure::{self, Drawing, Figure, Scale};

/// The names of the figures' values, their axes and titles.
const TOTAL: (&str, &str, Scale) = ("11a", "Figure 11a: total time of S3aSim", Scale::Decades);
const IO: (&str, &str, Scale) =
    ("11b", "Figure 11b: time of the busiest worker's writes and syncs", Scale::Decades);
const SHARE: (&str, &str, Scale) =
    ("12a", "Figure 12a: writes and syncs, as a share of the total time", Scale::Linear);

/// Draws the figures into a folder, and returns their files.
pub(super) fn draw(series: &[Series], folder: &Path) -> Result<Vec<String>, BenchError> {
    if series.is_empty() {
        return Ok(Vec::new());
    }
    let figures = [
        plain(series, TOTAL, "s", |one| one.total_s),
        plain(series, IO, "s", |one| one.io_s),
        plain(series, SHARE, "% of the total time", Measurement::share),
        ("12b", of_no_locks(series)),
    ];
    // Without a run that has no locks, there is nothing to compare with.
    let drawn = figures.into_iter().filter(|(_, figure)| !figure.lines.is_empty());
    drawn.map(|(number, figure)| figure::write(folder, &format!("figure-{number}"), figure.svg())).collect()
}

fn conditions() -> String {
    "one rank is the master, the others are workers; line through the medians".to_owned()
}

fn plain(
    series: &[Series],
    (number, title, scale): (&'static str, &str, Scale),
    axis: &str,
    value: fn(&Measurement) -> f64,
) -> (&'static str, Figure) {
    let points = series.iter().map(|series| Plotted {
        subject: series.point.subject,
        ranks: series.point.ranks,
        values: series.repetitions.iter().map(value).collect(),
    });
    (number, over_ranks(title.to_owned(), conditions(), (axis, scale), points))
}

/// Shows the bandwidth of atomic writes beside that without locks, with the same MPI library and the same number of ranks.
fn of_no_locks(series: &[Series]) -> Figure {
    let points =
        series.iter().filter(|series| series.point.subject.system.is_atomic()).filter_map(|atomic| {
            let without = io_without_locks(series, &atomic.point)?;
            Some(Plotted {
                subject: atomic.point.subject,
                ranks: atomic.point.ranks,
                values: atomic.repetitions.iter().map(|one| 100.0 * without / one.io_s).collect(),
            })
        });
    let title = "Figure 12b: I/O bandwidth, as a share of that without locks".to_owned();
    over_ranks(title, conditions(), ("% of the bandwidth without locks", Scale::Linear), points)
}
