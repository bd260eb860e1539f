//! The figures: appends per second by writers, by sizes and by sequencer; latencies; recoveries.

use std::path::Path;

use super::point::{Measurement, Point, Recovery, Results, Series, Subject, Work, name};
use super::simulate::Simulated;
use crate::BenchError;
use crate::kit::figure::{self, Bars, Drawing, Figure, NamedValue, Scale};
use crate::kit::server::Durability;

/// The rate, and the latencies that are shown.
const RATE: NamedValue<Measurement> = ("appends/s", |one| one.per_second);
const PERCENTILES: [NamedValue<Measurement>; 3] = [
    ("p50", |one| one.latency.p50_us),
    ("p99", |one| one.latency.p99_us),
    // A bar is a median of the repetitions, each of which has a maximum of its own.
    ("median of maxima", |one| one.latency.max_us),
];

/// Draws all figures for which there are results into a folder, and returns their files.
pub(super) fn draw(results: &Results, folder: &Path) -> Result<Vec<String>, BenchError> {
    let mut files = Vec::new();
    let appends = |wanted: &dyn Fn(&Point) -> bool| {
        let is_plain = |point: &Point| {
            point.work == Work::Append
                && point.depth == 16
                && point.reshape_ms.is_none()
                && !point.subject.is_on_ceph()
        };
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
            let (x, y) = (("writers", Scale::Octaves), ("appends/s", Scale::Decades));
            let figure = Figure::of("Appends per second", subtitle, x, y, lines);
            files.push(figure::write(folder, name, figure.svg())?);
        }
    }
    let bars = |series: &[&Series], title, subtitle, y_label, values: &[NamedValue<Measurement>]| {
        let points = series.iter().map(|series| (series.point.label.as_str(), &series.repetitions[..]));
        Bars::of(title, subtitle, y_label, points, values).svg()
    };
    for (name, part, durability, subtitle) in [
        (
            "sequencers",
            "sequencer",
            Durability::Volatile,
            "by sequencer and by handles: entries of 100 B in memory, 16 writers",
        ),
        (
            "sequencers-durable",
            "sequencer",
            Durability::Always,
            "by sequencer: entries of 4 KiB on disk, 16 writers with two handles",
        ),
        ("widths", "width", Durability::Always, "by number of objects: entries of 4 KiB on disk, 16 writers"),
    ] {
        let series = appends(&|point| point.durability == durability && point.label.contains(part));
        if !series.is_empty() {
            let svg = bars(&series, "Appends per second", subtitle, "appends/s", &[RATE]);
            files.push(figure::write(folder, name, svg)?);
        }
    }
    let (on_ceph, here): (Vec<&Series>, Vec<&Series>) =
        results.series.iter().partition(|series| series.point.subject.is_on_ceph());
    let is_usual = |series: &&Series| (series.point.writers, series.point.entry_bytes) == (16, 4096);
    let on_ceph: Vec<&Series> = on_ceph.into_iter().filter(is_usual).collect();
    if !on_ceph.is_empty() {
        let subtitle = "in a pool of Ceph: entries of 4 KiB, 16 writers";
        let svg = bars(&on_ceph, "Appends per second", subtitle, "appends/s", &[RATE]);
        files.push(figure::write(folder, "ceph", svg)?);
    }
    let is_alone = |point: &Point| point.depth == 1 && point.reshape_ms.is_none() && point.writers <= 2;
    let alone: Vec<&Series> = here.into_iter().filter(|series| is_alone(&series.point)).collect();
    if !alone.is_empty() {
        let svg = bars(&alone, "Latency", "of one operation at a time", "µs", &PERCENTILES);
        files.push(figure::write(folder, "latency", svg)?);
    }
    if results.recoveries.len() > 1 {
        let point = |recovery: &&Recovery| (recovery.entries as f64, recovery.ms.clone());
        let lines = figure::lines(&results.recoveries, |_| "recovery".into(), point, |_| 0);
        let (x, y) = (("entries", Scale::Decades), ("ms", Scale::Linear));
        let subtitle = "seal, tail, new epoch: a log of 4 objects";
        let figure = Figure::of("Time of a recovery", subtitle, x, y, lines);
        files.push(figure::write(folder, "recovery", figure.svg())?);
    }
    for durability in [Durability::Volatile, Durability::Always] {
        let runs = results.simulated.iter().filter(|run| run.parameters.durability == durability);
        let runs: Vec<&Simulated> = runs.filter(|run| run.parameters.failure.is_none()).collect();
        if !runs.is_empty() {
            let name = format!("simulated-{}", name(durability));
            files.push(figure::write(folder, &name, over_simulated_servers(durability, &runs).svg())?);
        }
    }
    Ok(files)
}

fn over_simulated_servers(durability: Durability, runs: &[&Simulated]) -> Figure {
    let label = |run: &&Simulated| match run.parameters.batch {
        1 => "single entries".to_owned(),
        batch => format!("batches of {batch}"),
    };
    let batches = figure::distinct(runs.iter().map(|run| run.parameters.batch));
    let colour = |run: &&Simulated| {
        batches.iter().position(|batch| *batch == run.parameters.batch).unwrap_or_default()
    };
    let point = |run: &&Simulated| (f64::from(run.parameters.servers), vec![run.sustained_per_second()]);
    let lines = figure::lines(runs.iter().copied(), label, point, colour);
    let (x, y) = (("servers", Scale::Decades), ("entries/s", Scale::Decades));
    let subtitle =
        format!("entries of 4 KiB, {}; by entries in a write, and positions in a request", name(durability));
    Figure::of("Simulated appends per second", subtitle, x, y, lines)
}

fn rates(series: &Series) -> Vec<f64> {
    series.repetitions.iter().map(|one| one.per_second).collect()
}

fn colour(subject: Subject) -> usize {
    match subject {
        Subject::Log | Subject::LogOnCeph => 0,
        Subject::Redis => 1,
        Subject::Nats => 2,
        Subject::Object => 3,
        Subject::Disk => 6,
        // They are drawn as bars.
        Subject::ClassCall | Subject::LuaCall | Subject::RadosAppend => 4,
    }
}
