//! Histories of a cluster, from a seed: messages take random times; connections break; servers and clients crash; clients pause for longer
//! than their leases; records take long to be durable, or never are before a crash; clocks have any offset and drift as much as leases
//! allow for.
//!
//! Checked:
//!
//! - safety: whenever a client is told that it holds its lock, no other may write or rely on one of its bytes in a conflicting
//!   mode. A writer, alive or not, may write until it has released or the store refuses it by its fence; a reader relies on its
//!   lock until it has released or its lease is over by its own clock.
//! - liveness: when the faults are over, every client comes to the end of its work.
//! - in the end the servers are empty.

mod host;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::client::{Client, DRIFT_PER_MILLE, Method, OperationId, Protocol};
use crate::message::{Call, FileName, Reply, SessionId};
use crate::server::{Backlog, CallId, Record, Server, Settings};
use crate::table::{Indexing, Mode};
use crate::{Pattern, Stripe};

/// A cluster and what happens to it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of clients.
    pub clients: usize,
    /// The number of servers.
    pub servers: u32,
    /// The number of operations of each client.
    pub operations: usize,
    /// The bytes of a file that are locked: those of the next file follow in place, so that files spread over the servers.
    pub file_bytes: u64,
    /// The number of consecutive bytes that are one server's.
    pub stripe_bytes: u64,
    /// The number of files.
    pub files: usize,
    /// The method of all operations; each draws its own if none.
    pub method: Option<Method>,
    /// The protocol of all operations; each draws its own if none.
    pub protocol: Option<Protocol>,
    /// The number of faults.
    pub faults: usize,
    /// True if the faults are only that servers cannot make records durable for a while.
    pub only_records: bool,
    /// The rule that is broken.
    pub broken: Broken,
}

/// A rule that is broken, to see that the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// None.
    Nothing,
    /// Locks of lapsed sessions are released though no fence was raised.
    NoFence,
    /// A restarted server grants at once.
    NoGrace,
    /// A restarted server has lost its records.
    NoRecords,
    /// Servers tell of locks before their records are durable.
    NoWait,
}

/// The events of a history, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that arrived.
    pub messages: u64,
    /// Operations that held all their bytes.
    pub held: u64,
    /// Operations that ended without that.
    pub not_held: u64,
    /// Sessions that were lost.
    pub lost: u64,
    /// Fences raised.
    pub fences: u64,
    /// Restarts of servers.
    pub restarts: u64,
}

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two clients may use a byte in conflicting modes.
    Safety {
        /// The sessions.
        sessions: [SessionId; 2],
        /// The byte.
        byte: u64,
    },
    /// Clients did not come to the end of their work.
    Stuck {
        /// Their number.
        clients: usize,
    },
    /// A server has requests when all have ended.
    LeftBehind {
        /// The server.
        server: u32,
    },
}

/// The time after the last fault within which all work must be done. In a cluster where it is not, nothing happens any more.
const PATIENCE: Duration = Duration::from_secs(36_000);

/// A server with its clock and what it keeps durably.
struct Host {
    server: Option<Server>,
    epoch: u64,
    clock: Clock,
    records: BTreeMap<SessionId, BTreeSet<FileName>>,
    /// True once an epoch is on record.
    has_begun: bool,
    backlog: Backlog,
    /// The records that are being written, and true if the epoch is among them.
    writing: Option<(bool, Vec<Record>)>,
    /// Nothing becomes durable before this.
    stuck_until: Duration,
    /// True if it crashes amid its next outputs.
    doomed: bool,
    /// The time and the number of the next event that only tells the time.
    tick: Option<(Duration, u64)>,
}

/// A client with its clock and its work.
struct Worker {
    client: Client,
    clock: Clock,
    /// The number of clients that were before this one in its place.
    incarnation: u32,
    operations_left: usize,
    current: Option<OperationId>,
    paused_until: Duration,
    /// The time and the number of the next event that only tells the time.
    tick: Option<(Duration, u64)>,
}

/// A clock that drifts.
#[derive(Clone, Copy)]
struct Clock {
    offset: Duration,
    /// The drift, in millionths of true time.
    rate: u32,
}

impl Clock {
    fn random(random: &mut StdRng) -> Self {
        let drift = DRIFT_PER_MILLE * 1000;
        Self {
            offset: Duration::from_millis(random.random_range(0..1_000_000)),
            rate: random.random_range(1_000_000 - drift..=1_000_000 + drift),
        }
    }

    fn local(&self, truth: Duration) -> Duration {
        self.offset + truth * self.rate / 1_000_000
    }

    /// A true time at which the clock shows at least this.
    fn truth(&self, local: Duration) -> Duration {
        local.saturating_sub(self.offset) * 1_000_000 / self.rate + Duration::from_micros(2)
    }
}

/// An operation that may use its bytes.
struct User {
    session: SessionId,
    worker: usize,
    operation: OperationId,
    file: FileName,
    mode: Mode,
    pattern: Pattern,
}

/// A connection of a worker to a server.
#[derive(Default)]
struct Connection {
    /// Grows when it breaks, so that what was on its way does not arrive.
    generation: u64,
    up: bool,
    /// The client wants to be connected.
    wanted: bool,
    /// The client cannot be connected before this.
    cut_until: Duration,
    /// The latest arrival at the server, and at the client: messages keep their order.
    latest: [Duration; 2],
}

enum Event {
    ToServer {
        worker: usize,
        server: u32,
        generation: u64,
        call: u64,
        message: Call,
    },
    ToClient {
        worker: usize,
        server: u32,
        generation: u64,
        call: u64,
        reply: Reply,
    },
    Connect {
        worker: usize,
        server: u32,
    },
    ServerTick {
        server: u32,
    },
    ClientTick {
        worker: usize,
    },
    /// The client begins an operation.
    Begin {
        worker: usize,
        incarnation: u32,
    },
    /// The client releases its lock, or gives up.
    Release {
        worker: usize,
        incarnation: u32,
        operation: OperationId,
    },
    /// A new client in the place of one that is gone.
    Replace {
        worker: usize,
    },
    Fenced {
        server: u32,
        epoch: u64,
        session: SessionId,
        file: FileName,
    },
    /// The records that a server writes are durable.
    Written {
        server: u32,
        epoch: u64,
    },
    Restart {
        server: u32,
    },
    Fault,
}

struct History<'a> {
    plan: &'a Plan,
    random: StdRng,
    now: Duration,
    events: BTreeMap<(Duration, u64), Event>,
    events_created: u64,
    hosts: Vec<Host>,
    workers: Vec<Worker>,
    connections: BTreeMap<(usize, u32), Connection>,
    /// The calls that servers have not answered: worker, server, generation of the connection, call of the client.
    calls: BTreeMap<CallId, (usize, u32, u64, u64)>,
    calls_created: CallId,
    users: Vec<User>,
    fences: BTreeSet<(SessionId, FileName)>,
    sessions_created: u64,
    faults_left: usize,
    /// The workers that have operations left.
    working: usize,
    counts: Counts,
    violation: Option<Violation>,
}

/// Runs a history to its end.
///
/// # Errors
///
/// The first violation.
pub fn run(plan: &Plan, seed: u64) -> Result<Counts, Violation> {
    let mut history = History::new(plan, seed);
    history.run()?;
    Ok(history.counts)
}

impl<'a> History<'a> {
    fn new(plan: &'a Plan, seed: u64) -> Self {
        let mut history = Self {
            plan,
            random: StdRng::seed_from_u64(seed),
            now: Duration::ZERO,
            events: BTreeMap::new(),
            events_created: 0,
            hosts: Vec::new(),
            workers: Vec::new(),
            connections: BTreeMap::new(),
            calls: BTreeMap::new(),
            calls_created: 0,
            users: Vec::new(),
            fences: BTreeSet::new(),
            sessions_created: 0,
            faults_left: plan.faults,
            working: if plan.operations > 0 { plan.clients } else { 0 },
            counts: Counts::default(),
            violation: None,
        };
        for server in 0..plan.servers {
            let server = Server::new(history.settings(server, 1));
            let (clock, records) = (Clock::random(&mut history.random), BTreeMap::new());
            let host = Host {
                server: Some(server),
                epoch: 1,
                clock,
                records,
                has_begun: false,
                backlog: Backlog::default(),
                writing: None,
                stuck_until: Duration::ZERO,
                doomed: false,
                tick: None,
            };
            history.hosts.push(host);
        }
        for worker in 0..plan.clients {
            let client = history.new_client();
            history.workers.push(Worker {
                client,
                clock: Clock::random(&mut history.random),
                incarnation: 0,
                operations_left: plan.operations,
                current: None,
                paused_until: Duration::ZERO,
                tick: None,
            });
            history.later_up_to(1000, Event::Begin { worker, incarnation: 0 });
        }
        if plan.faults > 0 {
            history.later_up_to(5000, Event::Fault);
        }
        history
    }

    fn settings(&self, server: u32, epoch: u64) -> Settings {
        let stripe = Stripe { bytes: self.plan.stripe_bytes, servers: self.plan.servers, server };
        let indexing = if server.is_multiple_of(2) { Indexing::Described } else { Indexing::Unrolled };
        Settings { epoch, stripe, indexing, ..Settings::default() }
    }

    fn new_client(&mut self) -> Client {
        self.sessions_created += 1;
        Client::new(SessionId(self.sessions_created), self.plan.servers)
    }

    fn at(&mut self, time: Duration, event: Event) {
        self.events_created += 1;
        self.events.insert((time, self.events_created), event);
    }

    fn later_up_to(&mut self, milliseconds: u64, event: Event) {
        let delay = Duration::from_micros(self.random.random_range(1..=milliseconds * 1000));
        self.at(self.now + delay, event);
    }

    fn run(&mut self) -> Result<(), Violation> {
        let mut deadline = None;
        while let Some(((time, number), event)) = self.events.pop_first() {
            self.now = time;
            let worker = match &event {
                Event::ToClient { worker, .. } | Event::ClientTick { worker, .. } => Some(*worker),
                Event::Begin { worker, .. } | Event::Release { worker, .. } => Some(*worker),
                Event::Connect { worker, .. } => Some(*worker),
                _ => None,
            };
            // A client that pauses takes everything later, in the same order.
            if let Some(until) = worker.map(|worker| self.workers[worker].paused_until)
                && until > time
            {
                self.events.insert((until, number), event);
                continue;
            }
            self.take(number, event);
            if let Some(violation) = self.violation.take() {
                return Err(violation);
            }
            if self.working == 0 {
                break;
            }
            if self.faults_left == 0 && time > *deadline.get_or_insert(time + PATIENCE) {
                return Err(Violation::Stuck { clients: self.working });
            }
        }
        if self.working > 0 {
            return Err(Violation::Stuck { clients: self.working });
        }
        self.finish()
    }

    /// Waits until all leases are over, and looks for what is left.
    fn finish(&mut self) -> Result<(), Violation> {
        for worker in 0..self.workers.len() {
            self.workers[worker].client.close(&mut Vec::new());
        }
        let end = self.now + Duration::from_secs(120);
        for host in &mut self.hosts {
            host.doomed = false;
        }
        while let Some(((time, number), event)) = self.events.pop_first() {
            if time > end {
                break;
            }
            self.now = time;
            if !matches!(event, Event::Fault) {
                self.take(number, event);
            }
        }
        for (server, host) in self.hosts.iter().enumerate() {
            let counts = host.server.as_ref().map(Server::request_counts);
            if counts != Some((0, 0)) || !host.records.is_empty() {
                return Err(Violation::LeftBehind { server: server as u32 });
            }
        }
        Ok(())
    }

    fn take(&mut self, number: u64, event: Event) {
        match event {
            Event::ToServer { worker, server, generation, call, message } => {
                self.deliver(worker, server, generation, call, message);
            }
            Event::ToClient { worker, server, generation, call, reply } => {
                if self.connections[&(worker, server)].generation == generation {
                    self.counts.messages += 1;
                    self.with_client(worker, |client, now, actions| client.handle(now, call, reply, actions));
                }
            }
            Event::Connect { worker, server } => self.connect(worker, server),
            Event::ServerTick { server } => {
                if self.hosts[server as usize].tick.is_some_and(|tick| tick.1 == number) {
                    self.hosts[server as usize].tick = None;
                    self.with_server(server, |server, now, out| server.tick(now, out));
                }
            }
            Event::ClientTick { worker } => {
                if self.workers[worker].tick.is_some_and(|tick| tick.1 == number) {
                    self.workers[worker].tick = None;
                    self.with_client(worker, Client::tick);
                }
            }
            Event::Begin { worker, incarnation } => {
                let found = &self.workers[worker];
                if found.incarnation == incarnation && found.operations_left > 0 {
                    self.begin(worker);
                }
            }
            Event::Release { worker, incarnation, operation } => {
                let found = &self.workers[worker];
                if found.incarnation == incarnation && found.current == Some(operation) {
                    let session = found.client.session();
                    self.users.retain(|user| user.session != session || user.operation != operation);
                    self.with_client(worker, |client, now, actions| client.release(now, operation, actions));
                }
            }
            Event::Replace { worker } => self.replace(worker),
            Event::Fenced { server, epoch, session, file } => {
                if self.plan.broken != Broken::NoFence {
                    self.users.retain(|user| user.session != session || user.file != file);
                    self.fences.insert((session, file.clone()));
                }
                self.counts.fences += 1;
                if self.hosts[server as usize].epoch == epoch {
                    self.with_server(server, |server, _, out| server.fenced(session, &file, out));
                }
            }
            Event::Written { server, epoch } => self.written(server, epoch),
            Event::Restart { server } => self.restart(server),
            Event::Fault => self.fault(),
        }
    }

    fn fault(&mut self) {
        self.faults_left -= 1;
        let worker = self.random.random_range(0..self.workers.len());
        let server = self.random.random_range(0..self.plan.servers);
        // Up to twice a lease.
        let span = Duration::from_millis(self.random.random_range(1..20_000));
        let fault = if self.plan.only_records { 5 } else { self.random.random_range(0..7) };
        match fault {
            0 => self.disconnect(worker, server, self.now + span),
            1 => {
                // Nobody reaches the server.
                for worker in 0..self.workers.len() {
                    self.disconnect(worker, server, self.now + span);
                }
            }
            2 => self.hosts[server as usize].doomed = true,
            3 => self.workers[worker].paused_until = self.now + span,
            4 => self.replace(worker),
            5 => self.hosts[server as usize].stuck_until = self.now + span,
            _ => {
                let session = self.workers[worker].client.session();
                self.with_server(server, |server, _, out| _ = server.break_session(session, out));
            }
        }
        if self.faults_left > 0 {
            self.later_up_to(8000, Event::Fault);
        }
    }
}
