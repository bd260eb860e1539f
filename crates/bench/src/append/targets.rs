//! The targets of Nacre on a machine of two processors, beside the measured values.

use super::point::{Point, Results, Series, Subject, Work};
use crate::kit::quantity::grouped;
use crate::kit::server::Durability;
use crate::kit::statistic::Spread;
use crate::kit::target::Unit;

/// The length of the log whose recovery has a bound.
const LONG: u64 = 10_000_000;

/// Derives the targets from what was measured.
pub(super) fn conclude(results: &mut Results) {
    let Results { series, recoveries, targets, .. } = results;
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
    let follow =
        |durability| find(&move |point| point.work == Work::Follow && point.durability == durability);
    let p99_us = |series: &Series| series.median(|measured| measured.latency.p99_us);
    if let Some(durable) = follow(Durability::Always) {
        let ms = p99_us(durable) / 1e3;
        targets.at_most("append to visible at a follower, durable, p99", ms, Unit::Milliseconds, 2.0);
    }
    if let Some(volatile) = follow(Durability::Volatile) {
        let us = p99_us(volatile);
        targets.at_most("append to visible at a follower, volatile, p99", us, Unit::Microseconds, 300.0);
    }
    let reads = |subject| find(&move |point| point.work == Work::Read && point.subject == subject);
    if let (Some(log), Some(objects)) = (rate(reads(Subject::Log)), rate(reads(Subject::Object))) {
        targets.open("random reads of 4 KiB", log, Unit::PerSecond);
        targets.at_least("  ÷ the object store's own", log / objects, Unit::Times, 0.8);
    }
    if let Some(longest) = recoveries.iter().max_by_key(|recovery| recovery.entries) {
        let seconds = Spread::of(longest.ms.iter().copied()).max / 1e3;
        let measure = format!("recovery of a log of {} entries, longest", grouped(longest.entries as f64));
        match longest.entries >= LONG {
            true => targets.at_most(measure, seconds, Unit::Seconds, 1.0),
            false => targets.open(measure, seconds, Unit::Seconds),
        }
    }
    for (durability, name) in [(Durability::Volatile, "volatile"), (Durability::Always, "durable")] {
        let of = |reshapes: bool| {
            find(&move |point| {
                point.durability == durability
                    && point.depth == 1
                    && point.writers == 16
                    && point.reshape_ms.is_some() == reshapes
            })
        };
        let longest_ms =
            |series: &Series| Spread::of(series.repetitions.iter().map(|one| one.latency.max_us)).max / 1e3;
        if let Some(series) = of(true) {
            let measure = format!("longest append while the view changes, {name}");
            targets.at_most(measure, longest_ms(series), Unit::Milliseconds, 50.0);
        }
        if let Some(series) = of(false) {
            targets.open(format!("  with one view, {name}"), longest_ms(series), Unit::Milliseconds);
        }
    }
}
