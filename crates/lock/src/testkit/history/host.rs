//! The servers of a history, and what they keep.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;

use super::{Broken, Event, History, Host};
use crate::message::Call;
use crate::server::{Output, Record, Server};

impl History<'_> {
    pub(super) fn deliver(&mut self, worker: usize, server: u32, generation: u64, call: u64, message: Call) {
        if self.connections[&(worker, server)].generation != generation {
            return;
        }
        self.told.messages += 1;
        self.calls_made += 1;
        let id = self.calls_made;
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
        let epoch = host.epoch;
        let deadline = state.next_deadline().map(|deadline| host.clock.truth(deadline));
        let crashes = host.doomed && !out.is_empty();
        if crashes {
            out.truncate(self.random.random_range(0..=out.len()));
        }
        for output in out {
            match output {
                Output::Reply { call, reply } => {
                    let Some((worker, server, generation, call)) = self.calls.remove(&call) else { continue };
                    let time = self.arrival(worker, server, 1);
                    self.at(time, Event::ToClient { worker, server, generation, call, reply });
                }
                Output::Record(record) => self.hosts[server as usize].keep(record),
                Output::Raise { session, file } => {
                    self.later_up_to(100, Event::Fenced { server, epoch, session, file });
                }
                Output::Cycle { .. } => {}
            }
        }
        if crashes {
            self.crash(server);
        } else if let Some(time) = deadline {
            let time = time.max(self.now + Duration::from_micros(1));
            let host = &mut self.hosts[server as usize];
            if host.tick.is_none_or(|tick| time < tick.0) {
                host.tick = Some((time, self.events_made + 1));
                self.at(time, Event::ServerTick { server });
            }
        }
    }

    pub(super) fn crash(&mut self, server: u32) {
        let host = &mut self.hosts[server as usize];
        host.doomed = false;
        if host.server.take().is_none() {
            return;
        }
        host.epoch += 1;
        for worker in 0..self.workers.len() {
            self.disconnect(worker, server, self.now);
        }
        let longest = if self.random.random_bool(0.5) { 15_000 } else { 50 };
        self.later_up_to(longest, Event::Restart { server });
    }

    pub(super) fn restart(&mut self, server: u32) {
        self.told.restarts += 1;
        let host = &self.hosts[server as usize];
        let settings = self.settings(server, host.epoch);
        let (local, records) = (host.clock.local(self.now), host.records.clone());
        let started = match self.plan.broken {
            Broken::NoGrace => Server::new(settings),
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
        }
    }
}
