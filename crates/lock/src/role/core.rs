//! The lock server with those who wait for its replies, behind one lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::channel::oneshot;
use nacre_rpc::server::{Publisher, Reservation};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ledger::Change;
use crate::clock;
use crate::message::{Call, FULL, FileName, Refusal, Reply, RequestNumber, SessionId};
use crate::server::{Backlog, CallId, Output, Server};
use crate::table::Mode;
use crate::wire::{self, Attach, ServerSlot};

/// The number of session numbers that are reserved at once.
const NUMBERS_AT_ONCE: u64 = 1024;

/// The calls of a session that are not about one of its requests and may be under way.
const CALLS_BESIDE_MAX: usize = 1024;
/// The limit that is told to a session with too many calls under way.
const UNANSWERED: &str = FULL[3];

/// The records that may wait to be written, and the limit that is told to who asks for more.
const RECORDS_MAX: u64 = 1 << 20;
const UNWRITTEN: &str = FULL[2];

/// The memory of a reply that waits for a record, and of its call, in bytes.
const WITHHELD_BYTES: usize = 256;

/// The number of waiting requests for session numbers at which those are looked for whose clients are gone.
const NUMBERED_MAX: usize = 1024;

/// The parts of the role that its connections and its thread share.
pub(super) struct Shared {
    pub core: Mutex<Core>,
    /// Wakes the role's thread.
    pub work: Notify,
    pub slot: ServerSlot,
    pub connections: AtomicU64,
}

/// The lock server, its unanswered calls, and its orders that are not carried out yet.
pub(super) struct Core {
    pub server: Server,
    /// The records that are not durable, and the replies that wait for them.
    pub backlog: Backlog,
    /// The number of records that may wait to be written.
    records_max: u64,
    /// Fences to be raised.
    pub raises: Vec<(SessionId, FileName)>,
    /// The calls that are answered by an event.
    waiters: HashMap<CallId, Waiter>,
    /// The latest waiting call about each request.
    latest: HashMap<(SessionId, RequestNumber), CallId>,
    attached: HashMap<SessionId, Attached>,
    calls_created: CallId,
    /// The longest lease that a session may rely on: this epoch's or one before it.
    longest_lease: Duration,
    /// The number of the next session, and the number below which numbers are on record as given.
    next_number: u64,
    pub numbers: u64,
    /// The waiters for the number of a session.
    numbered: Vec<oneshot::Sender<u64>>,
    /// The cycles of waiting sessions that span servers and were found at the last look at them.
    pub spanning: Vec<Vec<SessionId>>,
    pub counts: Counts,
    /// The time until which the role's thread sleeps; none if it sleeps until it is woken.
    pub sleeps_until: Option<Duration>,
}

/// Counts for the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub calls: u64,
    pub grants: u64,
    pub refusals: u64,
    pub fences: u64,
    pub cycles: u64,
}

/// A call that is not answered yet.
struct Waiter {
    session: SessionId,
    /// The client's number of the call.
    call: u64,
    request: Option<RequestNumber>,
    /// The memory of a reply that is made and waits for a record.
    kept: Option<Reservation>,
}

/// The connection over which a session is spoken for.
struct Attached {
    /// The calls of the session that are not answered.
    unanswered: usize,
    /// The number that the client gave the connection.
    connection: u64,
    /// The server's own number of the connection.
    link: u64,
    publisher: Option<Publisher>,
}

/// The reason why a call is not taken.
pub(super) struct NotAttached;

impl Core {
    pub fn new(server: Server, numbers: u64, longest_lease: Duration) -> Core {
        Core {
            server,
            backlog: Backlog::default(),
            records_max: RECORDS_MAX,
            raises: Vec::new(),
            waiters: HashMap::new(),
            latest: HashMap::new(),
            attached: HashMap::new(),
            calls_created: 0,
            longest_lease,
            next_number: numbers.max(1),
            numbers,
            numbered: Vec::new(),
            spanning: Vec::new(),
            counts: Counts::default(),
            sleeps_until: None,
        }
    }

    /// Carries out orders of the server, in their order. A reply that tells of something that a successor would not know
    /// waits for its record, and nothing else waits ([`Backlog`]): a record may take longer than a lease. Returns the reply
    /// to the call `own`, if it is there.
    pub fn carry(&mut self, out: Vec<Output>, own: Option<CallId>) -> Option<Reply> {
        let mut answer = None;
        for output in out {
            match self.backlog.pass(output) {
                Some(Output::Reply { call, reply, .. }) if Some(call) == own => {
                    self.count(&reply);
                    answer = Some(reply);
                }
                Some(output) => self.carry_out(output),
                None => {}
            }
        }
        answer
    }

    /// Carries out an order that waits for nothing.
    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Reply { call, reply, .. } => {
                self.count(&reply);
                self.answer(call, &reply);
            }
            Output::Raise { session, file } => self.raises.push((session, file)),
            Output::Cycle { sessions } => self.note_cycle(&sessions),
            // The backlog keeps records for the role's thread.
            Output::Record(_) => {}
        }
    }

    fn count(&mut self, reply: &Reply) {
        match reply {
            Reply::Acquired { progress, .. } if progress.last.is_some() => self.counts.grants += 1,
            Reply::Refused(_) => self.counts.refusals += 1,
            _ => {}
        }
    }

    /// Sends the reply to a call that waits for an event.
    fn answer(&mut self, call: CallId, reply: &Reply) {
        let Some(Waiter { session, call: number, request, kept }) = self.waiters.remove(&call) else {
            return;
        };
        self.note_reply(session);
        if let Some(request) = request
            && self.latest.get(&(session, request)) == Some(&call)
        {
            self.latest.remove(&(session, request));
        }
        // Its memory is free for the event.
        drop(kept);
        if let Some(Attached { publisher: Some(publisher), .. }) = self.attached.get(&session) {
            // A client that is gone, or misses events, asks again when it is back.
            publisher.push(wire::event(number, reply));
        }
    }

    fn note_reply(&mut self, session: SessionId) {
        if let Some(attached) = self.attached.get_mut(&session) {
            attached.unanswered = attached.unanswered.saturating_sub(1);
        }
    }

    fn wait(&mut self, id: CallId, waiter: Waiter) {
        if let Some(attached) = self.attached.get_mut(&waiter.session) {
            attached.unanswered += 1;
        }
        if let Some(request) = waiter.request
            && let Some(before) = self.latest.insert((waiter.session, request), id)
        {
            // The same call again; the server answers it once.
            if let Some(before) = self.waiters.remove(&before) {
                self.note_reply(before.session);
            }
        }
        self.waiters.insert(id, waiter);
    }

    /// Returns whether the reply to a call may have to wait for a record that is there already, or for the epoch. That of a
    /// call which makes a record is bounded by the number of records.
    fn may_withhold(&self, session: SessionId, message: &Call) -> bool {
        let spec = match message {
            Call::Open | Call::Renew => return !self.backlog.has_begun(),
            Call::Acquire { spec: Some(spec), .. } => Some((&spec.file, spec.mode)),
            Call::Acquire { spec: None, .. } | Call::ReleaseFrom { .. } => None,
            // Those of requests that are new are bounded by the number of requests: a lock that is asserted is not lost for
            // want of memory for the answer.
            Call::Assert { .. } => None,
            Call::Release { .. } | Call::Close | Call::Asserted => return false,
        };
        let known = message.request().and_then(|request| self.server.request(session, request));
        known.or(spec).is_some_and(|(file, mode)| self.backlog.withholds(session, file, mode))
    }

    /// Returns whether a call asks for a lock that has to be put on record before it is told.
    fn needs_record(&self, session: SessionId, message: &Call) -> bool {
        match message {
            Call::Acquire { spec: Some(spec), .. } => {
                spec.mode == Mode::Exclusive && self.server.needs_record(session, &spec.file)
            }
            _ => false,
        }
    }

    /// Reports a cycle of sessions.
    pub fn note_cycle(&mut self, sessions: &[SessionId]) {
        if let [session] = sessions {
            // Tasks of one program may well take turns; whether they do, only the program knows.
            tracing::debug!("lock session {session} waits for what it holds itself");
            return;
        }
        let names: Vec<String> = sessions.iter().map(SessionId::to_string).collect();
        tracing::warn!(
            "lock sessions {} wait for each other in a circle; \"nacre locks break SESSION\" ends one of them",
            names.join(", ")
        );
        self.counts.cycles += 1;
    }

    /// Takes out the changes that are to be made durable next. [`Core::changed`] is to be called when they are.
    pub fn changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.next_number.saturating_add(self.numbered.len() as u64) > self.numbers
            && !self.numbered.is_empty()
        {
            let below = self.next_number + self.numbered.len() as u64 + NUMBERS_AT_ONCE;
            changes.push(Change::Numbers(below));
        }
        if self.backlog.needs_epoch() {
            let settings = self.server.settings();
            changes.push(Change::Begin { epoch: settings.epoch, lease: self.longest_lease });
        }
        changes.extend(self.backlog.take().into_iter().map(Change::Record));
        changes
    }

    /// Takes in changes that are durable now, and carries out what waited for them.
    pub fn changed(&mut self, changes: &[Change]) {
        let mut ready = self.backlog.written();
        for change in changes {
            match change {
                Change::Begin { .. } => ready.extend(self.backlog.begin()),
                Change::Numbers(below) => self.numbers = *below,
                Change::End | Change::Record(_) => {}
            }
        }
        ready.into_iter().for_each(|output| self.carry_out(output));
        while self.next_number < self.numbers
            && let Some(waiting) = self.numbered.pop()
        {
            // The caller may be gone; the number is then nobody's.
            let _ = waiting.send(self.take_number());
        }
    }

    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// Forgets the connections of sessions that have lapsed since, once there are many.
    pub fn forget_lapsed(&mut self) {
        if self.attached.len() > 2 * self.server.sessions() + 64 {
            let server = &self.server;
            self.attached.retain(|session, attached| attached.publisher.is_some() || server.knows(*session));
        }
    }

    /// Forgets the connection of a session that has ended.
    fn forget(&mut self, session: SessionId) {
        if !self.server.knows(session)
            && self.attached.get(&session).is_some_and(|attached| attached.publisher.is_none())
        {
            self.attached.remove(&session);
        }
    }
}

impl Shared {
    /// Lets the server do something, and carries out what it orders. Returns the reply to the call `own`, if it is there.
    pub fn with<T>(&self, act: impl FnOnce(&mut Server, Duration, &mut Vec<Output>) -> T) -> T {
        let mut core = self.core.lock();
        let mut out = Vec::new();
        let result = act(&mut core.server, clock::now(), &mut out);
        core.carry(out, None);
        self.wake(&core);
        result
    }

    /// Wakes the role's thread if it has something to do, or has to wake up earlier.
    fn wake(&self, core: &Core) {
        let due = core.server.next_deadline();
        let earlier = match (due, core.sleeps_until) {
            (Some(due), Some(until)) => due < until,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if earlier || !core.raises.is_empty() || core.backlog.has_work() || !core.numbered.is_empty() {
            self.work.notify_one();
        }
    }

    /// Takes a call over a connection. Returns the reply, or nothing if it follows as an event. `keep` draws memory of the
    /// server's account.
    pub fn call(
        &self,
        link: u64,
        session: SessionId,
        call: u64,
        message: Call,
        keep: impl FnOnce(usize) -> Option<Reservation>,
    ) -> Result<Option<Reply>, NotAttached> {
        let mut core = self.core.lock();
        let Some(attached) = core.attached.get(&session).filter(|attached| attached.link == link) else {
            return Err(NotAttached);
        };
        // A client has a call about each of its requests under way, and few others. Calls wait also for records: if those
        // cannot be written, their number is to be bounded by more than the patience of clients.
        let most = core.server.settings().limits.requests_per_session_max.saturating_add(CALLS_BESIDE_MAX);
        if attached.unanswered >= most {
            return Ok(Some(Reply::Refused(Refusal::Full(UNANSWERED))));
        }
        // An honest client waits for the grant of one lock before it asks for many more; others are not to fill the memory with
        // records while the store takes none, nor with replies that wait for them.
        let (makes, waits) = (core.needs_record(session, &message), core.may_withhold(session, &message));
        if makes && core.backlog.records() >= core.records_max {
            return Ok(Some(Reply::Refused(Refusal::Full(UNWRITTEN))));
        }
        let kept = if makes || waits { keep(WITHHELD_BYTES) } else { None };
        // The replies to calls that make a record are bounded with the records.
        if waits && kept.is_none() {
            return Ok(Some(Reply::Refused(Refusal::Full(UNWRITTEN))));
        }
        core.counts.calls += 1;
        core.calls_created += 1;
        let id = core.calls_created;
        let request = match &message {
            Call::Acquire { request, .. } => Some(*request),
            _ => None,
        };
        let mut out = Vec::new();
        core.server.handle(clock::now(), session, id, message, &mut out);
        let has_reply = out.iter().any(|output| matches!(output, Output::Reply { call, .. } if *call == id));
        let reply = core.carry(out, Some(id));
        if reply.is_none() {
            // A reply that is made but waits for a record is not to be mistaken for a wait.
            let (request, kept) = if has_reply { (None, kept) } else { (request, None) };
            core.wait(id, Waiter { session, call, request, kept });
        }
        self.wake(&core);
        Ok(reply)
    }

    /// Binds a session to a connection. Returns false if it is bound to a later one.
    pub fn attach(&self, link: u64, attach: Attach, publisher: Publisher) -> bool {
        let mut core = self.core.lock();
        let session = SessionId(attach.session);
        if core.attached.get(&session).is_some_and(|known| known.connection >= attach.connection) {
            return false;
        }
        let unanswered = core.attached.get(&session).map_or(0, |known| known.unanswered);
        let attached =
            Attached { unanswered, connection: attach.connection, link, publisher: Some(publisher) };
        core.attached.insert(session, attached);
        true
    }

    /// Notes that a connection is gone. The session goes on until its lease lapses.
    pub fn detach(&self, link: u64, session: SessionId) {
        let mut core = self.core.lock();
        if let Some(attached) = core.attached.get_mut(&session)
            && attached.link == link
        {
            attached.publisher = None;
        }
        core.forget(session);
    }

    /// Returns a number for a session, at once or later.
    pub fn number(&self) -> Result<u64, oneshot::Receiver<u64>> {
        let mut core = self.core.lock();
        if core.next_number < core.numbers && core.numbered.is_empty() {
            return Ok(core.take_number());
        }
        let (sender, receiver) = oneshot::channel();
        if core.numbered.len() >= NUMBERED_MAX {
            core.numbered.retain(|waiting| !waiting.is_canceled());
        }
        core.numbered.push(sender);
        self.wake(&core);
        Err(receiver)
    }

    /// Returns a new number of a connection.
    pub fn next_link(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }
}

#[cfg(test)]
mod tests;
