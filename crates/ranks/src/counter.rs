//! Counters of a rank.

use super::message::{Message, Unit};

/// The number and size of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Traffic {
    /// The number of messages.
    pub messages: u64,
    /// Their size in bytes, headers included.
    pub bytes: u64,
}

impl Traffic {
    /// Adds another tally.
    pub fn add(&mut self, other: Traffic) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

/// The messages and units that one rank sent and received.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// All messages sent.
    pub sent: Traffic,
    /// All messages received.
    pub received: Traffic,
    /// The number of requests for work sent.
    pub requests: u64,
    /// The number of other ranks' requests that it refused.
    pub refusals_given: u64,
    /// The number of its own requests that were refused.
    pub refusals_received: u64,
    /// The number of units of work given to others.
    pub units_given: u64,
    /// The number of units of work received from others.
    pub units_received: u64,
    /// The number of tokens forwarded.
    pub tokens: u64,
    /// The number of messages sent that the shutdown counts ([`Message::is_counted`]).
    pub counted_sent: u64,
    /// The number of messages received that the shutdown counts.
    pub counted_received: u64,
    /// The messages sent to each rank, if enabled by [`Options::count_peers`](super::Options::count_peers): one row of
    /// the paper's heat maps (figures 1 and 5).
    pub sent_to: Vec<Traffic>,
}

impl Counters {
    pub(super) fn new(ranks: u32, count_peers: bool) -> Self {
        Self {
            sent_to: if count_peers { vec![Traffic::default(); ranks as usize] } else { Vec::new() },
            ..Self::default()
        }
    }

    pub(super) fn count_sent<W: Unit>(&mut self, to: u32, message: &Message<W>) {
        let tally = Traffic { messages: 1, bytes: message.size_bytes() };
        self.sent.add(tally);
        if let Some(row) = self.sent_to.get_mut(to as usize) {
            row.add(tally);
        }
        self.counted_sent += u64::from(message.is_counted());
        match message {
            Message::Request => self.requests += 1,
            Message::Refusal => self.refusals_given += 1,
            Message::Token(_) => self.tokens += 1,
            Message::Work(_) | Message::Results(_) => self.units_given += message.units(),
            _ => {}
        }
    }

    pub(super) fn count_received<W: Unit>(&mut self, message: &Message<W>) {
        self.received.add(Traffic { messages: 1, bytes: message.size_bytes() });
        self.counted_received += u64::from(message.is_counted());
        match message {
            Message::Refusal => self.refusals_received += 1,
            Message::Work(_) | Message::Results(_) => self.units_received += message.units(),
            _ => {}
        }
    }
}
