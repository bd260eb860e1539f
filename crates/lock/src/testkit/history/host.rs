//! The servers of a history, and what they keep.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;

use super::{Broken, Event, History, Host};
use crate::message::Call;
use crate::server::{Backlog, Output, Record, Server};

impl History<'_> {
    pub(super) fn deliver(&mut self, worker: usize, server: u32, generation: u64, call: u64, message: Call) {
        if self.connections[&(worker, server)].generation != generation {
            return;
        }
        self.counts.messages += 1;
        self.calls_created += 1;
        let id = self.calls_created;
        self.calls.insert(id, (worker, server, generation, call));
        let session = self.workers[worker].client.session();
        self.with_server(server, |server, now, out| server.handle(now, session, id, message, out));
    }

    /// Lets a server do something, and carries out what it says.
    pub(super) fn with_server(
        &mut self,
        server: u32,
        act: impl FnOnce(&mut Server, Duration, &mut Vec<Output>),
    ) {
        let host = &mut self.hosts[server as usize];
        let local = host.clock.local(self.now);
        let Some(state) = &mut host.server else { return };
        let mut out = Vec::new();
        act(state, local, &mut out);
        let deadline = state.next_deadline().map(|deadline| host.clock.truth(deadline));
        let crashes = host.doomed && !out.is_empty();
        if crashes {
            out.truncate(self.random.random_range(0..=out.len()));
        }
        for output in out {
            match self.plan.broken {
                Broken::NoWait => {
                    if let Output::Record(_) = output {
                        self.hosts[server as usize].backlog.pass(output);
                    } else {
                        self.carry_out(server, output);
                    }
                }
                _ => {
                    if let Some(output) = self.hosts[server as usize].backlog.pass(output) {
                        self.carry_out(server, output);
                    }
                }
            }
        }
        self.write_records(server);
        if crashes {
            self.crash(server);
        } else if let Some(time) = deadline {
            let time = time.max(self.now + Duration::from_micros(1));
            let host = &mut self.hosts[server as usize];
            if host.tick.is_none_or(|tick| time < tick.0) {
                host.tick = Some((time, self.events_created + 1));
                self.at(time, Event::ServerTick { server });
            }
        }
    }

    fn carry_out(&mut self, server: u32, output: Output) {
        match output {
            Output::Reply { call, reply, .. } => {
                let Some((worker, server, generation, call)) = self.calls.remove(&call) else { return };
                let time = self.arrival(worker, server, 1);
                self.at(time, Event::ToClient { worker, server, generation, call, reply });
            }
            Output::Raise { session, file } => {
                let epoch = self.hosts[server as usize].epoch;
                self.later_up_to(100, Event::Fenced { server, epoch, session, file });
            }
            Output::Record(_) | Output::Cycle { .. } => {}
        }
    }

    /// Begins to write what a server wants to be durable, unless it writes already.
    fn write_records(&mut self, server: u32) {
        let host = &mut self.hosts[server as usize];
        if host.writing.is_some() || host.server.is_none() || !host.backlog.has_work() {
            return;
        }
        let begins = host.backlog.needs_epoch();
        host.writing = Some((begins, host.backlog.take()));
        let (epoch, stuck_until) = (host.epoch, host.stuck_until);
        // Most writes are fast, and some take as long as a lease.
        let longest = if self.random.random_bool(0.02) { 12_000_000 } else { 5_000 };
        let delay = Duration::from_micros(self.random.random_range(1..=longest));
        self.at((self.now + delay).max(stuck_until), Event::Written { server, epoch });
    }

    /// Notes that the records which a server writes are durable.
    pub(super) fn written(&mut self, server: u32, epoch: u64) {
        let host = &mut self.hosts[server as usize];
        if host.epoch != epoch {
            return;
        }
        if host.stuck_until > self.now {
            let until = host.stuck_until;
            return self.at(until, Event::Written { server, epoch });
        }
        let Some((begins, records)) = host.writing.take() else { return };
        host.has_begun |= begins;
        records.into_iter().for_each(|record| host.keep(record));
        let mut ready = host.backlog.written();
        if begins {
            ready.extend(host.backlog.begin());
        }
        if self.plan.broken != Broken::NoWait {
            ready.into_iter().for_each(|output| self.carry_out(server, output));
        }
        self.write_records(server);
    }

    pub(super) fn crash(&mut self, server: u32) {
        let host = &mut self.hosts[server as usize];
        host.doomed = false;
        if host.server.take().is_none() {
            return;
        }
        host.epoch += 1;
        host.backlog = Backlog::default();
        // What was being written is durable or not.
        let (writing, durable) = (host.writing.take(), self.random.random_bool(0.5));
        if let Some((begins, records)) = writing.filter(|_| durable) {
            host.has_begun |= begins;
            records.into_iter().for_each(|record| host.keep(record));
        }
        for worker in 0..self.workers.len() {
            self.disconnect(worker, server, self.now);
        }
        let longest = if self.random.random_bool(0.5) { 15_000 } else { 50 };
        self.later_up_to(longest, Event::Restart { server });
    }

    pub(super) fn restart(&mut self, server: u32) {
        self.counts.restarts += 1;
        let host = &self.hosts[server as usize];
        let settings = self.settings(server, host.epoch);
        let (local, records) = (host.clock.local(self.now), host.records.clone());
        let started = match self.plan.broken {
            Broken::NoGrace => Server::new(settings),
            _ if !host.has_begun => Server::new(settings),
            Broken::NoRecords => Server::restarted(local, settings, BTreeMap::new()),
            _ => Server::restarted(local, settings, records),
        };
        self.hosts[server as usize].server = Some(started);
        self.with_server(server, |_, _, _| {});
    }
}

impl Host {
    pub(super) fn keep(&mut self, record: Record) {
        match record {
            Record::Uses { session, file } => _ = self.records.entry(session).or_default().insert(file),
            Record::Left { session, file } => {
                if let Some(files) = self.records.get_mut(&session)
                    && files.remove(&file)
                    && files.is_empty()
                {
                    self.records.remove(&session);
                }
            }
            Record::Gone { session } => _ = self.records.remove(&session),
            // The store of a history keeps every fence singly.
            Record::Floor { .. } => {}
        }
    }
}
