//! A client process of the study.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use nacre::sequencer::Sequencer;
use serde::{Deserialize, Serialize};

use super::NAME;
use super::point::Subject;
use crate::BenchError;
use crate::kit::latency::{Latencies, LatencyCounts};
use crate::kit::peer::{etcd, redis};
use crate::kit::process::{self, together};
use crate::kit::server;
use crate::kit::span::Spans;

/// The cached positions between two looks at the clock.
const UNTIMED: u64 = 4096;
/// The interval of the record of positions over time.
const INTERVAL: Duration = Duration::from_millis(1);

/// The parameters of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) subject: Subject,
    pub(super) place: String,
    pub(super) connections: u32,
    pub(super) depth: u32,
    pub(super) window_ms: u64,
}

/// The record of one client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ClientRecord {
    pub(super) positions: u64,
    pub(super) grants: u64,
    pub(super) latency_ns_counts: LatencyCounts,
    /// The last position of each interval.
    pub(super) spans: Vec<(u64, u64)>,
    /// The positions that nobody else may have got.
    pub(super) exact: Spans,
}

/// The counting side of a client.
struct Counter {
    begin: Instant,
    end: Instant,
    tally: ClientRecord,
    latencies: Latencies,
    noted: Instant,
}

impl Counter {
    fn note(&mut self, now: Instant, position: u64) {
        if now >= self.noted + INTERVAL {
            self.noted = now;
            self.tally.spans.push(((now - self.begin).as_micros() as u64, position));
        }
    }
}

enum Ready {
    Nacre(Vec<nacre::Store>, Vec<Sequencer>),
    Redis(Vec<redis::Connection>),
    Etcd(Vec<etcd::Client>),
}

/// Runs the hidden command of a client process.
pub(crate) fn main() -> Result<(), BenchError> {
    process::serve_round(prepare, work)
}

async fn prepare(orders: &Orders) -> Result<Ready, BenchError> {
    match orders.subject {
        Subject::Nacre(policy) => {
            let (mut stores, mut sequencers) = (Vec::new(), Vec::new());
            for _ in 0..orders.connections {
                let store = server::open(&orders.place).await?;
                let sequencer = store.sequencer(NAME).await?;
                match policy.caches() {
                    // Bound, so that the first position is not that of a new connection.
                    true => _ = sequencer.look().await?,
                    false => _ = sequencer.next().await?,
                }
                stores.push(store);
                sequencers.push(sequencer);
            }
            Ok(Ready::Nacre(stores, sequencers))
        }
        Subject::Redis => {
            let connections = (0..orders.connections).map(|_| redis::Connection::open(&orders.place));
            Ok(Ready::Redis(try_join_all(connections).await?))
        }
        Subject::Etcd => {
            let clients = (0..orders.connections).map(|_| etcd::Client::connect(&orders.place));
            Ok(Ready::Etcd(try_join_all(clients).await?))
        }
    }
}

async fn work(orders: &Orders, ready: Ready, begin: Instant) -> Result<ClientRecord, BenchError> {
    let end = begin + Duration::from_millis(orders.window_ms);
    let (tally, latencies) = (ClientRecord::default(), Latencies::new()?);
    let mut counter = RefCell::new(Counter { begin, end, tally, latencies, noted: begin });
    match ready {
        Ready::Nacre(stores, sequencers) => {
            let Subject::Nacre(policy) = orders.subject else {
                return Err(BenchError::Process("a client has other orders".into()));
            };
            if policy.caches() {
                cached(&sequencers[0], counter.get_mut()).await?;
            } else {
                let tasks = sequencers.iter().flat_map(|sequencer| (0..orders.depth).map(move |_| sequencer));
                let tasks =
                    tasks.map(|sequencer| repeat(&counter, 1, async move || Ok(sequencer.next().await?)));
                together(tasks).await?;
            }
            counter.borrow_mut().tally.grants =
                sequencers.iter().map(|sequencer| sequencer.statistics().grants).sum();
            for store in stores {
                store.end_sequencers().await;
            }
        }
        Ready::Redis(connections) => {
            let depth = u64::from(orders.depth);
            let tasks = connections.into_iter().map(|mut connection| {
                repeat(&counter, depth, async move || {
                    Ok(connection.count_up(NAME, orders.depth).await? + 1 - depth)
                })
            });
            together(tasks).await?;
        }
        Ready::Etcd(clients) => {
            let tasks = clients.into_iter().map(|mut client| {
                repeat(&counter, 1, async move || client.put(NAME.into(), bytes::Bytes::new()).await)
            });
            together(tasks).await?;
        }
    }
    let Counter { mut tally, latencies, .. } = counter.into_inner();
    tally.latency_ns_counts = latencies.counts();
    Ok(tally)
}

/// Takes a number of positions by each round trip until the window ends; `take` returns the first of them. Only single ones are
/// known to be the client's alone.
async fn repeat(
    counter: &RefCell<Counter>,
    count: u64,
    mut take: impl AsyncFnMut() -> Result<u64, BenchError>,
) -> Result<(), BenchError> {
    let end = counter.borrow().end;
    loop {
        let started = Instant::now();
        if started >= end {
            return Ok(());
        }
        let first = take().await?;
        let now = Instant::now();
        if now <= end {
            let mut counter = counter.borrow_mut();
            counter.tally.positions += count;
            counter.latencies.record(now - started);
            counter.note(now, first);
            if count == 1 {
                counter.tally.exact.add(first, first + 1);
            }
        }
    }
}

/// Takes single positions as fast as they come.
async fn cached(sequencer: &Sequencer, counter: &mut Counter) -> Result<(), BenchError> {
    loop {
        let begun = Instant::now();
        if begun >= counter.end {
            return Ok(());
        }
        let (taken, next) = take_untimed(sequencer, &mut counter.tally.exact);
        let now = Instant::now();
        if taken > 0 {
            counter.tally.positions += taken;
            let each = (now - begun) / taken as u32;
            counter.latencies.record_many(each, taken);
            counter.note(now, next - 1);
        }
        if taken < UNTIMED {
            let position = sequencer.next().await?;
            let came = Instant::now();
            if came < counter.end {
                counter.tally.positions += 1;
                counter.latencies.record(came - now);
                counter.tally.exact.add(position, position + 1);
                counter.note(came, position);
            }
        }
    }
}

/// Takes up to [`UNTIMED`] single positions. Returns how many, and the position after the last one.
///
/// This is a function of its own so that the sequencer is known by a register. A task that waits in between would look it up in its memory
/// again for each position, since an atomic instruction comes in between, and that would be measured too.
#[inline(never)]
fn take_untimed(sequencer: &Sequencer, exact: &mut Spans) -> (u64, u64) {
    let (mut first, mut next) = (u64::MAX, u64::MAX);
    let mut taken = 0;
    while taken < UNTIMED {
        let Some(position) = sequencer.try_next() else { break };
        // What is not in a row was passed on in between.
        if position != next {
            if first != u64::MAX {
                exact.add(first, next);
            }
            first = position;
        }
        next = position + 1;
        taken += 1;
    }
    if taken > 0 {
        exact.add(first, next);
    }
    (taken, next)
}
