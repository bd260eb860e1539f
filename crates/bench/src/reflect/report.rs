//! The results of the study, as text and as JSON.

use std::fmt;
use std::io::IsTerminal;

use serde::Serialize;

use super::arguments::Args;
use super::joins::{self, Joins};
use super::matrix::ReceiverAlone;
use super::overload::{self, Overloads};
use super::point::{Absent, Cell, Series, System};
use super::system;
use super::testbed::Device;
use super::validate::{self, Loop};
use crate::kit::Spread;
use crate::kit::quantity::grouped;
use crate::kit::report::{self, Report};
use crate::kit::table::Table;
use crate::kit::target::Targets;

/// The measured results.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Results {
    /// The number of cycles of the processor's clock per nanosecond.
    cycles_per_ns: f64,
    /// The load of the processors by other work before and after, in percent of one processor.
    pub(super) background_percent: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) series: Vec<Series>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) receivers_alone: Vec<ReceiverAlone>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) absent: Vec<Absent>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) loops: Vec<Loop>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) joins: Vec<Joins>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) overloads: Option<Overloads>,
    #[serde(skip_serializing_if = "Targets::is_empty")]
    targets: Targets,
    /// Compares everything with the targets at the end.
    #[serde(skip)]
    has_goals: bool,
}

/// Creates an empty report.
pub(super) fn new_report(args: &Args) -> Report<Results> {
    Report::new("reflect", [], Results::new(args.targets), args.results.as_deref())
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.is_empty() && self.loops.is_empty() && self.joins.is_empty() && self.overloads.is_none()
    }

    fn conclude(&mut self) {
        if self.has_goals {
            self.targets = super::targets::evaluate(self);
        }
    }
}

impl Results {
    /// Creates empty results, which are compared with the targets at the end if `has_goals`.
    pub(super) fn new(has_goals: bool) -> Self {
        Self {
            cycles_per_ns: system::ticks_per_ns(),
            background_percent: Vec::new(),
            series: Vec::new(),
            receivers_alone: Vec::new(),
            absent: Vec::new(),
            loops: Vec::new(),
            joins: Vec::new(),
            overloads: None,
            targets: Targets::default(),
            has_goals,
        }
    }

    /// Adds a system that could not be measured, once.
    pub(super) fn add_absent(&mut self, who: System, why: String) {
        if !self.is_absent(who) {
            self.absent.push(Absent { who, why });
        }
    }

    /// Returns whether a system is known not to work here.
    pub(super) fn is_absent(&self, who: System) -> bool {
        self.absent.iter().any(|known| known.who == who)
    }
}

/// The limit of the background load, in percent of a processor, above that of an idle machine's interrupts.
const BACKGROUND_MAX: f64 = 8.0;

/// Returns the warning that a measurement is not one of the plane that it is named after.
pub(super) fn not_its_own(measurement: &str, by_others: u64) -> String {
    let others = grouped(by_others as f64);
    alarming(&format!("NOT ITS OWN: {measurement}: {others} copies were made by another plane"))
}

/// Highlights a text that must not be overlooked.
pub(super) fn alarming(text: &str) -> String {
    match std::io::stdout().is_terminal() {
        true => format!("\u{1b}[31m{text}\u{1b}[0m"),
        false => text.to_string(),
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Unlimited => f.write_str("veth"),
            Device::Limited(mbit) => write!(f, "{mbit} Mbit/s"),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { who, device, bytes, receivers } = self;
        write!(f, "{}, {bytes} bytes to {receivers} by {device}", who.name())
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let background = self.background_percent.iter().copied().fold(0.0, f64::max);
        if background > BACKGROUND_MAX {
            let text = format!(
                "NOT QUIET: other things took {background:.0} % of a processor. Of processor times, only those by tasks are of use."
            );
            writeln!(f, "{}", alarming(&text))?;
        }
        if !self.series.is_empty() {
            write!(f, "{}", table(&self.series))?;
        }
        for series in self.series.iter().filter(|series| series.lost > 0 || series.disorder > 0) {
            let (lost, disorder) = (grouped(series.lost as f64), grouped(series.disorder as f64));
            let text =
                format!("LOSS: {}: {lost} copies did not arrive, {disorder} out of order", series.cell);
            writeln!(f, "{}", alarming(&text))?;
        }
        // What is measured under a plane's name has to be its own work.
        for series in self.series.iter().filter(|series| !series.is_own_work()) {
            writeln!(f, "{}", not_its_own(&series.cell.to_string(), series.by_others))?;
        }
        if !self.receivers_alone.is_empty() {
            let alone = Spread::of(self.receivers_alone.iter().map(|alone| alone.cost.probe_ns)).median;
            writeln!(f, "A receiver alone takes {alone:.0} ns for a copy from the network's stack.")?;
        }
        for absent in &self.absent {
            writeln!(f, "Not measured: {}: {}.", absent.who.name(), absent.why.trim_end_matches('.'))?;
        }
        if !self.loops.is_empty() {
            write!(f, "\n{}", validate::table(&self.loops))?;
        }
        if !self.joins.is_empty() {
            write!(f, "\n{}", joins::table(&self.joins))?;
        }
        if let Some(overloads) = &self.overloads {
            write!(f, "\n{}", overload::tables(overloads))?;
        }
        match self.targets.is_empty() {
            true => Ok(()),
            false => write!(f, "\n{}", self.targets),
        }
    }
}

fn table(series: &[Series]) -> Table {
    let mut table = Table::new(
        "plane | device | bytes | receivers | copies/s | Mbit/s | ns/copy | least | most | \
             cycles | with receiver | receiver in driver | by tasks | copies | lost",
    );
    for series in series {
        let cell = &series.cell;
        let runs = &series.repetitions;
        let limited = cell.device != Device::Unlimited;
        let number = |value: f64| if limited { "–".to_string() } else { grouped(value) };
        table.row(vec![
            cell.who.name().into(),
            cell.device.to_string(),
            cell.bytes.to_string(),
            cell.receivers.to_string(),
            grouped(series.copies_per_s.median),
            format!("{:.1}", series.megabits_per_s.median),
            number(series.copy_ns.median),
            number(series.copy_ns.min),
            number(series.copy_ns.max),
            number(series.copy_cycles.median),
            number(series.copy_received_ns.median),
            number(series.copy_dropped_ns.median),
            number(series.copy_task_ns.median),
            grouped(runs.iter().map(|run| run.copies).sum::<u64>() as f64),
            match series.lost {
                0 => "0".into(),
                lost => format!("LOST {}", grouped(lost as f64)),
            },
        ]);
    }
    table
}
