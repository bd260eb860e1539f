//! The parts that simulations share: nodes that take one message after the other, the network between them, and events in the order of
//! time. All times are nanoseconds since the beginning.

use std::collections::BTreeMap;

use serde::Serialize;

/// A node that takes one message after the other. Its link carries one after the other too, in each direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Node {
    busy_until: u64,
    sends_until: u64,
    receives_until: u64,
    /// The time for all messages that it has taken, some of which it may not have come to yet.
    taken_ns: u64,
    /// The time for which messages have occupied its link, in either direction.
    sent_ns: u64,
    received_ns: u64,
}

impl Node {
    /// Takes a message that has arrived, and returns the time at which it is done.
    pub(crate) fn take(&mut self, now: u64, cost_ns: u64) -> u64 {
        self.busy_until = self.busy_until.max(now) + cost_ns;
        self.taken_ns += cost_ns;
        self.busy_until
    }

    /// Returns the time for which it has worked until now.
    pub(crate) fn worked_ns(&self, now: u64) -> u64 {
        // It works without a pause until it has done what it has taken.
        self.taken_ns.saturating_sub(self.busy_until.saturating_sub(now))
    }

    /// Returns the time for which the busier direction of its link has been occupied.
    pub(crate) fn carried_ns(&self) -> u64 {
        self.sent_ns.max(self.received_ns)
    }
}

/// The network: the same time on its way for every message, and a link of the same rate for every node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Network {
    pub(crate) latency_ns: u64,
    /// The rate of a node's link, in each direction.
    pub(crate) link_bytes_per_s: u64,
}

impl Network {
    /// Sends a message, and returns the time at which it has arrived.
    pub(crate) fn send(&self, now: u64, bytes: u64, sender: &mut Node, receiver: &mut Node) -> u64 {
        let on_link = bytes * 1_000_000_000 / self.link_bytes_per_s;
        sender.sends_until = sender.sends_until.max(now) + on_link;
        sender.sent_ns += on_link;
        let arrives = sender.sends_until + self.latency_ns;
        receiver.receives_until = arrives.max(receiver.receives_until + on_link);
        receiver.received_ns += on_link;
        receiver.receives_until
    }
}

/// Events that are to come.
pub(crate) struct Events<E> {
    waiting: BTreeMap<(u64, u64), E>,
    added: u64,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), added: 0 }
    }
}

impl<E> Events<E> {
    /// Adds an event at a time.
    pub(crate) fn add(&mut self, time: u64, event: E) {
        self.added += 1;
        self.waiting.insert((time, self.added), event);
    }

    /// Takes the next event out, with its time. Those of the same time come in the order in which they were added.
    pub(crate) fn pop(&mut self) -> Option<(u64, E)> {
        let ((time, _), event) = self.waiting.pop_first()?;
        Some((time, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_works_on_one_message_after_the_other() {
        let mut node = Node::default();
        assert_eq!(node.take(100, 10), 110);
        assert_eq!(node.take(105, 20), 130);
        assert_eq!((node.worked_ns(120), node.worked_ns(130), node.worked_ns(500)), (20, 30, 30));
        assert_eq!(node.take(1000, 1), 1001);
    }

    #[test]
    fn messages_take_their_turn_on_a_link() {
        let network = Network { latency_ns: 1000, link_bytes_per_s: 1_000_000_000 };
        let [mut one, mut other, mut server] = [Node::default(); 3];
        assert_eq!(network.send(0, 100, &mut one, &mut server), 1100);
        assert_eq!(network.send(0, 100, &mut one, &mut server), 1200);
        // The link of the server is taken until then.
        assert_eq!(network.send(0, 100, &mut other, &mut server), 1300);
        assert_eq!((one.carried_ns(), server.carried_ns()), (200, 300));
    }

    #[test]
    fn events_come_in_the_order_of_time() {
        let mut events = Events::default();
        for (time, name) in [(5, "late"), (1, "first"), (1, "second")] {
            events.add(time, name);
        }
        let all: Vec<_> = std::iter::from_fn(|| events.pop()).collect();
        assert_eq!(all, [(1, "first"), (1, "second"), (5, "late")]);
    }
}
