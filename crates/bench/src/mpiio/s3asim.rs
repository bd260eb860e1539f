//! The study of S3aSim (section 6.3): a master and workers that search sequences, and write what they find into one file.
//!
//! The search is simulated by sleeping, so that more workers than processors still share its time; the writing is real. The results and the
//! time of each search follow from a seed, and are the same for any number of workers and for every subject.

mod figures;
mod plan;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use nacre_quantity::{Escaped, count_parser, parse_time};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use self::plan::{Plan, Shape};
use super::arguments::SharedArgs;
use super::check::wrong_bytes;
use super::job::{Jobs, Mpi};
use super::system::{Subject, System};
use super::{COMPARED_RANKS, measure_groups};
use crate::kit::Spread;
use crate::kit::figure::distinct;
use crate::kit::machine::load_average;
use crate::kit::peer::temporary_folder;
use crate::kit::quantity::grouped;
use crate::kit::report::{self, Report};
use crate::kit::study::{Repetitions, run_blocking};
use crate::kit::table::Table;
use crate::kit::target::{Targets, Unit};
use crate::{BenchError, Common};

/// Search sequences with a master and workers that write what they find into one file, in atomic mode and without it
///
/// Each worker searches fragments of a database; when all of a query's have been searched, the workers write their results,
/// of random sizes and in random order, and sync the file. The search is simulated by sleeping. The study compares Nacre's
/// locks with the MPI libraries' own atomic modes and with no locks, and compares every byte of every file with what it has
/// to be. It needs the library of "nacre mpirun" ("make mpi") and the compilers of the MPI libraries.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Number of queries
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = count_parser::<u64>(1..=1000))]
    queries: u64,
    /// Number of fragments of the database
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = count_parser::<u64>(1..=10_000))]
    fragments: u64,
    /// Least number of results of a query
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = count_parser::<u64>(1..=100_000))]
    results_min: u64,
    /// Greatest number of results of a query
    #[arg(long, default_value_t = 2000, value_name = "N", value_parser = count_parser::<u64>(1..=100_000))]
    results_max: u64,
    /// Megabytes (10^6 bytes) of all results together [default: 208; with --quick: 21]
    #[arg(long, value_name = "N", value_parser = count_parser::<u64>(1..=100_000))]
    megabytes: Option<u64>,
    /// Time of all searches together, as one worker would take for them [default: 30s; with --quick: 2s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    search: Option<Duration>,
    #[command(flatten)]
    shared: SharedArgs,
}

impl Args {
    fn shape(&self) -> Shape {
        let quick = self.shared.quick;
        Shape {
            queries: self.queries,
            fragments: self.fragments,
            results: self.results_min..=self.results_max,
            bytes: self.megabytes.unwrap_or(if quick { 21 } else { 208 }) * 1_000_000,
            search: self.search.unwrap_or(Duration::from_secs(if quick { 2 } else { 30 })),
            seed: self.shared.seed,
        }
    }
}

/// A subject with a number of ranks, of which one is the master.
#[derive(Clone, Debug, Serialize)]
struct Point {
    subject: Subject,
    ranks: u32,
}

/// The measurements of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measurement {
    ranks: u32,
    bytes: u64,
    /// The time from the first search to the last write.
    total_s: f64,
    /// The time that the busiest worker took to write and sync, and the mean of all workers.
    io_s: f64,
    io_mean_s: f64,
    /// The parts of it, each of the worker that took the longest for it.
    write_s: f64,
    sync_s: f64,
    /// The time that setting the views took, which is not in `io_s`.
    view_s: f64,
    /// The number of bytes that are not what they have to be.
    #[serde(default)]
    wrong_bytes: u64,
}

type Series = Repetitions<Point, Measurement>;

/// The results of the study.
#[derive(Clone, Debug, Default, Serialize)]
struct Results {
    /// The load of the machine before the study, over 1, 5 and 15 minutes.
    load: String,
    lock_servers: u32,
    queries: u64,
    fragments: u64,
    /// The number of results, and of their bytes.
    results: u64,
    bytes: u64,
    /// The time of all searches together.
    search_s: f64,
    /// Sentences about what could not be measured.
    missing: Vec<String>,
    series: Vec<Series>,
    #[serde(skip_serializing_if = "Targets::is_empty")]
    targets: Targets,
}

impl Measurement {
    /// Returns how much of the time the busiest worker wrote and synced, in percent.
    fn share(&self) -> f64 {
        100.0 * self.io_s / self.total_s
    }
}

/// Runs the study, prints the table, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, or Nacre's locks let bytes be lost.
pub(crate) fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    let shared = &args.shared;
    shared.check()?;
    if args.results_min > args.results_max {
        return Err(BenchError::Usage("--results-min is not greater than --results-max".to_owned()));
    }
    let (systems, all_ranks) = (shared.systems(|system| !system.is_of_s3d())?, shared.ranks(&[2, 4, 8]));
    if all_ranks.iter().any(|ranks| *ranks < 2) {
        return Err(BenchError::Usage("--ranks: there is a master, and at least one worker".to_owned()));
    }
    let plan = Plan::new(&args.shape());
    let jobs = Jobs::new(shared, common, "s3asim", include_str!("../../programs/s3asim.c"))?;
    let (subjects, missing) = jobs.subjects(shared, &systems)?;
    let results = Results {
        load: load_average(),
        lock_servers: shared.lock_servers,
        queries: plan.queries,
        fragments: plan.fragments,
        results: plan.found.len() as u64,
        bytes: plan.bytes(),
        search_s: plan.search_ns.iter().sum::<u64>() as f64 / 1e9,
        missing,
        ..Results::default()
    };
    let bench = Bench::new(args, jobs, plan)?;
    let report = Report::new("s3asim", bench.jobs.versions(), results, shared.results.as_deref());
    run_blocking(report, common, |report| bench.measure(&subjects, &all_ranks, report))
}

/// The conditions of all measurements.
struct Bench<'a> {
    args: &'a Args,
    jobs: Jobs,
    plan: Plan,
    plan_file: PathBuf,
    /// The folder of that file.
    _folder: TempDir,
}

impl Bench<'_> {
    /// Writes the plan into a file, from which the ranks read it.
    fn new(args: &Args, jobs: Jobs, plan: Plan) -> Result<Bench<'_>, BenchError> {
        let folder = temporary_folder(None)?;
        let plan_file = folder.path().join("plan");
        let written = std::fs::write(&plan_file, plan.encode());
        written.map_err(BenchError::io(format!("write {}", Escaped::of(&plan_file))))?;
        Ok(Bench { args, jobs, plan, plan_file, _folder: folder })
    }

    /// Measures subjects with numbers of ranks, those with the same number by turns.
    fn measure(
        &self,
        subjects: &[Subject],
        all_ranks: &[u32],
        report: &mut Report<Results>,
    ) -> Result<(), BenchError> {
        let of_ranks = |ranks: &u32| -> Vec<Point> {
            subjects.iter().map(|subject| Point { subject: *subject, ranks: *ranks }).collect()
        };
        let groups: Vec<Vec<Point>> = all_ranks.iter().map(of_ranks).collect();
        let (repetitions, measure) =
            (self.args.shared.repetitions(), |point: &Point| self.measure_once(point));
        measure_groups(report, |results| &mut results.series, &groups, repetitions, Point::title, measure)?;
        report.figures = figures::draw(&report.series, &self.args.shared.out)?;
        Ok(())
    }

    /// Runs a job, and compares what it wrote with what it had to write.
    fn measure_once(&self, point: &Point) -> Result<Measurement, BenchError> {
        let (subject, seed) = (&point.subject, self.args.shared.seed);
        let folder = temporary_folder(self.args.shared.folder.as_deref())?;
        let file = folder.path().join("results");
        let atomic = if subject.system.is_atomic() { "1" } else { "0" };
        let arguments: [OsString; 4] =
            [file.clone().into(), self.plan_file.clone().into(), atomic.into(), seed.to_string().into()];
        let mut measured: Measurement = self.jobs.run(subject, point.ranks, &arguments)?;
        if (measured.ranks, measured.bytes) != (point.ranks, self.plan.bytes()) {
            let text = format!("{}: {} ranks wrote {} bytes", point.title(), measured.ranks, measured.bytes);
            return Err(BenchError::Process(text));
        }
        measured.wrong_bytes = wrong_bytes(&file, seed, std::iter::once(0..self.plan.bytes()))?;
        if subject.system.is_ours() && measured.wrong_bytes > 0 {
            let text = format!("{}: {} bytes of the file are wrong", point.title(), measured.wrong_bytes);
            return Err(BenchError::Lost(text));
        }
        Ok(measured)
    }
}

impl Point {
    /// Returns a one-line description.
    fn title(&self) -> String {
        format!("{}, {} ranks", self.subject.label(), self.ranks)
    }
}

/// Returns the least time that the busiest worker took to write and sync without locks, beside a subject with as many ranks.
fn io_without_locks(series: &[Series], beside: &Point) -> Option<f64> {
    let is_it = |other: &&Series| {
        let Point { subject, ranks } = &other.point;
        subject.system.is_without_locks() && (subject.mpi, *ranks) == (beside.subject.mpi, beside.ranks)
    };
    series.iter().filter(is_it).map(|other| other.median(|one| one.io_s)).reduce(f64::min)
}

/// Returns the time that the busiest worker took to write and sync in MPICH's own atomic mode, as it is by default, with so many ranks.
fn io_of_own(series: &[Series], ranks: u32) -> Option<f64> {
    let own = Subject { mpi: Mpi::Mpich, system: System::Own, protocol: None };
    let found = series.iter().find(|other| (other.point.subject, other.point.ranks) == (own, ranks));
    found.map(|other| other.median(|one| one.io_s))
}

/// Returns the targets with the measured values.
fn evaluate(series: &[Series]) -> Targets {
    let mut targets = Targets::default();
    for mpi in distinct(series.iter().map(|series| series.point.subject.mpi)) {
        let of_mpi = || series.iter().filter(move |series| series.point.subject.mpi == mpi);
        let exact = of_mpi().filter(|series| series.point.subject.system.is_exact());
        let shares = exact.map(|series| (series.median(Measurement::share), &series.point));
        if let Some((share, point)) = shares.max_by(|one, other| one.0.total_cmp(&other.0)) {
            let name = format!("{}: most I/O of the total time, by {}", mpi.title(), point.title());
            targets.at_most(name, share, Unit::Percent, 11.0);
        }
        let is_compared = |system| matches!(system, System::List | System::Datatype);
        for one in of_mpi().filter(|series| is_compared(series.point.subject.system)) {
            if let Some(without) = io_without_locks(series, &one.point) {
                let ratio = without / one.median(|one| one.io_s);
                let name = format!("{}: I/O bandwidth, {} ÷ no locks", mpi.title(), one.point.title());
                match one.point.subject.system {
                    System::List => targets.at_least(name, ratio, Unit::Times, 0.87),
                    _ => targets.open(name, ratio, Unit::Times),
                }
            }
            // That of Open MPI locks nothing.
            let own = io_of_own(series, one.point.ranks).filter(|_| mpi == Mpi::Mpich);
            if let (System::List, Some(own)) = (one.point.subject.system, own) {
                let ratio = own / one.median(|one| one.io_s);
                let name =
                    format!("{}: I/O bandwidth, {} ÷ its own atomic mode", mpi.title(), one.point.title());
                let bound = if one.point.ranks == COMPARED_RANKS { 1.5 } else { 1.0 };
                targets.at_least(name, ratio, Unit::Times, bound);
            }
        }
    }
    targets
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    fn conclude(&mut self) {
        self.targets = evaluate(&self.series);
    }

    fn conditions(&self) -> String {
        let Results { load, lock_servers, queries, fragments, results, bytes, search_s, .. } = self;
        format!(
            ", load before {load}, lock servers {lock_servers}\n{queries} queries in {fragments} fragments, {} results of {} bytes \
             together, searches of {search_s:.1} s",
            grouped(*results as f64),
            grouped(*bytes as f64)
        )
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = "system | ranks | total s | least | most | I/O s | least | most | write s | sync s | I/O % | wrong bytes";
        let mut table = Table::new(head);
        for series in &self.series {
            let point = &series.point;
            let spread = |value: fn(&Measurement) -> f64| Spread::of(series.repetitions.iter().map(value));
            let mut row = vec![point.subject.label(), point.ranks.to_string()];
            for seconds in [spread(|one| one.total_s), spread(|one| one.io_s)] {
                row.extend([seconds.median, seconds.min, seconds.max].map(|seconds| format!("{seconds:.3}")));
            }
            for seconds in [spread(|one| one.write_s), spread(|one| one.sync_s)] {
                row.push(format!("{:.3}", seconds.median));
            }
            row.push(format!("{:.1}", spread(Measurement::share).median));
            let wrong = series.repetitions.iter().map(|one| one.wrong_bytes).sum::<u64>();
            row.push(grouped(wrong as f64));
            table.row(row);
        }
        write!(f, "{table}")?;
        for sentence in &self.missing {
            writeln!(f, "Not measured: {sentence}.")?;
        }
        if !self.targets.is_empty() {
            write!(f, "{}", self.targets)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomic_writes_are_compared_with_the_fastest_without_locks() {
        let series = |system, ranks, io_s| {
            let measured = Measurement {
                ranks,
                bytes: 1,
                total_s: 10.0,
                io_s,
                io_mean_s: io_s,
                write_s: io_s,
                sync_s: 0.0,
                view_s: 0.0,
                wrong_bytes: 0,
            };
            let point = Point { subject: Subject { mpi: Mpi::Mpich, system, protocol: None }, ranks };
            Series { point, repetitions: vec![measured] }
        };
        let all = [
            series(System::None, 4, 0.9),
            series(System::NoneUnsieved, 4, 0.5),
            series(System::NoneUnsieved, 8, 0.1),
            series(System::List, 4, 1.0),
            series(System::Block64k, 4, 5.0),
            series(System::Own, 4, 1.2),
            series(System::List, 8, 0.1),
            series(System::Own, 8, 0.1),
        ];
        assert_eq!(io_without_locks(&all, &all[3].point), Some(0.5));
        assert_eq!((io_of_own(&all, 4), io_of_own(&all, 2)), (Some(1.2), None));
        let text = evaluate(&all).to_string();
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        assert!(row("MPICH: most I/O of the total time, by list, 4 ranks").contains("10.0 %"), "{text}");
        assert!(row("MPICH: I/O bandwidth, list, 4 ranks ÷ no locks").contains("0.50 ×"), "{text}");
        let own =
            |ranks: u32| row(&format!("MPICH: I/O bandwidth, list, {ranks} ranks ÷ its own atomic mode"));
        assert!(own(4).contains("1.20 ×  ≥ 1.50 ×") && own(8).contains("1.00 ×  ≥ 1.00 ×"), "{text}");
    }
}
