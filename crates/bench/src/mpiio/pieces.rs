//! The study of small pieces: ranks whose pieces of a file come in turns, each call about many of a rank's own, collective or independent.
//!
//! The paper measures such accesses through the file systems of its time (section 6.1). Here the MPI libraries' own ways are the peers:
//! data sieving, which reads and writes back what is between the pieces, exchanges between ranks, and a system call for each piece,
//! which is the floor for whoever touches nothing else.

use std::ffi::OsString;
use std::fmt;

use nacre_quantity::count_parser;
use serde::{Deserialize, Serialize};

use super::arguments::SharedArgs;
use super::check::wrong_bytes;
use super::job::{Jobs, Mpi};
use super::measure_groups;
use super::system::{Subject, System};
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

/// The bytes of a rank that one call moves.
const CALL_BYTES: u32 = 1 << 20;

/// The piece of the targets, in bytes.
const TARGET_PIECE: u32 = 64;

/// The systems whose difference is what Nacre's library costs a call that it has nothing to do with.
const SINGLE_SYSTEMS: [System; 2] = [System::None, System::Preloaded];

/// Write and read small pieces by MPI-IO: atomic mode compared with none, by collective and by independent calls
///
/// Each rank's pieces stand between those of the others, and each call moves 1 MiB of them. The study compares Nacre's atomic mode with
/// the MPI libraries' own and with none, with data sieving and without it, and compares every byte with what it has to be. By single
/// calls of 64 bytes it measures what Nacre's library costs where atomic mode is off. It needs the library of "nacre mpirun"
/// ("make mpi") and the compilers of the MPI libraries.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Bytes of a piece, separated by commas, each a power of two
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BYTES,…",
        value_parser = count_parser::<u32>(8..=1 << 20),
        default_value = "64,512,4096"
    )]
    pieces: Vec<u32>,
    /// Number of calls of each rank [default: 16; with --quick: 2]
    #[arg(long, value_name = "N", value_parser = count_parser::<u32>(1..=256))]
    calls: Option<u32>,
    #[command(flatten)]
    shared: SharedArgs,
}

impl Args {
    fn calls(&self) -> u32 {
        self.calls.unwrap_or(if self.shared.quick { 2 } else { 16 })
    }
}

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Call {
    /// Collective.
    Together,
    /// Independent.
    Alone,
    /// Independent, for each piece by itself: what each call costs, without atomic mode.
    Single,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::Together => "together",
            Call::Alone => "alone",
            Call::Single => "single",
        }
    }
}

/// A subject that moves pieces of a size with a number of ranks.
#[derive(Clone, Debug, Serialize)]
struct Point {
    subject: Subject,
    call: Call,
    piece_bytes: u32,
    ranks: u32,
}

/// The measurements of a job: the times of its slowest rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measurement {
    ranks: u32,
    bytes: u64,
    write_s: f64,
    read_s: f64,
    /// The number of bytes that were read and are not what they have to be.
    wrong_read: u64,
    /// The number of such bytes of the file.
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
    /// Returns the megabytes per second that were written.
    fn written(&self) -> f64 {
        self.bytes as f64 / self.write_s / 1e6
    }

    /// Returns the megabytes per second that were read.
    fn read(&self) -> f64 {
        self.bytes as f64 / self.read_s / 1e6
    }
}

/// Runs the study, prints the table, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run, or Nacre's locks let bytes be lost.
pub(crate) fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    let shared = &args.shared;
    shared.check()?;
    if let Some(odd) = args.pieces.iter().find(|piece| !piece.is_power_of_two()) {
        return Err(BenchError::Usage(format!("--pieces: {odd} is no power of two")));
    }
    let has = |system| {
        let systems = [
            System::None,
            System::NoneUnsieved,
            System::Preloaded,
            System::Own,
            System::OwnUnsieved,
            System::List,
            System::Datatype,
            System::Exact,
        ];
        systems.contains(&system)
    };
    let systems = shared.systems(has)?;
    let jobs = Jobs::new(shared, common, "pieces", include_str!("../../programs/pieces.c"))?;
    let (subjects, mut missing) = jobs.subjects(shared, &systems)?;
    if systems.contains(&System::Preloaded) && !systems.contains(&System::None) {
        missing.push("\"preloaded\", which is compared with \"none\": name both".to_owned());
    }
    let mut groups = Vec::new();
    for piece_bytes in &args.pieces {
        for ranks in shared.ranks(&[4]) {
            for call in [Call::Together, Call::Alone] {
                let point =
                    |subject: &Subject| Point { subject: *subject, call, piece_bytes: *piece_bytes, ranks };
                let measured = subjects.iter().filter(|subject| subject.system != System::Preloaded);
                let points: Vec<Point> = measured.map(point).collect();
                if !points.is_empty() {
                    groups.push(points);
                }
            }
        }
    }
    groups.extend(singles(&subjects));
    let results =
        Results { load: load_average(), lock_servers: shared.lock_servers, missing, ..Results::default() };
    let report = Report::new("pieces", jobs.versions(), results, shared.results.as_deref());
    run_blocking(report, common, |report| {
        let measure = |point: &Point| measure_once(args, &jobs, point);
        measure_groups(
            report,
            |results| &mut results.series,
            &groups,
            shared.repetitions(),
            Point::title,
            measure,
        )
    })
}

/// Returns the points of single calls, by one rank, for each MPI library that has all systems for them.
fn singles(subjects: &[Subject]) -> Vec<Vec<Point>> {
    let of_mpi = |mpi: Mpi| -> Vec<Point> {
        let is_it = |subject: &&Subject| subject.mpi == mpi && SINGLE_SYSTEMS.contains(&subject.system);
        let (call, piece_bytes, ranks) = (Call::Single, TARGET_PIECE, 1);
        let point = |subject: &Subject| Point { subject: *subject, call, piece_bytes, ranks };
        subjects.iter().filter(is_it).map(point).collect()
    };
    let all = distinct(subjects.iter().map(|subject| subject.mpi)).into_iter().map(of_mpi);
    all.filter(|points| points.len() == SINGLE_SYSTEMS.len()).collect()
}

/// Runs a job, and compares what it wrote with what it had to write.
fn measure_once(args: &Args, jobs: &Jobs, point: &Point) -> Result<Measurement, BenchError> {
    let (subject, seed) = (&point.subject, args.shared.seed);
    let folder = temporary_folder(args.shared.folder.as_deref())?;
    let file = folder.path().join("pieces");
    let atomic = if subject.system.is_atomic() { "1" } else { "0" };
    let numbers = [
        seed,
        u64::from(point.piece_bytes),
        u64::from(CALL_BYTES / point.piece_bytes),
        u64::from(args.calls()),
    ];
    let mut arguments: Vec<OsString> = vec![file.clone().into(), point.call.name().into(), atomic.into()];
    arguments.extend(numbers.map(|number| number.to_string().into()));
    let mut measured: Measurement = jobs.run(subject, point.ranks, &arguments)?;
    let bytes = u64::from(CALL_BYTES) * u64::from(args.calls()) * u64::from(point.ranks);
    if (measured.ranks, measured.bytes) != (point.ranks, bytes) {
        let text = format!("{}: {} ranks moved {} bytes", point.title(), measured.ranks, measured.bytes);
        return Err(BenchError::Process(text));
    }
    measured.wrong_bytes = wrong_bytes(&file, seed, std::iter::once(0..bytes))?;
    if subject.system.is_ours() && measured.wrong_bytes + measured.wrong_read > 0 {
        let Measurement { wrong_bytes, wrong_read, .. } = measured;
        let text = format!(
            "{}: {wrong_bytes} bytes of the file and {wrong_read} bytes read are wrong",
            point.title()
        );
        return Err(BenchError::Lost(text));
    }
    Ok(measured)
}

impl Point {
    /// Returns a one-line description.
    fn title(&self) -> String {
        let Point { subject, call, piece_bytes, ranks } = self;
        format!("{}, {}, {ranks} ranks, pieces of {piece_bytes} bytes", subject.label(), call.name())
    }
}

/// Adds what Nacre's library costs a write without atomic mode. What is looked for is less than what differs from run to run, so the
/// fastest runs are compared.
fn evaluate_singles(series: &[Series], targets: &mut Targets) {
    for mpi in distinct(series.iter().map(|series| series.point.subject.mpi)) {
        let fastest = |system: System| {
            let is_it = |series: &&Series| {
                let Point { subject, call, .. } = series.point;
                (subject.mpi, subject.system, call) == (mpi, system, Call::Single)
            };
            let rates = series.iter().filter(is_it).flat_map(|series| &series.repetitions);
            rates.map(Measurement::written).reduce(f64::max)
        };
        if let Some((without, with)) = fastest(System::None).zip(fastest(System::Preloaded)) {
            let title = mpi.title();
            let name = format!(
                "{title}, write {TARGET_PIECE} bytes, single: cost of the preloaded library without atomic mode"
            );
            targets.at_most(name, 100.0 * (without / with - 1.0), Unit::Percent, 1.0);
        }
    }
}

/// Returns the targets with the measured values, for the smallest number of ranks.
fn evaluate(all: &[Series]) -> Targets {
    let mut targets = Targets::default();
    evaluate_singles(all, &mut targets);
    let series: Vec<&Series> = all.iter().filter(|series| series.point.call != Call::Single).collect();
    let Some(ranks) = series.iter().map(|series| series.point.ranks).min() else { return targets };
    for piece_bytes in distinct(series.iter().map(|series| series.point.piece_bytes)) {
        for (call, mpi) in [Call::Together, Call::Alone].into_iter().flat_map(|call| {
            distinct(series.iter().map(|series| series.point.subject.mpi))
                .into_iter()
                .map(move |mpi| (call, mpi))
        }) {
            let rate = |system: System, rate: fn(&Measurement) -> f64| {
                let is_it = |series: &&&Series| {
                    let Point { subject, call: of, piece_bytes: bytes, ranks: number } = series.point;
                    (subject.mpi, subject.system, of, bytes, number)
                        == (mpi, system, call, piece_bytes, ranks)
                };
                series.iter().find(is_it).map(|series| series.median(rate))
            };
            for (verb, of) in
                [("write", Measurement::written as fn(&Measurement) -> f64), ("read", Measurement::read)]
            {
                let Some(ours) = rate(System::Datatype, of) else { continue };
                let title =
                    format!("{}, {verb} {piece_bytes} bytes {}: datatype locks", mpi.title(), call.name());
                let peers = [
                    ("no atomic mode, sieving", System::None),
                    ("a system call for each piece", System::NoneUnsieved),
                    ("its own atomic mode", System::Own),
                ];
                for (peer, system) in peers {
                    let Some(theirs) = rate(system, of) else { continue };
                    let name = format!("{title} ÷ {peer}");
                    let is_target =
                        (mpi, call, verb, piece_bytes) == (Mpi::Mpich, Call::Together, "write", TARGET_PIECE);
                    match is_target && system == System::None {
                        true => targets.at_least(name, ours / theirs, Unit::Times, 1.0),
                        false => targets.open(name, ours / theirs, Unit::Times),
                    }
                }
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
        format!(", load before {}, lock servers {}", self.load, self.lock_servers)
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = "system | calls | piece | ranks | written MB/s | least | most | read MB/s | least | most | wrong bytes";
        let mut table = Table::new(head);
        for series in &self.series {
            let point = &series.point;
            let spread = |rate: fn(&Measurement) -> f64| Spread::of(series.repetitions.iter().map(rate));
            let mut row = vec![point.subject.label(), point.call.name().to_owned()];
            row.extend([point.piece_bytes.to_string(), point.ranks.to_string()]);
            for rate in [spread(Measurement::written), spread(Measurement::read)] {
                row.extend([rate.median, rate.min, rate.max].map(grouped));
            }
            let wrong = series.repetitions.iter().map(|one| one.wrong_bytes + one.wrong_read).sum::<u64>();
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
    fn single_calls_show_the_cost_of_the_library_by_the_fastest_runs_and_nothing_else() {
        let subject = |system| Subject { mpi: Mpi::Mpich, system, protocol: None };
        let series = |system, call, ranks, seconds: &[f64]| {
            let point = Point { subject: subject(system), call, piece_bytes: TARGET_PIECE, ranks };
            let measured = |write_s: &f64| Measurement {
                ranks,
                bytes: 1_000_000,
                write_s: *write_s,
                read_s: 1.0,
                wrong_read: 0,
                wrong_bytes: 0,
            };
            Series { point, repetitions: seconds.iter().map(measured).collect() }
        };
        let all = [
            series(System::None, Call::Together, 4, &[3.0]),
            series(System::Datatype, Call::Together, 4, &[2.0]),
            series(System::None, Call::Single, 1, &[1.4, 1.0]),
            series(System::Preloaded, Call::Single, 1, &[1.005, 2.0]),
        ];
        let text = evaluate(&all).to_string();
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        assert!(
            row("MPICH, write 64 bytes, single: cost of the preloaded library").contains("0.5 %"),
            "{text}"
        );
        assert!(
            row("MPICH, write 64 bytes together: datatype locks ÷ no atomic").contains("1.50 ×"),
            "{text}"
        );

        let points = singles(&[System::None, System::Own, System::Preloaded].map(subject));
        let systems: Vec<System> = points.concat().iter().map(|point| point.subject.system).collect();
        assert_eq!(systems, SINGLE_SYSTEMS);
        assert!(singles(&[System::None, System::Datatype].map(subject)).is_empty());
    }
}
