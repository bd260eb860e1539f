//! The costs of the parts of an append, on each node that takes part in it: measured with the programs that are simulated, or given.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::point::{Measurement, Point, Sequencing, Subject, Work};
use super::{Args, CLIENTS, measure_once};
use crate::kit::quantity::latency;
use crate::kit::server::Durability;
use crate::kit::study::Steps;
use crate::{BenchError, Common};

/// The length of the entries.
pub(super) const ENTRY_BYTES: u32 = 4096;
/// The client processes that write or ask one thing at a time. Each has a connection of its own, as clients on other machines would.
const SINGLES: u32 = 8;

/// The steps of a measurement, at most.
pub(super) const STEPS: u64 = 4;

/// The names of the times, in the order of the fields.
const NAMES: [&str; 6] = ["positions", "write", "entry", "sync", "client-write", "client-entry"];

/// The times of service, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Costs {
    /// The metadata rank's time for a request for positions, however many.
    pub(crate) positions_ns: u64,
    /// A server's time for a write, beside that for its entries.
    pub(crate) write_ns: u64,
    /// A server's time for an entry.
    pub(crate) entry_ns: u64,
    /// The time until a write is durable. The server goes on meanwhile.
    pub(crate) sync_ns: u64,
    /// A client's time for a write and its positions, beside that for its entries.
    pub(crate) client_write_ns: u64,
    /// A client's time for an entry.
    pub(crate) client_entry_ns: u64,
}

impl Costs {
    fn times(&self) -> [u64; NAMES.len()] {
        let Self { positions_ns, write_ns, entry_ns, sync_ns, client_write_ns, client_entry_ns } = *self;
        [positions_ns, write_ns, entry_ns, sync_ns, client_write_ns, client_entry_ns]
    }

    /// Derives the times from processor times: `positions` is of requests for positions, `single` of writes of one entry, which takes
    /// such a request too, and `many` of writes of many. A server takes at least as long for an entry as its disk, if it has one.
    fn of(
        positions: &Measurement,
        single: &Measurement,
        many: &Measurement,
        disk: Option<&Measurement>,
    ) -> Self {
        let ns = |us: f64| (us.max(0.0) * 1e3) as u64;
        let server_us = |measured: &Measurement| measured.server_cpu_us.unwrap_or(0.0);
        let disk_us = disk.filter(|disk| disk.per_second > 0.0).map_or(0.0, |disk| 1e6 / disk.per_second);
        Self {
            positions_ns: ns(server_us(positions)),
            write_ns: ns(server_us(single) - server_us(many) - server_us(positions)),
            entry_ns: ns(server_us(many).max(disk_us)),
            sync_ns: ns(disk.map_or(0.0, |disk| disk.latency.p50_us)),
            client_write_ns: ns(single.client_cpu_us - many.client_cpu_us),
            client_entry_ns: ns(many.client_cpu_us),
        }
    }
}

impl FromStr for Costs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut times: [Option<u64>; NAMES.len()] = [None; NAMES.len()];
        for part in text.split(',') {
            let wrong = || format!("\"{part}\" is not a time in microseconds with its name, as in entry=2.5");
            let (name, us) = part.split_once('=').ok_or_else(wrong)?;
            let place = NAMES.iter().position(|known| *known == name);
            let place = place.ok_or_else(|| format!("\"{name}\" is none of {}", NAMES.join(", ")))?;
            let us: f64 = us.parse().map_err(|_| wrong())?;
            if !(0.0..=1e6).contains(&us) {
                return Err(wrong());
            }
            times[place] = Some((us * 1e3).round() as u64);
        }
        let time =
            |place: usize| times[place].ok_or_else(|| format!("the time \"{}\" is missing", NAMES[place]));
        Ok(Self {
            positions_ns: time(0)?,
            write_ns: time(1)?,
            entry_ns: time(2)?,
            sync_ns: time(3)?,
            client_write_ns: time(4)?,
            client_entry_ns: time(5)?,
        })
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, ns)) in NAMES.iter().zip(self.times()).enumerate() {
            let separator = if number == 0 { "" } else { ", " };
            write!(f, "{separator}{name} {}", latency(ns as f64 / 1e3))?;
        }
        Ok(())
    }
}

/// Measures the times with one server and its clients on this machine.
///
/// # Errors
/// As the study's.
pub(super) async fn measure(
    args: &Args,
    common: &Common,
    durability: Durability,
    steps: &Steps,
) -> Result<Costs, BenchError> {
    let single = Point {
        label: "writes of one entry".into(),
        subject: Subject::Log,
        work: Work::Append,
        durability,
        clients: SINGLES,
        writers: SINGLES,
        depth: 1,
        apart: true,
        entry_bytes: ENTRY_BYTES,
        width: 4,
        unit: 1024,
        sequencing: Sequencing::RoundTrip,
        reshape_ms: None,
    };
    let positions = Point { label: "requests for positions".into(), work: Work::Positions, ..single.clone() };
    let many = Point {
        label: "writes of many entries".into(),
        clients: CLIENTS,
        writers: 16,
        depth: 16,
        apart: false,
        ..single.clone()
    };
    let disk = Point { label: "the disk".into(), subject: Subject::Disk, ..many.clone() };
    let measured = async |point: &Point| {
        steps.step(&point.label, 0)?;
        measure_once(args, common, point).await
    };
    let disk = match durability {
        Durability::Volatile => None,
        _ => Some(measured(&disk).await?),
    };
    let [positions, single, many] =
        [measured(&positions).await?, measured(&single).await?, measured(&many).await?];
    Ok(Costs::of(&positions, &single, &many, disk.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::latency::{LatencyCounts, LatencySummary};

    fn measurement(per_second: f64, client_cpu_us: f64, server_cpu_us: Option<f64>) -> Measurement {
        let latency = LatencySummary { p50_us: 600.0, p99_us: 900.0, max_us: 1000.0 };
        let latency_ns_counts = LatencyCounts::default();
        Measurement {
            per_second,
            latency,
            latency_ns_counts,
            client_cpu_us,
            server_cpu_us,
            reshaped_ms: Vec::new(),
        }
    }

    #[test]
    fn times_are_what_is_left_of_a_write_without_its_entry_and_its_position() {
        let positions = measurement(1e5, 3.0, Some(5.0));
        let single = measurement(5e4, 20.0, Some(30.0));
        let many = measurement(3e5, 1.5, Some(4.0));
        let costs = Costs::of(&positions, &single, &many, None);
        assert_eq!(costs.times(), [5000, 21_000, 4000, 0, 18_500, 1500]);
        // A disk that takes longer is what a server waits for.
        let disk = measurement(1e5, 1.0, None);
        let costs = Costs::of(&positions, &single, &many, Some(&disk));
        assert_eq!((costs.entry_ns, costs.sync_ns), (10_000, 600_000));
        // What a noisy machine measures may not fit together.
        assert_eq!(Costs::of(&single, &positions, &many, None).write_ns, 0);
    }

    #[test]
    fn times_can_be_given() {
        let text = "positions=5,write=20,entry=3.9,sync=0,client-write=10,client-entry=1";
        let costs: Costs = text.parse().unwrap();
        assert_eq!(costs.times(), [5000, 20_000, 3900, 0, 10_000, 1000]);
        assert!(costs.to_string().starts_with("positions 5.00 µs, write 20 µs, entry 3.90 µs"), "{costs}");
        for (wrong, why) in [
            ("positions=5", "\"write\" is missing"),
            ("speed=5", "\"speed\" is none of positions, write"),
            ("positions", "is not a time"),
            ("positions=-1", "is not a time"),
            ("positions=nan", "is not a time"),
        ] {
            let error = wrong.parse::<Costs>().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
