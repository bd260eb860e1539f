//! Traces: the load of resources over time, as simulations take it.
//!
//! A trace is text, one JSON object a line. The first one may be a head, `{"trace": 1, "ranks": 3, "capacity": 10,
//! "seconds": 300}`. Every other one sets the load of a resource from a time on: `{"at": 0, "kind": "sequencer", "name":
//! "orders", "load": 7, "rank": 0}`, where `rank` says where a new resource begins. With `"count": N`, the line stands for
//! N resources, in whose names `%` is their number.

use std::io::BufRead;

use serde::Deserialize;

use crate::limit::{RANKS_MAX, RESOURCES_MAX};
use crate::resource::ResourceId;

/// The maximum length of a line, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// The maximum number of changes.
const CHANGES_MAX: usize = 2 * RESOURCES_MAX;
/// The maximum bytes of all names.
const NAMES_BYTES_MAX: usize = 256 << 20;
/// The longest time that a trace may take, in seconds: a year.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;

/// A change of a resource's load.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The time, in seconds.
    pub at_s: f64,
    /// The resource.
    pub id: ResourceId,
    /// Its load from then on, in requests per second.
    pub load: f64,
    /// The rank at which it begins; 0 unless it is named.
    pub rank: usize,
}

/// The load of resources over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The number of ranks, if the head names it.
    pub ranks: Option<usize>,
    /// The requests per second that one rank can serve.
    pub capacity: f64,
    /// The time that it takes, in seconds.
    pub seconds: f64,
    /// The changes, in the order of their times.
    pub changes: Vec<Change>,
}

/// The time that a trace takes whose head does not say it, in seconds.
const SECONDS: f64 = 300.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    trace: Option<u32>,
    ranks: Option<usize>,
    capacity: Option<f64>,
    seconds: Option<f64>,
    #[serde(default)]
    at: f64,
    kind: Option<String>,
    name: Option<String>,
    load: Option<f64>,
    rank: Option<usize>,
    count: Option<usize>,
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// A sentence with the number of the line.
    pub fn read(mut from: impl BufRead) -> Result<Trace, String> {
        let mut trace = Trace { ranks: None, capacity: f64::INFINITY, seconds: SECONDS, changes: Vec::new() };
        let (mut bytes, mut names_bytes) = (Vec::new(), 0);
        for number in 1.. {
            bytes.clear();
            let wrong = |why: String| format!("line {number}: {why}");
            let read = std::io::Read::take(&mut from, LINE_BYTES_MAX + 1).read_until(b'\n', &mut bytes);
            if read.map_err(|error| wrong(error.to_string()))? == 0 {
                break;
            }
            if bytes.len() as u64 > LINE_BYTES_MAX {
                return Err(wrong(format!("it is longer than {LINE_BYTES_MAX} bytes")));
            }
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            let line: Line = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
            trace.take(line, number == 1, &mut names_bytes).map_err(wrong)?;
        }
        if trace.changes.is_empty() {
            return Err("the trace has no resource".to_owned());
        }
        trace.changes.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        Ok(trace)
    }

    fn take(&mut self, line: Line, is_first: bool, names_bytes: &mut usize) -> Result<(), String> {
        let sound = |value: f64, what: &str| match value.is_finite() && value >= 0.0 {
            true => Ok(value),
            false => Err(format!("{what} is {value}; it must be finite and not negative")),
        };
        if let Some(format) = line.trace {
            if !is_first || format != 1 {
                return Err("a head, {\"trace\": 1, …}, can only be the first line".to_owned());
            }
            if let Some(ranks) = line.ranks.filter(|ranks| !(1..=RANKS_MAX).contains(ranks)) {
                return Err(format!("{ranks} ranks; there can be 1 to {RANKS_MAX}"));
            }
            self.ranks = line.ranks;
            if let Some(capacity) = line.capacity {
                self.capacity = sound(capacity, "the capacity")?;
            }
            if let Some(seconds) = line.seconds {
                self.seconds = sound(seconds, "the time")?.min(SECONDS_MAX);
            }
            return Ok(());
        }
        let (Some(kind), Some(name), Some(load)) = (line.kind, line.name, line.load) else {
            return Err("a resource has \"kind\", \"name\" and \"load\"".to_owned());
        };
        if line.ranks.is_some() || line.capacity.is_some() || line.seconds.is_some() {
            return Err("ranks, capacity and seconds belong to the head, which has \"trace\": 1".to_owned());
        }
        let (kind, load, at_s) = (kind.parse()?, sound(load, "the load")?, sound(line.at, "the time")?);
        let rank = line.rank.unwrap_or(0);
        if rank >= RANKS_MAX {
            return Err(format!("rank {rank}; the greatest one is {}", RANKS_MAX - 1));
        }
        let count = line.count.unwrap_or(1);
        if count > CHANGES_MAX - self.changes.len() {
            return Err(format!("the trace has more than {CHANGES_MAX} changes"));
        }
        *names_bytes = names_bytes.saturating_add(count.saturating_mul(name.len()));
        if *names_bytes > NAMES_BYTES_MAX {
            return Err(format!("the names of the trace take more than {NAMES_BYTES_MAX} bytes"));
        }
        if line.count.is_some() && !name.contains('%') {
            return Err("the name for several resources has a % where their numbers go".to_owned());
        }
        for number in 0..count {
            let id = match line.count {
                Some(_) => ResourceId::new(kind, &name.replace('%', &number.to_string()))?,
                None => ResourceId::new(kind, &name)?,
            };
            self.changes.push(Change { at_s, id, load, rank });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_read_in_the_order_of_time() {
        let text = r#"{"trace": 1, "ranks": 3, "capacity": 10, "seconds": 60}
{"at": 30, "kind": "sequencer", "name": "orders", "load": 0}

{"kind": "sequencer", "name": "orders", "load": 7, "rank": 1}
{"kind": "subtree", "name": "/home/%", "count": 2, "load": 1}"#;
        let trace = Trace::read(text.as_bytes()).unwrap();
        assert_eq!((trace.ranks, trace.capacity, trace.seconds), (Some(3), 10.0, 60.0));
        let shown: Vec<String> = trace
            .changes
            .iter()
            .map(|change| format!("{} {} {} {}", change.at_s, change.id, change.load, change.rank))
            .collect();
        assert_eq!(
            shown,
            [
                "0 sequencer:orders 7 1",
                "0 subtree:/home/0 1 0",
                "0 subtree:/home/1 1 0",
                "30 sequencer:orders 0 0"
            ]
        );
    }

    #[test]
    fn what_is_wrong_names_its_line() {
        let first = r#"{"kind": "group", "name": "1", "load": 1}"#;
        for (line, part) in [
            (r#"{"kind": "lock", "name": "1", "load": 1}"#, "kind of resource"),
            (r#"{"kind": "group", "name": "1", "load": -1}"#, "negative"),
            (r#"{"kind": "group", "name": "1"}"#, "load"),
            (r#"{"kind": "group", "name": "1", "load": 1, "rank": 100000}"#, "greatest"),
            (r#"{"kind": "group", "name": "1", "load": 1, "count": 2}"#, "%"),
            (r#"{"trace": 1}"#, "first"),
            ("{", "EOF"),
            (r#"{"king": 1}"#, "king"),
        ] {
            let error = Trace::read(format!("{first}\n{line}\n").as_bytes()).unwrap_err();
            assert!(error.starts_with("line 2: ") && error.contains(part), "{error}");
        }
        assert!(Trace::read(&b""[..]).is_err());
        assert!(Trace::read(&vec![b' '; 100_000][..]).unwrap_err().contains("longer"));
    }
}
