//! The targets of Nacre on a machine of two processors, beside the measured values.

use super::point::{Point, Results, Sequencing, Series, Subject, Work, name};
use super::simulate::{SERVERS_MAX, Simulated};
use crate::kit::quantity::grouped;
use crate::kit::server::Durability;
use crate::kit::statistic::Spread;
use crate::kit::target::{Targets, Unit};

/// The length of the log whose recovery has a bound.
const LONG: u64 = 10_000_000;

/// Derives the targets from what was measured.
pub(super) fn conclude(results: &mut Results) {
    let Results { series, recoveries, simulated, targets, .. } = results;
    let find = |wanted: &dyn Fn(&Point) -> bool| series.iter().find(|series| wanted(&series.point));
    let appends = |subject, durability, writers, bytes| {
        find(&move |point| {
            point.work == Work::Append
                && (point.subject, point.durability) == (subject, durability)
                && (point.writers, point.entry_bytes, point.depth) == (writers, bytes, 16)
        })
    };
    let rate = |series: Option<&Series>| series.map(Series::per_second).filter(|rate| *rate > 0.0);
    if let Some(log) = rate(appends(Subject::Log, Durability::Always, 16, 4096)) {
        targets.open("4 KiB durable appends, 16 writers", log, Unit::PerSecond);
        if let Some(disk) = rate(appends(Subject::Disk, Durability::Always, 16, 4096)) {
            targets.at_least("  ÷ what the disk allows by group commit", log / disk, Unit::Times, 0.8);
            let by_rank = |point: &Point| {
                point.sequencing == Sequencing::RoundTrip
                    && point.durability == Durability::Always
                    && point.work == Work::Append
            };
            if let Some(log) = rate(find(&by_rank)) {
                targets.open("  the same with the metadata rank's sequencer", log / disk, Unit::Times);
            }
        }
        if let Some(redis) = rate(appends(Subject::Redis, Durability::Always, 16, 4096)) {
            targets.at_least("  ÷ Redis, appendfsync always", log / redis, Unit::Times, 2.0);
        }
        if let Some(nats) = rate(appends(Subject::Nats, Durability::Always, 16, 4096)) {
            targets.open("  ÷ NATS, which does not sync", log / nats, Unit::Times);
        }
    }
    if let Some(log) = rate(appends(Subject::Log, Durability::Volatile, 64, 100)) {
        targets.at_least("100 B volatile appends, 64 writers", log, Unit::PerSecond, 500e3);
        for (peer, name) in [(Subject::Redis, "Redis"), (Subject::Nats, "NATS")] {
            if let Some(peer) = rate(appends(peer, Durability::Volatile, 64, 100)) {
                targets.open(format!("  ÷ {name}"), log / peer, Unit::Times);
            }
        }
    }
    let follow = |durability, sequencing| {
        find(&move |point| {
            point.work == Work::Follow && (point.durability, point.sequencing) == (durability, sequencing)
        })
    };
    // What never came has no latency, and is not fast.
    let came = |series: &Series| series.repetitions.iter().all(|one| one.per_second > 0.0);
    let p99_us = |series: &Series| came(series).then(|| series.median(|measured| measured.latency.p99_us));
    if let Some(durable) = follow(Durability::Always, Sequencing::Store) {
        let (measure, ms) =
            ("append to visible at a follower, durable, p99", p99_us(durable).map(|us| us / 1e3));
        targets.at_most_if_measured(measure, ms, Unit::Milliseconds, 2.0);
    }
    if let Some(us) = follow(Durability::Always, Sequencing::RoundTrip).and_then(p99_us) {
        targets.open("  with the metadata rank's sequencer", us / 1e3, Unit::Milliseconds);
    }
    if let Some(volatile) = follow(Durability::Volatile, Sequencing::Store) {
        let (measure, us) = ("append to visible at a follower, volatile, p99", p99_us(volatile));
        targets.at_most_if_measured(measure, us, Unit::Microseconds, 300.0);
    }
    let reads = |subject| find(&move |point| point.work == Work::Read && point.subject == subject);
    if let (Some(log), Some(objects)) = (rate(reads(Subject::Log)), rate(reads(Subject::Object))) {
        targets.open("random reads of 4 KiB", log, Unit::PerSecond);
        targets.at_least("  ÷ the object store's own", log / objects, Unit::Times, 0.8);
    }
    if let Some(longest) = recoveries.iter().max_by_key(|recovery| recovery.entries) {
        let ms = Spread::of(longest.ms.iter().copied()).max;
        let measure = format!("recovery of a log of {} entries, longest", grouped(longest.entries as f64));
        match longest.entries >= LONG {
            true => targets.at_most(measure, ms, Unit::Milliseconds, 1000.0),
            false => targets.open(measure, ms, Unit::Milliseconds),
        }
    }
    for (durability, name) in [(Durability::Volatile, "volatile"), (Durability::Always, "durable")] {
        let of = |reshapes: bool| {
            find(&move |point| {
                (point.subject, point.durability) == (Subject::Log, durability)
                    && point.depth == 1
                    && point.writers == 16
                    && point.reshape_ms.is_some() == reshapes
            })
        };
        let longest_ms = |series: &Series| series.longest_us() / 1e3;
        if let Some(series) = of(true) {
            let measure = format!("longest append while the view changes, {name}");
            let ms = came(series).then(|| longest_ms(series));
            targets.at_most_if_measured(measure, ms, Unit::Milliseconds, 50.0);
        }
        if let Some(series) = of(false) {
            targets.open(format!("  with one view, {name}"), longest_ms(series), Unit::Milliseconds);
        }
    }
    for durability in [Durability::Volatile, Durability::Always] {
        let of = simulated
            .iter()
            .filter(|run| run.parameters.durability == durability && run.parameters.servers >= SERVERS_MAX);
        let (failing, whole): (Vec<_>, Vec<_>) = of.partition(|run| run.parameters.failure.is_some());
        if let Some(rate) = whole.into_iter().map(Simulated::sustained_per_second).reduce(f64::max) {
            let servers = grouped(f64::from(SERVERS_MAX));
            let measure = format!("{servers} storage servers by simulation, {}", name(durability));
            targets.at_least(measure, rate, Unit::PerSecond, 50e6);
        }
        if let Some(ms) = failing.into_iter().filter_map(|run| run.recovered_ms).reduce(f64::max) {
            targets.open("  recovery when the sequencer fails", ms, Unit::Milliseconds);
        }
    }
    conclude_on_ceph(series, targets);
}

/// Derives the targets from what was measured in a pool of Ceph.
fn conclude_on_ceph(series: &[Series], targets: &mut Targets) {
    for (depth, measure) in [
        (16, "4 KiB appends on Ceph, 16 writers"),
        (1, "4 KiB appends on Ceph, 16 writers, an operation for each entry"),
    ] {
        let rate = |subject: Subject| {
            let of = |point: &Point| {
                point.subject == subject
                    && (point.writers, point.entry_bytes, point.depth) == (16, 4096, depth)
            };
            let found = series.iter().find(|series| of(&series.point));
            found.map(Series::per_second).filter(|rate| *rate > 0.0)
        };
        let Some(log) = rate(Subject::LogOnCeph) else { continue };
        targets.open(measure, log, Unit::PerSecond);
        if let Some(call) = rate(Subject::ClassCall) {
            targets.at_least("  ÷ a raw class call of the same bytes", log / call, Unit::Times, 0.8);
        }
        for (subject, name) in [
            (Subject::LuaCall, "  ÷ a call of a script for cls_lua"),
            (Subject::RadosAppend, "  ÷ a plain append of RADOS"),
        ] {
            if let Some(peer) = rate(subject) {
                targets.open(name, log / peer, Unit::Times);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::point::{Measurement, Recovery};
    use super::super::simulate::{self, Resource};
    use super::super::{Args, Part};
    use super::*;
    use crate::kit::latency::{LatencyCounts, LatencySummary};

    fn measurement(subject: Subject, per_second: f64, max_us: f64) -> Measurement {
        let latency = match per_second > 0.0 {
            true => LatencySummary { p50_us: 500.0, p99_us: 1000.0, max_us },
            false => LatencySummary::default(),
        };
        Measurement {
            per_second,
            latency,
            latency_ns_counts: LatencyCounts::default(),
            client_cpu_us: 0.0,
            server_cpu_us: (subject != Subject::Disk).then_some(18.0),
            reshaped_ms: Vec::new(),
        }
    }

    /// Returns the results of a point that is durable, with these repetitions.
    fn results(subject: Subject, work: Work, repetitions: Vec<Measurement>) -> Results {
        let point = Point {
            label: "the point".into(),
            subject,
            work,
            durability: Durability::Always,
            clients: 2,
            writers: 2,
            depth: 1,
            apart: false,
            entry_bytes: 100,
            width: 4,
            unit: 1,
            sequencing: Sequencing::Store,
            reshape_ms: None,
        };
        let mut results = Results { series: vec![Series { point, repetitions }], ..Results::default() };
        conclude(&mut results);
        results
    }

    /// Returns the line of a text that contains `what`.
    fn line_with(text: &str, what: &str) -> String {
        text.lines().find(|line| line.contains(what)).unwrap().to_owned()
    }

    /// Returns the line of a follower's latency whose repetitions saw a number of entries per second.
    fn line(entries_per_second: &[f64]) -> String {
        let repetitions =
            entries_per_second.iter().map(|per_second| measurement(Subject::Log, *per_second, 1000.0));
        let results = results(Subject::Log, Work::Follow, repetitions.collect());
        line_with(&results.targets.to_string(), "at a follower")
    }

    #[test]
    fn a_follower_that_saw_nothing_meets_no_target() {
        let met = line(&[250.0, 250.0, 250.0]);
        assert!(met.contains("1.00 ms") && met.trim_end().ends_with("yes"), "{met}");
        for entries in [&[0.0][..], &[0.0, 0.0, 250.0], &[250.0, 250.0, 0.0]] {
            let unmeasured = line(entries);
            assert!(unmeasured.contains("not measured") && !unmeasured.contains("yes"), "{unmeasured}");
        }
    }

    #[test]
    fn the_longest_is_that_of_all_repetitions() {
        let repetitions = [1000.0, 62_000.0, 2000.0].map(|max_us| measurement(Subject::Log, 10.0, max_us));
        let text = results(Subject::Log, Work::Append, repetitions.to_vec()).to_string();
        assert!(line_with(&text, "the point").contains("62 ms"), "{text}");
        assert!(text.contains("Longest of all repetitions"), "{text}");
    }

    #[test]
    fn a_disk_has_no_server_whose_time_is_shown() {
        let row = |subject| {
            let results = results(subject, Work::Append, vec![measurement(subject, 10.0, 1000.0)]);
            line_with(&results.to_string(), "the point")
        };
        assert!(row(Subject::Disk).ends_with('–'), "{}", row(Subject::Disk));
        assert!(row(Subject::Log).ends_with("18 µs"), "{}", row(Subject::Log));
    }

    #[test]
    fn what_is_measured_on_ceph_is_compared_with_its_peers_there_only() {
        let of = |subject, depth, per_second| {
            let mut results = results(subject, Work::Append, vec![measurement(subject, per_second, 1000.0)]);
            let mut series = results.series.remove(0);
            (series.point.writers, series.point.entry_bytes, series.point.depth) = (16, 4096, depth);
            series
        };
        let series = vec![
            of(Subject::LogOnCeph, 16, 8000.0),
            of(Subject::LogOnCeph, 1, 1000.0),
            of(Subject::ClassCall, 16, 4000.0),
            of(Subject::ClassCall, 1, 2000.0),
            of(Subject::LuaCall, 1, 1250.0),
        ];
        let mut results = Results { series, ..Results::default() };
        conclude(&mut results);
        let text = results.targets.to_string();
        let calls: Vec<&str> = text.lines().filter(|line| line.contains("÷ a raw class call")).collect();
        let [shared, single] = &calls[..] else { panic!("{text}") };
        assert!(shared.contains("2.00 ×") && shared.trim_end().ends_with("yes"), "{text}");
        assert!(single.contains("0.50 ×") && single.trim_end().ends_with("no"), "{text}");
        assert!(line_with(&text, "a script for cls_lua").contains("0.80 ×"), "{text}");
        for other in ["durable appends", "the view changes", "with one view"] {
            assert!(!text.contains(other), "{text}");
        }
    }

    #[test]
    fn a_log_is_recovered_that_is_as_long_as_the_target_says() {
        let args: Args = crate::kit::parse(&[]).unwrap();
        assert!(args.lengths().contains(&LONG));
        let mut results = Results::default();
        results.recoveries.push(Recovery { entries: LONG, ms: vec![0.5, 999.0] });
        conclude(&mut results);
        let line =
            line_with(&results.targets.to_string(), "recovery of a log of 10,000,000 entries, longest");
        assert!(line.trim_end().ends_with("yes"), "{line}");
    }

    #[test]
    fn a_thousand_servers_count_with_what_they_sustain() {
        let args: Args = crate::kit::parse(&["--simulate", "--quick"]).unwrap();
        let parameters = *simulate::runs(&args, Durability::Volatile).last().unwrap();
        let failing = Simulated {
            parameters,
            per_second: 90e6,
            allowed_per_second: 90e6,
            bound_by: Some(Resource::Server),
            busy: vec![(Resource::Server, 1.0)],
            objects: (12, 4000),
            refused: 7,
            recovered_ms: Some(9.25),
        };
        let parameters = simulate::Parameters { failure: None, ..parameters };
        let whole = Simulated { parameters, allowed_per_second: 55e6, recovered_ms: None, ..failing.clone() };
        let mut results = Results { simulated: vec![whole, failing], ..Results::default() };
        conclude(&mut results);
        let text = results.to_string();
        let line = line_with(&text, "1,000 storage servers by simulation, volatile");
        assert!(line.contains("55,000,000/s") && line.trim_end().ends_with("yes"), "{line}");
        assert!(line_with(&text, "recovery when the sequencer fails").contains("9.25 ms"), "{text}");
        assert!(line_with(&text, "12 of 4,000").contains("servers"), "{text}");
    }

    #[test]
    fn a_simulation_can_be_had_alone() {
        let args: Args = crate::kit::parse(&["--simulate"]).unwrap();
        assert!(args.has(Part::Simulation) && !args.has(Part::Reads) && !args.has(Part::Recovery));
        assert_eq!(args.simulated(), [Durability::Volatile, Durability::Always]);
        assert!(crate::kit::parse::<Args>(&["--simulate", "--only", "reads"]).is_err());
        let times = "--costs=positions=5,write=20,entry=4,sync=0,client-write=10,client-entry=1";
        let args: Args = crate::kit::parse(&[times]).unwrap();
        assert_eq!(args.simulated(), [Durability::Volatile]);
        assert!(args.has(Part::Reads));
    }

    #[test]
    fn a_short_recovery_is_shown_in_a_unit_that_fits() {
        let recoveries = vec![Recovery { entries: 1000, ms: vec![0.5, 1.54, 0.6] }];
        let mut results = Results { recoveries, ..Results::default() };
        conclude(&mut results);
        let line = line_with(&results.targets.to_string(), "recovery of a log of 1,000 entries, longest");
        assert!(line.contains("1.54 ms"), "{line}");
    }
}
