//! A lock server as shown to people, and the break of a session.

use std::time::Duration;

use super::Handle;
use crate::clock;
use crate::message::SessionId;
use crate::server::{Listed, Wait};
use crate::table::{Mode, RequestKey};
use crate::wire::ServerSlot;

/// A lock request, as shown to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The request.
    pub request: Listed,
}

impl HeldLock {
    /// Returns the mode as a word.
    pub fn mode(&self) -> &'static str {
        match self.request.mode {
            Mode::Shared => "shared",
            Mode::Exclusive => "exclusive",
        }
    }

    /// Returns the state as a word: whether all is held, some is waited for, or the session's lease is gone.
    pub fn state(&self) -> &'static str {
        match &self.request {
            Listed { lapsed: true, .. } => "lapsed",
            Listed { waits: true, .. } => "waits",
            Listed { progress, .. } if progress.next.is_none() => "held",
            _ => "partial",
        }
    }
}

/// The totals of a lock server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// The server's place among the lock servers.
    pub slot: ServerSlot,
    /// Its epoch.
    pub epoch: u64,
    /// The lease of its sessions.
    pub lease: Duration,
    /// True in the grace period after a restart.
    pub in_grace: bool,
    /// The time that is left of it.
    pub grace_left: Duration,
    /// The number of sessions, those that are being fenced included.
    pub sessions: usize,
    /// The number of requests.
    pub requests: usize,
    /// The number of requests that wait.
    pub waiting: usize,
    /// The number of calls so far.
    pub calls: u64,
    /// The number of replies so far that told of held bytes.
    pub grants: u64,
    /// The number of refused calls so far.
    pub refusals: u64,
    /// The number of fences raised so far.
    pub fences: u64,
    /// The number of cycles of waiting sessions found so far.
    pub cycles: u64,
}

impl Handle {
    /// Returns the totals.
    pub fn totals(&self) -> Totals {
        let core = self.shared.core.lock();
        let (requests, waiting) = core.server.request_counts();
        let settings = core.server.settings();
        Totals {
            slot: self.shared.slot,
            epoch: settings.epoch,
            lease: settings.lease,
            in_grace: core.server.in_grace(),
            grace_left: core.server.grace_left(clock::now()),
            sessions: core.server.sessions(),
            requests,
            waiting,
            calls: core.counts.calls,
            grants: core.counts.grants,
            refusals: core.counts.refusals,
            fences: core.counts.fences,
            cycles: core.counts.cycles,
        }
    }

    /// Returns up to `limit` lock requests, in the order in which they came, from behind a place in the listing.
    pub fn list(&self, after: Option<RequestKey>, limit: usize) -> Vec<HeldLock> {
        let core = self.shared.core.lock();
        core.server.list(after, limit).into_iter().map(|request| HeldLock { request }).collect()
    }

    /// Returns up to `limit` waits here: which requests wait for which sessions.
    pub fn waits(&self, limit: usize) -> Vec<Wait> {
        self.shared.core.lock().server.waits(limit)
    }

    /// Handles the cycles of waiting sessions that span servers: those that are new are reported, and those that stand are
    /// shown until the next call.
    pub fn note_cycles(&self, new: &[Vec<SessionId>], standing: Vec<Vec<SessionId>>) {
        let mut core = self.shared.core.lock();
        new.iter().for_each(|cycle| core.note_cycle(cycle));
        core.spanning = standing;
    }

    /// Returns the cycles of waiting sessions that span servers, as they were told last.
    pub fn spanning_cycles(&self) -> Vec<Vec<SessionId>> {
        self.shared.core.lock().spanning.clone()
    }

    /// Takes a session's lease away. Its exclusive locks are released once it is fenced at the objects that it may have
    /// written, its shared ones when its lease would have lapsed. Returns whether it had a lease.
    pub fn break_session(&self, session: SessionId) -> bool {
        self.shared.with(|server, _, out| server.break_session(session, out))
    }
}
