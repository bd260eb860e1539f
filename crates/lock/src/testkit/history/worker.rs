//! The clients of a history, and their connections.

use std::time::Duration;

use rand::Rng;

use super::{Event, History, User, Violation};
use crate::client::{Action, Client, Ended, Method, OperationId, Protocol, Wanted};
use crate::table::Mode;
use crate::{Pattern, Region};

impl History<'_> {
    pub(super) fn begin(&mut self, worker: usize) {
        let file_bytes = self.plan.file_bytes;
        let random = &mut self.random;
        let file = random.random_range(0..self.plan.files);
        let base = file as u64 * file_bytes;
        let pattern = match random.random_range(0..3) {
            0 => {
                let offset = random.random_range(0..file_bytes);
                Pattern::contiguous(base + offset, random.random_range(1..=file_bytes - offset))
            }
            1 => {
                let stride = random.random_range(2..file_bytes / 4);
                let first = random.random_range(0..stride);
                let regions =
                    (first..file_bytes).step_by(stride as usize).map(|at| Region::new(base + at, 1));
                Pattern::list(&regions.collect::<Vec<_>>())
            }
            _ => {
                let regions = (0..3).map(|_| Region::new(base + random.random_range(0..file_bytes), 1));
                Pattern::list(&regions.collect::<Vec<_>>())
            }
        };
        let methods = Method::NAMES.map(|name| name.1);
        let protocols = Protocol::NAMES.map(|name| name.1);
        let wanted = Wanted {
            file: format!("file {file}").into(),
            operation: 0,
            first_number: 0,
            mode: if random.random_bool(0.3) { Mode::Shared } else { Mode::Exclusive },
            // The bytes of a file are far below what a pattern can reach.
            pattern: pattern.unwrap_or_else(|_| Pattern::empty()),
            stripe_bytes: self.plan.stripe_bytes,
            servers: self.plan.servers,
            method: self.plan.method.unwrap_or_else(|| methods[random.random_range(0..methods.len())]),
            protocol: self
                .plan
                .protocol
                .unwrap_or_else(|| protocols[random.random_range(0..protocols.len())]),
            waits: random.random_bool(0.9),
        };
        let gives_up = random.random_bool(0.1);
        self.with_client(worker, |client, now, actions| {
            // A stripe of a plan is possible.
            _ = client.lock(now, wanted, actions);
        });
        let found = &self.workers[worker];
        let (incarnation, current) = (found.incarnation, found.current);
        if let Some(operation) = current.filter(|_| gives_up) {
            self.later_up_to(2000, Event::Release { worker, incarnation, operation });
        }
    }

    /// Lets a client do something, and carries out what it says.
    pub(super) fn with_client(
        &mut self,
        worker: usize,
        act: impl FnOnce(&mut Client, Duration, &mut Vec<Action>),
    ) {
        let mut actions = Vec::new();
        let found = &mut self.workers[worker];
        let local = found.clock.local(self.now);
        act(&mut found.client, local, &mut actions);
        found.current = found.client.newest_operation();
        let (clock, incarnation) = (found.clock, found.incarnation);
        if let Some(deadline) = found.client.next_deadline() {
            let time = clock.truth(deadline).max(self.now + Duration::from_micros(1));
            if found.tick.is_none_or(|tick| time < tick.0) {
                found.tick = Some((time, self.events_created + 1));
                self.at(time, Event::ClientTick { worker });
            }
        }
        for action in actions {
            match action {
                Action::Connect { server } => {
                    self.connections.entry((worker, server)).or_default().wanted = true;
                    self.later_up_to(5, Event::Connect { worker, server });
                }
                Action::Send { server, call, message } => {
                    let generation = self.connections[&(worker, server)].generation;
                    let time = self.arrival(worker, server, 0);
                    self.at(time, Event::ToServer { worker, server, generation, call, message });
                }
                Action::Held(operation) => {
                    self.held(worker, operation);
                    let longest = if self.random.random_bool(0.2) { 5_000 } else { 300 };
                    self.later_up_to(longest, Event::Release { worker, incarnation, operation });
                }
                Action::Ended(_, ended) => {
                    let found = &mut self.workers[worker];
                    if ended != Ended::Lost && found.operations_left > 0 {
                        found.operations_left -= 1;
                        if found.operations_left > 0 {
                            self.later_up_to(200, Event::Begin { worker, incarnation });
                        } else {
                            self.working -= 1;
                        }
                    }
                    self.counts.not_held += u64::from(ended != Ended::Released);
                }
                Action::Lost { .. } => {
                    self.counts.lost += 1;
                    self.later_up_to(1000, Event::Replace { worker });
                }
            }
        }
    }

    /// The time at which a message that is sent now arrives at the server (0) or at the client (1).
    pub(super) fn arrival(&mut self, worker: usize, server: u32, end: usize) -> Duration {
        // Most are fast, and some are not.
        let slow = self.random.random_bool(0.05);
        let delay = self.random.random_range(50..if slow { 300_000 } else { 1_000 });
        let now = self.now + Duration::from_micros(delay);
        let connection = self.connections.entry((worker, server)).or_default();
        connection.latest[end] = now.max(connection.latest[end] + Duration::from_nanos(1));
        connection.latest[end]
    }

    /// Checks that nobody else may use a byte of a lock that a client has been told to hold.
    pub(super) fn held(&mut self, worker: usize, operation: OperationId) {
        self.counts.held += 1;
        let client = &self.workers[worker].client;
        let Some(acquisition) = client.operation(operation) else { return };
        let wanted = acquisition.wanted();
        let user = User {
            session: client.session(),
            worker,
            operation,
            file: wanted.file.clone(),
            mode: wanted.mode,
            pattern: wanted.pattern.clone(),
        };
        if self.fences.contains(&(user.session, user.file.clone())) {
            // The store refuses what it sends; it will learn that its lease is gone.
            return;
        }
        for other in &self.users {
            if other.file != user.file || !other.mode.conflicts(user.mode) {
                continue;
            }
            let of = &self.workers[other.worker];
            let reads = of.client.session() == other.session && of.client.holds(of.clock.local(self.now));
            if other.mode == Mode::Shared && !reads {
                continue;
            }
            if let Some(byte) = user.pattern.first_common(&other.pattern, 0) {
                let sessions = [other.session, user.session];
                self.violation = Some(Violation::Safety { sessions, byte });
            }
        }
        self.users.push(user);
    }

    pub(super) fn replace(&mut self, worker: usize) {
        let client = self.new_client();
        let found = &mut self.workers[worker];
        found.client = client;
        found.incarnation += 1;
        found.current = None;
        let incarnation = found.incarnation;
        for connection in self.connections.range_mut((worker, 0)..=(worker, u32::MAX)) {
            connection.1.generation += 1;
            connection.1.up = false;
            connection.1.wanted = false;
        }
        self.later_up_to(200, Event::Begin { worker, incarnation });
    }

    pub(super) fn connect(&mut self, worker: usize, server: u32) {
        let up = self.hosts[server as usize].server.is_some();
        let connection = self.connections.entry((worker, server)).or_default();
        if connection.up || !connection.wanted {
            return;
        }
        if !up || connection.cut_until > self.now {
            self.later_up_to(400, Event::Connect { worker, server });
            return;
        }
        connection.up = true;
        self.with_client(worker, |client, now, actions| client.connected(now, server, actions));
    }

    pub(super) fn disconnect(&mut self, worker: usize, server: u32, cut_until: Duration) {
        let Some(connection) = self.connections.get_mut(&(worker, server)) else { return };
        connection.cut_until = connection.cut_until.max(cut_until);
        if connection.up {
            connection.up = false;
            connection.generation += 1;
            self.workers[worker].client.disconnected(server);
            self.later_up_to(400, Event::Connect { worker, server });
        }
    }
}
