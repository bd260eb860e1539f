//! The points of the study, and what was measured of them.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::disturb::Disturbed;
use super::operation::Operation;
use super::watchers::Notified;
use crate::kit::latency::{Latencies, LatencyCounts, LatencySummary};
use crate::kit::quantity::{grouped, latency};
use crate::kit::report;
use crate::kit::statistic::Spread;
use crate::kit::study;
use crate::kit::table::Table;
use crate::kit::target::{Targets, Unit};

/// A point of the study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    pub(crate) label: String,
    pub(crate) operation: Operation,
    /// True for a store in the process of the caller, where one operation follows the other.
    pub(crate) local: bool,
    /// The operations under way, on all connections.
    pub(crate) concurrency: u32,
    /// The connections, each of a process of its own.
    pub(crate) connections: u32,
}

/// One repetition of a point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    pub(crate) per_second: f64,
    pub(crate) latency: LatencySummary,
    pub(crate) latency_ns_counts: LatencyCounts,
    /// The processor time of clients and server for each operation; where both are one process, it is the clients'.
    pub(crate) client_cpu_us: f64,
    pub(crate) server_cpu_us: f64,
}

impl Measurement {
    /// Sums up a repetition; the processor times are the clients' and the server's.
    pub(super) fn new(operations: u64, window: Duration, latencies: &Latencies, cpu: [Duration; 2]) -> Self {
        let [client_cpu_us, server_cpu_us] =
            cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / operations.max(1) as f64);
        Self {
            per_second: operations as f64 / window.as_secs_f64(),
            latency: latencies.summary(),
            latency_ns_counts: latencies.coarse_counts(),
            client_cpu_us,
            server_cpu_us,
        }
    }
}

/// All repetitions of a point.
pub(crate) type Series = study::Repetitions<Point, Measurement>;

/// The results of the study.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Results {
    pub(crate) series: Vec<Series>,
    pub(crate) disturbed: Vec<Disturbed>,
    pub(crate) notified: Vec<Notified>,
    pub(crate) targets: Targets,
    /// The load average of the machine when the study began.
    pub(crate) load_at_start: String,
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.is_empty() && self.disturbed.is_empty() && self.notified.is_empty()
    }

    fn conclude(&mut self) {
        conclude(self);
    }

    fn conditions(&self) -> String {
        format!(", load average {} at the start", self.load_at_start)
    }
}

/// The concurrency at which servers are compared.
const CONCURRENCY: u32 = 256;

fn conclude(results: &mut Results) {
    let Results { series, disturbed, notified, targets, .. } = results;
    let find = |operation: Operation, local: bool| {
        series.iter().find(|one| {
            let point = &one.point;
            (point.operation, point.local) == (operation, local)
                && (local || point.concurrency == CONCURRENCY)
        })
    };
    let each_us = |operation: Operation| Some(1e6 / find(operation, true)?.median(|one| one.per_second));
    for (call, native, name) in [
        (Operation::CallAdd, Operation::NativeAdd, "counter.add"),
        (Operation::CallGet, Operation::NativeGet, "counter.get"),
    ] {
        if let (Some(call), Some(native)) = (each_us(call), each_us(native)) {
            targets.at_most(
                format!("{name} in process, over the native operation"),
                call - native,
                Unit::Microseconds,
                2.0,
            );
            targets.open("  ÷ native", call / native, Unit::Times);
        }
    }
    let rate = |operation: Operation| Some(find(operation, false)?.median(|one| one.per_second));
    if let Some(add) = rate(Operation::CallAdd) {
        targets.at_least(
            format!("counter.add over TCP, {CONCURRENCY} under way"),
            add,
            Unit::PerSecond,
            150e3,
        );
        for (other, name) in [
            (Operation::NativeAdd, "  ÷ read and conditional write by the client"),
            (Operation::RedisAdd, "  ÷ Redis, EVALSHA"),
            (Operation::OsdAdd, "  ÷ stock OSD, cls_lua"),
        ] {
            if let Some(other) = rate(other) {
                targets.open(name, add / other, Unit::Times);
            }
        }
    }
    if let Some(get) = rate(Operation::CallGet) {
        targets.open(format!("counter.get over TCP, {CONCURRENCY} under way"), get, Unit::PerSecond);
    }
    if let Some(empty) = rate(Operation::CallEmpty) {
        targets.open(format!("an empty method over TCP, {CONCURRENCY} under way"), empty, Unit::PerSecond);
    }
    if let Some(longest) = disturbed.iter().map(|one| one.longest_ms - one.budget_ms).reduce(f64::max) {
        targets.at_most(
            "endless loop stopped after its time is over, longest",
            longest,
            Unit::Milliseconds,
            10.0,
        );
        let p99 = |value: fn(&Disturbed) -> f64| Spread::of(disturbed.iter().map(value)).median / 1e3;
        targets.open("  p99 of others' calls beside it", p99(|one| one.beside.p99_us), Unit::Milliseconds);
        targets.open("  p99 of others' calls without it", p99(|one| one.alone.p99_us), Unit::Milliseconds);
    }
    if let Some(longest) = notified.iter().map(|one| one.received_ms.max).reduce(f64::max) {
        let watchers = notified.iter().map(|one| one.watchers).max().unwrap_or_default();
        let measure = format!("{} watchers notified, longest", grouped(f64::from(watchers)));
        targets.at_most(measure, longest, Unit::Milliseconds, 100.0);
        let all = notified.iter().map(|one| one.acknowledged_ms.max).fold(0.0, f64::max);
        targets.open("  until all have acknowledged, longest", all, Unit::Milliseconds);
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.series.is_empty() {
            let mut table =
                Table::new("operation | per second | least | most | p50 | p99 | client cpu | server cpu");
            for series in &self.series {
                let rates = Spread::of(series.repetitions.iter().map(|one| one.per_second));
                table.row(vec![
                    series.point.label.clone(),
                    grouped(rates.median),
                    grouped(rates.min),
                    grouped(rates.max),
                    latency(series.median(|one| one.latency.p50_us)),
                    latency(series.median(|one| one.latency.p99_us)),
                    latency(series.median(|one| one.client_cpu_us)),
                    if series.point.local {
                        "–".into()
                    } else {
                        latency(series.median(|one| one.server_cpu_us))
                    },
                ]);
            }
            write!(f, "{table}")?;
        }
        if !self.disturbed.is_empty() {
            let mut table = Table::new(
                "endless loop | stopped | median | longest | others' p99 beside it | without it | others' calls/s beside it | without it",
            );
            for one in &self.disturbed {
                table.row(vec![
                    format!("time {}", latency(one.budget_ms * 1e3)),
                    one.stopped.to_string(),
                    latency(one.median_ms * 1e3),
                    latency(one.longest_ms * 1e3),
                    latency(one.beside.p99_us),
                    latency(one.alone.p99_us),
                    grouped(one.beside_per_second),
                    grouped(one.alone_per_second),
                ]);
            }
            write!(f, "\n{table}")?;
        }
        if !self.notified.is_empty() {
            let mut table = Table::new(
                "watchers | connections | notifications | last received, median | longest | all acknowledged, median | longest",
            );
            for one in &self.notified {
                table.row(vec![
                    grouped(f64::from(one.watchers)),
                    grouped(f64::from(one.connections)),
                    one.notifications.to_string(),
                    latency(one.received_ms.median * 1e3),
                    latency(one.received_ms.max * 1e3),
                    latency(one.acknowledged_ms.median * 1e3),
                    latency(one.acknowledged_ms.max * 1e3),
                ]);
            }
            write!(f, "\n{table}")?;
        }
        match self.targets.is_empty() {
            true => Ok(()),
            false => write!(f, "\n{}", self.targets),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(operation: Operation, local: bool, per_second: f64) -> Series {
        let concurrency = if local { 1 } else { CONCURRENCY };
        let point = Point { label: operation.name().into(), operation, local, concurrency, connections: 2 };
        let measured = Measurement {
            per_second,
            latency: LatencySummary::default(),
            latency_ns_counts: LatencyCounts::default(),
            client_cpu_us: 0.0,
            server_cpu_us: 0.0,
        };
        Series { point, repetitions: vec![measured] }
    }

    #[test]
    fn a_call_is_compared_with_the_operation_that_it_is() {
        let series = vec![
            series(Operation::CallAdd, true, 200e3),
            series(Operation::NativeAdd, true, 400e3),
            series(Operation::CallAdd, false, 100e3),
            series(Operation::RedisAdd, false, 50e3),
        ];
        let mut results = Results { series, ..Results::default() };
        conclude(&mut results);
        let text = results.targets.to_string();
        let line = |what: &str| {
            text.lines().find(|line| line.contains(what)).unwrap_or_default().trim_end().to_owned()
        };
        // 5 µs instead of 2.5 µs.
        assert!(line("counter.add in process").contains("2.50 µs"), "{text}");
        assert!(line("counter.add in process").ends_with("no"), "{text}");
        assert!(line("counter.add over TCP").ends_with("no"), "{text}");
        assert!(line("÷ Redis, EVALSHA").contains("2.00 ×"), "{text}");
        assert!(!text.contains("cls_lua"), "{text}");
    }

    #[test]
    fn a_loop_that_ends_in_time_meets_the_target() {
        let calls = LatencySummary { p50_us: 100.0, p99_us: 900.0, max_us: 2000.0 };
        let disturbed = vec![Disturbed {
            budget_ms: 100.0,
            stopped: 9,
            median_ms: 101.0,
            longest_ms: 104.0,
            beside: calls,
            alone: calls,
            beside_per_second: 1000.0,
            alone_per_second: 2000.0,
        }];
        let mut results = Results { disturbed, ..Results::default() };
        conclude(&mut results);
        let text = results.targets.to_string();
        let line = text.lines().find(|line| line.contains("endless loop")).unwrap();
        assert!(line.contains("4.00 ms") && line.trim_end().ends_with("yes"), "{text}");
    }
}
