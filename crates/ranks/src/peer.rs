//! The work loop that DRQS, DEQS, PA-DRQS and H-DRQS share (algorithms 2, 3 and 4): all ranks are equal, an idle rank
//! asks another one, and a rank with work gives part of it. They differ in how much is given ([`Split`]), in which rank
//! is asked ([`Peers`]), and, for H-DRQS, in the threads behind the queue ([`hybrid`](super::hybrid)).

use super::back_off::BackOff;
use super::message::{Colour, Message, Unit};
use super::proximity::{PATIENCE, RequestVector};
use super::queue::Queue;
use super::random::Choose;
use super::split_queue::{Split, random_peer};
use super::token::{Rule, Step, Token};

/// The peers that an idle rank asks.
#[derive(Clone, Debug)]
pub(super) enum Peers {
    /// Any other rank (algorithm 2).
    Random,
    /// The ranks of the request vector, in order (algorithm 3).
    Vector(RequestVector),
}

/// One rank's side of the loop.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    rank: u32,
    ranks: u32,
    split: &'static dyn Split,
    peers: Peers,
    back_off: BackOff,
    units_per_message_max: usize,
    rule: Rule,
    token: Token,
    /// The rank that the open request went to.
    asking: Option<u32>,
    /// The number of refusals since work last arrived.
    refusals: u32,
    /// The time of the next request, in nanoseconds.
    ask_at_ns: u64,
    /// True while idle with no request open, so that there is a time to wait for.
    waiting: bool,
}

pub(super) struct PeerOptions {
    pub split: &'static dyn Split,
    pub peers: Peers,
    pub back_off: BackOff,
    pub units_per_message_max: usize,
    pub rule: Rule,
}

impl Peer {
    pub(super) fn new(rank: u32, ranks: u32, options: PeerOptions) -> Self {
        let PeerOptions { split, peers, mut back_off, units_per_message_max, rule } = options;
        if let Peers::Vector(vector) = &peers {
            back_off.patience = vector.len().min(PATIENCE);
            back_off.bound_ns = back_off.bound_ns.min(BackOff::for_ranks(vector.far_seekers()).bound_ns);
        }
        Self {
            rank,
            ranks,
            split,
            peers,
            back_off,
            units_per_message_max: units_per_message_max.max(1),
            rule,
            token: Token::new(rank, ranks),
            asking: None,
            refusals: 0,
            ask_at_ns: 0,
            waiting: false,
        }
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// Closes the open request if it was answered by rank `from`.
    pub(super) fn reply_received(&mut self, from: u32) {
        if self.asking == Some(from) {
            self.asking = None;
        }
    }

    pub(super) fn next_timeout_ns(&self) -> Option<u64> {
        self.waiting.then_some(self.ask_at_ns)
    }

    /// Handles a request from rank `from`; returns the units to give, or `None` to refuse.
    pub(super) fn request<W: Unit>(
        &mut self,
        from: u32,
        queue: &mut (impl Queue<W> + ?Sized),
        choose: &mut impl Choose,
    ) -> Option<Vec<W>> {
        // "The split_queue process will always keep at least one element to process" (section IV-A): the one in work, if any.
        let kept = usize::from(queue.working() == 0);
        let available = queue.len().saturating_sub(kept);
        if available == 0 {
            return None;
        }
        let units = self.split.split(available as u64, choose) as usize;
        let units = queue.take(units.clamp(1, available).min(self.units_per_message_max));
        if units.is_empty() {
            // Threads were faster.
            return None;
        }
        self.token.work_sent(self.rule, from);
        Some(units)
    }

    pub(super) fn work<W>(&mut self, from: u32, units: Vec<W>, queue: &mut (impl Queue<W> + ?Sized)) {
        self.reply_received(from);
        self.refusals = 0;
        self.ask_at_ns = 0;
        queue.put(units);
    }

    pub(super) fn refusal(&mut self, now_ns: u64, from: u32, choose: &mut impl Choose) {
        self.reply_received(from);
        self.refusals = self.refusals.saturating_add(1);
        self.ask_at_ns = match self.back_off.wait_ns(self.refusals, choose) {
            0 => 0,
            wait_ns => now_ns + wait_ns,
        };
    }

    pub(super) fn token(&mut self, colour: Colour) {
        self.token.receive(colour);
    }

    /// Does whatever is possible now. Returns whether everything is done, which only rank 0 finds out.
    pub(super) fn step<W>(
        &mut self,
        now_ns: u64,
        queue: &(impl Queue<W> + ?Sized),
        choose: &mut impl Choose,
        mut send: impl FnMut(u32, Message<W>),
    ) -> bool {
        let busy = !queue.is_idle();
        // The token goes before the next request: with that one open it would have to stay.
        match self.token.step(self.rule, busy, self.is_asking()) {
            Step::Terminated => return true,
            Step::Send(to, colour) => send(to, Message::Token(colour)),
            Step::Nothing => {}
        }
        self.waiting = false;
        if busy {
            self.refusals = 0;
            self.ask_at_ns = 0;
            return false;
        }
        if self.is_asking() {
            return false;
        }
        if now_ns < self.ask_at_ns {
            self.waiting = true;
            return false;
        }
        let peer = match &mut self.peers {
            _ if self.ranks == 1 => return false,
            Peers::Random => random_peer(self.rank, self.ranks, choose),
            Peers::Vector(vector) if vector.is_empty() => return false,
            Peers::Vector(vector) => vector.advance(),
        };
        self.asking = Some(peer);
        send(peer, Message::Request);
        false
    }

    /// Hashes everything that decides what this rank does next, except the time.
    #[cfg(any(test, feature = "testkit"))]
    pub(super) fn fingerprint(&self, hasher: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        self.token.hash(hasher);
        self.asking.hash(hasher);
        self.refusals.min(self.back_off.patience + 1).hash(hasher);
        self.ask_at_ns.hash(hasher);
        self.waiting.hash(hasher);
        if let Peers::Vector(vector) = &self.peers {
            vector.next_index().hash(hasher);
        }
    }
}
