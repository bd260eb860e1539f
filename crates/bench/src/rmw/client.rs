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
use crate::kit::study::runtime;
use crate::kit::{process, server};

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

/// A client that has connected to everything that it needs.
pub(crate) struct Ready {
    orders: Orders,
    connections: Vec<Connection>,
}

impl Orders {
    /// Connects. `store` is given where it is in this process.
    pub(crate) async fn prepare(self, store: Option<Arc<dyn ObjectStore>>) -> Result<Ready, BenchError> {
        let store: Option<Arc<dyn ObjectStore>> = match (store, self.plan.store()) {
            (Some(store), _) => Some(store),
            (None, Some(uri)) => Some(Arc::new(server::open(uri).await?)),
            (None, None) => None,
        };
        let connections = system::open(&self.plan, &self.workload, self.concurrency, store).await?;
        Ok(Ready { orders: self, connections })
    }
}

impl Ready {
    /// Works from `begin` until the window ends.
    pub(crate) async fn work(self, begin: Instant) -> Result<ClientRecord, BenchError> {
        let Self { orders, connections } = self;
        let window = Window::new(
            begin,
            Duration::from_millis(orders.warm_up_ms),
            Duration::from_millis(orders.window_ms),
        );
        drive(connections, &orders.workload, orders.first_writer, window).await
    }
}

/// Runs the hidden command of a client process.
pub(crate) fn main() -> Result<(), BenchError> {
    process::serve_rounds(
        async |orders: Orders| Ok(Some(orders.prepare(None).await?)),
        async |ready: &mut Option<Ready>, (), begin| {
            let once = || BenchError::Process("a client has one round".into());
            let before = cpu_time();
            let mut tally = ready.take().ok_or_else(once)?.work(begin).await?;
            tally.cpu_us = (cpu_time() - before).as_micros() as u64;
            Ok(tally)
        },
        async |_| (),
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
                    let ready = runtime.block_on(orders.prepare(store))?;
                    Ok((runtime, ready))
                });
                gathered.wait();
                let (runtime, ready) = ready?;
                runtime.block_on(ready.work(Instant::now()))
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
