//! The study of propagation (*Malacology: A Programmable Storage System*, sections 4.1, 4.4 and 6.1.2, figure 6): the time from the commit
//! of an interface until every server runs it, by several ways of telling the servers; what the ways cost; the rate of commits; and,
//! simulated, as many as a hundred thousand servers.

mod ask;
mod commits;
mod committer;
mod figures;
mod point;
mod reflector;
mod relay;
mod simulate;
mod subscriber;
mod targets;

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use nacre_quantity::parse_time;
pub(crate) use subscriber::main as server_main;

use self::committer::{Committer, Times};
use self::point::{Distribution, Measurement, Point, Results, Way, quantile_us};
use self::reflector::Reflector;
use self::subscriber::{Answer, Orders, Seen, Work};
use crate::kit::arguments::FileArgs;
use crate::kit::machine::load_average;
use crate::kit::process::Crew;
use crate::kit::report::Report;
use crate::kit::server::{Durability, ServerPlan, Servers};
use crate::kit::study::{self, Steps, by_turns};
use crate::{BenchError, Common};

/// The command that makes this program a process of servers.
const SERVER: &str = "propagate-server";
/// The class, and its method.
const CLASS: &str = "study";
const METHOD: &str = "version";
/// The map, where updates are its epochs.
const MAP: &str = "study";
/// The object whose watchers are sent texts.
const PUSHED: &str = "study/pushed";
/// The length of a text: about that of a short class.
const TEXT_BYTES: usize = 1024;
/// The updates before those that are counted.
const WARM_UP: u64 = 5;

/// Measure how fast a new version of a class, or a new epoch of a map, is live at all servers, and how many can be made
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Measure few servers and few updates, in less than a minute
    #[arg(long)]
    quick: bool,
    /// Parts to measure
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Ways of telling servers
    #[arg(long, value_enum, value_name = "WAY", value_delimiter = ',')]
    ways: Vec<Way>,
    /// Numbers of servers [default: 3,120; with --quick: 3]
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    servers: Vec<u32>,
    /// Number of subscribers in the part "subscribers" [default: 1000; with --quick: 24]
    #[arg(long, value_name = "COUNT")]
    subscribers: Option<u32>,
    /// Number of updates of each point [default: 1000; with --quick: 20]
    #[arg(long, value_name = "COUNT")]
    updates: Option<u64>,
    /// Time from one update to the next, at least
    #[arg(long, value_parser = parse_time, value_name = "TIME", default_value = "20ms")]
    pace: Duration,
    /// Servers that a server passes records on to: in a tree, and by gossip
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    fan_out: u32,
    /// Length of the measured window of commits [default: 2s; with --quick: 200ms]
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
    /// Servers, each a process with a connection.
    Servers,
    /// Many servers with a connection each, some hundred in each process.
    Subscribers,
    /// Commits by the time for which updates are gathered.
    Commits,
    /// Up to a hundred thousand servers, simulated with the times of service of the servers that were measured.
    Simulation,
}

impl Args {
    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    fn ways(&self) -> Vec<Way> {
        match self.ways.is_empty() {
            true => vec![Way::Ask, Way::Watch, Way::Map, Way::Push, Way::Tree, Way::Gossip, Way::Reflect],
            false => self.ways.clone(),
        }
    }

    fn servers(&self) -> &[u32] {
        match (&self.servers[..], self.quick) {
            ([], true) => &[3],
            ([], false) => &[3, 120],
            (servers, _) => servers,
        }
    }

    fn durabilities(&self) -> &[Durability] {
        if self.quick { &[Durability::Volatile] } else { &[Durability::Volatile, Durability::Always] }
    }

    fn subscribers(&self) -> u32 {
        self.subscribers.unwrap_or(if self.quick { 24 } else { 1000 })
    }

    fn updates(&self) -> u64 {
        self.updates.unwrap_or(if self.quick { 20 } else { 1000 })
    }

    fn window(&self) -> Duration {
        self.window.unwrap_or(Duration::from_millis(if self.quick { 200 } else { 2000 }))
    }

    fn repetitions(&self) -> u32 {
        self.repeat.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// Returns the points, in groups that are compared with each other.
    fn groups(&self) -> Vec<Vec<Point>> {
        let point = |way: Way, servers: u32, per_process: u32, durability: Durability| Point {
            label: format!(
                "{}, {servers} {}, {}",
                way.name(),
                if per_process == 1 { "servers" } else { "subscribers" },
                point::name(durability)
            ),
            way,
            servers,
            per_process,
            durability,
            // More links tell everybody sooner; but each record then comes so often.
            fan_out: if way == Way::Gossip { self.fan_out.min(GOSSIP_FAN_OUT) } else { self.fan_out },
            updates: self.updates(),
            pace_ms: self.pace.as_secs_f64() * 1e3,
        };
        let mut groups = Vec::new();
        if self.has(Part::Servers) {
            for servers in self.servers() {
                for durability in self.durabilities() {
                    let ways = self.ways().into_iter();
                    groups.push(ways.map(|way| point(way, *servers, 1, *durability)).collect());
                }
            }
        }
        if self.has(Part::Subscribers) {
            let (all, per_process) = (self.subscribers(), self.subscribers().div_ceil(SUBSCRIBER_PROCESSES));
            // Where servers pass records on, each is a process.
            let ways = self.ways().into_iter().filter(|way| matches!(way, Way::Watch | Way::Map | Way::Push));
            let few = |way| Point {
                // Nobody is to wait for those of the update before.
                pace_ms: (self.pace.as_secs_f64() * 1e3).max(f64::from(all) / 10.0),
                updates: self.updates().div_ceil(5),
                ..point(way, all, per_process, Durability::Volatile)
            };
            groups.push(ways.map(few).collect());
        }
        groups
    }
}

/// The processes of many subscribers.
const SUBSCRIBER_PROCESSES: u32 = 4;
/// The most servers that one passes a record on to by gossip.
const GOSSIP_FAN_OUT: u32 = 4;

/// Runs the study, prints the tables, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, or a server ran another version than it said.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    args.files.check(args.out.as_deref())?;
    let counts =
        [u64::from(args.repetitions()), args.updates(), args.subscribers().into(), args.fan_out.into()];
    if counts.contains(&0) || args.servers().contains(&0) || args.window().is_zero() {
        let text = "--repeat, --updates, --servers, --subscribers, --fan-out and --window are greater than 0";
        return Err(BenchError::Usage(text.into()));
    }
    if common.store.is_some() {
        let text = "the study of propagation starts the servers that it needs; leave out --store";
        return Err(BenchError::Usage(text.into()));
    }
    let results = Results { load_at_start: load_average(), ..Results::default() };
    let report = Report::new("propagate", [], results, args.files.results());
    study::run(report, common, async |report| measure(args, common, report).await)
}

async fn measure(args: &Args, common: &Common, report: &mut Report<Results>) -> Result<(), BenchError> {
    let groups = args.groups();
    let commits = if args.has(Part::Commits) { commits::points(args) } else { Vec::new() };
    let count = groups.iter().map(Vec::len).sum::<usize>() + commits.len();
    let steps = Steps::new(count as u64 * u64::from(args.repetitions()));
    for points in &groups {
        let once = async |point: &Point, repetition| {
            steps.step(&point.label, repetition)?;
            match point.way {
                Way::Ask => ask::measure(args, common, point).await,
                _ => measure_once(args, common, point).await,
            }
        };
        by_turns(report, |results| &mut results.series, points, args.repetitions(), once).await?;
        report.keep()?;
    }
    let once = async |point: &point::CommitPoint, repetition| {
        steps.step(&point.label, repetition)?;
        commits::measure(args, common, point).await
    };
    by_turns(report, |results| &mut results.commits, &commits, args.repetitions(), once).await?;
    report.keep()?;
    if args.has(Part::Simulation) {
        simulate_all(args, report).await?;
        report.keep()?;
    }
    if let Some(folder) = &args.out {
        report.figures = figures::draw(report, folder)?;
    }
    Ok(())
}

/// Simulates the ways whose times of service were measured.
async fn simulate_all(args: &Args, report: &mut Report<Results>) -> Result<(), BenchError> {
    let sizes: &[u32] = if args.quick { &[1000] } else { &[1000, 10_000, 100_000] };
    for servers in sizes {
        for (way, fan_out) in [
            (Way::Watch, args.fan_out),
            (Way::Push, args.fan_out),
            (Way::Tree, args.fan_out),
            (Way::Tree, 4 * args.fan_out),
            (Way::Gossip, args.fan_out.min(GOSSIP_FAN_OUT)),
        ] {
            let Some(service) = simulate::service(&report.series, way) else { continue };
            let run = simulate::simulate(way, *servers, fan_out, service, simulate::NETWORK)?;
            report.simulated.push(run);
            // A signal is looked at between two runs.
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Measures a way in which servers are told.
async fn measure_once(args: &Args, common: &Common, point: &Point) -> Result<Measurement, BenchError> {
    let plan = ServerPlan { durability: point.durability, ..ServerPlan::volatile(1) };
    let store = Servers::start(&common.nacre()?, plan, args.files.folder()).await?;
    let orders: Vec<Orders> = (0..point.servers)
        .step_by(point.per_process as usize)
        .map(|first| Orders {
            way: point.way,
            uri: store.uri.clone(),
            first,
            count: point.per_process.min(point.servers - first),
            servers: point.servers,
            fan_out: point.fan_out,
        })
        .collect();
    let mut committer = Committer::open(point.way, &store.uri).await?;
    let mut crew = Crew::start(SERVER, &orders).await?;
    let mut addresses = Vec::new();
    if point.way.listens() {
        for answer in crew.round::<Work, Answer>(&Work::Listen).await? {
            if let Answer::Listening(address) = answer {
                addresses.push(address);
            }
        }
    }
    if point.way.relays() {
        crew.round::<Work, Answer>(&Work::Link(addresses.clone())).await?;
    }
    // It works for as long as this is held.
    let _reflector = match point.way {
        Way::Reflect => Some(reflect(&mut committer, &addresses)?),
        _ => None,
    };
    // Calls are made before and after what is measured, so that they do not take its processors.
    let (_, before) = observe(&mut crew, &mut committer, point, WARM_UP, true).await?;
    let cpu = [store.cpu_time(), crew.cpu_time()];
    let (times, seen) = observe(&mut crew, &mut committer, point, point.updates, false).await?;
    let cpu = [store.cpu_time().saturating_sub(cpu[0]), crew.cpu_time().saturating_sub(cpu[1])];
    let memory = (store.memory_bytes(), crew.memory_bytes() / orders.len().max(1) as u64);
    let (_, after) = observe(&mut crew, &mut committer, point, 1, true).await?;
    crew.end().await?;
    let live: Vec<Vec<(u64, u64)>> = seen.into_iter().flat_map(|seen| seen.live).collect();
    let each_us =
        |cpu: Duration, servers: u32| cpu.as_secs_f64() * 1e6 / point.updates as f64 / f64::from(servers);
    let mut measured = evaluate(WARM_UP, &times, &live)?;
    measured.verified = before.iter().chain(&after).map(|seen| seen.verified).sum();
    measured.store_cpu_us = each_us(cpu[0], 1);
    measured.server_cpu_us = Some(each_us(cpu[1], point.servers));
    (measured.store_memory_bytes, measured.process_memory_bytes) = (memory.0, Some(memory.1));
    measured.disk_bytes = store.disk_bytes();
    Ok(measured)
}

/// Starts a reflector with a group of all servers and the maker of updates.
fn reflect(committer: &mut Committer, addresses: &[String]) -> Result<Reflector, BenchError> {
    let mut members = addresses
        .iter()
        .map(|address| address.parse())
        .collect::<Result<Vec<std::net::SocketAddr>, _>>()
        .map_err(|error| BenchError::Process(format!("a server has no address: {error}")))?;
    members.extend(committer.address()?);
    let reflector = Reflector::start(members)?;
    committer.send_to(reflector.address);
    Ok(reflector)
}

/// Makes a number of updates, and has all servers wait for the last of them.
async fn observe(
    crew: &mut Crew,
    committer: &mut Committer,
    point: &Point,
    updates: u64,
    call: bool,
) -> Result<(Vec<Times>, Vec<Seen>), BenchError> {
    let work = Work::Observe { version: committer.version() + updates, call };
    let answers = crew.round::<Work, Answer>(&work);
    let (answers, times) = futures::future::try_join(answers, committer.run(point, updates)).await?;
    let seen = answers.into_iter().filter_map(|answer| match answer {
        Answer::Seen(seen) => Some(seen),
        _ => None,
    });
    Ok((times, seen.collect()))
}

/// Returns the times of updates, given the version before the first of them, and the versions that each server has seen.
///
/// # Errors
/// If a server has not seen one of them, nor a later one.
fn evaluate(before: u64, times: &[Times], live: &[Vec<(u64, u64)>]) -> Result<Measurement, BenchError> {
    let (mut requested, mut committed, mut superseded) = (Vec::new(), Vec::new(), 0);
    for seen in live {
        let mut seen = seen.iter().copied().peekable();
        for (version, times) in (before + 1..).zip(times) {
            while seen.peek().is_some_and(|(later, _)| *later < version) {
                seen.next();
            }
            let Some((live, at_ns)) = seen.peek() else {
                return Err(BenchError::Lost(format!("version {version} was never live at a server")));
            };
            superseded += u64::from(*live > version);
            requested.push(at_ns.saturating_sub(times.requested_ns));
            committed.push(at_ns.saturating_sub(times.committed_ns));
        }
    }
    let mut commit: Vec<u64> =
        times.iter().map(|times| times.committed_ns.saturating_sub(times.requested_ns)).collect();
    requested.sort_unstable();
    committed.sort_unstable();
    commit.sort_unstable();
    Ok(Measurement {
        live: Distribution::of(&requested),
        since_commit: Distribution::of(&committed),
        commit: Distribution::of(&commit),
        hundredths_us: (0..=100u32).map(|share| quantile_us(&requested, f64::from(share) / 100.0)).collect(),
        superseded,
        verified: 0,
        store_cpu_us: 0.0,
        server_cpu_us: None,
        store_memory_bytes: 0,
        process_memory_bytes: None,
        disk_bytes: 0,
    })
}

/// Returns the text of a version: a class whose method returns that.
fn text(version: u64) -> Bytes {
    let method = format!("function {METHOD}(input, output) output:append('{version}') end\n");
    let register = format!("objclass.register({METHOD}, {{ writes = false }})\n");
    let filling = TEXT_BYTES.saturating_sub(method.len() + register.len() + 4);
    format!("-- {}\n{method}{register}", "-".repeat(filling)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_class_of_one_method() {
        let text = text(17);
        assert_eq!(text.len(), TEXT_BYTES);
        let runtime = nacre_class::Runtime::new(1);
        let class = nacre_class::validate(&runtime, CLASS, text, Default::default()).unwrap();
        assert_eq!((class.methods.len(), &class.methods[0].name[..]), (1, METHOD));
        assert!(!class.methods[0].writes);
    }

    #[test]
    fn a_later_version_counts_for_those_that_it_superseded() {
        let times: Vec<Times> =
            [1000, 2000, 3000].map(|ns| Times { requested_ns: ns, committed_ns: ns + 100 }).to_vec();
        let live = [vec![(6, 1500), (8, 3600)], vec![(6, 1090), (7, 2200), (8, 3300)]];
        let measured = evaluate(5, &times, &live).unwrap();
        // The first server had version 8 when 7 was due: 1,600 ns after that was requested.
        assert_eq!((measured.superseded, measured.live.max_us), (1, 1.6));
        // A server may be faster than the reply.
        assert_eq!(measured.since_commit.p50_us, 0.2);
        assert!(evaluate(5, &times, &[vec![(6, 1500)]]).is_err());
    }

    #[test]
    fn every_way_is_measured_with_few_and_many_servers() {
        let args: Args = crate::kit::parse(&[]).unwrap();
        let groups = args.groups();
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [7, 7, 7, 7, 3]);
        let most = groups[4].iter().all(|point| point.servers == 1000 && point.per_process == 250);
        assert!(most, "{:?}", groups[4]);
        let args: Args =
            crate::kit::parse(&["--quick", "--only", "servers", "--ways", "watch,tree"]).unwrap();
        assert_eq!(args.groups().iter().map(Vec::len).collect::<Vec<_>>(), [2]);
    }
}
