//! The part of programs in the table of capabilities: what they are told, when they are asked, and what becomes of their answers.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use super::program::{Decision, Party, Programs, SWAY, Undecided, View, WAITERS_MAX};
use super::{
    Capabilities, Counts, Lease, Policy, Resource, Revocation, Session, Ticket, UNKNOWN, Waiter, Wanted,
    shown,
};

/// The most sessions whose use of a resource is remembered for a program.
const PAST_MAX: usize = 1024;

/// A session's use of a resource, as it is remembered for a program.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Past {
    pub requests: u64,
    pub grants: u64,
    pub operations: u64,
    /// The time of the latest of them.
    latest: Duration,
}

impl Wanted {
    pub(super) fn session(self) -> Option<Session> {
        match self {
            Wanted::Cache(session) => Some(session),
            Wanted::Serve(session) => session,
        }
    }
}

impl Resource {
    /// Returns the time from which on a program decides nothing more, unless nobody waits.
    fn overdue(&self, lease: Duration) -> Option<Duration> {
        self.line.first_key_value().map(|(_, first)| first.since + lease * SWAY)
    }

    /// Takes the next request out of the line.
    pub(super) fn pop(&mut self) -> Option<(Ticket, Waiter)> {
        let chosen = self.chosen.take().and_then(|ticket| self.line.remove_entry(&ticket));
        chosen.or_else(|| self.line.pop_first())
    }

    /// Returns what is remembered of a session that uses it now. Of too many, those that used it longest ago are forgotten.
    pub(super) fn past(&mut self, now: Duration, session: Session) -> &mut Past {
        if self.past.len() >= PAST_MAX && !self.past.contains_key(&session) {
            let oldest = self.past.iter().min_by_key(|(_, past)| past.latest).map(|(session, _)| *session);
            if let Some(oldest) = oldest {
                self.past.remove(&oldest);
            }
        }
        let past = self.past.entry(session).or_default();
        past.latest = now;
        past
    }

    /// Returns a session as a program sees it.
    pub(super) fn party(
        &self,
        sessions: &BTreeMap<Session, Lease>,
        session: Option<Session>,
        time: Duration,
    ) -> Party {
        let Some(session) = session else { return Party { time, ..Party::default() } };
        let past = self.past.get(&session).copied().unwrap_or_default();
        Party {
            session: shown(session),
            order: sessions.get(&session).map_or(0, |lease| lease.order),
            time,
            requests: past.requests,
            grants: past.grants,
            operations: past.operations,
            is_round_trip: false,
        }
    }

    /// Returns those who wait as a program sees them, with their tickets.
    fn waiters(&self, now: Duration, sessions: &BTreeMap<Session, Lease>) -> (Vec<Ticket>, Vec<Party>) {
        let first = self.line.iter().take(WAITERS_MAX);
        first
            .map(|(ticket, waiter)| {
                let time = now.saturating_sub(waiter.since);
                let party = self.party(sessions, waiter.wanted.session(), time);
                let is_round_trip = matches!(waiter.wanted, Wanted::Serve(_));
                (*ticket, Party { is_round_trip, ..party })
            })
            .unzip()
    }

    /// Has a program choose who gets the resource when it was given back and several wait.
    pub(super) fn choose(
        &mut self,
        now: Duration,
        lease: Duration,
        sessions: &BTreeMap<Session, Lease>,
        programs: Option<&dyn Programs>,
        counts: &mut Counts,
    ) {
        let Policy::Lua(name) = self.policy else { return };
        let released = self.released.take();
        if self.overdue(lease).is_some_and(|overdue| overdue <= now) {
            self.chosen = None;
            return;
        }
        let (Some(holder), Some(programs)) = (released, programs) else { return };
        if self.hold.is_some() || self.frozen || self.line.len() < 2 {
            return;
        }
        let (tickets, waiters) = self.waiters(now, sessions);
        match programs.on_release(now, name, &View { lease, holder, waiters: &waiters }) {
            Ok(next) => {
                counts.decisions += 1;
                self.chosen = next.and_then(|next| tickets.get(next).copied()).or(self.chosen);
            }
            Err(Undecided) => {
                counts.undecided += 1;
                self.chosen = None;
            }
        }
    }

    /// Has a program decide when the holder is asked for the resource, if somebody waits for it and that is open. Returns
    /// whether it is asked later.
    pub(super) fn decide(
        &mut self,
        now: Duration,
        lease: Duration,
        sessions: &BTreeMap<Session, Lease>,
        programs: Option<&dyn Programs>,
        counts: &mut Counts,
    ) -> bool {
        let (Policy::Lua(name), Some(programs)) = (self.policy, programs) else { return false };
        let Some(overdue) = self.overdue(lease).filter(|overdue| now < *overdue) else { return false };
        let Some(hold) = &self.hold else { return false };
        if self.frozen || hold.session == UNKNOWN || hold.revocation != Revocation::No {
            return false;
        }
        let holder = self.party(sessions, Some(hold.session), now.saturating_sub(hold.since));
        let (tickets, waiters) = self.waiters(now, sessions);
        let decided = programs.on_request(now, name, &View { lease, holder, waiters: &waiters });
        let Ok(Decision { after, next }) = decided else {
            counts.undecided += 1;
            self.chosen = None;
            return false;
        };
        counts.decisions += 1;
        self.chosen = next.and_then(|next| tickets.get(next).copied());
        let until = now.saturating_add(after).min(overdue);
        let Some(hold) = self.hold.as_mut().filter(|_| until > now) else { return false };
        hold.revocation = Revocation::Later(until);
        true
    }
}

impl<R: Clone + Eq + Hash + Ord> Capabilities<R> {
    /// Sets the programs that decide where the policy is one. Without them, that is best effort.
    pub fn set_programs(&mut self, programs: Option<Arc<dyn Programs>>) {
        self.programs = programs;
    }

    /// Has the program of a policy prepared, if it is one.
    pub(super) fn prepare(&self, policy: Policy) {
        if let (Policy::Lua(name), Some(programs)) = (policy, &self.programs) {
            programs.prepare(name);
        }
    }
}
