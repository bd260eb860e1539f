//! The counters of a server.
//!
//! Connections count for themselves and add up once per batch, so that counting costs next to nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nacre_object::latency::{Latencies, LatencyTally};

/// The counters of a server, read with [`Counter::get`].
#[derive(Debug, Default)]
pub struct Stats {
    /// Open connections that have completed the handshake.
    pub connections: Counter,
    /// Open connections that have not completed the handshake yet.
    pub unproven: Counter,
    /// Connections accepted since the start.
    pub accepted: Counter,
    /// Connections that did not pass the handshake.
    pub rejected: Counter,
    /// Requests that wait for their replies.
    pub in_flight: Counter,
    /// Bytes of memory that connections and sessions hold: received, waiting for a reply, or waiting to be sent.
    pub held_bytes: Counter,
    /// Bytes received.
    pub received_bytes: Counter,
    /// Bytes sent.
    pub sent_bytes: Counter,
    /// The latencies of all requests: the time from when one was read until its reply was ready.
    pub latency: Latencies,
}

/// A number that many threads add to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Returns the number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds to it.
    pub fn add(&self, count: u64) {
        if count > 0 {
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Adds to it, unless the sum would exceed `max`. Returns true if it was added.
    pub(crate) fn try_add(&self, count: u64, max: u64) -> bool {
        let add = |now: u64| now.checked_add(count).filter(|sum| *sum <= max);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok()
    }

    /// Adds the difference between `now` and `was`.
    pub(crate) fn change(&self, was: usize, now: usize) {
        if now != was {
            self.0.fetch_add((now as u64).wrapping_sub(was as u64), Ordering::Relaxed);
        }
    }
}

/// The counts of one connection since they were last added up.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts {
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    latency: LatencyTally,
}

impl ConnectionCounts {
    /// Counts the latency of `count` requests.
    pub(crate) fn latency(&mut self, time: Duration, count: u64, stats: &Stats) {
        self.latency.count(time, count, &stats.latency);
    }

    /// Adds the counts to the server's counters and resets them.
    pub(crate) fn settle(&mut self, stats: &Stats) {
        stats.received_bytes.add(std::mem::take(&mut self.received_bytes));
        stats.sent_bytes.add(std::mem::take(&mut self.sent_bytes));
        self.latency.settle(&stats.latency);
    }
}
