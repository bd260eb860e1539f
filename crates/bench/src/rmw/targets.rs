//! The targets of Nacre on a machine of two processors, beside the measured values.

use super::arguments::Args;
use super::point::{Deployment, Point, Series, System};
use super::probe::{self, Reopening};
use super::report::Results;
use super::run::Bench;
use crate::BenchError;
use crate::kit::Spread;
use crate::kit::quantity::grouped;
use crate::kit::report::Report;
use crate::kit::server::Durability;
use crate::kit::study::Steps;
use crate::kit::target::{Targets, Unit};

/// Measures everything that the targets need.
pub(super) async fn measure(
    args: &Args,
    bench: &mut Bench,
    steps: &Steps,
    report: &mut Report<Results>,
) -> Result<(), BenchError> {
    for (points, evaluate) in groups(args)? {
        let measured = bench.measure(&points, steps, report).await?;
        let Results { series, targets } = &mut **report;
        evaluate(&series[measured], targets);
        report.keep()?;
    }
    measure_engine(args, bench, &mut report.targets).await
}

/// Measures the targets of the embedded engine.
async fn measure_engine(args: &Args, bench: &Bench, targets: &mut Targets) -> Result<(), BenchError> {
    let (mut shares, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..bench.repetitions {
        let own = probe::append(args.folder.as_deref(), args.measure().window).await?;
        let disk = probe::append_by_fio(args.folder.as_deref(), args.measure().window)?;
        shares.push(100.0 * own / disk);
        rates.push(own / f64::from(1 << 20));
    }
    let (share, rate) = (Spread::of(shares).median, Spread::of(rates).median);
    let extents = if args.quick { 100_000 } else { 1_000_000 };
    let mut reopenings = Vec::new();
    for _ in 0..bench.repetitions.min(3) {
        reopenings.push(probe::reopen(&bench.common.nacre()?, args.folder.clone(), extents).await?);
    }
    let median = |value: fn(&Reopening) -> f64| Spread::of(reopenings.iter().map(value)).median;
    let log_mib = median(|reopening| reopening.log_bytes as f64) / f64::from(1 << 20);
    let extents = grouped(extents as f64);
    targets.open("1 MiB durable appends, one client in process", rate, Unit::MebibytesPerSecond);
    targets.at_least("  of fio with fdatasync", share, Unit::Percent, 85.0);
    targets.at_most(
        format!("open after kill -9, {extents} extents, {log_mib:.0} MiB of log to replay"),
        median(|reopening| reopening.open_s),
        Unit::Seconds,
        3.0,
    );
    targets.at_most(
        "index memory per extent, as the engine counts it",
        median(|reopening| reopening.index_bytes_per_extent),
        Unit::Bytes,
        64.0,
    );
    targets.open(
        "  all memory of the server after opening, per extent",
        median(|reopening| reopening.resident_bytes_per_extent),
        Unit::Bytes,
    );
    Ok(())
}

/// Returns the number of points to measure.
pub(super) fn points(args: &Args) -> Result<usize, BenchError> {
    Ok(groups(args)?.iter().map(|(points, _)| points.len()).sum())
}

type Evaluate = fn(&[Series], &mut Targets);

/// Returns groups of points that are compared with each other, with the targets that follow from them.
fn groups(args: &Args) -> Result<Vec<(Vec<Point>, Evaluate)>, BenchError> {
    let point = |system, concurrency, durability| -> Result<Point, BenchError> {
        Ok(Point {
            label: system_on(system, durability),
            place: Deployment::Servers { servers: 1, durability, pacing: true },
            clients: 1,
            concurrency,
            // Spread over objects as over a namespace: a reply waits for what is under way on the same object.
            objects: 256,
            forks: 1,
            blocks: None,
            propose: false,
            reread: false,
            ..args.point(system)?
        })
    };
    let volatile = |system, concurrency| point(system, concurrency, Durability::Volatile);
    // A server keeps a connection on one of its threads: two client processes can keep two processors busy.
    let pair = |system, durability| -> Result<Point, BenchError> {
        Ok(Point { clients: 2, ..point(system, 128, durability)? })
    };
    let many = |system, blocks| -> Result<Point, BenchError> {
        let place = Deployment::Servers { servers: 32, durability: Durability::Volatile, pacing: true };
        Ok(Point { place, clients: 32, objects: 32, blocks, ..volatile(system, 16)? })
    };
    let one_block = |system, concurrency| -> Result<Point, BenchError> {
        Ok(Point { objects: 1, blocks: Some(1), ..volatile(system, concurrency)? })
    };
    let in_process = Point {
        label: "optimistic, in process".into(),
        place: Deployment::InProcess("mem:".into()),
        clients: 2,
        // Fresh blocks would measure how fast the system hands out memory.
        blocks: Some(16),
        ..volatile(System::Optimistic, 1)?
    };
    use System::{Optimistic, Redis, RedisAof, Write, WriteIf, Zookeeper};
    Ok(vec![
        (
            vec![pair(Optimistic, Durability::Volatile)?, pair(Redis, Durability::Volatile)?],
            |series, targets| {
                let rate = rate(&series[0]);
                targets.at_least("volatile, TCP, 256 concurrent", rate, Unit::PerSecond, 200_000.0);
                targets.at_least("  ÷ Redis WATCH", ratio(&series[0], &series[1]), Unit::Times, 3.5);
            },
        ),
        (vec![volatile(Optimistic, 16)?, volatile(Redis, 16)?], |series, targets| {
            let rate = rate(&series[0]);
            targets.at_least("volatile, TCP, 16 concurrent", rate, Unit::PerSecond, 75_000.0);
            targets.open("  ÷ Redis WATCH", ratio(&series[0], &series[1]), Unit::Times);
        }),
        (
            vec![pair(Optimistic, Durability::Always)?, pair(RedisAof, Durability::Volatile)?],
            |series, targets| {
                let rate = rate(&series[0]);
                let times = ratio(&series[0], &series[1]);
                targets.at_least("durable, TCP, 256 concurrent", rate, Unit::PerSecond, 80_000.0);
                targets.at_least("  ÷ Redis appendfsync always", times, Unit::Times, 3.0);
            },
        ),
        (vec![in_process], |series, targets| {
            let rate = rate(&series[0]);
            targets.at_least("volatile, in process, 2 threads", rate, Unit::PerSecond, 1_000_000.0);
        }),
        (
            vec![one_block(Optimistic, 16)?, one_block(Optimistic, 1)?, one_block(Redis, 16)?],
            |series, targets| {
                let alone = ratio(&series[0], &series[1]);
                let success = 100.0 * series[0].success_rate.median;
                let p99_ms = series[0].p99_us.median / 1e3;
                targets.open("16 concurrent on one block", rate(&series[0]), Unit::PerSecond);
                targets.at_least("  ÷ one client alone", alone, Unit::Times, 1.0);
                targets.at_least("  attempts that succeed", success, Unit::Percent, 90.0);
                targets.at_most("  p99", p99_ms, Unit::Milliseconds, 3.0);
                targets.open("  ÷ Redis WATCH", ratio(&series[0], &series[2]), Unit::Times);
            },
        ),
        (
            vec![many(Optimistic, Some(16))?, many(Optimistic, None)?, many(Zookeeper, None)?],
            |series, targets| {
                let uncontended = 100.0 * ratio(&series[0], &series[1]);
                let locks = ratio(&series[1], &series[2]);
                targets.at_least(
                    "512 concurrent on 512 blocks, of uncontended",
                    uncontended,
                    Unit::Percent,
                    70.0,
                );
                targets.open("512 concurrent, optimistic ÷ ZooKeeper locks (paper: 146)", locks, Unit::Times);
            },
        ),
        (
            vec![pair(Write, Durability::Volatile)?, pair(WriteIf, Durability::Volatile)?],
            |series, targets| {
                // Each repetition of one follows upon one of the other: their ratios are steadier than their medians.
                let pairs = series[0].repetitions.iter().zip(&series[1].repetitions);
                let slower = Spread::of(
                    pairs.map(|(plain, guarded)| 100.0 * (1.0 - guarded.updates_per_s / plain.updates_per_s)),
                );
                targets.at_most("conditional write, slower than plain", slower.median, Unit::Percent, 5.0);
            },
        ),
    ])
}

fn system_on(system: System, durability: Durability) -> String {
    match durability {
        Durability::Volatile => system.name().into(),
        Durability::Always => format!("{}, durable", system.name()),
        Durability::None => format!("{}, on disk", system.name()),
    }
}

fn rate(series: &Series) -> f64 {
    series.updates_per_s.median
}

fn ratio(one: &Series, other: &Series) -> f64 {
    rate(one) / rate(other)
}
