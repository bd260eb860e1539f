//! The results of the study, as text and as JSON.

use std::fmt;
use std::io::IsTerminal;
use std::path::Path;

use serde::Serialize;

use super::joins::{self, Joins};
use super::matrix::ReceiverAlone;
use super::overload::{self, Overloads};
use super::point::{Absent, Series};
use super::stage::Device;
use super::system;
use super::validate::{self, Loop};
use crate::BenchError;
use crate::kit::Spread;
use crate::kit::goal::{Goal, Goals};
use crate::kit::machine::Machine;
use crate::kit::quantity::grouped;
use crate::kit::table::Table;

/// All results.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    study: &'static str,
    pub(super) machine: Machine,
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) goals: Vec<Goal>,
    /// The files of the figures that were drawn.
    #[serde(skip)]
    pub(super) figures: Vec<String>,
}

impl Report {
    /// Creates an empty report.
    pub(super) fn new() -> Self {
        Self {
            study: "reflect",
            machine: Machine::describe(),
            cycles_per_ns: system::ticks_per_ns(),
            background_percent: Vec::new(),
            series: Vec::new(),
            receivers_alone: Vec::new(),
            absent: Vec::new(),
            loops: Vec::new(),
            joins: Vec::new(),
            overloads: None,
            goals: Vec::new(),
            figures: Vec::new(),
        }
    }

    /// Adds contenders that could not be measured, each once.
    pub(super) fn add_absent(&mut self, absent: Vec<Absent>) {
        for absent in absent {
            if !self.absent.iter().any(|known| known.who == absent.who) {
                self.absent.push(absent);
            }
        }
    }

    /// Returns it as JSON.
    pub(super) fn json(&self) -> Result<String, BenchError> {
        serde_json::to_string(self)
            .map_err(|error| BenchError::Process(format!("cannot write the results as JSON: {error}")))
    }

    /// Writes it as JSON.
    pub(super) fn write(&self, file: &Path) -> Result<(), BenchError> {
        std::fs::write(file, self.json()?).map_err(BenchError::io(format!("write {}", file.display())))
    }
}

/// The limit of the background load, in percent of a processor, above that of an idle machine's interrupts.
const BACKGROUND_MAX: f64 = 8.0;

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

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine.line())?;
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
            let cell = &series.cell;
            let text = format!(
                "LOSS: {}, {} bytes to {} by {}: {} copies did not arrive, {} out of order",
                cell.who.name(),
                cell.bytes,
                cell.receivers,
                cell.device,
                grouped(series.lost as f64),
                grouped(series.disorder as f64),
            );
            writeln!(f, "{}", alarming(&text))?;
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
        if !self.goals.is_empty() {
            write!(f, "\n{}", Goals(self.goals.clone()))?;
        }
        for file in &self.figures {
            writeln!(f, "Drawn: {file}")?;
        }
        Ok(())
    }
}

fn table(series: &[Series]) -> Table {
    let mut table = Table::new(&[
        "plane",
        "device",
        "bytes",
        "receivers",
        "copies/s",
        "Mbit/s",
        "ns/copy",
        "least",
        "most",
        "cycles",
        "with receiver",
        "by tasks",
        "copies",
        "lost",
    ]);
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
