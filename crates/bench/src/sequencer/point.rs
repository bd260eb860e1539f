//! The points of the study, and what was measured of them.

use std::fmt;

use nacre::sequencer::Policy;
use serde::{Deserialize, Serialize};

use super::failover::FailOver;
use crate::kit::latency::{LatencyCounts, LatencySummary};
use crate::kit::quantity::grouped;
use crate::kit::report;
use crate::kit::study;
use crate::kit::table::Table;
use crate::kit::target::Targets;

/// The source of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A sequencer of Nacre with a policy.
    Nacre(Policy),
    /// A key of Redis that INCR counts up.
    Redis,
    /// The store's revision of etcd, which each put counts up.
    Etcd,
}

impl Serialize for Subject {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&match self {
            Subject::Nacre(policy) => policy.to_string(),
            Subject::Redis => "redis".to_owned(),
            Subject::Etcd => "etcd".to_owned(),
        })
    }
}

impl<'de> Deserialize<'de> for Subject {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Subject, D::Error> {
        let text = String::deserialize(deserializer)?;
        match &text[..] {
            "redis" => Ok(Subject::Redis),
            "etcd" => Ok(Subject::Etcd),
            policy => policy.parse().map(Subject::Nacre).map_err(serde::de::Error::custom),
        }
    }
}

/// A point of the study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    pub(crate) label: String,
    pub(crate) subject: Subject,
    /// The number of client processes.
    pub(crate) clients: u32,
    /// The connections of each, for round trips.
    pub(crate) connections: u32,
    /// The requests under way on each connection.
    pub(crate) depth: u32,
}

/// One repetition of a point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    pub(crate) per_second: f64,
    pub(crate) grants: u64,
    pub(crate) latency: LatencySummary,
    pub(crate) latency_ns_counts: LatencyCounts,
    /// For each client, its last position of each interval: microseconds since the beginning, and the position.
    pub(crate) spans: Vec<Vec<(u64, u64)>>,
}

/// All repetitions of a point.
pub(crate) type Series = study::Repetitions<Point, Measurement>;

impl Series {
    /// Returns the median of the positions per second.
    pub(crate) fn per_second(&self) -> f64 {
        self.median(|measured| measured.per_second)
    }
}

/// The results of the study.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Results {
    pub(crate) series: Vec<Series>,
    pub(crate) fail_overs: Vec<FailOver>,
    pub(crate) targets: Targets,
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.is_empty()
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new("point | positions/s | p50 µs | p99 µs | max µs | grants");
        for series in &self.series {
            let us = |value: f64| if value < 10.0 { format!("{value:.3}") } else { grouped(value) };
            table.row(vec![
                series.point.label.clone(),
                grouped(series.per_second()),
                us(series.median(|measured| measured.latency.p50_us)),
                us(series.median(|measured| measured.latency.p99_us)),
                us(series.median(|measured| measured.latency.max_us)),
                grouped(series.median(|measured| measured.grants as f64)),
            ]);
        }
        write!(f, "{table}\n{}", self.targets)
    }
}
