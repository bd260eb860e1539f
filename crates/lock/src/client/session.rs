//! A client with its sessions at all lock servers, and the operations under way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Acquisition, Lease, Order, Outcome, Wanted};
use crate::PatternError;
use crate::message::{Call, Refusal, Reply, RequestNumber, SessionId};

/// The number of an operation.
pub type OperationId = u64;

/// A message to send, or news of an operation.
#[derive(Clone, Debug)]
pub enum Action {
    /// Connects to a server, and again whenever the connection breaks, and calls [`Client::connected`] then.
    Connect {
        /// The server.
        server: u32,
    },
    /// Sends a call to a server, whose reply is given to [`Client::handle`] with the same number.
    Send {
        /// The server.
        server: u32,
        /// The number of the call.
        call: u64,
        /// The call.
        message: Call,
    },
    /// The operation holds all its bytes.
    Held(OperationId),
    /// The operation is over and holds nothing.
    Ended(OperationId, Ended),
    /// The session is gone at a server, and with it every lock that it held. Operations fail from now on.
    Lost {
        /// The server.
        server: u32,
    },
}

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A lock that was released.
    Released,
    /// Others hold some of the bytes, and it does not wait.
    WouldWait,
    /// A server refused.
    Refused(Refusal),
    /// The session is lost.
    Lost,
}

/// A client. Times are durations since any one moment, by a clock that goes on while the machine sleeps.
///
/// It opens a session at a server when an operation needs it, once more if the answer took most of the lease, renews the lease in the
/// background, and counts the lease by its own clock. When one lease is gone the whole session is: its fence keeps out what it still sends
/// anywhere. It asserts its locks at a server that restarted.
#[derive(Clone, Debug)]
pub struct Client {
    session: SessionId,
    servers: u32,
    /// The servers that an operation has needed so far.
    links: BTreeMap<u32, Link>,
    /// The next time at which there is something to do about a server.
    deadlines: BTreeSet<(Duration, u32)>,
    operations: BTreeMap<OperationId, Operation>,
    calls: BTreeMap<u64, Expected>,
    calls_created: u64,
    operations_created: OperationId,
    requests_created: RequestNumber,
    lost: bool,
}

/// An operation that is not over.
#[derive(Clone, Debug)]
struct Operation {
    acquisition: Acquisition,
    /// True if its owner knows that all is held.
    reported: bool,
}

/// A client's knowledge of a server.
#[derive(Clone, Debug, Default)]
struct Link {
    connected: bool,
    state: LinkState,
    epoch: u64,
    lease: Option<Lease>,
    /// Its entry among the deadlines.
    deadline: Option<Duration>,
    /// Assertions that are not answered yet.
    asserting: usize,
    /// True if the server, which restarted, does not know all yet that is held there.
    asserts: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinkState {
    /// No session is needed.
    #[default]
    Idle,
    /// The session is being opened, or found again.
    Opening,
    /// Locks are being asserted.
    Asserting,
    Open,
}

/// The reply that a call expects.
#[derive(Clone, Debug)]
enum Expected {
    /// The call that opens or renews, sent at a time.
    Open(u32, Duration),
    Assert(u32),
    Asserted(u32),
    Close(u32),
    Order(u32, OperationId, RequestNumber, u32),
}

impl Expected {
    fn server(&self) -> u32 {
        match self {
            Expected::Open(server, _) | Expected::Order(server, ..) => *server,
            Expected::Assert(server) | Expected::Asserted(server) | Expected::Close(server) => *server,
        }
    }
}

impl Client {
    /// Creates a client of a number of servers, to none of which it is connected. The number of its session is new.
    pub fn new(session: SessionId, servers: u32) -> Self {
        Self {
            session,
            servers,
            links: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            operations: BTreeMap::new(),
            calls: BTreeMap::new(),
            calls_created: 0,
            operations_created: 0,
            requests_created: 0,
            lost: false,
        }
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Returns whether the session is lost or closed. It does not come back; a new client takes its place.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// An operation that is not over.
    pub fn operation(&self, operation: OperationId) -> Option<&Acquisition> {
        self.operations.get(&operation).map(|operation| &operation.acquisition)
    }

    /// The newest of the operations that are not over.
    pub fn newest_operation(&self) -> Option<OperationId> {
        self.operations.last_key_value().map(|newest| *newest.0)
    }

    /// Begins an operation; its number and that of its first request are set here. An operation of a lost session ends at
    /// once.
    ///
    /// # Errors
    ///
    /// The pattern cannot be cut into the servers' stripes.
    pub fn lock(
        &mut self,
        now: Duration,
        mut wanted: Wanted,
        actions: &mut Vec<Action>,
    ) -> Result<OperationId, PatternError> {
        self.operations_created += 1;
        let id = self.operations_created;
        wanted.operation = id;
        wanted.first_number = self.requests_created + 1;
        wanted.servers = self.servers;
        let mut acquisition = Acquisition::new(wanted)?;
        self.requests_created += acquisition.parts().len() as u64;
        self.tick(now, actions);
        if self.lost {
            actions.push(Action::Ended(id, Ended::Lost));
            return Ok(id);
        }
        let mut orders = Vec::new();
        acquisition.begin(&mut orders);
        self.operations.insert(id, Operation { acquisition, reported: false });
        self.advance(now, id, orders, actions);
        Ok(id)
    }

    /// Releases what an operation holds, whether it has all of it or not. A wait ends.
    pub fn release(&mut self, now: Duration, operation: OperationId, actions: &mut Vec<Action>) {
        let mut orders = Vec::new();
        if let Some(released) = self.operations.get_mut(&operation) {
            released.acquisition.release(&mut orders);
            self.advance(now, operation, orders, actions);
        }
    }

    /// Ends the session at all servers, and with it all operations. To be called when nothing that was written under a lock
    /// is still on its way. A server that cannot be reached waits for the lease to lapse.
    ///
    /// A session that is lost lapses at all of them, and is fenced: its owner was promised that what is still on its way is refused.
    pub fn close(&mut self, actions: &mut Vec<Action>) {
        for server in self.linked() {
            if !self.lost && self.link(server).state == LinkState::Open && self.link(server).connected {
                self.call(server, Call::Close, Expected::Close(server), actions);
            }
            *self.link(server) = Link::default();
        }
        for id in std::mem::take(&mut self.operations).into_keys() {
            actions.push(Action::Ended(id, Ended::Released));
        }
        self.lost = true;
    }

    /// Gives the session up without a word to the servers, and with it all operations, because what was written under its locks may
    /// still be on its way: it lapses there, and is fenced.
    pub fn abandon(&mut self, actions: &mut Vec<Action>) {
        self.lost = true;
        self.calls.clear();
        for id in std::mem::take(&mut self.operations).into_keys() {
            actions.push(Action::Ended(id, Ended::Lost));
        }
    }

    /// Notes that there is a connection to a server. What an earlier one lost is sent again.
    pub fn connected(&mut self, now: Duration, server: u32, actions: &mut Vec<Action>) {
        self.link(server).connected = true;
        if self.link(server).state != LinkState::Idle && !self.lost {
            let known = self.link(server).lease.is_some();
            self.link(server).state = LinkState::Opening;
            self.open(now, server, known, actions);
        }
        self.schedule(server);
    }

    /// Notes that the connection to a server is gone, with all calls that are not answered.
    pub fn disconnected(&mut self, server: u32) {
        let link = self.link(server);
        link.connected = false;
        link.asserting = 0;
        self.calls.retain(|_, expected| expected.server() != server);
        self.schedule(server);
    }

    /// Returns whether all leases hold at a time, so that locks that are held can be relied on.
    pub fn holds(&self, now: Duration) -> bool {
        !self.lost && self.links.values().all(|link| link.lease.is_none_or(|lease| !lease.is_over(now)))
    }

    /// The time at which the first lease ends, and with it the session; none without a lease.
    pub fn ends(&self) -> Option<Duration> {
        self.links.values().filter_map(|link| link.lease.map(|lease| lease.ends())).min()
    }

    /// Returns whether the session has a lease at a server.
    pub fn has_lease(&self, server: u32) -> bool {
        self.links.get(&server).is_some_and(|link| link.lease.is_some())
    }

    /// Returns whether every call is answered.
    pub fn is_answered(&self) -> bool {
        self.calls.is_empty()
    }

    /// The next time at which [`Client::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().filter(|_| !self.lost).map(|first| first.0)
    }

    /// Renews the leases that are due, and takes note of those that are gone. To be called before locks are relied on.
    pub fn tick(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.lost {
            return;
        }
        while let Some((due, server)) = self.deadlines.first().copied()
            && due <= now
        {
            let link = self.link(server);
            let renews = link.connected && link.state == LinkState::Open;
            if let Some(lease) = &mut link.lease {
                if lease.is_over(now) {
                    self.lose(server, actions);
                    return;
                }
                if renews {
                    lease.sent_renewal(now);
                    self.call(server, Call::Renew, Expected::Open(server, now), actions);
                }
            }
            self.schedule(server);
        }
    }

    /// Sets the deadline of a server by its lease: the next renewal if one can be sent, else the lease's end.
    fn schedule(&mut self, server: u32) {
        let link = self.links.entry(server).or_default();
        let renews = link.connected && link.state == LinkState::Open;
        let due = |lease: Lease| if renews { lease.renew_at().min(lease.ends()) } else { lease.ends() };
        let deadline = link.lease.map(due);
        if let Some(before) = std::mem::replace(&mut link.deadline, deadline) {
            self.deadlines.remove(&(before, server));
        }
        self.deadlines.extend(deadline.map(|deadline| (deadline, server)));
    }

    /// Takes the reply to a call.
    pub fn handle(&mut self, now: Duration, call: u64, reply: Reply, actions: &mut Vec<Action>) {
        self.tick(now, actions);
        let Some(expected) = self.calls.remove(&call) else { return };
        if self.lost {
            return;
        }
        let server = expected.server();
        self.handle_expected(now, expected, reply, actions);
        self.schedule(server);
    }

    fn handle_expected(
        &mut self,
        now: Duration,
        expected: Expected,
        reply: Reply,
        actions: &mut Vec<Action>,
    ) {
        match expected {
            Expected::Open(server, sent) => self.handle_open(now, server, sent, reply, actions),
            Expected::Assert(server) | Expected::Asserted(server) => {
                let last = matches!(expected, Expected::Asserted(_));
                match reply {
                    Reply::Refused(Refusal::GraceOver) if last && self.link(server).asserting == 0 => {}
                    Reply::Refused(_) => return self.lose(server, actions),
                    _ => {}
                }
                if last {
                    self.resume(now, server, actions);
                }
            }
            Expected::Close(_) => {}
            Expected::Order(server, id, number, serial) => match reply {
                Reply::Refused(Refusal::Lapsed) => self.lose(server, actions),
                Reply::Refused(Refusal::UnknownSession { epoch }) => {
                    self.restarted(now, server, epoch, actions);
                }
                reply => {
                    let mut orders = Vec::new();
                    if let Some(operation) = self.operations.get_mut(&id) {
                        operation.acquisition.handle(number, serial, reply, &mut orders);
                    }
                    self.advance(now, id, orders, actions);
                }
            },
        }
    }

    fn handle_open(
        &mut self,
        now: Duration,
        server: u32,
        sent: Duration,
        reply: Reply,
        actions: &mut Vec<Action>,
    ) {
        match reply {
            Reply::Open { epoch, lease } => {
                let link = self.link(server);
                // The answer waits for the server's epoch to be on record, which may take longer than the lease, and the server
                // may have dropped the session by now. Nothing is held there, so that is no loss of what is held elsewhere.
                if link.lease.is_none() && Lease::new(sent, lease).is_stale(sent, now) {
                    return self.open(now, server, false, actions);
                }
                match &mut link.lease {
                    Some(known) if link.epoch == epoch => known.renew(sent, lease),
                    // A server that was started again may give a shorter one than it gave before.
                    _ => link.lease = Some(Lease::new(sent, lease)),
                }
                // A connection that breaks amid the assertions leaves them to the next one.
                link.asserts |= link.epoch != 0 && link.epoch != epoch;
                link.epoch = epoch;
                let asserts = link.asserts;
                if link.state != LinkState::Opening {
                    return;
                }
                if asserts {
                    self.assert_all(server, actions);
                } else {
                    self.resume(now, server, actions);
                }
            }
            Reply::Refused(Refusal::UnknownSession { epoch }) => {
                self.restarted(now, server, epoch, actions);
            }
            // A server that is full has no session of this client, which has nothing to lose there.
            Reply::Refused(refusal @ Refusal::Full(_)) if self.link(server).lease.is_none() => {
                *self.link(server) = Link { connected: true, ..Link::default() };
                self.give_up(now, server, &Outcome::Refused(refusal), actions);
            }
            _ => self.lose(server, actions),
        }
    }

    /// Handles a server's answer that it does not know the session. If that is because it restarted, the session is opened again.
    fn restarted(&mut self, now: Duration, server: u32, epoch: u64, actions: &mut Vec<Action>) {
        let link = self.link(server);
        if epoch <= link.epoch {
            return self.lose(server, actions);
        }
        if link.state == LinkState::Open || link.state == LinkState::Opening {
            link.state = LinkState::Opening;
            let awaited =
                self.calls.values().any(|call| matches!(call, Expected::Open(at, _) if *at == server));
            if !awaited {
                self.open(now, server, false, actions);
            }
        }
    }

    fn open(&mut self, now: Duration, server: u32, known: bool, actions: &mut Vec<Action>) {
        let message = if known { Call::Renew } else { Call::Open };
        self.call(server, message, Expected::Open(server, now), actions);
    }

    /// Asserts, at a server that restarted, everything that is held there.
    fn assert_all(&mut self, server: u32, actions: &mut Vec<Action>) {
        let asserts: Vec<Call> =
            self.operations.values().flat_map(|operation| operation.acquisition.assert(server)).collect();
        let link = self.link(server);
        link.state = LinkState::Asserting;
        link.asserting = asserts.len();
        for message in asserts {
            self.call(server, message, Expected::Assert(server), actions);
        }
        self.call(server, Call::Asserted, Expected::Asserted(server), actions);
    }

    /// Sends what waited for the session, and again what is unanswered.
    fn resume(&mut self, now: Duration, server: u32, actions: &mut Vec<Action>) {
        let link = self.link(server);
        link.state = LinkState::Open;
        link.asserting = 0;
        link.asserts = false;
        // Replies to calls from before are not waited for: all that is unanswered goes again.
        self.calls.retain(|_, expected| !matches!(expected, Expected::Order(at, ..) if *at == server));
        let ids: Vec<OperationId> = self.operations.keys().copied().collect();
        for id in ids {
            let mut orders = Vec::new();
            if let Some(operation) = self.operations.get_mut(&id) {
                operation.acquisition.repeat(server, &mut orders);
            }
            self.advance(now, id, orders, actions);
        }
    }

    /// Sends the orders of an operation, and tells what has become of it.
    fn advance(&mut self, now: Duration, id: OperationId, orders: Vec<Order>, actions: &mut Vec<Action>) {
        for order in orders {
            let server = order.server;
            let link = self.link(server);
            match link.state {
                LinkState::Open if link.connected => {
                    let expected = Expected::Order(server, id, order.number, order.serial);
                    self.call(server, order.call, expected, actions);
                }
                // It is unanswered, and goes when the session is open.
                LinkState::Open | LinkState::Opening | LinkState::Asserting => {}
                LinkState::Idle => {
                    link.state = LinkState::Opening;
                    if link.connected {
                        self.open(now, server, false, actions);
                    } else {
                        actions.push(Action::Connect { server });
                    }
                }
            }
        }
        let Some(operation) = self.operations.get_mut(&id) else { return };
        let ended = match operation.acquisition.outcome() {
            Outcome::Held if !operation.reported => {
                operation.reported = true;
                return actions.push(Action::Held(id));
            }
            Outcome::Pending | Outcome::Held => return,
            Outcome::Released => Ended::Released,
            Outcome::WouldWait => Ended::WouldWait,
            Outcome::Refused(refusal) => Ended::Refused(refusal),
        };
        self.operations.remove(&id);
        actions.push(Action::Ended(id, ended));
    }

    /// Gives up the operations that wait for a server at which the session was never opened, and which cannot be reached: they
    /// hold nothing there. They end as released.
    pub fn unreachable(&mut self, now: Duration, server: u32, actions: &mut Vec<Action>) {
        if !self.has_lease(server) {
            self.give_up(now, server, &Outcome::Released, actions);
        }
    }

    /// Ends the operations that need a server at which there is no session.
    fn give_up(&mut self, now: Duration, server: u32, outcome: &Outcome, actions: &mut Vec<Action>) {
        let ids: Vec<OperationId> = self.operations.keys().copied().collect();
        for id in ids {
            let mut orders = Vec::new();
            if let Some(operation) = self.operations.get_mut(&id) {
                operation.acquisition.give_up(server, outcome, &mut orders);
            }
            self.advance(now, id, orders, actions);
        }
    }

    /// Takes the session for lost, everywhere.
    fn lose(&mut self, server: u32, actions: &mut Vec<Action>) {
        if self.lost {
            return;
        }
        actions.push(Action::Lost { server });
        self.abandon(actions);
    }

    fn call(&mut self, server: u32, message: Call, expected: Expected, actions: &mut Vec<Action>) {
        self.calls_created += 1;
        self.calls.insert(self.calls_created, expected);
        actions.push(Action::Send { server, call: self.calls_created, message });
    }

    fn linked(&self) -> Vec<u32> {
        self.links.keys().copied().collect()
    }

    fn link(&mut self, server: u32) -> &mut Link {
        self.links.entry(server).or_default()
    }
}
