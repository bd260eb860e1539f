//! The protocol by which all ranks leave together, when everything is done or a stop was requested, without losing
//! messages.
//!
//! The ranks form a tree: rank `r` has the children `4r + 1 … 4r + 4`. Three waves run through it.
//!
//! 1. *Halt*, downwards. A rank that has received it sends no requests, gives nothing (it refuses all requests), and
//!    forwards no token. Work that still arrives is put into its queue.
//! 2. *Drained*, upwards, from a rank once it has no request of its own open and all its children have sent the same.
//!    Work is only sent in answer to a request, so no work is in flight to any rank of that subtree, and none will be.
//!    The message also carries the numbers of counted messages ([`Message::is_counted`]) that the subtree sent and
//!    received. A token, or a message to rank 0, may still be in flight to such a rank; when it arrives, the rank sends
//!    a further *drained* for it, which the ranks above pass on.
//! 3. *Exit*, downwards, as soon as rank 0 has heard of all ranks and the counts sent and received are equal. Then no
//!    message at all is in flight: a rank that receives *exit* forwards it and may close its end.
//!
//! That costs three messages for each rank, and time proportional to the logarithm of their number. The paper's
//! programs have a termination sentinel in place of the first wave and do not mention the other two; without them a
//! rank may leave while another rank's request to it is in flight.

use super::message::{Message, Shutdown};

const CHILDREN: u64 = 4;

/// The rules that hold. Only [`Rule::SOUND`] is correct; the others exist to show that the checkers catch them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// A rank with a request open is not drained.
    pub waits_for_answer: bool,
    /// Rank 0 compares the counts before it sends *exit*.
    pub compares_counts: bool,
}

impl Rule {
    /// The rules to use.
    pub const SOUND: Self = Self { waits_for_answer: true, compares_counts: true };
}

/// One rank's state of leaving.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leave {
    rank: u32,
    ranks: u32,
    rule: Rule,
    state: State,
    /// True once this rank asked rank 0 for a stop.
    requested: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Running,
    /// `missing` has one bit for each child that did not report yet.
    Halting {
        ending: Shutdown,
        missing: u8,
        reported: bool,
    },
    Over(Shutdown),
}

/// The numbers of counted messages of a subtree. Separate from [`Leave`] because they grow without bound, which a
/// search of all states cannot handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Balance {
    /// Reported by the children, and, except on rank 0, not passed on yet.
    below_sent: u64,
    below_received: u64,
    /// The rank's own counts that were passed on.
    own_sent: u64,
    own_received: u64,
}

impl Leave {
    pub(super) fn new(rank: u32, ranks: u32, rule: Rule) -> Self {
        Self { rank, ranks, rule, state: State::Running, requested: false }
    }

    pub(super) fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// Returns the shutdown that was announced, whether or not it is over.
    pub(super) fn announced(&self) -> Option<Shutdown> {
        match self.state {
            State::Running => None,
            State::Halting { ending, .. } | State::Over(ending) => Some(ending),
        }
    }

    pub(super) fn over(&self) -> Option<Shutdown> {
        match self.state {
            State::Over(ending) => Some(ending),
            _ => None,
        }
    }

    fn children(&self) -> std::ops::Range<u32> {
        let first = u64::from(self.rank) * CHILDREN + 1;
        let ranks = u64::from(self.ranks);
        // Both ends are at most `ranks`, which is a `u32`.
        first.min(ranks) as u32..(first + CHILDREN).min(ranks) as u32
    }

    fn parent(&self) -> u32 {
        (self.rank - 1) / CHILDREN as u32
    }

    /// Requests a stop of all ranks.
    pub(super) fn stop<W>(&mut self, mut send: impl FnMut(u32, Message<W>)) {
        if !self.is_running() || self.requested {
            return;
        }
        self.requested = true;
        if self.rank == 0 {
            self.halt(Shutdown::Stopped, send);
        } else {
            send(0, Message::Stop);
        }
    }

    /// Begins the first wave, or passes it on.
    pub(super) fn halt<W>(&mut self, ending: Shutdown, mut send: impl FnMut(u32, Message<W>)) {
        if !self.is_running() {
            return;
        }
        let children = self.children();
        let missing = (1u8 << children.len()) - 1;
        for child in children {
            send(child, Message::Halt(ending));
        }
        self.state = State::Halting { ending, missing, reported: false };
    }

    /// Handles a message of the second wave.
    pub(super) fn drained(&mut self, from: u32, sent: u64, received: u64, balance: &mut Balance) {
        balance.below_sent += sent;
        balance.below_received += received;
        let children = self.children();
        if let State::Halting { missing, .. } = &mut self.state
            && children.contains(&from)
        {
            *missing &= !(1 << (from - children.start));
        }
    }

    /// Continues the second and third wave, given whether a request is open and this rank's own counted messages.
    pub(super) fn step<W>(
        &mut self,
        asking: bool,
        (sent, received): (u64, u64),
        balance: &mut Balance,
        mut send: impl FnMut(u32, Message<W>),
    ) {
        let (rank, rule) = (self.rank, self.rule);
        let State::Halting { missing, reported, .. } = &mut self.state else { return };
        if *missing != 0 || (asking && rule.waits_for_answer) {
            return;
        }
        if rank == 0 {
            let is_balanced = balance.below_sent + sent == balance.below_received + received;
            if is_balanced || !rule.compares_counts {
                self.exit(send);
            }
            return;
        }
        let more_sent = balance.below_sent + sent - balance.own_sent;
        let more_received = balance.below_received + received - balance.own_received;
        if !*reported || more_sent + more_received > 0 {
            *reported = true;
            *balance = Balance { own_sent: sent, own_received: received, ..Balance::default() };
            send(self.parent(), Message::Drained { sent: more_sent, received: more_received });
        }
    }

    /// Passes the third wave on, and ends.
    pub(super) fn exit<W>(&mut self, mut send: impl FnMut(u32, Message<W>)) {
        if let State::Halting { ending, .. } = self.state {
            for child in self.children() {
                send(child, Message::Exit);
            }
            self.state = State::Over(ending);
        }
    }
}
