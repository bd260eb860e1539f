//! A sequencer that moves between ranks, under schedules from a seed: messages take random times; clients and ranks pause,
//! crash and come back, at each step of a migration; the store takes its time, its replies are lost and its orders repeated,
//! and what a dead rank ordered may take effect late.
//!
//! Checked of every schedule:
//! - No position is handed out twice, also where ranks go on that have lost their authority or the sequencer.
//! - A position is greater than all that were known to somebody before it was asked for, unless such ranks go on.
//! - When the faults are over, every client gets positions again.

use std::collections::HashMap;
use std::time::Duration;

use nacre_meta::capability::Policy;
use nacre_meta::place::{Mode, RankNumber};
use nacre_meta::sequencer::Sequencer;
use nacre_meta::service::{ActiveRank, Call, Output, Record, Reply, StoreOrder};
use nacre_object::ObjectId;
use rand::Rng;

use super::simulation::{self, Agenda, LEASE, Positions, Process, TAKEOVER};

/// The time after which a client that gets no reply asks anew.
const SILENCE: Duration = Duration::from_secs(1);
/// The time with faults, and the time by which everybody must have been served after them.
const FAULTS: Duration = Duration::from_secs(2);
const CALM: Duration = Duration::from_secs(3);
const RANKS: RankNumber = 3;
/// The client of the tickets of migrations.
const NOBODY: usize = usize::MAX;

/// A rule that is broken, to see that the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The tail does not go along.
    NoTail,
    /// Neither fences nor records keep a rank from writing.
    NoFence,
}

#[derive(Clone, Debug)]
enum Event {
    ToRank { process: usize, client: usize, connection: u64, number: u64, call: Call },
    ToClient { client: usize, connection: u64, answer: Answer },
    Effect { process: usize, order: StoreOrder, answered: bool },
    Stored { process: usize, ending: Ending },
    Client(usize),
    Tick(usize),
    Beat(usize),
    TakeOver(RankNumber),
    Fault,
    Move,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Reply(u64, Reply),
    Revoke(RankNumber, u64, Option<u64>),
    Lapsed,
    Broken,
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Loaded(Record),
    LoadedAhead(Record, u64),
    Written,
    Moved,
    Superseded,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    /// The process that knows of it.
    process: usize,
    rank: RankNumber,
    grant: u64,
    first: u64,
    tail: u64,
    bound: u64,
    ending: bool,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    number: u64,
    call: Call,
    sent: Duration,
    known: u64,
}

#[derive(Default)]
struct Client {
    session: u64,
    connection: u64,
    target: RankNumber,
    /// The process that is asked.
    at: Option<usize>,
    asked: Option<Asked>,
    hold: Option<Hold>,
    early: Option<(u64, Option<u64>)>,
    lease_until: Duration,
    heard_at: Duration,
    round_trip: bool,
    paused_until: Duration,
    last: Option<u64>,
    served_at: Duration,
    numbers: u64,
    sent_at: Duration,
}

struct World {
    agenda: Agenda<Event>,
    id: ObjectId,
    record: Record,
    fence: u64,
    epochs: HashMap<RankNumber, u64>,
    current: HashMap<RankNumber, usize>,
    processes: Vec<Process>,
    clients: Vec<Client>,
    positions: Positions,
    broken: Broken,
    zombies: bool,
    sessions: u64,
    failure: Option<String>,
    /// The number of times that a process which ended had something to write down.
    settled: u64,
}

impl World {
    fn new(seed: u64, broken: Broken, zombies: bool) -> World {
        let mut world = World {
            agenda: Agenda::new(seed),
            id: "sequencer".parse().unwrap(),
            record: Record::default(),
            fence: 0,
            epochs: HashMap::new(),
            current: HashMap::new(),
            processes: Vec::new(),
            clients: Vec::new(),
            positions: Positions::default(),
            broken,
            zombies,
            sessions: 0,
            failure: None,
            settled: 0,
        };
        world.record.policy = match world.agenda.rng.random_range(0..4) {
            0 => Policy::BestEffort,
            1 => Policy::Hold(Duration::from_millis(world.agenda.rng.random_range(1..100))),
            2 => Policy::Quota { operations: 9, within: Duration::from_millis(20) },
            _ => Policy::RoundTrip,
        };
        for rank in 0..RANKS {
            // Epochs of different ranks have nothing to do with each other.
            let epoch = world.agenda.rng.random_range(0..5);
            world.epochs.insert(rank, epoch);
            world.take_over(rank);
        }
        for client in 0..world.agenda.rng.random_range(1..=4) {
            world.sessions += 1;
            world.clients.push(Client { session: world.sessions, ..Client::default() });
            world.agenda.at(Duration::ZERO, Event::Client(client));
        }
        for _ in 0..world.agenda.rng.random_range(0..10) {
            let at = world.agenda.rng.random_range(Duration::ZERO..FAULTS);
            world.agenda.at(at, Event::Fault);
        }
        for _ in 0..world.agenda.rng.random_range(1..12) {
            let at = world.agenda.rng.random_range(Duration::ZERO..FAULTS);
            world.agenda.at(at, Event::Move);
        }
        world
    }

    /// A new process becomes a rank.
    fn take_over(&mut self, rank: RankNumber) {
        let epoch = self.epochs.entry(rank).or_default();
        *epoch += 1;
        let process = self.processes.len();
        let active = ActiveRank::numbered(rank, *epoch, LEASE);
        self.processes.push(Process::new(active, self.agenda.now + TAKEOVER));
        self.current.insert(rank, process);
        self.agenda.at(self.agenda.now + TAKEOVER / 4, Event::Beat(process));
        self.agenda.at(self.agenda.now, Event::Tick(process));
    }

    fn run(&mut self) -> Result<(u64, u32, u64), String> {
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
                    "client {number} was not served after the faults; last at {:?}; it asks {:?} and holds {:?}; {:?}",
                    client.served_at, client.asked, client.hold, self.record
                ));
            }
        }
        Ok((self.positions.taken, self.record.place.generation, self.settled))
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ToRank { process, client, connection, number, call } => {
                let paused = self.processes[process].paused_until;
                if paused > self.agenda.now {
                    return self
                        .agenda
                        .at(paused, Event::ToRank { process, client, connection, number, call });
                }
                self.rank_receives(process, client, connection, number, call);
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
            Event::Effect { process, order, answered } => {
                let ending = self.effect(process, order, answered);
                if answered {
                    match self.agenda.rng.random_range(0..12) {
                        // The reply is lost, and the order repeated.
                        0 => {
                            let at = self.agenda.within(1000, 30_000);
                            self.agenda.at(at, Event::Effect { process, order, answered });
                        }
                        lot => {
                            let at = self.agenda.within(20, 1000);
                            self.agenda.at(at, Event::Stored { process, ending });
                            if lot == 1 {
                                // An attempt that was given up arrives late.
                                let at = self.agenda.within(100, 50_000);
                                self.agenda.at(at, Event::Effect { process, order, answered: false });
                            }
                        }
                    }
                }
            }
            Event::Stored { process, ending } => self.stored(process, ending),
            Event::Client(client) => self.step(client),
            Event::Tick(process) => {
                if !self.processes[process].alive {
                    return;
                }
                let (now, mut out) = (self.agenda.now, Vec::new());
                if self.processes[process].paused_until <= now {
                    self.processes[process].rank.tick(now, &mut out);
                    self.carry(process, out);
                }
                let at = self.agenda.within(500, 4000);
                self.agenda.at(at, Event::Tick(process));
            }
            Event::Beat(process) => {
                let is_current = self.is_current(process);
                let state = &mut self.processes[process];
                if !state.alive {
                    return;
                }
                if state.paused_until <= self.agenda.now {
                    if !is_current && !self.zombies {
                        // Another one has the authority.
                        return state.alive = false;
                    }
                    state.until = self.agenda.now + TAKEOVER;
                }
                self.agenda.at(self.agenda.now + TAKEOVER / 4, Event::Beat(process));
            }
            Event::TakeOver(rank) => {
                let last = &self.processes[self.current[&rank]];
                if !last.alive || last.until <= self.agenda.now {
                    self.take_over(rank);
                }
            }
            Event::Fault => self.fault(),
            Event::Move => {
                // Whoever has the sequencer, or another one.
                let from =
                    if self.agenda.rng.random_ratio(3, 4) { self.record.place.rank } else { self.any_rank() };
                let (process, to) = (self.current[&from], self.any_rank());
                let call = Call::Move(to, Mode::Client);
                self.agenda.at(
                    self.agenda.now,
                    Event::ToRank { process, client: NOBODY, connection: 0, number: 0, call },
                );
                if self.agenda.rng.random_ratio(1, 3) {
                    // At one of the steps of the migration.
                    let at = self.agenda.within(10, 8000);
                    let crash = Event::Stored { process, ending: Ending::Superseded };
                    self.agenda.at(at, crash);
                }
            }
        }
    }

    fn any_rank(&mut self) -> RankNumber {
        self.agenda.rng.random_range(0..RANKS)
    }

    fn is_current(&self, process: usize) -> bool {
        self.current[&self.processes[process].rank.number()] == process
    }

    fn fault(&mut self) {
        let rank = self.any_rank();
        let process = self.current[&rank];
        let client = self.agenda.rng.random_range(0..self.clients.len());
        let pause = self.agenda.now + Duration::from_millis(self.agenda.rng.random_range(1..800));
        match self.agenda.rng.random_range(0..6) {
            0 => self.end(process),
            5 => self.end_in_order(self.current[&self.record.place.rank]),
            1 => {
                self.processes[process].paused_until = pause;
                // A standby sees that it does not show itself.
                let until = self.processes[process].until.max(self.agenda.now);
                self.agenda.at(until + Duration::from_millis(1), Event::TakeOver(rank));
            }
            2 => self.clients[client].paused_until = pause,
            3 => Self::disconnect(&mut self.clients[client]),
            _ => {
                // The client crashes, and another one begins in its place.
                self.sessions += 1;
                let Client { connection, served_at, sent_at, .. } = self.clients[client];
                let (session, connection) = (self.sessions, connection + 1);
                self.clients[client] =
                    Client { session, connection, served_at, sent_at, ..Client::default() };
            }
        }
    }

    /// A process ends, and writes down where the sequencer ended. That may take effect late, and somebody take over before.
    fn end_in_order(&mut self, process: usize) {
        for (_, before, after) in self.processes[process].rank.settled() {
            let at = self.agenda.within(50, 50_000);
            let order = StoreOrder::Write(before, after);
            self.agenda.at(at, Event::Effect { process, order, answered: false });
            self.settled += 1;
        }
        self.end(process);
        let (rank, at) = (self.processes[process].rank.number(), self.agenda.within(50, 50_000));
        self.agenda.at(at, Event::TakeOver(rank));
    }

    /// A process is gone, and another one takes over.
    fn end(&mut self, process: usize) {
        self.processes[process].alive = false;
        let mut waiting: Vec<_> = self.processes[process].tickets.drain().map(|(_, of)| of).collect();
        waiting.sort_unstable();
        for (client, connection, _) in waiting {
            self.answer(client, connection, Answer::Broken);
        }
        let (rank, until) = (self.processes[process].rank.number(), self.processes[process].until);
        self.agenda.at(until.max(self.agenda.now), Event::TakeOver(rank));
    }

    fn answer(&mut self, client: usize, connection: u64, answer: Answer) {
        if client != NOBODY {
            let at = self.agenda.within(20, 1000);
            self.agenda.at(at, Event::ToClient { client, connection, answer });
        }
    }

    fn rank_receives(&mut self, process: usize, client: usize, connection: u64, number: u64, call: Call) {
        let now = self.agenda.now;
        // What comes over an earlier connection is not handled.
        if client != NOBODY && self.clients[client].connection != connection {
            return;
        }
        let state = &mut self.processes[process];
        if !state.alive || state.until <= now && !self.zombies {
            return self.answer(client, connection, Answer::Broken);
        }
        let session = (client != NOBODY).then(|| self.clients[client].session);
        let mut out = Vec::new();
        state.rank.tick(now, &mut out);
        let renewed = session.is_none_or(|session| state.rank.renew(now, session));
        if let Some(session) = session.filter(|_| renewed) {
            state.attached.insert(session, (client, connection));
        }
        if renewed {
            state.next_ticket += 1;
            let ticket = state.next_ticket;
            state.tickets.insert(ticket, (client, connection, number));
            let at_once = match call {
                Call::Next(count) => state.rank.next_at_once(now, &self.id, count, &mut out),
                _ => None,
            };
            match at_once {
                Some(reply) => out.push(Output::Reply(ticket, reply)),
                None => state.rank.call(now, ticket, session, &self.id, call, &mut out),
            }
        }
        self.carry(process, out);
        if !renewed {
            self.answer(client, connection, Answer::Lapsed);
        }
    }

    fn carry(&mut self, process: usize, out: Vec<Output>) {
        let rank = self.processes[process].rank.number();
        for output in out {
            match output {
                Output::Reply(ticket, reply) => {
                    let known = self.processes[process].tickets.remove(&ticket);
                    let Some((client, connection, number)) = known else { continue };
                    let acts = self.zombies || self.agenda.now < self.processes[process].until;
                    let answer = if acts { Answer::Reply(number, reply) } else { Answer::Broken };
                    self.answer(client, connection, answer);
                }
                Output::Revoke { session, grant, quota, .. } => {
                    let attached = self.processes[process].attached.get(&session).copied();
                    if let Some((client, connection)) = attached {
                        self.answer(client, connection, Answer::Revoke(rank, grant, quota));
                    }
                }
                Output::Lapsed(session) => _ = self.processes[process].attached.remove(&session),
                Output::Store(_, order) => {
                    let at = self.agenda.within(50, 3000);
                    self.agenda.at(at, Event::Effect { process, order, answered: true });
                }
            }
        }
    }

    /// An order reaches the store, whether the rank that gave it is there or not. One that is not answered comes late.
    fn effect(&mut self, process: usize, order: StoreOrder, answered: bool) -> Ending {
        let (number, epoch) = (self.processes[process].rank.number(), self.processes[process].rank.epoch());
        let fences = self.broken != Broken::NoFence;
        match order {
            StoreOrder::Load { .. } if self.record.place.rank != number => Ending::Loaded(self.record),
            StoreOrder::Load { reserves } => {
                let token = self.record.place.token(epoch);
                if fences && token < self.fence {
                    return Ending::Superseded;
                }
                self.fence = self.fence.max(token);
                let before = self.record;
                // A late attempt finds another record than the one that it looked at, and reserves nothing.
                if !reserves || !answered || before.cached.is_some() {
                    return Ending::Loaded(before);
                }
                self.record.reserved = Sequencer::first_bound(before.reserved);
                Ending::LoadedAhead(self.record, before.reserved)
            }
            StoreOrder::Write(before, after) => {
                let passes = before.place.token(epoch) >= self.fence && self.record == before;
                if passes || !fences {
                    self.record = after;
                }
                match self.record == after {
                    true => Ending::Written,
                    false => Ending::Superseded,
                }
            }
            StoreOrder::Move(before, after) => {
                let passes = before.place.token(epoch) >= self.fence && self.record == before;
                if passes || !fences {
                    self.record = after;
                    self.fence = self.fence.max(after.place.token(0));
                    if self.broken == Broken::NoTail {
                        self.record.reserved = 0;
                    }
                }
                match self.record.place.generation >= after.place.generation {
                    true => Ending::Moved,
                    false => Ending::Superseded,
                }
            }
            StoreOrder::Create(_) | StoreOrder::Remove(_) => unreachable!("nobody asks for it"),
        }
    }

    fn stored(&mut self, process: usize, ending: Ending) {
        let (now, id) = (self.agenda.now, self.id.clone());
        let state = &mut self.processes[process];
        if !state.alive {
            return;
        }
        if state.paused_until > now {
            let at = state.paused_until;
            return self.agenda.at(at, Event::Stored { process, ending });
        }
        let mut out = Vec::new();
        match ending {
            Ending::Loaded(record) => state.rank.loaded(now, &id, Some(record), &mut out),
            Ending::LoadedAhead(record, tail) => state.rank.loaded_ahead(now, &id, record, tail, &mut out),
            Ending::Written => state.rank.written(now, &id, &mut out),
            Ending::Moved => state.rank.moved(now, &id, &mut out),
            Ending::Superseded => return self.end(process),
        }
        self.carry(process, out);
        if let Ending::Moved = ending {
            // The other rank is told, which may come when it has moved on.
            let (process, at) = (self.current[&self.record.place.rank], self.agenda.within(20, 1000));
            let call = Call::Expect;
            self.agenda.at(at, Event::ToRank { process, client: NOBODY, connection: 0, number: 0, call });
        }
    }

    /// Gives up what a client holds whose lease is over.
    fn lease_over(&mut self, client: usize) {
        if self.clients[client].hold.is_some() && self.clients[client].lease_until <= self.agenda.now {
            self.begin_again(client);
        }
    }

    fn begin_again(&mut self, client: usize) {
        self.sessions += 1;
        let session = self.sessions;
        let client = &mut self.clients[client];
        (client.hold, client.session) = (None, session);
        Self::disconnect(client);
    }

    fn disconnect(client: &mut Client) {
        client.connection += 1;
        (client.at, client.asked, client.early) = (None, None, None);
    }

    fn send(&mut self, number: usize, name: u64, call: Call) {
        let at = self.agenda.within(20, 1000).max(self.clients[number].sent_at);
        let client = &mut self.clients[number];
        client.sent_at = at;
        let (Some(process), connection) = (client.at, client.connection) else { return };
        self.agenda.at(at, Event::ToRank { process, client: number, connection, number: name, call });
    }

    fn client_receives(&mut self, number: usize, answer: Answer) {
        match answer {
            Answer::Lapsed => self.begin_again(number),
            Answer::Broken => Self::disconnect(&mut self.clients[number]),
            Answer::Revoke(rank, grant, quota) => self.revoked(number, rank, grant, quota),
            Answer::Reply(name, reply) => self.replied(number, name, reply),
        }
    }

    fn give_back(&mut self, number: usize, grant: u64, tail: u64) {
        self.send(number, 0, Call::Release(grant, tail));
        self.clients[number].hold = None;
    }

    fn revoked(&mut self, number: usize, rank: RankNumber, grant: u64, quota: Option<u64>) {
        let client = &mut self.clients[number];
        match client.hold.filter(|hold| hold.rank == rank) {
            Some(hold) if hold.grant == grant => {
                let bound = quota.map(|quota| (hold.first + quota).min(hold.bound));
                match bound {
                    Some(bound) if hold.tail < bound => {
                        client.hold = Some(Hold { bound, ending: true, ..hold });
                    }
                    _ => self.give_back(number, grant, hold.tail),
                }
            }
            Some(hold) if grant < hold.grant => {}
            // It is looked at when the number of the grant is known.
            _ if client.asked.is_some_and(|asked| matches!(asked.call, Call::Acquire | Call::Assert(_))) => {
                client.early = Some((grant, quota));
            }
            // A grant that was never heard of is not used.
            unheard => {
                client.hold = client.hold.filter(|_| unheard.is_none());
                self.send(number, 0, Call::Release(grant, u64::MAX));
            }
        }
    }

    fn replied(&mut self, number: usize, name: u64, reply: Reply) {
        let now = self.agenda.now;
        let client = &mut self.clients[number];
        let Some(asked) = client.asked.take_if(|asked| asked.number == name) else { return };
        let Some(process) = client.at else { return };
        let rank = self.processes[process].rank.number();
        (client.lease_until, client.heard_at) = (asked.sent + LEASE, now);
        match (asked.call, reply) {
            (_, Reply::Elsewhere(place)) => {
                client.hold = None;
                client.target = place.rank;
                (client.at, client.early, client.round_trip) = (None, None, false);
            }
            (Call::Next(count), Reply::Positions { first, caches }) => {
                client.round_trip = !caches;
                self.hand_out(number, first, count, asked.known);
            }
            (Call::Read, Reply::Positions { first, .. }) => {
                if first < asked.known && !self.zombies {
                    self.failure = Some(format!("a tail of {first} was read when {} was known", asked.known));
                }
            }
            (Call::Look, Reply::Shown(_)) => {}
            (Call::Acquire, Reply::Granted { grant, first, bound }) => {
                let hold = Hold { process, rank, grant, first, tail: first + 1, bound, ending: false };
                client.hold = Some(hold);
                let early = client.early.take().filter(|(early, _)| *early == grant);
                self.hand_out(number, first, 1, asked.known);
                if let Some((grant, quota)) = early {
                    self.revoked(number, rank, grant, quota);
                }
            }
            (Call::Extend(_), Reply::Granted { grant, bound, .. }) => {
                if let Some(hold) = client.hold.as_mut().filter(|hold| hold.grant == grant && !hold.ending) {
                    hold.bound = hold.bound.max(bound);
                }
            }
            (Call::Assert(_), Reply::Granted { grant, .. }) => {
                if let Some(hold) = client.hold.as_mut() {
                    (hold.grant, hold.process) = (grant, process);
                }
                let early = client.early.take().filter(|(early, _)| *early == grant);
                if let Some((grant, quota)) = early {
                    self.revoked(number, rank, grant, quota);
                }
            }
            (Call::Assert(_) | Call::Extend(_), _) => client.hold = None,
            (Call::Acquire, Reply::NotCached) => client.round_trip = true,
            (Call::Acquire, Reply::NotHeld) => Self::disconnect(client),
            (call, reply) => self.failure = Some(format!("{call:?} was answered by {reply:?}")),
        }
    }

    fn hand_out(&mut self, number: usize, first: u64, count: u64, known: u64) {
        let client = &mut self.clients[number];
        let failure = self.positions.hand_out(&mut client.last, first, count, known, !self.zombies);
        if let Some(failure) = failure {
            self.failure = Some(format!("client {number}, at {:?}: {failure}", self.agenda.now));
        }
        client.served_at = self.agenda.now;
    }

    /// Returns the process that a client takes for a rank.
    fn route(&mut self, rank: RankNumber) -> usize {
        let current = self.current[&rank];
        let is_zombie = |process: &usize| {
            let state = &self.processes[*process];
            self.zombies && state.alive && state.rank.number() == rank && *process != current
        };
        let zombie = (0..self.processes.len()).rev().find(is_zombie);
        zombie.filter(|_| self.agenda.rng.random_ratio(1, 3)).unwrap_or(current)
    }

    fn step(&mut self, number: usize) {
        let at = self.agenda.within(100, 4000);
        self.agenda.at(at, Event::Client(number));
        let now = self.agenda.now;
        if self.clients[number].paused_until > now {
            return;
        }
        self.lease_over(number);
        let has_more = self.use_hold(number);
        if let Some(asked) = self.clients[number].asked {
            if now > asked.sent + SILENCE {
                Self::disconnect(&mut self.clients[number]);
            }
            return;
        }
        if self.clients[number].at.is_none() {
            let rank = self.clients[number].hold.map_or(self.clients[number].target, |hold| hold.rank);
            self.clients[number].at = Some(self.route(rank));
        }
        let client = &self.clients[number];
        let call = match client.hold {
            Some(hold) if client.at != Some(hold.process) => Call::Assert(hold.grant),
            Some(_) if has_more && now < client.heard_at + LEASE / 4 => return,
            Some(_) if has_more => Call::Look,
            Some(hold) if hold.ending => return self.give_back(number, hold.grant, hold.tail),
            Some(hold) => Call::Extend(hold.grant),
            None => match self.agenda.rng.random_range(0..10) {
                0 => Call::Read,
                // Sometimes so many that more has to be reserved.
                1 => Call::Next(3000),
                lot if lot < 4 || client.round_trip => Call::Next(self.agenda.rng.random_range(1..4)),
                _ => Call::Acquire,
            },
        };
        let known = self.positions.known;
        let client = &mut self.clients[number];
        client.numbers += 1;
        let name = client.numbers;
        client.asked = Some(Asked { number: name, call, sent: now, known });
        self.send(number, name, call);
    }

    /// Takes positions from what the client holds. Returns true if there is more.
    fn use_hold(&mut self, number: usize) -> bool {
        let Some(hold) = self.clients[number].hold else { return false };
        if hold.tail >= hold.bound {
            return false;
        }
        let most = if self.agenda.rng.random_ratio(1, 30) { 3000 } else { 3 };
        let count = self.agenda.rng.random_range(1..=most).min(hold.bound - hold.tail);
        if let Some(hold) = &mut self.clients[number].hold {
            hold.tail += count;
        }
        let known = self.positions.known;
        self.hand_out(number, hold.tail, count, known);
        hold.tail + count < hold.bound
    }
}

/// Runs schedules. Returns how many positions were taken, how often the sequencer moved, and how often somebody wrote down at its
/// end where it ended.
fn schedules(first: u64, count: u64, broken: Broken, zombies: bool) -> Result<(u64, u64, u64), String> {
    let mut sum = (0, 0, 0);
    for seed in first..first + count {
        let run = World::new(seed, broken, zombies).run();
        let (positions, generation, settled) = run.map_err(|failure| format!("seed {seed}: {failure}"))?;
        sum = (sum.0 + positions, sum.1 + u64::from(generation), sum.2 + settled);
    }
    Ok(sum)
}

/// Returns the number of schedules.
fn count() -> u64 {
    simulation::count(60)
}

#[test]
fn a_sequencer_that_moves_gives_each_position_once_and_in_order() {
    let (taken, moved, settled) = schedules(0, count(), Broken::Nothing, false).unwrap();
    assert!(taken > count() * 100 && moved > count(), "{taken} positions, {moved} migrations");
    assert!(settled > 0, "nobody ends in order");
}

#[test]
fn ranks_that_all_believe_to_have_a_sequencer_give_no_position_twice() {
    let (_, moved, _) = schedules(1 << 32, count(), Broken::Nothing, true).unwrap();
    assert!(moved > count(), "{moved} migrations");
}

#[test]
fn the_checks_notice_broken_rules() {
    assert!(schedules(0, 1000, Broken::NoTail, false).is_err());
    assert!(schedules(1 << 32, 4000, Broken::NoFence, true).is_err());
}
