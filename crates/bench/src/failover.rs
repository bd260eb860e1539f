//! The study of fail-over (*Malacology: A Programmable Storage System*, section 6.2.2, figure 10): two sequencers whose clients take
//! positions while the metadata rank that hands them out loses its authority.
//!
//! A store in a process of its own, an active daemon and two that stand by in front of it, and a client process for each sequencer.
//! The active daemon is killed, ended, stopped, cut off from the store, hands over, or is left alone. Measured are the positions over
//! time, the longest pause of each client, and the rates before and after. Every position is kept as a bit: none may come twice, and
//! those that nobody got are counted. Beside it a cluster of etcd with three members loses its leader.

mod client;
mod figures;
mod point;
mod proxy;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use client::main as client_main;
use futures::future::try_join;
use nacre_quantity::parse_time;
use rustix::process::Signal;
use tempfile::TempDir;

use self::client::{ClientRecord, Orders};
use self::point::{Event, Measurement, Point, Results, SequencerRecord, System};
use self::proxy::Proxy;
use crate::kit::arguments::FileArgs;
use crate::kit::machine::{load_average, now_ns};
use crate::kit::peer::{Peer, etcd, temporary_folder};
use crate::kit::process::Crew;
use crate::kit::report::Report;
use crate::kit::server::{self, Daemon, Durability};
use crate::kit::study::{self, Steps, by_turns};
use crate::sequencer::failover::{create, stand_by};
use crate::{BenchError, Common};

/// The command that makes this program a client.
const CLIENT: &str = "failover-client";
/// The daemons that stand by.
const STANDBYS: usize = 2;
/// The members of the peer's cluster.
const MEMBERS: usize = 3;
/// The longest time that a study measures for, which bounds what it keeps.
const WINDOW_MAX: Duration = Duration::from_secs(3600);

/// Take positions while the rank that hands them out is killed, stopped, cut off or handed over
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Events that are measured, each in runs of its own [default: all]
    #[arg(long, value_enum, value_name = "EVENT,…", value_delimiter = ',')]
    event: Vec<Event>,
    /// Measure Nacre alone
    #[arg(long)]
    no_peer: bool,
    /// Measure each event once and for some seconds
    #[arg(long)]
    quick: bool,
    /// Time from the beginning to the event [default: 60s for kill, as in the paper, 10s for others; with --quick: 1s]
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    before: Option<Duration>,
    /// Time from the event to the end [default: 30s for kill, 10s for others; with --quick: 3s]
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    after: Option<Duration>,
    /// Number of sequencers, each with a client process
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = nacre_quantity::count_parser::<u32>(1..=64))]
    sequencers: u32,
    /// Number of clients of each sequencer, each with a connection and one request under way
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = nacre_quantity::count_parser::<u32>(1..=1024))]
    clients: u32,
    /// Number of repetitions of each event [default: 5; with --quick: 1]
    #[arg(long, value_name = "N", value_parser = nacre_quantity::count_parser::<u32>(1..=1000))]
    repeat: Option<u32>,
    /// Durability of the store
    #[arg(long, value_enum, default_value = "volatile")]
    durability: Durability,
    /// Folder for the figures
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    out: PathBuf,
    #[command(flatten)]
    files: FileArgs,
}

impl Args {
    fn before(&self, event: Event) -> Duration {
        self.before.unwrap_or(match event {
            _ if self.quick => Duration::from_secs(1),
            Event::Kill => Duration::from_secs(60),
            _ => Duration::from_secs(10),
        })
    }

    fn after(&self, event: Event) -> Duration {
        self.after.unwrap_or(match event {
            _ if self.quick => Duration::from_secs(3),
            Event::Kill => Duration::from_secs(30),
            _ => Duration::from_secs(10),
        })
    }

    fn repetitions(&self) -> u32 {
        self.repeat.unwrap_or(if self.quick { 1 } else { 5 })
    }

    /// Returns the events, each once, in the order in which they are measured.
    fn events(&self) -> impl Iterator<Item = Event> {
        let is_wanted = move |event: &Event| self.event.is_empty() || self.event.contains(event);
        Event::ALL.into_iter().filter(is_wanted)
    }

    fn points(&self) -> Vec<Point> {
        let point = |label: String, system, event, sequencers| Point {
            label,
            system,
            event,
            sequencers,
            clients: self.clients,
            before_ms: self.before(event).as_millis() as u64,
            after_ms: self.after(event).as_millis() as u64,
            durability: self.durability,
        };
        let mut points: Vec<Point> = self
            .events()
            .map(|event| point(event.name().to_owned(), System::Nacre, event, self.sequencers))
            .collect();
        if !self.no_peer && self.events().any(|event| event == Event::Kill) {
            // Its counter is the revision of the whole store, so there is one.
            points.push(Point {
                durability: Durability::Always,
                clients: self.clients * self.sequencers,
                ..point("etcd, kill of the leader".to_owned(), System::Etcd, Event::Kill, 1)
            });
        }
        points
    }
}

/// Runs the study, prints the table, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, a client saw an error, or a position was handed out twice.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    args.files.check(Some(&args.out))?;
    let points = args.points();
    for point in &points {
        let window = Duration::from_millis(point.before_ms + point.after_ms);
        if point.before_ms < 100 || point.after_ms < 100 || window > WINDOW_MAX {
            let text = "--before and --after are at least 100ms, and at most an hour together";
            return Err(BenchError::Usage(text.into()));
        }
    }
    let has_peer = points.iter().any(|point| point.system == System::Etcd);
    let results = Results { load_at_start: load_average(), ..Results::default() };
    let report =
        Report::new("failover", [has_peer.then(etcd::version).flatten()], results, args.files.results());
    study::run(report, common, async |report| measure(args, common, &points, report).await)
}

async fn measure(
    args: &Args,
    common: &Common,
    points: &[Point],
    report: &mut Report<Results>,
) -> Result<(), BenchError> {
    let program = common.nacre()?;
    let steps = Steps::new(points.len() as u64 * u64::from(args.repetitions()));
    for point in points {
        let once = async |point: &Point, repetition| {
            steps.step(&point.label, repetition)?;
            match point.system {
                System::Nacre => measure_nacre(args, &program, point).await,
                System::Etcd => measure_etcd(args, point).await,
            }
        };
        let point = std::slice::from_ref(point);
        by_turns(report, |results| &mut results.series, point, args.repetitions(), once).await?;
        report.keep()?;
    }
    report.figures = figures::draw(&report.series, &args.out)?;
    Ok(())
}

/// A store, the daemons of its metadata rank, and what else they need.
struct Deployed {
    store: nacre::Store,
    /// The daemon that has the authority at first, and those that stand by.
    active: Daemon,
    _standbys: Vec<Daemon>,
    /// The active daemon's way to the store, where it is to be cut.
    proxy: Option<Proxy>,
    keeper: Daemon,
    _folder: TempDir,
}

impl Deployed {
    async fn start(args: &Args, program: &Path, point: &Point) -> Result<Deployed, BenchError> {
        let folder = temporary_folder(args.files.folder())?;
        let place = match point.durability {
            Durability::Volatile => "mem:".to_owned(),
            _ => format!("file:{}", folder.path().join("store").display()),
        };
        let mut words = vec!["--store", &place, "--roles", "store"];
        if point.durability == Durability::None {
            words.extend(["--durability", "none"]);
        }
        let keeper = Daemon::start(program, &words).await?;
        let proxy = match point.event {
            Event::Partition => Some(Proxy::start(keeper.uri.trim_start_matches("nacre://")).await?),
            _ => None,
        };
        let to_store =
            proxy.as_ref().map_or(keeper.uri.clone(), |proxy| format!("nacre://{}", proxy.address));
        let active = Daemon::start(program, &["--store", &to_store, "--roles", "store,meta"]).await?;
        let store = server::open(&keeper.uri).await?;
        // Made before others stand by, so that the first one has the authority.
        for number in 0..point.sequencers {
            create(&store, &name(number)).await?;
        }
        let mut standbys = Vec::with_capacity(STANDBYS);
        for _ in 0..STANDBYS {
            standbys.push(Daemon::start(program, &["--store", &keeper.uri, "--roles", "store,meta"]).await?);
        }
        stand_by(&store, STANDBYS).await?;
        Ok(Deployed { store, active, _standbys: standbys, proxy, keeper, _folder: folder })
    }

    /// Takes the authority from the active daemon. One that is only away for a while comes back after half of the rest.
    async fn act(&mut self, point: &Point) -> Result<(), BenchError> {
        let away = Duration::from_millis(point.after_ms / 2);
        match point.event {
            Event::Nothing => Ok(()),
            Event::Kill => self.active.kill().await,
            Event::HandOver => Ok(self.store.fail_rank(0).await?),
            Event::Terminate => self.active.signal(Signal::TERM),
            Event::Stop => {
                self.active.signal(Signal::STOP)?;
                tokio::time::sleep(away).await;
                self.active.signal(Signal::CONT)
            }
            Event::Partition => {
                if let Some(proxy) = &self.proxy {
                    proxy.cut(true);
                    tokio::time::sleep(away).await;
                    proxy.cut(false);
                }
                Ok(())
            }
        }
    }
}

/// Returns the name of a sequencer.
fn name(number: u32) -> String {
    format!("study-{number}")
}

async fn measure_nacre(args: &Args, program: &Path, point: &Point) -> Result<Measurement, BenchError> {
    let mut deployed = Deployed::start(args, program, point).await?;
    let orders = orders(point, vec![deployed.keeper.uri.clone()]);
    let crew = Crew::start(CLIENT, &orders).await?;
    run_crew(crew, point, async || deployed.act(point).await).await
}

async fn measure_etcd(args: &Args, point: &Point) -> Result<Measurement, BenchError> {
    let mut members = etcd::start_cluster(MEMBERS, args.files.folder()).await?;
    let places = members.iter().map(|member| member.address.clone()).collect();
    let crew = Crew::start(CLIENT, &orders(point, places)).await?;
    run_crew(crew, point, async || {
        // It may have changed since the beginning.
        let leader = leader(&members).await?;
        // Killed, as all peers are when they are dropped.
        drop(members.swap_remove(leader));
        Ok(())
    })
    .await
}

/// Returns the place of the leader among the members of a cluster.
async fn leader(members: &[Peer]) -> Result<usize, BenchError> {
    for (place, member) in members.iter().enumerate() {
        if etcd::Client::connect(&member.address).await?.is_leader().await? {
            return Ok(place);
        }
    }
    Err(BenchError::peer("etcd", "the cluster has no leader"))
}

/// Returns the orders of each client process.
fn orders(point: &Point, places: Vec<String>) -> Vec<Orders> {
    let of = |number| Orders {
        system: point.system,
        places: places.clone(),
        sequencer: name(number),
        clients: point.clients,
        window_ms: point.before_ms + point.after_ms,
    };
    (0..point.sequencers).map(of).collect()
}

/// Lets the clients begin, and acts when the time before the event is over.
async fn run_crew(
    crew: Crew,
    point: &Point,
    act: impl AsyncFnOnce() -> Result<(), BenchError>,
) -> Result<Measurement, BenchError> {
    let event = async {
        tokio::time::sleep(Duration::from_millis(point.before_ms)).await;
        let at_ns = now_ns();
        act().await?;
        Ok::<_, BenchError>(at_ns)
    };
    let (records, at_ns): (Vec<ClientRecord>, u64) = try_join(crew.run(), event).await?;
    let begin_ns = records.iter().map(|record| record.begin_ns).min().unwrap_or(at_ns);
    let at_ms = at_ns.saturating_sub(begin_ns) as f64 / 1e6;
    let sequencers = records.into_iter().map(|record| SequencerRecord {
        positions: record.positions,
        lost: record.lost,
        gaps: record.gaps,
        pauses: record.pauses,
        bins: record.bins,
    });
    Ok(Measurement::of(point.event, at_ms, sequencers.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::parse;

    #[test]
    fn the_paper_s_times_are_the_default_and_each_event_is_measured_once() {
        let args: Args = parse(&[]).unwrap();
        let points = args.points();
        assert_eq!(points.len(), Event::ALL.len() + 1);
        assert_eq!((points[0].event, points[0].before_ms, points[0].sequencers), (Event::Kill, 60_000, 2));
        assert_eq!((points[6].system, points[6].clients, points[6].sequencers), (System::Etcd, 4, 1));
        let args: Args = parse(&["--event", "stop,hand-over,stop", "--before", "2s"]).unwrap();
        let points: Vec<(Event, u64)> =
            args.points().iter().map(|point| (point.event, point.before_ms)).collect();
        assert_eq!(points, [(Event::HandOver, 2000), (Event::Stop, 2000)]);
        assert_eq!(parse::<Args>(&["--quick", "--no-peer"]).unwrap().points().len(), Event::ALL.len());
        assert!(parse::<Args>(&["--event", "earthquake"]).is_err());
    }

    #[test]
    fn the_names_of_events_are_those_of_the_command_line() {
        for event in Event::ALL {
            let value = clap::ValueEnum::to_possible_value(&event).unwrap();
            assert_eq!(value.get_name(), event.name());
        }
    }
}
