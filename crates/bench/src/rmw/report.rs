//! The results of the study, as text and as JSON.

use std::fmt;

use serde::Serialize;

use super::arguments::Args;
use super::point::{Deployment, Series, System};
use crate::kit::peer;
use crate::kit::quantity::{grouped, latency};
use crate::kit::report::{self, Report};
use crate::kit::table::Table;
use crate::kit::target::Targets;

/// The measured points, and the targets, if they were requested.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Results {
    pub(super) series: Vec<Series>,
    #[serde(skip_serializing_if = "Targets::is_empty")]
    pub(super) targets: Targets,
}

/// Creates an empty report.
pub(super) fn new_report(args: &Args) -> Report<Results> {
    let peers = [peer::redis::version(), peer::etcd::version(), peer::zookeeper::version()];
    Report::new("rmw", peers, Results::default(), args.results.as_deref())
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.is_empty()
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(
            "system | servers | clients | blocks | RMW/s | least | most | success | p50 | p99 | \
             longest | client cpu | server cpu | lost",
        );
        for series in &self.series {
            let point = &series.point;
            let servers = match &point.place {
                _ if !point.system.is_on_nacre() => "1".into(),
                Deployment::Servers { servers, .. } => servers.to_string(),
                Deployment::Existing(_) => "given".into(),
                Deployment::InProcess(_) => "in process".into(),
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
        let safe = self.series.iter().filter(|series| series.point.system != System::None);
        let (blocks, updates) = safe
            .flat_map(|series| &series.repetitions)
            .fold((0, 0), |(blocks, updates), m| (blocks + m.checked.blocks, updates + m.checked.updates));
        if updates > 0 {
            let (updates, blocks) = (grouped(updates as f64), grouped(blocks as f64));
            writeln!(f, "Checked: {updates} coordinated updates of {blocks} blocks, none lost.")?;
        }
        match self.targets.is_empty() {
            true => Ok(()),
            false => write!(f, "\n{}", self.targets),
        }
    }
}

/// Formats the processor time of one update, where it is known.
fn cpu(us: f64) -> String {
    if us == 0.0 { "–".into() } else { latency(us) }
}
