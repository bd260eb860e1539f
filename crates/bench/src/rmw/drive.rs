//! The loop of a client: so many concurrent operations, each updating one block after another, until time is up.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};

use super::way::Way;
use super::workload::Workload;
use crate::BenchError;
use crate::latency::{Latencies, LatencyCounts};

/// When to measure. Operations run from the start to the end; those that end after the warm-up count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Operations that ended before this do not count.
    pub(crate) from: Instant,
    /// Operations begin before this, and count if they end before this.
    pub(crate) until: Instant,
}

impl Window {
    /// A window of some length after a warm-up from `start` on.
    pub(crate) fn new(start: Instant, warm_up: Duration, length: Duration) -> Self {
        Self { from: start + warm_up, until: start + warm_up + length }
    }
}

/// What a client did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Successful updates of each of its writers since the start, for the checker.
    pub(crate) updates_by_writer: Vec<u64>,
    /// Updates that ended in the window.
    pub(crate) updates: u64,
    /// Writes that these updates tried, the successful ones included.
    pub(crate) attempts: u64,
    /// Processor time of the client from the start to the end, in microseconds; 0 where clients are threads of one
    /// process.
    pub(crate) cpu_us: u64,
    /// Most failures that one of these updates had in a row.
    pub(crate) failures_in_a_row_max: u32,
    /// How long these updates took, retries included.
    pub(crate) latencies: LatencyCounts,
}

/// How many updates a writer makes before it lets the others of its thread go on, where nothing ever makes it wait.
const UPDATES_PER_TURN: u64 = 64;

/// Drives all ways concurrently, as writers `first_writer` and up.
pub(crate) async fn drive(
    ways: Vec<Way>,
    workload: &Workload,
    first_writer: u32,
    window: Window,
) -> Result<Tally, BenchError> {
    let shared = RefCell::new((Tally::default(), Latencies::new()?));
    let mut updates_by_writer = vec![0; ways.len()];
    let mut writers = FuturesUnordered::new();
    for (index, way) in ways.into_iter().enumerate() {
        let writer = first_writer + index as u32;
        let shared = &shared;
        writers.push(async move { (index, write(way, workload, writer, window, shared).await) });
    }
    // All writers are one task to the runtime, whose fairness budget would make most of them wait for nothing.
    tokio::task::unconstrained(async {
        while let Some((index, updates)) = writers.next().await {
            updates_by_writer[index] = updates?;
        }
        Ok::<_, BenchError>(())
    })
    .await?;
    drop(writers);
    let (tally, latencies) = shared.into_inner();
    Ok(Tally { updates_by_writer, latencies: latencies.counts(), ..tally })
}

/// One writer; gives the number of its successful updates.
async fn write(
    mut way: Way,
    workload: &Workload,
    writer: u32,
    window: Window,
    shared: &RefCell<(Tally, Latencies)>,
) -> Result<u64, BenchError> {
    let mut targets = workload.targets(writer);
    let mut updates = 0;
    let mut begun = Instant::now();
    while begun < window.until {
        let taken = way.update(&targets.draw(), writer).await?;
        updates += 1;
        let ended = Instant::now();
        if ended >= window.from && ended < window.until {
            let (tally, latencies) = &mut *shared.borrow_mut();
            tally.updates += 1;
            tally.attempts += u64::from(taken.attempts);
            tally.failures_in_a_row_max = tally.failures_in_a_row_max.max(taken.attempts - 1);
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
