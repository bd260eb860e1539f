//! Who may cache which objects, and for how long: a state machine without clock or I/O.
//!
//! A session has leases on objects, all of which last as long as the session. Nobody changes an object that is leased: a write
//! asks for the leases back, and may begin when each was given back, or its session has lapsed. Three rules make that sound:
//!
//! - Nothing is leased while a write of the object waits or is under way, so a write waits once, and who has a lease reads the
//!   state that every later write finds.
//! - A session from which something is asked back is not renewed until it is given back. So whoever does not answer keeps a write
//!   from happening for the length of a lease at most.
//! - A client for whom a write had to wait gets no leases for a while ([`Suspensions`]), and what it has is not renewed. So one client
//!   delays few writes, however many leases it has had.
//! - A session that has lapsed is gone for ever: a client that comes back has to begin a new one, and to forget what it knew.
//!
//! A server that was started again knows nothing of leases from before; it holds all writes of objects that may have been leased
//! for the length of a lease ([`LeaseTable::hold`]).

use std::collections::HashMap;
use std::time::Duration;

use nacre_object::ObjectId;

use super::suspension::{Client, Suspensions};

/// The maximum number of sessions.
const SESSIONS_MAX: usize = 4096;
/// The maximum number of leases of a session.
const SESSION_LEASES_MAX: usize = 32_768;
/// The maximum number of leases of all sessions of a connection.
const CONNECTION_LEASES_MAX: usize = 65_536;
/// The maximum number of leases of all sessions together.
const LEASES_MAX: usize = 1 << 18;
/// The part of a lease's length for which a holder may take to give it back before that counts as a wait.
const ANSWER_PART: u32 = 4;

/// The leases of a server. Times are those of the server's clock, since any moment.
#[derive(Debug)]
pub(super) struct LeaseTable {
    length: Duration,
    sessions: HashMap<u64, Session>,
    objects: HashMap<ObjectId, Leased>,
    /// The number of the next session.
    next: u64,
    leases: usize,
    /// The leases of each connection that has sessions.
    connections: HashMap<u64, usize>,
    suspensions: Suspensions,
    /// The time before which no object is changed that may have been leased before the server was started.
    held_until: Duration,
    counts: LeaseCounts,
}

/// The leases of a server at present, and what became of leases since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Sessions at present, those of clients that are gone among them until they lapse.
    pub sessions: usize,
    /// Leases at present.
    pub leases: usize,
    /// Leases that were granted.
    pub granted: u64,
    /// Leases that were not granted, because the object was being changed, there were too many, or changes had to wait for the client.
    pub refused: u64,
    /// Leases that were asked back because somebody was to change the object.
    pub revoked: u64,
    /// Leases that ended with their sessions, without having been given back.
    pub lapsed: u64,
    /// Leases that were asked back, and given back late or never.
    pub late: u64,
    /// Connections, machines and users that get no leases at present, because changes had to wait for them.
    pub suspended: usize,
}

#[derive(Debug)]
struct Session {
    client: Client,
    /// The time at which it lapses.
    until: Duration,
    /// The numbers of its leases.
    leases: HashMap<ObjectId, u64>,
    /// The number of leases that were asked for and not given back.
    asked: usize,
}

/// An object that is leased, or being changed.
#[derive(Debug, Default)]
struct Leased {
    /// The number of writes that wait or are under way.
    writes: usize,
    holders: Vec<Holder>,
}

#[derive(Debug)]
struct Holder {
    session: u64,
    number: u64,
    /// The time at which it was asked back, if it was.
    asked: Option<Duration>,
}

/// A lease that is asked back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Revocation {
    pub session: u64,
    pub number: u64,
}

/// The outcome of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    /// The session lasts for the length of a lease from now on.
    Renewed,
    /// The session lasts as long as before, because something is asked back from it.
    Unchanged,
    /// The session has lapsed.
    Lapsed,
}

/// The reason why no session is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unopened {
    /// There are as many as there may be.
    Full,
    /// Changes had to wait for the client.
    Suspended,
}

impl LeaseTable {
    /// Creates an empty table for leases of a length. The numbers of sessions begin with `first`.
    pub fn new(length: Duration, first: u64) -> LeaseTable {
        LeaseTable {
            length,
            sessions: HashMap::new(),
            objects: HashMap::new(),
            next: first,
            leases: 0,
            connections: HashMap::new(),
            suspensions: Suspensions::new(length),
            held_until: Duration::ZERO,
            counts: LeaseCounts::default(),
        }
    }

    /// Returns the length of leases.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Lets no write begin for the length of a lease.
    pub fn hold(&mut self, now: Duration) {
        self.held_until = now + self.length;
    }

    /// Returns the counts.
    pub fn counts(&self, now: Duration) -> LeaseCounts {
        let suspended = self.suspensions.count(now);
        LeaseCounts { sessions: self.sessions.len(), leases: self.leases, suspended, ..self.counts }
    }

    /// Opens a session of a client.
    ///
    /// # Errors
    /// The reason why the client gets none.
    pub fn open(&mut self, client: Client, now: Duration) -> Result<u64, Unopened> {
        self.sweep(now);
        if self.suspensions.holds(client, now) {
            return Err(Unopened::Suspended);
        }
        if self.sessions.len() >= SESSIONS_MAX {
            return Err(Unopened::Full);
        }
        let number = self.next;
        self.next += 1;
        let session = Session { client, until: now + self.length, leases: HashMap::new(), asked: 0 };
        self.sessions.insert(number, session);
        Ok(number)
    }

    /// Ends the sessions that have lapsed.
    fn sweep(&mut self, now: Duration) {
        let lapsed = self.sessions.iter().filter(|(_, session)| session.until <= now);
        for number in lapsed.map(|(number, _)| *number).collect::<Vec<u64>>() {
            self.lapse(number, now);
        }
    }

    fn lapse(&mut self, session: u64, now: Duration) {
        // Who was asked and never answered is late, however short the wait was in the end.
        self.counts.lapsed += self.remove(session, now, |_| true).len() as u64;
    }

    /// Ends a session. Returns the objects that it had leases on.
    pub fn end(&mut self, session: u64, now: Duration) -> Vec<ObjectId> {
        let patience = self.length / ANSWER_PART;
        self.remove(session, now, |asked| asked + patience < now)
    }

    /// Removes a session, whose leases are late for which `is_late` is true of the time at which they were asked back. Returns the
    /// objects that it had leases on.
    fn remove(&mut self, session: u64, now: Duration, is_late: impl Fn(Duration) -> bool) -> Vec<ObjectId> {
        let Some(removed) = self.sessions.remove(&session) else { return Vec::new() };
        self.discount(removed.client, removed.leases.len());
        for object in removed.leases.keys() {
            if self.remove_holder(object, session).is_some_and(&is_late) {
                self.note_late(removed.client, now);
            }
        }
        removed.leases.into_keys().collect()
    }

    /// Notes that a client has kept a write waiting by a lease.
    fn note_late(&mut self, client: Client, now: Duration) {
        self.counts.late += 1;
        self.suspensions.note(client, now);
    }

    /// Takes leases of a client off the counts.
    fn discount(&mut self, client: Client, leases: usize) {
        self.leases -= leases;
        if let Some(count) = self.connections.get_mut(&client.connection) {
            *count -= leases;
            if *count == 0 {
                self.connections.remove(&client.connection);
            }
        }
    }

    /// Removes a session's lease on an object. Returns the time at which it was asked back, if it was.
    fn remove_holder(&mut self, object: &ObjectId, session: u64) -> Option<Duration> {
        let leased = self.objects.get_mut(object)?;
        let index = leased.holders.iter().position(|holder| holder.session == session);
        let removed = index.map(|index| leased.holders.swap_remove(index));
        if leased.holders.is_empty() && leased.writes == 0 {
            self.objects.remove(object);
        }
        removed?.asked
    }

    /// Renews a session, unless its client gets no leases at present.
    pub fn renew(&mut self, session: u64, now: Duration) -> Renewal {
        let Some(known) = self.sessions.get_mut(&session) else { return Renewal::Lapsed };
        if known.until <= now {
            self.lapse(session, now);
            return Renewal::Lapsed;
        }
        if known.asked > 0 {
            return Renewal::Unchanged;
        }
        // Its leases count until it lapses, or until its holder, who is not to rely on them any more, ends it.
        if self.suspensions.holds(known.client, now) {
            return Renewal::Lapsed;
        }
        known.until = now + self.length;
        Renewal::Renewed
    }

    /// Grants a session a lease on an object, under a number that its holder has chosen. Returns false if the object is being changed,
    /// or if there are too many leases, or if the session has lapsed or its client gets none at present. A lease of the session on the
    /// object with a lower number is replaced; behind one with a greater number, the request is late, and refused: its sender counts on
    /// the other one.
    pub fn grant(&mut self, session: u64, object: &ObjectId, number: u64, now: Duration) -> bool {
        if self.leases >= LEASES_MAX {
            self.sweep(now);
        }
        let is_changed = self.objects.get(object).is_some_and(|leased| leased.writes > 0);
        let is_full = self.leases >= LEASES_MAX;
        let known = self.sessions.get_mut(&session).filter(|known| known.until > now);
        let Some(known) = known.filter(|known| known.leases.len() < SESSION_LEASES_MAX) else {
            self.counts.refused += 1;
            return false;
        };
        let of_connection = self.connections.get(&known.client.connection).copied().unwrap_or(0);
        let is_late = known.leases.get(object).is_some_and(|held| *held >= number);
        let is_suspended = self.suspensions.holds(known.client, now);
        if is_changed || is_full || is_late || is_suspended || of_connection >= CONNECTION_LEASES_MAX {
            self.counts.refused += 1;
            return false;
        }
        let leased = self.objects.entry(object.clone()).or_default();
        if known.leases.insert(object.clone(), number).is_some() {
            // A write that asked for it may have been given up since.
            if leased.holders.iter().any(|holder| holder.session == session && holder.asked.is_some()) {
                known.asked -= 1;
            }
            leased.holders.retain(|holder| holder.session != session);
        } else {
            self.leases += 1;
            self.connections.insert(known.client.connection, of_connection + 1);
        }
        leased.holders.push(Holder { session, number, asked: None });
        self.counts.granted += 1;
        true
    }

    /// Takes a lease back that a session gives up. One that it has no more changes nothing.
    pub fn give_back(&mut self, session: u64, object: &ObjectId, number: u64, now: Duration) {
        let Some(known) = self.sessions.get_mut(&session) else { return };
        if known.leases.get(object) != Some(&number) {
            return;
        }
        known.leases.remove(object);
        let client = known.client;
        self.discount(client, 1);
        let Some(asked) = self.remove_holder(object, session) else { return };
        if let Some(known) = self.sessions.get_mut(&session) {
            known.asked -= 1;
        }
        if asked + self.length / ANSWER_PART < now {
            self.note_late(client, now);
        }
    }

    /// Notes a write of an object, which [`LeaseTable::end_write`] ends. Returns the leases that are to be asked back.
    pub fn begin_write(&mut self, object: &ObjectId, now: Duration) -> Vec<Revocation> {
        let leased = match self.objects.get_mut(object) {
            Some(leased) => leased,
            None => self.objects.entry(object.clone()).or_default(),
        };
        leased.writes += 1;
        let mut revocations = Vec::new();
        for holder in leased.holders.iter_mut().filter(|holder| holder.asked.is_none()) {
            holder.asked = Some(now);
            if let Some(session) = self.sessions.get_mut(&holder.session) {
                session.asked += 1;
            }
            revocations.push(Revocation { session: holder.session, number: holder.number });
        }
        self.counts.revoked += revocations.len() as u64;
        revocations
    }

    /// Returns the time until which a write that was noted has to wait at most; `None` if it may be made.
    pub fn blocked_until(&mut self, object: &ObjectId, now: Duration) -> Option<Duration> {
        let holders = self.objects.get(object).map_or(&[][..], |leased| &leased.holders);
        let mut lapsed = Vec::new();
        let mut until = self.held_until;
        for holder in holders {
            match self.sessions.get(&holder.session) {
                Some(session) if session.until > now => until = until.max(session.until),
                _ => lapsed.push(holder.session),
            }
        }
        lapsed.into_iter().for_each(|session| self.lapse(session, now));
        (until > now).then_some(until)
    }

    /// Notes the end of a write.
    pub fn end_write(&mut self, object: &ObjectId) {
        let Some(leased) = self.objects.get_mut(object) else { return };
        leased.writes = leased.writes.saturating_sub(1);
        if leased.writes == 0 && leased.holders.is_empty() {
            self.objects.remove(object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(10);
    const ALONE: Client = Client { connection: 1, origin: None };

    fn table() -> LeaseTable {
        LeaseTable::new(LENGTH, 1)
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn object(name: &str) -> ObjectId {
        name.parse().unwrap()
    }

    #[test]
    fn a_write_waits_for_the_leases_to_be_given_back_and_nothing_is_leased_meanwhile() {
        let (mut table, o) = (table(), object("o"));
        let (one, two) = (table.open(ALONE, at(0)).unwrap(), table.open(ALONE, at(0)).unwrap());
        assert!(table.grant(one, &o, 1, at(1)) && table.grant(two, &o, 2, at(1)));
        let asked = table.begin_write(&o, at(2));
        assert_eq!(asked.len(), 2);
        assert!(asked.contains(&Revocation { session: one, number: 1 }));
        assert_eq!(table.blocked_until(&o, at(2)), Some(at(10)));
        assert!(!table.grant(one, &o, 3, at(2)));
        assert!(table.grant(one, &object("other"), 4, at(2)));
        table.give_back(one, &o, 1, at(2));
        // A second time, and with a wrong number: neither counts.
        table.give_back(one, &o, 1, at(2));
        table.give_back(two, &o, 1, at(2));
        assert_eq!(table.blocked_until(&o, at(2)), Some(at(10)));
        table.give_back(two, &o, 2, at(2));
        assert_eq!(table.blocked_until(&o, at(2)), None);
        assert!(!table.grant(one, &o, 5, at(2)), "the write is under way");
        table.end_write(&o);
        assert!(table.grant(one, &o, 6, at(2)));
        let counts = table.counts(at(2));
        assert_eq!((counts.granted, counts.refused, counts.revoked, counts.lapsed), (4, 2, 2, 0));
        assert_eq!((counts.sessions, counts.leases, counts.late, counts.suspended), (2, 2, 0, 0));
    }

    #[test]
    fn a_session_that_does_not_answer_lapses_although_it_is_renewed() {
        let (mut table, o) = (table(), object("o"));
        let session = table.open(ALONE, at(0)).unwrap();
        assert!(table.grant(session, &o, 1, at(0)));
        assert_eq!(table.renew(session, at(5)), Renewal::Renewed);
        assert_eq!(table.begin_write(&o, at(5)).len(), 1);
        assert!(table.begin_write(&o, at(5)).is_empty(), "it is asked once");
        assert_eq!(table.renew(session, at(6)), Renewal::Unchanged);
        assert_eq!(table.blocked_until(&o, at(14)), Some(at(15)));
        assert_eq!(table.blocked_until(&o, at(15)), None);
        assert_eq!(table.renew(session, at(15)), Renewal::Lapsed);
        assert!(!table.grant(session, &object("other"), 2, at(15)));
        table.give_back(session, &o, 1, at(15));
        assert_eq!((table.counts(at(15)).lapsed, table.counts(at(15)).late), (1, 1));
        table.end_write(&o);
        table.end_write(&o);
        assert!(table.objects.is_empty() && table.sessions.is_empty() && table.leases == 0);
        assert!(table.connections.is_empty());
    }

    #[test]
    fn a_session_that_gave_everything_back_is_renewed_again() {
        let (mut table, o) = (table(), object("o"));
        let session = table.open(ALONE, at(0)).unwrap();
        assert!(table.grant(session, &o, 1, at(0)));
        table.begin_write(&o, at(1));
        assert_eq!(table.renew(session, at(1)), Renewal::Unchanged);
        table.give_back(session, &o, 1, at(1));
        assert_eq!(table.renew(session, at(1)), Renewal::Renewed);
    }

    #[test]
    fn a_lease_that_was_asked_back_for_a_write_that_never_came_is_replaced() {
        let (mut table, o) = (table(), object("o"));
        let session = table.open(ALONE, at(0)).unwrap();
        assert!(table.grant(session, &o, 1, at(0)));
        table.begin_write(&o, at(1));
        table.end_write(&o);
        assert!(table.grant(session, &o, 2, at(1)));
        assert_eq!(table.renew(session, at(1)), Renewal::Renewed);
        table.give_back(session, &o, 1, at(1));
        assert!(!table.grant(session, &o, 1, at(1)), "an earlier request, which comes late");
        assert_eq!(table.counts(at(1)).leases, 1);
        assert_eq!(table.begin_write(&o, at(1)), [Revocation { session, number: 2 }]);
    }

    #[test]
    fn the_end_of_a_session_frees_its_objects() {
        let (mut table, o) = (table(), object("o"));
        let session = table.open(ALONE, at(0)).unwrap();
        assert!(table.grant(session, &o, 1, at(0)));
        table.begin_write(&o, at(0));
        assert_eq!(table.end(session, at(0)), std::slice::from_ref(&o));
        assert_eq!(table.blocked_until(&o, at(0)), None);
        table.end_write(&o);
        assert!(table.objects.is_empty() && table.leases == 0);
    }

    #[test]
    fn writes_are_held_for_the_length_of_a_lease_after_a_restart() {
        let (mut table, o) = (table(), object("o"));
        table.hold(at(3));
        table.begin_write(&o, at(3));
        assert_eq!(table.blocked_until(&o, at(12)), Some(at(13)));
        assert_eq!(table.blocked_until(&o, at(13)), None);
    }

    #[test]
    fn sessions_and_leases_are_bounded_and_lapsed_ones_make_room() {
        let mut table = table();
        let sessions: Vec<u64> = (0..SESSIONS_MAX).map(|_| table.open(ALONE, at(0)).unwrap()).collect();
        assert_eq!(table.open(ALONE, at(9)), Err(Unopened::Full));
        for number in 0..SESSION_LEASES_MAX {
            assert!(table.grant(sessions[0], &object(&number.to_string()), 1, at(0)));
        }
        assert!(!table.grant(sessions[0], &object("more"), 1, at(0)));
        assert!(table.grant(sessions[1], &object("more"), 1, at(0)));
        assert!(table.open(ALONE, at(10)).is_ok());
        assert_eq!((table.counts(at(10)).sessions, table.counts(at(10)).leases), (1, 0));
    }

    #[test]
    fn a_connection_leaves_leases_to_others() {
        let mut table = table();
        let sessions: Vec<u64> = (0..3).map(|_| table.open(ALONE, at(0)).unwrap()).collect();
        let other = table.open(Client { connection: 2, ..ALONE }, at(0)).unwrap();
        for number in 0..CONNECTION_LEASES_MAX {
            let session = sessions[number / SESSION_LEASES_MAX];
            assert!(table.grant(session, &object(&number.to_string()), 1, at(0)));
        }
        assert!(!table.grant(sessions[2], &object("more"), 1, at(0)));
        assert!(table.grant(other, &object("more"), 1, at(0)));
        table.give_back(sessions[1], &object("40000"), 1, at(0));
        assert!(table.grant(sessions[2], &object("more"), 1, at(0)));
        table.end(sessions[0], at(0));
        table.end(sessions[1], at(0));
        assert_eq!(table.connections, HashMap::from([(1, 1), (2, 1)]));
    }

    #[test]
    fn one_that_never_gives_back_costs_one_wait_and_not_one_for_each_of_its_leases() {
        let mut table = table();
        let honest = table.open(Client { connection: 2, ..ALONE }, at(0)).unwrap();
        let sessions = [0, 0].map(|now| table.open(ALONE, at(now)).unwrap());
        let objects = ["a", "b"].map(object);
        for (session, o) in sessions.iter().zip(&objects) {
            assert!(table.grant(*session, o, 1, at(0)));
        }
        assert!(table.grant(honest, &object("c"), 1, at(0)));
        table.begin_write(&objects[0], at(1));
        assert_eq!(table.renew(sessions[1], at(9)), Renewal::Renewed, "nobody knows better yet");
        assert_eq!(table.renew(honest, at(9)), Renewal::Renewed);
        assert_eq!(table.blocked_until(&objects[0], at(10)), None);
        table.end_write(&objects[0]);
        // What it still has lasts no longer, and there is nothing new.
        assert_eq!(table.renew(sessions[1], at(10)), Renewal::Lapsed);
        assert!(!table.grant(sessions[1], &objects[0], 2, at(10)));
        assert_eq!(table.open(ALONE, at(10)), Err(Unopened::Suspended));
        assert_eq!(table.counts(at(10)).suspended, 1);
        table.begin_write(&objects[1], at(11));
        assert_eq!(table.blocked_until(&objects[1], at(11)), Some(at(19)));
        assert_eq!(table.blocked_until(&objects[1], at(19)), None);
        // Others are not concerned, and in the end neither is it.
        assert_eq!(table.renew(honest, at(18)), Renewal::Renewed);
        assert!(table.grant(honest, &objects[0], 2, at(18)));
        assert!(table.open(ALONE, at(49)).is_err() && table.open(ALONE, at(50)).is_ok());
        assert_eq!(table.counts(at(50)).suspended, 0);
    }

    #[test]
    fn one_that_gives_back_late_gets_no_leases_for_a_while_and_one_that_does_at_once_gets_them() {
        let (mut table, o) = (table(), object("o"));
        let session = table.open(ALONE, at(0)).unwrap();
        for (number, asked, answered, is_late) in [(1, 0, 2, false), (2, 3, 6, true)] {
            assert!(table.grant(session, &o, number, at(asked)));
            table.begin_write(&o, at(asked));
            table.give_back(session, &o, number, at(answered));
            assert_eq!(table.blocked_until(&o, at(answered)), None);
            table.end_write(&o);
            assert_eq!(table.counts(at(answered)).late, u64::from(is_late));
        }
        assert!(!table.grant(session, &o, 3, at(6)));
        // To end the session instead is late all the same.
        let other = Client { connection: 2, origin: None };
        let session = table.open(other, at(0)).unwrap();
        assert!(table.grant(session, &o, 1, at(0)));
        table.begin_write(&o, at(0));
        assert_eq!(table.end(session, at(6)), std::slice::from_ref(&o));
        assert_eq!(table.open(other, at(6)), Err(Unopened::Suspended));
    }

    /// Random calls, beside a model that knows only who may rely on what.
    #[test]
    fn no_write_begins_while_a_lease_is_in_force() {
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut table, mut now) = (table(), Duration::ZERO);
        let objects: Vec<ObjectId> = ["a", "b", "c"].map(object).to_vec();
        // Of each client its session, the time until which it may rely on it, and its leases.
        let mut clients: Vec<(u64, Duration, HashMap<ObjectId, u64>)> = Vec::new();
        let mut writing: Vec<ObjectId> = Vec::new();
        let (mut made, mut waited, mut number) = (0, 0, 0);
        for connection in 0..50_000 {
            now += Duration::from_millis(random(400));
            let o = objects[random(3) as usize].clone();
            let count = clients.len() as u64;
            match random(8) {
                0 if count < 4 => {
                    // With the same connection, one that lets others wait would soon have no more leases.
                    let session = table.open(Client { connection, origin: None }, now).unwrap();
                    clients.push((session, now + LENGTH, HashMap::new()));
                }
                1 if count > 0 && random(20) == 0 => {
                    let (session, _, _) = clients.swap_remove(random(count) as usize);
                    table.end(session, now);
                }
                2 | 3 if count > 0 => {
                    let (session, until, leases) = &mut clients[random(count) as usize];
                    number += 1;
                    if table.grant(*session, &o, number, now) {
                        assert!(!writing.contains(&o), "leased while it is changed");
                        assert!(now < *until);
                        leases.insert(o, number);
                    }
                }
                4 if count > 0 => {
                    let (session, _, leases) = &mut clients[random(count) as usize];
                    if let Some(number) = leases.remove(&o) {
                        table.give_back(*session, &o, number, now);
                    }
                }
                5 if count > 0 => {
                    let index = random(count) as usize;
                    let (session, until, _) = &mut clients[index];
                    match table.renew(*session, now) {
                        Renewal::Renewed => *until = now + LENGTH,
                        Renewal::Unchanged => {}
                        Renewal::Lapsed => drop(clients.swap_remove(index)),
                    }
                }
                6 if writing.len() < 4 => {
                    table.begin_write(&o, now);
                    writing.push(o);
                }
                _ => {
                    let Some(o) = writing.pop() else { continue };
                    if table.blocked_until(&o, now).is_some() {
                        waited += 1;
                        writing.insert(0, o);
                        continue;
                    }
                    let relied = |(_, until, leases): &(u64, Duration, HashMap<ObjectId, u64>)| {
                        *until > now && leases.contains_key(&o)
                    };
                    assert!(!clients.iter().any(relied), "changed although somebody has a lease");
                    table.end_write(&o);
                    made += 1;
                }
            }
        }
        assert!(made > 200 && waited > 200, "{made} made, {waited} waited");
    }
}
