//! The table of a server and the caches of its clients together, with messages that are late, overtake each other, or are lost, with
//! clients that stand still, and clocks that differ in speed.

use std::collections::HashMap;
use std::time::Duration;

use nacre_object::{Answer, Done, ObjectId, ReadOp};

use super::cache::{Cache, Course};
use super::client::trusted;
use super::suspension;
use super::table::{LeaseTable, Renewal, Revocation};
use super::wire::Granted;

const LENGTH: Duration = Duration::from_secs(2);
const CLIENTS: usize = 3;
const OBJECTS: usize = 3;

/// A message between a client and the server.
enum Message {
    Lease {
        session: u64,
        number: u64,
        object: usize,
    },
    Leased {
        session: u64,
        number: u64,
        object: usize,
        granted: Granted,
    },
    Read {
        token: u64,
        object: usize,
    },
    /// A lease that is asked for together with the answer.
    LeaseAndRead {
        session: u64,
        number: u64,
        object: usize,
    },
    LeasedAndAnswer {
        session: u64,
        number: u64,
        object: usize,
        granted: Granted,
    },
    Answer {
        token: u64,
        object: usize,
        version: u64,
    },
    Revoke {
        session: u64,
        number: u64,
        object: usize,
    },
    GiveBack {
        session: u64,
        number: u64,
        object: usize,
    },
    Renew {
        session: u64,
        sent: Duration,
    },
    Renewed {
        session: u64,
        sent: Duration,
        renewal: Renewal,
    },
}

impl Message {
    fn is_for_server(&self) -> bool {
        matches!(
            self,
            Message::Lease { .. }
                | Message::Read { .. }
                | Message::LeaseAndRead { .. }
                | Message::GiveBack { .. }
                | Message::Renew { .. }
        )
    }
}

struct Client {
    cache: Cache,
    session: Option<u64>,
    /// The speed of its clock, in sixteenths.
    speed: u32,
    /// The number of its connection, by which the server knows it.
    connection: u64,
    renew_at: Duration,
    /// The time until which it does nothing.
    stands_until: Duration,
}

struct World {
    state: u64,
    now: Duration,
    table: LeaseTable,
    objects: Vec<ObjectId>,
    versions: Vec<u64>,
    clients: Vec<Client>,
    /// The messages under way: when they arrive, and at whom or from whom.
    messages: Vec<(Duration, usize, Message)>,
    /// The clients of the sessions.
    owners: HashMap<u64, usize>,
    /// The writes that wait, and since when.
    writing: Vec<(usize, Duration)>,
    hits: u64,
    writes: u64,
    waits: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let client = |index: usize| Client {
            cache: Cache::default(),
            session: None,
            speed: 15 + index as u32,
            connection: index as u64,
            renew_at: Duration::ZERO,
            stands_until: Duration::ZERO,
        };
        World {
            state: seed,
            now: Duration::from_secs(1),
            table: LeaseTable::new(LENGTH, 1),
            objects: (0..OBJECTS).map(|index| format!("o{index}").parse().unwrap()).collect(),
            versions: vec![1; OBJECTS],
            clients: (0..CLIENTS).map(client).collect(),
            messages: Vec::new(),
            owners: HashMap::new(),
            writing: Vec::new(),
            hits: 0,
            writes: 0,
            waits: 0,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % below
    }

    fn clock(&self, client: usize) -> Duration {
        self.now * self.clients[client].speed / 16
    }

    /// Sends a message, which mostly arrives soon.
    fn send(&mut self, client: usize, message: Message) {
        let late = if self.random(20) == 0 { self.random(3000) } else { self.random(20) };
        self.messages.push((self.now + Duration::from_millis(late), client, message));
    }

    fn deliver(&mut self) {
        loop {
            let now = self.now;
            let arrived = |(at, client, message): &(Duration, usize, Message)| {
                let stands = !message.is_for_server() && self.clients[*client].stands_until > now;
                *at <= now && !stands
            };
            let due: Vec<usize> =
                (0..self.messages.len()).filter(|index| arrived(&self.messages[*index])).collect();
            if due.is_empty() {
                return;
            }
            let index = due[self.random(due.len() as u64) as usize];
            let (_, client, message) = self.messages.swap_remove(index);
            match message.is_for_server() {
                true => self.serve(client, message),
                false => self.hear(client, message),
            }
        }
    }

    /// Handles a message at the server.
    fn serve(&mut self, client: usize, message: Message) {
        match message {
            Message::Lease { session, number, object } => {
                let granted = self.grant(session, number, object);
                self.send(client, Message::Leased { session, number, object, granted });
            }
            Message::LeaseAndRead { session, number, object } => {
                let granted = self.grant(session, number, object);
                self.send(client, Message::LeasedAndAnswer { session, number, object, granted });
            }
            Message::Read { token, object } => {
                let version = self.versions[object];
                self.send(client, Message::Answer { token, object, version });
            }
            Message::GiveBack { session, number, object } => {
                self.table.give_back(session, &self.objects[object], number, self.now);
            }
            Message::Renew { session, sent } => {
                let renewal = self.table.renew(session, self.now);
                self.send(client, Message::Renewed { session, sent, renewal });
            }
            _ => unreachable!("a message for a client"),
        }
    }

    fn grant(&mut self, session: u64, number: u64, object: usize) -> Granted {
        match self.table.grant(session, &self.objects[object], number, self.now) {
            true => Granted { number, version: self.versions[object] },
            false => Granted::default(),
        }
    }

    /// Handles a message at a client.
    fn hear(&mut self, client: usize, message: Message) {
        let Client { cache, session: own, .. } = &mut self.clients[client];
        match message {
            Message::Leased { session, number, object, granted } => {
                let is_taken = cache.granted(&self.objects[object], number, session, granted);
                if !is_taken {
                    self.send(client, Message::GiveBack { session, number, object });
                }
            }
            Message::LeasedAndAnswer { session, number, object, granted } => {
                let is_taken = cache.granted(&self.objects[object], number, session, granted);
                if !is_taken {
                    self.send(client, Message::GiveBack { session, number, object });
                } else if granted.number != 0 {
                    cache.learn(&self.objects[object], number, &reads(), &done(granted.version));
                }
            }
            Message::Answer { token, object, version } => {
                cache.learn(&self.objects[object], token, &reads(), &done(version));
            }
            // What is for an earlier session finds nobody: its task has ended.
            Message::Revoke { session, number, object } if *own == Some(session) => {
                cache.revoke(&self.objects[object], session, number);
                self.send(client, Message::GiveBack { session, number, object });
            }
            Message::Renewed { session, sent, renewal } if *own == Some(session) => match renewal {
                Renewal::Renewed => cache.extend(0, session, sent + trusted(LENGTH)),
                Renewal::Unchanged => {}
                Renewal::Lapsed => {
                    cache.lose(0);
                    *own = None;
                }
            },
            _ => {}
        }
    }

    fn read(&mut self, client: usize, object: usize) {
        let clock = self.clock(client);
        match self.clients[client].cache.look(0, &self.objects[object], &reads(), clock) {
            Course::Known(done) => {
                assert_eq!(done.version, self.versions[object], "client {client} at {:?}", self.now);
                self.hits += 1;
            }
            Course::Pass => {}
            Course::Learn(token) => self.send(client, Message::Read { token, object }),
            Course::Ask { token, session } => {
                self.send(client, Message::Lease { session, number: token, object });
                self.send(client, Message::Read { token, object });
            }
        }
    }

    fn read_ahead(&mut self, client: usize, object: usize) {
        let (clock, objects) = (self.clock(client), vec![self.objects[object].clone()]);
        let Some(ahead) = self.clients[client].cache.look_ahead(0, objects, clock) else { return };
        if !ahead.objects.is_empty() {
            let (session, number) = (ahead.session, ahead.first);
            self.send(client, Message::LeaseAndRead { session, number, object });
        }
    }

    fn write(&mut self, client: usize, object: usize) {
        if let Some(lease) = self.clients[client].cache.forget(&self.objects[object]) {
            self.send(client, Message::GiveBack { session: lease.session, number: lease.number, object });
        }
        for Revocation { session, number } in self.table.begin_write(&self.objects[object], self.now) {
            self.send(self.owners[&session], Message::Revoke { session, number, object });
        }
        self.writing.push((object, self.now));
    }

    /// Makes the writes that nothing holds any more.
    fn finish(&mut self, step: Duration) {
        for (object, since) in std::mem::take(&mut self.writing) {
            let waited = self.now - since;
            if self.table.blocked_until(&self.objects[object], self.now).is_some() {
                assert!(waited <= LENGTH + step, "a write waits for {waited:?}");
                self.writing.push((object, since));
                continue;
            }
            self.versions[object] += 1;
            self.table.end_write(&self.objects[object]);
            self.writes += 1;
            self.waits += u64::from(!waited.is_zero());
        }
    }

    /// Opens a session, or renews it.
    fn keep(&mut self, client: usize) {
        let (now, clock) = (self.now, self.clock(client));
        let Client { cache, session, connection, renew_at, .. } = &mut self.clients[client];
        match *session {
            None => {
                let known = suspension::Client { connection: *connection, origin: None };
                let Ok(number) = self.table.open(known, now) else { return };
                *session = Some(number);
                cache.open(0, number, clock + trusted(LENGTH));
                self.owners.insert(number, client);
            }
            Some(session) if now >= *renew_at => {
                *renew_at = now + LENGTH / 4;
                self.send(client, Message::Renew { session, sent: clock });
            }
            Some(_) => {}
        }
    }

    /// Breaks a client's connection, or ends its session in good order.
    fn part(&mut self, client: usize, in_order: bool) {
        let now = self.now;
        let Client { cache, session, .. } = &mut self.clients[client];
        cache.lose(0);
        if let Some(session) = session.take().filter(|_| in_order) {
            self.table.end(session, now);
        }
        self.messages.retain(|(_, other, _)| *other != client);
    }
}

fn reads() -> Vec<ReadOp> {
    vec![ReadOp::Key { key: "k".parse().unwrap() }]
}

fn done(version: u64) -> Done {
    Done { version, existed: true, answers: vec![Answer::Value(None)] }
}

#[test]
fn nothing_stale_is_read_whatever_becomes_of_messages() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        // In some worlds all connections last, so that a client which was late has no leases for long.
        let lasting = seed % 4 == 3;
        for _ in 0..10_000 {
            let step = Duration::from_millis(world.random(10));
            world.now += step;
            let (client, object) =
                (world.random(CLIENTS as u64) as usize, world.random(OBJECTS as u64) as usize);
            let stands = world.clients[client].stands_until > world.now;
            // One that goes on reads before it hears of anything.
            match world.random(200) {
                0..130 if !stands => world.read(client, object),
                130..150 if !stands => world.read_ahead(client, object),
                150..155 if !stands && world.writing.len() < 4 => world.write(client, object),
                155 if world.random(10) == 0 => {
                    let stands_for = Duration::from_millis(world.random(5000));
                    world.clients[client].stands_until = world.now + stands_for;
                }
                156 if world.random(5) == 0 => {
                    let in_order = world.random(2) == 0;
                    world.part(client, in_order);
                }
                157 if !lasting => world.clients[client].connection += CLIENTS as u64,
                _ if !stands => world.keep(client),
                _ => {}
            }
            world.finish(Duration::from_millis(10));
            world.deliver();
            world.finish(Duration::from_millis(10));
        }
        let World { hits, writes, waits, .. } = world;
        let is_lively = hits > 100 && waits > 5 || lasting && hits > 0;
        assert!(is_lively && writes > 30, "seed {seed}: {hits}, {writes}, {waits}");
    }
}
