//! A log on up to a thousand storage servers: Nacre's own sequencer and layout on modelled clients, servers and network.
//!
//! The metadata rank is the state machine that the daemon runs; positions are reserved, placed and recovered by the functions that the
//! library calls; objects are on the servers that its hash chooses. What is modelled: a handle that always has a batch of entries
//! waiting, and writes and takes positions as the library's does; objects that take each place once, and only from requests of their
//! epoch; the time that each message takes on its way, on the links, and at the node that takes it. The same parameters give the same
//! run. Its history is checked: no position was acknowledged twice, and each is where it belongs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use nacre::ObjectId;
use nacre::sequencer::Policy;
use nacre::zlog::{LogId, View, limit};
use nacre_meta::service::{ActiveRank, Call, Output, Record, Reply, StoreOrder};
use nacre_remote::Rendezvous;
use nacre_zlog::layout;
use nacre_zlog::reserved::Reserved;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Serialize;

use super::Args;
use super::costs::{Costs, ENTRY_BYTES};
use crate::BenchError;
use crate::kit::server::Durability;
use crate::kit::simulation::{Events, Network, Node};
use crate::kit::span::{self, Spans};

/// The network, which is an assumption: links of 10 Gbit/s.
pub(super) const NETWORK: Network = Network { latency_ns: 25_000, link_bytes_per_s: 1_250_000_000 };
/// The servers of the largest cluster.
pub(super) const SERVERS_MAX: u32 = 1000;
/// The entries of the largest batches: about as many as a handle writes at once.
const BATCH_MAX: u64 = 960;
/// The objects for each server, up to the limit of a view: the more there are, the more evenly the hash spreads them.
const OBJECTS_PER_SERVER: u32 = 4;
/// The least number of clients. There are as many as servers, if these are more.
const CLIENTS_MIN: u32 = 64;
/// The writes of each client, of which the first half is not counted: by then the clients wait where they wait in the long run.
const WRITES: u64 = 400;
const WRITES_QUICK: u64 = 40;
/// The time within which clients start.
const START_NS: u64 = 100_000;
/// The time at which the sequencer fails in a run with a failure: long before what is counted begins.
const FAILURE_NS: u64 = 20_000_000;
/// The length of a message without entries, and what an entry takes beside its content.
const HEAD_BYTES: u64 = 64;
const ENTRY_HEAD_BYTES: u64 = 32;
/// The share of the time for which a node is busy that is taken for all of it.
const BUSY: f64 = 0.9;

/// The parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Parameters {
    pub durability: Durability,
    pub servers: u32,
    pub clients: u32,
    /// The entries that a client writes at once, and the positions that it asks for at once.
    pub batch: u64,
    pub entry_bytes: u32,
    pub width: u32,
    pub unit: u32,
    /// The writes of all clients.
    pub writes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    pub seed: u64,
}

/// A failure of the sequencer: another rank takes over, and the log is recovered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Failure {
    pub at_ns: u64,
    /// True if nothing is known of the positions that were handed out: the new rank begins at 0.
    pub forgets: bool,
}

/// A simulated run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Simulated {
    #[serde(flatten)]
    pub(super) parameters: Parameters,
    /// The entries that were acknowledged in a second.
    pub(crate) per_second: f64,
    /// The entries that sequencer, servers, clients and links would allow, the least of each for itself.
    pub(crate) allowed_per_second: f64,
    /// The resource that was busy all the time; none if clients waited for replies.
    pub(crate) bound_by: Option<Resource>,
    /// The shares of the time for which each resource was busy.
    pub(crate) busy: Vec<(Resource, f64)>,
    /// The objects of the server that has most, beside those of all.
    pub(crate) objects: (u32, u32),
    /// The writes that were refused, because of their epoch or because something was there.
    pub(crate) refused: u64,
    /// The time from the failure of the sequencer until clients could learn the next epoch, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recovered_ms: Option<f64>,
}

impl Simulated {
    /// Returns the entries in a second in the long run. As long as a queue still grows, more are acknowledged than its server allows.
    pub(super) fn sustained_per_second(&self) -> f64 {
        self.per_second.min(self.allowed_per_second)
    }

    /// Returns the share of the time for which a resource was busy.
    pub(super) fn busy(&self, resource: Resource) -> f64 {
        self.busy.iter().find(|(known, _)| *known == resource).map_or(0.0, |(_, share)| *share)
    }
}

/// A resource of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Resource {
    /// The metadata rank.
    Sequencer,
    /// The busiest server.
    Server,
    /// The busiest client.
    Client,
    /// The busiest link.
    Link,
}

impl Resource {
    pub(super) const ALL: [Self; 4] = [Self::Sequencer, Self::Server, Self::Client, Self::Link];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sequencer => "sequencer",
            Self::Server => "servers",
            Self::Client => "clients",
            Self::Link => "links",
        }
    }
}

/// Returns the runs of the study.
pub(super) fn runs(args: &Args, durability: Durability) -> Vec<Parameters> {
    let counts: &[u32] = if args.quick { &[1, SERVERS_MAX] } else { &[1, 3, 10, 30, 100, 300, SERVERS_MAX] };
    let batches: &[u64] = if args.quick { &[1, BATCH_MAX] } else { &[1, 16, 128, BATCH_MAX] };
    let writes = if args.quick { WRITES_QUICK } else { WRITES };
    let mut runs = Vec::new();
    for batch in batches {
        for servers in counts {
            runs.push(Parameters::of(durability, *servers, *batch, writes));
        }
    }
    // The last one again, with a sequencer that fails and knows nothing afterwards.
    let failure = Some(Failure { at_ns: FAILURE_NS, forgets: true });
    let failing = runs.last().map(|last| Parameters { failure, ..*last });
    runs.extend(failing);
    runs
}

impl Parameters {
    /// Returns those of a cluster with as many clients as it takes, each of which writes a number of batches.
    fn of(durability: Durability, servers: u32, batch: u64, writes: u64) -> Self {
        let clients = servers.max(CLIENTS_MIN);
        Self {
            durability,
            servers,
            clients,
            batch,
            entry_bytes: ENTRY_BYTES,
            width: (servers * OBJECTS_PER_SERVER).min(limit::WIDTH_MAX),
            // Batches that follow each other go to different objects.
            unit: batch.min(u64::from(limit::UNIT_MAX)) as u32,
            writes: writes * u64::from(clients),
            failure: None,
            seed: 1,
        }
    }

    fn view(&self) -> View {
        let Self { width, unit, seed, .. } = *self;
        View { start: 0, epoch: 1, generation: seed, width, unit, closed: false }
    }

    /// Returns the server of each object.
    fn homes(&self) -> Result<Vec<u32>, BenchError> {
        let names = (0..self.servers).map(|server| format!("10.0.{}.{}:6470", server / 250, server % 250));
        let (hash, view) = (Rendezvous::new(names), self.view());
        let home = |object| -> Result<u32, BenchError> {
            let object = layout::object(LogId(self.seed), &view, object)?;
            Ok(hash.choose(object.as_bytes()) as u32)
        };
        (0..self.width).map(home).collect()
    }

    /// Returns the length of a write.
    fn write_bytes(&self, entries: u64) -> u64 {
        HEAD_BYTES + entries * (u64::from(self.entry_bytes) + ENTRY_HEAD_BYTES)
    }

    /// Returns the entries per second that each resource allows by itself, given the number of objects of the server that has most.
    fn allowed(&self, costs: &Costs, network: Network, objects_max: u32) -> f64 {
        let batch = self.batch as f64;
        // A batch that is longer than a unit is written in pieces.
        let pieces = self.batch.div_ceil(u64::from(self.unit)) as f64;
        let share = f64::from(objects_max) / f64::from(self.width);
        let bytes = self.write_bytes(self.batch) as f64;
        let link_ns = bytes * 1e9 / network.link_bytes_per_s as f64;
        let write_ns = pieces * costs.write_ns as f64 + batch * costs.entry_ns as f64;
        let client_ns = pieces * costs.client_write_ns as f64 + batch * costs.client_entry_ns as f64;
        let clients = f64::from(self.clients);
        // The time for which each occupies a batch.
        let least_ns = [
            costs.positions_ns as f64,
            write_ns * share,
            client_ns / clients,
            link_ns * share,
            link_ns / clients,
        ];
        1e9 * batch / least_ns.into_iter().fold(f64::MIN_POSITIVE, f64::max)
    }
}

/// The refusal of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Epoch,
    Occupied,
}

/// An object of the log.
#[derive(Clone, Debug, Default)]
struct Object {
    epoch: u64,
    /// The places that were written, as ranges that do not touch.
    written: BTreeMap<u64, u64>,
}

impl Object {
    /// Writes at consecutive places, all or none.
    fn write(&mut self, epoch: u64, places: Range<u64>) -> Result<(), Refusal> {
        if epoch != self.epoch {
            return Err(Refusal::Epoch);
        }
        let before = self.written.range(..places.end).next_back().map(|(start, end)| (*start, *end));
        let mut written = places.clone();
        match before {
            Some((_, end)) if end > places.start => return Err(Refusal::Occupied),
            Some((start, end)) if end == places.start => written.start = start,
            _ => {}
        }
        if let Some(end) = self.written.remove(&places.end) {
            written.end = end;
        }
        self.written.insert(written.start, written.end);
        Ok(())
    }

    /// Installs an epoch, and returns how many places there are up to the greatest that was written.
    fn seal(&mut self, epoch: u64) -> u64 {
        self.epoch = self.epoch.max(epoch);
        self.written.last_key_value().map_or(0, |(_, end)| *end)
    }

    fn has(&self, places: Range<u64>) -> bool {
        let before = self.written.range(..=places.start).next_back();
        before.is_some_and(|(_, end)| *end >= places.end)
    }
}

/// A client, which has one handle.
#[derive(Clone, Debug, Default)]
struct Client {
    node: Node,
    epoch: u64,
    reserved: Reserved,
    /// True if it has asked for positions.
    taking: bool,
    writing: bool,
    /// True if it was refused, and has not learned the next epoch yet.
    waits: bool,
    /// The positions of its entries that were acknowledged.
    spans: Spans,
}

/// A recovery under way.
#[derive(Clone, Copy, Debug, Default)]
struct Recovery {
    epoch: u64,
    /// The objects that are not sealed yet.
    left: u32,
    tail: u64,
    /// The end of what had been acknowledged when it began.
    acknowledged: u64,
}

enum Event {
    Start { client: u32 },
    Ask { client: u32, epoch: u64 },
    Taken { client: u32, epoch: u64, first: u64 },
    Write { client: u32, epoch: u64, positions: Range<u64> },
    Answer { client: u32, epoch: u64, positions: Range<u64>, result: Result<(), Refusal> },
    Recorded { rank: u64, record: Record },
    Fail { forgets: bool },
    Seal { object: u32, epoch: u64 },
    Sealed { object: u32, places: u64 },
    Install,
    Published { epoch: u64 },
    Refreshed { client: u32 },
}

/// The tickets of the recovery's calls. Those of clients are their numbers and epochs.
const READ_TAIL: u64 = u64::MAX;
const PASS_OVER: u64 = u64::MAX - 1;

/// The counts of what had been done at a time.
#[derive(Clone, Debug, Default)]
struct Progress {
    now: u64,
    entries: u64,
    /// For the sequencer, the servers and the clients: for how long each node has worked and its link has carried.
    nodes: Vec<Vec<(u64, u64)>>,
}

struct Cluster {
    parameters: Parameters,
    costs: Costs,
    network: Network,
    view: View,
    sequencer: ObjectId,
    rank: ActiveRank,
    rank_node: Node,
    /// The rank's record in the store.
    record: Record,
    objects: Vec<Object>,
    homes: Vec<u32>,
    servers: Vec<Node>,
    clients: Vec<Client>,
    /// The client that recovers the log.
    recoverer: Node,
    recovery: Recovery,
    /// The epoch that clients can learn of.
    published: u64,
    /// The time since which they can.
    published_ns: Option<u64>,
    events: Events<Event>,
    /// The entries, the writes and the end of the positions that were acknowledged.
    entries: u64,
    acknowledged_writes: u64,
    acknowledged_end: u64,
    refused: u64,
}

/// Simulates a run.
///
/// # Errors
/// If a position was acknowledged twice or lost, or clients wait forever: a mistake in what is simulated.
pub(super) fn simulate(
    parameters: Parameters,
    costs: Costs,
    network: Network,
) -> Result<Simulated, BenchError> {
    Cluster::new(parameters, costs, network)?.run()
}

impl Cluster {
    fn new(parameters: Parameters, costs: Costs, network: Network) -> Result<Self, BenchError> {
        let mut cluster = Self {
            parameters,
            costs,
            network,
            view: parameters.view(),
            sequencer: layout::head(LogId(parameters.seed))?,
            rank: rank(1),
            rank_node: Node::default(),
            record: Record { policy: Policy::RoundTrip, ..Record::default() },
            objects: vec![Object { epoch: 1, ..Object::default() }; parameters.width as usize],
            homes: parameters.homes()?,
            servers: vec![Node::default(); parameters.servers as usize],
            clients: vec![Client { epoch: 1, ..Client::default() }; parameters.clients as usize],
            recoverer: Node::default(),
            recovery: Recovery::default(),
            published: 1,
            published_ns: None,
            events: Events::default(),
            entries: 0,
            acknowledged_writes: 0,
            acknowledged_end: 0,
            refused: 0,
        };
        let mut random = StdRng::seed_from_u64(parameters.seed);
        for client in 0..parameters.clients {
            cluster.events.add(random.random_range(0..START_NS), Event::Start { client });
        }
        if let Some(Failure { at_ns, forgets }) = parameters.failure {
            cluster.events.add(at_ns, Event::Fail { forgets });
        }
        Ok(cluster)
    }

    /// Runs until all writes are acknowledged.
    fn run(&mut self) -> Result<Simulated, BenchError> {
        let half = self.parameters.writes / 2;
        let mut begun = None;
        let now = loop {
            let Some((now, event)) = self.events.pop() else {
                let (done, all) = (self.acknowledged_writes, self.parameters.writes);
                let text = format!(
                    "simulation: {done} of {all} writes were acknowledged, and clients wait for ever"
                );
                return Err(BenchError::Lost(text));
            };
            self.handle(now, event)?;
            if self.acknowledged_writes >= half && begun.is_none() {
                begun = Some(self.progress(now));
            }
            if self.acknowledged_writes >= self.parameters.writes {
                break now;
            }
        };
        self.prove()?;
        Ok(self.conclude(&begun.unwrap_or_default(), &self.progress(now)))
    }

    fn handle(&mut self, now: u64, event: Event) -> Result<(), BenchError> {
        match event {
            Event::Start { client } => self.go_on(now, client),
            Event::Ask { client, epoch } => return self.ask(now, client, epoch),
            Event::Taken { client: number, epoch, first } => {
                let client = &mut self.clients[number as usize];
                // Positions of an earlier epoch are nobody's, as the library has it.
                if client.epoch == epoch && !client.waits {
                    client.taking = false;
                    client.reserved.add(first, self.parameters.batch);
                    self.go_on(now, number);
                }
            }
            Event::Write { client, epoch, positions } => self.write(now, client, epoch, positions),
            Event::Answer { client, epoch, positions, result } => {
                self.answer(now, client, epoch, positions, result);
            }
            // What an earlier rank has ordered has no effect any more.
            Event::Recorded { rank, .. } if rank != self.rank.epoch() => {}
            Event::Recorded { record, .. } => {
                self.record = record;
                let mut out = Vec::new();
                self.rank.written(Duration::from_nanos(now), &self.sequencer, &mut out);
                return self.carry(now, out);
            }
            Event::Fail { forgets } => self.fail(now, forgets),
            Event::Seal { object, epoch } => {
                let home = self.homes[object as usize] as usize;
                let done = self.servers[home].take(now, self.costs.write_ns) + self.costs.sync_ns;
                let places = self.objects[object as usize].seal(epoch);
                let time = self.network.send(done, HEAD_BYTES, &mut self.servers[home], &mut self.recoverer);
                self.events.add(time, Event::Sealed { object, places });
            }
            Event::Sealed { object, places } => {
                let recovery = &mut self.recovery;
                recovery.tail = recovery.tail.max(self.view.position_after(object, places));
                recovery.left -= 1;
                if recovery.left == 0 {
                    if recovery.tail < recovery.acknowledged {
                        let Recovery { tail, acknowledged, .. } = *recovery;
                        let text = format!(
                            "simulation: a log of {acknowledged} entries was recovered as one of {tail}"
                        );
                        return Err(BenchError::Lost(text));
                    }
                    let time = self.network.send(now, HEAD_BYTES, &mut self.recoverer, &mut self.rank_node);
                    self.events.add(time, Event::Install);
                }
            }
            Event::Install => {
                let done = self.rank_node.take(now, self.costs.positions_ns);
                let mut out = Vec::new();
                let time = Duration::from_nanos(done);
                self.rank.call(time, READ_TAIL, None, &self.sequencer, Call::Read, &mut out);
                return self.carry(done, out);
            }
            Event::Published { epoch } => {
                (self.published, self.published_ns) = (epoch, Some(now));
                for client in 0..self.parameters.clients {
                    if self.clients[client as usize].waits {
                        self.events.add(now + 2 * self.network.latency_ns, Event::Refreshed { client });
                    }
                }
            }
            Event::Refreshed { client: number } => {
                let client = &mut self.clients[number as usize];
                (client.waits, client.epoch) = (false, self.published);
                self.go_on(now, number);
            }
        }
        Ok(())
    }

    /// Lets a client begin what it can begin: a write, and a request for the positions of the next one.
    fn go_on(&mut self, now: u64, number: u32) {
        let batch = self.parameters.batch;
        let client = &mut self.clients[number as usize];
        if client.waits {
            return;
        }
        let positions = if client.writing { None } else { client.reserved.take(&self.view, batch) };
        let epoch = client.epoch;
        if !client.taking && client.reserved.count() < batch {
            client.taking = true;
            let time = self.network.send(now, HEAD_BYTES, &mut client.node, &mut self.rank_node);
            self.events.add(time, Event::Ask { client: number, epoch });
        }
        if let Some(positions) = positions {
            client.writing = true;
            let count = positions.end - positions.start;
            let cost_ns = self.costs.client_write_ns + count * self.costs.client_entry_ns;
            let done = client.node.take(now, cost_ns);
            let object = self.view.locate(positions.start).0;
            let server = &mut self.servers[self.homes[object as usize] as usize];
            let bytes = self.parameters.write_bytes(count);
            let time = self.network.send(done, bytes, &mut client.node, server);
            self.events.add(time, Event::Write { client: number, epoch, positions });
        }
    }

    /// Serves a request for positions.
    fn ask(&mut self, now: u64, client: u32, epoch: u64) -> Result<(), BenchError> {
        let done = self.rank_node.take(now, self.costs.positions_ns);
        let (time, count) = (Duration::from_nanos(done), self.parameters.batch);
        let ticket = u64::from(client) | epoch << 32;
        let mut out = Vec::new();
        // As the role does it.
        match self.rank.next_at_once(time, &self.sequencer, count, &mut out) {
            Some(reply) => out.push(Output::Reply(ticket, reply)),
            None => self.rank.call(time, ticket, None, &self.sequencer, Call::Next(count), &mut out),
        }
        self.carry(done, out)
    }

    /// Carries out what the rank says.
    fn carry(&mut self, now: u64, mut out: Vec<Output>) -> Result<(), BenchError> {
        let time = Duration::from_nanos(now);
        while !out.is_empty() {
            for output in std::mem::take(&mut out) {
                match output {
                    Output::Reply(READ_TAIL, Reply::Positions { first, .. }) => {
                        match self.recovery.tail.saturating_sub(first) {
                            0 => self.publish(now),
                            missing => {
                                let call = Call::Next(missing);
                                self.rank.call(time, PASS_OVER, None, &self.sequencer, call, &mut out);
                            }
                        }
                    }
                    Output::Reply(PASS_OVER, Reply::Positions { .. }) => self.publish(now),
                    Output::Reply(ticket, Reply::Positions { first, .. }) => {
                        let (client, epoch) = (ticket as u32, ticket >> 32);
                        let node = &mut self.clients[client as usize].node;
                        let time = self.network.send(now, HEAD_BYTES, &mut self.rank_node, node);
                        self.events.add(time, Event::Taken { client, epoch, first });
                    }
                    Output::Store(_, StoreOrder::Load { .. }) => {
                        self.rank.loaded(time, &self.sequencer, Some(self.record), &mut out);
                    }
                    Output::Store(_, StoreOrder::Write(_, record)) => {
                        let time = now + self.record_ns();
                        self.events.add(time, Event::Recorded { rank: self.rank.epoch(), record });
                    }
                    other => {
                        let text =
                            format!("simulation: the rank says something that is not expected: {other:?}");
                        return Err(BenchError::Process(text));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the time until a record of the rank, or a map, is durable at some server.
    fn record_ns(&self) -> u64 {
        2 * self.network.latency_ns + self.costs.write_ns + self.costs.sync_ns
    }

    fn write(&mut self, now: u64, client: u32, epoch: u64, positions: Range<u64>) {
        let count = positions.end - positions.start;
        let (object, place) = self.view.locate(positions.start);
        let server = &mut self.servers[self.homes[object as usize] as usize];
        let done = server.take(now, self.costs.write_ns + count * self.costs.entry_ns);
        let result = self.objects[object as usize].write(epoch, place..place + count);
        let node = &mut self.clients[client as usize].node;
        let time = self.network.send(done + self.costs.sync_ns, HEAD_BYTES, server, node);
        self.events.add(time, Event::Answer { client, epoch, positions, result });
    }

    /// Handles the answer to a write, as the library's task does.
    fn answer(
        &mut self,
        now: u64,
        number: u32,
        epoch: u64,
        positions: Range<u64>,
        result: Result<(), Refusal>,
    ) {
        let client = &mut self.clients[number as usize];
        client.writing = false;
        match result {
            Ok(()) => {
                client.spans.add(positions.start, positions.end);
                self.entries += positions.end - positions.start;
                self.acknowledged_writes += 1;
                self.acknowledged_end = self.acknowledged_end.max(positions.end);
            }
            Err(refusal) => {
                self.refused += 1;
                match refusal {
                    // What comes next must not be at a lower position than this.
                    Refusal::Occupied => client.reserved.pass(positions.start),
                    Refusal::Epoch => {
                        client.reserved.clear();
                        (client.taking, client.waits) = (false, true);
                        if self.published > epoch {
                            let time = now + 2 * self.network.latency_ns;
                            self.events.add(time, Event::Refreshed { client: number });
                        }
                    }
                }
            }
        }
        self.go_on(now, number);
    }

    /// Lets another rank take over, and begins to recover the log.
    fn fail(&mut self, now: u64, forgets: bool) {
        self.rank = rank(self.rank.epoch() + 1);
        if forgets {
            self.record.reserved = 0;
        }
        // Whoever has no answer yet asks again.
        for (number, client) in (0..).zip(&mut self.clients) {
            if client.taking {
                let time = self.network.send(now, HEAD_BYTES, &mut client.node, &mut self.rank_node);
                self.events.add(time, Event::Ask { client: number, epoch: client.epoch });
            }
        }
        let (epoch, left) = (self.published + 1, self.parameters.width);
        self.recovery = Recovery { epoch, left, tail: 0, acknowledged: self.acknowledged_end };
        for object in 0..self.parameters.width {
            let server = &mut self.servers[self.homes[object as usize] as usize];
            let time = self.network.send(now, HEAD_BYTES, &mut self.recoverer, server);
            self.events.add(time, Event::Seal { object, epoch });
        }
    }

    fn publish(&mut self, now: u64) {
        let time = now + self.network.latency_ns + self.record_ns();
        self.events.add(time, Event::Published { epoch: self.recovery.epoch });
    }

    /// Checks that no position was acknowledged twice, and that each is at its place.
    fn prove(&self) -> Result<(), BenchError> {
        if let Some([one, other]) = span::overlap(self.clients.iter().map(|client| &client.spans)) {
            let text = format!("simulation: positions were given to two entries: {one:?} and {other:?}");
            return Err(BenchError::Lost(text));
        }
        let mut entries = 0;
        for (first, end) in self.clients.iter().flat_map(|client| client.spans.list()) {
            entries += end - first;
            let mut position = *first;
            while position < *end {
                let (object, place) = self.view.locate(position);
                let count = self.view.together(position).min(end - position);
                if !self.objects[object as usize].has(place..place + count) {
                    let text =
                        format!("simulation: the entry at position {position} was acknowledged, and is lost");
                    return Err(BenchError::Lost(text));
                }
                position += count;
            }
        }
        if entries != self.entries {
            let text =
                format!("simulation: {} entries were acknowledged, {entries} have positions", self.entries);
            return Err(BenchError::Lost(text));
        }
        Ok(())
    }

    fn progress(&self, now: u64) -> Progress {
        let of = |node: &Node| (node.worked_ns(now), node.carried_ns());
        let nodes = vec![
            vec![of(&self.rank_node)],
            self.servers.iter().map(of).collect(),
            self.clients.iter().map(|client| of(&client.node)).collect(),
        ];
        Progress { now, entries: self.entries, nodes }
    }

    fn conclude(&self, from: &Progress, to: &Progress) -> Simulated {
        let time_ns = (to.now - from.now).max(1) as f64;
        let share = |ns: u64| (ns as f64 / time_ns).min(1.0);
        let (mut busy, mut link) = (Vec::new(), 0.0_f64);
        let kinds = [Resource::Sequencer, Resource::Server, Resource::Client];
        for (resource, (from, to)) in kinds.into_iter().zip(from.nodes.iter().zip(&to.nodes)) {
            let mut most = 0.0_f64;
            for ((worked_from, carried_from), (worked_to, carried_to)) in from.iter().zip(to) {
                most = most.max(share(worked_to - worked_from));
                link = link.max(share(carried_to - carried_from));
            }
            busy.push((resource, most));
        }
        busy.push((Resource::Link, link));
        let busiest = busy.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1));
        let mut objects = vec![0; self.servers.len()];
        self.homes.iter().for_each(|home| objects[*home as usize] += 1);
        let objects_max: u32 = objects.into_iter().max().unwrap_or(0);
        Simulated {
            parameters: self.parameters,
            per_second: (to.entries - from.entries) as f64 * 1e9 / time_ns,
            allowed_per_second: self.parameters.allowed(&self.costs, self.network, objects_max),
            bound_by: busiest.filter(|(_, share)| *share >= BUSY).map(|(resource, _)| resource),
            busy,
            objects: (objects_max, self.parameters.width),
            refused: self.refused,
            recovered_ms: self
                .parameters
                .failure
                .zip(self.published_ns)
                .map(|(failure, published_ns)| published_ns.saturating_sub(failure.at_ns) as f64 / 1e6),
        }
    }
}

/// Creates a rank that knows nothing yet. No lease ends within a run.
fn rank(epoch: u64) -> ActiveRank {
    ActiveRank::new(epoch, Duration::from_secs(1 << 20))
}

#[cfg(test)]
mod tests;
