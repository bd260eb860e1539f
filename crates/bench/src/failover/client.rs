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
use crate::kit::positions::Positions;
use crate::kit::process::{self, together};
use crate::kit::server;

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
    position: Option<u64>,
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
    begin: Instant,
    end: Instant,
    bins: Vec<u32>,
    positions: Positions,
    clients: Vec<Progress>,
}

impl Counter {
    fn note(&mut self, client: usize, now: Instant, position: u64) -> Result<(), BenchError> {
        self.positions.add(position)?;
        let progress = &mut self.clients[client];
        if let Some(before) = progress.position
            && before > position
        {
            let text = format!("a client got position {position} after position {before}");
            return Err(BenchError::Lost(text));
        }
        progress.position = Some(position);
        progress.pause_until(now);
        // What came after the window is checked, and not counted.
        let bin = ((now - self.begin).as_millis() / u128::from(BIN_MS)) as usize;
        if let Some(count) = self.bins.get_mut(bin) {
            *count += 1;
        }
        Ok(())
    }

    fn record(mut self, begin_ns: u64) -> ClientRecord {
        let end = self.end;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let begin = self.begin;
        let pause = |client: &mut Progress| {
            if client.last < end {
                client.pause_until(end);
            }
            Pause { from_ms: ms(client.pause.0 - begin), ms: ms(client.pause.1) }
        };
        let pauses = self.clients.iter_mut().map(pause).collect();
        ClientRecord {
            begin_ns,
            pauses,
            positions: self.positions.count(),
            lost: self.positions.missing(),
            gaps: self.positions.gaps(),
            bins: self.bins,
        }
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
    let progress = Progress { last: begin, position: None, pause: (begin, Duration::ZERO) };
    let counter = RefCell::new(Counter {
        begin,
        end: begin + Duration::from_millis(orders.window_ms),
        bins: vec![0; orders.window_ms.div_ceil(BIN_MS) as usize],
        positions: Positions::default(),
        clients: vec![progress; orders.clients as usize],
    });
    match ready {
        Ready::Nacre(stores, sequencers) => {
            let clients = sequencers.iter().enumerate().map(|(client, sequencer)| {
                take(&counter, client, async move || Ok(sequencer.next().await?))
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
                .map(|(client, mut member)| take(&counter, client, async move || member.next().await));
            together(clients).await?;
        }
    }
    Ok(counter.into_inner().record(begin_ns))
}

/// Takes one position after the other until the window is over, and waits for the last one.
async fn take(
    counter: &RefCell<Counter>,
    client: usize,
    mut next: impl AsyncFnMut() -> Result<u64, BenchError>,
) -> Result<(), BenchError> {
    let end = counter.borrow().end;
    while Instant::now() < end {
        let position = next().await?;
        counter.borrow_mut().note(client, Instant::now(), position)?;
    }
    Ok(())
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
