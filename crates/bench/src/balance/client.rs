//! A client process of the study: all clients of one sequencer, so that it sees every position of it.

use std::cell::RefCell;
use std::time::Instant;

use nacre::sequencer::Sequencer;
use serde::{Deserialize, Serialize};

use super::point::BIN_MS;
use crate::BenchError;
use crate::kit::machine::now_ns;
use crate::kit::process::{self, together};
use crate::kit::server;
use crate::kit::tally::{Counts, Tally, take};

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
    tally: Tally,
    /// The time of the last position of any client.
    last: Instant,
    longest_ms: Vec<f64>,
}

impl Counter {
    fn new(tally: Tally) -> Self {
        Self { last: tally.begin(), longest_ms: vec![0.0; tally.intervals()], tally }
    }

    fn note(&mut self, client: usize, now: Instant, position: u64) -> Result<(), BenchError> {
        self.tally.note(client, now, position)?;
        self.pause_until(now);
        Ok(())
    }

    fn pause_until(&mut self, now: Instant) {
        let pause_ms = (now - self.last).as_secs_f64() * 1e3;
        let bin = self.tally.interval(now).min(self.longest_ms.len().saturating_sub(1));
        if let Some(longest_ms) = self.longest_ms.get_mut(bin) {
            *longest_ms = longest_ms.max(pause_ms);
        }
        self.last = now;
    }

    fn record(mut self, begin_ns: u64) -> ClientRecord {
        let end = self.tally.end();
        if self.last < end {
            self.pause_until(end);
        }
        let Counts { bins, positions, lost, gaps } = self.tally.finish();
        ClientRecord { begin_ns, bins, longest_ms: self.longest_ms, positions, lost, gaps }
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
    let mut tally = Tally::new(begin, orders.window_ms, BIN_MS, clients.len());
    for (number, client) in clients.iter().enumerate() {
        tally.add(number, client.first)?;
    }
    let end = tally.end();
    let counter = RefCell::new(Counter::new(tally));
    let takes = clients.iter().enumerate().map(|(number, client)| {
        let (counter, sequencer) = (&counter, &client.sequencer);
        take(
            end,
            async move || Ok(sequencer.next().await?),
            move |now, position| counter.borrow_mut().note(number, now, position),
        )
    });
    together(takes).await?;
    for client in &clients {
        client.store.end_sequencers().await;
    }
    Ok(counter.into_inner().record(begin_ns))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pause_of_the_sequencer_is_one_of_all_its_clients() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let mut counter = Counter::new(Tally::new(begin, 4 * BIN_MS, BIN_MS, 2));
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
