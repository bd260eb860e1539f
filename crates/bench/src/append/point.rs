//! The points of the study, and what was measured of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::costs::Costs;
use super::simulate::{Resource, Simulated};
use crate::kit::latency::{LatencyCounts, LatencySummary};
use crate::kit::quantity::{grouped, latency};
use crate::kit::report;
use crate::kit::server::Durability;
use crate::kit::simulation::Network;
use crate::kit::statistic::Spread;
use crate::kit::study;
use crate::kit::table::Table;
use crate::kit::target::Targets;

/// The program under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Subject {
    /// A log of Nacre.
    Log,
    /// The object store below it, by plain reads and writes of objects.
    Object,
    /// A stream of Redis.
    Redis,
    /// A stream of NATS.
    Nats,
    /// A file that is written and synced by one loop, with as many entries in each write as all writers have under way.
    Disk,
    /// A log of Nacre in a pool of Ceph.
    LogOnCeph,
    /// A compiled class in the OSDs of that pool: a call for each entry.
    ClassCall,
    /// A script of a few lines for cls_lua in the OSDs: a call for each entry.
    LuaCall,
    /// RADOS' own operation: one for each entry.
    RadosAppend,
}

impl Subject {
    /// Returns whether it is measured in a pool of Ceph.
    pub(crate) fn is_on_ceph(self) -> bool {
        matches!(self, Self::LogOnCeph | Self::ClassCall | Self::LuaCall | Self::RadosAppend)
    }
}

/// The work of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Work {
    /// Append as fast as entries are acknowledged.
    Append,
    /// Read entries at random.
    Read,
    /// One client appends every few milliseconds, another one follows.
    Follow,
    /// Ask for the tail.
    Tail,
    /// Ask the metadata rank for one position after the other.
    Positions,
}

/// The log's sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Sequencing {
    /// The counter in the store, raised by appends to a fork.
    Store,
    /// The metadata rank's, asked for each batch.
    RoundTrip,
    /// The metadata rank's, which passes from client to client by quota.
    Quota,
}

/// A point of the study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    pub(crate) label: String,
    pub(crate) subject: Subject,
    pub(crate) work: Work,
    pub(crate) durability: Durability,
    /// The number of client processes.
    pub(crate) clients: u32,
    /// The number of writers, or readers, of all processes.
    pub(crate) writers: u32,
    /// The entries that each writer has under way.
    pub(crate) depth: u32,
    /// True if each writer has a handle, and so an order, of its own; otherwise those of a process share one.
    pub(crate) apart: bool,
    pub(crate) entry_bytes: u32,
    pub(crate) width: u32,
    pub(crate) unit: u32,
    pub(crate) sequencing: Sequencing,
    /// The time between two changes of the view while the clients work.
    pub(crate) reshape_ms: Option<u64>,
}

/// One repetition of a point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    pub(crate) per_second: f64,
    pub(crate) latency: LatencySummary,
    pub(crate) latency_ns_counts: LatencyCounts,
    /// The processor time of the clients for each operation, in microseconds.
    pub(crate) client_cpu_us: f64,
    /// That of the server; `None` for a disk, which has none, and for a pool of Ceph, whose servers are not the study's.
    pub(crate) server_cpu_us: Option<f64>,
    /// The duration of each change of the view, in milliseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) reshaped_ms: Vec<f64>,
}

/// All repetitions of a point.
pub(crate) type Series = study::Repetitions<Point, Measurement>;

impl Series {
    /// Returns the median of the operations per second.
    pub(crate) fn per_second(&self) -> f64 {
        self.median(|measured| measured.per_second)
    }

    /// Returns the longest latency of all repetitions, in microseconds.
    pub(crate) fn longest_us(&self) -> f64 {
        Spread::of(self.repetitions.iter().map(|measured| measured.latency.max_us)).max
    }
}

/// The time of a recovery.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Recovery {
    pub(crate) entries: u64,
    /// The time of each recovery, in milliseconds.
    pub(crate) ms: Vec<f64>,
}

/// The times of service of simulated runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Service {
    pub(crate) durability: Durability,
    /// True if they were measured in the same run, and not given.
    pub(crate) measured: bool,
    #[serde(flatten)]
    pub(crate) costs: Costs,
    pub(crate) network: Network,
}

/// The results of the study.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Results {
    pub(crate) series: Vec<Series>,
    pub(crate) recoveries: Vec<Recovery>,
    /// The times of service of the simulated runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) services: Vec<Service>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) simulated: Vec<Simulated>,
    pub(crate) targets: Targets,
    /// The parts that were left out, with the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_out: Option<&'static str>,
    /// The load average of the machine when the study began.
    pub(crate) load_at_start: String,
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.is_empty() && self.recoveries.is_empty() && self.simulated.is_empty()
    }

    fn conclude(&mut self) {
        super::targets::conclude(self);
    }

    fn conditions(&self) -> String {
        format!(", load average {} at the start", self.load_at_start)
    }
}

impl Results {
    fn show_simulated(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.simulated.is_empty() {
            return Ok(());
        }
        writeln!(f)?;
        for Service { durability, measured, costs, network } in &self.services {
            let (name, source) =
                (name(*durability), if *measured { "measured in this run" } else { "given" });
            let (way, rate) =
                (latency(network.latency_ns as f64 / 1e3), network.link_bytes_per_s as f64 * 8e-9);
            writeln!(
                f,
                "Times of service, {name}, {source}: {costs}; {way} from node to node by links of {rate:.0} Gbit/s."
            )?;
        }
        let mut table = Table::new(concat!(
            "simulated | servers | clients | batch | entries/s | ÷ allowed | bound by | sequencer",
            " | busiest server | busiest client | busiest link | most objects | recovery",
        ));
        for run in &self.simulated {
            let of = &run.parameters;
            let mut cells = vec![
                name(of.durability).to_owned(),
                grouped(f64::from(of.servers)),
                grouped(f64::from(of.clients)),
                grouped(of.batch as f64),
                grouped(run.per_second),
                format!("{:.2}", run.per_second / run.allowed_per_second),
                run.bound_by.map_or("replies", Resource::name).to_owned(),
            ];
            cells.extend(Resource::ALL.map(|resource| format!("{:.0} %", run.busy(resource) * 100.0)));
            cells.push(format!("{} of {}", run.objects.0, grouped(f64::from(run.objects.1))));
            cells.push(run.recovered_ms.map_or("–".to_owned(), |ms| latency(ms * 1e3)));
            table.row(cells);
        }
        write!(f, "{table}")
    }
}

/// Returns the name of a durability.
pub(super) fn name(durability: Durability) -> &'static str {
    match durability {
        Durability::Volatile => "volatile",
        _ => "durable",
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table =
            Table::new("point | per second | least | most | p50 | p99 | longest | client cpu | server cpu");
        for series in &self.series {
            let rates = Spread::of(series.repetitions.iter().map(|measured| measured.per_second));
            let server_cpu: Vec<f64> =
                series.repetitions.iter().filter_map(|measured| measured.server_cpu_us).collect();
            table.row(vec![
                series.point.label.clone(),
                grouped(rates.median),
                grouped(rates.min),
                grouped(rates.max),
                latency(series.median(|measured| measured.latency.p50_us)),
                latency(series.median(|measured| measured.latency.p99_us)),
                latency(series.longest_us()),
                latency(series.median(|measured| measured.client_cpu_us)),
                match server_cpu.is_empty() {
                    true => "–".into(),
                    false => latency(Spread::of(server_cpu).median),
                },
            ]);
        }
        write!(f, "{table}")?;
        if !self.series.is_empty() {
            writeln!(f, "Longest of all repetitions; percentiles and processor times are their medians.")?;
        }
        if let Some(left_out) = self.left_out {
            writeln!(f, "{left_out}")?;
        }
        if !self.recoveries.is_empty() {
            let mut table = Table::new("recovery of a log of | median | longest");
            for Recovery { entries, ms } in &self.recoveries {
                let ms = Spread::of(ms.iter().copied());
                table.row(vec![
                    format!("{} entries", grouped(*entries as f64)),
                    latency(ms.median * 1e3),
                    latency(ms.max * 1e3),
                ]);
            }
            write!(f, "\n{table}")?;
        }
        self.show_simulated(f)?;
        match self.targets.is_empty() {
            true => Ok(()),
            false => write!(f, "\n{}", self.targets),
        }
    }
}
