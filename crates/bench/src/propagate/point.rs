//! The points of the study, and what was measured of them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::simulate::Simulated;
use crate::kit::latency::LatencySummary;
use crate::kit::quantity::{grouped, latency};
use crate::kit::report;
use crate::kit::server::Durability;
use crate::kit::study;
use crate::kit::table::Table;
use crate::kit::target::Targets;

/// The way in which an update reaches the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// Nacre's servers, where each call asks for the current classes.
    Ask,
    /// A watch of the classes' object, and a read of what is new.
    Watch,
    /// Followers of a map whose epochs have the text.
    Map,
    /// The text in a notification to all servers.
    Push,
    /// The text in a notification to one server, and from each server to its children.
    Tree,
    /// The text in a notification to one server, and from each server to others of which some are chosen at random.
    Gossip,
    /// The text in a datagram to a group of the reflector, and a look at the classes by each server that hears nothing for a while.
    Reflect,
}

impl Way {
    /// Returns whether servers pass records on to each other.
    pub(super) fn relays(self) -> bool {
        matches!(self, Self::Tree | Self::Gossip)
    }

    /// Returns whether servers have addresses of their own, by which they are reached.
    pub(super) fn listens(self) -> bool {
        self.relays() || self == Self::Reflect
    }

    /// Returns the name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Watch => "watch",
            Self::Map => "map",
            Self::Push => "push",
            Self::Tree => "tree",
            Self::Gossip => "gossip",
            Self::Reflect => "reflect",
        }
    }
}

/// A point of the study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    pub(crate) label: String,
    pub(crate) way: Way,
    /// The servers, each with a connection of its own.
    pub(crate) servers: u32,
    /// The servers in each process.
    pub(crate) per_process: u32,
    pub(crate) durability: Durability,
    /// The servers to which each passes records on, where it does.
    pub(crate) fan_out: u32,
    pub(crate) updates: u64,
    pub(crate) pace_ms: f64,
}

impl Point {
    /// Returns the time from one update to the next, at least.
    pub(super) fn pace(&self) -> Duration {
        Duration::from_secs_f64(self.pace_ms / 1e3)
    }
}

/// A distribution of times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Distribution {
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

impl Distribution {
    /// Returns the distribution of times in nanoseconds, in ascending order; zeros if there is none.
    pub(super) fn of(sorted: &[u64]) -> Self {
        let at = |share: f64| quantile_us(sorted, share);
        Self { p50_us: at(0.5), p90_us: at(0.9), p99_us: at(0.99), max_us: at(1.0) }
    }
}

/// Returns the time that a share of times in ascending order does not exceed, in microseconds; zero if there is none.
pub(super) fn quantile_us(sorted: &[u64], share: f64) -> f64 {
    let place = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(place.clamp(1, sorted.len().max(1)) - 1).map_or(0.0, |ns| *ns as f64 / 1e3)
}

/// One repetition of a point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    /// From the request to commit an update until it is live at a server, over all updates and servers.
    pub(crate) live: Distribution,
    /// The same from the reply to the commit; zero where a server was faster than the reply.
    pub(crate) since_commit: Distribution,
    /// From the request to commit an update to the reply.
    pub(crate) commit: Distribution,
    /// The times of `live` that each hundredth does not exceed, in microseconds: from the least to the greatest.
    pub(crate) hundredths_us: Vec<f64>,
    /// The updates that a server did not see because it saw a later one.
    pub(crate) superseded: u64,
    /// The calls that proved that a server runs the newest version.
    pub(crate) verified: u64,
    /// The processor time of the store's server for each update.
    pub(crate) store_cpu_us: f64,
    /// The processor time of each server for each update; `None` where the store's servers are the servers.
    pub(crate) server_cpu_us: Option<f64>,
    /// The memory of the store's server, or of each of them, apart from pages of files.
    pub(crate) store_memory_bytes: u64,
    /// The memory of a process of servers.
    pub(crate) process_memory_bytes: Option<u64>,
    /// The space that the store's files take.
    pub(crate) disk_bytes: u64,
}

/// All repetitions of a point.
pub(crate) type Series = study::Repetitions<Point, Measurement>;

/// A point of the study of commits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct CommitPoint {
    pub(crate) label: String,
    pub(crate) durability: Durability,
    /// True for versions of a class, false for updates of a map.
    pub(crate) class: bool,
    /// The updates under way.
    pub(crate) depth: u32,
    /// The time for which updates are gathered into an epoch.
    pub(crate) gather_ms: f64,
}

/// One repetition of such a point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CommitMeasurement {
    pub(crate) per_second: f64,
    pub(crate) latency: LatencySummary,
}

/// All repetitions of such a point.
pub(crate) type CommitSeries = study::Repetitions<CommitPoint, CommitMeasurement>;

/// The results of the study.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Results {
    pub(crate) series: Vec<Series>,
    pub(crate) commits: Vec<CommitSeries>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) simulated: Vec<Simulated>,
    pub(crate) targets: Targets,
    /// The load average of the machine when the study began.
    pub(crate) load_at_start: String,
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.is_empty() && self.commits.is_empty()
    }

    fn conclude(&mut self) {
        super::targets::conclude(self);
    }

    fn conditions(&self) -> String {
        format!(", load average {} at the start", self.load_at_start)
    }
}

/// Returns the name of a durability.
pub(super) fn name(durability: Durability) -> &'static str {
    match durability {
        Durability::Volatile => "volatile",
        _ => "durable",
    }
}

/// Formats a size.
fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.series.is_empty() {
            let mut table = Table::new(
                "until live, from the request | p50 | p90 | p99 | longest | p90 from the reply | commit p50 | store cpu | server cpu",
            );
            for series in &self.series {
                let us = |value: fn(&Measurement) -> f64| latency(series.median(value));
                let longest = series.repetitions.iter().map(|one| one.live.max_us).fold(0.0, f64::max);
                table.row(vec![
                    series.point.label.clone(),
                    us(|one| one.live.p50_us),
                    us(|one| one.live.p90_us),
                    us(|one| one.live.p99_us),
                    latency(longest),
                    us(|one| one.since_commit.p90_us),
                    us(|one| one.commit.p50_us),
                    us(|one| one.store_cpu_us),
                    match series.repetitions.iter().any(|one| one.server_cpu_us.is_some()) {
                        true => us(|one| one.server_cpu_us.unwrap_or_default()),
                        false => "–".into(),
                    },
                ]);
            }
            write!(f, "{table}")?;
            writeln!(
                f,
                "Longest of all repetitions; the rest are medians of them. Processor times are for each update."
            )?;
            let mut table = Table::new(
                "memory and disk | store's memory | a server process's memory | store's disk | calls that proved it | superseded",
            );
            for series in &self.series {
                let of = |value: fn(&Measurement) -> f64| series.median(value);
                table.row(vec![
                    series.point.label.clone(),
                    mib(of(|one| one.store_memory_bytes as f64)),
                    match series.repetitions.iter().any(|one| one.process_memory_bytes.is_some()) {
                        true => mib(of(|one| one.process_memory_bytes.unwrap_or_default() as f64)),
                        false => "–".into(),
                    },
                    mib(of(|one| one.disk_bytes as f64)),
                    grouped(of(|one| one.verified as f64)),
                    grouped(of(|one| one.superseded as f64)),
                ]);
            }
            write!(f, "\n{table}")?;
        }
        if !self.commits.is_empty() {
            let mut table = Table::new("commits | per second | p50 | p99 | longest");
            for series in &self.commits {
                table.row(vec![
                    series.point.label.clone(),
                    grouped(series.median(|one| one.per_second)),
                    latency(series.median(|one| one.latency.p50_us)),
                    latency(series.median(|one| one.latency.p99_us)),
                    latency(series.median(|one| one.latency.max_us)),
                ]);
            }
            write!(f, "\n{table}")?;
        }
        if !self.simulated.is_empty() {
            let mut table =
                Table::new("simulated | servers | fan-out | p50 | p90 | longest | messages | store busy");
            for run in &self.simulated {
                table.row(vec![
                    run.way.name().to_owned(),
                    grouped(f64::from(run.servers)),
                    if run.way.relays() { run.fan_out.to_string() } else { "–".to_owned() },
                    latency(run.live.p50_us),
                    latency(run.live.p90_us),
                    latency(run.live.max_us),
                    grouped(run.messages as f64),
                    latency(run.store_busy_us),
                ]);
            }
            write!(f, "\n{table}")?;
        }
        match self.targets.is_empty() {
            true => Ok(()),
            false => write!(f, "\n{}", self.targets),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_that_of_the_values() {
        let sorted: Vec<u64> = (1..=100).map(|us| us * 1000).collect();
        let of = Distribution::of(&sorted);
        assert_eq!((of.p50_us, of.p90_us, of.p99_us, of.max_us), (50.0, 90.0, 99.0, 100.0));
        assert_eq!((quantile_us(&sorted, 0.0), quantile_us(&[7000], 0.5)), (1.0, 7.0));
        assert_eq!(Distribution::of(&[]), Distribution::default());
    }
}
