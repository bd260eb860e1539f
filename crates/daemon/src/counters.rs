//! The counters of the role `store`: what `nacre top` asks for, and the pictures of the status page, which are both made
//! of the differences between two looks.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use nacre_object::latency::{LATENCY_BUCKETS, quantile};
use nacre_remote::Operation;
use nacre_status::{Picture, Scale, Usage};
use serde_json::{Value, json};

use crate::metrics::Sources;

type Buckets = [u64; LATENCY_BUCKETS];

impl Sources {
    /// Returns the counters as the call `counters` of the administration gives them. Latencies are numbers of requests by
    /// bucket.
    pub(crate) fn counters(&self) -> Value {
        let stats = &self.stats;
        let operations: serde_json::Map<String, Value> = Operation::ALL
            .into_iter()
            .map(|(operation, kind)| (kind.to_owned(), json!(self.requests.latencies(operation).buckets())))
            .collect();
        let usage = Usage::now();
        let numbers = self.store.inner().numbers();
        let number = |field: &str| numbers.as_ref().map_or(Value::Null, |numbers| numbers[field].clone());
        json!({
            "uptime_s": self.started.elapsed().as_secs_f64(),
            "cpu_s": usage.map(|usage| usage.cpu_seconds),
            "resident_bytes": usage.map(|usage| usage.resident_bytes),
            "connections": stats.connections.get(),
            "in_flight": stats.in_flight.get(),
            "received_bytes": stats.received_bytes.get(),
            "sent_bytes": stats.sent_bytes.get(),
            "requests": stats.latency.buckets(),
            "operations": operations,
            "syncs": self.store.inner().sync_latencies().map(|latencies| latencies.buckets()),
            "objects": number("objects"),
            "taken_bytes": number("taken_bytes"),
            "capacity_bytes": number("capacity_bytes"),
            "volume_free_bytes": number("volume_free_bytes"),
        })
    }
}

/// The pictures of the status page, and the counters at their last sample.
pub(crate) struct Pictures(Mutex<State>);

struct State {
    last: Option<(Instant, CounterSnapshot)>,
    rates: Picture,
    latencies: Picture,
}

/// The counters that the pictures are made of.
struct CounterSnapshot {
    requests: Buckets,
    operations: [u64; Operation::ALL.len()],
    syncs: Option<Buckets>,
}

impl Default for Pictures {
    fn default() -> Self {
        let kinds = ["all services", "reads", "writes", "conditional writes", "lists", "calls"];
        let rates = Picture::new("Requests a second", Scale::Count, &kinds);
        let shares = ["half within", "99 % within", "99 % of the disk's syncs within"];
        let latencies = Picture::new("Time until a reply is ready", Scale::Time, &shares);
        Pictures(Mutex::new(State { last: None, rates, latencies }))
    }
}

impl Pictures {
    /// Adds what happened since the sample before.
    pub(crate) fn sample(&self, sources: &Sources, now: Instant) {
        let look = CounterSnapshot {
            requests: sources.stats.latency.buckets(),
            operations: Operation::ALL
                .map(|(operation, _)| sources.requests.latencies(operation).buckets().iter().sum()),
            syncs: sources.store.inner().sync_latencies().map(|latencies| latencies.buckets()),
        };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, last)) = &state.last {
            let seconds = now.duration_since(*before).as_secs_f64().max(1e-3);
            let rate = |count: u64| Some(count as f64 / seconds);
            let requests = since(&look.requests, &last.requests);
            let mut rates = vec![rate(requests.iter().sum())];
            let operations = look.operations.iter().zip(&last.operations);
            rates.extend(operations.map(|(count, before)| rate(count - before)));
            let syncs = look.syncs.as_ref().zip(last.syncs.as_ref()).map(|(look, last)| since(look, last));
            let latencies = vec![
                quantile(&requests, 0.5),
                quantile(&requests, 0.99),
                syncs.and_then(|syncs| quantile(&syncs, 0.99)),
            ];
            state.rates.push(now, rates);
            state.latencies.push(now, latencies);
        }
        state.last = Some((now, look));
    }

    /// Returns the pictures until now.
    pub(crate) fn drawn(&self) -> Vec<Picture> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        vec![state.rates.clone(), state.latencies.clone()]
    }
}

fn since(look: &Buckets, last: &Buckets) -> Buckets {
    std::array::from_fn(|bucket| look[bucket] - last[bucket])
}
