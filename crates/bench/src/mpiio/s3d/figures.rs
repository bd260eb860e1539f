//! The paper's figures 8 and 9, for each size of the grid.

use std::path::Path;

use super::super::chart::{Plotted, over_ranks};
use super::{Measurement, Series};
use crate::BenchError;
use crate::kit::figure::{self, Drawing, Figure, Scale, distinct};

/// Draws the figures into a folder, and returns their files.
pub(super) fn draw(series: &[Series], folder: &Path) -> Result<Vec<String>, BenchError> {
    let mut files = Vec::new();
    for edge in distinct(series.iter().map(|series| series.point.edge)) {
        let of_edge: Vec<&Series> = series.iter().filter(|series| series.point.edge == edge).collect();
        let bytes = of_edge.iter().flat_map(|series| &series.repetitions).map(|one| one.bytes).max();
        let conditions = format!(
            "{edge}³ points, {:.2} GB, whatever the number of ranks; line through the medians",
            bytes.unwrap_or(0) as f64 / 1e9
        );
        let figures = [
            ("8a", bandwidth(&of_edge, &conditions)),
            ("8b", of_single_writer(&of_edge, &conditions)),
            ("9", of_no_locks(&of_edge, &conditions)),
        ];
        for (number, figure) in figures {
            // Without a single writer, or without a run that has no locks, there is nothing to compare with.
            if !figure.lines.is_empty() {
                files.push(figure::write(folder, &format!("figure-{number}-{edge}"), figure.svg())?);
            }
        }
    }
    Ok(files)
}

fn rates(series: &Series) -> impl Iterator<Item = f64> {
    series.repetitions.iter().map(Measurement::rate)
}

fn plotted(series: &Series, values: Vec<f64>) -> Plotted {
    Plotted { subject: series.point.subject, ranks: series.point.ranks, values }
}

fn bandwidth(series: &[&Series], conditions: &str) -> Figure {
    let points = series.iter().map(|series| plotted(series, rates(series).collect()));
    let title = "Figure 8a: bandwidth of S3D's checkpoint".to_owned();
    over_ranks(title, conditions.to_owned(), ("MB/s", Scale::Decades), points)
}

/// Shows each subject beside its own single writer.
fn of_single_writer(series: &[&Series], conditions: &str) -> Figure {
    let single = |of: &Series| {
        let is_it = |other: &&&Series| other.point.ranks == 1 && other.point.subject == of.point.subject;
        series.iter().find(is_it).map(|single| single.median(Measurement::rate))
    };
    let points = series.iter().filter_map(|series| {
        let single = single(series)?;
        Some(plotted(series, rates(series).map(|rate| 100.0 * rate / single).collect()))
    });
    let title = "Figure 8b: bandwidth, as a share of the same system's single writer".to_owned();
    over_ranks(title, conditions.to_owned(), ("% of one rank's bandwidth", Scale::Linear), points)
}

/// Shows atomic writes beside those without locks, with the same MPI library and the same number of ranks.
fn of_no_locks(series: &[&Series], conditions: &str) -> Figure {
    let points =
        series.iter().filter(|series| series.point.subject.system.is_atomic()).filter_map(|atomic| {
            let is_beside = |other: &&&Series| {
                let is_without = other.point.subject.system.is_without_locks();
                let is_alike = (other.point.ranks, other.point.subject.mpi)
                    == (atomic.point.ranks, atomic.point.subject.mpi);
                is_without && is_alike
            };
            let beside = series.iter().filter(is_beside).map(|other| other.median(Measurement::rate));
            let fastest = beside.reduce(f64::max)?;
            Some(plotted(atomic, rates(atomic).map(|rate| 100.0 * rate / fastest).collect()))
        });
    let title = "Figure 9: bandwidth, as a share of that without locks".to_owned();
    over_ranks(title, conditions.to_owned(), ("% of the bandwidth without locks", Scale::Linear), points)
}

#[cfg(test)]
mod tests {
    use super::super::super::job::Mpi;
    use super::super::super::system::{Subject, System};
    use super::super::Point;
    use super::*;

    fn series(system: System, ranks: u32, write_s: f64) -> Series {
        let subject = Subject { mpi: Mpi::Mpich, system, protocol: None };
        let measured =
            Measurement { ranks, bytes: 1_000_000_000, open_s: 0.0, write_s, sync_s: 1.0, wrong_bytes: 0 };
        Series { point: Point { subject, edge: 10, ranks }, repetitions: vec![measured] }
    }

    #[test]
    fn shares_are_of_the_own_single_writer_and_of_the_fastest_without_locks() {
        let all = [
            series(System::None, 1, 1.0),
            series(System::None, 2, 2.0),
            series(System::NoneUnsieved, 2, 1.6),
            series(System::Datatype, 1, 1.0),
            series(System::Datatype, 2, 4.0),
        ];
        let all: Vec<&Series> = all.iter().collect();
        let values = |figure: &Figure, name: &str| -> Vec<(f64, f64)> {
            let line = figure.lines.iter().find(|line| line.name == name);
            line.map(|line| line.points.iter().map(|(ranks, values)| (*ranks, values[0].round())).collect())
                .unwrap_or_default()
        };
        let single = of_single_writer(&all, "");
        assert_eq!(values(&single, "datatype"), [(1.0, 100.0), (2.0, 25.0)]);
        assert_eq!(values(&single, "none-unsieved"), []);
        let shares = of_no_locks(&all, "");
        assert_eq!(values(&shares, "datatype"), [(1.0, 100.0), (2.0, 40.0)]);
        assert_eq!(values(&shares, "none"), []);
        assert_eq!(values(&bandwidth(&all, ""), "none"), [(1.0, 1000.0), (2.0, 500.0)]);
    }
}
