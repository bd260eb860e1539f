//! Calls beside one that never ends: how soon it is stopped, and what others' calls take meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use nacre::class::{Bound, Bounds, CallError};
use serde::Serialize;

use super::client::{ClientRecord, Orders};
use super::operation::{Operation, STUDY, failed};
use super::{CLIENT, install};
use crate::BenchError;
use crate::kit::latency::{Latencies, LatencySummary};
use crate::kit::process::Crew;
use crate::kit::server::{self, ServerPlan, Servers};
use crate::kit::statistic::Spread;

/// The time that a call of the endless method has.
const BUDGET: Duration = Duration::from_millis(100);
/// The class with the endless method: the study's, with bounds of its own.
const ENDLESS: &str = "endless";
/// The calls of others that are under way.
const OTHERS: u32 = 16;

/// Endless calls, and calls beside them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Disturbed {
    /// The time that an endless call had.
    pub(crate) budget_ms: f64,
    /// The number of endless calls, one after the other, and the time until its caller knew that one was stopped.
    pub(crate) stopped: usize,
    pub(crate) median_ms: f64,
    pub(crate) longest_ms: f64,
    /// The latency of the others' calls, beside the endless ones and without them.
    pub(crate) beside: LatencySummary,
    pub(crate) alone: LatencySummary,
    pub(crate) beside_per_second: f64,
    pub(crate) alone_per_second: f64,
}

/// Measures calls of a client without endless calls of another one, and then beside them.
pub(super) async fn measure(
    program: &Path,
    folder: Option<&Path>,
    window: Duration,
) -> Result<Disturbed, BenchError> {
    let servers = Servers::start(program, ServerPlan::volatile(1), folder).await?;
    let store = server::open(&servers.uri).await?;
    install(&store).await?;
    // Only the time is to end it.
    let bounds = Bounds { wall: BUDGET, instructions: Bounds::MAX.instructions, ..Bounds::default() };
    store.classes().put(ENDLESS, STUDY.into(), bounds).await.map_err(failed)?;
    let orders = Orders {
        operation: Operation::CallAdd,
        place: servers.uri.clone(),
        client: 0,
        depth: OTHERS,
        digest: String::new(),
        window_ms: window.as_millis() as u64,
    };
    let mut crew = Crew::start(CLIENT, &[orders]).await?;
    let alone: Vec<ClientRecord> = crew.round(&()).await?;
    let mut stopped = Vec::new();
    let beside: Vec<ClientRecord> = tokio::select! {
        records = crew.round(&()) => records?,
        error = call_endless(&store, &mut stopped) => return Err(error),
    };
    crew.end().await?;
    if stopped.is_empty() {
        // The machine stood still for all of the window.
        stopped.push(call_endless_once(&store).await?);
    }
    let times = Spread::of(stopped.iter().copied());
    let (alone, alone_per_second) = sum(&alone, window)?;
    let (beside, beside_per_second) = sum(&beside, window)?;
    Ok(Disturbed {
        budget_ms: BUDGET.as_secs_f64() * 1e3,
        stopped: stopped.len(),
        median_ms: times.median,
        longest_ms: times.max,
        beside,
        alone,
        beside_per_second,
        alone_per_second,
    })
}

fn sum(records: &[ClientRecord], window: Duration) -> Result<(LatencySummary, f64), BenchError> {
    let mut latencies = Latencies::new()?;
    records.iter().for_each(|record| latencies.add(&record.latency_ns_counts));
    let operations: u64 = records.iter().map(|record| record.operations).sum();
    Ok((latencies.summary(), operations as f64 / window.as_secs_f64()))
}

/// Makes endless calls one after the other, and notes how long each took; returns the failure that ends it.
async fn call_endless(store: &nacre::Store, took_ms: &mut Vec<f64>) -> BenchError {
    loop {
        match call_endless_once(store).await {
            Ok(ms) => took_ms.push(ms),
            Err(error) => return error,
        }
    }
}

/// Makes an endless call, and returns how long it took until the caller knew that it was stopped.
async fn call_endless_once(store: &nacre::Store) -> Result<f64, BenchError> {
    let object = store.object("study/endless")?;
    let begun = Instant::now();
    match object.call(&format!("{ENDLESS}.endless"), "").await {
        Err(CallError::Exceeded { bound: Bound::Wall, .. }) => Ok(begun.elapsed().as_secs_f64() * 1e3),
        Ok(_) => Err(BenchError::Process("an endless call has ended by itself".into())),
        Err(error) => Err(failed(error)),
    }
}
