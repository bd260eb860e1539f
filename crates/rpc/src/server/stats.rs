//! The counters of a server.
//!
//! Connections count for themselves and add up once per batch, so that counting costs next to nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of buckets of the latency histogram: the first is up to 1 µs, each further one up to twice as long, the
/// last has no bound.
pub const LATENCY_BUCKETS: usize = 26;

/// Returns the upper bound of a bucket, in seconds.
pub fn latency_bound(bucket: usize) -> f64 {
    if bucket + 1 >= LATENCY_BUCKETS { f64::INFINITY } else { (1u64 << bucket) as f64 / 1e6 }
}

fn bucket_of(time: Duration) -> usize {
    let us = time.as_nanos().div_ceil(1000).max(1) as u64;
    ((u64::BITS - (us - 1).leading_zeros()) as usize).min(LATENCY_BUCKETS - 1)
}

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
    latency: [Counter; LATENCY_BUCKETS],
    latency_us: Counter,
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

impl Stats {
    /// Returns the number of requests in each bucket of the latency histogram: the time from when a request was read
    /// until its reply was ready.
    pub fn latency(&self) -> [u64; LATENCY_BUCKETS] {
        std::array::from_fn(|bucket| self.latency[bucket].get())
    }

    /// Returns the sum of the latencies of all requests, in seconds.
    pub fn latency_sum(&self) -> f64 {
        self.latency_us.get() as f64 / 1e6
    }
}

/// The counts of one connection since they were last added up.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    latency: [u64; LATENCY_BUCKETS],
    latency_us: u64,
    any: bool,
}

impl Tally {
    /// Counts the latency of `count` requests.
    pub(crate) fn latency(&mut self, time: Duration, count: u64) {
        if count > 0 {
            self.latency[bucket_of(time)] += count;
            self.latency_us += time.as_micros() as u64 * count;
            self.any = true;
        }
    }

    /// Adds the counts to the server's counters and resets them.
    pub(crate) fn settle(&mut self, stats: &Stats) {
        stats.received_bytes.add(std::mem::take(&mut self.received_bytes));
        stats.sent_bytes.add(std::mem::take(&mut self.sent_bytes));
        if !std::mem::take(&mut self.any) {
            return;
        }
        for (total, count) in stats.latency.iter().zip(&mut self.latency) {
            total.add(std::mem::take(count));
        }
        stats.latency_us.add(std::mem::take(&mut self.latency_us));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_into_the_bucket_that_bounds_them() {
        for (us, bucket) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1000, 10), (u64::MAX >> 12, 25)]
        {
            let time = Duration::from_micros(us);
            assert_eq!(bucket_of(time), bucket, "{us}");
            assert!(time.as_secs_f64() <= latency_bound(bucket));
        }
        assert_eq!(bucket_of(Duration::from_nanos(1001)), 1);
    }
}
