//! The outcomes of a server's requests, counted.
//!
//! Connections count for themselves and add up once per batch, so that counting costs next to nothing.

use std::time::Duration;

use nacre_object::latency::{Latencies, LatencyTally};
use nacre_object::{Guard, Outcome, StoreError, Transaction};
use nacre_rpc::server::Counter;

/// The operation that a request asks for.
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

    /// Returns the operation of a transaction.
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

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum RequestOutcome {
    /// A success.
    Done = 0,
    /// A guard did not hold.
    Refused = 1,
    /// A failure.
    Failed = 2,
}

impl RequestOutcome {
    /// Every ending, with its name in metrics.
    pub const ALL: [(RequestOutcome, &'static str); 3] =
        [(Self::Done, "done"), (Self::Refused, "refused"), (Self::Failed, "failed")];

    pub(crate) fn of(result: &Result<Outcome, StoreError>) -> RequestOutcome {
        match result {
            Ok(Outcome::Done(_)) => RequestOutcome::Done,
            Ok(Outcome::Refused(_)) => RequestOutcome::Refused,
            Err(_) => RequestOutcome::Failed,
        }
    }
}

type Table<T> = [[T; RequestOutcome::ALL.len()]; Operation::ALL.len()];

/// The requests of a server, by operation and ending, and their latencies by operation.
#[derive(Debug, Default)]
pub struct Requests {
    counts: Table<Counter>,
    latencies: [Latencies; Operation::ALL.len()],
}

impl Requests {
    /// Returns the number of requests of an operation with an outcome.
    pub fn get(&self, operation: Operation, ending: RequestOutcome) -> u64 {
        self.counts[operation as usize][ending as usize].get()
    }

    /// Returns the latencies of an operation: the time from when a request was read until its reply was ready.
    pub fn latencies(&self, operation: Operation) -> &Latencies {
        &self.latencies[operation as usize]
    }
}

/// The counts of one connection since they were last added up.
#[derive(Debug, Default)]
pub(crate) struct RequestCounts {
    counts: Table<u64>,
    latencies: [LatencyTally; Operation::ALL.len()],
    /// The requests of each operation whose latency is not known yet.
    untimed: [u64; Operation::ALL.len()],
    any: bool,
}

impl RequestCounts {
    pub(crate) fn count(&mut self, operation: Operation, ending: RequestOutcome) {
        self.counts[operation as usize][ending as usize] += 1;
        self.untimed[operation as usize] += 1;
        self.any = true;
    }

    /// Counts the latency of the requests that were counted since the last call.
    pub(crate) fn timed(&mut self, latency: Duration, requests: &Requests) {
        if self.any {
            let totals = self.latencies.iter_mut().zip(&requests.latencies);
            for ((latencies, total), count) in totals.zip(&mut self.untimed) {
                latencies.count(latency, std::mem::take(count), total);
            }
        }
    }

    /// Adds the counts to the server's and resets them.
    pub(crate) fn settle(&mut self, requests: &Requests) {
        if !std::mem::take(&mut self.any) {
            return;
        }
        for (total, count) in requests.counts.as_flattened().iter().zip(self.counts.as_flattened_mut()) {
            total.add(std::mem::take(count));
        }
        for (total, latencies) in requests.latencies.iter().zip(&mut self.latencies) {
            latencies.settle(total);
        }
    }
}
