//! The study of balancing (*Malacology: A Programmable Storage System*, sections 5.1 and 6.2.1, figures 7 and 9): sequencers whose
//! clients overload a metadata rank, and what policies and moves by hand make of it.
//!
//! A store in a process of its own, three ranks in front of it, each with a share of a processor, and a client process for each
//! sequencer. All sequencers are at rank 0 at first. Measured are the positions over time, the processor of each rank, and the time for
//! which a sequencer that is moved hands out nothing; every position is kept as a bit, and none may come twice. The same policies are
//! simulated with up to a thousand ranks and a million subtrees, and the time of their decisions is measured.

mod client;
mod cluster;
mod figures;
mod point;
mod results;
mod share;
mod simulate;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use client::main as client_main;
use futures::future::try_join3;
use nacre_quantity::parse_time;

use self::client::{ClientRecord, Orders};
use self::cluster::{Cluster, Moved, name, now};
use self::point::{Load, Measurement, Move, Point, SequencerRecord, System};
use self::results::{RANKS_TARGET, Results};
use self::share::Means;
use self::simulate::{Event, Simulations, Start, Workload};
use crate::kit::arguments::FileArgs;
use crate::kit::machine::load_average;
use crate::kit::process::Crew;
use crate::kit::report::Report;
use crate::kit::server::Durability;
use crate::kit::study::{self, Steps, by_turns};
use crate::{BenchError, Common};

/// The command that makes this program a client.
const CLIENT: &str = "balance-client";
/// The longest time that a study measures for, which bounds what it keeps.
const WINDOW_MAX: Duration = Duration::from_secs(3600);
/// The maximum number of values of a simulation: ranks times ticks.
const STEPS_MAX: usize = 10_000_000;
/// The number of intervals in which the processors of ranks are looked at, and the least length of one.
const SAMPLES: u32 = 60;
const SAMPLE_MIN: Duration = Duration::from_millis(250);

/// A part of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Sequencers and their clients, on servers
    Live,
    /// Policies, simulated
    Simulation,
    /// The processor time of decisions
    Decision,
}

/// Take positions from sequencers that overload a rank, and move them: by policies, by hand, and simulated
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Parts to measure [default: all]
    #[arg(long, value_enum, value_name = "PART,…", value_delimiter = ',')]
    only: Vec<Part>,
    /// Systems that are measured, each in runs of its own [default: all]
    #[arg(long, value_enum, value_name = "SYSTEM,…", value_delimiter = ',')]
    system: Vec<System>,
    /// Measure each system once and for some seconds, and simulate little
    #[arg(long)]
    quick: bool,
    /// Numbers of clients, one for each sequencer; each client has a connection and one request under way
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_values_t = [7, 8],
        value_parser = nacre_quantity::count_parser::<u32>(1..=1024)
    )]
    clients: Vec<u32>,
    /// Share of a processor that each rank has, in percent, where the system has control groups with quotas
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = nacre_quantity::count_parser::<u32>(1..=100))]
    share: u32,
    /// Time from the beginning until a policy is put into force, or a sequencer moved [default: 20s; with --quick: 1s]
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    before: Option<Duration>,
    /// Time from there to the end [default: 60s; with --quick: 4s]
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    after: Option<Duration>,
    /// Time between two decisions of a policy [default: 1s; with --quick: 500ms]
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    tick: Option<Duration>,
    /// Time for which the conservative policy waits, in place of its 120 s [default: 20s; with --quick: 1s]
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    wait: Option<Duration>,
    /// Number of repetitions of each system [default: 3; with --quick: 1]
    #[arg(long, value_name = "N", value_parser = nacre_quantity::count_parser::<u32>(1..=1000))]
    repeat: Option<u32>,
    /// Durability of the store
    #[arg(long, value_enum, default_value = "volatile")]
    durability: Durability,
    /// Numbers of ranks that are simulated [default: 3,30,300,1000; with --quick: 3]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = nacre_quantity::count_parser::<usize>(1..=1024))]
    ranks: Vec<usize>,
    /// Numbers of subtrees that are simulated [default: 1000,10000,100000,1000000; with --quick: 1000]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = nacre_quantity::count_parser::<usize>(1..=1_048_576))]
    subtrees: Vec<usize>,
    /// Number of ticks that are simulated [default: 30; with --quick: 10]
    #[arg(long, value_name = "N", value_parser = nacre_quantity::count_parser::<usize>(1..=100_000))]
    ticks: Option<usize>,
    /// Folder for the figures
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    out: PathBuf,
    #[command(flatten)]
    files: FileArgs,
}

impl Args {
    /// Returns a time of the command line, or the default, in milliseconds.
    fn ms(&self, time: Option<Duration>, default_ms: u64, quick_ms: u64) -> u64 {
        let default_ms = if self.quick { quick_ms } else { default_ms };
        time.map_or(default_ms, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    fn repetitions(&self) -> u32 {
        self.repeat.unwrap_or(if self.quick { 1 } else { 3 })
    }

    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Returns the points, those of each system once, in the order in which they are measured.
    fn points(&self) -> Vec<Point> {
        let is_wanted = |system: &System| self.system.is_empty() || self.system.contains(system);
        let systems = System::ALL.into_iter().filter(is_wanted);
        let point = |system: System| Point {
            system,
            clients: match system {
                System::Alone => self.clients.iter().take(1).copied().collect(),
                _ => self.clients.clone(),
            },
            share_percent: self.share,
            before_ms: self.ms(self.before, 20_000, 1000),
            after_ms: self.ms(self.after, 60_000, 4000),
            tick_ms: self.ms(self.tick, 1000, 500),
            wait_ms: self.ms(self.wait, 20_000, 1000),
            durability: self.durability,
        };
        systems.map(point).collect()
    }

    fn ticks(&self) -> usize {
        self.ticks.unwrap_or(if self.quick { 10 } else { 30 })
    }

    fn sizes(given: &[usize], default: &[usize]) -> Vec<usize> {
        if given.is_empty() { default.to_vec() } else { given.to_vec() }
    }

    /// Returns what is simulated for each policy: where resources are at first, and the numbers of ranks and of subtrees.
    fn simulations(&self) -> Vec<(Start, usize, usize)> {
        let ranks: &[usize] = if self.quick { &[3] } else { &[3, 30, 300, 1000] };
        let subtrees: &[usize] = if self.quick { &[1000] } else { &[1000, 10_000, 100_000, 1_000_000] };
        let (ranks, subtrees) = (Self::sizes(&self.ranks, ranks), Self::sizes(&self.subtrees, subtrees));
        let mut all = Vec::new();
        for start in [Start::One, Start::Skewed] {
            for ranks in &ranks {
                let fitting =
                    subtrees.iter().filter(|subtrees| simulate::fits(start, **subtrees, self.ticks()));
                all.extend(fitting.map(|subtrees| (start, *ranks, *subtrees)));
            }
        }
        all
    }

    fn check(&self) -> Result<(), String> {
        for point in self.points() {
            let window = Duration::from_millis(point.before_ms.saturating_add(point.after_ms));
            if point.before_ms < 100 || point.after_ms < 100 || window > WINDOW_MAX {
                return Err(
                    "--before and --after are at least 100ms, and at most an hour together".to_owned()
                );
            }
            let settings =
                nacre_balance::Settings { tick_ms: point.tick_ms, ..nacre_balance::Settings::default() };
            settings.check()?;
        }
        if self.clients.len() > 64 {
            return Err("there can be 1 to 64 sequencers, each with its number of clients".to_owned());
        }
        let most = self.simulations().iter().map(|(_, ranks, _)| *ranks).max().unwrap_or(0);
        match most * self.ticks() > STEPS_MAX {
            true => Err(format!("{most} ranks for {} ticks are too many to simulate", self.ticks())),
            false => Ok(()),
        }
    }
}

/// Runs the study, prints the tables, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, a client saw an error, or a position was handed out twice.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    args.files.check(Some(&args.out))?;
    args.check().map_err(BenchError::Usage)?;
    if common.store.is_some() {
        let text = "the study of balancing starts the servers that it needs; leave out --store";
        return Err(BenchError::Usage(text.into()));
    }
    let results = Results { load_at_start: load_average(), ..Results::default() };
    let report = Report::new("balance", [], results, args.files.results());
    study::run(report, common, async |report| measure(args, common, report).await)
}

async fn measure(args: &Args, common: &Common, report: &mut Report<Results>) -> Result<(), BenchError> {
    if args.has(Part::Live) {
        let (program, points) = (common.nacre()?, args.points());
        let means = Means::find(args.share);
        report.shares = means.describe(args.share);
        let steps = Steps::new(points.len() as u64 * u64::from(args.repetitions()));
        let once = async |point: &Point, repetition| {
            steps.step(&point.system.label(), repetition)?;
            measure_once(args, &program, &means, point).await
        };
        by_turns(report, |results| &mut results.series, &points, args.repetitions(), once).await?;
        report.keep()?;
    }
    if args.has(Part::Decision) {
        decide_all(args, report).await?;
        report.keep()?;
    }
    if args.has(Part::Simulation) {
        simulate_all(args, report).await?;
        report.keep()?;
    }
    report.figures = figures::draw(report, &args.out)?;
    Ok(())
}

/// Measures the decisions of all policies.
async fn decide_all(args: &Args, report: &mut Report<Results>) -> Result<(), BenchError> {
    let (ranks, ticks) = if args.quick { (100, 5) } else { (RANKS_TARGET, 100) };
    let steps = Steps::new(simulate::policies().len() as u64);
    for policy in simulate::policies() {
        steps.step(&format!("decisions of {}", policy.name), 0)?;
        report.decided.push(simulate::time_decision(policy, ranks, ticks).await?);
    }
    Ok(())
}

/// Simulates all policies, as many at a time as there are processors.
async fn simulate_all(args: &Args, report: &mut Report<Results>) -> Result<(), BenchError> {
    let mut jobs = Vec::new();
    for (start, ranks, subtrees) in args.simulations() {
        let workload = Workload { start, ranks, subtrees, ticks: args.ticks() };
        jobs.extend(simulate::policies().iter().map(|policy| (policy, workload)));
    }
    let steps = Steps::new(jobs.len() as u64);
    let mut simulations = Simulations::start(jobs.clone())?;
    // The numbers of those that are in the report, which has them in order.
    let mut ended: Vec<usize> = Vec::new();
    while let Some(event) = simulations.next().await {
        match event {
            Event::Begun(number) => {
                let (policy, Workload { ranks, subtrees, .. }) = &jobs[number];
                let name = policy.name;
                steps.step(&format!("{name}, {ranks} ranks, {subtrees} subtrees, simulated"), 0)?;
            }
            Event::Ended(number, simulated) => {
                let place = ended.partition_point(|known| *known < number);
                ended.insert(place, number);
                report.simulated.insert(place, simulated?);
                report.keep()?;
            }
        }
    }
    match ended.len() == jobs.len() {
        true => Ok(()),
        false => Err(BenchError::Process("a bug in the simulation ended one of its threads".to_owned())),
    }
}

async fn measure_once(
    args: &Args,
    program: &Path,
    means: &Means,
    point: &Point,
) -> Result<Measurement, BenchError> {
    let cluster = Cluster::start(program, means, point, args.files.folder()).await?;
    let window = Duration::from_millis(point.before_ms + point.after_ms);
    let orders: Vec<Orders> = (0u32..)
        .zip(&point.clients)
        .map(|(number, clients)| Orders {
            place: cluster.uri().to_owned(),
            sequencer: name(number),
            clients: *clients,
            window_ms: point.before_ms + point.after_ms,
        })
        .collect();
    let crew = Crew::start(CLIENT, &orders).await?;
    let act = async {
        tokio::time::sleep(Duration::from_millis(point.before_ms)).await;
        let at = now();
        Ok::<_, BenchError>((at, cluster.act(point).await?))
    };
    let watch = async { Ok::<_, BenchError>(watch(&cluster, window).await) };
    let run = crew.run::<ClientRecord>();
    let (records, (at, mut moved), samples) = try_join3(run, act, watch).await?;
    moved.extend(cluster.moved_by_policy(point.system).await?);
    let begin = records.iter().map(|record| Duration::from_nanos(record.begin_ns)).min().unwrap_or(at);
    // What was before the beginning is at it.
    let ms = |time: Duration| time.saturating_sub(begin).as_secs_f64() * 1e3;
    let moves = moved.iter().filter(|moved| moved.at >= begin).map(|moved| {
        let Moved { sequencer, from, to, at, within } = *moved;
        Move { sequencer, from, to, at_ms: ms(at), within_ms: (ms(within.0), ms(within.1)), pause_ms: 0.0 }
    });
    let sequencers = records.into_iter().map(|record| SequencerRecord {
        positions: record.positions,
        lost: record.lost,
        gaps: record.gaps,
        bins: record.bins,
        longest_ms: record.longest_ms,
    });
    let loads = samples.windows(2).map(|pair| load(&pair[0], &pair[1], ms(pair[1].0))).collect();
    Ok(Measurement::of(ms(at), sequencers.collect(), moves.collect(), loads))
}

/// The processor times of the ranks at a time of the clock that all processes of the machine have in common.
type Sample = (Duration, Vec<Duration>);

/// Looks at the processor times of the ranks again and again until a time is over.
async fn watch(cluster: &Cluster, time: Duration) -> Vec<Sample> {
    let (pause, until) = ((time / SAMPLES).max(SAMPLE_MIN), Instant::now() + time);
    let mut samples = vec![(now(), cluster.cpu_times())];
    while Instant::now() < until {
        tokio::time::sleep(pause).await;
        samples.push((now(), cluster.cpu_times()));
    }
    samples
}

/// Returns what the ranks used of a processor between two samples.
fn load(before: &Sample, after: &Sample, at_ms: f64) -> Load {
    let passed_s = after.0.saturating_sub(before.0).as_secs_f64().max(1e-3);
    let percent = before.1.iter().zip(&after.1).map(|(before, after)| {
        let used = after.saturating_sub(*before);
        100.0 * used.as_secs_f64() / passed_s
    });
    Load { at_ms, percent: percent.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::parse;

    #[test]
    fn the_paper_s_clients_are_the_default_and_each_system_is_measured_once() {
        let args: Args = parse(&[]).unwrap();
        let points = args.points();
        assert_eq!(points.len(), System::ALL.len());
        assert_eq!((&points[0].clients[..], &points[1].clients[..]), (&[7][..], &[7, 8][..]));
        assert_eq!((points[0].before_ms, points[0].after_ms, points[0].tick_ms), (20_000, 60_000, 1000));
        let args: Args = parse(&["--system", "proxy,none,proxy", "--clients", "2,3,4"]).unwrap();
        let points: Vec<(System, usize)> =
            args.points().iter().map(|point| (point.system, point.clients.len())).collect();
        assert_eq!(points, [(System::None, 3), (System::Proxy, 3)]);
        assert!(parse::<Args>(&["--system", "earthquake"]).is_err());
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let checked = |words: &[&str]| parse::<Args>(words).unwrap().check();
        checked(&[]).unwrap();
        checked(&["--quick"]).unwrap();
        assert!(checked(&["--before", "2h"]).unwrap_err().contains("an hour"));
        assert!(checked(&["--after", "10ms"]).unwrap_err().contains("100ms"));
        assert!(checked(&["--tick", "10ms"]).unwrap_err().contains("tick"));
        assert!(checked(&["--ticks", "100000"]).unwrap_err().contains("ticks"));
        assert!(parse::<Args>(&["--share", "101"]).is_err());
        assert!(parse::<Args>(&["--ranks", "5000"]).is_err());
    }

    #[test]
    fn a_million_subtrees_are_not_simulated_at_one_rank() {
        let simulations = parse::<Args>(&[]).unwrap().simulations();
        let at = |start: Start| simulations.iter().filter(|one| one.0 == start).count();
        assert_eq!((at(Start::One), at(Start::Skewed)), (4 * 2, 4 * 4));
        assert_eq!(parse::<Args>(&["--quick"]).unwrap().simulations().len(), 2);
    }

    #[test]
    fn the_load_is_what_was_used_of_a_processor() {
        let at = Duration::from_secs;
        let (before, after) =
            ((at(10), vec![at(1), at(5)]), (at(12), vec![at(2), at(5) + Duration::from_millis(200)]));
        let load = load(&before, &after, 7.0);
        assert_eq!((load.at_ms, load.percent), (7.0, vec![50.0, 10.0]));
    }
}
