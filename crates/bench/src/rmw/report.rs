//! The results of the study, as text and as JSON.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::point::{Coordination, Place, Series};
use crate::BenchError;
use crate::kit::goal::Goals;
use crate::kit::machine::Machine;
use crate::kit::peer;
use crate::kit::quantity::{grouped, latency};
use crate::kit::table::Table;

/// All results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    study: &'static str,
    machine: Machine,
    pub(crate) series: Vec<Series>,
    /// The goals, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goals: Option<Goals>,
    /// The files of the figures that were drawn.
    #[serde(skip)]
    pub(crate) figures: Vec<String>,
}

impl Report {
    /// Creates an empty report.
    pub(crate) fn new() -> Self {
        let mut machine = Machine::describe();
        let peers = [peer::redis::version(), peer::etcd::version(), peer::zookeeper::version()];
        machine.peers = peers.into_iter().flatten().collect();
        Self { study: "rmw", machine, series: Vec::new(), goals: None, figures: Vec::new() }
    }

    /// Returns it as JSON.
    pub(crate) fn json(&self) -> Result<String, BenchError> {
        serde_json::to_string(self)
            .map_err(|error| BenchError::Process(format!("cannot write the results as JSON: {error}")))
    }

    /// Writes it as JSON.
    pub(crate) fn write(&self, file: &Path) -> Result<(), BenchError> {
        std::fs::write(file, self.json()?).map_err(BenchError::io(format!("write {}", file.display())))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine.line())?;
        let mut table = Table::new(&[
            "way",
            "servers",
            "clients",
            "blocks",
            "RMW/s",
            "least",
            "most",
            "success",
            "p50",
            "p99",
            "longest",
            "client cpu",
            "server cpu",
            "lost",
        ]);
        for series in &self.series {
            let point = &series.point;
            let servers = match &point.place {
                _ if !point.coordination.is_on_nacre() => "1".into(),
                Place::Servers { servers, .. } => servers.to_string(),
                Place::Existing(_) => "given".into(),
                Place::InProcess(_) => "in process".into(),
            };
            let blocks = match point.blocks {
                Some(blocks) => grouped(blocks as f64 * f64::from(point.objects) * f64::from(point.forks)),
                None => "unlimited".into(),
            };
            table.row(vec![
                point.label.clone(),
                servers,
                format!("{} × {}", point.clients, point.concurrency),
                blocks,
                grouped(series.updates_per_s.median),
                grouped(series.updates_per_s.min),
                grouped(series.updates_per_s.max),
                format!("{:.1} %", 100.0 * series.success_rate.median),
                latency(series.p50_us.median),
                latency(series.p99_us.median),
                latency(series.max_us.max),
                cpu(series.client_cpu_us.median),
                cpu(series.server_cpu_us.median),
                grouped(series.lost() as f64),
            ]);
        }
        write!(f, "{table}")?;
        let safe = self.series.iter().filter(|series| series.point.coordination != Coordination::None);
        let (blocks, updates) = safe
            .flat_map(|series| &series.repetitions)
            .fold((0, 0), |(blocks, updates), m| (blocks + m.checked.blocks, updates + m.checked.updates));
        if updates > 0 {
            let (updates, blocks) = (grouped(updates as f64), grouped(blocks as f64));
            writeln!(f, "Checked: {updates} coordinated updates of {blocks} blocks, none lost.")?;
        }
        if let Some(goals) = &self.goals {
            write!(f, "\n{goals}")?;
        }
        for file in &self.figures {
            writeln!(f, "Drawn: {file}")?;
        }
        Ok(())
    }
}

/// Formats the processor time of one update, where it is known.
fn cpu(us: f64) -> String {
    if us == 0.0 { "–".into() } else { latency(us) }
}
