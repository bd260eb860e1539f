//! The loop of a client: concurrent operations, each updating one block after another, until the time is over.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::system::Connection;
use super::workload::Workload;
use crate::BenchError;
use crate::kit::latency::{Latencies, LatencyCounts};
use crate::kit::process::together;

/// The measured window. Operations run from the start to its end; those that end after the warm-up count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// The end of the warm-up; operations that ended before it do not count.
    pub(crate) from: Instant,
    /// The end of the window; operations begin before it, and count if they end before it.
    pub(crate) until: Instant,
}

impl Window {
    /// Creates a window of `length` after a warm-up from `start` on.
    pub(crate) fn new(start: Instant, warm_up: Duration, length: Duration) -> Self {
        Self { from: start + warm_up, until: start + warm_up + length }
    }
}

/// The results of a client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ClientRecord {
    /// The number of successful updates of each of its writers since the start, for the checker.
    pub(crate) updates_by_writer: Vec<u64>,
    /// The number of updates that ended in the window.
    pub(crate) updates: u64,
    /// The number of writes that these updates tried, including the successful ones.
    pub(crate) attempts: u64,
    /// The processor time of the client from the start to the end, in microseconds; 0 where clients are threads of one
    /// process.
    pub(crate) cpu_us: u64,
    /// The greatest number of consecutive failures of one of these updates.
    pub(crate) failures_in_a_row_max: u32,
    /// The latencies of these updates, including retries.
    pub(crate) latencies: LatencyCounts,
}

/// The number of updates that a writer makes before it yields to the others of its thread, where it never has to wait.
const UPDATES_PER_TURN: u64 = 64;

/// Runs all connections concurrently, as the writers from `first_writer` on.
pub(crate) async fn drive(
    connections: Vec<Connection>,
    workload: &Workload,
    first_writer: u32,
    window: Window,
) -> Result<ClientRecord, BenchError> {
    let shared = RefCell::new((ClientRecord::default(), Latencies::new()?));
    let writers = (first_writer..).zip(connections);
    let writers = writers.map(|(writer, connection)| write(connection, workload, writer, window, &shared));
    let updates_by_writer = together(writers).await?;
    let (tally, latencies) = shared.into_inner();
    Ok(ClientRecord { updates_by_writer, latencies: latencies.counts(), ..tally })
}

/// Runs one writer, and returns the number of its successful updates.
async fn write(
    mut connection: Connection,
    workload: &Workload,
    writer: u32,
    window: Window,
    shared: &RefCell<(ClientRecord, Latencies)>,
) -> Result<u64, BenchError> {
    let mut targets = workload.targets(writer);
    let mut updates = 0;
    let mut begun = Instant::now();
    while begun < window.until {
        let attempts = connection.update(&targets.draw(), writer).await?;
        updates += 1;
        let ended = Instant::now();
        if ended >= window.from && ended < window.until {
            let (tally, latencies) = &mut *shared.borrow_mut();
            tally.updates += 1;
            tally.attempts += u64::from(attempts);
            tally.failures_in_a_row_max = tally.failures_in_a_row_max.max(attempts - 1);
            latencies.record(ended - begun);
        }
        begun = ended;
        if updates % UPDATES_PER_TURN == 0 {
            tokio::task::yield_now().await;
            begun = Instant::now();
        }
    }
    Ok(updates)
}
