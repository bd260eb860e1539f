//! The state of a session: it feeds the client's state machine, and does what that says.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::client::{Event, Host, Link, LinkOptions, Subscription};
use nacre_rpc::{Address, Frame};
use tokio::runtime;
use tokio::sync::{Notify, oneshot};

use super::call::{AttachRequest, answer, post};
use super::share::{Attendant, BackgroundWaker, Shared};
use super::watch::watch;
use super::{LockError, State};
use crate::client::{Acquisition, Action, Client, Ended, Method, OperationId, Protocol, Wanted};
use crate::message::{Call, FileName, LockSpec};
use crate::table::Mode;
use crate::wire::{self, ServerSlot, described};
use crate::{Pattern, clock};

/// The time that the end of a session may take; servers that do not answer wait for the lease to lapse.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// The same where a server did not answer in time before.
const END_TIMEOUT_UNANSWERED: Duration = Duration::from_millis(100);

/// The time for which the answer to a request whose time is up waits for the servers to take back what they granted.
pub const LATE_MAX: Duration = Duration::from_millis(500);

/// The time within which the servers are to answer a request that does not wait.
pub const ANSWER_MAX: Duration = Duration::from_secs(1);

/// The bytes of calls that are sent while further ones are encoded: of an operation of thousands of requests the server handles
/// the first ones meanwhile.
const AHEAD_BYTES: usize = 16 << 10;
/// The bytes of a call beside its pattern, about.
const CALL_BYTES: usize = 48;

/// An operation to begin.
pub(super) struct Order {
    pub ticket: u64,
    pub file: FileName,
    pub pattern: Pattern,
    /// The encoded description, if servers are told the whole pattern.
    pub description: Bytes,
    pub mode: Mode,
    pub method: Method,
    pub protocol: Protocol,
    /// The time for which bytes that others hold are waited for.
    pub wait: Option<Duration>,
    pub deadline: Option<Instant>,
    pub reply: Reply,
}

/// A waiter for a lock.
pub(super) type Reply = oneshot::Sender<Result<(), LockError>>;

/// News for those who wait, which are told when the session's lock is given back.
pub(super) enum Notice {
    /// The operation holds all its bytes.
    Had(OperationId, Reply),
    Failed(Reply, LockError),
    Released(oneshot::Sender<()>),
}

/// An operation, as its owner knows it.
pub(super) struct Owned {
    ticket: u64,
    description: Bytes,
    deadline: Option<Instant>,
    /// Waits for the lock.
    reply: Option<Reply>,
    /// Waits for its release.
    released: Option<oneshot::Sender<()>>,
    /// True if it does not wait for what others hold.
    tries: bool,
    /// True if the time was up.
    late: bool,
}

/// A server, as the session uses it.
pub(super) struct Line {
    pub link: Arc<Link>,
    /// The late replies, while the session is bound to a connection.
    subscription: Option<Subscription<AttachRequest>>,
    /// Told when it is not any more.
    broken: Arc<Notify>,
    pub attendant: Option<Arc<Attendant>>,
    /// Calls for which there was no room.
    waiting: VecDeque<(u64, Call, Bytes)>,
    /// About how many bytes of calls were encoded since calls were last sent.
    pub encoded_bytes: usize,
}

/// The servers, and how they are reached.
pub(super) struct Servers {
    pub slot: ServerSlot,
    pub servers: Vec<Address>,
    pub options: Arc<LinkOptions>,
    pub host: Arc<Host>,
    pub kick: Arc<BackgroundWaker>,
}

/// The state of a session, which is changed by [`Shared::with`].
pub(super) struct Core {
    client: Client,
    state: Arc<State>,
    reached: Servers,
    /// The background's runtime.
    runtime: runtime::Handle,
    pub shared: Weak<Shared>,
    pub lines: BTreeMap<u32, Line>,
    /// The servers for which calls were encoded.
    pub touched: Vec<u32>,
    /// The number of calls that wait for room.
    pub waiting: usize,
    pub notices: Vec<Notice>,
    arrivals: Vec<(u64, Frame)>,
    owned: BTreeMap<OperationId, Owned>,
    tickets: HashMap<u64, OperationId>,
    deadlines: BTreeSet<(Instant, OperationId)>,
    actions: Vec<Action>,
    /// The time by which the session's end is over.
    ending: Option<Instant>,
    /// True if a server did not answer in time.
    unanswered: bool,
    /// The times of leases and of waits until which the background sleeps at most.
    sleeps_until: (Option<Duration>, Option<Instant>),
}

/// The next time at which the background has something to do.
pub(super) struct Next {
    pub until: Option<Instant>,
}

impl Line {
    fn new(link: Arc<Link>) -> Line {
        Line {
            link,
            subscription: None,
            broken: Arc::default(),
            attendant: None,
            waiting: VecDeque::new(),
            encoded_bytes: 0,
        }
    }
}

impl Core {
    /// Creates the state of a session that has its number from the first server.
    pub(super) fn new(shared: Weak<Shared>, state: Arc<State>, reached: Servers, first: Arc<Link>) -> Core {
        let client = Client::new(state.session, reached.slot.servers);
        Core {
            client,
            state,
            reached,
            runtime: runtime::Handle::current(),
            shared,
            lines: BTreeMap::from([(0, Line::new(first))]),
            touched: Vec::new(),
            waiting: 0,
            notices: Vec::new(),
            arrivals: Vec::new(),
            owned: BTreeMap::new(),
            tickets: HashMap::new(),
            deadlines: BTreeSet::new(),
            actions: Vec::new(),
            ending: None,
            unanswered: false,
            sleeps_until: (None, None),
        }
    }

    /// Carries out the commands of the state machine, and what is due.
    pub(super) fn settle(&mut self) {
        self.client.tick(clock::now(), &mut self.actions);
        // Before anybody is told of a lock: were the program stopped in between, its next check would know no end.
        let ends = self.client.ends().map_or(u64::MAX, |ends| ends.as_nanos() as u64);
        self.state.ends_ns.store(ends, Ordering::Release);
        // Whoever was granted a lock is told of it before its time is looked at: a lock that is given back because the time is up is
        // one that nobody was told of.
        self.carry();
        if !self.deadlines.is_empty() {
            self.expire();
            self.carry();
        }
    }

    /// Handles all that arrived, for the background. Returns when there is something to do next; nothing once the session has
    /// ended.
    pub(super) fn look(&mut self) -> Option<Next> {
        let servers: Vec<u32> = self.lines.keys().copied().collect();
        servers.into_iter().for_each(|server| self.take_in(server));
        self.settle();
        if let Some(until) = self.ending
            && (self.client.is_answered() && self.waiting == 0 || Instant::now() >= until)
        {
            return None;
        }
        self.sleeps_until = self.due();
        let (lease, wait) = self.sleeps_until;
        let lease = lease.map(|at| Instant::now() + at.saturating_sub(clock::now()));
        Some(Next { until: [lease, wait, self.ending].into_iter().flatten().min() })
    }

    /// Returns whether replies are waited for.
    pub(super) fn awaits(&self) -> bool {
        !self.client.is_answered()
    }

    /// Returns whether there is something to do before the background wakes up.
    pub(super) fn is_due_earlier(&self) -> bool {
        fn earlier<T: Ord>(due: Option<T>, until: Option<T>) -> bool {
            due.is_some_and(|due| until.is_none_or(|until| due < until))
        }
        let (lease, wait) = self.due();
        earlier(lease, self.sleeps_until.0) || earlier(wait, self.sleeps_until.1)
    }

    /// Returns the next times at which there is something to do about leases and about waits.
    fn due(&self) -> (Option<Duration>, Option<Instant>) {
        (self.client.next_deadline(), self.deadlines.first().map(|first| first.0))
    }

    pub(super) fn is_closing(&self) -> bool {
        self.ending.is_some()
    }

    pub(super) fn links(&self) -> Vec<(u32, Arc<Link>)> {
        self.lines.iter().map(|(server, line)| (*server, line.link.clone())).collect()
    }

    /// Begins an operation.
    pub(super) fn lock(&mut self, order: Order) {
        let Order { ticket, file, pattern, description, mode, method, protocol, wait, deadline, reply } =
            order;
        if self.ending.is_some() {
            let why = "it has ended".to_owned();
            let error = self.state.check().err();
            let error = error.unwrap_or(LockError::Lost { session: self.state.session.0, why });
            return self.notices.push(Notice::Failed(reply, error));
        }
        let wanted = Wanted {
            file,
            operation: 0,
            first_number: 0,
            mode,
            pattern,
            stripe_bytes: self.reached.slot.stripe_bytes,
            servers: self.reached.slot.servers,
            method,
            protocol,
            waits: wait != Some(Duration::ZERO),
        };
        // Its operation is known before anything is done about it.
        let mut actions = Vec::new();
        match self.client.lock(clock::now(), wanted, &mut actions) {
            Err(error) => self.notices.push(Notice::Failed(reply, error.into())),
            Ok(id) => {
                let (reply, released, late) = (Some(reply), None, false);
                let tries = wait == Some(Duration::ZERO);
                let owned = Owned { ticket, description, deadline, reply, released, tries, late };
                self.deadlines.extend(deadline.map(|deadline| (deadline, id)));
                self.tickets.insert(ticket, id);
                self.owned.insert(id, owned);
            }
        }
        self.actions.extend(actions);
    }

    /// Releases what a lock holds, or ends its wait.
    pub(super) fn release_ticket(&mut self, ticket: u64, released: Option<oneshot::Sender<()>>) {
        let Some(id) = self.tickets.get(&ticket).copied() else { return };
        if let Some(owned) = self.owned.get_mut(&id) {
            owned.released = owned.released.take().or(released);
        }
        self.release(id);
    }

    pub(super) fn release(&mut self, id: OperationId) {
        self.client.release(clock::now(), id, &mut self.actions);
    }

    /// Ends the session.
    pub(super) fn end(&mut self) {
        if self.ending.is_some() {
            return;
        }
        // Before the servers give the bytes to others: there may be locks yet, and checks of them.
        self.state.end();
        self.client.close(&mut self.actions);
        let most = if self.unanswered { END_TIMEOUT_UNANSWERED } else { END_TIMEOUT };
        self.ending = Some(Instant::now() + most);
    }

    /// Forgets those who wait, whose session is no longer driven. What is returned tells them when it is dropped, which is to
    /// be done without the session's lock.
    pub(super) fn abandon(&mut self) -> (BTreeMap<OperationId, Owned>, Vec<Notice>) {
        self.tickets.clear();
        (std::mem::take(&mut self.owned), std::mem::take(&mut self.notices))
    }

    /// Lets go of the servers.
    pub(super) fn finish(&mut self) {
        self.ending = Some(Instant::now());
        for line in self.lines.values_mut() {
            line.link.close();
            line.attendant.iter().for_each(|attendant| attendant.end());
        }
    }

    /// Notes that the session is bound to a connection.
    pub(super) fn connected(&mut self, server: u32, subscription: Subscription<AttachRequest>) {
        if let Some(line) = self.lines.get_mut(&server) {
            line.subscription = Some(subscription);
            self.client.connected(clock::now(), server, &mut self.actions);
        }
    }

    /// Handles what arrived from a server.
    pub(super) fn take_in(&mut self, server: u32) {
        let Some(line) = self.lines.get_mut(&server) else { return };
        let now = clock::now();
        let mut failed = None;
        line.link.take_arrivals(&mut self.arrivals);
        for (number, frame) in self.arrivals.drain(..) {
            match answer(&line.link, &frame) {
                Ok(Some(reply)) => self.client.handle(now, number, reply, &mut self.actions),
                Ok(None) => {}
                Err(error) => match error.kind {
                    // Another connection has taken the place of this one: that is news of its own, and the client then
                    // asks again for all that is unanswered.
                    ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::Closed => {}
                    _ => failed = Some(error),
                },
            }
        }
        let broken = match &mut line.subscription {
            None => false,
            Some(subscription) => loop {
                let event = match subscription.try_next() {
                    Poll::Pending => break false,
                    Poll::Ready(Some(Ok(Event::Pushed(payload)))) => wire::get_event(&payload),
                    // The connection is gone, or an event is missing.
                    Poll::Ready(_) => break true,
                };
                match event {
                    Ok((call, reply)) => self.client.handle(now, call, reply, &mut self.actions),
                    Err(_) => break true,
                }
            },
        };
        if broken {
            line.subscription = None;
            self.waiting -= line.waiting.len();
            line.waiting.clear();
            line.broken.notify_one();
            self.client.disconnected(server);
            if let Some(shared) = self.shared.upgrade() {
                shared.need();
            }
        }
        if let Some(error) = failed {
            self.fail(&error);
        }
        self.resume(server);
    }

    /// Encodes calls for which there was no room before.
    pub(super) fn resume(&mut self, server: u32) {
        let Some(line) = self.lines.get_mut(&server) else { return };
        while let Some((number, call, description)) = line.waiting.front() {
            // A connection that is gone is news of its own.
            if let Ok(false) = post(&line.link, *number, call, description) {
                return;
            }
            self.waiting -= 1;
            line.waiting.pop_front();
            if self.touched.last() != Some(&server) {
                self.touched.push(server);
            }
        }
    }

    /// Gives up the locks that are not held yet and need a server that cannot be reached, unless the session is open there:
    /// then it is waited for as long as the lease lasts.
    pub(super) fn unreachable(&mut self, server: u32, error: &StoreError) {
        if self.client.has_lease(server) {
            return;
        }
        for (id, owned) in &mut self.owned {
            let needs = |operation: &Acquisition| operation.parts().iter().any(|part| part.server == server);
            if self.client.operation(*id).is_some_and(needs)
                && let Some(reply) = owned.reply.take()
            {
                self.notices.push(Notice::Failed(reply, error.clone().into()));
                self.client.release(clock::now(), *id, &mut self.actions);
            }
        }
        // Nothing of theirs ever came there, so they do not wait for the server to be back.
        self.client.unreachable(clock::now(), server, &mut self.actions);
    }

    /// Gives the session up, because a server's answers are invalid or refuse it.
    pub(super) fn fail(&mut self, error: &StoreError) {
        if self.client.is_lost() {
            return;
        }
        // Whoever was told of a lock may have written under it, and the other servers are not to give the bytes to others before the
        // session is fenced.
        let is_relied_on = self.owned.values().any(|owned| owned.reply.is_none());
        for owned in self.owned.values_mut() {
            if let Some(reply) = owned.reply.take() {
                self.notices.push(Notice::Failed(reply, error.clone().into()));
            }
        }
        self.state.lose(error.message.clone());
        match is_relied_on {
            true => self.client.abandon(&mut self.actions),
            false => self.client.close(&mut self.actions),
        }
    }

    /// Ends the waits whose time is up.
    fn expire(&mut self) {
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= Instant::now()
        {
            self.deadlines.remove(&(deadline, id));
            if let Some(owned) = self.owned.get_mut(&id)
                && owned.reply.is_some()
            {
                if owned.late || owned.tries {
                    if !std::mem::replace(&mut owned.late, true) {
                        self.client.release(clock::now(), id, &mut self.actions);
                    }
                    // A server that does not answer does not hold up the answer; it is told when it is back.
                    let reply = owned.reply.take();
                    self.notices.extend(reply.map(|reply| Notice::Failed(reply, LockError::Unanswered)));
                    self.unanswered = true;
                    continue;
                }
                owned.late = true;
                let again = deadline + LATE_MAX;
                owned.deadline = Some(again);
                self.deadlines.insert((again, id));
                self.client.release(clock::now(), id, &mut self.actions);
            }
        }
    }

    /// Carries out the client's commands.
    fn carry(&mut self) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                match action {
                    Action::Connect { server } => self.connect(server),
                    Action::Send { server, call, message } => self.send(server, call, message),
                    Action::Held(id) => self.held(id),
                    Action::Ended(id, ended) => self.over(id, ended),
                    Action::Lost { server } => {
                        let why = format!(
                            "its lease at the lock server {} was not renewed in time, or it was broken there",
                            self.reached
                                .servers
                                .get(server as usize)
                                .map_or_else(String::new, Address::to_string)
                        );
                        self.state.lose(why);
                    }
                }
            }
        }
    }

    fn line(&mut self, server: u32) -> Option<&mut Line> {
        let address = self.reached.servers.get(server as usize)?;
        let line = self.lines.entry(server).or_insert_with(|| {
            let keeper = Waker::from(self.reached.kick.clone());
            Line::new(Link::shared(
                address.clone(),
                (),
                self.reached.options.clone(),
                self.reached.host.clone(),
                keeper,
            ))
        });
        Some(line)
    }

    fn connect(&mut self, server: u32) {
        let (slot, shared) = (self.reached.slot, self.shared.upgrade());
        let line = self.line(server).map(|line| (line.link.clone(), line.broken.clone()));
        if let (Some((link, broken)), Some(shared)) = (line, shared) {
            shared.need();
            self.runtime.spawn(watch(shared, link, server, slot, broken));
        }
    }

    fn send(&mut self, server: u32, number: u64, message: Call) {
        let description = match &message {
            Call::Acquire { spec: Some(spec), .. } | Call::Assert { spec, .. } => self.description(spec),
            _ => Ok(Bytes::new()),
        };
        let description = match description {
            Ok(description) => description,
            // Requests have been checked; what is left has fewer regions than a list may have.
            Err(error) => return self.fail(&StoreError::new(ErrorKind::Invalid, error.to_string())),
        };
        let Some(line) = self.line(server) else { return };
        let posted = match line.waiting.is_empty() {
            true => post(&line.link, number, &message, &description),
            false => Ok(false),
        };
        match posted {
            Ok(true) => {
                line.encoded_bytes += CALL_BYTES + description.len();
                if line.encoded_bytes >= AHEAD_BYTES {
                    // If the connection breaks now, whoever sends the rest takes note of it.
                    line.link.flush();
                    line.encoded_bytes = 0;
                }
                if self.touched.last() != Some(&server) {
                    self.touched.push(server);
                }
            }
            Ok(false) => {
                // A renewal does not stand in line: the lease would lapse behind a large request.
                match message {
                    Call::Renew => line.waiting.push_front((number, message, description)),
                    _ => line.waiting.push_back((number, message, description)),
                }
                self.waiting += 1;
            }
            Err(error) => match error.kind {
                // The connection is gone, which is news of its own.
                ErrorKind::Unavailable | ErrorKind::Closed => {}
                _ => self.fail(&error),
            },
        }
    }

    /// Returns the description of a request's pattern: that of its operation if it is the whole.
    fn description(&self, spec: &LockSpec) -> Result<Bytes, crate::PatternError> {
        let whole = self
            .client
            .operation(spec.operation)
            .is_some_and(|operation| operation.wanted().method == Method::Datatype);
        let owned = self.owned.get(&spec.operation).filter(|_| whole);
        described(&spec.pattern, owned.map(|owned| &owned.description))
    }

    fn held(&mut self, id: OperationId) {
        let Some(owned) = self.owned.get_mut(&id) else { return };
        if owned.late {
            // It is being given back.
            return;
        }
        if let Some(deadline) = owned.deadline.take() {
            self.deadlines.remove(&(deadline, id));
        }
        // The caller may be gone: then nobody holds it.
        match owned.reply.take() {
            Some(reply) => self.notices.push(Notice::Had(id, reply)),
            None => self.client.release(clock::now(), id, &mut self.actions),
        }
    }

    fn over(&mut self, id: OperationId, ended: Ended) {
        let Some(owned) = self.owned.remove(&id) else { return };
        self.tickets.remove(&owned.ticket);
        if let Some(deadline) = owned.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if let Some(reply) = owned.reply {
            let error = match ended {
                Ended::Released if owned.late => LockError::TimedOut,
                Ended::WouldWait => LockError::WouldWait,
                Ended::Refused(refusal) => LockError::Refused(refusal),
                Ended::Released | Ended::Lost => {
                    let why = self.state.lost.get().cloned();
                    let why = why.unwrap_or_else(|| "it was released".to_owned());
                    LockError::Lost { session: self.state.session.0, why }
                }
            };
            self.notices.push(Notice::Failed(reply, error));
        }
        if let Some(released) = owned.released {
            self.notices.push(Notice::Released(released));
        }
    }
}
