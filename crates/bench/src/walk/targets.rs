//! The targets of Nacre with MPI jobs and in the simulation.

use std::fmt;
use std::path::Path;

use nacre_ranks::Algorithm;
use serde::Serialize;

use super::idle::{self, Idle};
use super::mpi::{Job, Measurements, Mpi};
use super::study::compare::Condition;
use crate::BenchError;
use crate::kit::Spread;
use crate::kit::quantity::grouped;
use crate::kit::study::{Order, Series, Steps, add, turns};
use crate::kit::table::Table;
use crate::kit::target::{Targets, Unit};

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
    /// The same of the processor time of the work.
    busiest_to_mean_time: Spread,
    /// The time until the last rank was without work, over that until the first was.
    last_to_first_end: Spread,
    memory_bytes: f64,
    repetitions: Vec<Measurements>,
}

/// The results of MPI jobs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MpiTargets {
    library: String,
    ranks: u32,
    jobs: Vec<Jobs>,
    /// Jobs of as many ranks as processors, up to four, by which balance is judged: with more ranks, the system decides
    /// which of them works.
    balance: Vec<Jobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<Idle>,
}

impl Series for Jobs {
    type Subject = Algorithm;
    type Measurement = Measurements;

    fn of(algorithm: &Algorithm, repetitions: Vec<Measurements>) -> Self {
        let spread = |value: &dyn Fn(&Measurements) -> f64| Spread::of(repetitions.iter().map(value));
        let cpu = |job: &Measurements| job.ranks.iter().map(|rank| rank.cpu_ns()).sum::<u64>() as f64 / 1e9;
        Jobs {
            algorithm: *algorithm,
            threads: repetitions.first().map_or(0, |job| job.threads),
            seconds: spread(&Measurements::seconds),
            cpu_seconds: spread(&cpu),
            messages: spread(&|job| job.sent().messages as f64),
            bytes: spread(&|job| job.wire_bytes() as f64),
            busiest_to_mean: spread(&Measurements::imbalance),
            busiest_to_mean_time: spread(&Measurements::walking_imbalance),
            last_to_first_end: spread(&Measurements::last_to_first_end),
            memory_bytes: spread(&|job| job.resident_bytes_max() as f64).max,
            repetitions,
        }
    }

    fn into_repetitions(self) -> Vec<Measurements> {
        self.repetitions
    }
}

/// Measures jobs of four ranks, the balance of as many ranks as processors, and idle ranks.
pub(super) fn measure(
    mpi: &Mpi,
    root: &Path,
    repetitions: u32,
    quick: bool,
    results: &mut Option<MpiTargets>,
) -> Result<(), BenchError> {
    let steps = Steps::new(u64::from(repetitions) * Algorithm::ALL.len() as u64 + 2);
    let library = mpi.library.clone();
    let (jobs, balance) = (Vec::new(), Vec::new());
    let results = results.insert(MpiTargets { library, ranks: RANKS, jobs, balance, idle: None });
    for (repetition, place) in turns(repetitions, Algorithm::ALL.len(), Order::Same) {
        let algorithm = Algorithm::ALL[place];
        // It takes many times as long as the others, so it runs once.
        if algorithm.has_master() && repetition > 0 {
            continue;
        }
        steps.step(&format!("{algorithm} on {RANKS} ranks"), repetition)?;
        let seed = 1 + u64::from(repetition);
        let measured = mpi.walk(&Job { ranks: RANKS, algorithm, threads: None, seed, root })?;
        add(&mut results.jobs, place, &algorithm, measured);
    }
    let ranks = std::thread::available_parallelism().map_or(2, |cpus| (cpus.get() as u32).clamp(2, RANKS));
    for repetition in 0..repetitions {
        let algorithm = Algorithm::HDrqs;
        steps.step(&format!("the balance of {ranks} ranks"), repetition)?;
        let seed = 1 + u64::from(repetition);
        let measured = mpi.walk(&Job { ranks, algorithm, threads: Some(1), seed, root })?;
        add(&mut results.balance, 0, &algorithm, measured);
    }
    steps.step("idle ranks", 0)?;
    results.idle = Some(idle::measure(mpi, if quick { 20_000 } else { 100_000 })?);
    Ok(())
}

impl MpiTargets {
    /// Adds the targets with the measured values.
    pub(super) fn evaluate(&self, targets: &mut Targets) {
        let of = |algorithm| self.jobs.iter().find(|jobs| jobs.algorithm == algorithm);
        let ranks = self.ranks;
        let megabytes = |bytes: f64| bytes / 1e6;
        if let Some(jobs) = of(Algorithm::HDrqs) {
            let name = format!("MPI, {ranks} ranks, {}: bytes moved", jobs.algorithm);
            targets.at_most(name, megabytes(jobs.bytes.median), Unit::Megabytes, 0.2);
        }
        for jobs in &self.balance {
            let ranks = jobs.repetitions.first().map_or(0, |job| job.ranks.len());
            let name = format!("MPI, {ranks} ranks, {}: busiest ÷ mean, processor time", jobs.algorithm);
            targets.at_most(name, jobs.busiest_to_mean_time.median, Unit::Times, 1.2);
            let name = "  last rank with work ÷ first without, time";
            targets.at_most(name, jobs.last_to_first_end.median, Unit::Times, 1.2);
        }
        if let Some(cp) = of(Algorithm::Cp) {
            for jobs in [Algorithm::Drqs, Algorithm::HDrqs].into_iter().filter_map(of) {
                let name = jobs.algorithm;
                let messages = cp.messages.median / jobs.messages.median.max(1.0);
                let name = |what: &str| format!("CP ÷ {name}, {ranks} ranks: {what}");
                targets.at_least(name("messages"), messages, Unit::Times, 10.0);
                let bytes = cp.bytes.median / jobs.bytes.median.max(1.0);
                targets.at_least(name("bytes"), bytes, Unit::Times, 100.0);
            }
        }
        if let Some(idle) = &self.idle {
            targets.at_most("idle ranks, of a processor", idle.percent, Unit::Percent, 2.0);
        }
        let memory = self.jobs.iter().map(|jobs| jobs.memory_bytes).fold(0.0, f64::max);
        let memory = memory / f64::from(1 << 20);
        targets.at_most("resident memory of a rank, any algorithm", memory, Unit::Mebibytes, 64.0);
    }
}

/// Adds the targets with the simulated ratios.
pub(super) fn evaluate_simulated(simulated: &Condition, targets: &mut Targets) {
    let ratios = &simulated.ratios;
    let name = |what: &str| format!("  {what}");
    // What the paper says of as many processes with one thread each. With more threads than CP has, the others would be
    // faster whatever they do.
    targets.at_least("simulated: CP ÷ drqs, 40 processes each", ratios.drqs, Unit::Times, 3.0);
    targets.open(name("CP that keeps one ÷ drqs, 40 processes each"), ratios.keeps_one_drqs, Unit::Times);
    let threads = "CP ÷ h-drqs, 40 processes each (h-drqs: 8 threads)";
    targets.open(name(threads), ratios.equal_processes, Unit::Times);
    targets.open(name("CP ÷ h-drqs, 40 cores each"), ratios.equal_cores, Unit::Times);
    targets.open(name("CP ÷ h-drqs, 320 cores each"), ratios.equal_many_cores, Unit::Times);
    let one_reader = "CP with one reader ÷ h-drqs, 40 cores each";
    targets.open(name(one_reader), ratios.one_reader_equal_cores, Unit::Times);
}

impl fmt::Display for MpiTargets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, jobs on this machine", self.library)?;
        let mut table = Table::new(
            "algorithm | ranks | threads | wall | least | most | cpu | messages | bytes | least | most | \
             busiest ÷ mean | least | most | of time | last ÷ first end | memory",
        );
        for jobs in self.jobs.iter().chain(&self.balance) {
            let ranks = jobs.repetitions.first().map_or(0, |job| job.ranks.len());
            let mut row =
                vec![jobs.algorithm.name().to_string(), ranks.to_string(), jobs.threads.to_string()];
            let three = |spread: Spread| [spread.median, spread.min, spread.max];
            row.extend(three(jobs.seconds).map(|seconds| format!("{:.0} ms", 1e3 * seconds)));
            row.push(format!("{:.0} ms", 1e3 * jobs.cpu_seconds.median));
            row.push(grouped(jobs.messages.median));
            row.extend(three(jobs.bytes).map(|bytes| format!("{:.3} MB", bytes / 1e6)));
            row.extend(three(jobs.busiest_to_mean).map(|ratio| format!("{ratio:.2}")));
            row.push(format!("{:.2}", jobs.busiest_to_mean_time.median));
            row.push(format!("{:.2}", jobs.last_to_first_end.median));
            row.push(format!("{:.1} MiB", jobs.memory_bytes / f64::from(1 << 20)));
            table.row(row);
        }
        write!(f, "{table}")?;
        let Some(idle) = &self.idle else { return Ok(()) };
        let Idle { ranks, seconds, percent, messages_per_second, .. } = idle;
        let (idle_ranks, longest) = (seconds.len(), seconds.iter().copied().fold(0.0, f64::max));
        writeln!(
            f,
            "{idle_ranks} of {ranks} ranks had no work for up to {longest:.1} s: {percent:.2} % of a processor each; \
             {messages_per_second:.0} messages/s by each rank."
        )
    }
}
