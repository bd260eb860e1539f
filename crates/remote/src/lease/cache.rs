//! What a client knows of objects on which it has leases: no clock, no I/O.
//!
//! An answer is used as long as three things hold: the object's lease is held, its session has not ended by the client's own
//! clock, and the answer is of the version that the object had when the lease was granted. The last makes the order irrelevant in
//! which answers and leases arrive.
//!
//! An object is leased when it is read for the first time. Once it was changed, it is leased again after some reads without a change:
//! after more of them each time that a lease was not worth it, and after fewer each time that it was. So a directory in which files
//! are made costs no leases.
//!
//! Everything that is asked back, or changed by the client itself, gets a new *token*: an answer or a lease that is still on its way is
//! then of no use any more. The token under which a lease is asked for is the lease's number.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use nacre_object::{Done, ObjectId, ReadOp};

use super::known::{Known, is_kept};
use super::wire::Granted;

/// The maximum number of objects of which something is known.
const OBJECTS_MAX: usize = 16_384;
/// The maximum number of bytes that are known of all objects together, about.
const BYTES_MAX: usize = 64 << 20;
/// The number of answers that make up for a lease that was asked back.
const HITS_WORTH_A_LEASE: u32 = 3;
/// The greatest number of reads without a change in between after which an object is leased again that was changed.
const PATIENCE_MAX: u32 = 32;

/// What a client has in its memory, and what it could answer from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Objects of which something is known at present, or was lately.
    pub objects: usize,
    /// The bytes of what is known, about.
    pub bytes: usize,
    /// Reads that were answered from memory.
    pub hits: u64,
    /// Reads of objects that may be leased which were sent to a server.
    pub misses: u64,
    /// Leases that were granted.
    pub granted: u64,
    /// Leases that servers asked back.
    pub revoked: u64,
    /// Leases that were given back to make room for others.
    pub evicted: u64,
    /// Sessions with servers that were opened.
    pub sessions: u64,
}

/// The course that a read takes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// It is answered.
    Known(Done),
    /// It is sent to the server, and its answer is learned under this token.
    Learn(u64),
    /// The same, and a lease is asked for in this session under the same token.
    Ask { token: u64, session: u64 },
    /// It is sent to the server.
    Pass,
}

/// A lease that is to be given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Surplus {
    pub server: usize,
    pub session: u64,
    pub object: ObjectId,
    pub number: u64,
}

#[derive(Debug, Default)]
pub(super) struct Cache {
    /// The sessions, by the indices of their servers.
    sessions: HashMap<usize, Session>,
    entries: HashMap<ObjectId, Entry>,
    /// The objects with entries, each once. The first one goes first, unless it was used since it got its place.
    order: VecDeque<ObjectId>,
    next_token: u64,
    counts: CacheCounts,
}

#[derive(Debug)]
struct Session {
    number: u64,
    /// The time from which on nothing may be believed, by this client's clock.
    until: Duration,
}

#[derive(Debug)]
struct Entry {
    token: u64,
    server: usize,
    phase: Phase,
    was_used: bool,
    /// The number of answers under the present lease.
    hits: u32,
    /// The number of reads without a change in between after which it is leased again.
    patience: u32,
    known: Known,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Changed lately; the number of reads since.
    Changed(u32),
    /// A lease was asked for in a session.
    Asked { session: u64 },
    /// A lease is held.
    Held { session: u64, version: u64 },
}

/// Objects that are leased before they are read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    pub session: u64,
    /// The token of the first one; those of the others follow.
    pub first: u64,
    pub objects: Vec<ObjectId>,
}

impl Cache {
    /// Returns the counts.
    pub fn counts(&self) -> CacheCounts {
        CacheCounts { objects: self.entries.len(), ..self.counts }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// Notes a session with a server, which lasts until a time.
    pub fn open(&mut self, server: usize, number: u64, until: Duration) {
        self.sessions.insert(server, Session { number, until });
        self.counts.sessions += 1;
    }

    /// Notes that a session lasts longer.
    pub fn extend(&mut self, server: usize, number: u64, until: Duration) {
        if let Some(session) = self.sessions.get_mut(&server).filter(|session| session.number == number) {
            session.until = session.until.max(until);
        }
    }

    /// Notes the end of a session, and with it of its leases.
    pub fn lose(&mut self, server: usize) {
        self.sessions.remove(&server);
        let token = self.token();
        for entry in self.entries.values_mut().filter(|entry| entry.server == server) {
            self.counts.bytes -= entry.clear();
            // It did not change, as far as is known, so it is leased with the next read.
            (entry.token, entry.phase) = (token, Phase::Changed(entry.patience));
        }
    }

    /// Returns the session with a server, if there is one.
    pub fn session(&self, server: usize) -> Option<u64> {
        self.sessions.get(&server).map(|session| session.number)
    }

    /// Returns whether there is a session with any server.
    pub fn has_session(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// Returns whether answers about an object are remembered: it is leased, or a lease was asked for.
    pub fn remembers(&self, object: &ObjectId) -> bool {
        self.entries.get(object).is_some_and(|entry| match entry.phase {
            Phase::Held { session, .. } | Phase::Asked { session } => {
                self.session(entry.server) == Some(session)
            }
            Phase::Changed(_) => false,
        })
    }

    /// Decides on a read of an object of a server.
    pub fn look(&mut self, server: usize, object: &ObjectId, reads: &[ReadOp], now: Duration) -> Course {
        let course = self.course(server, object, reads, now);
        match course {
            Course::Known(_) => self.counts.hits += 1,
            _ => self.counts.misses += 1,
        }
        course
    }

    fn course(&mut self, server: usize, object: &ObjectId, reads: &[ReadOp], now: Duration) -> Course {
        let session = self.sessions.get(&server).filter(|session| now < session.until);
        let Some(session) = session.map(|session| session.number) else { return Course::Pass };
        if !reads.iter().all(is_kept) {
            return Course::Pass;
        }
        if let Some(entry) = self.entries.get_mut(object) {
            entry.was_used = true;
            match &mut entry.phase {
                Phase::Held { session: own, .. } if *own == session => {
                    let Some(done) = entry.known.answer(reads) else { return Course::Learn(entry.token) };
                    entry.hits = entry.hits.saturating_add(1);
                    return Course::Known(done);
                }
                Phase::Asked { session: own } if *own == session => return Course::Learn(entry.token),
                Phase::Changed(count) if *count + 1 < entry.patience => {
                    *count += 1;
                    return Course::Pass;
                }
                // A lease of an earlier session is none.
                _ => {}
            }
        }
        Course::Ask { token: self.ask(server, session, object), session }
    }

    /// Notes that a lease is asked for, under the token that is returned.
    fn ask(&mut self, server: usize, session: u64, object: &ObjectId) -> u64 {
        let (token, phase) = (self.token(), Phase::Asked { session });
        match self.entries.get_mut(object) {
            Some(entry) => {
                self.counts.bytes -= entry.clear();
                (entry.token, entry.server, entry.phase) = (token, server, phase);
            }
            None => {
                let (was_used, hits, patience, known) = (false, 0, 1, Known::default());
                let entry = Entry { token, server, phase, was_used, hits, patience, known };
                self.entries.insert(object.clone(), entry);
                self.order.push_back(object.clone());
            }
        }
        token
    }

    /// Decides on objects of a server that will soon be read: leases are asked for on those that have none and were not changed lately.
    /// `None` if there is no session with the server.
    pub fn look_ahead(&mut self, server: usize, objects: Vec<ObjectId>, now: Duration) -> Option<Ahead> {
        let session = self.sessions.get(&server).filter(|session| now < session.until)?.number;
        let mut ahead = Ahead { session, first: self.next_token + 1, objects: Vec::new() };
        for object in objects {
            let is_left = self.entries.get(&object).is_some_and(|entry| match entry.phase {
                Phase::Held { session: own, .. } | Phase::Asked { session: own } => own == session,
                Phase::Changed(count) => count + 1 < entry.patience,
            });
            if !is_left {
                self.ask(server, session, &object);
                ahead.objects.push(object);
            }
        }
        Some(ahead)
    }

    /// Notes the answer to a request for a lease. Returns false if the lease is to be given back, because it is of no use any more.
    pub fn granted(&mut self, object: &ObjectId, token: u64, session: u64, granted: Granted) -> bool {
        let Some(entry) = self.entries.get_mut(object).filter(|entry| entry.token == token) else {
            return granted.number == 0;
        };
        if granted.number == 0 {
            // It is being changed.
            self.counts.bytes -= entry.change(token);
            return true;
        }
        entry.phase = Phase::Held { session, version: granted.version };
        if entry.known.version() != Some(granted.version) {
            self.counts.bytes -= entry.known.clear();
        }
        self.counts.granted += 1;
        true
    }

    /// Learns the answer to a read.
    pub fn learn(&mut self, object: &ObjectId, token: u64, reads: &[ReadOp], done: &Done) {
        let Some(entry) = self.entries.get_mut(object).filter(|entry| entry.token == token) else { return };
        match entry.phase {
            Phase::Held { version, .. } if version == done.version => {}
            Phase::Asked { .. } => {}
            _ => return,
        }
        let before = entry.known.bytes();
        entry.known.learn(reads, done);
        self.counts.bytes = self.counts.bytes + entry.known.bytes() - before;
    }

    /// Forgets an object that the client is about to change. Returns the lease that it had.
    pub fn forget(&mut self, object: &ObjectId) -> Option<Surplus> {
        let token = self.token();
        let entry = self.entries.get_mut(object)?;
        let surplus = entry.surplus(object);
        self.counts.bytes -= entry.change(token);
        surplus
    }

    /// Forgets an object whose lease is asked back.
    pub fn revoke(&mut self, object: &ObjectId, session: u64, number: u64) {
        self.counts.revoked += 1;
        let token = self.token();
        let Some(entry) = self.entries.get_mut(object) else { return };
        let is_leased = match entry.phase {
            Phase::Held { session: own, .. } | Phase::Asked { session: own } => own == session,
            Phase::Changed(_) => false,
        };
        // A later one may have been asked for since.
        if is_leased && entry.token <= number {
            self.counts.bytes -= entry.change(token);
        }
    }

    /// Makes room, if there is too much. Returns the leases that are to be given back.
    pub fn evict(&mut self) -> Vec<Surplus> {
        let mut surplus = Vec::new();
        if self.entries.len() <= OBJECTS_MAX && self.counts.bytes <= BYTES_MAX {
            return surplus;
        }
        // More than there has to be, so that many leases are given back by few messages.
        let (objects, bytes) = (OBJECTS_MAX - OBJECTS_MAX / 16, BYTES_MAX - BYTES_MAX / 16);
        while self.entries.len() > objects || self.counts.bytes > bytes {
            let Some(object) = self.order.pop_front() else { break };
            let Some(entry) = self.entries.get_mut(&object) else { continue };
            if std::mem::take(&mut entry.was_used) {
                self.order.push_back(object);
                continue;
            }
            self.counts.bytes -= entry.known.bytes();
            surplus.extend(entry.surplus(&object));
            self.entries.remove(&object);
        }
        self.counts.evicted += surplus.len() as u64;
        surplus
    }
}

impl Entry {
    /// Forgets all answers. Returns their bytes.
    fn clear(&mut self) -> usize {
        self.hits = 0;
        self.known.clear()
    }

    /// Forgets everything, because the object changes; what is under way has another token. Returns the bytes of the answers.
    fn change(&mut self, token: u64) -> usize {
        if !matches!(self.phase, Phase::Changed(_)) {
            self.patience = match self.hits >= HITS_WORTH_A_LEASE {
                true => (self.patience / 2).max(1),
                false => (self.patience * 2).min(PATIENCE_MAX),
            };
        }
        (self.token, self.phase) = (token, Phase::Changed(0));
        self.clear()
    }

    /// Returns the lease that the entry has, or that was asked for.
    fn surplus(&self, object: &ObjectId) -> Option<Surplus> {
        match self.phase {
            Phase::Held { session, .. } | Phase::Asked { session } => {
                Some(Surplus { server: self.server, session, object: object.clone(), number: self.token })
            }
            Phase::Changed(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use nacre_object::{Answer, Intent};

    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn object(name: &str) -> ObjectId {
        name.parse().unwrap()
    }

    fn reads(name: &str) -> Vec<ReadOp> {
        vec![ReadOp::Key { key: name.parse().unwrap() }]
    }

    fn done(version: u64, value: &str) -> Done {
        let value = Bytes::copy_from_slice(value.as_bytes());
        Done { version, existed: true, answers: vec![Answer::Value(Some(value))] }
    }

    fn granted(number: u64, version: u64) -> Granted {
        Granted { number, version }
    }

    /// A cache with a session that lasts 10 seconds.
    fn cache() -> Cache {
        let mut cache = Cache::default();
        cache.open(0, 7, at(10));
        cache
    }

    #[track_caller]
    fn asked(course: Course) -> u64 {
        match course {
            Course::Ask { token, session: 7 } => token,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_answer_is_known_as_long_as_its_lease_is_held_and_the_session_lasts() {
        let (mut cache, o) = (cache(), object("o"));
        let token = asked(cache.look(0, &o, &reads("k"), at(0)));
        cache.learn(&o, token, &reads("k"), &done(4, "v"));
        assert_eq!(cache.look(0, &o, &reads("k"), at(1)), Course::Learn(token), "there is no lease yet");
        assert!(cache.granted(&o, token, 7, granted(1, 4)));
        assert_eq!(cache.look(0, &o, &reads("k"), at(1)), Course::Known(done(4, "v")));
        assert_eq!(cache.look(0, &o, &reads("other"), at(1)), Course::Learn(token));
        assert_eq!(cache.look(0, &o, &reads("k"), at(10)), Course::Pass, "the session may be over");
        cache.extend(0, 8, at(30));
        assert_eq!(cache.look(0, &o, &reads("k"), at(10)), Course::Pass, "another one was extended");
        cache.extend(0, 7, at(30));
        assert_eq!(cache.look(0, &o, &reads("k"), at(10)), Course::Known(done(4, "v")));
        cache.lose(0);
        assert_eq!(cache.counts().bytes, 0);
        assert_eq!(cache.look(0, &o, &reads("k"), at(10)), Course::Pass);
        // The number says nothing: another server process may give the same one.
        cache.open(0, 7, at(40));
        asked(cache.look(0, &o, &reads("k"), at(10)));
    }

    #[test]
    fn answers_of_another_version_than_that_of_the_lease_are_of_no_use() {
        let (mut cache, o) = (cache(), object("o"));
        let token = asked(cache.look(0, &o, &reads("k"), at(0)));
        cache.learn(&o, token, &reads("k"), &done(4, "before"));
        assert!(cache.granted(&o, token, 7, granted(1, 5)));
        assert_eq!(cache.look(0, &o, &reads("k"), at(0)), Course::Learn(token));
        cache.learn(&o, token, &reads("k"), &done(4, "late"));
        assert_eq!(cache.look(0, &o, &reads("k"), at(0)), Course::Learn(token));
        cache.learn(&o, token, &reads("k"), &done(5, "now"));
        assert_eq!(cache.look(0, &o, &reads("k"), at(0)), Course::Known(done(5, "now")));
    }

    #[test]
    fn what_was_asked_back_is_forgotten_whatever_is_still_on_its_way() {
        let (mut cache, o) = (cache(), object("o"));
        let token = asked(cache.look(0, &o, &reads("k"), at(0)));
        // The lease is asked back before it has come.
        cache.revoke(&o, 7, token);
        cache.learn(&o, token, &reads("k"), &done(4, "old"));
        assert!(!cache.granted(&o, token, 7, granted(1, 4)), "it is to be given back");
        assert_eq!(cache.look(0, &o, &reads("k"), at(0)), Course::Pass);
        let token = asked(cache.look(0, &o, &reads("k"), at(0)));
        assert!(cache.granted(&o, token, 7, granted(3, 5)));
        cache.learn(&o, token, &reads("k"), &done(5, "new"));
        // A request that was for an earlier lease.
        cache.revoke(&o, 7, token - 1);
        assert_eq!(cache.look(0, &o, &reads("k"), at(0)), Course::Known(done(5, "new")));
        cache.revoke(&o, 7, token);
        assert_eq!(cache.look(0, &o, &reads("k"), at(0)), Course::Pass);
        assert_eq!(cache.counts().revoked, 3);
    }

    #[test]
    fn a_client_forgets_what_it_changes_and_leases_it_again_only_when_it_reads_it_repeatedly() {
        let (mut cache, o) = (cache(), object("o"));
        assert_eq!(cache.forget(&o), None);
        let token = asked(cache.look(0, &o, &reads("k"), at(0)));
        cache.granted(&o, token, 7, granted(1, 4));
        cache.learn(&o, token, &reads("k"), &done(4, "v"));
        let lease = Surplus { server: 0, session: 7, object: o.clone(), number: token };
        assert_eq!(cache.forget(&o), Some(lease));
        cache.learn(&o, token, &reads("k"), &done(4, "v"));
        for _ in 0..10 {
            assert_eq!(cache.look(0, &o, &reads("k"), at(0)), Course::Pass);
            assert_eq!(cache.forget(&o), None);
        }
        assert_eq!(cache.look(0, &o, &reads("k"), at(0)), Course::Pass);
        asked(cache.look(0, &o, &reads("k"), at(0)));
    }

    #[test]
    fn an_object_is_leased_later_the_less_its_leases_were_worth() {
        let (mut cache, o) = (cache(), object("o"));
        // Each time, the number of reads until it is leased, and the number of those that are answered then.
        let mut round = |hits: u32| {
            let mut count = 1;
            let token = loop {
                match cache.look(0, &o, &reads("k"), at(0)) {
                    Course::Ask { token, .. } => break token,
                    Course::Pass => count += 1,
                    other => panic!("{other:?}"),
                }
            };
            cache.learn(&o, token, &reads("k"), &done(1, "v"));
            assert!(cache.granted(&o, token, 7, granted(1, 1)));
            for _ in 0..hits {
                assert!(matches!(cache.look(0, &o, &reads("k"), at(0)), Course::Known(_)));
            }
            cache.forget(&o);
            count
        };
        let wasted: Vec<u32> = (0..8).map(|_| round(HITS_WORTH_A_LEASE - 1)).collect();
        assert_eq!(wasted, [1, 2, 4, 8, 16, 32, 32, 32]);
        let worth: Vec<u32> = (0..7).map(|_| round(HITS_WORTH_A_LEASE)).collect();
        assert_eq!(worth, [32, 16, 8, 4, 2, 1, 1]);
    }

    #[test]
    fn a_lease_that_is_not_there_yet_is_given_back_too() {
        let (mut cache, o) = (cache(), object("o"));
        let token = asked(cache.look(0, &o, &reads("k"), at(0)));
        let lease = Surplus { server: 0, session: 7, object: o.clone(), number: token };
        assert_eq!(cache.forget(&o), Some(lease));
        assert!(!cache.granted(&o, token, 7, granted(1, 4)));
    }

    #[test]
    fn what_will_soon_be_read_is_leased_ahead_unless_it_is_leased_or_was_changed_lately() {
        let mut cache = cache();
        let all = || ["new", "held", "asked", "changed"].map(object).to_vec();
        let held = asked(cache.look(0, &object("held"), &reads("k"), at(0)));
        assert!(cache.granted(&object("held"), held, 7, granted(held, 4)));
        asked(cache.look(0, &object("asked"), &reads("k"), at(0)));
        let changed = asked(cache.look(0, &object("changed"), &reads("k"), at(0)));
        cache.revoke(&object("changed"), 7, changed);
        let first = cache.next_token + 1;
        let ahead = cache.look_ahead(0, all(), at(0)).unwrap();
        assert_eq!(ahead, Ahead { session: 7, first, objects: vec![object("new")] });
        assert_eq!(all().iter().map(|o| cache.remembers(o)).collect::<Vec<_>>(), [true, true, true, false]);
        assert!(cache.granted(&object("new"), first, 7, granted(first, 5)));
        cache.learn(&object("new"), first, &reads("k"), &done(5, "v"));
        assert_eq!(cache.look(0, &object("new"), &reads("k"), at(0)), Course::Known(done(5, "v")));
        // Once it was read often enough it counts as any other, and the tokens follow each other.
        assert_eq!(cache.look(0, &object("changed"), &reads("k"), at(0)), Course::Pass);
        cache.revoke(&object("new"), 7, first);
        let first = cache.next_token + 1;
        let ahead = cache.look_ahead(0, ["changed", "more"].map(object).to_vec(), at(0)).unwrap();
        assert_eq!(ahead.objects, ["changed", "more"].map(object));
        assert!(cache.granted(&object("more"), first + 1, 7, granted(first + 1, 1)));
        assert_eq!(cache.look_ahead(0, all(), at(10)), None, "the session may be over");
        assert_eq!(cache.look_ahead(1, all(), at(0)), None);
    }

    #[test]
    fn updates_and_bytes_are_for_the_server() {
        let (mut cache, o) = (cache(), object("o"));
        let update = ReadOp::VersionedKey { key: "k".parse().unwrap(), intent: Intent::Update };
        assert_eq!(cache.look(0, &o, &[update], at(0)), Course::Pass);
        assert_eq!(cache.look(0, &o, &[ReadOp::Attributes], at(0)), Course::Pass);
        assert_eq!(
            cache.look(1, &o, &reads("k"), at(0)),
            Course::Pass,
            "there is no session with that server"
        );
        assert_eq!(cache.counts().objects, 0);
    }

    #[test]
    fn the_objects_that_were_not_used_for_longest_make_room() {
        let mut cache = cache();
        let name = |number: usize| object(&number.to_string());
        for number in 0..OBJECTS_MAX {
            let token = asked(cache.look(0, &name(number), &reads("k"), at(0)));
            cache.granted(&name(number), token, 7, granted(number as u64 + 1, 1));
        }
        assert!(cache.evict().is_empty());
        assert_eq!(cache.look(0, &name(0), &reads("k"), at(0)), Course::Learn(1));
        asked(cache.look(0, &object("more"), &reads("k"), at(0)));
        let evicted = cache.evict();
        assert_eq!(evicted[0], Surplus { server: 0, session: 7, object: name(1), number: 2 });
        assert_eq!(evicted.len(), OBJECTS_MAX / 16 + 1);
        assert_eq!(cache.counts().objects, OBJECTS_MAX - OBJECTS_MAX / 16);
        assert_eq!(cache.look(0, &name(0), &reads("k"), at(0)), Course::Learn(1));
        assert_eq!(cache.order.len(), cache.entries.len());
    }

    #[test]
    fn bytes_are_bounded() {
        let mut cache = cache();
        let large = "v".repeat(100 << 10);
        for number in 0..2000 {
            let o = object(&number.to_string());
            let token = asked(cache.look(0, &o, &reads("k"), at(0)));
            cache.granted(&o, token, 7, granted(number + 1, 1));
            cache.learn(&o, token, &reads("k"), &done(1, &large));
            // Too long to be kept.
            cache.learn(&o, token, &reads("l"), &done(1, &large.repeat(2)));
            cache.evict();
            assert!(cache.counts().bytes <= BYTES_MAX);
        }
        let counts = cache.counts();
        assert!(counts.objects > 500 && counts.evicted > 500, "{counts:?}");
    }
}
