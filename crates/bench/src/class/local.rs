//! The cost of a call in the process of its caller, beside that of the same transactions.

use std::time::{Duration, Instant};

use super::operation::{Operation, on_object};
use super::point::Measurement;
use crate::BenchError;
use crate::kit::latency::Latencies;
use crate::kit::machine::cpu_time;

/// The operations of a batch, which are timed together: a look at the clock is not part of them.
const BATCH: u32 = 64;

/// Measures one operation after the other on a store in memory.
pub(super) async fn measure(operation: Operation, window: Duration) -> Result<Measurement, BenchError> {
    let store = nacre::open("mem:")?;
    super::install(&store).await?;
    let object = store.object("study")?;
    let mut latencies = Latencies::new()?;
    let mut operations = 0;
    let mut value = 0;
    for _ in 0..BATCH {
        value = on_object(operation, &object).await?;
    }
    let (begin, cpu) = (Instant::now(), cpu_time());
    let mut started = begin;
    while started < begin + window {
        for _ in 0..BATCH {
            let now = on_object(operation, &object).await?;
            if operation.counts() && now != value + 1 {
                return Err(BenchError::Lost(format!("a counter went from {value} to {now}")));
            }
            value = now;
        }
        let now = Instant::now();
        latencies.record_many((now - started) / BATCH, BATCH.into());
        operations += u64::from(BATCH);
        started = now;
    }
    let took = started - begin;
    let cpu = cpu_time().saturating_sub(cpu);
    Ok(Measurement::new(operations, took, &latencies, [cpu, Duration::ZERO]))
}
