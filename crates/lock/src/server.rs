//! A lock server: files, sessions and their leases, grants, what happens when a session or the server fails. A state
//! machine without clock or I/O.
//!
//! Its owner gives it calls and time, and carries out its [`Output`]s in their order. Servers know nothing of the clients'
//! protocols (section 5.2 of the paper); each has the bytes of its stripe, in the same mapping as data.
//!
//! The paper leaves failures open. Here:
//!
//! - A client has a *session* at each server, with a lease that it renews. When the lease lapses, its shared locks go at once (when an
//!   administrator breaks the session, at the time at which it would have lapsed). Bytes that it holds exclusively stay locked until the
//!   session's *fence* is durable at every object of the file ([`Output::Raise`], then [`Server::fenced`]), so what a paused client writes
//!   later is refused. The fence names the session, so holders of other bytes are not shut out.
//! - Before a session is told of its first exclusive grant in a file, a [`Record`] of session and file is durable. A restarted
//!   server gets the records of its predecessor. For a grace period it grants nothing and takes asserted locks, exclusive ones
//!   only of who is on record, and a session of which it cannot take one is lost. Sessions that did
//!   not come back are then fenced in the files of their records, and such a file is closed until that is done.
//! - Sessions that wait for each other in a cycle are reported ([`Output::Cycle`]).

mod backlog;
mod cycles;
mod grace;
mod listing;
mod session;
mod settings;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

pub use backlog::Backlog;
pub use listing::{Listed, Wait};
use session::{SessionRecord, State};
pub use settings::{Limits, Settings};

use crate::OFFSET_MAX;
use crate::message::{Call, FileName, LockSpec, Refusal, Reply, RequestNumber, SessionId, Token};
use crate::table::{
    AcquireOutcome, Acquired, Budget, Mode, Owner, RequestKey, ResumedRequest, Table, TableError,
};

/// The number under which the server's owner knows a call, to send the reply to.
pub type CallId = u64;

/// The files that a session may have written, on record, before their least used ones are struck off.
const FILES_PER_SESSION_MAX: usize = 1024;

/// An order to the server's owner. They are carried out in order, as far as records that are not durable yet allow it
/// ([`Backlog`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Sends a reply.
    Reply {
        /// The call that is answered.
        call: CallId,
        /// The answer.
        reply: Reply,
        /// The held bytes of which it tells; none if it tells of none.
        reported_bytes: Option<ReportedBytes>,
    },
    /// Makes a record durable.
    Record(Record),
    /// Raises the fence of a session at every object of a file, durably, and then calls [`Server::fenced`].
    Raise {
        /// The session whose requests are to be refused from then on.
        session: SessionId,
        /// The file.
        file: FileName,
    },
    /// Reports sessions that wait for each other.
    Cycle {
        /// The sessions, each of which waits for the next, and the last for the first.
        sessions: Vec<SessionId>,
    },
}

/// The held bytes of which a reply tells: some of a file, in a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedBytes {
    /// The session that holds them.
    pub session: SessionId,
    /// The file.
    pub file: FileName,
    /// The mode.
    pub mode: Mode,
}

/// A change of what the server has to know after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The session may write this file from now on.
    Uses {
        /// The session.
        session: SessionId,
        /// The file.
        file: FileName,
    },
    /// A session that may not any more.
    Left {
        /// The session.
        session: SessionId,
        /// The file.
        file: FileName,
    },
    /// The session has ended.
    Gone {
        /// The session.
        session: SessionId,
    },
    /// The store refuses all sessions below this one at a file.
    Floor {
        /// The file.
        file: FileName,
        /// The first session that is not refused.
        floor: SessionId,
    },
}

/// A lock server. Times are durations since any one moment, and never go backwards.
///
/// Invariants: a request belongs to one session and one file; a call that waits is answered exactly once, unless the same
/// call comes again; sessions and requests beyond the limits are refused before anything is kept of them.
#[derive(Clone, Debug)]
pub struct Server {
    settings: Settings,
    sessions: HashMap<SessionId, SessionRecord>,
    /// The sessions by their number in the tables.
    programs: HashMap<u64, SessionId>,
    expiries: BTreeSet<(Duration, SessionId)>,
    files: BTreeMap<FileName, File>,
    requests: BTreeMap<RequestKey, Box<Request>>,
    pattern_bytes: usize,
    programs_created: u64,
    requests_created: RequestKey,
    grants: u64,
    /// The end of the grace period, while it lasts.
    grace_until: Option<Duration>,
    /// The files that sessions of the former epoch may write: those not back yet, then those being fenced.
    remembered: BTreeMap<SessionId, BTreeSet<FileName>>,
    /// The number of the sessions in `remembered` that may write each file.
    unsettled: HashMap<FileName, usize>,
    /// The number of calls so far that came while a file was closed.
    deferrals: u64,
    /// The sessions below which the store refuses all, at the files where there are such.
    floors: HashMap<FileName, SessionId>,
    /// The steps that are left to the present call, or to what follows until the next one. What they do not suffice for is done
    /// by [`Server::tick`], so that nobody is held up for long.
    budget: Budget,
    /// The steps that the searches for cycles have taken since the budget was given.
    cycle_steps: usize,
    /// The files whose tables have work left over, in the order in which it is gone on with.
    left_over: VecDeque<FileName>,
}

/// A file with locks.
#[derive(Clone, Debug)]
struct File {
    table: Table,
    /// Requests whose calls came while the file was closed, in the order of these calls.
    deferred: BTreeMap<u64, RequestKey>,
    /// True if it is among those whose tables have work left over.
    is_left_over: bool,
}

/// A request of a session.
#[derive(Clone, Debug)]
struct Request {
    session: SessionId,
    number: RequestNumber,
    file: FileName,
    mode: Mode,
    pending: Option<Pending>,
    token: u64,
    pattern_bytes: usize,
}

/// A call that is not answered yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    call: CallId,
    until: Option<u64>,
    /// Its place among the calls that came while the file was closed; 0 if it is not among them.
    deferred: u64,
}

impl Server {
    /// Creates a server that has no predecessor.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            sessions: HashMap::new(),
            programs: HashMap::new(),
            expiries: BTreeSet::new(),
            files: BTreeMap::new(),
            requests: BTreeMap::new(),
            pattern_bytes: 0,
            programs_created: 0,
            requests_created: 0,
            grants: 0,
            grace_until: None,
            remembered: BTreeMap::new(),
            unsettled: HashMap::new(),
            deferrals: 0,
            floors: HashMap::new(),
            budget: Budget::new(),
            cycle_steps: 0,
            left_over: VecDeque::new(),
        }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes a call of a session. Its reply is an output now or later.
    pub fn handle(
        &mut self,
        now: Duration,
        session: SessionId,
        call: CallId,
        message: Call,
        out: &mut Vec<Output>,
    ) {
        self.give_steps();
        self.expire(now, out);
        if let Some(refusal) = self.refusal(session, &message) {
            out.push(Output::Reply { call, reply: Reply::Refused(refusal), reported_bytes: None });
            return;
        }
        let request = message.request();
        let answer = match message {
            Call::Open | Call::Renew => {
                self.renew(now, session);
                Ok(Some(Reply::Open { epoch: self.settings.epoch, lease: self.settings.lease }))
            }
            Call::Close => {
                self.end(session, out);
                Ok(Some(Reply::Done))
            }
            Call::Acquire { request, spec, until } => {
                self.acquire(session, call, request, spec, until, out).map(|()| None)
            }
            Call::ReleaseFrom { request, offset } => {
                self.release_from(session, request, offset, out).map(Some)
            }
            Call::Release { request } => {
                if let Some(key) = self.key(session, request) {
                    self.release(key, Refusal::Released, out);
                }
                Ok(Some(Reply::Done))
            }
            Call::Assert { request, spec, below } => {
                let asserted = self.assert(session, request, spec, below, out);
                if asserted.is_err() {
                    // It relied on bytes that are not its own any more, or cannot be kept for it: it is to be fenced wherever it
                    // may have written, whatever it says from now on.
                    self.lapse(session, true, out);
                }
                asserted.map(Some)
            }
            Call::Asserted => {
                self.settle(session);
                Ok(Some(Reply::Done))
            }
        };
        match answer {
            Ok(None) => {}
            Ok(Some(reply)) => {
                let key = request.and_then(|request| self.key(session, request));
                let reported_bytes = key.and_then(|key| self.reported_bytes(key, &reply));
                out.push(Output::Reply { call, reply, reported_bytes });
            }
            Err(refusal) => {
                out.push(Output::Reply { call, reply: Reply::Refused(refusal), reported_bytes: None })
            }
        }
    }

    fn key(&self, session: SessionId, number: RequestNumber) -> Option<RequestKey> {
        self.sessions.get(&session)?.requests.get(&number).copied()
    }

    fn acquire(
        &mut self,
        session: SessionId,
        call: CallId,
        number: RequestNumber,
        spec: Option<LockSpec>,
        until: Option<u64>,
        out: &mut Vec<Output>,
    ) -> Result<(), Refusal> {
        let key = match (self.key(session, number), spec) {
            (Some(key), _) => key,
            (None, Some(spec)) => self.add(session, number, spec, None)?,
            (None, None) => return Err(Refusal::UnknownRequest),
        };
        let Some(request) = self.requests.get(&key) else { return Err(Refusal::UnknownRequest) };
        if self.is_shut_out(session, &request.file, request.mode) {
            // It is to know, rather than to have a lock under which it cannot write.
            self.lapse(session, true, out);
            return Err(Refusal::Lapsed);
        }
        let Some(request) = self.requests.get_mut(&key) else { return Err(Refusal::UnknownRequest) };
        if let Some(pending) = &mut request.pending {
            if pending.until == until {
                // The same call again, after a break: it keeps its place.
                pending.call = call;
                return Ok(());
            }
            self.stop_waiting(key, out);
        }
        self.request_mut(key, |request| request.pending = Some(Pending { call, until, deferred: 0 }));
        let file = self.requests[&key].file.clone();
        let closed = self.closed(&file);
        let Some(found) = self.files.get_mut(&file).filter(|_| closed) else {
            self.perform(key, out);
            return Ok(());
        };
        match (until, found.table.progress(key)) {
            // What is asked for as far as it can be had at once gets nothing: whoever does not wait is not to wait for the end
            // of the grace period either.
            (None, Some(progress)) => {
                let token = self.token(key);
                self.answer(key, Reply::Acquired { progress, token }, out);
            }
            _ => {
                self.deferrals += 1;
                let place = self.deferrals;
                found.deferred.insert(place, key);
                self.request_mut(key, |request| {
                    request.pending = Some(Pending { call, until, deferred: place });
                });
            }
        }
        Ok(())
    }

    /// Takes the pending call of a request to the table.
    fn perform(&mut self, key: RequestKey, out: &mut Vec<Output>) {
        let Some(request) = self.requests.get(&key) else { return };
        let (Some(pending), session) = (request.pending, request.session) else { return };
        if self.is_shut_out(session, &request.file, request.mode) {
            // A request that was deferred meanwhile: it is to know, rather than to have a lock under which it cannot write.
            self.lapse(session, true, out);
            return;
        }
        let Some(file) = self.files.get_mut(&request.file) else { return };
        let reached = match pending.until {
            None => file.table.try_acquire(key).map(AcquireOutcome::Done),
            Some(until) => file.table.acquire_within(key, until, &mut self.budget),
        };
        let name = request.file.clone();
        self.note_left_over(&name);
        match reached {
            Ok(AcquireOutcome::Done(progress)) => self.granted(key, progress, out),
            Ok(AcquireOutcome::Waits(_)) => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.waiting.insert(key);
                }
                // On record while it waits, so that no grant to one after the other waits for a write each.
                self.note_use_of(key, out);
                self.report_cycle(key, out);
            }
            Err(error) => self.answer(key, Reply::Refused(error.into()), out),
        }
    }

    /// Tells a request's client how far it has come.
    fn granted(&mut self, key: RequestKey, progress: Acquired, out: &mut Vec<Output>) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        if progress.last.is_some() {
            self.grants += 1;
            request.token = self.grants;
            self.note_use_of(key, out);
        }
        let token = self.token(key);
        self.answer(key, Reply::Acquired { progress, token }, out);
    }

    /// Answers the pending call of a request, if it has one.
    fn answer(&mut self, key: RequestKey, reply: Reply, out: &mut Vec<Output>) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let pending = request.pending.take();
        if let Some(session) = self.sessions.get_mut(&request.session)
            && session.waiting.remove(&key)
            && session.waiting.is_empty()
        {
            session.cycles.clear();
        }
        if let Some(Pending { call, deferred, .. }) = pending {
            if deferred > 0
                && let Some(file) = self.files.get_mut(&request.file)
            {
                file.deferred.remove(&deferred);
            }
            let reported_bytes = self.reported_bytes(key, &reply);
            out.push(Output::Reply { call, reply, reported_bytes });
        }
    }

    /// The held bytes of a request of which a reply tells.
    fn reported_bytes(&self, key: RequestKey, reply: &Reply) -> Option<ReportedBytes> {
        let Reply::Acquired { progress: Acquired { last: Some(_), .. }, .. } = reply else { return None };
        let request = self.requests.get(&key)?;
        Some(ReportedBytes { session: request.session, file: request.file.clone(), mode: request.mode })
    }

    fn token(&self, key: RequestKey) -> Token {
        let number = self.requests.get(&key).map_or(0, |request| request.token);
        Token { epoch: self.settings.epoch, number }
    }

    /// Tells those that have been woken in a file, and looks for cycles among those that wait again.
    fn wake(&mut self, file: &FileName, woken: Vec<ResumedRequest>, out: &mut Vec<Output>) {
        for ResumedRequest { request, progress, exhausted } in woken {
            if exhausted {
                self.answer(request, Reply::Refused(TableError::TooIrregular.into()), out);
            } else {
                self.granted(request, progress, out);
            }
        }
        self.note_left_over(file);
        let moved = self.files.get_mut(file).map(|file| file.table.take_moved()).unwrap_or_default();
        for key in moved {
            self.report_cycle(key, out);
        }
    }

    /// Gives a call, and what follows until the next one, its budget of steps.
    fn give_steps(&mut self) {
        self.budget = Budget::new();
        self.cycle_steps = 0;
    }

    /// Notes that a table may have work left over.
    fn note_left_over(&mut self, name: &FileName) {
        if let Some(file) = self.files.get_mut(name)
            && file.table.has_left_over()
            && !file.is_left_over
        {
            file.is_left_over = true;
            self.left_over.push_back(name.clone());
        }
    }

    /// Goes on with what calls left over, as far as the steps suffice.
    fn resume(&mut self, out: &mut Vec<Output>) {
        while !self.budget.is_spent()
            && let Some(name) = self.left_over.pop_front()
        {
            let Some(file) = self.files.get_mut(&name) else { continue };
            file.is_left_over = false;
            let mut woken = Vec::new();
            file.table.resume_within(&mut self.budget, &mut woken);
            self.wake(&name, woken, out);
        }
    }

    fn release_from(
        &mut self,
        session: SessionId,
        number: RequestNumber,
        offset: u64,
        out: &mut Vec<Output>,
    ) -> Result<Reply, Refusal> {
        let key = self.key(session, number).ok_or(Refusal::UnknownRequest)?;
        self.answer(key, Reply::Refused(Refusal::Released), out);
        let progress = self.give_back(key, offset, out)?;
        Ok(Reply::Acquired { progress, token: self.token(key) })
    }

    /// Releases what a request holds from an offset on, and ends its wait in the table.
    fn give_back(
        &mut self,
        key: RequestKey,
        offset: u64,
        out: &mut Vec<Output>,
    ) -> Result<Acquired, Refusal> {
        let file = self.requests.get(&key).ok_or(Refusal::UnknownRequest)?.file.clone();
        let mut woken = Vec::new();
        let found = self.files.get_mut(&file).ok_or(Refusal::UnknownRequest)?;
        let progress = found.table.release_from_within(key, offset, &mut self.budget, &mut woken)?;
        self.wake(&file, woken, out);
        Ok(progress)
    }

    /// Ends the wait of a request. Its call is answered, so that nobody keeps it forever.
    fn stop_waiting(&mut self, key: RequestKey, out: &mut Vec<Output>) {
        self.answer(key, Reply::Refused(Refusal::Released), out);
        _ = self.give_back(key, OFFSET_MAX, out);
    }

    /// Releases a request wholly and forgets it. A call that waits for it is refused.
    fn release(&mut self, key: RequestKey, refusal: Refusal, out: &mut Vec<Output>) {
        self.answer(key, Reply::Refused(refusal), out);
        let Some(request) = self.requests.remove(&key) else { return };
        self.pattern_bytes -= request.pattern_bytes;
        if let Some(session) = self.sessions.get_mut(&request.session) {
            session.requests.remove(&request.number);
            session.pattern_bytes -= request.pattern_bytes;
            if let Some(requests) = session.files.get_mut(&request.file) {
                *requests -= 1;
                if *requests == 0 && !session.recorded.contains(&request.file) {
                    session.files.remove(&request.file);
                }
            }
        }
        let mut woken = Vec::new();
        if let Some(file) = self.files.get_mut(&request.file) {
            _ = file.table.release_within(key, &mut self.budget, &mut woken);
        }
        self.wake(&request.file, woken, out);
        if self.files.get(&request.file).is_some_and(|file| file.table.is_empty()) {
            self.files.remove(&request.file);
        }
    }

    /// Adds a request to its file's table, holding what lies below `held` if that is given.
    fn add(
        &mut self,
        session: SessionId,
        number: RequestNumber,
        spec: LockSpec,
        held: Option<u64>,
    ) -> Result<RequestKey, Refusal> {
        let limits = &self.settings.limits;
        let Some(owner) = self.sessions.get_mut(&session) else {
            return Err(Refusal::UnknownSession { epoch: self.settings.epoch });
        };
        let pattern = spec.pattern.restrict(self.settings.stripe)?;
        let pattern_bytes = pattern.memory_bytes();
        for (full, resource) in [
            (spec.file.len() > limits.name_bytes_max, "bytes in a file's name"),
            (self.requests.len() >= limits.requests_max, "lock requests"),
            (owner.requests.len() >= limits.requests_per_session_max, "lock requests of one session"),
            (self.pattern_bytes + pattern_bytes > limits.pattern_bytes_max, "memory for patterns"),
            (
                owner.pattern_bytes + pattern_bytes > limits.pattern_bytes_per_session_max,
                "memory for patterns of one session",
            ),
            (
                self.files.len() >= limits.files_max && !self.files.contains_key(&spec.file),
                "files with locks",
            ),
        ] {
            if full {
                return Err(Refusal::Full(resource));
            }
        }
        // The names of a file's requests are one.
        let name = self.files.get_key_value(&spec.file).map_or(spec.file, |(name, _)| name.clone());
        let file = self.files.entry(name.clone()).or_insert_with(|| File {
            table: Table::new(self.settings.indexing, limits.regions_max),
            deferred: BTreeMap::new(),
            is_left_over: false,
        });
        let key = self.requests_created + 1;
        let id = Owner { program: owner.program, operation: spec.operation };
        let added = match held {
            None => file.table.add(key, id, spec.mode, pattern),
            Some(below) => file.table.install(key, id, spec.mode, pattern, below).map(|_| ()),
        };
        if let Err(error) = added {
            if file.table.is_empty() {
                self.files.remove(&name);
            }
            return Err(error.into());
        }
        self.requests_created = key;
        owner.requests.insert(number, key);
        owner.pattern_bytes += pattern_bytes;
        *owner.files.entry(name.clone()).or_insert(0) += 1;
        self.pattern_bytes += pattern_bytes;
        let request =
            Request { session, number, file: name, mode: spec.mode, pending: None, token: 0, pattern_bytes };
        self.requests.insert(key, Box::new(request));
        Ok(key)
    }

    fn request_mut(&mut self, key: RequestKey, change: impl FnOnce(&mut Request)) {
        if let Some(request) = self.requests.get_mut(&key) {
            change(request);
        }
    }

    fn is_live(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.state == State::Live)
    }
}
