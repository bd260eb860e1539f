//! The server's metrics, in the text format of Prometheus (OpenMetrics). They are read from their sources when they
//! are asked for; nothing is counted twice.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use nacre_logstore::LogStore;
use nacre_object::pace::Paced;
use nacre_remote::{Ending, Operation, Requests};
use nacre_rpc::server::{Stats, latency_bound};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Where metrics and the status page come from.
pub(crate) struct Sources {
    pub(crate) stats: Arc<Stats>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) store: Paced<LogStore>,
    pub(crate) addresses: Vec<String>,
    pub(crate) data: String,
    pub(crate) started: Instant,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sources({})", self.data)
    }
}

/// All metrics, as text.
pub(crate) fn text(sources: &Arc<Sources>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("nacre");
    registry.register_collector(Box::new(sources.clone()));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

struct Encoder<'a>(DescriptorEncoder<'a>);

impl Encoder<'_> {
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }
}

impl Collector for Sources {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut encoder = Encoder(encoder);
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
        self.requests(&mut encoder)?;
        self.pacing(&mut encoder)?;
        self.engine(&mut encoder)
    }
}

impl Sources {
    fn requests(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
        let help = "Requests by kind and by how they ended";
        let mut family = encoder.0.encode_descriptor("requests", help, None, MetricType::Counter)?;
        for (operation, kind) in Operation::ALL {
            for (ending, outcome) in Ending::ALL {
                let labels = [("kind", kind), ("outcome", outcome)];
                let metric = family.encode_family(&labels)?;
                ConstCounter::new(self.requests.get(operation, ending)).encode(metric)?;
            }
        }
        let help = "Time from when a request was read until its reply was ready";
        let mut metric =
            encoder.0.encode_descriptor("request_latency_seconds", help, None, MetricType::Histogram)?;
        let buckets = self.stats.latency();
        let bounded: Vec<(f64, u64)> =
            buckets.iter().enumerate().map(|(bucket, count)| (latency_bound(bucket), *count)).collect();
        metric.encode_histogram::<NoLabelSet>(self.stats.latency_sum(), buckets.iter().sum(), &bounded, None)
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

    /// Every number that the engine gives, under its own name.
    fn engine(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
        let info = serde_json::to_value(self.store.inner().info()).map_err(|_| fmt::Error)?;
        let read_only = info.get("read_only").is_some_and(|reason| !reason.is_null());
        encoder.gauge("store_read_only", "1 if the store takes no more writes", f64::from(read_only))?;
        for (name, value) in info.as_object().into_iter().flatten() {
            if let Some(value) = value.as_f64() {
                let help = format!("The engine's {}", name.replace('_', " "));
                encoder.gauge(&format!("store_{name}"), &help, value)?;
            }
        }
        Ok(())
    }
}
