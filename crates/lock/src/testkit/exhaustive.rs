//! Every order of events of a small system.
//!
//! A few clients lock and release one pattern each. Messages between a client and a server keep their order and are
//! otherwise delivered in any; a client that holds its lock releases it at any time. The search visits every state once and
//! checks:
//!
//! - safety: no two clients hold a byte in conflicting modes, neither by what they were told nor by a server's table;
//! - freedom from deadlock: where nothing can happen any more, every client has had its lock and released it, and the
//!   servers are empty;
//! - freedom from livelock: no state is reached again from itself, so every order of events comes to an end.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::client::{Acquisition, Method, Order, Outcome, Protocol, Wanted};
use crate::message::{Call, FileName, Reply, RequestNumber, SessionId};
use crate::server::{CallId, Output, Server, Settings};
use crate::table::{Indexing, Mode};
use crate::{Pattern, Stripe};

/// A small system.
#[derive(Clone, Debug)]
pub struct System {
    /// The number of servers.
    pub servers: u32,
    /// The number of consecutive bytes that are one server's.
    pub stripe_bytes: u64,
    /// The servers' way to index what is held.
    pub indexing: Indexing,
    /// The pattern that each client locks.
    pub clients: Vec<(Mode, Pattern)>,
    /// The way in which they describe it.
    pub method: Method,
    /// The protocol.
    pub protocol: Protocol,
    /// True if the first client may give up while it waits.
    pub first_may_give_up: bool,
    /// The rule that is broken.
    pub broken: Broken,
}

/// A rule that is broken, to see that the search notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// None.
    Nothing,
    /// Bytes out of order are not released.
    KeepsOutOfOrder,
    /// No request waits; every client tries again.
    NeverWaits,
    /// The servers take every lock for a shared one.
    AllShared,
}

/// Counts of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The number of states.
    pub states: usize,
    /// The number of them in which nothing can happen any more.
    pub ends: usize,
    /// The greatest number of events in a row.
    pub depth: usize,
}

/// A rule that does not hold, with the events that led there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The events.
    pub events: Vec<Event>,
}

/// A rule that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Two clients hold a byte in conflicting modes.
    Safety,
    /// Nothing can happen any more, and somebody has not had its lock, or something is left behind.
    Deadlock,
    /// A state leads to itself.
    Livelock,
    /// More states than the search may visit.
    TooManyStates,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The client begins.
    Begin(usize),
    /// The oldest message from a client to a server arrives.
    ToServer(usize, usize),
    /// The oldest message from a server to a client arrives.
    ToClient(usize, usize),
    /// The client releases its lock, or gives up.
    Release(usize),
}

/// The state of a system.
#[derive(Clone)]
struct World {
    servers: Vec<Server>,
    clients: Vec<Participant>,
    /// The messages on their way, by client and server.
    to_server: BTreeMap<(usize, usize), VecDeque<Order>>,
    to_client: BTreeMap<(usize, usize), VecDeque<Answer>>,
    /// The calls that are not answered: client, request and serial of each.
    calls: BTreeMap<CallId, (usize, RequestNumber, u32)>,
    calls_created: CallId,
}

/// A reply, with the number and the serial of what it answers.
type Answer = (RequestNumber, u32, Reply);

#[derive(Clone)]
struct Participant {
    acquisition: Acquisition,
    began: bool,
    releases: bool,
}

/// A state on the way to the one that the search looks at, and what is still to be tried from it.
struct Step {
    world: World,
    key: u128,
    choices: Vec<Event>,
    came_by: Option<Event>,
}

/// Visits every state of a system.
///
/// # Errors
///
/// The first violation found.
pub fn search(system: &System, states_max: usize) -> Result<Seen, Violation> {
    let mut seen = Seen { states: 0, ends: 0, depth: 0 };
    // Whether the search is below a state that it has met.
    let mut below: HashMap<u128, bool> = HashMap::new();
    let mut path: Vec<Step> = Vec::new();
    let mut arrived = Some((World::new(system), None));
    loop {
        if let Some((world, came_by)) = arrived.take() {
            let key = world.key();
            let violation = |rule| {
                let events = path.iter().filter_map(|step| step.came_by).chain(came_by).collect();
                Err(Violation { rule, events })
            };
            match below.get(&key) {
                Some(true) => return violation(Rule::Livelock),
                Some(false) => {}
                None => {
                    seen.states += 1;
                    if seen.states > states_max {
                        return violation(Rule::TooManyStates);
                    }
                    if !world.is_safe(system) {
                        return violation(Rule::Safety);
                    }
                    let choices = world.events(system);
                    if choices.is_empty() {
                        seen.ends += 1;
                        if !world.is_done() {
                            return violation(Rule::Deadlock);
                        }
                    }
                    below.insert(key, true);
                    path.push(Step { world, key, choices, came_by });
                    seen.depth = seen.depth.max(path.len());
                }
            }
        }
        let Some(step) = path.last_mut() else { return Ok(seen) };
        match step.choices.pop() {
            Some(event) => {
                let mut world = step.world.clone();
                world.apply(system, event);
                arrived = Some((world, Some(event)));
            }
            None => {
                below.insert(step.key, false);
                path.pop();
            }
        }
    }
}

impl World {
    fn new(system: &System) -> Self {
        let servers = (0..system.servers).map(|server| {
            let stripe = Stripe { bytes: system.stripe_bytes, servers: system.servers, server };
            let mut server =
                Server::new(Settings { stripe, indexing: system.indexing, ..Settings::default() });
            for client in 0..system.clients.len() {
                server.handle(Duration::ZERO, SessionId(client as u64), 0, Call::Open, &mut Vec::new());
            }
            server
        });
        let clients = system.clients.iter().map(|(mode, pattern)| {
            let wanted = Wanted {
                file: file(),
                operation: 1,
                first_number: 0,
                mode: *mode,
                pattern: pattern.clone(),
                stripe_bytes: system.stripe_bytes,
                servers: system.servers,
                method: system.method,
                protocol: system.protocol,
                waits: true,
            };
            // A system with an impossible stripe is a mistake of the test.
            let acquisition = Acquisition::new(wanted).expect("the stripe of a system is possible");
            Participant { acquisition, began: false, releases: false }
        });
        Self {
            servers: servers.collect(),
            clients: clients.collect(),
            to_server: BTreeMap::new(),
            to_client: BTreeMap::new(),
            calls: BTreeMap::new(),
            calls_created: 0,
        }
    }

    /// The events that can happen next.
    fn events(&self, system: &System) -> Vec<Event> {
        let mut events = Vec::new();
        for (index, client) in self.clients.iter().enumerate() {
            let gives_up = system.first_may_give_up && index == 0;
            if !client.began {
                events.push(Event::Begin(index));
            } else if !client.releases && (client.acquisition.outcome() == Outcome::Held || gives_up) {
                events.push(Event::Release(index));
            }
        }
        let filled = self.to_server.iter().filter(|(_, queue)| !queue.is_empty());
        events.extend(filled.map(|((client, server), _)| Event::ToServer(*client, *server)));
        let filled = self.to_client.iter().filter(|(_, queue)| !queue.is_empty());
        events.extend(filled.map(|((client, server), _)| Event::ToClient(*client, *server)));
        events
    }

    fn apply(&mut self, system: &System, event: Event) {
        let mut orders = Vec::new();
        let client = match event {
            Event::Begin(client) => {
                self.clients[client].began = true;
                self.clients[client].acquisition.begin(&mut orders);
                client
            }
            Event::Release(client) => {
                self.clients[client].releases = true;
                self.clients[client].acquisition.release(&mut orders);
                client
            }
            Event::ToServer(client, server) => {
                if let Some(order) = self.to_server.entry((client, server)).or_default().pop_front() {
                    self.deliver(system, client, server, order);
                }
                return;
            }
            Event::ToClient(client, server) => {
                let message = self.to_client.entry((client, server)).or_default().pop_front();
                if let Some((number, serial, reply)) = message {
                    self.clients[client].acquisition.handle(number, serial, reply, &mut orders);
                }
                client
            }
        };
        for order in orders {
            self.to_server.entry((client, order.server as usize)).or_default().push_back(order);
        }
    }

    fn deliver(&mut self, system: &System, client: usize, server: usize, order: Order) {
        let Order { number, serial, mut call, .. } = order;
        match (system.broken, &mut call) {
            (Broken::KeepsOutOfOrder, Call::ReleaseFrom { request, .. }) => {
                call = Call::Acquire { request: *request, spec: None, until: None };
            }
            (Broken::NeverWaits, Call::Acquire { until, .. }) => *until = None,
            (Broken::AllShared, Call::Acquire { spec: Some(spec), .. }) => spec.mode = Mode::Shared,
            _ => {}
        }
        self.calls_created += 1;
        self.calls.insert(self.calls_created, (client, number, serial));
        let mut out = Vec::new();
        let session = SessionId(client as u64);
        self.servers[server].handle(Duration::ZERO, session, self.calls_created, call, &mut out);
        for output in out {
            let Output::Reply { call, reply, .. } = output else { continue };
            if let Some((client, number, serial)) = self.calls.remove(&call) {
                self.to_client.entry((client, server)).or_default().push_back((number, serial, reply));
            }
        }
    }

    /// Returns whether no two clients hold a byte in conflicting modes.
    fn is_safe(&self, system: &System) -> bool {
        let conflict = |a: usize, b: usize| system.clients[a].0.conflicts(system.clients[b].0);
        for a in 0..self.clients.len() {
            for b in 0..a {
                let both = [a, b].map(|client| self.clients[client].acquisition.outcome() == Outcome::Held);
                let common = system.clients[a].1.first_common(&system.clients[b].1, 0);
                if both == [true, true] && conflict(a, b) && common.is_some() {
                    return false;
                }
            }
        }
        self.servers.iter().all(|server| {
            let listed = server.list(None, usize::MAX);
            let held = |at: usize| {
                let client = listed[at].session.0 as usize;
                let pattern = system.clients[client].1.restrict(server.settings().stripe).ok()?;
                let last = listed[at].progress.last?;
                Some((client, pattern, listed[at].bounds.0, last))
            };
            (0..listed.len()).all(|a| {
                (0..a).all(|b| {
                    let (Some(a), Some(b)) = (held(a), held(b)) else { return true };
                    let common = a.1.first_common(&b.1, a.2.max(b.2));
                    a.0 == b.0 || !conflict(a.0, b.0) || common.is_none_or(|byte| byte > a.3.min(b.3))
                })
            })
        })
    }

    /// Returns whether every client is done and nothing is left at a server.
    fn is_done(&self) -> bool {
        self.clients.iter().all(|client| client.acquisition.outcome() == Outcome::Released)
            && self.servers.iter().all(|server| server.request_counts() == (0, 0))
    }

    /// Returns the key of the state among others: all but the numbers that only count.
    fn key(&self) -> u128 {
        let [mut first, mut second] = [DefaultHasher::new(), DefaultHasher::new()];
        second.write_u8(1);
        for hasher in [&mut first, &mut second] {
            self.hash_into(hasher);
        }
        u128::from(first.finish()) << 64 | u128::from(second.finish())
    }

    fn hash_into(&self, hasher: &mut DefaultHasher) {
        for client in &self.clients {
            (client.began, client.releases).hash(hasher);
            client.acquisition.hash_state(hasher);
        }
        for server in &self.servers {
            let mut listed = server.list(None, usize::MAX);
            listed.sort_unstable_by_key(|listed| (listed.session, listed.request));
            for listed in listed {
                (listed.session, listed.request, listed.progress, listed.waits).hash(hasher);
                if let Some(next) = listed.progress.next.filter(|_| listed.waits) {
                    server.line(&file(), next).hash(hasher);
                }
            }
        }
        for (path, queue) in &self.to_server {
            for order in queue {
                let until = match &order.call {
                    Call::Acquire { until, spec, .. } => (0, *until, spec.is_some()),
                    Call::ReleaseFrom { offset, .. } => (1, Some(*offset), false),
                    _ => (2, None, false),
                };
                (path, order.number, until, self.is_current(path.0, order.number, order.serial)).hash(hasher);
            }
        }
        for (path, queue) in &self.to_client {
            for (number, serial, reply) in queue {
                let progress = match reply {
                    Reply::Acquired { progress, .. } => Some(*progress),
                    _ => None,
                };
                let kind = std::mem::discriminant(reply);
                (path, number, kind, progress, self.is_current(path.0, *number, *serial)).hash(hasher);
            }
        }
        let waiting: BTreeSet<(usize, RequestNumber, bool)> = self
            .calls
            .values()
            .map(|(client, number, serial)| (*client, *number, self.is_current(*client, *number, *serial)))
            .collect();
        waiting.hash(hasher);
    }

    /// Returns whether a client still waits for the reply to a call.
    fn is_current(&self, client: usize, number: RequestNumber, serial: u32) -> bool {
        self.clients[client].acquisition.parts()[number as usize].serial == serial
    }
}

fn file() -> FileName {
    "file".into()
}
