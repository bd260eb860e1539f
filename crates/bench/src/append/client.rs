//! A client process of the study.

use std::cell::RefCell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use futures::future::try_join_all;
use nacre::zlog::{Entry, Followed, Log, LogError, Options, Slot};
use nacre::{ByteRange, Outcome, Transaction};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

use super::ceph::Appends;
use super::point::{Sequencing, Subject, Work};
use super::{NAME, OBJECTS, SEQUENCER, object_id};
use crate::BenchError;
use crate::kit::latency::{Latencies, LatencyCounts};
use crate::kit::peer::{nats, redis};
use crate::kit::process::{self, together};
use crate::kit::server;
use crate::kit::span::Spans;

/// The time between two appends of the client that another one follows.
const PACE: Duration = Duration::from_millis(4);

/// The parameters of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) subject: Subject,
    pub(super) work: Work,
    pub(super) place: String,
    /// The number of the client.
    pub(super) client: u32,
    /// The writers of this client.
    pub(super) writers: u32,
    pub(super) depth: u32,
    pub(super) apart: bool,
    pub(super) entry_bytes: u32,
    /// The number of objects, for appends to RADOS objects without a log.
    pub(super) width: u32,
    pub(super) sequencing: Sequencing,
    /// The entries that are there, for readers.
    pub(super) entries: u64,
    pub(super) window_ms: u64,
}

/// The record of one client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ClientRecord {
    pub(super) operations: u64,
    pub(super) latency_ns_counts: LatencyCounts,
    /// The positions that entries of this client alone may have.
    pub(super) spans: Spans,
}

/// The counting side of a client.
struct Counter {
    end: Instant,
    operations: u64,
    latencies: Latencies,
    spans: Spans,
}

impl Counter {
    fn count(&mut self, started: Instant, operations: u64) {
        let now = Instant::now();
        if now <= self.end {
            self.operations += operations;
            self.latencies.record_many(now - started, operations);
        }
    }
}

enum Ready {
    Logs(nacre::Store, Vec<Log>),
    Objects(nacre::Store),
    Redis(Vec<redis::Connection>),
    Nats(Vec<nats::Connection>),
    Rados(Box<Appends>),
}

/// Runs the hidden command of a client process.
pub(crate) fn main() -> Result<(), BenchError> {
    process::serve_round(prepare, work)
}

/// Returns a failure of a log as one of the study.
pub(super) fn failed(error: LogError) -> BenchError {
    match error {
        LogError::Store(error) => error.into(),
        error => BenchError::Process(error.to_string()),
    }
}

/// Opens the log of the study.
pub(super) async fn open_log(store: &nacre::Store, sequencing: Sequencing) -> Result<Log, BenchError> {
    let sequencer = match sequencing {
        Sequencing::Store => None,
        Sequencing::RoundTrip | Sequencing::Quota => Some(store.log_sequencer(SEQUENCER).await?),
    };
    store.log_with(NAME, Options { sequencer, ..Options::default() }).await.map_err(failed)
}

async fn prepare(orders: &Orders) -> Result<Ready, BenchError> {
    match orders.subject {
        Subject::Log | Subject::LogOnCeph => {
            let store = server::open(&orders.place).await?;
            let first = open_log(&store, orders.sequencing).await?;
            let handles = if orders.apart { orders.writers } else { 1 };
            let others = (1..handles).map(|_| first.apart());
            let logs: Vec<Log> = std::iter::once(first.clone()).chain(others).collect();
            // Connected, and with whatever the first append of a handle needs.
            first.tail().await.map_err(failed)?;
            if orders.subject == Subject::LogOnCeph {
                // It is with the first appends that connections to the OSDs are made, and that these compile what they run.
                let entry = Entry::new(content(orders.entry_bytes, orders.client));
                for _ in 0..orders.width {
                    let appends = logs.iter().map(|log| log.append(entry.clone()));
                    try_join_all(appends).await.map_err(failed)?;
                }
            }
            Ok(Ready::Logs(store, logs))
        }
        Subject::Object | Subject::Disk => Ok(Ready::Objects(server::open(&orders.place).await?)),
        Subject::Redis => {
            let connections = (0..orders.writers).map(|_| redis::Connection::open(&orders.place));
            Ok(Ready::Redis(try_join_all(connections).await?))
        }
        Subject::Nats => {
            let connections = (0..orders.writers).map(|_| nats::Connection::open(&orders.place));
            Ok(Ready::Nats(try_join_all(connections).await?))
        }
        Subject::ClassCall | Subject::LuaCall | Subject::RadosAppend => {
            Ok(Ready::Rados(Box::new(Appends::open(orders).await?)))
        }
    }
}

/// Returns the content of an entry. It is not all alike, so that nothing on the way can make it smaller.
pub(super) fn content(bytes: u32, seed: u32) -> Bytes {
    let byte = |number: u32| (number.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 24) as u8;
    (0..bytes).map(byte).collect()
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

async fn work(orders: &Orders, ready: Ready, begin: Instant) -> Result<ClientRecord, BenchError> {
    let end = begin + Duration::from_millis(orders.window_ms);
    let counter =
        RefCell::new(Counter { end, operations: 0, latencies: Latencies::new()?, spans: Spans::default() });
    match ready {
        Ready::Logs(store, logs) => {
            match orders.work {
                Work::Append => append(orders, &logs, end, &counter).await?,
                Work::Read => read(orders, &logs[0], end, &counter).await?,
                Work::Tail => {
                    while Instant::now() < end {
                        let started = Instant::now();
                        logs[0].tail().await.map_err(failed)?;
                        counter.borrow_mut().count(started, 1);
                    }
                }
                Work::Positions => {
                    let sequencer = store.sequencer(SEQUENCER).await?;
                    while Instant::now() < end {
                        let started = Instant::now();
                        sequencer.next_many_by_rank(1).await?;
                        counter.borrow_mut().count(started, 1);
                    }
                }
                Work::Follow if orders.client == 0 => append_at_a_pace(orders, &logs[0], begin, end).await?,
                Work::Follow => follow(&logs[0], end, &counter).await?,
            }
            drop(logs);
            store.end_sequencers().await;
        }
        Ready::Objects(store) => read_objects(orders, &store, end, &counter).await?,
        Ready::Redis(connections) => {
            let tasks = connections.into_iter().map(|mut connection| {
                repeat(orders, end, &counter, async move |payload: &[u8], depth: u32| {
                    connection.append(NAME, payload, depth).await
                })
            });
            together(tasks).await?;
        }
        Ready::Nats(connections) => {
            let tasks = connections.into_iter().map(|mut connection| {
                repeat(orders, end, &counter, async move |payload: &[u8], depth: u32| {
                    connection.append(payload, depth).await.map(drop)
                })
            });
            together(tasks).await?;
        }
        Ready::Rados(appends) => append_to_objects(orders, &appends, end, &counter).await?,
    }
    let Counter { operations, latencies, spans, .. } = counter.into_inner();
    Ok(ClientRecord { operations, latency_ns_counts: latencies.counts(), spans })
}

/// Appends to a peer's stream, as many entries at once as are to be under way.
async fn repeat(
    orders: &Orders,
    end: Instant,
    counter: &RefCell<Counter>,
    mut append: impl AsyncFnMut(&[u8], u32) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let payload = content(orders.entry_bytes, orders.client);
    while Instant::now() < end {
        let started = Instant::now();
        append(&payload, orders.depth).await?;
        counter.borrow_mut().count(started, u64::from(orders.depth));
    }
    Ok(())
}

async fn append(
    orders: &Orders,
    logs: &[Log],
    end: Instant,
    counter: &RefCell<Counter>,
) -> Result<(), BenchError> {
    let payload = content(orders.entry_bytes, orders.client);
    let writers = (0..orders.writers).flat_map(|writer| (0..orders.depth).map(move |_| writer));
    let tasks = writers.map(|writer| {
        let (log, payload) = (&logs[writer as usize % logs.len()], &payload);
        async move {
            while Instant::now() < end {
                let started = Instant::now();
                let position = log.append(Entry::new(payload.clone())).await.map_err(failed)?;
                let mut counter = counter.borrow_mut();
                counter.count(started, 1);
                counter.spans.add(position, position + 1);
            }
            Ok::<(), BenchError>(())
        }
    });
    together(tasks).await.map(drop)
}

/// Appends to RADOS objects without a log, one entry by each operation.
async fn append_to_objects(
    orders: &Orders,
    appends: &Appends,
    end: Instant,
    counter: &RefCell<Counter>,
) -> Result<(), BenchError> {
    let tasks = (0..orders.writers * orders.depth).map(|_| async move {
        while Instant::now() < end {
            let started = Instant::now();
            appends.once().await?;
            counter.borrow_mut().count(started, 1);
        }
        Ok::<(), BenchError>(())
    });
    together(tasks).await.map(drop)
}

/// Appends the time of each append, so that who follows knows how old it is.
async fn append_at_a_pace(
    orders: &Orders,
    log: &Log,
    begin: Instant,
    end: Instant,
) -> Result<(), BenchError> {
    // The follower watches by then.
    let mut next = begin + 10 * PACE;
    while next < end {
        tokio::time::sleep_until(next.into()).await;
        let mut data = BytesMut::from(&now_ns().to_le_bytes()[..]);
        data.resize((orders.entry_bytes as usize).max(8), 7);
        log.append(Entry::new(data.freeze())).await.map_err(failed)?;
        next = (next + PACE).max(Instant::now());
    }
    Ok(())
}

async fn follow(log: &Log, end: Instant, counter: &RefCell<Counter>) -> Result<(), BenchError> {
    let mut follower = log.follow(0, Default::default());
    while let Ok(step) = tokio::time::timeout_at(end.into(), follower.next()).await {
        let Followed::Entry { entry, .. } = step.map_err(failed)? else { continue };
        let Some(sent) = entry.data.first_chunk::<8>() else { continue };
        let age = Duration::from_nanos(now_ns().saturating_sub(u64::from_le_bytes(*sent)));
        let mut counter = counter.borrow_mut();
        counter.operations += 1;
        counter.latencies.record(age);
    }
    Ok(())
}

async fn read(
    orders: &Orders,
    log: &Log,
    end: Instant,
    counter: &RefCell<Counter>,
) -> Result<(), BenchError> {
    let tasks = (0..orders.writers * orders.depth).map(|reader| async move {
        let mut dice = StdRng::seed_from_u64(u64::from(reader) << 32 | u64::from(orders.client));
        while Instant::now() < end {
            let position = dice.random_range(0..orders.entries);
            let started = Instant::now();
            match log.read(position).await.map_err(failed)? {
                Slot::Entry(entry) if entry.data.len() == orders.entry_bytes as usize => {}
                slot => {
                    return Err(BenchError::Lost(format!(
                        "position {position} holds something else: {slot:?}"
                    )));
                }
            }
            counter.borrow_mut().count(started, 1);
        }
        Ok(())
    });
    together(tasks).await.map(drop)
}

async fn read_objects(
    orders: &Orders,
    store: &nacre::Store,
    end: Instant,
    counter: &RefCell<Counter>,
) -> Result<(), BenchError> {
    let objects = (0..OBJECTS).map(object_id).collect::<Result<Vec<_>, _>>()?;
    let tasks = (0..orders.writers * orders.depth).map(|reader| {
        let objects = &objects;
        async move {
            let mut dice = StdRng::seed_from_u64(u64::from(reader) << 32 | u64::from(orders.client));
            let bytes = u64::from(orders.entry_bytes);
            while Instant::now() < end {
                let entry = dice.random_range(0..orders.entries);
                let object = &objects[(entry % u64::from(OBJECTS)) as usize];
                let range = ByteRange::new(entry / u64::from(OBJECTS) * bytes, bytes);
                let started = Instant::now();
                let read = Transaction::new().read_range(nacre::Fork::DEFAULT, range);
                match store.apply(object, read).await? {
                    Outcome::Done(_) => counter.borrow_mut().count(started, 1),
                    Outcome::Refused(_) => {
                        return Err(BenchError::Lost(format!("object {object} cannot be read")));
                    }
                }
            }
            Ok(())
        }
    });
    together(tasks).await.map(drop)
}
