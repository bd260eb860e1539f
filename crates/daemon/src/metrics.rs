//! The server's metrics, in the text format of Prometheus (OpenMetrics). They are read from their sources on request;
//! nothing is counted twice.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use nacre_object::latency::Latencies;
use nacre_object::pace::Paced;
use nacre_remote::{Operation, RequestOutcome, Requests};
use nacre_rpc::server::Stats;
use nacre_status::{Collector, DescriptorEncoder, Encoder};

use crate::counters::Pictures;
use crate::fullness::Fullness;
use crate::served_store::ServedStore;

/// The sources of the metrics and the status page.
pub(crate) struct Sources {
    pub(crate) stats: Arc<Stats>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) store: Paced<ServedStore>,
    pub(crate) addresses: Vec<String>,
    pub(crate) started: Instant,
    pub(crate) fullness: Fullness,
    pub(crate) pictures: Pictures,
}

/// The collector over the sources.
pub(crate) struct Source(pub(crate) Arc<Sources>);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({})", self.0.store.inner().name())
    }
}

impl Collector for Source {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.encode(&mut Encoder::new(encoder))
    }
}

impl Sources {
    fn encode(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
        let stats = &self.stats;
        encoder.gauge("uptime_seconds", "Time since the start", self.started.elapsed().as_secs_f64())?;
        encoder.gauge("connections", "Open connections", stats.connections.get() as f64)?;
        encoder.counter("connections_accepted", "Connections accepted", stats.accepted.get())?;
        let help = "Connections that did not pass the handshake";
        encoder.counter("connections_rejected", help, stats.rejected.get())?;
        encoder.gauge(
            "requests_in_flight",
            "Requests that wait for the store",
            stats.in_flight.get() as f64,
        )?;
        let help = "Memory that connections hold, in bytes";
        encoder.gauge("connection_memory_bytes", help, stats.held_bytes.get() as f64)?;
        encoder.counter("received_bytes", "Bytes received from clients", stats.received_bytes.get())?;
        encoder.counter("sent_bytes", "Bytes sent to clients", stats.sent_bytes.get())?;
        self.requests(encoder)?;
        self.pacing(encoder)?;
        self.engine(encoder)
    }

    fn requests(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
        let help = "Requests by kind and by how they ended";
        let values = Operation::ALL.into_iter().flat_map(|(operation, kind)| {
            RequestOutcome::ALL.into_iter().map(move |(ending, outcome)| {
                ([("kind", kind), ("outcome", outcome)], self.requests.get(operation, ending))
            })
        });
        encoder.counters("requests", help, values)?;
        let help =
            "Time from when a request was read until its reply was ready, requests of all services together";
        let latency = &self.stats.latency;
        let all = [([], latency.sum(), buckets(latency))];
        encoder.histograms("request_latency_seconds", help, all)?;
        let durability = self.durability();
        let help =
            "The same time, of operations on objects, by kind and by when the store acknowledges a write";
        let operations = Operation::ALL.into_iter().map(|(operation, kind)| {
            let latencies = self.requests.latencies(operation);
            ([("kind", kind), ("durability", &*durability)], latencies.sum(), buckets(latencies))
        });
        encoder.histograms("operation_latency_seconds", help, operations)
    }

    /// Returns the durability of the store in this process, or `behind` where another one decides.
    fn durability(&self) -> String {
        let info = self.store.inner().numbers();
        let durability = info.as_ref().and_then(|info| info["durability"].as_str());
        durability.unwrap_or("behind").to_owned()
    }

    fn pacing(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
        let totals = self.store.totals();
        let help = "Conditional writes that were decided by the version of a region";
        encoder.counter("region_attempts", help, totals.attempts)?;
        encoder.counter("region_failures", "Those that were refused", totals.failures)?;
        encoder.counter("pacing_waited", "Requests that waited for their turn", totals.waited)?;
        encoder.counter("pacing_lapsed", "Turns that lapsed", totals.lapsed)?;
        encoder.gauge("pacing_regions", "Regions updated in turns", totals.tracked as f64)?;
        encoder.gauge("pacing_waiting", "Requests that wait for their turn", totals.waiting as f64)
    }

    /// Writes the engine's numbers.
    fn engine(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
        let Some(info) = self.store.inner().numbers() else { return Ok(()) };
        let read_only = info.get("read_only").is_some_and(|reason| !reason.is_null());
        encoder.gauge("store_read_only", "1 if the store takes no more writes", f64::from(read_only))?;
        let full = self.fullness.look(&info);
        let help =
            "1 if transactions were refused for want of space since the look before, or in the last minute";
        encoder.gauge("store_full", help, f64::from(full))?;
        for (field, grows, help) in ENGINE {
            let (name, value) = (format!("store_{field}"), &info[field]);
            match (grows, value.as_u64()) {
                (_, None) => {}
                (true, Some(count)) => encoder.counter(&name, help, count)?,
                (false, Some(value)) => encoder.gauge(&name, help, value as f64)?,
            }
        }
        if let Some(latencies) = self.store.inner().sync_latencies() {
            let all = [([], latencies.sum(), buckets(latencies))];
            encoder.histograms("store_sync_seconds", "Time that syncs of segments took", all)?;
        }
        Ok(())
    }
}

/// The numbers of an engine's report that are metrics: the field, whether it only grows, and its meaning.
const ENGINE: [(&str, bool, &str); 18] = [
    ("objects", false, "Objects that exist"),
    ("extents", false, "Pieces of extents in the index"),
    ("extent_index_bytes", false, "Memory of these pieces, in bytes"),
    ("version_max", false, "The greatest version of any object"),
    ("segments", false, "Segments of the log"),
    ("segment_bytes", false, "Size of all segments, spare ones included, in bytes"),
    ("live_bytes", false, "Bytes that objects refer to"),
    ("taken_bytes", false, "Bytes that all files of the store take, or the memory of a store in memory"),
    (
        "capacity_bytes",
        false,
        "The most bytes that they may take, where there is a bound besides the volume's",
    ),
    ("volume_free_bytes", false, "Bytes that are free on the store's volume"),
    ("out_of_space", true, "Transactions that were refused for want of space"),
    ("user_bytes", true, "Payload that transactions wrote, in bytes"),
    ("log_bytes", true, "Bytes written to the log, those of the cleaner included"),
    ("moved_bytes", true, "Bytes that the cleaner moved"),
    ("segments_cleaned", true, "Segments that the cleaner freed"),
    ("batches", true, "Batches of transactions written to the log"),
    ("records", true, "Transactions written to the log"),
    ("replay_bytes", false, "Log since the last snapshot of the index, which a start would replay, in bytes"),
];

/// Returns the bounds of the buckets in seconds, and the number of latencies in each.
fn buckets(latencies: &Latencies) -> Vec<(f64, u64)> {
    let counts = latencies.buckets().into_iter().enumerate();
    counts.map(|(bucket, count)| (Latencies::bound(bucket), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_the_engine_is_a_metric_or_left_out_on_purpose() {
        // Histograms, ratios of two counters, and what never changes.
        const LEFT_OUT: [&str; 4] = ["syncs", "write_amplification", "format", "snapshots"];
        let store = nacre_logstore::LogStore::memory(nacre_logstore::Options::default());
        let info = serde_json::to_value(store.info()).unwrap();
        for (field, value) in info.as_object().unwrap() {
            let is_metric = ENGINE.iter().any(|(known, ..)| known == field);
            assert_eq!(
                value.is_number() && !LEFT_OUT.contains(&&**field) || value.is_null() && is_metric,
                is_metric,
                "{field}"
            );
        }
        for (field, ..) in ENGINE {
            assert!(info.get(field).is_some(), "{field} is no field of the report");
        }
    }
}
