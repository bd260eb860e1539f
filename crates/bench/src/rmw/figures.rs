//! The paper's figures 2 to 5: the points to measure for them, and their drawing.

use std::path::Path;

use super::arguments::{Args, FigureName};
use super::point::{Deployment, Point, Series, System};
use crate::BenchError;
use crate::kit::Spread;
use crate::kit::figure::{self, Axis, Drawing, Figure, Line, Scale};
use crate::kit::quantity::grouped;

/// The number of servers, and the maximum number of clients, of the paper's figures 3 to 5.
const NODES: u32 = 32;
/// The number of blocks of each object in figures 4 and 5: 512 over 32 objects.
const BLOCKS: u64 = 16;

/// The label of points that follow the paper's protocol: retry from the read, no pacing.
const PAPER: &str = "as in the paper";
/// The label of points that follow Nacre's own protocol.
const OPTIMISTIC: &str = "optimistic";

/// Returns the points of the requested figures, figure by figure.
pub(super) fn points(args: &Args) -> Result<Vec<Point>, BenchError> {
    let mut points = Vec::new();
    if args.wants(FigureName::Two) {
        points.extend(contention(args)?);
    }
    if args.wants(FigureName::Three) {
        let systems = [System::Optimistic, System::Zookeeper, System::None];
        points.extend(scaling(args, "3", None, &systems)?);
    }
    if args.wants(FigureName::Four) {
        let systems = [System::Optimistic, System::Zookeeper, System::None];
        points.extend(scaling(args, "4", Some(BLOCKS), &systems)?);
    }
    if args.wants(FigureName::Five) {
        let clients = args.clients.unwrap_or(NODES);
        let point = Point {
            blocks: Some(BLOCKS),
            counts_regions: true,
            ..spread_out(args, System::Optimistic, clients, "5")?
        };
        points.extend([point.clone(), as_in_the_paper(&point)]);
    }
    Ok(points)
}

/// Returns the points of figure 2: one client, one server, one object, 16 concurrent operations, and increasing numbers
/// of blocks.
fn contention(args: &Args) -> Result<Vec<Point>, BenchError> {
    let ranges: &[u64] = match args.quick {
        true => &[1, 4, 16, 64, 256, 1024],
        false => &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384],
    };
    let mut points = Vec::new();
    for blocks in ranges.iter().copied().map(Some).chain([None]) {
        let point = Point {
            figure: Some("2".into()),
            clients: 1,
            objects: 1,
            forks: 1,
            blocks,
            ..args.point(System::Optimistic)?
        };
        points.extend([point.clone(), as_in_the_paper(&point)]);
    }
    Ok(points)
}

/// Returns the points of figures 3 and 4: 32 servers with one object each, and increasing numbers of clients.
fn scaling(
    args: &Args,
    figure: &str,
    blocks: Option<u64>,
    systems: &[System],
) -> Result<Vec<Point>, BenchError> {
    let most = args.clients.unwrap_or(NODES);
    let mut points = Vec::new();
    for clients in (0..32).map(|octave| 1 << octave).take_while(|clients| *clients <= most) {
        for system in systems {
            let point = Point { blocks, ..spread_out(args, *system, clients, figure)? };
            // Without contention the two protocols do the same.
            let both = *system == System::Optimistic && blocks.is_some();
            let paper = both.then(|| as_in_the_paper(&point));
            points.push(point);
            points.extend(paper);
        }
    }
    Ok(points)
}

/// Returns a point on 32 servers with one object for each.
fn spread_out(args: &Args, system: System, clients: u32, figure: &str) -> Result<Point, BenchError> {
    Ok(Point {
        figure: Some(figure.into()),
        place: args.place(NODES),
        clients,
        objects: args.objects.or(args.servers).unwrap_or(NODES),
        forks: 1,
        ..args.point(system)?
    })
}

/// Returns a point's equivalent with the paper's protocol, on servers that do not pace.
fn as_in_the_paper(point: &Point) -> Point {
    let mut point = Point { label: PAPER.into(), propose: true, reread: true, ..point.clone() };
    if let Deployment::Servers { pacing, .. } = &mut point.place {
        *pacing = false;
    }
    point
}

/// Draws the figures for which points were measured, and returns the files.
pub(super) fn draw(series: &[Series], folder: &Path) -> Result<Vec<String>, BenchError> {
    let of = |figure: &str| -> Vec<&Series> {
        series.iter().filter(|series| series.point.figure.as_deref() == Some(figure)).collect()
    };
    let mut figures = Vec::new();
    let two = of("2");
    if !two.is_empty() {
        figures.push(("figure-2a", rate_over_blocks(&two)));
        figures.push(("figure-2b", success_over_blocks(&two)));
    }
    for (name, number) in [("figure-3", "3"), ("figure-4", "4")] {
        let series = of(number);
        if !series.is_empty() {
            figures.push((name, rate_over_clients(&series)));
        }
    }
    let five = of("5");
    if five.iter().any(|series| series.repetitions.iter().any(|m| !m.regions.is_empty())) {
        figures.push(("figure-5", failures_of_blocks(&five)));
    }
    figures.into_iter().map(|(name, figure)| figure::write(folder, name, figure.svg())).collect()
}

/// Returns the colour of a label, the same in all figures.
fn colour(label: &str) -> usize {
    let known = [OPTIMISTIC, PAPER, System::Zookeeper.name(), System::None.name()];
    known.iter().position(|known| *known == label).unwrap_or(known.len())
}

/// Returns the conditions that every subtitle states.
fn conditions(series: &Series) -> String {
    let point = &series.point;
    let servers = match &point.place {
        Deployment::Servers { servers: 1, .. } => "1 server process".to_string(),
        Deployment::Servers { servers, .. } => format!("{servers} server processes"),
        Deployment::Existing(_) => "a given store".to_string(),
        Deployment::InProcess(_) => "in process".to_string(),
    };
    let block = if point.block_bytes.is_multiple_of(1024) {
        format!("{} KiB", point.block_bytes / 1024)
    } else {
        format!("{} byte", point.block_bytes)
    };
    let (repetitions, window_ms) = (series.repetitions.len(), point.window_ms);
    format!("{servers}, {block} blocks, {repetitions} × {window_ms} ms a point")
}

/// Returns the axis of figure 2's block ranges, and the ranges.
fn block_axis(series: &[&Series]) -> (Axis, Vec<Option<u64>>) {
    let ranges = figure::distinct(series.iter().map(|series| series.point.blocks));
    let names = ranges.iter().map(|blocks| match blocks {
        Some(blocks) => blocks.to_string(),
        None => "unlimited".to_string(),
    });
    (Axis::naming("blocks to choose from", names.collect()), ranges)
}

fn over_blocks(series: &[&Series], ranges: &[Option<u64>], value: fn(&Series) -> Vec<f64>) -> Vec<Line> {
    let place = |blocks| ranges.iter().position(|range| *range == blocks).unwrap_or_default() as f64;
    lines(series, |series| (place(series.point.blocks), value(series)))
}

fn lines(series: &[&Series], point: impl Fn(&Series) -> (f64, Vec<f64>)) -> Vec<Line> {
    let label = |series: &&&Series| series.point.label.clone();
    figure::lines(series, label, |series| point(series), |series| colour(&series.point.label))
}

fn rates(series: &Series) -> Vec<f64> {
    series.repetitions.iter().map(|m| m.updates_per_s).collect()
}

fn successes(series: &Series) -> Vec<f64> {
    series.repetitions.iter().map(|m| 100.0 * m.success_rate).collect()
}

fn rate_over_blocks(series: &[&Series]) -> Figure {
    let (x, ranges) = block_axis(series);
    Figure {
        title: format!("Figure 2a: {} concurrent updates, one client", series[0].point.concurrency),
        subtitle: format!("{}, line through the medians", conditions(series[0])),
        x,
        y: Axis::holding(
            "read/modify/writes per second",
            Scale::Linear,
            series.iter().flat_map(|s| rates(s)),
        ),
        lines: over_blocks(series, &ranges, rates),
    }
}

fn success_over_blocks(series: &[&Series]) -> Figure {
    let (x, ranges) = block_axis(series);
    Figure {
        title: format!("Figure 2b: {} concurrent updates, one client", series[0].point.concurrency),
        subtitle: format!("{}, line through the medians", conditions(series[0])),
        x,
        y: Axis::holding("successful conditional writes (%)", Scale::Linear, [100.0]),
        lines: over_blocks(series, &ranges, successes),
    }
}

fn rate_over_clients(series: &[&Series]) -> Figure {
    let concurrent = |series: &Series| f64::from(series.point.clients * series.point.concurrency);
    let mut lines = lines(series, |series| (concurrent(series), rates(series)));
    for line in &mut lines {
        let medians = line.points.iter().map(|(_, rates)| Spread::of(rates.iter().copied()).median);
        line.note = Some(format!("up to {}/s", grouped(medians.fold(0.0, f64::max))));
    }
    let point = &series[0].point;
    let number = point.figure.as_deref().unwrap_or_default();
    let blocks = match point.blocks {
        None => "unlimited blocks".to_string(),
        Some(blocks) => format!("{} blocks", grouped(blocks as f64 * f64::from(point.objects))),
    };
    Figure::of(
        format!("Figure {number}: {blocks}, {} concurrent updates a client", point.concurrency),
        format!("{}, line through the medians", conditions(series[0])),
        ("concurrent updates", Scale::Octaves),
        ("read/modify/writes per second", Scale::Decades),
        lines,
    )
}

/// Draws figure 5 from an example run, as the paper's does: the last one of each kind.
fn failures_of_blocks(series: &[&Series]) -> Figure {
    let mut blocks = 0;
    let mut lines = Vec::new();
    for series in series {
        let Some(example) = series.repetitions.last() else { continue };
        let mut longest: Vec<_> = example
            .regions
            .iter()
            .map(|region| ((region.server, &region.place), region.failures_in_a_row_max))
            .collect();
        longest.sort();
        blocks = blocks.max(longest.len());
        let points = longest.iter().enumerate();
        lines.push(Line {
            name: series.point.label.clone(),
            points: points.map(|(block, (_, failures))| (block as f64, vec![*failures as f64])).collect(),
            connected: false,
            note: None,
            colour: colour(&series.point.label),
        });
    }
    let y = Axis::holding("most failures in a row", Scale::Linear, figure::values(&lines));
    let point = &series[0].point;
    Figure {
        title: format!(
            "Figure 5: {} concurrent updates of {} blocks",
            point.clients * point.concurrency,
            grouped(point.blocks.unwrap_or_default() as f64 * f64::from(point.objects)),
        ),
        subtitle: format!("{}, the last repetition shown", conditions(series[0])),
        x: Axis::holding("block, by server", Scale::Linear, [blocks as f64]),
        y,
        lines,
    }
}
