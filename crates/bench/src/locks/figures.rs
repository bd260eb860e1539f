//! The drawing of the paper's figures 4 to 7.

use std::path::Path;

use super::point::{MethodName, ProtocolName, Series, Table};
use super::simulate::{Parameters, SEPARATION_BYTES, Simulated};
use crate::BenchError;
use crate::kit::figure::{self, Axis, Drawing, Figure, Scale};
use crate::kit::quantity::grouped;

/// Draws the figures for which there are results, and returns the files.
pub(super) fn draw(
    series: &[Series],
    simulated: &[Simulated],
    folder: &Path,
) -> Result<Vec<String>, BenchError> {
    let of = |figure: &str| -> Vec<&Series> {
        series.iter().filter(|series| series.point.figure.as_deref() == Some(figure)).collect()
    };
    let mut figures = Vec::new();
    for number in ["4", "5"] {
        let series = of(number);
        if !series.is_empty() {
            figures.push((format!("figure-{number}a"), acquiring(number, &series)));
            figures.push((format!("figure-{number}b"), releasing(number, &series)));
        }
    }
    let methods = [("a", MethodName::Datatype), ("b", MethodName::List), ("c", MethodName::Posix)];
    for number in ["6", "7"] {
        for (part, method) in methods {
            let series: Vec<&Series> =
                of(number).into_iter().filter(|series| series.point.method == method).collect();
            if !series.is_empty() {
                figures.push((format!("figure-{number}{part}"), over_overlap(number, part, method, &series)));
            }
        }
    }
    for overlap in [0, 100] {
        // Where one-try and alt-try differ, there are as many lines without the slowest method.
        let is_shown = |run: &&Simulated| {
            let Parameters { overlap_percent, method, .. } = run.parameters;
            overlap_percent == overlap && (overlap == 0 || method != MethodName::Posix)
        };
        let of_overlap: Vec<&Simulated> = simulated.iter().filter(is_shown).collect();
        if !of_overlap.is_empty() {
            figures.push((format!("simulated-{overlap}"), over_simulated_clients(overlap, &of_overlap)));
        }
    }
    figures.into_iter().map(|(name, figure)| figure::write(folder, &name, figure.svg())).collect()
}

/// Returns the conditions that every subtitle states.
fn conditions(series: &[&Series]) -> String {
    let Some(first) = series.first() else { return String::new() };
    let (point, repetitions) = (&first.point, first.repetitions.len());
    let fewer = match series.iter().any(|series| has_fewer_regions(series)) {
        true => " (those in the legend, where more take long)",
        false => "",
    };
    format!(
        "{} regions of 1 B a client{fewer}, {} B apart; {repetitions} repetitions, line through the medians",
        grouped(point.regions as f64),
        point.separation_bytes
    )
}

fn has_fewer_regions(series: &Series) -> bool {
    series.regions < series.point.regions
}

/// Returns how many regions a client has at the points of one line, if some have fewer than the figure's other lines.
fn fewer_regions<'a>(line: impl Iterator<Item = &'a Series>) -> Option<String> {
    let line: Vec<&Series> = line.collect();
    let (least, most) =
        (line.iter().map(|series| series.regions).min()?, line.iter().map(|series| series.regions).max()?);
    let sign = if least < most { "≥ " } else { "" };
    let has_fewer = line.iter().any(|series| has_fewer_regions(series));
    has_fewer.then(|| format!("{sign}{} regions", grouped(least as f64)))
}

/// Returns the colour of a line, the same in all figures.
fn colour(method: MethodName, protocol: ProtocolName, table: Table) -> usize {
    match (table, method, protocol) {
        (Table::Unrolled, ..) => 6,
        (_, MethodName::Datatype, ProtocolName::TwoPhase) => 5,
        (_, MethodName::Datatype, _) => 0,
        (_, MethodName::List, ProtocolName::TwoPhase) => 4,
        (_, MethodName::List, _) => 1,
        (_, MethodName::Posix, ProtocolName::TwoPhase) => 3,
        (_, MethodName::Posix, _) => 2,
    }
}

fn acquired(series: &Series) -> Vec<f64> {
    series.repetitions.iter().map(|m| m.acquired_per_s).collect()
}

fn released(series: &Series) -> Vec<f64> {
    series.repetitions.iter().filter_map(|m| m.released_per_s).collect()
}

/// Draws the rates of acquiring. Without overlap one-try and alt-try do the same, and one-try stands for both as in the
/// paper.
fn acquiring(number: &str, series: &[&Series]) -> Figure {
    let shown = series.iter().copied().filter(|series| {
        let (protocol, table) = (series.point.protocol, series.point.table);
        protocol == ProtocolName::OneTry || protocol == ProtocolName::TwoPhase && table == Table::Described
    });
    let title = format!("Figure {number}a: acquiring without contention");
    over_pairs(title, "regions acquired per second", shown.collect(), acquired, |series| series.point.label())
}

/// Draws the rates of releasing, which the protocol does not matter to.
fn releasing(number: &str, series: &[&Series]) -> Figure {
    let shown = series.iter().copied().filter(|series| series.point.protocol == ProtocolName::OneTry);
    let name = |series: &Series| match series.point.table {
        Table::Described => series.point.method.name().to_owned(),
        Table::Unrolled => format!("{}, unrolled", series.point.method.name()),
    };
    let title = format!("Figure {number}b: releasing without contention");
    over_pairs(title, "regions released per second", shown.collect(), released, name)
}

fn over_pairs(
    title: String,
    y: &str,
    series: Vec<&Series>,
    rates: fn(&Series) -> Vec<f64>,
    name: impl Fn(&Series) -> String,
) -> Figure {
    let point = |series: &&Series| (f64::from(series.point.pairs), rates(series));
    let colour = |series: &&Series| colour(series.point.method, series.point.protocol, series.point.table);
    let mut lines = figure::lines(series.iter().copied(), |series| name(series), point, colour);
    for line in &mut lines {
        let most = figure::values(std::slice::from_ref(line)).fold(0.0, f64::max);
        let points = series.iter().copied().filter(|series| name(series) == line.name);
        let fewer = fewer_regions(points).map(|fewer| format!(", {fewer}")).unwrap_or_default();
        line.note = Some(format!("up to {}/s{fewer}", grouped(most)));
    }
    let x = ("clients, and servers", Scale::Octaves);
    Figure::of(title, conditions(&series), x, (y, Scale::Decades), lines)
}

fn over_overlap(number: &str, part: &str, method: MethodName, series: &[&Series]) -> Figure {
    let overlap = |series: &&Series| f64::from(series.point.overlap_percent.unwrap_or(0));
    let colour = |series: &&Series| {
        let unrolled = if series.point.table == Table::Unrolled { 3 } else { 0 };
        unrolled + series.point.protocol as usize
    };
    let point = |series: &&Series| (overlap(series), acquired(series));
    let mut lines = figure::lines(series.iter().copied(), |series| series.point.label(), point, colour);
    for line in &mut lines {
        let points = series.iter().copied().filter(|series| series.point.label() == line.name);
        line.note = fewer_regions(points);
    }
    let pairs = series.first().map_or(0, |first| first.point.pairs);
    Figure {
        title: format!(
            "Figure {number}{part}: {} with contention, {pairs} clients and servers",
            method.name()
        ),
        subtitle: conditions(series),
        x: Axis::holding("overlap of neighbours (%)", Scale::Linear, [100.0]),
        y: Axis::holding("regions acquired and released per second", Scale::Decades, figure::values(&lines)),
        lines,
    }
}

fn over_simulated_clients(overlap: u32, runs: &[&Simulated]) -> Figure {
    let label =
        |run: &&Simulated| format!("{}-{}", run.parameters.method.name(), run.parameters.protocol.name());
    let colour = |run: &&Simulated| match (run.parameters.method, run.parameters.protocol) {
        (MethodName::Datatype, ProtocolName::AltTry) => 6,
        (_, ProtocolName::AltTry) => 2,
        (method, protocol) => colour(method, protocol, Table::Described),
    };
    let point = |run: &&Simulated| (f64::from(run.parameters.clients), vec![run.acquired_per_s]);
    let lines = figure::lines(runs.iter().copied(), label, point, colour);
    let what = match overlap {
        0 => "consecutive ranges".to_owned(),
        _ => "one range for all".to_owned(),
    };
    let (servers, regions) =
        runs.first().map_or((0, 0), |run| (run.parameters.servers, run.parameters.regions));
    Figure::of(
        format!("Simulated: {what}, {servers} servers"),
        format!("{} regions of 1 B a client, {SEPARATION_BYTES} B apart", grouped(regions as f64)),
        ("clients", Scale::Decades),
        ("regions acquired per second", Scale::Decades),
        lines,
    )
}

#[cfg(test)]
mod tests {
    use super::super::point::{Measurement, Point, Size};
    use super::*;

    fn series(method: MethodName, pairs: u32, regions: u64) -> Series {
        let point = Point {
            figure: Some("4".into()),
            method,
            protocol: ProtocolName::OneTry,
            table: Table::Described,
            pairs,
            regions: 131_072,
            separation_bytes: 64,
            overlap_percent: None,
        };
        let measured = Measurement { acquired_per_s: 3000.0, ..Measurement::default() };
        crate::kit::study::Series::of(&(point, Size { regions, operations: 2 }), vec![measured])
    }

    #[test]
    fn a_line_with_fewer_regions_says_so() {
        let series = [
            series(MethodName::Datatype, 1, 131_072),
            series(MethodName::Posix, 1, 2048),
            series(MethodName::Posix, 2, 4096),
            series(MethodName::List, 1, 65_536),
        ];
        let figure = acquiring("4", &series.iter().collect::<Vec<_>>());
        let note =
            |name: &str| figure.lines.iter().find(|line| line.name == name).unwrap().note.clone().unwrap();
        assert_eq!(note("datatype-one-try"), "up to 3,000/s");
        assert_eq!(note("posix-one-try"), "up to 3,000/s, ≥ 2,048 regions");
        assert_eq!(note("list-one-try"), "up to 3,000/s, 65,536 regions");
        let conditions =
            "131,072 regions of 1 B a client (those in the legend, where more take long), 64 B apart";
        assert!(figure.subtitle.starts_with(conditions), "{}", figure.subtitle);
    }
}
