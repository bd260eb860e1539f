//! The study of the namespace, in the manner of mdtest: files that are created, looked at, renamed, listed and unlinked by many clients,
//! in one directory or in one for each.
//!
//! The namespace is used by the library and by a mount. Beside it, in the same run, are the machine's own file system, with the syncs
//! that make its changes durable, and a pass-through to that, which is the least that a mount by FUSE costs. Each phase begins when all
//! clients have ended the one before, and what a run has made is checked: listings, sizes, and a sample of the contents.

mod client;
mod figures;
mod floor;
mod mount;
mod point;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use client::main as client_main;
pub(crate) use floor::{FloorArgs, main as floor_main};
use nacre_quantity::{Escaped, parse_time};
use tempfile::TempDir;

use self::client::{ClientRecord, Orders, Place, Work, directory, make_directory, rank};
use self::mount::Mounted;
use self::point::{Layout, Measurement, Phase, PhaseRecord, Point, Results, System, name};
use crate::kit::latency::Latencies;
use crate::kit::machine::load_average;
use crate::kit::peer::{temporary_folder, validate_folder};
use crate::kit::process::Crew;
use crate::kit::report::Report;
use crate::kit::server::{self, Durability, ServerPlan, Servers};
use crate::kit::study::{self, Steps, by_turns};
use crate::{BenchError, Common};

/// The command that makes this program a client.
const CLIENT: &str = "namespace-client";
/// The maximum number of connections of a client process.
const CONNECTIONS_MAX: u32 = 4;
/// The number of processes where there are several.
const PROCESSES: u32 = 4;
/// The size of files that are not empty.
const FILE_BYTES: u32 = 4096;
/// The listings of all clients together; each makes at least one.
const LISTINGS: u32 = 64;

/// Create, stat, rename, list and unlink files: the namespace compared with the machine's file system and with FUSE's floor
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Ways to the files [default: all]
    #[arg(long, value_enum, value_name = "SYSTEM,…", value_delimiter = ',')]
    system: Vec<System>,
    /// Numbers of clients; layouts, sizes and processes are varied with the greatest [default: 1,16,64; with --quick: 8]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = nacre_quantity::count_parser::<u32>(1..=1024))]
    clients: Vec<u32>,
    /// Durabilities [default: volatile,always]
    #[arg(long, value_enum, value_name = "DURABILITY,…", value_delimiter = ',')]
    durability: Vec<Durability>,
    /// Files of all clients together, of which each makes its share [default: 6400; with --quick: 160]
    #[arg(long, value_name = "N", value_parser = nacre_quantity::count_parser::<u32>(1..=10_000_000))]
    files: Option<u32>,
    /// Time for the creation of the files of a run, after which clients go on with those that there are
    #[arg(long, value_parser = parse_time, value_name = "TIME", default_value = "10s")]
    bound: Duration,
    /// Number of repetitions of each point [default: 3; with --quick: 1]
    #[arg(long, value_name = "N", value_parser = nacre_quantity::count_parser::<u32>(1..=1000))]
    repeat: Option<u32>,
    /// Measure each point once, with few files
    #[arg(long)]
    quick: bool,
    /// Folder for the figures
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    out: PathBuf,
    /// File for the raw results, as JSON
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Folder for the files of servers, mounts and the machine's file system, on the disk that is to be measured
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl Args {
    fn repetitions(&self) -> u32 {
        self.repeat.unwrap_or(if self.quick { 1 } else { 3 })
    }

    fn systems(&self) -> Vec<System> {
        let is_wanted = |system: &System| self.system.is_empty() || self.system.contains(system);
        System::ALL.into_iter().filter(is_wanted).collect()
    }

    fn durabilities(&self) -> Vec<Durability> {
        match self.durability.is_empty() {
            true => vec![Durability::Volatile, Durability::Always],
            false => self.durability.clone(),
        }
    }

    fn clients(&self) -> Vec<u32> {
        let mut clients = match self.clients.is_empty() {
            true if self.quick => vec![8],
            true => vec![1, 16, 64],
            false => self.clients.clone(),
        };
        clients.sort_unstable();
        clients.dedup();
        clients
    }

    /// Returns the points by groups, in each of which the systems take turns.
    fn points(&self) -> Vec<Vec<Point>> {
        let files = self.files.unwrap_or(if self.quick { 160 } else { 6400 });
        let point = |system: System,
                     durability: Durability,
                     clients: u32,
                     processes: u32,
                     layout: Layout,
                     file_bytes: u32| {
            let mut label = format!("{}, {}, {clients} C", system.name(), name(durability));
            if layout == Layout::Own {
                label.push_str(", own directories");
            }
            if file_bytes > 0 {
                label.push_str(", 4 KiB");
            }
            if processes > 1 {
                label.push_str(&format!(", {processes} processes"));
            }
            let files = files.div_ceil(clients);
            Point { label, system, durability, clients, processes, layout, file_bytes, files }
        };
        let mut groups = Vec::new();
        for durability in self.durabilities() {
            let group = |clients: u32, processes: u32, layout: Layout, file_bytes: u32| -> Vec<Point> {
                let of = |system| point(system, durability, clients, processes, layout, file_bytes);
                self.systems().into_iter().map(of).collect()
            };
            let clients = self.clients();
            groups.extend(clients.iter().map(|clients| group(*clients, 1, Layout::Shared, 0)));
            if let Some(most) = clients.last().filter(|_| !self.quick || durability == Durability::Volatile) {
                if *most > 1 {
                    groups.push(group(*most, 1, Layout::Own, 0));
                    groups.push(group(*most, PROCESSES.min(*most), Layout::Shared, 0));
                }
                groups.push(group(*most, 1, Layout::Shared, FILE_BYTES));
            }
        }
        groups
    }
}

/// Runs the study, prints the table, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, or a file that was made is not as it was made.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    validate_folder(args.folder.as_deref())?;
    validate_folder(Some(&args.out))?;
    if args.bound.is_zero() {
        return Err(BenchError::Usage("--bound is greater than 0".into()));
    }
    if args.durability.contains(&Durability::None) {
        return Err(BenchError::Usage("--durability is volatile or always".into()));
    }
    let results = Results { load_at_start: load_average(), ..Results::default() };
    let report = Report::new("namespace", [], results, args.results.as_deref());
    study::run(report, common, async |report| measure(args, common, report).await)
}

async fn measure(args: &Args, common: &Common, report: &mut Report<Results>) -> Result<(), BenchError> {
    let program = common.nacre()?;
    let groups = args.points();
    let points = groups.iter().map(|points| points.len() as u64).sum::<u64>();
    let steps = Steps::new(points * u64::from(args.repetitions()));
    for points in groups {
        let once = async |point: &Point, repetition| {
            steps.step(&point.label, repetition)?;
            measure_once(args, &program, point).await
        };
        by_turns(report, |results| &mut results.series, &points, args.repetitions(), once).await?;
        report.keep()?;
    }
    report.figures = figures::draw(&report.series, &args.out)?;
    Ok(())
}

/// The processes and folders of a run; dropped in this order.
struct Deployed {
    place: Place,
    _mounted: Option<Mounted>,
    _servers: Option<Servers>,
    _folder: TempDir,
}

impl Deployed {
    /// Starts what the clients of a point use, with the directories for their files.
    async fn start(args: &Args, program: &Path, point: &Point) -> Result<Deployed, BenchError> {
        let folder = temporary_folder(args.folder.as_deref())?;
        let made = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).map(|()| path).map_err(BenchError::io("make a folder for the study"))
        };
        let text = |path: &Path| match path.to_str() {
            Some(path) => Ok(path.to_owned()),
            None => {
                Err(BenchError::Usage(format!("{} is not UTF-8: name another --folder", Escaped::of(&path))))
            }
        };
        let is_durable = point.durability == Durability::Always;
        let servers = match point.system {
            System::Library | System::Mount => {
                let plan = ServerPlan { durability: point.durability, ..ServerPlan::volatile(1) };
                let servers = Servers::start(program, plan, args.folder.as_deref()).await?;
                let rank = rank(&server::open(&servers.uri).await?).await?;
                for name in directories(point) {
                    make_directory(&rank, &name).await?;
                }
                Some(servers)
            }
            System::Machine | System::Floor => {
                let source = made("source")?;
                for name in directories(point) {
                    std::fs::create_dir(source.join(name))
                        .map_err(BenchError::io("make a folder for the study"))?;
                }
                None
            }
        };
        let uri = servers.as_ref().map_or("", |servers| servers.uri.as_str());
        let (place, mounted) = match point.system {
            System::Library => {
                let connections = (point.clients / point.processes).clamp(1, CONNECTIONS_MAX);
                (Place::Store { uri: uri.to_owned(), connections }, None)
            }
            System::Mount => {
                let root = made("mount")?;
                let mounted = Mounted::namespace(program, uri, &root).await?;
                // A change is as durable as the store when its call returns.
                (Place::Folder { path: text(&root)?, syncs: false }, Some(mounted))
            }
            System::Machine => {
                (Place::Folder { path: text(&folder.path().join("source"))?, syncs: is_durable }, None)
            }
            System::Floor => {
                let root = made("mount")?;
                let mounted = Mounted::floor(&folder.path().join("source"), &root).await?;
                (Place::Folder { path: text(&root)?, syncs: is_durable }, Some(mounted))
            }
        };
        Ok(Deployed { place, _mounted: mounted, _servers: servers, _folder: folder })
    }
}

/// Returns the names of the directories of a point.
fn directories(point: &Point) -> Vec<String> {
    let clients = match point.layout {
        Layout::Shared => 1,
        Layout::Own => point.clients,
    };
    (0..clients).map(|client| directory(point.layout, client)).collect()
}

/// Returns the orders of each client process, over which the clients are spread evenly.
fn orders(point: &Point, place: &Place) -> Vec<Orders> {
    let share = |process: u32| process * point.clients / point.processes;
    let of = |process| Orders {
        place: place.clone(),
        first: share(process),
        clients: share(process + 1) - share(process),
        layout: point.layout,
        file_bytes: point.file_bytes,
    };
    (0..point.processes).map(of).collect()
}

async fn measure_once(args: &Args, program: &Path, point: &Point) -> Result<Measurement, BenchError> {
    let deployed = Deployed::start(args, program, point).await?;
    let mut crew = Crew::start(CLIENT, &orders(point, &deployed.place)).await?;
    let create = Work::Create { files: point.files, bound_ms: args.bound.as_millis() as u64 };
    let created = phase(&mut crew, Phase::Create, create).await?;
    let files = created.operations;
    if files == 0 {
        return Err(BenchError::Process(format!("{}: no file was made within the bound", point.label)));
    }
    check(&mut crew, Work::Check { renamed: false }).await?;
    let in_shared = |files: u64| (point.layout == Layout::Shared).then_some(files);
    let list = |times| Work::List { times, entries: in_shared(files) };
    check(&mut crew, list(1)).await?;
    let mut phases = vec![created];
    phases.push(phase(&mut crew, Phase::Stat, Work::Stat).await?);
    phases.push(phase(&mut crew, Phase::Rename, Work::Rename).await?);
    check(&mut crew, Work::Check { renamed: true }).await?;
    phases.push(phase(&mut crew, Phase::List, list((LISTINGS / point.clients).max(1))).await?);
    phases.push(phase(&mut crew, Phase::Unlink, Work::Unlink).await?);
    check(&mut crew, Work::List { times: 1, entries: Some(0) }).await?;
    for record in &phases {
        let is_complete = record.phase == Phase::List || record.operations == files;
        if !is_complete {
            let (done, name) = (record.operations, record.phase.name());
            return Err(BenchError::Lost(format!("{}: {name} of {files} files did {done}", point.label)));
        }
    }
    crew.end().await?;
    drop(deployed);
    Ok(Measurement { files, phases })
}

/// Lets all clients do something that is not measured.
async fn check(crew: &mut Crew, work: Work) -> Result<(), BenchError> {
    crew.round::<_, ClientRecord>(&work).await.map(drop)
}

/// Lets all clients do a phase, and sums up what they did.
async fn phase(crew: &mut Crew, phase: Phase, work: Work) -> Result<PhaseRecord, BenchError> {
    let records: Vec<ClientRecord> = crew.round(&work).await?;
    let mut latencies = Latencies::new()?;
    records.iter().for_each(|record| latencies.add(&record.latency_ns_counts));
    let elapsed_ns = records.iter().map(|record| record.elapsed_ns).max().unwrap_or(0).max(1);
    let per_second = |count: u64| count as f64 / (elapsed_ns as f64 / 1e9);
    let operations: u64 = records.iter().map(|record| record.operations).sum();
    let entries: u64 = records.iter().map(|record| record.entries).sum();
    Ok(PhaseRecord {
        phase,
        operations,
        per_second: per_second(operations),
        entries_per_second: (phase == Phase::List).then(|| per_second(entries)),
        latency: latencies.summary(),
        latency_ns_counts: latencies.coarse_counts(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::parse;

    #[test]
    fn one_thing_is_varied_at_a_time() {
        let args: Args = parse(&[]).unwrap();
        let groups = args.points();
        assert_eq!(groups.len(), 2 * (3 + 3));
        assert!(groups.iter().all(|group| group.len() == System::ALL.len()));
        let labels: Vec<&str> = groups.iter().map(|group| &group[0].label[..]).collect();
        assert_eq!(labels[0], "library, volatile, 1 C");
        assert_eq!(labels[3], "library, volatile, 64 C, own directories");
        assert_eq!(labels[4], "library, volatile, 64 C, 4 processes");
        assert_eq!(labels[5], "library, volatile, 64 C, 4 KiB");
        assert_eq!(groups[0][0].files, 6400);
        assert_eq!(groups[2][0].files, 100);
        let words = ["--system", "floor,mount", "--clients", "1", "--durability", "always"];
        let args: Args = parse(&words).unwrap();
        let systems: Vec<System> = args.points()[0].iter().map(|point| point.system).collect();
        assert_eq!(systems, [System::Mount, System::Floor]);
        assert_eq!(args.points().len(), 2);
    }

    #[test]
    fn clients_are_spread_over_processes_evenly() {
        let args: Args = parse(&["--clients", "6"]).unwrap();
        let groups = args.points();
        let point = groups.iter().flatten().find(|point| point.processes == 4).unwrap();
        let place = Place::Folder { path: "x".into(), syncs: false };
        let shares: Vec<(u32, u32)> =
            orders(point, &place).iter().map(|orders| (orders.first, orders.clients)).collect();
        assert_eq!(shares, [(0, 1), (1, 2), (3, 1), (4, 2)]);
    }
}
