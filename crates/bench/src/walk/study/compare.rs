//! A comparison of CP and the distributed walks in the simulation, under varied assumptions.
//!
//! A ratio of two times depends on what is held equal and on what limits the walks. H-DRQS has several threads in each
//! process; with as many processes as CP it has more threads, so it is compared twice: with as many processes, and with
//! as many walking threads (cores). The parameters that the paper does not give, the cost of a message and the rates of
//! the file system, are varied. The cost of a message comes first: the paper names communication as the reason why CP is slow,
//! with its enhancement too, in which a worker keeps one of the entries that it found.

use std::fmt;
use std::path::Path;

use nacre_ranks::Algorithm;
use nacre_ranks::simulate::outcome::Outcome;
use nacre_ranks::simulate::timed::Study;
use serde::Serialize;

use super::simulate::{FILES, PROCESSES, THREADS, Variant, run_all};
use crate::BenchError;
use crate::kit::figure::{self, Drawing, Figure, Scale};
use crate::kit::quantity::grouped;
use crate::kit::table::Table;
use crate::kit::target::{Targets, Unit};

const CP: Variant = Variant::Plain(Algorithm::Cp);
const KEEPS_ONE: Variant = Variant::KeepsOne;
const DRQS: Variant = Variant::Plain(Algorithm::Drqs);
const H_DRQS: Variant = Variant::Plain(Algorithm::HDrqs);
/// The number of nodes of Cielo, and of cores of each.
const CIELO: (u32, u32) = (8944, 16);

/// The summary of one simulated run.
#[derive(Clone, Debug, Serialize)]
pub(in crate::walk) struct Point {
    algorithm: &'static str,
    nodes: u32,
    processes: u32,
    threads: u32,
    entries: u64,
    seconds: f64,
    /// The time until the last entry was visited.
    last_visit_seconds: f64,
    /// The share of the time that the metadata service was busy.
    metadata_busy: f64,
    /// The share of the time that the busiest process's port was busy: for CP, the master's.
    busiest_port: f64,
    messages: u64,
    bytes: u64,
    /// The number of entries of the busiest process, over the mean.
    imbalance: f64,
    /// The time that the busiest process was busy, over the mean.
    busy_imbalance: f64,
    /// The time after which the first process was without work for good, as a share of that until the last visit.
    first_without_work: f64,
}

/// The assumptions of a simulation.
#[derive(Clone, Debug, Serialize)]
pub(in crate::walk) struct Assumed {
    varied: Varied,
    /// The factor of the varied parameter.
    factor: f64,
    stats_per_second: f64,
    latency_ns: u64,
    handling_ns: u64,
    unit_ns: u64,
}

/// The parameter of the model that is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::walk) enum Varied {
    Nothing,
    /// The rate of the metadata service.
    Rate,
    /// The latency of a call on an idle metadata service.
    Latency,
    /// The cost of a message and of a unit of work in it at either end.
    Message,
}

/// The ratios of CP's time to that of others, under some assumptions.
#[derive(Clone, Debug, Serialize)]
pub(in crate::walk) struct Condition {
    assumed: Assumed,
    points: Vec<Point>,
    pub(in crate::walk) ratios: Ratios,
}

/// The ratios of CP's time to the time of other walks.
#[derive(Clone, Copy, Debug, Serialize)]
pub(in crate::walk) struct Ratios {
    /// CP to DRQS, both with 40 processes.
    pub(in crate::walk) drqs: f64,
    /// CP whose workers keep an entry to DRQS, both with 40 processes.
    pub(in crate::walk) keeps_one_drqs: f64,
    /// CP with 40 processes, to H-DRQS with 40 processes of 8 threads each.
    pub(in crate::walk) equal_processes: f64,
    /// CP with 40 processes, to H-DRQS with 5 processes of 8 threads each.
    pub(in crate::walk) equal_cores: f64,
    /// CP with 320 processes, to H-DRQS with 40 processes of 8 threads each.
    pub(in crate::walk) equal_many_cores: f64,
    /// CP with a single reader and 40 processes, to H-DRQS with 40 processes of 8 threads each.
    pub(in crate::walk) one_reader_equal_processes: f64,
    /// CP with a single reader and 40 processes, to H-DRQS with 5 processes of 8 threads each.
    pub(in crate::walk) one_reader_equal_cores: f64,
}

/// A ratio, with its name in figures and its head in tables.
type NamedRatio = (&'static str, &'static str, fn(&Ratios) -> f64);

/// The ratios that figures and tables show.
const RATIOS: [NamedRatio; 7] = [
    ("drqs, 40 processes", "÷ drqs, 40 processes each", |ratios| ratios.drqs),
    ("keeps one ÷ drqs, 40 processes", "keeps one ÷ drqs, 40 processes", |ratios| ratios.keeps_one_drqs),
    ("h-drqs, 40 processes", "÷ h-drqs, 40 processes each", |ratios| ratios.equal_processes),
    ("h-drqs, 40 cores", "÷ h-drqs, 40 cores each", |ratios| ratios.equal_cores),
    ("h-drqs, 320 cores", "÷ h-drqs, 320 cores each", |ratios| ratios.equal_many_cores),
    ("one reader ÷ h-drqs, 40 processes", "one reader, 40 processes", |ratios| {
        ratios.one_reader_equal_processes
    }),
    ("one reader ÷ h-drqs, 40 cores", "one reader, 40 cores", |ratios| ratios.one_reader_equal_cores),
];

/// The whole comparison.
#[derive(Clone, Debug, Serialize)]
pub(in crate::walk) struct Comparison {
    pub(in crate::walk) conditions: Vec<Condition>,
    scale: Vec<Point>,
    /// The walks by which balance is judged.
    balance: Vec<Point>,
}

/// Returns the runs of a condition, in the order of [`Ratios::of`].
fn studies(entries: u64) -> [(Variant, Study); 7] {
    let cores = PROCESSES * THREADS;
    [
        (CP, CP.study(PROCESSES, entries)),
        (Variant::OneReader, Variant::OneReader.study(PROCESSES, entries)),
        (DRQS, DRQS.study(PROCESSES, entries)),
        (H_DRQS, H_DRQS.study(PROCESSES, entries)),
        (H_DRQS, H_DRQS.study_on(PROCESSES / THREADS, 1, entries)),
        (CP, CP.study_on(cores / CIELO.1, CIELO.1, entries)),
        (KEEPS_ONE, KEEPS_ONE.study(PROCESSES, entries)),
    ]
}

impl Ratios {
    fn of(points: &[Point]) -> Self {
        let seconds: Vec<f64> = points.iter().map(|point| point.seconds).collect();
        let ratio = |one: usize, other: usize| seconds[one] / seconds[other];
        Self {
            drqs: ratio(0, 2),
            keeps_one_drqs: ratio(6, 2),
            equal_processes: ratio(0, 3),
            equal_cores: ratio(0, 4),
            equal_many_cores: ratio(5, 3),
            one_reader_equal_processes: ratio(1, 3),
            one_reader_equal_cores: ratio(1, 4),
        }
    }
}

impl Varied {
    fn apply(self, study: &mut Study, factor: f64) {
        let times = |ns: u64| (ns as f64 * factor).round() as u64;
        match self {
            Self::Nothing => {}
            Self::Rate => study.metadata = study.metadata.scaled(factor),
            Self::Latency => study.metadata.latency_ns = times(study.metadata.latency_ns),
            Self::Message => {
                study.network.handling_ns = times(study.network.handling_ns);
                study.network.unit_ns = times(study.network.unit_ns);
            }
        }
    }
}

/// Simulates only the model's own parameters.
pub(in crate::walk) fn base(quick: bool) -> Result<Condition, BenchError> {
    let conditions = conditions(&[(Varied::Nothing, 1.0)], FILES[0] / if quick { 10 } else { 1 })?;
    conditions.into_iter().next().ok_or_else(|| BenchError::Process("nothing was simulated".into()))
}

/// Simulates all variations; with `quick`, a tenth of the files and processes.
pub(in crate::walk) fn compare(quick: bool) -> Result<Comparison, BenchError> {
    let part = if quick { 10u32 } else { 1 };
    let mut varied = vec![(Varied::Nothing, 1.0)];
    let mut vary = |what, exponents: &[i32]| {
        varied.extend(exponents.iter().map(|exponent| (what, 2f64.powi(*exponent))));
    };
    vary(Varied::Message, &[-2, 0, 2, 3, 4]);
    vary(Varied::Rate, &[-6, -4, -2, 0, 2, 4]);
    vary(Varied::Latency, &[2, 0, -2, -4, -6]);
    // The ratios hardly depend on the number of files, as long as there are enough; those of all the paper's files come first.
    let mut all = conditions(&varied[..1], FILES[0] / u64::from(part))?;
    all.extend(conditions(&varied[1..], FILES[0] / 5 / u64::from(part))?);
    Ok(Comparison { conditions: all, scale: scale(part)?, balance: balance(part)? })
}

fn conditions(varied: &[(Varied, f64)], entries: u64) -> Result<Vec<Condition>, BenchError> {
    let mut variants = Vec::new();
    let mut all = Vec::new();
    for (varied, factor) in varied {
        for (variant, mut study) in studies(entries) {
            varied.apply(&mut study, *factor);
            variants.push(variant);
            all.push(study);
        }
    }
    let points = points(&variants, &all)?;
    let each = studies(entries).len();
    let mut conditions = Vec::new();
    for (place, (varied, factor)) in varied.iter().enumerate() {
        let of = place * each..(place + 1) * each;
        let (points, study) = (&points[of.clone()], &all[of.start]);
        conditions.push(Condition {
            assumed: Assumed {
                varied: *varied,
                factor: *factor,
                stats_per_second: study.metadata.stats_per_second,
                latency_ns: study.metadata.latency_ns,
                handling_ns: study.network.handling_ns,
                unit_ns: study.network.unit_ns,
            },
            points: points.to_vec(),
            ratios: Ratios::of(points),
        });
    }
    Ok(conditions)
}

/// Simulates the whole of Cielo on the largest file system, as modelled and with a file system that is a hundred times
/// as fast.
fn scale(part: u32) -> Result<Vec<Point>, BenchError> {
    let (nodes, cores) = (CIELO.0 / part, CIELO.1);
    let entries = FILES[2] / u64::from(part);
    let mut variants = Vec::new();
    let mut all = Vec::new();
    for faster in [1.0, 100.0] {
        for variant in [H_DRQS, DRQS, CP] {
            let per_node = if variant == H_DRQS { 1 } else { cores };
            let mut study = variant.study_on(nodes, per_node, entries);
            study.threads = if variant == H_DRQS { cores } else { 1 };
            study.metadata = study.metadata.scaled(faster);
            variants.push(variant);
            all.push(study);
        }
    }
    points(&variants, &all)
}

/// Simulates a thousand ranks on the largest file system, as modelled and with a file system that is a hundred times as
/// fast: whether they all have work to the end is seen only where they do not wait for the file system.
fn balance(part: u32) -> Result<Vec<Point>, BenchError> {
    const RANKS: u32 = 1_000;
    let mut variants = Vec::new();
    let mut all = Vec::new();
    for faster in [1.0, 100.0] {
        for variant in [H_DRQS, DRQS] {
            let mut study = variant.study(RANKS / part, FILES[2] / u64::from(part));
            study.metadata = study.metadata.scaled(faster);
            variants.push(variant);
            all.push(study);
        }
    }
    points(&variants, &all)
}

/// Runs simulations, and returns what became of them.
fn points(variants: &[Variant], studies: &[Study]) -> Result<Vec<Point>, BenchError> {
    let (outcomes, ended) = run_all(studies);
    ended?;
    Ok(variants
        .iter()
        .zip(outcomes.iter().flatten())
        .map(|(variant, outcome)| Point::of(*variant, outcome))
        .collect())
}

impl Point {
    fn of(variant: Variant, outcome: &Outcome) -> Self {
        let busiest = outcome.by_rank.iter().map(|rank| rank.port_seconds).fold(0.0, f64::max);
        Self {
            algorithm: variant.name(),
            nodes: outcome.nodes,
            processes: outcome.ranks,
            threads: outcome.threads,
            entries: outcome.entries,
            seconds: outcome.seconds,
            last_visit_seconds: outcome.last_visit_seconds,
            metadata_busy: outcome.metadata_busy,
            busiest_port: busiest / outcome.seconds,
            messages: outcome.sent.messages,
            bytes: outcome.sent.bytes,
            imbalance: outcome.imbalance(),
            busy_imbalance: outcome.busy_imbalance(),
            first_without_work: outcome.first_without_work(),
        }
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.algorithm.into(),
            grouped(f64::from(self.processes)),
            self.threads.to_string(),
            grouped(self.entries as f64),
            format!("{:.1} s", self.seconds),
            format!("{:.1} s", self.last_visit_seconds),
            format!("{:.0} %", 100.0 * self.metadata_busy),
            format!("{:.1} %", 100.0 * self.busiest_port),
            grouped(self.messages as f64),
            format!("{:.2} MB", self.bytes as f64 / 1e6),
            format!("{:.2}", self.imbalance),
            format!("{:.2}", self.busy_imbalance),
            format!("{:.0} %", 100.0 * self.first_without_work),
        ]
    }
}

impl Assumed {
    fn name(&self) -> String {
        let times = if self.factor < 1.0 {
            format!("÷ {}", 1.0 / self.factor)
        } else {
            format!("× {}", self.factor)
        };
        match self.varied {
            Varied::Nothing => "as modelled".into(),
            Varied::Rate => format!("{} lstat/s ({times})", grouped(self.stats_per_second)),
            Varied::Latency => format!("{} µs for a call ({times})", self.latency_ns as f64 / 1e3),
            Varied::Message => format!("{} µs for a message ({times})", self.handling_ns as f64 / 1e3),
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Simulated: how many times as long CP takes; h-drqs has {THREADS} threads in each process"
        )?;
        let heads = RATIOS.map(|(_, head, _)| head).join(" | ");
        let mut table = Table::new(&format!("assumed | files | {heads}"));
        for Condition { assumed, points, ratios } in &self.conditions {
            let entries = points.first().map_or(0, |point| point.entries);
            let mut row = vec![assumed.name(), grouped(entries as f64)];
            row.extend(RATIOS.map(|(.., ratio)| format!("{:.2}", ratio(ratios))));
            table.row(row);
        }
        writeln!(f, "{table}")?;
        let head = "who | processes | threads | files | time | last visit | metadata busy | busiest port | \
             messages | bytes | busiest ÷ mean | of time | first without work";
        let sections = [
            (
                "Simulated: the runs of the first row",
                self.conditions.first().map_or(&[][..], |first| &first.points),
            ),
            ("Simulated: all of Cielo; then with a metadata service 100 times as fast", &self.scale),
            (
                "Simulated: the balance of a thousand ranks; then with a metadata service 100 times as fast",
                &self.balance,
            ),
        ];
        for (title, points) in sections {
            writeln!(f, "{title}")?;
            let mut table = Table::new(head);
            points.iter().for_each(|point| table.row(point.row()));
            writeln!(f, "{table}")?;
        }
        let mut targets = Targets::default();
        for point in &self.balance {
            let Point { algorithm, processes, seconds, .. } = point;
            let name =
                format!("simulated: {algorithm}, {processes} ranks, {seconds:.0} s: busiest ÷ mean, time");
            targets.at_most(name, point.busy_imbalance, Unit::Times, 1.2);
        }
        write!(f, "{targets}")
    }
}

/// Draws the ratios over the varied parameters, and returns the files.
pub(in crate::walk) fn draw(comparison: &Comparison, folder: &Path) -> Result<Vec<String>, BenchError> {
    type Parameter = fn(&Assumed) -> f64;
    let figures: [(Varied, &str, &str, Parameter); 3] = [
        (Varied::Rate, "rate", "lstat calls that the metadata service serves in a second", |assumed| {
            assumed.stats_per_second
        }),
        (Varied::Latency, "latency", "latency of a call (µs)", |assumed| assumed.latency_ns as f64 / 1e3),
        (Varied::Message, "message", "what a message costs at either end (µs)", |assumed| {
            assumed.handling_ns as f64 / 1e3
        }),
    ];
    let draw = |(varied, name, label, place): (Varied, &str, &str, Parameter)| {
        let of: Vec<&Condition> =
            comparison.conditions.iter().filter(|condition| condition.assumed.varied == varied).collect();
        let entries = of.iter().flat_map(|condition| &condition.points).map(|point| point.entries).max();
        let results =
            RATIOS.iter().enumerate().flat_map(|line| of.iter().map(move |condition| (line, condition)));
        let drawn = figure::lines(
            results,
            |((_, (name, ..)), _)| (*name).to_owned(),
            |((_, (_, _, ratio)), condition)| (place(&condition.assumed), vec![ratio(&condition.ratios)]),
            |((colour, _), _)| *colour,
        );
        let files = grouped(entries.unwrap_or(0) as f64);
        let figure = Figure::of(
            format!("How many times as long CP takes, by {name}"),
            format!("Simulated: {files} files; everything else as modelled"),
            (label, Scale::Decades),
            ("time of CP ÷ time of …", Scale::Decades),
            drawn,
        );
        figure::write(folder, &format!("comparison-{name}-simulated"), figure.svg())
    };
    figures.into_iter().map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_varied_changes_and_nothing_else() {
        let entries = 4000;
        let varied = [(Varied::Nothing, 1.0), (Varied::Latency, 4.0), (Varied::Rate, 0.001)];
        let conditions = conditions(&varied, entries).unwrap();
        let cp = |place: usize| &conditions[place].points[0];
        assert_eq!((cp(0).processes, cp(0).threads, cp(0).entries), (PROCESSES, 1, entries));
        assert_eq!(conditions[1].assumed.latency_ns, 4 * conditions[0].assumed.latency_ns);
        assert_eq!(conditions[1].assumed.stats_per_second, conditions[0].assumed.stats_per_second);
        assert!(cp(1).seconds > 2.0 * cp(0).seconds, "walkers wait for calls");
        // A service that is slow enough is all that counts.
        assert!(cp(2).metadata_busy > 0.9 && conditions[2].ratios.drqs < 1.5, "{:?}", conditions[2]);
    }

    #[test]
    fn equal_cores_are_equal() {
        let cores = |study: &Study| study.ranks() * study.threads;
        let studies = studies(1000);
        let of = |place: usize| &studies[place].1;
        assert_eq!(of(0).ranks(), of(3).ranks());
        assert_eq!(cores(of(0)), cores(of(4)));
        assert_eq!(cores(of(5)), cores(of(3)));
    }
}
