//! The study of object classes (*Malacology: A Programmable Storage System*, section 4.2): what a call of a method costs beside the same
//! transactions made by the client, in process and over TCP, beside a script in Redis, and beside Ceph's cls_lua in a stock OSD; endless
//! calls, and what others notice of them; and notifications to ten thousand watchers.

mod client;
mod disturb;
mod figures;
mod local;
mod operation;
mod point;
mod watchers;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use client::main as client_main;
use nacre_quantity::parse_time;
pub(crate) use watchers::main as watchers_main;

use self::client::{ClientRecord, Orders};
use self::operation::{COUNTER, Operation, REDIS, STUDY, failed};
use self::point::{Measurement, Point, Results};
use crate::kit::arguments::FileArgs;
use crate::kit::latency::Latencies;
use crate::kit::machine::load_average;
use crate::kit::peer::{self, redis};
use crate::kit::process::Crew;
use crate::kit::report::Report;
use crate::kit::server::{self, Deployed, ServerPlan, Servers};
use crate::kit::study::{self, Steps, by_turns};
use crate::{BenchError, Common};

/// The command that makes this program a client.
const CLIENT: &str = "class-client";
/// The connections, where there is more than one operation under way.
const CONNECTIONS: u32 = 2;

/// Call methods of object classes: compared with transactions, with scripts of Redis and with cls_lua in an OSD
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Measure each point once and briefly, with fewer watchers
    #[arg(long)]
    quick: bool,
    /// Parts to measure
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Operations under way, over all connections [default: 1,16,256; with --quick: 1,256]
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    concurrency: Vec<u32>,
    /// Number of watchers of one object, ten on each connection [default: 10000; with --quick: 400]
    #[arg(long, value_name = "COUNT")]
    watchers: Option<u32>,
    /// Length of the measured window [default: 2s; with --quick: 250ms]
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    window: Option<Duration>,
    /// Number of repetitions of each point [default: 3; with --quick: 1]
    #[arg(long, alias = "repetitions", value_name = "N")]
    repeat: Option<u32>,
    /// Folder for the figures [default: none are drawn]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    #[command(flatten)]
    files: FileArgs,
}

/// A part of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Calls in the process of the caller.
    Local,
    /// Calls over TCP.
    Remote,
    /// Calls beside endless ones.
    Endless,
    /// Notifications to many watchers.
    Watchers,
}

impl Args {
    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    fn concurrency(&self) -> &[u32] {
        match (&self.concurrency[..], self.quick) {
            ([], true) => &[1, 256],
            ([], false) => &[1, 16, 256],
            (concurrency, _) => concurrency,
        }
    }

    fn watchers(&self) -> u32 {
        self.watchers.unwrap_or(if self.quick { 400 } else { 10_000 })
    }

    fn window(&self) -> Duration {
        self.window.unwrap_or(Duration::from_millis(if self.quick { 250 } else { 2000 }))
    }

    fn repetitions(&self) -> u32 {
        self.repeat.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// Returns the points, in groups that are compared with each other. `has_pool` tells whether there is a pool of Ceph.
    fn groups(&self, has_pool: bool) -> Vec<Vec<Point>> {
        use Operation::{CallAdd, CallEmpty, CallGet, NativeAdd, NativeGet, NativeSet, OsdAdd, RedisAdd};
        let nacre = [CallEmpty, CallGet, NativeGet, CallAdd, NativeAdd, NativeSet];
        let mut groups = Vec::new();
        if self.has(Part::Local) {
            let point = |operation: Operation| Point {
                label: format!("{}, in process", operation.name()),
                operation,
                local: true,
                concurrency: 1,
                connections: 0,
            };
            groups.push(nacre.map(point).to_vec());
        }
        if self.has(Part::Remote) {
            for concurrency in self.concurrency() {
                let point = |operation: Operation| Point {
                    label: format!("{}, {concurrency} under way", operation.name()),
                    operation,
                    local: false,
                    concurrency: *concurrency,
                    connections: CONNECTIONS.min(*concurrency),
                };
                let others = [RedisAdd].into_iter().chain(has_pool.then_some(OsdAdd));
                groups.push(nacre.into_iter().chain(others).map(point).collect());
            }
        }
        groups
    }
}

/// Runs the study, prints the tables, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, or a call was lost or made twice.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    args.files.check(args.out.as_deref())?;
    let counts = [args.repetitions(), args.watchers()];
    if args.window().is_zero() || counts.contains(&0) || args.concurrency().contains(&0) {
        let text = "--window, --repeat, --watchers and --concurrency are greater than 0";
        return Err(BenchError::Usage(text.into()));
    }
    if let Some(store) = &common.store
        && !store.starts_with("rados:")
    {
        let text = "the study of classes starts its servers; --store names a pool for cls_lua: rados://POOL";
        return Err(BenchError::Usage(text.into()));
    }
    let results = Results { load_at_start: load_average(), ..Results::default() };
    let report = Report::new("class", [peer::redis::version()], results, args.files.results());
    study::run(report, common, async |report| measure(args, common, report).await)
}

async fn measure(args: &Args, common: &Common, report: &mut Report<Results>) -> Result<(), BenchError> {
    let groups = args.groups(common.store.is_some());
    let parts = [Part::Endless, Part::Watchers].into_iter().filter(|part| args.has(*part)).count();
    let steps = (groups.iter().map(Vec::len).sum::<usize>() + parts) as u64;
    let steps = Steps::new(steps * u64::from(args.repetitions()));
    for points in &groups {
        let once = async |point: &Point, repetition| {
            steps.step(&point.label, repetition)?;
            match point.local {
                true => local::measure(point.operation, args.window()).await,
                false => measure_once(args, common, point).await,
            }
        };
        by_turns(report, |results| &mut results.series, points, args.repetitions(), once).await?;
        report.keep()?;
    }
    for repetition in 0..args.repetitions() {
        let folder = args.files.folder();
        if args.has(Part::Endless) {
            steps.step("endless calls", repetition)?;
            // Long enough for some of them.
            let window = args.window().max(Duration::from_secs(1));
            let disturbed = disturb::measure(&common.nacre()?, folder, window).await?;
            report.disturbed.push(disturbed);
        }
        if args.has(Part::Watchers) {
            steps.step("watchers", repetition)?;
            let notifications = if args.quick { 5 } else { 20 };
            let notified =
                watchers::measure(&common.nacre()?, folder, args.watchers(), notifications).await?;
            report.notified.push(notified);
        }
        report.keep()?;
    }
    if let Some(folder) = &args.out {
        report.figures = figures::draw(&report.series, folder)?;
    }
    Ok(())
}

/// Installs the classes that are called.
async fn install(store: &nacre::Store) -> Result<(), BenchError> {
    for (name, text) in [("counter", COUNTER), ("study", STUDY)] {
        store.classes().put(name, text.into(), Default::default()).await.map_err(failed)?;
    }
    Ok(())
}

async fn measure_once(args: &Args, common: &Common, point: &Point) -> Result<Measurement, BenchError> {
    let (window, folder) = (args.window(), args.files.folder());
    let mut digest = String::new();
    // A pool's servers are not the study's.
    let (deployed, place) = match (point.operation, &common.store) {
        (Operation::OsdAdd, Some(pool)) => (None, pool.clone()),
        (Operation::OsdAdd, None) => {
            return Err(BenchError::Usage("cls_lua is measured in the pool that --store names".into()));
        }
        (Operation::RedisAdd, _) => {
            let peer = redis::start(false, folder).await?;
            let mut connection = redis::Connection::open(&peer.address).await?;
            digest = String::from_utf8_lossy(&connection.load_script(REDIS).await?).into_owned();
            let place = peer.address.clone();
            (Some(Deployed::Peer(peer)), place)
        }
        _ => {
            let servers = Servers::start(&common.nacre()?, ServerPlan::volatile(1), folder).await?;
            install(&server::open(&servers.uri).await?).await?;
            let place = servers.uri.clone();
            (Some(Deployed::Nacre(servers)), place)
        }
    };
    let orders: Vec<Orders> = (0..point.connections)
        .map(|client| Orders {
            operation: point.operation,
            place: place.clone(),
            client,
            depth: (point.concurrency + point.connections - 1 - client) / point.connections,
            digest: digest.clone(),
            window_ms: window.as_millis() as u64,
        })
        .collect();
    let mut crew = Crew::start(CLIENT, &orders).await?;
    let server_cpu = || deployed.as_ref().map_or(Duration::ZERO, Deployed::cpu_time);
    let before = [crew.cpu_time(), server_cpu()];
    let records: Vec<ClientRecord> = crew.round(&()).await?;
    let cpu = [crew.cpu_time().saturating_sub(before[0]), server_cpu().saturating_sub(before[1])];
    crew.end().await?;
    let mut latencies = Latencies::new()?;
    records.iter().for_each(|record| latencies.add(&record.latency_ns_counts));
    let operations = records.iter().map(|record| record.operations).sum();
    Ok(Measurement::new(operations, window, &latencies, cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_osd_is_measured_where_there_is_a_pool() {
        let args: Args = crate::kit::parse(&[]).unwrap();
        let of = |has_pool| args.groups(has_pool).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!((of(false), of(true)), (vec![6, 7, 7, 7], vec![6, 8, 8, 8]));
        for point in args.groups(true).iter().flatten().filter(|point| !point.local) {
            assert_eq!(point.connections, point.concurrency.min(2));
        }
    }

    #[test]
    fn a_part_can_be_had_alone() {
        let args: Args = crate::kit::parse(&["--quick", "--only", "watchers"]).unwrap();
        assert!(args.groups(false).is_empty() && args.has(Part::Watchers) && !args.has(Part::Endless));
    }
}
