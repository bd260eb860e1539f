//! A client process of the study: all clients of one sequencer, so that it sees every position of it.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use nacre::sequencer::Sequencer;
use serde::{Deserialize, Serialize};

use super::point::BIN_MS;
use crate::BenchError;
use crate::kit::machine::now_ns;
use crate::kit::positions::Positions;
use crate::kit::process::{self, together};
use crate::kit::server;

/// The parameters of a client process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    /// The URI of the store.
    pub(super) place: String,
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
    /// The longest time without a position, of those that ended in each interval, in milliseconds.
    pub(super) longest_ms: Vec<f64>,
    pub(super) positions: u64,
    pub(super) lost: u64,
    pub(super) gaps: u64,
}

/// A client with a connection of its own, and the position that it took when it was bound.
struct Client {
    store: nacre::Store,
    sequencer: Sequencer,
    first: u64,
}

/// The counting side of the clients.
struct Counter {
    begin: Instant,
    end: Instant,
    /// The time of the last position of any client.
    last: Instant,
    bins: Vec<u32>,
    longest_ms: Vec<f64>,
    positions: Positions,
    /// The last position of each client.
    clients: Vec<u64>,
}

impl Counter {
    fn note(&mut self, client: usize, now: Instant, position: u64) -> Result<(), BenchError> {
        self.positions.add(position)?;
        let before = std::mem::replace(&mut self.clients[client], position);
        if before > position {
            return Err(BenchError::Lost(format!(
                "a client got position {position} after position {before}"
            )));
        }
        self.pause_until(now);
        // What came after the window is checked, and not counted.
        let bin = self.bin(now);
        if let Some(count) = self.bins.get_mut(bin) {
            *count += 1;
        }
        Ok(())
    }

    fn bin(&self, now: Instant) -> usize {
        ((now - self.begin).as_millis() / u128::from(BIN_MS)) as usize
    }

    fn pause_until(&mut self, now: Instant) {
        let pause_ms = (now - self.last).as_secs_f64() * 1e3;
        let bin = self.bin(now).min(self.longest_ms.len().saturating_sub(1));
        if let Some(longest_ms) = self.longest_ms.get_mut(bin) {
            *longest_ms = longest_ms.max(pause_ms);
        }
        self.last = now;
    }

    fn record(mut self, begin_ns: u64) -> ClientRecord {
        if self.last < self.end {
            self.pause_until(self.end);
        }
        ClientRecord {
            begin_ns,
            positions: self.positions.count(),
            lost: self.positions.missing(),
            gaps: self.positions.gaps(),
            bins: self.bins,
            longest_ms: self.longest_ms,
        }
    }
}

/// Runs the hidden command of a client process.
pub(crate) fn main() -> Result<(), BenchError> {
    process::serve_round(prepare, work)
}

async fn prepare(orders: &Orders) -> Result<Vec<Client>, BenchError> {
    let mut clients = Vec::new();
    for _ in 0..orders.clients {
        let store = server::open(&orders.place).await?;
        let sequencer = store.sequencer(&orders.sequencer).await?;
        // Bound, so that the first position that counts is not that of a new connection.
        let first = sequencer.next().await?;
        clients.push(Client { store, sequencer, first });
    }
    Ok(clients)
}

async fn work(orders: &Orders, clients: Vec<Client>, begin: Instant) -> Result<ClientRecord, BenchError> {
    let begin_ns = now_ns().saturating_sub(begin.elapsed().as_nanos() as u64);
    let intervals = orders.window_ms.div_ceil(BIN_MS) as usize;
    let mut positions = Positions::default();
    for client in &clients {
        positions.add(client.first)?;
    }
    let counter = RefCell::new(Counter {
        begin,
        end: begin + Duration::from_millis(orders.window_ms),
        last: begin,
        bins: vec![0; intervals],
        longest_ms: vec![0.0; intervals],
        positions,
        clients: clients.iter().map(|client| client.first).collect(),
    });
    let all = clients.iter().enumerate();
    together(all.map(|(number, client)| take(&counter, number, &client.sequencer))).await?;
    for client in &clients {
        client.store.end_sequencers().await;
    }
    Ok(counter.into_inner().record(begin_ns))
}

/// Takes one position after the other until the window is over, and waits for the last one.
async fn take(counter: &RefCell<Counter>, client: usize, sequencer: &Sequencer) -> Result<(), BenchError> {
    let end = counter.borrow().end;
    while Instant::now() < end {
        let position = sequencer.next().await?;
        counter.borrow_mut().note(client, Instant::now(), position)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_the_sequencer_is_one_of_all_its_clients() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let mut counter = Counter {
            begin,
            end: at(4 * BIN_MS),
            last: begin,
            bins: vec![0; 4],
            longest_ms: vec![0.0; 4],
            positions: Positions::default(),
            clients: vec![0; 2],
        };
        for (client, ms, position) in [(0, 10, 1), (1, 15, 2), (0, 20, 3), (1, 2 * BIN_MS + 20, 9)] {
            counter.note(client, at(ms), position).unwrap();
        }
        assert!(counter.note(0, at(2 * BIN_MS + 30), 9).is_err(), "it was handed out twice");
        assert!(counter.note(1, at(2 * BIN_MS + 30), 5).is_err(), "the client had position 9 before");
        let record = counter.record(7);
        assert_eq!(record.bins, [3, 0, 1, 0]);
        assert_eq!((record.positions, record.lost, record.gaps), (5, 4, 2));
        let rounded: Vec<f64> = record.longest_ms.iter().map(|ms| ms.round()).collect();
        // The last one, which nobody ended, lasts until the window's end.
        assert_eq!(rounded, [10.0, 0.0, 2.0 * BIN_MS as f64, 2.0 * BIN_MS as f64 - 20.0]);
    }
}
