//! The server's metrics, in the text format of Prometheus (OpenMetrics). They are read from their sources on request;
//! nothing is counted twice.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use nacre_object::pace::Paced;
use nacre_remote::{Ending, Operation, Requests};
use nacre_rpc::server::{Stats, latency_bound};
use nacre_status::{Collector, DescriptorEncoder, Encoder};

use crate::fullness::Fullness;
use crate::kept::Kept;

/// The sources of the metrics and the status page.
pub(crate) struct Sources {
    pub(crate) stats: Arc<Stats>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) store: Paced<Kept>,
    pub(crate) addresses: Vec<String>,
    pub(crate) started: Instant,
    pub(crate) fullness: Fullness,
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
            Ending::ALL.into_iter().map(move |(ending, outcome)| {
                ([("kind", kind), ("outcome", outcome)], self.requests.get(operation, ending))
            })
        });
        encoder.counters("requests", help, values)?;
        let help = "Time from when a request was read until its reply was ready";
        let buckets: Vec<(f64, u64)> = self
            .stats
            .latency()
            .iter()
            .enumerate()
            .map(|(bucket, count)| (latency_bound(bucket), *count))
            .collect();
        encoder.histogram("request_latency_seconds", help, self.stats.latency_sum(), &buckets)
    }

    fn pacing(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
        let totals = self.store.totals();
        let help = "Conditional writes that were judged by the version of a region";
        encoder.counter("region_attempts", help, totals.attempts)?;
        encoder.counter("region_failures", "Those that were refused", totals.failures)?;
        encoder.counter("pacing_waited", "Requests that waited for their turn", totals.waited)?;
        encoder.counter("pacing_lapsed", "Turns that lapsed", totals.lapsed)?;
        encoder.gauge("pacing_regions", "Regions updated in turns", totals.tracked as f64)?;
        encoder.gauge("pacing_waiting", "Requests that wait for their turn", totals.waiting as f64)
    }

    /// Writes every number of the engine, under its own name.
    fn engine(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
        let Some(info) = self.store.inner().numbers() else { return Ok(()) };
        let read_only = info.get("read_only").is_some_and(|reason| !reason.is_null());
        encoder.gauge("store_read_only", "1 if the store takes no more writes", f64::from(read_only))?;
        let full = self.fullness.look(&info);
        let help =
            "1 if transactions were refused for want of space since the look before, or in the last minute";
        encoder.gauge("store_full", help, f64::from(full))?;
        for (name, value) in info.as_object().into_iter().flatten() {
            if let Some(value) = value.as_f64() {
                let help = format!("The engine's {}", name.replace('_', " "));
                encoder.gauge(&format!("store_{name}"), &help, value)?;
            }
        }
        Ok(())
    }
}
