//! What a server counts.
//!
//! Sessions count for themselves and add up once per batch, so that counting costs next to nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nacre_object::{Guard, Outcome, StoreError, Transaction};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Operation {
    /// A transaction without writes.
    Read = 0,
    /// A transaction with writes, and without a guard on a region.
    Write = 1,
    /// A transaction with writes that is guarded by the version of a region.
    ConditionalWrite = 2,
    /// A listing.
    List = 3,
    /// A call of the administration.
    Call = 4,
}

impl Operation {
    /// Every operation, with its name in metrics.
    pub const ALL: [(Operation, &'static str); 5] = [
        (Self::Read, "read"),
        (Self::Write, "write"),
        (Self::ConditionalWrite, "conditional_write"),
        (Self::List, "list"),
        (Self::Call, "call"),
    ];

    /// What kind of operation a transaction is.
    pub fn of(transaction: &Transaction) -> Operation {
        let conditional = |guard: &Guard| matches!(guard, Guard::Region { .. } | Guard::Proposal { .. });
        if transaction.writes.is_empty() {
            Operation::Read
        } else if transaction.guards.iter().any(conditional) {
            Operation::ConditionalWrite
        } else {
            Operation::Write
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Ending {
    /// It was done.
    Done = 0,
    /// A guard did not hold.
    Refused = 1,
    /// It failed.
    Failed = 2,
}

impl Ending {
    /// Every ending, with its name in metrics.
    pub const ALL: [(Ending, &'static str); 3] =
        [(Self::Done, "done"), (Self::Refused, "refused"), (Self::Failed, "failed")];

    pub(crate) fn of(result: &Result<Outcome, StoreError>) -> Ending {
        match result {
            Ok(Outcome::Done(_)) => Ending::Done,
            Ok(Outcome::Refused(_)) => Ending::Refused,
            Err(_) => Ending::Failed,
        }
    }
}

/// Buckets of the latency histogram: the first is up to 1 µs, each further one up to twice as long, the last has no
/// end.
pub const LATENCY_BUCKETS: usize = 26;

/// The upper bound of a bucket, in seconds.
pub fn latency_bound(bucket: usize) -> f64 {
    if bucket + 1 >= LATENCY_BUCKETS { f64::INFINITY } else { (1u64 << bucket) as f64 / 1e6 }
}

fn bucket_of(time: Duration) -> usize {
    let us = time.as_nanos().div_ceil(1000).max(1) as u64;
    ((u64::BITS - (us - 1).leading_zeros()) as usize).min(LATENCY_BUCKETS - 1)
}

type Requests<T> = [[T; Ending::ALL.len()]; Operation::ALL.len()];

/// Counters of a server. Read them with [`Counter::get`].
#[derive(Debug, Default)]
pub struct Stats {
    /// Open connections.
    pub connections: Counter,
    /// Connections accepted since the start.
    pub accepted: Counter,
    /// Connections that did not pass the handshake.
    pub rejected: Counter,
    /// Requests that wait for the store.
    pub in_flight: Counter,
    /// Bytes of memory that connections hold: received, waiting for the store, or waiting to be sent.
    pub held_bytes: Counter,
    /// Bytes received.
    pub received_bytes: Counter,
    /// Bytes sent.
    pub sent_bytes: Counter,
    requests: Requests<Counter>,
    latency: [Counter; LATENCY_BUCKETS],
    latency_us: Counter,
}

/// A number that many threads add to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, count: u64) {
        if count > 0 {
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Adds what is now, and takes away what was.
    pub(crate) fn change(&self, was: usize, now: usize) {
        if now != was {
            self.0.fetch_add((now as u64).wrapping_sub(was as u64), Ordering::Relaxed);
        }
    }
}

impl Stats {
    /// Requests of a kind that ended in a way.
    pub fn requests(&self, operation: Operation, ending: Ending) -> u64 {
        self.requests[operation as usize][ending as usize].get()
    }

    /// Requests in each bucket of the latency histogram: the time from when a request was read until its reply was
    /// ready.
    pub fn latency(&self) -> [u64; LATENCY_BUCKETS] {
        std::array::from_fn(|bucket| self.latency[bucket].get())
    }

    /// The latencies of all requests together, in seconds.
    pub fn latency_sum(&self) -> f64 {
        self.latency_us.get() as f64 / 1e6
    }
}

/// What one session counted since it last added up.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    requests: Requests<u64>,
    latency: [u64; LATENCY_BUCKETS],
    latency_us: u64,
    any: bool,
}

impl Tally {
    pub(crate) fn request(&mut self, operation: Operation, ending: Ending) {
        self.requests[operation as usize][ending as usize] += 1;
        self.any = true;
    }

    /// Counts the latency of `count` requests.
    pub(crate) fn latency(&mut self, time: Duration, count: u64) {
        if count > 0 {
            self.latency[bucket_of(time)] += count;
            self.latency_us += time.as_micros() as u64 * count;
            self.any = true;
        }
    }

    /// Adds up.
    pub(crate) fn settle(&mut self, stats: &Stats) {
        stats.received_bytes.add(std::mem::take(&mut self.received_bytes));
        stats.sent_bytes.add(std::mem::take(&mut self.sent_bytes));
        if !std::mem::take(&mut self.any) {
            return;
        }
        for (total, count) in stats.requests.as_flattened().iter().zip(self.requests.as_flattened_mut()) {
            total.add(std::mem::take(count));
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
