//! A client process of the study: one connection, with a number of operations under way.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use nacre::Object;
use nacre_rados::raw::RawPool;
use serde::{Deserialize, Serialize};

use super::operation::{Operation, on_object, on_osd, on_redis};
use crate::BenchError;
use crate::kit::latency::{Latencies, LatencyCounts};
use crate::kit::peer::redis;
use crate::kit::{process, server};

/// The parameters of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) operation: Operation,
    pub(super) place: String,
    pub(super) client: u32,
    pub(super) depth: u32,
    /// The digest of the script, for Redis.
    pub(super) digest: String,
    pub(super) window_ms: u64,
}

/// The record of one client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ClientRecord {
    pub(super) operations: u64,
    pub(super) latency_ns_counts: LatencyCounts,
}

enum Ready {
    Nacre(Vec<Object>),
    Redis(Box<redis::Connection>, Vec<String>),
    Osd(Box<RawPool>, Vec<String>),
}

/// A client that is connected, and the values of its counters.
struct Client {
    orders: Orders,
    ready: Ready,
    values: Vec<u64>,
}

/// The counting side of a client.
struct Counted {
    end: Instant,
    operations: u64,
    latencies: Latencies,
}

impl Counted {
    fn add(&mut self, started: Instant, operations: u64) {
        let now = Instant::now();
        if now <= self.end {
            self.operations += operations;
            self.latencies.record_many(now - started, operations);
        }
    }
}

/// Runs the hidden command of a client process.
pub(crate) fn main() -> Result<(), BenchError> {
    process::serve_rounds(
        async |orders: Orders| Client::open(orders).await,
        async |client: &mut Client, (), begin| client.work(begin).await,
        async |client: Client| drop(client),
    )
}

impl Client {
    async fn open(orders: Orders) -> Result<Self, BenchError> {
        let names = (0..orders.depth).map(|task| format!("study/{}/{task}", orders.client));
        let ready = match orders.operation {
            Operation::RedisAdd => {
                let connection = redis::Connection::open(&orders.place).await?;
                Ready::Redis(Box::new(connection), names.collect())
            }
            Operation::OsdAdd => {
                let pool = RawPool::open(&orders.place).await?;
                Ready::Osd(Box::new(pool), names.collect())
            }
            _ => {
                let store = server::open(&orders.place).await?;
                let objects: Result<Vec<Object>, _> = names.map(|name| store.object(name)).collect();
                Ready::Nacre(objects?)
            }
        };
        let mut client = Self { values: vec![0; orders.depth as usize], orders, ready };
        // What a method reads is known after its first calls, and machines are there then.
        for _ in 0..3 {
            client.once().await?;
        }
        Ok(client)
    }

    /// Carries out one operation on each object, all at a time, and notes the counters. What an earlier study left in a pool counts on.
    async fn once(&mut self) -> Result<(), BenchError> {
        let operation = self.orders.operation;
        self.values = match &mut self.ready {
            Ready::Nacre(objects) => {
                process::together(objects.iter().map(|object| on_object(operation, object))).await?
            }
            Ready::Redis(connection, keys) => {
                on_redis(connection, self.orders.digest.as_bytes(), keys).await?
            }
            Ready::Osd(pool, names) => {
                let pool: &RawPool = pool;
                process::together(names.iter().map(|name| on_osd(pool, name))).await?
            }
        };
        Ok(())
    }

    async fn work(&mut self, begin: Instant) -> Result<ClientRecord, BenchError> {
        let end = begin + Duration::from_millis(self.orders.window_ms);
        let counted = RefCell::new(Counted { end, operations: 0, latencies: Latencies::new()? });
        let (operation, values) = (self.orders.operation, &mut self.values);
        match &mut self.ready {
            Ready::Nacre(objects) => {
                let tasks = objects.iter().zip(values).map(|(object, value)| {
                    repeat(&counted, end, operation, value, move || on_object(operation, object))
                });
                process::together(tasks).await?;
            }
            Ready::Osd(pool, names) => {
                let pool: &RawPool = pool;
                let tasks = names
                    .iter()
                    .zip(values)
                    .map(|(name, value)| repeat(&counted, end, operation, value, move || on_osd(pool, name)));
                process::together(tasks).await?;
            }
            Ready::Redis(connection, keys) => loop {
                let started = Instant::now();
                if started >= end {
                    break;
                }
                let now = on_redis(connection, self.orders.digest.as_bytes(), keys).await?;
                for (value, now) in values.iter_mut().zip(now) {
                    check(value, now)?;
                }
                counted.borrow_mut().add(started, keys.len() as u64);
            },
        }
        let Counted { operations, latencies, .. } = counted.into_inner();
        Ok(ClientRecord { operations, latency_ns_counts: latencies.counts() })
    }
}

/// Carries out one operation after the other until the window ends, and checks that each counts.
async fn repeat<F: Future<Output = Result<u64, BenchError>>>(
    counted: &RefCell<Counted>,
    end: Instant,
    operation: Operation,
    value: &mut u64,
    mut once: impl FnMut() -> F,
) -> Result<(), BenchError> {
    loop {
        let started = Instant::now();
        if started >= end {
            return Ok(());
        }
        let now = once().await?;
        if operation.counts() {
            check(value, now)?;
        }
        counted.borrow_mut().add(started, 1);
    }
}

/// Checks that a counter has gone on by one.
fn check(value: &mut u64, now: u64) -> Result<(), BenchError> {
    if now != *value + 1 {
        let text = format!("a counter of one client went from {value} to {now}");
        return Err(BenchError::Lost(text));
    }
    *value = now;
    Ok(())
}
