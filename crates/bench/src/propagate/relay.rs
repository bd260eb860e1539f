//! Passing records on from server to server: who passes to whom, and what is new to whom. A state machine without clock or I/O, which
//! the servers of the study and the simulation share.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::point::Way;

/// The seed of the links of gossip.
const SEED: u64 = 0x6e61_6372;

/// A server's part in passing records on.
#[derive(Clone, Debug)]
pub(super) struct Relay {
    newest: u64,
    targets: Vec<u32>,
}

impl Relay {
    /// Creates the part of a server, given its place and the number of all servers.
    pub(super) fn new(way: Way, place: u32, servers: u32, fan_out: u32) -> Self {
        Self { newest: 0, targets: targets(way, place, servers, fan_out) }
    }

    /// Takes a record of a version. Returns the servers to pass it to; `None` if it is not newer than what is known.
    pub(super) fn take(&mut self, version: u64) -> Option<&[u32]> {
        if version <= self.newest {
            return None;
        }
        self.newest = version;
        Some(&self.targets)
    }
}

/// Returns the servers to which the one at a place passes what is new to it: its children in a tree; or the next one of a ring, by
/// which every server is reached, and others chosen at random. The first server, which hears from the store, is at place 0.
pub(super) fn targets(way: Way, place: u32, servers: u32, fan_out: u32) -> Vec<u32> {
    match way {
        Way::Tree => {
            let first = u64::from(place) * u64::from(fan_out) + 1;
            let children = first..first + u64::from(fan_out);
            children.take_while(|child| *child < u64::from(servers)).map(|child| child as u32).collect()
        }
        Way::Gossip if servers > 1 => {
            let mut random = StdRng::seed_from_u64(SEED ^ u64::from(place));
            let mut chosen = vec![(place + 1) % servers];
            while chosen.len() < fan_out.min(servers - 1) as usize {
                let other = random.random_range(0..servers);
                if other != place && !chosen.contains(&other) {
                    chosen.push(other);
                }
            }
            chosen
        }
        _ => Vec::new(),
    }
}

/// Returns the number of servers that pass records to the one at a place.
pub(super) fn sources(way: Way, place: u32, servers: u32, fan_out: u32) -> usize {
    let passes = |other: &u32| targets(way, *other, servers, fan_out).contains(&place);
    (0..servers).filter(passes).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of servers that a record reaches, and that of the messages.
    fn spread(way: Way, servers: u32, fan_out: u32) -> (usize, usize) {
        let mut relays: Vec<Relay> =
            (0..servers).map(|place| Relay::new(way, place, servers, fan_out)).collect();
        let (mut waiting, mut reached, mut messages) = (vec![0], 0, 0);
        while let Some(place) = waiting.pop() {
            messages += 1;
            if let Some(targets) = relays[place as usize].take(1) {
                reached += 1;
                waiting.extend(targets);
            }
        }
        (reached, messages)
    }

    #[test]
    fn every_server_is_reached() {
        for servers in [1, 2, 3, 9, 120, 1000] {
            assert_eq!(spread(Way::Tree, servers, 8), (servers as usize, servers as usize));
            let (reached, messages) = spread(Way::Gossip, servers, 4);
            let links = if servers == 1 { 0 } else { servers * 4u32.min(servers - 1) };
            assert_eq!((reached, messages), (servers as usize, links as usize + 1), "{servers} servers");
        }
    }

    #[test]
    fn what_is_old_is_not_passed_on() {
        let mut relay = Relay::new(Way::Tree, 0, 3, 2);
        assert_eq!(relay.take(5), Some(&[1, 2][..]));
        assert_eq!(relay.take(5), None);
        assert_eq!(relay.take(4), None);
        assert!(relay.take(6).is_some());
    }

    #[test]
    fn sources_and_targets_agree() {
        for (way, fan_out) in [(Way::Tree, 3), (Way::Gossip, 4)] {
            let sum: usize = (0..50).map(|place| sources(way, place, 50, fan_out)).sum();
            let all: usize = (0..50).map(|place| targets(way, place, 50, fan_out).len()).sum();
            assert_eq!(sum, all);
        }
    }
}
