//! The figures: positions per second over time (the paper's figure 7), the processors of the ranks (figure 9), and the load of the
//! busiest rank over time, simulated.

use std::path::Path;

use super::point::{BIN_MS, Measurement, SequencerRecord, Series, System};
use super::results::Results;
use super::simulate::Start;
use crate::BenchError;
use crate::kit::figure::{self, Drawing, Figure, Line, Scale};

/// The systems of figure 7 as the paper has it, and those of the figure of modes beside it.
const PAPER: [System; 5] =
    [System::Alone, System::None, System::Sequencer, System::Conservative, System::GreedySpillEven];
const MODES: [System; 5] = [System::Alone, System::None, System::Client, System::Proxy, System::ProxyHalf];
/// The maximum number of points of a line.
const POINTS_MAX: usize = 300;

/// Draws all figures into a folder, and returns their files.
pub(super) fn draw(results: &Results, folder: &Path) -> Result<Vec<String>, BenchError> {
    let mut files = Vec::new();
    for (name, systems) in [("figure-7", PAPER), ("figure-7-modes", MODES)] {
        let lines: Vec<Line> = systems
            .iter()
            .enumerate()
            .filter_map(|(colour, system)| {
                let series = results.series.iter().find(|series| series.point.system == *system)?;
                let (_, measured) = first(series)?;
                Some(line(system.label(), rates(measured.sequencers.first()?), colour))
            })
            .collect();
        if !lines.is_empty() {
            let subtitle =
                "the first sequencer, which others share a rank with at first; the first repetition";
            files.push(write(
                folder,
                name,
                "Positions per second over time",
                subtitle,
                "positions/s",
                lines,
            )?);
        }
    }
    for series in &results.series {
        let Some((label, measured)) = first(series) else { continue };
        let name = series.point.system.name();
        let sequencers = measured
            .sequencers
            .iter()
            .enumerate()
            .map(|(number, record)| line(format!("sequencer {}", number + 1), rates(record), number));
        let what = format!("{label}, from {:.1} s on; the first repetition", measured.at_ms / 1e3);
        let title = "Positions per second over time";
        files.push(write(
            folder,
            &format!("throughput-{name}"),
            title,
            &what,
            "positions/s",
            sequencers.collect(),
        )?);
        let ranks = measured.loads.first().map_or(0, |load| load.percent.len());
        let processors = (0..ranks).map(|rank| {
            let of_rank =
                |load: &super::point::Load| Some((load.at_ms / 1e3, load.percent.get(rank).copied()?));
            line(format!("rank {rank}"), measured.loads.iter().filter_map(of_rank).collect(), rank)
        });
        let title = "Processors of the ranks over time";
        files.push(write(
            folder,
            &format!("figure-9-{name}"),
            title,
            &what,
            "% of a processor",
            processors.collect(),
        )?);
    }
    let simulated = results.simulated.iter().filter(|one| one.start == Start::Skewed);
    if let Some((ranks, subtrees)) = simulated.clone().map(|one| (one.ranks, one.subtrees)).max() {
        let shown = simulated.filter(|one| (one.ranks, one.subtrees) == (ranks, subtrees));
        let lines = shown.enumerate().map(|(colour, one)| {
            let points = one.imbalances.iter().enumerate();
            let points = points.map(|(tick, imbalance)| (tick as f64, *imbalance)).collect();
            line(one.policy.to_owned(), points, colour)
        });
        let subtitle = format!("simulated: {ranks} ranks, {subtrees} subtrees, skewed at first");
        let (x, y) = (("tick", Scale::Linear), ("busiest rank ÷ mean", Scale::Linear));
        let figure = Figure::of("Load of the busiest rank over time", subtitle, x, y, lines.collect());
        files.push(figure::write(folder, "imbalance-simulated", figure.svg())?);
    }
    Ok(files)
}

/// Returns the name of a system, and its first repetition.
fn first(series: &Series) -> Option<(String, &Measurement)> {
    Some((series.point.system.label(), series.repetitions.first()?))
}

/// Returns the rate of a sequencer over time, in seconds; several intervals are one point where there are many.
fn rates(record: &SequencerRecord) -> Vec<(f64, f64)> {
    let joined = record.bins.len().div_ceil(POINTS_MAX).max(1);
    let point = |(place, chunk): (usize, &[u32])| {
        let seconds = (place * joined) as f64 * BIN_MS as f64 / 1e3;
        let positions = chunk.iter().map(|count| f64::from(*count)).sum::<f64>();
        (seconds, positions / (chunk.len() as f64 * BIN_MS as f64 / 1e3))
    };
    record.bins.chunks(joined).enumerate().map(point).collect()
}

fn line(name: String, points: Vec<(f64, f64)>, colour: usize) -> Line {
    let points = points.into_iter().map(|(x, y)| (x, vec![y])).collect();
    Line { name, points, connected: true, note: None, colour }
}

fn write(
    folder: &Path,
    name: &str,
    title: &str,
    subtitle: &str,
    y: &str,
    lines: Vec<Line>,
) -> Result<String, BenchError> {
    let figure = Figure::of(title, subtitle, ("s", Scale::Linear), (y, Scale::Linear), lines);
    figure::write(folder, name, figure.svg())
}
