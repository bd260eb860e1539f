//! The sequencer study (*Malacology: A Programmable Storage System*, section 6.1.1): positions from a shared counter.
//!
//! One client that caches the sequencer; two that pass it to each other by each policy; and round trips to the rank, beside
//! counters of Redis and etcd. Measured are the positions per second, the latency of single positions, and how the
//! positions of the clients lie between each other over time.

mod client;
pub(crate) mod failover;
mod figures;
mod point;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use client::main as client_main;
use nacre::sequencer::Policy;
use nacre_quantity::parse_time;

use self::client::{ClientRecord, Orders};
use self::failover::FailOver;
use self::point::{Measurement, Point, Results, Series, Subject};
use crate::kit::arguments::FileArgs;
use crate::kit::latency::Latencies;
use crate::kit::peer;
use crate::kit::process::Crew;
use crate::kit::report::Report;
use crate::kit::server::{self, Deployed, Durability, ServerPlan, Servers};
use crate::kit::span;
use crate::kit::statistic::Spread;
use crate::kit::study::{self, Steps, by_turns};
use crate::kit::target::Unit;
use crate::{BenchError, Common};

/// The command that makes this program a client.
const CLIENT: &str = "sequencer-client";
/// The name of the sequencer.
const NAME: &str = "study";

/// Take positions from a shared sequencer: cached, passed on, and by round trips
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Measure and show the targets
    #[arg(long, alias = "reach")]
    targets: bool,
    /// Measure each point once and briefly, with fewer holds and quotas
    #[arg(long)]
    quick: bool,
    /// Length of the measured window [default: 2s; with --quick: 200ms]
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    window: Option<Duration>,
    /// Number of repetitions of each point [default: 3; with --quick: 1]
    #[arg(long, alias = "repetitions", value_name = "N")]
    repeat: Option<u32>,
    /// Durability of the servers' stores
    #[arg(long, alias = "keep", value_enum, default_value = "volatile")]
    durability: Durability,
    /// Times for which a client holds the sequencer [default: 1ms,10ms,100ms,1s; with --quick: 10ms]
    #[arg(long, value_parser = parse_time, value_name = "TIME,…", value_delimiter = ',')]
    holds: Vec<Duration>,
    /// Positions that a client hands out when it holds the sequencer [default: 1000,100000; with --quick: 1000]
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    quotas: Option<Vec<u64>>,
    /// Folder for the figures
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    out: PathBuf,
    #[command(flatten)]
    files: FileArgs,
}

impl Args {
    fn window(&self) -> Duration {
        self.window.unwrap_or(Duration::from_millis(if self.quick { 200 } else { 2000 }))
    }

    fn repetitions(&self) -> u32 {
        self.repeat.unwrap_or(if self.quick { 1 } else { 3 })
    }

    fn holds(&self) -> Vec<Duration> {
        let default: &[u64] = if self.quick { &[10] } else { &[1, 10, 100, 1000] };
        match self.holds.is_empty() {
            true => default.iter().copied().map(Duration::from_millis).collect(),
            false => self.holds.clone(),
        }
    }

    fn quotas(&self) -> &[u64] {
        let default: &[u64] = if self.quick { &[1000] } else { &[1000, 100_000] };
        self.quotas.as_deref().unwrap_or(default)
    }
}

/// Runs the study, prints the table, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, or a position was handed out twice.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    args.files.check(Some(&args.out))?;
    if args.window().is_zero() || args.repetitions() == 0 {
        return Err(BenchError::Usage("--window and --repeat are greater than 0".into()));
    }
    let peers = [peer::redis::version(), peer::etcd::version()];
    let report = Report::new("sequencer", peers, Results::default(), args.files.results());
    study::run(report, common, async |report| measure(args, common, report).await)
}

async fn measure(args: &Args, common: &Common, report: &mut Report<Results>) -> Result<(), BenchError> {
    let point = |label: &str, subject, clients, connections, depth| Point {
        label: label.to_owned(),
        subject,
        clients,
        connections,
        depth,
    };
    let nacre = |label: &str, policy, clients, connections, depth| {
        point(label, Subject::Nacre(policy), clients, connections, depth)
    };
    let cached = nacre("1C, cached", Policy::BestEffort, 1, 1, 1);
    let hold =
        |time: Duration| nacre(&format!("2C, hold {} ms", time.as_millis()), Policy::Hold(time), 2, 1, 1);
    let mut groups: Vec<Vec<Point>> = Vec::new();
    if args.targets {
        groups.push(vec![cached, hold(Duration::from_millis(10))]);
    } else {
        let mut points = vec![cached, nacre("2C, best effort", Policy::BestEffort, 2, 1, 1)];
        points.extend(args.holds().into_iter().map(hold));
        points.extend(args.quotas().iter().map(|operations| {
            let within = Duration::from_millis(100);
            let policy = Policy::Quota { operations: *operations, within };
            nacre(&format!("2C, quota {operations}"), policy, 2, 1, 1)
        }));
        points.push(nacre("2C, round trip", Policy::RoundTrip, 2, 1, 1));
        groups.push(points);
    }
    groups.push(vec![
        nacre("round trip, 64 connections", Policy::RoundTrip, 1, 64, 1),
        point("Redis INCR, 64 connections", Subject::Redis, 1, 64, 1),
        point("etcd put, 64 connections", Subject::Etcd, 1, 64, 1),
    ]);
    groups.push(vec![
        nacre("round trip, 2 connections, 128 under way on each", Policy::RoundTrip, 2, 1, 128),
        point("Redis INCR, 2 connections, pipelines of 128", Subject::Redis, 2, 1, 128),
    ]);
    let steps = groups.iter().map(|points| points.len() as u64).sum::<u64>() + 1;
    let steps = Steps::new(steps * u64::from(args.repetitions()));
    for points in groups {
        let once = async |point: &Point, repetition| {
            steps.step(&point.label, repetition)?;
            measure_once(args, common, point).await
        };
        by_turns(report, |results| &mut results.series, &points, args.repetitions(), once).await?;
        report.keep()?;
    }
    for repetition in 0..args.repetitions() {
        steps.step("fail-over", repetition)?;
        let failed_over = failover::measure(&common.nacre()?).await?;
        report.fail_overs.push(failed_over);
        report.keep()?;
    }
    conclude(report);
    report.figures = figures::draw(&report.series, &args.out)?;
    Ok(())
}

/// Starts the servers of a measurement.
async fn deploy(args: &Args, common: &Common, point: &Point) -> Result<Deployed, BenchError> {
    let folder = args.files.folder();
    Ok(match point.subject {
        Subject::Nacre(policy) => {
            let plan = ServerPlan { durability: args.durability, ..ServerPlan::volatile(1) };
            let servers = Servers::start(&common.nacre()?, plan, folder).await?;
            let store = server::open(&servers.uri).await?;
            store.sequencer(NAME).await?.create(policy).await?;
            store.end_sequencers().await;
            Deployed::Nacre(servers)
        }
        Subject::Redis => {
            Deployed::Peer(peer::redis::start(args.durability == Durability::Always, folder).await?)
        }
        Subject::Etcd => Deployed::Peer(peer::etcd::start(folder).await?),
    })
}

async fn measure_once(args: &Args, common: &Common, point: &Point) -> Result<Measurement, BenchError> {
    let deployed = deploy(args, common, point).await?;
    let orders: Vec<Orders> = (0..point.clients)
        .map(|_| Orders {
            subject: point.subject,
            place: deployed.address().to_owned(),
            connections: point.connections,
            depth: point.depth,
            window_ms: args.window().as_millis() as u64,
        })
        .collect();
    let tallies: Vec<ClientRecord> = Crew::start(CLIENT, &orders).await?.run().await?;
    if let Some([one, other]) = span::overlap(tallies.iter().map(|tally| &tally.exact)) {
        return Err(BenchError::Process(format!("positions were handed out twice: {one:?} and {other:?}")));
    }
    let mut latencies = Latencies::new()?;
    tallies.iter().for_each(|tally| latencies.add(&tally.latency_ns_counts));
    let positions = tallies.iter().map(|tally| tally.positions).sum::<u64>();
    Ok(Measurement {
        per_second: positions as f64 / args.window().as_secs_f64(),
        grants: tallies.iter().map(|tally| tally.grants).sum(),
        latency: latencies.summary(),
        latency_ns_counts: latencies.coarse_counts(),
        spans: tallies.into_iter().map(|tally| tally.spans).collect(),
    })
}

fn conclude(report: &mut Report<Results>) {
    let rate = |series: &[Series], label: &str| {
        series.iter().find(|series| series.point.label.starts_with(label)).map(Series::per_second)
    };
    let Results { series, fail_overs, targets } = &mut **report;
    let cached = rate(series, "1C, cached");
    if let Some(cached) = cached {
        targets.at_least("cached positions, one client", cached, Unit::PerSecond, 100e6);
    }
    if let (Some(cached), Some(shared)) = (cached, rate(series, "2C, hold 10 ms")) {
        targets.at_least("  two clients, 10 ms holds", 100.0 * shared / cached, Unit::Percent, 60.0);
    }
    if let Some(many) = rate(series, "round trip, 64") {
        targets.open("round trips, 64 connections", many, Unit::PerSecond);
        if let Some(redis) = rate(series, "Redis INCR, 64") {
            targets.at_least("  ÷ Redis INCR", many / redis, Unit::Times, 2.0);
        }
        if let Some(etcd) = rate(series, "etcd") {
            targets.open("  ÷ etcd", many / etcd, Unit::Times);
        }
    }
    if let Some(pipelined) = rate(series, "round trip, 2 connections") {
        targets.at_least("round trips, pipelined on two connections", pipelined, Unit::PerSecond, 300e3);
        if let Some(redis) = rate(series, "Redis INCR, 2 connections") {
            targets.open("  ÷ Redis INCR", pipelined / redis, Unit::Times);
        }
    }
    if !fail_overs.is_empty() {
        let median = |value: fn(&FailOver) -> f64| Spread::of(fail_overs.iter().map(value)).median;
        let all = median(|one| one.all_ms);
        targets.at_most(
            "fail-over of a killed rank, until all clients go on",
            all,
            Unit::Milliseconds,
            1000.0,
        );
        let after = 100.0 * median(|one| one.after_per_second / one.before_per_second);
        targets.at_least("  positions/s after it ÷ before it", after, Unit::Percent, 95.0);
    }
}
