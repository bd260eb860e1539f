//! The goals of Nacre with MPI jobs and in the simulation.

use std::fmt;
use std::path::Path;

use nacre_walk::algorithm::Algorithm;
use serde::Serialize;

use super::idle::{self, Idle};
use super::mpi::{Job, Measurements, Mpi};
use super::study::compare::Condition;
use crate::BenchError;
use crate::kit::Spread;
use crate::kit::goal::{Goal, Unit};
use crate::kit::progress::Progress;
use crate::kit::quantity::grouped;
use crate::kit::table::Table;

/// The number of ranks of the jobs.
const RANKS: u32 = 4;

/// The results of the jobs of one algorithm.
#[derive(Clone, Debug, Serialize)]
struct Jobs {
    algorithm: Algorithm,
    threads: u32,
    seconds: Spread,
    cpu_seconds: Spread,
    messages: Spread,
    /// The number of bytes handed to MPI.
    bytes: Spread,
    /// The number of entries of the busiest rank, over the mean.
    busiest_to_mean: Spread,
    memory_bytes: f64,
    repetitions: Vec<Measurements>,
}

/// The results of MPI jobs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MpiReach {
    library: String,
    ranks: u32,
    jobs: Vec<Jobs>,
    idle: Idle,
}

/// Measures jobs of four ranks, and idle ranks.
pub(super) fn measure(mpi: &Mpi, root: &Path, repetitions: u32, quick: bool) -> Result<MpiReach, BenchError> {
    let progress = Progress::new(u64::from(repetitions) * (Algorithm::ALL.len() as u64 - 1) + 2);
    let mut repeated: Vec<Vec<Measurements>> = vec![Vec::new(); Algorithm::ALL.len()];
    for repetition in 0..repetitions {
        for (place, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            // It takes a hundred times as long as the others.
            if algorithm.has_master() && repetition > 0 {
                continue;
            }
            progress.step(&format!("{algorithm} on {RANKS} ranks"), repetition);
            let seed = 1 + u64::from(repetition);
            let job = Job { ranks: RANKS, algorithm, threads: None, seed, root };
            repeated[place].push(mpi.walk(&job)?);
        }
    }
    progress.step("idle ranks", 0);
    let idle = idle::measure(mpi, if quick { 8000 } else { 20_000 })?;
    progress.finish();
    let jobs = Algorithm::ALL.into_iter().zip(repeated).map(|(algorithm, repetitions)| {
        let spread = |value: &dyn Fn(&Measurements) -> f64| Spread::of(repetitions.iter().map(value));
        let cpu = |job: &Measurements| job.ranks.iter().map(|rank| rank.cpu_ns()).sum::<u64>() as f64 / 1e9;
        Jobs {
            algorithm,
            threads: repetitions.first().map_or(0, |job| job.threads),
            seconds: spread(&Measurements::seconds),
            cpu_seconds: spread(&cpu),
            messages: spread(&|job| job.sent().messages as f64),
            bytes: spread(&|job| job.wire_bytes() as f64),
            busiest_to_mean: spread(&Measurements::imbalance),
            memory_bytes: spread(&|job| job.resident_bytes_max() as f64).max,
            repetitions,
        }
    });
    Ok(MpiReach { library: mpi.library.clone(), ranks: RANKS, jobs: jobs.collect(), idle })
}

impl MpiReach {
    /// Returns the goals with the measured values.
    pub(super) fn goals(&self) -> Vec<Goal> {
        let of = |algorithm| self.jobs.iter().find(|jobs| jobs.algorithm == algorithm);
        let mut goals = Vec::new();
        let ranks = self.ranks;
        let megabytes = |bytes: f64| bytes / 1e6;
        if let Some(jobs) = of(Algorithm::HDrqs) {
            let name = format!("MPI, {ranks} ranks, {}: bytes moved", jobs.algorithm);
            goals.push(Goal::at_most(name, megabytes(jobs.bytes.median), Unit::Megabytes, 0.2));
            goals.push(Goal::at_most("  busiest rank ÷ mean", jobs.busiest_to_mean.median, Unit::Times, 1.2));
        }
        if let Some(cp) = of(Algorithm::Cp) {
            for jobs in [Algorithm::Drqs, Algorithm::HDrqs].into_iter().filter_map(of) {
                let name = jobs.algorithm;
                let messages = cp.messages.median / jobs.messages.median.max(1.0);
                goals.push(Goal::at_least(
                    format!("CP ÷ {name}, {ranks} ranks: messages"),
                    messages,
                    Unit::Times,
                    10.0,
                ));
                let bytes = cp.bytes.median / jobs.bytes.median.max(1.0);
                goals.push(Goal::at_least(
                    format!("CP ÷ {name}, {ranks} ranks: bytes"),
                    bytes,
                    Unit::Times,
                    100.0,
                ));
            }
        }
        goals.push(Goal::at_most("idle ranks, of a processor", self.idle.percent, Unit::Percent, 2.0));
        let memory = self.jobs.iter().map(|jobs| jobs.memory_bytes).fold(0.0, f64::max);
        let memory = memory / f64::from(1 << 20);
        goals.push(Goal::at_most("resident memory of a rank, any algorithm", memory, Unit::Mebibytes, 64.0));
        goals
    }
}

/// Returns the goals with the simulated ratios.
pub(super) fn simulated_goals(simulated: &Condition) -> Vec<Goal> {
    let ratios = &simulated.ratios;
    let name = |what: &str| format!("  {what}");
    vec![
        Goal::at_least(
            "simulated: CP ÷ h-drqs, 40 processes each (h-drqs: 8 threads)",
            ratios.equal_processes,
            Unit::Times,
            4.0,
        ),
        Goal::open(name("40 cores each"), ratios.equal_cores, Unit::Times),
        Goal::open(name("320 cores each"), ratios.equal_many_cores, Unit::Times),
        Goal::open(name("CP with one reader, 40 cores each"), ratios.one_reader_equal_cores, Unit::Times),
        Goal::open("simulated: CP ÷ drqs, 40 processes each", ratios.drqs, Unit::Times),
    ]
}

impl fmt::Display for MpiReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, jobs of {} ranks on this machine", self.library, self.ranks)?;
        let mut table = Table::new(&[
            "algorithm",
            "threads",
            "wall",
            "least",
            "most",
            "cpu",
            "messages",
            "bytes",
            "least",
            "most",
            "busiest ÷ mean",
            "least",
            "most",
            "memory",
        ]);
        for jobs in &self.jobs {
            let mut row = vec![jobs.algorithm.name().to_string(), jobs.threads.to_string()];
            let three = |spread: Spread| [spread.median, spread.min, spread.max];
            row.extend(three(jobs.seconds).map(|seconds| format!("{:.0} ms", 1e3 * seconds)));
            row.push(format!("{:.0} ms", 1e3 * jobs.cpu_seconds.median));
            row.push(grouped(jobs.messages.median));
            row.extend(three(jobs.bytes).map(|bytes| format!("{:.3} MB", bytes / 1e6)));
            row.extend(three(jobs.busiest_to_mean).map(|ratio| format!("{ratio:.2}")));
            row.push(format!("{:.1} MiB", jobs.memory_bytes / f64::from(1 << 20)));
            table.row(row);
        }
        write!(f, "{table}")?;
        let Idle { ranks, idle_ranks, seconds, percent, messages_per_second, start_cpu_seconds, .. } =
            &self.idle;
        writeln!(
            f,
            "{idle_ranks} of {ranks} ranks had no work for {seconds:.1} s: {percent:.2} % of a processor each, and \
             {messages_per_second:.0} messages/s; the start of a rank, which is not counted, takes {:.0} ms.",
            1e3 * start_cpu_seconds
        )
    }
}
