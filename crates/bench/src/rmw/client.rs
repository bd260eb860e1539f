//! One client of the study: a separate process, or a thread where the store is in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nacre_object::ObjectStore;
use serde::{Deserialize, Serialize};

use super::drive::{ClientRecord, Window, drive};
use super::system::{self, Connection, Plan};
use super::workload::Workload;
use crate::BenchError;
use crate::kit::machine::cpu_time;
use crate::kit::process;
use crate::kit::study::runtime;

/// The parameters of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) plan: Plan,
    pub(crate) workload: Workload,
    /// The number of its first writer, of `concurrency`.
    pub(crate) first_writer: u32,
    pub(crate) concurrency: u32,
    pub(crate) warm_up_ms: u64,
    pub(crate) window_ms: u64,
}

impl Orders {
    /// Connects to everything that the client needs. `store` is given where it is in this process.
    async fn prepare(&self, store: Option<Arc<dyn ObjectStore>>) -> Result<Vec<Connection>, BenchError> {
        let store = match store {
            None => self.plan.open_store().await?,
            store => store,
        };
        system::open(&self.plan, &self.workload, self.concurrency, store).await
    }

    /// Works from `begin` until the window ends.
    async fn work(&self, connections: Vec<Connection>, begin: Instant) -> Result<ClientRecord, BenchError> {
        let [warm_up, length] = [self.warm_up_ms, self.window_ms].map(Duration::from_millis);
        drive(connections, &self.workload, self.first_writer, Window::new(begin, warm_up, length)).await
    }
}

/// Runs the hidden command of a client process.
pub(crate) fn main() -> Result<(), BenchError> {
    process::serve_round(
        async |orders: &Orders| orders.prepare(None).await,
        async |orders: &Orders, connections: Vec<Connection>, begin| {
            let before = cpu_time();
            let record = orders.work(connections, begin).await?;
            Ok(ClientRecord { cpu_us: (cpu_time() - before).as_micros() as u64, ..record })
        },
    )
}

/// Runs clients as threads of this process, on a store in this process if they need one.
pub(crate) fn run_threads(
    orders: Vec<Orders>,
    store: Option<Arc<dyn ObjectStore>>,
) -> Result<Vec<ClientRecord>, BenchError> {
    let gathered = Arc::new(std::sync::Barrier::new(orders.len()));
    let threads: Vec<_> = orders
        .into_iter()
        .map(|orders| {
            let (store, gathered) = (store.clone(), gathered.clone());
            std::thread::spawn(move || {
                // Every thread comes to the barrier, whether it is ready or has failed.
                let ready = runtime().and_then(|runtime| {
                    let connections = runtime.block_on(orders.prepare(store))?;
                    Ok((runtime, connections))
                });
                gathered.wait();
                let (runtime, connections) = ready?;
                runtime.block_on(orders.work(connections, Instant::now()))
            })
        })
        .collect();
    let mut tallies = Vec::with_capacity(threads.len());
    for thread in threads {
        match thread.join() {
            Ok(tally) => tallies.push(tally?),
            Err(_) => return Err(BenchError::Process("a client thread panicked".into())),
        }
    }
    Ok(tallies)
}
