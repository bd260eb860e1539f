//! A client process of the study: all clients of one sequencer, so that it sees every position of it.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nacre::sequencer::Sequencer;
use serde::{Deserialize, Serialize};

use super::point::{BIN_MS, Pause, System};
use crate::BenchError;
use crate::kit::machine::now_ns;
use crate::kit::peer::etcd;
use crate::kit::process::{self, together};
use crate::kit::server;
use crate::kit::tally::{Counts, Tally, take};

/// The time after which a request to a member of the peer is sent to another member.
const ATTEMPT_MAX: Duration = Duration::from_millis(500);
/// The pause before that.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(10);
/// The longest time that a client of the peer waits for a position.
const PATIENCE: Duration = Duration::from_secs(60);

/// The parameters of a client process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) system: System,
    /// The URI of the store; of the peer, the addresses of its members.
    pub(super) places: Vec<String>,
    pub(super) sequencer: String,
    pub(super) clients: u32,
    pub(super) window_ms: u64,
}

/// The record of the clients of a sequencer. Each position was there once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ClientRecord {
    /// The beginning, in nanoseconds of the clock that all processes of the machine have in common.
    pub(super) begin_ns: u64,
    /// The positions of each interval of [`BIN_MS`] milliseconds.
    pub(super) bins: Vec<u32>,
    /// The longest pause of each client.
    pub(super) pauses: Vec<Pause>,
    pub(super) positions: u64,
    pub(super) lost: u64,
    pub(super) gaps: u64,
}

/// The progress of a client.
#[derive(Clone, Copy)]
struct Progress {
    last: Instant,
    /// The beginning and the length of the longest pause.
    pause: (Instant, Duration),
}

impl Progress {
    fn pause_until(&mut self, now: Instant) {
        let pause = now - self.last;
        if pause > self.pause.1 {
            self.pause = (self.last, pause);
        }
        self.last = now;
    }
}

/// The counting side of the clients.
struct Counter {
    tally: Tally,
    clients: Vec<Progress>,
}

impl Counter {
    fn note(&mut self, client: usize, now: Instant, position: u64) -> Result<(), BenchError> {
        self.tally.note(client, now, position)?;
        self.clients[client].pause_until(now);
        Ok(())
    }

    fn record(mut self, begin_ns: u64) -> ClientRecord {
        let (begin, end) = (self.tally.begin(), self.tally.end());
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let pause = |client: &mut Progress| {
            if client.last < end {
                client.pause_until(end);
            }
            Pause { from_ms: ms(client.pause.0 - begin), ms: ms(client.pause.1) }
        };
        let pauses = self.clients.iter_mut().map(pause).collect();
        let Counts { bins, positions, lost, gaps } = self.tally.finish();
        ClientRecord { begin_ns, bins, pauses, positions, lost, gaps }
    }
}

/// The clients, each with a connection and one request under way.
enum Ready {
    Nacre(Vec<nacre::Store>, Vec<Sequencer>),
    Etcd(Vec<Member>),
}

/// Runs the hidden command of a client process.
pub(crate) fn main() -> Result<(), BenchError> {
    process::serve_round(prepare, work)
}

async fn prepare(orders: &Orders) -> Result<Ready, BenchError> {
    match orders.system {
        System::Nacre => {
            let place = orders.places.first().map_or("", String::as_str);
            let (mut stores, mut sequencers) = (Vec::new(), Vec::new());
            for _ in 0..orders.clients {
                let store = server::open(place).await?;
                let sequencer = store.sequencer(&orders.sequencer).await?;
                // Bound, so that the first position is not that of a new connection.
                sequencer.next().await?;
                stores.push(store);
                sequencers.push(sequencer);
            }
            Ok(Ready::Nacre(stores, sequencers))
        }
        System::Etcd => {
            let mut members = Vec::new();
            for client in 0..orders.clients {
                let at = client as usize % orders.places.len().max(1);
                let mut member = Member { places: orders.places.clone(), at, client: None };
                member.next().await?;
                members.push(member);
            }
            Ok(Ready::Etcd(members))
        }
    }
}

async fn work(orders: &Orders, ready: Ready, begin: Instant) -> Result<ClientRecord, BenchError> {
    let begin_ns = now_ns().saturating_sub(begin.elapsed().as_nanos() as u64);
    let progress = Progress { last: begin, pause: (begin, Duration::ZERO) };
    let clients = vec![progress; orders.clients as usize];
    let tally = Tally::new(begin, orders.window_ms, BIN_MS, clients.len());
    let end = tally.end();
    let counter = RefCell::new(Counter { tally, clients });
    let note = |client: usize| {
        let counter = &counter;
        move |now, position| counter.borrow_mut().note(client, now, position)
    };
    match ready {
        Ready::Nacre(stores, sequencers) => {
            let clients = sequencers.iter().enumerate().map(|(client, sequencer)| {
                take(end, async move || Ok(sequencer.next().await?), note(client))
            });
            together(clients).await?;
            for store in stores {
                store.end_sequencers().await;
            }
        }
        Ready::Etcd(members) => {
            let clients = members
                .into_iter()
                .enumerate()
                .map(|(client, mut member)| take(end, async move || member.next().await, note(client)));
            together(clients).await?;
        }
    }
    Ok(counter.into_inner().record(begin_ns))
}

/// A client of the peer, which goes on to the next member when one does not answer.
struct Member {
    places: Vec<String>,
    at: usize,
    client: Option<etcd::Client>,
}

impl Member {
    /// Returns the next revision.
    async fn next(&mut self) -> Result<u64, BenchError> {
        let begun = Instant::now();
        loop {
            let error = match tokio::time::timeout(ATTEMPT_MAX, self.put()).await {
                Ok(Ok(revision)) => return Ok(revision),
                Ok(Err(error)) => error,
                Err(_) => BenchError::peer("etcd", "a member did not answer in time"),
            };
            if begun.elapsed() > PATIENCE {
                return Err(error);
            }
            // A put whose answer was lost may have taken effect: its revision is a gap.
            (self.at, self.client) = ((self.at + 1) % self.places.len().max(1), None);
            tokio::time::sleep(ATTEMPT_PAUSE).await;
        }
    }

    async fn put(&mut self) -> Result<u64, BenchError> {
        let mut client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let place = self.places.get(self.at).map_or("", String::as_str);
                let client = etcd::Client::connect(place).await?;
                self.client.insert(client).clone()
            }
        };
        client.put(Bytes::from_static(b"study"), Bytes::new()).await
    }
}
