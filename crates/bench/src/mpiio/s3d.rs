//! The study of S3D's checkpoint (section 6.2): four arrays of a grid that is divided among the ranks, in one file in canonical order.
//!
//! The amount of data is the same for any number of ranks, so that more ranks write more and smaller pieces. Measured is the time of the
//! writes until the last rank has returned from them, and that of the sync behind them.

mod figures;
mod grid;
mod targets;

use std::ffi::OsString;
use std::fmt;

use nacre_quantity::count_parser;
use serde::{Deserialize, Serialize};

use self::grid::Grid;
use super::arguments::SharedArgs;
use super::check::wrong_bytes;
use super::job::Jobs;
use super::measure_groups;
use super::system::{Subject, System};
use crate::kit::Spread;
use crate::kit::machine::load_average;
use crate::kit::peer::temporary_folder;
use crate::kit::quantity::grouped;
use crate::kit::report::{self, Report};
use crate::kit::study::{Repetitions, run_blocking};
use crate::kit::table::Table;
use crate::kit::target::Targets;
use crate::{BenchError, Common};

/// Write S3D's checkpoint from the ranks of an MPI job into one file, in atomic mode and without it
///
/// The ranks write their blocks of four arrays, 16 numbers of double precision for each point of a grid. The study compares
/// Nacre's locks, by each method and in blocks of 4 and 64 KiB, with the MPI libraries' own atomic modes and with no locks, and
/// compares every byte of every file with what it has to be. It needs the library of "nacre mpirun" ("make mpi") and the
/// compilers of the MPI libraries.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Points of the grid in each direction, separated by commas; 210 make the paper's 1.19 GB [default: 100,210; with
    /// --quick: 48]
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "POINTS,…",
        value_parser = count_parser::<u32>(1..=500)
    )]
    edges: Vec<u32>,
    #[command(flatten)]
    shared: SharedArgs,
}

impl Args {
    fn edges(&self) -> Vec<u32> {
        let default: &[u32] = if self.shared.quick { &[48] } else { &[100, 210] };
        if self.edges.is_empty() { default.to_vec() } else { self.edges.clone() }
    }
}

/// A subject that writes a grid's checkpoint with a number of ranks.
#[derive(Clone, Debug, Serialize)]
struct Point {
    subject: Subject,
    /// The number of points of the grid in each direction.
    edge: u32,
    ranks: u32,
}

/// The measurements of a job: the times of its slowest rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measurement {
    ranks: u32,
    bytes: u64,
    open_s: f64,
    write_s: f64,
    sync_s: f64,
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
    /// Sentences about what could not be measured.
    missing: Vec<String>,
    series: Vec<Series>,
    #[serde(skip_serializing_if = "Targets::is_empty")]
    targets: Targets,
}

impl Measurement {
    /// Returns the megabytes per second that were written, wherever they are kept.
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.write_s / 1e6
    }

    /// Returns the megabytes per second that were written to the device.
    fn synced_rate(&self) -> f64 {
        self.bytes as f64 / (self.write_s + self.sync_s) / 1e6
    }
}

/// Runs the study, prints the table, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, or Nacre's locks let bytes be lost.
pub(crate) fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    let shared = &args.shared;
    shared.check()?;
    let (systems, all_ranks) = (shared.systems(|_| true)?, shared.ranks(&[1, 2, 4, 8]));
    for edge in args.edges() {
        all_ranks.iter().try_for_each(|ranks| Grid::new(edge, *ranks).map(drop))?;
    }
    let jobs = Jobs::new(shared, common, "s3d", include_str!("../../programs/s3d.c"))?;
    let (subjects, missing) = jobs.subjects(shared, &systems)?;
    let mut groups = Vec::new();
    for edge in args.edges() {
        for ranks in &all_ranks {
            let point = |subject: &Subject| Point { subject: *subject, edge, ranks: *ranks };
            groups.push(subjects.iter().map(point).collect::<Vec<Point>>());
        }
    }
    let results =
        Results { load: load_average(), lock_servers: shared.lock_servers, missing, ..Results::default() };
    let report = Report::new("s3d", jobs.versions(), results, shared.results.as_deref());
    run_blocking(report, common, |report| {
        let measure = |point: &Point| measure_once(args, &jobs, point);
        measure_groups(
            report,
            |results| &mut results.series,
            &groups,
            shared.repetitions(),
            Point::title,
            measure,
        )?;
        report.figures = figures::draw(&report.series, &shared.out)?;
        Ok(())
    })
}

/// Runs a job, and compares what it wrote with what it had to write.
fn measure_once(args: &Args, jobs: &Jobs, point: &Point) -> Result<Measurement, BenchError> {
    let (subject, seed) = (&point.subject, args.shared.seed);
    let grid = Grid::new(point.edge, point.ranks)?;
    let folder = temporary_folder(args.shared.folder.as_deref())?;
    let file = folder.path().join("checkpoint");
    let layout = match subject.system {
        System::Files => "files",
        System::Slabs => "slabs",
        _ => "shared",
    };
    let atomic = if subject.system.is_atomic() { "1" } else { "0" };
    let mut arguments: Vec<OsString> = vec![file.clone().into(), layout.into(), atomic.into()];
    arguments.push(seed.to_string().into());
    arguments.extend(grid.arguments());
    let mut measured: Measurement = jobs.run(subject, point.ranks, &arguments)?;
    if (measured.ranks, measured.bytes) != (point.ranks, grid.bytes()) {
        let text = format!("{}: {} ranks wrote {} bytes", point.title(), measured.ranks, measured.bytes);
        return Err(BenchError::Process(text));
    }
    measured.wrong_bytes = match subject.system {
        System::Files => {
            let of_rank = |rank| {
                let file = folder.path().join(format!("checkpoint.{rank}"));
                wrong_bytes(&file, seed, grid.rows(rank))
            };
            (0..u64::from(point.ranks)).map(of_rank).sum::<Result<u64, BenchError>>()?
        }
        _ => wrong_bytes(&file, seed, std::iter::once(0..grid.bytes()))?,
    };
    if subject.system.is_ours() && measured.wrong_bytes > 0 {
        let text = format!("{}: {} bytes of the file are wrong", point.title(), measured.wrong_bytes);
        return Err(BenchError::Lost(text));
    }
    Ok(measured)
}

impl Point {
    /// Returns a one-line description.
    fn title(&self) -> String {
        format!("{}, {} ranks, {} points in each direction", self.subject.label(), self.ranks, self.edge)
    }
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    fn conclude(&mut self) {
        self.targets = targets::evaluate(&self.series);
    }

    fn conditions(&self) -> String {
        format!(", load before {}, lock servers {}", self.load, self.lock_servers)
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head =
            "system | points | ranks | MB/s | least | most | with the sync | least | most | wrong bytes";
        let mut table = Table::new(head);
        for series in &self.series {
            let point = &series.point;
            let spread = |rate: fn(&Measurement) -> f64| Spread::of(series.repetitions.iter().map(rate));
            let mut row = vec![point.subject.label(), format!("{}³", point.edge), point.ranks.to_string()];
            for rate in [spread(Measurement::rate), spread(Measurement::synced_rate)] {
                row.extend([rate.median, rate.min, rate.max].map(grouped));
            }
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
