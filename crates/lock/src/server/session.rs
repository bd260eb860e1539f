//! Sessions: how they begin, last and end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{FILES_PER_SESSION_MAX, Output, Record, Server};
use crate::OFFSET_MAX;
use crate::message::{Call, FileName, Refusal, RequestNumber, SessionId};
use crate::table::{Mode, RequestKey};

/// A session.
#[derive(Clone, Debug)]
pub(super) struct SessionRecord {
    /// Its number in the tables.
    pub(super) program: u64,
    pub(super) expires: Duration,
    pub(super) state: State,
    pub(super) requests: BTreeMap<RequestNumber, RequestKey>,
    /// The requests whose calls wait in a table.
    pub(super) waiting: BTreeSet<RequestKey>,
    /// The files with requests of this session or on record, and the number of the requests.
    pub(super) files: BTreeMap<FileName, usize>,
    /// The files on record that it may write.
    pub(super) recorded: BTreeSet<FileName>,
    /// The number of files on record at which those not in use are struck off.
    pub(super) sweep_at: usize,
    pub(super) pattern_bytes: usize,
    /// The cycles that were reported since its requests began to wait.
    pub(super) cycles: Vec<Vec<SessionId>>,
}

/// The state of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A session that holds a lease.
    Live,
    /// Its lease is gone.
    Lapsing {
        /// The files in which its fence is being raised, with the requests that hold bytes there exclusively.
        fencing: BTreeMap<FileName, Vec<RequestKey>>,
        /// True if it was broken before its lease was over, and may rely on shared locks until then.
        reads: bool,
    },
}

impl Server {
    /// The number of sessions, those included that are being fenced.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Returns whether there is such a session, one included that is being fenced.
    pub fn knows(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// Returns whether there is no session, and none of a former epoch that may come back.
    pub fn is_unused(&self) -> bool {
        self.sessions.is_empty() && self.remembered.is_empty() && self.grace_until.is_none()
    }

    /// The next time at which [`Server::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Duration> {
        if !self.left_over.is_empty() {
            return Some(Duration::ZERO);
        }
        let expiry = self.expiries.first().map(|expiry| expiry.0);
        [expiry, self.grace_until].into_iter().flatten().min()
    }

    /// Goes on with what calls left over because it would have held up the next ones for long, and ends what is due: leases
    /// that lapsed, the grace period.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        self.give_steps();
        self.resume(out);
        self.expire(now, out);
    }

    /// Ends what is due.
    pub(super) fn expire(&mut self, now: Duration, out: &mut Vec<Output>) {
        while let Some((expires, session)) = self.expiries.first().copied()
            && expires <= now
        {
            if self.is_live(session) {
                self.lapse(session, false, out);
            } else {
                self.end_reading(expires, session, out);
            }
        }
        if self.grace_until.is_some_and(|until| until <= now) {
            self.end_grace(out);
        }
    }

    /// Takes the lease of a session away, as an administrator orders. Returns whether it had one.
    ///
    /// Its exclusive locks are released when its fence is up. Its shared locks are released when the lease would have
    /// lapsed: only then does a client that cannot be reached know that it must not rely on them.
    pub fn break_session(&mut self, session: SessionId, out: &mut Vec<Output>) -> bool {
        let live = self.is_live(session);
        if live {
            self.lapse(session, true, out);
        }
        live
    }

    /// Notes that a session's fence is durable at every object of a file: its locks there are released.
    pub fn fenced(&mut self, session: SessionId, file: &FileName, out: &mut Vec<Output>) {
        // On record before others are told that they have its bytes: a session that was broken does not know it yet, and its
        // lease may outlast a restart. What is on no record it cannot assert then.
        if let Some(found) = self.sessions.get_mut(&session)
            && found.state != State::Live
            && found.recorded.remove(file)
        {
            out.push(Output::Record(Record::Left { session, file: file.clone() }));
        }
        self.fenced_after_restart(session, file, out);
        let Some(found) = self.sessions.get_mut(&session) else { return };
        let State::Lapsing { fencing, .. } = &mut found.state else { return };
        if let Some(keys) = fencing.remove(file) {
            for key in keys {
                self.release(key, Refusal::Lapsed, out);
            }
            self.forget_ended(session, out);
        }
    }

    /// Notes that the store refuses all sessions below a number at a file. Those that may write it learn that they are
    /// lost, instead of being granted bytes that they cannot write.
    pub fn set_floor(&mut self, file: &FileName, floor: SessionId, out: &mut Vec<Output>) {
        let shut_out = |(id, session): (&SessionId, &SessionRecord)| {
            (*id < floor && session.state == State::Live && session.recorded.contains(file)).then_some(*id)
        };
        let lost: Vec<SessionId> = self.sessions.iter().filter_map(shut_out).collect();
        for session in lost {
            self.lapse(session, true, out);
        }
        // A floor is of no use any more when all sessions below it are gone; after a restart they may come back yet.
        let oldest = self.sessions.keys().min().copied();
        if self.grace_until.is_none() {
            self.floors.retain(|_, floor| oldest.is_some_and(|oldest| oldest < *floor));
        }
        let known = self.floors.get(file).is_some_and(|known| *known >= floor);
        if !known && oldest.is_some_and(|oldest| oldest < floor) {
            self.floors.insert(file.clone(), floor);
            out.push(Output::Record(Record::Floor { file: file.clone(), floor }));
        }
    }

    /// Takes over what a predecessor knew of the sessions that the store refuses.
    pub fn remember_floors(&mut self, floors: impl IntoIterator<Item = (FileName, SessionId)>) {
        self.floors.extend(floors);
    }

    /// Returns whether the store refuses the session's writes of a file.
    pub(super) fn is_shut_out(&self, session: SessionId, file: &FileName, mode: Mode) -> bool {
        mode == Mode::Exclusive && self.floors.get(file).is_some_and(|floor| session < *floor)
    }

    /// The reason to refuse a call of a session, whatever it asks for.
    pub(super) fn refusal(&mut self, session: SessionId, call: &Call) -> Option<Refusal> {
        if self.grace_until.is_none() {
            if self.remembered.contains_key(&session) {
                return Some(Refusal::Lapsed);
            }
            if matches!(call, Call::Assert { .. } | Call::Asserted) {
                return Some(Refusal::GraceOver);
            }
        }
        match self.sessions.get(&session).map(|session| &session.state) {
            Some(State::Live) => None,
            Some(State::Lapsing { .. }) => Some(Refusal::Lapsed),
            None if !matches!(call, Call::Open) => {
                Some(Refusal::UnknownSession { epoch: self.settings.epoch })
            }
            None if self.sessions.len() >= self.settings.limits.sessions_max => {
                Some(Refusal::Full("sessions"))
            }
            None => None,
        }
    }

    /// Renews a session's lease, and opens the session if there is none.
    pub(super) fn renew(&mut self, now: Duration, id: SessionId) {
        let expires = now + self.settings.lease;
        let session = self.sessions.entry(id).or_insert_with(|| {
            self.programs_created += 1;
            self.programs.insert(self.programs_created, id);
            SessionRecord {
                program: self.programs_created,
                expires,
                state: State::Live,
                requests: BTreeMap::new(),
                waiting: BTreeSet::new(),
                files: BTreeMap::new(),
                recorded: self.remembered.get(&id).cloned().unwrap_or_default(),
                sweep_at: FILES_PER_SESSION_MAX,
                pattern_bytes: 0,
                cycles: Vec::new(),
            }
        });
        self.expiries.remove(&(session.expires, id));
        session.expires = expires;
        self.expiries.insert((expires, id));
    }

    /// Ends a session that wants to end: nothing of it can arrive any more, so nothing is fenced.
    pub(super) fn end(&mut self, id: SessionId, out: &mut Vec<Output>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let keys: Vec<RequestKey> = session.requests.values().copied().collect();
        for key in keys {
            self.release(key, Refusal::Released, out);
        }
        self.settle(id);
        self.forget(id, out);
    }

    /// Takes the lease of a session away. What it holds exclusively stays locked until its fence is up, and what a broken
    /// one holds shared until its lease is over.
    pub(super) fn lapse(&mut self, id: SessionId, broken: bool, out: &mut Vec<Output>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.state = State::Lapsing { fencing: BTreeMap::new(), reads: broken };
        let expires = session.expires;
        let keys: Vec<RequestKey> = session.requests.values().copied().collect();
        let mut fencing: BTreeMap<FileName, Vec<RequestKey>> = BTreeMap::new();
        let mut reads = false;
        // A session that was back after a restart but had not asserted everything may hold what is not known.
        // Until it is fenced there, those files stay closed.
        fencing.extend(self.remembered.get(&id).into_iter().flatten().map(|file| (file.clone(), Vec::new())));
        for key in keys {
            let Some(request) = self.requests.get(&key) else { continue };
            let (file, mode) = (request.file.clone(), request.mode);
            let holds = self
                .files
                .get(&file)
                .and_then(|file| file.table.progress(key))
                .is_some_and(|progress| progress.last.is_some());
            match mode {
                Mode::Exclusive if holds => {
                    self.answer_lapsed(key, out);
                    fencing.entry(file).or_default().push(key);
                }
                Mode::Shared if holds && broken => {
                    self.answer_lapsed(key, out);
                    reads = true;
                }
                _ => self.release(key, Refusal::Lapsed, out),
            }
        }
        for file in fencing.keys() {
            out.push(Output::Raise { session: id, file: file.clone() });
        }
        if !reads {
            self.expiries.remove(&(expires, id));
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            session.state = State::Lapsing { fencing, reads };
        }
        self.forget_ended(id, out);
    }

    /// Releases the shared locks of a session that was broken and whose lease is over now.
    fn end_reading(&mut self, expires: Duration, id: SessionId, out: &mut Vec<Output>) {
        self.expiries.remove(&(expires, id));
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let State::Lapsing { reads, .. } = &mut session.state {
            *reads = false;
        }
        let keys: Vec<RequestKey> = session.requests.values().copied().collect();
        for key in keys {
            if self.requests.get(&key).is_some_and(|request| request.mode == Mode::Shared) {
                self.release(key, Refusal::Lapsed, out);
            }
        }
        self.forget_ended(id, out);
    }

    /// Drops a session if its end is complete.
    fn forget_ended(&mut self, id: SessionId, out: &mut Vec<Output>) {
        let ended = |session: &SessionRecord| match &session.state {
            State::Live => false,
            State::Lapsing { fencing, reads } => fencing.is_empty() && !reads,
        };
        if self.sessions.get(&id).is_some_and(ended) {
            self.forget(id, out);
        }
    }

    fn answer_lapsed(&mut self, key: RequestKey, out: &mut Vec<Output>) {
        self.answer(key, crate::message::Reply::Refused(Refusal::Lapsed), out);
        // It stands in nobody's way where it waited, and keeps what it holds.
        _ = self.give_back(key, OFFSET_MAX, out);
    }

    /// Drops a session that has no requests.
    fn forget(&mut self, id: SessionId, out: &mut Vec<Output>) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.expiries.remove(&(session.expires, id));
        self.programs.remove(&session.program);
        if !session.recorded.is_empty() {
            out.push(Output::Record(Record::Gone { session: id }));
        }
    }

    /// Returns whether a session's next exclusive grant in a file has to be put on record first.
    pub fn needs_record(&self, session: SessionId, file: &FileName) -> bool {
        self.sessions.get(&session).is_none_or(|found| !found.recorded.contains(file))
    }

    /// Returns the file and the mode of a session's request.
    pub fn request(&self, session: SessionId, number: RequestNumber) -> Option<(&FileName, Mode)> {
        let request = self.requests.get(&self.key(session, number)?)?;
        Some((&request.file, request.mode))
    }

    /// Puts on record that the session of an exclusive request may write its file, unless it is already.
    pub(super) fn note_use_of(&mut self, key: RequestKey, out: &mut Vec<Output>) {
        let Some(request) = self.requests.get(&key).filter(|request| request.mode == Mode::Exclusive) else {
            return;
        };
        let (id, file) = (request.session, &request.file);
        let Some(session) = self.sessions.get_mut(&id).filter(|session| !session.recorded.contains(file))
        else {
            return;
        };
        let file = file.clone();
        session.recorded.insert(file.clone());
        if session.recorded.len() > session.sweep_at {
            let unused: Vec<FileName> =
                session.files.iter().filter(|used| *used.1 == 0).map(|used| used.0.clone()).collect();
            for file in unused {
                session.files.remove(&file);
                session.recorded.remove(&file);
                out.push(Output::Record(Record::Left { session: id, file }));
            }
            // A sweep costs little for each file that was added since the last.
            session.sweep_at = FILES_PER_SESSION_MAX.max(2 * session.recorded.len());
        }
        out.push(Output::Record(Record::Uses { session: id, file }));
    }
}
