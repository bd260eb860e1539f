//! The targets of the study.

use super::point::{Results, Series, name};
use crate::kit::quantity::grouped;
use crate::kit::server::Durability;
use crate::kit::target::{Targets, Unit};

/// The servers of the paper's larger cluster.
const SERVERS: u32 = 120;

/// Compares what was measured with the targets.
pub(super) fn conclude(results: &mut Results) {
    let Results { series, commits, simulated, targets, .. } = results;
    propagation(series, targets);
    let rates = |class: bool, one_by_one: bool, durability: Durability| {
        let of = commits.iter().filter(move |one| {
            let point = &one.point;
            point.class == class && (point.depth == 1) == one_by_one && point.durability == durability
        });
        of.map(|one| (one.median(|one| one.per_second), &one.point.label))
            .max_by(|one, other| one.0.total_cmp(&other.0))
    };
    if let Some((rate, label)) = rates(false, false, Durability::Always) {
        targets.at_least(format!("commits, batched: {label}"), rate, Unit::PerSecond, 2000.0);
    }
    if let Some((rate, _)) = rates(false, true, Durability::Always) {
        targets.at_least("commits of epochs, one by one, durable", rate, Unit::PerSecond, 500.0);
    }
    if let Some((rate, _)) = rates(true, true, Durability::Always) {
        targets.open("commits of versions of a class, one by one, durable", rate, Unit::PerSecond);
    }
    let most = simulated.iter().map(|run| run.servers).max();
    for run in simulated.iter().filter(|run| Some(run.servers) == most) {
        let fan_out = if run.way.relays() { format!(", fan-out {}", run.fan_out) } else { String::new() };
        let servers = grouped(f64::from(run.servers));
        let measure = format!("{servers} servers by simulation, {}{fan_out}, longest", run.way.name());
        targets.open(measure, run.live.max_us / 1e3, Unit::Milliseconds);
    }
}

fn propagation(series: &[Series], targets: &mut Targets) {
    let p90_ms = |one: &Series| one.median(|one| one.live.p90_us) / 1e3;
    let longest_ms =
        |one: &Series| one.repetitions.iter().map(|one| one.live.max_us).fold(0.0, f64::max) / 1e3;
    let is_large = |one: &&Series| {
        one.point.servers == SERVERS
            && one.point.per_process == 1
            && one.point.durability == Durability::Volatile
    };
    let mut large: Vec<&Series> = series.iter().filter(is_large).collect();
    large.sort_by(|one, other| p90_ms(one).total_cmp(&p90_ms(other)));
    for (place, one) in large.iter().enumerate() {
        let (way, p90, longest) = (one.point.way.name(), p90_ms(one), longest_ms(one));
        let measure = format!("{SERVERS} servers, {}, {way}", name(one.point.durability));
        if place == 0 {
            targets.at_most(format!("{measure} (the fastest), p90"), p90, Unit::Milliseconds, 2.0);
            targets.at_most("  longest", longest, Unit::Milliseconds, 20.0);
        } else {
            targets.open(format!("{measure}, p90"), p90, Unit::Milliseconds);
            targets.open("  longest", longest, Unit::Milliseconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::point::{
        CommitMeasurement, CommitPoint, CommitSeries, Distribution, Measurement, Point, Way,
    };
    use super::*;
    use crate::kit::latency::LatencySummary;

    fn series(way: Way, p90_ms: f64, longest_ms: f64) -> Series {
        let point = Point {
            label: way.name().into(),
            way,
            servers: SERVERS,
            per_process: 1,
            durability: Durability::Volatile,
            fan_out: 8,
            updates: 1000,
            pace_ms: 20.0,
        };
        let live = Distribution {
            p50_us: 1.0,
            p90_us: p90_ms * 1e3,
            p99_us: p90_ms * 1e3,
            max_us: longest_ms * 1e3,
        };
        let measured = Measurement {
            live,
            since_commit: live,
            commit: live,
            hundredths_us: Vec::new(),
            superseded: 0,
            verified: 0,
            store_cpu_us: 0.0,
            server_cpu_us: None,
            store_memory_bytes: 0,
            process_memory_bytes: None,
            disk_bytes: 0,
        };
        Series { point, repetitions: vec![measured] }
    }

    #[test]
    fn the_fastest_way_is_the_one_that_has_to_meet_the_target() {
        let series = vec![series(Way::Watch, 3.0, 30.0), series(Way::Push, 1.5, 12.0)];
        let mut results = Results { series, ..Results::default() };
        conclude(&mut results);
        let text = results.targets.to_string();
        let line = |what: &str| {
            text.lines().find(|line| line.contains(what)).unwrap_or_default().trim_end().to_owned()
        };
        assert!(line("push (the fastest), p90").ends_with("yes"), "{text}");
        assert!(line("watch, p90").ends_with('–'), "{text}");
    }

    #[test]
    fn the_best_interval_counts_for_commits() {
        let commit = |depth, per_second| CommitSeries {
            point: CommitPoint {
                label: format!("{depth} under way"),
                durability: Durability::Always,
                class: false,
                depth,
                gather_ms: 0.0,
            },
            repetitions: vec![CommitMeasurement { per_second, latency: LatencySummary::default() }],
        };
        let commits = vec![commit(1, 400.0), commit(512, 1000.0), commit(512, 3000.0)];
        let mut results = Results { commits, ..Results::default() };
        conclude(&mut results);
        let text = results.targets.to_string();
        assert!(text.contains("3,000/s") && !text.contains("1,000/s "), "{text}");
        let one = text.lines().find(|line| line.contains("one by one")).unwrap();
        assert!(one.trim_end().ends_with("no"), "{text}");
    }
}
