//! The study of shared logs (*Malacology: A Programmable Storage System*, sections 5.2 and 6): appends, reads, followers, recoveries
//! and changes of view, beside streams of Redis and NATS JetStream and beside what the disk allows; appends in a pool of Ceph, beside calls
//! of classes there; and, simulated, appends to as many as a thousand servers.

mod ceph;
mod client;
mod costs;
mod disk;
mod figures;
mod groups;
mod point;
mod simulate;
mod targets;

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(crate) use client::main as client_main;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use nacre::ObjectId;
use nacre::sequencer::Policy;
use nacre::zlog::{Entry, Log, Shape, Slot};
use nacre_quantity::parse_time;

use self::ceph::Namespace;
use self::client::{ClientRecord, Orders, content, failed, open_log};
use self::costs::Costs;
use self::groups::groups;
use self::point::{Measurement, Point, Recovery, Results, Sequencing, Service, Subject, Work};
use crate::kit::arguments::FileArgs;
use crate::kit::latency::Latencies;
use crate::kit::machine::load_average;
use crate::kit::peer;
use crate::kit::process::Crew;
use crate::kit::report::Report;
use crate::kit::server::{self, Deployed, Durability, ServerPlan, Servers};
use crate::kit::span;
use crate::kit::study::{self, Steps, by_turns};
use crate::{BenchError, Common};

/// The command that makes this program a client.
const CLIENT: &str = "append-client";
/// The name of the log.
const NAME: &str = "study";
/// The name of the sequencer, where the metadata rank keeps it.
const SEQUENCER: &str = "study";
/// The number of objects that are read without a log.
const OBJECTS: u32 = 4;
/// The client processes: as many as a machine of two processors can run at once.
const CLIENTS: u32 = 2;
/// The positions of each client that are read again after a repetition.
const CHECKED: usize = 200;
/// The recoveries of each length of a log.
const RECOVERIES: usize = 9;
/// The line that stands for the part on Ceph where there is no pool.
const WITHOUT_POOL: &str = "Appends on Ceph are left out: --store rados://POOL names a pool for them.";

/// Append to a shared log: writers, entry sizes, sequencers, followers and recoveries, compared with Redis, NATS and
/// the disk
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Measure few points briefly, in less than a minute
    #[arg(long)]
    quick: bool,
    /// Parts to measure
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Simulate a log on up to a thousand servers, and measure nothing but the times of service that this needs
    #[arg(long, conflicts_with = "only")]
    simulate: bool,
    /// Times of service of the simulation, instead of measured ones, in microseconds:
    /// positions=5,write=20,entry=4,sync=0,client-write=10,client-entry=1
    #[arg(long, value_name = "TIMES")]
    costs: Option<Costs>,
    /// Length of the measured window [default: 1s, or 250ms with --quick]
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    window: Option<Duration>,
    /// Number of repetitions of each point [default: 3, or 1 with --quick]
    #[arg(long, alias = "repetitions", value_name = "N")]
    repeat: Option<u32>,
    /// Lengths of the logs that are recovered, in entries [default: 10000,100000,1000000,10000000, or 10000 with --quick]
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    recover: Vec<u64>,
    /// Folder for the figures [default: none are drawn]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    #[command(flatten)]
    files: FileArgs,
}

/// A part of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Appends by number of writers.
    Writers,
    /// Appends by size of the entries.
    Sizes,
    /// Appends by number of objects.
    Widths,
    /// Appends by sequencer.
    Sequencers,
    /// The time of one append, of one look at the tail, and until a follower has an entry.
    Latency,
    /// Reads of entries at random.
    Reads,
    /// Appends while the view changes.
    Views,
    /// Recoveries by length of the log.
    Recovery,
    /// Appends in the pool of Ceph that --store names.
    Ceph,
    /// Appends by number of servers, simulated.
    Simulation,
}

impl Args {
    fn has(&self, part: Part) -> bool {
        match self.simulate {
            true => part == Part::Simulation,
            false => self.only.is_empty() || self.only.contains(&part),
        }
    }

    /// Returns the durabilities whose times of service are simulated.
    fn simulated(&self) -> &[Durability] {
        match (&self.costs, self.quick) {
            _ if !self.has(Part::Simulation) => &[],
            (Some(costs), _) if costs.sync_ns > 0 => &[Durability::Always],
            (Some(_), _) | (None, true) => &[Durability::Volatile],
            (None, false) => &[Durability::Volatile, Durability::Always],
        }
    }

    fn window(&self, point: &Point) -> Duration {
        let window = self.window.unwrap_or(Duration::from_millis(if self.quick { 250 } else { 1000 }));
        // Its entries come at a pace, and are to be enough for a percentile.
        if point.work == Work::Follow { 2 * window } else { window }
    }

    fn repetitions(&self) -> u32 {
        self.repeat.unwrap_or(if self.quick { 1 } else { 3 })
    }

    fn lengths(&self) -> &[u64] {
        match (&self.recover[..], self.quick) {
            ([], true) => &[10_000],
            ([], false) => &[10_000, 100_000, 1_000_000, 10_000_000],
            (lengths, _) => lengths,
        }
    }
}

/// Runs the study, prints the tables, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, or an entry that was acknowledged is not there, or two have one position.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    args.files.check(args.out.as_deref())?;
    if args.window == Some(Duration::ZERO) || args.repeat == Some(0) || args.recover.contains(&0) {
        return Err(BenchError::Usage("--window, --repeat and --recover are greater than 0".into()));
    }
    let left_out = match &common.store {
        Some(store) if !store.starts_with("rados:") => {
            let text = "the study of logs starts its servers; --store names a pool for the part on Ceph: rados://POOL";
            return Err(BenchError::Usage(text.into()));
        }
        // There is nothing else to measure.
        None if args.only == [Part::Ceph] => return Err(BenchError::Usage(WITHOUT_POOL.into())),
        None if args.has(Part::Ceph) => Some(WITHOUT_POOL),
        _ => None,
    };
    let results = Results { load_at_start: load_average(), left_out, ..Results::default() };
    let peers = [peer::redis::version(), peer::nats::version()];
    let report = Report::new("append", peers, results, args.files.results());
    study::run(report, common, async |report| measure(args, common, report).await)
}

async fn measure(args: &Args, common: &Common, report: &mut Report<Results>) -> Result<(), BenchError> {
    let groups = groups(args, common.store.is_some());
    let points = groups.iter().map(|points| points.len() as u64).sum::<u64>();
    let lengths = if args.has(Part::Recovery) { args.lengths() } else { &[] };
    let simulated = args.simulated().iter().map(|durability| {
        let measured = if args.costs.is_none() { costs::STEPS } else { 0 };
        simulate::runs(args, *durability).len() as u64 + measured
    });
    let simulated = simulated.sum::<u64>();
    let steps = Steps::new(points * u64::from(args.repetitions()) + lengths.len() as u64 + simulated);
    for points in &groups {
        let once = async |point: &Point, repetition| {
            steps.step(&point.label, repetition)?;
            measure_once(args, common, point).await
        };
        by_turns(report, |results| &mut results.series, points, args.repetitions(), once).await?;
        report.keep()?;
    }
    for entries in lengths {
        steps.step(&format!("recovery of {entries} entries"), 0)?;
        let recovery = recover(args, common, *entries).await?;
        report.recoveries.push(recovery);
        report.keep()?;
    }
    for durability in args.simulated() {
        let costs = match args.costs {
            Some(costs) => costs,
            None => costs::measure(args, common, *durability, &steps).await?,
        };
        let (measured, network) = (args.costs.is_none(), simulate::NETWORK);
        report.services.push(Service { durability: *durability, measured, costs, network });
        for run in simulate::runs(args, *durability) {
            steps.step(&format!("simulation of {} servers", run.servers), 0)?;
            report.simulated.push(simulate::simulate(run, costs, network)?);
            // A signal is looked at between two runs.
            tokio::task::yield_now().await;
        }
        report.keep()?;
    }
    if let Some(folder) = &args.out {
        report.figures = figures::draw(report, folder)?;
    }
    Ok(())
}

fn object_id(number: u32) -> Result<ObjectId, BenchError> {
    Ok(ObjectId::try_from(format!("study/{number}").as_str())?)
}

/// The place that the clients of a measurement work on.
enum Place {
    Deployed(Deployed),
    Pool(Namespace),
}

impl Place {
    /// Returns the address that clients are given.
    fn address(&self) -> &str {
        match self {
            Self::Deployed(deployed) => deployed.address(),
            Self::Pool(namespace) => namespace.uri(),
        }
    }

    /// Returns the processor time that the servers have used, if they are the study's.
    fn cpu_time(&self) -> Option<Duration> {
        match self {
            Self::Deployed(deployed) => Some(deployed.cpu_time()),
            Self::Pool(_) => None,
        }
    }
}

/// Starts the servers of a measurement, or finds a place in the pool.
async fn deploy(args: &Args, common: &Common, point: &Point) -> Result<Place, BenchError> {
    let folder = args.files.folder();
    let is_durable = point.durability == Durability::Always;
    let deployed = match point.subject {
        Subject::Redis => Deployed::Peer(peer::redis::start(is_durable, folder).await?),
        Subject::Nats => Deployed::Peer(peer::nats::start(is_durable, folder).await?),
        Subject::Log | Subject::Object | Subject::Disk => {
            let plan = ServerPlan { durability: point.durability, ..ServerPlan::volatile(1) };
            Deployed::Nacre(Servers::start(&common.nacre()?, plan, folder).await?)
        }
        Subject::LogOnCeph | Subject::ClassCall | Subject::LuaCall | Subject::RadosAppend => {
            let store = common.store.as_deref().ok_or_else(|| BenchError::Usage(WITHOUT_POOL.into()))?;
            return Ok(Place::Pool(Namespace::open(store).await?));
        }
    };
    Ok(Place::Deployed(deployed))
}

/// Makes what the clients work on. Returns the log, if there is one, and the number of entries that are there.
async fn prepare(args: &Args, point: &Point, store: &nacre::Store) -> Result<(Option<Log>, u64), BenchError> {
    let entries = match (point.work, args.quick) {
        (Work::Read, true) => 4000,
        (Work::Read, false) => 40_000,
        _ => 0,
    };
    let payload = content(point.entry_bytes, 0);
    match point.subject {
        Subject::Log | Subject::LogOnCeph => {
            let policy = match point.sequencing {
                Sequencing::Store => None,
                Sequencing::RoundTrip => Some(Policy::RoundTrip),
                Sequencing::Quota => {
                    Some(Policy::Quota { operations: 100_000, within: Duration::from_millis(10) })
                }
            };
            if let Some(policy) = policy {
                store.sequencer(SEQUENCER).await?.create(policy).await?;
            }
            let shape = Shape { width: point.width, unit: point.unit };
            store.logs().map_err(failed)?.create(NAME, shape).await.map_err(failed)?;
            let log = open_log(store, point.sequencing).await?;
            fill(&log, entries, &payload).await?;
            Ok((Some(log), entries))
        }
        _ => {
            for number in 0..entries {
                let object = object_id((number % u64::from(OBJECTS)) as u32)?;
                let offset = number / u64::from(OBJECTS) * u64::from(point.entry_bytes);
                store.object(object.as_bytes())?.write(offset, payload.clone()).await?;
            }
            Ok((None, entries))
        }
    }
}

/// Appends a number of entries.
async fn fill(log: &Log, entries: u64, payload: &bytes::Bytes) -> Result<(), BenchError> {
    let mut appending = FuturesUnordered::new();
    for _ in 0..entries {
        appending.push(log.appender().submit(Entry::new(payload.clone())).await.map_err(failed)?);
        while appending.len() >= 8192 {
            appending.next().await.transpose().map_err(failed)?;
        }
    }
    while let Some(appended) = appending.next().await {
        appended.map_err(failed)?;
    }
    Ok(())
}

async fn measure_once(args: &Args, common: &Common, point: &Point) -> Result<Measurement, BenchError> {
    let window = args.window(point);
    if point.subject == Subject::Disk {
        let begun = crate::kit::machine::cpu_time();
        let (entries, latencies) = disk::measure(point, args.files.folder(), window)?;
        let cpu = crate::kit::machine::cpu_time() - begun;
        return Ok(measurement(entries, window, &latencies, (cpu, None), Vec::new()));
    }
    let place = deploy(args, common, point).await?;
    let store = match point.subject {
        Subject::Log | Subject::LogOnCeph | Subject::Object => Some(server::open(place.address()).await?),
        _ => None,
    };
    let (log, entries) = match &store {
        Some(store) => prepare(args, point, store).await?,
        None => (None, 0),
    };
    let orders: Vec<Orders> = (0..point.clients)
        .map(|client| Orders {
            subject: point.subject,
            work: point.work,
            place: place.address().to_owned(),
            client,
            writers: (point.writers + point.clients - 1 - client) / point.clients,
            depth: point.depth,
            apart: point.apart,
            entry_bytes: point.entry_bytes,
            width: point.width,
            sequencing: point.sequencing,
            entries,
            window_ms: window.as_millis() as u64,
        })
        .collect();
    let mut crew = Crew::start(CLIENT, &orders).await?;
    let before = (crew.cpu_time(), place.cpu_time());
    let mut reshaped = Vec::new();
    let tallies: Vec<ClientRecord> = match (point.reshape_ms, &log) {
        (Some(pause_ms), Some(log)) => {
            let reshapes = reshape(log, point, Duration::from_millis(pause_ms), &mut reshaped);
            tokio::select! {
                tallies = crew.round(&()) => tallies?,
                failed = reshapes => return Err(failed),
            }
        }
        _ => crew.round(&()).await?,
    };
    let after = (crew.cpu_time(), place.cpu_time());
    let server_cpu = before.1.zip(after.1).map(|(before, after)| after.saturating_sub(before));
    let cpu = (after.0.saturating_sub(before.0), server_cpu);
    if let (Some(log), Work::Append) = (&log, point.work) {
        check(point, log, &tallies).await?;
    }
    let mut latencies = Latencies::new()?;
    tallies.iter().for_each(|tally| latencies.add(&tally.latency_ns_counts));
    let operations = tallies.iter().map(|tally| tally.operations).sum();
    drop(log);
    if let Some(store) = store {
        store.end_sequencers().await;
    }
    if let Place::Pool(namespace) = place {
        if point.subject != Subject::LogOnCeph {
            namespace.check(point, operations).await?;
        }
        crew.end().await?;
        namespace.remove()?;
    }
    Ok(measurement(operations, window, &latencies, cpu, reshaped))
}

/// Sums up a repetition; the processor times are the clients' and the server's, if there is one.
fn measurement(
    operations: u64,
    window: Duration,
    latencies: &Latencies,
    (client_cpu, server_cpu): (Duration, Option<Duration>),
    reshaped_ms: Vec<f64>,
) -> Measurement {
    let each_us = |cpu: Duration| cpu.as_secs_f64() * 1e6 / operations.max(1) as f64;
    Measurement {
        per_second: operations as f64 / window.as_secs_f64(),
        latency: latencies.summary(),
        latency_ns_counts: latencies.coarse_counts(),
        client_cpu_us: each_us(client_cpu),
        server_cpu_us: server_cpu.map(each_us),
        reshaped_ms,
    }
}

/// Changes the view again and again, onto more objects each time and then onto few again; returns the failure that ends it.
async fn reshape(log: &Log, point: &Point, pause: Duration, took_ms: &mut Vec<f64>) -> BenchError {
    for number in 1.. {
        tokio::time::sleep(pause).await;
        let begun = Instant::now();
        let shape = Shape { width: point.width << (number % 4), unit: point.unit };
        if let Err(error) = log.reshape(shape).await {
            return failed(error);
        }
        took_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    unreachable!("there is no greatest number")
}

/// Checks that no position was given to two clients, and that entries that were acknowledged are there.
async fn check(point: &Point, log: &Log, tallies: &[ClientRecord]) -> Result<(), BenchError> {
    if let Some([one, other]) = span::overlap(tallies.iter().map(|tally| &tally.spans)) {
        return Err(BenchError::Lost(format!("positions were given to two entries: {one:?} and {other:?}")));
    }
    for (client, tally) in (0..).zip(tallies) {
        let expected = content(point.entry_bytes, client);
        let spans = tally.spans.list();
        let step = (spans.len() / CHECKED).max(1);
        for (first, end) in spans.iter().step_by(step) {
            for position in [*first, end - 1] {
                match log.read(position).await.map_err(failed)? {
                    Slot::Entry(entry) if entry.data == expected => {}
                    _ => {
                        let text = format!("the entry at position {position} was acknowledged, and is lost");
                        return Err(BenchError::Lost(text));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Recovers a log of a number of small entries, again and again.
async fn recover(args: &Args, common: &Common, entries: u64) -> Result<Recovery, BenchError> {
    let plan = ServerPlan::volatile(1);
    let servers = Servers::start(&common.nacre()?, plan, args.files.folder()).await?;
    let store = server::open(&servers.uri).await?;
    store.logs().map_err(failed)?.create(NAME, Shape { width: 4, unit: 1024 }).await.map_err(failed)?;
    let log = open_log(&store, Sequencing::Store).await?;
    fill(&log, entries, &content(8, 0)).await?;
    let mut ms = Vec::new();
    for _ in 0..RECOVERIES {
        let begun = Instant::now();
        let recovered = log.seal().await.map_err(failed)?;
        ms.push(begun.elapsed().as_secs_f64() * 1e3);
        if recovered.tail != entries {
            let text = format!("a log of {entries} entries was recovered as one of {}", recovered.tail);
            return Err(BenchError::Lost(text));
        }
    }
    Ok(Recovery { entries, ms })
}
