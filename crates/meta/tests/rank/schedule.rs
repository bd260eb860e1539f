//! Schedules from a seed: messages take random times or are lost with their connection; clients and ranks pause, crash and
//! come back; the store takes its time, also for what a dead rank ordered; policies change.
//!
//! Checked of every schedule:
//! - No position is handed out twice.
//! - A position is greater than all that were known to somebody before it was asked for. (Not with a rank that goes on without
//!   authority: then only what was said first.)
//! - When the faults are over, every client gets positions again.

use std::time::Duration;

use nacre_meta::capability::Policy;
use nacre_meta::sequencer::Sequencer;
use nacre_meta::service::{ActiveRank, Call, Output, Record, Reply, StoreOrder};
use nacre_object::ObjectId;
use rand::Rng;

use super::simulation::{self, Agenda, LEASE, Positions, Process, TAKEOVER};

/// The time with faults, and the time by which everybody must have been served after them.
const FAULTS: Duration = Duration::from_secs(3);
const CALM: Duration = Duration::from_secs(3);

/// A rule that is broken, to see that the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A new rank forgets that somebody may hold the sequencer.
    Forgets,
    /// Durable state that a rank was told of is lost when it crashes.
    NotDurable,
    /// A client goes on after its lease.
    NoLease,
    /// Ranks are not fenced at the store.
    NoFence,
}

#[derive(Clone, Debug)]
enum Event {
    ToRank { rank: usize, client: usize, connection: u64, number: u64, message: Message },
    ToClient { client: usize, connection: u64, answer: Answer },
    Effect { rank: usize, order: StoreOrder },
    Stored { rank: usize, ending: Stored },
    Client(usize),
    Tick(usize),
    Beat(usize),
    TakeOver,
    Fault,
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Attach(u64),
    Renew,
    Call(Call),
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Attached,
    Renewed,
    Lapsed,
    Moved,
    Reply(u64, Reply),
    Revoke(u64, Option<u64>),
    Broken,
}

#[derive(Clone, Copy, Debug)]
enum Stored {
    Loaded(Option<Record>),
    LoadedAhead(Record, u64),
    Created(Option<Record>),
    Written,
    Removed,
    Superseded,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    grant: u64,
    first: u64,
    tail: u64,
    bound: u64,
    ending: bool,
}

#[derive(Default)]
struct Client {
    session: u64,
    connection: u64,
    rank: Option<usize>,
    attaching: Option<Duration>,
    target: usize,
    lease_until: Option<Duration>,
    renewing: Option<Duration>,
    renew_at: Duration,
    paused_until: Duration,
    hold: Option<Hold>,
    /// The call under way: number, call, and what was known when it was made.
    call: Option<(u64, Call, u64)>,
    early: Option<(u64, Option<u64>)>,
    round_trip: bool,
    last: Option<u64>,
    served_at: Duration,
    numbers: u64,
    /// The time of the latest message, so that those of a connection stay in order.
    sent_at: Duration,
}

struct World {
    agenda: Agenda<Event>,
    id: ObjectId,
    record: Option<Record>,
    before_crash: Option<Record>,
    fence: u64,
    epoch: u64,
    processes: Vec<Process>,
    clients: Vec<Client>,
    positions: Positions,
    broken: Broken,
    zombies: bool,
    sessions: u64,
    failure: Option<String>,
    /// Prints what happens.
    trace: bool,
}

impl World {
    fn new(seed: u64, broken: Broken, zombies: bool) -> World {
        let mut world = World {
            agenda: Agenda::new(seed),
            id: "sequencer".parse().unwrap(),
            record: Some(Record::default()),
            before_crash: None,
            fence: 0,
            epoch: 0,
            processes: Vec::new(),
            clients: Vec::new(),
            positions: Positions::default(),
            broken,
            zombies,
            sessions: 0,
            failure: None,
            trace: std::env::var("NACRE_TRACE").is_ok_and(|traced| traced == seed.to_string()),
        };
        world.record.as_mut().unwrap().policy = world.policy();
        world.take_over();
        for client in 0..world.agenda.rng.random_range(1..=3) {
            world.sessions += 1;
            world.clients.push(Client { session: world.sessions, ..Client::default() });
            world.agenda.at(Duration::ZERO, Event::Client(client));
        }
        for _ in 0..world.agenda.rng.random_range(0..12) {
            let at = world.agenda.rng.random_range(Duration::ZERO..FAULTS);
            world.agenda.at(at, Event::Fault);
        }
        world
    }

    fn policy(&mut self) -> Policy {
        match self.agenda.rng.random_range(0..5) {
            0 | 1 => Policy::BestEffort,
            2 => Policy::Hold(Duration::from_millis(self.agenda.rng.random_range(1..30))),
            3 => Policy::Quota {
                operations: self.agenda.rng.random_range(1..20),
                within: Duration::from_millis(self.agenda.rng.random_range(1..30)),
            },
            _ => Policy::RoundTrip,
        }
    }

    /// A new process becomes the rank.
    fn take_over(&mut self) {
        self.epoch += 1;
        let rank = self.processes.len();
        self.processes.push(Process::new(ActiveRank::new(self.epoch, LEASE), self.agenda.now + TAKEOVER));
        self.agenda.at(self.agenda.now + TAKEOVER / 4, Event::Beat(rank));
        self.agenda.at(self.agenda.now, Event::Tick(rank));
    }

    fn run(&mut self) -> Result<u64, String> {
        while let Some(event) = self.agenda.pop() {
            if self.agenda.now > FAULTS + CALM {
                break;
            }
            self.handle(event);
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
        }
        for (number, client) in self.clients.iter().enumerate() {
            if client.served_at < FAULTS {
                return Err(format!(
                    "client {number} was not served after the faults; last at {:?}; it waits for {:?} and holds {:?}",
                    client.served_at, client.call, client.hold
                ));
            }
        }
        Ok(self.positions.taken)
    }

    fn handle(&mut self, event: Event) {
        if self.trace && !matches!(event, Event::Client(_) | Event::Tick(_) | Event::Beat(_)) {
            println!("{:?} {event:?}", self.agenda.now);
        }
        match event {
            Event::ToRank { rank, client, connection, number, message } => {
                let paused = self.processes[rank].paused_until;
                if paused > self.agenda.now {
                    let event = Event::ToRank { rank, client, connection, number, message };
                    return self.agenda.at(paused, event);
                }
                self.rank_receives(rank, client, connection, number, message);
            }
            Event::ToClient { client, connection, answer } => {
                let paused = self.clients[client].paused_until;
                if paused > self.agenda.now {
                    return self.agenda.at(paused, Event::ToClient { client, connection, answer });
                }
                if self.clients[client].connection == connection {
                    self.lease_over(client);
                    self.client_receives(client, answer);
                }
            }
            Event::Effect { rank, order } => self.effect(rank, order),
            Event::Stored { rank, ending } => self.stored(rank, ending),
            Event::Client(client) => self.step(client),
            Event::Tick(rank) => {
                if !self.processes[rank].alive {
                    return;
                }
                let (now, mut out) = (self.agenda.now, Vec::new());
                if self.processes[rank].paused_until <= now {
                    self.processes[rank].rank.tick(now, &mut out);
                    self.carry(rank, out);
                }
                // Woken a little late, as a thread is.
                let at = self.agenda.within(200, 2000);
                self.agenda.at(at, Event::Tick(rank));
            }
            Event::Beat(rank) => {
                let later = rank + 1 < self.processes.len();
                let process = &mut self.processes[rank];
                if !process.alive {
                    return;
                }
                if process.paused_until <= self.agenda.now {
                    if later && !self.zombies {
                        // Another one has the authority.
                        return process.alive = false;
                    }
                    process.until = self.agenda.now + TAKEOVER;
                }
                self.agenda.at(self.agenda.now + TAKEOVER / 4, Event::Beat(rank));
            }
            Event::TakeOver => {
                let last = &self.processes[self.processes.len() - 1];
                // A standby looks again while the other one shows itself.
                if last.until <= self.agenda.now {
                    self.take_over();
                }
            }
            Event::Fault => self.fault(),
        }
    }

    fn fault(&mut self) {
        let rank = self.processes.len() - 1;
        let client = self.agenda.rng.random_range(0..self.clients.len());
        let pause = self.agenda.now + Duration::from_millis(self.agenda.rng.random_range(1..800));
        match self.agenda.rng.random_range(0..6) {
            0 => {
                // The rank crashes; connections break, noticed sooner or later.
                self.processes[rank].alive = false;
                if self.broken == Broken::NotDurable {
                    self.record = self.before_crash.or(self.record);
                }
                let until = self.processes[rank].until;
                self.agenda.at(until.max(self.agenda.now), Event::TakeOver);
                for client in 0..self.clients.len() {
                    let (at, connection) = (self.agenda.within(10, 20_000), self.clients[client].connection);
                    self.agenda.at(at, Event::ToClient { client, connection, answer: Answer::Broken });
                }
            }
            1 => {
                self.processes[rank].paused_until = pause;
                // A standby sees that it does not show itself.
                let until = self.processes[rank].until.max(self.agenda.now);
                self.agenda.at(until + Duration::from_millis(1), Event::TakeOver);
            }
            2 => self.clients[client].paused_until = pause,
            3 => {
                let connection = self.clients[client].connection;
                self.agenda
                    .at(self.agenda.now, Event::ToClient { client, connection, answer: Answer::Broken });
            }
            4 => {
                // The client crashes, and another one begins in its place.
                self.sessions += 1;
                let (connection, served_at) =
                    (self.clients[client].connection + 1, self.clients[client].served_at);
                self.clients[client] =
                    Client { session: self.sessions, connection, served_at, ..Client::default() };
            }
            _ => {
                let policy = self.policy();
                if let Some(to) = self.clients[client].rank {
                    self.send(client, to, 0, Message::Call(Call::SetPolicy(policy)));
                }
            }
        }
    }

    fn send(&mut self, client: usize, rank: usize, number: u64, message: Message) {
        let at = self.agenda.within(20, 1000).max(self.clients[client].sent_at);
        self.clients[client].sent_at = at;
        let connection = self.clients[client].connection;
        self.agenda.at(at, Event::ToRank { rank, client, connection, number, message });
    }

    fn answer(&mut self, client: usize, connection: u64, answer: Answer) {
        let at = self.agenda.within(20, 1000);
        self.agenda.at(at, Event::ToClient { client, connection, answer });
    }

    fn rank_receives(&mut self, rank: usize, client: usize, connection: u64, number: u64, message: Message) {
        let now = self.agenda.now;
        let process = &mut self.processes[rank];
        // What comes over an earlier connection is not handled.
        if !process.alive || self.clients[client].connection != connection {
            return;
        }
        if process.until <= now && !self.zombies {
            return self.answer(client, connection, Answer::Moved);
        }
        let session = self.clients[client].session;
        let mut out = Vec::new();
        match message {
            Message::Attach(session) => {
                let answer = match process.rank.renew(now, session) {
                    true => {
                        process.attached.insert(session, (client, connection));
                        Answer::Attached
                    }
                    false => Answer::Lapsed,
                };
                self.answer(client, connection, answer);
            }
            Message::Renew => {
                let known = process.rank.has_session(session) && process.attached.contains_key(&session);
                let answer = match known && process.rank.renew(now, session) {
                    true => Answer::Renewed,
                    false => Answer::Lapsed,
                };
                self.answer(client, connection, answer);
            }
            Message::Call(call) => {
                process.next_ticket += 1;
                let ticket = process.next_ticket;
                process.tickets.insert(ticket, (client, connection, number));
                let speaks =
                    process.attached.get(&session).is_some_and(|bound| *bound == (client, connection));
                process.rank.tick(now, &mut out);
                let at_once = match call {
                    Call::Next(count) => process.rank.next_at_once(now, &self.id, count, &mut out),
                    _ => None,
                };
                match at_once {
                    Some(reply) => out.push(Output::Reply(ticket, reply)),
                    None => {
                        process.rank.call(now, ticket, speaks.then_some(session), &self.id, call, &mut out);
                    }
                }
            }
        }
        self.carry(rank, out);
    }

    fn carry(&mut self, rank: usize, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Reply(ticket, reply) => {
                    let known = self.processes[rank].tickets.remove(&ticket);
                    let Some((client, connection, number)) = known else { continue };
                    let acts = self.zombies || self.agenda.now < self.processes[rank].until;
                    let answer = if acts { Answer::Reply(number, reply) } else { Answer::Moved };
                    self.answer(client, connection, answer);
                }
                Output::Revoke { session, grant, quota, .. } => {
                    if let Some((client, connection)) = self.processes[rank].attached.get(&session).copied() {
                        self.answer(client, connection, Answer::Revoke(grant, quota));
                    }
                }
                Output::Lapsed(session) => _ = self.processes[rank].attached.remove(&session),
                Output::Store(_, order) => {
                    let at = self.agenda.within(50, 3000);
                    self.agenda.at(at, Event::Effect { rank, order });
                }
            }
        }
    }

    /// An order reaches the store, whether the rank that gave it is there or not.
    fn effect(&mut self, rank: usize, order: StoreOrder) {
        let epoch = self.processes[rank].rank.epoch();
        let fenced = epoch < self.fence && self.broken != Broken::NoFence;
        let ending = match order {
            _ if fenced => Stored::Superseded,
            StoreOrder::Load { reserves } => {
                self.fence = self.fence.max(epoch);
                let mut record = self.record;
                if self.broken == Broken::Forgets {
                    record = record.map(|record| Record { cached: None, ..record });
                    self.record = record;
                }
                match record.filter(|record| reserves && record.cached.is_none()) {
                    Some(before) => {
                        let after = Record { reserved: Sequencer::first_bound(before.reserved), ..before };
                        self.before_crash = self.record;
                        self.record = Some(after);
                        Stored::LoadedAhead(after, before.reserved)
                    }
                    None => Stored::Loaded(record),
                }
            }
            StoreOrder::Create(policy) => {
                let record = Record { policy, ..Record::default() };
                let created = self.record.is_none().then_some(record);
                self.record.get_or_insert(record);
                Stored::Created(created)
            }
            StoreOrder::Write(before, after) => {
                if self.record == Some(before) || self.broken == Broken::NoFence {
                    self.before_crash = self.record;
                    self.record = Some(after);
                    Stored::Written
                } else {
                    Stored::Superseded
                }
            }
            StoreOrder::Remove(_) => {
                self.record = None;
                Stored::Removed
            }
            StoreOrder::Move(..) => unreachable!("there is one rank"),
        };
        let at = self.agenda.within(20, 1000);
        self.agenda.at(at, Event::Stored { rank, ending });
    }

    fn stored(&mut self, rank: usize, ending: Stored) {
        let (now, id) = (self.agenda.now, self.id.clone());
        let process = &mut self.processes[rank];
        if !process.alive {
            return;
        }
        if process.paused_until > now {
            let at = process.paused_until;
            return self.agenda.at(at, Event::Stored { rank, ending });
        }
        let mut out = Vec::new();
        match ending {
            Stored::Loaded(record) => process.rank.loaded(now, &id, record, &mut out),
            Stored::LoadedAhead(record, tail) => process.rank.loaded_ahead(now, &id, record, tail, &mut out),
            Stored::Created(created) => process.rank.created(now, &id, created, &mut out),
            Stored::Written => process.rank.written(now, &id, &mut out),
            Stored::Removed => process.rank.removed(&id, &mut out),
            Stored::Superseded => {
                process.alive = false;
                let waiting: Vec<_> = process.tickets.values().copied().collect();
                for (client, connection, _) in waiting {
                    self.answer(client, connection, Answer::Moved);
                }
                return;
            }
        }
        self.carry(rank, out);
    }

    /// Gives up what a client holds whose lease is over.
    fn lease_over(&mut self, client: usize) {
        let over = self.clients[client].lease_until.is_some_and(|until| until <= self.agenda.now);
        if over && self.broken != Broken::NoLease {
            self.begin_again(client);
        }
    }

    fn begin_again(&mut self, client: usize) {
        self.sessions += 1;
        let session = self.sessions;
        let client = &mut self.clients[client];
        (client.hold, client.lease_until, client.session) = (None, None, session);
        Self::disconnect(client);
    }

    fn disconnect(client: &mut Client) {
        client.connection += 1;
        (client.rank, client.attaching, client.renewing) = (None, None, None);
        (client.call, client.early) = (None, None);
    }

    fn client_receives(&mut self, number: usize, answer: Answer) {
        let now = self.agenda.now;
        let client = &mut self.clients[number];
        match answer {
            Answer::Attached => {
                let Some(sent) = client.attaching.take() else { return };
                client.rank = Some(client.target);
                client.lease_until = Some(sent + LEASE);
                client.renew_at = now + LEASE / 3;
                if let (Some(hold), Some(rank)) = (client.hold, client.rank) {
                    self.ask(number, rank, Call::Assert(hold.grant));
                }
            }
            Answer::Renewed => {
                if let Some(sent) = client.renewing.take() {
                    client.lease_until = Some(sent + LEASE);
                    client.renew_at = sent + LEASE / 3;
                }
            }
            Answer::Lapsed => self.begin_again(number),
            Answer::Moved | Answer::Broken => Self::disconnect(client),
            Answer::Revoke(grant, quota) => self.revoked(number, grant, quota),
            Answer::Reply(call, reply) => self.replied(number, call, reply),
        }
    }

    fn ask(&mut self, number: usize, rank: usize, call: Call) {
        let known = self.positions.known;
        let client = &mut self.clients[number];
        client.numbers += 1;
        let name = client.numbers;
        client.call = Some((name, call, known));
        self.send(number, rank, name, Message::Call(call));
    }

    fn give_back(&mut self, number: usize, grant: u64, tail: u64) {
        if let Some(rank) = self.clients[number].rank {
            self.send(number, rank, 0, Message::Call(Call::Release(grant, tail)));
        }
        self.clients[number].hold = None;
    }

    fn revoked(&mut self, number: usize, grant: u64, quota: Option<u64>) {
        let client = &mut self.clients[number];
        match client.hold {
            Some(hold) if hold.grant == grant => {
                let bound = quota.map(|quota| (hold.first + quota).min(hold.bound));
                match bound {
                    Some(bound) if hold.tail < bound => {
                        client.hold = Some(Hold { bound, ending: true, ..hold });
                    }
                    _ => self.give_back(number, grant, hold.tail),
                }
            }
            // It is looked at when the number of the grant is known.
            _ if matches!(client.call, Some((_, Call::Acquire | Call::Assert(_), _))) => {
                client.early = Some((grant, quota));
            }
            _ => {
                if let Some(rank) = client.rank {
                    self.send(number, rank, 0, Message::Call(Call::Release(grant, u64::MAX)));
                }
            }
        }
    }

    fn replied(&mut self, number: usize, name: u64, reply: Reply) {
        let Some((_, call, known)) = self.clients[number].call.take_if(|(call, _, _)| *call == name) else {
            return;
        };
        match (call, reply) {
            (Call::Next(count), Reply::Positions { first, caches }) => {
                self.clients[number].round_trip = !caches;
                self.hand_out(number, first, count, known);
            }
            (Call::Read, Reply::Positions { first, .. }) => {
                if first < known && !self.zombies {
                    self.failure = Some(format!("a tail of {first} was read when {known} was known"));
                }
            }
            (Call::Acquire, Reply::Granted { grant, first, bound }) => {
                if first >= bound {
                    return self.failure =
                        Some(format!("grant {grant} has no positions: {first} to {bound}"));
                }
                let hold = Hold { grant, first, tail: first + 1, bound, ending: false };
                self.hand_out(number, first, 1, known);
                let early = self.clients[number].early.take();
                self.clients[number].hold = Some(hold);
                if let Some((early, quota)) = early.filter(|(early, _)| *early == grant) {
                    self.revoked(number, early, quota);
                }
            }
            (Call::Extend(_), Reply::Granted { grant, bound, .. }) => {
                if let Some(hold) = self.clients[number].hold.as_mut()
                    && hold.grant == grant
                    && !hold.ending
                {
                    hold.bound = bound;
                }
            }
            (Call::Assert(before), Reply::Granted { grant, .. }) => {
                if let Some(hold) = self.clients[number].hold.as_mut()
                    && hold.grant == before
                {
                    hold.grant = grant;
                    let early = self.clients[number].early.take();
                    if let Some((early, quota)) = early.filter(|(early, _)| *early == grant) {
                        self.revoked(number, early, quota);
                    }
                }
            }
            (Call::Assert(grant) | Call::Extend(grant), _) => {
                self.clients[number].hold.take_if(|hold| hold.grant == grant);
            }
            (Call::Acquire, Reply::NotCached) => self.clients[number].round_trip = true,
            (Call::Acquire, Reply::NotHeld) => Self::disconnect(&mut self.clients[number]),
            _ => self.failure = Some(format!("{call:?} was answered by {reply:?}")),
        }
    }

    fn hand_out(&mut self, number: usize, first: u64, count: u64, known: u64) {
        if self.trace {
            println!("{:?} client {number} has {first} and {count} in all", self.agenda.now);
        }
        let client = &mut self.clients[number];
        // A rank without authority may not be asked twice by one client: epochs only grow.
        let failure = self.positions.hand_out(&mut client.last, first, count, known, !self.zombies);
        if let Some(failure) = failure {
            self.failure = Some(format!("client {number}, at {:?}: {failure}", self.agenda.now));
        }
        client.served_at = self.agenda.now;
    }

    fn step(&mut self, number: usize) {
        let at = self.agenda.within(100, 4000);
        self.agenda.at(at, Event::Client(number));
        let now = self.agenda.now;
        if self.clients[number].paused_until > now {
            return;
        }
        self.lease_over(number);
        let current = self.processes.len() - 1;
        let zombie = (0..current).rev().find(|rank| self.zombies && self.processes[*rank].alive);
        let client = &mut self.clients[number];
        let Some(rank) = client.rank else {
            // A client may not have heard of the new rank.
            let late = client.attaching.is_none_or(|sent| now > sent + Duration::from_millis(30));
            if late {
                client.connection += 1;
                client.attaching = Some(now);
                let session = client.session;
                let to = zombie.filter(|_| self.agenda.rng.random_ratio(1, 3)).unwrap_or(current);
                self.clients[number].target = to;
                self.send(number, to, 0, Message::Attach(session));
            }
            self.use_hold(number);
            return;
        };
        if client.renewing.is_some_and(|sent| now > sent + Duration::from_millis(60)) {
            Self::disconnect(client);
            return;
        }
        if now >= client.renew_at && client.renewing.is_none() {
            client.renewing = Some(now);
            self.send(number, rank, 0, Message::Renew);
        }
        if self.use_hold(number) {
            return;
        }
        let client = &mut self.clients[number];
        if client.call.is_some() {
            return;
        }
        match client.hold {
            Some(hold) if hold.ending => self.give_back(number, hold.grant, hold.tail),
            Some(hold) => self.ask(number, rank, Call::Extend(hold.grant)),
            None if self.agenda.rng.random_ratio(1, 8) => self.ask(number, rank, Call::Read),
            None if client.round_trip || self.agenda.rng.random_ratio(1, 10) => {
                let count = self.agenda.rng.random_range(1..4);
                self.ask(number, rank, Call::Next(count));
            }
            None => self.ask(number, rank, Call::Acquire),
        }
    }

    /// Takes positions from what the client holds. Returns true if there is more.
    fn use_hold(&mut self, number: usize) -> bool {
        let Some(hold) = self.clients[number].hold else { return false };
        if hold.tail >= hold.bound {
            return false;
        }
        // Sometimes so many that more is needed.
        let most = if self.agenda.rng.random_ratio(1, 30) { 3000 } else { 3 };
        let count = self.agenda.rng.random_range(1..=most).min(hold.bound - hold.tail);
        if let Some(hold) = &mut self.clients[number].hold {
            hold.tail += count;
        }
        let known = self.positions.known;
        self.hand_out(number, hold.tail, count, known);
        true
    }
}

fn schedules(first: u64, count: u64, broken: Broken, zombies: bool) -> Result<u64, String> {
    let mut taken = 0;
    for seed in first..first + count {
        taken +=
            World::new(seed, broken, zombies).run().map_err(|failure| format!("seed {seed}: {failure}"))?;
    }
    Ok(taken)
}

/// Returns the number of schedules.
fn count() -> u64 {
    simulation::count(400)
}

#[test]
fn positions_are_handed_out_once_and_in_order_whatever_fails() {
    let taken = schedules(0, count(), Broken::Nothing, false).unwrap();
    assert!(taken > count() * 100, "{taken}");
}

#[test]
fn a_rank_that_goes_on_without_authority_hands_out_nothing_twice() {
    schedules(1 << 32, count(), Broken::Nothing, true).unwrap();
}

#[test]
fn the_checks_notice_broken_rules() {
    for broken in [Broken::Forgets, Broken::NotDurable, Broken::NoLease] {
        assert!(schedules(0, 4000, broken, false).is_err(), "{broken:?}");
    }
    assert!(schedules(1 << 32, 4000, Broken::NoFence, true).is_err());
}
