//! The results of the study, as text and as JSON.

use std::fmt;

use serde::Serialize;

use super::arguments::Args;
use super::point::{Series, Table as LockTable};
use super::simulate::Simulated;
use super::targets::TargetStudy;
use crate::kit::machine::load_average;
use crate::kit::quantity::grouped;
use crate::kit::report::{self, Report};
use crate::kit::table::Table;
use crate::kit::{Spread, peer};

/// The measured and the simulated results.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Results {
    /// The load of the machine before the study, over 1, 5 and 15 minutes.
    load: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) series: Vec<Series>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) simulated: Vec<Simulated>,
    /// The targets and what was measured for them, if they were requested.
    #[serde(skip_serializing_if = "TargetStudy::is_empty")]
    pub(super) targets: TargetStudy,
}

/// Creates an empty report.
pub(super) fn new_report(args: &Args) -> Report<Results> {
    let results = Results { load: load_average(), ..Results::default() };
    let peers = [peer::etcd::version(), peer::zookeeper::version()];
    Report::new("locks", peers, results, args.results.as_deref())
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.is_empty() && self.simulated.is_empty() && self.targets.is_empty()
    }

    fn conditions(&self) -> String {
        format!(", load before {}", self.load)
    }
}

/// Returns the cells of a rate with its spread.
fn cells(rate: Option<Spread>) -> [String; 3] {
    match rate {
        Some(rate) => [rate.median, rate.min, rate.max].map(grouped),
        None => ["–", "–", "–"].map(str::to_owned),
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.series.is_empty() {
            write!(f, "{}", measured(&self.series))?;
            let grants: u64 =
                self.series.iter().flat_map(|series| &series.repetitions).map(|m| m.grants).sum();
            writeln!(
                f,
                "Proved: {} grants by the servers' own counts, nothing left held.",
                grouped(grants as f64)
            )?;
        }
        if !self.simulated.is_empty() {
            write!(f, "{}", simulated(&self.simulated))?;
        }
        match self.targets.is_empty() {
            true => Ok(()),
            false => write!(f, "{}", self.targets),
        }
    }
}

fn measured(series: &[Series]) -> Table {
    let mut table = Table::new(
        "locks | figure | pairs | apart | overlap | regions | acquired/s | least | most | \
             released/s | least | most | calls",
    );
    for series in series {
        let point = &series.point;
        let unrolled = if point.table == LockTable::Unrolled { ", unrolled" } else { "" };
        let calls = series.repetitions.last().map_or(0, |m| m.calls / m.operations.max(1));
        let mut row = vec![
            format!("{} {}{unrolled}", point.method.name(), point.protocol.name()),
            point.figure.clone().unwrap_or_else(|| "–".into()),
            point.pairs.to_string(),
            format!("{} B", point.separation_bytes),
            point.overlap_percent.map_or("–".into(), |percent| format!("{percent} %")),
            grouped(series.regions as f64),
        ];
        row.extend(cells(Some(series.acquired_per_s)));
        row.extend(cells(series.released_per_s));
        row.push(grouped(calls as f64));
        table.row(row);
    }
    table
}

fn simulated(runs: &[Simulated]) -> Table {
    let mut table =
        Table::new("simulated | clients | servers | overlap | regions | time | acquired/s | messages");
    for run in runs {
        let of = &run.parameters;
        table.row(vec![
            format!("{} {}", of.method.name(), of.protocol.name()),
            grouped(f64::from(of.clients)),
            of.servers.to_string(),
            format!("{} %", of.overlap_percent),
            grouped(of.regions as f64),
            format!("{:.2} ms", run.seconds * 1e3),
            grouped(run.acquired_per_s),
            grouped(run.messages as f64),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::point::{Measurement, MethodName, Point, ProtocolName, Size};
    use super::*;

    fn series(method: MethodName, regions: u64, overlap_percent: Option<u32>) -> Series {
        let point = Point {
            figure: Some("6".into()),
            method,
            protocol: ProtocolName::AltTry,
            table: LockTable::Unrolled,
            pairs: 4,
            regions: 131_072,
            separation_bytes: 64,
            overlap_percent,
        };
        let measurement = |rate: f64| Measurement {
            operations: 2,
            acquired_per_s: rate,
            released_per_s: overlap_percent.is_none().then_some(2.0 * rate),
            calls: 100,
            grants: 50,
            ..Measurement::default()
        };
        let repetitions = vec![measurement(3000.0), measurement(1000.0), measurement(2000.0)];
        crate::kit::study::Series::of(&(point, Size { regions, operations: 2 }), repetitions)
    }

    #[test]
    fn a_row_says_how_many_regions_were_locked_and_the_spread() {
        let mut report = new_report(&crate::kit::parse(&[]).unwrap());
        report.series.push(series(MethodName::Posix, 2048, None));
        report.series.push(series(MethodName::Datatype, 131_072, Some(50)));
        let text = report.to_string();
        let row = |start: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap();
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
        };
        let expected = [
            "posix alt-try, unrolled",
            "6",
            "4",
            "64 B",
            "–",
            "2,048",
            "2,000",
            "1,000",
            "3,000",
            "4,000",
            "2,000",
            "6,000",
            "50",
        ];
        assert_eq!(row("posix"), expected);
        assert_eq!(row("datatype")[4..10], ["50 %", "131,072", "2,000", "1,000", "3,000", "–"]);
        assert!(text.contains("Proved: 300 grants"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        assert_eq!(json["study"], "locks");
        assert_eq!(json["series"][0]["regions"], 2048);
        assert_eq!(json["series"][1]["released_per_s"], serde_json::Value::Null);
        assert_eq!(json["series"][1]["repetitions"].as_array().unwrap().len(), 3);
    }
}
