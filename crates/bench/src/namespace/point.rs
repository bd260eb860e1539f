//! The points of the study, and what was measured of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kit::latency::{LatencyCounts, LatencySummary};
use crate::kit::quantity::{grouped, latency};
use crate::kit::report;
use crate::kit::server::Durability;
use crate::kit::statistic::Spread;
use crate::kit::study;
use crate::kit::table::Table;
use crate::kit::target::{Targets, Unit};

/// The way to the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// The namespace by the library
    Library,
    /// The namespace by a mount, with system calls
    Mount,
    /// The machine's own file system
    Machine,
    /// That file system behind a pass-through, the least that FUSE costs
    Floor,
}

impl System {
    /// All of them, in the order in which they are measured.
    pub(super) const ALL: [System; 4] = [System::Library, System::Mount, System::Machine, System::Floor];

    /// Returns its name in tables and figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            System::Library => "library",
            System::Mount => "mount",
            System::Machine => "machine",
            System::Floor => "FUSE's floor",
        }
    }
}

/// The directories of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Layout {
    /// One for all clients.
    Shared,
    /// One for each client.
    Own,
}

/// A phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    Create,
    Stat,
    Rename,
    List,
    Unlink,
}

impl Phase {
    pub(super) const ALL: [Phase; 5] =
        [Phase::Create, Phase::Stat, Phase::Rename, Phase::List, Phase::Unlink];

    pub(super) fn name(self) -> &'static str {
        match self {
            Phase::Create => "create",
            Phase::Stat => "stat",
            Phase::Rename => "rename",
            Phase::List => "list",
            Phase::Unlink => "unlink",
        }
    }
}

/// A point of the study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    pub(crate) label: String,
    pub(crate) system: System,
    pub(crate) durability: Durability,
    /// The number of clients, and of the processes that they are in.
    pub(crate) clients: u32,
    pub(crate) processes: u32,
    pub(crate) layout: Layout,
    pub(crate) file_bytes: u32,
    /// The files that each client makes, unless the time for that is over before.
    pub(crate) files: u32,
}

impl Point {
    /// Returns whether it is one of those that differ in the number of clients alone.
    pub(super) fn is_plain(&self) -> bool {
        self.layout == Layout::Shared && self.file_bytes == 0 && self.processes == 1
    }
}

/// The measurement of a phase.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PhaseRecord {
    pub(crate) phase: Phase,
    pub(crate) operations: u64,
    pub(crate) per_second: f64,
    /// The entries of listings per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) entries_per_second: Option<f64>,
    pub(crate) latency: LatencySummary,
    pub(crate) latency_ns_counts: LatencyCounts,
}

/// One repetition of a point. What it had made was checked.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    /// The files of all clients.
    pub(crate) files: u64,
    pub(crate) phases: Vec<PhaseRecord>,
}

impl Measurement {
    fn phase(&self, phase: Phase) -> Option<&PhaseRecord> {
        self.phases.iter().find(|record| record.phase == phase)
    }

    /// Returns the operations of a phase per second.
    pub(super) fn per_second(&self, phase: Phase) -> f64 {
        self.phase(phase).map_or(0.0, |record| record.per_second)
    }
}

/// All repetitions of a point.
pub(crate) type Series = study::Repetitions<Point, Measurement>;

impl Series {
    fn rates(&self, phase: Phase) -> Spread {
        Spread::of(self.repetitions.iter().map(|one| one.per_second(phase)))
    }
}

/// The results of the study.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Results {
    pub(crate) series: Vec<Series>,
    pub(crate) targets: Targets,
    /// The load average of the machine when the study began.
    pub(crate) load_at_start: String,
}

/// Returns the median of the ratios of two series, repetition by repetition, which a longer disturbance of the machine affects alike.
fn ratio(one: &Series, other: &Series, phase: Phase) -> Option<f64> {
    let pairs = one.repetitions.iter().zip(&other.repetitions);
    let rates = pairs.map(|(one, other)| (one.per_second(phase), other.per_second(phase)));
    let ratios: Vec<f64> = rates.filter(|(_, other)| *other > 0.0).map(|(one, other)| one / other).collect();
    (!ratios.is_empty()).then(|| Spread::of(ratios).median)
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    fn conclude(&mut self) {
        let Results { series, targets, .. } = self;
        let find = |wanted: &dyn Fn(&Point) -> bool| series.iter().find(|series| wanted(&series.point));
        let plain = |system, durability, clients| {
            find(&move |point| {
                point.is_plain()
                    && (point.system, point.durability, point.clients) == (system, durability, clients)
            })
        };
        let clients =
            || series.iter().filter(|series| series.point.is_plain()).map(|series| series.point.clients);
        let (Some(least), Some(most)) = (clients().min(), clients().max()) else { return };
        let durable = plain(System::Library, Durability::Always, most);
        if let Some(series) = durable {
            let measure = format!("durable creates in one directory, library, {most} clients");
            let rate = series.rates(Phase::Create).median;
            match most >= 64 {
                true => targets.at_least(measure, rate, Unit::PerSecond, 20e3),
                false => targets.open(measure, rate, Unit::PerSecond),
            }
        }
        let own = find(&|point| {
            (point.system, point.durability) == (System::Library, Durability::Always)
                && point.layout == Layout::Own
        });
        if let Some(series) = own {
            targets.open("  in a directory for each", series.rates(Phase::Create).median, Unit::PerSecond);
        }
        let of_machine = durable.zip(plain(System::Machine, Durability::Always, most));
        if let Some(times) = of_machine.and_then(|(one, other)| ratio(one, other, Phase::Create)) {
            targets.open("  ÷ the machine's file system, with syncs", times, Unit::Times);
        }
        for durability in [Durability::Volatile, Durability::Always] {
            for clients in if least == most { vec![least] } else { vec![least, most] } {
                let both =
                    plain(System::Floor, durability, clients).zip(plain(System::Mount, durability, clients));
                // The time of one: the inverse of the rates.
                let Some(times) = both.and_then(|(floor, mount)| ratio(floor, mount, Phase::Stat)) else {
                    continue;
                };
                let measure = format!(
                    "stat by the mount ÷ FUSE's floor, time, {}, {clients} clients",
                    name(durability)
                );
                match clients == least {
                    true => targets.at_most(measure, times, Unit::Times, 1.3),
                    false => targets.open(measure, times, Unit::Times),
                }
            }
        }
    }

    fn conditions(&self) -> String {
        format!(", load average {} at the start", self.load_at_start)
    }
}

/// Returns the name of a durability.
pub(super) fn name(durability: Durability) -> &'static str {
    match durability {
        Durability::Volatile => "volatile",
        Durability::Always => "durable",
        Durability::None => "synced later",
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(concat!(
            "point | files | create/s | least | most | stat/s | rename/s | list/s | entries/s | unlink/s",
            " | create p50 | p99 | stat p50 | p99",
        ));
        for series in &self.series {
            let rate = |phase| grouped(series.rates(phase).median);
            let creates = series.rates(Phase::Create);
            let entries = series.median(|one| {
                one.phase(Phase::List).and_then(|record| record.entries_per_second).unwrap_or_default()
            });
            let us = |phase, value: fn(&LatencySummary) -> f64| {
                latency(series.median(|one| one.phase(phase).map_or(0.0, |record| value(&record.latency))))
            };
            table.row(vec![
                series.point.label.clone(),
                grouped(series.median(|one| one.files as f64)),
                grouped(creates.median),
                grouped(creates.min),
                grouped(creates.max),
                rate(Phase::Stat),
                rate(Phase::Rename),
                rate(Phase::List),
                grouped(entries),
                rate(Phase::Unlink),
                us(Phase::Create, |latency| latency.p50_us),
                us(Phase::Create, |latency| latency.p99_us),
                us(Phase::Stat, |latency| latency.p50_us),
                us(Phase::Stat, |latency| latency.p99_us),
            ]);
        }
        write!(f, "{table}")?;
        writeln!(
            f,
            "Every run was checked: the number of files in each listing, sizes, and one content of sixteen."
        )?;
        match self.targets.is_empty() {
            true => Ok(()),
            false => write!(f, "\n{}", self.targets),
        }
    }
}
