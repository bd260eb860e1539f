//! Who gets no leases for a while, because changes had to wait for it: a state machine without clock or I/O.
//!
//! A holder that does not give a lease back at once when it is asked keeps others from a change. It may be slow, out of reach, broken or
//! hostile; without leases it does no harm, and reads the same. So its connection gets none for a time that doubles with each
//! repetition. As it may come back over another connection, from the second time on that applies to its origin too: to all that
//! comes from the same machine, or from the same user of this machine. One program that was killed costs its neighbours nothing.

use std::collections::HashMap;
use std::time::Duration;

use nacre_rpc::Origin;

/// The first suspension, in lengths of a lease.
const FIRST: u32 = 4;
/// The number of times that a suspension doubles.
const DOUBLINGS_MAX: u32 = 6;
/// The time after a suspension until it is forgotten, in lengths of it.
const MEMORY: u32 = 4;
/// The maximum number of connections and origins that are remembered.
const RECORDS_MAX: usize = 4096;

/// The client that has a session, as far as a server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Client {
    /// The number of its connection, which no other one gets.
    pub connection: u64,
    /// The place that it comes from, if that is known.
    pub origin: Option<Origin>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Party {
    Connection(u64),
    Origin(Origin),
}

#[derive(Debug)]
struct Record {
    /// How often it was late since its record began.
    times: u32,
    /// The end of its suspension.
    until: Duration,
    /// The time from which on it counts as any other.
    forgotten: Duration,
}

/// The connections and origins for which changes had to wait.
#[derive(Debug)]
pub(super) struct Suspensions {
    /// The length of a lease.
    length: Duration,
    records: HashMap<Party, Record>,
}

impl Client {
    fn parties(self) -> impl Iterator<Item = Party> {
        [Some(Party::Connection(self.connection)), self.origin.map(Party::Origin)].into_iter().flatten()
    }
}

impl Suspensions {
    /// Creates suspensions from leases of a length.
    pub fn new(length: Duration) -> Suspensions {
        Suspensions { length, records: HashMap::new() }
    }

    /// Returns whether a client gets no leases at present.
    pub fn holds(&self, client: Client, now: Duration) -> bool {
        client.parties().any(|party| self.records.get(&party).is_some_and(|record| now < record.until))
    }

    /// Returns the number of connections and origins that get no leases at present.
    pub fn count(&self, now: Duration) -> usize {
        self.records.values().filter(|record| now < record.until).count()
    }

    /// Notes that a change had to wait for a client. What is late while it is suspended adds nothing: that was leased before.
    pub fn note(&mut self, client: Client, now: Duration) {
        if self.holds(client, now) {
            return;
        }
        for party in client.parties() {
            self.note_party(party, now);
        }
    }

    fn note_party(&mut self, party: Party, now: Duration) {
        let times = match self.records.get(&party) {
            Some(record) if now < record.forgotten => record.times + 1,
            _ => 1,
        };
        // The first time, nothing says that the origin is at fault.
        let counted = match party {
            Party::Connection(_) => times,
            Party::Origin(_) => times - 1,
        };
        let span = match counted {
            0 => Duration::ZERO,
            _ => self.length * FIRST * (1_u32 << (counted - 1).min(DOUBLINGS_MAX)),
        };
        let until = now + span;
        let forgotten = until + MEMORY * span.max(self.length * FIRST);
        if !self.records.contains_key(&party) {
            self.make_room(now);
        }
        self.records.insert(party, Record { times, until, forgotten });
    }

    fn make_room(&mut self, now: Duration) {
        if self.records.len() < RECORDS_MAX {
            return;
        }
        self.records.retain(|_, record| now < record.forgotten);
        while self.records.len() >= RECORDS_MAX {
            let soonest = self.records.iter().min_by_key(|(_, record)| record.forgotten);
            let Some(party) = soonest.map(|(party, _)| *party) else { return };
            self.records.remove(&party);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn client(connection: u64, user: u32) -> Client {
        Client { connection, origin: Some(Origin::User(user)) }
    }

    /// Returns how long a client is suspended from a moment on, in seconds.
    fn span(suspensions: &Suspensions, client: Client, now: u64) -> u64 {
        (0..).find(|after| !suspensions.holds(client, at(now + after))).unwrap()
    }

    #[test]
    fn a_connection_is_suspended_for_longer_each_time_up_to_a_bound() {
        let mut suspensions = Suspensions::new(LENGTH);
        let one = Client { connection: 1, origin: None };
        let (mut now, mut spans) = (0, Vec::new());
        for _ in 0..9 {
            suspensions.note(one, at(now));
            // While it lasts, nothing adds to it.
            suspensions.note(one, at(now));
            spans.push(span(&suspensions, one, now));
            now += spans.last().unwrap();
        }
        assert_eq!(spans, [8, 16, 32, 64, 128, 256, 512, 512, 512]);
        assert!(!suspensions.holds(Client { connection: 2, origin: None }, at(0)));
        // After a while it is as good as any other.
        now += 4 * 512;
        suspensions.note(one, at(now));
        assert_eq!(span(&suspensions, one, now), 8);
    }

    #[test]
    fn an_origin_is_suspended_from_its_second_connection_on() {
        let mut suspensions = Suspensions::new(LENGTH);
        suspensions.note(client(1, 5), at(0));
        assert!(suspensions.holds(client(1, 5), at(0)) && !suspensions.holds(client(2, 5), at(0)));
        assert_eq!(suspensions.count(at(0)), 1);
        suspensions.note(client(2, 5), at(1));
        assert_eq!(span(&suspensions, client(3, 5), 1), 8);
        assert!(!suspensions.holds(client(3, 6), at(1)));
        suspensions.note(client(3, 5), at(9));
        assert_eq!(span(&suspensions, client(4, 5), 9), 16);
        assert_eq!(suspensions.count(at(10)), 2, "the third connection and the origin");
    }

    #[test]
    fn one_that_comes_back_over_and_over_costs_ever_less() {
        let mut suspensions = Suspensions::new(LENGTH);
        let mut waits = 0;
        // It opens a new connection as often as it may, and keeps others waiting for the length of a lease.
        let mut now = Duration::ZERO;
        for connection in 0.. {
            if now > at(24 * 3600) {
                break;
            }
            if suspensions.holds(client(connection, 5), now) {
                now += at(1);
                continue;
            }
            now += LENGTH;
            suspensions.note(client(connection, 5), now);
            waits += 1;
        }
        assert!((100..200).contains(&waits), "{waits} waits in a day");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut suspensions = Suspensions::new(LENGTH);
        for connection in 0..3 * RECORDS_MAX as u64 {
            suspensions.note(Client { connection, origin: None }, at(0));
        }
        assert_eq!(suspensions.records.len(), RECORDS_MAX);
        assert_eq!(suspensions.count(at(1_000_000)), 0);
    }
}
