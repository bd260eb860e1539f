//! Clusters of up to ten thousand clients: Nacre's own servers and clients, line for line, on a modelled network.
//!
//! The servers and the clients are the state machines that the daemon and the library run. What a message costs is
//! modelled: time on its way, the rate of a node's link in each direction, and the time of the node that takes it, one
//! message after the other. The same parameters give the same run.

use std::time::Duration;

use nacre::lock::{Method, Mode};
use nacre_lock::client::{Action, Client, Wanted};
use nacre_lock::message::{Call, Reply, SessionId};
use nacre_lock::server::{Output, Server, Settings};
use nacre_lock::{Pattern, Stripe};
use serde::Serialize;

use super::arguments::Args;
use super::point::{MethodName, ProtocolName, STRIPE_BYTES, Shape};
use crate::BenchError;
use crate::kit::simulation::{Events, Network, Node};

/// The costs of a message. The paper's nodes are connected by Myrinet-2000, with a link of 2 Gbit/s for each node, and use IP
/// over it; it tells no latencies and no costs of processing, which are assumptions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Model {
    /// The time on its way.
    pub(crate) latency_ns: u64,
    /// The rate of a node's link, in each direction.
    pub(crate) link_bytes_per_s: u64,
    /// The time of a server for a message.
    pub(crate) server_ns: u64,
    /// The time of a server for each region in the message.
    pub(crate) region_ns: u64,
    /// The time of a client for a message.
    pub(crate) client_ns: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            latency_ns: 30_000,
            link_bytes_per_s: 250_000_000,
            server_ns: 10_000,
            region_ns: 200,
            client_ns: 10_000,
        }
    }
}

/// A simulated run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Simulated {
    #[serde(flatten)]
    pub(super) parameters: Parameters,
    /// The time until the last client had held all its regions.
    pub(crate) seconds: f64,
    /// Regions of all clients in a second of this time.
    pub(crate) acquired_per_s: f64,
    /// The number of messages.
    pub(crate) messages: u64,
    pub(crate) model: Model,
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Parameters {
    pub method: MethodName,
    pub protocol: ProtocolName,
    pub clients: u32,
    pub servers: u32,
    /// 0 where ranges follow each other, 100 where all clients lock the same one.
    pub overlap_percent: u32,
    /// The number of regions of each client.
    pub regions: u64,
}

/// The distance of the regions.
pub(super) const SEPARATION_BYTES: u64 = 64;

/// The maximum number of requests of a run: lines of a figure end where there would be more.
const REQUESTS_MAX: u64 = 400_000;

/// The number of clients of the greatest cluster by default, as well as in a quick look.
const CLIENTS_MAX: u32 = 10_000;
const CLIENTS_MAX_QUICK: u32 = 1000;

/// The length of a message without what it says of regions, and that of a datatype and of a region in it.
const HEAD_BYTES: u64 = 64;
const DATATYPE_BYTES: u64 = 48;
const REGION_BYTES: u64 = 16;

/// Returns the runs of the figures.
pub(super) fn runs(args: &Args) -> Vec<Parameters> {
    let most = args.simulated_clients.unwrap_or(if args.quick { CLIENTS_MAX_QUICK } else { CLIENTS_MAX });
    let mut counts: Vec<u32> = [1, 3, 10, 30, 100, 300, 1000, 3000, 10_000].into();
    counts.retain(|clients| *clients < most);
    counts.push(most);
    let mut runs = Vec::new();
    for overlap_percent in [0, 100] {
        for &method in &args.methods {
            for &protocol in &args.protocols {
                for &clients in &counts {
                    let (servers, regions) = (args.simulated_servers, args.regions());
                    runs.push(Parameters { method, protocol, clients, servers, overlap_percent, regions });
                }
            }
        }
    }
    // Without overlap alt-try does the same as one-try.
    runs.retain(|run| run.overlap_percent > 0 || run.protocol != ProtocolName::AltTry);
    runs.retain(|run| {
        let requests = run.shape().requests(0, run.method, run.servers);
        requests.is_ok_and(|requests| requests * u64::from(run.clients) <= REQUESTS_MAX)
    });
    runs
}

impl Parameters {
    fn shape(&self) -> Shape {
        Shape::Strided { regions: self.regions, separation_bytes: SEPARATION_BYTES }
    }
}

enum Event {
    Call { client: u32, server: u32, call: u64, message: Call },
    Reply { client: u32, call: u64, reply: Reply },
    Connected { client: u32, server: u32 },
}

struct Cluster {
    parameters: Parameters,
    model: Model,
    servers: Vec<(Server, Node)>,
    clients: Vec<(Client, Node)>,
    events: Events<Event>,
    messages: u64,
    /// The time at which each client held its operation.
    held_ns: Vec<Option<u64>>,
    /// Releases what is held.
    releases: bool,
    lost: bool,
}

/// Simulates a run.
///
/// # Errors
/// If the pattern is none, or a client never gets its locks, which would be a mistake in the protocol.
pub(super) fn simulate(parameters: Parameters, model: Model) -> Result<Simulated, BenchError> {
    let mut cluster = Cluster::new(parameters, model);
    // Sessions are opened first, by locks that nobody else wants.
    let all_servers = STRIPE_BYTES * u64::from(parameters.servers);
    cluster.releases = true;
    for client in 0..parameters.clients {
        let pattern = Pattern::contiguous(u64::from(client) * all_servers, all_servers);
        cluster.lock(client, "sessions", pattern.map_err(impossible)?, MethodName::Datatype, 0)?;
    }
    let begun = cluster.run()?;
    cluster.releases = parameters.overlap_percent > 0;
    (cluster.held_ns, cluster.messages) = (vec![None; parameters.clients as usize], 0);
    let shape = parameters.shape();
    for client in 0..parameters.clients {
        let neighbour_bytes = shape.range_bytes() * u64::from(100 - parameters.overlap_percent) / 100;
        let pattern = Pattern::new(&shape.at(u64::from(client) * neighbour_bytes)).map_err(impossible)?;
        cluster.lock(client, "file", pattern, parameters.method, begun)?;
    }
    cluster.run()?;
    let last = cluster.held_ns.iter().flatten().max().copied().unwrap_or(begun);
    let seconds = (last - begun) as f64 / 1e9;
    let regions = parameters.regions as f64 * f64::from(parameters.clients);
    Ok(Simulated {
        parameters,
        seconds,
        acquired_per_s: regions / seconds,
        messages: cluster.messages,
        model,
    })
}

fn impossible(error: nacre_lock::PatternError) -> BenchError {
    BenchError::Usage(format!("the pattern of a simulation: {error}"))
}

impl Cluster {
    fn new(parameters: Parameters, model: Model) -> Self {
        let servers = (0..parameters.servers).map(|server| {
            let stripe = Stripe { bytes: STRIPE_BYTES, servers: parameters.servers, server };
            // Longer than any run: nothing is renewed meanwhile.
            let lease = Duration::from_secs(1 << 20);
            let settings = Settings { stripe, lease, grace: lease, ..Settings::default() };
            (Server::new(settings), Node::default())
        });
        let clients = (0..parameters.clients).map(|client| {
            (Client::new(SessionId(u64::from(client) + 1), parameters.servers), Node::default())
        });
        Self {
            parameters,
            model,
            servers: servers.collect(),
            clients: clients.collect(),
            events: Events::default(),
            messages: 0,
            held_ns: vec![None; parameters.clients as usize],
            releases: false,
            lost: false,
        }
    }

    fn lock(
        &mut self,
        client: u32,
        file: &str,
        pattern: Pattern,
        method: MethodName,
        now: u64,
    ) -> Result<(), BenchError> {
        let wanted = Wanted {
            file: file.into(),
            operation: 0,
            first_number: 0,
            mode: Mode::Exclusive,
            pattern,
            stripe_bytes: STRIPE_BYTES,
            servers: self.parameters.servers,
            method: method.into(),
            protocol: self.parameters.protocol.into(),
            waits: true,
        };
        let mut actions = Vec::new();
        let begun = self.clients[client as usize].0.lock(Duration::from_nanos(now), wanted, &mut actions);
        begun.map_err(impossible)?;
        self.carry(client, now, actions);
        Ok(())
    }

    /// Runs until nothing is under way, and returns the time. Every client must have held its locks.
    fn run(&mut self) -> Result<u64, BenchError> {
        let mut now = 0;
        while let Some((time, event)) = self.events.pop() {
            now = time;
            match event {
                Event::Call { client, server, call, message } => {
                    self.serve(now, client, server, call, message)
                }
                Event::Reply { client, call, reply } => {
                    let (state, node) = &mut self.clients[client as usize];
                    let done = node.take(now, self.model.client_ns);
                    let mut actions = Vec::new();
                    state.handle(Duration::from_nanos(done), call, reply, &mut actions);
                    self.carry(client, done, actions);
                }
                Event::Connected { client, server } => {
                    let mut actions = Vec::new();
                    let state = &mut self.clients[client as usize].0;
                    state.connected(Duration::from_nanos(now), server, &mut actions);
                    self.carry(client, now, actions);
                }
            }
        }
        let missing = self.held_ns.iter().filter(|held| held.is_none()).count();
        if missing > 0 || self.lost {
            let text =
                format!("simulation: {missing} of {} clients never had their locks", self.clients.len());
            return Err(BenchError::Lost(text));
        }
        Ok(now)
    }

    fn serve(&mut self, now: u64, client: u32, server: u32, call: u64, message: Call) {
        let regions = match &message {
            Call::Acquire { spec: Some(spec), .. } if self.lists_regions() => spec.pattern.region_count(),
            _ => 0,
        };
        let session = self.clients[client as usize].0.session();
        let (state, node) = &mut self.servers[server as usize];
        let done = node.take(now, self.model.server_ns + regions * self.model.region_ns);
        let mut out = Vec::new();
        let id = u64::from(client) << 40 | call;
        state.handle(Duration::from_nanos(done), session, id, message, &mut out);
        for output in out {
            match output {
                Output::Reply { call, reply, .. } => {
                    let (client, call) = ((call >> 40) as u32, call & ((1 << 40) - 1));
                    let (sender, receiver) =
                        (&mut self.servers[server as usize].1, &mut self.clients[client as usize].1);
                    let time = self.model.send(done, HEAD_BYTES, sender, receiver);
                    self.at(time, Event::Reply { client, call, reply });
                    self.messages += 1;
                }
                // Records are durable at once, as in memory.
                Output::Record(_) | Output::Cycle { .. } => {}
                Output::Raise { .. } => self.lost = true,
            }
        }
    }

    /// Carries out what a client says.
    fn carry(&mut self, client: u32, now: u64, mut actions: Vec<Action>) {
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Connect { server } => {
                        self.at(now + 2 * self.model.latency_ns, Event::Connected { client, server });
                    }
                    Action::Send { server, call, message } => {
                        let bytes = HEAD_BYTES
                            + match &message {
                                Call::Acquire { spec: Some(spec), .. } if self.lists_regions() => {
                                    REGION_BYTES * spec.pattern.region_count()
                                }
                                Call::Acquire { spec: Some(_), .. } => DATATYPE_BYTES,
                                _ => 0,
                            };
                        let (sender, receiver) =
                            (&mut self.clients[client as usize].1, &mut self.servers[server as usize].1);
                        let time = self.model.send(now, bytes, sender, receiver);
                        self.at(time, Event::Call { client, server, call, message });
                        self.messages += 1;
                    }
                    Action::Held(operation) => {
                        self.held_ns[client as usize] = Some(now);
                        if self.releases {
                            let state = &mut self.clients[client as usize].0;
                            state.release(Duration::from_nanos(now), operation, &mut actions);
                        }
                    }
                    Action::Ended(..) => {}
                    Action::Lost { .. } => self.lost = true,
                }
            }
        }
    }

    fn lists_regions(&self) -> bool {
        Method::from(self.parameters.method) != Method::Datatype
    }

    fn at(&mut self, time: u64, event: Event) {
        self.events.add(time, event);
    }
}

impl Model {
    /// Returns the time at which a message has arrived.
    fn send(&self, now: u64, bytes: u64, sender: &mut Node, receiver: &mut Node) -> u64 {
        let Self { latency_ns, link_bytes_per_s, .. } = *self;
        Network { latency_ns, link_bytes_per_s }.send(now, bytes, sender, receiver)
    }
}

#[cfg(test)]
mod tests;
